"""The Python client of gossipq, whose names programs import from `gossipq`.

    import gossipq

    with gossipq.connect() as mq:
        mq.publish("orders", b"one")
        for msg in mq.consume("orders", group="billing"):
            with msg:
                print(msg.value)

The asyncio twin is `gossipq.aio.connect`, with the same names, awaited.
`gossipq.embedded.open(directory)` needs no server.
"""

from gossipq.errors import (
    Backpressure,
    BadName,
    BadRequest,
    Busy,
    ClientClosed,
    ForkedClient,
    GossipqError,
    LeaseLost,
    NoQuorum,
    NoReply,
    NotConfirmed,
    NotLeader,
    OffsetOutOfRange,
    ProtocolError,
    Refused,
    SchemaMismatch,
    StoreFull,
    TooLarge,
    TopicExists,
    TopicFull,
    UnknownRecord,
    UnknownTopic,
    Unreachable,
    WrongState,
)
from gossipq.wire.schemas import Schema
from gossipq_client.api.sync import Admin, Client, Fetcher, Message, Subscription, connect
from gossipq_client.handlers import Middleware
from gossipq_client.operations import DeadLetter, StoredRecord
from gossipq_client.session import FetchedBatch, PendingReceipt, PendingReceipts, Receipt
from gossipq_client.values import Reject, Retry, TimeLimitExceeded

__all__ = [
    "Admin",
    "Backpressure",
    "BadName",
    "BadRequest",
    "Busy",
    "Client",
    "ClientClosed",
    "DeadLetter",
    "FetchedBatch",
    "Fetcher",
    "ForkedClient",
    "GossipqError",
    "LeaseLost",
    "Message",
    "Middleware",
    "NoQuorum",
    "NoReply",
    "NotConfirmed",
    "NotLeader",
    "OffsetOutOfRange",
    "PendingReceipt",
    "PendingReceipts",
    "ProtocolError",
    "Receipt",
    "Refused",
    "Reject",
    "Retry",
    "Schema",
    "SchemaMismatch",
    "StoreFull",
    "StoredRecord",
    "Subscription",
    "TimeLimitExceeded",
    "TooLarge",
    "TopicExists",
    "TopicFull",
    "UnknownRecord",
    "UnknownTopic",
    "Unreachable",
    "WrongState",
    "connect",
]
