"""Subscriptions: credit lent to the leaders, slices that came, acks on their way, leases to extend."""

from gossipq import limits
from gossipq.errors import BadBatch
from gossipq.messages import (
    Ack,
    Acked,
    AtEnd,
    Deliver,
    Delivered,
    Extend,
    Nack,
    Range,
    Unsubscribe,
)
from gossipq.types import Offset
from gossipq.wire.batch import Batch, split
from gossipq_client.calls import Call
from gossipq_client.credit import Part, Subscription
from gossipq_client.held import Held, Piece, merge
from gossipq_client.subscribing import Subscribing

ACK_LINGER_MS = 5  #: acks wait so long for neighbours
FETCHES_AHEAD = 32  #: credit in a streak of fetches, between CREDIT_RECORDS and the next
AHEAD_RECORDS_MAX = 8 * limits.CREDIT_RECORDS


class Consuming(Subscribing):
    """Subscribing, and what comes of it."""

    # --- deliveries

    def delivered(self, deliver: Deliver, joined: bytes) -> None:
        """Raises BadBatch when the sizes do not fit the frame."""
        part = self._parts.get(deliver.subscription)
        if part is None:
            return
        part.lease_ms = deliver.lease_ms or part.lease_ms
        for piece, raw in zip(deliver.slices, split(joined, [each.size for each in deliver.slices]), strict=True):
            part.lent_records -= piece.count
            part.lent_bytes -= piece.charge
            if piece.offset + piece.count > part.ends.get(piece.partition, 0):
                part.at_end = False
            self._receive(part, piece, raw, self._links.now_ms + deliver.lease_ms)
        if part.due:
            self._due[part] = None

    def _receive(self, part: Part, piece: Delivered, raw: memoryview, deadline_ms: int) -> None:
        subscription, end = part.subscription, piece.offset + piece.count
        whole = [(piece.partition, piece.offset, end)]
        try:
            batch = Batch(raw)
            if len(batch) != piece.count:
                raise BadBatch(f"slice of {piece.count} records with a batch of {len(batch)}")
        except BadBatch as error:
            self.warnings.append(f"slice {piece.offset}..{end} of partition {piece.partition:#x}: {error}")
            self._nack(part, whole, failed=True, reason=str(error))
            return
        if subscription.closing or subscription.paused:
            self._nack(part, whole)
            return
        charge = piece.charge
        for first, last in part.unseen(piece.partition, piece.offset, end):
            held = Held(part, piece.partition, piece.offset, first, last, batch, piece.attempt)
            held.deadline_ms, held.charge, charge = deadline_ms, charge, 0
            part.untaken_records += last - first
            part.untaken_bytes += held.charge
            if subscription.group:
                part.outstanding[held] = None
            if not subscription.ready:
                subscription.touched_ms = self._links.now_ms
            subscription.ready.append(held)

    def take(self, subscription: Subscription, count: int) -> list[Piece]:
        """At most `count` records, in the order they came."""
        ready, pieces = subscription.ready, []
        subscription.touched_ms = self._links.now_ms
        while count and ready:
            held = ready[0]
            part, first = held.part, held.taken
            end = min(held.end, first + count)
            held.taken = end
            count -= end - first
            part.untaken_records -= end - first
            if end == held.end:
                ready.popleft()
                part.untaken_bytes -= held.charge
            if part.due:
                self._due[part] = None
            pieces.append(Piece(held, first, end))
        return pieces

    def resume(self, subscription: Subscription) -> None:
        """After a pause: the user is back."""
        if subscription.paused and not subscription.closing:
            self.lend(subscription, subscription.credit_records, subscription.credit_bytes)

    def fetch(self, subscription: Subscription, count: int) -> list[Piece]:
        """`take` for one fetch after the other: in a streak more is lent, so that the next batch is under way meanwhile."""
        ahead = count
        if subscription.streak:
            ahead = max(count, limits.CREDIT_RECORDS, min(FETCHES_AHEAD * count, AHEAD_RECORDS_MAX))
        self.lend(subscription, ahead, limits.CREDIT_BYTES)
        return self.take(subscription, count)

    def fetched(self, subscription: Subscription, some: bool) -> None:
        """A fetch is over. Outside a streak nothing more comes until the next one."""
        if not subscription.streak:
            self.lend(subscription, 0, 0)
        subscription.streak = some

    def front(self, subscription: Subscription) -> Held | None:
        """The slice to go on with; its `taken` moves as the user takes records, `took` then settles the account."""
        subscription.touched_ms = self._links.now_ms
        return subscription.ready[0] if subscription.ready else None

    def took(self, subscription: Subscription, held: Held, count: int) -> None:
        """The user has `count` more records of the slice that `front` gave."""
        ready, part = subscription.ready, held.part
        if not ready or ready[0] is not held:
            return  # given back meanwhile
        part.untaken_records -= count
        if held.taken == held.end:
            ready.popleft()
            part.untaken_bytes -= held.charge
        if part.due:
            self._due[part] = None

    @property
    def credit_due(self) -> bool:
        """Whether leaders should hear of credit before they run dry."""
        return bool(self._due)

    def at_end(self, message: AtEnd) -> None:
        part = self._parts.get(message.subscription)
        if part is not None:
            part.at_end = True
            part.ends = {partition: position for partition, position, _ in message.ends}

    # --- done with records

    def ack(self, held: Held, first: Offset, end: Offset) -> None:
        """Idempotent. Goes out with the next flush, joined with its neighbours."""
        part = held.part
        if not part.subscription.group:
            return
        fresh = part.fresh
        if not fresh:
            self._fresh[part] = None
            self.ack_due_ms = self.ack_due_ms or self._links.now_ms + ACK_LINGER_MS
        partition = held.partition
        for low, high in held.finish(first, end):
            if fresh and fresh[-1][2] == low and fresh[-1][0] == partition:
                fresh[-1][2] = high
            else:
                fresh.append([partition, low, high])
        if not held.left:
            part.outstanding.pop(held, None)

    def nack(self, held: Held, first: Offset, end: Offset, delay_ms: int = 0, failed: bool = True, reason: str = "") -> None:
        """Gives records back, unless they are done already."""
        part = held.part
        if not part.subscription.group:
            return
        ranges = [(held.partition, low, high) for low, high in held.finish(first, end)]
        if not held.left:
            part.outstanding.pop(held, None)
        if ranges:
            self._nack(part, ranges, delay_ms, failed, reason)

    def _nack(self, part: Part, ranges: list[Range], delay_ms: int = 0, failed: bool = False, reason: str = "") -> None:
        if part.subscription.group:
            self._calls.ask(Nack(part.number, ranges, delay_ms, failed, reason), part.shard)

    def extend(self, held: Held, first: Offset, end: Offset, lease_ms: int) -> Call | None:
        """Renews the lease of records that are not done; None when there is nothing to renew."""
        ranges = [(held.partition, low, high) for low, high in held.open_ranges(first, end)]
        if not ranges or not held.part.subscription.group:
            return None
        return self._extend(held.part, [held], ranges, lease_ms)

    def _extend(self, part: Part, helds: list[Held], ranges: list[Range], lease_ms: int) -> Call:
        for held in helds:
            held.deadline_ms = self._links.now_ms + lease_ms
        return self._calls.ask(Extend(part.number, ranges, lease_ms), part.shard, lambda call: self._extended(helds, call))

    def _extended(self, helds: list[Held], call: Call) -> None:
        lost = call.reply.lost if isinstance(call.reply, Acked) else []
        for partition, first, end in lost:
            self.warnings.append(f"lease lost: {first}..{end} of partition {partition:#x}")
            for held in helds:
                if held.partition == partition and first < held.end and held.first < end:
                    held.lost.append((first, end))

    # --- what time brings

    def flush(self) -> None:
        """Queues everything that waits: acks, credit, farewells."""
        self.ack_due_ms = 0
        fresh, self._fresh = self._fresh, {}
        for part in fresh:
            ranges = merge((partition, first, end) for partition, first, end in part.fresh)
            part.fresh = []
            self._calls.ask(Ack(part.number, ranges), part.shard, self._acked)
        for part in list(self._hungry):
            self._feed(part)
        due, self._due = self._due, {}
        for part in due:
            self._lend(part)
        for part in [*fresh, *due]:
            if part.subscription.closing:
                self._leave(part)

    def _acked(self, call: Call) -> None:
        if call.error is not None:
            self.warnings.append(f"ack refused: {call.error}")
        if isinstance(call.reply, Acked) and call.reply.lost:
            for partition, first, end in call.reply.lost:
                self.warnings.append(f"ack came too late, others hold {first}..{end} of partition {partition:#x}")

    def tick(self) -> None:
        now_ms = self._links.now_ms
        for subscription in {id(part.subscription): part.subscription for part in self._parts.values()}.values():
            self._mind(subscription)
        if self.ack_due_ms and now_ms >= self.ack_due_ms:
            self.flush()
        for part in list(self._parts.values()):
            if part.outstanding and part.lease_ms:
                self._mind_leases(part)
            self._pump(part)

    def _mind(self, subscription: Subscription) -> None:
        """What the user has left untouched for half a lease goes back, and the loans with it."""
        lease_ms = min((part.lease_ms for part in subscription.parts if part.lease_ms), default=0)
        if not lease_ms or not subscription.ready:
            return
        now_ms, progress = self._links.now_ms, (id(subscription.ready[0]), subscription.ready[0].taken)
        if progress != subscription.progress:
            subscription.progress, subscription.touched_ms = progress, now_ms
        elif now_ms - subscription.touched_ms >= lease_ms // 2:
            self.pause(subscription)

    def pause(self, subscription: Subscription) -> None:
        """Gives back what the user does not have, and takes the loans in; `lend` goes on."""
        subscription.paused = True
        for held in subscription.ready:
            self.nack(held, held.taken, held.end, failed=False)
        subscription.ready.clear()
        for part in subscription.parts:
            part.untaken_records = part.untaken_bytes = part.share_records = 0
            if part.outstanding or not subscription.closing:
                self._subscribe(part)

    def _mind_leases(self, part: Part) -> None:
        soon_ms = self._links.now_ms + part.lease_ms // 2
        helds = [held for held in part.outstanding if held.deadline_ms <= soon_ms]
        ranges = [(held.partition, low, high) for held in helds for low, high in held.open_ranges(held.first, held.end)]
        if ranges:
            self._extend(part, helds, merge(ranges), part.lease_ms)

    def deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        times = [self.ack_due_ms] if self.ack_due_ms else []
        for part in self._parts.values():
            if part.outstanding and part.lease_ms:
                times.append(min(held.deadline_ms for held in part.outstanding) - part.lease_ms // 2)
            if not part.greeting and part.retry_at_ms > self._links.now_ms:
                times.append(part.retry_at_ms)
        return min(times, default=None)

    # --- farewell

    def close(self, subscription: Subscription) -> None:
        """No more records; what the user has in hand can still be acked, then the subscription ends."""
        if subscription.closing:
            return
        subscription.closing = True
        self.pause(subscription)
        for part in list(subscription.parts):
            self._leave(part)

    def _leave(self, part: Part) -> None:
        if not part.outstanding and not part.fresh and part.number in self._parts:
            self._remove(part)
            self._calls.ask(Unsubscribe(part.number), part.shard)
