"""Live data for the console: a shop that keeps selling, with a slow group and failing records."""

import json
import random
from threading import Event, Thread
from typing import TYPE_CHECKING, NamedTuple

from gossipq_cli.options import Choices

if TYPE_CHECKING:
    from gossipq_client import Client

EVERY_S = 0.1  #: interval of the batches for each topic
ENDS_S = 10.0
FAILS = 0.004  #: share of failing records
ERRORS = ("no such customer", "no such customer", "the card has expired")
ITEMS = ("apples", "pears", "plums", "figs")


class Wares(NamedTuple):
    """A topic of the shop. `rate` is records per batch; `pause_s` is its
    consumer's time per record.
    """

    topic: str
    partitions: int
    rate: int
    group: str
    pause_s: float


WARES = (
    Wares("orders", 4, 12, "billing", 0.004),
    Wares("payments", 2, 4, "ledger", 0.05),
    Wares("mails", 1, 1, "sender", 0.01),
)


class Shop:
    """Publishes and consumes on threads, during a `with` block."""

    def __init__(self, servers: list[str]) -> None:
        self._servers, self._over = servers, Event()
        self._threads = [Thread(target=self._sell, daemon=True)]
        self._threads += [Thread(target=self._consume, args=(wares,), daemon=True) for wares in WARES]

    def __enter__(self) -> "Shop":
        with self._connect("shop") as mq:
            for wares in WARES:
                mq.create_topic(wares.topic, partitions=wares.partitions, if_not_exists=True)
            mq.publish("mails", "a reminder", delay="2h")
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(ENDS_S)

    def _connect(self, name: str) -> "Client":
        import gossipq_client

        return gossipq_client.connect(*Choices(servers=self._servers).servers, name=name)

    def _sell(self) -> None:
        dice = random.Random()
        with self._connect("shop") as mq:
            while not self._over.wait(EVERY_S):
                for wares in WARES:
                    rows = [
                        json.dumps({"customer": dice.randrange(900), "item": dice.choice(ITEMS)})
                        for _ in range(dice.randrange(wares.rate, 2 * wares.rate))
                    ]
                    mq.post_many(wares.topic, rows)

    def _consume(self, wares: Wares) -> None:
        dice = random.Random()
        with self._connect(f"{wares.group}-worker") as mq:
            while not self._over.is_set():
                for msg in mq.fetch(wares.topic, group=wares.group, n=20, wait=0.3):
                    self._over.wait(wares.pause_s)
                    if dice.random() < FAILS:
                        msg.reject(dice.choice(ERRORS))
                    else:
                        msg.ack_soon()
