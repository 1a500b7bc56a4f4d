"""What operators are told, as named values: rows that the wire carries as plain lists."""

from typing import NamedTuple

from gossipq.operator_messages import GroupShown
from gossipq.types import partition_of
from gossipq.values import GroupConfig


class GroupStand(NamedTuple):
    """How a group stands in one partition, and why."""

    partition: int
    state: str  #: "idle", "moving", "paused" ...
    because: str  #: one sentence, "" when there is nothing to say
    next: str  #: the command that changes it, "" = none is needed
    since_ms: int  #: unix time of the last ack, 0 = not known


class Span(NamedTuple):
    """Offsets of a partition, half-open."""

    first: int
    end: int


class Delivery(NamedTuple):
    """One delivery of a record to a group, by which whoever knows it can ack it."""

    topic_id: int
    partition: int
    offset: int
    attempt: int


class Rule(NamedTuple):
    """One option that rules the records of a group."""

    name: str
    value: str
    origin: str  #: who said so: "group", "topic", "cluster" ...


class GroupRules(NamedTuple):
    """The policy of a group, where each option comes from, and who consumes."""

    config: GroupConfig
    policy: list[Rule]
    consumers: list[str]


def group_stands(rows: list[tuple[int, str, str, str, int]]) -> list[GroupStand]:
    """By partition; what the wire has are partition keys."""
    return sorted(GroupStand(partition_of(row[0]), *row[1:]) for row in rows)


def group_rules(shown: GroupShown) -> GroupRules:
    return GroupRules(shown.config, [Rule(*row) for row in shown.policy], shown.consumers)
