"""Each shell block of the documents can be pasted: bash parses it, and remarks stand behind `#`."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    *sorted(path for path in HOME.glob("*.md") if path.name != "CHANGELOG.md"),
    *sorted((HOME / "docs").rglob("*.md")),
    *sorted((HOME / "clients").glob("*/README.md")),
    *sorted((HOME / "nodes").rglob("*.md")),
    HOME / "spark" / "README.md",
    HOME / "perf" / "README.md",
]
SHELLS = ("", "sh", "bash", "console")
PROMPT = re.compile(r"^(?:[a-z]+)?\$ ")
PROGRAMS = (
    r"apt-get|cat|cd|chmod|cp|curl|docker|echo|gossipq|git|go|head|javac|kubectl|make|mkdir|mv|npm|pip|printf|"
    r"python3?|sudo|systemctl|tar|umount|\.venv/bin/\w+"
)
STARTS = re.compile(rf"^(?:[A-Z_]+=\S+ )*(?:{PROGRAMS})(?: |$)")
QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")
REMARK = re.compile(r"\S {2,}(?!#)\S")  #: two spaces set a remark apart, for the eye only
PLACEHOLDER = re.compile(r"<[a-z][a-z ]*>|…")


def blocks(text: str) -> Iterator[list[str]]:
    """The lines of each indented block, and of each fence that names no other language."""
    language: str | None = None
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("```"):
            if language in SHELLS:
                yield block
            language, block = (line.strip("` ") if language is None else None), []
        elif language is not None or line.startswith("    "):
            block.append(line.strip())
        else:
            if block:
                yield block
            block = []


def commands(text: str) -> Iterator[str]:
    """The commands of each shell block: the lines with a prompt, or all
    lines in a block without one.
    """
    for lines in blocks(text):
        prompted = [PROMPT.sub("", line) for line in lines if PROMPT.match(line)]
        if prompted:
            yield "\n".join(prompted)
        elif lines and STARTS.match(lines[0]):
            yield "\n".join(lines)


def wrong_in(block: str) -> list[str]:
    """Lines with a remark that a shell takes as arguments, and bash's errors about the block."""
    block = PLACEHOLDER.sub("X", block)
    remarks = [line for line in block.splitlines() if REMARK.search(QUOTED.sub("Q", line).split(" #")[0])]
    said = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False).stderr
    return remarks + ([said] if said else [])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(HOME)))
def test_shell_blocks_can_be_pasted(path: Path) -> None:
    assert [wrong for block in commands(path.read_text("utf-8")) for wrong in wrong_in(block)] == []


@pytest.mark.parametrize(
    ("block", "count"),
    [
        ('echo "$NEW" > secret     3: no node accepts the old one', 1),
        ("gossipq status --wait-healthy 60   # on one host", 0),
        ("gossipq pub orders 'two  spaces'", 0),
        ("for x in 1 2; do echo $x", 1),
    ],
)
def test_a_block_that_cannot_be_pasted_is_found(block: str, count: int) -> None:
    assert len(list(commands(f"```sh\n$ {block}\n```\n"))) == 1
    assert len(wrong_in(block)) == count
