"""What a shard wants done, gathered over a turn and taken when what it promises is stored."""

from typing import NamedTuple

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


class Effects:
    """All lists in order of arrival; nothing here may leave before the turn's transaction is on disk."""

    __slots__ = (
        "abandoned",
        "answers",
        "confirms",
        "deliveries",
        "enclosed",
        "enclosed_bytes",
        "faults",
        "notices",
        "replies",
        "returning",
        "runs",
        "told",
        "warnings",
    )

    def __init__(self) -> None:
        self.confirms: dict[Origin, list[ConfirmRow]] = {}  #: publishes that are on a majority of disks
        self.runs: dict[Origin, list[tuple[int, list[Run]]]] = {}  #: of those confirms that have some
        self.enclosed: list[tuple[Origin, int, Message, list[bytes]]] = []  #: replies with batches
        self.enclosed_bytes = 0  #: in those
        self.replies: list[tuple[Origin, int, Message]] = []  #: (to, request id, message)
        self.told: list[tuple[int, Message]] = []  #: to the leader of a shard
        self.answers: list[Mail] = []  #: to other copies of this shard
        self.warnings: list[str] = []  #: for whoever looks after this node
        self.faults: list[Fault] = []  #: for the same
        self.deliveries: list[Delivery] = []
        self.notices: list[tuple[Origin, Message]] = []  #: after the deliveries: READY, AT_END
        #: sessions that hold records here since before this leadership
        self.returning: set[SessionId] = set()
        #: requests that this copy cannot answer any more: stored or not;
        self.abandoned: list[tuple[Origin, int]] = []
        #: request id 0: a subscription that it does not serve any more

    def withdraw(self, origin: Origin, request_id: int) -> None:
        """What this request has been answered so far does not hold."""
        self.replies = [each for each in self.replies if each[:2] != (origin, request_id)]
        self.enclosed = [each for each in self.enclosed if each[:2] != (origin, request_id)]
        self.abandoned = [each for each in self.abandoned if each != (origin, request_id)]
