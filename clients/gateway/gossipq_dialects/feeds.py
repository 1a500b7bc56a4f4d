"""Pushes records to connections: one subscription for all connections of a group.

The next record goes to a connection that has room.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from gossipq.errors import GossipqError
from gossipq_client.aio import Message, Subscription
from gossipq_client.values import GIVEN_BACK
from gossipq_dialects.postbox import told

CREDIT_RECORDS = 256  #: records that wait in the gateway, for each feed


class Taker(Protocol):
    """A connection that takes records."""

    def has_room(self) -> bool: ...
    def give(self, message: Message) -> None:
        """Take a record. The taker acks it or gives it back."""

    def ended(self, error: GossipqError) -> None:
        """No further records will come."""


class Feed:
    """Gives records to connections in turn. Without connections, the others are given back."""

    def __init__(self, subscribe: Callable[[], Subscription], over: Callable[[], None]) -> None:
        self._takers: set[Taker] = set()
        self._roomy: OrderedDict[Taker, None] = OrderedDict()  #: the longest waiting first
        self._room = asyncio.Event()
        self._over = over
        self._subscription = subscribe()
        self._task = asyncio.create_task(self._run())

    def join(self, taker: Taker) -> None:
        self._takers.add(taker)
        self.roomy(taker)

    def leave(self, taker: Taker) -> None:
        """Remove a connection. The last one ends the feed."""
        self._takers.discard(taker)
        self._roomy.pop(taker, None)
        if not self._takers:
            self._over()
            self._task.cancel()

    def roomy(self, taker: Taker) -> None:
        """A connection has room again."""
        if taker in self._takers and taker not in self._roomy and taker.has_room():
            self._roomy[taker] = None
            self._room.set()

    async def ended(self) -> None:
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            async for message in self._subscription:
                try:
                    taker = await self._next()
                    taker.give(message)
                except BaseException:
                    message.settle(GIVEN_BACK)
                    raise
                self.roomy(taker)
        except Exception as error:  # otherwise later connections would wait for a dead feed
            self._over()
            for taker in list(self._takers):
                taker.ended(told(error))
        finally:
            await self._subscription.aclose()

    async def _next(self) -> Taker:
        """Return the connection with room that has waited longest."""
        while True:
            while self._roomy:
                taker, _ = self._roomy.popitem(last=False)
                if taker.has_room():  # otherwise its socket is full; it reports when it is not
                    return taker
            self._room.clear()
            await self._room.wait()
