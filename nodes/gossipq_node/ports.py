"""The ports of an actor: mailbox, store, clock, membership. Each port has one contract suite in
tests/contracts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from gossipq.core.storage import Tables
from gossipq.types import Origin
from gossipq.values import GossipEvent, Member

DIRECT_ORIGIN_PARTS = 2  #: socket and connection; a forwarded message also has the client of the frontdoor


class Incoming(msgspec.Struct, frozen=True, gc=False):
    """One message as it arrived: the origin for the answer, the control frame, the batch frame or b""."""

    origin: Origin
    control: bytes
    batch: bytes
    key: bytes = b""  #: public CURVE key of the node that sent it by an encrypted door for peers


THIS_HOST = "this host"  #: the address of the node's own host, whatever it is called


class Mailbox(Protocol):
    """The only input of an actor, and its output. The actions of a peer never raise an error; they are
    counted in `bad_frames` and `dropped`."""

    bad_frames: int  #: messages with a wrong number or size of frames

    @property
    def dropped(self) -> int:
        """Sends to a peer that is gone or does not read."""

    def receive(self, timeout_ms: int | None) -> list[Incoming]:
        """Wait for messages (None: for ever) and return those that have arrived: at most
        limits.TURN_MESSAGES_MAX messages or limits.TURN_BYTES_MAX bytes, messages of peers first."""

    def reply(self, origin: Origin, control: bytes, batch: bytes | Sequence[bytes] = b"") -> bool:
        """Send an answer to the origin of a message. A sequence of batches is sent as one frame. Return
        False if the connection has ended or its other end does not read."""

    def send(self, endpoint: str, control: bytes, batch: bytes = b"") -> bool:
        """Send to the process that listens at an address, connected on first use. The answers of one
        connection arrive in `receive` with one origin, the answers of the next connection with another. A
        message is lost if its connection fails, so it must be sent again."""

    def from_client(self, origin: Origin) -> bool:
        """Return whether a message came in by the door for clients. Answers to this actor did not."""

    def from_peer(self, origin: Origin) -> bool:
        """Return whether a message came in by the door for peers."""

    def answerer(self, origin: Origin) -> str:
        """Return the address that this actor sent to, for an answer from there; "" for other messages."""

    def stands(self, origin: Origin) -> bool:
        """Return whether the connection of an answer is still in use. After its end `reply` sends nothing to
        it, because another process may listen at its address; `send` opens another connection."""

    def gone(self) -> list[Origin]:
        """Return connections of clients that ended since the last call, where the platform reports that.
        Their messages are received first."""

    @property
    def turned_away(self) -> int:
        """Number of connections of clients that this mailbox closed."""

    def address(self, origin: Origin) -> str:
        """Return the address of the host that a client's message came from. All addresses of this host
        count as THIS_HOST, and so do clients for which a node of this host forwards."""

    def crowded(self, origin: Origin) -> bool:
        """Return whether limits.UNREAD_BYTES_MAX of answers wait for a client that does not read them. It
        gets no more answers until it does."""

    def moving(self, origin: Origin) -> bool:
        """Return whether parts of a large message of a client are arriving. Its pings wait behind that
        message, so it is not silent. False where the platform does not report that."""

    def admit(self, members: Iterable[Member]) -> None:
        """Set the nodes of the cluster, this one included. With encrypted doors, only these nodes can
        connect to the door for peers, connections of removed nodes are closed, and messages are encrypted
        with the keys of these nodes."""

    def encrypted(self, origin: Origin) -> bool:
        """Return whether nobody on a network can read the messages of a client and the answers to it."""

    def close(self) -> None: ...


class StoreUsage(NamedTuple):
    map_bytes: int
    used_bytes: int  #: pages in use of the map
    file_bytes: int
    disk_free_bytes: int
    disk_bytes: int


class Store(Protocol):
    """One worker's disk. A write transaction is always open; `commit` makes it durable."""

    def tables(self, shard: int) -> Tables:
        """Return the tables of one shard, created if missing. The handle stays valid over commits."""

    def commit(self) -> None:
        """Write all changes since the last commit to disk. Raises StoreError: then none of them is on disk,
        and every handle shows the state of the last successful commit."""

    def abort(self) -> None:
        """Discard all changes since the last commit."""

    def shrink(self) -> None:
        """Let the next commit return a bounded amount of free space of the store to its disk."""

    def usage(self) -> StoreUsage: ...
    def maintain(self) -> None:
        """Once a second, free the slots of dead readers, and memory that turns have used."""

    def close(self) -> None: ...


class Use(NamedTuple):
    """Resources that a process uses; 0 = not known."""

    cpu_ms: int = 0  #: so far
    rss_bytes: int = 0  #: now


Frames = tuple[bytes, bytes]  #: of a message to another node: control, and batch or a further control
Measure = Callable[[], Use]  #: of this process; an actor asks once a second


class SeenNode(NamedTuple):
    """A node that the membership reports. It is a hint for discovery; no decision depends on it."""

    endpoint: str  #: of its frontdoor
    name: str = ""
    copy: str = ""
    cluster: str = ""  #: first digits of its cluster's uuid; "" = in none yet, or not known
    kind: str = "node"  #: or "witness"
    load: int = 0  #: records a second, about
    alive: bool = True


class Membership(Protocol):
    """Discovery of other nodes. It runs in a thread of its own; no call blocks, except `close` for some
    seconds."""

    @property
    def state(self) -> str:
        """ "" = works; otherwise the reason why other nodes may not be found, as text for people."""

    @property
    def queued(self) -> int:
        """Number of gossip messages that wait to be sent."""

    def found(self) -> list[SeenNode]:
        """Return the other nodes, as they were reported last."""

    def events(self) -> list[GossipEvent]:
        """Return the events since the last call, oldest first."""

    def tell(self, tags: Mapping[str, str]) -> None:
        """Set the tags of this node that others see besides its settings. They are sent within about 10 s."""

    def close(self) -> None:
        """Leave: other nodes are told that this node stops."""
