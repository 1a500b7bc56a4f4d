"""An exporter that runs for months: topics and groups are removed, small files are
merged, manifests stay small.
"""

import time
import urllib.request
from collections import Counter
from types import SimpleNamespace

import pytest

pytest.importorskip("pyarrow", reason="exports need pyarrow")

import pyarrow as pa

from export.faults import STEPS, fail_at
from export.reading import read, values
from gossipq.errors import BadBatch, UnknownTopic
from gossipq.types import partition_key
from gossipq.values import PartitionStats
from gossipq.wire import export
from gossipq.wire.export import Newest
from gossipq_cli.commands import export as command
from gossipq_cli.options import Choices
from gossipq_cli.output import Output
from gossipq_cli.progress import Progress
from gossipq_client import columns
from gossipq_client.api.sync import Records
from gossipq_node.export.compaction import compact
from gossipq_node.export.exporter import Exporter
from gossipq_node.export.extract import Extract
from gossipq_node.export.folder import Folder
from gossipq_node.export.follower import Follower
from gossipq_node.export.metrics import Metrics


def publish(mq, topic, count, first=0, **options):
    mq.publish_many(topic, [b"%d" % number for number in range(first, first + count)], **options, timeout=10)


def ack(broker, topic, group, count):
    """By a consumer that leaves."""
    with broker.connect() as mq:
        mq.ack_soon(mq.fetch(topic, group, n=count, wait=1.0))
        mq.flush(None)


# --- what is removed ----------------------------------------------------------------------------------------


def test_a_topic_that_is_removed_does_not_stop_the_others(broker, mq, open_folder):
    for topic in ("a", "b"):
        publish(mq, topic, 5)
        ack(broker, topic, "g", 2)
    folder = open_folder()
    exporter = Exporter(mq, folder, ["a", "b"])
    assert exporter.run().records == 10
    assert {row["topic"] for row in read(folder, "deliveries")} == {"a", "b"}
    mq.topic("b").delete()
    publish(mq, "a", 3, 5)
    done = exporter.run()
    assert (done.records, done.gone) == (3, ["b"])
    assert Counter(place[0] for place in values(folder)) == {"a": 8, "b": 5}, "records stay"
    assert {row["topic"] for row in read(folder, "deliveries")} == {"a"}, "nobody waits for them any more"
    assert {at.topic: at.removed for at in folder.read().positions.values()} == {"a": False, "b": True}
    assert Exporter(mq, open_folder(), ["a", "b"]).run().gone == ["b"], "a later run knows it, too"
    publish(mq, "b", 4, 100)
    folder = open_folder()
    assert Exporter(mq, folder, ["a", "b"]).run().records == 4, "made anew, it is another topic"
    found = sorted(
        (row["topic_id"], row["offset"]) for row in read(folder, "messages") if row["topic"] == "b"
    )
    assert [offset for _, offset in found] == [*range(5), *range(4)]
    with pytest.raises(UnknownTopic, match="'c' does not exist"):
        Exporter(mq, folder, ["a", "c"]).run()


def test_records_that_cannot_be_opened_stop_neither_the_others_nor_the_follower(
    mq, open_folder, monkeypatch, capsys
):
    publish(mq, "a", 3)
    publish(mq, "a", 3, 3)
    publish(mq, "b", 5)
    damaged, batches, folder, metrics = [True], Records.batches, open_folder(), Metrics()
    error = BadBatch("records 3 to 5 of a/0 cannot be opened: no", "read it again")

    def some(records, partition):
        for stretch in batches(records, partition):
            if stretch.topic == "a" and stretch.end > 3 and damaged:
                raise error
            yield stretch

    monkeypatch.setattr(Records, "batches", some)
    exporter = Exporter(mq, folder)
    with pytest.raises(BadBatch, match="records 3 to 5 of a/0"):
        exporter.run()
    assert Counter(place[0] for place in values(folder))["b"] == 5
    looks = []

    class Looking(Follower):
        def look(self):
            if len(looks) == 3:
                damaged.clear()
                publish(mq, "b", 5, 5)
            if len(looks) == 5:
                raise KeyboardInterrupt
            looks.append(super().look())
            metrics.count(looks[-1])
            return looks[-1]

    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    output = Output(Choices())
    with pytest.raises(KeyboardInterrupt):
        command._follow(output, Progress("records", True), Looking(exporter, folder, Clock(), 0.0), 1.0, None)
    assert Counter(place[0] for place in values(folder)) == {"a": 6, "b": 10}
    assert pauses == [2.0, 4.0, 8.0, 1.0, 1.0]
    told = capsys.readouterr().err
    assert told.count("records 3 to 5 of a/0 cannot be opened: no; read it again") == 1, told
    assert metrics.registry.get_sample_value("gossipq_export_errors_total", {"error": "BadBatch"}) == 3


@pytest.mark.parametrize("restarted", [False, True])
def test_a_group_that_is_removed_leaves_the_states(broker, mq, open_folder, restarted):
    publish(mq, "t", 5)
    ack(broker, "t", "g", 2)
    ack(broker, "t", "h", 3)
    folder = open_folder()
    exporter = Exporter(mq, folder)
    exporter.run()
    for group, left in (("h", {"g"}), ("g", set())):
        mq.group("t", group).delete()
        if restarted:
            folder = open_folder()
            exporter = Exporter(mq, folder)
        exporter.run()
        assert {row["group_name"] for row in read(folder, "deliveries")} == left
    assert exporter.run().manifests == 0, "that is told once"


def test_what_retention_does_is_not_worth_a_manifest(broker, mq, open_folder):
    mq.create_topic("t", retain="acked", retention="1s")
    publish(mq, "t", 50)
    ack(broker, "t", "g", 50)
    exporter = Exporter(mq, open_folder())
    exporter.run()
    mq.advance("10m")
    exporter.run(with_states=False)
    assert exporter.run(with_states=False).manifests == 0


def test_manifests_say_only_what_is_new(mq, open_folder):
    mq.create_topic("t", partitions=4)
    for partition in range(4):
        publish(mq, "t", 1, partition=partition)
    folder = open_folder()
    exporter = Exporter(mq, folder)
    exporter.run()
    publish(mq, "t", 2, 10, partition=2)
    exporter.run()
    told = export.decode(folder.manifest(2))
    assert [(at.partition, at.end) for at in told.positions] == [(2, 3)]
    assert [at.end for at in folder.read().positions.values()] == [1, 1, 3, 1]
    compact(folder)
    assert len(export.decode(folder.manifest(3)).positions) == 4


# --- following ----------------------------------------------------------------------------------------------


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


def test_records_wait_until_they_are_worth_a_file(mq, open_folder, monkeypatch):
    monkeypatch.setattr("gossipq_node.export.follower.ROLL_RECORDS", 100)
    mq.create_topic("t", partitions=2)
    publish(mq, "t", 3, partition=0)
    clock, folder = Clock(), open_folder()
    follower = Follower(Exporter(mq, folder), folder, clock, roll_s=60.0)
    assert follower.look().done.records == 3, "what is there at the start does not wait"

    def step(seconds):
        clock.now += seconds
        done = follower.look().done
        return done.records, done.waiting["t"]

    assert step(10) == (0, 0)
    publish(mq, "t", 5, 10, partition=0)
    assert step(10) == (0, 5)
    publish(mq, "t", 100, 100, partition=1)
    assert step(10) == (100, 5), "many records do not wait"
    assert step(39) == (0, 5)
    publish(mq, "t", 1, 20, partition=1)
    assert step(12) == (6, 0), "nor do old ones, and others come along"
    publish(mq, "t", 1, 30, partition=1)
    assert step(59) == (0, 1)
    assert step(60) == (1, 0)
    assert len(values(folder)) == 110


def test_a_follower_merges_and_removes_by_itself(mq, open_folder, tmp_path, monkeypatch):
    clock, folder = Clock(), open_folder()
    follower = Follower(Exporter(mq, folder), folder, clock, roll_s=0.0, keep_s=0.0)
    mq.create_topic("t", partitions=2)
    merged = 0
    for number in range(30):
        publish(mq, "t", 10, number * 10, partition=number % 2)
        clock.now += 720
        look = follower.look()
        merged += look.merged_files
        assert look.based == (number % 5 == 4)
        assert len(values(folder)) == number * 10 + 10, "after each step all is there, once"
    assert merged > 15
    found = folder.read()
    assert len(found.files) <= 6
    on_disk = {
        str(path.relative_to(tmp_path / "out"))
        for path in (tmp_path / "out/messages").rglob("*")
        if path.is_file()
    }
    assert on_disk == {file.path for file in found.files}, "what was replaced is gone"
    assert len(folder.sequences()) == 1


def test_a_follower_that_is_killed_while_it_merges_goes_on(mq, open_folder, monkeypatch):
    clock, folder = Clock(), open_folder()
    publish(mq, "t", 10)

    class Killed(Exception):
        pass

    def killed(*_):
        raise Killed

    for number in range(1, 5):
        follower = Follower(Exporter(mq, folder), folder, clock, roll_s=0.0)
        publish(mq, "t", 10, number * 10)
        follower.look()
        clock.now += 4_000
        with monkeypatch.context() as patch:
            patch.setattr(folder, "publish", killed)
            with pytest.raises(Killed):
                follower.look()
        folder = open_folder()
        assert len(values(folder)) == number * 10 + 10
    follower = Follower(Exporter(mq, folder), folder, clock, roll_s=0.0)
    clock.now += 4_000
    assert follower.look().merged_files > 0
    assert len(values(folder)) == 50


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_a_follower_goes_on_after_an_error_at_any_step(mq, open_folder, step, done):
    """done: what failed was done all the same, as a write to a store whose answer was lost."""
    clock, folder = Clock(), open_folder()
    follower = Follower(Exporter(mq, folder), folder, clock, roll_s=0.0, keep_s=0.0, base_s=0.0)
    failed = True
    number = 0
    while failed:
        number += 1
        publish(mq, "t", 10, number * 10)
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, step, number, OSError(5, "I/O error"), done)
            try:
                follower.look()
            except OSError:
                failed = True
            else:
                failed = False
        clock.now += 1
        follower.look()
        found = sorted(map(int, values(folder).values()))
        assert found == list(range(10, number * 10 + 10))
    assert number > 1, "something failed"


def test_metrics_over_http(mq, open_folder, settled_port):
    publish(mq, "t", 5)
    clock, folder, metrics = Clock(), open_folder(), Metrics()
    follower = Follower(Exporter(mq, folder), folder, clock, roll_s=60.0)
    metrics.serve("127.0.0.1", settled_port)
    metrics.count(follower.look())
    publish(mq, "t", 3)
    metrics.count(follower.look())
    metrics.failed(OSError(28, "full"))

    def told():
        with urllib.request.urlopen(f"http://127.0.0.1:{settled_port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))

    found = told()
    assert found['gossipq_export_waiting_messages{topic="t"}'] == "3.0"
    assert found["gossipq_export_messages_total"] == "5.0"
    assert float(found["gossipq_export_bytes_total"]) == sum(file.bytes for file in folder.read().files)
    assert found['gossipq_export_errors_total{error="OSError"}'] == "1.0"
    assert abs(float(found["gossipq_export_last_success_timestamp_seconds"]) - time.time()) < 60


@pytest.fixture
def settled_port():
    from ports import settled_port

    return settled_port()


# --- a simulated day ----------------------------------------------------------------------------------------

PARTITIONS, DAY_S, EVERY_S = 8, 86_400, 10  # what a partition costs does not depend on how many there are


class Day:
    """In the place of a cluster: partitions that get a record each ten seconds, and a group that acks
    them."""

    def __init__(self, clock):
        self.clock, self.began = clock, clock.now
        config = SimpleNamespace(virtual=[])
        self.info = SimpleNamespace(name="orders", id=7, shards=list(range(PARTITIONS)), config=config)

    @property
    def next(self):
        return int(self.clock.now - self.began) // EVERY_S + 1

    @property
    def admin(self):
        return self

    raw = admin

    def status(self):
        return SimpleNamespace(cluster=b"\xab" * 16)

    def topics(self):
        return [self.info]

    def schemas(self):
        return SimpleNamespace(schemas={})

    def spans(self, infos):
        return {partition_key(7, number): (0, self.next) for number in range(PARTITIONS)}

    def stats(self, names):
        rows = [
            PartitionStats(partition_key(7, number), "orders", 0, 0, 0, self.next, self.next, 0, 0)
            for number in range(PARTITIONS)
        ]
        groups = [SimpleNamespace(partition=row.partition, cursor=self.next) for row in rows]
        return SimpleNamespace(partitions=rows, groups=groups)

    def ack_runs(self, info, number, since):
        end = self.next
        run = SimpleNamespace(
            group="g", first=since, end=end, time_ms=int(self.clock.now * 1000), consumer="c", index=end
        )
        return end, [run]

    def state_pages(self, info, number):
        names = ("attempts", "failures", "due_ms", "time_ms")
        run = SimpleNamespace(
            group="g",
            state="done",
            first=0,
            end=self.next,
            reason="",
            error="",
            consumer="",
            **dict.fromkeys(names, 0),
        )
        return [SimpleNamespace(index=self.next, runs=[run])]


class Rows(Extract):
    """All offsets, without a record that was read."""

    def batches(self, progress):
        told = {"topic": "orders", "topic_id": 7, "partition": 0, "publish_time": 0, "value": b"x" * 100}
        rows = [told | {"offset": offset} for offset in range(self._start, self._end)]
        table = pa.Table.from_pylist(rows, columns.schema("messages"))
        self._newest.append(Newest(self._end - 1, ""))
        yield self._end, table.combine_chunks().to_batches()[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_day_is_few_files_and_small_manifests_for_each_partition(tmp_path, monkeypatch):
    clock = Clock()
    clock.now = 0.0
    written = 1_790_000_000.0
    monkeypatch.setattr("os.fsync", lambda handle: None)
    monkeypatch.setattr("gossipq_node.disk.sync_directory", lambda path: None)
    monkeypatch.setattr("gossipq_node.export.exporter.Extract", Rows)
    monkeypatch.setattr("time.time", lambda: written + clock.now)
    monkeypatch.setattr("time.time_ns", lambda: int((written + clock.now) * 1e9))
    most = Counter()
    with Folder(tmp_path / "lake") as folder:
        follower = Follower(Exporter(Day(clock), folder), folder, clock)
        while clock.now < DAY_S:
            look = follower.look()
            if look.done.manifests:
                paths = [path for path in (tmp_path / "lake").rglob("*") if path.is_file()]
                manifests = [path for path in paths if path.parent.name == "manifests"]
                most["manifest bytes"] = max(
                    most["manifest bytes"], sum(path.stat().st_size for path in manifests)
                )
                most["files on disk"] = max(most["files on disk"], len(paths))
                most["files"] = max(most["files"], len(folder.read().files))
            clock.now += EVERY_S
        found = folder.read()
        assert sum(file.rows for file in found.of("messages")) >= PARTITIONS * (DAY_S - 600) // EVERY_S
    assert most["manifest bytes"] < 80_000 * PARTITIONS
    assert most["files"] < 32 * PARTITIONS
