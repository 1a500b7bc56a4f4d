"""`gossipq store`: look at, check, lay out anew and adopt the directory of a node that does not run."""

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from gossipq.config import load
from gossipq.core.ledger import records
from gossipq.core.storage import log
from gossipq.core.storage.log import NO_CHAIN
from gossipq.errors import ConfigError, StoreError
from gossipq.values import Member
from gossipq.wire.batch import seal
from gossipq_client import connect
from gossipq_node import main, recovery, store_tool
from gossipq_node.adapters import lmdb_store
from gossipq_node.adapters.lmdb_store import LmdbStore, make_store
from gossipq_node.backup.stopped import stopped_node
from gossipq_node.directory import FORMAT, MANIFEST, ROSTER, STORES, DataDirectory
from gossipq_node.files import SavedRoster, check_free, keep_roster, take_place
from hosts import Host

SHARDS = 8
SOMEBODY = 65_534  #: a user


def key(index: int) -> bytes:
    return index.to_bytes(8, "big")


def rows(path: Path) -> dict[tuple[int, str, bytes], bytes]:
    """Everything that is stored, wherever it lies."""
    found = {}
    with closing(DataDirectory(path)) as directory:
        manifest = directory.read()
        assert manifest is not None
        for worker in range(manifest.workers):
            with closing(LmdbStore(directory.store(manifest, worker), shards=SHARDS)) as store:
                for shard in store.shards():
                    assert shard % manifest.workers == worker
                    for name, table in store.tables(shard)._asdict().items():
                        found |= {(shard, name, row): value for row, value in table.scan(b"", b"\xff" * 9)}
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    with closing(DataDirectory(path)) as directory:
        manifest = directory.found("shop", 2, SHARDS)
        for worker in range(2):
            with closing(LmdbStore(directory.store(manifest, worker), shards=SHARDS)) as store:
                for shard in range(worker, SHARDS - 2, 2):  # two shards were never used
                    tables, chain = store.tables(shard), NO_CHAIN
                    for index in range(1, 6):
                        entry = log.seal(chain, index, 1, 1_000, log.NOOP, b"", b"", 0)
                        chain = entry.chain
                        tables.log.append_many([(key(index), log.encode_row(entry))])
                        tables.body.append_many([(key(index), seal([b"%d" % shard] * index))])
                    tables.state.put(b"?", b"shard %d" % shard)
                store.commit()
    return path


def test_info_counts_rows(data: Path) -> None:
    info = store_tool.info(data)
    assert info.manifest.workers == 2
    assert [worker.rows for worker in info.workers] == [{"log": 15, "body": 15, "state": 3}] * 2
    assert all(0 < worker.used_bytes <= worker.file_bytes for worker in info.workers)
    assert info.disk_free_bytes > 0


def test_info_shows_the_options_that_the_cluster_has_now(data: Path) -> None:
    founded = {"cluster.copies": "3", "cluster.replace_ms": "600000"}
    with closing(DataDirectory(data)) as directory:
        manifest = directory.read()
        assert manifest is not None
        directory.write(msgspec.structs.replace(manifest, options=founded))
    assert store_tool.info(data).manifest.options == founded, "nothing was changed since"
    with closing(LmdbStore(data / STORES / "0" / "worker-0", shards=SHARDS)) as store:
        changed = founded | {"cluster.copies": "5"}
        store.tables(0).state.put(records.OPTIONS, msgspec.msgpack.encode(changed))
        store.commit()
    assert store_tool.info(data).manifest.options == changed


def test_verify_finds_nothing_wrong(data: Path) -> None:
    verified = store_tool.verify(data)
    assert (verified.batches, verified.records, verified.damaged) == (30, 6 * 15, [])


def test_verify_names_what_is_damaged(data: Path) -> None:
    with closing(DataDirectory(data)) as directory:
        manifest = directory.read()
        assert manifest is not None
        with closing(LmdbStore(directory.store(manifest, 1), shards=SHARDS)) as store:
            body = store.tables(3).body
            batch = bytearray(body.get(key(2)) or b"")
            batch[-1] ^= 1
            body.put(key(2), batch)
            body.put(key(4), b"short")
            store.commit()
    verified = store_tool.verify(data)
    assert [(damage.shard, damage.index) for damage in verified.damaged] == [(3, 2), (3, 4)]
    assert "CRC" in verified.damaged[0].reason
    assert verified.batches == 30


def test_verify_names_shards_that_no_node_would_open(data: Path) -> None:
    with closing(DataDirectory(data)) as directory:
        manifest = directory.read()
        assert manifest is not None
        with closing(LmdbStore(directory.store(manifest, 1), shards=SHARDS)) as store:
            store.tables(1).log.delete(key(3))
            store.tables(3).state.put(b"P" + key(1), b"no partition")
            store.commit()
    first, second = store_tool.verify(data).damaged
    assert (first.shard, first.index, first.reason) == (1, 0, "log row 4 does not continue row 2")
    assert (second.shard, second.index) == (3, 0)


@pytest.mark.e2e
def test_verify_misses_the_batches_of_records(tmp_path: Path, host: Callable[[str], Host]) -> None:
    node = host("ada").start("--mode", "standalone").ready()
    with connect(node.endpoint) as mq:
        mq.publish("orders", b"purged", timeout=10)
        mq.topic("orders").purge()
        mq.publish("orders", b"stays", timeout=10)
        mq.publish("orders", b"is scheduled", delay="1h", timeout=10)
    node.kill()
    removes_the_last_needed_batch_and_is_told(node.data)


@pytest.mark.e2e
@pytest.mark.parametrize("replayed", [False, True])
def test_verify_misses_the_batch_of_a_dead_letter(
    tmp_path: Path, host: Callable[[str], Host], replayed: bool
) -> None:
    """It is a batch of its own, which outlives the record: of one that is replayed, too."""
    node = host("ada").start("--mode", "standalone").ready()
    with connect(node.endpoint) as mq:
        mq.publish("orders", b"is rejected", timeout=10)
        (message,) = mq.fetch("orders", "billing", n=1, wait=10.0)
        message.reject("never")
        mq.flush(None)
        if replayed:
            assert mq.dead("orders", "billing").replay() == 1
        mq.topic("orders").purge()
    node.kill()
    removes_the_last_needed_batch_and_is_told(node.data)


def removes_the_last_needed_batch_and_is_told(data: Path) -> None:
    assert store_tool.verify(data).damaged == []
    where = 0, 0
    with closing(DataDirectory(data)) as directory:
        manifest = directory.read()
        assert manifest is not None
        for shard in range(manifest.shards):
            worker = directory.store(manifest, shard % manifest.workers)
            with closing(LmdbStore(worker, shards=manifest.shards)) as store:
                tables = store.tables(shard)
                if needed := list(store_tool.needed_batches(tables.state)):
                    where = shard, needed[-1]
                    tables.body.delete(key(needed[-1]))
                    store.commit()
    (damage,) = store_tool.verify(data).damaged
    assert (damage.shard, damage.index) == where
    assert "missing" in damage.reason


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_reshard_moves_every_row(data: Path, workers: int) -> None:
    before = rows(data)
    assert len(before) == 66
    target = store_tool.reshard(data, workers)
    assert (target.workers, target.generation) == (workers, 1)
    assert rows(data) == before
    assert os.listdir(data / STORES) == ["1"]
    store_tool.reshard(data, 2)
    assert rows(data) == before


def test_a_reshard_that_is_cut_short_changes_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows(data)

    def crash(shard: int) -> None:
        if shard == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store_tool.reshard(data, 3, crash)
    assert os.listdir(data / STORES) == ["0"], "what was copied is left, and the disk may be full"
    assert store_tool.info(data).manifest.generation == 0
    assert rows(data) == before
    store_tool.reshard(data, 3)
    assert rows(data) == before
    assert os.listdir(data / STORES) == ["1"]


def test_what_a_killed_reshard_left_is_told_by_a_node_and_cleared_by_the_next(
    data: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(data / STORES / "0", data / STORES / "1")
    shutil.copytree(data / STORES / "0", data / STORES / "0.mine")
    monkeypatch.setattr(main, "check_options", lambda *told: (_ for _ in ()).throw(ConfigError("ends here")))
    monkeypatch.setattr(main.machine, "open_log", lambda *told: logging.getLogger("node"))
    assert main.run(load("", {}, {"node.data": str(data), "node.mode": "standalone"})) == main.EXIT_CONFIG
    assert f"{data / STORES / '1'} is left over from a compact or reshard" in caplog.text
    store_tool.compact(data)
    assert sorted(os.listdir(data / STORES)) == ["0.mine", "1"], "a copy that an operator made stays"
    assert store_tool.verify(data).batches == 30


def test_stores_are_cleared_only_beside_those_that_are_in_force(data: Path) -> None:
    """A manifest that came back from a copy may name stores that are long gone."""
    (data / STORES / "0").rename(data / STORES / "1")
    for use in (store_tool.compact, lambda path: store_tool.reshard(path, 3)):
        with pytest.raises(StoreError, match="a store of this node is gone"):
            use(data)
    assert os.listdir(data / STORES) == ["1"]


@pytest.mark.parametrize("workers", [0, SHARDS + 1])
def test_a_number_that_cannot_be_is_refused(data: Path, workers: int) -> None:
    with pytest.raises(StoreError, match="cannot share 8 shards"):
        store_tool.reshard(data, workers)


def test_a_copy_is_looked_at_and_not_laid_out_anew_before_it_is_adopted(data: Path) -> None:
    copy = data.parent / "copy"
    shutil.copytree(data, copy)
    assert store_tool.verify(copy).batches == 30
    assert len(store_tool.info(copy).workers) == len(store_tool.info(data).workers)
    with pytest.raises(StoreError, match="is a copy") as refused:
        store_tool.compact(copy)
    assert "gossipq store verify --data" in refused.value.hint
    before = json.loads((copy / MANIFEST).read_text())
    after = store_tool.adopt(copy)
    assert after.dir_uuid != before["dir_uuid"]
    assert (after.node_id, after.cluster_uuid) == (before["node_id"], before["cluster_uuid"])
    assert store_tool.verify(copy).batches == 30


def test_a_node_that_runs_is_left_alone(data: Path) -> None:
    with closing(DataDirectory(data)):
        for use in (
            store_tool.info,
            store_tool.verify,
            store_tool.adopt,
            lambda path: store_tool.reshard(path, 3),
        ):
            with pytest.raises(StoreError, match="in use by process"):
                use(data)


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a directory"):
        store_tool.info(tmp_path / "nothing")
    with pytest.raises(StoreError, match="no node has run there"):
        store_tool.info(tmp_path)


def test_an_adopted_copy_knows_the_others_and_enters_the_roster_anew(tmp_path: Path) -> None:
    with closing(DataDirectory(tmp_path)) as directory:
        voter = directory.found("shop", 1, SHARDS).voter
        members = [Member(voter, "ada", "tcp://ada:7700", 1), Member("b.b", "bob", "tcp://bob:7700", 1)]
        keep_roster(directory.roster_file, 9, members)
    assert store_tool.original_address(tmp_path) == "tcp://ada:7700"
    store_tool.adopt(tmp_path)
    assert store_tool.original_address(tmp_path) == ""
    with closing(DataDirectory(tmp_path)) as directory:
        assert directory.roster() == SavedRoster(0, members[1:])


def test_an_adoption_that_is_cut_short_leaves_no_copy_that_takes_itself_for_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose roster has only others as members does not ask to join."""

    def crash(*told: object) -> None:
        raise KeyboardInterrupt

    with closing(DataDirectory(tmp_path)) as directory:
        voter = directory.found("shop", 1, SHARDS).voter
        keep_roster(directory.roster_file, 9, [Member(voter, "ada", "tcp://ada:7700", 1)])
    for place, step in ((store_tool, "replace_file"), (DataDirectory, "write")):
        with monkeypatch.context() as patch:
            patch.setattr(place, step, crash)
            with pytest.raises(KeyboardInterrupt):
                store_tool.adopt(tmp_path)
        with closing(DataDirectory(tmp_path)) as directory:
            manifest, roster = directory.read(), directory.roster()
        assert manifest is not None
        assert not roster.version or manifest.voter in [member.copy for member in roster.members]


def test_an_adoption_whose_roster_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    with closing(DataDirectory(tmp_path)) as directory:
        before = directory.found("shop", 1, SHARDS)
        keep_roster(directory.roster_file, 9, [Member(before.voter, "ada", "tcp://ada:7700", 1)])
    (tmp_path / f"{ROSTER}.new").mkdir()
    with pytest.raises(StoreError, match="cannot be written"):
        store_tool.adopt(tmp_path)
    with closing(DataDirectory(tmp_path)) as directory:
        assert directory.read() == before


def test_a_store_that_is_gone_is_told_and_not_made_anew(data: Path) -> None:
    shutil.rmtree(data / STORES / "0" / "worker-1")
    for use in (store_tool.info, store_tool.verify, lambda path: store_tool.reshard(path, 3)):
        with pytest.raises(StoreError, match="a store of this node is gone"):
            use(data)
    assert not (data / STORES / "0" / "worker-1").exists()


def test_a_store_that_may_not_be_read_is_not_called_gone(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or somebody starts anew who needed a chown."""

    def stat(path: Path, **more: object) -> os.stat_result:
        if path.name == lmdb_store.DATA_FILE:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return os.stat(path, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(StoreError, match=r"data\.mdb cannot be read: Permission denied") as raised:
        store_tool.info(data)
    assert "empty" not in raised.value.hint
    assert "chown" in raised.value.hint


def test_a_small_address_space_is_enough_for_a_small_map(data: Path) -> None:
    """As of a node with a small node.map_bytes: the tools ask for no more than the store has."""
    use = (
        f"from gossipq_node import store_tool as tool; tool.info({str(data)!r}); "
        f"tool.reshard({str(data)!r}, 3)"
    )
    for worker in range(2):  # they were filled with the default size
        shrunk(data / STORES / "0" / f"worker-{worker}")
    bounded = ["prlimit", f"--as={16 << 30}", sys.executable, "-c", use]
    done = subprocess.run(bounded, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def shrunk(store: Path) -> None:
    """Copied into an environment with a small map, as a node with that option would have made it."""
    rows = {}
    with closing(LmdbStore(store, shards=SHARDS)) as old:
        for shard in old.shards():
            rows[shard] = [list(table.scan(b"", b"\xff" * 9)) for table in old.tables(shard)]
    shutil.rmtree(store)
    make_store(store)
    with closing(LmdbStore(store, 1 << 30, SHARDS)) as new:
        for shard, tables in rows.items():
            for table, found in zip(new.tables(shard), tables, strict=True):
                for row in found:
                    table.put(*row)
        new.commit()


def test_a_directory_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    """`gossipq --data /` once closed the directory to all other users of the machine."""
    (tmp_path / "letters").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(StoreError, match="is not a gossipq directory"):
        store_tool.info(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert os.listdir(tmp_path) == ["letters"]


def owners(path: Path) -> set[int]:
    return {each.lstat().st_uid for each in (path, *path.rglob("*"))}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works on what is somebody else's")
def test_what_root_makes_in_the_directory_of_a_service_is_that_of_the_service(data: Path) -> None:
    for each in (data, *data.rglob("*")):
        os.chown(each, SOMEBODY, SOMEBODY)
    store_tool.reshard(data, 3)
    assert owners(data) == {SOMEBODY}
    recovery.recover(data)
    assert owners(data) == {SOMEBODY}
    (data.parent / "others").write_text("of root")
    os.link(data.parent / "others", data / "linked")
    (data / "named").symlink_to(data.parent / "others")
    store_tool.verify(data)
    assert (data.parent / "others").stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes what is somebody else's")
def test_what_takes_the_place_of_an_empty_directory_leaves_it_to_its_owner(tmp_path: Path) -> None:
    built, place = tmp_path / "built", tmp_path / "place"
    for each in (built, place):
        each.mkdir()
    (built / "file").write_text("")
    os.chown(place, SOMEBODY, SOMEBODY)
    take_place(built, place)
    assert owners(place) == {SOMEBODY}


def test_where_a_disk_is_mounted_no_directory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    with pytest.raises(StoreError, match="is where a disk is mounted") as refused:
        check_free(tmp_path)
    assert "below it" in refused.value.hint


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


def test_a_directory_of_another_format_is_refused(data: Path) -> None:
    for format_, said in ((FORMAT - 1, "made by an older gossipq"), (FORMAT + 1, "start the newer gossipq")):
        with closing(DataDirectory(data)) as directory:
            manifest = directory.read()
            assert manifest is not None
            directory.write(msgspec.structs.replace(manifest, format=format_))
        with pytest.raises(StoreError) as refused:
            store_tool.verify(data)
        assert said in f"{refused.value.message} {refused.value.hint}"
        (data / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def test_a_directory_in_use_or_without_a_copy_of_each_shard_is_not_backed_up(data: Path) -> None:
    with closing(DataDirectory(data)), pytest.raises(StoreError, match="in use"), stopped_node(data):
        pytest.fail("it was opened")
    with pytest.raises(StoreError, match="shard 6 is not whole in this directory"), stopped_node(data):
        pytest.fail("it was opened")
