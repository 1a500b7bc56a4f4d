"""What `connect` may be asked for, checked before anything is connected."""

import os
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypedDict

from gossipq.errors import ConfigError
from gossipq_client.io.contexts import addresses_of, credentials_for
from gossipq_client.io.engine import REQUEST_SECONDS
from gossipq_client.io.spool import BYTES_MAX, Spool
from gossipq_client.values import Credentials, inputs

SPOOL_BYTES_MIN, SPOOL_BYTES_HARD_MAX = 2**16, 2**46  #: of a file that is mapped into memory


class ConnectOptions(TypedDict, total=False):
    """Durations are seconds, a timedelta, or text as "5s":

    name: shown by `gossipq status`; "" = python-PID
    timeout: how long requests wait for an answer; then they raise Unreachable
    wait: how long connecting waits (None = as long as requests); the sync client with `wait` connects at once
    spool: a directory: records are on this machine's disk before they are sent and until they are confirmed;
    a client with the same spool sends what another run left, in order, and the cluster knows by its id what
    it has (within the topic's `dedup`). Needs lmdb (pip install "gossipq[spool]")
    spool_bytes_max: what it holds at most, then publish raises Backpressure
    credentials: a file with the token to show to a closed cluster, and the key of its doors, which encrypts;
    bytes are the token itself (b"": show none); None = the file of $GOSSIPQ_CREDENTIALS, else of the context,
    else, for nodes of this machine, that of this user
    insecure: the token may leave this machine, though who listens to the network can read it
    act_for: the user for whom this client acts, as gateways do: it may do what that user may, and no more;
    that needs the permission act_for on `*`
    """

    name: str
    timeout: inputs.Duration
    wait: inputs.Duration | None
    spool: str | os.PathLike[str] | None
    spool_bytes_max: int
    credentials: str | os.PathLike[str] | bytes | Credentials | None
    insecure: bool
    act_for: str


def _refuse_eventlet() -> None:
    """Raises ConfigError: it lets no two threads wait for one descriptor, as callers and keeper here do."""
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and any(map(patcher.is_monkey_patched, ("select", "socket", "thread"))):
        raise ConfigError(
            "eventlet has patched this process, and this client does not work with it",
            hint="use gevent, threads or asyncio, or publish over HTTP (gossipq gateway)",
        )


class Connecting(NamedTuple):
    """A client in the making. `where`: addresses and what to show there, by the environment as it is then."""

    where: Callable[[], tuple[list[str], Credentials]]
    name: str
    timeout_s: float
    wait_s: float | None
    spool: Spool | None


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
) -> Connecting:
    """Raises BadRequest; ConfigError for a name that is no context, for a spool that another client has, and
    in a process that eventlet has patched."""
    timeout_s = inputs.duration_ms(timeout, "timeout") / 1000
    wait_s = None if wait is None else inputs.duration_ms(wait, "wait") / 1000
    named = tuple(addresses)
    user = inputs.text_of(act_for, "act_for")

    _refuse_eventlet()

    def where() -> tuple[list[str], Credentials]:
        found = addresses_of(named)
        return found, credentials_for(named, found, credentials, insecure, user)

    where()  # raises
    label = inputs.text_of(name, "name") or f"python-{os.getpid()}"
    spool_bytes = inputs.whole(spool_bytes_max, "spool_bytes_max", SPOOL_BYTES_MIN, SPOOL_BYTES_HARD_MAX)
    opened = None if spool is None else Spool(spool, spool_bytes)
    return Connecting(where, label, timeout_s, wait_s, opened)
