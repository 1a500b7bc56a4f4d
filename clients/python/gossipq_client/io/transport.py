"""Sockets: one DEALER per endpoint, with a monitor that tells when it is connected. No
other module imports zmq.

A socket is examined when its descriptor is ready, or when it was used since (`Peer.unsure`). Examining it
costs two system calls, and its use may consume the signal of its descriptor.

Only one thread at a time may use it. `wait` alone may run without the caller's lock: it only
looks at file descriptors.
"""

import errno
import os
import select
import threading
import time
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Sequence

import zmq
from zmq.backend import Socket as BareSocket
from zmq.backend import zmq_poll

from gossipq.endpoints import door_of, is_ipv6
from gossipq.errors import Unreachable
from gossipq.limits import DOOR_KEY_MS
from gossipq.resolver import LookUp, Resolver, ipv4_addresses, name_in, with_address
from gossipq.tcp import Carried, counted
from gossipq.wire import ownership

SEND_MESSAGES_MAX = 128  #: messages in the socket's own queue; further ones wait in `backlog`
LOOK_S = 3.0  #: older counts are not compared
RECONNECT_MS = 50
RECONNECT_MS_MAX = 500
CONNECT_MS = 2_000

_IN = int(zmq.POLLIN)
_CONNECTED = zmq.EVENT_CONNECTED  #: the handshake begins; the event names the descriptor
_UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
_DOWN = zmq.EVENT_DISCONNECTED
_MISSED = zmq.EVENT_CLOSED  #: a connection attempt failed
_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
#: method of the compiled class; that of its Python subclass adds nothing here
_send_frame = BareSocket.send
#: plain numbers: enums cost more than the call
_NOW, _MORE = (int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE))
Frames = list[bytes | bytearray]
Keys = tuple[bytes, bytes]  #: CURVE keys: public, secret
NO_KEYS: Keys = (b"", b"")


class Peer:
    """One endpoint's socket, its monitor, and messages that could not be sent yet."""

    __slots__ = (
        "address",
        "backlog",
        "counted",
        "counted_s",
        "door",
        "endpoint",
        "fd",
        "lost",
        "made_s",
        "monitor",
        "monitor_fd",
        "monitor_polled",
        "name",
        "polled",
        "socket",
        "unsure",
        "up",
        "wire_fd",
    )

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        door: bytes = b"",
        keys: Keys = NO_KEYS,
        address: str = "",
    ) -> None:
        """`address` is the address of the host if the endpoint has a name. Such a peer does
        not connect while it is "".
        """
        self.endpoint, self.door, self.up = endpoint, door, False
        self.name, self.address = name_in(endpoint), address
        self.lost = False  #: its connection ended or failed since its name was looked up
        self.made_s = time.monotonic()
        self.wire_fd = -1  #: descriptor of the connection itself
        self.counted: Carried | None = None  #: bytes carried at the last look
        self.counted_s = 0.0  #: when the last look was
        #: something may have arrived without a signal on the descriptor: operations on a
        #: socket may remove the signal
        self.unsure = True
        self.backlog: deque[Frames] = deque()
        self.socket = context.socket(zmq.DEALER)
        try:
            told = _CONNECTED | _UP | _DOWN | _MISSED
            self.monitor = self.socket.get_monitor_socket(told | _FAILED if door else told)
        except zmq.ZMQError:
            self.socket.close(0)
            raise
        self.socket.set(zmq.IMMEDIATE, 1)
        self.socket.set(zmq.SNDHWM, SEND_MESSAGES_MAX)
        self.socket.set(zmq.RCVHWM, 0)
        self.socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        self.socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
        self.socket.set(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        if door:
            self.socket.curve_serverkey, (self.socket.curve_publickey, self.socket.curve_secretkey) = (
                door,
                keys,
            )
        self.monitor.get(zmq.EVENTS)  # the descriptor signals the first event only after a look
        self.socket.set(zmq.IPV6, int(is_ipv6(endpoint)))
        try:
            if address or not self.name:
                numeric = with_address(endpoint, address) if self.name else endpoint
                self.socket.connect(door_of(numeric) if door else numeric)
        except (zmq.ZMQError, ValueError) as error:
            self.close(0)
            raise Unreachable(
                f"{endpoint!r} is not an address: {error}", hint="write tcp://HOST:PORT"
            ) from None
        self.fd, self.monitor_fd = int(self.socket.get(zmq.FD)), int(self.monitor.get(zmq.FD))
        #: for `zmq_poll`, which answers without making an enum
        self.polled, self.monitor_polled = [(self.socket, _IN)], [(self.monitor, _IN)]

    def moves(self, now_s: float) -> bool:
        """True if parts of a message were received or sent since the last call a moment
        ago. Sent bytes count while more wait, because the system also accepts bytes for a
        program that stands still.
        """
        before, since_s = self.counted, self.counted_s
        self.counted, self.counted_s = counted(self.wire_fd) if self.up else None, now_s
        if before is None or self.counted is None or now_s - since_s > LOOK_S:
            return False
        taken = self.counted.waiting and self.counted.taken > before.taken
        return bool(taken) or self.counted.received > before.received

    def close(self, linger_ms: int) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger_ms)


class Transport:
    def __init__(self, door: bytes = b"", look_up: LookUp = ipv4_addresses) -> None:
        """`door`: see `keys_of_doors`. `look_up` finds the addresses of a
        host name and may be slow.
        """
        self._look_up = look_up
        self._resolver: Resolver | None = None  #: created with the first host that has a name
        self._doors, self._keys = list[bytes](), NO_KEYS
        self._turns: dict[str, int] = {}  # endpoint -> number of the key by which it is dialled
        self.backlog_bytes = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._making = threading.Lock()
        self._closed = False
        self._peers: dict[str, Peer] = {}
        self._by_fd: dict[int, Peer] = {}  #: descriptor of the socket -> peer
        self._poll = _new_poll()  #: poll object for these descriptors
        #: readable when `receive` or `events` may have something. Edge-triggered: take all before waiting.
        #: It is replaced, never changed, so that a thread can wait for it without the lock
        self.fds: list[int] = []
        self.monitor_fds: set[int] = set()  #: those of `fds` that mean: look at `events`
        #: endpoints that accept no connections now; the reader clears the set
        self.missed = set[str]()
        self._pid = os.getpid()
        self.keys_of_doors(door)

    def keys_of_doors(self, door: bytes) -> None:
        """Sets the public keys of the cluster's encrypted ports, one after the other; b"" for none.
        New connections are encrypted for the owner of the secret key. If a port does not answer,
        the next key is tried. This side has new keys in each run; HELLO tells who it is.
        """
        self._doors = ownership.tokens_of(door)
        if door and self._keys is NO_KEYS:
            self._keys = zmq.curve_keypair()
        for endpoint in list(self._peers):
            self._dial_again(endpoint)

    def _door_of(self, endpoint: str) -> bytes:
        return self._doors[self._turns.get(endpoint, 0) % len(self._doors)]

    def owners(self) -> dict[int, object]:
        """Map each of `fds` to its connection, because the system reuses descriptor numbers."""
        owners: dict[int, object] = {
            fd: peer for peer in self._peers.values() for fd in (peer.fd, peer.monitor_fd)
        }
        if self._resolver is not None:
            owners[self._resolver.fd] = self._resolver
        return owners

    def _peers_changed(self) -> None:
        """Update everything that is derived from the connections."""
        self.fds = list(self.owners())
        self._by_fd = {peer.fd: peer for peer in self._peers.values()}
        self.monitor_fds = set(self.fds) - self._by_fd.keys()

    def open(self, endpoint: str, address: str = "") -> bool:
        """Connect in the background. An endpoint with a host name connects to `address`, or
        to the first known one. Returns False if no descriptor is left. Raises Unreachable
        if `endpoint` is malformed.
        """
        if endpoint not in self._peers:
            try:
                self._apart(lambda: self._make(endpoint, address))
            except (zmq.ZMQError, OSError) as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                return False
        return True

    def _make(self, endpoint: str, address: str) -> None:
        # may come late, after the caller was interrupted
        if not self._closed and endpoint not in self._peers:
            if (name := name_in(endpoint)) and not address:
                if self._resolver is None:
                    self._resolver = Resolver(self._look_up)
                    self._peers_changed()
                self._resolver.ask(name, time.monotonic())
                address = self._resolver.address(name)
            peer = Peer(self._context, endpoint, self._door_of(endpoint), self._keys, address)
            if self._poll is not None:
                self._poll.register(peer.fd, select.POLLIN)
            self._peers[endpoint] = peer
            self._peers_changed()

    def _apart(self, work: Callable[[], None]) -> None:
        """Makes and closes sockets in another thread, since signal handlers run in the main thread
        and could leave a socket half made. Raises the errors of `work`.
        """
        if threading.current_thread() is not threading.main_thread():
            with self._making:
                work()
            return
        done, errors = allocate_lock(), list[Exception]()
        done.acquire()

        def run() -> None:
            try:
                with self._making:
                    work()
            except Exception as error:
                errors.append(error)
            finally:
                done.release()

        try:
            start_new_thread(run, ())
        except RuntimeError:  # the interpreter is about to end
            run()
        done.acquire()
        if errors:
            raise errors[0]

    def close_peer(self, endpoint: str) -> None:
        peer = self._peers.get(endpoint)
        if peer is not None:
            self.backlog_bytes -= sum(map(_size, peer.backlog))
            self._apart(lambda: self._unmake(peer))

    def _unmake(self, peer: Peer) -> None:
        if self._peers.get(peer.endpoint) is peer:
            del self._peers[peer.endpoint]
            self._peers_changed()
            if self._poll is not None:
                self._poll.unregister(peer.fd)
            peer.close(0)

    def send(self, messages: list[tuple[str, Frames]]) -> None:
        """Send each message to its endpoint if that is connected, and empty the list. A message
        that the socket cannot take waits here.
        """
        for endpoint, message in messages:
            peer = self._peers.get(endpoint)
            if peer is None or not peer.up:
                continue
            peer.unsure = True
            if peer.backlog or not _send(peer.socket, message):
                peer.backlog.append(message)
                self.backlog_bytes += _size(message)
        messages.clear()

    def receive(self) -> list[tuple[str, list[bytes]]]:
        """All messages that have arrived; also sends waiting ones."""
        arrived: list[tuple[str, list[bytes]]] = []
        if self._poll is None:
            readable = [(fd, 0) for fd in wait(list(self._by_fd), 0)]
        else:
            readable = self._poll.poll(0)
        for fd, _ in readable:
            self._by_fd[fd].unsure = True
        for peer in self._peers.values():
            if not peer.unsure:
                continue
            while peer.backlog and _send(peer.socket, peer.backlog[0]):
                self.backlog_bytes -= _size(peer.backlog.popleft())
            while zmq_poll(peer.polled, 0):
                frame = peer.socket.recv(_NOW, False)
                frames = [frame.bytes]
                while frame.more:
                    frame = peer.socket.recv(_NOW, False)
                    frames.append(frame.bytes)
                arrived.append((peer.endpoint, frames))
            peer.unsure = bool(peer.backlog)
        return arrived

    def events(self) -> list[tuple[str, bool]]:
        """Endpoints that connected (True) or disconnected (False) since the last call, in order."""
        changes: list[tuple[str, bool]] = []
        ended, failed = set[str](), set[str]()
        for peer in self._peers.values():
            while zmq_poll(peer.monitor_polled, 0):
                said = peer.monitor.recv_multipart(zmq.NOBLOCK)[0]
                event = int.from_bytes(said[:2], "little")
                if event == _CONNECTED:
                    peer.wire_fd = int.from_bytes(said[2:6], "little")
                    continue
                if event & _FAILED:
                    failed.add(peer.endpoint)
                    continue
                if event == _MISSED:
                    self.missed.add(peer.endpoint)
                    peer.lost = True
                    continue
                peer.up = event == _UP
                peer.lost = not peer.up
                if peer.lost:
                    ended.add(peer.endpoint)
                    self.backlog_bytes -= sum(map(_size, peer.backlog))
                    peer.backlog.clear()
                changes.append((peer.endpoint, peer.up))
        for endpoint in failed:
            if 1_000 * (time.monotonic() - self._peers[endpoint].made_s) < DOOR_KEY_MS:
                continue  # libzmq tries it again
            self._turns[endpoint] = self._turns.get(endpoint, 0) + 1
        for endpoint in ended | failed:
            self._dial_again(endpoint)
        if self._resolver is not None:
            self._use_addresses(self._resolver)
        return changes

    def _use_addresses(self, resolver: Resolver) -> None:
        """Connect peers whose name has a new address, and look up the names of
        those that are not connected.
        """
        answered, now_s = resolver.answered(), time.monotonic()
        for peer in list(self._peers.values()):
            if not peer.name or peer.up:
                continue
            if peer.name in answered:
                address = resolver.address(peer.name, peer.address, peer.lost)
                if address != peer.address:
                    self.close_peer(peer.endpoint)
                    self.open(peer.endpoint, address)
                elif not address:
                    self.missed.add(peer.endpoint)
                peer.lost = False
            elif peer.lost or not peer.address:
                resolver.ask(peer.name, now_s)

    def moving(self, endpoint: str) -> bool:
        """True while a message moves over the connection; see `Peer.moves`."""
        peer = self._peers.get(endpoint)
        return peer is not None and peer.moves(time.monotonic())

    def _dial_again(self, endpoint: str) -> None:
        """Dials again if the port needs another key."""
        if not self._peers[endpoint].up and self._peers[endpoint].door != self._door_of(endpoint):
            self.close_peer(endpoint)
            self.open(endpoint)

    def restart(self) -> None:
        """Closes all connections at once, whatever their state."""
        self._apart(self._unmake_all)

    def _unmake_all(self) -> None:
        peers, self._peers, self._poll, self.backlog_bytes = self._peers, {}, _new_poll(), 0
        self._peers_changed()
        for peer in peers.values():
            peer.close(0)

    def close(self, linger_ms: int) -> None:
        """Sends queued messages for at most `linger_ms`. In a forked child it leaves
        the parent's sockets alone.
        """
        if os.getpid() == self._pid:
            self._apart(lambda: self._close(linger_ms))

    def _close(self, linger_ms: int) -> None:
        self._closed = True
        for peer in self._peers.values():
            peer.close(linger_ms)
        self._peers.clear()
        if self._resolver is not None:
            self._resolver.close()
            self._resolver = None
        self._peers_changed()
        self._context.term()


def _send(socket: "zmq.Socket[bytes]", message: Frames) -> bool:
    try:
        for frame in message[:-1]:
            _send_frame(socket, frame, _MORE)
        _send_frame(socket, message[-1], _NOW)
    except zmq.Again:  # only the first frame can meet it
        return False
    return True


def _size(message: Frames) -> int:
    return sum(map(len, message))


def _new_poll() -> "select.poll | None":
    """A poll object; None if this system has none."""
    return select.poll() if hasattr(select, "poll") else None


def _wait_by_poll(fds: Sequence[int], timeout_ms: float | None) -> list[int]:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(timeout_ms)]


def _wait_by_select(fds: Sequence[int], timeout_ms: float | None) -> list[int]:
    return select.select(fds, [], [], None if timeout_ms is None else timeout_ms / 1000)[0]


def wait(fds: Sequence[int], timeout_ms: float | None) -> list[int]:
    """Waits until a descriptor is readable or the time is over; returns the readable ones."""
    return _wait_by_poll(fds, timeout_ms) if hasattr(select, "poll") else _wait_by_select(fds, timeout_ms)
