"""A cache drops its oldest entry in one step, however many entries it dropped before."""

import re
from collections import OrderedDict
from pathlib import Path

import pytest

from gossipq.core.storage import Entry, Recent, log
from gossipq.core.storage.bodies import Bodies

HOME = Path(__file__).resolve().parents[2]
#: `next(iter(d))` of a dict walks over each entry that was deleted at its front
SCAN = re.compile(r"(?:pop\(|del [\w.]+\[)next\(iter\(")
SOURCES = [path for room in ("gossipq", "nodes", "clients", "spark") for path in (HOME / room).rglob("*.py")]


class Counted(OrderedDict[object, object]):
    """Counts how often an iteration over it begins."""

    walks = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        Counted.walks += 1
        return super().__iter__()


def test_no_eviction_scans_a_dict() -> None:
    assert len(SOURCES) > 400, "the sources are not found any more"
    assert [str(path) for path in SOURCES if SCAN.search(path.read_text("utf-8"))] == []


@pytest.mark.parametrize("line", ["del self._kept[next(iter(self._kept))]", "old.pop(next(iter(old)))"])
def test_a_scan_is_found(line: str) -> None:
    assert SCAN.search(line)


def test_evictions_take_one_step_each() -> None:
    bodies, recent = Bodies(100), Recent(100)
    bodies._bodies, recent.order = Counted(), Counted()  # type: ignore[assignment]
    shelf = recent.shelf()
    for index in range(1, 1_001):
        bodies.put(0, [(index, bytes(10))])
        shelf.put(_entry(index), 10)
    assert (len(bodies._bodies), len(recent.order)) == (10, 10)
    assert Counted.walks <= 990, "only the oldest entry of Recent is looked at, once an eviction"


def _entry(index: int) -> Entry:
    return log.seal(log.NO_CHAIN, index, 1, 0, log.PUBLISH, b"", bytes(10), 0)
