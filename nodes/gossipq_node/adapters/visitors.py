"""Who is connected to a door for clients: since when, from where, and whether it has something to say.

libzmq keeps a connection for as long as the other end does, whatever it sends, and has no call that ends one.
Its monitor names the descriptor of each, though, and a descriptor can be shut down. When the monitor reports
a broken connection, that descriptor may already belong to the next one. So only a PONG that cannot be sent
proves it, and the session has 1 s to return.
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

CROWD = 256  #: fewer connections cost nothing: nobody is hung up on for saying nothing
FIRST_WORD_S, IDLE_S = 5.0, 60.0
LOOK_S = 1.0
SAY_AGAIN_S = 60.0
NEWCOMERS_S = 0.02  #: who came within the last LOOK_S, and has not said anything, is looked at so often
NEWCOMERS_MS = int(1_000 * NEWCOMERS_S)
#: of a client, before HELLO has come to its end: that has some hundred
FIRST_BYTES = limits.CONTROL_BYTES_MAX
ENDLESS_BYTES = 4 * limits.FRAME_BYTES_MAX  #: of anybody, without a message coming to its end

QUOTA = Quota()
ENDLESS = "sends a message without end"

log = logging.getLogger(__name__)


class Visitor:
    __slots__ = ("address", "bytes", "came", "heard_s", "moving", "nameless", "spoke")

    def __init__(self, address: str, now_s: float) -> None:
        self.address, self.heard_s = address, now_s
        self.spoke = False
        self.nameless = False  #: it spoke, and nobody tells when it does
        self.bytes = 0  #: that had come when it was heard last,
        self.came = 0  #: and when it was looked at last
        self.moving = False  #: a part of a message came between the last two looks


class Visitors:
    """By descriptor. `first_bytes`: how much somebody may send before a first message has come to its end.
    `turned_away` counts those that found no place, or were hung up on."""

    def __init__(self, quota: Quota = QUOTA, first_bytes: int = ENDLESS_BYTES) -> None:
        self._at_all, self._of_address = quota.connections, quota.address_connections
        self._first_bytes = first_bytes
        self._by_fd: dict[int, Visitor] = {}
        self.newcomers: dict[int, Visitor] = {}  #: who has not said anything yet
        self._newcomers_look_s = 0.0  # when to look at those,
        self._all_look_s = 0.0  # and at all
        self.look_s = 0.0  #: the earlier of both: before it neither look has work
        self._counts: dict[str, int] = {}
        self._say_s = 0.0
        self.turned_away = 0

    def __len__(self) -> int:
        return len(self._by_fd)

    def came(self, fd: int, now_s: float) -> None:
        """A connection was accepted."""
        self.left(fd)  # its end was told late, or not at all
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
        """The host at the other end."""
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
        """A whole message came from there."""
        visitor = self._by_fd.get(fd)
        if visitor is not None:
            visitor.heard_s, visitor.spoke, visitor.bytes = now_s, True, _received(fd)
            visitor.moving = False

    def heard_nameless(self, count: int, named: Container[int], now_s: float) -> None:
        """Whole messages came from so many connections of which libzmq tells no descriptor, since they speak
        ZMTP 2. It was all that have sent something, unless they are more. `named`: those of the others."""
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
        """True if all connections are to be checked now, beside the new ones."""
        return now_s >= self._all_look_s

    def look(self, now_s: float, all_taken: bool) -> None:
        """Hangs up on who sends a message without end, and, in a crowd, on who says nothing. `all_taken`: no
        whole message waits to be taken."""
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
        """As `look`, without waiting for a second to pass: a host can send a gigabyte in one. `spoke`: from
        where a whole message has come."""
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
        """Whether a message is under way from there, of which a part came in the last second or two."""
        visitor = self._by_fd.get(fd)
        return visitor is not None and visitor.moving

    def _count(self, fd: int, visitor: Visitor) -> None:
        received = _received(fd)
        visitor.moving, visitor.came = received > max(visitor.came, visitor.bytes), received

    def _is_endless(self, visitor: Visitor) -> bool:
        """Whether too much has come since a message came to its end."""
        return visitor.came - visitor.bytes > (ENDLESS_BYTES if visitor.spoke else self._first_bytes)

    def hang_up(self, fd: int) -> None:
        """A connection ends now."""
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
    """Of the other end, without its port; "" over ipc, and when it is gone already."""
    try:
        with socket_of(fd) as found:
            name = found.getpeername()
    except OSError:
        return ""
    return str(name[0]) if isinstance(name, tuple) else ""


def _local(address: str) -> bool:
    """Whether it is this host, on which all users and programs have one address."""
    return not address or address == "::1" or address.startswith(("127.", "::ffff:127."))


def _received(fd: int) -> int:
    """Bytes that came over a connection so far; 0 when nobody counts them."""
    found = counted(fd)
    return found.received if found is not None else 0


def taken(fd: int) -> int | None:
    """Bytes that the other end of a connection has taken so far; None when nobody counts them."""
    found = counted(fd)
    return found.taken if found is not None else None
