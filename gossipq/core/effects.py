"""Effects of a shard in one turn, released when the state that they promise is stored."""

from typing import NamedTuple

from msgspec import Struct

from gossipq.core.copies import Mail
from gossipq.core.delivery import Delivery
from gossipq.errors import GossipqError
from gossipq.messages import RefusedMessage
from gossipq.texts import printable
from gossipq.types import Index, Offset, Origin, SessionId, Term
from gossipq.values import Message, Run

LINES = "\n\t"  #: layout characters that texts for people may contain
INTERNAL = "internal error of the node"
INTERNAL_HINT = "the log of the node has the details"
ConfirmRow = tuple[int, Offset, int, bool]


def refusal(error: GossipqError) -> RefusedMessage:
    """Return the message for a client. It may contain a name that a stranger made up."""
    message, hint = printable(error.message, LINES), printable(error.hint, LINES)
    return RefusedMessage(error.code, message, hint, error.retry_after_ms, error.detail)


class Fault(NamedTuple):
    """An unexpected exception that was contained."""

    what: str  #: the request, or the part of a turn, that failed
    error: Exception


class Effects(Struct, eq=False):
    """All lists are in order of arrival. They may be sent only after the turn's commit."""

    #: where the shard stands: the term that it is in, its newest entry, and the newest that is applied
    term: Term = 0
    last: Index = 0
    applied: Index = 0
    confirms: dict[Origin, list[ConfirmRow]] = {}  #: publishes that a majority of disks has stored
    runs: dict[Origin, list[tuple[int, list[Run]]]] = {}  #: runs of those confirms, where needed
    enclosed: list[tuple[Origin, int, Message, list[bytes]]] = []  #: replies with batches
    enclosed_bytes: int = 0  #: bytes of those batches
    replies: list[tuple[Origin, int, Message]] = []  #: (to, request id, message)
    told: list[tuple[int, Message]] = []  #: to the leader of a shard
    answers: list[Mail] = []  #: to other copies of this shard
    warnings: list[str] = []  #: for the operator of this node
    faults: list[Fault] = []  #: for the operator of this node
    deliveries: list[Delivery] = []
    notices: list[tuple[Origin, Message]] = []  #: after the deliveries: READY, AT_END
    #: True if only publishes happened: leader, roster and copies are unchanged
    routine: bool = False
    #: sessions that have held records here since before this leadership
    returning: set[SessionId] = set()
    #: requests that this copy can no longer answer, stored or not

    #: Request id 0 stands for a subscription that it no longer serves.
    abandoned: list[tuple[Origin, int]] = []

    def withdraw(self, origin: Origin, request_id: int) -> None:
        """Drop the answers to a request, because they are not valid."""
        self.replies = [each for each in self.replies if each[:2] != (origin, request_id)]
        self.enclosed = [each for each in self.enclosed if each[:2] != (origin, request_id)]
        self.abandoned = [each for each in self.abandoned if each != (origin, request_id)]
