"""The contract of Table, over the fake and over LMDB."""

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipq.core.storage.tables import MemoryTable, Table
from gossipq_node.adapters.lmdb_store import LmdbStore, make_store

MAP_BYTES = 64 << 20


def new_store(path: Path) -> LmdbStore:
    make_store(path)
    return LmdbStore(path, MAP_BYTES)


@pytest.fixture(params=["memory", "lmdb"])
def table(request: pytest.FixtureRequest, tmp_path) -> Iterator[Table]:
    if request.param == "memory":
        yield MemoryTable()
    else:
        with closing(new_store(tmp_path)) as store:
            yield store.tables(0).state


def test_a_row_is_what_was_put_last(table: Table) -> None:
    assert table.get(b"k") is None
    table.put(b"k", b"one")
    table.put(b"k", b"two")
    assert table.get(b"k") == b"two"


@pytest.mark.parametrize(
    "value", [b"", b"v", bytearray(b"mutable"), memoryview(b"a view")[2:], b"x" * 3_000_000]
)
def test_values_may_be_any_bytes_and_come_back_as_bytes(table: Table, value: bytes) -> None:
    table.append_many([(b"k", value)])
    assert type(table.get(b"k")) is bytes
    assert table.get(b"k") == bytes(value)


def test_append_goes_above_all_others(table: Table) -> None:
    table.append_many([(b"a", b"")])
    table.append_many([(b"c", b"")])
    with pytest.raises(AssertionError):
        table.append_many([(b"b", b"")])


def test_delete_says_whether_there_was_a_row(table: Table) -> None:
    table.put(b"k", b"v")
    assert [table.delete(b"k"), table.delete(b"k"), table.get(b"k")] == [True, False, None]


def test_scan_is_half_open_and_in_order(table: Table) -> None:
    for key in (b"c", b"a", b"d", b"b"):
        table.put(key, key * 2)
    assert list(table.scan(b"a", b"d")) == [(b"a", b"aa"), (b"b", b"bb"), (b"c", b"cc")]
    assert list(table.scan_keys(b"a", b"d")) == [b"a", b"b", b"c"]
    assert list(table.scan_keys(b"aa", b"b")) == list(table.scan_keys(b"x", b"z")) == []
    assert list(table.scan(b"aa", b"b")) == []
    assert list(table.scan(b"x", b"z")) == []


def test_a_scan_may_be_left_and_started_again(table: Table) -> None:
    table.put(b"a", b"1")
    table.put(b"b", b"2")
    left = table.scan(b"", b"z")
    assert next(left) == (b"a", b"1")
    table.put(b"c", b"3")
    assert [key for key, _ in table.scan(b"", b"z")] == [b"a", b"b", b"c"]
    del left


def test_floor_is_the_row_at_or_below(table: Table) -> None:
    assert table.floor(b"m") is None
    for key in (b"b", b"d"):
        table.put(key, key)
    assert [table.floor(key) for key in (b"a", b"b", b"c", b"z")] == [
        None,
        (b"b", b"b"),
        (b"b", b"b"),
        (b"d", b"d"),
    ]


def test_delete_range_is_bounded_and_lowest_first(table: Table) -> None:
    for number in range(10):
        table.put(bytes([number]), b"v")
    assert table.delete_range(b"\2", b"\7", 3) == 3
    assert [key[0] for key, _ in table.scan(b"", b"\xff")] == [0, 1, 5, 6, 7, 8, 9]
    assert table.delete_range(b"\2", b"\7", 99) == 2
    assert table.delete_range(b"\2", b"\7", 99) == 0
    assert table.delete_range(b"", b"\xff", 99) == 5
    assert table.delete_range(b"", b"\xff", 99) == 0


keys = st.binary(min_size=1, max_size=3)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, st.binary(max_size=9)),
        st.tuples(st.sampled_from(["get", "delete", "floor"]), keys),
        st.tuples(st.just("scan"), keys, keys),
        st.tuples(st.just("delete_range"), keys, keys, st.integers(0, 4)),
    ),
    max_size=40,
)


def test_lmdb_does_what_the_fake_does() -> None:
    with tempfile.TemporaryDirectory() as directory, closing(new_store(Path(directory))) as store:
        real = store.tables(0).state

        @settings(max_examples=200)
        @given(steps)
        def compare(todo: list[tuple]) -> None:
            store.abort()
            fake = MemoryTable()
            for name, *arguments in todo:
                answers = [getattr(table, name)(*arguments) for table in (fake, real)]
                if name == "scan":
                    answers = [list(answer) for answer in answers]
                assert answers[0] == answers[1]
            assert list(real.scan(b"", b"\xff" * 9)) == list(fake.scan(b"", b"\xff" * 9))

        compare()
