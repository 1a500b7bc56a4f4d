"""One node with a copy of each shard, as a worker drives it: the same turns, over a disk, a clock and a
network that are the simulator's."""

from collections import Counter, deque
from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from traceback import format_exception
from typing import TYPE_CHECKING

import msgspec

from core.turns import run
from gossipq import limits
from gossipq.core.copies import Mail
from gossipq.core.copies.placement import Target, plan
from gossipq.core.desk import Client, Request
from gossipq.core.effects import Effects
from gossipq.core.ledger import records
from gossipq.core.ledger.acks import decode_ack, runs_of
from gossipq.core.ledger.exceptions import decode_dead
from gossipq.core.ledger.results import RUN_KEY_BYTES, decode_result, decode_results
from gossipq.core.ledger.schedule import decode_scheduled
from gossipq.core.raft import Replication
from gossipq.core.shard import Shard
from gossipq.core.storage import log
from gossipq.core.storage.bodies import Bodies
from gossipq.core.storage.settings import ShardSettings
from gossipq.core.turn import Turn
from gossipq.errors import CorruptLog, StoreError
from gossipq.messages import (
    Ack,
    AckResults,
    Cancelled,
    Join,
    Nack,
    Publish,
    Share,
    Started,
    Subscribe,
    Unsubscribe,
)
from gossipq.peer_messages import Appended
from gossipq.types import META_SHARD, PARTS_HEADER, Now, SessionId
from gossipq.values import Member, Message, Range
from gossipq.wire import batch as batches
from gossipq.wire.opener import Opener
from gossipq.wire.plain import headers_of
from sim.clients import Consumer, Drainer
from sim.cluster import CLONED, address_of
from sim.disk import Disk
from sim.history import Asked, Begun, Copy, Pushed, Released, StartedRow
from sim.in_turn import InTurn
from sim.loans import Loans
from sim.rivals import Rival
from sim.shares import Shares
from sim.small import FAILURES_PER_TURN, LETTERS_PER_TURN, SNAPSHOT_ROWS_PER_TURN

if TYPE_CHECKING:
    from sim.world import World

PLANNED_SHARDS = 8  #: shards for which the cluster makes plans; the simulator runs one to three of them
SILENCE_MS = 3_000  #: shorter than in a real node, because a run is short
WALL_MS = 1_700_000_000_000
CLOCK_ERROR_MS = 100  #: the largest error of a wall clock that counts as right
FAILED_AT_ONCE = 12  #: records that one message of a client may give back
LATE_TIME_MS = 9_000  #: how late leader time may be: a slow message (4 s) that met a pause (3.5 s), and more
FELL_MS = 5  #: how far timer time may be slewed back between the election of a leader and its first turn
EVERYTHING = 2**62
LIVES_MS = 1_000  #: a node that answered within this time counts as alive
_values: dict[bytes, tuple[bytes, ...]] = {}


class Crashed(BaseException):
    """The process ends here, between two effects of a turn: the point at which a real node may be killed."""


def session_of(sender: str) -> SessionId:
    return sender.encode().ljust(16, b".")


def values_of(body: bytes, first: int, count: int) -> tuple[bytes, ...]:
    found = _values.get(body)
    if found is None:
        if len(_values) > 10_000:
            _values.clear()
        found = _values[body] = tuple(batches.Batch(body, batches.check(body)).values())
    return found[first : first + count]


class MeantFault(Exception):
    """A fault that a planted condition raises in a node. The node must contain it."""


class Node:
    def __init__(self, world: "World", name: str, joins: bool = False, witness: bool = False) -> None:
        self.world, self.name, self.witness = world, name, witness
        self.settings = ShardSettings(
            name,
            shards=world.shards,
            joins=joins,
            witness=witness,
            replace_ms=world.replace_ms,
            stray_ms=limits.STRAY_MS,
            boot="1",
            endpoint=address_of(name),
        )
        self.disks = [Disk() for _ in range(world.shards)]
        self.dice = Random(f"{world.seed}/{name}")
        self.boot_at = world.now - self.dice.randrange(10_000_000)  # true time when its boot clock was 0
        self.wall_off = self.dice.randrange(-CLOCK_ERROR_MS, CLOCK_ERROR_MS)
        world.faults.clocks.may_be_wrong(self)
        self.turns = Turn([], self.open, self.abort)
        self.dead = ""  #: why it never comes back
        self.unreadable: set[int] = set()  #: shards whose disk was found to be torn when they were opened
        self.torn = False  #: its disk is damaged, and its checksums have not shown it yet
        self.up = False
        self.paused_until = 0
        self.busy_until = 0
        self.took_ms = 0  #: how long the commit of this turn takes; its messages leave after that
        self.lost = (0, -1)  #: messages that were sent between these times and have not arrived are lost
        self.steps = 0  #: messages of clients since the last commit; each can make entries of failures
        self.inbox: deque[tuple[object, ...]] = deque()
        self.sessions: dict[bytes, int] = {}  #: boot time at which each was heard last
        self.places: dict[str, tuple[str, int]] = {}  #: by copy: its address on the roster, since when
        self.followers: dict[str, int] = {}  #: of the meta shard: time at which each answered its leader last
        self.heard: dict[bytes, int] = {}  #: time at which a session was heard last, also of those that ended
        self.loans = Loans()
        self.shares = Shares()
        self.in_turn = InTurn()
        #: by (shard, connection, request): how often it came, less its answers
        self.unanswered = Counter[tuple[int, tuple[bytes, ...], int]]()
        #: since when a shard, in one term, has something of a session
        self.members: dict[tuple[int, int, bytes], int] = {}
        self.wake_at: int | None = None
        #: shard -> term, vote and applied index at the last check
        self.on_disk: dict[int, tuple[int, str, int]] = {}
        #: shard -> term that it led, index known to be committed
        self.traced: dict[int, tuple[int, int]] = {}
        #: by shard and term: how many leaders had a timer time when this one's was compared with them
        self.checked_timers: dict[tuple[int, int], int] = {}
        self.noted_roster: tuple[Shard | None, int] = (None, -1)  #: the roster of `places`
        #: version of the roster, and the targets that `plan` makes of it
        self.planned: tuple[int, dict[int, Target]] = (0, {})

    def clock(self) -> Now:
        boot = self.world.now - self.boot_at
        return Now(boot, WALL_MS + self.world.now + self.wall_off)

    @property
    def disk(self) -> Disk:
        """The disk of the meta shard."""
        return self.disks[0]

    @property
    def shard(self) -> Shard | None:
        """The copy of the meta shard; None while the node is down or reads its disk again."""
        return self.shard_of(0)

    def shard_of(self, shard: int) -> Shard | None:
        return self.turns.shards.get(shard) if self.turns.is_open else None

    def _leader_of(self, shard: int) -> str:
        """The leader of the newest term that nodes report, else the one that its own copy knows."""
        leader, mine = self.world.leader(shard), self.shard_of(shard)
        if leader is not None:
            return leader.name
        return mine.replica.leader if mine is not None else ""

    def shards(self) -> list[Shard]:
        """Return the open copies; none while the node is down or reads its disk again."""
        return list(self.turns.shards.values()) if self.turns.is_open else []

    def boot_anew(self, ago_ms: int) -> None:
        """Boot the machine anew, so that its boot clock starts from 0 too."""
        self.boot_at = self.world.now - ago_ms
        self.settings = msgspec.structs.replace(self.settings, boot=f"{self.settings.boot}1")

    # --- life -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.dead or self.up:
            return
        self.up = True
        self.wake_at = None  # a turn that was due while it was down was dropped
        self.turns = Turn(range(self.world.shards), self.open, self.abort)
        self.world.wake(self, 0)

    def read(self) -> None:
        """Open its disks now, before its next turn."""
        self.turns = Turn(range(self.world.shards), self.open, self.abort)
        run(self, self.turns, self.clock(), lambda: None)

    def stop(self, why: str) -> None:
        """Stop a node for good. R17: a damaged copy neither votes nor leads, and is replaced under a new
        name."""
        self.dead, self.up = why, False
        self.world.history.count("corrupt")

    def end(self, why: str) -> None:
        """End a node for good, as its operator does."""
        self.abort()
        self.dead, self.up, self.turns = why, False, Turn([], self.open, self.abort)

    def end_politely(self) -> None:
        for shard in self.shards():
            shard.leave()
            self.turns.wake(shard.id)
            self.world.wake(self, 0)
            self.world.history.count("polite end")

    def crash(self, power: bool = False) -> None:
        """End the process. With `power` its machine ends too, and with it the writes that were not synced and
        the messages that its kernel had not sent."""
        for disk in self.disks:
            disk.lose() if power else disk.undo()
        if power:
            self.lost = self.world.now - self.dice.choice((0, 3, 40)), self.world.now
            self.world.history.count("power")
        self.up, self.turns = False, Turn([], self.open, self.abort)
        self.inbox.clear()
        self.world.history.count("crash")

    # --- a turn ---------------------------------------------------------------------------------------------

    def turn(self) -> None:
        turns, now = self.turns, self.clock()
        self.took_ms = 0
        try:
            run(self, turns, now, self._work)
            shards = self.shards()
            led = [shard for shard in shards if shard.leadership is not None]
            self._check_reading()
            self._check_members(led)
            for text in (*self.shares.look(led, self.world.now), *self.in_turn.look(led)):
                self.world.broken(f"{text}, at {self.name}")
            for text in self.world.divided.look(led):
                self.world.broken(f"{text}, at {self.name}")
            self._note_places()
        except Crashed:
            self.crash()
            self.world.restart_later(self)
        if not self.up:
            return
        for shard in shards:
            self._seek_leader(shard, now)
        wait_ms = limits.STRAY_MS
        if self.inbox:
            wait_ms = 0
        elif (due_ms := turns.next_deadline_ms()) is not None:
            wait_ms = max(0, min(wait_ms, due_ms - now.boot_ms))
        self.world.wake(self, wait_ms)

    def _work(self) -> None:
        """Handle up to 64 messages of the inbox. A node that reads its disk again drops them."""
        if not self.turns.is_open:
            self.inbox.clear()
            return
        turns, inbox = self.turns, self.inbox
        turns.touch(0)
        if self.world.steered or self.world.shards > 1:
            for shard in turns.shards.values():
                self._aim(shard)
        for _ in range(min(len(inbox), 64)):
            shard_id, *item = inbox.popleft()
            if (touched := turns.touch(shard_id)) is not None:  # type: ignore[arg-type]
                self._step(touched, *item)  # type: ignore[arg-type]
        self._end_silent(self.world.now - self.boot_at)

    # --- parts of a turn ------------------------------------------------------------------------------------

    def open(self, shard: int) -> Shard:
        self.traced[shard] = 0, 0
        self.sessions = {}
        self.unreadable.discard(shard)
        try:
            return Shard(
                shard, self.settings, self.disks[shard], Bodies(limits.MIB), Opener(), self.dice.randrange
            )
        except CorruptLog:
            self.unreadable.add(shard)  # `stopped` is called when the other shards are open
            raise

    def abort(self) -> None:
        for disk in self.disks:
            disk.undo()

    def commit(self) -> None:
        self._may_crash()
        if self.world.faults.commit_fails(self):
            raise StoreError("the disk refuses")
        self._check_budgets()
        for disk in self.disks:
            disk.commit()
            disk.sync()
        self.took_ms = self.world.faults.commit_ms(self)
        self.busy_until = self.world.now + self.took_ms
        for shard in self.shards():
            self._check_disk(shard)
        self._may_crash()

    def boot_ms(self) -> int:
        return self.world.now - self.boot_at + self.took_ms

    def replicate(self, shard: Shard, appends: Sequence[Replication]) -> None:
        if shard.leading and self.traced[shard.id][0] != shard.term:
            self.traced[shard.id] = shard.term, self.traced[shard.id][1]
            self.world.elected(self, shard)
        for out in appends:
            self._may_crash()
            self.world.post_copy(self, out.to, shard.id, shard.term, out.append, out.entries, b"")

    def answer(self, shard: Shard, answers: Sequence[Mail]) -> None:
        for mail in answers:
            self._may_crash()
            self.world.post_copy(self, mail.to, shard.id, shard.term, mail.message, [], mail.rows)

    def refused(self, error: StoreError) -> None:
        """Drop the state in memory after a failed commit, because it is ahead of the disk. The turn reads it
        again."""
        self.inbox.clear()
        self.world.history.count("failed commit")

    def stopped(self, shard: int, error: Exception) -> None:
        if not (isinstance(error, CorruptLog) and shard in self.unreadable):
            said = "".join(format_exception(error)) if not isinstance(error, CorruptLog) else error
            self.world.broken(f"P21 {self.name}: {said}")
        self.abort()
        self.stop(str(error))

    def _seek_leader(self, shard: Shard, now: Now) -> None:
        """Ask all other nodes for a shard that may no longer belong here, as a node asks a new leader."""
        if shard.peers.emptying:
            # the copy deletes the rows of a shard that moved away
            self.world.history.count("lets go of rows")
        if question := shard.peers.stray(now.boot_ms):
            for name in [name for name in self.world.nodes if name != self.name]:
                self.world.post_copy(self, name, shard.id, shard.term, question, [], b"")

    def _aim(self, shard: Shard) -> None:
        """Set the target of a shard. With a roster, a node plans by the roster in its own ledger, which may
        be old. In runs whose copies stay, each shard prefers another leader."""
        if not self.world.steered:
            shard.target = self.world.standing_target(shard.id)
            return
        meta = self.shard
        if meta is None or meta.replica.hollow:  # it has no roster of its own yet, and asks the leader
            leader = self.world.leader()
            meta = leader.shard if leader is not None else None
        if meta is not None and meta.ledger.cluster.roster_version > self.planned[0]:
            targets = plan(meta.ledger.cluster.members.values(), PLANNED_SHARDS, self.world.copies)
            self.planned = meta.ledger.cluster.roster_version, targets
        shard.target = self.planned[1].get(self.world.planned[shard.id])

    def _may_crash(self) -> None:
        if self.world.faults.crashes_here():
            raise Crashed

    def _step(self, shard: Shard, kind: str, *rest: object) -> None:
        if kind == "copy":
            term, message, entries, rows = rest
            refused = shard.desk.counts.refused
            if (
                isinstance(message, Appended)
                and (shard.id, term) == (META_SHARD, shard.term)
                and shard.leading
            ):
                self.followers[message.follower] = self.world.now
            asked = Request(message, term=term, entries=entries, batch=rows)  # type: ignore[arg-type]
            self.turns.step(shard, asked)
            if shard.desk.counts.refused > refused:
                self.world.history.count("refused a copy")
            return
        sender, request_id, message, batch, sent_ms = rest
        assert isinstance(sender, str)
        assert isinstance(request_id, int)
        assert isinstance(sent_ms, int)
        assert isinstance(message, Message)
        assert isinstance(batch, bytes)
        if self.world.calm and sender == "operator":
            return  # a late change of voters would make the frozen nodes a majority
        origin, session = (sender.encode(),), session_of(sender)
        self.steps += 1
        self.unanswered[shard.id, origin, request_id] += 1
        if isinstance(message, Publish):
            waiting = sum(len(entry.payload) + len(entry.body) for entry in shard.desk.unapplied)
            last = shard.last
            if shard.serving:
                self.world.history.took(
                    values_of(batch, 0, batches.peek(batch).count), self.world.now - sent_ms
                )
            asked = Request(message, origin, request_id, Client(session, sender), batch, batches.peek(batch))
            self.turns.publish(shard, asked)
            if waiting > limits.UNAPPLIED_BYTES_MAX and shard.last > last:
                self.world.broken(
                    f"I13 {self.name} takes a publish when {waiting} bytes wait for other disks"
                )
            return
        self.sessions[session] = self.world.now - self.boot_at
        self.heard[session] = self.world.now
        if isinstance(message, Ack | AckResults | Nack):
            self.world.history.asked += [
                Asked(
                    self.world.now,
                    sender,
                    *row,
                    well=not isinstance(message, Nack),
                    with_results=isinstance(message, AckResults),
                )
                for row in message.ranges
            ]
        self._begun(sender, message)
        if isinstance(message, Started) and shard.serving:
            rows = [StartedRow(self.world.now, shard.term, sender, *row) for row in message.ranges]
            self.world.history.started += rows
        self._released(shard, sender, message)
        self.loans.heard(shard.id, shard.term, sender, request_id, message)
        self.shares.heard(shard.id, session, message, self.world.now)
        last = shard.last
        self.turns.step(shard, Request(message, origin, request_id, Client(session, sender), batch))
        if isinstance(message, Join) and shard.last > last:
            self._check_original(shard, message.member)

    def _begun(self, sender: str, message: Message) -> None:
        """Note the records that a consumer has begun with: it sent STARTED, or the record failed."""
        party = self.world.parties[sender]
        ranges: list[Range] = []
        if isinstance(message, Started) or (isinstance(message, Nack) and _ends(message)):
            ranges = message.ranges
        if isinstance(party, Consumer | Rival):
            self.world.history.begun += [Begun(self.world.now, party.group, *row) for row in ranges]

    def _check_original(self, shard: Shard, taken: Member) -> None:
        """I15: a node whose copy has just answered the leader keeps its row when a clone asks for that. The
        leader cannot hear a drained node once the copy of this shard is removed from it."""
        known, heard_ms = (
            shard.ledger.cluster.members.get(taken.copy),
            self.followers.get(taken.copy, -LIVES_MS),
        )
        if known is None or known.state == "lost" or known.endpoint != address_of(taken.copy):
            return
        address, since_ms = self.places.get(taken.copy, ("", 0))
        has_answered = address == known.endpoint and heard_ms > max(since_ms, self.world.now - LIVES_MS)
        has_answered &= taken.copy in shard.replica.progress
        if taken.endpoint.startswith(CLONED) and (taken.copy == self.name or has_answered):
            self.world.broken(f"I15 {self.name} takes a clone for {taken.copy}, heard at {heard_ms}")

    def _released(self, shard: Shard, sender: str, message: Message) -> None:
        ranges: list[tuple[int, int, int]] = []
        if isinstance(message, Nack):
            ranges = message.ranges
        elif isinstance(message, Unsubscribe):
            ranges = [(start, 0, EVERYTHING) for start in shard.ledger.partitions]
        elif isinstance(message, Subscribe) and message.group:
            for start in message.starts:
                at = 0
                for partition, first, end in sorted(message.holding or []):
                    if partition == start.partition:
                        ranges.append((partition, at, first))
                        at = end
                ranges.append((start.partition, at, EVERYTHING))
        released = self.world.history.released
        released += [Released(self.world.now, sender, *row) for row in ranges if row[1] < row[2]]

    def _end_silent(self, boot_ms: int) -> None:
        sessions = self.sessions
        for session in self.turns.sessions() - sessions.keys():
            sessions[session] = boot_ms
        if not sessions or boot_ms <= min(sessions.values()) + SILENCE_MS:
            return
        for session in [s for s, at in sessions.items() if boot_ms > at + SILENCE_MS]:
            del sessions[session]
            consumer = session.rstrip(b".").decode()
            for partition in [each for shard in self.shards() for each in shard.ledger.partitions]:
                self.world.history.released.append(
                    Released(self.world.now, consumer, partition, 0, EVERYTHING)
                )
            self.turns.end_session(session)

    def send(self, shard: Shard, effects: Effects) -> None:
        world, term = self.world, shard.term
        self._trace(shard)
        for session in effects.returning:
            self.sessions.setdefault(session, self.boot_ms())
        for fault in effects.faults:
            if not isinstance(fault.error, MeantFault):
                world.broken(f"P21 {self.name}: {fault.what}: {''.join(format_exception(fault.error))}")
        self._check_answers(shard, effects)
        for text in effects.warnings:
            if "cannot get" in text:
                world.broken(f"L4 {self.name}: {text}")
        self.answer(shard, effects.answers)
        for origin, rows in effects.confirms.items():
            runs = dict(effects.runs.get(origin, ()))
            for request_id, offset, copies, duplicate in rows:
                self._may_crash()
                fresh_term = 0 if duplicate else term
                answer = offset, copies, runs.get(request_id, ()), fresh_term
                world.post_client(self, origin, request_id, term, answer)
        for origin, request_id, message in effects.replies:
            self.loans.said(shard.id, term, origin[0].decode() if origin else "", request_id, message)
            world.post_client(self, origin, request_id, term, message)
        for shard_id, message in effects.told:
            if leader := self._leader_of(shard_id):
                world.post_copy(self, leader, shard_id, term, message, [], b"")
        for delivery in effects.deliveries:
            self._may_crash()
            for text in self.loans.delivered(shard.id, term, delivery):
                world.broken(text)
            consumer = delivery.origin[0].decode()
            for text in self.in_turn.delivered(shard, delivery, session_of(consumer)):
                world.broken(text)
            for text in world.paces.delivered(shard, delivery, session_of(consumer), world.now):
                world.broken(text)
            # a rival may take records of its other subscriptions by EXTEND, beyond its bound
            if isinstance(world.parties[consumer], Consumer | Drainer):
                for text in self.shares.delivered(shard, delivery, session_of(consumer), world.now):
                    world.broken(text)
            for part in delivery.parts:
                body, _ = shard.body(part.index)
                if body is None:
                    world.history.broken.append(
                        f"P1 {self.name} at {world.now}: the batch of entry {part.index} is missing"
                    )
                    continue
                party = world.parties[consumer]
                group = party.group if isinstance(party, Consumer | Rival | Drainer) else ""
                if part.ranges:
                    world.history.count("slice with gaps")
                for first, end in part.ranges or [(part.offset, part.end)]:
                    values = values_of(body, part.first + first - part.offset, end - first)
                    pushed = Pushed(
                        world.now,
                        term,
                        consumer if isinstance(party, Consumer) else "",
                        group,
                        part.partition,
                        first,
                        part.attempt,
                        values,
                        delivery.lease_ms,
                        delivery.late is not None,
                        world.newest_term[shard.id],
                        shard.desk.leader_ms - WALL_MS,
                    )
                    world.history.pushed.append(pushed)
                    world.post_client(self, delivery.origin, delivery.subscription, term, pushed)

        for origin, message in effects.notices:
            if isinstance(message, Share):
                self.shares.asked(shard, session_of(origin[0].decode()), message.subscription, world.now)
            if isinstance(message, Share | Cancelled):
                world.post_client(self, origin, message.subscription, term, message)

    # --- what the copy itself must keep (I1 to I10) ---------------------------------------------------------

    def _check_disk(self, shard: Shard) -> None:
        """I7: term, vote and applied index never go back on one disk, whatever the node forgot in a crash."""
        hard, applied = shard.replica.hard, shard.ledger.meta.applied
        term, vote, before = self.on_disk.get(shard.id, (0, "", 0))
        if hard.term < term or (hard.term == term and vote and hard.vote != vote):
            self.world.broken(f"I7 {self.name} had {(term, vote)} on disk and now {tuple(hard)}")
        if applied < before:
            self.world.broken(f"I7 {self.name} had applied {before} and now {applied}")
        self.on_disk[shard.id] = hard.term, hard.vote, applied

    def _check_budgets(self) -> None:
        """I12: the work of a turn is bounded.

        A leader logs no more failures in a turn than its budget, and those that clients reported. An entry of
        a replay or a purge takes at most LETTERS_PER_TURN dead letters, an entry of a requeue one. A cancel
        or an edit takes the dead letter of its record in each group.
        """
        said, self.steps = self.steps, 0
        for shard in self.shards():
            disk, applied = self.disks[shard.id], self.on_disk.get(shard.id, (0, "", 0))[2]
            budget = 2 * (FAILURES_PER_TURN + 1) + FAILED_AT_ONCE * said
            # decoding costs time, and a journal of fewer entries cannot exceed the budget
            if shard.leading and len(disk.log.journal) > budget:
                rows = [disk.log.rows.get(key) for key, before in disk.log.journal if before is None]
                kinds = Counter(log.decode_row(0, row).kind for row in rows if row is not None)
                made = kinds[log.DEAD] + kinds[log.FAIL]
                if made > budget:
                    self.world.broken(f"I12 {self.name} makes {made} entries of failures in one turn")
            ids = shard.ledger.groups
            left = 0
            for key, before in disk.state.journal:
                if before is not None and key[:1] == b"L" and key not in disk.state.rows:
                    left += records.U64X3.unpack_from(key, 1)[1] in ids
            if left > LETTERS_PER_TURN:
                taken = [
                    disk.log.rows.get(log.INDEX_KEY.pack(at)) for at in range(applied + 1, shard.applied + 1)
                ]
                kinds = Counter(log.decode_row(0, row).kind for row in taken if row is not None)
                allowed = LETTERS_PER_TURN * (kinds[log.REPLAY] + kinds[log.PURGE]) + kinds[log.REQUEUE]
                allowed += len(shard.ledger.groups) * (kinds[log.VOID] + kinds[log.EDIT])
                if None not in taken and left > allowed:
                    self.world.broken(f"I12 {self.name} takes {left} dead letters at once")

    def _check_reading(self) -> None:
        for disk in self.disks:
            for reader in disk.state.readers:
                # a turn reads once before its sync and once after it
                if reader.rows > 2 * (SNAPSHOT_ROWS_PER_TURN + 1):
                    self.world.broken(f"I12 {self.name} reads {reader.rows} rows of a snapshot in one turn")
                reader.rows = 0

    def _note_places(self) -> None:
        """Remember since when the nodes on the roster have their addresses. A shard applies a new row after
        the commit of its turn, which took `took_ms`."""
        meta = self.shard
        noted = meta, meta.ledger.cluster.roster_version if meta is not None else 0
        if noted == self.noted_roster:
            return
        self.noted_roster, places = noted, dict[str, tuple[str, int]]()
        now_ms = self.world.now + self.took_ms
        for row in meta.ledger.cluster.members.values() if meta is not None else ():
            before = self.places.get(row.copy, ("", 0))
            places[row.copy] = before if before[0] == row.endpoint else (row.endpoint, now_ms)
        self.places = places

    def _check_answers(self, shard: Shard, effects: Effects) -> None:
        """P25: each request has one answer: a confirm, a reply, or the note that it was abandoned. A request
        that arrived twice may have two answers.
        """
        if not (effects.confirms or effects.replies or effects.enclosed or effects.abandoned):
            return
        confirmed = [(origin, row[0]) for origin, rows in effects.confirms.items() for row in rows]
        replied = [row[:2] for row in effects.replies] + [row[:2] for row in effects.enclosed]
        for origin, request_id in confirmed + replied + effects.abandoned:
            if origin and request_id:
                self.unanswered[shard.id, origin, request_id] -= 1
                if self.unanswered[shard.id, origin, request_id] < 0:
                    self.world.broken(f"P25 {self.name} answers {request_id} of {origin!r} once more")

    def _check_members(self, led: list[Shard]) -> None:
        """I14: sessions that are silent for twice their timeout have neither subscriptions nor records."""
        now, since = self.world.now, self.members
        self.members = {
            name: since.get(name, now)
            for shard in led
            for dispatch in (shard.dispatch,)
            for session in {*(name[0] for name in dispatch.subscriptions), *dispatch.holdings.holders()}
            for name in ((shard.id, shard.term, session),)
        }
        for (shard_id, _, session), since_ms in self.members.items():
            if now - since_ms <= 2 * SILENCE_MS:
                continue
            silent_ms = now - max(since_ms, self.heard.get(session, 0))
            if silent_ms > 2 * SILENCE_MS:
                text = f"I14 {self.name} counts {session!r} in shard {shard_id}, silent for {silent_ms} ms"
                self.world.broken(text)

    def _trace(self, shard: Shard) -> None:
        """I3: a committed entry is the same on all copies. I11: the time of a leader that serves is right."""
        off_ms = shard.desk.leader_ms - WALL_MS - self.world.now
        if shard.serving and not -LATE_TIME_MS < off_ms < 2 * CLOCK_ERROR_MS:
            self.world.broken(f"I11 {self.name} leads with time that is {off_ms} ms ahead")
        if shard.serving:
            self.world.history.late_ms = max(self.world.history.late_ms, -off_ms)
            self._check_timers(shard)
        replica, world = shard.replica, self.world
        if (
            replica.commit > self.traced[shard.id][1]
            and not replica.hollow
            and replica.commit <= replica.log.last
        ):
            self.traced[shard.id] = self.traced[shard.id][0], replica.commit
            world.committed(self, shard, replica.commit, replica.point(replica.commit).chain)

    def _check_timers(self, shard: Shard) -> None:
        """I16: a delay is as long under the next leaders as under the leader that began it. Runs in which a
        machine booted are left out: a boot clock that begins anew leaves only wall clocks, which have
        errors."""
        before, led = self.world.timers.setdefault(shard.id, {}), (shard.id, shard.term)
        if self.checked_timers.get(led) == len(before):
            return  # no leader was added since the last comparison
        off_ms = before.setdefault(shard.term, shard.desk.timer_ms - WALL_MS - self.world.now)
        self.checked_timers[led] = len(before)
        least_ms = min((each for term, each in before.items() if term < shard.term), default=off_ms)
        if off_ms > least_ms + FELL_MS and not self.world.history.counts.get("boot"):
            self.world.broken(f"I16 delays under {self.name} are {off_ms - least_ms} ms short")

    # --- the end --------------------------------------------------------------------------------------------

    def dump(self, shard: Shard) -> Copy:
        """Return the state of a copy, as the checkers read it."""
        disk = self.disks[shard.id]
        shard.ledger.flush()
        ledger, found, given = shard.ledger, {}, dict[int, dict[int, int]]()
        ids: dict[int, dict[int, bytes]] = {}
        told: dict[int, dict[int, str]] = {}
        chains = {
            log.INDEX_KEY.unpack(key)[0]: log.decode_row(0, row).chain for key, row in disk.log.rows.items()
        }
        for partition, state in ledger.partitions.items():
            kept: dict[int, bytes | None] = {}
            at = state.first
            while at < state.next:
                part = ledger.slices.at(partition, at)
                if part is None:
                    break
                body = disk.body.get(log.INDEX_KEY.pack(part.index))
                values = values_of(body, part.first, part.count) if body is not None else (None,) * part.count
                kept |= dict(enumerate(values, part.offset))
                if body is not None and (named := batches.Batch(body).column(batches.IDS)) is not None:
                    ids.setdefault(partition, {}).update(
                        enumerate(named[part.first : part.first + part.count], part.offset)
                    )
                if partition == self.world.history.joining and body is not None:
                    headers = batches.Batch(body).column(batches.HEADERS) or [b""]
                    ends = headers_of(headers[0]).get(PARTS_HEADER, "[]")
                    told.setdefault(partition, {})[part.offset] = ends
                times = given.setdefault(partition, {})
                times |= dict.fromkeys(range(part.offset, part.end), part.time_ms - WALL_MS)
                at = part.end
            found[partition] = kept
        firsts = {partition: state.first for partition, state in ledger.partitions.items()}
        cursors = {}
        for partition, groups in ledger.cursors.items():
            state, void = ledger.partitions[partition], records.key(b"v", partition)
            unplaced = sum(
                1 for _ in disk.state.scan(void, void + b"\xff" * 17)
            )  # voided before they were due
            for group_id, cursor in groups.items():
                row = cursor.state
                cursors[partition, ledger.groups[group_id].name] = {
                    "cursor": row.cursor,
                    "start": row.start,
                    "passed": cursor.passed.total(),
                    "acked": row.acked,
                    "removed": row.removed,
                    "elsewhere": row.voided + row.dropped + row.retrying + row.parked + row.dead,
                    "published": state.published - state.scheduled - unplaced,
                    "first": state.first,
                }
        topics = {name: info.id for name, info in ledger.cluster.names.items()}
        members = tuple(
            (row.copy, row.name, row.endpoint, row.state) for row in ledger.cluster.members.values()
        )
        applied = {index: chain for index, chain in chains.items() if index <= ledger.applied}
        waiting: dict[int, list[bytes]] = {}
        for name in ledger.joins.rows:
            waiting.setdefault(name.partition, []).extend(values_of(ledger.joins.batch(name), 0, 1))
        digest, jobs = self._digest(shard), self._dump_jobs(shard)
        return Copy(
            self.name if self.world.shards == 1 else f"{self.name}/{shard.id}",
            ledger.applied,
            applied,
            digest,
            found,
            firsts,
            cursors,
            topics,
            members,
            given,
            *jobs,
            shard.id,
            tuple(sorted({group.topic_id for group in ledger.groups.values()})),
            ids,
            {partition: list(spans) for partition, spans in ledger.voids.items()},
            told,
            waiting,
        )

    def jobs_over(self, shard: Shard, partition: int, now_ms: int) -> set[int]:
        """Return the offsets of the jobs that have expired at `now_ms`, leader time."""
        ledger, disk, over = shard.ledger, self.disks[shard.id], set[int]()
        state = ledger.partitions[partition]
        for first, end, part in ledger.slices.between(partition, state.first, state.next):
            body = disk.body.get(log.INDEX_KEY.pack(part.index))
            values = values_of(body, part.first, part.count) if body is not None else ()
            for at, value in zip(range(first, end), values, strict=False):
                job = self.world.history.jobs.get(value)
                if job is not None and 0 < job.ttl_ms <= now_ms - part.time_ms:
                    over.add(at)
        return over

    def _dump_jobs(
        self, shard: Shard
    ) -> tuple[
        dict[int, dict[bytes, int]],
        dict[tuple[int, str], dict[int, str]],
        dict[tuple[int, str], dict[int, int]],
        dict[tuple[int, str], dict[int, tuple[bytes, int]]],
    ]:
        """Return records without an offset, dead letters, the times of acks, and results."""
        disk, ledger, scheduled, dead = (
            self.disks[shard.id],
            shard.ledger,
            dict[int, dict[bytes, int]](),
            dict[tuple[int, str], dict[int, str]](),
        )
        for key, raw in disk.state.scan(b"W", b"X"):
            partition, index, first = records.U64X3.unpack_from(key, 1)
            body = disk.body.get(log.INDEX_KEY.pack(index))
            values = values_of(body, first, decode_scheduled(raw).end - first) if body is not None else ()
            scheduled.setdefault(partition, {}).update(dict.fromkeys(values, index))
        for key, raw in disk.state.scan(b"L", b"M"):
            partition, group_id, first = records.U64X3.unpack_from(key, 1)
            row = decode_dead(raw)
            # the sweeper has not removed the rows of removed groups yet
            if partition in ledger.partitions and group_id in ledger.groups:
                rows = dead.setdefault((partition, ledger.groups[group_id].name), {})
                rows.update(dict.fromkeys(range(first, row.end), row.reason))
        acked: dict[tuple[int, str], dict[int, int]] = {}
        for key, raw in disk.state.scan(b"A", b"B"):
            partition, group_id, first = records.U64X3.unpack_from(key, 1)
            if partition in ledger.partitions and group_id in ledger.groups:
                times = acked.setdefault((partition, ledger.groups[group_id].name), {})
                for at, ack in runs_of(first, decode_ack(raw)):
                    times.update(dict.fromkeys(range(at, ack.end), ack.time_ms - WALL_MS))
        results: dict[tuple[int, str], dict[int, tuple[bytes, int]]] = {}
        for key, raw in disk.state.scan(b"r", b"s"):
            partition, offset, _ = records.U64X3.unpack_from(key, 1)
            if partition in ledger.partitions and len(key) == RUN_KEY_BYTES:
                row, (first,) = decode_results(raw), records.U64.unpack_from(key, 25)
                found = results.setdefault((partition, row.group), {})
                for at, value in enumerate(row.values, first):
                    found.setdefault(at, (value, row.time_ms - WALL_MS))
            elif partition in ledger.partitions:
                result = decode_result(raw)
                found = results.setdefault((partition, result.group), {})
                found[offset] = result.value, result.time_ms - WALL_MS
        return scheduled, dead, acked, results

    def _digest(self, shard: Shard) -> str:
        """Hash the state that entries made. Rows that each copy sweeps in its own time are left out: copies
        may differ in them and still agree."""
        partitions, state = shard.ledger.partitions, self.disks[shard.id].state
        ending = {key for key, _ in state.scan(b"d", records.after(b"d"))}  # groups, by partition
        digest = blake2b(digest_size=8)
        for key, row in state.scan(b"", b"\xff" * 8):
            if key in records.OWN_ROWS or key[:1] in b"DBbRFd":
                continue
            if key[:1] == b"E" and records.U64.unpack(row)[0] not in partitions:
                continue
            if key[:1] in b"AQYULVph" and b"d" + key[1:17] in ending:
                continue
            if key[:1] in b"OASQZYUIJvLVWhpslu":
                partition = partitions.get(records.U64.unpack_from(key, 1)[0])
                at = 17 if key[:1] in b"AQ" else 9  # of the offset
                if partition is None or (
                    key[:1] in b"OAQZ" and records.U64.unpack_from(key, at)[0] < partition.first
                ):
                    continue
            digest.update(b"%d %s %d %s" % (len(key), key, len(row), row))
        return digest.hexdigest()


def _ends(message: Nack) -> bool:
    """Say if it ends an attempt, and does not just give records back."""
    return message.failed or bool(message.dead) or message.delay_ms != 0
