"""Fills the index of flows of a view: with new records, and with those that came back.

A new leader reads the backlog anew, and so does a group whose order changes while it runs. Each turn adds a
bounded part, so the leader serves from the start. Records are chosen among those that are in the index.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby, repeat

from gossipq.core.delivery.consumers import DeliveryTurn, Group, PartitionView, place_of
from gossipq.core.delivery.flow_limits import FlowLimits, GroupLimits
from gossipq.core.delivery.flows import FlowIndex
from gossipq.core.delivery.limit_division import Pair
from gossipq.core.ledger import Ledger
from gossipq.limits import PRIORITY
from gossipq.types import FLOW_HASH, LEASE, TTL, Index, Offset, Slice
from gossipq.types import PRIORITY as PRIORITY_COLUMN

FEED_SLICES = 1_024  #: slices that one turn adds to the index of a view: about 5 ms
BACK_RANGES = 1_024  #: ranges that came back, of which one turn adds as many

FlowRange = tuple[int, int, Offset, Offset]  #: priority, flow, first, end


class FlowFeed:
    def __init__(self, ledger: Ledger, turn: DeliveryTurn) -> None:
        self._ledger, self._turn = ledger, turn
        #: groups whose limits are divided among the leaders of several shards, by id
        self.divided: dict[int, Group] = {}
        self.wants_more = False  #: records of one of them wait for a larger part

    def index(self, view: PartitionView) -> None:
        """Begin or end the index of flows of a view, and the limits, as the policy of its group says."""
        group, config = view.group, view.group.state.config
        view.index_flows()
        if view.flow_limits is not None and config.flow_concurrency:
            view.window.slots = FlowSlots(self, view, view.flow_limits)
        if group.limits is None and (config.concurrency or config.rate.records):
            shards = set(self._ledger.topics[group.state.topic_id].shards)
            group.limits = GroupLimits(config, len(shards) if self._ledger.shard in shards else 1)
        if group.limits is not None and group.limits.shards > 1:
            self.divided[group.id] = group
        elif group.id in self.divided:
            del self.divided[group.id]

    def allot(self, group: Group, part: Pair) -> None:
        """Let a group have this part of its limits, beside its floor, from now on."""
        if group.limits is not None and group.limits.allot(part, self._turn.boot_ms):
            self._turn.dirty.add(group.id)

    def feed(self, view: PartitionView, flows: FlowIndex, leader_ms: int) -> bool:
        """Add records to the index. Returns whether it has all of them."""
        state = self._ledger.partitions[view.partition]
        flows.next = max(flows.next, state.first)
        is_whole = self._add_back(view, flows, leader_ms)
        for _ in range(FEED_SLICES):
            part = self._ledger.slices.at(view.partition, flows.next) if flows.next < state.next else None
            if part is None:
                return is_whole
            ready = [(first, end) for first, end, _ in view.window.ready.overlap(flows.next, part.end)]
            for first, end in sorted(view.window.new(flows.next, part.end) + ready):
                self._add(flows, part, first, end)
            flows.is_plain = flows.is_plain and not part.columns & (LEASE | TTL)
            flows.record_bytes = max(flows.record_bytes, -(-part.size // part.batch_count))
            flows.next = part.end
        return False

    def _add(self, flows: FlowIndex, part: Slice, first: Offset, end: Offset) -> None:
        """Add the records [first, end) of a slice, those of each flow at once."""
        shift = part.first - part.offset
        of_level, of_flow = self._columns(flows, part.index, part.columns, first + shift, end + shift)
        if of_level is None:
            if of_flow is None or of_flow.count(of_flow[0]) == end - first:
                flows.append(PRIORITY, of_flow[0] if of_flow else 0, first, end, part.time_ms)
                return
            found = defaultdict[int, list[Offset]](list)
            for offset, flow in enumerate(of_flow, first):
                found[flow].append(offset)
            for flow, offsets in found.items():
                flows.append_all(PRIORITY, flow, offsets, part.time_ms)
            return
        by_level = defaultdict[tuple[int, int], list[Offset]](list)
        for offset, level_and_flow in enumerate(zip(of_level, of_flow or repeat(0), strict=False), first):
            by_level[level_and_flow].append(offset)
        for (priority, flow), offsets in by_level.items():
            flows.append_all(priority, flow, offsets, part.time_ms)

    def _columns(
        self, flows: FlowIndex, entry: Index, columns: int, low: int, high: int
    ) -> tuple["array[int] | None", "array[int] | None"]:
        """Return priorities and hashes of flows of the records from `low` to `high` of a batch. None: each
        has the same.
        """
        column = self._ledger.opened.column
        priorities = column(entry, PRIORITY_COLUMN) if columns & PRIORITY_COLUMN else None
        hashes = column(entry, FLOW_HASH) if flows.by_flow and columns & FLOW_HASH else None
        return priorities and priorities[low:high], hashes and hashes[low:high]

    def _add_back(self, view: PartitionView, flows: FlowIndex, leader_ms: int) -> bool:
        """Add records that came back, ahead of the others of their flows. Returns whether these are all."""
        came = view.window.came
        assert came is not None, "a window with an index notes which records come back"
        some = sorted(came[:BACK_RANGES])
        del came[:BACK_RANGES]
        found: list[FlowRange] = []
        for first, end in some:
            for low, high, _ in view.window.ready.overlap(first, min(end, flows.next)):
                found += self.runs_of(view, flows, low, high)
        for run in reversed(found):
            flows.put_first(*run, leader_ms)
        return not came

    def runs_of(
        self, view: PartitionView, flows: FlowIndex, first: Offset, end: Offset
    ) -> Iterator[FlowRange]:
        """Yield the records [first, end) as runs of one flow each."""
        while first < end:
            place = place_of(self._ledger, view.cursor, view.partition, first)
            if place is None:
                yield PRIORITY, 0, first, first + 1  # it has left, which the selector finds out
                first += 1
                continue
            stop = min(end, place.end)
            yield from self._runs(flows, place.entry, place.columns, place.record - first, first, stop)
            first = stop

    def _runs(
        self, flows: FlowIndex, entry: Index, columns: int, shift: int, first: Offset, end: Offset
    ) -> Iterator[FlowRange]:
        """The records [first, end) of a batch as runs of one flow each. `shift` is the number of a record in
        its batch, less its offset.
        """
        of_level, of_flow = self._columns(flows, entry, columns, first + shift, end + shift)
        if of_level is None and of_flow is None:
            yield PRIORITY, 0, first, end
            return
        named = zip(of_level or repeat(PRIORITY, end - first), of_flow or repeat(0, end - first), strict=True)
        for (priority, flow), same in groupby(named):
            stop = first + len(list(same))
            yield priority, flow, first, stop
            first = stop


class FlowSlots:
    """Counts the leased records of a view towards the limits of their flows."""

    __slots__ = ("_feed", "_limits", "_view")

    def __init__(self, feed: FlowFeed, view: PartitionView, limits: FlowLimits) -> None:
        """Count the records that are leased by now."""
        self._feed = feed
        self._view = view
        self._limits = limits
        self.take([(first, end) for first, end, _ in view.window.leases()])

    def take(self, ranges: list[tuple[Offset, Offset]]) -> None:
        assert self._view.flows is not None, "limits of flows need their index"
        for first, end in ranges:
            for _, flow, low, high in self._feed.runs_of(self._view, self._view.flows, first, end):
                self._limits.take(low, high, flow)

    def free(self, ranges: list[tuple[Offset, Offset]]) -> None:
        assert self._view.flows is not None, "limits of flows need their index"
        for flow in self._limits.free(ranges):
            self._view.flows.release(flow)
