"""A shard's memory is bounded by what exists now, and forgets what is gone."""

from array import array

import pytest

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.core.copies.snapshot import Sending
from gossipq.core.ledger import producers, records, retention
from gossipq.core.raft.replica import LogPoint
from gossipq.core.requests import upkeep
from gossipq.core.storage.payloads import CopySet
from gossipq.core.storage.tables import MemoryTables
from gossipq.messages import Ack, Cancel, Credit, Done, DropTopic, Edit, RefusedMessage, Subscribe
from gossipq.peer_messages import Installed
from gossipq.types import DELAY, KEY_HASH
from gossipq.values import GroupOptions, Ref, Start, TopicOptions
from gossipq.wire import batch as batches

ADA = client("ada")


def test_keys_that_are_done_are_forgotten() -> None:
    worker = FakeWorker()
    orders = single(worker.topic())
    worker.subscribe(ADA, orders, "g", records=10_000, config=GroupOptions(mode="key_ordered"))
    for first in range(0, 400, 100):
        worker.publish(orders, [b"x"] * 100, fixed={KEY_HASH: array("I", range(first, first + 100))})
        worker.ask(1, ADA, Ack(1, [(orders, first, first + 100)]))
    (group,) = worker.shards[1].dispatch.groups.values()
    assert group.views[orders].cursor.state.acked == 400
    keys = group.views[orders].keys
    assert not any(getattr(keys, name) for name in keys.__slots__)


def test_producers_that_are_refused_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "OPENED_MAX", 50)
    worker = FakeWorker()
    orders = single(worker.topic())
    worker.tick(1_000)
    shard = worker.shards[1]
    shard.desk.full = "no space"
    for number in range(500):
        worker.publish(orders, [b"x"], producer=number.to_bytes(16, "big"), sequence=1)
    assert len(shard.ledger.producers._opened) <= 51


def test_all_idle_producers_are_forgotten_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PRODUCERS_MAX", 20)
    monkeypatch.setattr(retention, "PRODUCERS_LOOKED_AT", 30)
    worker = FakeWorker()
    orders = single(worker.topic())
    for number in range(1, 101):
        worker.publish(orders, [b"x"], producer=number.to_bytes(16, "big"), sequence=1)
    worker.tick(limits.PRODUCER_IDLE_MS // 2)
    for number in range(10, 101, 10):
        worker.publish(orders, [b"y"], producer=number.to_bytes(16, "big"), sequence=2)
    worker.tick(limits.PRODUCER_IDLE_MS // 2 + 1_000)
    for _ in range(2):  # the first look began before all of them were idle
        worker.tick(limits.HOUR_MS)
        for _ in range(10):
            worker.tick(upkeep.FORGET_AGAIN_MS)
    rows = [key for key, _ in worker.shards[1].ledger.state.scan(b"S", b"T")]
    assert len(rows) == 10


@pytest.mark.parametrize("retain", ["acked", "forever"])
def test_records_that_were_cancelled_before_they_were_due_are_forgotten_as_others_are(
    retain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PRODUCERS_LOOKED_AT", 2)
    worker, operator = FakeWorker(), client("operator")
    orders = single(worker.topic("orders", TopicOptions(retention_ms=2 * limits.DAY_MS, retain=retain)))
    state = worker.shards[1].ledger.state

    def cancel(index: int) -> None:
        assert isinstance(worker.ask(1, operator, Cancel(Ref(orders, -1, index, 0))), Done)

    def left() -> int:
        return sum(1 for prefix in (b"v", b"F") for _ in state.scan(prefix, records.after(prefix)))

    for _ in range(5):
        worker.publish(orders, [b"x"], fixed={DELAY: array("q", [9 * limits.DAY_MS])})
        cancel(worker.shards[1].ledger.applied)
    worker.publish(orders, [b"x"], fixed={DELAY: array("q", [9 * limits.DAY_MS])})
    edit = Edit(Ref(orders, -1, worker.shards[1].ledger.applied, 0))
    worker.turn(lambda: worker.step(1, (b"c",), 9, operator, edit, batch=bytes(batches.seal([b"y"]))))
    cancel(worker.shards[1].ledger.applied)
    for days, kept in ((1.9, 8), (0.2, 0 if retain == "acked" else 8)):
        worker.tick(int(days * limits.DAY_MS))
        for _ in range(10):
            worker.tick(upkeep.FORGET_AGAIN_MS)
        assert left() == kept


def test_a_reader_of_a_topic_that_is_gone_may_still_lend() -> None:
    worker = FakeWorker()
    orders = single(worker.topic())
    worker.publish(orders, [b"a"])
    origin = (b"c", ADA.session)
    worker.ask(1, ADA, Subscribe(1, "", [Start(orders)], 0, 0), origin=origin)
    worker.ask(0, client("operator"), DropTopic("orders"))
    worker.ask(1, ADA, Credit(1, 10, limits.MIB), origin=origin)
    assert worker.taken() == []


@pytest.mark.parametrize("sync_ms", [100, 500, 600, 3_000])
def test_a_snapshot_goes_on_however_slow_the_disk_of_its_receiver(sync_ms: int) -> None:
    tables = MemoryTables()
    for number in range(2_000):
        tables.state.put(b"O%08d" % number, bytes(5_000))
    sending = Sending("a", 5, 1, LogPoint(bytes(8), 0), CopySet(["a"]), tables, True, 1_000)
    wanted, busy_ms, answers = 0, 0, []
    for now_ms in range(1_000, 61_000, 10):
        for answer in [each for at_ms, each in answers if at_ms <= now_ms]:
            assert sending.answered(answer, now_ms)
        answers = [each for each in answers if each[0] > now_ms]
        if part := sending.due(now_ms):
            busy_ms = max(now_ms, busy_ms) + sync_ms
            wanted += part[0].number == wanted
            answers.append((busy_ms, Installed("b", 5, wanted, sent_ms=part[0].sent_ms)))
    assert sending.number >= min(15, 60_000 // sync_ms // 4)


def test_what_is_not_due_takes_half_of_a_topic_that_drops_its_oldest() -> None:
    worker = FakeWorker()
    orders = single(worker.topic("orders", TopicOptions(bytes_max=10_000, overflow="drop_oldest")))
    later = {DELAY: array("q", [1_000])}
    for _ in range(100):
        answer = worker.publish(orders, [b"x" * 100], fixed=later)
    assert isinstance(answer, RefusedMessage)
    assert answer.code == "topic_full"
    state = worker.shards[1].ledger.partitions[orders]
    assert 4_000 < state.scheduled_bytes == state.bytes <= 5_000
    large = bytes(batches.seal([b"x" * 5_000]))
    edit = Edit(Ref(orders, -1, worker.shards[1].ledger.applied, 0))
    effects = worker.turn(lambda: worker.step(1, (b"c", b"1"), 9, client("op"), edit, batch=large))
    assert [message.code for _, _, message in effects[1].replies if isinstance(message, RefusedMessage)] == [
        "topic_full"
    ]
    assert worker.publish(orders, [b"x" * 100], fixed=None) == (7, 0, 1, False), "others have room"
    worker.tick(1_000)
    worker.tick(1_000)
    assert (state.first, state.scheduled, state.scheduled_bytes) == (0, 0, 0), "nothing left early"
    assert worker.publish(orders, [b"x" * 100], fixed=later) == (7, -1, 1, False)
