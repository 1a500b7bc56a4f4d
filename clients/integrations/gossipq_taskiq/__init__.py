"""taskiq on gossipq: a broker, a result backend with progress, and schedules that are sent once."""

from gossipq_taskiq.broker import GossipqTaskiqBroker
from gossipq_taskiq.results import GossipqTaskiqResults
from gossipq_taskiq.schedules import ClaimedScheduleSource

__all__ = ["ClaimedScheduleSource", "GossipqTaskiqBroker", "GossipqTaskiqResults"]
