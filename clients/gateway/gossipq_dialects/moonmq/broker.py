"""Executes moonmq's requests with gossipq.

A queue is a topic, a routing key a route. Direct messages are shared by a group. Fanout messages
are in a topic of their own.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from gossipq.errors import GossipqError
from gossipq_dialects.feeds import Feed, Taker
from gossipq_dialects.moonmq import fanouts, wire
from gossipq_dialects.moonmq.fanouts import Fanout, Listener
from gossipq_dialects.names import topic_of
from gossipq_dialects.options import MoonMqOptions
from gossipq_dialects.postbox import Postbox, Stored
from gossipq_gateway.dialect import Desk

CREDIT_RECORDS = 256
LOOK_S = 2.0  #: interval of the search for new fanout topics

#: called once: the number of the message, or the error
Published = Callable[[int, GossipqError | None], None]


class Broker:
    def __init__(self, desk: Desk, options: MoonMqOptions) -> None:
        self.desk, self.options = desk, options
        self._post = Postbox(desk)
        self._feeds: dict[tuple[str, str], Feed] = {}
        self._fanouts: dict[str, Fanout] = {}
        self._fresh = asyncio.Event()  #: set when a client is bound to a new queue
        self._made: set[str] = set()  #: fanout topics
        self._tasks: set[asyncio.Future[None]] = set()

    # --- publish

    def publish(self, asked: wire.Publish, done: Published) -> None:
        """Publish a message. Raises BadName."""
        topic = topic_of(asked.queue)

        def stored(places: list[Stored], error: GossipqError | None) -> None:
            if error is not None:
                self.desk.counters.error()
                self.desk.log.warning("a message for %s is not stored: %s", topic, error)
                done(0, error)
                return
            done(wire.number_of(places[0].partition, places[0].offset, asked.is_fanout), None)
            if asked.is_fanout and (fanout := self._fanouts.get(topic)) is not None:
                fanout.begin()

        if not asked.is_fanout:
            self._post.put(topic, asked.body, stored, route=wire.route_of(asked.key))
        elif topic in self._made:
            self._post.put(fanouts.topic_of(topic), asked.body, stored)
        else:
            self._later(self._publish_first(topic, asked, stored))

    async def _publish_first(
        self, topic: str, asked: wire.Publish, stored: Callable[[list[Stored], GossipqError | None], None]
    ) -> None:
        """Create the fanout topic with one partition, because its messages have one order."""
        name = fanouts.topic_of(topic)
        try:
            await self.desk.mq.create_topic(name, partitions=1, if_not_exists=True)
        except GossipqError as error:
            stored([], error)
            return
        self._made.add(topic)
        self._post.put(name, asked.body, stored)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- consume

    def join(self, queue: str, key: str, taker: Taker) -> Feed:
        """Return the feed of direct messages with this key. Raises BadName, BadRequest."""
        place = topic_of(queue), wire.route_of(key)
        feed = self._feeds.get(place)
        if feed is None:
            subscribe = partial(
                self.desk.mq.subscribe,
                place[0],
                self.options.group,
                route=place[1],
                credit=CREDIT_RECORDS,
            )
            feed = self._feeds[place] = Feed(subscribe, partial(self._over, place))
        feed.join(taker)
        return feed

    def listen(self, queue: str, listener: Listener) -> Fanout:
        """Return the fanout messages of a queue. Raises BadName."""
        topic = topic_of(queue)
        fanout = self._fanouts.get(topic)
        if fanout is None or fanout.is_over:
            if fanout is not None:
                self._later(fanout.close())
            fanout = self._fanouts[topic] = Fanout(self.desk, topic, self.options.group)
            self._fresh.set()
        fanout.join(listener)
        return fanout

    def _over(self, place: tuple[str, str]) -> None:
        feed = self._feeds.pop(place, None)
        if feed is not None:
            self._later(feed.ended())

    async def look(self) -> None:
        """Find fanout topics that other gateways have created."""
        while True:
            waiting = {
                fanouts.topic_of(name): each for name, each in self._fanouts.items() if each.is_waiting
            }
            if waiting:
                try:
                    for info in await self.desk.mq.topics(fanouts.topic_of("*")):
                        if info.name in waiting:
                            waiting[info.name].begin()
                except GossipqError as error:
                    self.desk.log.warning("topics are looked for later: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._fresh.wait()
            self._fresh.clear()

    def sweep(self) -> None:
        """Close queues without bound clients."""
        for topic in [topic for topic, fanout in self._fanouts.items() if fanout.is_idle or fanout.is_over]:
            self._later(self._fanouts.pop(topic).close())

    async def close(self) -> None:
        for topic in list(self._fanouts):
            self._later(self._fanouts.pop(topic).close())
        await self._post.settled()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
