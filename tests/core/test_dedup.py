"""Ids of a batch, sorted out together: the same as one after the other, wherever they are remembered."""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipq.core.ledger import id_index
from gossipq.core.ledger.dedup import EVICT_ENTRIES_MAX, Dedup, FirstStored
from gossipq.core.ledger.id_index import ENTRY_IDS_MIN, IDS_MAX, IdIndex, names_of
from gossipq.core.storage.tables import MemoryTable, MemoryTables
from gossipq.errors import StoreError
from gossipq.values import Run

PARTITION, OTHER = 7 << 16, 8 << 16
WINDOW_MS = 100
BATCHES = st.lists(
    st.tuples(st.integers(0, 60), st.lists(st.integers(0, 12), min_size=1, max_size=12)),
    min_size=1,
    max_size=8,
)

#: room in memory: for all ids, for those of two entries at a time, for none
ROOM = pytest.mark.parametrize("ids_max", [IDS_MAX, 2 * ENTRY_IDS_MIN, 0])

Place = tuple[int, int, bool]


@contextmanager
def room(ids_max: int) -> Iterator[None]:
    """Room for so many ids in memory, in few buckets, so that they meet."""
    with patch.object(id_index, "IDS_MAX", ids_max), patch.object(id_index, "BUCKETS", 4):
        yield


def opened(state: MemoryTable, gone: int = 0) -> Dedup:
    return Dedup(state, lambda partition: partition != gone, lambda partition, index: False)


def one_by_one(runs: list[Run]) -> list[Place]:
    """(index, record, duplicate) of each record."""
    return [(run.index, run.record + at, run.duplicate) for run in runs for at in range(run.count)]


@ROOM
@settings(max_examples=200, deadline=None)
@given(BATCHES, st.booleans())
def test_a_batch_is_sorted_out_as_its_records_one_by_one(
    ids_max: int, batches: list[tuple[int, list[int]]], restarts: bool
) -> None:
    with room(ids_max):
        sort_out_one_by_one(batches, restarts)


def sort_out_one_by_one(batches: list[tuple[int, list[int]]], restarts: bool) -> None:
    state, known, now_ms = MemoryTables().state, dict[int, tuple[int, int, int]](), 0
    dedup = opened(state)
    for index, (passed_ms, ids) in enumerate(batches, 1):
        now_ms += passed_ms
        dedup = opened(state) if restarts else dedup
        hashes, expected = array("Q", ids), list[Place]()
        for record, each in enumerate(ids):
            time_ms, its_index, its_record = known.get(each, (-WINDOW_MS, 0, 0))
            if each and time_ms > now_ms - WINDOW_MS:
                expected.append((its_index, its_record, True))
                continue
            expected.append((index, record, False))
            if each:
                known[each] = now_ms, index, record
        runs, new = dedup.sort_out(PARTITION, index, hashes, now_ms, WINDOW_MS)
        assert new == sum(each != 0 and not place[2] for each, place in zip(ids, expected, strict=True))
        assert one_by_one(runs) == expected
        assert all(each.count > 0 for each in runs)
        for each, (time_ms, its_index, its_record) in known.items():
            found = dedup.find(PARTITION, each, now_ms - WINDOW_MS)
            alive = time_ms > now_ms - WINDOW_MS
            assert (found is not None and (found.index, found.record) == (its_index, its_record)) == alive


def test_a_batch_of_known_ids_is_one_run() -> None:
    dedup, ids = opened(MemoryTables().state), array("Q", range(1, 501))
    assert dedup.sort_out(PARTITION, 3, ids, 0, WINDOW_MS) == ([Run(500, -1, 3, 0)], 500)
    assert dedup.sort_out(PARTITION, 4, ids, 1, WINDOW_MS) == ([Run(500, -1, 3, 0, True)], 0)
    assert dedup.sort_out(PARTITION, 5, ids[100:200], 1, WINDOW_MS) == ([Run(100, -1, 3, 100, True)], 0)


@ROOM
def test_what_is_forgotten_leaves_later_ones_alone(ids_max: int) -> None:
    with room(ids_max):
        forget_the_first()


def forget_the_first() -> None:
    dedup = opened(MemoryTables().state)
    dedup.sort_out(PARTITION, 1, array("Q", [1, 2]), 0, WINDOW_MS)
    dedup.sort_out(PARTITION, 2, array("Q", [2, 3]), 150, WINDOW_MS)
    assert dedup.evict(PARTITION, 4, 10, 100) == 2
    assert [dedup.find(PARTITION, each) is not None for each in (1, 2, 3)] == [False, True, True]


@ROOM
@settings(max_examples=200, deadline=None)
@given(BATCHES, st.integers(1, 12), st.booleans())
def test_what_is_remembered_are_the_ids_of_the_newest_entries(
    ids_max: int, batches: list[tuple[int, list[int]]], count_max: int, restarts: bool
) -> None:
    with room(ids_max):
        remember_the_newest(batches, count_max, restarts)


def remember_the_newest(batches: list[tuple[int, list[int]]], count_max: int, restarts: bool) -> None:
    tables = MemoryTables()
    dedup, entries, now_ms = opened(tables.state), dict[int, tuple[int, list[int]]](), 0
    for index, (passed_ms, ids) in enumerate(batches, 1):
        now_ms += passed_ms
        dedup = opened(tables.state) if restarts else dedup
        runs, _ = dedup.sort_out(PARTITION, index, array("Q", ids), now_ms, WINDOW_MS)
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
        rows = [key[:1] for key in tables.state.scan_keys(b"I", b"k")]
        assert rows.count(b"J") + rows.count(b"j") == len(entries)
        assert rows.count(b"I") <= sum(len(brought) for _, brought in entries.values())


def test_an_id_that_one_partition_knows_is_new_in_another() -> None:
    dedup, ids = opened(MemoryTables().state), array("Q", range(1, 501))
    for index, partition in enumerate((PARTITION, OTHER), 1):
        assert dedup.sort_out(partition, index, ids, 0, WINDOW_MS) == ([Run(500, -1, index, 0)], 500)
    for index, partition in enumerate((PARTITION, OTHER), 1):
        assert dedup.sort_out(partition, 3, ids[1:], 0, WINDOW_MS) == ([Run(499, -1, index, 1, True)], 0)


def test_the_room_of_a_partition_that_is_gone_is_free_on_all_copies() -> None:
    state, ids = MemoryTables().state, array("Q", range(1, ENTRY_IDS_MIN + 1))
    with room(ENTRY_IDS_MIN):
        dedup = opened(state)
        dedup.sort_out(OTHER, 1, ids, 0, WINDOW_MS)
        dedup.drop(OTHER)
        for index, each in enumerate((dedup, opened(state, OTHER)), 2):
            each.sort_out(PARTITION, index, ids, 0, WINDOW_MS)
            assert each.evict(PARTITION, len(ids), 0, 0) == len(ids)
    assert [key[:1] for key in state.scan_keys(b"I", b"k")] == [b"j"], "its rows are swept by others"


def test_ids_that_could_not_all_be_read_are_read_again() -> None:
    state, ids = MemoryTables().state, array("Q", range(1, 501))
    for index in range(1, 4):
        opened(state).sort_out(
            PARTITION, index, array("Q", [each + 1000 * index for each in ids]), 0, WINDOW_MS
        )
    dedup, rows = opened(state), list(state.scan(b"j", b"k"))

    def torn(first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield rows[0]
        raise StoreError("torn")

    with patch.object(state, "scan", torn), pytest.raises(StoreError):
        dedup.find(PARTITION, 1)
    assert [dedup.find(PARTITION, 1 + 1000 * index) for index in range(1, 4)] == [
        FirstStored(index, 0) for index in range(1, 4)
    ]


def test_a_number_that_lies_across_two_rows_is_no_id() -> None:
    index, names = IdIndex(), names_of(array("Q", [1 << 32, 5]))
    with patch.object(id_index, "BUCKETS", 1):
        index.add(PARTITION, 5 << 32, 0, names)
        across = names_of(array("Q", [5]))[0][4:] + names[0][:4]
        assert index.newest(PARTITION, across) is None
        assert [index.newest(PARTITION, name) for name in names] == [5 << 32, 5 << 32]


def test_numbers_that_look_like_ids_are_none() -> None:
    """The row of an entry that brought ids with some of its records has the numbers of these behind them."""
    dedup, known = opened(MemoryTables().state), [7, 8]
    dedup.sort_out(PARTITION, 1, array("Q", [0, *known]), 0, WINDOW_MS)
    looks_so = int.from_bytes(array("I", [1, 2]).tobytes(), "little")
    runs, new = dedup.sort_out(PARTITION, 2, array("Q", [*known, looks_so]), 0, WINDOW_MS)
    assert (runs, new) == ([Run(2, -1, 1, 1, True), Run(1, -1, 2, 2)], 1)


@pytest.mark.parametrize("older", [0, 1, 50])
def test_memory_goes_with_the_ids_that_are_remembered(older: int) -> None:
    """Also where another partition remembers older ones for longer."""
    dice, dedup, brought = Random(1), opened(MemoryTables().state), 100
    old = array("Q", range(1, older + 1))
    with room(IDS_MAX):
        if old:
            dedup.sort_out(OTHER, 1, old, 0, WINDOW_MS)
        for index in range(2, 200):
            ids = array("Q", [dice.getrandbits(64) for _ in range(brought)])
            dedup.sort_out(PARTITION, index, ids, 0, WINDOW_MS)
            dedup.evict(PARTITION, min(index - 1, 4) * brought, 3 * brought, -1)
        rows = sum(map(len, dedup._index._buckets)) // id_index.ROW.size
        assert rows <= 2 * (older + 4 * brought) + brought
        assert dedup.find(PARTITION, ids[-1]) == FirstStored(199, brought - 1)
        assert all(dedup.find(OTHER, each) == FirstStored(1, each - 1) for each in old)


def test_an_id_that_is_forgotten_each_time_it_comes_costs_the_same_each_time() -> None:
    """As where a topic remembers none."""
    dedup, ids = opened(MemoryTables().state), array("Q", [7])
    for index in range(1, 500):
        assert dedup.sort_out(PARTITION, index, ids, index, 0) == ([Run(1, -1, index, 0)], 1)
        assert dedup.evict(PARTITION, 1, 0, index) == 1
    assert max(map(len, dedup._index._buckets)) <= 2 * id_index.PASSED_MAX * id_index.ROW.size


@pytest.mark.parametrize("shift", [0, 32])
def test_a_few_ids_are_looked_for_without_taking_apart_what_came_with_them(shift: int) -> None:
    """Also one that is parts of two others."""
    dedup, others = opened(MemoryTables().state), [each << shift for each in range(1, 1_000)]
    across = (others[5] & 0xFFFFFFFF) << 32 | others[4] >> 32
    known = array("Q", [each for each in dict.fromkeys([*others, across]) if each])
    dedup.sort_out(PARTITION, 1, known, 0, WINDOW_MS)
    asked, taken = array("Q", known[-3:][::-1]), list[int]()

    def counted(hashes: "array[int] | bytes") -> tuple[bytes, ...]:
        found = names_of(hashes)
        taken.append(len(found))
        return found

    with patch("gossipq.core.ledger.dedup.names_of", counted):
        runs, new = dedup.sort_out(PARTITION, 2, asked, 0, WINDOW_MS)
    places = [(1, len(known) - each, True) for each in (1, 2, 3)]
    assert (one_by_one(runs), new, max(taken)) == (places, 0, 3)
