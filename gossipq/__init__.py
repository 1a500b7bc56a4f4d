"""gossipq: a message broker that is both a queue and a log. Programs import this, and get the client:

    import gossipq

    with gossipq.connect() as mq:
        mq.publish("orders", b"one")
        for msg in mq.consume("orders", group="billing"):
            with msg:
                print(msg.value)

`gossipq.aio.connect()` is the asyncio twin: the same names, awaited. `gossipq.embedded.open(directory)` needs
no server.

The names of the client are imported when a program asks for the first of them. The modules below this one are
the vocabulary, the decisions and the wire format of nodes and clients, which never do I/O.
"""

import importlib
from typing import Any

__version__ = "0.2.0"

#: modules of the client that are also attributes of this one
_MODULES = ("aio", "answers", "embedded", "lake", "metrics", "middleware", "outbox", "testing", "traces")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"gossipq.{name}")
    # Python asks for each module of this package here before it imports it: those names are in small letters
    if name == "connect" or name[:1].isupper():
        client = importlib.import_module("gossipq_client")
        if name in client.__all__:
            found = globals()[name] = getattr(client, name)
            return found
    raise AttributeError(f"module 'gossipq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *importlib.import_module("gossipq_client").__all__})
