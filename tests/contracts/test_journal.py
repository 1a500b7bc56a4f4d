"""The journal in front of LMDB: random lives with crashes at any block, and
files that must be refused.
"""

import errno
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import lmdb
import pytest

from gossipq import limits
from gossipq.errors import StoreError
from gossipq_node.adapters import journal
from gossipq_node.adapters.journal import BLOCK_BYTES, JOURNAL_FILE
from gossipq_node.adapters.lmdb_store import DATA_FILE, LMDB_LOCK_BYTES, LmdbStore, make_store

MAP_BYTES = 64 << 20
Rows = dict[bytes, bytes]
HERE, ABOVE = b"", b"\xff" * 9


def opened(path: Path) -> LmdbStore:
    make_store(path)
    store = LmdbStore(path, MAP_BYTES, 4)
    store.tables(1)
    store.commit()
    return store


def rows_of(store: LmdbStore) -> Rows:
    return dict(store.tables(1).state.scan(HERE, ABOVE))


def started(path: Path, **rows: bytes) -> LmdbStore:
    """A store whose journal has these rows, each in a turn of its own."""
    store = opened(path)
    state = store.tables(1).state
    state.put(b"first", b"in LMDB")
    store.commit()
    for key, value in rows.items():
        state.put(key.encode(), value)
        store.commit()
    return store


def crashed(path: Path, place: Path) -> Path:
    """Copies the disk's contents."""
    shutil.copytree(path, place)
    return place


def change(store: LmdbStore, dice: Random, rows: Rows) -> Rows:
    """Returns the rows after some random changes."""
    state, rows = store.tables(1).state, dict(rows)
    for _ in range(dice.randrange(1, 6)):
        key = dice.randrange(200).to_bytes(2, "big")
        kind = dice.random()
        if kind < 0.6:
            rows[key] = dice.randbytes(dice.choice((0, 5, 80, 3_000, 9_000)))
            state.put(key, rows[key])
        elif kind < 0.8:
            assert state.delete(key) == (rows.pop(key, None) is not None)
        else:
            end = (dice.randrange(200) + 1).to_bytes(2, "big")
            gone = sorted(each for each in rows if key <= each < end)[: dice.randrange(1, 9)]
            assert state.delete_range(key, end, max(len(gone), 1)) == len(gone)
            for each in gone:
                del rows[each]
    return rows


@pytest.mark.parametrize("seed", range(12))
def test_a_crash_keeps_what_was_committed_and_nothing_else(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits, aborts, readers, ends and crashes in any order; some crashes cut the last turn at a block."""
    dice = Random(seed)
    monkeypatch.setattr(limits, "JOURNAL_BYTES", 40 * BLOCK_BYTES)
    monkeypatch.setattr(limits, "JOURNAL_TURN_BYTES", 8 * BLOCK_BYTES)
    monkeypatch.setattr(limits, "JOURNAL_ROWS", 60)
    monkeypatch.setattr(limits, "JOURNAL_ROWS_BYTES", (40, 12)[seed % 2] * BLOCK_BYTES)
    home, rows, store = tmp_path / "0", {b"first": b"in LMDB"}, started(tmp_path / "0")
    for number in range(1, 160):
        at = store._journal.position
        before, rows = rows, change(store, dice, rows)
        act = dice.random()
        if act < 0.1:
            store.abort()
            rows = before
        elif act < 0.2:
            with closing(store.tables(1).state.reader()) as reader:
                assert dict(reader.scan(HERE, ABOVE)) == before
            store.commit()
        elif act < 0.25:
            store.close()
            rows, store = before, opened(home)
        elif act < 0.5:
            store.commit()
            torn = store._journal.position > at and dice.random() < 0.5
            home = crashed(home, tmp_path / str(number))
            if torn:  # the machine stopped in the write: some blocks of it are there
                cut(home, at, store._journal.position, dice)
            store.close()
            store = opened(home)
            assert rows_of(store) in ((before, rows) if torn else (rows,))
            rows = rows_of(store)
        else:
            store.commit()
        assert rows_of(store) == rows, number
    store.close()
    assert not (home / JOURNAL_FILE).exists()
    with closing(opened(home)) as again:
        assert rows_of(again) == rows


def cut(home: Path, first: int, end: int, dice: Random) -> None:
    with open(home / JOURNAL_FILE, "r+b") as file:
        for position in range(first, end, BLOCK_BYTES):
            if dice.random() < 0.5:
                file.seek(position)
                file.write(bytes(BLOCK_BYTES))


def test_lmdb_commits_when_the_journal_has_so_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All commits wait while LMDB commits; after many small commits the wait is short."""
    monkeypatch.setattr(limits, "JOURNAL_ROWS_BYTES", 10_000)
    with closing(started(tmp_path, a=b"1")) as store:
        began, state = store._journal.position, store.tables(1).state
        positions = []
        for number in range(5):
            state.put(b"k%d" % number, bytes(6_000))
            store.commit()
            positions.append(store._journal.position)
        assert positions[:2] == [began + 2 * BLOCK_BYTES, began + 4 * BLOCK_BYTES]
        assert positions[2] == BLOCK_BYTES, "LMDB has it, and the journal begins at the front"
        assert positions[3:] == [3 * BLOCK_BYTES, 5 * BLOCK_BYTES]


def test_tables_made_in_a_turn_that_is_given_up_cost_no_turn_of_the_journal(tmp_path: Path) -> None:
    with closing(started(tmp_path, a=b"1")) as store:
        store.tables(2).state.put(b"k", b"v")
        store.abort()
        assert rows_of(store) == {b"first": b"in LMDB", b"a": b"1"}
        store.tables(2).state.put(b"k", b"v")
        store.commit()
        assert rows_of(store) == {b"first": b"in LMDB", b"a": b"1"}


def test_a_journal_that_cannot_be_read_for_a_while_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(started(tmp_path, a=b"1")) as store:
        with monkeypatch.context() as broken:
            broken.setattr(Path, "read_bytes", no_read)
            for _ in range(2):
                with pytest.raises(StoreError):
                    store.abort()
        store.abort()
        assert rows_of(store) == {b"first": b"in LMDB", b"a": b"1"}


def no_read(path: Path) -> bytes:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_small_turn_is_one_write_and_lmdb_writes_nothing(tmp_path: Path) -> None:
    with closing(started(tmp_path)) as store:
        before, at = (tmp_path / DATA_FILE).read_bytes(), store._journal.position
        store.tables(1).state.put(b"k", b"v")
        store.commit()
        assert (tmp_path / DATA_FILE).read_bytes() == before
        assert store._journal.position == at + BLOCK_BYTES
        store.tables(1).state.put(b"k", bytes(limits.JOURNAL_TURN_BYTES + 1))
        store.commit()
        assert store._journal.position == BLOCK_BYTES, "LMDB has it all"


def test_a_store_ends_without_a_journal(tmp_path: Path) -> None:
    started(tmp_path, a=b"1").close()
    assert not (tmp_path / JOURNAL_FILE).exists()
    (tmp_path / JOURNAL_FILE).write_bytes(b"left over")
    with closing(opened(tmp_path)) as store:
        assert rows_of(store) == {b"first": b"in LMDB", b"a": b"1"}


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda at: (at / JOURNAL_FILE).unlink(), "journal cannot be used: No such file"),
        (lambda at: (at / JOURNAL_FILE).write_bytes(bytes(limits.JOURNAL_BYTES)), "is not the journal"),
        (lambda at: os.truncate(at / JOURNAL_FILE, 2 * BLOCK_BYTES), "journal is cut short: 4186112 bytes"),
        (lambda at: overwrite(at, BLOCK_BYTES + 40), "damaged at byte 4096: later turns are whole"),
        (lambda at: overwrite(at, BLOCK_BYTES), "damaged at byte 4096: later turns are whole"),
    ],
)
def test_a_journal_that_does_not_belong_or_is_damaged_is_refused(
    tmp_path: Path, harm: Callable[[Path], object], says: str
) -> None:
    with closing(started(tmp_path / "one", a=b"1", b=b"2")):
        at = crashed(tmp_path / "one", tmp_path / "two")
    harm(at)
    for _ in range(2):
        with pytest.raises(StoreError, match=says) as refused:
            opened(at)
        assert refused.value.hint


def overwrite(at: Path, position: int) -> None:
    with open(at / JOURNAL_FILE, "r+b") as file:
        file.seek(position)
        file.write(b"\xff")


def test_the_journal_of_another_store_or_of_a_later_time_is_refused(tmp_path: Path) -> None:
    with closing(started(tmp_path / "one", a=b"1")) as store, closing(started(tmp_path / "two", a=b"2")):
        one, two = (crashed(tmp_path / name, tmp_path / f"{name} then") for name in ("one", "two"))
        shutil.copy(two / JOURNAL_FILE, one / JOURNAL_FILE)
        with pytest.raises(StoreError, match=r"is not the journal of the data\.mdb beside it"):
            opened(one)
        store.maintain()  # LMDB commits
        store.tables(1).state.put(b"b", b"later")
        store.commit()
        shutil.copy(tmp_path / "one" / JOURNAL_FILE, one / JOURNAL_FILE)
        with pytest.raises(StoreError, match="older than"):
            opened(one)


def test_what_an_older_base_left_in_the_file_is_nothing(tmp_path: Path) -> None:
    with closing(started(tmp_path / "one", a=b"1", b=b"2", c=b"3")) as store:
        store.maintain()
        store.tables(1).state.put(b"a", b"new")
        store.commit()
        with closing(opened(crashed(tmp_path / "one", tmp_path / "two"))) as again:
            assert rows_of(again) == {b"first": b"in LMDB", b"a": b"new", b"b": b"2", b"c": b"3"}


def test_a_write_that_fails_refuses_the_turn_and_the_store_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed turn may be whole in the file: it must not come back."""
    real = os.pwrite

    def written_and_failed(file: int, data: bytes, position: int) -> int:
        real(file, data, position)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with closing(started(tmp_path / "one", a=b"1")) as store:
        state = store.tables(1).state
        with monkeypatch.context() as broken:
            broken.setattr(journal.os, "pwrite", written_and_failed)
            state.put(b"b", b"refused")
            with pytest.raises(StoreError, match="its journal: Input/output error"):
                store.commit()
        assert state.get(b"b") is None
        with closing(opened(crashed(tmp_path / "one", tmp_path / "two"))) as again:
            assert rows_of(again) == {b"first": b"in LMDB", b"a": b"1"}
        state.put(b"c", b"3")
        store.commit()
        with closing(opened(crashed(tmp_path / "one", tmp_path / "three"))) as again:
            assert rows_of(again) == {b"first": b"in LMDB", b"a": b"1", b"c": b"3"}


def test_while_lmdb_cannot_commit_the_journal_keeps_and_the_store_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(started(tmp_path / "one", a=b"1")) as store:
        state = store.tables(1).state
        with monkeypatch.context() as full:
            full.setattr(LmdbStore, "_commit_environment", no_space)
            state.put(b"large", bytes(limits.JOURNAL_TURN_BYTES + 1))
            with pytest.raises(StoreError, match="No space"):
                store.commit()
            assert rows_of(store) == {b"first": b"in LMDB", b"a": b"1"}
            state.put(b"b", b"2")
            store.commit()
            with closing(opened_by_another(crashed(tmp_path / "one", tmp_path / "two"), full)) as again:
                assert rows_of(again) == {b"first": b"in LMDB", b"a": b"1", b"b": b"2"}
        store.maintain()
        assert rows_of(store) == {b"first": b"in LMDB", b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("changed", [False, True])
def test_a_reader_shows_the_last_commit_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    """A read transaction of LMDB does not see rows that are only in the journal."""
    with closing(started(tmp_path / "one", a=b"1")) as store:
        state = store.tables(1).state
        if changed:
            state.put(b"b", b"given up")
        with monkeypatch.context() as full:
            full.setattr(LmdbStore, "_commit_environment", no_space)
            with pytest.raises(StoreError, match=r"No space|journal alone"):
                state.reader()
        assert rows_of(store) == {b"first": b"in LMDB", b"a": b"1"}
        with closing(state.reader()) as reader:
            assert dict(reader.scan(HERE, ABOVE)) == {b"first": b"in LMDB", b"a": b"1"}


def no_space(store: LmdbStore) -> None:
    raise lmdb.DiskError("No space left on device")


def opened_by_another(path: Path, full: pytest.MonkeyPatch) -> LmdbStore:
    full.undo()
    try:
        return opened(path)
    finally:
        full.setattr(LmdbStore, "_commit_environment", no_space)


def test_a_map_that_the_journal_does_not_fit_grows(tmp_path: Path) -> None:
    with closing(started(tmp_path / "one", **{f"k{n}": bytes(200_000) for n in range(12)})):
        at = crashed(tmp_path / "one", tmp_path / "two")
    with closing(LmdbStore(at, 1 << 20, 4)) as store:
        assert len(rows_of(store)) == 13


def test_without_room_for_a_journal_lmdb_commits_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    module = sys.modules[LmdbStore.__module__]
    monkeypatch.setattr(module, "make_journal", full)
    with closing(started(tmp_path / "one", a=b"1")):
        assert "without a journal: [Errno 28] No space left on device" in caplog.text
        with closing(opened(crashed(tmp_path / "one", tmp_path / "two"))) as again:
            assert rows_of(again) == {b"first": b"in LMDB", b"a": b"1"}


def test_a_full_disk_without_the_lock_file_of_lmdb_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel ended the node (SIGBUS), as LMDB wrote into its mapped lock file."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    started(tmp_path / "one", a=b"1").close()
    (tmp_path / "one" / "lock.mdb").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(StoreError, match="lock file cannot be written: No space left"):
            opened(tmp_path / "one")
    with closing(opened(tmp_path / "one")) as store:
        assert rows_of(store) == {b"first": b"in LMDB", b"a": b"1"}
        assert (tmp_path / "one" / "lock.mdb").stat().st_size == LMDB_LOCK_BYTES, "LMDB needs no more"


def test_a_journal_that_does_not_fit_leaves_the_space_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "write", lambda file, data: real(file, data[:BLOCK_BYTES]))
        with closing(started(tmp_path / "one", a=b"1")) as store:
            assert rows_of(store) == {b"first": b"in LMDB", b"a": b"1"}
            assert sorted(os.listdir(tmp_path / "one")) == [DATA_FILE, "lock", "lock.mdb"]


def test_a_file_system_without_direct_writes_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def no_direct(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, mode)

    monkeypatch.setattr(journal.os, "open", no_direct)
    with (
        closing(started(tmp_path / "one", a=b"1")),
        closing(opened(crashed(tmp_path / "one", tmp_path / "two"))) as again,
    ):
        assert rows_of(again) == {b"first": b"in LMDB", b"a": b"1"}
