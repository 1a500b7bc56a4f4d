"""What a shard is told of its cluster and of its own copy when it is opened."""

from collections.abc import Callable, Mapping

import msgspec

from gossipq import limits
from gossipq.values import AccessTable, GroupConfig, Quota, TopicConfig


class ShardSettings(msgspec.Struct, frozen=True):
    """`me` is the name of this copy. A shard without voters in its log, or whose only voter is one of the
    `predecessors` that the operator let this copy replace, has `me` as its only voter; but not if it `joins`
    a cluster, whose leader names the voters. A `witness` keeps the log without bodies and applies nothing."""

    me: str
    predecessors: tuple[str, ...] = ()
    shards: int = limits.SHARDS
    auto_create: bool = True
    topic: TopicConfig = TopicConfig()
    group: GroupConfig = GroupConfig()
    quota: Quota = Quota()
    virtual: dict[str, list[str]] = {}  #: virtual topics that the cluster's file names
    boot: str = ""  #: names this run of the machine; boot times of one boot go on over a restart
    joins: bool = False
    witness: bool = False
    cluster: bytes = b""  #: uuid; b"": newcomers are not asked for theirs
    cluster_name: str = ""
    options: dict[str, str] = {}  #: what [cluster] says here: newcomers must not say otherwise
    #: raises ConfigError for options that no node would start with
    check_options: Callable[[Mapping[str, str]], object] = len
    replace_ms: int = limits.REPLACE_MS
    stray_ms: int = limits.STRAY_MS
    standalone: bool = False  #: it was told to be alone: nobody joins it
    #: who may do what in a cluster that begins, if its version is 0
    access: AccessTable = AccessTable()
    endpoint: str = ""  #: of this node's frontdoor; "": not known

    def alone(self, voters: list[str]) -> bool:
        """Whether this copy is its shard's only voter, whatever `voters` its tables name."""
        return not self.joins if not voters else voters in [[name] for name in self.predecessors]
