"""Dramatiq on gossipq: a broker, a result backend, and a backend for rate limiters."""

from gossipq_dramatiq.backends import GossipqRateLimiterBackend, GossipqResultBackend
from gossipq_dramatiq.broker import GossipqBroker

__all__ = ["GossipqBroker", "GossipqRateLimiterBackend", "GossipqResultBackend"]
