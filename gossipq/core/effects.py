"""What a shard wants done, gathered over a turn and taken when what it promises is stored."""

from collections.abc import Sequence

from gossipq.core.dispatch import Delivery
from gossipq.core.log import Entry
from gossipq.messages import Append, Appended, Message
from gossipq.types import Offset, Origin

ConfirmRow = tuple[int, Offset, int, bool]


class Effects:
    """All lists in order of arrival; nothing here may leave before the turn's transaction is on disk."""

    __slots__ = ("answers", "confirms", "deliveries", "notices", "replies", "told")

    def __init__(self) -> None:
        self.confirms: dict[Origin, list[ConfirmRow]] = {}  #: publishes that are on a majority of disks
        self.replies: list[tuple[Origin, int, Message]] = []  #: (to, request id, message)
        self.told: list[tuple[int, Message]] = []  #: to the leader of a shard
        self.answers: list[tuple[str, Appended]] = []  #: to the leader that sent an Append
        self.deliveries: list[Delivery] = []
        self.notices: list[tuple[Origin, Message]] = []  #: after the deliveries: READY, AT_END


class Replication:
    """An Append to a follower with its entries. Promises nothing of this copy, so it may leave before the sync."""

    __slots__ = ("append", "entries", "to")

    def __init__(self, to: str, append: Append, entries: Sequence[Entry]) -> None:
        self.to, self.append, self.entries = to, append, entries
