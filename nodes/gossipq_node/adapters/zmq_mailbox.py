"""The Mailbox over ZeroMQ: a ROUTER for clients, one for clients that encrypt, one for peers, and a DEALER to
each peer to which this process sent a message.

A message is [control] or [control, batch] behind the routing frame; a forwarded one is [client id, b"",
control, (batch)]. High-water marks only limit memory if a peer does not keep to its credit: then sends fail
and are counted; they never block.
"""

import errno
import os
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count
from random import random

import zmq

from gossipq import limits
from gossipq.endpoints import is_ipv6
from gossipq.errors import ConfigError, ProtocolError
from gossipq.messages import Pong, RefusedMessage
from gossipq.resolver import LookUp, ipv4_addresses, name_in, with_address
from gossipq.types import Origin
from gossipq.values import Member, Quota
from gossipq.wire.frames import encode
from gossipq_node.adapters import curve
from gossipq_node.adapters.named_peers import NamedPeers
from gossipq_node.adapters.places import cannot_bind
from gossipq_node.adapters.visitors import (
    ENDLESS_BYTES,
    FIRST_BYTES,
    NEWCOMERS_MS,
    NEWCOMERS_S,
    Visitors,
    taken,
)
from gossipq_node.ports import THIS_HOST, Incoming
from gossipq_node.settings import NodeKeys

CLIENTS, DOOR, PEERS, DEALER = (
    b"c",
    b"e",
    b"p",
    b"d",
)  #: first part of an origin: the socket by which a message came
#: messages of one connection that wait here before TCP blocks its sender: of a client at most 1 GiB, if each
#: has the largest size. A turn takes all that wait: with a queue of 16, small batches cost a tenth more
RECEIVE_QUEUE = 64
PEER_RECEIVE_QUEUE = 1_000
SEND_QUEUE = 10_000  #: messages that one peer has not read; credit keeps the number far below
PEER_QUEUE = 1_000  #: messages to a peer that is unreachable
SOCKETS_MAX = 4_096  #: of libzmq; a dialled address takes three, because it is monitored
HANDSHAKE_MS = 5_000
LINGER_MS = 500
BACKLOG = 1_024
KEEPALIVE_S = 60
#: to peers: a connection that was cut is closed and opened again
HEARTBEAT_MS, SILENCE_MS = 1_000, 3_000
#: libzmq must not reconnect by itself: it would send waiting messages to another process at that address
NO_RECONNECT = -1
REDIAL_S = 0.2  #: between the end of a connection and the next attempt; up to the same more at random
DIALS_S = 0.1  #: between two checks for ended connections
PEERS_S = NEWCOMERS_S  #: and between two checks of the door for peers
#: the connection of an address that is idle for this long is closed; a live peer sends every 10 s
IDLE_S = 60.0
SETTLED_MS = 50  #: after its monitor, a ROUTER itself notices within this time that a connection has ended
SETTLED_S = SETTLED_MS / 1_000
FRAME_HEAD_BYTES = 2  #: the least that ZeroMQ sends with a frame
QUOTA = Quota()
IPC, TCP = "ipc://", "tcp://"

Buffer = bytes | bytearray | memoryview

#: plain numbers: enums cost more than the call
_NOW, _MORE = (int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE))
_BAD_FRAMES = encode(
    RefusedMessage(
        ProtocolError.code, "a message is a control frame and at most one batch frame", "see PROTOCOL.md"
    )
)
_STILL_THERE = encode(Pong())
_send = zmq.backend.Socket.send  #: Socket.send of pyzmq also handles options that are not used here
_CAME, _ENDED = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_DISCONNECTED)
_IN = int(zmq.POLLIN)


class Connections:
    """Finds the ended connections of a ROUTER, within milliseconds, by its monitor.

    The monitor names a file descriptor, which may belong to another connection by the time the event is read.
    So each connection that had the descriptor is sent a PONG. With ROUTER_MANDATORY, that fails for a
    connection that has ended.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        router: "zmq.Socket[bytes]",
        quota: Quota,
        first_bytes: int = ENDLESS_BYTES,
    ) -> None:
        self._router = router
        address = f"inproc://monitor-{id(router)}"
        router.monitor(address, _CAME | _ENDED)
        self.monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self.monitor.set(zmq.RCVHWM, 0)  # a full queue would block the I/O thread of libzmq
        self.monitor.connect(address)
        self.visitors = Visitors(quota, first_bytes)
        self.spoke: set[bytes] = set()  #: connections with a message since the last check
        self._nameless: set[bytes] = set()  # of them, those whose descriptor libzmq does not tell
        self._sent: dict[bytes, int] = {}  # bytes sent, by connection,
        self._taken: dict[bytes, int] = {}  # and how many of them it had taken at the last check
        self.known: dict[bytes, int] = {}  #: connection -> its descriptor
        self._by_fd: dict[int, set[bytes]] = {}
        self._ended: set[int] = set()  # descriptors of connections that ended without a message
        self.doubted: dict[
            bytes, float
        ] = {}  #: connection -> until when it may have ended although a send succeeds
        self._keys: dict[bytes, bytes] = {}  # keys of nodes, by connection, at an encrypted door

    def meet(self, frame: "zmq.Frame") -> None:
        """Note the descriptor of a connection that is not in `known`, from the first frame of its message."""
        name = frame.bytes
        try:
            fd = self.known[name] = int(frame.get(zmq.SRCFD))
        except zmq.ZMQError:  # a connection with ZMTP 2, or within this process
            self._nameless.add(name)
            return
        self._by_fd.setdefault(fd, set()).add(name)
        if fd in self._ended:
            self._ended.discard(fd)
            self.doubted[name] = time.monotonic() + SETTLED_S

    def key(self, frame: "zmq.Frame") -> bytes:
        """Return the public key of the sender of a first frame, at an encrypted door."""
        name = frame.bytes
        key = self._keys[name] = bytes.fromhex(str(frame.get("User-Id")))
        return key

    def hang_up(self, admitted: frozenset[bytes]) -> None:
        """Close all connections with other keys than these. Their waiting messages are dropped too."""
        for name in [name for name, key in self._keys.items() if key not in admitted]:
            del self._keys[name]
            if name in self.known:
                self.visitors.hang_up(self.known[name])

    def watch(self, now_s: float) -> None:
        """Check the connections of a door, without reporting those that have ended."""
        self._follow(now_s)
        for name in self.doubted:
            self.known.pop(name, None)
            self._keys.pop(name, None)
        self.doubted.clear()
        if now_s >= self.visitors.look_s:
            self.look(now_s)

    def _follow(self, now_s: float) -> None:
        """Handle the events of the monitor."""
        while int(self.monitor.get(zmq.EVENTS)) & _IN:
            event = self.monitor.recv_multipart(zmq.NOBLOCK)[0]
            fd = int.from_bytes(event[2:6], "little")
            if int.from_bytes(event[:2], "little") == _CAME:
                self.visitors.came(fd, now_s)
                continue
            self.visitors.left(fd)
            names = self._by_fd.pop(fd, None)
            if names is None:
                self._ended.add(fd)
            else:
                self.doubted |= dict.fromkeys(names, now_s + SETTLED_S)

    def gone(self, now_s: float, told: bool) -> list[bytes]:
        """Return connections that ended since the last call. Call it when all their messages are received.
        `told`: the monitor has events."""
        if told:
            self._follow(now_s)
        if not self.doubted:
            return []
        self._router.get(zmq.EVENTS)  # makes libzmq handle ends that it has not handled yet
        fresh_s = now_s + SETTLED_S
        look = [name for name, until_s in self.doubted.items() if until_s >= fresh_s or until_s <= now_s]
        return [name for name in look if self._is_gone(name, self.doubted[name] <= now_s)]

    def _is_gone(self, name: bytes, certain: bool) -> bool:
        """Return whether a connection has ended. The monitor may report an end before the ROUTER notices it,
        so a connection that seems alive is checked again a moment later (`certain`)."""
        try:
            self._router.send(name, _MORE)
            self._router.send(_STILL_THERE, _NOW)
        except zmq.ZMQError as error:
            if error.errno != errno.EAGAIN:  # EAGAIN: the client does not read, and may be alive
                del self.doubted[name]
                for about in (self.known, self._sent, self._taken):
                    about.pop(name, None)
                return True
        if certain:
            del self.doubted[name]
            fd = self.known.pop(name, None)  # its next message tells its descriptor again
            if fd is not None:
                self._by_fd.setdefault(fd, set()).add(name)
        return False

    def address(self, name: bytes) -> str:
        fd = self.known.get(name)
        return THIS_HOST if fd is None else self.visitors.address(fd)

    def has_room(self, name: bytes, size: int) -> bool:
        """Count `size` bytes that go to a connection, unless too many wait there to be taken."""
        most = limits.UNREAD_BYTES_HARD_MAX
        if self._sent.get(name, 0) - self._taken.get(name, 0) > most and self.unread(name, most) > most:
            return False
        self._sent[name] = self._sent.get(name, 0) + size + FRAME_HEAD_BYTES
        return True

    def unread(self, name: bytes, enough: int) -> int:
        """Return how many sent bytes the other end has not taken. The number is exact only from `enough` on,
        because asking the kernel costs a call."""
        sent, had = self._sent.get(name, 0), self._taken.get(name, 0)
        if sent - had < enough:
            return sent - had
        found = taken(self.known[name]) if name in self.known else None
        if found is None:
            found = sent  # the kernel does not count them
        # `sent` lacks the frames that ZeroMQ sends by itself
        self._sent[name], self._taken[name] = max(sent, found), found
        return self._sent[name] - found

    def moving(self, name: bytes) -> bool:
        """Return whether parts of an incomplete message are arriving."""
        return name in self.known and self.visitors.moving(self.known[name])

    def look(self, now_s: float) -> None:
        """Close idle connections. Call it after `visitors.look_s`, when all that came is taken."""
        visitors = self.visitors
        visitors.heard_nameless(len(self._nameless), self._by_fd, now_s)
        self._nameless.clear()
        if visitors.due(now_s):
            spoke, self.spoke = self.spoke, set()
            for name in spoke & self.known.keys():
                visitors.heard(self.known[name], now_s)
            visitors.look(now_s, self._all_taken())
        else:
            visitors.look_at_newcomers(self._by_fd, now_s, self._all_taken())

    def _all_taken(self) -> bool:
        """Return whether no complete message waits in the ROUTER."""
        return not int(self._router.get(zmq.EVENTS)) & _IN

    def close(self) -> None:
        self._router.disable_monitor()
        self.monitor.close(0)


def _check_path(path: str) -> None:
    """Raise ConfigError if a file is at the path that is no socket of this user: libzmq would replace it."""
    with suppress(FileNotFoundError):
        about = os.lstat(path)
        if not stat.S_ISSOCK(about.st_mode) or about.st_uid != os.geteuid():
            raise ConfigError(
                f"{path} exists, and is no socket of this user", "choose another path with --bind ipc://PATH"
            )


def _bind_at(router: "zmq.Socket[bytes]", endpoint: str) -> None:
    """Bind a socket. If that fails, close it and raise ConfigError."""
    try:
        if endpoint.startswith(IPC):
            _check_path(endpoint.removeprefix(IPC))
        router.set(zmq.IPV6, int(is_ipv6(endpoint)))
        router.bind(endpoint)
    except ConfigError:
        router.close(0)
        raise
    except zmq.ZMQError as error:
        router.close(0)
        raise cannot_bind(endpoint, error.errno or 0, error.strerror or "") from None


class _Dealer:
    """A connection that this process opens. `redial_s`: when to open the next one, if this one has ended.
    `forwards`: it carried messages of clients."""

    __slots__ = ("forwards", "redial_s", "serial", "socket")

    def __init__(self, socket: "zmq.Socket[bytes]", serial: bytes) -> None:
        self.socket, self.serial = socket, serial
        self.redial_s: float | None = None
        self.forwards = False


class ZmqMailbox:
    """The sockets of one actor. All calls come from one thread.

    `wake` are file descriptors that end a wait early while they are readable; the owner reads or closes them.
    `relayed` counts answers that were passed to clients for which `forward` sent messages.
    """

    def __init__(
        self,
        clients: str = "",
        peers: str = "",
        wake: Sequence[int] = (),
        quota: Quota = QUOTA,
        keys: NodeKeys | None = None,
        doors: Sequence[str] = (),
        look_up: LookUp = ipv4_addresses,
    ) -> None:
        """Bind `clients`, `peers` ("" = none) and the encrypted `doors` for clients. `quota`: maximum number
        of connections. `look_up`: finds the addresses of a host name, and may block. Raises ConfigError."""
        self.bad_frames = self._dropped = self.relayed = 0
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
        self._bound = [endpoint for endpoint in (clients, peers) if endpoint]
        self._keys, self._gate = keys, curve.Gate(self._context, keys.public) if keys is not None else None
        self._book = curve.AddressBook(keys) if keys is not None else None
        self._poller = zmq.Poller()
        self._doorkeys = curve.Doorkeys(keys) if keys is not None else None
        self._dials, self._dials_s = curve.Dials(self._context), 0.0  # time of their next check
        self._routers: dict[bytes, zmq.Socket[bytes]] = {}
        self._connections: dict[bytes, Connections] = {}  # of clients, by door,
        self._peers: Connections | None = None  # and of other nodes
        self._peers_s = 0.0  # time of their next check
        self._ready: dict[object, int] = {}  # sockets and monitors that were readable at the last poll
        self._named = NamedPeers(look_up)
        self._poller.register(self._named.fd, zmq.POLLIN)
        self._dealers: dict[str, _Dealer] = {}
        self._serials = count(1)
        self._used: set[str] = set()  # addresses used since the last check for idle ones
        self._idle_s = 0.0  # time of that check
        #: with the routing tag, in the order they are drained
        self._inputs: list[tuple[zmq.Socket[bytes], bytes]] = []
        for fd in wake:
            self._poller.register(fd, zmq.POLLIN)
        try:
            if self._gate is not None:
                self._poller.register(self._gate.socket, zmq.POLLIN)
            locked = PEERS if keys is not None and keys.encrypts else b""
            for tag, endpoints, queue in (
                (PEERS, (peers,), PEER_RECEIVE_QUEUE),
                (CLIENTS, (clients,), RECEIVE_QUEUE),
                (DOOR, doors, RECEIVE_QUEUE),
            ):
                if any(endpoints):
                    self._routers[tag] = self._bind(endpoints, queue, tag in (locked, DOOR), tag == PEERS)
                    self._inputs.append((self._routers[tag], tag))
            for tag in self._routers.keys() - {PEERS}:
                about = Connections(self._context, self._routers[tag], quota, FIRST_BYTES)
                self._connections[tag] = about
                self._poller.register(about.monitor, zmq.POLLIN)
            if peers:
                of_peers = Quota(address_connections=quota.address_connections)
                self._peers = Connections(self._context, self._routers[PEERS], of_peers)
        except ConfigError:
            self._named.close()
            self._context.destroy(linger=0)
            raise

    @property
    def dropped(self) -> int:
        """See ports.Mailbox."""
        return self._dropped + self._named.dropped

    def _socket(self, kind: int, receive_queue: int, send_queue: int) -> "zmq.Socket[bytes]":
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.set(zmq.RCVHWM, receive_queue)
        socket.set(zmq.SNDHWM, send_queue)
        socket.set(zmq.MAXMSGSIZE, limits.FRAME_BYTES_MAX)
        socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.set(zmq.TCP_KEEPALIVE, 1)
        socket.set(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S)
        return socket

    def _bind(
        self, endpoints: Sequence[str], receive_queue: int, locked: bool, for_nodes: bool
    ) -> "zmq.Socket[bytes]":
        router = self._socket(zmq.ROUTER, receive_queue, SEND_QUEUE)
        router.set(zmq.ROUTER_MANDATORY, 1)
        router.set(zmq.BACKLOG, BACKLOG)
        router.set(zmq.LINGER, LINGER_MS)
        if locked and self._keys is not None:
            curve.lock(router, self._keys, curve.PEERS_DOMAIN if for_nodes else curve.CLIENTS_DOMAIN)
        for endpoint in endpoints:
            _bind_at(router, endpoint)
        self._poller.register(router, zmq.POLLIN)
        return router

    def receive(self, timeout_ms: int | None) -> list[Incoming]:
        """See ports.Mailbox. Returns [] at once while a descriptor of `wake` is readable and no message
        waits."""
        if (now_s := time.monotonic()) >= self._idle_s:
            self._idle_s = now_s + IDLE_S
            self._let_go()
        for connections in self._connections.values():
            if connections.doubted:
                timeout_ms = SETTLED_MS if timeout_ms is None else min(timeout_ms, SETTLED_MS)
            if connections.visitors.newcomers:
                timeout_ms = NEWCOMERS_MS if timeout_ms is None else min(timeout_ms, NEWCOMERS_MS)
        ready = self._ready = dict(
            zmq.zmq_poll(self._poller.sockets, -1 if timeout_ms is None else timeout_ms)
        )
        if now_s >= self._dials_s:
            self._dials_s = now_s + DIALS_S
            self._look_at_dials(now_s)
        if self._named.fd in ready:
            self._use_addresses()
        arrived: list[Incoming] = []
        room = limits.TURN_BYTES_MAX
        if self._gate is not None and self._gate.socket in ready:
            self._gate.serve()
        for socket, tag in self._inputs:
            if socket in ready:
                if tag not in self._routers:
                    self._used.add(tag.decode())
                room = self._drain(socket, tag, arrived, room)
        return arrived

    def _drain(self, socket: "zmq.Socket[bytes]", tag: bytes, arrived: list[Incoming], room: int) -> int:
        """Receive waiting messages into `arrived`. Return the bytes that this turn may still receive."""
        receive, endpoint, alone = socket.recv, b"" if tag in self._routers else tag, [(socket, _IN)]
        serial = self._dealers[tag.decode()].serial if endpoint else b""
        connections = self._peers if tag == PEERS else self._connections.get(tag)
        admitted = self._gate.admitted if tag == PEERS and self._gate is not None and self._locked else None
        more = True
        for _ in range(limits.TURN_MESSAGES_MAX - len(arrived)):
            if room <= 0 or not more:
                break
            try:
                frame = receive(_NOW, False)
            except zmq.Again:  # its sender has ended
                break
            key, name = b"", frame.bytes
            if connections is not None:
                connections.spoke.add(name)
                if name not in connections.known:
                    connections.meet(frame)
                if admitted is not None:
                    key = connections.key(frame)
            frames = [endpoint, name] if endpoint else [name]
            while frame.more:
                frame = receive(_NOW, False)
                frames.append(frame.bytes)
            more = bool(zmq.zmq_poll(alone, 0))  # an exception costs three times as much
            size = len(frames)
            room -= sum(map(len, frames))
            if admitted is not None and key not in admitted:
                self._turn_away()
                continue
            if endpoint:
                if size in (4, 5) and frames[2] == b"":
                    self._relay(frames)
                elif size in (2, 3):
                    origin = (DEALER, endpoint, serial)
                    arrived.append(Incoming(origin, frames[1], frames[2] if size == 3 else b""))
                else:
                    self.bad_frames += 1
            elif size in (2, 3):
                arrived.append(Incoming((tag, frames[0]), frames[1], frames[2] if size == 3 else b"", key))
            elif size in (4, 5) and frames[2] == b"":
                arrived.append(
                    Incoming((tag, frames[0], frames[1], b""), frames[3], frames[4] if size == 5 else b"")
                )
            else:
                self.bad_frames += 1
                self._send(socket, frames[:1], _BAD_FRAMES, b"")
        return room

    def _relay(self, frames: list[bytes]) -> None:
        """Pass the answer of a peer to the client whose message `forward` sent."""
        if not self._dealers[frames[0].decode()].forwards:
            self.bad_frames += 1
            return
        tag, name = frames[1][:1], frames[1][1:]
        clients = self._routers.get(tag) if tag in self._connections else None
        if clients is None:
            return
        if not self._connections[tag].has_room(name, sum(map(len, frames[3:]))):
            self._dropped += 1
            return
        if self._send(clients, (name,), frames[3], frames[4] if len(frames) == 5 else b""):
            self.relayed += 1

    def _send(
        self, socket: "zmq.Socket[bytes]", routing: Sequence[bytes], control: bytes, batch: Buffer
    ) -> bool:
        try:
            for frame in routing:
                _send(socket, frame, _MORE)
            if batch:
                _send(socket, control, _MORE)
                _send(socket, batch, _NOW)
            else:
                _send(socket, control, _NOW)
        except zmq.ZMQError:  # EHOSTUNREACH: ended; EAGAIN: does not read. Only the first frame can fail
            self._dropped += 1
            return False
        return True

    def reply(self, origin: Origin, control: bytes, batch: bytes | Sequence[bytes] = b"") -> bool:
        if not isinstance(batch, (bytes, bytearray, memoryview)):
            batch = batch[0] if len(batch) == 1 else b"".join(batch)
        if origin[0] == DEALER:
            return self._send_on(origin, (), control, batch)
        connections = self._connections.get(origin[0])
        if connections is not None and not connections.has_room(origin[1], len(control) + len(batch)):
            self._dropped += 1
            return False
        return self._send(self._routers[origin[0]], origin[1:], control, batch)

    def address(self, origin: Origin) -> str:
        """See ports.Mailbox."""
        connections = self._connections.get(origin[0])
        return THIS_HOST if connections is None else connections.address(origin[1])

    @property
    def turned_away(self) -> int:
        """See ports.Mailbox."""
        doors = (*self._connections.values(), self._peers)
        return sum(door.visitors.turned_away for door in doors if door is not None)

    def crowded(self, origin: Origin) -> bool:
        """See ports.Mailbox."""
        most, connections = limits.UNREAD_BYTES_MAX, self._connections.get(origin[0])
        return connections is not None and connections.unread(origin[1], most) > most

    def moving(self, origin: Origin) -> bool:
        """See ports.Mailbox."""
        connections = self._connections.get(origin[0])
        return connections is not None and connections.moving(origin[1])

    def send(self, endpoint: str, control: bytes, batch: Buffer = b"") -> bool:
        self._used.add(endpoint)
        dealer = self._dealers.get(endpoint) or self._connect(endpoint)
        if dealer is None:
            return self._named.keep(endpoint, (control, bytes(batch)))
        if dealer.redial_s is not None:  # messages to a peer that is away are repeated, so none is queued
            return False
        if self._send(dealer.socket, (), control, batch):
            return True
        self._ended(endpoint, time.monotonic())  # its queue is full of outdated messages
        return False

    def forward(self, connection: Origin, message: Incoming) -> bool:
        """Sends a client's message to a peer in the client's name, over the connection on which that peer
        has answered. Answers go straight back to the client."""
        if len(message.origin) != 2:  # it was forwarded already: one hop is the limit
            self.bad_frames += 1
            return False
        routing = (b"".join(message.origin), b"")
        if not self._send_on(connection, routing, message.control, message.batch):
            return False
        self._dealers[connection[1].decode()].forwards = True
        return True

    def stands(self, origin: Origin) -> bool:
        """See ports.Mailbox."""
        dealer = self._dealers.get(origin[1].decode())
        return dealer is not None and dealer.serial == origin[2] and dealer.redial_s is None

    def _send_on(self, origin: Origin, routing: Sequence[bytes], control: bytes, batch: Buffer) -> bool:
        """Send over the connection on which an answer came; drop the message if that has ended."""
        if not self.stands(origin):
            self._dropped += 1
            return False
        endpoint = origin[1].decode()
        self._used.add(endpoint)
        if self._send(self._dealers[endpoint].socket, routing, control, batch):
            return True
        self._ended(endpoint, time.monotonic())
        return False

    def from_client(self, origin: Origin) -> bool:
        """See ports.Mailbox."""
        return origin[0] not in (PEERS, DEALER)

    def from_peer(self, origin: Origin) -> bool:
        """Return whether a message came in by the ROUTER for peers."""
        return origin[0] == PEERS

    def answerer(self, origin: Origin) -> str:
        """See ports.Mailbox."""
        return origin[1].decode() if origin[0] == DEALER else ""

    def _connect(self, endpoint: str) -> "_Dealer | None":
        """Open a connection to a peer. Return None if the process has no file descriptor left: its messages
        are dropped, as those to a peer that is away. Also return None while its host has no address;
        `_named` then keeps its messages."""
        dealer: zmq.Socket[bytes] | None = None
        name = name_in(self._dialling(endpoint)[0])
        number = self._named.address(endpoint, name) if name else ""
        if name and not number:
            return None
        try:
            dealer = self._socket(zmq.DEALER, PEER_RECEIVE_QUEUE, PEER_QUEUE)
            self._dial(dealer, endpoint, number)
        except zmq.ZMQError:
            if dealer is not None:
                dealer.close(0)  # an open socket would keep `close` from returning
            self._dropped += 1
            return None
        self._poller.register(dealer, zmq.POLLIN)
        self._inputs.insert(0, (dealer, endpoint.encode()))
        made = self._dealers[endpoint] = _Dealer(dealer, b"%d" % next(self._serials))
        return made

    def _dial(self, dealer: "zmq.Socket[bytes]", endpoint: str, number: str) -> None:
        """Open a connection. `number`: the address of the host, if the endpoint has a name."""
        dealer.set(zmq.LINGER, 0)
        dealer.set(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        dealer.set(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
        dealer.set(zmq.CONNECT_TIMEOUT, curve.CONNECT_MS)
        dealer.set(zmq.RECONNECT_IVL, NO_RECONNECT)
        address, encrypted = self._dialling(endpoint)
        if number:
            address = with_address(address, number)
        if encrypted and self._keys is not None and self._doorkeys is not None:
            curve.knock(dealer, self._keys, self._doorkeys.of(endpoint))
        self._dials.watch(endpoint, dealer, time.monotonic())
        with suppress(zmq.ZMQError):  # without an address the dial fails, like one without a descriptor
            dealer.set(zmq.IPV6, int(is_ipv6(address)))
            dealer.connect(address)

    def _dialling(self, endpoint: str) -> tuple[str, bool]:
        return (endpoint, False) if self._book is None else self._book.dialling(endpoint)

    @property
    def _locked(self) -> bool:
        """Return whether the door for peers is encrypted."""
        return self._keys is not None and self._keys.encrypts

    def admit(self, members: Iterable[Member]) -> None:
        """See ports.Mailbox."""
        if self._gate is None or self._book is None:
            return
        rows = list(members)
        before = {endpoint: self._dialling(endpoint) for endpoint in self._dealers}
        self._gate.admit(rows)
        self._book.learn(rows)
        for endpoint, was in before.items():
            if self._dialling(endpoint) != was:
                self._disconnect(endpoint)
        self._turn_away()

    def _turn_away(self) -> None:
        """Close connections of peers that are not admitted."""
        if self._peers is not None and self._gate is not None and self._locked:
            self._peers.watch(time.monotonic())  # a descriptor may belong to another connection by now
            self._peers.hang_up(self._gate.admitted)

    def encrypted(self, origin: Origin) -> bool:
        """See ports.Mailbox."""
        return origin[0] == DOOR or self.address(origin) == THIS_HOST

    def _disconnect(self, endpoint: str) -> None:
        dealer = self._dealers.pop(endpoint).socket
        self._dials.forget(endpoint, dealer)
        self._poller.unregister(dealer)
        self._inputs = [(socket, tag) for socket, tag in self._inputs if socket is not dealer]
        dealer.close(0)

    def _look_at_dials(self, now_s: float) -> None:
        """Find ended connections to peers. The next message to such an address opens another one, after its
        redial time."""
        for endpoint, handshake_failed in self._dials.ended(now_s).items():
            self._ended(endpoint, now_s)
            if handshake_failed and self._doorkeys is not None and self._doorkeys.several:
                self._doorkeys.failed(endpoint)
                self._dealers[endpoint].redial_s = now_s  # at once, with the next key
        for endpoint, dealer in list(self._dealers.items()):
            if dealer.redial_s is not None and dealer.redial_s <= now_s:
                self._disconnect(endpoint)

    def _ended(self, endpoint: str, now_s: float) -> None:
        if name := name_in(self._dialling(endpoint)[0]):
            self._named.lost(endpoint, name, now_s)
        if (dealer := self._dealers[endpoint]).redial_s is None:
            dealer.redial_s = now_s + REDIAL_S * (1.0 + random())

    def _use_addresses(self) -> None:
        """Send the messages that waited for a first address of their host."""
        for endpoint, mails in self._named.found():
            for control, batch in mails:
                self.send(endpoint, control, batch)

    def _let_go(self) -> None:
        """Close the connections of idle addresses: otherwise a node that left the roster would be dialled for
        ever."""
        for endpoint in self._dealers.keys() - self._used:
            self._disconnect(endpoint)
        self._named.forget_unused(self._used)
        self._used.clear()

    def gone(self) -> list[Origin]:
        """See ports.Mailbox."""
        now_s = time.monotonic()
        if self._peers is not None and now_s >= self._peers_s:
            self._peers_s = now_s + PEERS_S
            self._peers.watch(now_s)
        gone = list[Origin]()
        for tag, connections in self._connections.items():
            told = connections.monitor in self._ready
            if told or connections.doubted:
                gone += [(tag, name) for name in connections.gone(now_s, told)]
            if now_s >= connections.visitors.look_s:
                connections.look(now_s)
        return gone

    def close(self) -> None:
        """Close all sockets. Sent messages have half a second to leave."""
        for endpoint in list(self._dealers):
            self._disconnect(endpoint)
        for connections in (*self._connections.values(), self._peers):
            if connections is not None:
                connections.close()
        for router in self._routers.values():
            router.close()
        if self._gate is not None:
            self._gate.socket.close()
        self._named.close()
        self._context.term()
        for endpoint in self._bound:
            if endpoint.startswith(IPC):  # libzmq does not remove the file of the socket
                with suppress(OSError):
                    os.unlink(endpoint.removeprefix(IPC))
