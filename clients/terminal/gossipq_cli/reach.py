"""Tests addresses before a client waits for them, and says why they do not answer."""

import socket
import time
from collections.abc import Sequence

from gossipq.endpoints import door_of
from gossipq.errors import Unreachable
from gossipq.limits import DOOR_PORT_STEP
from gossipq.resolver import addresses_within, name_in

CONNECT_S = 2.0  #: for a connection to a distant host
#: a node sends its first bytes at once; a busy machine takes a while
GREETING_S = 3.0
START = "start one: gossipq node"
SIGNATURE = b"\xff"  #: the first byte of a ZeroMQ greeting
#: Start of a greeting of ZMTP 3.

#: The other side then sends all of its own; it would close the connection for another mechanism.
GREETING = SIGNATURE + bytes(8) + b"\x7f\x03\x00"
GREETING_BYTES, MECHANISM = 64, slice(12, 32)
DOOR_S = 1.0  #: for an encrypted port to identify itself
KEYLESS = (
    "on the host of a node: gossipq cluster door --save FILE; then here: --credentials FILE "
    "(credentials=FILE in a program)"
)


def require(addresses: Sequence[str], timeout_s: float, start: str = START, has_key: bool = True) -> int:
    """Return the index of the first address that may answer.

    Raises Unreachable with a reason for each address. `start` is the advice if the port is closed.
    `has_key`: the client has the key of encrypted ports; without it, an address that only answers
    encrypted is named as the cause.
    """
    trouble = []
    for number, address in enumerate(addresses):
        why = trouble_of(address, timeout_s, has_key)
        if not why:
            return number
        trouble.append(why)
    if trouble:
        text = "; ".join(dict.fromkeys(why for why, _ in trouble))
        raise Unreachable(text, hint=start if trouble[0][1] == START else trouble[0][1])
    return 0


def trouble_of(address: str, timeout_s: float, has_key: bool = True) -> tuple[str, str] | None:
    """Return (why the address cannot answer, advice), or None if it may answer.

    Only TCP addresses are tested. `has_key` as in `require`.
    """
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
    if why is not None and not has_key and any(_encrypts(place, int(port)) for place in found):
        text = (
            f"the node at {address} answers encrypted only, at {door_of(address)}, and no key of it is given"
        )
        return text, KEYLESS
    return why


def _encrypts(host: str, port: int) -> bool:
    """True if the node with this client port has an encrypted port."""
    place, heard = (host, port + DOOR_PORT_STEP), b""
    try:
        with socket.create_connection(place, DOOR_S) as probe:
            probe.sendall(GREETING)
            while len(heard) < GREETING_BYTES and (more := probe.recv(GREETING_BYTES - len(heard))):
                heard += more
    except OSError:
        return False
    return heard.startswith(SIGNATURE) and heard[MECHANISM].rstrip(b"\0") == b"CURVE"


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
