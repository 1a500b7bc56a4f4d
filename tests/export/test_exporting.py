"""Exports of a broker in this process: their contents, what the next run
adds, and what is refused.
"""

import errno
import os
import resource
import time
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import count, pairwise
from types import SimpleNamespace

import msgspec
import pytest

from gossipq_client.api.sync import RawAnswers, Records

pytest.importorskip("pyarrow", reason="exports need pyarrow")

import pyarrow as pa

from export.faults import STEPS, fail_at
from export.reading import read, states, values
from gossipq.errors import (
    Busy,
    DataLoss,
    ExportError,
    ExportVersion,
    Forbidden,
    OffsetOutOfRange,
    TornExport,
    UnknownTopic,
)
from gossipq.messages import Identity
from gossipq.types import partition_key
from gossipq.values import Rule
from gossipq.wire import export
from gossipq_client import columns, testing
from gossipq_node.export import compaction, segments
from gossipq_node.export import exporter as exporting
from gossipq_node.export.compaction import compact
from gossipq_node.export.exporter import Exporter
from waiting import until

BIG = os.urandom(1 << 20)


def publish(mq, topic, count, first=0, **options):
    mq.publish_many(topic, [b"%d" % number for number in range(first, first + count)], **options, timeout=10)


def run(mq, folder, *topics, **options):
    return Exporter(mq, folder, topics, **options).run()


def fill(mq):
    """Topics with all that a record may have."""
    mq.create_topic("007", partitions=3)
    mq.create_topic("empty", partitions=2)
    mq.create_topic("big")
    publish(mq, "007", 500, partition=0)
    mq.publish(
        "007",
        b"full",
        key=b"ada",
        headers={"k": b"\xff\x00", "t": "text"},
        route="eu.fr",
        id="i-1",
        partition=1,
        timeout=30,
    )
    mq.publish("007", b"", partition=1, timeout=30)
    mq.publish("007", b"later", delay="1h", partition=2, timeout=30)
    for _ in range(3):
        mq.publish("big", BIG, timeout=30)
    mq.advance("2h")
    mq.fetch("007", "late", n=600)  # what is due has its offset
    deadline = time.monotonic() + 10
    while {row.scheduled for row in mq.admin.raw.stats(["007"]).partitions} != {0}:
        assert time.monotonic() < deadline
    mq.flush(None)


@pytest.mark.parametrize("form", ["parquet", "lmdb"])
def test_all_that_a_record_has_is_in_the_export(mq, open_folder, form):
    before, folder = datetime.now(UTC), open_folder()
    fill(mq)
    done = run(mq, folder, format=form)
    assert (done.records, done.manifests) == (506, 1)
    found = values(folder)
    assert {place[:2] for place in found} == {("007", 0), ("007", 1), ("007", 2), ("big", 0)}
    assert [found["007", 0, offset] for offset in range(500)] == [b"%d" % number for number in range(500)]
    assert [found["big", 0, offset] for offset in range(3)] == [BIG] * 3
    rows = {(row["topic"], row["partition"], row["offset"]): row for row in read(folder, "messages")}
    full, plain, later = rows["007", 1, 0], rows["007", 1, 1], rows["007", 2, 0]
    assert (full["key"], full["route"], full["id"], full["deliver_at"]) == (b"ada", "eu.fr", b"i-1", None)
    assert full["headers"] == [{"key": "k", "value": b"\xff\x00"}, {"key": "t", "value": b"text"}]
    assert [plain[name] for name in ("key", "headers", "value", "route", "id")] == [
        None,
        None,
        b"",
        None,
        None,
    ]
    assert (
        timedelta(0)
        <= later["deliver_at"] - later["publish_time"] - timedelta(hours=1)
        < timedelta(seconds=1)
    ), "never early"
    assert abs(full["publish_time"] - before) < timedelta(minutes=5)
    infos = {info.name: info.id for info in mq.topics()}
    assert {row["topic_id"] for row in rows.values()} == {infos["007"], infos["big"]}
    positions = folder.read().positions
    assert positions[infos["empty"], 1].end == 0, "an empty partition is known, too"


def test_both_formats_have_the_same_rows(mq, open_folder):
    fill(mq)
    tables = []
    for form in export.FORMATS:
        folder = open_folder(form)
        run(mq, folder, format=form)
        tables.append([read(folder, data_set) for data_set in ("messages", "acks")])
    assert tables[0] == tables[1]


def test_a_run_writes_what_is_new_and_nothing_when_nothing_is(mq, open_folder):
    folder = open_folder()
    mq.create_topic("t", partitions=2)
    publish(mq, "t", 10, partition=0)
    assert run(mq, folder).records == 10
    assert run(mq, folder).manifests == 0, "nothing is new"
    publish(mq, "t", 5, first=10, partition=0)
    publish(mq, "t", 7, first=100, partition=1)
    assert run(mq, open_folder()).records == 12, "a new process goes on where the manifests end"
    found = values(open_folder())
    assert [found["t", 0, offset] for offset in range(15)] == [b"%d" % number for number in range(15)]
    assert len(found) == 22


def test_only_the_topics_that_were_named(mq, open_folder):
    for name in ("orders", "in-a", "in-b", "other", "_inner"):
        publish(mq, name, 1)
    folder = open_folder()
    assert run(mq, folder, "orders", "in-*").records == 3
    assert {place[0] for place in values(folder)} == {"orders", "in-a", "in-b"}
    assert run(mq, folder).records == 1, "without a name all, but those that are not the user's"
    assert run(mq, folder, "*", "*inner").records == 0
    assert run(mq, folder, "_inner").records == 1
    with pytest.raises(UnknownTopic, match="'orderz' does not exist"):
        run(mq, folder, "orderz")


def test_files_and_manifests_of_bounded_size(mq, open_folder, monkeypatch):
    monkeypatch.setattr(segments, "FILE_ROWS", 200)
    monkeypatch.setattr(exporting, "CHECKPOINT_ROWS", 400)
    monkeypatch.setattr("gossipq_client.columns.GROUP_ROWS", 50)
    folder = open_folder()
    for first in range(0, 1_000, 25):
        publish(mq, "t", 25, first)
    done = run(mq, folder)
    assert (done.records, done.files, done.manifests) == (1_000, 5, 3)
    assert [(file.start, file.end) for file in folder.read().files] == [
        (at, at + 200) for at in range(0, 1_000, 200)
    ]
    assert len(values(folder)) == 1_000


def test_a_topic_that_was_made_anew(mq, open_folder):
    folder = open_folder()
    publish(mq, "t", 3)
    run(mq, folder)
    mq.topic("t").delete()
    mq.create_topic("t")
    publish(mq, "t", 2, first=10)
    assert run(mq, folder).records == 2
    rows = read(folder, "messages")
    assert [row["value"] for row in rows] == [b"0", b"1", b"2", b"10", b"11"]
    assert len({row["topic_id"] for row in rows}) == 2


def test_a_topic_that_is_hidden_is_not_gone(mq, open_folder, monkeypatch):
    """Another user, or one who has lost a permission, does not see it in lists."""
    folder = open_folder()
    publish(mq, "mine", 3)
    publish(mq, "theirs", 3)
    mq.ack_soon(mq.fetch("theirs", "g", n=3))
    mq.flush(None)
    run(mq, folder)
    topics = mq.admin.raw.topics

    def some(pattern="*"):
        if pattern == "theirs":
            raise Forbidden("RESOLVE of theirs")
        return [info for info in topics(pattern) if info.name == "mine"]

    monkeypatch.setattr(mq, "topics", some)
    monkeypatch.setattr(mq.admin.raw, "topics", some)
    monkeypatch.setattr(mq.admin.raw, "whoami", lambda: Identity("ada", True, [Rule("mine", ["read"])]))
    publish(mq, "mine", 2, 3)
    assert run(mq, folder).records == 2
    assert not any(at.removed for at in folder.read().positions.values())
    assert {row["topic"] for row in read(folder, "deliveries")} == {"theirs"}, "its states count"
    with pytest.raises(Forbidden):
        run(mq, folder, "theirs")
    monkeypatch.setattr(mq.admin.raw, "whoami", lambda: Identity("", False))
    run(mq, folder)
    assert {at.topic: at.removed for at in folder.read().positions.values()} == {
        "mine": False,
        "theirs": True,
    }


def test_a_cluster_that_went_back_and_gave_the_number_of_a_topic_to_another_one(mq, open_folder, monkeypatch):
    folder = open_folder()
    mq.create_topic("empty")
    run(mq, folder)
    exporter, topics = Exporter(mq, folder), mq.admin.raw.topics
    monkeypatch.setattr(
        mq.admin.raw, "topics", lambda: [msgspec.structs.replace(info, name="other") for info in topics()]
    )
    voided = {partition_key(info.id, 0): 0 for info in topics()}
    monkeypatch.setattr(exporter, "_stats", lambda infos: (voided, {}))
    with pytest.raises(ExportError, match="is 'other', and was 'empty' before"):
        exporter.run()


@pytest.mark.parametrize("step", ["_check_gaps", "_messages"])
def test_a_topic_that_leaves_during_its_export_is_gone_in_the_next_run(mq, open_folder, step):
    """A follower waits out what is Busy."""
    publish(mq, "t", 3)
    publish(mq, "u", 3)
    mq.ack_soon(mq.fetch("t", "g", n=3))
    mq.flush(None)
    exporter = Exporter(mq, open_folder())
    before = getattr(exporter, step)

    def leaves(part):
        before(part)
        setattr(exporter, step, before)
        mq.topic("t").delete()

    setattr(exporter, step, leaves)
    with pytest.raises(Busy, match="'t' was removed during its export"):
        exporter.run()
    exporter.run()
    assert {topic for topic, *_ in values(open_folder())} >= {"u"}


def test_retention_that_takes_the_newest_record_as_it_is_compared(mq, open_folder, monkeypatch):
    folder = open_folder()
    publish(mq, "t", 3)
    run(mq, folder)
    exporter = Exporter(mq, folder)

    def removed(*_, **__):
        raise OffsetOutOfRange("offset 2 of partition 0 cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(Records, "batches", removed)
        patch.setattr(mq.admin, "schemas", lambda: SimpleNamespace(schemas={}))
        with pytest.raises(Busy, match="retention overtook"):
            exporter.run()
    exporter.run()


def test_leaders_are_asked_for_some_topics_at_a_time(mq, open_folder, monkeypatch):
    monkeypatch.setattr(exporting, "ASKED_PARTITIONS", 3)
    asked, stats = [], mq.admin.raw.stats
    monkeypatch.setattr(mq.admin.raw, "stats", lambda names: asked.append(list(names)) or stats(names))
    for number in range(5):
        mq.create_topic(f"t{number}", partitions=2)
        publish(mq, f"t{number}", 3, partition=1)
    assert run(mq, open_folder()).records == 15
    assert asked == [["t0", "t1"], ["t2", "t3"], ["t4"]]


def test_a_partition_without_a_leader_is_waited_for_and_then_named(mq, open_folder, monkeypatch):
    publish(mq, "t", 3)
    folder, stats = open_folder(), mq.admin.raw.stats
    monkeypatch.setattr(exporting, "LEADERS_PAUSE_S", 0.01)
    answers = [msgspec.structs.replace(stats(["t"]), partitions=[]), stats(["t"])]
    monkeypatch.setattr(mq.admin.raw, "stats", lambda names: answers.pop(0))
    assert run(mq, folder).records == 3
    monkeypatch.setattr(
        mq.admin.raw, "stats", lambda names: msgspec.structs.replace(stats(names), partitions=[])
    )
    with pytest.raises(Busy, match="no leader for t/0"):
        run(mq, folder)


def test_counters_of_a_leader_that_does_not_know_all_yet_are_not_believed(mq, open_folder, monkeypatch):
    """They are told also by a copy that has just been elected, or that leads no more: a run ended before the
    newest records, and said that nothing was left."""
    folder, stats = open_folder(), mq.admin.raw.stats
    publish(mq, "t", 5)
    run(mq, folder)
    publish(mq, "t", 5, 5)
    behind = 7

    def of_old(names):
        found = stats(names)
        rows = [msgspec.structs.replace(row, next=row.next - behind) for row in found.partitions]
        return msgspec.structs.replace(found, partitions=rows)

    monkeypatch.setattr(mq.admin.raw, "stats", of_old)
    assert run(mq, folder).records == 5
    publish(mq, "t", 7, 10)
    assert run(mq, folder).records == 7
    assert len(values(folder)) == 17


# --- acks and states ----------------------------------------------------------------------------------------


def test_where_every_record_stands(mq, open_folder):
    mq.create_topic("t")
    publish(mq, "t", 10)
    messages = list(mq.fetch("t", "g", n=6))
    for message in messages[:2]:
        message.ack_soon()
    messages[2].reject("no such account")
    messages[3].nack(delay="1h", reason="bank asleep")
    mq.flush(None)
    mq.record("t", 0, 8).cancel(reason="sold out")
    deadline = time.monotonic() + 10
    while [row.in_flight for row in mq.topic("t").groups()] != [2] and time.monotonic() < deadline:
        time.sleep(0.02)
    publish(mq, "t", 1, first=10)
    expected = (
        ["done"] * 2 + ["dead", "retrying"] + ["in_flight"] * 2 + ["ready"] * 2 + ["done"] + ["ready"] * 2
    )
    numbers = count()

    def exported():
        folder = open_folder(f"out-{next(numbers)}")
        run(mq, folder)
        found = states(folder, "t")
        return folder if [found[0, offset] for offset in range(11)] == expected else None

    folder = until(exported)  # leases are logged a moment after they are given
    rows = {row["state"]: row for row in read(folder, "deliveries")}
    assert (rows["dead"]["reason"], rows["dead"]["error"], rows["dead"]["attempts"]) == (
        "rejected",
        "no such account",
        1,
    )
    assert (rows["retrying"]["reason"], rows["retrying"]["failures"]) == ("bank asleep", 1)
    late = rows["retrying"]["due_at"] - rows["retrying"]["changed_at"] - timedelta(hours=1)
    assert timedelta(0) <= late <= timedelta(milliseconds=2), "never early: clocks are read in milliseconds"
    assert rows["in_flight"]["due_at"] is not None
    assert (rows["voided"]["group_name"], rows["voided"]["reason"], rows["voided"]["start_offset"]) == (
        "",
        "sold out",
        8,
    )
    (ack,) = read(folder, "acks")
    assert (ack["group_name"], ack["start_offset"], ack["end_offset"]) == ("g", 0, 2)
    assert abs(ack["acked_at"] - rows["dead"]["changed_at"]) < timedelta(minutes=1)
    assert "8" not in [value.decode() for value in values(folder).values()], (
        "what was voided before is not exported"
    )


def test_what_was_voided_is_told_without_any_group(mq, open_folder):
    folder = open_folder()
    publish(mq, "t", 5)
    exporter = Exporter(mq, folder)
    exporter.run()
    assert read(folder, "deliveries") == []
    mq.record("t", 0, 3).cancel(reason="wrong")
    assert exporter.run().files == 1
    assert exporter.run().files == 0
    rows = [
        (row["group_name"], row["state"], row["start_offset"], row["end_offset"], row["reason"])
        for row in read(folder, "deliveries")
    ]
    assert rows == [("", "voided", 3, 4, "wrong")]


def test_acks_come_once_and_states_as_they_are_last(mq, open_folder):
    mq.create_topic("t")
    publish(mq, "t", 9)
    folder = open_folder()
    for acked in (3, 6, 9):
        mq.ack_soon(mq.fetch("t", "g", n=3))
        mq.flush(None)
        run(mq, folder)
        assert [(row["start_offset"], row["end_offset"]) for row in read(folder, "acks")] == [
            (at, at + 3) for at in range(0, acked, 3)
        ]
        assert list(states(folder, "t").values()).count("done") == acked
    # ends the streak of fetches: else the next record is on its way to this client at once, and in flight
    assert not mq.fetch("t", "g", n=3, wait="10ms")
    mq.record("t", 0, 4).requeue(group="g")
    run(mq, folder)
    assert states(folder, "t")[0, 4] == "retrying"
    mq.ack_soon(mq.fetch("t", "g", n=3))
    mq.flush(None)
    run(mq, folder)
    assert set(states(folder, "t").values()) == {"done"}
    newest = {}
    for row in read(folder, "acks"):
        for offset in range(row["start_offset"], row["end_offset"]):
            newest[offset] = max(row["change_seq"], newest.get(offset, 0))
    assert len(newest) == 9
    assert max(newest, key=newest.get) == 4, "it was acked again, last of all"


@pytest.mark.parametrize("data_set", [export.ACKS, export.DELIVERIES])
def test_a_disk_that_refused_a_file_once_is_asked_again_by_the_next_run(
    mq, open_folder, monkeypatch, data_set
):
    """As with --follow: one exporter, run after run."""
    mq.create_topic("t")
    publish(mq, "t", 9)
    mq.ack_soon(mq.fetch("t", "g", n=9))
    mq.flush(None)
    folder = open_folder()
    exporter, whole = Exporter(mq, folder), segments.PartitionFiles.whole

    def full(place, *arguments):
        if place.data_set == data_set:
            raise OSError(28, "No space left on device")
        return whole(place, *arguments)

    with monkeypatch.context() as broken:
        broken.setattr(segments.PartitionFiles, "whole", full)
        with pytest.raises(OSError, match="No space left"):
            exporter.run()
    exporter.run()
    assert [(row["start_offset"], row["end_offset"]) for row in read(folder, "acks")] == [(0, 9)]
    assert set(states(folder, "t").values()) == {"done"}


@pytest.mark.parametrize("form", export.FORMATS)
def test_what_a_full_disk_refuses_leaves_nothing_on_it(open_folder, tmp_path, form):
    """A follower waits until there is room: what it tried to write must not take it."""
    folder = open_folder()
    told = {"topic": "t", "topic_id": 1, "partition": 0, "publish_time": 0}
    rows = [told | {"offset": at, "value": os.urandom(1_000)} for at in range(1_000)]
    (batch,) = pa.Table.from_pylist(rows, columns.schema("messages")).to_batches()
    place = segments.PartitionFiles(folder, form, "messages", "t", 1, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for write in (
        lambda: list(place.split([(1_000, batch)], 0, 1_000)),
        lambda: place.whole(pa.Table.from_batches([batch]), 0, 1_000),
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(OSError, match=r"too large|Input/output"):
                write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert os.listdir(tmp_path / "out/.writing") == []
    assert place.whole(pa.Table.from_batches([batch]), 0, 1_000).rows == 1_000


def test_a_full_disk_is_named_although_lmdb_calls_it_an_input_output_error(tmp_path, monkeypatch):
    from gossipq_node.export.lmdb_file import LmdbWriter

    rows = pa.record_batch({"value": [os.urandom(200_000)]})
    writer = LmdbWriter(tmp_path / "x.lmdb", rows.schema)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # as a full disk does, it cuts a write short
    try:
        with pytest.raises(OSError, match="Input/output"):
            writer.write(rows)
        monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=0, f_frsize=4_096))
        with pytest.raises(OSError, match="No space left") as failed:
            writer.write(rows)
        assert failed.value.errno == errno.ENOSPC
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        writer.close()


# --- what cannot be exported --------------------------------------------------------------------------------


def drop_oldest(mq, folder):
    """A topic that lost records between two runs."""
    mq.create_topic("t", bytes_max=2_000, overflow="drop_oldest")
    publish(mq, "t", 5)
    run(mq, folder)
    for first in range(5, 200):
        publish(mq, "t", 1, first)
    mq.advance("1m")
    deadline = time.monotonic() + 30
    while (row := mq.admin.raw.stats(["t"]).partitions[0]).bytes > 2_000 // 8 * 7:  # retention leaves room
        assert time.monotonic() < deadline
    return row.first


def test_what_retention_removed_is_an_error_that_says_so(mq, open_folder):
    folder = open_folder()
    first = drop_oldest(mq, folder)
    assert first > 5
    with pytest.raises(
        DataLoss, match=rf"t/0: records 5 to {first - 1} left by retention before they were exported"
    ) as caught:
        run(mq, folder)
    assert "--allow-gap" in caught.value.hint
    assert len(values(folder)) == 5, "what was exported is as it was"
    run(mq, folder, allow_gap=True)
    found = folder.read()
    assert [(gap.start, gap.end) for gap in found.gaps] == [(5, first)]
    assert sorted(offset for _, _, offset in values(folder)) == [*range(5), *range(first, 200)]
    topic_id = mq.topics("t")[0].id
    with pytest.raises(DataLoss, match=f"records 5 to {first - 1} left"):
        export.check_loss(found, topic_id, 0, 0, 200)
    assert run(mq, folder).manifests == 0, "once noted, a gap is no error"


def test_a_gap_is_told_once_whatever_fails_behind_it(mq, open_folder, monkeypatch):
    """As a follower finds it, which tries again and meanwhile loses more."""
    folder = open_folder()
    first = drop_oldest(mq, folder)
    exporter = Exporter(mq, folder, allow_gap=True)

    def busy(part):
        raise Busy("nobody leads it")

    with monkeypatch.context() as patch:
        patch.setattr(exporter, "_messages", busy)
        with pytest.raises(Busy):
            exporter.run()
    for number in range(200, 300):
        publish(mq, "t", 1, number)
    mq.advance("1m")
    told = exporter.run().gaps
    assert told == folder.read().gaps
    gaps = [(gap.start, gap.end) for gap in told]
    assert gaps[0] == (5, first)
    assert all(before[1] == after[0] for before, after in pairwise(gaps)), gaps
    found = [offset for _, _, offset in values(folder)]
    assert sorted(found) == [*range(5), *range(gaps[-1][1], 300)]


def test_retention_that_overtakes_a_run_is_noted_and_told(mq, open_folder, monkeypatch):
    mq.create_topic("t", bytes_max=4_000, overflow="drop_oldest")
    folder, batches, stats, kept = open_folder(), Records.batches, mq.admin.raw.stats, []
    for number in range(5):
        publish(mq, "t", 1, number)
    run(mq, folder)
    for number in range(5, 25):
        publish(mq, "t", 1, number)

    def slow(records, partition):
        found = list(batches(records, partition))
        for number in range(25, 60):
            publish(mq, "t", 1, number)
        first = stats(["t"]).partitions[0].first
        kept.append(first)
        yield from (stretch for stretch in found if stretch.first >= first)

    of_old = stats(["t"])  # like the answer of a former leader
    with monkeypatch.context() as patch:
        patch.setattr(Records, "batches", slow)
        patch.setattr(mq.admin.raw, "stats", lambda names: of_old)
        with pytest.raises(DataLoss, match="t/0: records 5 to"):
            run(mq, folder)
    assert run(mq, folder, allow_gap=True).records > 0
    gaps = [(gap.start, gap.end) for gap in folder.read().gaps]
    missing = set(range(60)) - {offset for _, _, offset in values(folder)}
    assert missing == {offset for start, end in gaps for offset in range(start, end)} != set()


def lose(mq, monkeypatch, start, first):
    """While a run reads, retention takes records [start, first), which are behind the run."""
    batches, spans = Records.batches, mq.admin.raw.spans

    def later(_, infos):
        return {key: span._replace(first=first) for key, span in spans(infos).items()}

    def torn(records, partition):
        monkeypatch.setattr(RawAnswers, "spans", later)
        return (each for each in batches(records, partition) if each.end <= start or each.first >= first)

    monkeypatch.setattr(Records, "batches", torn)


def test_a_gap_before_a_file_that_a_disk_refuses_is_noted_once(mq, open_folder, monkeypatch):
    """The next run finds it anew, larger by then."""
    mq.create_topic("t")
    for number in range(20):
        publish(mq, "t", 1, number)
        mq.flush(None)
    folder, keep, kept = open_folder(), segments.Segment.keep, []
    exporter = Exporter(mq, folder, allow_gap=True)

    def full(segment, start, end):
        kept.append(start)
        if len(kept) == 2:
            segment.drop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return keep(segment, start, end)

    monkeypatch.setattr(columns, "GROUP_ROWS", 1)
    monkeypatch.setattr(segments, "FILE_ROWS", 5)
    monkeypatch.setattr(segments.Segment, "keep", full)
    with monkeypatch.context() as patch:
        lose(mq, patch, 5, 8)
        with pytest.raises(OSError, match="No space left"):
            exporter.run()
    with monkeypatch.context() as patch:
        lose(mq, patch, 5, 10)
        told = exporter.run().gaps
    found = folder.read()
    assert [(gap.start, gap.end) for gap in told] == [(5, 10)]
    assert found.gaps == told
    assert sorted(offset for _, _, offset in values(folder)) == [*range(5), *range(10, 20)]


def test_a_gap_of_a_run_that_fails_is_an_error_of_the_next(mq, open_folder, monkeypatch):
    """A follower continues after a full disk, and must stop after a loss that was not allowed."""
    mq.create_topic("t")
    for number in range(20):
        publish(mq, "t", 1, number)
        mq.flush(None)
    folder = open_folder()
    exporter = Exporter(mq, folder)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        lose(mq, patch, 5, 8)
        patch.setattr(folder, "publish", full)
        with pytest.raises(OSError, match="No space left"):
            exporter.run()
    with pytest.raises(DataLoss, match="t/0: records 5 to 7 left by retention"):
        exporter.run()
    assert exporter.run().records == 0, "once noted, a gap is no error"


def test_a_topic_that_lost_its_beginning_before_the_first_run_has_no_gap(mq, open_folder):
    first = drop_oldest(mq, open_folder("elsewhere"))
    folder = open_folder()
    run(mq, folder)
    found = folder.read()
    (position,) = found.positions.values()
    assert (position.start, position.end, position.retained, found.gaps) == (first, 200, first, [])


def test_a_folder_of_another_cluster(mq, open_folder):
    publish(mq, "t", 1)
    run(mq, open_folder())
    with testing.Broker() as other, other.connect() as elsewhere:
        publish(elsewhere, "t", 1)
        with pytest.raises(ExportError, match="is the export of another cluster"):
            run(elsewhere, open_folder())


def test_a_folder_keeps_its_format(mq, open_folder):
    publish(mq, "t", 1)
    folder = open_folder()
    run(mq, folder, format="lmdb")
    with pytest.raises(ExportError, match="has lmdb files"):
        run(mq, folder, format="parquet")
    publish(mq, "t", 1)
    assert run(mq, folder).records == 1


def test_one_exporter_at_a_time(open_folder, tmp_path):
    from gossipq_node.export.folder import Folder

    open_folder()
    with pytest.raises(ExportError, match="is being exported to already"):
        Folder(tmp_path / "out")


def test_a_disk_that_cannot_lock_is_not_taken_for_another_exporter(tmp_path, monkeypatch):
    from gossipq_node import disk
    from gossipq_node.export.folder import Folder

    def refuse(fd, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(disk.fcntl, "flock", refuse)
    with pytest.raises(ExportError, match="cannot be locked: No locks available"):
        Folder(tmp_path / "out")


def test_a_folder_that_cannot_be_used(tmp_path):
    from gossipq_node.export.folder import Folder

    (tmp_path / "file").write_text("x")
    with pytest.raises(ExportError, match="cannot be used: Not a directory"):
        Folder(tmp_path / "file")


def test_torn_files_are_not_read(mq, open_folder, tmp_path):
    publish(mq, "t", 10)
    folder = open_folder()
    run(mq, folder)
    (file,) = folder.read().files
    path = tmp_path / "out" / file.path
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + b"X")
    with pytest.raises(TornExport, match="another SHA-256"):
        folder.check(file)
    path.write_bytes(raw[:-1])
    with pytest.raises(TornExport, match=f"{len(raw) - 1} bytes, {len(raw)} expected"):
        folder.check(file)
    path.unlink()
    with pytest.raises(TornExport, match="is missing"):
        folder.check(file)


def test_an_export_with_overlapping_files_is_not_gone_on_with(mq, open_folder):
    publish(mq, "t", 10)
    folder = open_folder()
    run(mq, folder)
    found = folder.read()
    folder.publish(msgspec.structs.replace(found.newest, sequence=2, previous=found.digest))
    with pytest.raises(TornExport, match="overlap"):
        run(mq, open_folder())


def test_an_export_of_a_later_version_is_not_touched(mq, open_folder, tmp_path):
    publish(mq, "t", 10)
    folder = open_folder()
    run(mq, folder)
    (tmp_path / "out/manifests/0000000002.json").write_text('{"version": 9}')
    with pytest.raises(ExportVersion):
        run(mq, folder)


# --- merging ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["parquet", "lmdb"])
def test_compacting_changes_no_row(mq, open_folder, tmp_path, form):
    folder = open_folder()
    mq.create_topic("t", partitions=2)
    for first in range(0, 60, 10):
        publish(mq, "t", 10, first, partition=first // 10 % 2)
        mq.ack_soon(mq.fetch("t", "g", n=5))
        mq.flush(None)
        run(mq, folder, format=form)
    before = {data_set: read(folder, data_set) for data_set in export.SCHEMAS}
    many = len(folder.read().files)
    assert compact(folder) > 0
    assert {data_set: read(folder, data_set) for data_set in export.SCHEMAS} == before
    found = folder.read()
    assert len(found.files) < many
    assert len(found.of("messages")) == 2
    assert found.newest.base
    old = sum(path.is_file() for path in (tmp_path / "out/messages").rglob("*"))
    assert old > 2, "readers may be at the old files still"
    compact(folder, keep_s=0)
    assert sum(path.is_file() for path in (tmp_path / "out/messages").rglob("*")) == 2
    assert folder.sequences() == [found.newest.sequence]
    publish(mq, "t", 3, 100, partition=0)
    assert run(mq, open_folder()).records == 3, "exports go on from a base"
    assert len(values(open_folder())) == 63


def test_merged_files_are_bounded_by_what_they_are_in_memory(mq, open_folder, monkeypatch):
    """Compressible data fits a small file but exceeds memory."""
    folder = open_folder()
    for _ in range(6):
        mq.publish("t", bytes(40_000), timeout=30)
        run(mq, folder)
    assert sum(file.bytes for file in folder.read().files) < 40_000
    monkeypatch.setattr(compaction, "FILE_BYTES", 100_000)
    compact(folder)
    assert [(file.start, file.end) for file in folder.read().files] == [(0, 2), (2, 4), (4, 6)]
    assert all(80_000 < file.column_bytes < 100_000 for file in folder.read().files)
    assert len(values(folder)) == 6


def test_compacting_does_not_hide_a_gap(mq, open_folder):
    folder = open_folder()
    first = drop_oldest(mq, folder)
    run(mq, folder, allow_gap=True)
    compact(folder)
    assert [(file.start, file.end) for file in folder.read().of("messages")] == [(0, 5), (first, 200)]


def test_compacting_what_is_torn_changes_nothing(mq, open_folder, tmp_path):
    folder = open_folder()
    for first in (0, 10):
        publish(mq, "t", 10, first)
        run(mq, folder)
    path = tmp_path / "out" / folder.read().files[0].path
    path.write_bytes(path.read_bytes()[:-4] + b"XXXX")
    with pytest.raises(TornExport, match="another SHA-256"):
        compact(folder)
    assert len(folder.read().files) == 2


def test_rows_of_an_older_version_are_merged_with_new_ones(mq, open_folder, tmp_path):
    from pyarrow import parquet

    folder = open_folder()
    for first in (0, 10):
        publish(mq, "t", 10, first)
        run(mq, folder)
    found = folder.read()
    path = tmp_path / "out" / found.files[0].path
    parquet.write_table(parquet.read_table(path).drop_columns(["id", "deliver_at"]), path)
    raw, topic_id = path.read_bytes(), found.files[0].topic_id
    digest = sha256(raw).hexdigest()
    name = export.file_path("messages", "t", topic_id, 0, 0, 10, digest, "parquet")
    folder.keep(path, name)
    old = msgspec.structs.replace(found.files[0], path=name, bytes=len(raw), sha256=digest)
    folder.publish(
        msgspec.structs.replace(
            found.newest, sequence=3, previous=found.digest, base=True, files=[old, found.files[1]]
        )
    )
    assert [row["id"] for row in read(folder, "messages")] == [None] * 20
    assert compact(folder) == 1
    assert len(values(folder)) == 20


def test_there_must_be_something_to_compact(open_folder):
    with pytest.raises(ExportError, match="has no export"):
        compact(open_folder())


# --- crashes ------------------------------------------------------------------------------------------------


class Crash(Exception):
    pass


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_a_readable_export(mq, open_folder, step):
    mq.create_topic("t", partitions=2)
    for number in range(1, 100):
        publish(mq, "t", 10, number * 10, partition=number % 2)
        mq.ack_soon(mq.fetch("t", "g", n=10))
        mq.flush(None)
        folder = open_folder()
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, step, number, Crash())
            try:
                run(mq, folder)
            except Crash:
                crashed = True
            else:
                crashed = False
        before = values(open_folder())  # every file is whole, none is there twice
        assert set(before.values()) <= {b"%d" % value for value in range(10, number * 10 + 10)}
        if not crashed:
            break
    assert number > 1, "it did crash"
    while batch := mq.fetch("t", "g", n=1_000, wait=0.2):
        mq.ack_soon(batch)
    mq.flush(None)
    run(mq, open_folder())
    assert sorted(map(int, values(open_folder()).values())) == list(range(10, number * 10 + 10))
    assert set(states(open_folder(), "t").values()) == {"done"}


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_while_compacting_leaves_a_readable_export(mq, open_folder, step):
    for number in range(1, 30):
        publish(mq, "t", 10, number * 10)
        run(mq, open_folder())
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, step, number, Crash())
            try:
                compact(open_folder(), keep_s=0)
            except Crash:
                pass
            else:
                break
        assert sorted(map(int, values(open_folder()).values())) == list(range(10, number * 10 + 10))
    assert sorted(map(int, values(open_folder()).values())) == list(range(10, number * 10 + 10))
