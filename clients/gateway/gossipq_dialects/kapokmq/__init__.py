"""KapokMQ: WebSockets for producers and consumers, HTTP for its console.

`wire` is pure, `broker` executes requests with gossipq, `sockets` and `pages` are the port.
"""

from gossipq_dialects.kapokmq.ports import KapokMq

__all__ = ["KapokMq"]
