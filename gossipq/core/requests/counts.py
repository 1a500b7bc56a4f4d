"""Stored counters of a shard, as STATS shows them. The cost grows with partitions and
groups, never with records.
"""

from collections import Counter
from collections.abc import Callable
from itertools import islice

from gossipq.core.delivery import Dispatch, PartitionView, alarm_lag
from gossipq.core.ledger import Cursor, Ledger, PartitionState, key_of
from gossipq.core.requests.idle import IdleGroups
from gossipq.core.storage import RangeMap
from gossipq.types import Offset, PartitionKey, SessionId, topic_id_of
from gossipq.values import Consuming, GroupStats, PartitionStats, TopicInfo

TOPICS_TEXT_MAX = 1_000  #: characters of all topic names in one row

IsShown = Callable[[str], bool]  #: whether the request asks for a topic of that name
CountedRow = tuple[int, int]
"""Position of a row in a shard's list: partition key and group id; -1 is the partition itself."""


def stats(
    ledger: Ledger,
    dispatch: Dispatch,
    idle: IdleGroups,
    worker: int,
    shown: IsShown,
    after: CountedRow,
    rows_max: int,
) -> tuple[list[PartitionStats], list[GroupStats], CountedRow | None]:
    """The next rows of all partitions and groups of the shown topics, in the order of their keys.
    Also returns the position of the last row if more follow.
    """
    partitions: list[PartitionStats] = []
    groups: list[GroupStats] = []
    consumers: dict[int, Counter[PartitionView]] = {}
    leader_ms, last = dispatch.turn.leader_ms, after
    for partition in sorted(each for each in ledger.partitions if each >= after[0]):
        state = ledger.partitions[partition]
        info = ledger.topics[state.topic_id]
        if not shown(info.name):
            continue
        cursors = ledger.cursors.get(partition, {})
        for group_id in [-1, *sorted(cursors)]:
            if (partition, group_id) <= after:
                continue
            if len(partitions) + len(groups) >= rows_max:
                return partitions, groups, last
            last = partition, group_id
            if group_id < 0:
                partitions.append(_partition_row(ledger, worker, partition, info.name))
                continue
            group = dispatch.groups.get(group_id)
            view = group.views.get(partition) if group else None
            if group is not None and group_id not in consumers:
                consumers[group_id] = Counter(
                    each for member in group.members.values() for each in member.views
                )
            count = consumers[group_id][view] if view is not None else 0
            goes_ms = idle.goes_ms(group_id)
            groups.append(_row(ledger, cursors[group_id], view, info, state, count, leader_ms, goes_ms))
    return partitions, groups, None


def _partition_row(ledger: Ledger, worker: int, partition: PartitionKey, topic: str) -> PartitionStats:
    state = ledger.partitions[partition]
    return PartitionStats(
        partition=partition,
        topic=topic,
        shard=ledger.shard,
        worker=worker,
        first=state.first,
        next=state.next,
        published=state.published,
        removed=state.removed,
        bytes=state.bytes,
        scheduled=state.scheduled,
        voided=state.voided,
    )


def subscriptions(ledger: Ledger, dispatch: Dispatch, session: SessionId, boot_ms: int) -> list[Consuming]:
    """The subscriptions of a session, and how many records each holds."""
    rows = []
    for subscription, held, since_ms in dispatch.of_session(session):
        group = subscription.group
        partitions = subscription.covered()
        topics = ", ".join(sorted({ledger.topics[topic_id_of(partition)].name for partition in partitions}))
        row = Consuming(
            topic=topics if len(topics) <= TOPICS_TEXT_MAX else topics[: TOPICS_TEXT_MAX - 3] + "...",
            group=group.state.name if group else "",
            partitions=len(partitions),
            credit_records=max(0, subscription.credit_records),
            credit_bytes=max(0, subscription.credit_bytes),
            in_flight=held,
            held_ms=boot_ms - since_ms if held else 0,
            acked=subscription.acked,
            delivered=subscription.delivered,
            failed=subscription.failed,
        )
        rows.append(row)
    return rows


def _row(
    ledger: Ledger,
    cursor: Cursor,
    view: PartitionView | None,
    topic: TopicInfo,
    partition: PartitionState,
    consumers: int,
    leader_ms: int,
    goes_ms: int,
) -> GroupStats:
    """The row of one group in one partition. Empty parts are not counted, since most groups have no
    records in flight or waiting.
    """
    state, first, end = cursor.state, partition.first, partition.next
    named = ledger.groups[state.group_id]
    fresh_held, rows_held = _held(view, cursor) if view and view.window.in_flight else (0, 0)
    in_lanes, by_key, unmatched = _lanes(view, cursor) if view and view.window.lanes else (0, 0, 0)
    waiting = state.retrying + state.parked - rows_held
    # a leased record that was parked stays in its lane until the lease is logged
    parked = min(state.parked, waiting)
    left = end - state.cursor - cursor.passed.total()  # neither done nor with a row of its own
    behind_limit, behind_rate = _behind_limits(view, left) if view and view.flows else (0, 0)
    waits = state.cursor < end or cursor.exceptional
    return GroupStats(
        partition=state.partition,
        topic=topic.name,
        group=named.name,
        cursor=state.cursor,
        ready=left - fresh_held - in_lanes,
        in_flight=fresh_held + rows_held,
        acked=state.acked,
        removed=state.removed,
        consumers=consumers,
        redelivered=state.redelivered,
        retrying=waiting - parked,
        parked=parked + in_lanes,
        dead=state.dead,
        voided=state.voided,
        dropped=state.dropped,
        unmatched=unmatched + state.unmatched,
        blocked_by_key=by_key + state.parked - state.unmatched,
        paused=named.config.paused,
        delivered=view.delivered if view else 0,
        oldest_ms=_oldest_ms(ledger, cursor, first, end, leader_ms) if waits else 0,
        unaccounted=cursor.unaccounted(),
        alarm_lag=alarm_lag(named.config, topic.config),
        goes_ms=goes_ms,
        behind_limit=behind_limit,
        behind_rate=behind_rate,
    )


def _behind_limits(view: PartitionView, left: int) -> tuple[int, int]:
    """Records of a view that wait because of a limit: of records in flight, and of a rate. `left` are not
    done.
    """
    flows, limits, group = view.flows, view.group.limits, view.group
    assert flows is not None, "only groups with an index have limits"
    if limits is not None and limits.allowed(group.in_flight, group.boot_ms) <= 0:
        ready = max(0, left - view.window.in_flight)
        return (ready, 0) if group.in_flight >= limits.most else (0, ready)
    return flows.waiting()


def _lanes(view: PartitionView, cursor: Cursor) -> tuple[int, int, int]:
    """Records in lanes without a row on disk: all of them, those behind a key, and those
    whose route no consumer takes.
    """
    lanes = {lane: _fresh(ranges, cursor) for lane, ranges in view.window.lanes.items()}
    by_key = sum(count for lane, count in lanes.items() if key_of(lane))
    unmatched = sum(
        count for lane, count in lanes.items() if not key_of(lane) and not view.group.takes_lane(view, lane)
    )
    return sum(lanes.values()), by_key, unmatched


def _oldest_ms(ledger: Ledger, cursor: Cursor, first: Offset, end: Offset, leader_ms: int) -> int:
    """Age of the oldest open record since it got its offset: at least 1,
    or 0 without such a record.
    """
    state = cursor.state
    parts = [ledger.slices.at(state.partition, state.cursor)] if first <= state.cursor < end else []
    if cursor.exceptional:
        waiting = islice(cursor.exceptions.scan(first), 1)
        parts += [ledger.slices.at(state.partition, found.first) for found in waiting]
    return max([max(1, leader_ms - part.time_ms) for part in parts if part is not None], default=0)


def _fresh(ranges: RangeMap[int], cursor: Cursor) -> int:
    """Number of records without a row on disk."""
    if not cursor.exceptional:
        return ranges.total()
    return sum(high - low for first, end, _ in ranges for low, high in cursor.fresh(first, end))


def _held(view: PartitionView, cursor: Cursor) -> tuple[int, int]:
    """Records in flight: fresh ones, and those with an exception row."""
    in_flight = view.window.in_flight
    if not cursor.exceptional:
        return in_flight, 0
    fresh = sum(
        high - low for first, end, _ in view.window.leases() for low, high in cursor.fresh(first, end)
    )
    return fresh, in_flight - fresh
