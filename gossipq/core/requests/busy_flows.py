"""The flows of a group with the most records, and those whose oldest record is the oldest. For SHOW_GROUP.

The cost grows with the flows, so only some are looked at.
"""

from heapq import nlargest, nsmallest
from itertools import islice
from operator import attrgetter

from gossipq.core.delivery import PartitionView, place_of
from gossipq.core.ledger import Ledger
from gossipq.types import FLOWS, partition_of
from gossipq.values import FlowRow

FLOWS_LOOKED_AT = 20_000  #: of a partition: about 20 ms
FLOWS_SHOWN_MAX = 100


def busy_flows(ledger: Ledger, view: PartitionView, boot_ms: int, leader_ms: int, most: int) -> list[FlowRow]:
    """Return the flows of a view with the most records, and those that wait longest: `most` of each."""
    flows = view.flows
    if flows is None or not flows.by_flow:
        return []
    counts: dict[int, int] = {}
    firsts: dict[int, int] = {}
    for flow, count, first in islice(flows.waiting_flows(), FLOWS_LOOKED_AT):
        counts[flow] = counts.get(flow, 0) + count
        firsts[flow] = min(first, firsts.get(flow, first))
    shown = dict.fromkeys(nlargest(most, counts, key=counts.__getitem__))
    shown |= dict.fromkeys(nsmallest(most, firsts, key=firsts.__getitem__))
    rows = []
    for flow in shown:
        place = place_of(ledger, view.cursor, view.partition, firsts[flow])
        if place is None:
            continue  # it left meanwhile
        name = ledger.opened.text(place.entry, FLOWS, place.record) if place.columns & FLOWS else b""
        waits_for, limits = "", view.flow_limits
        if limits is not None and limits.paused_ms(flow, boot_ms):
            waits_for = "pause"
        elif limits is not None and limits.allowed(flow, boot_ms) <= 0:
            waits_for = "limit" if limits.is_full(flow) else "rate"
        oldest_ms = max(1, leader_ms - place.time_ms) if place.time_ms else 0
        in_flight = limits.in_flight.get(flow, 0) if limits is not None else 0
        rows.append(
            FlowRow(
                partition=partition_of(view.partition),
                flow=name.decode("utf-8", "replace"),
                waiting=counts[flow],
                oldest_ms=oldest_ms,
                in_flight=in_flight,
                waits_for=waits_for,
            )
        )
    return sorted(rows, key=attrgetter("waiting"), reverse=True)
