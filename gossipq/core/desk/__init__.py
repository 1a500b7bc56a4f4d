"""Parts that the rooms of a shard share: requests, the clocks of a turn, the log, and the answers."""

from gossipq.core.desk.desk import INTERNAL, INTERNAL_HINT, Answers, ConfirmRow, Counts, Desk, Fault, refusal
from gossipq.core.desk.pending import Pending
from gossipq.core.desk.request import NOBODY, Asker, Client, Request
from gossipq.core.desk.unapplied import Unapplied

__all__ = [
    "INTERNAL",
    "INTERNAL_HINT",
    "NOBODY",
    "Answers",
    "Asker",
    "Client",
    "ConfirmRow",
    "Counts",
    "Desk",
    "Fault",
    "Pending",
    "Request",
    "Unapplied",
    "refusal",
]
