"""A request to a shard, with its sender: one type for all rooms."""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from gossipq.core.storage import Entry
from gossipq.permissions import Rights
from gossipq.rates import Payer, payers
from gossipq.types import BatchInfo, Origin, SessionId
from gossipq.values import Message


class Client(Struct, frozen=True):
    """The sender of a message: its session, and the name that `why` shows."""

    session: SessionId
    consumer: str
    node: bool = False  #: True for a node of the cluster, which may write what only nodes write
    address: str = ""  #: address of the client's host
    rights: Rights | None = None  #: permissions; None allows everything

    @property
    def payers(self) -> tuple[Payer, ...]:
        """The accounts that are charged for bounded resources."""
        return payers(self.address, self.rights.user if self.rights is not None else "")


class Asker(Protocol):
    """The sender of a request, to whom it is answered."""

    @property
    def origin(self) -> Origin: ...
    @property
    def request_id(self) -> int: ...


class Request(Struct, frozen=True, eq=False):
    """A message to a shard."""

    message: Any  #: of the type that its handler serves
    origin: Origin = ()  #: the connection that gets the answer; () = nobody waits for one
    request_id: int = 0
    client: Client | None = None  #: None for nodes, and for a connection without a session
    batch: bytes = b""  #: the second frame
    info: BatchInfo | None = None  #: header of a batch that was verified
    term: int = 0  #: of a message of another copy
    entries: Sequence[Entry] = ()  #: of a message of another copy

    @property
    def sender(self) -> Client:
        """The client of a request that is served for sessions only."""
        assert self.client is not None, "a request without a session is refused before"
        return self.client


NOBODY = Request(Message())  #: in place of a request: work that nobody waits for
