"""Pushing records to connections: one subscription of the gateway for all connections that share a group,
each of which takes the next record as soon as it has room."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from gossipq.errors import GossipqError
from gossipq_client.aio import Message, Subscription
from gossipq_client.values import GIVEN_BACK
from gossipq_gateway.dialects.postbox import told

CREDIT_RECORDS = 256  #: that wait in the gateway at most, for each feed


class Taker(Protocol):
    """A connection that takes records."""

    def has_room(self) -> bool: ...
    def give(self, message: Message) -> None:
        """Takes it: it is acked or given back by who took it."""

    def ended(self, error: GossipqError) -> None:
        """Nothing will come any more."""


class Feed:
    """Records go to the connections in turn. When none is left, what nobody took goes back."""

    def __init__(self, subscribe: Callable[[], Subscription], over: Callable[[], None]) -> None:
        self._takers: set[Taker] = set()
        self._roomy: OrderedDict[Taker, None] = OrderedDict()  #: who waited longest comes first
        self._room = asyncio.Event()
        self._over = over
        self._subscription = subscribe()
        self._task = asyncio.create_task(self._run())

    def join(self, taker: Taker) -> None:
        self._takers.add(taker)
        self.roomy(taker)

    def leave(self, taker: Taker) -> None:
        """The last one that leaves ends the feed."""
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
        except Exception as error:  # else who joins later would wait for a feed that brings nothing
            self._over()
            for taker in list(self._takers):
                taker.ended(told(error))
        finally:
            await self._subscription.aclose()

    async def _next(self) -> Taker:
        """The one that has waited longest of those with room."""
        while True:
            while self._roomy:
                taker, _ = self._roomy.popitem(last=False)
                if taker.has_room():  # else its socket is full: it says when it is not
                    return taker
            self._room.clear()
            await self._room.wait()
