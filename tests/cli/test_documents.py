"""Each command line of gossipq in the documents is one that it takes: its verb is there, and so are its
options."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gossipq_cli.main import root

HOME = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *sorted(HOME.glob("*.md")),
    *sorted((HOME / "docs").glob("*.md")),
    *sorted((HOME / "clients").glob("*/README.md")),
    HOME / "spark" / "README.md",
    HOME / "nodes" / "gossipq_node" / "deploy" / "README.md",
]
LINE = re.compile(r"^(?:\s*|[a-z]*\$ )gossipq (.*)$")
INLINE = re.compile(r"`gossipq ([^`]+)`")
HISTORY = "CHANGELOG.md"  #: names flags that are gone


def lines(path: Path) -> Iterator[str]:
    """What follows `gossipq` in lines of code blocks, less what explains it, and in `code` in sentences."""
    fenced = False
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif (fenced or line.startswith("    ")) and (found := LINE.match(line)):
            yield re.split(r"\s{2,}|\s[|#&>]\s?|\s&&\s", found[1])[0]
        elif not fenced:
            yield from INLINE.findall(line)


def wrong_in(line: str) -> str:
    """What the command line would not take; "" for nothing."""
    command: click.Command = root
    verb = "gossipq"
    options = {name for each in root.params for name in each.opts + each.secondary_opts}
    try:
        words = shlex.split(line.replace("[", " ").replace("]", " ").replace("'", "").replace("…", ""))
    except ValueError as error:
        return str(error)
    for word in words:
        if word.startswith("-") and word.strip("-.") and not re.match(r"^-\d", word):
            name = word.split("=")[0] if word.startswith("--") else word[:2]
            known = options | {name for each in command.params for name in each.opts + each.secondary_opts}
            if name not in known | {"-h", "--help"}:
                return f"no option {name} of {verb}"
        elif isinstance(command, click.Group) and re.match(r"^[a-z][a-z-]*$", word):
            found = command.get_command(click.Context(command), word)
            if found is None:
                return f"no verb {word} of {verb}"
            command, verb = found, word
        elif isinstance(command, click.Group) and "|" in word:
            missing = [
                each for each in word.split("|") if command.get_command(click.Context(command), each) is None
            ]
            return f"no verb {missing[0]} of {verb}" if missing else ""
    return ""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(HOME)))
def test_commands_of_the_documents_are_taken(path: Path) -> None:
    if path.name == HISTORY:
        pytest.skip("names what is gone")
    if path.name in ("README.md", "GUIDE.md", "OPERATIONS.md") and path.parent in (HOME, HOME / "docs"):
        assert len(list(lines(path))) > 10, "the lines are not found any more"
    wrong = {line: why for line in lines(path) if (why := wrong_in(line))}
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("pub orders -k ada 'x'", ""),
        ("topic purge orders", ""),
        ("topic explode orders", "no verb explode of topic"),
        ("pub orders --backwards", "no option --backwards of pub"),
        ("group ls|show", ""),
    ],
)
def test_a_command_that_is_not_taken_is_seen(line: str, wrong: str) -> None:
    assert wrong_in(line) == wrong
