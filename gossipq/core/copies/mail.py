"""What copies of a shard send each other."""

from typing import NamedTuple

from gossipq.core.storage import Entry
from gossipq.peer_messages import Append
from gossipq.values import Message


class Mail(NamedTuple):
    """To another copy of the shard, under the term that the shard has now. `rows` is the second frame."""

    to: str
    message: Message
    rows: bytes = b""


class Replication(NamedTuple):
    """An Append to a follower with its entries. Promises nothing of this copy, so it may leave before the sync."""

    to: str
    append: Append
    entries: list[Entry]
