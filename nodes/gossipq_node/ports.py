"""What an actor needs from the world: a mailbox, a store, a clock. Each port has one contract suite in
tests/contracts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from gossipq.core.storage import Tables
from gossipq.types import Origin
from gossipq.values import GossipEvent, Member

DIRECT_ORIGIN_PARTS = 2  #: socket and connection; a forwarded message has the frontdoor's client behind them


class Incoming(msgspec.Struct, frozen=True, gc=False):
    """One message as it came: who to answer, the control frame, the batch frame or b""."""

    origin: Origin
    control: bytes
    batch: bytes
    key: bytes = b""  #: public CURVE key of the node that sent it by an encrypted door for peers


THIS_HOST = "this host"  #: the address of the node's own host, whatever it is called


class Mailbox(Protocol):
    """The only input of an actor, and its way out. Never raises for what a peer does; counts it in
    `bad_frames`, `dropped`."""

    bad_frames: int  #: messages with a wrong number or size of frames

    @property
    def dropped(self) -> int:
        """Sends to a peer that is gone or does not read."""

    def receive(self, timeout_ms: int | None) -> list[Incoming]:
        """Waits for mail (None: for ever), then takes what is there: peers first, at most
        limits.TURN_MESSAGES_MAX messages or limits.TURN_BYTES_MAX bytes."""

    def reply(self, origin: Origin, control: bytes, batch: bytes | Sequence[bytes] = b"") -> bool:
        """To where a message came from. A sequence of batches is sent as one frame. False: gone or not
        reading."""

    def send(self, endpoint: str, control: bytes, batch: bytes = b"") -> bool:
        """Send to the process that listens at an address, connected on first use. The answers of one
        connection arrive in `receive` with one origin, the answers of the next connection with another. A
        message is lost if its connection fails, so it must be sent again."""

    def from_client(self, origin: Origin) -> bool:
        """Whether a message came by the door for clients, and is no answer to this actor."""

    def from_peer(self, origin: Origin) -> bool:
        """Whether a message came by the door for peers."""

    def answerer(self, origin: Origin) -> str:
        """The address to which this actor wrote, of a message that came back from there; "" of any other."""

    def stands(self, origin: Origin) -> bool:
        """Whether the connection on which an answer came is still in use. When it ends, another process may
        listen at its address, so `reply` sends nothing there any more; `send` makes another connection."""

    def gone(self) -> list[Origin]:
        """Connections of clients that ended since the last call, as far as that can be told; what has come
        from them is taken first."""

    @property
    def turned_away(self) -> int:
        """Connections of clients that it closed by itself."""

    def address(self, origin: Origin) -> str:
        """Of the host that a client's message came from: one for all that this host is called, and for whom a
        node of it speaks for."""

    def crowded(self, origin: Origin) -> bool:
        """Whether a client has so much to take (limits.UNREAD_BYTES_MAX) that it gets no more answers now."""

    def moving(self, origin: Origin) -> bool:
        """Whether a message of a client is under way: parts of it came just now. What the client says behind
        it comes when it is through. False where that cannot be told."""

    def admit(self, members: Iterable[Member]) -> None:
        """The nodes of the cluster now, this one among them. Where doors are encrypted: only they come in by
        that for peers, who was one of them is hung up on, and what is said to them is encrypted for them."""

    def encrypted(self, origin: Origin) -> bool:
        """Whether what a client says to this process, and hears of it, cannot be read on a network."""

    def close(self) -> None: ...


class StoreUsage(NamedTuple):
    map_bytes: int
    used_bytes: int  #: pages in use of the map
    file_bytes: int
    disk_free_bytes: int
    disk_bytes: int


class Store(Protocol):
    """One worker's disk: a write transaction that is always open, until `commit` makes it last."""

    def tables(self, shard: int) -> Tables:
        """Tables of one shard, made when absent. The handle stays good over commits."""

    def commit(self) -> None:
        """Everything since the last commit is on disk when this returns. Raises StoreError: then nothing of
        it is, every handle still works and shows the state of the last good commit."""

    def abort(self) -> None:
        """Forgets everything since the last commit."""

    def shrink(self) -> None:
        """The next commit gives free space of the store back to its disk, a bounded step of it."""

    def usage(self) -> StoreUsage: ...
    def maintain(self) -> None:
        """Housekeeping, once a second: frees slots of dead readers, and memory that turns have taken."""

    def close(self) -> None: ...


class Use(NamedTuple):
    """What a process has of its machine; 0 = not known."""

    cpu_ms: int = 0  #: so far
    rss_bytes: int = 0  #: now


Measure = Callable[[], Use]  #: of this process; an actor asks once a second


class SeenNode(NamedTuple):
    """A node that the membership knows of. A hint: nobody decides anything by it."""

    endpoint: str  #: of its frontdoor
    name: str = ""
    copy: str = ""
    cluster: str = ""  #: first digits of its cluster's uuid; "" = in none yet, or not known
    kind: str = "node"  #: or "witness"
    load: int = 0  #: records a second, about
    alive: bool = True


class Membership(Protocol):
    """Who else there is. Works on a thread of its own; no call blocks, but `close` for some seconds."""

    @property
    def state(self) -> str:
        """ "" = well, else why others may not be found, for people."""

    @property
    def queued(self) -> int:
        """Messages of gossip that wait to be told on."""

    def found(self) -> list[SeenNode]:
        """The others, as last known."""

    def events(self) -> list[GossipEvent]:
        """What happened since the last call, oldest first."""

    def tell(self, tags: Mapping[str, str]) -> None:
        """What others are to know of this node besides the settings. It is on its way within some 10 s."""

    def close(self) -> None:
        """The others see it leave."""
