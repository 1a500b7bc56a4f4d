"""The name of this process at the cluster."""

import os
import socket


def own_name() -> str:
    """Return the name of this process's clients."""
    return f"gossipq-{os.getpid()}@{socket.gethostname()}"
