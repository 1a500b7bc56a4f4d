"""The sync client. All of its modules are made of `api.aio`, but `client`, `driver`, `keeper`, `runner` and
`loop_thread`."""

from gossipq_client.api.sync.admin import Admin
from gossipq_client.api.sync.client import Client, connect
from gossipq_client.api.sync.consumer import Fetcher, Message, Subscription
from gossipq_client.api.sync.handles import DeadLettersHandle, GroupHandle, RecordHandle, TopicHandle
from gossipq_client.api.sync.raw import RawAnswers
from gossipq_client.api.sync.records import Records

__all__ = [
    "Admin",
    "Client",
    "DeadLettersHandle",
    "Fetcher",
    "GroupHandle",
    "Message",
    "RawAnswers",
    "RecordHandle",
    "Records",
    "Subscription",
    "TopicHandle",
    "connect",
]
