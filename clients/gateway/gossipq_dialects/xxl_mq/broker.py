"""Executes xxl-mq's requests with gossipq.

An application is a group of its topics. Pulled messages are in flight until it reports the result.
"""

import asyncio
import os
from dataclasses import dataclass, field
from typing import Protocol

from gossipq import limits
from gossipq.errors import GossipqError
from gossipq.times import unix_ms_of
from gossipq_client import FetchedBatch
from gossipq_client.aio import Message
from gossipq_client.values import GIVEN_BACK, failed
from gossipq_dialects.acks import Acks
from gossipq_dialects.names import name_of, topic_of
from gossipq_dialects.options import XxlMqOptions
from gossipq_dialects.postbox import Postbox, Stored
from gossipq_dialects.xxl_mq import wire
from gossipq_gateway.dialect import Desk
from gossipq_gateway.numbers import whole

PULL_S = 0.5  #: a pull waits this long for the first message; xxl-mq's client waits 3 s at most
SILENT_S = 90.0  #: a registered instance that is silent for this long is gone
IDLE_S = 60.0  #: a fetcher without pulls is closed after this time
FETCHERS_MAX = 1_000  #: fetchers, one for each application and its topics
INSTANCES_MAX = 10_000
EFFECT = "xxl_mq_effect_time"


@dataclass
class InHand:
    message: Message
    instance: str
    until_s: float


class Fetcher(Protocol):
    async def fetch(self, n: int | None = None, wait: float = 1.0) -> FetchedBatch[Message]: ...
    def rest(self) -> None: ...
    async def aclose(self) -> None: ...


@dataclass
class Pulling:
    """The pulls of an application."""

    fetcher: Fetcher
    used_s: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Broker:
    def __init__(self, desk: Desk, options: XxlMqOptions) -> None:
        self._desk, self._options = desk, options
        self._post, self._acks = Postbox(desk), Acks(desk)
        self._loop = asyncio.get_running_loop()
        self._pulling: dict[tuple[str, tuple[str, ...]], Pulling] = {}
        self._in_hand: dict[int, InHand] = {}
        self._ending: set[asyncio.Future[None]] = set()
        self._seen_s: dict[str, float] = {}  #: when an instance registered
        #: numbers of messages, of this gateway only
        self._next = int.from_bytes(os.urandom(3), "big") << 36 | 1

    async def do(self, method: str, asked: wire.Request) -> bytes:
        """Execute a request. Raises Refused, GossipqError."""
        match asked:
            case wire.Produce():
                await self._produce(asked)
            case wire.Consume():
                await self._consume(asked)
            case wire.Registry() if method == "registry":
                await self._register(asked)
            case wire.Registry():
                self._give_back(asked.instanceUuid or "")
            case wire.Pull() if method == "pullAndLock":
                return wire.done(await self._pull(asked))
        return wire.done()

    # --- instances

    async def _register(self, asked: wire.Registry) -> None:
        instance = asked.instanceUuid or ""
        if instance not in self._seen_s:
            if len(self._seen_s) >= INSTANCES_MAX:
                raise wire.Refused(f"{INSTANCES_MAX} instances are registered")
            for topic in asked.topicList or ():
                await self._desk.mq.create_topic(topic_of(topic), if_not_exists=True)
        self._seen_s[instance] = self._loop.time()

    def _give_back(self, instance: str) -> None:
        self._seen_s.pop(instance, None)
        for number in [number for number, each in self._in_hand.items() if each.instance == instance]:
            self._in_hand.pop(number).message.settle(GIVEN_BACK)

    # --- messages

    async def _produce(self, asked: wire.Produce) -> None:
        """Publish messages. Returns when all are stored."""
        now_ms, told = self._desk.clock.now().wall_ms, list[asyncio.Future[None]]()
        for topic in {each.topic or "" for each in asked.messageList or ()}:
            topic_of(topic)  # refused before anything is stored
        for each in asked.messageList or ():
            future: asyncio.Future[None] = self._loop.create_future()
            told.append(future)

            def done(
                stored: list[Stored], error: GossipqError | None, future: asyncio.Future[None] = future
            ) -> None:
                if not future.done():
                    future.set_result(None) if error is None else future.set_exception(error)

            delay_ms = min(max(0, (each.effectTime or 0) - now_ms), limits.DELAY_MS_MAX)
            self._post.put(
                topic_of(each.topic or ""),
                (each.data or "").encode("utf-8", "replace"),
                done,
                delay_s=delay_ms / 1_000,
                headers=((EFFECT, str(each.effectTime)),) if delay_ms else (),
                key="" if each.bizId in (None, "") else str(each.bizId),
            )
        for error in await asyncio.gather(*told, return_exceptions=True):
            if error is not None:
                raise error

    async def _pull(self, asked: wire.Pull) -> list[wire.Shown]:
        topics = tuple(sorted({topic_of(topic) for topic in asked.topicList or ()}))
        place = topic_of(asked.appname or ""), topics
        pulling = self._pulling.get(place)
        if pulling is None:
            if len(self._pulling) >= FETCHERS_MAX:
                raise wire.Refused(f"{FETCHERS_MAX} applications and topics are pulled", 402)
            fetcher = self._desk.mq.fetcher(list(topics), place[0])
            pulling = self._pulling[place] = Pulling(fetcher)
        count = min(max(1, asked.batchsize or 1), wire.BATCH_MAX)
        async with pulling.lock:
            pulling.used_s = self._loop.time()
            try:
                batch = await pulling.fetcher.fetch(count, PULL_S)
            except GossipqError:  # for example a removed topic: the next pull gets a new fetcher
                if self._pulling.get(place) is pulling:
                    del self._pulling[place]
                await pulling.fetcher.aclose()
                raise
            pulling.fetcher.rest()
        self._desk.counters.delivered(len(batch))
        return [self._show(message, asked.instanceUuid or "") for message in batch]

    def _show(self, message: Message, instance: str) -> wire.Shown:
        number, self._next = self._next, self._next + 1
        self._in_hand[number] = InHand(message, instance, self._loop.time() + self._options.timeout)
        effect_ms = whole(message.headers_shown.get(EFFECT)) or unix_ms_of(message.publish_time)
        data = message.value.decode(errors="replace")
        return wire.Shown(number, name_of(message.topic), data, effect_ms)

    async def _consume(self, asked: wire.Consume) -> None:
        """Store the results of messages. Unknown messages are ignored, as in the original."""
        told = list[asyncio.Future[bool]]()
        for each in asked.messageList or ():
            found = self._in_hand.get(each.id or 0)
            if found is None or each.status not in (wire.SUCCESS, wire.FAIL, wire.TIMEOUT):
                continue
            del self._in_hand[each.id or 0]
            if each.status == wire.SUCCESS:
                future: asyncio.Future[bool] = self._loop.create_future()
                told.append(future)
                self._acks.put(found.message, future.set_result)
            else:
                reason = each.consumeLog or ("timeout" if each.status == wire.TIMEOUT else "fail")
                found.message.settle(failed(None, reason))
        if told and not all(await asyncio.gather(*told)):
            self._desk.log.warning("results came too late: others have the messages")

    def sweep(self) -> None:
        now_s = self._loop.time()
        for instance in [name for name, seen_s in self._seen_s.items() if now_s - seen_s > SILENT_S]:
            self._give_back(instance)
        for number, found in list(self._in_hand.items()):
            if found.until_s > now_s:
                break
            del self._in_hand[number]
            found.message.settle(failed(None, f"no result within {self._options.timeout} s"))
        for place, pulling in list(self._pulling.items()):
            if now_s - pulling.used_s > IDLE_S and not pulling.lock.locked():
                del self._pulling[place]
                task = asyncio.ensure_future(pulling.fetcher.aclose())
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        await self._post.settled()
        await self._acks.settled()
        for found in self._in_hand.values():
            found.message.settle(GIVEN_BACK)
        for pulling in self._pulling.values():
            await pulling.fetcher.aclose()
