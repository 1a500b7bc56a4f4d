"""Encrypted ports, by libzmq's CURVE. A caller knows the port's public key in advance, and only the
owner of the secret key can answer. So a third party can neither read nor change messages.

All ports of a cluster share one pair of keys, derived from the cluster's secret. Each node also has
a pair of its own, by which the ports for nodes recognize it.
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
#: a temporary refusal: a new node tries again after GREETED_MS, when it is on the roster. After a
#: 400 libzmq would never dial again
NOT_YET = (b"300", b"not on the roster")
GREETED_MS = 2_000  #: a handshake takes three round trips, which is a second between continents
_NOW = int(zmq.NOBLOCK)
FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
ENDED = zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED | FAILED
CONNECTED = int(zmq.EVENT_CONNECTED)
#: libzmq reports within this time whether TCP connects, if it got a descriptor for it
CONNECT_MS = 2_000
DIAL_S = 2 * CONNECT_MS / 1_000  #: a connection without any event for 4 s was never begun


def new_secret() -> bytes:
    """Makes a secret key of 32 bytes."""
    return bytes(z85.decode(zmq.curve_keypair()[1]))


def public_of(secret: bytes) -> bytes:
    """The public key of a secret key, both 32 bytes; b"" of b""."""
    return bytes(z85.decode(zmq.curve_public(z85.encode(secret)))) if secret else b""


def lock(router: "zmq.Socket[bytes]", keys: NodeKeys, domain: bytes) -> None:
    """Makes an encrypted port of a socket that is not bound yet. Connections are
    accepted only while a `Gate` answers.
    """
    router.curve_server, router.curve_secretkey = True, keys.door_secret
    router.zap_domain = domain
    router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)


def knock(dealer: "zmq.Socket[bytes]", keys: NodeKeys, door: bytes) -> None:
    """Sets up a socket that is not connected yet for a port with the public key `door`."""
    dealer.handshake_ivl = GREETED_MS
    dealer.curve_serverkey = door
    dealer.curve_secretkey, dealer.curve_publickey = keys.secret, keys.public


class Gate:
    """Answers libzmq's questions about new connections (ZAP) in the owner's own loop; it is bound
    before any port. All clients are admitted, since HELLO identifies them later. Nodes are admitted
    by the keys of the roster.
    """

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
        """Answers all questions that have arrived."""
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
    """The key for dialling each port while the cluster's secret is replaced. After a failed
    handshake, the port is dialled with the next key.
    """

    def __init__(self, keys: NodeKeys) -> None:
        self._doors = keys.doors
        self._turns: dict[str, int] = {}  # address -> number of its key

    @property
    def several(self) -> bool:
        return len(self._doors) > 1

    def of(self, address: str) -> bytes:
        return self._doors[self._turns.get(address, 0) % len(self._doors)]

    def failed(self, address: str) -> None:
        self._turns[address] = (self._turns.get(address, 0) + 1) % len(self._doors)


class Dials:
    """Finds the connections of this process that have ended or were never made.

    libzmq opens a connection's file descriptor in a thread of its own. If no descriptor is left
    there, libzmq drops the connection without any event.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self._context = context
        self._numbers = count()
        self._monitors: dict[str, zmq.Socket[bytes]] = {}
        self._unmade_s: dict[str, float] = {}  # address -> when its unmade connection is given up

    def watch(self, address: str, dealer: "zmq.Socket[bytes]", now_s: float) -> None:
        """Watch a socket that is about to connect. Raises ZMQError when no file descriptor is left."""
        # a unique name: libzmq frees the previous one some time after it was closed
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
        """Stop watching a socket that is about to be closed."""
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
    """How to dial an address: where, and whether encrypted."""

    def __init__(self, keys: NodeKeys) -> None:
        self._keys = keys
        # host -> port of each node there, and whether the node encrypts
        self._hosts: dict[str, list[tuple[int, bool]]] = {}

    def learn(self, members: Iterable[Member]) -> None:
        self._hosts = {}
        for member in members:
            place = endpoint(member.endpoint)
            self._hosts.setdefault(place.host, []).append((place.port, member.encrypts))

    def dialling(self, address: str) -> tuple[str, bool]:
        """Returns the address to dial, and whether the connection is encrypted. For an unknown
        node, `NodeKeys.assumes` decides.
        """
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
