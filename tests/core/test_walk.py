"""Random walks of many records through the table of a record's life, driven by
entries that a log may contain.

After each entry every record is in the state of a simple model, the counters agree, and their sum
is the number of published records. All walks together must use every change of the table. The seeds
are fixed, so that this does not depend on luck.
"""

from collections import Counter
from random import Random

import pytest

from core.harness import FakeWorker, client, single
from gossipq.core.ledger import life
from gossipq.core.ledger.life import (
    ACK,
    ACKED,
    BURY,
    CHANGES,
    COUNTERS,
    DEAD,
    DROP,
    DROPPED,
    FAIL,
    HAND_OUT,
    OPEN,
    PARK,
    PARKED,
    PURGE,
    REMOVED,
    REPLAY,
    REQUEUE,
    RETRYING,
    STATES,
    TRIM,
    UNMATCHED,
    VOID,
    VOIDED,
)
from gossipq.core.storage import log, payloads
from gossipq.values import TopicOptions
from gossipq.wire import batch as batches

# 287: records die of a row with a gap, which is acked
RECORDS, ENTRIES, SEEDS = 12, 60, (*range(24), 287)
UNPARK = PARK + " unmatched"
EVENTS = (HAND_OUT, ACK, FAIL, PARK, UNPARK, BURY, DROP, REPLAY, PURGE, REQUEUE, VOID, TRIM)
#: final states; only a requeue of acked records leaves them
LASTING = (ACKED, VOIDED, DROPPED, REMOVED)


class Walk:
    """One group over one partition; the model has one state per record."""

    def __init__(self, random: Random) -> None:
        self.random, self.worker = random, FakeWorker()
        self.partition = single(self.worker.topic("orders", TopicOptions()))
        self.worker.publish(self.partition, [b"x"] * RECORDS)
        self.worker.subscribe(client("ada"), self.partition, records=0)
        self.shard = self.worker.shards[1]
        (self.id,) = self.shard.ledger.groups
        self.states, self.first = [OPEN] * RECORDS, 0
        # records that were dead letters: each has a body of its own, and retention spares it
        self.letters: set[int] = set()
        self.walked: Counter[tuple[str, str]] = Counter()

    @property
    def cursor(self):
        return self.shard.ledger.cursors[self.partition][self.id]

    def entry(self) -> None:
        """Writes one entry over a few records, which may be in any state."""
        event = self.random.choice(EVENTS)
        if event == TRIM and self.random.random() < 0.8:
            return  # a TRIM ends all walks below it
        low = self.random.randrange(self.first, RECORDS) if self.first < RECORDS else RECORDS
        high = min(RECORDS, low + self.random.choice((1, 1, 2, 5)))
        if low >= high:
            return
        if event == VOID:
            high = low + 1
            if self.states[low] in LASTING:
                return  # a VOID is refused: no consumer can get this record any more
        if event == TRIM:
            low, high = 0, low + 1
        self.propose(event, low, high)
        for offset in range(low, high):
            self.meet(offset, event)
        self.check(event)

    def meet(self, offset: int, event: str) -> None:
        """Applies an entry to a record of the model, if the table has such a
        change for the record's state.
        """
        state = self.states[offset]
        change = CHANGES.get((state, event))
        if change is None or (event == TRIM and offset in self.letters):
            return
        if state == DEAD:
            self.letters.add(offset)
        elif state == ACKED:
            self.letters.discard(offset)
        self.walked[state, event] += 1
        self.states[offset] = change.to

    def propose(self, event: str, low: int, high: int) -> None:
        at, gid, due_ms = self.partition, self.id, self.shard.desk.leader_ms + 60_000
        letters = payloads.Letters(gid, at, [(low, high)])
        dead = payloads.Dead(gid, at, low, high, "failures", "", "ada", 1, True)
        made = {
            HAND_OUT: (
                log.LEASE,
                lambda: payloads.LeaseRows(gid, [payloads.LeaseRow(at, low, high, b"s", due_ms, 1)]),
            ),
            ACK: (log.ACK, lambda: payloads.AckRanges(gid, "ada", [(at, low, high)])),
            FAIL: (
                log.FAIL,
                lambda: payloads.Fail(gid, [payloads.FailRow(at, low, high, 1, True, due_ms, "", "")]),
            ),
            PARK: (log.PARK, lambda: payloads.Park(gid, [payloads.ParkRow(at, low, high, 0, b"k\0\0\0\7")])),
            UNPARK: (log.PARK, lambda: payloads.Park(gid, [payloads.ParkRow(at, low, high, 0, b"reu")])),
            BURY: (log.DEAD, lambda: dead),
            DROP: (log.DEAD, lambda: dead),
            REPLAY: (log.REPLAY, lambda: letters),
            PURGE: (log.PURGE, lambda: letters),
            REQUEUE: (log.REQUEUE, lambda: payloads.Letters(gid, at, [(low, high)], self.acked(low, high))),
            VOID: (log.VOID, lambda: payloads.Void(at, low, 0, 0, "", "ops")),
            TRIM: (log.TRIM, lambda: payloads.Trim(at, high)),
        }
        kind, payload = made[event]
        body = bytes(batches.seal([b"x"] * (high - low))) if event == BURY else b""
        self.worker.turn(lambda: self.shard.desk.propose(kind, payloads.encode(payload()), body=body))
        assert self.worker.shards[1] is self.shard, "no entry stopped the shard"

    def acked(self, low: int, high: int) -> list[tuple[int, int]]:
        """For a REQUEUE: the records that its leader found acked, one by one."""
        return [(each, each + 1) for each in range(low, high) if self.states[each] == ACKED]

    def check(self, event: str) -> None:
        self.first = self.shard.ledger.partitions[self.partition].first
        expected = Counter(dict.fromkeys((*COUNTERS, "unmatched"), 0))
        for state in self.states:
            expected.update(STATES[state].counters)
        state = self.cursor.state
        counted = {name: getattr(state, name) for name in expected}
        assert counted == dict(expected), (event, self.states)
        assert self.cursor.unaccounted() == 0
        opened = {at for low, high in self.cursor.fresh(0, RECORDS) for at in range(low, high)}
        assert opened == {at for at, each in enumerate(self.states) if each == OPEN}
        waiting = {
            at: life.waiting(found.row)
            for found in self.cursor.exceptions.scan()
            for at in range(found.first, found.end)
        }
        assert waiting == {
            at: each for at, each in enumerate(self.states) if each in (RETRYING, PARKED, UNMATCHED)
        }
        letters = {at for found in self.cursor.dead.scan() for at in range(found.first, found.end)}
        assert letters == {at for at, each in enumerate(self.states) if each == DEAD}


@pytest.fixture(scope="module")
def walks() -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for seed in SEEDS:
        walk = Walk(Random(seed))
        for _ in range(ENTRIES):
            walk.entry()
        found += walk.walked
    return found


@pytest.mark.parametrize(("state", "event"), CHANGES, ids=lambda each: each.replace(" ", "-"))
def test_random_lives_take_every_change(walks: Counter[tuple[str, str]], state: str, event: str) -> None:
    assert walks[state, event] > 0, "no walk went there: more seeds, or a rule that brings it"
