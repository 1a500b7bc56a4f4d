"""What a shard wants done, gathered over a turn and taken when what it promises is stored."""

from gossipq.core.copies import Mail
from gossipq.core.delivery import Delivery
from gossipq.errors import GossipqError
from gossipq.messages import Refused
from gossipq.types import Offset, Origin, SessionId
from gossipq.values import Message, Run

ConfirmRow = tuple[int, Offset, int, bool]


def refusal(error: GossipqError) -> Refused:
    return Refused(error.code, error.message, error.hint, error.retry_after_ms, error.detail)


class Effects:
    """All lists in order of arrival; nothing here may leave before the turn's transaction is on disk."""

    __slots__ = (
        "abandoned",
        "answers",
        "confirms",
        "deliveries",
        "enclosed",
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
        self.replies: list[tuple[Origin, int, Message]] = []  #: (to, request id, message)
        self.told: list[tuple[int, Message]] = []  #: to the leader of a shard
        self.answers: list[Mail] = []  #: to other copies of this shard
        self.warnings: list[str] = []  #: for whoever looks after this node
        self.deliveries: list[Delivery] = []
        self.notices: list[tuple[Origin, Message]] = []  #: after the deliveries: READY, AT_END
        self.returning: set[SessionId] = set()  #: sessions that hold records here since before this leadership
        self.abandoned: list[tuple[Origin, int]] = []  #: requests that this copy cannot answer any more: stored or not;
        #: request id 0: a subscription that it does not serve any more
