"""Publishes for many connections: records of the same moment are published as one list.

Each connection hears of its own records when the cluster has confirmed them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from gossipq.errors import Backpressure, BadRequest, GossipqError, Unreachable
from gossipq_client import Receipt
from gossipq_gateway.dialect import Desk

#: after this time without a confirm, the client gets an error; the record may be stored
CONFIRM_S = 30.0
LIST_MAX = 1_000  #: records in one list


class Stored(NamedTuple):
    """The place of a record. `offset` is -1 if it is scheduled."""

    topic: str
    partition: int
    offset: int


#: called once: the places of the record (several for a virtual topic), or the error
Done = Callable[[list[Stored], GossipqError | None], None]


class Wish(NamedTuple):
    """Options of a record; records with equal options share a list."""

    route: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    delayed: bool = False
    named: bool = False
    keyed: bool = False


class Parcel(NamedTuple):
    wish: Wish
    value: bytes
    done: Done
    delay_s: float = 0.0
    id: str = ""
    key: str = ""


def wish_of(parcel: Parcel) -> Wish:
    return parcel.wish


class Postbox:
    """Keeps the order of `put` within a topic. Callers must bound the number of waiting records."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._waiting: dict[str, list[Parcel]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def put(
        self,
        topic: str,
        value: bytes,
        done: Done,
        *,
        route: str = "",
        headers: tuple[tuple[str, str], ...] = (),
        delay_s: float = 0.0,
        id: str = "",
        key: str = "",
    ) -> None:
        """Publish one record. `done` is called from the event loop, never before this returns."""
        parcel = Parcel(Wish(route, headers, delay_s > 0, bool(id), bool(key)), value, done, delay_s, id, key)
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append(parcel)
            return
        self._waiting[topic] = [parcel]
        self._begin(self._publish(topic))

    async def settled(self) -> None:
        """Wait until all calls are done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, topic: str) -> None:
        """Publish the waiting records of a topic until none are left."""
        while parcels := self._waiting[topic]:
            self._waiting[topic] = []
            for wish, alike in groupby(parcels, wish_of):
                some = list(alike)
                for at in range(0, len(some), LIST_MAX):
                    await self._send(topic, wish, some[at : at + LIST_MAX])
        del self._waiting[topic]

    async def _send(self, topic: str, wish: Wish, parcels: list[Parcel]) -> None:
        try:
            pending = self._desk.mq.post_many(
                topic,
                [parcel.value for parcel in parcels],
                route=wish.route,
                headers=dict(wish.headers) or None,
                delays=[parcel.delay_s for parcel in parcels] if wish.delayed else None,
                ids=[parcel.id for parcel in parcels] if wish.named else None,
                keys=[parcel.key for parcel in parcels] if wish.keyed else None,
                level="stored",
            )
        except Exception as error:
            if len(parcels) > 1 and not isinstance(error, Unreachable | Backpressure):
                for (
                    parcel
                    # the list was refused as a whole: publish one by one, so that
                    # each gets its own result
                ) in parcels:
                    await self._send(topic, wish, [parcel])
                return
            self._tell(parcels, [], told(error))
            return
        self._begin(self._confirm(parcels, pending.result(CONFIRM_S)))

    async def _confirm(self, parcels: list[Parcel], result: Awaitable[Receipt]) -> None:
        try:
            receipt = await result
        except Exception as error:
            self._tell(parcels, [], told(error))
            return
        self._desk.counters.published(len(parcels))
        self._tell(parcels, copies(receipt, len(parcels)), None)

    def _tell(self, parcels: list[Parcel], stored: list[list[Stored]], error: GossipqError | None) -> None:
        if error is None and len(stored) != len(parcels):  # an unexpected result
            error = Unreachable(f"{len(parcels)} records were confirmed as {len(stored)}")
        for at, parcel in enumerate(parcels):
            try:
                parcel.done([] if error is not None else stored[at], error)
            except Exception:
                self._desk.log.exception("a publisher was not told")


def told(error: Exception) -> GossipqError:
    """Convert an exception for the publisher."""
    return error if isinstance(error, GossipqError) else BadRequest(f"{type(error).__name__}: {error}")


def copies(receipt: Receipt, count: int) -> list[list[Stored]]:
    """Return the places of each record in a list of `count`; several for a virtual topic."""
    parts = receipt.receipts
    virtual = len(parts) > 0 and any(
        part.count == count and part.topic != receipt.topic for part in parts[1:]
    )
    found = [list(places(part)) for part in parts] if virtual else [list(places(receipt))]
    return [list(each) for each in zip(*found, strict=True)]


def places(receipt: Receipt) -> Iterator[Stored]:
    """Yield the place of each record of a receipt, in order."""
    if receipt.receipts:
        for part in receipt.receipts:
            yield from places(part)
        return
    for at in range(receipt.count):
        offset = receipt.offset + at if receipt.offset >= 0 else -1
        yield Stored(receipt.topic, receipt.partition, offset)
