"""The command line in the words that its users bring along."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from gossipq import __version__
from gossipq_cli.main import root
from gossipq_cli.records import SCREEN_BYTES, SCREEN_LINES, cut


def test_the_version_is_an_option_too(gossipq: Any) -> None:
    assert gossipq("--version").out == f"gossipq {__version__}\n"


def test_help_knows_commands(gossipq: Any) -> None:
    assert gossipq("help", "pub").out.startswith("Usage: gossipq pub [OPTIONS] TOPIC [BODY]")
    assert gossipq("help", "topic", "create").out.startswith("Usage: gossipq topic create")
    ran = gossipq("help", "topic", "creat")
    assert (ran.code, "did you mean `create`?" in ran.err) == (2, True)
    ran = gossipq("help", "pubb")
    assert (ran.code, "did you mean `pub`?" in ran.err) == (4, True)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("consume orders", "that is `sub` here"),
        ("produce orders x", "that is `pub` here"),
        ("topic make orders", "that is `create` here"),
        ("ls", "that is `topic ls` or `group ls` here"),
        ("nodes", "that is `cluster ls` here"),
        ("topic delete orders", "that is `rm` here"),
        ("delete orders", "that is `topic rm` or `group rm` or `msg rm` here"),
        ("topic info orders", "that is `show` here"),
        ("topic lss", "did you mean `ls`?"),
    ],
)
def test_verbs_of_other_tools_are_pointed_to_ours(gossipq: Any, line: str, says: str) -> None:
    ran = gossipq(*line.split())
    assert (ran.code, says in ran.err) == (2, True), ran.err


def test_a_value_is_cut_at_a_screen() -> None:
    assert cut(b"17 apples\n") == "17 apples\n"
    for value in (b"x" * (SCREEN_BYTES + 1), b"\n".join([b"line"] * (SCREEN_LINES + 1))):
        shown = cut(value)
        assert len(shown.splitlines()) <= SCREEN_LINES + 1
        assert "... cut:" in shown.splitlines()[-1]
        assert "--raw has every byte" in shown


@pytest.mark.slow
def test_type_checkers_find_what_make_install_installs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import gossipq_client\n\nmq = gossipq_client.connect()\nreveal_type(mq)\nmq.publish(17, b'')\n"
    )
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--python-executable",
            sys.executable,
            "--cache-dir",
            str(tmp_path / "cache"),
            str(program),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'Revealed type is "gossipq_client.api.sync.client.Client"' in ran.stdout, ran.stdout
    assert 'Argument 1 to "publish"' in ran.stdout


#: what a flag means in every command -> words that it is not called by (docs/how-to/command-line.md)
FLAGS = {
    "-n, --number": ("--limit", "--max"),
    "--from": ("--start", "--since", "--begin"),
    "--until": ("--end", "--before"),
    "-H, --header": (),
    "-g, --group": (),
    "-o, --output": ("--json",),
    "-k, --key": (),
    "--dry-run": ("--simulate",),
}


def verbs(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from verbs(found, (*path, name))
    else:
        yield " ".join(path), command


def test_a_thing_has_one_flag_in_all_verbs() -> None:
    known = {flag: words.split(", ") for words in FLAGS for flag in words.split(", ")}
    wrong = []
    for name, command in verbs(root):
        for param in command.params:
            given = [each for each in param.opts if each.startswith("-")]
            wrong += [(name, flag) for flag in given for others in FLAGS.values() if flag in others]
            # a short flag and its long one go together; `check lag -g` and the like may have more
            if any(len(known.get(flag, ())) > 1 for flag in given) and "names" not in name:
                wanted = next(known[flag] for flag in given if flag in known)
                wrong += [(name, str(given))] if not set(wanted) <= set(given) else []
    assert wrong == []


def test_the_table_of_flags_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "command-line.md").read_text("utf-8")
    for words in FLAGS:
        assert f"| `{words.replace(', ', '`, `')}`" in page, words


def test_a_format_and_json_exclude_each_other(gossipq: Any) -> None:
    ran = gossipq("sub", "a", "-f", "%v", "-o", "jsonl")
    assert (ran.code, ran.out) == (2, "")
    assert "-f and -o json exclude each other" in ran.err
