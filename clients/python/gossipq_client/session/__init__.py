"""One client's side of the protocol: what is published, lent, held and asked, as a function of what arrives.
Pure."""

from gossipq_client.session import credit
from gossipq_client.session.calls import Answer, Call, Calls
from gossipq_client.session.consume_options import (
    ConsumeOptions,
    FetchOptions,
    Joining,
    More,
    ReadOptions,
    credit_of,
    joining,
    more_of,
    reading,
)
from gossipq_client.session.credit import Subscription
from gossipq_client.session.deliveries import Consuming
from gossipq_client.session.held import Held, Piece
from gossipq_client.session.lists import plan, writer_to_merge
from gossipq_client.session.packer import Flight, Topic, Writer
from gossipq_client.session.patience import Patience
from gossipq_client.session.receipts import (
    Awaited,
    Copied,
    Merged,
    One,
    PendingReceipt,
    Receipt,
    Successive,
    half_way,
    part_sent,
    receipt_of,
)
from gossipq_client.session.renewal import rebuild
from gossipq_client.session.session import Session
from gossipq_client.session.settlement import ACK_LINGER_MS
from gossipq_client.session.stretch import Reading, Stretch, between, no_pyarrow
from gossipq_client.session.views import Data, FetchedBatch, Record

__all__ = [
    "ACK_LINGER_MS",
    "Answer",
    "Awaited",
    "Call",
    "Calls",
    "ConsumeOptions",
    "Consuming",
    "Copied",
    "Data",
    "FetchOptions",
    "FetchedBatch",
    "Flight",
    "Held",
    "Joining",
    "Merged",
    "More",
    "One",
    "Patience",
    "PendingReceipt",
    "Piece",
    "ReadOptions",
    "Reading",
    "Receipt",
    "Record",
    "Session",
    "Stretch",
    "Subscription",
    "Successive",
    "Topic",
    "Writer",
    "between",
    "credit",
    "credit_of",
    "half_way",
    "joining",
    "more_of",
    "no_pyarrow",
    "part_sent",
    "plan",
    "reading",
    "rebuild",
    "receipt_of",
    "writer_to_merge",
]
