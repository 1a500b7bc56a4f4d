"""Unused groups are removed when their topic says so; others stay."""

import pytest

from core.harness import FakeWorker, client, single
from core.harness import counters as stats
from gossipq.core.raft.cluster_time import ClusterTime
from gossipq.limits import DAY_MS, HOUR_MS, MINUTE_MS
from gossipq.messages import Ack, GroupExplained, Nack, WhyGroup
from gossipq.operator_messages import GroupShown, ShowGroup
from gossipq.types import topic_id_of
from gossipq.values import TopicOptions

ADA = client("ada")


@pytest.fixture
def worker():
    return FakeWorker()


@pytest.fixture
def orders(worker):
    return single(worker.topic("orders", TopicOptions(group_idle_ms=HOUR_MS, backoff_ms=[2 * HOUR_MS])))


def left(worker, partition, records=2):
    """A group whose consumer took some records and left."""
    for sequence in range(1, records + 1):
        worker.publish(partition, [b"x"], b"p" * 16, sequence)
    worker.subscribe(ADA, partition)
    worker.taken()
    worker.ask(1, ADA, Ack(1, [(partition, 0, 1)]))
    worker.turn(lambda: worker.end_session(ADA.session))
    worker.settle()


def passes(worker, ms, step_ms=MINUTE_MS):
    for _ in range(0, ms, step_ms):
        worker.tick(step_ms)


def groups(worker):
    return [row.group for row in stats(worker.shards[1].ledger, worker.shards[1].dispatch)[1]]


def test_a_group_without_members_and_without_progress_goes(worker, orders):
    left(worker, orders)
    passes(worker, HOUR_MS - 2 * MINUTE_MS)
    assert groups(worker) == ["billing"]
    passes(worker, 4 * MINUTE_MS)
    assert groups(worker) == []
    worker.restart()
    assert groups(worker) == [], "the log says so"
    worker.subscribe(ADA, orders)
    assert groups(worker) == ["billing"], "it may be made anew"


def test_by_default_a_group_stays(worker):
    left(worker, single(worker.topic("others")))
    passes(worker, 3 * HOUR_MS)
    assert groups(worker) == ["billing"]


def test_a_group_with_members_stays(worker, orders):
    left(worker, orders)
    worker.subscribe(ADA, orders)
    passes(worker, 2 * HOUR_MS)
    assert groups(worker) == ["billing"]
    worker.turn(lambda: worker.end_session(ADA.session))
    passes(worker, HOUR_MS // 2)
    assert groups(worker) == ["billing"], "the time begins when the last one goes"


def test_a_group_with_unfinished_work_stays(worker, orders):
    """One record of the group waits two hours for its next attempt."""
    worker.publish(orders, [b"x"], b"p" * 16, 1)
    worker.subscribe(ADA, orders)
    worker.taken()
    worker.ask(1, ADA, Nack(1, [(orders, 0, 1)]))
    worker.turn(lambda: worker.end_session(ADA.session))
    passes(worker, 3 * HOUR_MS)
    assert groups(worker) == ["billing"]


def test_a_takeover_begins_to_count_anew(worker, orders):
    left(worker, orders)
    passes(worker, HOUR_MS // 2)
    worker.restart()
    passes(worker, HOUR_MS // 2)
    assert groups(worker) == ["billing"]
    passes(worker, HOUR_MS)
    assert groups(worker) == []


def test_a_correction_of_the_time_lets_no_group_go_early(worker, orders, monkeypatch):
    """A leader began with a wrong clock; when it hears the others, its time jumps by days."""
    left(worker, orders)
    passes(worker, 2 * MINUTE_MS)
    known = ClusterTime.now_ms.fget
    monkeypatch.setattr(ClusterTime, "now_ms", property(lambda time: known(time) + 40 * DAY_MS))
    passes(worker, 10 * MINUTE_MS)
    assert groups(worker) == ["billing"]
    passes(worker, HOUR_MS)
    assert groups(worker) == []


def test_a_group_shows_when_it_goes(worker, orders):
    left(worker, orders)
    passes(worker, 4 * MINUTE_MS)
    (row,) = worker.shards[1].stats(0, lambda name: True, (-1, -1), 100)[1]
    assert HOUR_MS - 5 * MINUTE_MS < row.goes_ms <= HOUR_MS - 2 * MINUTE_MS
    explained = worker.ask(1, ADA, WhyGroup("billing", [orders]))
    assert isinstance(explained, GroupExplained)
    assert "; nobody uses the group, so it goes in 5" in explained.rows[0][2], "minutes"
    shown = worker.ask(1, ADA, ShowGroup(topic_id_of(orders), "billing"))
    assert isinstance(shown, GroupShown)
    assert ("group_idle_ms", str(HOUR_MS), "topic") in shown.policy
    worker.subscribe(ADA, orders)
    (row,) = worker.shards[1].stats(0, lambda name: True, (-1, -1), 100)[1]
    assert row.goes_ms == 0, "somebody uses it"
