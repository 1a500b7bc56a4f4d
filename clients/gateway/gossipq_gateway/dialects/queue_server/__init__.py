"""queue_server: JSON objects over TCP and UDP. `wire` is pure, `broker` does it with gossipq, `ports` are its
sockets."""

from gossipq_gateway.dialects.queue_server.ports import QueueServer

__all__ = ["QueueServer"]
