"""Rules for every command: lazy imports, help, global options before and after,
one line for a wrong one.
"""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from gossipq_cli.commands.help import ALARM, TOPICS
from gossipq_cli.main import COMMANDS, GROUPS, MOVED, root

HOME = Path(__file__).resolve().parents[2]
ROOT = {"version", "completion"}  #: options of `gossipq` itself
PROSE = {
    "message",
    "directory",
    "uses",
    "reads",
    "that",
    "keeps",
}  #: what may follow the program's name in a sentence
LEAN = {
    "--version": ("msgspec", "zmq", "rich", "lmdb", "asyncio"),
    "--help": ("msgspec", "zmq", "rich", "lmdb", "gossipq_node"),
}


@pytest.mark.parametrize("line", LEAN)
def test_a_short_command_imports_little(line: str) -> None:
    code = (
        f"import sys; from gossipq_cli.main import main; main([{line!r}]); print(*sys.modules, "
        "file=sys.stderr)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert not set(LEAN[line]) & set(done.stderr.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(gossipq, name: str) -> None:
    """The list in `gossipq --help` says what the command's own help says, and its examples begin with its
    name."""
    command = import_module(f"gossipq_cli.commands.{name}").command
    assert command.help.splitlines()[0] == COMMANDS[name]
    ran = gossipq(name, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert any(f"gossipq {name}" in verb.help for verb in with_verbs(command))


def with_verbs(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and all that are below it."""
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from with_verbs(command.get_command(click.Context(command), name))


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_answers_with_the_new_one(gossipq, old: str) -> None:
    ran = gossipq(old, "orders", "--group", "x")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: no such command: {old}; that is `gossipq {MOVED[old]}` now\n")
    assert old not in COMMANDS
    words = [word for word in MOVED[old].split() if not word.isupper()]
    told = gossipq("help", old)
    assert (told.code, f"that is `gossipq {MOVED[old]}` now" in told.err) == (4, True)
    assert list(unheard_of(f"gossipq {' '.join(words)}")) == []


def test_help_of_sub_has_a_line_for_each_example(gossipq) -> None:
    lines = [line.strip() for line in gossipq("sub", "--help").out.splitlines()]
    assert r"gossipq sub orders --from -10m -f '%p/%o %k %v\n'" in lines
    assert not any("\b" in line or r"\b" in line for line in lines)


@pytest.mark.parametrize("line", [("cluster.toml",), ("--config", "cluster.toml")])
def test_config_check_takes_the_file_either_way(gossipq, tmp_path: Path, line: tuple[str, ...]) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text("[node]\nworkers = 2\n")
    ran = gossipq("config", "check", *line[:-1], str(file))
    assert (ran.code, ran.out, ran.err) == (0, f"{file}: good\n", "")


def test_help_lists_commands_and_exit_codes(gossipq) -> None:
    ran = gossipq("--help")
    assert ran.code == 0
    assert all(f"\n  {name} " in ran.out for name in COMMANDS)
    assert all(f"  {code} " in ran.out for code in (0, 1, 2, 3, 4, 5, 6, 69, 75, 78, 130))


def texts(tree: ast.AST) -> Iterator[str]:
    """Every piece of text in a program, with {} where a value goes in; no docstrings."""
    docs = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and not {id(node)} & (docs | inside)
        ):
            yield node.value


def hinted(text: str) -> Iterator[list[str]]:
    """Words of the `gossipq ...` lines that a text tells to type."""
    for found in re.finditer(r"(?<![\w/.-])gossipq ((?:-[\w-]+|[a-z]+|[\w./{}@-]+)(?: [\w./{}@-]+)*)", text):
        yield found[1].split()


def unheard_of(text: str) -> Iterator[str]:
    """Lines whose command, verb or option does not exist."""
    for words in hinted(text):
        if words[0] not in COMMANDS and words[0].lstrip("-") not in ROOT:
            if re.fullmatch("[a-z]{3,}", words[0]) and words[0] not in PROSE:
                yield " ".join(words)
            continue
        found: click.Command | None = root
        if words[0] == "help" and len(words) > 1 and not helped(words[1]):
            yield " ".join(words)
        for word in words:
            if isinstance(found, click.Group) and not word.startswith("-"):
                found = found.get_command(click.Context(found), word)
        known = {name for param in found.params for name in param.opts} if found else set()
        options = {word for word in words if word.startswith("--") and "{" not in word}
        if found is None or not options <= known:
            yield " ".join(words)


def helped(topic: str) -> bool:
    """True if `gossipq help` has a text for the topic."""
    return topic in {*TOPICS, *COMMANDS} or topic.startswith(ALARM)


@pytest.mark.parametrize(
    "room",
    [
        "gossipq",
        "nodes/gossipq_node",
        "clients/python/gossipq_client",
        "clients/terminal/gossipq_cli",
        "clients/terminal/gossipq_ops",
        "clients/gateway/gossipq_gateway",
    ],
)
def test_what_errors_tell_to_type_exists(room: str) -> None:
    told = [
        text for path in (HOME / room).rglob("*.py") for text in texts(ast.parse(path.read_text("utf-8")))
    ]
    assert [line for text in told for line in unheard_of(text)] == []
    assert [line for text in told for line in hinted(text)], "nothing was seen"


@pytest.mark.parametrize("folder", ["nodes/gossipq_node/deploy", "cluster.toml"])
def test_commands_in_shipped_files_exist(folder: str) -> None:
    place = HOME / folder
    files = [place] if place.is_file() else [path for path in place.iterdir() if path.is_file()]
    told = [path.read_text("utf-8") for path in files]
    assert [line for text in told for line in unheard_of(text)] == []
    assert [line for text in told for line in hinted(text)], "nothing was seen"


def test_a_wrong_hint_is_caught() -> None:
    tree = ast.parse(
        'f"`gossipq topic fly {name}` or gossipq why {ref} --loud, then gossipq shout; gossipq dlq ls -n 0; '
        'gossipq help cluster.toml, gossipq help alarm-lag"'
    )
    (text,) = (text for text in texts(ast.Module([ast.Assign([], tree.body[0].value)], [])))
    assert list(unheard_of(text)) == ["topic fly {}", "why {} --loud", "shout", "help cluster.toml"]


def test_nothing_given_shows_help_on_stderr(gossipq) -> None:
    ran = gossipq()
    assert (ran.code, ran.out) == (2, "")
    assert all(f"\n{group}:\n" in ran.err for group in GROUPS)


@pytest.mark.parametrize(
    "line",
    [
        ("-o", "json", "context", "ls"),
        ("context", "ls", "-o", "json"),
        ("context", "ls", "-ojson"),
        ("--output=json", "context", "ls"),
    ],
)
def test_global_options_go_before_and_after(gossipq, line: tuple[str, ...]) -> None:
    ran = gossipq(*line)
    assert ran.code == 0
    assert isinstance(json.loads(ran.out), list)


def test_the_later_one_wins(gossipq) -> None:
    assert gossipq("-o", "json", "help", "health", "-o", "names").out.splitlines()[0] == "unreachable"


@pytest.mark.parametrize(
    ("line", "says", "hint"),
    [
        (
            ("statsu",),
            "no such command: statsu; did you mean `status`?",
            "`gossipq --help` shows what it takes",
        ),
        (
            ("topic", "lst"),
            "no such command: lst; did you mean `ls`?",
            "`gossipq topic --help` shows what it takes",
        ),
        (("topic", "create"), "Missing argument 'NAME'", "`gossipq topic create --help` shows what it takes"),
        (("--timeout", "soon", "status"), "Invalid value for '--timeout': 'soon' is not a duration", ""),
        (("--timeout", "nan", "status"), "Invalid value for '--timeout': nan is not a duration", ""),
        (
            ("pub", "a", "b", "--lines"),
            "BODY with --count, --lines and --jsonl exclude each other",
            "`gossipq pub --help` shows what it takes",
        ),
        (("pub", "a", "-H", "plain"), "Invalid value for -H: 'plain'; write NAME:VALUE", ""),
        (("sub", "a", "-f", "%q"), "Invalid value for -f: %q is not known", ""),
        (
            ("sub", "a", "--from", "banana"),
            "invalid --from 'banana'",
            "pass first, new, an offset, a time like 2026-11-21T09:00Z, or a time back like -10m",
        ),
        (("dlq", "ls", "shop", "packers"), "packers is one name too many; if it is a group: -g packers", ""),
        (("topic", "show", "a", "b"), "Got unexpected extra argument (b)", ""),
        (("config", "check", "a", "--config", "b"), "FILE and --config exclude each other", ""),
        (
            ("topic", "create", "a", "--bytes-max", "lots"),
            "Invalid value for '--bytes-max': 'lots' is no size",
            "",
        ),
    ],
)
def test_wrong_lines(gossipq, line: tuple[str, ...], says: str, hint: str) -> None:
    ran = gossipq(*line)
    assert (ran.code, ran.out) == (2, "")
    error, told = ran.err.splitlines()
    assert error.startswith(f"error: {says}")
    assert told.startswith(f" hint: {hint}")


def test_a_wrong_line_in_json(gossipq) -> None:
    ran = gossipq("status", "--bogus", "-o", "json")
    assert ran.code == 2
    assert json.loads(ran.err)["error"].keys() == {"code", "message", "hint"}


def test_version_matches(gossipq) -> None:
    import gossipq as package

    assert gossipq("--version").out == f"gossipq {package.__version__}\n"
    for line in (("--version", "-o", "json"), ("-o", "json", "--version")):
        assert set(json.loads(gossipq(*line).out)) >= {"version", "python", "pyzmq"}
