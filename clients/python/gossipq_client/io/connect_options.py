"""Options of `connect`, checked before anything is connected."""

import os
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypedDict

from gossipq.errors import ConfigError
from gossipq_client.io.contexts import addresses_of, credentials_for
from gossipq_client.io.engine import REQUEST_SECONDS, Engine
from gossipq_client.io.spool import BYTES_MAX, Spool
from gossipq_client.values import NO_CREDENTIALS, CheckedCodec, Codec, Credentials, inputs

SPOOL_BYTES_MIN, SPOOL_BYTES_HARD_MAX = 2**16, 2**46  #: size of a file that is mapped into memory


class ConnectOptions(TypedDict, total=False):
    """Options of `connect`, whose docstring explains them."""

    name: str
    timeout: inputs.Duration
    wait: inputs.Duration | None
    spool: str | os.PathLike[str] | None
    spool_bytes_max: int
    credentials: str | os.PathLike[str] | bytes | Credentials | None
    insecure: bool
    act_for: str
    codec: Codec | None


def _refuse_eventlet() -> None:
    """Raises ConfigError: eventlet lets only one thread wait for a descriptor, but callers and
    the keeper thread share one.
    """
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and any(map(patcher.is_monkey_patched, ("select", "socket", "thread"))):
        raise ConfigError(
            "eventlet has patched this process, and this client does not work with it",
            hint="use gevent, threads or asyncio, or publish over HTTP (gossipq gateway)",
        )


class Connecting(NamedTuple):
    """A client before it connects. `where` returns addresses and credentials according to the
    environment at that moment.
    """

    where: Callable[[], tuple[list[str], Credentials]]
    name: str
    timeout_s: float
    wait_s: float | None = None
    spool: Spool | None = None
    codec: CheckedCodec = CheckedCodec()
    key: bytes = b""  #: of the session's owner; see `Engine`
    on_shut: Callable[[], None] | None = None  #: called when it was closed, after which it cannot reopen

    @staticmethod
    def to(address: str, name: str, timeout_s: float, key: bytes = b"") -> "Connecting":
        """A client of one address that shows no credentials."""
        return Connecting(lambda: ([address], NO_CREDENTIALS), name, timeout_s, key=key)

    @property
    def can_reopen(self) -> bool:
        """True if a closed client may connect again."""
        return self.on_shut is None

    @property
    def can_fork(self) -> bool:
        """True if a forked child may connect anew: nothing that it needs belongs to the parent."""
        return self.can_reopen and not self.key and self.spool is None

    @property
    def patience_s(self) -> float:
        """How long connecting takes at most."""
        return self.timeout_s if self.wait_s is None else self.wait_s

    def reopen(self) -> None:
        """It is used: the spool is its own."""
        if self.spool is not None:
            self.spool.reopen()

    def set_aside(self) -> None:
        """It could not connect: others may have the spool until it is used again."""
        if self.spool is not None:
            self.spool.rest()

    def release(self) -> None:
        """It is closed for good: others may have the spool."""
        if self.spool is not None:
            self.spool.close()

    def engine(self, on_fork: Callable[[], None]) -> Engine:
        """Return an engine that connects now."""
        addresses, credentials = self.where()
        return Engine(addresses, self.name, on_fork, self.key, credentials)


def connecting(
    addresses: Iterable[str | Iterable[str]],
    *,
    name: str = "",
    timeout: inputs.Duration = REQUEST_SECONDS,
    wait: inputs.Duration | None = None,
    spool: str | os.PathLike[str] | None = None,
    spool_bytes_max: int = BYTES_MAX,
    credentials: str | os.PathLike[str] | bytes | Credentials | None = None,
    insecure: bool = False,
    act_for: str = "",
    codec: Codec | None = None,
) -> Connecting:
    """Checks the options. Raises BadRequest. Raises ConfigError for an unknown context, for a spool
    that another client has, and in a process that eventlet has patched.
    """
    timeout_s = inputs.duration_ms(timeout, "timeout") / 1000
    wait_s = None if wait is None else inputs.duration_ms(wait, "wait") / 1000
    named = tuple(addresses)
    user, checked = inputs.text_of(act_for, "act_for"), CheckedCodec(codec)

    _refuse_eventlet()

    def where() -> tuple[list[str], Credentials]:
        found = addresses_of(named)
        return found, credentials_for(named, found, credentials, insecure, user)

    where()  # raises if the place is unknown
    label = inputs.text_of(name, "name") or f"python-{os.getpid()}"
    spool_bytes = inputs.whole(spool_bytes_max, "spool_bytes_max", SPOOL_BYTES_MIN, SPOOL_BYTES_HARD_MAX)
    opened = None if spool is None else Spool(spool, spool_bytes)
    return Connecting(where, label, timeout_s, wait_s, opened, checked)
