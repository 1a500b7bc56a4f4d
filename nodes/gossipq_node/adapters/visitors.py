"""The connections of a door for clients: their number, their addresses, and whether they send messages.

libzmq keeps a connection as long as the other end does, whatever it sends, and has no call that closes one.
Its monitor tells the descriptor of each connection, and a descriptor can be shut down. When the monitor
reports a broken connection, its descriptor may already belong to the next one. So only a PONG that cannot be
sent proves that a connection is broken; its session has 1 s to return.
"""

import logging
import socket
from collections.abc import Container
from contextlib import suppress

from gossipq import limits
from gossipq.rates import host_of
from gossipq.tcp import counted, socket_of
from gossipq.values import Quota
from gossipq_node.ports import THIS_HOST

CROWD = 256  #: up to this number, silent connections stay: they cost next to nothing
FIRST_WORD_S, IDLE_S = 5.0, 60.0
LOOK_S = 1.0
SAY_AGAIN_S = 60.0
NEWCOMERS_S = 0.02  #: interval of checks of new connections without a message
NEWCOMERS_MS = int(1_000 * NEWCOMERS_S)
#: of a client, before its first message is complete: HELLO has some hundred
FIRST_BYTES = limits.CONTROL_BYTES_MAX
ENDLESS_BYTES = 4 * limits.FRAME_BYTES_MAX  #: of any connection, without a complete message

QUOTA = Quota()
ENDLESS = "sends a message without end"

log = logging.getLogger(__name__)


class Visitor:
    __slots__ = ("address", "bytes", "came", "heard_s", "moving", "nameless", "spoke")

    def __init__(self, address: str, now_s: float) -> None:
        self.address, self.heard_s = address, now_s
        self.spoke = False
        self.nameless = False  #: it sent messages, but libzmq does not tell which connection sent them
        self.bytes = 0  #: bytes that had arrived at its last complete message,
        self.came = 0  #: and at the last check
        self.moving = False  #: a part of a message arrived between the last two checks


class Visitors:
    """Connections by descriptor. `first_bytes`: limit of bytes before the first message is complete.
    `turned_away` counts connections that exceeded a quota or were closed here."""

    def __init__(self, quota: Quota = QUOTA, first_bytes: int = ENDLESS_BYTES) -> None:
        self._at_all, self._of_address = quota.connections, quota.address_connections
        self._first_bytes = first_bytes
        self._by_fd: dict[int, Visitor] = {}
        self.newcomers: dict[int, Visitor] = {}  #: connections without a complete message
        self._newcomers_look_s = 0.0  # time of their next check,
        self._all_look_s = 0.0  # and of the next check of all
        self.look_s = 0.0  #: the earlier of both times
        self._counts: dict[str, int] = {}
        self._say_s = 0.0
        self.turned_away = 0

    def __len__(self) -> int:
        return len(self._by_fd)

    def came(self, fd: int, now_s: float) -> None:
        """Add a connection that was accepted, or close it if a quota is reached."""
        self.left(fd)  # the monitor told its end late, or not at all
        address = _address(fd)
        host = host_of(address)
        if len(self._by_fd) >= self._at_all:
            self._turn_away(fd, f"{self._at_all} connections are there (cluster.quota.connections)", now_s)
        elif not _local(address) and self._counts.get(host, 0) >= self._of_address:
            self._turn_away(fd, f"{host} has {self._of_address} connections", now_s)
        else:
            self._by_fd[fd] = self.newcomers[fd] = Visitor(address, now_s)
            self.look_s = min(self.look_s, self._newcomers_look_s)
            self._counts[host] = self._counts.get(host, 0) + 1

    def address(self, fd: int) -> str:
        """Return the address of the host at the other end."""
        visitor = self._by_fd.get(fd)
        address = visitor.address if visitor is not None else _address(fd)
        return THIS_HOST if _local(address) else address

    def left(self, fd: int) -> None:
        self.newcomers.pop(fd, None)
        visitor = self._by_fd.pop(fd, None)
        if visitor is not None:
            host = host_of(visitor.address)
            self._counts[host] -= 1
            if not self._counts[host]:
                del self._counts[host]

    def heard(self, fd: int, now_s: float) -> None:
        """Note that a complete message came from a connection."""
        visitor = self._by_fd.get(fd)
        if visitor is not None:
            visitor.heard_s = now_s
            visitor.spoke = True
            visitor.bytes = _received(fd)
            visitor.moving = False

    def heard_nameless(self, count: int, named: Container[int], now_s: float) -> None:
        """Note complete messages of connections whose descriptor libzmq does not tell, because they use
        ZMTP 2.

        `count`: how many such connections sent a message. If at most that many connections have sent bytes,
        all of them did. `named`: descriptors that libzmq told.
        """
        if not count:
            return
        unheard = {
            visitor: received
            for fd, visitor in self._by_fd.items()
            if (visitor.nameless or not visitor.spoke) and fd not in named
            if (received := _received(fd)) > visitor.bytes
        }
        if len(unheard) <= count:
            for visitor, received in unheard.items():
                visitor.heard_s, visitor.bytes = now_s, received
                visitor.spoke = visitor.nameless = True

    def due(self, now_s: float) -> bool:
        """Return whether it is time to check all connections, not only the new ones."""
        return now_s >= self._all_look_s

    def look(self, now_s: float, all_taken: bool) -> None:
        """Close connections that send an endless message and, if there are more than CROWD, those that send
        nothing. `all_taken`: no complete message waits to be received."""
        self._all_look_s = now_s + LOOK_S
        self._set_look()
        crowd = len(self._by_fd) > CROWD
        for fd, visitor in list(self._by_fd.items()):
            silent_s = now_s - visitor.heard_s
            if crowd and silent_s > (IDLE_S if visitor.spoke else FIRST_WORD_S):
                self._hang_up(fd, visitor, "says nothing", now_s)
            elif silent_s >= LOOK_S:
                self._count(fd, visitor)
                if all_taken and self._is_endless(visitor):
                    self._hang_up(fd, visitor, ENDLESS, now_s)

    def _set_look(self) -> None:
        newcomers_s = self._newcomers_look_s if self.newcomers else self._all_look_s
        self.look_s = min(self._all_look_s, newcomers_s)

    def look_at_newcomers(self, spoke: Container[int], now_s: float, all_taken: bool) -> None:
        """Check new connections as `look` does, but more often: a host can send a gigabyte in a second.
        `spoke`: connections that have sent a complete message."""
        self._newcomers_look_s = now_s + NEWCOMERS_S
        for fd, visitor in list(self.newcomers.items()):
            if fd in spoke or visitor.spoke or now_s - visitor.heard_s > LOOK_S:
                del self.newcomers[fd]
                continue
            self._count(fd, visitor)
            if all_taken and self._is_endless(visitor):
                self._hang_up(fd, visitor, ENDLESS, now_s)
        self._set_look()

    def moving(self, fd: int) -> bool:
        """Return whether a part of an incomplete message came from a connection in the last second or two."""
        visitor = self._by_fd.get(fd)
        return visitor is not None and visitor.moving

    def _count(self, fd: int, visitor: Visitor) -> None:
        received = _received(fd)
        visitor.moving, visitor.came = received > max(visitor.came, visitor.bytes), received

    def _is_endless(self, visitor: Visitor) -> bool:
        """Return whether too many bytes have come since the last complete message."""
        return visitor.came - visitor.bytes > (ENDLESS_BYTES if visitor.spoke else self._first_bytes)

    def hang_up(self, fd: int) -> None:
        """Close a connection."""
        with suppress(OSError), socket_of(fd) as ended:
            ended.shutdown(socket.SHUT_RDWR)

    def _hang_up(self, fd: int, visitor: Visitor, why: str, now_s: float) -> None:
        if _address(fd) == visitor.address:
            self._turn_away(fd, f"{visitor.address or 'somebody'} {why}", now_s)
        self.left(fd)

    def _turn_away(self, fd: int, why: str, now_s: float) -> None:
        self.turned_away += 1
        if now_s >= self._say_s:
            self._say_s = now_s + SAY_AGAIN_S
            log.warning("a connection is closed: %s (%d so far)", why, self.turned_away)
        self.hang_up(fd)


def _address(fd: int) -> str:
    """Return the address of the other end without its port; "" over ipc, or if the connection has ended."""
    try:
        with socket_of(fd) as found:
            name = found.getpeername()
    except OSError:
        return ""
    return str(name[0]) if isinstance(name, tuple) else ""


def _local(address: str) -> bool:
    """Return whether an address is of this host; all programs on it share one address."""
    return not address or address == "::1" or address.startswith(("127.", "::ffff:127."))


def _received(fd: int) -> int:
    """Return the bytes that a connection has received; 0 where the kernel does not count them."""
    found = counted(fd)
    return found.received if found is not None else 0


def taken(fd: int) -> int | None:
    """Return the bytes that the other end of a connection has acknowledged; None where the kernel does not
    count them."""
    found = counted(fd)
    return found.taken if found is not None else None
