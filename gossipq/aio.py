"""The asyncio client. See `gossipq_client.aio`."""

from gossipq_client.aio import (
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
