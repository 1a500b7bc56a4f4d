"""Stored counters of a shard, as STATS shows them; the work goes with partitions and groups, never with records."""

from gossipq.core.cursors import Cursor
from gossipq.core.dispatch import Dispatch
from gossipq.core.groups import Group, View
from gossipq.core.intervals import RangeMap
from gossipq.core.lanes import key_of
from gossipq.core.ledger import Ledger
from gossipq.types import PartitionKey
from gossipq.values import GroupStats, PartitionStats


def stats(ledger: Ledger, dispatch: Dispatch, worker: int, topics: list[str]) -> tuple[list[PartitionStats], list[GroupStats]]:
    """Rows of all partitions and groups, or of those of the topics named."""
    partitions, groups = [], []
    for partition, state in ledger.partitions.items():
        topic = ledger.topics[state.topic_id].name
        if topics and topic not in topics:
            continue
        counts = state.first, state.next, state.published, state.removed, state.bytes, state.scheduled, state.voided
        partitions.append(PartitionStats(partition, topic, ledger.shard, worker, *counts))
        for group_id, cursor in ledger.cursors.get(partition, {}).items():
            groups.append(_group(ledger, cursor, dispatch.groups.get(group_id), partition, topic, group_id))
    return partitions, groups


def _group(
    ledger: Ledger, cursor: Cursor, group: Group | None, partition: PartitionKey, topic: str, group_id: int
) -> GroupStats:
    view = group.views.get(partition) if group else None
    state = cursor.state
    fresh_held, rows_held = _held(view, cursor) if view else (0, 0)
    lanes = {lane: _fresh(ranges, cursor) for lane, ranges in view.lanes.items()} if view else {}
    by_key = sum(count for lane, count in lanes.items() if key_of(lane))
    unmatched = sum(count for lane, count in lanes.items() if group and not key_of(lane) and not group.takes(lane[1:]))
    waiting = state.retrying + state.parked - rows_held
    parked = min(state.parked, waiting)  # a parked record that is handed out is still in its lane until that is logged
    return GroupStats(
        partition=partition,
        topic=topic,
        group=ledger.groups[group_id].name,
        cursor=state.cursor,
        ready=ledger.partitions[partition].next - state.cursor - cursor.passed.total() - fresh_held - sum(lanes.values()),
        in_flight=fresh_held + rows_held,
        acked=state.acked,
        removed=state.removed,
        consumers=sum(view in member.views for member in group.members) if group else 0,
        redelivered=state.redelivered,
        retrying=waiting - parked,
        parked=parked + sum(lanes.values()),
        dead=state.dead,
        voided=state.voided,
        dropped=state.dropped,
        unmatched=unmatched + state.unmatched,
        blocked_by_key=by_key + state.parked - state.unmatched,
        paused=ledger.groups[group_id].config.paused,
    )


def _fresh(ranges: RangeMap[int], cursor: Cursor) -> int:
    """Records that have no row on disk yet."""
    if not cursor.exceptional:
        return ranges.total()
    return sum(high - low for first, end, _ in ranges for low, high in cursor.fresh(first, end))


def _held(view: View, cursor: Cursor) -> tuple[int, int]:
    """Records in flight: fresh ones, and those with an exception row."""
    in_flight = view.in_flight()
    if not cursor.exceptional:
        return in_flight, 0
    fresh = sum(high - low for first, end, lease in view.leases if lease.session for low, high in cursor.fresh(first, end))
    return fresh, in_flight - fresh
