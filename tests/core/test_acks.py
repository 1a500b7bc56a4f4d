"""Rows of acks below the oldest open record become pages and still mean the same."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.harness import FakeWorker, client, single
from gossipq.core.ledger import acks as acks_module
from gossipq.core.ledger.acks import AckRows, page_of, runs_of
from gossipq.core.ledger.records import AckRow, CursorState
from gossipq.core.storage import log, payloads
from gossipq.core.storage.tables import MemoryTable
from gossipq.export_messages import ListAcks
from gossipq.messages import Ack, Done, Nack, ReplayDead, Requeue, Why
from gossipq.operator_messages import PurgeTopic
from gossipq.types import topic_id_of
from gossipq.values import Ref, TopicOptions

ADA, BOB = client("ada"), client("bob")
RUNS, DRAINED = 16, 4


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    monkeypatch.setattr(acks_module, "PAGE_RUNS", RUNS)
    monkeypatch.setattr(acks_module, "DRAINED_RUNS", DRAINED)
    monkeypatch.setattr("gossipq.core.ledger.groups.PAGE_RUNS", RUNS)


@st.composite
def runs(draw):
    """A list of ack ranges that follow each other."""
    at, found = draw(st.integers(0, 1 << 40)), []
    for count in draw(st.lists(st.integers(1, 1_000), min_size=1, max_size=30)):
        time_ms, index = draw(st.integers(0, 1 << 42)), draw(st.integers(0, 1 << 42))
        found.append((at, AckRow(at + count, time_ms, draw(st.sampled_from(["ada", "bob", ""])), index)))
        at += count
    return found


@given(runs())
@settings(max_examples=200, deadline=None)
def test_a_page_says_what_its_acks_said(acks):
    page = page_of(acks)
    assert (page.end, list(runs_of(acks[0][0], page))) == (acks[-1][1].end, acks)


@given(st.integers(0, 2**32), st.integers(1, 400))
@settings(max_examples=100, deadline=None)
def test_pages_never_change_what_is_said_of_a_record(seed, count):
    """Acks in random order, with gaps that stay and records that are taken out again."""
    random, table, said = Random(seed), MemoryTable(), {}
    state = CursorState(1, 2, 0, 0)
    acks, left, gaps = AckRows(table, 2, 1), list(range(count)), set()
    random.shuffle(left)
    while left:
        offset = left.pop()
        if random.random() < 0.05:
            gaps.add(offset)
        else:
            row = AckRow(offset + 1, random.randrange(1_000), random.choice(["ada", "bob"]), len(left))
            acks.put(offset, row)
            said[offset] = row
            state.unmerged += 1
        done = next(at for at in range(count + 1) if at not in said and at not in gaps)
        if state.unmerged >= RUNS:
            acks.merge(state, 0, done)
        if said and random.random() < 0.05:
            first = random.choice(list(said))
            ((_, row),) = acks.take(first, first + 1)
            assert row == said.pop(first)
            left.insert(random.randrange(len(left) + 1), first)
    found = dict(acks.within(0, count))
    assert found == said
    for offset in range(count):
        last = acks.last(offset)
        at = max((each for each in said if each <= offset), default=None)
        assert last == (None if at is None else (at, said[at]))


@pytest.fixture
def worker():
    return FakeWorker()


@pytest.fixture
def orders(worker):
    return single(worker.topic("orders", TopicOptions(backoff_ms=[1])))


def rows(worker):
    return sum(1 for _ in worker.tables[1].state.scan(b"A", b"B"))


def acked_one_by_one(worker, orders, count, seed=3):
    worker.publish(orders, [b"x"] * count)
    worker.subscribe(ADA, orders, records=count // 2)
    worker.subscribe(BOB, orders, records=count)
    held = {at: session for session, first, end, _ in worker.taken() for at in range(first, end)}
    order = sorted(held)
    Random(seed).shuffle(order)
    for at in order:
        who = ADA if held[at] == ADA.session else BOB
        worker.ask(1, who, Ack(1, [(orders, at, at + 1)]))
    return held


def test_single_acks_in_random_order_do_not_stay_as_rows(worker, orders):
    acked_one_by_one(worker, orders, 400)
    worker.publish(orders, [b"x"] * 200)
    for session, first, end, _ in worker.taken():
        for at in range(first, end):
            worker.ask(1, ADA if session == ADA.session else BOB, Ack(1, [(orders, at, at + 1)]))
    assert rows(worker) < 600 // RUNS + 4 * RUNS


def test_why_and_exports_say_of_each_what_they_said(worker, orders):
    held = acked_one_by_one(worker, orders, 200)
    ledger = worker.shards[1].ledger
    assert rows(worker) < 200
    for at in range(200):
        answer = worker.ask(1, ADA, Why(Ref(orders, at)))
        name = "ada" if held[at] == ADA.session else "bob"
        assert [(s.state, s.because) for s in answer.standings] == [("acked", f"{name} was done with it")]
    since, runs = 0, []
    group_id = ledger.group_ids[topic_id_of(orders), "billing"]
    for offset in (0, 57):
        answer = worker.ask(1, ADA, ListAcks(orders, since, group_id, offset))
        runs = [(run.first, run.end, run.consumer) for run in answer.runs]
        assert runs == [
            (at, at + 1, "ada" if held[at] == ADA.session else "bob") for at in range(offset, 200)
        ]
    newer = worker.ask(1, ADA, ListAcks(orders, ledger.applied, group_id, 0)).runs
    assert len(newer) == 1, "by the index of each ack, also within a page"


def test_a_record_of_a_page_can_be_handed_out_again(worker, orders):
    acked_one_by_one(worker, orders, 100)
    assert isinstance(worker.ask(1, ADA, Requeue(Ref(orders, 5), "billing")), Done)
    worker.tick(10)
    assert [row[1:3] for row in worker.taken()] == [(5, 6)]
    states = [worker.ask(1, ADA, Why(Ref(orders, at))).standings[0].state for at in (4, 5, 6)]
    assert states == ["acked", "in_flight", "acked"]


def test_who_acked_a_record_of_a_page_may_ack_it_again(worker, orders):
    held = acked_one_by_one(worker, orders, 100)
    mine = next(at for at in held if held[at] == ADA.session)
    assert worker.ask(1, ADA, Ack(1, [(orders, mine, mine + 1)])).lost == []
    assert worker.ask(1, BOB, Ack(1, [(orders, mine, mine + 1)])).lost == [(orders, mine, mine + 1)]


@pytest.mark.parametrize("another_waits", [False, True])
def test_of_what_retention_removed_an_ack_is_lost_where_a_letter_is_and_nowhere_else(
    worker, orders, another_waits
):
    """Two bugs of the past. A consumer that acked a dead letter late was told that the letter is
    acked, yet the next replay brought it again. And while any record waited, a consumer that
    repeated the ack of a record that retention had removed was told that its ack is lost.
    """
    worker.publish(orders, [b"x"] * 4)
    worker.publish(orders, [b"y"])
    worker.subscribe(ADA, orders)
    worker.ask(1, ADA, Ack(1, [(orders, 1, 3)]))
    worker.ask(1, ADA, Nack(1, [(orders, 0, 1), (orders, 3, 4)], dead="rejected"))
    if another_waits:
        worker.ask(1, ADA, Nack(1, [(orders, 4, 5)], 3_600_000))
    late = Ack(1, [(orders, 0, 4)])
    letters = [(orders, 0, 1), (orders, 3, 4)]
    assert worker.ask(1, ADA, late).lost == letters
    assert worker.ask(1, ADA, PurgeTopic(orders, 4)) == Done(4)
    worker.settle()
    assert worker.ask(1, ADA, late).lost == letters
    assert worker.ask(1, ADA, ReplayDead(orders, "billing", [(3, 4)])) == Done(1)
    worker.tick(10)
    assert worker.ask(1, ADA, late).lost == letters[:1]
    assert worker.ask(1, ADA, ReplayDead(orders, "billing")) == Done(1)


def test_records_that_wait_for_another_attempt_hold_the_pages_up(worker, orders):
    worker.publish(orders, [b"x"] * 60)
    worker.subscribe(ADA, orders)
    worker.ask(1, ADA, Nack(1, [(orders, 0, 1)], 3_600_000))
    for at in range(1, 60):
        worker.ask(1, ADA, Ack(1, [(orders, at, at + 1)]))
    assert rows(worker) == 59


def test_a_page_that_retention_reaches_into_stays_whole(worker, orders):
    acked_one_by_one(worker, orders, 100)
    shard = worker.shards[1]
    worker.turn(lambda: shard.desk.propose(log.TRIM, payloads.encode(payloads.Trim(orders, 5))))
    for _ in range(5):
        worker.tick(1_000)
    assert shard.ledger.partitions[orders].first == 5
    states = [worker.ask(1, ADA, Why(Ref(orders, at))).standings[0].state for at in (4, 5, 99)]
    assert states == ["removed", "acked", "acked"]
