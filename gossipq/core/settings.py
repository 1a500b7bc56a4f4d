"""What a shard must know of its cluster and of this copy."""

import msgspec

from gossipq import limits
from gossipq.values import GroupConfig, TopicConfig


class ShardSettings(msgspec.Struct, frozen=True):
    """What a shard must know of its cluster. `me` is the name of this copy. A shard without voters in its log, or whose only
    voter is one of the `predecessors` that the operator let this copy replace, has `me` as its only voter."""

    me: str
    predecessors: tuple[str, ...] = ()
    shards: int = limits.SHARDS
    auto_create: bool = True
    topic: TopicConfig = TopicConfig()
    group: GroupConfig = GroupConfig()
    virtual: dict[str, list[str]] = {}  #: virtual topics that the cluster's file names
    boot: str = ""  #: names this run of the machine; boot times of one boot go on over a restart
