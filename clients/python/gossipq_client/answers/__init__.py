"""Answers of the cluster as applications get them, and how they are made of what nodes send. Pure.

The classes are made when a program uses the first one: it would make importing the client a tenth slower.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gossipq_client.answers.conversion import plain_of, value_of

if TYPE_CHECKING:
    from gossipq_client.answers.cluster import (
        Access,
        AccessRule,
        ClientIdentity,
        ClientSession,
        ClusterEvent,
        ClusterMember,
        ConfigOption,
        Consumption,
        CopyStatus,
        GrowthCounters,
        Invitation,
        NodeAlarm,
        NodeStatus,
        Role,
        Roster,
        ShardLeader,
        ShardRoute,
        TokenDigest,
        User,
        WorkerStatus,
        access_change,
    )
    from gossipq_client.answers.topics import (
        Counters,
        Delivery,
        Explanation,
        FlowCounters,
        GroupCounters,
        GroupRules,
        GroupSettings,
        GroupStand,
        PartitionCounters,
        Rule,
        SoughtPosition,
        Span,
        Standing,
        Step,
        TopicDetails,
        TopicSettings,
        group_rules,
        group_stands,
    )
else:

    def __getattr__(name: str) -> Any:
        for home in ("topics", "cluster"):
            if name in __all__ and hasattr(found := import_module(f"{__name__}.{home}"), name):
                return getattr(found, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Access",
    "AccessRule",
    "ClientIdentity",
    "ClientSession",
    "ClusterEvent",
    "ClusterMember",
    "ConfigOption",
    "Consumption",
    "CopyStatus",
    "Counters",
    "Delivery",
    "Explanation",
    "FlowCounters",
    "GroupCounters",
    "GroupRules",
    "GroupSettings",
    "GroupStand",
    "GrowthCounters",
    "Invitation",
    "NodeAlarm",
    "NodeStatus",
    "PartitionCounters",
    "Role",
    "Roster",
    "Rule",
    "ShardLeader",
    "ShardRoute",
    "SoughtPosition",
    "Span",
    "Standing",
    "Step",
    "TokenDigest",
    "TopicDetails",
    "TopicSettings",
    "User",
    "WorkerStatus",
    "access_change",
    "group_rules",
    "group_stands",
    "plain_of",
    "value_of",
]
