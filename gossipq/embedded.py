"""A private node in a directory, and a client of it. See `gossipq_client.embedded`."""

from gossipq_client.embedded import EmbeddedClient, open

__all__ = ["EmbeddedClient", "open"]
