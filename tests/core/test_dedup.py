"""Ids of a batch, sorted out together: the same as one after the other."""

from array import array
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipq.core.ledger import dedup as module
from gossipq.core.ledger.dedup import EVICT_ENTRIES_MAX, FEW, Dedup
from gossipq.core.storage.tables import MemoryTables
from gossipq.values import Run

PARTITION = 7 << 16
WINDOW_MS = 100
BATCHES = st.lists(
    st.tuples(st.integers(0, 60), st.lists(st.integers(0, 12), min_size=1, max_size=12)),
    min_size=1,
    max_size=8,
)

Place = tuple[int, int, bool]


def one_by_one(runs: list[Run]) -> list[Place]:
    """(index, record, duplicate) of each record."""
    return [(run.index, run.record + at, run.duplicate) for run in runs for at in range(run.count)]


@pytest.mark.parametrize("few", [0, FEW])
@settings(max_examples=200, deadline=None)
@given(BATCHES)
def test_a_batch_is_sorted_out_as_its_records_one_by_one(
    few: int, batches: list[tuple[int, list[int]]]
) -> None:
    with patch.object(module, "FEW", few):
        sort_out_one_by_one(batches)


def sort_out_one_by_one(batches: list[tuple[int, list[int]]]) -> None:
    dedup, known, now_ms = Dedup(MemoryTables().state), dict[int, tuple[int, int, int]](), 0
    for index, (passed_ms, ids) in enumerate(batches, 1):
        now_ms += passed_ms
        hashes, expected = array("Q", ids), list[Place]()
        for record, each in enumerate(ids):
            time_ms, its_index, its_record = known.get(each, (-WINDOW_MS, 0, 0))
            if each and time_ms > now_ms - WINDOW_MS:
                expected.append((its_index, its_record, True))
                continue
            expected.append((index, record, False))
            if each:
                known[each] = now_ms, index, record
        runs = dedup.sort_out(PARTITION, index, hashes, now_ms, WINDOW_MS)
        assert one_by_one(runs) == expected
        assert all(each.count > 0 for each in runs)
        for each, (time_ms, its_index, its_record) in known.items():
            found = dedup.find(PARTITION, each, now_ms - WINDOW_MS)
            alive = time_ms > now_ms - WINDOW_MS
            assert (found is not None and (found.index, found.record) == (its_index, its_record)) == alive


def test_a_batch_of_known_ids_is_one_run() -> None:
    dedup, ids = Dedup(MemoryTables().state), array("Q", range(1, 501))
    assert dedup.sort_out(PARTITION, 3, ids, 0, WINDOW_MS) == [Run(500, -1, 3, 0)]
    assert dedup.sort_out(PARTITION, 4, ids, 1, WINDOW_MS) == [Run(500, -1, 3, 0, True)]
    assert dedup.sort_out(PARTITION, 5, ids[100:200], 1, WINDOW_MS) == [Run(100, -1, 3, 100, True)]


def test_rows_of_many_ids_are_those_of_each() -> None:
    dice = Random(1)
    hashes = array("Q", [1, 256, 2**64 - 1, *(dice.getrandbits(64) for _ in range(65_533))])
    found = list[list[tuple[bytes, bytes]]]()
    for few in (0, len(hashes)):
        with patch.object(module, "FEW", few):
            tables = MemoryTables()
            runs = Dedup(tables.state).sort_out(PARTITION, 2**40 + 3, hashes, 2**41 + 5, WINDOW_MS)
            assert runs == [Run(len(hashes), -1, 2**40 + 3, 0)]
            found.append(list(tables.state.scan(b"", b"\xff")))
    assert found[0] == found[1]
    assert len(found[0]) == len(hashes) + 1


def test_what_is_forgotten_leaves_later_ones_alone() -> None:
    dedup = Dedup(MemoryTables().state)
    dedup.sort_out(PARTITION, 1, array("Q", [1, 2]), 0, WINDOW_MS)
    dedup.sort_out(PARTITION, 2, array("Q", [2, 3]), 150, WINDOW_MS)
    assert dedup.evict(PARTITION, 4, 10, 100) == 2
    assert [dedup.find(PARTITION, each) is not None for each in (1, 2, 3)] == [False, True, True]


@settings(max_examples=200, deadline=None)
@given(BATCHES, st.integers(1, 12))
def test_what_is_remembered_are_the_ids_of_the_newest_entries(
    batches: list[tuple[int, list[int]]], count_max: int
) -> None:
    tables = MemoryTables()
    dedup, entries, now_ms = Dedup(tables.state), dict[int, tuple[int, list[int]]](), 0
    for index, (passed_ms, ids) in enumerate(batches, 1):
        now_ms += passed_ms
        runs = dedup.sort_out(PARTITION, index, array("Q", ids), now_ms, WINDOW_MS)
        new = [each for each, place in zip(ids, one_by_one(runs), strict=True) if each and not place[2]]
        if new:
            entries[index] = now_ms, new
        count = sum(len(brought) for _, brought in entries.values())
        gone = dedup.evict(PARTITION, count, count_max, now_ms - WINDOW_MS)
        for its_index, (time_ms, brought) in [*entries.items()][:EVICT_ENTRIES_MAX]:
            if count <= count_max and time_ms > now_ms - WINDOW_MS:
                break
            count, gone = count - len(brought), gone - len(brought)
            del entries[its_index]
        assert gone == 0
        newest = {each: its for its, (_, brought) in entries.items() for each in brought}
        for each in range(1, 13):
            found = dedup.find(PARTITION, each)
            assert (found and found.index) == newest.get(each)
        assert len(list(tables.state.scan(b"J", b"K"))) == len(entries)
