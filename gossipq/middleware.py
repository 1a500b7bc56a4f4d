"""Layers that run around publishes and handlers. See `gossipq_client.middleware`."""

from gossipq_client.middleware import Compression, MessageLog, Middleware, Outgoing

__all__ = ["Compression", "MessageLog", "Middleware", "Outgoing"]
