"""ARCHITECTURE.md is a map: each name in `code` exists."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parent.parent
SOURCES = (".py", ".c", ".go", ".java", ".js", ".ts", ".toml", "Makefile")
CODE, NAME = re.compile(r"`([^`\n]+)`"), re.compile(r"[A-Za-z_][A-Za-z_0-9]{2,}")
PATH = re.compile(r"(?:[\w-]+/)+[\w-]+\.\w+")
ELSEWHERE = {"send_and_wait", "publish_async"}  #: of other projects
WORDS_MAX = 4_000


def strange(text: str, paths: list[str], words: set[str]) -> Iterator[str]:
    """Names and paths in `code` that nothing has."""
    whole = "\n".join(paths)
    for code in CODE.findall(text):
        for path in PATH.findall(code):
            if path not in whole:
                yield path
        for name in NAME.findall(code):
            if name not in words and name not in whole and name not in ELSEWHERE:
                yield name


def known() -> tuple[list[str], set[str]]:
    listed = subprocess.run(["git", "ls-files"], cwd=HOME, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this tree has no history that lists its files")
    paths = listed.stdout.splitlines()
    sources = [HOME / path for path in paths if path.endswith(SOURCES) and (HOME / path).exists()]
    return paths, {word for path in sources for word in NAME.findall(path.read_text("utf-8"))}


def test_names_of_the_map_are_there() -> None:
    assert not list(strange((HOME / "ARCHITECTURE.md").read_text("utf-8"), *known()))


def test_the_map_can_be_read_at_once() -> None:
    """Reasons stand at the head of the module that they explain."""
    assert len((HOME / "ARCHITECTURE.md").read_text("utf-8").split()) <= WORDS_MAX


def test_a_name_that_is_gone_is_seen() -> None:
    text = "`gone" + "_for_good` and `gossipq/types.py`, `gossipq/goners.py`"
    assert list(strange(text, *known())) == ["gone" + "_for_good", "gossipq/goners.py"]
