"""Records that a search wants, and when the search is over."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from gossipq.errors import BadRequest, TooLarge
from gossipq_client.operations.search import PROGRESS_RECORDS, Search

WALL_MS = 1_000_000_000


@dataclass
class Seen:
    """A record from a reader."""

    offset: int
    value: bytes = b"seventeen apples"
    key: bytes | None = b"ada"
    headers_shown: dict[str, str | bytes] = field(default_factory=lambda: {"a": "b", "raw": b"c"})
    topic: str = "t"
    partition: int = 0


def search(start: Any = "first", end: Any = None, **how: Any) -> Search:
    wanted = {"key": None, "contains": None, "header": None, "limit": None, "progress": None} | how
    made = Search(start, end, wall_ms=WALL_MS, **wanted)
    made.cover(("t", 0), 0, 10_000)
    return made


@pytest.mark.parametrize(
    ("how", "fits"),
    [
        ({}, True),
        ({"contains": "apples"}, True),
        ({"contains": b"pears"}, False),
        ({"key": "ada"}, True),
        ({"key": b"bob"}, False),
        ({"key": b""}, False),
        ({"header": {"a": "b"}}, True),
        ({"header": {"a": b"b", "raw": "c"}}, True),
        ({"header": {"a": "b", "other": "c"}}, False),
        ({"header": {"a": "c"}}, False),
        ({"key": "ada", "contains": "pears"}, False),
    ],
)
def test_what_is_wanted(how: dict[str, Any], fits: bool) -> None:
    assert search(**how).wants(Seen(0)) is fits  # type: ignore[arg-type]


def test_no_key_is_not_the_empty_key() -> None:
    assert not search(key=b"").wants(Seen(0, key=None))  # type: ignore[arg-type]


def test_it_is_over_when_every_partition_was_looked_at_to_its_end() -> None:
    found = Search("first", None, None, None, None, None, None, WALL_MS)
    assert found.over
    for place, end in ((("t", 0), 2), (("t", 1), 1), (("u", 0), 0)):
        found.cover(place, 0, end)
    assert found.wants(Seen(0))  # type: ignore[arg-type]
    assert found.wants(Seen(1))  # type: ignore[arg-type]
    assert not found.wants(Seen(2)), "it lies behind the end"  # type: ignore[arg-type]
    assert not found.over
    assert not found.wants(Seen(5, partition=1))  # type: ignore[arg-type]
    assert found.over


def test_it_is_over_when_enough_was_found() -> None:
    found = search(limit=2, contains="apples")
    assert [found.wants(Seen(at, value)) for at, value in enumerate((b"", b"apples", b"", b"apples"))] == [  # type: ignore[arg-type]
        False,
        True,
        False,
        True,
    ]
    assert found.over


def test_progress() -> None:
    told: list[tuple[int, int]] = []
    found = search(contains="pears", progress=lambda *at: told.append(at))
    for offset in range(2 * PROGRESS_RECORDS + 5):
        found.wants(Seen(offset))  # type: ignore[arg-type]
    assert told == [(PROGRESS_RECORDS, 10_000), (2 * PROGRESS_RECORDS, 10_000)]


def test_times_and_offsets() -> None:
    found = search("-10m", datetime.fromtimestamp(999_900, UTC))
    assert (found.start, found.end) == (("time", WALL_MS - 600_000), ("time", 999_900_000))
    assert search(5, 6).end == ("offset", 6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": "new"},
        {"end": "first"},
        {"end": "new"},
        {"start": 5, "end": 5},
        {"start": "-10m", "end": "-20m"},
        {"end": datetime(2030, 1, 1)},
        {"start": -1},
        {"limit": 0},
        {"limit": -1},
        {"limit": 1.5},
    ],
)
def test_bad_searches(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refused:
        search(**wrong)
    assert refused.value.hint


def test_other_bad_input() -> None:
    with pytest.raises(BadRequest, match="contains"):
        search(contains=17)
    with pytest.raises(TooLarge, match="key"):
        search(key=bytes(5_000))
    with pytest.raises(BadRequest, match="header"):
        search(header={"a": 1})
