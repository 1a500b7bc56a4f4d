"""What runs around publishes and handlers. See `gossipq_client.middleware`."""

from gossipq_client.middleware import MessageLog, Middleware

__all__ = ["MessageLog", "Middleware"]
