"""Free ports for nodes under test."""

import atexit
import random
import socket
from pathlib import Path

import pytest

from gossipq.limits import (
    ADMIN_PORT_STEP,
    CLIENT_PORT_STEP,
    FRONTDOOR_PEER_PORT_STEP,
    GOSSIP_PORT_STEP,
    PEER_PORT_STEP,
)

WORKERS_MAX = 3  #: of a node under test
OF_WORKERS = [step + i for step in (CLIENT_PORT_STEP, PEER_PORT_STEP) for i in range(WORKERS_MAX)]
STEPS = [0, FRONTDOOR_PEER_PORT_STEP, ADMIN_PORT_STEP, GOSSIP_PORT_STEP, *OF_WORKERS]
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
BLOCK = 100  #: ports, one node each
HELD_MAX = 30  #: blocks of a process, more than any test has nodes; there are enough for six processes
TRIES = 10_000

_held: list[socket.socket] = []


@atexit.register
def _release_ports() -> None:
    """Close what is held, or Python reports each as an unclosed socket when it ends."""
    while _held:
        _held.pop().close()


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")


def settled_port(doors: bool = False) -> int:
    """A free port, and its neighbours, out of the range from which the system takes ports for outgoing
    connections: while a node is down its clients knock, and one of their own connections would sooner or
    later sit on its port. Nor do tests that run at the same time take it meanwhile: a block of ports is held
    by a name that ends with this process; with encrypted doors, which lie 100 ports above, two blocks.
    Raises RuntimeError when none is found."""
    lowest = int(RANGE.read_text().split()[0])
    for _ in range(TRIES):
        port = random.randrange(10_000, min(lowest, 60_000) - 2 * BLOCK, BLOCK)
        blocks = [port, port + BLOCK] if doors else [port]
        holders = [socket.socket(socket.AF_UNIX) for _ in blocks]
        try:
            for holder, block in zip(holders, blocks, strict=True):
                holder.bind(f"\0gossipq tests {block}")
                for step in STEPS:
                    with socket.socket() as probe:
                        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        probe.bind(("127.0.0.1", block + step))
        except OSError:
            for holder in holders:
                holder.close()
            continue
        while len(_held) + len(holders) > HELD_MAX:
            _held.pop(0).close()
        _held.extend(holders)
        return port
    raise RuntimeError(f"no {BLOCK} ports in a row are free for a node under test")
