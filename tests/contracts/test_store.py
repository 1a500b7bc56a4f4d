"""The contract of Store, over the fake and over LMDB: what a commit keeps, what a failure forgets."""

import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random

import lmdb
import pytest

from contracts.memory import MemoryStore
from gossipq import limits
from gossipq.errors import OutOfMemory, StoreError
from gossipq_node.adapters import free_pages
from gossipq_node.adapters.lmdb_store import AS_STORED, DATA_FILE, LmdbStore, make_store
from gossipq_node.ports import Store

MAP_BYTES = 64 << 20


def new_store(path: Path, map_bytes: int, shards: int = 32) -> LmdbStore:
    make_store(path)
    return LmdbStore(path, map_bytes, shards)


class Place:
    """Opens a store, and opens it again after a crash."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind, self._path = kind, path
        self._disk: dict = {}
        self._open: list[Store] = []

    def open(self) -> Store:
        for store in self._open:
            store.close()
        self._open = [MemoryStore(self._disk) if self.kind == "memory" else new_store(self._path, MAP_BYTES)]
        return self._open[0]

    @contextmanager
    def full_disk(self, store: Store) -> Iterator[None]:
        """The next commit meets a disk without room."""
        if isinstance(store, MemoryStore):
            store.fail_in = 2
            yield
            return
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((self._path / "data.mdb").stat().st_size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture(params=["memory", "lmdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(request.param, tmp_path)
    yield place
    for store in place._open:
        store.close()


def test_committed_rows_are_there_after_a_crash_and_others_are_not(place: Place) -> None:
    store = place.open()
    store.tables(3).log.append_many([(b"1", b"kept")])
    store.commit()
    store.tables(3).log.append_many([(b"2", b"lost")])
    again = place.open().tables(3)
    assert [again.log.get(b"1"), again.log.get(b"2")] == [b"kept", None]


def test_handles_stay_good_over_commit_and_abort(place: Place) -> None:
    store = place.open()
    tables = store.tables(0)
    for turn in range(3):
        tables.body.append_many([(bytes([turn]), b"v")])
        store.commit()
    tables.body.put(b"x", b"forgotten")
    store.abort()
    assert [key for key, _ in tables.body.scan(b"", b"\xff")] == [b"\0", b"\1", b"\2"]
    tables.body.put(b"y", b"after")
    store.commit()
    assert place.open().tables(0).body.get(b"y") == b"after"


def test_many_rows_are_read_and_written_as_one_by_one(place: Place) -> None:
    store = place.open()
    state = store.tables(0).state
    state.put(b"b", b"old")
    state.put_many([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
    assert state.get_many([b"a", b"b", b"x"]) == {b"a": b"1", b"b": b"2"}
    store.commit()
    state.put_many([])
    state.put_many([(b"d", b"4")])
    again = place.open().tables(0).state
    assert again.get_many([b"c", b"d"]) == {b"c": b"3"}
    assert again.get_many([]) == {}


def test_rows_that_begin_with_something_are_deleted(place: Place) -> None:
    store = place.open()
    state = store.tables(0).state
    state.put_many([(b"a", b"1"), (b"b", b"12"), (b"c", b"2"), (b"d", b"1")])
    store.commit()
    state.delete_many([b"a", b"b", b"c", b"x"], b"1")
    state.delete_many([], b"1")
    assert list(state.scan(b"a", b"z")) == [(b"c", b"2"), (b"d", b"1")]
    store.commit()
    state.delete_many([b"d"], b"1")
    again = place.open().tables(0).state
    assert list(again.scan(b"a", b"z")) == [(b"c", b"2"), (b"d", b"1")]


def test_tables_of_shards_do_not_mix(place: Place) -> None:
    store = place.open()
    for shard in (0, 31):
        for table in (store.tables(shard).log, store.tables(shard).body, store.tables(shard).state):
            table.put(b"k", b"%d" % shard)
    assert store.tables(0).state.get(b"k") == b"0"
    assert store.tables(31).state.get(b"k") == b"31"


def test_a_commit_without_changes_is_allowed(place: Place) -> None:
    store = place.open()
    for _ in range(3):
        store.commit()


def test_a_failed_commit_keeps_the_last_good_one_and_the_store_goes_on(place: Place) -> None:
    store = place.open()
    state = store.tables(0).state
    state.put(b"k", b"good")
    store.commit()
    with place.full_disk(store):
        state.put(b"k", b"too much" * 1_000_000)
        with pytest.raises(StoreError):
            store.commit()
        assert state.get(b"k") == b"good"
    state.put(b"k", b"better")
    store.commit()
    assert place.open().tables(0).state.get(b"k") == b"better"


def test_usage_counts_what_is_stored(place: Place) -> None:
    store = place.open()
    store.tables(0).body.append_many([(b"k", b"x" * 100_000)])
    store.commit()
    usage = store.usage()
    assert 100_000 <= usage.used_bytes <= usage.map_bytes
    assert 0 <= usage.disk_free_bytes <= usage.disk_bytes
    store.tables(0).body.delete(b"k")
    store.commit()
    assert store.usage().used_bytes < 50_000
    store.maintain()


# --- LMDB alone ---------------------------------------------------------------------------------------------


def test_a_full_map_is_a_store_error_of_the_put_and_the_store_goes_on(tmp_path: Path) -> None:
    with closing(new_store(tmp_path, 1 << 20)) as store:
        state = store.tables(0).state
        state.put(b"k", b"good")
        store.commit()
        with pytest.raises(StoreError, match="MAP_FULL"):
            state.put(b"big", b"x" * (2 << 20))
        assert state.get(b"k") == b"good"
        state.put(b"k", b"better")
        store.commit()
        assert state.get(b"k") == b"better"


@pytest.mark.parametrize(
    "use",
    [
        lambda store, table: table.get(b""),
        lambda store, table: table.put(b"k" * 600, b""),
        lambda store, table: table.append_many([(b"k" * 600, b"")]),
        lambda store, table: table.delete(b""),
        lambda store, table: store.tables(4),
    ],
)
def test_every_lmdb_error_is_a_store_error(
    tmp_path: Path, use: Callable[[LmdbStore, object], object]
) -> None:
    with closing(new_store(tmp_path, 1 << 20, shards=1)) as store:
        table = store.tables(0).state
        store.commit()
        with pytest.raises(StoreError):
            use(store, table)
        table.put(b"k", b"v")
        store.commit()


def test_a_store_that_could_not_be_opened_again_tries_at_each_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(new_store(tmp_path, 1 << 20)) as store:
        table = store.tables(0).state
        table.put(b"k", b"v")
        store.commit()
        with monkeypatch.context() as broken:
            broken.setattr(lmdb, "open", _raise)
            for use in (
                lambda: table.put(b"", b""),
                lambda: table.get(b"k"),
                store.commit,
                store.abort,
                store.usage,
            ):
                with pytest.raises(StoreError):
                    use()
            with pytest.raises(StoreError):
                store.tables(1)
        with pytest.raises(StoreError):  # this one opens it again
            table.get(b"k")
        assert table.get(b"k") == b"v"


def _raise(*arguments: object, **options: object) -> None:
    raise lmdb.Error("Input/output error")


def test_a_new_store_that_a_crash_left_half_made_is_made_again(tmp_path: Path) -> None:
    half = tmp_path / "data.mdb.new"
    half.write_bytes(bytes(4_096))
    for _ in range(2):
        make_store(tmp_path)
        with closing(LmdbStore(tmp_path, 1 << 20)) as store:
            store.tables(0).state.put(b"k", b"v")
            store.commit()
        assert not half.exists()


def test_a_store_that_does_not_fit_into_memory_does_not_blame_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*told: object, **options: object) -> None:
        raise lmdb.MemoryError("Cannot allocate memory")

    make_store(tmp_path)
    monkeypatch.setattr(lmdb, "open", short)
    with pytest.raises(OutOfMemory, match="cannot be opened: Cannot allocate memory") as refused:
        LmdbStore(tmp_path, MAP_BYTES)
    assert "node.map_bytes" in refused.value.hint


def test_a_store_in_use_is_refused_and_the_holder_named(tmp_path: Path) -> None:

    with (
        closing(new_store(tmp_path, 1 << 20)),
        pytest.raises(StoreError, match=f"in use by process {os.getpid()}"),
    ):
        LmdbStore(tmp_path, 1 << 20)
    LmdbStore(tmp_path, 1 << 20).close()


def test_a_store_of_the_other_engine_is_refused(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path), lib_version=1).close()
    with pytest.raises(StoreError, match="cannot be opened"):
        LmdbStore(tmp_path, 1 << 20)


def test_a_file_that_is_no_store_is_no_matter_of_space(tmp_path: Path) -> None:
    new_store(tmp_path, 1 << 20).close()
    (tmp_path / DATA_FILE).write_bytes(b"x" * 65_536)
    with pytest.raises(StoreError, match=r"data\.mdb cannot be opened") as refused:
        LmdbStore(tmp_path, 1 << 20)
    assert "copy it again" in refused.value.hint


def test_space_of_removed_rows_is_used_again(tmp_path: Path) -> None:
    with closing(new_store(tmp_path, MAP_BYTES)) as store:
        body = store.tables(0).body
        sizes = []
        for number in range(2_000):  # LMDB commits some ten times
            body.append_many([(number.to_bytes(8, "big"), b"x" * 20_000)])
            body.delete_range(b"", max(0, number - 20).to_bytes(8, "big"), 10)
            store.commit()
            sizes.append(store.usage().file_bytes)
        assert sizes[-1] == sizes[len(sizes) // 2]


def random_life(store: LmdbStore, dice: Random, rounds: int, shrinks: bool) -> dict[bytes, bytes]:
    """Rows that come, change and go, some of them large; what is left."""
    body, rows = store.tables(0).body, dict[bytes, bytes]()
    for _ in range(rounds):
        for _ in range(dice.randrange(1, 60)):
            key = dice.randrange(400).to_bytes(4, "big")
            if key in rows and dice.random() < 0.5:
                del rows[key]
                body.delete(key)
            else:
                rows[key] = dice.randbytes(dice.choice((10, 700, 5_000, 60_000)))
                body.put(key, rows[key])
        if shrinks:
            store.shrink()
        store.commit()
        assert dict(body.scan(b"", b"\xff" * 5)) == rows
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_a_store_that_shrinks_loses_nothing(tmp_path: Path, seed: int) -> None:
    """Also what a reader sees that began before, and also over a restart."""
    dice = Random(seed)
    with closing(new_store(tmp_path, MAP_BYTES)) as store:
        before = random_life(store, dice, 20, True)
        with closing(store.tables(0).body.reader()) as reader:
            store.tables(0).body.delete_range(b"", b"\xff" * 5, 1 << 20)
            random_life(store, dice, 30, True)
            assert dict(reader.scan(b"", b"\xff" * 5)) == before
        store.tables(0).body.delete_range(b"", b"\xff" * 5, 1 << 20)
        rows = random_life(store, dice, 30, True)
    with closing(new_store(tmp_path, MAP_BYTES)) as store:
        assert dict(store.tables(0).body.scan(b"", b"\xff" * 5)) == rows


def test_what_is_removed_goes_back_to_the_disk_in_bounded_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(free_pages, "STEP_BYTES_MAX", limits.MIB)
    with closing(new_store(tmp_path, MAP_BYTES)) as store:
        body = store.tables(0).body
        for number in range(400):
            body.append_many([(number.to_bytes(8, "big"), b"x" * 20_000)])
            store.commit()
        full_bytes = store.usage().file_bytes
        body.delete_range(b"", b"\xff" * 9, 1 << 20)
        store.commit()
        assert store.usage().file_bytes >= full_bytes, "a file does not shrink by itself"
        sizes = []
        for _ in range(12):
            store.shrink()
            store.commit()
            sizes.append(store.usage().file_bytes)
        assert full_bytes - sizes[0] < 2 * limits.MIB
        assert sizes[-1] < limits.MIB
        body.append_many([(b"y", b"again" * 10_000)])
        store.commit()
    with closing(new_store(tmp_path, MAP_BYTES)) as store:
        assert store.tables(0).body.get(b"y") == b"again" * 10_000


# --- a store that is gone -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "vanish", [shutil.rmtree, lambda path: (path / DATA_FILE).unlink(), lambda path: _empty(path)]
)
def test_a_store_that_is_gone_is_refused_and_never_made_anew(
    tmp_path: Path, vanish: Callable[[Path], None]
) -> None:
    path = tmp_path / "worker-0"
    new_store(path, MAP_BYTES).close()
    vanish(path)
    with pytest.raises(StoreError, match="a store of this node is gone") as refused:
        LmdbStore(path, MAP_BYTES)
    assert "mount its disk again" in refused.value.hint
    assert not (path / DATA_FILE).exists() or not (path / DATA_FILE).stat().st_size


@pytest.mark.parametrize("kept", [0.9, 0.5, 0.02])
def test_a_file_that_is_cut_short_is_refused_and_kills_nobody(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "worker-0"
    with closing(new_store(path, MAP_BYTES)) as store:
        for number in range(200):
            store.tables(0).body.append_many([(b"%08d" % number, bytes(5_000))])
        store.commit()
    file = path / DATA_FILE
    os.truncate(file, int(file.stat().st_size * kept))
    with pytest.raises(StoreError, match=r"is cut short: [0-9]+ bytes of it are not there") as refused:
        LmdbStore(path, MAP_BYTES)
    assert "copy it again" in refused.value.hint


def test_a_file_that_ends_in_free_pages_is_whole(tmp_path: Path) -> None:
    """Pages that a transaction takes and gives back are never written."""
    path, dice, shorter = tmp_path / "worker-0", Random(1), 0
    with closing(new_store(path, MAP_BYTES)) as store:
        table = store.tables(0).state
        for round_ in range(12):
            table.put(b"%d" % dice.randrange(8), bytes(dice.randrange(60_000)))
            table.put(b"large", bytes(200_000 + 20_000 * round_))
            table.delete(b"large")
            store.commit()
            store.maintain()
            meta = _meta_of(path / DATA_FILE)
            shorter += (path / DATA_FILE).stat().st_size < (meta.last + 1) * meta.page_bytes
            assert free_pages.lacking_bytes(str(path / DATA_FILE)) == 0
    assert shorter, "no file was shorter than its pages"
    new_store(path, MAP_BYTES).close()


def _meta_of(path: Path) -> free_pages.MetaPage:
    with path.open("rb") as file:
        return free_pages.newest_meta(file.fileno())


def _empty(path: Path) -> None:
    os.truncate(path / DATA_FILE, 0)


def test_a_store_that_vanishes_while_it_is_open_says_so_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "worker-0"
    with closing(new_store(path, MAP_BYTES)) as store:
        store.tables(0).state.put(b"k", b"v")
        store.commit()
        path.rename(tmp_path / "away")
        for use in (store.usage, store.abort, lambda: store.tables(0).state.get(b"k"), store.usage):
            with pytest.raises(StoreError, match="gone"):
                use()
        assert not path.exists()
        (tmp_path / "away").rename(path)
        with pytest.raises(StoreError, match="closed"):  # this one opens it again
            store.tables(0).state.get(b"k")
        assert store.tables(0).state.get(b"k") == b"v"


def test_a_commit_is_not_denied_when_only_the_next_transaction_cannot_begin(tmp_path: Path) -> None:
    with closing(new_store(tmp_path, MAP_BYTES)) as store:
        store.tables(0).state.put(b"k", b"v")
        store._env, environment = _NoBegin(store._env), store._env
        store.commit()
        store._env = environment
        with pytest.raises(StoreError, match="closed"):
            store.tables(0).state.get(b"k")
        assert store.tables(0).state.get(b"k") == b"v"


class _NoBegin:
    def __init__(self, environment: object) -> None:
        self._environment = environment

    def begin(self, write: bool) -> object:
        raise lmdb.MemoryError("no memory")

    def __getattr__(self, name: str) -> object:
        return getattr(self._environment, name)


def test_the_size_of_the_map_is_what_the_store_had_unless_another_is_asked_for(tmp_path: Path) -> None:
    with closing(new_store(tmp_path, MAP_BYTES)) as store:
        store.tables(0).state.put(b"k", b"v")
        store.commit()
    with closing(LmdbStore(tmp_path, AS_STORED)) as store:
        assert store.usage().map_bytes == MAP_BYTES


def test_a_reader_sees_the_last_commit_whatever_comes_later(place: Place) -> None:
    store = place.open()
    table = store.tables(1).state
    for number in range(5):
        table.put(bytes([number]), b"old")
    store.commit()
    reader = table.reader()
    table.put(b"\1", b"new")
    table.delete(b"\2")
    table.put(b"\7", b"new")
    assert list(reader.scan(b"", b"\3")) == [(b"\0", b"old"), (b"\1", b"old"), (b"\2", b"old")]
    store.commit()
    assert [key[0] for key, value in reader.scan(b"", b"\xff") if value == b"old"] == [0, 1, 2, 3, 4]
    reader.close()
    assert [key[0] for key, _ in table.scan(b"", b"\xff")] == [0, 1, 3, 4, 7]


def test_a_reader_ends_with_its_environment_and_holds_nothing_up(place: Place) -> None:
    store = place.open()
    table = store.tables(1).state
    table.put(b"a", b"1")
    store.commit()
    reader = table.reader()
    table.put(b"b", b"2")
    store.abort()
    with suppress(StoreError):  # the fake cannot lose anything
        assert [key for key, _ in reader.scan(b"", b"z")] == [b"a"]
    reader.close()
    assert [key for key, _ in table.scan(b"", b"z")] == [b"a"]
    again = table.reader()
    store.close()
    again.close()
