"""Why an address does not answer, told at once: before a client waits for it."""

import socket
import time
from collections.abc import Sequence

from gossipq.errors import Unreachable
from gossipq.resolver import addresses_within, name_in

CONNECT_S = 2.0  #: for a connection to a host that may be far away
GREETING_S = (
    3.0  #: whoever speaks the protocol says its first bytes with the connection; a busy machine takes a while
)
START = "start one: gossipq node"
SIGNATURE = b"\xff"  #: the first byte of a ZeroMQ greeting


def require(addresses: Sequence[str], timeout_s: float, start: str = START) -> None:
    """Returns when one of the addresses may answer. Raises Unreachable that says of each why it does not.
    `start`: what to do where nobody listens."""
    trouble = []
    for address in addresses:
        why = trouble_of(address, timeout_s)
        if not why:
            return
        trouble.append(why)
    if trouble:
        text = "; ".join(dict.fromkeys(why for why, _ in trouble))
        raise Unreachable(text, hint=start if trouble[0][1] == START else trouble[0][1])


def trouble_of(address: str, timeout_s: float) -> tuple[str, str] | None:
    """(why nobody can answer there, what to do); None: somebody may. Only addresses of TCP are looked at."""
    if not address.startswith("tcp://"):
        return None
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not port.isdecimal():
        return None
    patience_s = min(timeout_s, CONNECT_S)
    deadline = time.monotonic() + patience_s
    try:
        name = name_in(address)
        found = addresses_within(name, patience_s) if name else [host.strip("[]")]
    except OSError as error:
        return (
            f"host {host} of {address} is not known: {error.strerror or error}",
            "check the name, or write an IP address",
        )
    why = None
    for place in found:
        why = _knocked(address, (place, int(port)), deadline, min(timeout_s, GREETING_S))
        if why is None:
            return None
    return why


def _knocked(
    address: str, place: tuple[str, int], deadline: float, greeting_s: float
) -> tuple[str, str] | None:
    with socket.socket(socket.AF_INET6 if ":" in place[0] else socket.AF_INET) as probe:
        probe.settimeout(max(0.05, deadline - time.monotonic()))
        try:
            probe.connect(place)
        except ConnectionRefusedError:
            return f"no node answers at {address}: nothing listens on that port", START
        except TimeoutError:
            return (
                f"no node answers at {address}: the host takes no connection",
                "is it up? is there a firewall?",
            )
        except OSError as error:
            return f"no node answers at {address}: {error.strerror or error}", "check the address"
        probe.settimeout(greeting_s)
        try:
            first = probe.recv(1)
        except OSError:
            first = b""
    if first == SIGNATURE:
        return None
    what = "does not speak as a gossipq node does" if first else "says nothing"
    text = f"{address} takes connections and {what}"
    return (
        text,
        "is that the port for clients, 7700 by default, not that of metrics? Or is the node stopped (state T "
        "in ps)?",
    )
