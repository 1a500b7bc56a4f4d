"""Roll-ups: what a minute and an hour leave, that this is bounded, and that
every copy computes the same.
"""

from itertools import pairwise

import pytest

from core.harness import FakeWorker, client, single
from gossipq.core.storage import log
from gossipq.limits import GROWTH_HOURS_MS, GROWTH_MINUTES_MS, HOUR_MS, MINUTE_MS
from gossipq.messages import Ack, DropTopic
from gossipq.values import TopicOptions

ADA = client("ada")


@pytest.fixture
def worker():
    return FakeWorker()


@pytest.fixture
def orders(worker):
    return single(worker.topic("orders", TopicOptions(retention_ms=0)))


def minute(worker, minutes=1):
    for _ in range(minutes):
        worker.tick(MINUTE_MS)
        worker.settle()


def rows(worker, names=(), hours=False, since_ms=0):
    found, more = worker.shards[1].ledger.growth.rows(names, hours, since_ms, (-1, -1), 1_000_000)
    assert more is None
    return found


def rollups(worker):
    keys = worker.disk[1].log.keys
    entries = (log.decode_row(int.from_bytes(key, "big"), worker.disk[1].log.rows[key]) for key in keys)
    return sum(entry.kind == log.ROLLUP for entry in entries)


def test_a_minute_leaves_what_it_brought(worker, orders):
    minute(worker)
    for sequence in (1, 2):
        worker.publish(orders, [b"x", b"y"], b"p" * 16, sequence)
    worker.subscribe(ADA, orders)
    worker.ask(1, ADA, Ack(1, [(orders, 0, 3)]))
    minute(worker)
    before, after = rows(worker, ["orders"])[-2:]
    assert after.time_ms - before.time_ms == MINUTE_MS
    assert after.time_ms % MINUTE_MS == 0
    assert (before.published, after.published, after.acked, after.backlog) == (0, 4, 3, 1)
    assert (after.records, after.removed, after.voters) == (2, 2, 1), "retention 0 removed the first batch"
    total = rows(worker)[-1]
    assert (total.topic, total.published, total.backlog) == ("", 4, 1)


def test_a_minute_without_anything_leaves_nothing(worker, orders):
    worker.publish(orders, [b"x"])
    minute(worker, 2)
    before, entries = rows(worker), rollups(worker)
    minute(worker, 10)
    assert rows(worker) == before
    assert rollups(worker) == entries


def test_an_hour_keeps_what_its_last_minute_left(worker, orders):
    for number in range(1, 200):
        worker.publish(orders, [b"x"], b"p" * 16, number)
        minute(worker)
    hours = rows(worker, ["orders"], hours=True)
    assert [row.time_ms % HOUR_MS for row in hours] == [0] * len(hours)
    whole = hours[1:-1]
    assert len(whole) >= 2
    assert [later.published - earlier.published for earlier, later in pairwise(whole)] == [60] * (
        len(whole) - 1
    )
    assert hours[-1].published == rows(worker, ["orders"])[-1].published


def test_rows_are_bounded(worker, orders):
    day_ms = 24 * HOUR_MS
    for number in range(1, 40):
        worker.publish(orders, [b"x"], b"p" * 16, number)
        minute(worker)
        worker.advance(day_ms // 2)
    for hours, kept_ms in ((False, GROWTH_MINUTES_MS), (True, GROWTH_HOURS_MS)):
        found = rows(worker, ["orders"], hours)
        assert found
        assert found[0].time_ms >= found[-1].time_ms - kept_ms
    assert len(rows(worker, ["orders"], hours=True)) == 15


def test_only_what_is_behind_a_time_is_told(worker, orders):
    for number in range(1, 5):
        worker.publish(orders, [b"x"], b"p" * 16, number)
        minute(worker)
    everything = rows(worker, ["orders"])
    assert rows(worker, ["orders"], since_ms=everything[1].time_ms) == everything[2:]


def test_a_restart_is_seen_as_another_term(worker, orders):
    worker.publish(orders, [b"x"])
    minute(worker)
    worker.restart()
    minute(worker)
    before, after = rows(worker)[-2:]
    assert after.term > before.term
    assert after.published == before.published


def test_a_restart_in_the_same_minute_counts_nothing_twice(worker, orders):
    worker.publish(orders, [b"x"])
    minute(worker)
    before = rows(worker, ["orders"])
    worker.restart()
    worker.settle()
    assert rows(worker, ["orders"]) == before


def test_a_topic_that_goes_takes_its_rows_along(worker, orders):
    worker.publish(orders, [b"x"])
    minute(worker)
    worker.ask(0, ADA, DropTopic("orders"))
    minute(worker)
    topic_rows = [key for key in worker.disk[1].state.keys if key[:1] == b"g" and key[1:9] != bytes(8)]
    assert topic_rows == []


def test_copies_make_the_same_rows(worker, orders):
    """Applying the log again from the beginning gives the same growth."""
    for number in range(1, 4):
        worker.publish(orders, [b"x"], b"p" * 16, number)
        minute(worker)
    from gossipq.core.ledger.ledger import Ledger
    from gossipq.core.storage.tables import MemoryTables
    from gossipq.wire.opener import Opener

    disk, fresh = worker.disk[1], MemoryTables()
    copy = Ledger(1, fresh, Opener())
    for key in disk.log.keys:
        copy.apply(
            log.decode_row(int.from_bytes(key, "big"), disk.log.rows[key], disk.body.rows.get(key, b""))
        )
    copy.flush()
    growth = {key: row for key, row in disk.state.rows.items() if key[:1] == b"g"}
    assert growth
    assert {key: row for key, row in fresh.state.rows.items() if key[:1] == b"g"} == growth


@pytest.mark.parametrize("rows_max", [1, 3, 7])
def test_rows_come_in_pages(worker, rows_max):
    """Each row comes once, by topic and time. Only rows that are removed
    between two pages are missing.
    """
    for number in range(4):
        orders = single(worker.topic(f"orders{number}"))
        for sequence in range(1, 4):
            worker.publish(orders, [b"x"], b"p" * 16, sequence)
            minute(worker)
    growth, names = worker.shards[1].ledger.growth, {f"orders{number}" for number in range(4)}
    whole, found, after = rows(worker, names), [], (-1, -1)
    while after is not None:
        page, after = growth.rows(names, False, 0, after, rows_max)
        assert len(page) <= rows_max
        found += page
    assert found == whole
    assert len(whole) > 12
    first, after = growth.rows(names, False, 0, (-1, -1), rows_max)
    worker.ask(0, ADA, DropTopic(first[-1].topic))
    rest, _ = growth.rows(names, False, 0, after, 1_000_000)
    assert [row.topic for row in first + rest] == [
        row.topic for row in whole if row in first or row.topic != first[-1].topic
    ]
