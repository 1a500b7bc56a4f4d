"""Random lives of a shard with everything a record may ask for: times, retries, keys, routes, ids, dead
letters, mending.

After each step: nothing is lost and nothing counted twice (promise 2), nothing is early, nobody is handed
what is done or held, keys keep their order, and every row that needs a batch finds it. In the end everything
that is not done comes out.
"""

import os
from array import array
from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.harness import FakeWorker, client, single
from core.harness import counters as stats
from core.places import one_for_each, reopened, rows_add_up
from gossipq import limits
from gossipq.core.delivery import consumers
from gossipq.core.delivery.routes import matcher
from gossipq.core.desk import Request
from gossipq.core.ledger import life, records
from gossipq.core.ledger.exceptions import decode_dead, decode_exception
from gossipq.core.ledger.schedule import decode_scheduled
from gossipq.core.requests.survey import SurveyRequests
from gossipq.core.storage.intervals import Intervals
from gossipq.export_messages import ListAcks, ListStates
from gossipq.messages import (
    Ack,
    Acked,
    Cancel,
    Credit,
    Done,
    Edit,
    Explained,
    Extend,
    Nack,
    Publish,
    PurgeDead,
    RefusedMessage,
    ReplayDead,
    Requeue,
    Reschedule,
    SetGroup,
    Started,
    Subscribe,
    Trace,
    Traced,
    Why,
    WhyGroup,
)
from gossipq.types import ATTEMPTS, DELAY, ID_HASH, KEY_HASH, TTL, Now, Offset, topic_id_of
from gossipq.values import GroupOptions, Message, Ref, Start, TopicOptions
from gossipq.wire import batch as batches

CONSUMERS = [client(name) for name in ("ada", "bob", "eve")]
BY_SESSION = {consumer.session: consumer for consumer in CONSUMERS}
LEASE_MS, WINDOW, ATTEMPTS_MAX, ALL = 10_000, 12, 3, 10_000
BACKOFF_MS = [500, 2_000]
OPERATOR = client("operator")
STATES = {
    "ready",
    "in_flight",
    "retrying",
    "parked",
    "scheduled",
    "acked",
    "dead",
    "voided",
    "removed",
    "skipped",
}
who = st.sampled_from(CONSUMERS)
pytestmark = pytest.mark.timeout(600)  #: two hundred lives on a busy machine


@pytest.fixture(autouse=True)
def walked(monkeypatch, capsys):
    """Counts the steps of the table that lives walk through, and prints them."""
    steps, step = Counter(dict.fromkeys(life.CHANGES, 0)), life.change_of

    def counted(state, event):
        steps[state, event] += 1
        return step(state, event)

    monkeypatch.setattr(life, "change_of", counted)
    yield steps
    if sum(steps.values()) > 100:
        with capsys.disabled():
            never = [" ".join(name) for name, count in steps.items() if not count]
            print(f"\nlives walked {len(steps) - len(never)} of {len(steps)} steps; not: {', '.join(never)}")


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    """Of a loan of six records, two may be of one key."""
    monkeypatch.setattr(consumers, "KEY_RUN_PART", 3)


class Record:
    """What was published, as the publisher knows it."""

    def __init__(self, value: bytes, key: int, route: bytes, due_ms: int, ttl_ms: int) -> None:
        self.value, self.key, self.route, self.due_ms, self.ttl_ms = value, key, route, due_ms, ttl_ms


def survey(ledger, request):
    """All runs of a LIST_ACKS or LIST_STATES, over pages of two rows."""
    answers = []
    desk = SimpleNamespace(reply=lambda asker, answer: answers.append(answer))
    room, runs = SurveyRequests(desk, ledger, None), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SURVEY_ROWS_MAX", 2)
        while True:
            room.handlers[type(request)](Request(request))
            runs += answers[-1].runs
            if answers[-1].more_group_id < 0:
                return runs
            more = {"group_id": answers[-1].more_group_id, "offset": answers[-1].more_offset}
            request = msgspec.structs.replace(request, **more)


class FullLife(RuleBasedStateMachine):
    @initialize(
        mode=st.sampled_from(["shared", "exclusive", "key_ordered"]),
        ack=st.sampled_from([True, True, True, False]),
        expire=st.sampled_from(["dead", "drop", "try_once"]),
        parked_max=st.sampled_from([4, 100_000]),
    )
    def found(self, mode, ack, expire, parked_max):
        self.mode, self.ack_first = mode, not ack
        self.worker = FakeWorker()
        options = TopicOptions(
            backoff_ms=BACKOFF_MS, attempts_max=ATTEMPTS_MAX, expire=expire, dedup_count=6, trace="all"
        )
        self.partition = single(self.worker.topic("orders", options))
        self.topic_id = topic_id_of(self.partition)
        self.group_options = GroupOptions(
            mode=mode, lease_ms=LEASE_MS, in_flight_max=WINDOW, parked_max=parked_max
        )
        self.number = 0
        self.by_value: dict[bytes, Record] = {}
        self.ids: dict[int, bytes] = {}
        self.done: set[Offset] = set()  # stored acks
        self.void: set[Offset] = set()
        self.again: set[Offset] = set()  # handed out once more by an operator, whatever came after them
        self.holds: dict[Offset, tuple[bytes, int]] = {}  # offset -> (session, boot time when the lease ends)
        self.logged: dict[Offset, tuple[bytes, int]] = {}
        self.routes: dict[bytes, list[str]] = {consumer.session: [] for consumer in CONSUMERS}
        self.routed = self.was_down = False
        self.join(CONSUMERS[0])

    # --- helpers --------------------------------------------------------------------------------------------

    @property
    def shard(self):
        return self.worker.shards[1]

    @property
    def cursor(self):
        ledger = self.shard.ledger
        return ledger.cursors[self.partition][ledger.group_ids[self.topic_id, "g"]]

    @property
    def boot_ms(self):
        return self.worker.now.boot_ms

    def record_at(self, offset) -> Record:
        """The record at an offset, from the disk."""
        at = self.shard.ledger.slices.at(self.partition, offset)
        body = self.worker.tables[1].body.get(at.index.to_bytes(8, "big"))
        return self.by_value[batches.Batch(body).values()[at.first + offset - at.offset]]

    def send(self, consumer, *messages: Message, batch=b"", commit=True):
        """The first answer of messages that arrive together, if there was one; what came with it is
        checked."""
        answer = self.exchange(consumer, *messages, batch=batch, commit=commit)
        self.watch()
        return answer

    def exchange(self, consumer, *messages: Message, batch=b"", commit=True):
        """As send, but what was handed out in that turn is checked by the caller: an answer may free what is
        handed out with it."""
        origin, answers = (b"c", consumer.session), []
        steps = [lambda m=m: self.worker.step(1, origin, 9, consumer, m, batch=batch) for m in messages]
        effects = self.worker.turn(*steps, commit=commit)
        if not effects:
            self.crashed()
            return None
        for each in effects.values():
            answers += [m for o, r, m in each.replies if r == 9 and o == origin]
            answers += [m for o, r, m, _ in each.enclosed if r == 9 and o == origin]
        self.worker.seen.append(effects[1])
        return answers[0] if answers else None

    def watch(self):
        """Checks what was handed out, in the order in which it was."""
        for session, first, end, attempt in self.worker.taken():
            for offset in range(first, end):
                self.handed(session, offset, attempt)

    def handed(self, session, offset, attempt):
        record = self.record_at(offset)
        assert offset not in self.done, f"{offset} came again after its ack"
        assert offset not in self.void, f"{offset} came though it is void"
        assert attempt >= 1
        holder = self.holds.get(offset)
        assert holder is None or holder[0] == session or holder[1] <= self.boot_ms, f"{offset} handed to two"
        fits = matcher(self.routes[session])
        assert fits is None or fits(record.route), (
            f"{offset} of route {record.route} handed to {self.routes[session]}"
        )
        assert record.due_ms <= self.leader_ms(), f"{offset} is early"
        if self.mode == "exclusive":
            others = {s for s, until_ms in self.holds.values() if s != session and until_ms > self.boot_ms}
            assert not others or self.was_down, "two consumers of an exclusive group"
        if self.mode == "key_ordered" and record.key and offset not in self.again:
            for other, (other_session, until_ms) in self.holds.items():
                if other != offset and until_ms > self.boot_ms and self.record_at(other).key == record.key:
                    assert other_session == session, f"key {record.key} with two consumers"
                    assert other < offset or self.routed, f"{offset} before {other}, which has the same key"
            if not self.routed:  # consumers of some routes keep the order among those
                assert not self.lower_open(record.key, offset), f"{offset} passed one of its key"
        if self.ack_first:
            self.done.add(offset)
        else:
            self.holds[offset] = session, self.boot_ms + LEASE_MS

    def lower_open(self, key, offset):
        """Offsets below of the same key that are neither done nor held."""
        below = [
            low
            for low in self.open_offsets()
            if low < offset and low not in self.holds | dict.fromkeys(self.again)
        ]
        return [low for low in below if self.record_at(low).key == key]

    def open_offsets(self):
        """What the group still has to do, from the ledger."""
        cursor, state = self.cursor, self.shard.ledger.partitions[self.partition]
        left = [o for first, end in cursor.fresh(state.first, state.next) for o in range(first, end)]
        return left + [o for found in cursor.exceptions.scan() for o in range(found.first, found.end)]

    def later_of_its_key(self, consumer, offset):
        """What the consumer holds behind a record, of the same key."""
        key = self.record_at(offset).key
        held = [o for o, (session, _) in self.holds.items() if session == consumer.session and o > offset]
        return [o for o in held if key and self.record_at(o).key == key]

    def leader_ms(self):
        return self.shard.desk.leader_ms

    def join(self, consumer, records=6, holding=None):
        message = Subscribe(
            1,
            "g",
            [Start(self.partition)],
            records,
            limits.CREDIT_BYTES,
            self.group_options,
            holding=holding,
            routes=self.routes[consumer.session],
            ack=not self.ack_first,
            gaps=consumer.session == CONSUMERS[0].session,
            key_runs=consumer.session != CONSUMERS[1].session,
        )
        return self.send(consumer, message)

    def crashed(self):
        """Leases that were not logged may be handed out again, those on disk are honoured."""
        self.worker.seen.clear()
        self.was_down = True
        self.holds = {o: hold for o, hold in self.logged.items() if self.holds.get(o, (b"",))[0] == hold[0]}
        self.join(CONSUMERS[0])

    def some_hold(self, data):
        offset = data.draw(st.sampled_from(sorted(self.holds)))
        return BY_SESSION[self.holds[offset][0]], offset

    def some_ref(self, data):
        """A record with an offset, or a scheduled one."""
        refs = [
            Ref(self.partition, offset) for offset in range(self.shard.ledger.partitions[self.partition].next)
        ]
        for key, row in self.worker.tables[1].state.scan(b"W", b"X"):
            _, index, first = records.U64X3.unpack_from(key, 1)
            refs += [
                Ref(self.partition, -1, index, record) for record in range(first, decode_scheduled(row).end)
            ]
        return data.draw(st.sampled_from(refs)) if refs else None

    # --- rules ----------------------------------------------------------------------------------------------

    @rule(
        data=st.data(), count=st.integers(1, 5), commit=st.integers(0, 7), age_ms=st.sampled_from([0, 0, 300])
    )
    def publish(self, data, count, commit, age_ms):
        batch, fresh = self.sealed(data, count, age_ms)
        info, origin = batches.verify(batch), (b"c", b"p")
        message = Publish(self.partition, age_ms=age_ms)
        effects = self.worker.turn(
            lambda: self.worker.take(1, origin, 7, None, message, info, batch), commit=bool(commit)
        )
        if not effects:
            self.crashed()
            return
        rows = effects[1].confirms[origin]
        runs = dict(effects[1].runs.get(origin, []))
        assert len(rows) == 1
        if runs:
            assert sum(run.count for run in runs[7]) == count
            assert not DELAY & info.columns or all(run.offset < 0 or run.duplicate for run in runs[7])
        self.by_value |= fresh
        self.worker.seen.append(effects[1])
        self.watch()

    def sealed(self, data, count, age_ms):
        """A batch with some of what records may ask for, and its records by value."""
        self.number += 1
        values = [b"%d.%d" % (self.number, i) for i in range(count)]
        route = data.draw(st.sampled_from([b"", b"eu.fr", b"us"]))
        delays = sorted(
            data.draw(st.lists(st.sampled_from([0, 50, 1_000, 60_000]), min_size=count, max_size=count))
        )
        columns = data.draw(st.sets(st.sampled_from([KEY_HASH, DELAY, TTL, ATTEMPTS, ID_HASH])))
        fixed = {}
        keys, ttls = [0] * count, [0] * count
        if KEY_HASH in columns:
            keys = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
            fixed[KEY_HASH] = array("I", keys)
        if DELAY in columns:
            fixed[DELAY] = array("q", delays)
        if TTL in columns:
            ttls = data.draw(st.lists(st.sampled_from([0, 700, 100_000]), min_size=count, max_size=count))
            fixed[TTL] = array("q", ttls)
        if ATTEMPTS in columns:
            fixed[ATTEMPTS] = array("I", [data.draw(st.integers(0, 2)) for _ in values])
        if ID_HASH in columns:
            fixed[ID_HASH] = array(
                "Q", data.draw(st.lists(st.integers(0, 8), min_size=count, max_size=count))
            )
        now_ms = self.leader_ms()
        due = [now_ms - age_ms + delay if DELAY in columns else 0 for delay in delays]
        known = {v: Record(v, keys[i], route, due[i], ttls[i]) for i, v in enumerate(values)}
        return bytes(batches.seal(values, route=route, fixed=fixed)), known

    @rule(
        consumer=who, routes=st.sampled_from([[], [], ["eu.*"], ["us"], ["#.fr"]]), records=st.integers(0, 10)
    )
    def subscribe(self, consumer, routes, records):
        self.routes[consumer.session] = routes
        self.routed |= bool(routes)
        self.join(consumer, records)

    @rule(consumer=who, number=st.integers(1, 10))
    def lend(self, consumer, number):
        self.send(consumer, Credit(1, number, limits.MIB))

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), commit=st.integers(0, 7))
    def ack(self, data, commit):
        consumer, offset = self.some_hold(data)
        answer = self.exchange(consumer, Ack(1, [(self.partition, offset, offset + 1)]), commit=bool(commit))
        if isinstance(answer, Acked) and not answer.lost:
            self.done.add(offset)
            # its key, or an exclusive group, may go to another consumer in this very turn
            self.holds.pop(offset, None)
        self.watch()

    @precondition(lambda self: self.holds)
    @rule(
        data=st.data(),
        delay_ms=st.sampled_from([-1, -1, 0, 700]),
        failed=st.booleans(),
        dead=st.sampled_from(["", "", "rejected"]),
    )
    def nack(self, data, delay_ms, failed, dead):
        consumer, offset = self.some_hold(data)
        later = self.later_of_its_key(consumer, offset) if self.mode == "key_ordered" else []
        for each in (offset, *later):
            del self.holds[each]
            self.logged.pop(each, None)
        # not begun, since it must not be
        back = Nack(1, [(self.partition, each, each + 1) for each in later], 0, failed=False)
        self.send(
            consumer, back, Nack(1, [(self.partition, offset, offset + 1)], delay_ms, failed, "why not", dead)
        )

    @precondition(lambda self: self.holds and self.mode == "shared")
    @rule(data=st.data(), commit=st.integers(0, 7))
    def ack_and_nack(self, data, commit):
        """All that a consumer holds: some is done, the rest has failed, and it is told together."""
        consumer, _ = self.some_hold(data)
        mine = sorted(o for o, (session, _) in self.holds.items() if session == consumer.session)
        failed = {o for o in mine if data.draw(st.booleans())}
        done = [o for o in mine if o not in failed]
        ack, nack = ([(self.partition, o, o + 1) for o in some] for some in (done, sorted(failed)))
        messages = [*([Ack(1, ack)] if done else []), *([Nack(1, nack, reason="why not")] if failed else [])]
        for each in failed:
            del self.holds[each]
            self.logged.pop(each, None)
        answer = self.exchange(consumer, *messages, commit=bool(commit))
        if done and isinstance(answer, Acked) and not answer.lost:
            self.done |= set(done)
            for each in done:
                self.holds.pop(each, None)
        self.watch()

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), extend=st.booleans())
    def extend_or_start(self, data, extend):
        consumer, offset = self.some_hold(data)
        ranges = [(self.partition, offset, offset + 1)]
        if extend and self.send(consumer, Extend(1, ranges, LEASE_MS)) == Acked():
            self.holds[offset] = consumer.session, self.boot_ms + LEASE_MS
        elif not extend:
            self.send(consumer, Started(1, ranges))

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def step(self, data):
        """Ack and publish, both or neither."""
        consumer, offset = self.some_hold(data)
        batch, fresh = self.sealed(data, 1, 0)
        origin = (b"c", consumer.session)
        message = Publish(self.partition, subscription=1, acks=[(self.partition, offset, offset + 1)])
        before = self.shard.ledger.partitions[self.partition].published
        effects = self.worker.turn(
            lambda: self.worker.take(1, origin, 7, consumer, message, batches.verify(batch), batch)
        )
        self.by_value |= fresh
        if effects[1].confirms.get(origin):
            self.done.add(offset)
            self.holds.pop(offset, None)
        else:
            assert self.shard.ledger.partitions[self.partition].published == before
        self.worker.seen.append(effects[1])
        self.watch()

    @rule(consumer=who)
    def leave(self, consumer):
        self.holds = {o: hold for o, hold in self.holds.items() if hold[0] != consumer.session}
        self.logged = {o: hold for o, hold in self.logged.items() if hold[0] != consumer.session}
        self.worker.seen.append(self.worker.turn(lambda: self.worker.end_session(consumer.session))[1])
        self.watch()

    @rule(
        ms=st.sampled_from([1, 60, 60, 600, 1_000, 4_000, LEASE_MS]),
        jump_ms=st.sampled_from([0, 0, -3_600_000, 3_600_000]),
    )
    def pass_time(self, ms, jump_ms):
        self.worker.now = Now(self.worker.now.boot_ms, self.worker.now.wall_ms + jump_ms)
        self.worker.tick(ms)
        self.holds = {
            o: hold for o, hold in self.holds.items() if hold[1] > self.boot_ms or o in self.live_leases()
        }
        self.watch()
        if ms >= limits.LEASE_LOG_MS:
            self.worker.seen += [self.settled()]
            self.watch()
            self.logged = dict(self.holds)

    def settled(self):
        self.worker.advance(limits.LEASE_LOG_MS)
        return self.worker.turn()[1]

    def live_leases(self):
        view = self.shard.dispatch.groups[self.shard.ledger.group_ids[self.topic_id, "g"]].views[
            self.partition
        ]
        return {o for first, end, lease in view.window.leases() for o in range(first, end)}

    @rule()
    def crash(self):
        self.worker.restart()
        self.crashed()

    @rule(data=st.data(), reason=st.sampled_from(["", "wrong"]))
    def cancel(self, data, reason):
        ref = self.some_ref(data)
        if ref is not None and isinstance(self.send(OPERATOR, Cancel(ref, reason)), Done) and ref.offset >= 0:
            assert ref.offset not in self.done
            self.void.add(ref.offset)

    @rule(data=st.data(), delay_ms=st.sampled_from([0, 500, 90_000]))
    def reschedule(self, data, delay_ms):
        ref = self.some_ref(data)
        if ref is None:
            return
        found = self.shard.ledger.schedule.get(self.partition, ref.index, ref.record)
        if found is not None:  # it may come in the same turn
            body = self.worker.tables[1].body.get(ref.index.to_bytes(8, "big"))
            self.by_value[batches.Batch(body).values()[ref.record]].due_ms = self.leader_ms() + delay_ms
        assert isinstance(self.send(OPERATOR, Reschedule(ref, delay_ms)), Done if found else RefusedMessage)

    @rule(data=st.data())
    def edit(self, data):
        ref = self.some_ref(data)
        if ref is None:
            return
        self.number += 1
        value = b"%d.0" % self.number
        self.by_value[value] = Record(value, 0, b"", 0, 0)
        batch, origin = bytes(batches.seal([value])), (b"c", OPERATOR.session)
        effects = self.worker.turn(lambda: self.worker.step(1, origin, 9, OPERATOR, Edit(ref), batch=batch))
        if effects[1].confirms.get(origin) and ref.offset >= 0:
            self.void.add(ref.offset)
        self.worker.seen.append(effects[1])
        self.watch()

    @rule(data=st.data())
    def requeue(self, data):
        ref = self.some_ref(data)
        if ref is None:
            return
        was_done = ref.offset in self.done
        self.done.discard(ref.offset)  # it may come in the same turn
        self.again.add(ref.offset)
        answer = self.send(OPERATOR, Requeue(ref, "g"))
        if isinstance(answer, RefusedMessage) and was_done:
            self.done.add(ref.offset)

    @rule(purge=st.booleans(), dry_run=st.booleans())
    def letters(self, purge, dry_run):
        kind = PurgeDead if purge else ReplayDead
        dead = self.cursor.state.dead
        self.again |= {
            offset for found in self.cursor.dead.scan() for offset in range(found.first, found.end)
        }
        answer = self.send(OPERATOR, kind(self.partition, "g", [], dry_run))
        assert answer == Done(dead)
        assert not dry_run or self.cursor.state.dead == dead

    @rule(paused=st.booleans())
    def pause(self, paused):
        self.send(OPERATOR, SetGroup(self.topic_id, "g", GroupOptions(paused=paused)))

    @rule(data=st.data())
    def ask(self, data):
        ref = self.some_ref(data)
        if ref is None:
            return
        answer = self.send(OPERATOR, Why(ref))
        assert isinstance(answer, Explained), answer
        for standing in answer.standings:
            assert standing.state in STATES
            assert standing.because
            if ref.offset in self.done and standing.group == "g":
                assert standing.state == "acked", standing
            if ref.offset in self.void:
                assert standing.state == "voided"
        assert isinstance(self.send(OPERATOR, Trace(ref)), Traced)
        assert isinstance(self.send(OPERATOR, WhyGroup("g", [self.partition])), Message)

    # --- invariants -----------------------------------------------------------------------------------------

    @invariant()
    def everything_published_is_somewhere(self):
        if not hasattr(self, "partition"):
            return
        partitions, groups = stats(self.shard.ledger, self.shard.dispatch)
        partition, state = partitions[0], self.shard.ledger.partitions[self.partition]
        unplaced = sum(1 for _ in self.worker.tables[1].state.scan(b"v", b"w"))
        assert partition.published == partition.next + partition.scheduled + unplaced
        assert partition.scheduled == sum(
            decode_scheduled(row).end - records.U64X3.unpack_from(key, 1)[2]
            for key, row in self.worker.tables[1].state.scan(b"W", b"X")
        )
        for row in groups:
            start = self.cursor.state.start
            count = row.acked + row.removed + row.ready + row.in_flight + row.retrying + row.parked
            count += row.dead + row.voided + row.dropped
            assert partition.next - start == count, row
            parts = row.ready, row.in_flight, row.retrying, row.parked, row.dead, row.voided, row.dropped
            assert min(*parts, row.blocked_by_key, row.unmatched) >= 0, row
        assert state.bytes >= 0

    @invariant()
    def rows_count_what_they_say(self):
        if not hasattr(self, "partition"):
            return
        rows_add_up(self.worker.tables[1].state, self.cursor)

    @invariant()
    def every_row_finds_its_batch(self):
        if not hasattr(self, "partition"):
            return
        tables, needed = self.worker.tables[1], Counter()
        state, ledger = tables.state, self.shard.ledger
        offset = ledger.partitions[self.partition].first
        while offset < ledger.partitions[self.partition].next:
            part = ledger.slices.at(self.partition, offset)
            needed[part.index] += part.count
            offset = part.end
        for key, row in state.scan(b"W", b"X"):
            _, index, first = records.U64X3.unpack_from(key, 1)
            needed[index] += decode_scheduled(row).end - first
        for key, row in state.scan(b"L", b"M"):
            dead = decode_dead(row)
            needed[dead.index] += dead.end - records.U64X3.unpack_from(key, 1)[2]
        for key, row in state.scan(b"V", b"W"):
            exception = decode_exception(row)
            if exception.own_body:
                needed[exception.index] += exception.end - records.U64X3.unpack_from(key, 1)[2]
        bodies = {int.from_bytes(key, "big") for key in tables.body.keys}
        assert bodies == set(needed), "every batch that is needed is there, and no other"
        for key, row in state.scan(b"B", b"C"):
            assert needed[records.U64.unpack_from(key, 1)[0]] == records.COUNT.unpack(row)[0]

    @invariant()
    def the_leader_has_one_place_for_each_record(self):
        """Also by a leader that knows only what is on disk."""
        if not hasattr(self, "partition"):
            return
        group_id = self.shard.ledger.group_ids[self.topic_id, "g"]
        for dispatch in (self.shard.dispatch, reopened(self.shard)):
            one_for_each(self.shard.ledger, dispatch.groups[group_id].views[self.partition])

    @invariant()
    def what_is_done_stays_done(self):
        if hasattr(self, "partition"):
            open_offsets = set(self.open_offsets())
            assert not open_offsets & (self.done | self.void)

    @invariant()
    def a_survey_says_of_each_record_once_where_it_stands(self):
        if not hasattr(self, "partition"):
            return
        ledger, counts, at = self.shard.ledger, Counter(), {}
        for run in survey(ledger, ListStates(self.partition)):
            assert run.first == at.get(run.group, run.first) or run.state == "voided"
            at[run.group] = run.end
            counts[run.state] += run.end - run.first
        state = self.cursor.state
        assert at.get("g", state.start) == ledger.partitions[self.partition].next
        held = counts["in_flight"] + counts["ready"] + counts["done"] + counts["retrying"] + counts["parked"]
        assert held + counts["dead"] == ledger.partitions[self.partition].next - state.start
        assert (counts["dead"], counts["parked"]) == (state.dead, state.parked)
        done = Intervals()
        for run in survey(ledger, ListStates(self.partition)):
            if run.state == "done":
                done.add(run.first, run.end)
        for run in survey(ledger, ListAcks(self.partition)):
            assert not done.missing(run.first, run.end), "what is acked is done"
            assert run.index <= ledger.applied

    def teardown(self):
        """In the end everything that is not done comes out, is expired, or is a dead letter."""
        if not hasattr(self, "partition"):
            return
        self.worker.turn(*[lambda c=c: self.worker.end_session(c.session) for c in CONSUMERS])
        self.send(OPERATOR, SetGroup(self.topic_id, "g", GroupOptions(paused=False)))
        self.worker.restart()
        self.holds, self.was_down = {}, True
        self.worker.seen.clear()
        self.worker.tick(LEASE_MS)
        drainer = CONSUMERS[0]
        self.routes = {consumer.session: [] for consumer in CONSUMERS}
        self.worker.seen.clear()
        self.join(drainer, ALL)
        for _ in range(40):
            while self.holds:
                ranges = [(self.partition, offset, offset + 1) for offset in sorted(self.holds)]
                self.done |= set(self.holds)
                self.holds.clear()
                self.send(drainer, Ack(1, ranges))
            self.worker.tick(10_000)
            self.watch()
        state = self.cursor.state
        left = self.open_offsets()
        assert not left, (left, state)
        assert state.cursor == self.shard.ledger.partitions[self.partition].next
        assert self.shard.ledger.partitions[self.partition].scheduled == 0


FullLife.TestCase.settings = settings(
    max_examples=int(os.environ.get("GOSSIPQ_SEEDS", "40")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_full_life = FullLife.TestCase


def test_a_key_passes_to_another_consumer_in_the_turn_that_frees_it():
    """Found by 1,500 lives: the answer to an ack, and the next record of that key for somebody else, come out
    of one turn."""
    life, bob = FullLife(), CONSUMERS[1]
    life.found(mode="key_ordered", ack=True, expire="dead", parked_max=4)

    def drawn(*values):
        left = list(values)
        return SimpleNamespace(draw=lambda strategy: left.pop(0))

    columns = {KEY_HASH, DELAY}
    life.publish(drawn(b"", [0] * 4, columns, [0] * 4), count=4, commit=1, age_ms=0)
    life.publish(drawn(b"", [0] * 5, columns, [0, 1, 0, 0, 1]), count=5, commit=1, age_ms=0)
    life.ack(drawn(0), commit=1)
    assert set(life.holds) == set(range(1, 6)), (
        "ada was lent six: 5 has key 1, and 8, which has it too, is not hers"
    )
    life.ack(drawn(1), commit=1)
    life.join(bob, 3)
    assert {offset for offset, (session, _) in life.holds.items() if session == bob.session} == {6, 7}
    life.ack(drawn(5), commit=1)
    assert life.holds[8][0] == bob.session
    life.teardown()
