"""Stored counters of a shard, as STATS shows them; the work goes with partitions and groups, never with
records."""

from collections import Counter
from collections.abc import Collection
from itertools import islice

from gossipq.core.delivery import Dispatch, View, alarm_lag
from gossipq.core.ledger import Cursor, Ledger, PartitionState, key_of
from gossipq.core.storage import RangeMap
from gossipq.types import Offset, SessionId, topic_id_of
from gossipq.values import Consuming, GroupStats, PartitionStats, TopicInfo


def stats(
    ledger: Ledger, dispatch: Dispatch, worker: int, topics: Collection[str]
) -> tuple[list[PartitionStats], list[GroupStats]]:
    """Rows of all partitions and groups, or of those of the topics named."""
    partitions, groups = [], []
    consumers = Counter(
        view for group in dispatch.groups.values() for member in group.members for view in member.views
    )
    leader_ms = dispatch.serving.leader_ms
    for partition, state in ledger.partitions.items():
        info = ledger.topics[state.topic_id]
        if topics and info.name not in topics:
            continue
        counts = (
            state.first,
            state.next,
            state.published,
            state.removed,
            state.bytes,
            state.scheduled,
            state.voided,
        )
        partitions.append(PartitionStats(partition, info.name, ledger.shard, worker, *counts))
        for group_id, cursor in ledger.cursors.get(partition, {}).items():
            group = dispatch.groups.get(group_id)
            view = group.views.get(partition) if group else None
            groups.append(_row(ledger, cursor, view, info, state, consumers[view] if view else 0, leader_ms))
    return partitions, groups


def subscriptions(ledger: Ledger, dispatch: Dispatch) -> list[tuple[SessionId, Consuming]]:
    """What each session is subscribed to, and how much of it it holds."""
    found = []
    for subscription in dispatch.subscriptions.values():
        group = subscription.group
        partitions = [view.partition for view in subscription.views] or list(subscription.positions)
        held = 0
        for view in subscription.views:
            held += sum(end - first for first, end, lease in view.leases if lease.owner == subscription.name)
        row = Consuming(
            ", ".join(sorted({ledger.topics[topic_id_of(partition)].name for partition in partitions})),
            group.state.name if group else "",
            len(partitions),
            max(0, subscription.credit_records),
            max(0, subscription.credit_bytes),
            held,
        )
        found.append((subscription.session, row))
    return found


def _row(
    ledger: Ledger,
    cursor: Cursor,
    view: View | None,
    topic: TopicInfo,
    partition: PartitionState,
    consumers: int,
    leader_ms: int,
) -> GroupStats:
    """What is empty is not counted: most groups have nothing in flight and nothing that waits."""
    state, named, first, end = (
        cursor.state,
        ledger.groups[cursor.state.group_id],
        partition.first,
        partition.next,
    )
    fresh_held, rows_held = _held(view, cursor) if view and view.leases else (0, 0)
    in_lanes, by_key, unmatched = _lanes(view, cursor) if view and view.lanes else (0, 0, 0)
    waiting = state.retrying + state.parked - rows_held
    # a parked record that is handed out is still in its lane until that is logged
    parked = min(state.parked, waiting)
    return GroupStats(
        state.partition,
        topic.name,
        named.name,
        state.cursor,
        end - state.cursor - cursor.passed.total() - fresh_held - in_lanes,
        fresh_held + rows_held,
        state.acked,
        state.removed,
        consumers,
        state.redelivered,
        waiting - parked,
        parked + in_lanes,
        state.dead,
        state.voided,
        state.dropped,
        unmatched + state.unmatched,
        by_key + state.parked - state.unmatched,
        named.config.paused,
        view.delivered if view else 0,
        _oldest_ms(ledger, cursor, first, end, leader_ms) if state.cursor < end or cursor.exceptional else 0,
        cursor.unaccounted(),
        alarm_lag(named.config, topic.config),
    )


def _lanes(view: View, cursor: Cursor) -> tuple[int, int, int]:
    """Records in lanes that have no row on disk yet: all, those behind a key, those whose route nobody
    takes."""
    lanes = {lane: _fresh(ranges, cursor) for lane, ranges in view.lanes.items()}
    by_key = sum(count for lane, count in lanes.items() if key_of(lane))
    unmatched = sum(
        count for lane, count in lanes.items() if not key_of(lane) and not view.group.takes(lane[1:])
    )
    return sum(lanes.values()), by_key, unmatched


def _oldest_ms(ledger: Ledger, cursor: Cursor, first: Offset, end: Offset, leader_ms: int) -> int:
    """Age of the oldest record that is not done, by when it got its offset; at least 1, 0 = there is none."""
    state = cursor.state
    parts = [ledger.slices.at(state.partition, state.cursor)] if first <= state.cursor < end else []
    if cursor.exceptional:
        waiting = islice(cursor.exceptions.scan(), 1)
        parts += [ledger.slices.at(state.partition, found.first) for found in waiting if found.first >= first]
    return max([max(1, leader_ms - part.time_ms) for part in parts if part is not None], default=0)


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
    fresh = sum(
        high - low
        for first, end, lease in view.leases
        if lease.session
        for low, high in cursor.fresh(first, end)
    )
    return fresh, in_flight - fresh
