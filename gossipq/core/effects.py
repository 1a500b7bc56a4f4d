"""What a shard wants done, gathered over a turn and taken when what it promises is stored."""

from typing import NamedTuple

from msgspec import Struct

from gossipq.core.copies import Mail
from gossipq.core.delivery import Delivery
from gossipq.errors import GossipqError
from gossipq.messages import RefusedMessage
from gossipq.texts import printable
from gossipq.types import Offset, Origin, SessionId
from gossipq.values import Message, Run

LINES = "\n\t"  #: characters of a layout that texts for people may have
INTERNAL = "internal error of the node"
INTERNAL_HINT = "the log of the node has the details"
ConfirmRow = tuple[int, Offset, int, bool]


def refusal(error: GossipqError) -> RefusedMessage:
    """What a client is told. It may be about a name that somebody else made up."""
    message, hint = printable(error.message, LINES), printable(error.hint, LINES)
    return RefusedMessage(error.code, message, hint, error.retry_after_ms, error.detail)


class Fault(NamedTuple):
    """An exception that nobody expected, and that was contained."""

    what: str  #: the request, or the part of a turn, that met it
    error: Exception


class Effects(Struct, eq=False):
    """All lists in order of arrival; nothing here may leave before the turn's transaction is on disk."""

    confirms: dict[Origin, list[ConfirmRow]] = {}  #: publishes that are on a majority of disks
    runs: dict[Origin, list[tuple[int, list[Run]]]] = {}  #: of those confirms that have some
    enclosed: list[tuple[Origin, int, Message, list[bytes]]] = []  #: replies with batches
    enclosed_bytes: int = 0  #: in those
    replies: list[tuple[Origin, int, Message]] = []  #: (to, request id, message)
    told: list[tuple[int, Message]] = []  #: to the leader of a shard
    answers: list[Mail] = []  #: to other copies of this shard
    warnings: list[str] = []  #: for whoever looks after this node
    faults: list[Fault] = []  #: for the same
    deliveries: list[Delivery] = []
    notices: list[tuple[Origin, Message]] = []  #: after the deliveries: READY, AT_END
    #: nothing but publishes has happened: who leads, the roster and the copies are as they were
    routine: bool = False
    #: sessions that hold records here since before this leadership
    returning: set[SessionId] = set()
    #: requests that this copy cannot answer any more: stored or not; request id 0: a subscription that it
    #: does not serve any more
    abandoned: list[tuple[Origin, int]] = []

    def withdraw(self, origin: Origin, request_id: int) -> None:
        """What this request has been answered so far does not hold."""
        self.replies = [each for each in self.replies if each[:2] != (origin, request_id)]
        self.enclosed = [each for each in self.enclosed if each[:2] != (origin, request_id)]
        self.abandoned = [each for each in self.abandoned if each != (origin, request_id)]
