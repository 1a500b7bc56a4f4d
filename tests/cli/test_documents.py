"""The parser of gossipq reads each command of the documents: verbs, options, values, number of arguments.
Each option that a sentence names exists."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gossipq_cli import failures
from gossipq_cli.main import root
from test_pasted import DOCUMENTS, HOME, PLACEHOLDER, commands

CODE = re.compile(r"`([^`\n]+)`")
OPTION = re.compile(r"^(-[a-zA-Z]|--[a-z][a-z-]+)(?:[ =]|$)")
END = re.compile(r"[|&;<>()]+")  #: of a command in a shell
VARIABLE = re.compile(r"[A-Za-z_]\w*=")
NUMBER = "N"  #: stands for a number where a document leaves it open
BLOCKS_MIN = {"README.md": 10, "docs/operate/three-nodes.md": 9, "docs/operate/runbooks.md": 10}


def in_blocks(text: str) -> Iterator[list[str]]:
    """The words behind `gossipq` of each command in shell blocks."""
    for block in commands(text):
        for line in PLACEHOLDER.sub("X", block).replace("\\\n", " ").splitlines():
            yield from in_line(line)


def in_line(line: str) -> Iterator[list[str]]:
    """The words behind `gossipq` of each command in a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.wordchars += "{}$:@%,+!^"
    command: list[str] = []
    for word in [*lexer, ";"]:
        if not END.fullmatch(word):
            command.append(word)
            continue
        while command and (VARIABLE.match(command[0]) or command[0] == "sudo"):
            del command[0]
        if command and command[0].rpartition("/")[2] == "gossipq":
            yield command[1:]
        command = []


def in_sentences(text: str) -> Iterator[tuple[str, list[str]]]:
    """(code, words behind `gossipq`) of each command in `code` in sentences and tables."""
    for code in CODE.findall(text):
        if not code.startswith("gossipq "):
            continue
        plain = re.sub(r"\[([^\]]*)\]", r"\1", PLACEHOLDER.sub("X", code))
        either = re.search(r"\S+\|\S+", plain)  # save|use|ls: three commands
        for word in either[0].split("|") if either else [""]:
            for words in in_line(plain.replace(either[0], word) if either else plain):
                yield code, words


def trouble(words: list[str], whole: bool = True) -> str:
    """Return the parser's error for these words, or "". Files need not exist. `whole=False`: a sentence may
    name a command without its arguments."""
    words = ["1" if word == NUMBER else word for word in words]
    with pytest.MonkeyPatch.context() as patch:
        for kind in (click.Path, click.File):
            patch.setattr(kind, "convert", lambda self, value, param, ctx: value)
        command: click.Command = root
        try:
            ctx = root.make_context("gossipq", list(words))
            while isinstance(command, click.Group):
                if command is root and not {"version", "completion"}.isdisjoint(
                    name for name, value in ctx.params.items() if value
                ):
                    return ""
                name, found, rest = command.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
                assert found is not None
                command = found
                ctx = command.make_context(name, rest, parent=ctx)
        except click.exceptions.NoArgsIsHelpError:
            return "" if not whole else "only a group of verbs"
        except failures.Failure as failed:  # as the verbs of `check` say it
            return "" if not whole else failed.message
        except click.exceptions.Exit:  # --help and --version
            return ""
        except click.UsageError as error:
            missing = isinstance(error, click.MissingParameter) or "requires an argument" in error.message
            return "" if missing and not whole else error.format_message()
    return ""


def options_of(command: click.Command) -> set[str]:
    """All options of a command and of those below it."""
    found = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            found |= options_of(below)
    return found


def wrong_in(text: str) -> list[str]:
    known = options_of(root) | {"-h", "--help"}
    found = [f"{shlex.join(words)}: {why}" for words in in_blocks(text) if (why := trouble(words))]
    found += [f"{code}: {why}" for code, words in in_sentences(text) if (why := trouble(words, whole=False))]
    return found + [
        f"no command has the option {name[1]}"
        for code in CODE.findall(text)
        if (name := OPTION.match(code)) and name[1] not in known
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(HOME)))
def test_commands_of_the_documents_are_parsed(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(list(in_blocks(text))) >= BLOCKS_MIN.get(str(path.relative_to(HOME)), 0)
    assert not wrong_in(text)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("gossipq pub orders -k ada 'x'", ""),
        ("KEY=x gossipq topic purge orders   # asks first", ""),
        ("gossipq topic explode orders", "no such command: explode"),
        ("gossipq pub orders --backwards", "No such option"),
        ("cat x | gossipq pub orders --lines && gossipq top --interval soon", "soon"),
        ("gossipq dlq replay orders --reason rejected", "No such option"),
        ("gossipq group lag", "Missing argument"),
    ],
)
def test_a_command_that_is_not_taken_is_found(line: str, says: str) -> None:
    text = f"```sh\n$ {line}\n```\n"
    assert says in "\n".join(wrong_in(text))
    assert bool(wrong_in(text)) == bool(says)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("`gossipq group lag` shows it", 0),
        ("| replay | `gossipq dlq replay --reason` |", 1),
        ("`gossipq topic show orders now` shows it", 1),
        ("with `--backwards` or `--group`", 1),
        ("`gossipq group ls|show|explode`", 1),
    ],
)
def test_sentences_and_tables_are_read(text: str, count: int) -> None:
    assert len(wrong_in(text)) == count
