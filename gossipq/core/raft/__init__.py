"""Raft for one copy of a shard's log: terms, votes, matching, commit, lease, voters. Pure.

Other packages do not write its attributes.
"""

from gossipq.core.raft import campaign, voters
from gossipq.core.raft.cluster_time import ClockRow, ClusterTime
from gossipq.core.raft.election import Dice
from gossipq.core.raft.progress import SNAPSHOT, Progress
from gossipq.core.raft.replica import (
    LEADER,
    NOTHING_UNSAVED,
    HardState,
    LogPoint,
    Replica,
    Replication,
    Unsaved,
)
from gossipq.core.raft.voters import quorum_size

__all__ = [
    "LEADER",
    "NOTHING_UNSAVED",
    "SNAPSHOT",
    "ClockRow",
    "ClusterTime",
    "Dice",
    "HardState",
    "LogPoint",
    "Progress",
    "Replica",
    "Replication",
    "Unsaved",
    "campaign",
    "quorum_size",
    "voters",
]
