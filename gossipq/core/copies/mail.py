"""Messages between the copies of a shard."""

from typing import NamedTuple

from gossipq.values import Message


class Mail(NamedTuple):
    """A message to another copy, sent with the shard's current term. `rows` is the second frame."""

    to: str
    message: Message
    rows: bytes = b""
