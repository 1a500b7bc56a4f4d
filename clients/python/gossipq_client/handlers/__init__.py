"""Functions that handle records: their arguments, the order of records,
replies, and how a run ends.
"""

from gossipq_client.handlers.calls import CANCELLED, awaited, called, goes_on, whole
from gossipq_client.handlers.crew import STUCK_END_S, Crew
from gossipq_client.handlers.departure import Outgoing, lists_of, one_of, outgoing, sendable
from gossipq_client.handlers.lanes import Item, Lanes
from gossipq_client.handlers.limits import LOOK_MS, Limits, RunEnd
from gossipq_client.handlers.middleware import Around, CallNext, Layers, Middleware, makers
from gossipq_client.handlers.registry import Function, Handler, Handlers, Hook
from gossipq_client.handlers.reports import left, overdue, returned, stack_of, tell, tell_cancelled, untold
from gossipq_client.handlers.requests import Reply, Requests, answer, failure, make_replies, told
from gossipq_client.handlers.signals import until_signal

__all__ = [
    "CANCELLED",
    "LOOK_MS",
    "STUCK_END_S",
    "Around",
    "CallNext",
    "Crew",
    "Function",
    "Handler",
    "Handlers",
    "Hook",
    "Item",
    "Lanes",
    "Layers",
    "Limits",
    "Middleware",
    "Outgoing",
    "Reply",
    "Requests",
    "RunEnd",
    "answer",
    "awaited",
    "called",
    "failure",
    "goes_on",
    "left",
    "lists_of",
    "make_replies",
    "makers",
    "one_of",
    "outgoing",
    "overdue",
    "returned",
    "sendable",
    "stack_of",
    "tell",
    "tell_cancelled",
    "told",
    "until_signal",
    "untold",
    "whole",
]
