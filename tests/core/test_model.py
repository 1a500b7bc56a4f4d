"""Random lives of a shard against a simple model: publish, deliver, ack, give back,
expire, crash, fail, trim.

The model checks each group after each step (promise 2). Confirmed records are stored once, in
order. Acked records are never delivered again. Two consumers never hold the same record. And
published = acked + removed + ready + in flight + retrying.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.harness import FakeWorker, client, single
from core.harness import counters as stats
from gossipq import limits
from gossipq.messages import Ack, Acked, Credit, Extend, Nack, RefusedMessage, Unsubscribe
from gossipq.types import Now, topic_id_of
from gossipq.values import GroupOptions, TopicOptions
from gossipq.wire import batch as batches

CONSUMERS = [client(name) for name in ("ada", "bob", "eve")]
GROUPS = {b"ada": "billing", b"bob": "billing", b"eve": "mail"}
PRODUCER = b"p" * 16
LEASE_MS, WINDOW = 10_000, 16
TRIM_TURNS = 2  # one turn logs what may leave a full partition, the next one removes it
BY_SESSION = {consumer.session: consumer for consumer in CONSUMERS}
who = st.sampled_from(CONSUMERS)


class ShardLife(RuleBasedStateMachine):
    @initialize(
        retention_ms=st.sampled_from([limits.RETENTION_MS, 5_000]), drop=st.booleans(), live=st.booleans()
    )
    def found(self, retention_ms, drop, live):
        # may retention drop unacked records; does the life end without a restart
        self.drop, self.live = (drop, live)
        self.worker = FakeWorker()
        overflow = "drop_oldest" if drop else "refuse"
        config = TopicOptions(retention_ms=retention_ms, bytes_max=800, overflow=overflow)
        self.partition = single(self.worker.topic("orders", config))
        self.confirmed: dict[int, bytes] = {}  # offset -> value
        self.logged: dict[tuple[bytes, int], int] = {}  # leases that are on disk
        self.sequence = 0
        # a batch of which the producer does not know whether it is stored
        self.unknown: tuple[int, list[bytes]] | None = None
        self.acked = {group: set() for group in GROUPS.values()}  # stored acks
        self.holds: dict[tuple[bytes, int], int] = {}  # (session, offset) -> boot time when the lease ends
        for consumer in (CONSUMERS[0], CONSUMERS[2]):
            self.subscribe_again(consumer)
        self.publish_batch(6, commit=True)

    # --- helpers --------------------------------------------------------------------------------------------

    def group(self, consumer):
        return GROUPS[consumer.session.rstrip(b".")]

    def watch(self):
        """Checks the records that were delivered."""
        now_ms = self.worker.now.boot_ms
        for session, first, end, attempt in self.worker.taken():
            group = GROUPS[session.rstrip(b".")]
            assert self.open_below(group, end) <= WINDOW
            for offset in range(first, end):
                assert offset not in self.acked[group], f"{offset} came again after its ack"
                assert attempt >= 1
                assert not self.held_by_another(BY_SESSION[session], offset), f"{offset} handed to two"
                self.holds[session, offset] = now_ms + LEASE_MS

    def open_below(self, group, end):
        """The number of records that are not done."""
        cursor = self.cursor(group)
        return sum(high - low for low, high in cursor.fresh(cursor.state.cursor, end))

    def cursor(self, group):
        ledger = self.worker.shards[1].ledger
        return ledger.cursors[self.partition][ledger.group_ids[topic_id_of(self.partition), group]]

    def forget(self, consumer, offsets=None):
        for session, offset in list(self.holds):
            if session == consumer.session and (offsets is None or offset in offsets):
                del self.holds[session, offset]
                self.logged.pop((session, offset), None)

    def hold_of(self, data, alone=True):
        """Draws a consumer that holds records, and some of these records."""
        consumer = data.draw(
            st.sampled_from(sorted({session for session, _ in self.holds})).map(BY_SESSION.get)
        )
        held = sorted(offset for session, offset in self.holds if session == consumer.session)
        return consumer, data.draw(
            st.sampled_from(held) if alone else st.lists(st.sampled_from(held), min_size=1, unique=True)
        )

    def held_by_another(self, consumer, offset):
        group, now_ms = self.group(consumer), self.worker.now.boot_ms
        return any(
            held == offset
            and until_ms > now_ms
            and session != consumer.session
            and self.group(BY_SESSION[session]) == group
            for (session, held), until_ms in self.holds.items()
        )

    def subscribe_again(self, consumer, records=6):
        config = GroupOptions(lease_ms=LEASE_MS, in_flight_max=WINDOW)
        self.worker.subscribe(consumer, self.partition, self.group(consumer), records, config=config)
        self.watch()

    # --- rules ----------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 5), commit=st.integers(0, 5))
    def publish(self, count, commit):
        self.publish_batch(count, bool(commit))

    def publish_batch(self, count, commit):
        if self.unknown:
            sequence, values = self.unknown  # the same batch again, as a client repeats it
        else:
            sequence, values = self.sequence + 1, [b"%d.%d" % (self.sequence + 1, i) for i in range(count)]
        row = self.worker.publish(self.partition, values, PRODUCER, sequence, commit=commit)
        for _ in range(TRIM_TURNS):
            if not isinstance(row, RefusedMessage) or row.code != "busy":
                break
            assert any(self.acked.values()), "nothing is done that may leave"
            self.worker.settle()
            self.logged = dict(self.holds)
            row = self.worker.publish(self.partition, values, PRODUCER, sequence, commit=commit)
        if row is None:
            assert not commit
            self.unknown = sequence, values
            self.crashed()
        elif isinstance(row, tuple):
            offset = row[1]
            for i, value in enumerate(values):
                assert self.confirmed.setdefault(offset + i, value) == value
            self.sequence, self.unknown = sequence, None
        else:
            assert row.code == "topic_full", row
        self.watch()

    @rule(back=st.integers(0, 3))
    def repeat(self, back):
        if self.unknown is None and self.sequence - back > 0:
            row = self.worker.publish(self.partition, [b"whatever"], PRODUCER, self.sequence - back)
            assert row[3] is True
            assert self.confirmed.get(row[1], b"").startswith(b"%d." % (self.sequence - back))
        self.watch()

    @rule(consumer=who, records=st.integers(0, 12))
    def subscribe(self, consumer, records):
        self.subscribe_again(consumer, records)

    @rule(consumer=who, records=st.integers(1, 12))
    def lend(self, consumer, records):
        self.worker.ask(1, consumer, Credit(1, records, limits.MIB))
        self.watch()

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), commit=st.integers(0, 5))
    def ack(self, data, commit):
        consumer, some = self.hold_of(data, alone=False)
        ranges = [(self.partition, offset, offset + 1) for offset in sorted(some)]
        message = Ack(1, ranges)
        if not commit:
            self.worker.turn(lambda: self.worker.step(1, (b"c", b"1"), 1, consumer, message), commit=False)
            self.crashed()
            return
        answer = self.worker.ask(1, consumer, message)
        if isinstance(answer, Acked):
            lost = {offset for _, first, end in answer.lost for offset in range(first, end)}
            for offset in lost:
                # the oldest records leave a full topic, even while a consumer holds them
                dropped = self.drop and offset < self.rows()[0].first
                assert dropped or self.holds[consumer.session, offset] <= self.worker.now.boot_ms, (
                    "lost while held"
                )
            for offset in set(some) - lost:
                assert not self.held_by_another(consumer, offset), "taken from its holder"
            self.acked[self.group(consumer)] |= set(some) - lost
            self.forget(consumer, some)
        self.watch()

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 500]))
    def nack(self, data, delay_ms):
        consumer, offset = self.hold_of(data)
        self.forget(consumer, {offset})
        self.worker.ask(1, consumer, Nack(1, [(self.partition, offset, offset + 1)], delay_ms, failed=False))
        self.watch()

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def extend(self, data):
        consumer, offset = self.hold_of(data)
        answer = self.worker.ask(1, consumer, Extend(1, [(self.partition, offset, offset + 1)], LEASE_MS))
        if answer == Acked():
            self.holds[consumer.session, offset] = self.worker.now.boot_ms + LEASE_MS
        self.watch()

    @rule(consumer=who)
    def leave(self, consumer):
        self.forget(consumer)
        self.worker.seen += self.worker.turn(lambda: self.worker.end_session(consumer.session)).values()
        self.watch()

    @rule(consumer=who)
    def unsubscribe(self, consumer):
        self.worker.ask(1, consumer, Unsubscribe(1))
        self.worker.turn(lambda: self.worker.end_session(consumer.session))
        self.forget(consumer)
        self.watch()

    @rule(
        ms=st.sampled_from([1, 60, 60, 1_000, 4_000, LEASE_MS]),
        wall_jump_ms=st.sampled_from([0, 0, -3_600_000, 3_600_000]),
    )
    def pass_time(self, ms, wall_jump_ms):
        self.worker.now = Now(self.worker.now.boot_ms, self.worker.now.wall_ms + wall_jump_ms)
        self.worker.tick(ms)
        self.watch()
        if ms >= limits.LEASE_LOG_MS:
            self.worker.settle()
            self.logged = dict(self.holds)

    @rule()
    def crash(self):
        self.worker.restart()
        self.crashed()

    def crashed(self):
        """Leases that were not logged may be given to another consumer; those on
        disk stay. Clients come back.
        """
        self.worker.seen.clear()
        self.holds = {name: until_ms for name, until_ms in self.logged.items() if name in self.holds}
        for consumer in (CONSUMERS[0], CONSUMERS[2]):
            self.subscribe_again(consumer)

    # --- invariants -----------------------------------------------------------------------------------------

    def rows(self):
        shard = self.worker.shards[1]
        partitions, groups = stats(shard.ledger, shard.dispatch)
        return partitions[0], groups

    @invariant()
    def what_is_confirmed_is_stored_once_and_in_order(self):
        if not hasattr(self, "confirmed"):
            return
        ledger, tables = self.worker.shards[1].ledger, self.worker.tables[1]
        state = ledger.partitions[self.partition]
        offset = state.first
        while offset < state.next:
            part = ledger.slices.at(self.partition, offset)
            values = batches.Batch(tables.body.get(part.index.to_bytes(8, "big"))).values()
            for i in range(offset, part.end):
                value = values[part.first + i - part.offset]
                assert self.confirmed.get(i, value) == value
            offset = part.end
        assert max(self.confirmed, default=-1) < state.next

    @invariant()
    def everything_published_is_somewhere(self):
        if not hasattr(self, "confirmed"):
            return
        partition, groups = self.rows()
        assert partition.published == partition.next
        assert partition.published == partition.removed + partition.next - partition.first
        ledger = self.worker.shards[1].ledger
        for row in groups:
            cursor = ledger.cursors[self.partition][ledger.group_ids[topic_id_of(self.partition), row.group]]
            assert self.drop or not row.removed, "only acked records may leave"
            assert cursor.state.cursor not in cursor.passed
            assert min(row.ready, row.in_flight, row.acked, row.removed, row.retrying) >= 0, row
            count = row.acked + row.removed + row.ready + row.in_flight + row.retrying
            assert partition.next - cursor.state.start == count, row

    @invariant()
    def what_is_acked_stays_acked(self):
        if not hasattr(self, "confirmed"):
            return
        ledger = self.worker.shards[1].ledger
        for name, offsets in self.acked.items():
            if ledger.group(topic_id_of(self.partition), name) and offsets:
                cursor = self.cursor(name)
                assert all(offset < cursor.state.cursor or offset in cursor.passed for offset in offsets)

    def teardown(self):
        """At the end, every record that was not acked or removed is delivered and can be acked."""
        if not hasattr(self, "confirmed"):
            return
        worker = self.worker
        if self.live:
            worker.turn(*[lambda c=c: worker.end_session(c.session) for c in CONSUMERS])
        else:
            worker.restart()
        worker.tick(LEASE_MS)
        worker.settle()
        worker.seen.clear()
        for group in ("billing", "mail"):
            self.drain(group)

    def drain(self, group):
        cursor, state = self.cursor(group), self.worker.shards[1].ledger.partitions[self.partition]
        left = {o for first, end in cursor.fresh(state.first, state.next) for o in range(first, end)}
        left |= {o for found in cursor.exceptions.scan() for o in range(found.first, found.end)}
        drainer, got = client("drainer"), set()
        config = GroupOptions(lease_ms=LEASE_MS, in_flight_max=10_000)
        self.worker.subscribe(drainer, self.partition, group, 10_000, config=config, number=2)
        for session, first, end, _ in self.worker.taken():
            assert session == drainer.session
            got |= set(range(first, end))
        assert got == left
        assert not left & self.acked[group]


ShardLife.TestCase.settings = settings(
    max_examples=int(os.environ.get("GOSSIPQ_SEEDS", "40")),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_shard_life = pytest.mark.timeout(600)(ShardLife.TestCase)  # thousands of steps, on a busy machine too
