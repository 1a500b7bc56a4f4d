"""Addresses of peers with host names, and the messages that wait for a first address."""

import time
from collections import deque

from gossipq.resolver import LookUp, Resolver
from gossipq_node.ports import Frames

WAITING_MAX = 64  #: messages to one peer whose address is unknown


class NamedPeers:
    """The owner connects to numeric addresses only, and gets the
    present one of an endpoint here.
    """

    def __init__(self, look_up: LookUp) -> None:
        self.dropped = 0
        self._resolver = Resolver(look_up)
        self.fd = self._resolver.fd  #: readable when `found` may have news
        self._last: dict[str, str] = {}  # by endpoint: the last used address
        self._lost: set[str] = set()  # endpoints whose last address does not answer (any more)
        #: by endpoint: the host name, and the messages that wait
        self._waiting: dict[str, tuple[str, deque[Frames]]] = {}

    def address(self, endpoint: str, name: str) -> str:
        """Return the address of host `name`, and look it up again.

        If it is "", `keep` accepts messages until an address is found.
        """
        self._resolver.ask(name, time.monotonic())
        address = self._resolver.address(name, self._last.get(endpoint, ""), endpoint in self._lost)
        if address:
            self._last[endpoint] = address
            self._lost.discard(endpoint)
        elif endpoint not in self._waiting:
            self._waiting[endpoint] = name, deque(maxlen=WAITING_MAX)
        return address

    def keep(self, endpoint: str, mail: Frames) -> bool:
        """Store a message until the address is known; the oldest one is
        dropped if there are too many.

        False: the peer does not wait for an address.
        """
        if endpoint not in self._waiting:
            return False
        _, mails = self._waiting[endpoint]
        self.dropped += len(mails) == WAITING_MAX
        mails.append(mail)
        return True

    def lost(self, endpoint: str, name: str, now_s: float) -> None:
        """A connection failed or ended: the host may have another address now."""
        self._lost.add(endpoint)
        self._resolver.ask(name, now_s)

    def found(self) -> list[tuple[str, deque[Frames]]]:
        """Take finished look-ups. Returns endpoints that have an address
        now, with their messages.
        """
        self._resolver.answered()
        found = [each for each, (name, _) in self._waiting.items() if self._resolver.address(name)]
        return [(endpoint, self._waiting.pop(endpoint)[1]) for endpoint in found]

    def forget_unused(self, used: set[str]) -> None:
        """Forget peers that the owner does not write to any more."""
        for endpoint in (self._waiting.keys() | self._last.keys()) - used:
            self._waiting.pop(endpoint, None)
            self._last.pop(endpoint, None)
            self._lost.discard(endpoint)

    def close(self) -> None:
        self._resolver.close()
