"""Settlement: requests of consumers about records that they hold. They ack records, give them back,
extend their leases, and claim them again after a lost connection.

An ack of records that were never delivered to the group is lost. After a takeover, acks within the
window that the new leader finds are believed (`PartitionView.inherited`). Only leases that last are
logged, and a leader that is cut off delivers until its own lease ends. It cannot deliver beyond
that window, because only entries move cursors.
"""

from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice

from gossipq import limits
from gossipq.core.delivery import tries
from gossipq.core.delivery.consumers import UNKNOWN_NUMBER, DeliveryTurn, PartitionView, Subscription
from gossipq.core.delivery.holdings import Failed, Holdings, Waiter
from gossipq.core.delivery.key_order import BACK, DONE, FAILED, KeyOrder
from gossipq.core.delivery.policy import NUMBER_MAX
from gossipq.core.delivery.window import ACKED, MOVED, Lease, LeaseRange, MovingRecords, ReadyRecords
from gossipq.core.ledger import Ledger
from gossipq.core.storage import Intervals
from gossipq.errors import BadRequest, Busy
from gossipq.types import Offset, Origin, PartitionKey, Ranges, SessionId
from gossipq.values import JobResult, Range, ResultRun

MOVING_MS = 20  #: pause before a client asks again for a record that an entry is moving
OVER = -1  #: in place of an attempt number: the record is acked or was removed


class Acks:
    """Ranges that one group and consumer has acked, collected over a turn."""

    __slots__ = ("_found", "_sorted", "ranges", "results", "runs", "waiters")

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.results: list[JobResult] = []  #: of some of these records
        self.runs: list[ResultRun] = []  #: likewise, of neighbours
        self.waiters: list[Waiter] = []
        self._found: dict[PartitionKey, Intervals] = {}  # intervals of the first `_sorted` ranges
        self._sorted = 0

    def add(self, partition: PartitionKey, first: Offset, end: Offset) -> None:
        if self.ranges and self.ranges[-1][0] == partition and self.ranges[-1][2] == first:
            first = self.ranges.pop()[1]
        self.ranges.append((partition, first, end))

    def add_all(self, ranges: list[Range]) -> None:
        self.add(*ranges[0])
        self.ranges += ranges[1:]

    def without(
        self, partition: PartitionKey, parts: list[tuple[Offset, Offset]]
    ) -> list[tuple[Offset, Offset]]:
        """The parts that are not among the ranges. This is rarely asked, so ranges that came since
        the last call are sorted only now.
        """
        for number, first, end in self.ranges[self._sorted :]:
            self._found.setdefault(number, Intervals()).add(first, end)
        self._sorted = max(0, len(self.ranges) - 1)  # the last one may still grow
        found = self._found.get(partition)
        return parts if found is None else [left for part in parts for left in found.missing(*part)]


def _moves(offset: Offset) -> Busy:
    return Busy(f"an entry that moves offset {offset} is being stored", retry_after_ms=MOVING_MS)


def apart(ranges: list[Range]) -> list[Range]:
    """The same records without overlaps, partition by partition. So each record costs once, and a
    look-up is shared by neighbours.
    """
    ends: dict[PartitionKey, Offset] = {}
    last = None
    for partition, first, end in ranges if len(ranges) > 1 else ():
        if partition in ends and (partition != last or first < ends[partition]):
            break
        ends[partition], last = max(end, first), partition
    else:
        return ranges
    found: dict[PartitionKey, Intervals] = {}
    for partition, first, end in sorted(ranges):
        found.setdefault(partition, Intervals()).add(first, end)
    return [(partition, *part) for partition, parts in found.items() for part in parts]


class Settlement:
    """Ends and extends leases for the sessions that hold them, and collects acks for entries."""

    def __init__(self, ledger: Ledger, turn: DeliveryTurn, holdings: Holdings, key_order: KeyOrder) -> None:
        self._ledger = ledger
        self.turn = turn
        self.holdings = holdings
        self.key_order = key_order
        self._acks: dict[tuple[int, str], Acks] = {}
        #: by the same names: acks in entries that are not applied, the oldest first
        self._acking: dict[tuple[int, str], deque[Acks]] = {}

    def _take_held(
        self, view: PartitionView, session: SessionId, low: Offset, high: Offset, waiting: bool = True
    ) -> list[LeaseRange]:
        """End the leases of `session` in [low, high), and return them. The caller moves their
        records. Without `waiting`, leases whose consumer has not seen the records stay.
        """
        mine: list[LeaseRange] = []
        for first, end, state in view.window.overlap(low, high):
            if isinstance(state, Lease) and state.session == session and (waiting or not state.waits):
                mine.append((first, end, state))
                self.holdings.close(state, end - first)
        return mine

    def take_whole_leases(
        self, subscription: Subscription, ranges: list[Range], to: MovingRecords, waiting: bool = False
    ) -> list[tuple[Lease, Ranges, int]] | None:
        """End leases of many ranges at once, and move their records to a state. Acked records leave
        if they have no exception row.

        All ranges must be in one partition, and each within one lease of the subscription's
        session. Otherwise nothing changes, and the result is None.
        """
        if not ranges:
            return None
        (partition, low, _), (_, _, high), group = ranges[0], ranges[-1], subscription.group
        view = group.views.get(partition) if group is not None else None
        state = self._ledger.partitions.get(partition)
        if view is None or state is None or view.keys is not None:
            return None
        end = state.next if view.flows is not None else min(view.window.next, state.next)
        if low < (0 if view.cursor.exceptional else state.first) or high > end:
            return None
        if any(each[0] != partition for each in ranges):
            return None
        found = view.window.take_leased(
            [(first, end) for _, first, end in ranges],
            subscription.session,
            waiting,
            None if to.is_ack and not view.cursor.exceptional else to,
        )
        for lease, _, count in found or ():
            self.holdings.close(lease, count)
        if found is not None:
            self.turn.dirty.add(view.group.id)
        return found

    def ack(
        self,
        subscription: Subscription,
        ranges: list[Range],
        origin: Origin,
        request_id: int,
        unseen: bool = False,
    ) -> None:
        """Acks records. An ack is lost if another consumer holds or has acked the record, or if it
        was never delivered. The last holder may be late: its lease is over, or the leader is new.
        With `unseen` records that were never delivered are acked, too.
        """
        acks = self._acks_of(subscription)
        waiter = Waiter(origin, request_id)
        if self.take_whole_leases(subscription, ranges, ACKED, waiting=True) is not None:
            acks.add_all(ranges)
            acks.waiters.append(waiter)
            subscription.acked += sum([end - first for _, first, end in ranges])
            return
        for view, low, high in self._by_view(subscription, ranges, waiter.lost):
            for first, end in self._finish(view, subscription, low, high, waiter.lost, unseen):
                acks.add(view.partition, first, end)
                subscription.acked += end - first
        acks.waiters.append(waiter)

    def ack_with_results(
        self,
        subscription: Subscription,
        ranges: list[Range],
        results: list[JobResult],
        runs: list[ResultRun],
        origin: Origin,
        request_id: int,
    ) -> None:
        """Ack records as `ack` does. The results of lost records are dropped."""
        self.ack(subscription, ranges, origin, request_id)
        acks = self._acks_of(subscription)
        if not acks.waiters[-1].lost:
            acks.results += results
            acks.runs += runs
            return
        lost: dict[PartitionKey, Intervals] = {}
        for partition, first, end in acks.waiters[-1].lost:
            lost.setdefault(partition, Intervals()).add(first, end)
        acks.results += [each for each in results if each.offset not in lost.get(each.partition, ())]
        for run in runs:
            gone = lost.get(run.partition)
            parts = [(run.first, run.end)] if gone is None else gone.missing(run.first, run.end)
            acks.runs += [run.part(*part) for part in parts]

    def ack_delivered(
        self,
        view: PartitionView,
        consumer: str,
        deliveries: list[tuple[Offset, int]],
        origin: Origin,
        request_id: int,
    ) -> None:
        """Ack deliveries of committed records by (offset, attempt),
        whichever sessions they went to.

        A record is lost to the caller if it was delivered again since, was never delivered, or is a
        dead letter. A record that is acked already, or was removed, counts as acked. Raises Busy,
        before anything changes, while an entry that moves one of the records is being stored.
        """
        waiter, mine = Waiter(origin, request_id), list[Offset]()
        for offset, attempt in deliveries:
            last = self._last_attempt(view, offset)
            if last > attempt:
                waiter.lost.append((view.partition, offset, offset + 1))
            elif last != OVER:
                mine.append(offset)
        acks = self._acks.setdefault((view.group.id, consumer), Acks())
        for offset in mine:
            self.mark_handed_out(view, offset, offset + 1)
            for _, _, lease in view.window.leased(offset, offset + 1):
                self.holdings.close(lease, 1)
            self._let_acked(view, offset, offset + 1)
            acks.add(view.partition, offset, offset + 1)
        self.turn.dirty.add(view.group.id)
        acks.waiters.append(waiter)

    @staticmethod
    def _last_attempt(view: PartitionView, offset: Offset) -> int:
        """The attempt number of a record's last delivery. OVER if it is acked or was removed,
        NUMBER_MAX if it was never delivered or is a dead letter. Raises Busy.
        """
        cursor, end, state = view.cursor, offset + 1, view.window.at(offset)
        if isinstance(state, MovingRecords):
            raise _moves(offset)
        if state is not None:
            return state.attempt if isinstance(state, Lease) else tries.newest(state.tries)
        if cursor.fresh(offset, end):
            if not view.window.new(offset, end):  # it has left because its ack is being stored
                raise _moves(offset)
            # an earlier leader may have delivered it
            return 0 if offset < view.inherited else NUMBER_MAX
        waiting = cursor.exceptions.at(offset) if cursor.exceptional else None
        if waiting is not None:
            return waiting.row.attempts + waiting.row.handed_out
        return NUMBER_MAX if cursor.state.dead and cursor.dead.at(offset) is not None else OVER

    def _acks_of(self, subscription: Subscription) -> Acks:
        assert subscription.group is not None, "readers are refused before"
        return self._acks.setdefault((subscription.group.id, subscription.consumer), Acks())

    def ack_on_delivery(
        self, subscription: Subscription, view: PartitionView, first: Offset, end: Offset
    ) -> None:
        """Acks records on delivery, for subscriptions with at most once."""
        self._acks_of(subscription).add(view.partition, first, end)
        view.window.move(first, end, ACKED)
        self.key_order.release_keys(view, first, end, DONE, held=False)

    @staticmethod
    def _let_acked(view: PartitionView, first: Offset, end: Offset) -> None:
        """Take acked records out of the window. Records that may have an exception row stay until the entry
        is applied, because the row would redeliver them when it is due.
        """
        view.window.move(first, end, ACKED if view.cursor.exceptional else None)

    def _finish(
        self,
        view: PartitionView,
        subscription: Subscription,
        low: Offset,
        high: Offset,
        lost: list[Range],
        unseen: bool,
    ) -> Iterator[tuple[Offset, Offset]]:
        """Yield the parts of [low, high) that this ack finishes, and let them leave. The other parts
        are added to `lost`.
        """
        window, known = view.window, NUMBER_MAX if unseen else view.inherited
        self.mark_handed_out(view, low, min(high, known))
        self.turn.dirty.add(view.group.id)
        to = ACKED if view.cursor.exceptional else None
        taken = window.take_leased([(low, high)], subscription.session, waiting=True, to=to)
        if taken is not None:  # the usual case: one lease of the session has all of it
            self.holdings.close(taken[0][0], high - low)
            yield low, high
            return
        had, delivered, kept = Intervals(), Intervals(), Intervals()
        for first, end, state in window.overlap(low, high):
            if isinstance(state, Lease):
                if state.session == subscription.session:
                    self.holdings.close(state, end - first)
                    had.add(first, end)
                else:
                    kept.add(first, end)  # another session holds it
            elif isinstance(state, MovingRecords):
                (had if state.is_ack else kept).add(first, end)  # an ack is repeated, or comes too late
            elif state.tries:
                delivered.add(first, end)  # its lease has ended, and it waits for the next one
        if had.total() < high - low:
            for first, end in self._find_lost(
                view, subscription.consumer, low, high, known, had, [*delivered, *kept]
            ):
                kept.add(first, end)
        lost += [(view.partition, first, end) for first, end in kept]
        for first, end in kept.missing(low, high):
            self._let_acked(view, first, end)
            yield first, end

    def _find_lost(
        self,
        view: PartitionView,
        consumer: str,
        low: Offset,
        high: Offset,
        known: Offset,
        had: Intervals,
        delivered: Ranges,
    ) -> Ranges:
        """Find the records of [low, high) whose ack is lost by what the ledger knows of them. The
        consumer `had` some; others were `delivered`, as far as memory knows.

        An earlier leader may have delivered everything below `known` without an entry: short leases
        are not logged. A leader that is cut off delivers until its own lease ends. Only entries
        move the cursor, so its window ended where the window that this leader found ends
        (`PartitionView.inherited`).
        """
        cursor = view.cursor
        lost: Ranges = []
        # open records are lost if nobody ever had them, unless this ack is a repetition
        first_open = max(low, known, cursor.state.cursor)
        fresh = cursor.fresh(first_open, high) if first_open < high else []
        if fresh:
            seen = Intervals()
            for part in (*had, *delivered):
                seen.add(*part)
            never = [part for first, end in fresh for part in seen.missing(first, end)]
            lost += self._not_repeated(view, consumer, never) if never else []
        # passed records are lost, unless their row tells of a delivery or this consumer acked them
        if low >= cursor.state.cursor and not cursor.passed.starts:
            return lost
        passed = [(low, min(high, cursor.state.cursor)), *cursor.passed.overlap(low, high)]
        fine, passed_end = Intervals(), passed[-1][1]
        for part in had:
            fine.add(*part)
        rows = cursor.exceptions.within(low, passed_end) if cursor.exceptional and low < passed_end else ()
        for found in islice(rows, limits.RANGES_MAX):
            if found.row.attempts or found.row.handed_out or found.first < known:
                fine.add(found.first, found.end)
        for first, row in islice(cursor.acks.within(low, passed_end), limits.RANGES_MAX):
            if row.consumer == consumer:
                fine.add(max(first, low), min(row.end, passed_end))
        return lost + [part for first, end in passed for part in fine.missing(first, end)]

    def _not_repeated(self, view: PartitionView, consumer: str, parts: Ranges) -> Ranges:
        """Return the parts without those that this consumer acked by an entry on its way: an ACK
        may be repeated.
        """
        name = view.group.id, consumer
        for acks in (*self._acking.get(name, ()), self._acks[name]):
            parts = acks.without(view.partition, parts)
        return parts

    @staticmethod
    def mark_handed_out(view: PartitionView, low: Offset, end: Offset) -> None:
        """Treat new records below `end` as delivered, since a consumer has [low, end)."""
        window = view.window
        if end > window.next:
            if view.flows is None:  # otherwise records are delivered in any order
                for first, stop in window.new(window.next, min(low, end)):
                    window.move(first, stop, ReadyRecords(0))
            for first, stop in window.new(low, end):
                window.move(first, stop, ReadyRecords(1))

    def nack(
        self,
        subscription: Subscription,
        ranges: list[Range],
        waiter: Waiter,
        delay_ms: int,
        failed: bool,
        reason: str,
        dead: str,
    ) -> None:
        """Ends an attempt, counted or not, with a pause or without. Records that the
        session does not hold are lost.
        """
        plain = not failed and not dead and delay_ms <= 0
        counted = failed or bool(dead)
        ended = partial(Failed, delay_ms=delay_ms, counted=counted, dead=dead, waiter=waiter)
        taken = None if plain else self.take_whole_leases(subscription, ranges, MOVED)
        for lease, parts, count in taken or ():
            subscription.failed += count if failed or dead else 0
            whole = lease.view, parts[0][0], parts[-1][1], lease.attempt
            self.holdings.queue_failure(
                ended(*whole, subscription.consumer, reason, ranges=parts if len(parts) > 1 else ())
            )
        if taken is not None:
            return
        for view, low, high in self._by_view(subscription, ranges, waiter.lost):
            mine = self._take_held(view, subscription.session, low, high, waiting=False)
            if len(mine) != 1 or mine[0][:2] != (low, high):
                gaps = Intervals([(first, end) for first, end, _ in mine]).missing(low, high)
                waiter.lost += [(view.partition, *gap) for gap in gaps]
            for first, end, lease in mine:
                if plain:
                    self.key_order.release_keys(view, first, end, BACK)
                    self.holdings.give_back(view, first, end, lease.tries)
                else:
                    self.key_order.release_keys(view, first, end, FAILED)
                    subscription.failed += end - first if failed or dead else 0
                    self.holdings.fail(ended(view, first, end, lease.attempt, subscription.consumer, reason))

    def start(self, subscription: Subscription, ranges: list[Range]) -> None:
        """Notes that user code has begun these records: they count as an
        attempt when their lease ends.
        """
        begun: dict[Lease, list[tuple[Offset, Offset]]] = {}
        for view, low, high in self._by_view(subscription, ranges):
            for first, end, lease in view.window.leased(low, high):
                if lease.session == subscription.session and not lease.started:
                    begun.setdefault(lease, []).append((first, end))
        for old, parts in begun.items():
            view, count = old.view, sum([end - first for first, end in parts])
            if count == old.open and old.owner == subscription.name:
                self.holdings.mark_started(old)
            else:
                lease = self._renewed(subscription, view, old)
                lease.started = True
                self.holdings.close(old, count)
                self.holdings.lease_all(view, parts, lease, old.deadline_ms)
            for first, end in parts:  # the records between may belong to the leases of many others
                self.holdings.log_later(view, first, end)
            self.turn.dirty.add(view.group.id)

    def extend(
        self, subscription: Subscription, ranges: list[Range], lease_ms: int, boot_ms: int
    ) -> list[Range]:
        """Moves deadlines, up to the longest lease allowed. Returns the ranges that
        the session no longer holds.
        """
        lost: list[Range] = []
        for view, low, high in self._by_view(subscription, ranges, lost):
            at = low
            for first, end, old in view.window.leased(low, high):
                if at < first:
                    lost.append((view.partition, at, first))
                at = end
                if old.session != subscription.session:
                    lost.append((view.partition, first, end))
                    continue
                deadline_ms = min(boot_ms + lease_ms, old.since_ms + limits.LEASE_TOTAL_MS_MAX)
                self.holdings.replace(
                    view, first, end, old, self._renewed(subscription, view, old), deadline_ms
                )
            if at < high:
                lost.append((view.partition, at, high))
        return lost

    @staticmethod
    def _renewed(subscription: Subscription, view: PartitionView, old: Lease) -> Lease:
        lease = Lease(
            view, subscription.session, subscription.number, subscription.consumer, old.attempt, old.since_ms
        )
        lease.started = old.started
        lease.run = old.run
        lease.waits = old.waits
        lease.before = old.before
        return lease

    @staticmethod
    def holds(subscription: Subscription, partition: PartitionKey, offset: Offset) -> bool:
        """True if the session holds this record."""
        view = subscription.group.views.get(partition) if subscription.group is not None else None
        lease = view.window.at(offset) if view is not None else None
        return isinstance(lease, Lease) and lease.session == subscription.session

    def holds_all(self, subscription: Subscription, ranges: list[Range]) -> bool:
        """True if the session holds every record of the ranges."""
        found = 0
        for view, low, high in self._by_view(subscription, ranges):
            rows = view.window.leased(low, high)
            found += sum(end - first for first, end, lease in rows if lease.session == subscription.session)
        return found == sum(end - first for _, first, end in apart(ranges))

    def take(
        self, subscription: Subscription, ranges: list[Range]
    ) -> list[tuple[PartitionView, Offset, Offset, Lease]]:
        """An entry that acks these records is on its way. Returns the
        leases to restore if it fails.
        """
        taken = []
        for view, low, high in self._by_view(subscription, ranges):
            for first, end, lease in self._take_held(view, subscription.session, low, high):
                view.window.move(first, end, MOVED)
                taken.append((view, first, end, lease))
        return taken

    def taken(self, taken: list[tuple[PartitionView, Offset, Offset, Lease]], done: bool) -> int:
        """That entry is applied: acks the records, or gives back those that are still open, because
        it was refused or was a repeat that acked nothing. Returns how many are acked.
        """
        count = 0
        for view, first, end, lease in taken:
            cursor, left = view.cursor, Intervals()
            for low, high in cursor.fresh(first, end):
                left.add(low, high)
            for found in cursor.exceptions.within(first, end) if cursor.exceptional else ():
                left.add(found.first, found.end)
            self.holdings.entry_applied(view, [(first, end)])
            for low, high in left.missing(first, end):
                self.key_order.release_keys(view, low, high, DONE)
                count += high - low
            for low, high in left:
                self.key_order.release_keys(view, low, high, BACK)
                self.holdings.give_back(view, low, high, lease.tries)
        return count if done else 0

    def keep_claimed(
        self,
        subscription: Subscription,
        view: PartitionView,
        kept: Intervals,
        boot_ms: int,
        lease_ms: int,
    ) -> None:
        """After a lost connection the client keeps what it still holds, unless other consumers hold
        it; its other records are given back.
        """
        before = self.holdings.leases_of(subscription.name) + self.holdings.leases_of(
            (subscription.session, UNKNOWN_NUMBER)
        )
        for low, high, lease in self.holdings.parts_of([lease for lease in before if lease.view is view]):
            for first, end in kept.missing(low, high):
                self.key_order.release_keys(view, first, end, BACK)
                self.holdings.close(lease, end - first)
                self.holdings.give_back(view, first, end, lease.tries)
        for first, end in kept:
            # the records between were delivered, too, and lost
            self.mark_handed_out(view, view.window.next, min(end, view.inherited))
            for low, high, state in view.window.overlap(first, end):
                if not isinstance(state, ReadyRecords):
                    continue
                if not state.tries:  # the rest was never delivered, and a claim cannot change that
                    high = min(high, max(low, view.inherited))
                barred = self._barred(view, subscription.session, low, high)
                for start, stop in barred.missing(low, high):
                    lease = Lease(
                        view,
                        subscription.session,
                        subscription.number,
                        subscription.consumer,
                        max(1, tries.newest(state.tries)),
                        boot_ms,
                    )
                    lease.started = tries.begun(state.tries) == lease.attempt
                    self.holdings.lease(view, start, stop, lease, boot_ms + lease_ms)
                    self.key_order.take_keys(view, start, stop, lease)

    def _barred(self, view: PartitionView, session: SessionId, low: Offset, high: Offset) -> Intervals:
        """The part of [low, high) that a claim must not take, because other consumers
        have records of its keys now.
        """
        found = Intervals()
        if view.keys is None:
            return found
        for at, key_hash in self.key_order.hashes(view, low, high):
            if view.keys.barred(key_hash, at, session):
                found.add(at, at + 1)
        return found

    def _by_view(
        self, subscription: Subscription, ranges: list[Range], lost: list[Range] | None = None
    ) -> Iterator[tuple[PartitionView, Offset, Offset]]:
        """Ranges by view, as far as the records exist; others are added to `lost`, except those
        that retention removed completely. Raises BadRequest before the first range.
        """
        assert subscription.group is not None, "readers are refused before"
        ranges = apart(ranges)
        for _, low, high in ranges:
            if low < 0 or high > NUMBER_MAX:
                raise BadRequest(f"range {low} to {high}", hint=f"offsets are 0 to {NUMBER_MAX}")
        for partition, low, high in ranges:
            view, state = subscription.group.views.get(partition), self._ledger.partitions.get(partition)
            if view is None or state is None:
                if lost is not None and low < high:
                    lost.append((partition, low, high))
                continue
            if lost is not None and max(low, state.next) < high:
                lost.append((partition, max(low, state.next), high))
            low, high = max(low, 0), min(high, state.next)
            if low < (removed := min(high, state.first)):
                yield from self._removed(view, low, removed, lost)
                low = removed
            if low < high:
                yield view, low, high

    @staticmethod
    def _removed(
        view: PartitionView, low: Offset, high: Offset, lost: list[Range] | None
    ) -> Iterator[tuple[PartitionView, Offset, Offset]]:
        """Of records that retention removed, yields those that still wait: they were dead letters,
        which have a body. Dead letters are added to `lost`, acked records are not. It looks at a
        bounded number of rows and adds the rest to `lost`.
        """
        cursor, most = view.cursor, limits.RANGES_MAX
        waiting: list[tuple[Offset, Offset]] = []
        if cursor.exceptional:
            waiting = [(row.first, row.end) for row in islice(cursor.exceptions.within(low, high), most)]
        if lost is not None:
            letters: list[tuple[Offset, Offset]] = []
            if cursor.state.dead:
                letters = [(row.first, row.end) for row in islice(cursor.dead.within(low, high), most)]
            rests = [(some[-1][1], high) for some in (letters, waiting) if len(some) == most]
            lost += [(view.partition, *each) for each in (*letters, *rests)]
        for first, end in waiting:
            yield view, first, end

    def take_acks(self) -> dict[tuple[int, str], Acks]:
        taken, self._acks = self._acks, {}
        for name, acks in taken.items():
            if acks.ranges:
                self._acking.setdefault(name, deque()).append(acks)
        return taken

    def ack_applied(self, name: tuple[int, str]) -> None:
        """The oldest of these entries is applied."""
        entries = self._acking.get(name)
        if entries is not None:
            entries.popleft()
            if not entries:
                del self._acking[name]

    def waiters(self) -> list[Waiter]:
        """Requests that wait for changes which are not in the log yet."""
        found = [waiter for acks in self._acks.values() for waiter in acks.waiters]
        return found + [each.waiter for each in self.holdings.failed if each.waiter is not None]
