"""Functions that work on records: what they take, who gets the next record, where replies go, and how a run
ends."""

from gossipq_client.handlers.keywords import shows
from gossipq_client.handlers.lanes import Item, Lanes
from gossipq_client.handlers.registry import Function, Handler, Registry
from gossipq_client.handlers.reports import tell
from gossipq_client.handlers.requests import Requests, make_replies, reply_to
from gossipq_client.handlers.signals import until_signal

__all__ = [
    "Function",
    "Handler",
    "Item",
    "Lanes",
    "Registry",
    "Requests",
    "make_replies",
    "reply_to",
    "shows",
    "tell",
    "until_signal",
]
