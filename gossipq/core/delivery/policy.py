"""Finds the policy of a record: from the record itself, then its group, its topic, the
cluster. `why` names the origin.
"""

from typing import NamedTuple, TypeVar

from msgspec import inspect

from gossipq import limits
from gossipq.errors import BadRequest
from gossipq.values import GroupConfig, GroupDefaults, TopicConfig, TopicDefaults

NUMBER_MAX = 2**63 - 1  #: the largest offset, index or time

V = TypeVar("V")


class Policy(NamedTuple):
    """Values of a policy, each with its origin: "record", "group", "topic" or "cluster"."""

    lease_ms: int
    lease_by: str
    attempts_max: int
    attempts_by: str
    backoff_ms: tuple[int, ...]
    backoff_by: str

    def pause_ms(self, failures: int) -> int:
        """The pause after that many failures (from 1)."""
        return self.backoff_ms[min(failures, len(self.backoff_ms)) - 1]


class Said(NamedTuple):
    """Options of the record itself; 0 means unset."""

    lease_ms: int = 0
    attempts_max: int = 0
    backoff_ms: int = 0


NOTHING = Said()


def ruling(said: Said, group: GroupConfig, topic: TopicConfig, cluster: GroupConfig) -> Policy:
    """For each value, takes the first of record, group, topic and cluster that sets it."""
    lease, lease_by = _first(
        min(said.lease_ms, limits.LEASE_TOTAL_MS_MAX) or None,
        group.lease_ms,
        topic.lease_ms,
        cluster.lease_ms,
        limits.LEASE_MS,
    )
    attempts, attempts_by = _first(
        said.attempts_max or None,
        group.attempts_max,
        topic.attempts_max,
        cluster.attempts_max,
        limits.ATTEMPTS_MAX,
    )
    own = [said.backoff_ms] if said.backoff_ms else None
    backoff, backoff_by = _first(
        own, group.backoff_ms, topic.backoff_ms, cluster.backoff_ms, list(limits.BACKOFF_MS)
    )
    return Policy(
        lease_ms=lease,
        lease_by=lease_by,
        attempts_max=attempts,
        attempts_by=attempts_by,
        backoff_ms=tuple(backoff),
        backoff_by=backoff_by,
    )


def _first(
    record: V | None, group: V | None, topic: V | None, cluster: V | None, default: V
) -> tuple[V, str]:
    for value, origin in ((record, "record"), (group, "group"), (topic, "topic"), (cluster, "cluster")):
        if value is not None:
            return value, origin
    return default, "cluster"


def alarm_lag(group: GroupConfig, topic: TopicConfig) -> int:
    """Records a group may be behind before an alarm is raised; 0 = any number."""
    return (topic.alarm_lag if group.alarm_lag is None else group.alarm_lag) or 0


def _bounds(kind: type[GroupConfig] | type[TopicConfig]) -> dict[str, inspect.Type]:
    """Return the types of fields with bounds. If both structs have a field, the type of GroupDefaults
    counts, because 0 in [cluster.topic] means that the field is not set.
    """
    types = dict[str, inspect.Type]()
    for defaults in (TopicDefaults, GroupDefaults):
        info = inspect.type_info(defaults)
        assert isinstance(info, inspect.StructType)
        types |= {field.name: field.type for field in info.fields}
    return {name: types[name] for name in kind.__struct_fields__ if name in types}


def _check_number(name: str, number: int | None, allowed: inspect.Type) -> None:
    assert isinstance(allowed, inspect.IntType)
    within(name, number, allowed.ge or 0, allowed.le or limits.NUMBER_MAX)


_BOUNDS = {kind: _bounds(kind) for kind in (GroupConfig, TopicConfig)}


def check_policy(config: GroupConfig | TopicConfig) -> None:
    """Raises BadRequest, naming the field that is wrong."""
    for name, allowed in _BOUNDS[type(config)].items():
        value = getattr(config, name)
        if isinstance(allowed, inspect.IntType):
            _check_number(name, value, allowed)
        elif isinstance(allowed, inspect.LiteralType) and value not in allowed.values:
            raise BadRequest(f"{name} = {value!r}", hint=f"one of {', '.join(map(str, allowed.values))}")
        elif isinstance(allowed, inspect.VarTupleType) and value is not None:
            within(f"steps of {name}", len(value), allowed.min_length or 0, allowed.max_length or 0)
            for step in value:
                _check_number(name, step, allowed.item_type)
    within("alarm_lag", config.alarm_lag, 0, limits.ALARM_LAG_MAX)


def within(what: str, number: int | None, low: int, high: int) -> None:
    """Raises BadRequest if the number is outside [low, high]."""
    if number is not None and not low <= number <= high:
        raise BadRequest(f"{what} = {number}", hint=f"{low} to {high} are allowed")
