"""Answers for operators as named values; the wire carries them as plain lists."""

from collections.abc import Sequence
from typing import NamedTuple

from gossipq.operator_messages import GroupShown
from gossipq.types import partition_of
from gossipq.values import FlowRow, GroupConfig


class GroupStand(NamedTuple):
    """The state of a group in one partition, and its reason."""

    partition: int
    state: str  #: "idle", "moving", "paused" ...
    because: str  #: one sentence; "" if there is no need for one
    next: str  #: the command that changes it, "" = none is needed
    since_ms: int  #: unix time of the last ack, 0 = not known


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


class GroupRules(NamedTuple):
    """The policy of a group, the origin of each option, and the consumers."""

    config: GroupConfig
    policy: list[Rule]
    consumers: list[str]
    #: the flows with the most records, and those that wait longest, in a group of order "fair"
    flows: Sequence[FlowRow] = ()


def group_stands(rows: list[tuple[int, str, str, str, int]]) -> list[GroupStand]:
    """Rows by partition number; the wire has partition keys."""
    return sorted(GroupStand(partition_of(row[0]), *row[1:]) for row in rows)


def group_rules(shown: GroupShown) -> GroupRules:
    return GroupRules(shown.config, [Rule(*row) for row in shown.policy], shown.consumers, shown.flows)
