"""moonmq: frames over TCP, messages over HTTP. `wire` is pure, `broker` and `fanouts` do it with gossipq,
`lines` and `ports` are its sockets."""

from gossipq_gateway.dialects.moonmq.ports import MoonMq

__all__ = ["MoonMq"]
