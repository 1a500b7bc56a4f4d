"""Chooses many records in turn for one consumer, and joins the records of a batch into one part.

Records of flows that alternate in a batch would each be a part: with a lease, a row in DELIVER and a cut
batch of its own. So new records without special cases are chosen here, as many as the consumer may get. They
are leased together, and those of one batch are one part with gaps. The selector chooses all other records,
one run after the other.
"""

from collections.abc import Iterator

from gossipq.core.delivery.attempts import Attempts
from gossipq.core.delivery.consumers import DeliveryTurn, Part, PartitionView, Subscription, place_of
from gossipq.core.delivery.flows import NONE, FlowIndex
from gossipq.core.delivery.holdings import Holdings
from gossipq.core.delivery.window import NEW, Lease
from gossipq.core.ledger import Ledger
from gossipq.core.storage import Intervals, melted
from gossipq.limits import RANGES_MAX
from gossipq.types import LEASE, TTL, Offset, Ranges, Slice

#: a record comes before its turn by less than this part of a delivery, to join others of its batch; a fetch
#: gets all of its records at once, so their order is free inside a priority
SHIFT_PART = 8


class FlowPicks:
    """Chooses and leases records in turn."""

    def __init__(self, ledger: Ledger, turn: DeliveryTurn, attempts: Attempts, holdings: Holdings) -> None:
        self._ledger = ledger
        self._turn = turn
        self._attempts = attempts
        self._holdings = holdings

    def hand(
        self, view: PartitionView, flows: FlowIndex, member: Subscription, sharers: int, room: int
    ) -> tuple[list[Part], int]:
        """Return parts of the next new records, at most `room`, and their lease in milliseconds. Without
        parts, the next record needs a look of its own. `sharers` members share the records.
        """
        level, room = flows.top, min(room, member.most_records, RANGES_MAX)
        if level is None or room <= 0 or self._turn.looks <= 0 or not member.ack or member.auto:
            return [], 0
        if sharers > 1:
            waiting = level.count if flows.bounds is None else len(level.turns)
            room = min(room, max(1, -(-waiting // sharers)))
        if self._is_plain(view, flows, member):
            chunks = [self._take(view, flows, member, min(room, member.credit_bytes // flows.record_bytes))]
        else:
            chunks = self._choose(view, flows, member, room)
        if member.fetches:  # in any order inside a priority
            chunks = [_joined(chunk) for chunk in chunks if chunk]
        ranges = chunks[0] if len(chunks) == 1 else [each for chunk in chunks for each in chunk]
        if not ranges:
            return [], 0
        count = sum([end - first for first, end in ranges])
        spread = None if member.fetches else count // SHIFT_PART
        parts = self._parts(view, chunks, spread, member.gaps)
        member.spend_some(count, 0)
        member.credit_bytes -= sum([part.charge for part in parts])
        self._turn.delivered += count
        view.delivered += count
        if view.group.limits is not None:
            view.group.limits.delivered(count, self._turn.boot_ms)
        if spread is not None or len(chunks) > 1:
            ranges = _joined(ranges)
        return parts, self._lease(view, member, ranges)

    def _lease(self, view: PartitionView, member: Subscription, ranges: Ranges) -> int:
        place = place_of(self._ledger, view.cursor, view.partition, ranges[0][0])
        assert place is not None, "records that are new exist"
        lease_ms, boot_ms = self._attempts.policy(view, place).lease_ms, self._turn.boot_ms
        lease = Lease(view, member.session, member.number, member.consumer, 1, boot_ms)
        lease.failed = False
        self._holdings.lease_new(view, ranges, lease, boot_ms + lease_ms)
        return lease_ms

    def _is_plain(self, view: PartitionView, flows: FlowIndex, member: Subscription) -> bool:
        """True if no record that may be next needs a look of its own."""
        ledger, partition = self._ledger, view.partition
        limited = flows.bounds is not None or flows.age_after_ms or ledger.config(partition).ttl_ms
        special = not flows.is_plain or view.cursor.exceptional or partition in ledger.voids
        return not (limited or special or view.window.ready.starts or member.matches is not None)

    def _take(self, view: PartitionView, flows: FlowIndex, member: Subscription, room: int) -> Ranges:
        """Take the next records from the index, of one priority."""
        found = flows.take(room, member.fetches)
        self._turn.looks -= len(found)
        if not found:
            return found
        ranges, low = melted(sorted(found)), self._ledger.partitions[view.partition].first
        if ranges is not None and ranges[0][0] >= low and view.window.are_new(ranges):
            return ranges if member.fetches else found
        kept, seen = Ranges(), Intervals()  # some have left, or came back and are in the index twice
        for first, end in found:
            for start, stop in view.window.new(first, end):
                if start < low:
                    view.window.move(start, min(stop, low), None)
                kept += seen.missing(max(start, low), stop)
                seen.add(max(start, low), stop)
        return kept

    def _choose(self, view: PartitionView, flows: FlowIndex, member: Subscription, room: int) -> list[Ranges]:
        """Like `_take`, record by record, until one needs a look of its own. One list for each priority."""
        turn, window, left_bytes, found = self._turn, view.window, member.credit_bytes, list[Ranges]()
        has_special = view.cursor.exceptional or view.partition in self._ledger.voids
        part: Slice | None = None
        seen, priority, low, high, record_bytes = Intervals(), NONE, 0, 0, 0
        while room > 0 and turn.looks > 0 and (run := flows.head(turn.boot_ms, turn.leader_ms)) is not None:
            free = window.first_free(run.first, run.end)
            if free is None or free[1] > run.first:
                flows.drop(run, run.end if free is None else free[1])
                continue
            state, first, end, _ = free
            if state is not NEW:
                break
            if not low <= first < high:
                part = self._slice(view, member, first)
                if part is not None:
                    low, high, record_bytes = part.offset, part.end, -(-part.size // part.batch_count)
            if part is None or (has_special and self._is_special(view, first, end)):
                break
            affordable = max(left_bytes // record_bytes, 0 if found else 1)
            end = min(end, high, first + room, first + affordable)
            if end <= first:
                break
            unseen = seen.gap(first, end)
            if unseen is None or unseen[0] > first:  # it came back, and is in the index twice
                flows.drop(run, end if unseen is None else unseen[0])
                continue
            end = unseen[1]
            seen.add(first, end)
            flows.drop(run, end, end - first)
            if view.flow_limits is not None:
                view.flow_limits.pick(run.flow, first, end, turn.boot_ms)
            if run.priority != priority:
                priority = run.priority
                found.append([])
            found[-1].append((first, end))
            turn.looks -= 1
            room -= end - first
            left_bytes -= (end - first) * record_bytes
        return found

    def _parts(self, view: PartitionView, chunks: list[Ranges], spread: int | None, gaps: bool) -> list[Part]:
        """Return ranges as parts, in order. Of each `spread` records, those of a batch come together; None:
        of all, and the chunks rise. Without `gaps`, a part is one range.
        """
        found: list[tuple[Slice, Ranges]] = []
        for chunk in chunks:
            for some in [chunk] if spread is None else map(_joined, _spread(chunk, spread)):
                for part, ranges in self._by_slice(view, some):
                    last = found[-1] if found else None
                    if last is not None and last[0] == part and last[1][-1][1] <= ranges[0][0]:
                        found[-1] = part, _joined(last[1] + ranges)
                    else:
                        found.append((part, ranges))
        parts = list[Part]()
        for part, all_ranges in found:
            for ranges in [all_ranges] if gaps else [[each] for each in all_ranges]:
                first, count = ranges[0][0], sum([end - low for low, end in ranges])
                record, charge = part.first + first - part.offset, count * -(-part.size // part.batch_count)
                whole = count == part.batch_count
                name = view.partition, first, part.index, record, count, whole, 1, charge, part.time_ms
                parts.append(Part(*name, ranges if len(ranges) > 1 else []))
        return parts

    def _by_slice(self, view: PartitionView, ranges: Ranges) -> Iterator[tuple[Slice, Ranges]]:
        """Yield rising ranges by the slices that have them."""
        part, high, some = None, 0, Ranges()
        for first, end in ranges:
            while first < end:
                if part is None or first >= high:
                    if part is not None:
                        yield part, some
                    part, some = self._ledger.slices.at(view.partition, first), []
                    assert part is not None, "records that are new exist"
                    high = part.end
                some.append((first, min(end, high)))
                first = min(end, high)
        if part is not None:
            yield part, some

    def _slice(self, view: PartitionView, member: Subscription, offset: Offset) -> Slice | None:
        """Return the slice of a record. None if its records need a look of their own."""
        ledger, partition = self._ledger, view.partition
        part = ledger.slices.at(partition, offset) if offset >= ledger.partitions[partition].first else None
        if part is None or part.columns & (LEASE | TTL):
            return None
        if member.matches is not None and not member.matches(part.route):
            return None
        ttl_ms = ledger.config(partition).ttl_ms
        return None if ttl_ms and part.time_ms + ttl_ms <= self._turn.leader_ms else part

    def _is_special(self, view: PartitionView, first: Offset, end: Offset) -> bool:
        """True if some of these records are void, or have a row on disk."""
        voids = self._ledger.voids.get(view.partition)
        if voids is not None and voids.reaches(first, end):
            return True
        return view.cursor.exceptional and view.cursor.fresh(first, end) != [(first, end)]


def _spread(ranges: Ranges, count: int) -> Iterator[Ranges]:
    """Yield runs of ranges that have at most `count` records, or are one range."""
    some, left = Ranges(), count
    for first, end in ranges:
        if some and end - first > left:
            yield some
            some, left = [], count
        some.append((first, end))
        left -= end - first
    if some:
        yield some


def _joined(ranges: Ranges) -> Ranges:
    """Return ranges in rising order. Neighbours and repeated records are joined."""
    ranges = sorted(ranges)
    apart = melted(ranges)
    if apart is not None:
        return apart
    found = Ranges()
    low = high = NONE
    for first, end in ranges:
        if first > high or not found:
            low, high = first, end
            found.append((low, high))
        elif end > high:
            high = end
            found[-1] = low, high
    return found
