"""Find records that have expired, wherever they wait: behind a record that lives, given back, behind their
key, until their next attempt, in a paused group.

Records that expire by the time to live of their topic do so in order, so a look ends at the first one that
lives. For records with a time to live of their own, each slice is read once, and again when its first record
expires. Partitions without such records are not looked at.
"""

from collections.abc import Iterable
from itertools import groupby

from gossipq.core.delivery import tries
from gossipq.core.delivery.attempts import expiry_times
from gossipq.core.delivery.consumers import DeliveryTurn, ExpirySpans, PartitionView, place_of
from gossipq.core.delivery.holdings import Holdings
from gossipq.core.delivery.window import ReadyRecords, WaitingRecords
from gossipq.core.ledger import Ledger, PartitionState
from gossipq.core.storage import Intervals, RangeMap
from gossipq.types import Offset, PartitionKey

SPAN_SLICES = 64  #: slices of a span
SLICES_PER_LOOK = 512  #: slices of all groups of a shard that one turn reads: about 5 ms
SPANS_KEPT = 64  #: spans of a group that are kept without a check whether their records are done


class Expiry:
    def __init__(self, ledger: Ledger, turn: DeliveryTurn, holdings: Holdings) -> None:
        self._ledger = ledger
        self.turn = turn
        self.holdings = holdings
        self._looks = 0  # slices that this turn may still read
        self.is_behind = False  #: a look was cut short, and another turn must continue it

    def concerns(self, partition: PartitionKey) -> bool:
        """Return whether records of a partition may expire."""
        state = self._ledger.partitions[partition]
        return state.expiring > state.first or self._ledger.config(partition).ttl_ms > 0

    def look(self, views: Iterable[PartitionView]) -> None:
        """Bury what has expired in these groups, as far as a turn goes."""
        self._looks = SLICES_PER_LOOK
        self.is_behind = False
        for view in views:
            self._look_at(view, self._ledger.partitions[view.partition])

    def _look_at(self, view: PartitionView, state: PartitionState) -> None:
        ttl_ms = self._ledger.config(view.partition).ttl_ms
        done = max(state.first, view.cursor.done_below())
        known = view.spans
        if known is None or known.ttl_ms != ttl_ms:
            known = view.spans = ExpirySpans(done, ttl_ms)
        known.spans.clear(0, done)
        known.next = max(known.next, done)
        while known.back and not self._stops():
            first, end = known.back.starts[0], known.back.ends[0]
            stop = self._read(view, known, first, min(end, known.next))
            known.back.drop_below(stop if first < stop < end else end)
        now_ms = self.turn.leader_ms
        due = [(first, end) for first, end, at_ms in known.spans if at_ms <= now_ms]
        for first, end in due:
            if self._stops():
                return
            self._read(view, known, first, end)
        while known.next < state.next and not self._stops():
            first = self._next_waiting(view, known.next, state.next)
            if first >= state.next or not self._may_expire(view, state, first):
                known.next = first
                break
            known.next = self._read(view, known, first, state.next)
        self._forget(view, known)

    def _stops(self) -> bool:
        """Return whether another turn must continue this look."""
        stops = self._looks <= 0 or self.holdings.overdue
        self.is_behind |= stops
        return stops

    def _may_expire(self, view: PartitionView, state: PartitionState, first: Offset) -> bool:
        """Return whether the slice at `first` has to be read now. Behind the last record with a time to live
        of its own, records expire in order."""
        if first < state.expiring:
            return True
        part = self._ledger.slices.at(view.partition, first)
        ttl_ms = self._ledger.config(view.partition).ttl_ms
        return part is None or 0 < ttl_ms <= self.turn.leader_ms - part.time_ms

    @staticmethod
    def _next_waiting(view: PartitionView, first: Offset, end: Offset) -> Offset:
        """The first record in [first, end) that is not done; `end` if all are."""
        cursor = view.cursor
        fresh = cursor.passed.gap(max(first, cursor.state.cursor), end)
        found = [end if fresh is None else fresh[0]]
        rows = cursor.exceptions.within(first, found[0]) if cursor.exceptional else iter(())
        return min(found + [row.first for row in rows][:1])

    def _read(self, view: PartitionView, known: ExpirySpans, first: Offset, end: Offset) -> Offset:
        """Read the first slices of [first, end), bury their expired records, and note when the next one
        expires. Returns where these slices end."""
        stop = first
        for _ in range(SPAN_SLICES):
            part = self._ledger.slices.at(view.partition, stop) if stop < end else None
            if part is None:
                break
            stop = min(end, part.end)
            self._looks -= 1
        known.spans.clear(first, stop)
        later_ms = self._bury(view, first, stop)
        if later_ms:
            known.spans.set(first, stop, min(later_ms))
        return stop

    def _bury(self, view: PartitionView, first: Offset, end: Offset) -> list[int]:
        """Bury the expired records of [first, end). Returns the times at which the others expire."""
        later_ms: list[int] = []
        for low, high, tried in self._waiting(view, first, end):
            at = low
            while at < high:
                place = place_of(self._ledger, view.cursor, view.partition, at)
                if place is None:
                    break  # retention was faster
                stop = min(high, place.end)
                times_ms = expiry_times(self._ledger, view, place, stop - at, tried)
                for expiry_ms, same in groupby(times_ms):
                    stop = at + sum(1 for _ in same) if len(times_ms) > 1 else stop
                    if 0 < expiry_ms <= self.turn.leader_ms:
                        self.holdings.bury_expired(view, at, stop, tried)
                    elif expiry_ms:
                        later_ms.append(expiry_ms)
                    at = stop
        return later_ms

    def _waiting(self, view: PartitionView, first: Offset, end: Offset) -> list[tuple[Offset, Offset, int]]:
        """Records of [first, end) that are not leased: ranges in order, each with its tries."""
        voids = self._ledger.voids.get(view.partition)
        states = view.window.overlap(first, end)
        found = [
            (low, high, state.tries)
            for low, high, state in states
            if isinstance(state, (ReadyRecords, WaitingRecords))
        ]
        for low, high in view.window.new(first, end):
            left = [(low, high)] if voids is None else voids.missing(low, high)
            found += [(*part, 0) for part in left]
        if view.cursor.exceptional:
            known = Intervals()
            for low, high, _ in [*states, *found]:
                known.add(low, high)
            for row in view.cursor.exceptions.within(first, end):  # they wait on disk
                tried = tries.after(row.row.attempts + row.row.handed_out, not row.row.handed_out)
                found += [(*part, tried) for part in known.missing(row.first, row.end)]
        return sorted(found)

    def _forget(self, view: PartitionView, known: ExpirySpans) -> None:
        """Drop spans without an open record, if there are many spans."""
        if len(known.spans) <= known.spans_max:
            return
        kept: RangeMap[int] = RangeMap()
        for first, end, due_ms in known.spans:
            if self._next_waiting(view, first, end) < end:
                kept.set(first, end, due_ms)
        known.spans, known.spans_max = kept, 2 * len(kept) + SPANS_KEPT
