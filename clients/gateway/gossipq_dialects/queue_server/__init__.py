"""queue_server: JSON objects over TCP and UDP.

`wire` is pure, `broker` executes requests with gossipq, `ports` are the sockets.
"""

from gossipq_dialects.queue_server.ports import QueueServer

__all__ = ["QueueServer"]
