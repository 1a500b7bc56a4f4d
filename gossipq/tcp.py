"""What the system counts of a TCP connection, of which only the descriptor is known: libzmq owns it.

Linux counts it in struct tcp_info. Elsewhere, and of what is no TCP connection, nobody does.
"""

import os
import socket
import sys
from contextlib import closing
from typing import NamedTuple

TCP_INFO_BYTES = 192
_FIELDS = ((120, 8), (128, 8), (144, 4))  #: where in it: bytes_acked, bytes_received, notsent_bytes
_LINUX = sys.platform == "linux"


class Carried(NamedTuple):
    """Bytes of a connection so far."""

    taken: int  #: by the other end
    received: int
    waiting: int  #: that were not sent yet


def socket_of(fd: int) -> socket.socket:
    """Another handle of a descriptor. Raises OSError when it is none, or no socket."""
    other = os.dup(fd)
    try:
        return socket.socket(fileno=other)
    except OSError:
        os.close(other)
        raise


def counted(fd: int) -> Carried | None:
    """None: nobody counts, or the connection is gone."""
    if not _LINUX:
        return None
    try:
        with closing(socket_of(fd)) as found:
            about = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    except OSError:
        return None
    return Carried(*(int.from_bytes(about[at : at + size], "little") for at, size in _FIELDS))
