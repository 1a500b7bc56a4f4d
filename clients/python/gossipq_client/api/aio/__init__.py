"""The asyncio client: written once, for both; `driver` and `runner` are the ones that the sync client has by
hand."""

from gossipq_client.api.aio.admin import Admin
from gossipq_client.api.aio.client import Client, connect
from gossipq_client.api.aio.consumer import Fetcher, Message, Subscription
from gossipq_client.api.aio.driver import PendingReceipt
from gossipq_client.api.aio.handles import DeadLettersHandle, GroupHandle, RecordHandle, TopicHandle
from gossipq_client.api.aio.raw import RawAnswers
from gossipq_client.api.aio.records import Records

__all__ = [
    "Admin",
    "Client",
    "DeadLettersHandle",
    "Fetcher",
    "GroupHandle",
    "Message",
    "PendingReceipt",
    "RawAnswers",
    "RecordHandle",
    "Records",
    "Subscription",
    "TopicHandle",
    "connect",
]
