"""What copies of a shard send each other."""

from typing import NamedTuple

from gossipq.values import Message


class Mail(NamedTuple):
    """To another copy of the shard, under the term that the shard has now. `rows` is the second frame."""

    to: str
    message: Message
    rows: bytes = b""
