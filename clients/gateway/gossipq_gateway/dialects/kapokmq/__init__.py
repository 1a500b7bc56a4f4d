"""KapokMQ: WebSockets for producers and consumers, HTTP for its console. `wire` is pure, `broker` does it
with gossipq, `sockets` and `pages` are its port."""

from gossipq_gateway.dialects.kapokmq.ports import KapokMq

__all__ = ["KapokMq"]
