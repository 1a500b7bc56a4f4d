"""Peers whose endpoints have a host name: their addresses, and the messages that wait for a first one."""

import time
from collections import deque
from collections.abc import Iterable, Sequence

from gossipq.resolver import LookUp, Resolver

WAITING_MAX = 64  #: messages to one peer whose address is not known yet

Mail = tuple[Sequence[bytes], bytes, bytes]  #: routing frames, control, batch


class NamedPeers:
    """The owner connects to numeric addresses only, and asks here which one an endpoint has now."""

    def __init__(self, look_up: LookUp) -> None:
        self.dropped = 0
        self._resolver = Resolver(look_up)
        #: by endpoint: the host name, and the address that its socket is connected to
        self._connected: dict[str, tuple[str, str]] = {}
        self._lost: set[str] = set()  # of `_connected`: connections that broke since the last look-up
        #: by endpoint: the host name, and the messages that wait
        self._waiting: dict[str, tuple[str, deque[Mail]]] = {}

    @property
    def fd(self) -> int:
        """Readable when `moved` or `found` may have news."""
        return self._resolver.fd

    def address(self, endpoint: str, name: str) -> str:
        """Return the last known address of host `name`, and look it up again. If it is "", `keep` accepts
        messages until an address is found."""
        self._resolver.ask(name, time.monotonic())
        address = self._resolver.address(name)
        if not address and endpoint not in self._waiting:
            self._waiting[endpoint] = name, deque(maxlen=WAITING_MAX)
        return address

    def keep(self, endpoint: str, mail: Mail) -> bool:
        """Store a message until the address is known; the oldest one makes room. False: the peer does not
        wait for an address."""
        if endpoint not in self._waiting:
            return False
        _, mails = self._waiting[endpoint]
        self.dropped += len(mails) == WAITING_MAX
        mails.append(mail)
        return True

    def connected(self, endpoint: str, name: str, address: str) -> None:
        """Note the address that a socket is connected to."""
        self._connected[endpoint] = name, address

    def disconnected(self, endpoint: str) -> None:
        """Forget a socket that is about to be closed."""
        self._connected.pop(endpoint, None)
        self._lost.discard(endpoint)

    def look_up_again(self, lost: Iterable[str], now_s: float) -> None:
        """Look up the hosts whose connections broke, the endpoints in `lost` and earlier ones."""
        self._lost |= self._connected.keys() & set(lost)
        for endpoint in self._lost:
            self._resolver.ask(self._connected[endpoint][0], now_s)

    def moved(self) -> list[str]:
        """Take the ended look-ups; return the endpoints whose connection leads to a former address."""
        answered, moved = self._resolver.answered(), list[str]()
        for endpoint, (name, address) in self._connected.items():
            if name in answered:
                if self._resolver.address(name, address, endpoint in self._lost) != address:
                    moved.append(endpoint)
                self._lost.discard(endpoint)
        return moved

    def found(self) -> list[tuple[str, deque[Mail]]]:
        """Take the endpoints that have an address now, with the messages that waited for it."""
        found = [each for each, (name, _) in self._waiting.items() if self._resolver.address(name)]
        return [(endpoint, self._waiting.pop(endpoint)[1]) for endpoint in found]

    def forget_unused(self, used: set[str]) -> None:
        """Drop the messages to peers that the owner does not write to any more."""
        for endpoint in self._waiting.keys() - used:
            del self._waiting[endpoint]

    def close(self) -> None:
        self._resolver.close()
