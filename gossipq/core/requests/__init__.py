"""Requests of clients and operators to a shard, and their answers."""

from gossipq.core.requests.alarms import (
    HANGS_MS,
    RESTART_WINDOW_MS,
    SLOW_COMMIT_US,
    RaisedAlarms,
    Watch,
    alarm,
    key_of,
)
from gossipq.core.requests.consume import ConsumeRequests
from gossipq.core.requests.counts import IsShown, stats, subscriptions
from gossipq.core.requests.explain import ExplainRequests
from gossipq.core.requests.group_limits import LimitRequests
from gossipq.core.requests.idle import IdleGroups
from gossipq.core.requests.jobs import JobRequests
from gossipq.core.requests.joins import JoinRequests, WatchRequests
from gossipq.core.requests.mend import MendRequests
from gossipq.core.requests.publish import PublishRequests
from gossipq.core.requests.schedules import ScheduleRequests
from gossipq.core.requests.topics_here import TopicsHere
from gossipq.core.requests.upkeep import Upkeep

__all__ = [
    "HANGS_MS",
    "RESTART_WINDOW_MS",
    "SLOW_COMMIT_US",
    "ConsumeRequests",
    "ExplainRequests",
    "IdleGroups",
    "IsShown",
    "JobRequests",
    "JoinRequests",
    "LimitRequests",
    "MendRequests",
    "PublishRequests",
    "RaisedAlarms",
    "ScheduleRequests",
    "TopicsHere",
    "Upkeep",
    "Watch",
    "WatchRequests",
    "alarm",
    "key_of",
    "stats",
    "subscriptions",
]
