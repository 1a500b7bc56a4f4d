"""Middleware around publishes and handlers, and values of several types."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gossipq import Client, Message, Middleware, Outgoing, connect
from gossipq.middleware import Compression


@dataclass
class Made:
    id: int


@dataclass
class Gone:
    why: str


class Stamped(Middleware):
    """Adds a header to each record, and counts what is handled."""

    def __init__(self) -> None:
        self.handled = 0

    def publish(self, record: Outgoing, call_next: Callable[[Outgoing], Any]) -> Any:
        return call_next(record.replace(headers={**record.headers, "by": "desk"}))

    def handle(self, message: Message, call_next: Callable[[Message], Any]) -> Any:
        self.handled += 1
        return call_next(message)


def stamped(mq: Client) -> Stamped:
    layer = Stamped()
    mq.add_middleware(layer)
    mq.add_middleware(Compression())
    return layer


mq = connect(timeout="5s")
layer = stamped(mq)


@mq.consumer("events", group="desk", time_limit="10s")
def note(event: dict[str, int | str]) -> None:
    print(event.get("id", "gone"))


def counts(mq: Client) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in mq.read("counts", dict[str, int], start="-1h"):
        for name, count in record.data.items():
            found[name] = found.get(name, 0) + count
    return found


if __name__ == "__main__":
    print([mq.publish("events", event).ref for event in (Made(1), Gone("lost"))])
    mq.run(stop_at_end=True)
    print(layer.handled, counts(mq))
