"""xxl-mq's OpenAPI: JSON over HTTP. Its Hessian protocol and ZooKeeper are not supported.

`wire` is pure, `broker` executes requests with gossipq, `ports` are its routes.
"""

from gossipq_dialects.xxl_mq.ports import XxlMq

__all__ = ["XxlMq"]
