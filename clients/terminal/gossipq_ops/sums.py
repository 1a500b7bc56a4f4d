"""Sums of topics and groups over partitions, and the lag of a group. Pure."""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from gossipq.values import GroupStats
from gossipq_ops.rows import Group, Partition, Snapshot

OPEN = ("ready", "in_flight", "retrying", "parked")  #: states of records that are published and not finished
DONE = ("acked", "dead", "voided", "dropped", "removed")


class TopicSum(NamedTuple):
    """Sums of a topic over partitions and groups. States count a record once for each group."""

    partitions: int = 0
    records: int = 0
    published: int = 0
    removed: int = 0
    bytes: int = 0
    scheduled: int = 0
    voided: int = 0
    ready: int = 0
    in_flight: int = 0
    retrying: int = 0
    parked: int = 0
    acked: int = 0
    dead: int = 0


class GroupSum(NamedTuple):
    """Sums of a group over its partitions."""

    topic: str
    group: str
    partitions: int = 0
    consumers: int = 0
    lag: int = 0
    ready: int = 0
    in_flight: int = 0
    retrying: int = 0
    parked: int = 0
    acked: int = 0
    dead: int = 0
    voided: int = 0
    dropped: int = 0
    removed: int = 0
    redelivered: int = 0
    unmatched: int = 0
    blocked_by_key: int = 0
    behind_limit: int = 0
    behind_rate: int = 0
    paused: bool = False
    oldest_ms: int = 0
    alarm_lag: int = 0
    goes_ms: int = 0  #: time until it is deleted as unused; 0 = never


class Counted(Protocol):
    """Counters of a group in one partition: of a snapshot, or as a node sends them."""

    @property
    def ready(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def retrying(self) -> int: ...
    @property
    def parked(self) -> int: ...


def lag_of(part: Counted) -> int:
    """Return the number of records that are published and not finished."""
    return part.ready + part.in_flight + part.retrying + part.parked


def waiting_of(part: Counted) -> int:
    """Return the number of records that no consumer holds: the lag without those in flight."""
    return lag_of(part) - part.in_flight


def topic_sums(snapshot: Snapshot) -> dict[str, TopicSum]:
    """Return sums by name. A virtual topic has zeros."""
    rows: dict[str, list[int]] = {topic.name: [0] * len(TopicSum._fields) for topic in snapshot.topics}
    at = {field: number for number, field in enumerate(TopicSum._fields)}
    for part in snapshot.partitions:
        row = rows.setdefault(part.topic, [0] * len(TopicSum._fields))
        row[at["partitions"]] += 1
        row[at["records"]] += records_of(part)
        for field in ("published", "removed", "bytes", "scheduled", "voided"):
            row[at[field]] += getattr(part, field)
    for group in snapshot.groups:
        row = rows.setdefault(group.topic, [0] * len(TopicSum._fields))
        for field in ("ready", "in_flight", "retrying", "parked", "acked", "dead"):
            row[at[field]] += getattr(group, field)
    return {name: TopicSum(*row) for name, row in rows.items()}


def records_of(part: Partition) -> int:
    """Number of readable records, including void ones."""
    return part.next - part.first


#: counters that are summed over partitions
ADDED = (
    *OPEN,
    *("acked", "dead", "voided", "dropped", "removed", "redelivered", "unmatched", "blocked_by_key"),
    *("behind_limit", "behind_rate"),
)


def group_sums(parts: "Iterable[Group | GroupStats]") -> dict[tuple[str, str], GroupSum]:
    """Return the sums of each (topic, group) over its partitions."""
    rows: dict[tuple[str, str], GroupSum] = {}
    for part in parts:
        row = rows.get((part.topic, part.group)) or GroupSum(part.topic, part.group)
        added: dict[str, Any] = {name: getattr(row, name) + getattr(part, name) for name in ADDED}
        # each shard computes its own time
        goes_ms = min(filter(None, (row.goes_ms, getattr(part, "goes_ms", 0))), default=0)
        rows[part.topic, part.group] = row._replace(
            partitions=row.partitions + 1,
            # a consumer of many partitions is one consumer
            consumers=max(row.consumers, part.consumers),
            lag=row.lag + lag_of(part),
            paused=row.paused or part.paused,
            oldest_ms=max(row.oldest_ms, part.oldest_ms),
            alarm_lag=max(row.alarm_lag, part.alarm_lag),
            goes_ms=goes_ms,
            **added,
        )
    return rows
