"""What clients and operators ask of a shard, and how each is answered."""

from gossipq.core.requests.alarms import (
    HANGS_MS,
    RESTART_WINDOW_MS,
    SLOW_COMMIT_US,
    Standing,
    Watch,
    alarm,
    key_of,
)
from gossipq.core.requests.consume import Client, Consuming
from gossipq.core.requests.counts import stats, subscriptions
from gossipq.core.requests.explain import Explaining
from gossipq.core.requests.mend import Mending
from gossipq.core.requests.publish import Admitting

__all__ = [
    "HANGS_MS",
    "RESTART_WINDOW_MS",
    "SLOW_COMMIT_US",
    "Admitting",
    "Client",
    "Consuming",
    "Explaining",
    "Mending",
    "Standing",
    "Watch",
    "alarm",
    "key_of",
    "stats",
    "subscriptions",
]
