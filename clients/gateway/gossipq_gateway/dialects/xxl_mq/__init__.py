"""xxl-mq's OpenAPI: JSON over HTTP. `wire` is pure, `broker` does it with gossipq, `ports` are its routes.
Its Hessian wire and ZooKeeper are not spoken."""

from gossipq_gateway.dialects.xxl_mq.ports import XxlMq

__all__ = ["XxlMq"]
