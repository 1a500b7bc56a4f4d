"""Answers about topics, groups and single records, as handles return them."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from gossipq.operator_messages import GroupShown
from gossipq.times import known_time
from gossipq.types import partition_of
from gossipq_client.answers.conversion import value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The policy of a topic, by the names of the options of `configure`. None = the value of the cluster."""

    partitions: int
    retention: timedelta  #: 0 = removed as soon as every group has acked
    retain: str  #: "acked" or "forever"
    bytes_max: int  #: stored bytes per partition; 0 = no bound
    overflow: str  #: "refuse" or "drop_oldest" when bytes_max is reached
    level: str  #: default confirm level of publishes: "stored" or "none"
    beside: str  #: topic whose shards this one shares
    ttl: timedelta  #: time to live of records without one; 0 = they do not expire
    expire: str  #: "dead", "drop" or "try_once"
    dedup: timedelta  #: how long an id is remembered
    dedup_count: int
    trace: str  #: which steps are kept: "failures", "all" or "off"
    lease: timedelta | None
    attempts_max: int | None
    backoff: tuple[timedelta, ...] | None
    virtual: tuple[str, ...]  #: topics that get a copy of each record
    alarm_lag: int | None
    group_idle: timedelta  #: 0 = unused groups are never deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    """A topic. `shards[i]` holds partition i; a virtual topic has no partitions of its own."""

    id: int  #: never used again, also after the topic was deleted
    name: str
    version: int
    config: TopicSettings
    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The policy of a group, by the names of the options of `configure`. None = the topic's or the cluster's
    value applies."""

    mode: str  #: "shared", "exclusive" or "key_ordered"
    lease: timedelta | None
    in_flight_max: int
    attempts_max: int | None
    backoff: tuple[timedelta, ...] | None
    parked_max: int
    paused: bool
    alarm_lag: int | None
    order: str  #: "arrival", "priority" or "fair"
    weights: dict[str, int]
    concurrency: int  #: 0 = no limit
    flow_concurrency: int  #: 0 = no limit
    rate: str  #: as "10/s burst 20"; "none" = no limit
    flow_rate: str
    flow_backlog: int  #: records of a flow that may wait in a partition; 0 = no bound
    age_after: timedelta  #: records that wait longer get a part of the deliveries; 0 = they do not


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCounters:
    """Counters of one partition. The readable offsets are [first, next)."""

    partition: int
    topic: str
    shard: int
    worker: int
    first: int
    next: int
    published: int
    removed: int
    bytes: int
    scheduled: int
    voided: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounters:
    """Counters of one group in one partition.

    Since the group's start: published = ready + in_flight + retrying + parked + acked + dead + voided +
    dropped + removed.
    """

    partition: int
    topic: str
    group: str
    cursor: int  #: everything below this offset is finished
    ready: int
    in_flight: int
    acked: int
    removed: int
    consumers: int
    redelivered: int
    retrying: int  #: failed, waiting for their next attempt
    parked: int  #: waiting behind others of their key, or for a consumer of their route
    dead: int  #: dead letters that still exist
    voided: int  #: cancelled, edited or removed by an operator; and purged dead letters
    dropped: int  #: expired, in a topic whose expired records are dropped
    unmatched: int  #: of `parked`: their route has no consumer
    blocked_by_key: int  #: of `parked` and `ready`: another record of their key is in flight or waiting
    paused: bool
    delivered: int  #: deliveries since the present node became leader
    oldest: timedelta  #: age of the oldest unfinished record; 0 = all are finished
    unaccounted: int  #: difference of the sum above: always 0
    alarm_lag: int  #: value in force; 0 = no alarm
    goes: timedelta  #: time until the group is deleted as unused; 0 = it is not
    behind_limit: int  #: of `ready`: as many records are in flight as a limit allows
    behind_rate: int  #: of `ready`: they wait for a rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters of partitions and of groups."""

    partitions: tuple[PartitionCounters, ...]
    groups: tuple[GroupCounters, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoughtPosition:
    """The position of a group in a partition before and after a seek."""

    partition: int
    before: int
    after: int
    again: int  #: finished records that will be delivered once more
    skipped: int  #: unfinished records that will be skipped


@dataclass(frozen=True, slots=True)
class GroupStand:
    """The state of a group in one partition, and its reason."""

    partition: int
    state: str  #: "idle", "moving", "paused" ...
    because: str  #: one sentence; "" if there is no need for one
    next: str  #: the command that changes it, "" = none is needed
    since: datetime | None  #: time of the last ack, if it is known


class Span(NamedTuple):
    """Offsets of a partition, half-open."""

    first: int
    end: int


class Delivery(NamedTuple):
    """One delivery of a record to a group; any client that knows it can ack it."""

    topic_id: int
    partition: int
    offset: int
    attempt: int


class Rule(NamedTuple):
    """One option that applies to the records of a group."""

    name: str
    value: str
    origin: str  #: where the option is set: "group", "topic", "cluster" ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCounters:
    """A flow of a group in one partition."""

    partition: int
    flow: str  #: "" = the records without a flow
    waiting: int  #: records that no consumer has
    oldest: timedelta  #: time since the first of them was published; 0 = not known any more
    in_flight: int  #: only in a group with flow_concurrency
    waits_for: str  #: "limit", "rate", "pause", or "" if its records can be delivered


@dataclass(frozen=True, slots=True)
class GroupRules:
    """The policy of a group, the origin of each option, and the consumers."""

    config: GroupSettings
    policy: list[Rule]
    consumers: list[str]
    #: the flows with the most records, and those that wait longest, in a group of order "fair"
    flows: tuple[FlowCounters, ...] = ()


# --- records


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of a record for one group; "" = for all groups."""

    group: str
    #: "ready", "in_flight", "retrying", "parked", "scheduled", "acked", "dead", "voided", "removed",
    #: "skipped"
    state: str
    because: str  #: one sentence
    next: str  #: the command that changes it, "" = none
    consumer: str
    time: datetime | None  #: of the ack, the death, the due time, or the end of the lease
    attempts: int
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The state of a record for each group."""

    ref: str  #: with the offset if the record has one
    partition: int
    offset: int  #: -1 = it has none yet
    standings: tuple[Standing, ...]
    lines: tuple[str, ...]  #: policies with their origin, route, times


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step in the life of a record."""

    time: datetime
    #: "published", "due", "handed_out", "failed", "given_back", "acked", "dead", "voided", "replayed",
    #: "requeued"
    what: str
    group: str
    consumer: str
    reason: str
    attempt: int


# --- how some are made


def group_stands(rows: list[tuple[int, str, str, str, int]]) -> list[GroupStand]:
    """Return the states of a group by partition number; the wire has keys of partitions."""
    return [
        GroupStand(partition_of(key), state, because, next_step, known_time(since_ms))
        for key, state, because, next_step, since_ms in sorted(rows)
    ]


def group_rules(shown: GroupShown) -> GroupRules:
    """Return the policy of a group as a node tells it."""
    return GroupRules(
        config=value_of(GroupSettings, shown.config),
        policy=[Rule(*row) for row in shown.policy],
        consumers=shown.consumers,
        flows=tuple(value_of(FlowCounters, row) for row in shown.flows),
    )
