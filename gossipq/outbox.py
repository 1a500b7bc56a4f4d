"""A transactional outbox for PostgreSQL and SQLite. See `gossipq_outbox`."""

from gossipq_outbox import Outbox, Relay

__all__ = ["Outbox", "Relay"]
