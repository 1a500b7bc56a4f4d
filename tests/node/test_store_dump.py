"""`gossipq store dump`, `load` and `compact`: nothing is lost, and a damaged stream leaves nothing behind."""

import io
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from gossipq import limits
from gossipq.core.ledger import Meta
from gossipq.core.ledger.records import ACCESS, META, encode
from gossipq.errors import StoreError
from gossipq.values import AccessTable, Credential, Role, Rule, User
from gossipq_node import store_dump, store_tool
from gossipq_node.adapters.lmdb_store import AS_STORED, LmdbStore
from gossipq_node.backup.folder import BackupFolder
from gossipq_node.backup.restore import Restore
from gossipq_node.directory import DataDirectory
from gossipq_node.files import read_access
from gossipq_node.recovery import known_access, known_members
from node.test_recovery import house
from node.test_store_tool import data, rows

__all__ = ["data", "house"]


@pytest.fixture
def dumped(data: Path) -> bytes:
    stream = io.BytesIO()
    done = store_dump.dump(data, stream)
    assert (done.rows, done.bytes) == (66, len(stream.getvalue()))
    return stream.getvalue()


def test_what_was_dumped_is_loaded(data: Path, dumped: bytes, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    done = store_dump.load(copy, io.BytesIO(dumped), adopt=True)
    assert done.rows == 66
    assert rows(copy) == rows(data)
    with closing(DataDirectory(data)) as first, closing(DataDirectory(copy)) as second:
        old, new = first.read(), second.read()
        assert old is not None
        assert new is not None
        second.check(new)
        assert (new.node_id, new.cluster_uuid, new.workers) == (old.node_id, old.cluster_uuid, old.workers)
        assert new.voter != old.voter
        assert new.predecessors == [old.voter]
    again = io.BytesIO()
    store_dump.dump(copy, again)
    assert len(again.getvalue()) > 0


def test_what_is_loaded_is_another_cluster_and_knows_nobody(house: Path, tmp_path: Path) -> None:
    stream = io.BytesIO()
    was = store_dump.dump(house, stream).manifest
    stream.seek(0)
    done = store_dump.load(tmp_path / "copy", stream)
    new = done.manifest
    same = {was.cluster_uuid, was.node_id, was.dir_uuid} & {new.cluster_uuid, new.node_id, new.dir_uuid}
    assert (same, new.joined, new.predecessors, new.former) == (set(), False, [], [])
    assert [row.role for row in done.shards] == ["voter", "standby", "old", "incomplete", "none"]
    with closing(DataDirectory(tmp_path / "copy")) as directory:
        assert known_members(directory, new) == directory.roster().members == []
        with closing(LmdbStore(directory.store(new, 0), shards=5)) as store:
            metas = [
                msgspec.msgpack.decode(store.tables(s).state.get(META) or b"", type=Meta) for s in range(3)
            ]
            assert [(meta.voters, meta.learners) for meta in metas] == [([], [])] * 3


@pytest.mark.parametrize("cut", [0, 5, 100, 400, -1])
def test_a_stream_that_ends_early_leaves_nothing(dumped: bytes, tmp_path: Path, cut: int) -> None:
    with pytest.raises(StoreError, match="the dump is damaged"):
        store_dump.load(tmp_path / "copy", io.BytesIO(dumped[:cut]))
    assert list(tmp_path.glob("copy*")) == []


@pytest.mark.parametrize("at", [0, 9, 20, 600, 2_000, -20])
def test_a_flipped_bit_is_seen(dumped: bytes, tmp_path: Path, at: int) -> None:
    wrong = bytearray(dumped)
    wrong[at] ^= 1
    with pytest.raises(StoreError, match="the dump is damaged"):
        store_dump.load(tmp_path / "copy", io.BytesIO(wrong))
    assert list(tmp_path.glob("copy*")) == []


def test_more_than_the_dump_is_refused(dumped: bytes, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="digest"):
        store_dump.load(tmp_path / "copy", io.BytesIO(dumped + b"x"))


def test_a_directory_with_something_in_it_is_left_alone(data: Path, dumped: bytes, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not empty"):
        store_dump.load(data, io.BytesIO(dumped))
    (tmp_path / "empty").mkdir()
    assert store_dump.load(tmp_path / "empty", io.BytesIO(dumped), adopt=True).rows == 66


def test_what_a_killed_load_left_is_cleared(dumped: bytes, tmp_path: Path) -> None:
    (tmp_path / "copy.loading").mkdir()
    (tmp_path / "copy.loading" / "junk").write_text("x")
    assert store_dump.load(tmp_path / "copy", io.BytesIO(dumped), adopt=True).rows == 66
    assert [path.name for path in tmp_path.glob("copy*")] == ["copy"]


class Meeting(io.BytesIO):
    """A dump in the middle of which something else happens."""

    def __init__(self, raw: bytes, meet: Callable[[], None]) -> None:
        super().__init__(raw)
        self._meet = meet

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > len(self.getvalue()) // 2:
            self._meet()
        return super().read(size)


def test_two_loads_into_one_directory_do_not_meet(dumped: bytes, tmp_path: Path) -> None:
    """The second one cleared what the first was making, and what it had made itself by then got the name."""
    met = []

    def meet() -> None:
        with pytest.raises(StoreError, match="is being made"):
            store_dump.load(tmp_path / "copy", io.BytesIO(dumped), adopt=True)
        met.append(1)

    assert store_dump.load(tmp_path / "copy", Meeting(dumped, meet), adopt=True).rows == 66
    assert met
    assert rows(tmp_path / "copy")
    assert [path.name for path in tmp_path.glob("copy*")] == ["copy"]


def test_a_directory_in_use_is_not_dumped(data: Path) -> None:
    with closing(DataDirectory(data)), pytest.raises(StoreError, match="in use"):
        store_dump.dump(data, io.BytesIO())


def test_compacting_keeps_every_row_and_gives_the_rest_back(data: Path) -> None:
    with closing(DataDirectory(data)) as directory:
        manifest = directory.read()
        assert manifest is not None
        with closing(LmdbStore(directory.store(manifest, 0), shards=manifest.shards)) as store:
            junk = store.tables(0).state
            for number in range(2_000):
                junk.put(b"junk %d" % number, bytes(1_000))
            store.commit()
            junk.delete_range(b"junk", b"junl", 2_000)
            store.commit()
    before = rows(data)
    old, new = store_tool.compact(data)
    assert 0 < new < old // 2
    assert rows(data) == before


def test_a_load_maps_as_much_as_it_is_told(dumped: bytes, tmp_path: Path) -> None:
    store_dump.load(tmp_path / "copy", io.BytesIO(dumped), map_bytes=limits.GIB, adopt=True)
    with closing(DataDirectory(tmp_path / "copy")) as directory:
        manifest = directory.read()
        assert manifest is not None
        with closing(LmdbStore(directory.store(manifest, 0), AS_STORED)) as store:
            assert store.usage().map_bytes == limits.GIB


@pytest.mark.parametrize("adopt", [False, True])
def test_users_and_roles_come_with_a_dump(house: Path, tmp_path: Path, adopt: bool) -> None:
    """The loaded cluster admits only users, from its first moment on."""
    role, user = Role("reads", [Rule("*", ["read"])]), User("ada", ["reads"], [Credential(b"d" * 32)])
    table = AccessTable(7, True, [user], [role])
    with (
        store_tool.opened(house) as (directory, manifest),
        closing(LmdbStore(directory.store(manifest, 0), AS_STORED, manifest.shards)) as store,
    ):
        store.tables(0).state.put(ACCESS, encode(table))
        store.commit()
    stream = io.BytesIO()
    store_dump.dump(house, stream)
    stream.seek(0)
    store_dump.load(tmp_path / "loaded", stream, adopt=adopt)
    with store_tool.opened(tmp_path / "loaded") as (directory, manifest):
        assert read_access(directory.access_file) == known_access(directory, manifest) == table


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_directory_without_a_name_is_refused(
    dumped: bytes, path: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(StoreError, match=r"cannot be made|not empty"):
        store_dump.load(path, io.BytesIO(dumped))
    with pytest.raises(StoreError, match="cannot be made"):
        Restore(BackupFolder(str(tmp_path), writes=False), path, 1)
