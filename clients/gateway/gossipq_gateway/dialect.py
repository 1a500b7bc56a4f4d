"""What a dialect is, and what it is given."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import NamedTuple, Protocol

from starlette.routing import BaseRoute

from gossipq.clock import Clock
from gossipq.errors import ConfigError
from gossipq_client.aio import Client
from gossipq_gateway.counters import Counters

SAY_AGAIN_S = 60.0

log = logging.getLogger("gossipq.gateway")


class Sparing(logging.Filter):
    """Of what any request may write into the log, each kind of line not more than once a minute, and with how
    many there were. Faults of the gateway are all told."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, tuple[float, int]] = {}  # when, and what was left out since

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.WARNING:
            return True
        said_s, left_out = self._said.get(record.msg, (-SAY_AGAIN_S, 0))
        if 0 <= record.created - said_s < SAY_AGAIN_S:
            self._said[record.msg] = said_s, left_out + 1
            return False
        self._said[record.msg] = record.created, 0
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out} more before)", ()
        return True


@contextmanager
def sparing(logger: logging.Logger) -> Iterator[logging.Logger]:
    """It writes sparingly meanwhile."""
    rule = Sparing()
    logger.addFilter(rule)
    try:
        yield logger
    finally:
        logger.removeFilter(rule)


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
