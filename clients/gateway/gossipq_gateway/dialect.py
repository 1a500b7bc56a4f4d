"""What a dialect is, and what it is given."""

import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from starlette.routing import BaseRoute

from gossipq.clock import Clock
from gossipq.errors import ConfigError
from gossipq_client.aio import Client
from gossipq_gateway.counters import Counters

log = logging.getLogger("gossipq.gateway")


class Place(NamedTuple):
    """Where a dialect with ports of its own listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class Desk(NamedTuple):
    """What a dialect works with: `mq` is the client of the user that the gateway was started as, connected
    and shared by all dialects, which do not close it."""

    mq: Client
    clock: Clock
    counters: Counters  #: of this dialect
    log: logging.Logger  #: of this dialect


class Dialect(Protocol):
    """One way to speak to the gateway. What comes from strangers ends in an error of its own, counted, and
    never in an exception that leaves `serve` or a route."""

    @property
    def name(self) -> str:
        """As metrics and the log have it: letters, digits and `_`."""

    def routes(self, desk: Desk) -> Sequence[BaseRoute]:
        """What it answers under the port of HTTP; () for none. Asked once, before `serve`."""

    def serve(self, desk: Desk) -> AbstractAsyncContextManager[None]:
        """Entered when the gateway starts, after the client is connected: ports of its own are bound when it
        is entered (else it raises OSError), and closed, with what is in hand given back, when it is left."""


def place(text: str, option: str) -> Place:
    """HOST:PORT as a place. Raises ConfigError naming the option."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 <= int(port) < 65_536:
        raise ConfigError(
            f"{option} {text} is not an address", f"write HOST:PORT, as {option} 127.0.0.1:7781"
        )
    return Place(host, int(port))
