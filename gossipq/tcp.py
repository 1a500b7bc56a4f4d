"""Counters that the system keeps of a TCP connection whose descriptor belongs to libzmq.

Linux has them in struct tcp_info. On other systems, and for other sockets, they do not exist.
"""

import os
import socket
import sys
from contextlib import closing
from typing import NamedTuple

TCP_INFO_BYTES = 192
#: offset and size in struct tcp_info of bytes_acked, bytes_received, notsent_bytes
_FIELDS = ((120, 8), (128, 8), (144, 4))
_LINUX = sys.platform == "linux"


class Carried(NamedTuple):
    """Bytes of a connection since it began."""

    taken: int  #: acknowledged by the peer
    received: int
    waiting: int  #: not sent yet


def socket_of(fd: int) -> socket.socket:
    """Return a duplicate of a descriptor as a socket. Raises OSError if it is not a socket."""
    other = os.dup(fd)
    try:
        return socket.socket(fileno=other)
    except OSError:
        os.close(other)
        raise


def counted(fd: int) -> Carried | None:
    """Return the counters of a connection, or None if it is gone or the system has no counters."""
    if not _LINUX:
        return None
    try:
        with closing(socket_of(fd)) as found:
            about = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    except OSError:
        return None
    return Carried(*(int.from_bytes(about[at : at + size], "little") for at, size in _FIELDS))
