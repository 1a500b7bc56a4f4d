"""Checks of addresses at which a node should listen, with errors for people."""

import errno
import socket

from gossipq.endpoints import Endpoint
from gossipq.errors import NoPlace

_NOT_OURS = ("is not an address of this machine", "give one of this machine's with --bind tcp://HOST:PORT")
_REASONS = {
    errno.EADDRINUSE: (
        "is taken by another program",
        "stop it, or choose another port with --bind tcp://HOST:PORT",
    ),
    errno.EADDRNOTAVAIL: _NOT_OURS,
    errno.ENODEV: _NOT_OURS,
    errno.EACCES: (
        "may not be bound by this user",
        "choose a port above 1023 with --bind tcp://HOST:PORT",
    ),
}


def cannot_bind(endpoint: str, number: int, reason: str) -> NoPlace:
    """Return the error. `number` is the errno, `reason` its text."""
    what, hint = _REASONS.get(number, (f"cannot be bound: {reason}", "check --bind"))
    return NoPlace(f"{endpoint} {what}", hint)


def check_known(place: Endpoint) -> None:
    """Raise NoPlace if the host is an unknown name.

    ZeroMQ would take it for the name of an interface, which others cannot dial.
    """
    if place.transport != "tcp" or place.is_wildcard:
        return
    try:
        socket.getaddrinfo(place.host.strip("[]"), place.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NoPlace(
            f"{place.step(0)}: no host of the name {place.host} is known: {error.strerror}",
            "give an address of this machine with --bind tcp://HOST:PORT (`ip address` lists them)",
        ) from None


def check_free(place: Endpoint) -> None:
    """Raise NoPlace if the address cannot be bound now."""
    if place.transport != "tcp":
        return
    host = "" if place.is_wildcard else place.host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, place.port))
        except OSError as error:
            raise cannot_bind(place.step(0), error.errno or 0, error.strerror or str(error)) from None
