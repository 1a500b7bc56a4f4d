"""moonmq: frames over TCP, messages over HTTP.

`wire` is pure, `broker` and `fanouts` execute requests with gossipq,
`lines` and `ports` are sockets.
"""

from gossipq_dialects.moonmq.ports import MoonMq

__all__ = ["MoonMq"]
