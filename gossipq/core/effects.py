"""What a shard wants done, gathered over a turn and taken when what it promises is stored."""

from collections.abc import Sequence

from gossipq.core.dispatch import Delivery
from gossipq.core.log import Entry
from gossipq.peer_messages import Append, Appended
from gossipq.types import Offset, Origin
from gossipq.values import Message, Run

ConfirmRow = tuple[int, Offset, int, bool]


class Effects:
    """All lists in order of arrival; nothing here may leave before the turn's transaction is on disk."""

    __slots__ = ("answers", "confirms", "deliveries", "enclosed", "notices", "replies", "runs", "told", "warnings")

    def __init__(self) -> None:
        self.confirms: dict[Origin, list[ConfirmRow]] = {}  #: publishes that are on a majority of disks
        self.runs: dict[Origin, list[tuple[int, list[Run]]]] = {}  #: of those confirms that have some
        self.enclosed: list[tuple[Origin, int, Message, list[bytes]]] = []  #: replies with batches
        self.replies: list[tuple[Origin, int, Message]] = []  #: (to, request id, message)
        self.told: list[tuple[int, Message]] = []  #: to the leader of a shard
        self.answers: list[tuple[str, Appended]] = []  #: to the leader that sent an Append
        self.warnings: list[str] = []  #: for whoever looks after this node
        self.deliveries: list[Delivery] = []
        self.notices: list[tuple[Origin, Message]] = []  #: after the deliveries: READY, AT_END


class Replication:
    """An Append to a follower with its entries. Promises nothing of this copy, so it may leave before the sync."""

    __slots__ = ("append", "entries", "to")

    def __init__(self, to: str, append: Append, entries: Sequence[Entry]) -> None:
        self.to, self.append, self.entries = to, append, entries
