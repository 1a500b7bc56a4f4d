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
    BadRequest,
    ClientClosed,
    Forbidden,
    GossipqError,
    JobFailed,
    LeaseLost,
    NoReply,
    NotConfirmed,
    NotFound,
    Refused,
    Unreachable,
)
from gossipq.wire.schemas import Schema
from gossipq_client.api.sync import Admin, Client, Fetcher, Message, Records, Subscription, connect
from gossipq_client.handlers import Handlers, Middleware, Outgoing
from gossipq_client.operations import DeadLetter, Job, StoredRecord
from gossipq_client.session import FetchedBatch, PendingReceipt, Receipt, Record
from gossipq_client.values import Codec, JoinedJob, Reject, Retry, RetryFlow, TimeLimitExceeded

__all__ = [
    "Admin",
    "Backpressure",
    "BadRequest",
    "Client",
    "ClientClosed",
    "Codec",
    "DeadLetter",
    "FetchedBatch",
    "Fetcher",
    "Forbidden",
    "GossipqError",
    "Handlers",
    "Job",
    "JobFailed",
    "JoinedJob",
    "LeaseLost",
    "Message",
    "Middleware",
    "NoReply",
    "NotConfirmed",
    "NotFound",
    "Outgoing",
    "PendingReceipt",
    "Receipt",
    "Record",
    "Records",
    "Refused",
    "Reject",
    "Retry",
    "RetryFlow",
    "Schema",
    "StoredRecord",
    "Subscription",
    "TimeLimitExceeded",
    "Unreachable",
    "connect",
]
