"""Labels of commands, `top` and the console are words of the glossary, or plain ones of the list here."""

import re
from collections.abc import Iterator

import pytest

from conftest import HOME

GLOSSARY = HOME / "docs" / "concepts" / "glossary.md"
COLUMN = re.compile(r'\b(?:Column|counter)\(\s*"([^"]+)"((?:[^()]|\([^()]*\))*?)\)')
TITLE = re.compile(r'title="([^"]+)"')
HEADING = re.compile(r"<(?:th|dt)[^>]*>([^<{]+)<")
#: words that need no entry
WORDS = """
acked again address age at bytes changes client cluster commit commits consumes consuming context copied copy
count cpu created current day delivered detail disk endpoint error eta example expires event fields file
first followers follow follows free goes here holds in kind last lead leading leads letters level load made
memory minute name newest next number of oldest on option origin other out p passed path per pid point
position process published range reason refused restarts role roles rss rtt rules runs seconds seen servers
failed hour progress slow silent size span spooled state store stored takeovers term time to tokens total
trial used user users value verb version virtual waiting waits for what when who why with worker workers ms
copies failures dead
"""
PLAIN = set(WORDS.split())


def glossary() -> set[str]:
    rows = re.findall(r"^\| ([^|]+?) \|", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    return {word for row in rows for word in row.split(", ")}


def singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def labels() -> Iterator[tuple[str, str]]:
    """(label, file) of each column and heading."""
    for path in sorted((HOME / "clients" / "terminal" / "gossipq_cli").rglob("*.py")):
        for name, more in COLUMN.findall(path.read_text("utf-8")):
            title = TITLE.search(more)
            yield (title[1] if title else name).replace("_", " ").lower(), path.name
    for path in sorted((HOME / "clients" / "gateway" / "gossipq_gateway").rglob("*.html")):
        for heading in HEADING.findall(path.read_text("utf-8")):
            yield heading.strip().lower(), path.name


def riddles(label: str, known: set[str]) -> set[str]:
    """Return the words of a label that neither the glossary nor the list has."""
    if label in known or singular(label) in known:
        return set()
    words = {word for word in re.split(r"[ /]", label) if word}
    return {word for word in words if not {word, singular(word)} & (known | PLAIN)}


def test_labels_are_words_of_the_glossary() -> None:
    known, found = glossary(), list(labels())
    assert {"in flight", "lag", "parked", "credit"} <= {label for label, _ in found} & known
    unknown = {(label, file) for label, file in found if riddles(label, known)}
    assert unknown == set(), "name it as the glossary does, or explain the word there"


def test_rows_of_the_glossary_have_a_cell_for_each_column() -> None:
    rows = [line for line in GLOSSARY.read_text("utf-8").splitlines() if line.startswith("|")]
    assert [row for row in rows if row.count("|") != rows[0].count("|")] == []


@pytest.mark.parametrize(
    ("label", "words"), [("in hand", {"hand"}), ("lends", {"lends"}), ("in flight", set())]
)
def test_a_riddle_is_found(label: str, words: set[str]) -> None:
    assert riddles(label, glossary()) == words
