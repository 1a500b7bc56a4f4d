"""Sockets, clocks, files and the end of the program: all that clients
share with the outside world.
"""

from gossipq_client.io import children, contexts, exits
from gossipq_client.io.bell import Bell
from gossipq_client.io.connect_options import Connecting, ConnectOptions, connecting
from gossipq_client.io.contexts import Contexts, UnknownContext, addresses_of
from gossipq_client.io.engine import (
    CLOSE_SECONDS,
    ERROR_CLOSE_SECONDS,
    PAUSE_SECONDS,
    REQUEST_SECONDS,
    Engine,
    forked,
    in_handler,
    log,
)
from gossipq_client.io.memory import resident_bytes
from gossipq_client.io.spool import BYTES_MAX as SPOOL_BYTES_MAX
from gossipq_client.io.spool import Spool
from gossipq_client.io.transport import wait

__all__ = [
    "CLOSE_SECONDS",
    "ERROR_CLOSE_SECONDS",
    "PAUSE_SECONDS",
    "REQUEST_SECONDS",
    "SPOOL_BYTES_MAX",
    "Bell",
    "ConnectOptions",
    "Connecting",
    "Contexts",
    "Engine",
    "Spool",
    "UnknownContext",
    "addresses_of",
    "children",
    "connecting",
    "contexts",
    "exits",
    "forked",
    "in_handler",
    "log",
    "resident_bytes",
    "wait",
]
