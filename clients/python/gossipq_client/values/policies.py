"""Policies of topics and groups, from user input to request options."""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Literal, TypedDict, Unpack, get_args

from msgspec import structs

from gossipq import limits
from gossipq.errors import BadRequest, TopicExists
from gossipq.texts import many
from gossipq.values import GroupOptions, Rate, TopicInfo, TopicOptions
from gossipq_client.values import inputs

Mode = Literal["shared", "exclusive", "key_ordered"]
Retain = Literal["acked", "forever"]
Overflow = Literal["refuse", "drop_oldest"]
Level = Literal["stored", "none"]
Expire = Literal["dead", "drop", "try_once"]
Trace = Literal["failures", "all", "off"]
Order = Literal["arrival", "priority", "fair"]
MODES: tuple[str, ...] = get_args(Mode)
#: pause after the first, second ... failure; the last one repeats
Backoff = inputs.Duration | Iterable[inputs.Duration]


class TopicPolicy(TypedDict, total=False):
    """Policy of a topic; the docstring of `Facade.create_topic` explains it."""

    retention: inputs.Duration | None
    retain: Retain | None
    bytes_max: int | None
    overflow: Overflow | None
    level: Level | None
    beside: str | None
    ttl: inputs.Duration | None
    expire: Expire | None
    dedup: inputs.Duration | None
    dedup_count: int | None
    trace: Trace | None
    lease: inputs.Duration | None
    attempts_max: int | None
    backoff: Backoff | None
    alarm_lag: int | None
    group_idle: inputs.Duration | None


class ConsumePolicy(TypedDict, total=False):
    """Policies of a group that a consumer can name; the docstring of `Facade.consume` explains them."""

    mode: Mode | None
    lease: inputs.Duration | None
    attempts_max: int | None
    backoff: Backoff | None
    order: Order | None
    weights: Mapping[str, int] | None
    concurrency: int | None
    flow_concurrency: int | None
    rate: str | None
    flow_rate: str | None
    flow_backlog: int | None
    age_after: inputs.Duration | None


class GroupPolicy(ConsumePolicy, total=False):
    """Policy of a group; the docstring of `GroupHandle.configure` explains it."""

    in_flight_max: int | None
    parked_max: int | None
    paused: bool | None
    alarm_lag: int | None


def as_asked(topic: TopicInfo, partitions: int | None) -> TopicInfo:
    """Checks a topic that was created or existed already. Raises Refused if it has another
    number of partitions, which cannot change.
    """
    have = len(topic.shards)
    if partitions in (None, have) or topic.config.virtual:
        return topic
    told = f"topic {topic.name} is there with {many(have, 'partition')}, not {partitions}"
    raise TopicExists(
        told,
        hint="a topic keeps its number of partitions: leave partitions= out, or choose another name",
    )


def topic_options(
    partitions: int | None = None,
    *,
    retention: inputs.Duration | None = None,
    retain: Retain | None = None,
    bytes_max: int | None = None,
    overflow: Overflow | None = None,
    level: Level | None = None,
    beside: str | None = None,
    ttl: inputs.Duration | None = None,
    expire: Expire | None = None,
    dedup: inputs.Duration | None = None,
    dedup_count: int | None = None,
    trace: Trace | None = None,
    lease: inputs.Duration | None = None,
    attempts_max: int | None = None,
    backoff: Backoff | None = None,
    alarm_lag: int | None = None,
    group_idle: inputs.Duration | None = None,
) -> TopicOptions:
    """Builds the options of a topic. Raises BadRequest for a wrong duration or a number out of
    bounds; the cluster checks the words.
    """
    return TopicOptions(
        partitions=partitions,
        retention_ms=None if retention is None else inputs.duration_ms(retention, "retention"),
        retain=retain,
        bytes_max=bytes_max,
        overflow=overflow,
        level=level,
        beside=beside,
        ttl_ms=None if ttl is None else inputs.duration_ms(ttl, "ttl", 0, limits.DELAY_MS_MAX),
        expire=expire,
        dedup_ms=None if dedup is None else inputs.duration_ms(dedup, "dedup", 0, limits.DEDUP_HARD_MS),
        dedup_count=None
        if dedup_count is None
        else inputs.whole(dedup_count, "dedup_count", 0, limits.DEDUP_HARD_COUNT),
        trace=trace,
        lease_ms=_lease_ms(lease),
        attempts_max=_attempts_max(attempts_max),
        backoff_ms=None if backoff is None else backoff_ms(backoff),
        alarm_lag=_alarm_lag(alarm_lag),
        group_idle_ms=None if group_idle is None else inputs.duration_ms(group_idle, "group_idle"),
    )


def consume_policy(
    *,
    mode: Mode | None = None,
    lease: inputs.Duration | None = None,
    attempts_max: int | None = None,
    backoff: Backoff | None = None,
    order: Order | None = None,
    weights: Mapping[str, int] | None = None,
    concurrency: int | None = None,
    flow_concurrency: int | None = None,
    rate: str | None = None,
    flow_rate: str | None = None,
    flow_backlog: int | None = None,
    age_after: inputs.Duration | None = None,
) -> GroupOptions:
    """Check what a consumer says of its group. Raises BadRequest."""
    if mode not in (None, *MODES):
        raise BadRequest(f"mode={mode!r}", hint=f"use one of {', '.join(MODES)}")
    if order not in (None, *get_args(Order)):
        raise BadRequest(f"order={order!r}", hint=f"use one of {', '.join(get_args(Order))}")
    return GroupOptions(
        mode=mode,
        lease_ms=_lease_ms(lease),
        attempts_max=_attempts_max(attempts_max),
        backoff_ms=None if backoff is None else backoff_ms(backoff),
        order=order,
        weights=None if weights is None else _weights(weights),
        concurrency=_concurrency(concurrency, "concurrency"),
        flow_concurrency=_concurrency(flow_concurrency, "flow_concurrency"),
        rate=None if rate is None else rate_of(rate, "rate"),
        flow_rate=None if flow_rate is None else rate_of(flow_rate, "flow_rate"),
        flow_backlog=_concurrency(flow_backlog, "flow_backlog"),
        age_after_ms=None
        if age_after is None
        else inputs.duration_ms(age_after, "age_after", 0, limits.DELAY_MS_MAX),
    )


def group_options(
    *,
    in_flight_max: int | None = None,
    parked_max: int | None = None,
    paused: bool | None = None,
    alarm_lag: int | None = None,
    **policy: Unpack[ConsumePolicy],
) -> GroupOptions:
    """Builds the options of a group. Raises BadRequest."""
    return structs.replace(
        consume_policy(**policy),
        in_flight_max=None
        if in_flight_max is None
        else inputs.whole(in_flight_max, "in_flight_max", 1, limits.IN_FLIGHT_HARD_MAX),
        parked_max=None
        if parked_max is None
        else inputs.whole(parked_max, "parked_max", 1, limits.PARKED_HARD_MAX),
        paused=paused,
        alarm_lag=_alarm_lag(alarm_lag),
    )


def backoff_ms(backoff: Backoff) -> list[int]:
    """The pauses after the first failure, the second ..., from one duration or
    several. Raises BadRequest.
    """
    if isinstance(backoff, int | float | str | timedelta):
        pauses: list[inputs.Duration] = [backoff]
    elif isinstance(backoff, Iterable) and not isinstance(backoff, bytes):
        pauses = list(backoff)
    else:
        pauses = []
    if not 0 < len(pauses) <= limits.BACKOFF_STEPS_MAX:
        raise BadRequest(
            f"backoff={backoff!r}",
            hint=f'1 to {limits.BACKOFF_STEPS_MAX} durations, as in ["1s", "30s", "10m"]',
        )
    return [inputs.duration_ms(pause, "backoff", 0, limits.DELAY_MS_MAX) for pause in pauses]


def _concurrency(most: int | None, what: str) -> int | None:
    return None if most is None else inputs.whole(most, what, 0, limits.IN_FLIGHT_HARD_MAX)


_RATE = re.compile(r"(\d+)\s*/\s*(\S+)(?:\s+burst\s+(\d+))?")


def rate_of(text: str, what: str) -> Rate:
    """Return the rate that a text such as "10/s burst 20" says. Raises BadRequest."""
    if text == "none":
        return Rate()
    found = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        hint = 'write RECORDS/TIME, as "10/s", "600/1m" or "10/s burst 20"; "none" for no limit'
        raise BadRequest(f"{what}={text!r}", hint=hint)
    per = found[2] if found[2][0].isdigit() else f"1{found[2]}"
    return Rate(
        inputs.whole(int(found[1]), f"records of {what}", 1, limits.CREDIT_MAX),
        inputs.duration_ms(per, what, 1, limits.DELAY_MS_MAX),
        inputs.whole(int(found[3] or 0), f"burst of {what}", 0, limits.CREDIT_MAX),
    )


def _weights(weights: Mapping[str, int]) -> dict[str, int]:
    for flow, weight in weights.items():
        inputs.flow_bytes(flow)
        inputs.whole(weight, f"the weight of flow {flow!r}", 1, limits.FLOW_WEIGHT_MAX)
    return dict(weights)


def _lease_ms(lease: inputs.Duration | None) -> int | None:
    return None if lease is None else inputs.duration_ms(lease, "lease", 1, limits.LEASE_TOTAL_MS_MAX)


def _attempts_max(attempts_max: int | None) -> int | None:
    return (
        None
        if attempts_max is None
        else inputs.whole(attempts_max, "attempts_max", 1, limits.ATTEMPTS_HARD_MAX)
    )


def _alarm_lag(alarm_lag: int | None) -> int | None:
    return None if alarm_lag is None else inputs.whole(alarm_lag, "alarm_lag", 0, limits.ALARM_LAG_MAX)
