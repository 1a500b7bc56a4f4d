"""Every turn is bounded: work beyond a budget continues in the next turn, and none is forgotten."""

from array import array
from itertools import pairwise

import msgspec
import pytest

from core.harness import FakeWorker, client, single
from core.test_copies import PARTITION, Copies
from gossipq import limits
from gossipq.core.copies.snapshot import Receiving, Sending
from gossipq.core.delivery.outbox import Outbox
from gossipq.core.ledger import retention, schedule, slices
from gossipq.core.raft import LogPoint
from gossipq.core.storage import INDEX_KEY, CopySet, decode_row, log, payloads
from gossipq.core.storage.tables import MemoryTables
from gossipq.messages import Done, PurgeDead, ReplayDead, Requeue, Subscribe
from gossipq.peer_messages import Installed
from gossipq.types import DELAY, Slice
from gossipq.values import GroupOptions, Ref, Start, TopicConfig, TopicInfo, TopicOptions

ADA = client("ada")


@pytest.fixture
def worker():
    return FakeWorker()


@pytest.fixture
def proposed(worker, monkeypatch):
    """Records, for each time that failures became entries: how many entries, and
    the bytes of their batches.
    """
    turns = []
    gather = Outbox.gather

    def counted(self):
        log = worker.shards[1].replica.log
        before = log.last
        gather(self)
        new = [entry for entry in worker.shards[1].replica.unsaved if entry.index > before]
        turns.append((len(new), sum(len(entry.body) for entry in new)))

    monkeypatch.setattr(Outbox, "gather", counted)
    return turns


def dead(worker, partition):
    cursors = worker.shards[1].ledger.cursors[partition]
    return sum(cursor.state.dead for cursor in cursors.values())


def backlog(worker, batches, size, ttl_ms=60_000, records=4):
    orders = worker.topic("orders", TopicOptions(ttl_ms=ttl_ms))
    partition = single(orders)
    worker.subscribe(ADA, partition, records=0)
    for _ in range(batches):
        worker.publish(partition, [b"x" * size] * records)
    return partition


def test_a_backlog_that_nobody_takes_expires_turn_by_turn(worker, proposed):
    partition = backlog(worker, 100, 10_000)
    proposed.clear()
    worker.tick(70_000)
    assert dead(worker, partition) == 400
    assert sum(count for count, _ in proposed) == 100
    assert max(size for _, size in proposed) <= limits.BURIED_BYTES_PER_TURN + 41_000
    assert sum(size for _, size in proposed) > 3 * limits.BURIED_BYTES_PER_TURN


def test_a_consumer_that_meets_an_expired_backlog_waits_turn_by_turn(worker, proposed):
    partition = backlog(worker, 100, 10_000)
    worker.advance(60_500)
    worker.publish(partition, [b"fresh"])
    proposed.clear()
    worker.seen.clear()
    worker.subscribe(ADA, partition, records=10)
    worker.tick(1)
    assert max(size for _, size in proposed) <= limits.BURIED_BYTES_PER_TURN + 41_000
    assert dead(worker, partition) == 400
    assert [(first, end) for _, first, end, _ in worker.taken()] == [(400, 401)]


def test_many_small_batches_expire_by_the_count(worker, proposed, monkeypatch):
    monkeypatch.setattr(limits, "FAILURES_PER_TURN", 50)
    partition = backlog(worker, 180, 1, records=1)
    proposed.clear()
    worker.tick(70_000)
    assert dead(worker, partition) == 180
    assert max(count for count, _ in proposed) <= 50


def test_a_failure_of_many_records_becomes_entries_in_several_turns(worker, proposed, monkeypatch):
    """Each record of a batch may have its own policy. The client that reported the failures gets
    one answer, after all are stored.
    """
    from array import array

    from gossipq.messages import Acked, Nack
    from gossipq.types import ATTEMPTS

    monkeypatch.setattr(limits, "FAILURES_PER_TURN", 8)
    partition = single(worker.topic())
    worker.publish(partition, [b"%d" % n for n in range(30)], fixed={ATTEMPTS: array("I", [3] * 30)})
    worker.subscribe(ADA, partition, config=GroupOptions())
    assert worker.taken()
    proposed.clear()
    answer = worker.ask(1, ADA, Nack(1, [(partition, 0, 30)], 1_000, True, "no"), 9, (b"c", ADA.session))
    assert isinstance(answer, Acked)
    assert answer.lost == []
    assert [count for count, _ in proposed if count] == [1, 1, 1, 1]  # FAIL entries of 8, 8, 8 and 6 rows
    worker.tick(1_500)
    assert sum(end - first for _, first, end, attempt in worker.taken() if attempt == 2) == 30


def test_the_end_of_a_session_looks_at_what_it_held_alone(worker, monkeypatch):
    """When two thousand sessions vanish at once, the end of each must not look through
    the leases of all others.
    """
    partition = single(worker.topic())
    worker.publish(partition, [b"x"] * 100)
    members = [client(f"c{number}") for number in range(20)]
    for number, member in enumerate(members):
        worker.subscribe(member, partition, records=5, number=number)
    held = worker.taken()
    assert len({session for session, *_ in held}) == 20
    shard = worker.shards[1]
    view = next(iter(next(iter(shard.dispatch.groups.values())).views.values()))
    monkeypatch.setattr(
        type(view.window.ready), "__iter__", lambda self: pytest.fail("all leases are looked at")
    )
    worker.turn(*[lambda m=m: worker.end_session(m.session) for m in members[1:]])
    assert view.window.in_flight == 5
    assert not shard.dispatch.holds(members[1].session)
    assert shard.dispatch.holds(members[0].session)


def test_what_waits_for_other_copies_is_bounded_and_publishes_are_refused_meanwhile(monkeypatch):
    """Followers with slow disks still answer heartbeats; everything that clients sent
    meanwhile stayed in memory.
    """
    monkeypatch.setattr(limits, "UNAPPLIED_BYTES_MAX", 100_000)
    copies = Copies()
    copies.away = {"b", "c"}
    for _ in range(15):
        copies.publish(b"x" * 20_000)
    answers = [answer for effects in copies.turns(1) for _, _, answer in effects.replies]
    assert [answer.code for answer in answers] == ["busy"] * 10
    assert all(answer.retry_after_ms > 0 for answer in answers)
    assert 100_000 <= copies.leader.desk.unapplied.bytes < 130_000
    copies.away = set()
    assert len(copies.confirms(20)) == 5
    copies.publish(b"y")
    assert len(copies.confirms(6)) == 1
    assert [shard.desk.unapplied.bytes for shard in copies.shards.values()] == [0, 0, 0]


def test_dead_letters_wait_while_other_copies_are_behind(monkeypatch):
    copies = Copies()
    expiring = TopicInfo(9, "orders", 2, TopicConfig(ttl_ms=2_000), [1])
    copies.leader.desk.propose(log.TOPIC, payloads.encode(payloads.TopicChange(expiring)))
    copies.step((b"c", b"1"), 1, ADA, Subscribe(1, "g", [Start(PARTITION)], 0, 0))
    copies.turns()
    for _ in range(20):
        copies.publish(b"x" * 10_000)
    copies.turns()
    monkeypatch.setattr(limits, "UNAPPLIED_BYTES_MAX", 50_000)
    most = 0
    for _ in range(60):
        copies.turns(1)
        most = max(most, copies.leader.desk.unapplied.bytes)
    assert 20_000 < most < 70_000
    (cursor,) = copies.leader.ledger.cursors[PARTITION].values()
    assert cursor.state.dead == 20


def test_partitions_that_nobody_writes_to_any_more_are_forgotten(monkeypatch):
    """Four thousand busy partitions once took a gigabyte on every copy. A forgotten partition is
    read from its rows again.
    """
    monkeypatch.setattr(slices, "TAILS_SLICES", 100)
    monkeypatch.setattr(slices, "TAIL_SLICES", 40)
    tables = MemoryTables()
    known = slices.Slices(tables.state)
    expected = {}
    for number in range(600):
        partition, offset = number % 30, number // 30 * 5
        part = Slice(offset, number, 0, 5, 500, 5, 1)
        known.add(partition, part)
        expected[partition, offset] = part
    assert sum(len(tail.parts) for tail in known._tails.values()) <= 100
    assert all(known.at(partition, offset + 3) == part for (partition, offset), part in expected.items())
    for number in range(600, 2_000):
        known.add(7, Slice(number * 5, number, 0, 5, 500, 5, 1))
    assert len(known._tails[7].parts) <= 40
    for partition in list(known._tails):
        known.drop(partition)
    assert known._remembered == 0


def test_a_snapshot_is_read_over_several_turns_and_is_of_one_moment(monkeypatch):
    """Reading some million rows in one turn takes longer than the lease of a leader; and rows that
    change meanwhile belong to a later moment.
    """
    monkeypatch.setattr(limits, "SNAPSHOT_ROWS_PER_TURN", 100)
    monkeypatch.setattr(limits, "SNAPSHOT_PART_BYTES", 1_000)
    tables, brought = MemoryTables(), MemoryTables()
    for number in range(1_000):
        tables.state.put(b"O%04d" % number, b"then")
    sending = Sending("a", 5, 1, LogPoint(bytes(8), 0), CopySet(["a"]), tables, True, 1_000)
    turns, now_ms, installed = 0, 1_000, Receiving((1, 5, 1_000))
    while True:
        tables.state.put(b"O%04d" % (turns * 7 % 1_000), b"later")
        turns, now_ms = turns + 1, now_ms + 1
        part = sending.due(now_ms)
        if part is not None and part[0].number == installed.number:
            assert installed.take(*part, brought)
            assert sending.answered(Installed("b", 5, installed.number, sent_ms=part[0].sent_ms), now_ms)
            if part[0].kind == "end":
                break
    assert turns > 10
    assert list(brought.state.scan(b"", b"z")) == [(b"O%04d" % number, b"then") for number in range(1_000)]


def letters(worker, count):
    """Makes `count` dead letters, each in a row of its own."""
    partition = backlog(worker, count, 10, records=1)
    worker.tick(70_000)
    assert dead(worker, partition) == count
    return partition


def entries_of(worker, kind, since):
    """How many records each entry of that kind names."""
    rows = worker.shards[1].replica.log
    assert rows is not None
    return [
        sum(end - first for first, end in msgspec.msgpack.decode(entry.payload, type=payloads.Letters).ranges)
        for entry in (decode_row(index, worker.tables[1].log.get(INDEX_KEY.pack(index))) for index in since)
        if entry.kind == kind
    ]


def done(worker, *messages):
    """Sends requests about dead letters, numbered from 10, and runs several turns.
    Returns the answers in order.
    """
    worker.seen.clear()
    steps = [
        lambda n=n, m=m: worker.step(1, (b"c", b"1"), n, ADA, m) for n, m in enumerate(messages, start=10)
    ]
    worker.seen += worker.turn(*steps).values()
    for _ in range(60):
        worker.tick(1)
    return [(request_id, m) for effects in worker.seen for _, request_id, m in effects.replies]


@pytest.mark.parametrize(("message", "kind"), [(ReplayDead, log.REPLAY), (PurgeDead, log.PURGE)])
@pytest.mark.parametrize("ranges", [[], [(0, 40), (20, 70), (90, 2**62)]])
def test_dead_letters_are_replayed_and_purged_in_pieces(worker, monkeypatch, message, kind, ranges):
    monkeypatch.setattr(limits, "LETTERS_PER_TURN", 8)
    partition = letters(worker, 100)
    meant = 80 if ranges else 100
    shard = worker.shards[1]
    before = shard.last
    assert done(worker, message(partition, "billing", ranges, True)) == [(10, Done(meant))]
    assert shard.last == before, "counting changes nothing"
    assert done(worker, message(partition, "billing", ranges)) == [(10, Done(meant))]
    sizes = entries_of(worker, kind, range(before + 1, shard.last + 1))
    assert sum(sizes) == meant
    assert max(sizes) <= 8
    assert dead(worker, partition) == 100 - meant


@pytest.mark.parametrize("at_once", [False, True], ids=["one after the other", "in one turn"])
def test_a_letter_that_was_purged_is_not_handed_out_again_as_if_it_had_been_acked(worker, at_once):
    partition = letters(worker, 2)
    requeue, purge = Requeue(Ref(partition, 0), "billing"), PurgeDead(partition, "billing")
    if at_once:
        done(worker, purge, requeue)
    else:
        done(worker, purge)
        answer = worker.ask(1, client("ada"), requeue)
        assert (answer.code, answer.message) == (
            "wrong_state",
            "offset 0 was dropped, or purged as a dead letter",
        )
    (cursor,) = worker.shards[1].ledger.cursors[partition].values()
    state = cursor.state
    assert state.acked >= 0
    assert (state.cursor, state.acked + state.retrying + state.dead + state.voided) == (2, 2)


def test_a_purge_of_large_letters_is_bounded_in_bytes(worker, monkeypatch):
    monkeypatch.setattr(limits, "LETTER_BYTES_PER_TURN", 50_000)
    partition = backlog(worker, 20, 10_000, records=1)
    worker.tick(70_000)
    before = worker.shards[1].last
    assert done(worker, PurgeDead(partition, "billing")) == [(10, Done(20))]
    sizes = entries_of(worker, log.PURGE, range(before + 1, worker.shards[1].last + 1))
    assert max(sizes) <= 5


def test_letters_that_come_after_the_request_are_left_alone(worker, monkeypatch):
    """Otherwise a record that fails again at once would be replayed for ever."""
    monkeypatch.setattr(limits, "LETTERS_PER_TURN", 10)
    partition = letters(worker, 30)
    worker.slow = True
    before = worker.shards[1].last
    worker.ask(1, ADA, ReplayDead(partition, "billing"), 9)
    worker.publish(partition, [b"late"])
    worker.advance(70_000)
    worker.slow = False
    worker.tick(1)
    worker.tick(1)
    answers = [m for effects in worker.seen for _, r, m in effects.replies if r == 9]
    assert answers == [Done(30)]
    assert sum(entries_of(worker, log.REPLAY, range(before + 1, worker.shards[1].last + 1))) == 30


def test_a_replay_that_is_cut_short_is_told_and_goes_on_when_asked_again(monkeypatch):
    monkeypatch.setattr(limits, "LETTERS_PER_TURN", 4)
    copies = Copies()
    expiring = TopicInfo(9, "orders", 2, TopicConfig(ttl_ms=2_000), [1])
    copies.leader.desk.propose(log.TOPIC, payloads.encode(payloads.TopicChange(expiring)))
    copies.step((b"c", b"1"), 1, ADA, Subscribe(1, "g", [Start(PARTITION)], 0, 0))
    copies.turns()
    for _ in range(20):
        copies.publish(b"x")
    copies.turns(60)
    (cursor,) = copies.leader.ledger.cursors[PARTITION].values()
    assert cursor.state.dead == 20
    for request_id in (8, 9):
        copies.step((b"c", b"1"), request_id, ADA, PurgeDead(PARTITION, "g"))
    for _ in range(100):
        copies.turns(1)
        if cursor.state.dead < 20:
            break
    copies.leader._resign()
    abandoned = [each for effects in copies.turns(1) for each in effects.abandoned]
    assert {8, 9} <= {request_id for _, request_id in abandoned}
    assert 0 < cursor.state.dead < 20


def test_replays_that_wait_for_each_other_are_bounded(worker, monkeypatch):
    monkeypatch.setattr(limits, "LETTERS_PER_TURN", 1)
    monkeypatch.setattr(limits, "LETTER_JOBS_MAX", 3)
    partition = letters(worker, 10)
    answers = done(worker, *[PurgeDead(partition, "billing")] * 5)
    assert [(request_id, answer.code) for request_id, answer in answers[:2]] == [(13, "busy"), (14, "busy")]
    assert [(request_id, answer.count) for request_id, answer in answers[2:]] == [(10, 10), (11, 0), (12, 0)]


def test_what_is_old_leaves_turn_by_turn_over_all_partitions(worker, monkeypatch):
    monkeypatch.setattr(retention, "SLICES_MAX", 8)
    partitions = [
        single(worker.topic(f"t{number}", TopicOptions(retention_ms=60_000))) for number in range(5)
    ]
    for partition in partitions:
        for _ in range(10):
            worker.publish(partition, [b"x"] * 2)
    rows, left = worker.shards[1].ledger.partitions, [50]
    worker.tick(2 * limits.RETENTION_MS)
    for _ in range(20):
        left.append(sum((rows[partition].next - rows[partition].first) // 2 for partition in partitions))
        worker.tick(limits.LEASE_LOG_MS)
    gone = [before - after for before, after in pairwise(left)]
    assert max(gone) <= 16, "two goes at most are applied in one turn"
    assert left[-1] == 0


def test_what_is_due_of_many_batches_at_once_gets_its_offsets_in_pieces_and_in_order(worker, monkeypatch):
    """The records of each batch lie between records of other batches, so
    each needs a row of its own.
    """
    monkeypatch.setattr(schedule, "RELEASE_ROWS_MAX", 8)
    monkeypatch.setattr(schedule, "TOGETHER_MS", 0)
    partition = single(worker.topic())
    for number in range(10):
        worker.publish(partition, [b"x"] * 5, fixed={DELAY: array("q", range(1_000 + number, 1_050, 10))})
    shard = worker.shards[1]
    before = shard.last
    worker.tick(2_000)
    for _ in range(10):
        worker.turn()
    rows = [
        len(msgspec.msgpack.decode(entry.payload, type=payloads.Release).rows)
        for entry in (
            decode_row(index, worker.tables[1].log.get(INDEX_KEY.pack(index)))
            for index in range(before + 1, shard.last + 1)
        )
        if entry.kind == log.RELEASE
    ]
    assert sum(rows) == 50
    assert max(rows) == 8
    places = [shard.ledger.slices.at(partition, offset) for offset in range(50)]
    due = [1_000 + (place.index - places[0].index) + 10 * place.first for place in places]
    assert due == sorted(due)
