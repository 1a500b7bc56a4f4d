"""Exports as tables, without Spark and without a node. See `gossipq_client.lake`."""

from gossipq_client.lake import Lake, open

__all__ = ["Lake", "open"]
