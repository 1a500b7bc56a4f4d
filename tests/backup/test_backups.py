"""A restored backup equals what was there: every record and every group,
whatever happened before.
"""

import contextlib
import os
import random
import shutil
import time
from pathlib import Path

import msgspec
import pytest

from backup.life import TOPICS, Life, picture
from gossipq.core.ledger import PartitionState, records
from gossipq.core.storage.tables import MemoryTables
from gossipq.errors import GossipqError, StoreError, UnknownTopic, WrongState
from gossipq.types import Slice
from gossipq_client import testing
from gossipq_node.backup import backup as backups
from gossipq_node.backup.backup import Backup, Pace, read_points
from gossipq_node.backup.folder import folder_at
from gossipq_node.backup.restore import Restore
from gossipq_node.directory import STORES, DataDirectory
from gossipq_node.export.folder import Folder
from gossipq_node.store_tool import needed_batches

LIVES = int(os.environ.get("GOSSIPQ_LIVES", "3"))


@pytest.mark.parametrize("seed", range(LIVES))
def test_the_restored_cluster_is_the_one_that_was_backed_up(mq, back_up, restore, tmp_path, seed):
    life, pictures = Life(mq, seed), []
    for _ in range(3):
        life.go_on(40)
        pictures.append(picture(mq))
        taken = back_up()
        time.sleep(0.01)
    assert taken.point.shards[-1].shard == 0, "the register comes last"
    life.go_on(20)
    with folder_at(str(tmp_path / "backup"), writes=False) as folder:
        times = [point.written_ms for point in read_points(folder)]
    for at_ms, before in zip(times, pictures, strict=True):
        assert picture(restore(as_of_ms=at_ms)) == before
    assert picture(restore()) == pictures[-1]


def test_what_goes_on_with_it_goes_on_where_it_was(broker, mq, back_up, restore):
    """Schedules come due, ids are known, groups go on, dead letters can be replayed, new topics be made."""
    mq.create_topic("orders", dedup="1h")
    mq.publish_many("orders", [b"later"], delay="1s", timeout=10)
    mq.publish_many("orders", [b"%d" % at for at in range(10)], ids=[str(at) for at in range(10)], timeout=10)
    batch = mq.fetch("orders", "billing", n=4, wait=2.0)
    batch[0].reject("never")
    for message in batch[1:]:
        message.ack_soon()
    mq.flush(None)
    back_up()
    again = restore()
    assert again.publish("orders", b"0", id="0", timeout=10).duplicate
    assert again.dead("orders", "billing").replay() == 1
    got = []
    while batch := again.fetch("orders", "billing", n=20, wait=2.0):
        got += [message.value for message in batch]
        again.ack_soon(batch)
    assert sorted(got) == sorted([b"0", b"4", b"5", b"6", b"7", b"8", b"9", b"later"])
    again.publish("brand.new", b"x", timeout=10)
    assert [info.name for info in again.topics("brand*")] == ["brand.new"]
    ids = [info.id for info in (*mq.topics(), *again.topics("brand*"))]
    assert len(ids) == len(set(ids))


def test_only_what_is_new_is_asked_for(life, mq, back_up, tmp_path):
    life.go_on(40)
    mq.publish_many("orders", [b"x" * 50_000] * 40, timeout=10)
    first = back_up()
    # once a minute each shard has an entry for its growth, and what it keeps is new
    assert min(back_up().bytes_new for _ in range(2)) < 10_000
    mq.publish("orders", b"y" * 50_000, timeout=10)
    second = back_up()
    assert 50_000 < second.bytes_new < first.bytes_new / 3
    assert [each.index for each in first.point.shards] <= [each.index for each in second.point.shards]


def test_single_topics_are_restored_with_all_that_is_theirs(life, mq, back_up, restore, tmp_path):
    life.go_on(80)
    mq.topic("both").bind(["orders", "payments"])
    before = picture(mq)
    back_up()
    again = restore(topics=["orders", "dead.*"])
    assert {info.name for info in again.topics()} == {"orders", "dead.or.alive"}
    after = picture(again)
    for name in ("orders", "dead.or.alive"):
        mine = {key: value for key, value in before.items() if key == name or key[0] == name}
        assert {key: value for key, value in after.items() if key == name or key[0] == name} == mine
    again.publish("payments", b"made anew", timeout=10)
    with pytest.raises(UnknownTopic, match="orderz") as caught:
        restore(topics=["orderz"])
    assert caught.value.hint == f"it has {', '.join(sorted(info.name for info in mq.topics()))}"
    assert not list(tmp_path.glob("*.restor*")), "refused before anything is written"


def test_topics_that_come_and_go_while_a_backup_is_made(broker, mq, tmp_path, restore):
    """The register comes last: what it has and a shard has not is made there; the other way round goes."""
    for topic in TOPICS:
        mq.create_topic(topic, partitions=8)
        mq.publish(topic, b"x", partition=0, timeout=10)

    class Meddled:
        status = staticmethod(mq.admin.raw.status)

        def backup_part(self, shard, request):
            if shard == 0 and not request.index:  # all others are done
                mq.create_topic("late", partitions=8)
                mq.publish_many("late", [b"y"] * 8, timeout=10)
                mq.topic("orders").delete()
            return mq.admin.raw.backup_part(shard, request)

    with folder_at(str(tmp_path / "backup"), writes=True) as folder:
        Backup(Meddled(), folder, Pace(0), lambda done: None).run()
    again = restore()
    assert {info.name for info in again.topics()} == {"late", *TOPICS} - {"orders"}
    (late,) = again.topics("late")
    for number in range(8):
        again.publish("late", b"z", partition=number, timeout=10)
    assert len(late.shards) == 8
    stats = again.admin.stats()
    assert "orders" not in {row.topic for row in stats.partitions}


def test_a_point_that_is_gone_is_made_again_and_keeps_what_was_brought(mq, tmp_path, restore, monkeypatch):
    monkeypatch.setattr(backups, "FILE_BYTES", 100_000)
    mq.create_topic("orders", partitions=4)
    mq.publish_many("orders", [b"x" * 50_000] * 40, timeout=10)
    before, dice, asked = picture(mq), random.Random(3), []

    class Forgetful:
        status = staticmethod(mq.admin.raw.status)

        def backup_part(self, shard, request):
            if request.kind and dice.random() < 0.05:
                raise WrongState("gone")
            if request.kind == "batches":
                asked.append((shard, request.at))
            return mq.admin.raw.backup_part(shard, request)

    with folder_at(str(tmp_path / "backup"), writes=True) as folder:
        Backup(Forgetful(), folder, Pace(0), lambda done: None).run()
    assert picture(restore()) == before


def test_old_points_go_with_the_files_that_only_they_need(life, mq, back_up, restore, tmp_path):
    for _ in range(3):
        life.go_on(20)
        back_up()
    for topic in TOPICS:
        mq.topic(topic).purge()
    files = lambda: sum(path.is_file() for path in Path(tmp_path, "backup").rglob("*.gqb"))  # noqa: E731
    many, before = files(), picture(mq)
    taken = back_up(keep_s=0.0)
    assert taken.files_removed
    assert files() < many
    with folder_at(str(tmp_path / "backup"), writes=False) as folder:
        assert len(list(read_points(folder))) == 1
    assert picture(restore()) == before


@pytest.mark.parametrize("harm", ["cut", "flip", "gone", "point"])
def test_what_is_damaged_is_said_and_leaves_nothing(life, back_up, restore, tmp_path, harm):
    life.go_on(40)
    back_up()
    root = tmp_path / "backup"
    path = max(
        (root / ("points" if harm == "point" else "batches")).rglob("*.*"), key=lambda at: at.stat().st_size
    )
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1 if harm != "point" else 0xFF
    path.write_bytes(raw[:-1] if harm == "cut" else raw)
    if harm == "gone":
        path.unlink()
    with pytest.raises(StoreError) as refused:
        restore()
    assert not Path(tmp_path, "restored-1", "data").exists()
    # a backup does not read existing files, so each later point would need this one
    if harm in ("cut", "flip"):
        assert f"remove {path}, and gossipq backup brings it again" in refused.value.hint
        path.unlink()
        back_up()
        restore()


@pytest.mark.parametrize("delay", [None, "1h"])
def test_a_batch_that_its_leader_had_lost_is_said(mq, tmp_path, restore, delay):
    """A shard over such a directory would stop when somebody reads it."""
    mq.create_topic("orders", partitions=1)
    for value in (b"first", b"second"):
        mq.publish("orders", value, delay=delay, timeout=10)

    class Holed:
        status = staticmethod(mq.admin.raw.status)

        def backup_part(self, shard, request):
            told, rows = mq.admin.raw.backup_part(shard, request)
            if request.kind in ("kept", "batches"):
                found = msgspec.msgpack.decode(rows)
                rows = msgspec.msgpack.encode(found[1:])
            return told, rows

    with folder_at(str(tmp_path / "backup"), writes=True) as folder:
        Backup(Holed(), folder, Pace(0), lambda done: None).run()
    with pytest.raises(StoreError, match="lacks 1 batches"):
        restore()


def test_a_batch_that_was_about_to_go_is_not_missed(mq, tmp_path, restore):
    """Points that were made before such batches were left out say that they are there."""
    mq.create_topic("orders", partitions=1)
    mq.publish("orders", b"first", timeout=10)

    class Early:
        status = staticmethod(mq.admin.raw.status)

        def backup_part(self, shard, request):
            told, rows = mq.admin.raw.backup_part(shard, request)
            if request.kind == "kept" and (found := msgspec.msgpack.decode(rows)):
                rows = msgspec.msgpack.encode([found[0] - 1, *found])
            return told, rows

    with folder_at(str(tmp_path / "backup"), writes=True) as folder:
        Backup(Early(), folder, Pace(0), lambda done: None).run()
    assert [message.value for message in restore().fetch("orders", "billing", n=9, wait=30)] == [b"first"]


def test_what_waits_to_be_swept_needs_no_batch():
    """A copy that was behind gets entries without batches that are gone by then, and may lead before it has
    swept what they left."""
    state = MemoryTables().state
    state.put(records.key(b"P", 1), records.encode(PartitionState(1, first=2, next=4)))
    for partition, offset, index in ((1, 0, 10), (1, 2, 11), (1, 3, 12), (2, 0, 13)):
        part = Slice(offset, index, 0, 2, 100, 2, 0, 0, b"")
        state.put(records.slice_key(partition, offset), records.encode_slice(part))
    assert list(needed_batches(state)) == [11, 12]


def test_each_cluster_has_a_folder_of_its_own(mq, back_up, tmp_path):
    back_up()
    with (
        testing.Broker() as other,
        other.connect() as stranger,
        folder_at(str(tmp_path / "backup"), True) as folder,
    ):
        with pytest.raises(StoreError, match="another cluster"):
            Backup(stranger.admin.raw, folder, Pace(0), lambda done: None)
        with pytest.raises(StoreError, match="another backup writes"):
            folder_at(str(tmp_path / "backup"), writes=True)
    with folder_at(str(tmp_path / "backup"), writes=False) as folder:
        with pytest.raises(StoreError, match="does not go back"):
            Restore(folder, tmp_path / "r", 1).run(as_of_ms=1)
        with pytest.raises(StoreError, match="not empty"):
            Restore(folder, tmp_path, 1).run()
        with pytest.raises(StoreError, match="workers"):
            Restore(folder, tmp_path / "r", 5).run()
    (tmp_path / "empty").mkdir()
    with (
        folder_at(str(tmp_path / "empty"), writes=False) as folder,
        pytest.raises(StoreError, match="no point"),
    ):
        Restore(folder, tmp_path / "r", 1).run()


def test_it_keeps_its_pace():
    now_s, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now_s[0] += seconds

    pace = Pace(1_000, lambda: now_s[0], sleep)
    for _ in range(10):
        pace.took(500)
        now_s[0] += 0.1
    assert 5.0 <= now_s[0] < 6.1
    Pace(0, lambda: now_s[0], sleep).took(10**12)
    assert len(slept) <= 10


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_directory_without_a_name_is_refused(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with (
        folder_at(str(tmp_path), writes=False) as folder,
        pytest.raises(StoreError, match="cannot be made"),
    ):
        Restore(folder, path, 1)


def test_two_restores_into_one_directory_do_not_meet(life, back_up, tmp_path, monkeypatch):
    """The second one once cleared the first one's files, because it was
    to restore something else.
    """
    life.go_on(30)
    back_up()
    shard_of, met = Restore._shard, []

    def shard(self, told, store):
        met.append(told.shard)
        if len(met) == 2:
            with pytest.raises(StoreError, match="is being made"):
                Restore(folder, tmp_path / "twice", 1).run(topics=("orders",))
        return shard_of(self, told, store)

    monkeypatch.setattr(Restore, "_shard", shard)
    with folder_at(str(tmp_path / "backup"), writes=False) as folder:
        assert Restore(folder, tmp_path / "twice", 1).run().removed == []
    assert len(met) > 1
    assert [path.name for path in tmp_path.glob("twice*")] == ["twice"]


def test_a_restore_that_was_cut_short_goes_on(life, mq, back_up, tmp_path, monkeypatch):
    """It does only the rest, unless it is asked for something else."""
    life.go_on(30)
    back_up()
    stored, again = [], []
    shard_of = Restore._shard

    def shard(self, told, store):
        if len(stored) == 2:
            raise KeyboardInterrupt
        stored.append(told.shard)
        return shard_of(self, told, store)

    with folder_at(str(tmp_path / "backup"), writes=False) as folder:
        for topics, expected in (((), 2), (("orders",), 4)):
            stored.clear()
            monkeypatch.setattr(Restore, "_shard", shard)
            with pytest.raises(KeyboardInterrupt):
                Restore(folder, tmp_path / "cut", 1).run()
            monkeypatch.setattr(Restore, "_shard", shard_of)
            assert not (tmp_path / "cut").exists()
            again.clear()
            monkeypatch.setattr(
                Restore, "_shard", lambda *told: again.append(told[1].shard) or shard_of(*told)
            )
            Restore(folder, tmp_path / "cut", 1).run(topics=topics)
            assert len(again) == expected
            shutil.rmtree(tmp_path / "cut")
    assert not list(tmp_path.glob("cut*"))


def test_a_restore_does_not_count_on_what_another_one_has_cleared(life, back_up, tmp_path, monkeypatch):
    """The notes of the first were still there when the second one ended before its first shard was done."""
    life.go_on(30)
    back_up()
    stored, shard_of, shards_max = [], Restore._shard, []

    def shard(self, told, store):
        if len(stored) == shards_max[-1]:
            raise KeyboardInterrupt
        stored.append(told.shard)
        return shard_of(self, told, store)

    monkeypatch.setattr(Restore, "_shard", shard)
    with folder_at(str(tmp_path / "backup"), writes=False) as folder:
        for end, topics in ((2, ()), (0, ("orders",)), (None, ())):
            shards_max.append(end)
            stored.clear()
            with contextlib.suppress(KeyboardInterrupt):
                Restore(folder, tmp_path / "cut", 1).run(topics=topics)
    assert len(stored) == 4


def test_a_restore_goes_on_with_no_point_of_another_folder(mq, back_up, tmp_path, monkeypatch):
    """Both points are number 1 of one cluster: shards of an older and of a newer one were mixed."""
    shard_of, made = Restore._shard, list[str]()

    def cut_short(self, told, store):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(told.state.path)
        return shard_of(self, told, store)

    def stored(self, told, store):
        made.append(told.state.path)
        return shard_of(self, told, store)

    for number, place in enumerate(("old", "new")):
        for topic in range(8):
            mq.publish(f"orders{topic}", b"%d" % number)
        back_up(str(tmp_path / place))
    for place, shard in (("old", cut_short), ("new", stored)):
        made.clear()
        monkeypatch.setattr(Restore, "_shard", shard)
        with (
            folder_at(str(tmp_path / place), writes=False) as folder,
            contextlib.suppress(KeyboardInterrupt),
        ):
            point = Restore(folder, tmp_path / "cut", 1).run().point
    assert made == [shard.state.path for shard in point.shards]


@pytest.mark.parametrize("kind", ["state", "batches"])
def test_what_somebody_removed_is_brought_again(life, mq, back_up, restore, tmp_path, kind):
    """A rule of a bucket that removes old files takes those of the first backup: batches never change."""
    life.go_on(40)
    back_up()
    for path in (tmp_path / "backup" / kind).rglob("*.gqb"):
        path.unlink()
    before = picture(mq)
    back_up()
    assert picture(restore()) == before


@pytest.mark.parametrize(
    "opens", [lambda path: folder_at(path, writes=True), Folder], ids=["backup", "export"]
)
def test_nothing_is_written_into_the_data_of_a_node(tmp_path, opens):
    with contextlib.closing(DataDirectory(tmp_path / "data")) as directory:
        directory.found("gossipq", 1, 8)
        (directory.path / STORES).mkdir(exist_ok=True)
        before = sorted(os.listdir(directory.path))
        with pytest.raises(GossipqError, match="is the data directory of a node") as refused:
            opens(str(directory.path))
        assert refused.value.hint == "choose another --out"
        assert sorted(os.listdir(directory.path)) == before
