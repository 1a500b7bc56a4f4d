"""Records that failed in the same way stay together, whatever lies between them: in a row, in a
lease, in the log, and when they fail again.
"""

import pytest

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.messages import Ack, Nack, Started, Subscribe
from gossipq.types import PartitionKey, topic_id_of
from gossipq.values import Start

ADA = client("ada")
EVEN = [(at, at + 1) for at in range(0, 12, 2)]
PAUSE_MS = 1_000  #: less than a lease
ODD = [(at, at + 1) for at in range(1, 12, 2)]


class Twelve(FakeWorker):
    """Twelve records, all delivered to one consumer."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: PartitionKey = single(self.topic())
        self.publish(self.orders, [b"x"] * 12)
        self.ask(1, ADA, Subscribe(1, "billing", [Start(self.orders)], 1_000, limits.MIB, gaps=True))

    def ranges(self, ranges):
        return [(self.orders, *each) for each in ranges]

    def fail(self, ranges):
        self.ask(1, ADA, Nack(1, self.ranges(ranges), PAUSE_MS))

    def begin(self, ranges):
        self.ask(1, ADA, Started(1, self.ranges(ranges)))

    def pause(self):
        """Waits until failed records are delivered again."""
        self.tick(PAUSE_MS)
        self.tick(0)

    def handed(self):
        """Ranges that were delivered since the last call, each with its attempt."""
        return [each[1:] for each in self.taken()]

    @property
    def view(self):
        shard = self.shards[1]
        group = shard.ledger.group(topic_id_of(self.orders), "billing").id
        return shard.dispatch.groups[group].views[self.orders]

    def rows(self):
        return [found.row.ranges for found in self.view.cursor.exceptions._rows(0)]

    def leases(self):
        """The ranges of each lease, and whether its attempt has started."""
        held = {}
        for first, end, lease in self.view.window.leases():
            held.setdefault(lease, []).append((first, end))
        return [(ranges, lease.started) for lease, ranges in held.items()]

    def logged(self):
        """The ranges of each row that the lazy log would write for all records."""
        holdings = self.shards[1].dispatch.holdings
        holdings.logged()
        holdings.log_later(self.view, 0, 12)
        (rows,) = holdings.take_leases(self.boot_ms(), 0).values()
        return [row.ranges for row in rows]


@pytest.fixture
def worker():
    return Twelve()


def test_what_fails_again_still_shares_a_row(worker):
    for attempt in range(2, 6):
        worker.fail(EVEN)
        assert worker.rows() == [EVEN]
        worker.taken()
        worker.pause()
        assert worker.handed() == [(*each, attempt) for each in EVEN]


def test_half_of_a_row_fails_again(worker):
    worker.fail(EVEN)
    worker.pause()
    worker.fail(EVEN[:3])
    assert worker.rows() == [EVEN[:3], EVEN[3:]]


def test_some_of_a_row_fail_again_and_what_lies_in_its_gaps(worker):
    worker.fail(EVEN)
    worker.pause()
    worker.fail([*EVEN[:2], *ODD[:2], *EVEN[4:]])
    worker.taken()
    worker.pause()
    assert sorted(worker.handed()) == [(0, 1, 3), (1, 2, 2), (2, 3, 3), (3, 4, 2), (8, 9, 3), (10, 11, 3)]


def test_a_lease_over_gaps_is_started_in_place_and_fails_as_one(worker):
    worker.fail(EVEN)
    worker.pause()
    (lease,) = {lease for _, _, lease in worker.view.window.leases() if lease.attempt == 2}
    worker.begin(EVEN)
    assert {lease for _, _, lease in worker.view.window.leases() if lease.attempt == 2} == {lease}
    assert (EVEN, True) in worker.leases()
    worker.fail(EVEN)
    assert worker.rows() == [EVEN]


def test_what_is_started_of_a_lease_over_gaps_is_one_lease(worker):
    worker.fail(EVEN)
    worker.pause()
    worker.begin(EVEN[:4])
    assert (EVEN[:4], True) in worker.leases()
    assert (EVEN[4:], False) in worker.leases()
    worker.begin(EVEN)
    assert (EVEN[4:], True) in worker.leases()
    worker.fail(EVEN)
    assert worker.rows() == [EVEN[:4], EVEN[4:]]


def test_what_is_acked_of_a_lease_does_not_keep_it_from_being_started_in_place(worker):
    worker.fail(EVEN)
    worker.pause()
    worker.ask(1, ADA, Ack(1, worker.ranges(EVEN[2:3])))
    count = len(worker.leases())
    worker.begin([*EVEN[:2], *EVEN[3:]])
    assert len(worker.leases()) == count


def test_leases_in_the_gaps_of_others_are_logged_in_one_row_each(worker):
    worker.fail(EVEN)
    worker.pause()
    assert worker.leases() == [(EVEN, False), (ODD, False)]
    assert worker.logged() == [EVEN, ODD]


def test_what_was_started_over_gaps_has_failed_when_its_lease_just_ends(worker):
    worker.fail(EVEN)
    worker.pause()
    worker.begin(EVEN)
    worker.ask(1, ADA, Ack(1, worker.ranges(ODD)))
    worker.taken()
    worker.tick(limits.LEASE_MS)
    assert worker.taken() == []
    worker.tick(limits.BACKOFF_MS[-1])
    worker.tick(0)
    assert worker.handed() == [(*each, 3) for each in EVEN]
