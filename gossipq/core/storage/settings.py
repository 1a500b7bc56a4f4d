"""Facts about the cluster and the own copy that a shard gets when it is opened."""

from collections.abc import Callable, Mapping

import msgspec

from gossipq import limits
from gossipq.core.storage.calendar import Calendar, NoCalendar
from gossipq.values import AccessTable, GroupConfig, Quota, TopicConfig


class ShardSettings(msgspec.Struct, frozen=True):
    """`me` is the name of this copy.

    If the log has no voters, `me` becomes the only voter. It also replaces an only voter that is
    one of `predecessors`, copies that the operator let this one replace. If the copy `joins` a
    cluster, neither happens: the leader there names the voters. A `witness` stores the log without
    bodies and applies nothing.
    """

    me: str
    predecessors: tuple[str, ...] = ()
    shards: int = limits.SHARDS
    auto_create: bool = True
    topic: TopicConfig = TopicConfig()
    group: GroupConfig = GroupConfig()
    quota: Quota = Quota()
    virtual: dict[str, list[str]] = {}  #: virtual topics in the cluster's file
    #: id of this boot of the machine; boot times with the same id are comparable over a restart
    boot: str = ""
    clock_step_ms: int = 0  #: boot time is rounded down to multiples of this; 0: it is exact
    joins: bool = False
    witness: bool = False
    cluster: bytes = b""  #: uuid of the cluster; b"": newcomers are not asked for theirs
    cluster_name: str = ""
    #: options of [cluster] on this node; newcomers must not contradict them
    options: dict[str, str] = {}
    #: raises ConfigError for options with which no node would start
    check_options: Callable[[Mapping[str, str]], object] = len
    replace_ms: int = limits.REPLACE_MS
    stray_ms: int = limits.STRAY_MS
    standalone: bool = False  #: started as standalone: nodes cannot join
    #: users and roles of a new cluster, if its version is 0
    access: AccessTable = AccessTable()
    calendar: Calendar = NoCalendar()
    endpoint: str = ""  #: address of this node's frontdoor; "": unknown

    def alone(self, voters: list[str]) -> bool:
        """True if this copy is its shard's only voter. `voters` are those in its tables."""
        return not self.joins if not voters else voters in [[name] for name in self.predecessors]
