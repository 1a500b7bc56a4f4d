"""A survivor that goes on alone: what it may lack is said first, and nothing of the old cluster gets in
again."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from gossipq.core.ledger import records
from gossipq.core.ledger.records import Meta
from gossipq.core.storage.log import NOOP, Entry, LogState, encode_row, seal
from gossipq.errors import StoreError
from gossipq.values import Member
from gossipq_client import connect
from gossipq_node import recovery
from gossipq_node.adapters.lmdb_store import LmdbStore
from gossipq_node.directory import DataDirectory
from gossipq_node.files import keep_roster
from hosts import Host
from waiting import until

OTHER = "other.copy"


def entry(index: int, time_ms: int) -> Entry:
    return seal(LogState().chain, index, 1, time_ms, NOOP, b"", b"", 0)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Of a node that joined: five shards, in five states."""
    with closing(DataDirectory(tmp_path / "data")) as directory:
        manifest = directory.found("shop", 1, 5)
        manifest = msgspec.structs.replace(manifest, joined=True)
        directory.write(manifest)
        me = manifest.voter
        keep_roster(
            directory.roster_file,
            9,
            [Member(me, "me", "tcp://a:1", 1), Member(OTHER, "other", "tcp://b:1", 1)],
        )
        with closing(LmdbStore(directory.store(manifest, 0), shards=5)) as store:
            states = {
                0: Meta(voters=[me, OTHER, "third.copy"]),
                1: Meta(voters=[OTHER], learners=[me]),
                2: Meta(voters=[OTHER]),
                3: Meta(voters=[me]),
            }
            for shard, meta in states.items():
                tables = store.tables(shard)
                tables.log.append_many([((1).to_bytes(8, "big"), encode_row(entry(1, 1_000 * shard + 1)))])
                tables.state.put(records.META, records.encode(meta))
            store.tables(3).state.put(records.INSTALLING, b"")
            for copy in (me, OTHER):
                row = records.encode(Member(copy, copy[:8], f"tcp://{copy[:5]}:7700", 1))
                store.tables(0).state.put(b"m" + copy.encode(), row)
            store.commit()
    return tmp_path / "data"


def test_what_may_be_missing_is_said_and_nothing_changed(house: Path) -> None:
    before = (house / "manifest.json").read_bytes()
    rows = recovery.outlook(house)
    assert [(row.shard, row.role, row.last, row.time_ms) for row in rows] == [
        (0, "voter", 1, 1),
        (1, "standby", 1, 1_001),
        (2, "old", 1, 2_001),
        (3, "incomplete", 1, 3_001),
        (4, "none", 0, 0),
    ]
    assert {row.role for row in rows} == set(recovery.MEANING) - {recovery.DAMAGED}
    assert (house / "manifest.json").read_bytes() == before


def test_a_recovered_copy_is_alone_and_another_cluster(house: Path) -> None:
    with closing(DataDirectory(house)) as directory:
        before = directory.read()
    assert before is not None
    after = recovery.recover(house)
    assert (after.voter, after.joined, after.shards) == (before.voter, False, 5)
    assert after.cluster_uuid != before.cluster_uuid
    with closing(DataDirectory(house)) as directory:
        assert directory.read() == after
        assert [member.copy for member in directory.roster().members] == [after.voter]
        with closing(LmdbStore(directory.store(after, 0), shards=5)) as store:
            metas = [
                msgspec.msgpack.decode(store.tables(s).state.get(records.META) or b"", type=Meta)
                for s in range(4)
            ]
            assert [meta.voters for meta in metas] == [[], [], [], [after.voter]], (
                "what is not whole stays closed"
            )
            assert [key for key, _ in store.tables(0).state.scan(b"m", b"n")] == [b"m" + after.voter.encode()]


def test_it_can_be_done_again_after_a_crash(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: DataDirectory, manifest: object) -> None:
        raise StoreError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(DataDirectory, "write", crash)
        with pytest.raises(StoreError, match="no space"):
            recovery.recover(house)
    assert not recovery.recover(house).joined


@pytest.mark.parametrize("step", ["write", "stand_alone", "replace_file"])
def test_nothing_of_the_old_cluster_is_alone_whenever_it_is_cut_short(
    house: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The node may be started again instead, and the others may come back: each of both would lead."""

    def crash(*told: object) -> None:
        raise StoreError("no space")

    with closing(DataDirectory(house)) as directory:
        before = directory.read()
    assert before is not None
    with monkeypatch.context() as patch:
        patch.setattr(DataDirectory if step == "write" else recovery, step, crash)
        with pytest.raises(StoreError, match="no space"):
            recovery.recover(house)
    with closing(DataDirectory(house)) as directory:
        after = directory.read()
        assert after is not None
        with closing(LmdbStore(directory.store(after, 0), shards=5)) as store:
            row = store.tables(0).state.get(records.META) or b""
    assert msgspec.msgpack.decode(row, type=Meta).voters or after.cluster_uuid != before.cluster_uuid
    assert recovery.recover(house).former[0] == before.cluster_uuid


def damage(house: Path, shard: int) -> None:
    with closing(DataDirectory(house)) as directory:
        manifest = directory.read()
        assert manifest is not None
        with closing(LmdbStore(directory.store(manifest, 0), shards=5)) as store:
            store.tables(shard).log.append_many(
                [((9).to_bytes(8, "big"), b"no row of a log, and not the next one")]
            )
            store.commit()


def test_a_survivor_goes_on_without_a_shard_that_is_damaged(house: Path) -> None:
    damage(house, 1)
    assert [row.role for row in recovery.outlook(house)][:2] == ["voter", "damaged"]
    after = recovery.recover(house)
    assert not after.joined
    with closing(DataDirectory(house)) as directory:
        known = {member.copy for member in directory.roster().members}
    assert known == {after.voter}


def test_a_damaged_register_is_no_survivor(house: Path) -> None:
    damage(house, 0)
    before = (house / "manifest.json").read_bytes()
    with pytest.raises(StoreError, match="register of topics is not whole"):
        recovery.recover(house)
    assert (house / "manifest.json").read_bytes() == before


def test_a_directory_without_the_register_is_no_survivor(house: Path) -> None:
    with closing(DataDirectory(house)) as directory:
        manifest = directory.read()
        assert manifest is not None
        with closing(LmdbStore(directory.store(manifest, 0), shards=5)) as store:
            store.tables(0).state.put(records.INSTALLING, b"")
            store.commit()
    with pytest.raises(StoreError, match="register of topics is not whole") as refused:
        recovery.recover(house)
    assert "another survivor" in refused.value.hint
    with closing(DataDirectory(house)) as directory:
        assert directory.read() == manifest, "it stays as it was"


def test_a_witness_has_nothing_to_go_on_with(tmp_path: Path) -> None:
    with closing(DataDirectory(tmp_path)) as directory:
        directory.write(msgspec.structs.replace(directory.found("shop", 1, 4), witness=True))
    with pytest.raises(StoreError, match="that of a witness"):
        recovery.outlook(tmp_path)


@pytest.mark.e2e
@pytest.mark.slow
def test_a_survivor_goes_on_with_every_record_and_the_others_are_turned_away(
    host: Callable[[str], Host],
) -> None:
    ada = host("ada").start("--mode", "static").ready()
    bob = host("bob").start("--peer", ada.endpoint).ready()
    until(lambda: ada.names() == ["ada", "bob"])
    until(
        lambda: (
            sum(row.role == "learner" and row.synced for h in (ada, bob) for row in h.status().copies) == 32
        )
    )
    with connect(ada.endpoint, timeout=20) as mq:
        for number in range(50):
            mq.publish("orders", b"%d" % number, timeout=20)
    ada.kill()
    bob.kill()
    rows = recovery.outlook(bob.data)
    assert {row.role for row in rows} <= {"voter", "standby"}
    recovery.recover(bob.data)
    bob.log.unlink()
    bob.start("--mode", "static").ready()
    with connect(bob.endpoint, timeout=20) as mq:
        batch = mq.fetch("orders", group="all", n=100, wait=10.0)
        assert [message.value for message in batch] == [b"%d" % number for number in range(50)]
        mq.publish("orders", b"50", timeout=20)
    ada.log.unlink()
    ada.start("--mode", "static")
    assert ada.ended() == 78, ada.said
    old, new = ada.manifest().cluster_uuid[:8], bob.manifest().cluster_uuid[:8]
    assert f"error: cluster {old} was recovered as {new} without this node" in ada.said
    assert bob.names() == ["bob"]
