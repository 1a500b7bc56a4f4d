"""The cluster's topics and nodes, as the meta shard records them."""

from gossipq.core.register.members import check_member
from gossipq.core.register.roster import ROSTER_VERBS, Roster
from gossipq.core.register.topics import REGISTER_VERBS, TopicRegister
from gossipq.core.register.view import ClusterView

__all__ = [
    "REGISTER_VERBS",
    "ROSTER_VERBS",
    "ClusterView",
    "Roster",
    "TopicRegister",
    "check_member",
]
