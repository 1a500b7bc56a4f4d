"""Free ports for nodes under test."""

import random
import socket
from pathlib import Path

from gossipq.limits import CLIENT_PORT_STEP, FRONTDOOR_PEER_PORT_STEP, PEER_PORT_STEP

WORKERS_MAX = 3  #: of a node under test
STEPS = [0, FRONTDOOR_PEER_PORT_STEP, *(step + i for step in (CLIENT_PORT_STEP, PEER_PORT_STEP) for i in range(WORKERS_MAX))]
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def settled_port() -> int:
    """A free port, and its neighbours, out of the range from which the system takes ports for outgoing connections: while a
    node is down its clients knock, and one of their own connections would sooner or later sit on its port."""
    lowest = int(RANGE.read_text().split()[0])
    while True:
        port = random.randrange(10_000, min(lowest, 60_000) - 100)
        try:
            for step in STEPS:
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port + step))
        except OSError:
            continue
        return port
