"""Messages to and from other processes of the cluster. All messages of one turn to one process travel as one
BUNDLE.

A bundle names its sender, its addressee and the cluster. This process drops a bundle for another copy or
cluster. It also drops one from a connection whose other end has not proven that it knows the secret and is
that copy. Each kind of drop is logged at most once a minute for each sender.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence

from gossipq import limits
from gossipq.errors import ProtocolError, UnknownVerb
from gossipq.messages import Challenge
from gossipq.peer_messages import Bundle, Greet, Prove
from gossipq.types import Origin, ShardId
from gossipq.values import Message
from gossipq.wire.frames import Header, decode, encode
from gossipq_node.actors.links import ANOTHER_SECRET, Links
from gossipq_node.actors.prover import Prover
from gossipq_node.ports import Incoming, Mailbox
from gossipq_node.settings import FrontdoorSettings, WorkerSettings

SAY_AGAIN_MS = limits.MINUTE_MS
SAID_MAX = 256  #: senders logged in that time; a stranger could invent more names
NAME_CHARS = 80  #: of a name that a stranger sent, in a log line
CLUSTER_BYTES = 16
PROVEN_MAX = 4_096  #: connections; 64 nodes of 39 workers have fewer
CONTROL_BYTES = limits.CONTROL_BYTES_MAX // 2  #: of one bundle; the next message begins another bundle

ANOTHER_KEY = "came in by a key that is not its own"

log = logging.getLogger(__name__)


class _Parcel:
    """Messages that wait for one process."""

    __slots__ = ("bytes", "control_bytes", "messages", "pieces", "sizes", "to")

    def __init__(self, to: str) -> None:
        self.to = to
        self.messages: list[bytes] = []
        self.sizes: list[int] = []
        self.pieces: list[bytes] = []
        self.bytes = self.control_bytes = 0


class Post:
    def __init__(
        self,
        settings: WorkerSettings | FrontdoorSettings,
        mailbox: Mailbox,
        keys_of: Callable[[str], Collection[bytes]] = lambda copy: (),
    ) -> None:
        """`keys_of`: public keys of a copy, for encrypted doors."""
        self._keys_of = keys_of
        self._me = settings.member.copy
        self._cluster = settings.cluster
        self._mailbox = mailbox
        self._links = Links(self._me, self._cluster, settings.token, mailbox)
        self._prover = Prover(self._me, settings.token)
        self.proven = OrderedDict[Origin, str]()  #: connection that has proven the secret -> its copy
        self.parcels: dict[str, _Parcel] = {}  #: messages for the next flush, by address
        self._said_ms: dict[tuple[str, str], int] = {}  # (sender, kind) -> when it may be logged again
        self.dropped = 0  #: bundles that were not for this process

    # --- out ------------------------------------------------------------------------------------------------

    def put(
        self,
        copy: str,
        endpoint: str,
        message: Message,
        shard: ShardId,
        term: int = 0,
        pieces: Sequence[bytes] = (),
    ) -> None:
        """Queue a message for the process of `copy` at `endpoint`; the next `flush` sends it. Without an
        address the message is dropped silently: every message between copies is repeated until it has an
        effect."""
        if not endpoint:
            return
        control, size = encode(message, shard, 0, term), sum(map(len, pieces))
        parcel = self.parcels.get(endpoint)
        if parcel is not None and (
            parcel.bytes + size > limits.BUNDLE_BYTES_MAX
            or parcel.control_bytes + len(control) > CONTROL_BYTES
        ):
            self._send(endpoint, parcel)
            parcel = None
        if parcel is None:
            parcel = self.parcels[endpoint] = _Parcel(copy)
        parcel.messages.append(control)
        parcel.sizes.append(size)
        parcel.pieces += pieces
        parcel.bytes += size
        parcel.control_bytes += len(control)

    def flush(self) -> None:
        """Send everything that waits."""
        for endpoint, parcel in self.parcels.items():
            self._send(endpoint, parcel)
        self.parcels.clear()

    def _send(self, endpoint: str, parcel: _Parcel) -> None:
        sizes = parcel.sizes if parcel.bytes else []
        bundle = Bundle(self._cluster, self._me, parcel.to, parcel.messages, sizes)
        self._links.send(endpoint, parcel.to, encode(bundle), b"".join(parcel.pieces))

    def connection(self, copy: str, endpoint: str) -> Origin | None:
        """Return the connection to the process of `copy` at `endpoint` if that has proven itself. Otherwise
        greet it and return None."""
        return self._links.connection(endpoint, copy)

    # --- in -------------------------------------------------------------------------------------------------

    def open(self, message: Incoming, now_ms: int) -> Iterator[tuple[str, Header, Message, memoryview]]:
        """Yield the messages of a bundle, each with the name of the copy that sent it. Greetings and proofs
        are answered here. Raises ProtocolError if the bundle is malformed."""
        _, bundle = decode(message.control)
        if endpoint := self._mailbox.answerer(message.origin):
            if isinstance(bundle, Challenge) and (error := self._links.challenged(message.origin, bundle)):
                self.say(endpoint, "secret", error, now_ms)
            return
        if isinstance(bundle, Greet | Prove):
            self.greeted(message, bundle, now_ms)
            return
        if not isinstance(bundle, Bundle):
            raise UnknownVerb("nodes speak in bundles")
        if wrong := self._wrong(bundle):
            self._drop(bundle.sender, wrong, now_ms)
            return
        if self.proven.get(message.origin) != bundle.sender:
            self.dropped += 1
            self._mailbox.reply(message.origin, encode(Challenge(b"", self._me)))  # it is greeted again
            return
        frame = message.batch
        sizes = bundle.sizes or [0] * len(bundle.messages)
        if len(sizes) != len(bundle.messages) or min(sizes, default=0) < 0 or sum(sizes) != len(frame):
            raise ProtocolError(
                f"the bundle says {sum(sizes)} bytes for {len(bundle.messages)} messages; {len(frame)} came"
            )
        at, view = 0, memoryview(frame)
        for control, size in zip(bundle.messages, sizes, strict=True):
            header, inner = decode(control)
            yield bundle.sender, header, inner, view[at : at + size]
            at += size

    def greeted(self, message: Incoming, said: Greet | Prove, now_ms: int) -> None:
        """Answer a greeting with a challenge, or check a proof. The sender must be the copy whose key its
        connection uses."""
        origin = message.origin
        if message.key and message.key not in self._keys_of(said.sender):
            self._drop(said.sender, ("key", ANOTHER_KEY), now_ms)
        elif isinstance(said, Greet):
            if wrong := self._wrong(said):
                self._drop(said.sender, wrong, now_ms)
            else:
                self._mailbox.reply(origin, encode(self._prover.challenge(origin, said.sender, said.nonce)))
        elif self._prover.knows(origin, said.sender, said.nonce, said.proof):
            self.proven[origin] = said.sender
            if len(self.proven) > PROVEN_MAX:
                self.proven.popitem(last=False)  # if that link is still in use, its peer is greeted again
        else:
            self._drop(said.sender, ("secret", ANOTHER_SECRET), now_ms)

    def _drop(self, sender: str, wrong: tuple[str, str], now_ms: int) -> None:
        self.dropped += 1
        self.say(sender[:NAME_CHARS], *wrong, now_ms)

    def _wrong(self, bundle: Bundle | Greet) -> tuple[str, str] | None:
        """Return the kind of mistake and its text; None if the message is for this process."""
        if bundle.cluster != self._cluster:
            other = bundle.cluster.hex() if len(bundle.cluster) == CLUSTER_BYTES else "without a name"
            return (
                "cluster",
                f"is of cluster {other}, this one is {self._cluster.hex()}: check its --join or --peer",
            )
        if bundle.to != self._me:
            to = bundle.to[:NAME_CHARS]
            return (
                "copy",
                f"wants {to!r}, and this is {self._me}: the data directory was replaced, or the address "
                "given away",
            )
        return None

    def say(self, sender: str, kind: str, error: str, now_ms: int) -> None:
        """Log an error of a sender: each kind at most once a minute, of at most SAID_MAX senders."""
        name = sender, kind
        if now_ms < self._said_ms.get(name, 0):
            return
        if len(self._said_ms) >= SAID_MAX:
            self._said_ms = {each: at_ms for each, at_ms in self._said_ms.items() if at_ms > now_ms}
        if len(self._said_ms) < SAID_MAX:
            self._said_ms[name] = now_ms + SAY_AGAIN_MS
            log.warning("dropped what a node sent: %r %s", sender, error)
