"""Deliveries to subscriptions: slices that the user takes or gives back. Also timed work:
acks, leases, pauses, ends.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter

from gossipq import limits
from gossipq.errors import BadBatch, GossipqError, NoSubscription
from gossipq.messages import (
    Ack,
    Acked,
    AckResults,
    AtEnd,
    Cancelled,
    Deliver,
    ReportProgress,
)
from gossipq.texts import many
from gossipq.types import Offset, PartitionKey, partition_of, topic_id_of
from gossipq.values import Delivered, JobProgress, Range, ResultRun
from gossipq.wire.batch import Batch, split
from gossipq_client.session.calls import Call
from gossipq_client.session.connections import NOWHERE
from gossipq_client.session.credit import Part, Subscription
from gossipq_client.session.held import Held, Piece, Ranges, SharedBatch, merge, subtract
from gossipq_client.session.known import Known, Spans
from gossipq_client.session.pace import CREDIT_MIN
from gossipq_client.session.settlement import LATE_MAX, PROGRESS_MS, Settling
from gossipq_client.values import GIVEN_BACK, failed

#: credit in a streak of fetches, times the size of one, unless the user's pace needs less
FETCHES_AHEAD = 32
#: with more parts than this, time is checked rarely, so that an exchange costs only what it brings
MANY = 256
RESULTS_BYTES = 256 * limits.KIB  #: results in one request, about
LOOKED_AT_PER_MS = 16
HOARD = 4  #: the largest surplus to keep from other consumers, as a multiple of the credit


Kept = tuple[int, str, bytes]  #: `keep_ms`, kind and value of a result
Noted = tuple[Held, Offset, int, str, bytes]  #: a result that waits for its ack


class Consuming(Settling):
    """Subscriptions and their deliveries."""

    # --- deliveries

    def delivered(self, deliver: Deliver, joined: bytes, endpoint: str) -> None:
        """Takes in a delivery. Raises BadBatch if the sizes do not fit the frame.

        A delivery that its claim has overtaken is ignored: the leader did not find these records in
        the claim, and gives them to another consumer. It can come late if the client reached the leader
        through a frontdoor before, and directly now. Without acks no other consumer gets them.
        """
        part = self.parts.get(deliver.subscription)
        if part is None:
            return
        if (part.claims or part.claimed_at not in ("", endpoint)) and part.subscription.acks:
            return
        part.lease_ms = deliver.lease_ms or part.lease_ms
        known = self._known(part)
        for piece, raw in zip(
            deliver.slices, split(joined, [each.size for each in deliver.slices]), strict=True
        ):
            if part.subscribed:  # otherwise it belongs to credit that has ended
                part.lent_records -= piece.count
                part.lent_bytes -= piece.charge
            if runs_of(piece)[-1][1] > part.ends.get(piece.partition, 0):
                part.at_end = False
            self._receive(part, piece, raw, deliver.lease_ms, known)
        if part.due:
            self.due[part] = None

    def _receive(self, part: Part, piece: Delivered, raw: memoryview, lease_ms: int, known: Known) -> None:
        subscription, runs = part.subscription, runs_of(piece)
        try:
            batch = SharedBatch(raw) if piece.ranges else Batch(raw)
            if len(batch) != piece.count or piece.count != sum([end - first for first, end in runs]):
                raise BadBatch(f"slice of {piece.count} records with a batch of {len(batch)}")
        except BadBatch as error:
            self._unopened(part, [(piece.partition, *run) for run in runs], error)
            return
        charge, deadline_ms = piece.charge, self._links.now_ms + lease_ms
        again = subscription.leased and bool(known.settled(piece.partition, runs[0][0], runs[-1][1]))
        for offset, first, last in self._unseen(piece, known):
            aside = known.settled(piece.partition, first, last) if again else []
            for low, high in [*aside, *subtract([(first, last)], aside)] if aside else [(first, last)]:
                held = Held(part, piece.partition, offset, low, high, batch, piece.attempt)
                held.failures, held.again = piece.failures, piece.again
                held.deadline_ms, held.lease_ms = deadline_ms, lease_ms
                if (low, high) in aside:
                    self._put_aside(held)
                    continue
                held.charge, charge = charge, 0
                self._keep(held)
        if not (subscription.closing or subscription.paused):
            part.saw(piece.partition, runs[-1][1])
            subscription.arrange(self._links.now_ms)

    @staticmethod
    def _unseen(piece: Delivered, known: Known) -> Iterator[tuple[Offset, Offset, Offset]]:
        """For each run of a slice that is not here yet: its place in the slice,
        and its range of offsets.
        """
        at, fresh = 0, bool(piece.ranges) and known.none_of(piece.partition, piece.ranges)
        for low, high in runs_of(piece):
            for first, last in ((low, high),) if fresh else known.unseen(piece.partition, low, high):
                yield low - at, first, last
            at += high - low

    def _unopened(self, part: Part, records: list[Range], error: BadBatch) -> None:
        """Handles a slice that was damaged on its way, or that has columns which only newer clients
        know. A group gets it again, and in the end as dead letters.
        """
        subscription, (partition, first, _), end = part.subscription, records[0], records[-1][2]
        topic = subscription.topics.get(topic_id_of(partition))
        name = f"{topic.name if topic else 'an unknown topic'}/{partition_of(partition)}"
        text = f"records {first} to {end - 1} of {name} cannot be opened: {error}"
        if subscription.whole:
            subscription.error = BadBatch(text, hint="read it again; if that fails, update this client")
            return
        if subscription.leased:
            self._nack(part, records, failed(None, str(error)), {})
        self.warnings.append(text + ("" if subscription.leased else "; they are passed over"))

    def take(self, subscription: Subscription, count: int, fetch: object = None) -> list[Piece]:
        """At most `count` records, in the order in which they came. For a
        `fetch` the records are noted.
        """
        ready = subscription.ready
        pieces: list[Piece] = subscription.fetches.setdefault(fetch, []) if fetch is not None else []
        subscription.touched_ms = self._links.now_ms
        taken = subscription.untaken_records
        while count and ready:
            held = ready[0]
            part, first = held.part, held.taken
            end = min(held.end, first + count)
            fresh = [Piece(held, low, high) for low, high in subtract([(first, end)], held.lost)]
            pieces += fresh
            held.taken = end
            part.untaken_records -= end - first
            if end == held.end:
                ready.popleft()
                part.untaken_bytes -= held.charge
                subscription.arrange(self._links.now_ms)
            if part.due:
                self.due[part] = None
            for each in fresh:
                count -= len(each)
                self.begin(held, each.first, each.end)
        if taken := taken - subscription.untaken_records:
            self._follow(subscription, subscription.pace.took(taken, self._links.now_ms))
        return pieces

    def _follow(self, subscription: Subscription, changed: bool) -> None:
        """Adapts the credit to the user's pace, and gives back a large
        surplus for other consumers.
        """
        if not changed or not subscription.follows or subscription.exclusive or subscription.paused:
            return
        self.lend(subscription, subscription.pace.target, subscription.credit_bytes)
        if subscription.leased and subscription.untaken_records > HOARD * subscription.credit_records:
            self._give_up_surplus(subscription)

    def _give_up_surplus(self, subscription: Subscription) -> None:
        """Gives back the newest slices and withdraws their credit, so that other
        consumers get them at once.
        """
        ready, keep = subscription.ready, subscription.credit_records
        while len(ready) > 1 and subscription.untaken_records - ready[-1].untaken >= keep:
            held = ready.pop()
            held.part.untaken_records -= held.untaken
            held.part.untaken_bytes -= held.charge
            self.nack(held, held.taken, held.end)
        held = ready[0]
        # the user is within it
        if len(ready) == 1 and held.untaken > keep and not subscription.key_ordered:
            held.part.untaken_records -= held.untaken - keep
            ranges = held.cut(held.taken + keep)
            self._nack(held.part, [(held.partition, *each) for each in ranges], GIVEN_BACK, {})
        for part in subscription.parts:
            # tells the leader what is here; a claim would take back the records just given back
            self._subscribe(part)

    def share(self, number: int, keep: int) -> None:
        """Another consumer of the group is idle. Keeps `keep` records of a part here, and gives
        back others that the user has not begun, the newest first.
        """
        part = self.parts.get(number)
        if part is None or part.subscription.over or part.subscription.paused:
            return
        subscription, ready = part.subscription, part.subscription.ready
        spare = min(sum(held.left for held in part.outstanding) - keep, part.untaken_records)
        if spare <= 0 or not subscription.shares:
            return
        ranges: list[Range] = []
        for held in reversed([held for held in ready if held.part is part]):
            given, cut = held.cut_last(min(spare, max(0, held.untaken)))
            ranges += [(held.partition, *each) for each in cut]
            part.untaken_records -= given
            spare -= given
            self._settled(held)
        # the user may be at the first one
        for held in [each for each in list(ready)[1:] if not each.untaken]:
            ready.remove(held)
            held.part.untaken_bytes -= held.charge
        if not ranges:
            return
        self._nack(part, merge(ranges), GIVEN_BACK, {})
        if subscription.follows:  # the records here are enough for it
            subscription.pace.target = max(CREDIT_MIN, subscription.untaken_records)
            self.lend(subscription, subscription.pace.target, subscription.credit_bytes)
            self._subscribe(part)  # its old credit would bring it some of them again

    def cancelled(self, message: Cancelled) -> None:
        """The jobs of records were cancelled. Records that user code has not begun are passed over. The
        others are lost here, and their handlers are told.
        """
        part = self.parts.get(message.subscription)
        if part is None:
            return
        for held in list(part.outstanding):
            mine = [
                each
                for partition, first, end in message.ranges
                if partition == held.partition
                for each in held.open_ranges(first, end)
            ]
            held.cancel(mine)
            self._settled(held)
        self.cancels += 1
        self.due[part] = None

    def begin(self, held: Held, first: Offset, end: Offset) -> None:
        """User code begins these records. Tells their leader now if it must know before. Otherwise
        the leader is told at the second look that finds them not done.
        """
        if not held.part.subscription.leased:
            return
        self._look_at_hand(held.part)
        if held.begins_aloud:
            self._tell_begun(held.part, [(held.partition, first, end)])

    def _tell_hands(self) -> None:
        """Tells leaders which records user code has had since the last look: an attempt has begun,
        even if this process dies. Most records are acked by then, so a fast consumer sends nothing.
        """
        parts = list(self.hands)
        self.hands.clear()
        for part in parts:
            hand = self._in_hand(part)
            seen, told = Spans(part.in_hand), Spans(part.told)
            begun, new = list[Range](), list[Range]()
            for where, first, end in hand:
                untold = subtract([(first, end)], told.reaching(where, first, end))
                since = subtract(untold, seen.reaching(where, first, end))
                begun += [(where, *each) for each in subtract(untold, since)]
                new += [(where, *each) for each in since]
            self._tell_begun(part, begun)
            part.in_hand, part.told = hand, _without(hand, new)
            if new:
                self._look_at_hand(part)
        self.unminded = False

    @staticmethod
    def _in_hand(part: Part) -> list[Range]:
        """The records of a part that user code has begun: they are the oldest ones here."""
        hand: list[Range] = []
        for held in part.outstanding:
            if held.taken > held.first:
                hand += [(held.partition, *each) for each in held.in_hand()]
            elif held not in part.aside:
                break
        return merge(hand)

    def resume(self, subscription: Subscription) -> None:
        """Ends a pause, because the user takes records again."""
        if subscription.paused and not subscription.closing:
            self.lend(subscription, subscription.credit_records, subscription.credit_bytes)

    def fetch(self, subscription: Subscription, count: int, fetch: object) -> list[Piece]:
        """`take` for one fetch after the other. In a streak it grants more credit, so that the next
        batch is already on its way.
        """
        # other fetches wait for theirs
        ahead = max(count, subscription.credit_records) if subscription.fetches else count
        if subscription.streak and not subscription.exclusive:
            ahead = max(count, min(FETCHES_AHEAD * count, subscription.pace.target))
        self.lend(subscription, ahead, limits.CREDIT_BYTES)
        return self.take(subscription, count, fetch)

    def fetched(self, subscription: Subscription, some: bool, fetch: object) -> None:
        """A fetch is over. After the first one of a streak no more credit is granted until the next
        fetch, which gets the records on their way. After an empty fetch, or if records are not
        fetched ahead, these go to other consumers.
        """
        if len(subscription.fetches) > (fetch in subscription.fetches):
            return  # other fetches wait for this credit
        if not (some and subscription.ahead):
            self._rest(subscription)
        elif not subscription.streak:
            self.lend(subscription, 0, 0)
            self.take_in(subscription)
        subscription.streak = some and subscription.ahead

    def break_off(self, subscription: Subscription, fetch: object) -> None:
        """Ends a fetch whose caller no longer waits: its records and its
        credit go to other consumers.
        """
        pieces = subscription.fetches.get(fetch, [])
        if subscription.closing or subscription.error is not None:
            return
        subscription.streak = False
        if subscription.leased:
            for piece in pieces:
                for first, end in piece.held.open_ranges(piece.first, piece.end):
                    self.nack(piece.held, first, end, seen=False)
        else:
            # a reader has no other consumers: the next fetch gets them
            self._put_back(subscription, pieces)
        subscription.fetches.pop(fetch, None)
        if not subscription.fetches:  # other fetches wait for this credit
            self._rest(subscription)

    def _rest(self, subscription: Subscription) -> None:
        """No fetch is running: withdraws the credit and gives back the records on their way."""
        if subscription.leased:
            self.pause(subscription)
        else:
            self.lend(subscription, 0, 0)

    @staticmethod
    def _put_back(subscription: Subscription, pieces: list[Piece]) -> None:
        for piece in reversed(pieces):
            held, ready = piece.held, subscription.ready
            if piece.first >= held.taken:
                continue
            if held not in ready:
                ready.appendleft(held)
                held.part.untaken_bytes += held.charge
            held.part.untaken_records += held.taken - piece.first
            held.taken = piece.first

    def front(self, subscription: Subscription) -> Held | None:
        """The slice to continue with. Its `taken` moves as the user takes records;
        `took` then adjusts the credit.
        """
        ready = subscription.ready
        subscription.touched_ms = self._links.now_ms
        while ready and ready[0].untaken <= 0:  # the rest of it went to other consumers
            held = ready.popleft()
            held.part.untaken_bytes -= held.charge
            subscription.arrange(self._links.now_ms)
        return ready[0] if ready else None

    def took(self, subscription: Subscription, held: Held, count: int) -> None:
        """The user has taken `count` more records of the slice from `front`."""
        ready, part = subscription.ready, held.part
        if not ready or ready[0] is not held:
            return  # given back meanwhile
        part.untaken_records -= count
        if held.taken == held.end:
            ready.popleft()
            part.untaken_bytes -= held.charge
            subscription.arrange(self._links.now_ms)
        self._follow(subscription, subscription.pace.took(count, self._links.now_ms))
        if part.due:
            self.due[part] = None

    @property
    def credit_due(self) -> bool:
        """True if leaders should get credit before theirs is used up."""
        return bool(self.due)

    def at_end(self, message: AtEnd) -> None:
        part = self.parts.get(message.subscription)
        if part is not None:
            part.at_end = True
            part.ends = {partition: position for partition, position, _ in message.ends}
            part.subscription.arrange(self._links.now_ms)

    # --- what time brings

    def flush(self, lingering: bool = False) -> None:
        """Queues everything that waits: acks, failures, credit, farewells. With `lingering`, acks
        and failures that still wait for neighbours stay.
        """
        if not (self.fresh or self.due or self.hungry):
            return
        fresh: dict[Part, None] = {}
        if not lingering or not self._links.now_ms < self.ack_due_ms or any(map(_urgent, self.fresh)):
            self.ack_due_ms = 0
            fresh, self.fresh = self.fresh, fresh
        for part in fresh:
            if part.progress:
                self._send_progress(part)  # before the end of the job
            ranges = merge([(partition, first, end) for partition, first, end in part.fresh])
            if part.results:
                ranges = self._send_results(part, ranges)
            for at in range(0, len(ranges), limits.RANGES_MAX):
                some = ranges[at : at + limits.RANGES_MAX]
                self._calls.ask(Ack(part.number, some), part.shard, partial(self._acked, part, some))
            part.fresh = []  # after it, since a repeated ack is harmless
            for call in part.nacks.values():
                self._calls.send(call)
            part.nacks = {}
            if part.outstanding:
                self._look_at_hand(part)
            if part.subscription.exclusive:
                self.due[part] = None
        for part in list(self.hungry):
            self._feed(part)
        due, self.due = self.due, {}
        for part in due:
            self._lend(part)
        for part in [*fresh, *due]:
            if part.subscription.closing:
                self._leave(part)

    def _send_progress(self, part: Part) -> None:
        rows = [JobProgress(*place, *told) for place, told in part.progress.items()]
        part.progress = {}
        for at in range(0, len(rows), limits.MOVED_RANGES_MAX):
            some = rows[at : at + limits.MOVED_RANGES_MAX]
            self._calls.ask(ReportProgress(part.number, some), part.shard)

    def _tell_progress(self) -> None:
        self.progress_due_ms, self.progress_ms = 0, self._links.now_ms + PROGRESS_MS
        for part in list(self.parts.values()):
            if part.progress:
                self._send_progress(part)

    def _send_results(self, part: Part, ranges: list[Range]) -> list[Range]:
        """Ack the records of `ranges` that have a result. Return the others.

        Other threads append results meanwhile, each before it notes the ack of its record.
        """
        count = len(part.results)
        found: dict[PartitionKey, dict[Offset, Kept]] = {}
        for held, rows in groupby(part.results[:count], itemgetter(0)):
            _, offsets, *kept = zip(*rows, strict=True)
            found.setdefault(held.partition, {}).update(zip(offsets, zip(*kept, strict=True), strict=True))
        runs, size_bytes, records, sent = list[ResultRun](), 0, 0, list[Range]()
        for partition, first, end in ranges:
            for run in _runs_of(partition, found.get(partition, {}), first, end):
                if records and (
                    size_bytes > RESULTS_BYTES or records + len(run.values) > limits.MOVED_RANGES_MAX
                ):
                    self._ack_results(part, runs)
                    runs, size_bytes, records = [], 0, 0
                runs.append(run)
                size_bytes += sum(map(len, run.values))
                records += len(run.values)
                sent.append((partition, run.first, run.end))
        if runs:
            self._ack_results(part, runs)
        sent = merge(sent)
        part.results[:count] = _unsent(part.results[:count], sent)
        return _without(ranges, sent)

    def _ack_results(self, part: Part, runs: list[ResultRun]) -> None:
        ranges = merge([(run.partition, run.first, run.end) for run in runs])
        message = AckResults(part.number, ranges, [], runs)
        self._calls.ask(message, part.shard, partial(self._acked, part, ranges))

    def _acked(self, part: Part, ranges: list[Range], call: Call) -> None:
        if call.error is not None:
            self.warnings.append(f"ack refused: {call.error}")
            part.refused = [*part.refused, *((*each, call.error) for each in ranges)][-LATE_MAX:]
            # its leases ended with the subscription: with its topic, or when its session was silent
            ended = isinstance(call.error, NoSubscription)
            self.note_lost(part, ranges, None if ended else call.error)
        elif part.refused or part.late:  # this answer is newer
            of = {where: [each[1:] for each in ranges if each[0] == where] for where, _, _ in ranges}
            part.refused = [
                (where, low, high, error)
                for where, first, end, error in part.refused
                for low, high in subtract([(first, end)], of.get(where, []))
            ]
            part.late = [
                (where, low, high)
                for where, first, end in part.late
                for low, high in subtract([(first, end)], of.get(where, []))
            ]
        if isinstance(call.reply, Acked) and call.reply.lost:
            part.late = [*part.late, *call.reply.lost][-LATE_MAX:]
            self.note_lost(part, call.reply.lost)
            count, (partition, first, _) = (
                sum(end - first for _, first, end in call.reply.lost),
                call.reply.lost[0],
            )
            self.warnings.append(
                f"ack came too late, after the lease had ended: {many(count, 'record')}, from offset {first} "
                f"of partition {partition:#x} on, will be redelivered"
            )
        self._left(call)

    def subscriptions(self) -> list[Subscription]:
        return list({id(part.subscription): part.subscription for part in self.parts.values()}.values())

    def tick(self) -> None:
        now_ms, crowded = self._links.now_ms, len(self.parts) > MANY
        looks = not crowded or now_ms >= self._look_ms
        for subscription in self.subscriptions() if looks else ():
            self._mind(subscription)
        if self.ack_due_ms and now_ms >= self.ack_due_ms:
            self.flush()
        if self.hands_due:
            self._tell_hands()
        if self.progress_due_ms and now_ms >= self.progress_due_ms:
            self._tell_progress()
        for part in list(self.parts.values()) if looks else ():
            self._listen(part)
            if part.outstanding:
                self._mind_leases(part)
            self._pump(part)
        if crowded and looks:
            self._look_ms, self._due_ms = now_ms + len(self.parts) // LOOKED_AT_PER_MS, self._next_due_ms()

    def _mind(self, subscription: Subscription) -> None:
        """Gives back records that the user has not touched for half a lease,
        and withdraws their credit.
        """
        subscription.arrange(self._links.now_ms)
        if subscription.ready and not subscription.paused:
            self._follow(subscription, subscription.pace.look(self._links.now_ms))
        lease_ms = min((part.lease_ms for part in subscription.parts if part.lease_ms), default=0)
        if not lease_ms or not subscription.ready:
            return
        now_ms, progress = self._links.now_ms, (id(subscription.ready[0]), subscription.ready[0].taken)
        if progress != subscription.progress:
            subscription.progress, subscription.touched_ms = progress, now_ms
        elif now_ms - subscription.touched_ms >= lease_ms // 2:
            self.pause(subscription)

    def pause(self, subscription: Subscription) -> None:
        """Gives back the records that the user has not taken, and withdraws the
        credit. `lend` ends the pause.
        """
        subscription.paused = True
        for held in subscription.ready:
            self.nack(held, held.taken, held.end)
        subscription.ready.clear()
        if subscription.order is not None:
            subscription.order.clear()
        for part in subscription.parts:
            part.untaken_records = part.untaken_bytes = part.share_records = 0
            if part.outstanding or not subscription.closing:
                self._subscribe(part)

    def deadline_ms(self) -> int | None:
        """When `tick` has work to do."""
        due_ms = self._next_due_ms() if len(self.parts) <= MANY else self._due_ms
        soon = (
            self.ack_due_ms or None,
            self.progress_due_ms or None,
            self._hand_due_ms if self.hands else None,
            due_ms,
        )
        return min([at_ms for at_ms in soon if at_ms is not None], default=None)

    def _next_due_ms(self) -> int | None:
        """When a part or a subscription next has timed work."""
        times: list[int] = []
        times += [due_ms for each in self.subscriptions() if (due_ms := each.order_ms()) is not None]
        for part in self.parts.values():
            times += [held.deadline_ms - held.lease_ms // 2 for held in part.outstanding if held.lease_ms]
            if part.standing == NOWHERE and part.retry_at_ms > self._links.now_ms:
                times.append(part.retry_at_ms)
            if part.request_id in self._subscribing and part.again_ms > self._links.now_ms:
                times.append(part.again_ms)
        return min(times, default=None)

    # --- farewell

    def close(self, subscription: Subscription) -> None:
        """Stops deliveries. Records that the user has can still be acked,
        then the subscription ends.
        """
        if not subscription.closing:
            subscription.closing = subscription.over = True
            self.end(subscription)

    def end(self, subscription: Subscription) -> None:
        """Give back what the user has not taken, and leave the parts of which it holds nothing."""
        self.pause(subscription)
        for part in list(subscription.parts):
            self._leave(part)

    def ending(self) -> set[int]:
        """Numbers of the subscriptions that end without further action of the user: it
        holds no records of them.
        """
        parts = [part for part in self.parts.values() if part.subscription.closing]
        return {part.number for part in parts if all(held in part.aside for held in part.outstanding)}

    def farewell(self) -> None:
        """The session ends: records that the user holds are given back without counting a
        failure, even begun ones.
        """
        for part in self.parts.values():
            self._left_over += part.outstanding
            for held in list(part.outstanding):
                if held not in part.aside:
                    self.nack(held, held.first, held.end)
        self.flush()

    def disown(self, error: GossipqError) -> None:
        """The session belongs to another process. Records that the user holds are lost here, and loops raise
        `error`."""
        for part in self.parts.values():
            for held in part.outstanding:
                held.lose([(held.first, held.end)])
        self.abandon(error)

    def abandon(self, error: GossipqError) -> None:
        """The session is over, and its client begins another one. Records that the user holds are
        lost, and loops raise `error`.
        """
        for held in self._left_over:
            held.lose([(held.first, held.end)])
        for subscription in self.subscriptions():
            subscription.ready.clear()
            subscription.error = subscription.error or error


def runs_of(piece: Delivered) -> Ranges:
    return piece.ranges or [(piece.offset, piece.offset + piece.count)]


def _without(ranges: list[Range], others: list[Range]) -> list[Range]:
    spans = Spans(others)
    return [
        (where, *left)
        for where, first, end in ranges
        for left in subtract([(first, end)], spans.reaching(where, first, end))
    ]


def _urgent(part: Part) -> bool:
    """True if the acks of a part cannot wait for neighbours, because its next record or
    its end waits for them. In key order the next record of a key waits, which matters
    if no other record is here.
    """
    subscription = part.subscription
    hungry = subscription.key_ordered and not subscription.ready
    return subscription.exclusive or subscription.closing or hungry


def _runs_of(
    partition: PartitionKey, found: dict[Offset, Kept], first: Offset, end: Offset
) -> Iterator[ResultRun]:
    """Yield the results of the records [first, end), those of neighbours together."""
    if len(found) < end - first:
        yield from _uneven(partition, found, sorted(each for each in found if first <= each < end))
        return
    for low in range(first, end, limits.MOVED_RANGES_MAX):
        offsets = range(low, min(end, low + limits.MOVED_RANGES_MAX))
        rows = [*map(found.get, offsets)]
        if all(rows):  # no step of Python for a record: handlers return very many results
            keeps, kinds, values = zip(*filter(None, rows), strict=True)
            alike = keeps.count(keeps[0]) == kinds.count(kinds[0]) == len(rows)
            if alike and sum(map(len, values)) <= RESULTS_BYTES:
                yield ResultRun(partition, low, keeps[0], kinds[0], [*values])
                continue
        yield from _uneven(partition, found, offsets)


def _uneven(
    partition: PartitionKey, found: dict[Offset, Kept], offsets: Iterable[Offset]
) -> Iterator[ResultRun]:
    """Yield results of which some are missing, of another kind, or large."""
    values, begin, terms, size_bytes = list[bytes](), -1, (0, ""), 0
    for offset in offsets:
        kept = found.get(offset)
        if kept is None:
            continue
        keep_ms, kind, value = kept
        if values and (
            offset != begin + len(values)
            or terms != (keep_ms, kind)
            or size_bytes > RESULTS_BYTES
            or len(values) == limits.MOVED_RANGES_MAX
        ):
            yield ResultRun(partition, begin, *terms, values)
            values, size_bytes = [], 0
        if not values:
            begin, terms = offset, (keep_ms, kind)
        values.append(value)
        size_bytes += len(value)
    if values:
        yield ResultRun(partition, begin, *terms, values)


def _unsent(results: list[Noted], sent: list[Range]) -> list[Noted]:
    """Return the results whose acks were not noted yet, and which this consumer still holds."""
    if len(results) == sum(end - first for _, first, end in sent):
        return []
    spans = Spans(sent)
    return [
        each
        for each in results
        if not spans.reaching(each[0].partition, each[1], each[1] + 1)
        and each[0].open_ranges(each[1], each[1] + 1)
    ]
