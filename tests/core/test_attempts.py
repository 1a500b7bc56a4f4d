"""Random lives of what a leader remembers of attempts, against a model that hears what consumers hear.

A leader hands out, takes acks, gives back, pauses, loses its leadership and builds its memory from rows; its
other copies may be slow, so that entries wait. In one term the attempts of a record do not fall, and never
count a delivery that did not begin; nothing that was acked comes again; memory, the rows on disk and the
model agree on each record; in the end each is acked or dead.
"""

import os
from collections import Counter
from collections.abc import Iterator
from random import Random

from core.fleet import FallibleFleet
from gossipq import limits
from gossipq.core.delivery import Dispatch, PartitionView, tries
from gossipq.core.effects import Effects
from gossipq.core.requests.consume import Client
from gossipq.messages import (
    Ack,
    AckDelivered,
    Acked,
    Credit,
    Extend,
    Nack,
    SetGroup,
    Started,
    Subscribe,
    Unsubscribe,
)
from gossipq.types import topic_id_of
from gossipq.values import GroupConfig, GroupOptions, Message, Range, Start

CONSUMERS = {name.ljust(16, b"."): Client(name.ljust(16, b"."), name.decode()) for name in (b"ada", b"bob")}
SESSIONS = sorted(CONSUMERS)
LEASE_MS, WINDOW, ATTEMPTS_MAX = 1_000, 12, 8
TURNS, MANY = 60, 10_000
LIVES = int(os.environ.get("GOSSIPQ_SEEDS", "16"))
FIRST = 238  #: among these are several that fail when a row that comes due replaces a newer number in memory


class Life:
    batch, most, credit, attempts_max, gaps = 4, 3, 1, ATTEMPTS_MAX, False

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.fleet = FallibleFleet(1, random.choice(["a", "abc"]), self.hear)
        self.mode = random.choice(["shared", "shared", "exclusive", "key_ordered"])
        self.partition = self.fleet.topic(backoff_ms=[200, 1_000], attempts_max=self.attempts_max)
        self.options = GroupOptions(mode=self.mode, lease_ms=LEASE_MS, in_flight_max=WINDOW)
        self.routed = random.random() < 0.3
        self.published = self.requests = self.events = self.together = 0
        self.last: dict[int, tuple[int, int, int]] = {}  # offset -> term, attempt, event of its last delivery
        self.begun: Counter[int] = Counter()  # by offset: deliveries that a consumer said it has begun with
        self.began: dict[bytes, set[int]] = {session: set() for session in SESSIONS}  # of what it has
        self.acks: dict[int, tuple[bytes, list[int], int, int]] = {}  # request -> session, what, term, event
        self.acked: set[int] = set()
        self.has: dict[bytes, set[int]] = {session: set() for session in SESSIONS}  # as its client knows
        self.join(SESSIONS[0])
        self.turn(50)

    # --- turns ------------------------------------------------------------------------------------------

    def turn(self, ms: int, slow: bool = False) -> None:
        self.fleet.take_turns(ms, slow)

    def hear(self, name: str, heard: list[Effects]) -> None:
        term = self.fleet.seats[name].shard.term
        for effects in heard:
            self.answered(effects)
            for delivery in effects.deliveries:
                for part in delivery.parts:
                    self.together += bool(part.ranges)
                    for first, end in part.ranges or [(part.offset, part.end)]:
                        for offset in range(first, end):
                            self.delivered(delivery.origin[1], offset, part.attempt, term)

    def delivered(self, session: bytes, offset: int, attempt: int, term: int) -> None:
        assert offset not in self.acked, f"{offset} came again after its ack"
        before, had, _ = self.last.get(offset, (0, 0, 0))
        assert before < term or (before == term and attempt >= had), (
            f"{offset} came as attempt {attempt} after {had}, in term {term} after {before}"
        )
        assert attempt <= self.begun[offset] + 1, (
            f"{offset} came as attempt {attempt}, {self.begun[offset]} began"
        )
        self.began[session].discard(offset)
        self.events += 1
        self.last[offset] = term, attempt, self.events
        self.has[session].add(offset)

    def answered(self, effects: Effects) -> None:
        for _, request_id, message in effects.replies:
            if request_id not in self.acks or not isinstance(message, Acked):
                continue
            _, offsets, term, event = self.acks.pop(request_id)
            lost = {at for _, first, end in message.lost for at in range(first, end)}
            for offset in set(offsets) - lost:
                came = self.last[offset]
                assert came[0] != term or came[2] <= event, f"{offset} came again after an ack that was heard"
                self.acked.add(offset)

    def send(self, session: bytes, message: Message) -> int:
        self.requests += 1
        self.fleet.led.step((b"c", session), self.requests + 1_000, CONSUMERS[session], message)
        return self.requests + 1_000

    # --- what happens -----------------------------------------------------------------------------------

    def ranges(self, offsets: list[int]) -> list[Range]:
        return [(self.partition, offset, offset + 1) for offset in offsets]

    def some(self) -> tuple[bytes, list[int]]:
        session = self.random.choice(SESSIONS)
        has = sorted(self.has[session])
        return session, sorted(self.random.sample(has, self.random.randint(0, min(self.most, len(has)))))

    def join(self, session: bytes, holding: bool = False, records: int = 4) -> None:
        routes = ["eu"] if self.routed and session != SESSIONS[0] else []
        held = self.ranges(sorted(self.has[session])) if holding else None
        if not holding:
            self.has[session].clear()
        start = [Start(self.partition)]
        size = limits.CREDIT_BYTES
        gaps = self.gaps and self.random.random() < 0.8
        records *= self.credit
        message = Subscribe(
            1, "g", start, records, size, self.options, holding=held, routes=routes, gaps=gaps
        )
        self.send(session, message)

    def publish(self) -> None:
        count = self.random.randint(1, self.batch)
        values = [b"%d" % (self.published + n) for n in range(count)]
        keys = [self.random.choice([b"", b"k", b"l"]) for _ in values] if self.mode == "key_ordered" else None
        self.fleet.publish(self.partition, *values, route=self.random.choice([b"eu", b""]), keys=keys)
        self.published += count

    def ack(self) -> None:
        session, offsets = self.some()
        if offsets:
            self.ack_these(session, offsets)

    def ack_these(self, session: bytes, offsets: list[int]) -> None:
        request_id = self.send(session, Ack(1, self.ranges(offsets)))
        self.acks[request_id] = session, offsets, self.fleet.leader.term, self.events
        self.has[session] -= set(offsets)

    def nack(self) -> None:
        session, offsets = self.some()
        if offsets:
            self.begin(session, offsets)
            delay_ms = self.random.choice([-1, 0, 200, LEASE_MS + 10, LEASE_MS + 210])
            dead = self.random.choice(["", "", "", "rejected"])
            self.send(
                session, Nack(1, self.ranges(offsets), delay_ms, self.random.random() < 0.5, "no", dead)
            )
            self.has[session] -= set(offsets)

    def start(self) -> None:
        session, offsets = self.some()
        if offsets:
            self.begin(session, offsets)
            self.send(session, Started(1, self.ranges(offsets)))

    def begin(self, session: bytes, offsets: list[int]) -> None:
        self.begun.update(set(offsets) - self.began[session])
        self.began[session] |= set(offsets)

    def extend(self) -> None:
        session, offsets = self.some()
        if offsets:
            self.send(session, Extend(1, self.ranges(offsets), self.random.choice([50, 1_000, LEASE_MS])))

    def lend(self) -> None:
        self.send(
            self.random.choice(SESSIONS), Credit(1, self.random.randint(1, 6 * self.credit), limits.MIB)
        )

    def leave(self) -> None:
        session = self.random.choice(SESSIONS)
        if self.random.random() < 0.3:
            self.send(session, Unsubscribe(1))
        led, silent = self.fleet.led, self.random.random() < 0.5
        led.inbox.append(lambda: led.turn.end_session(session, silent))

    def come(self) -> None:
        self.join(self.random.choice(SESSIONS), self.random.random() < 0.5, self.random.randint(0, 6))

    def pause(self) -> None:
        options = GroupOptions(paused=self.random.random() < 0.4)
        self.send(SESSIONS[0], SetGroup(topic_id_of(self.partition), "g", options))

    def fall(self) -> None:
        self.fleet.fall(elsewhere=len(self.fleet.seats) > 1 and self.random.random() < 0.5)
        for session in SESSIONS:
            if self.random.random() < 0.8:
                self.join(session, self.random.random() < 0.7)

    def live(self) -> None:
        deeds = {
            self.publish: 2, self.ack: 2, self.nack: 6, self.start: 1, self.extend: 1, self.lend: 5,
            self.leave: 2, self.come: 4, self.pause: 1,
        }  # fmt: skip
        for _ in range(TURNS):
            for deed in self.random.choices(list(deeds), list(deeds.values()), k=self.random.randint(0, 3)):
                deed()
            ms = self.random.choice([10, 10, 50, 200, 500, LEASE_MS])
            self.turn(ms, slow=ms <= 60 and self.random.random() < 0.4)
            if not any(s.leading and s.serving for s in self.fleet.shards.values()):
                self.fleet.lead()
            if self.random.random() < 0.03:
                self.fall()
            self.agree()

    # --- what must hold ---------------------------------------------------------------------------------

    def view(self, dispatch: Dispatch) -> PartitionView | None:
        found = [group.views.get(self.partition) for group in dispatch.groups.values()]
        return found[0] if found else None

    @staticmethod
    def remembered(view: PartitionView) -> Iterator[tuple[int, int]]:
        """(offset, attempts) of what is in memory, and not on its way into an entry."""
        for first, end, lease in view.window.leases():
            yield from ((offset, lease.attempt) for offset in range(first, end))
        for ranges in (view.window.ready, *view.window.lanes.values()):
            for first, end, tried in ranges:
                yield from ((offset, tries.newest(tried)) for offset in range(first, end))

    def agree(self) -> None:
        """Memory knows the attempts of this term; a row that waits on disk alone knows them too; who builds
        memory from the rows finds no more than there were."""
        shard = self.fleet.leader
        view = self.view(shard.dispatch)
        if not shard.serving or view is None:
            return
        known = dict(self.remembered(view))
        taken = {at for first, end, _ in view.window.overlap(0, 2**62) for at in range(first, end)}
        rows = {
            at: found.row.attempts + found.row.handed_out
            for found in view.cursor.exceptions.scan()
            for at in range(found.first, found.end)
        }
        for offset, attempts in (rows | known).items():
            term, had, _ = self.last.get(offset, (0, 0, 0))
            if offset in known or offset not in taken:
                right = attempts >= had if term == shard.term else True
                right &= attempts <= max(had, offset < view.inherited) or self.mode == "exclusive"
                where = "memory" if offset in known else "its row"
                assert right, f"{offset} has {attempts} attempts in {where}, and came as {had} in term {term}"
        fresh = {at for low, high in view.cursor.fresh(0, view.window.next) for at in range(low, high)}
        if not list(shard.desk.unapplied):  # an ack that waits to be applied has it in no place
            assert fresh <= known.keys() | taken, "open, and nobody would ever get it"
        assert not fresh & rows.keys()
        self.counted(view)
        assert not self.acked & (fresh | rows.keys()), "acked, and comes again"
        anew = Dispatch(shard.ledger, GroupConfig())
        anew.rebuild(shard.desk.boot_ms, shard.desk.leader_ms, shard.desk.timer_ms)
        found = self.view(anew)
        assert found is not None
        for offset, attempts in self.remembered(found):
            came = self.last.get(offset, (0, 0, 0))[1]
            assert attempts <= came or self.mode == "exclusive", f"{offset}: rows know of {attempts}"

    def counted(self, view: PartitionView) -> None:
        """Counters say what rows say, each record is in one of them, and none failed too often to wait."""
        state, rows = view.cursor.state, view.cursor.exceptions.scan()
        waiting = {at: found.row for found in rows for at in range(found.first, found.end)}
        dead = [at for found in view.cursor.dead.scan() for at in range(found.first, found.end)]
        count = self.fleet.leader.ledger.partitions[self.partition].next
        acked = [at for low, run in view.cursor.acks.within(0, count) for at in range(low, run.end)]
        assert len(waiting) == state.retrying + state.parked
        assert (len(dead), len(acked)) == (state.dead, state.acked)
        fresh = sum(end - first for first, end in view.cursor.fresh(0, count))
        assert len({*waiting, *dead, *acked}) == len(waiting) + len(dead) + len(acked) == count - fresh
        tired = [at for at, row in waiting.items() if row.failures >= self.attempts_max]
        assert not tired, f"{tired} failed {self.attempts_max} times and wait"
        held = [at for first, end, _ in view.cursor.holds for at in range(first, end)]
        assert not set(held) & {*dead, *acked}, "a hold of what is done"

    def end(self) -> None:
        """All come out; each is acked or dead."""
        self.fleet.settle()
        led = self.fleet.led
        for session in SESSIONS:
            led.inbox.append(lambda session=session: led.turn.end_session(session))
        self.send(SESSIONS[0], SetGroup(topic_id_of(self.partition), "g", GroupOptions(paused=False)))
        self.fleet.settle()
        self.join(SESSIONS[0], records=MANY)
        for _ in range(40):
            self.turn(500)
            if held := sorted(self.has[SESSIONS[0]]):
                self.ack_these(SESSIONS[0], held)
        ledger, view = self.fleet.leader.ledger, self.view(self.fleet.leader.dispatch)
        assert view is not None
        dead = {at for found in view.cursor.dead.scan() for at in range(found.first, found.end)}
        count = ledger.partitions[self.partition].next
        assert view.cursor.state.cursor == count
        assert not view.cursor.exceptional
        assert view.cursor.state.acked + view.cursor.state.dead == count
        assert not self.acked & dead
        assert self.acked | dead <= set(range(count)), "an answer to an ack may be lost, not its record"


class Together(Life):
    """Larger batches, of which consumers do some and fail others, and take them together."""

    batch, most, credit, attempts_max, gaps = 16, 12, 6, 3, True

    def nack(self) -> None:
        session = self.random.choice(SESSIONS)
        failed = [at for at in sorted(self.has[session]) if self.random.random() < 0.3]
        done = [at for at in sorted(self.has[session] - set(failed)) if self.random.random() < 0.9]
        if done:
            self.ack_these(session, done)
        if failed and self.random.random() < 0.7:
            self.begin(session, failed)
            self.send(session, Nack(1, self.ranges(failed), self.random.choice([-1, 0, 200]), True, "no", ""))
            self.has[session] -= set(failed)
        super().nack()


class ByDelivery(Life):
    """Some acks name a delivery, the last one of a record or an older one, and come from either session."""

    def ack(self) -> None:
        waiting = sorted(self.last.keys() - self.acked)
        if not waiting or self.random.random() < 0.3:
            super().ack()
            return
        offset, session = self.random.choice(waiting), self.random.choice(SESSIONS)
        attempt = max(1, self.last[offset][1] - (self.random.random() < 0.3))
        request_id = self.send(session, AckDelivered(self.partition, "g", [(offset, attempt)]))
        # the same attempt may have been delivered again, if it did not begin
        self.acks[request_id] = session, [offset], self.fleet.leader.term, MANY


def lives(kind: type[Life], seeds: range) -> int:
    """How many slices had gaps."""
    together = 0
    for seed in seeds:
        try:
            life = kind(seed)
            life.live()
            life.end()
        except AssertionError as error:
            raise AssertionError(f"life {seed}: {error}") from error
        together += life.together
    return together


def test_memory_rows_and_consumers_agree_on_the_attempts_of_each_record() -> None:
    lives(Life, range(FIRST, FIRST + LIVES))


def test_so_they_do_where_records_fail_and_come_together() -> None:
    assert lives(Together, range(LIVES)) > 0


def test_so_they_do_where_deliveries_are_acked_by_name() -> None:
    lives(ByDelivery, range(LIVES))
