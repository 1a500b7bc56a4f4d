"""Fanout messages: every client that is bound to a queue gets them.

They are in a topic of their own, which each gateway reads once for all its connections. A group
stores the offset that all clients have acked, so that unacked messages stay for the next client.
"""

import asyncio
import sys
from collections import deque
from contextlib import suppress
from typing import Protocol

from gossipq.errors import Busy, GossipqError, UnknownTopic
from gossipq_client import Record
from gossipq_gateway.dialect import Desk

TELL_S = 0.5  #: interval at which acks are stored
WAITING_MAX = 1_000  #: messages for a connection that does not ack; above this, it is closed
LEFT_MAX = 10_000  #: unacked messages of closed connections, for the next client


def topic_of(queue_topic: str) -> str:
    return f"{queue_topic}.fanout"


class Listener(Protocol):
    """A connection that is bound to the queue."""

    def has_room(self) -> bool: ...
    def give(self, message: Record) -> None:
        """Take a message. The listener calls `acked` later."""

    def ended(self, error: GossipqError) -> None:
        """No further messages will come, or the listener was too slow."""


class Share:
    """The messages of one connection: delivered and waiting ones."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.waiting: deque[Record] = deque()
        self.in_hand: dict[int, Record] = {}

    def offer(self) -> None:
        """Deliver as many as the connection takes."""
        while self.waiting and self.listener.has_room():
            message = self.waiting.popleft()
            self.in_hand[message.offset] = message
            self.listener.give(message)

    @property
    def first(self) -> int | None:
        """Return the lowest unacked offset."""
        offsets = [*self.in_hand, *(message.offset for message in self.waiting)]
        return min(offsets, default=None)


class Fanout:
    """The fanout messages of one queue, while a client is bound to it."""

    def __init__(self, desk: Desk, queue_topic: str, group: str) -> None:
        self._desk, self._topic, self._group = desk, topic_of(queue_topic), group
        self._shares: dict[Listener, Share] = {}
        self._left: dict[int, Record] = {}
        #: behind the last read message; the offset that the group has stored
        self._end = self._told = 0
        self._there = asyncio.Event()
        self._floor = sys.maxsize  #: the first offset that is not in memory any more
        self.is_over = False
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._tell())]

    def join(self, listener: Listener) -> None:
        share = self._shares[listener] = Share(listener)
        share.waiting.extend(self._left.values())
        self._left.clear()
        share.offer()

    def leave(self, listener: Listener) -> None:
        share = self._shares.pop(listener, None)
        if share is not None:
            for message in [*share.in_hand.values(), *share.waiting]:
                self._keep(message)

    def _keep(self, message: Record) -> None:
        """Keep a message for the next client. With too many, the fanout ends and starts again."""
        if len(self._left) < LEFT_MAX:
            self._left[message.offset] = message
        else:
            self.is_over, self._floor = True, min(self._floor, message.offset)

    def acked(self, listener: Listener, offset: int) -> None:
        share = self._shares.get(listener)
        if share is not None:
            share.in_hand.pop(offset, None)
            share.offer()

    def roomy(self, listener: Listener) -> None:
        share = self._shares.get(listener)
        if share is not None:
            share.offer()

    def begin(self) -> None:
        """The topic exists now."""
        self._there.set()

    @property
    def is_waiting(self) -> bool:
        """True before the first publish."""
        return not self._there.is_set()

    @property
    def is_idle(self) -> bool:
        return not self._shares

    async def close(self) -> None:
        """End the fanout. Bound clients get an error and bind again."""
        self.is_over = True
        for listener in list(self._shares):
            listener.ended(Busy("the messages for all begin anew: bind again"))
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        with suppress(GossipqError):
            await self._note()

    async def _read(self) -> None:
        try:
            start = await self._begin()
            async for message in self._desk.mq.read(self._topic, start=start, follow=True):
                self._end = message.offset + 1
                if not self._shares:
                    self._keep(message)
                for listener, share in list(self._shares.items()):
                    share.waiting.append(message)
                    share.offer()
                    if len(share.waiting) >= WAITING_MAX:
                        listener.ended(Busy("too many messages without an ack"))
        except GossipqError as error:
            self.is_over = True
            for listener in list(self._shares):
                listener.ended(error)

    async def _begin(self) -> int | str:
        """Wait for the topic. Returns where to read from."""
        await self._there.wait()
        stats = await self._desk.mq.admin.stats([self._topic])
        cursors = [row.cursor for row in stats.groups if row.group == self._group]
        first = max((row.first for row in stats.partitions), default=0)
        self._end = self._told = max([first, *cursors])
        return self._end

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            try:
                await self._note()
            except GossipqError as error:
                self._desk.log.warning("acks of %s are told later: %s", self._topic, error)

    async def _note(self) -> None:
        """Store the offset that all clients have acked."""
        firsts = [share.first for share in self._shares.values()] + [min(self._left, default=None)]
        upto = min(self._end, self._floor, *(first for first in firsts if first is not None))
        if upto > self._told:
            with suppress(UnknownTopic):
                await self._desk.mq.group(self._topic, self._group).ack_below({0: upto})
            self._told = upto
