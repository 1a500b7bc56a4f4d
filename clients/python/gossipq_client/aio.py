"""The asyncio twin: the same names as the sync client, awaited; the event loop watches the sockets."""

from gossipq_client.api.aio import (
    Admin,
    Client,
    Fetcher,
    Message,
    PendingReceipt,
    Records,
    Subscription,
    connect,
)

__all__ = ["Admin", "Client", "Fetcher", "Message", "PendingReceipt", "Records", "Subscription", "connect"]
