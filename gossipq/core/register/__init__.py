"""The cluster's topics and nodes, as the meta shard records them."""

from gossipq.core.register.members import check_member
from gossipq.core.register.roster import Roster
from gossipq.core.register.topics import TopicRegister
from gossipq.core.register.view import ClusterView

__all__ = [
    "ClusterView",
    "Roster",
    "TopicRegister",
    "check_member",
]
