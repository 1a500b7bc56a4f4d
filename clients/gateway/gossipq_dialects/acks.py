"""Acks that a client waits for: those of the same moment are stored together."""

import asyncio
from collections.abc import Callable

from gossipq.errors import LeaseLost
from gossipq_client.aio import Message
from gossipq_gateway.dialect import Desk

#: called once: True if the record was still held and the ack is stored; False also if unknown
Acked = Callable[[bool], None]
STORED_S = 30.0


def acked(message: Message) -> bool:
    """Ack without waiting for the result. False: another consumer has the record."""
    try:
        message.ack_soon()
    except LeaseLost:
        return False
    return True


class Acks:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._waiting: list[tuple[Message, Acked]] = []
        self._task: asyncio.Task[None] | None = None

    def put(self, message: Message, done: Acked) -> None:
        self._waiting.append((message, done))
        if self._task is None:
            self._task = asyncio.create_task(self._store())

    async def settled(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _store(self) -> None:
        while self._waiting:
            some, self._waiting = self._waiting, []
            lost = set[int]()
            try:
                await self._desk.mq.ack([message for message, _ in some], timeout=STORED_S)
            except LeaseLost:
                lost = {id(message) for message, _ in some if message.lost}
            except Exception as error:
                self._desk.log.warning("acks may not be stored: %s", error)
                lost = {id(message) for message, _ in some}
            self._desk.counters.acked(len(some) - len(lost))
            for message, done in some:
                done(id(message) not in lost)
        self._task = None
