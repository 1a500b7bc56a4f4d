"""What `connect` may be asked for, checked before anything is connected."""

import os
from collections.abc import Iterable
from typing import NamedTuple, TypedDict

from gossipq_client.io.contexts import addresses_of
from gossipq_client.io.engine import REQUEST_SECONDS
from gossipq_client.io.spool import BYTES_MAX, Spool
from gossipq_client.values import inputs


class ConnectOptions(TypedDict, total=False):
    """Durations are seconds, a timedelta, or text as "5s":

    name: shown by `gossipq status`; "" = python-PID
    timeout: how long requests wait for an answer; then they raise Unreachable
    wait: how long connecting waits (None = as long as requests); the sync client with `wait` connects at once
    spool: a directory: records are on this machine's disk before they are sent and until they are confirmed;
    a client with the same spool sends what another run left, in order, and the cluster knows by its id what
    it has (within the topic's `dedup`). Needs lmdb (pip install "gossipq[spool]")
    spool_bytes_max: what it holds at most, then publish raises Backpressure
    """

    name: str
    timeout: inputs.Duration
    wait: inputs.Duration | None
    spool: str | os.PathLike[str] | None
    spool_bytes_max: int


class Connecting(NamedTuple):
    """A client in the making."""

    addresses: list[str]
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
) -> Connecting:
    """Raises BadRequest; ConfigError for a name that is no context, and for a spool that another client
    has."""
    timeout_s = inputs.duration_ms(timeout, "timeout") / 1000
    wait_s = None if wait is None else inputs.duration_ms(wait, "wait") / 1000
    found = addresses_of(tuple(addresses))
    opened = None if spool is None else Spool(spool, spool_bytes_max)
    return Connecting(found, name or f"python-{os.getpid()}", timeout_s, wait_s, opened)
