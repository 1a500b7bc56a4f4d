"""Records that the user has finished: acked, given back, extended, or acked by an atomic step.

An ack of one record is an append to a list, without the lock of the client, and `Engine.step` joins
such acks before it does anything else. An append is atomic in every thread and every signal
handler. With a lock and a step for each record, loops were half as fast.

The client reports STARTED before user code begins if the record may have killed a consumer: it was
delivered before, or this is its third attempt. It reports other records after 10 ms in user code.
So a record that kills its consumer is counted from its second delivery on, and fast handlers send
nothing.
"""

from collections.abc import Iterable

from gossipq.errors import GossipqError, LeaseLost
from gossipq.limits import MOVED_RANGES_MAX
from gossipq.messages import Ack, Acked, AckResults, Extend, Nack, Started
from gossipq.texts import many
from gossipq.types import Offset, PartitionKey, partition_of, topic_id_of
from gossipq.values import Range
from gossipq_client.session.calls import Call
from gossipq_client.session.credit import Part
from gossipq_client.session.held import Held, Ranges, merge, subtract
from gossipq_client.session.known import Known, Spans
from gossipq_client.session.subscriptions import Subscribing
from gossipq_client.values import GIVEN_BACK, Outcome, failed

PROGRESS_MS = 200  #: between two reports of a client
ACK_LINGER_MS = 5  #: how long acks wait for neighbours
LATE_MAX = 1_000  #: ranges of late acks that one part remembers
REFS_SHOWN = 3  #: refs of lost acks in the text of an error


class Settling(Subscribing):
    def join_noted(self) -> None:
        """Acks the noted records, joining neighbours. It may run twice without harm:
        the notes are removed last.
        """
        noted = self.noted
        count = len(noted)
        held, first, end = noted[0]._held, noted[0].offset, noted[0].offset
        for record in noted[:count]:
            if record._held is not held or record.offset != end:
                self.ack(held, first, end)
                held, first = record._held, record.offset
            end = record.offset + 1
        self.ack(held, first, end)
        del noted[:count]

    def ack(self, held: Held, first: Offset, end: Offset) -> None:
        """Acks records; idempotent. The ack is sent with the next flush,
        joined with its neighbours.
        """
        part = held.part
        if not part.subscription.leased:
            return
        fresh = part.fresh
        if not fresh:
            self._flush_soon(part)
        partition, done = held.partition, held.done
        if not done or done[-1][1] == first:  # one by one in order, the most frequent case
            if fresh and fresh[-1][2] == first and fresh[-1][0] == partition:
                fresh[-1][2] = end
            else:
                fresh.append([partition, first, end])
            # both in one statement: an interrupt cannot come between them, and a repeat is harmless
            if done:
                done[-1][1], held.left = end, held.left - (end - first)
            else:
                held.done, held.left = [[first, end]], held.left - (end - first)
            if not held.left:
                part.outstanding.pop(held, None)
            return
        for low, high in held.undone(first, end):
            if fresh and fresh[-1][2] == low and fresh[-1][0] == partition:
                fresh[-1][2] = high
            else:
                fresh.append([partition, low, high])
        held.finish(first, end)  # last, so that a done record is certain to be reported
        if not held.left:
            part.outstanding.pop(held, None)

    def report(self, held: Held, offset: Offset, done: float, text: str) -> None:
        """Report how far a handler is. Of the reports within PROGRESS_MS, the last one is sent."""
        part = held.part
        if part.subscription.leased and held.open_ranges(offset, offset + 1):
            part.progress[held.partition, offset] = done, text
            self.progress_due_ms = self.progress_due_ms or max(self._links.now_ms, self.progress_ms)

    def _known(self, part: Part) -> Known:
        """Records of a part that a delivery may repeat: those here, and those whose ack or nack the
        leader did not know when it sent them again.
        """
        return Known(part, lambda: self._untold(part))

    def _untold(self, part: Part) -> list[Range]:
        """Ranges of a part with unanswered acks, failures or nacks."""
        asked = [each for message in self._unanswered(part) for each in message.ranges]
        return [*((partition, first, end) for partition, first, end in part.fresh), *asked]

    def told(self, part: Part, partition: PartitionKey, ranges: Ranges) -> bool:
        """True if the leader has answered all acks and failures of these records."""
        return subtract(ranges, [each[1:] for each in self._untold(part) if each[0] == partition]) == ranges

    def _put_aside(self, held: Held) -> None:
        """Neither shows the slice nor gives it back until the leader has answered the
        ack or nack of its records.
        """
        held.part.aside[held] = held.part.outstanding[held] = None

    def _decide(self, part: Part, call: Call) -> None:
        """Handle the answer to an ack or a nack.

        It also covers records that were redelivered meanwhile, because the leader applied it to the new
        delivery. Records that the leader refused go to the user. A failure of many records may be stored in
        pieces, and a record may be redelivered before the last piece: that delivery is given back.
        """
        assert isinstance(call.message, Ack | AckResults | Nack)
        refused = call.reply.lost if isinstance(call.reply, Acked) else call.message.ranges
        asked, refusals = Spans(call.message.ranges), Spans(refused)
        untold, back = Spans(self._untold(part)), list[Range]()
        for held in list(part.aside):
            place = held.partition, held.first, held.end
            mine = held.open_ranges(held.first, held.end)
            taken = subtract(mine, subtract(mine, asked.reaching(*place)))
            gone = subtract(taken, refusals.reaching(*place))
            held.give_up(gone)
            if gone and isinstance(call.message, Nack) and call.message.failed:
                back += [(held.partition, *each) for each in gone]
            left = subtract(held.open_ranges(held.first, held.end), held.lost)
            if subtract(left, untold.reaching(*place)) != left:
                continue
            del part.aside[held]
            if left:
                self._keep(held)
            else:
                held.finish(held.first, held.end)
            self._settled(held)
            self.due[part] = None
        if back:
            self._nack(part, merge(back), GIVEN_BACK, {})

    def _keep(self, held: Held) -> None:
        """Keep a slice for the user. While the user takes no records, give it back to other consumers."""
        part, subscription = held.part, held.part.subscription
        if subscription.closing or subscription.paused:
            self.nack(held, held.first, held.end)
            return
        part.untaken_records += held.untaken
        part.untaken_bytes += held.charge
        if subscription.leased:
            part.outstanding[held] = None
            if part.barred:
                self._give_back_later(part, held.partition, part.bars(held.partition), [held])
        if not subscription.ready:
            subscription.touched_ms = self._links.now_ms
            subscription.pace.waits(self._links.now_ms)
        if subscription.order is None:
            subscription.ready.append(held)
        else:
            subscription.order.add(held.partition, held.batch.info.publish_ms, held, self._links.now_ms)

    def too_late(self, part: Part, partition: PartitionKey, ranges: Ranges) -> Ranges:
        """Return those records that other consumers had when they were acked here."""
        late = [(low, high) for where, low, high in part.late if where == partition]
        return subtract(ranges, subtract(ranges, late))

    def refused_ack(self, part: Part, partition: PartitionKey, ranges: Ranges) -> GossipqError | None:
        """The error of a refused ack of one of these records, or None."""
        refused = [(low, high, error) for where, low, high, error in part.refused if where == partition]
        return next(
            (error for low, high, error in refused if subtract(ranges, [(low, high)]) != ranges), None
        )

    def note_lost(self, part: Part, ranges: Iterable[Range], error: GossipqError | None = None) -> None:
        """Notes that acks of these records are not stored: other consumers have the
        records, or because of `error`.
        """
        if not part.subscription.has_handler:  # a handler's log lines report it
            self.lost.extend((part, *each, error) for each in ranges)

    def forget_lost(self, part: Part, partition: PartitionKey, ranges: Ranges) -> None:
        """Forgets lost acks of these records, because the user learns of them in another way."""
        for _ in range(len(self.lost)):
            where, key, first, end, error = self.lost.popleft()
            mine = ranges if (where, key) == (part, partition) else []
            self.lost.extend((where, key, *left, error) for left in subtract([(first, end)], mine))

    def lost_acks(self) -> GossipqError | None:
        """The error for acks that are not stored, if the user has not
        seen it yet; reported once.
        """
        lost = [self.lost.popleft() for _ in range(len(self.lost))]
        refused = next((error for *_, error in lost if error is not None), None)
        if refused is not None or not lost:
            return refused
        refs = [
            f"{part.subscription.topics[topic_id_of(partition)].name}/{partition_of(partition)}/{offset}"
            for part, partition, first, end, _ in lost
            for offset in range(first, end)
        ]
        shown = ", ".join(refs[:REFS_SHOWN]) + (", ..." if len(refs) > REFS_SHOWN else "")
        late = LeaseLost(
            f"{many(len(refs), 'ack')} came too late, the records are redelivered: {shown}",
            hint="ask for a longer lease= in consume()",
        )
        late.refs = tuple(refs)
        return late

    def nack(
        self, held: Held, first: Offset, end: Offset, outcome: Outcome = GIVEN_BACK, seen: bool = True
    ) -> None:
        """Give records back, unless they are done already. In a key-ordered group, later records of
        their keys that are here are given back first, unbegun, unless they are dead. `seen`: user
        code has begun the records below `taken`, which makes this an attempt.
        """
        part, partition = held.part, held.partition
        if not part.subscription.leased:
            return
        begun = held.in_hand() if seen and outcome is GIVEN_BACK and first < held.taken else []
        ranges = held.finish(first, end)
        if begun and (begun := subtract(ranges, subtract(ranges, begun))):
            self._tell_begun(part, [(partition, *each) for each in begun])
        self._settled(held)
        if not ranges:
            return
        keys: dict[int, Offset] = {}
        if part.subscription.key_ordered and not outcome.dead:
            for low, high in reversed(ranges):
                keys |= {held.key_hash(offset): offset for offset in reversed(range(low, high))}
            keys.pop(0, None)
            self._give_back_later(part, partition, keys, list(part.outstanding))
        if outcome is GIVEN_BACK or part.subscription.key_ordered:
            self._nack(part, [(partition, low, high) for low, high in ranges], outcome, keys)
        else:
            self._gather(part, [(partition, low, high) for low, high in ranges], outcome)

    def _gather(self, part: Part, ranges: list[Range], outcome: Outcome) -> None:
        """Collects records that failed in the same way; they are sent
        together with the next flush.
        """
        for each in ranges:
            call = part.nacks.get(outcome)
            message = call.message if call is not None and not call.request_id else None
            if not isinstance(message, Nack) or len(message.ranges) >= MOVED_RANGES_MAX:
                message = _nack_of(part.number, [], outcome)
                if call is not None:
                    self._calls.send(call)
                part.nacks[outcome] = self._calls.prepare(message, part.shard, self._left)
            told = message.ranges
            if told and told[-1][2] == each[1] and told[-1][0] == each[0]:
                told[-1] = each[0], told[-1][1], each[2]
            else:
                told.append(each)
        self._flush_soon(part)

    def _flush_soon(self, part: Part) -> None:
        """Marks the part for the next flush, or for the time when it has waited for neighbours."""
        self.fresh[part] = None
        self.ack_due_ms = self.ack_due_ms or self._links.now_ms + ACK_LINGER_MS

    def _give_back_later(
        self, part: Part, partition: PartitionKey, keys: dict[int, Offset], helds: list[Held]
    ) -> None:
        """Gives back the records of these keys in the given slices, each
        key from after its offset.
        """
        given: list[Range] = []
        firsts: dict[int, Offset] = {}
        for held in helds:
            if held.partition != partition:
                continue
            for key, offset in keys.items():
                ranges = held.of_key(key, offset + 1)
                if ranges:
                    firsts[key] = min(ranges[0][0], firsts.get(key, ranges[0][0]))
                    given += [(partition, low, high) for low, high in ranges]
                    held.give_up(ranges)
            self._settled(held)
        if given:
            self._nack(part, merge(given), GIVEN_BACK, firsts)

    def _nack(self, part: Part, ranges: list[Range], outcome: Outcome, keys: dict[int, Offset]) -> None:
        """`keys` are the keys of all `ranges`, which lie in one partition, with their first
        offsets. Until the leader has answered, later records of these keys that it sends are given
        back too: it did not know of the failure.
        """
        calls = [
            self._calls.prepare(
                _nack_of(part.number, ranges[at : at + MOVED_RANGES_MAX], outcome),
                part.shard,
                self._left,
            )
            for at in range(0, len(ranges), MOVED_RANGES_MAX)
        ]
        if keys:
            part.barred[calls[-1]] = ranges[0][0], keys
        for call in calls:
            self._calls.send(call)
        if part.subscription.exclusive:
            self.due[part] = None

    def _left(self, call: Call) -> None:
        """An ack or a nack was answered, maybe the last one of a subscription that ends."""
        part = self.parts.get(getattr(call.message, "subscription", 0))
        if part is None:
            return
        if part.aside:
            self._decide(part, call)
        part.barred.pop(call, None)
        if part.subscription.closing:
            self._leave(part)

    def _tell_begun(self, part: Part, ranges: list[Range]) -> None:
        lane = self._links.lane(part.shard)
        if lane is None or self._links.standing(lane, part.shard) != part.standing:
            return
        for at in range(0, len(ranges), MOVED_RANGES_MAX):
            self._links.send(lane, Started(part.number, ranges[at : at + MOVED_RANGES_MAX]), part.shard)

    def _settled(self, held: Held) -> None:
        if not held.left:
            held.part.outstanding.pop(held, None)
            held.part.aside.pop(held, None)

    def stepped(self, held: Held, offset: Offset, error: GossipqError | None) -> None:
        """The atomic step that acks a record has ended; if it failed, the record failed with it."""
        if error is not None and not isinstance(error, LeaseLost):
            self.nack(held, offset, offset + 1, failed(None, f"{type(error).__name__}: {error}"))
            return
        if error is not None:
            held.lose([(offset, offset + 1)])
        held.finish(offset, offset + 1)
        self._settled(held)
        self.due[held.part] = None

    def extend(self, held: Held, offset: Offset, lease_ms: int) -> Call | None:
        """The user wants more time for a record; None if the record is not held any more."""
        if not held.part.subscription.leased or not held.open_ranges(offset, offset + 1):
            return None
        deadline_ms = self._links.now_ms + lease_ms
        held.longer[offset] = deadline_ms
        held.deadline_ms = min(held.deadline_ms, deadline_ms)
        return self._extend(held.part, [held], [(held.partition, offset, offset + 1)], lease_ms)

    def _mind_leases(self, part: Part) -> None:
        """Extends leases of records that the user still has, at half of their time."""
        now_ms = self._links.now_ms
        soon: dict[int, list[Held]] = {}
        for held in part.outstanding:
            if held.lease_ms and held.deadline_ms - held.lease_ms // 2 <= now_ms:
                held.deadline_ms = now_ms + held.lease_ms
                soon.setdefault(held.lease_ms, []).append(held)
        for lease_ms, helds in soon.items():
            ranges = [(held.partition, low, high) for held in helds for low, high in held.to_extend(now_ms)]
            merged = merge(ranges)
            for at in range(0, len(merged), MOVED_RANGES_MAX):
                self._extend(part, helds, merged[at : at + MOVED_RANGES_MAX], lease_ms)

    def _extend(self, part: Part, helds: list[Held], ranges: list[Range], lease_ms: int) -> Call:
        return self._calls.ask(
            Extend(part.number, ranges, lease_ms), part.shard, lambda call: self._extended(helds, call)
        )

    def _extended(self, helds: list[Held], call: Call) -> None:
        lost = call.reply.lost if isinstance(call.reply, Acked) else []
        for partition, first, end in lost:
            self.warnings.append(f"lease lost: {first}..{end} of partition {partition:#x}")
            for held in helds:
                if held.partition == partition and first < held.end and held.first < end:
                    held.lose([(first, end)])


def _nack_of(number: int, ranges: list[Range], outcome: Outcome) -> Nack:
    failed, delay_ms, reason, dead, pause_flow = outcome
    return Nack(number, ranges, delay_ms, failed, reason, dead, pause_flow)
