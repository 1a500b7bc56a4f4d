"""Prefetched records of queues in use, which are given back when requests stop."""

import asyncio
from collections import deque
from collections.abc import Callable

from gossipq.errors import GossipqError
from gossipq_client.aio import Client, Message
from gossipq_client.values import GIVEN_BACK
from gossipq_dialects.postbox import told

CREDIT_RECORDS = 256  #: prefetched records of a queue
FIRST_S = 0.5  #: an empty answer is possible only this long after the first request
EMPTY_S = 0.02  #: and this long after the queue was found empty
IDLE_S = 5.0  #: without requests for this time, a queue is closed
OUTLETS_MAX = 1_000  #: queues in use at the same time

#: called once: the next record, None, or an error
Taken = Callable[[Message | None, GossipqError | None], None]


class Waiter:
    """A request that waits for a record."""

    def __init__(self, outlet: "Outlet", taken: Taken, wait_s: float) -> None:
        self.taken = taken
        self._outlet = outlet
        self.timer = asyncio.get_running_loop().call_later(wait_s, self._expire)

    def _expire(self) -> None:
        self._outlet.waiters.remove(self)
        self.taken(None, None)


class Outlet:
    """One queue for a group."""

    def __init__(self, mq: Client, topic: str, group: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: deque[Message] = deque()
        self.waiters: deque[Waiter] = deque()
        self._room = asyncio.Event()
        self.used_s = self._begun_s = self._loop.time()
        self.is_over = False
        self._subscription = mq.subscribe(topic, group, credit=CREDIT_RECORDS)
        self._task = asyncio.create_task(self._run())

    def take(self, taken: Taken) -> None:
        """Call `taken` with the next record, at once if one is prefetched."""
        self.used_s = self._loop.time()
        if self._ready and not self.waiters:
            message = self._ready.popleft()
            self._room.set()
            taken(message, None)
            return
        left_s = self._begun_s + FIRST_S - self.used_s
        self.waiters.append(Waiter(self, taken, max(EMPTY_S, left_s)))

    @property
    def is_idle(self) -> bool:
        return not self.waiters and self._loop.time() - self.used_s > IDLE_S

    async def close(self) -> None:
        """Stop, and give prefetched records back."""
        self.is_over = True
        self._task.cancel()
        await asyncio.wait([self._task])
        self._end(None)

    async def _run(self) -> None:
        try:
            async for message in self._subscription:
                if self.waiters:
                    waiter = self.waiters.popleft()
                    waiter.timer.cancel()
                    waiter.taken(message, None)
                    continue
                self._ready.append(message)
                while len(self._ready) >= CREDIT_RECORDS:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:
            self.is_over = True
            self._end(told(error))
        finally:
            await self._subscription.aclose()

    def _end(self, error: GossipqError | None) -> None:
        for waiter in self.waiters:
            waiter.timer.cancel()
            waiter.taken(None, error)
        self.waiters.clear()
        while self._ready:
            self._ready.popleft().settle(GIVEN_BACK)


class Outlets:
    """All queues in use."""

    def __init__(self, mq: Client, group: str) -> None:
        self._mq, self._group = mq, group
        self._outlets: dict[str, Outlet] = {}
        self._closing: set[asyncio.Future[None]] = set()

    def take(self, topic: str, taken: Taken) -> None:
        outlet = self._outlets.get(topic)
        if outlet is None or outlet.is_over:
            if len(self._outlets) >= OUTLETS_MAX:
                oldest = min(self._outlets, key=lambda name: self._outlets[name].used_s)
                self._close(oldest)
            outlet = self._outlets[topic] = Outlet(self._mq, topic, self._group)
        outlet.take(taken)

    def sweep(self) -> None:
        """Close queues without recent requests."""
        for topic in [topic for topic, outlet in self._outlets.items() if outlet.is_idle or outlet.is_over]:
            self._close(topic)

    def _close(self, topic: str) -> None:
        closing = asyncio.ensure_future(self._outlets.pop(topic).close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for topic in list(self._outlets):
            self._close(topic)
        if self._closing:
            await asyncio.wait(self._closing)
