"""Executes KapokMQ's requests with gossipq.

A topic is a topic. Consumers share a group, or have one each (`push_type` 2). Messages without an
ack in time are redelivered.
"""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol
from zlib import crc32

from gossipq import limits
from gossipq.errors import GossipqError
from gossipq_client.aio import Message
from gossipq_client.values import GIVEN_BACK, failed
from gossipq_dialects.acks import acked
from gossipq_dialects.feeds import Feed, Taker
from gossipq_dialects.kapokmq import wire
from gossipq_dialects.names import name_of, topic_of
from gossipq_dialects.options import KapokMqOptions
from gossipq_dialects.postbox import Postbox, Stored
from gossipq_gateway.dialect import Desk
from gossipq_gateway.numbers import whole

DELAY = "kapokmq_delay"  #: header: the requested delay in seconds
DELAY_S_MAX = limits.DELAY_MS_MAX // 1_000
CREDIT_RECORDS = 256

#: called once: the code of the message, or the error
Sent = Callable[[str, GossipqError | None], None]


class Holder(Taker, Protocol):
    def lost_one(self) -> None:
        """One message fewer is in flight here."""


class InHand(NamedTuple):
    message: Message
    taker: Holder
    until_s: float  #: on the clock of the loop


class Broker:
    def __init__(self, desk: Desk, options: KapokMqOptions) -> None:
        self.desk, self.options = desk, options
        self._post = Postbox(desk)
        self._feeds: dict[tuple[str, str], Feed] = {}
        self._ending: set[asyncio.Task[None]] = set()
        #: by group and code, the longest waiting first
        self._in_hand: dict[tuple[str, str], InHand] = {}
        self._loop = asyncio.get_running_loop()

    # --- producers

    def send(self, topic: str, text: str, delay_s: int, done: Sent) -> None:
        """Publish a message. `topic` is a topic of gossipq."""
        id, headers = "", tuple[tuple[str, str], ...]()
        delay_s = min(max(0, delay_s), DELAY_S_MAX)
        if delay_s:
            id = wire.scheduled_code(topic, os.urandom(12))
            headers = ((DELAY, str(delay_s)),)

        def stored(places: list[Stored], error: GossipqError | None) -> None:
            if error is not None:
                self.desk.counters.error()
                self.desk.log.warning("a message for %s is not stored: %s", topic, error)
                done("", error)
            else:
                done(id or wire.code_of(*places[0]), None)

        self._post.put(
            topic, text.encode("utf-8", "replace"), stored, delay_s=delay_s, id=id, headers=headers
        )

    async def sent(self, topic: str, text: str, delay_s: int) -> str:
        """Return the code of a message when it is stored. Raises errors of publish."""
        told: asyncio.Future[str] = self._loop.create_future()

        def done(code: str, error: GossipqError | None) -> None:
            if told.done():
                return
            if error is not None:
                told.set_exception(error)
            else:
                told.set_result(code)

        self.send(topic, text, delay_s, done)
        return await told

    # --- consumers

    def group_of(self, consumer: str) -> str:
        options = self.options
        return options.group if options.push_type == 1 else f"{options.group}.{topic_of(consumer)}"

    def join(self, topic: str, group: str, taker: Taker) -> Feed:
        """Add a consumer to a group. Raises BadRequest."""
        feed = self._feeds.get((topic, group))
        if feed is None:
            start = "first" if self.options.push_type == 1 else "new"
            subscribe = partial(self.desk.mq.subscribe, topic, group, start=start, credit=CREDIT_RECORDS)
            feed = self._feeds[topic, group] = Feed(subscribe, partial(self._over, topic, group))
        feed.join(taker)
        return feed

    def _over(self, topic: str, group: str) -> None:
        feed = self._feeds.pop((topic, group), None)
        if feed is not None:
            task = asyncio.ensure_future(feed.ended())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def show(self, group: str, message: Message, taker: Holder) -> wire.Message:
        """Return the record in the form for its consumer, and note it as in flight."""
        topic, now_s = message.topic, self.desk.clock.now().wall_ms // 1_000
        code = code_of(message)
        self._forget(group, code)
        until_s = self._loop.time() + self.options.push_retry_time
        self._in_hand[group, code] = InHand(message, taker, until_s)
        self.desk.counters.delivered()
        created_s = int(message.publish_time.timestamp())
        asked_s = whole(message.headers_shown.get(DELAY))
        delay_s = asked_s if message.attempt == 1 else max(0, now_s - created_s)
        text = message.value.decode(errors="replace")
        return wire.Message(code, text, name_of(topic), created_s, now_s, delay_s, wire.WAITING)

    def _forget(self, group: str, code: str) -> None:
        """The record was redelivered: its former consumer does not have it any more."""
        known = self._in_hand.pop((group, code), None)
        if known is not None:
            known.taker.lost_one()

    def ack(self, group: str, code: str) -> None:
        """Ack a message, from any client. Unknown messages are ignored."""
        found = self._in_hand.pop((group, code), None)
        if found is None:
            return
        found.taker.lost_one()
        if acked(found.message):
            self.desk.counters.acked()
        else:
            self.desk.log.warning("an ack of %s came too late", found.message.ref)

    def give_back(self, taker: Taker) -> None:
        """A consumer is gone: give its messages to others."""
        for key in [key for key, found in self._in_hand.items() if found.taker is taker]:
            self._in_hand.pop(key).message.settle(GIVEN_BACK)

    def sweep(self) -> None:
        """Fail messages without an ack in time, and forget lost ones."""
        now_s = self._loop.time()
        for (group, code), found in list(self._in_hand.items()):
            if found.until_s <= now_s:
                found.message.settle(failed(0, f"no ack within {self.options.push_retry_time} s"))
            if found.until_s <= now_s or found.message.lost:
                self._forget(group, code)

    async def close(self) -> None:
        await self._post.settled()
        for found in self._in_hand.values():
            found.message.settle(GIVEN_BACK)
        self._in_hand.clear()
        if self._ending:
            await asyncio.wait(self._ending)

    # --- the console

    async def topics_of(self, crc: int) -> list[str]:
        """Return the topics that a code can mean."""
        return [
            info.name
            for info in await self.desk.mq.topics()
            if crc32(info.name.encode()) == crc and not info.config.virtual
        ]


def code_of(message: Message) -> str:
    id = message.id or ""
    found = wire.named(id)
    if found is not None and found.id:
        return id
    return wire.code_of(message.topic, message.partition, message.offset)
