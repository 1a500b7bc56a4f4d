"""Clients of gossipq, shared by all connections of a process that go to the same place."""

import os
import socket
from collections.abc import Mapping
from threading import Lock
from typing import Any, NamedTuple

import gossipq
from gossipq_client import Client

OPTIONS = ("credentials", "insecure", "timeout", "name")


class Place(NamedTuple):
    """The address of a client, and its credentials."""

    host: str
    port: int
    token: bytes = b""
    options: tuple[tuple[str, Any], ...] = ()


class Shared:
    """A client and the number of its users."""

    def __init__(self, client: Client) -> None:
        self.client, self.users = client, 0


_shared: dict[tuple[int, Place], Shared] = {}
_lock = Lock()


def _forked() -> None:
    """Another thread of the parent may have held the lock. Clients of the parent are not used here."""
    global _lock
    _lock = Lock()


os.register_at_fork(after_in_child=_forked)


def place_of(host: str, port: int, password: str | None, options: Mapping[str, Any]) -> Place:
    """Return the place that a URL and its transport options name; the password is a token."""
    given = tuple((name, options[name]) for name in OPTIONS if options.get(name) is not None)
    return Place(host, port, (password or "").encode(), given)


def acquire(place: Place, wait_s: float) -> Client:
    """Return the client of a place; `release` it once. Raises OSError, Unreachable among them."""
    key = (os.getpid(), place)
    with _lock:
        shared = _shared.get(key)
        if shared is None:
            shared = Shared(_connected(place, wait_s))
            _shared[key] = shared
        shared.users += 1
        return shared.client


def release(place: Place) -> None:
    """Close the client of a place with its last user. In a forked child this does nothing."""
    key = (os.getpid(), place)
    with _lock:
        shared = _shared.get(key)
        if shared is None:
            return
        shared.users -= 1
        if shared.users:
            return
        del _shared[key]
    shared.client.close()


def _connected(place: Place, wait_s: float) -> Client:
    # a closed port is refused at once, so that kombu can try its next URL
    socket.create_connection((place.host, place.port), wait_s).close()
    host = f"[{place.host}]" if ":" in place.host else place.host
    options: dict[str, Any] = dict(place.options)
    if place.token:
        options["credentials"] = place.token
    return gossipq.connect(f"tcp://{host}:{place.port}", wait=wait_s, **options)
