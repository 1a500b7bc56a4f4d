"""The interface of a dialect, and the objects that it gets."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from starlette.routing import BaseRoute

from gossipq.clock import Clock
from gossipq.errors import ConfigError
from gossipq_client.aio import Client
from gossipq_gateway.counters import Counters

SAY_AGAIN_S = 60.0

T = TypeVar("T")

log = logging.getLogger("gossipq.gateway")


class Sparing(logging.Filter):
    """Limits log lines that requests can cause: one per kind and minute, with the number left out.

    Errors of the gateway are always logged.
    """

    def __init__(self) -> None:
        super().__init__()
        # time of the last line, and the number left out since
        self._said: dict[str, tuple[float, int]] = {}

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
    """Limit the log lines of a logger during the block."""
    rule = Sparing()
    logger.addFilter(rule)
    try:
        yield logger
    finally:
        logger.removeFilter(rule)


class Place(NamedTuple):
    """The address of a dialect with its own port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class Desk(NamedTuple):
    """The tools of a dialect.

    `mq` is the client of the gateway's own user, connected and shared by all dialects.
    Dialects must not close it.
    """

    mq: Client
    clock: Clock
    counters: Counters  #: of this dialect
    log: logging.Logger  #: of this dialect


class Dialect(Protocol):
    """One protocol of the gateway.

    Bad input causes an error answer of the protocol and is counted. It never raises
    out of `serve` or a route.
    """

    @property
    def name(self) -> str:
        """Name in metrics and the log: letters, digits and `_`."""

    def routes(self, desk: Desk) -> Sequence[BaseRoute]:
        """Return the routes under the HTTP port; () for none. Called once, before `serve`."""

    def serve(self, desk: Desk) -> AbstractAsyncContextManager[None]:
        """Run the dialect's own ports. Entered after the client is connected.

        Entering binds the ports, or raises OSError. Leaving closes them and gives records back.
        """


class Wanted(NamedTuple):
    """A dialect as the user wants it: `--dialect NAME=ADDRESS,HTTP-ADDRESS`, and its table of options."""

    name: str
    at: Place | None = None  #: its own port; None: it has none, or serves under the port of HTTP
    http: Place | None = None  #: a second port of its own, for HTTP
    options: Mapping[str, Any] = {}
    options_file: str = ""
    hosts: Sequence[str] = ()  #: further names of the gateway, which Host: may have

    def own_place(self) -> Place:
        """Return its address. Raises ConfigError if the user gave none."""
        if self.at is None:
            raise ConfigError(
                f"--dialect {self.name} needs an address", f"--dialect {self.name}=127.0.0.1:PORT"
            )
        return self.at

    def options_as(self, kind: type[T]) -> T:
        """Return the options as a struct. Raises ConfigError, which names the file and the key."""
        try:
            return msgspec.convert(dict(self.options), kind)
        except msgspec.ValidationError as error:
            hint = "docs/migrate/coming-from.md has the keys of each dialect"
            raise ConfigError(f"{self.options_file}: [{self.name}] {error}", hint) from None


#: makes a dialect; an entry point of the group `gossipq.dialects` names one
Factory = Callable[[Wanted], Dialect]


def place(text: str, option: str) -> Place:
    """Parse HOST:PORT. Raises ConfigError naming the option."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 <= int(port) < 65_536:
        raise ConfigError(
            f"{option} {text} is not an address", f"write HOST:PORT, as {option} 127.0.0.1:7781"
        )
    return Place(host, int(port))
