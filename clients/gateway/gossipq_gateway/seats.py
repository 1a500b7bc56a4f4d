"""Connections of one port, bounded in total and for each address: the slowest is closed. Pure."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

CONNECTIONS_MAX = 4_096
OF_ADDRESS_MAX = 2_048  #: from one address that does not stand for many callers

#: States of a connection, in the order of closing: sends headers, is idle, sends a body.

#: A connection whose request is being answered is in none of them and stays open.
HEAD, IDLE, BODY = range(3)

Connection = TypeVar("Connection", bound=Hashable)


class _Queue(Generic[Connection]):
    """Connections that can be closed; in each state the oldest is first."""

    def __init__(self) -> None:
        self._kinds = tuple(OrderedDict[Connection, None]() for _ in (HEAD, IDLE, BODY))
        self.connections = 0  #: including those whose request is being answered

    def put(self, connection: Connection, kind: int | None) -> None:
        for each, found in enumerate(self._kinds):
            if each == kind:
                found.setdefault(connection)
            else:
                found.pop(connection, None)

    def slowest_but(self, newcomer: Connection) -> Connection | None:
        for found in self._kinds:
            slowest = next(iter(found), None)
            if slowest is not None and slowest != newcomer:
                return slowest
        return None


class Seats(Generic[Connection]):
    """The places of a port. `is_shared` tells if an address stands for
    many callers, like a proxy.
    """

    def __init__(self, is_shared: Callable[[str], bool] = lambda address: False) -> None:
        self._is_shared = is_shared
        self._addresses: dict[Connection, str] = {}
        self._all, self._of = _Queue[Connection](), dict[str, _Queue[Connection]]()

    def enter(self, connection: Connection, address: str) -> Connection | None:
        """Add a connection. Returns the connection to close for it, which can be itself, or None.

        None: it fits, or all others are being answered: `is_overfull` then.
        """
        self._addresses[connection] = address
        same = self._of.setdefault(address, _Queue())
        same.connections += 1
        self.put(connection, HEAD)
        if same.connections > OF_ADDRESS_MAX and not self._is_shared(address):
            return same.slowest_but(connection) or connection
        if self.is_overfull:
            return self._all.slowest_but(connection)
        return None

    @property
    def is_overfull(self) -> bool:
        return len(self._addresses) > CONNECTIONS_MAX

    def put(self, connection: Connection, kind: int | None) -> None:
        """Set the state of a connection; None: it is being answered.

        It keeps its place if the state is the same.
        """
        address = self._addresses.get(connection)
        if address is not None:
            self._all.put(connection, kind)
            self._of[address].put(connection, kind)

    def leave(self, connection: Connection) -> None:
        self.put(connection, None)
        address = self._addresses.pop(connection, None)
        if address is not None:
            self._of[address].connections -= 1
            if not self._of[address].connections:
                del self._of[address]
