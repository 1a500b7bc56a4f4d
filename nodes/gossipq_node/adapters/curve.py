"""Encrypted doors: CURVE, as libzmq has it. Who dials one knows its public key before, and is answered by who
has the secret one; so nobody in between reads or changes what is said.

All doors of a cluster have one pair of keys, which is made of its secret. Each node has a pair of its own
besides: by that it comes in at the doors for nodes.
"""

from collections.abc import Iterable
from itertools import count

import zmq
from zmq.utils import z85

from gossipq.endpoints import door_of, endpoint
from gossipq.errors import ConfigError
from gossipq.limits import FRONTDOOR_PEER_PORT_STEP, GOSSIP_PORT_STEP
from gossipq.values import Member
from gossipq_node.settings import NodeKeys

ZAP = "inproc://zeromq.zap.01"
VERSION = b"1.0"
CLIENTS_DOMAIN, PEERS_DOMAIN = b"clients", b"peers"
OK = (b"200", b"OK")
#: a temporary refusal: who is new knocks again after GREETED_MS, and is on the roster by then. After a 400
#: libzmq never dials again
NOT_YET = (b"300", b"not on the roster")
GREETED_MS = 2_000  #: a handshake takes three round trips, between continents a second
_NOW = int(zmq.NOBLOCK)
FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
ENDED = zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED | FAILED
CONNECTED = int(zmq.EVENT_CONNECTED)
CONNECT_MS = 2_000  #: libzmq reports within that time whether TCP connects, if it got a descriptor for it
DIAL_S = 2 * CONNECT_MS / 1_000  #: a connection without any event for 4 s was never begun


def new_secret() -> bytes:
    """A secret key, 32 bytes."""
    return bytes(z85.decode(zmq.curve_keypair()[1]))


def public_of(secret: bytes) -> bytes:
    """The public key of a secret one; both 32 bytes. Of b"": b""."""
    return bytes(z85.decode(zmq.curve_public(z85.encode(secret)))) if secret else b""


def lock(router: "zmq.Socket[bytes]", keys: NodeKeys, domain: bytes) -> None:
    """Makes an encrypted door of a socket that is not bound yet. Without somebody at `Gate` nobody comes
    in."""
    router.curve_server, router.curve_secretkey = True, keys.door_secret
    router.zap_domain = domain
    router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)


def knock(dealer: "zmq.Socket[bytes]", keys: NodeKeys, door: bytes) -> None:
    """A socket that is not connected yet dials a door of the cluster, which has that public key."""
    dealer.handshake_ivl = GREETED_MS
    dealer.curve_serverkey = door
    dealer.curve_secretkey, dealer.curve_publickey = keys.secret, keys.public


class Gate:
    """Answers whom libzmq asks about (ZAP), in the owner's own loop: it is bound before any door is. Clients
    all come in, since HELLO says who they are; nodes by the keys that the roster has."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", own: bytes) -> None:
        self._own = own
        self.admitted = frozenset((own,))
        self.refused = 0
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ZAP)

    def admit(self, members: Iterable[Member]) -> None:
        self.admitted = frozenset((self._own,)).union(*(member.keys for member in members))

    def serve(self) -> None:
        """Everything that is asked now."""
        while True:
            try:
                asked = self.socket.recv_multipart(_NOW)
            except zmq.Again:
                return
            self.socket.send_multipart(self._answer(asked))

    def _answer(self, asked: list[bytes]) -> list[bytes]:
        _, request, domain, _, _, mechanism, *shown = asked
        key = shown[0] if mechanism == b"CURVE" and shown else b""
        may = domain == CLIENTS_DOMAIN or key in self.admitted
        self.refused += not may
        return [VERSION, request, *(OK if may else NOT_YET), key.hex().encode() if may else b"", b""]


class Doorkeys:
    """By which key each door is dialled, while the secret of the cluster is replaced: one that is not
    answered is dialled by the next key, from the moment that a handshake has failed."""

    def __init__(self, keys: NodeKeys) -> None:
        self._doors = keys.doors
        self._turns: dict[str, int] = {}  # of an address: which key

    @property
    def several(self) -> bool:
        return len(self._doors) > 1

    def of(self, address: str) -> bytes:
        return self._doors[self._turns.get(address, 0) % len(self._doors)]

    def failed(self, address: str) -> None:
        self._turns[address] = (self._turns.get(address, 0) + 1) % len(self._doors)


class Dials:
    """Finds the connections of this process that have ended, or that were never made.

    libzmq opens the descriptor of a connection in a thread of its own. If none is left there, it gives the
    connection up without any event."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self._context = context
        self._numbers = count()
        self._monitors: dict[str, zmq.Socket[bytes]] = {}
        self._unmade_s: dict[str, float] = {}  # address -> when its unmade connection is given up

    def watch(self, address: str, dealer: "zmq.Socket[bytes]", now_s: float) -> None:
        """Watch a socket that is about to connect. Raises ZMQError when no file descriptor is left."""
        # a name of its own: libzmq gives the last one free some time after it was closed
        place = f"inproc://dials-{next(self._numbers)}"
        monitor = self._context.socket(zmq.PAIR)
        monitor.linger = 0
        try:
            dealer.monitor(place, ENDED | CONNECTED)
            monitor.connect(place)
        except zmq.ZMQError:
            monitor.close(0)
            raise
        self._monitors[address] = monitor
        self._unmade_s[address] = now_s + DIAL_S

    def forget(self, address: str, dealer: "zmq.Socket[bytes]") -> None:
        """It is about to be closed."""
        self._unmade_s.pop(address, None)
        monitor = self._monitors.pop(address, None)
        if monitor is not None:
            dealer.disable_monitor()
            monitor.close(0)

    def ended(self, now_s: float) -> dict[str, bool]:
        """Return the addresses of connections that ended since the last call, or were not made in time, and
        whether the handshake failed."""
        ended = dict[str, bool]()
        for address, monitor in self._monitors.items():
            while int(monitor.get(zmq.EVENTS)) & int(zmq.POLLIN):
                event = int.from_bytes(monitor.recv_multipart(_NOW)[0][:2], "little")
                self._unmade_s.pop(address, None)
                if event != CONNECTED:
                    ended[address] = ended.get(address, False) or bool(event & FAILED)
        for address in [address for address, end_s in self._unmade_s.items() if end_s <= now_s]:
            del self._unmade_s[address]
            ended[address] = False
        return ended


class AddressBook:
    """How addresses are dialled: where, and whether encrypted."""

    def __init__(self, keys: NodeKeys) -> None:
        self._keys = keys
        self._hosts: dict[str, list[tuple[int, bool]]] = {}  # port of each node there, whether it encrypts

    def learn(self, members: Iterable[Member]) -> None:
        self._hosts = {}
        for member in members:
            place = endpoint(member.endpoint)
            self._hosts.setdefault(place.host, []).append((place.port, member.encrypts))

    def dialling(self, address: str) -> tuple[str, bool]:
        """Of a node that is not known, as `NodeKeys.assumes` says."""
        keys = self._keys
        if address in keys.clear:
            return address, False
        if address in keys.own:
            return address, keys.encrypts
        try:
            place = endpoint(address, above=0)
        except ConfigError:
            return address, False
        if place.transport == "ipc":
            return address, False
        for port, encrypts in self._hosts.get(place.host, ()):
            if 0 <= place.port - port < GOSSIP_PORT_STEP:
                for_clients = place.port - port < FRONTDOOR_PEER_PORT_STEP
                return (door_of(address) if encrypts and for_clients else address), encrypts
        return (door_of(address), True) if keys.assumes else (address, False)
