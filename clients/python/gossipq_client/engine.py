"""What the sync client and its asyncio twin share: a session with sockets, and every step that does not wait."""

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import ClassVar, TypeVar

from gossipq import __version__, limits
from gossipq.clock import SystemClock
from gossipq.errors import Backpressure, ClientClosed, ForkedClient, NotConfirmed, ProtocolError, Unreachable
from gossipq.messages import GroupOptions, Message, Resolve, Stats, StatsReply, TopicOptions, Topics
from gossipq.types import META_SHARD
from gossipq_client import inputs
from gossipq_client.calls import Call
from gossipq_client.credit import Subscription
from gossipq_client.packer import Flight, Topic, Writer
from gossipq_client.session import Session
from gossipq_client.transport import Transport

Answer = TypeVar("Answer", bound=Message)

log = logging.getLogger("gossipq_client")

TICK_MS_MAX = 20  #: a busy client looks at its timers this often
REQUEST_SECONDS = 10.0  #: how long connecting and requests wait for a node
CLOSE_SECONDS = 30.0  #: how long `close` waits for confirms
ERROR_CLOSE_SECONDS = 5.0  #: the same, when a `with` ends in an exception
LINGER_MS = 500  #: how long closing sockets try to send a farewell


def topic_options(
    partitions: int | None,
    retention: inputs.Duration | None,
    retain: str | None,
    bytes_max: int | None,
    overflow: str | None,
    level: str | None,
    beside: str | None,
) -> TopicOptions:
    retention_ms = None if retention is None else inputs.duration_ms(retention)
    return TopicOptions(partitions, retention_ms, retain, bytes_max, overflow, level, beside)


class Engine:
    """One session over real sockets. Nothing here blocks; one thread at a time."""

    alive: ClassVar["weakref.WeakSet[Engine]"] = weakref.WeakSet()

    def __init__(self, addresses: list[str], name: str, on_fork: Callable[[], None]) -> None:
        self.clock = SystemClock()
        self.transport = Transport()
        self.session = Session(addresses, os.urandom(16), name, __version__, _new_producer, self.clock.now())
        self.forked = self.closed = False
        self.on_fork = on_fork
        self._due_ms = 0
        Engine.alive.add(self)

    def check(self) -> None:
        """Raises ClientClosed, ForkedClient."""
        if self.forked:
            raise ForkedClient("this client belongs to the parent process", hint="call connect() again in the child")
        if self.closed:
            raise ClientClosed("this client is closed", hint="call connect() again")

    @property
    def usable(self) -> bool:
        return not self.closed and not self.forked

    def exchange(self, thorough: bool = False) -> bool:
        """Sends what waits and takes what has arrived; True when something has. `thorough` also looks at connections."""
        session, transport, links = self.session, self.transport, self.session.links
        session.advance(self.clock.now())
        if links.now_ms >= self._due_ms or (thorough and links.now_ms >= session.deadline_ms()):
            thorough = True
            session.tick()
            self._due_ms = min(session.deadline_ms(), links.now_ms + TICK_MS_MAX)
        moved = False
        if thorough or links.actions:
            moved = self._connections()
        session.consuming.flush()
        while True:
            self._send()
            arrived = transport.receive()
            for endpoint, message in arrived:
                session.arrived(endpoint, message)
            if not arrived and not links.out:
                break  # only now: a send may swallow the signal of something that came
            moved = True
        if session.consuming.warnings:
            for text in session.consuming.warnings:
                log.warning(text)
            session.consuming.warnings.clear()
        return moved

    def _send(self) -> None:
        out = self.session.links.out
        if out:
            for endpoint, message in out:
                self.transport.send(endpoint, message)
            out.clear()

    def _connections(self) -> bool:
        links, transport, changed = self.session.links, self.transport, False
        for endpoint, up in transport.events():
            changed = True
            (links.connected if up else links.disconnected)(endpoint)
        while links.actions:
            actions, links.actions = links.actions, []
            for action, endpoint in actions:
                if action != "open":
                    transport.close_peer(endpoint)
                if action != "close":
                    transport.open(endpoint)
        return changed

    def timeout_ms(self) -> int:
        """How long nothing needs to be done if nothing arrives."""
        return max(0, self.session.deadline_ms() - self.session.links.now_ms)

    def now_ms(self) -> int:
        return self.clock.now().boot_ms

    # --- publishing

    def find_topic(self, name: str) -> Topic | Call:
        """The topic, or the request that looks it up and makes it when missing."""
        return self.session.publishing.topics.get(name) or self.session.calls.ask(Resolve([name], create=True), META_SHARD)

    def learn_topic(self, name: str, call: Call) -> Topic:
        """Raises what the look-up ended with."""
        topics = self.answer_of(call, Topics).topics
        for info in topics:
            if info.name == name:
                return self.session.publishing.learn(info)
        raise Unreachable(f"the node did not name topic {name!r}")

    def full(self, writer: Writer) -> bool:
        return self.session.publishing.full(writer) or self.transport.backlog_bytes >= limits.PUBLISH_WINDOW_BYTES

    def plan(
        self,
        topic: Topic,
        values: list[bytes],
        keys: Sequence[bytes | None] | None,
        headers: bytes,
        route: bytes,
        level: str,
        partition: int | None,
    ) -> list[Flight]:
        """Flights for a list, in the order of its records; those with the same key stay in order in one partition."""
        make = self.session.publishing.batches
        if not values:
            return []
        if keys is None:
            return make(topic.writer(None, partition), values, None, headers, route, level)
        groups: dict[Writer, list[tuple[bytes, bytes | None]]] = {}
        for value, key in zip(values, keys, strict=True):
            groups.setdefault(topic.writer(key, partition), []).append((value, key))
        flights: list[Flight] = []
        for writer, rows in groups.items():
            for keyed, run in groupby(rows, _is_keyed):
                pairs = list(run)
                of_run = [key for _, key in pairs if key is not None] if keyed else None
                flights += make(writer, [value for value, _ in pairs], of_run, headers, route, level)
        return flights

    def require_room(self, flights: list[Flight]) -> None:
        """Raises Backpressure unless all can go now."""
        if flights and not self.session.publishing.has_room(flights):
            raise self.backpressure(flights[0].writer)

    def backpressure(self, writer: Writer) -> Backpressure:
        waiting = self.session.publishing.unconfirmed_records()
        return Backpressure(
            f"{waiting} records wait for their confirm", hint=f"flush() first, or slow down: {writer.topic.name}"
        )

    def encoded(
        self, key: inputs.Value | None, headers: inputs.Headers | None, route: str, level: str | None
    ) -> tuple[bytes | None, bytes, bytes, str]:
        """The options of a publish as the wire carries them. Raises TypeError, TooLarge, BadRequest."""
        return (
            None if key is None else inputs.key_bytes(key),
            inputs.header_bytes(headers),
            inputs.route_bytes(route),
            inputs.level_of(level),
        )

    # --- consuming

    def subscription(
        self,
        names: list[str],
        group: str | None,
        start: inputs.Start | None,
        credit: tuple[int, int],
        lease: inputs.Duration | None,
        stop_at_end: bool,
    ) -> Subscription:
        where = start if start is not None else "first" if group else "new"
        options = GroupOptions(lease_ms=None if lease is None else inputs.duration_ms(lease))
        subscription = Subscription(
            group or "",
            inputs.start_of(where, self.clock.now().wall_ms),
            credit,
            options,
            stop_at_end,
            any("*" in name for name in names),
        )
        self.session.subscribe(names, subscription)
        return subscription

    # --- requests

    @staticmethod
    def answer_of(call: Call, kind: type[Answer]) -> Answer:
        """The answer of a call that is done. Raises its error, or ProtocolError for an answer of another kind."""
        if call.error is not None:
            raise call.error
        if not isinstance(call.reply, kind):
            raise ProtocolError(f"{type(call.message).__name__} answered by {type(call.reply).__name__}")
        return call.reply

    @staticmethod
    def merged_stats(calls: Iterable[Call]) -> StatsReply:
        replies = [Engine.answer_of(call, StatsReply) for call in calls]
        return StatsReply(
            [row for reply in replies for row in reply.partitions], [row for reply in replies for row in reply.groups]
        )

    def unreachable(self) -> Unreachable:
        addresses = ", ".join(self.session.links.addresses)
        return Unreachable(f"no node answers at {addresses}", hint="start one: gossipq node")

    def stats_calls(self, topics: list[str]) -> list[Call]:
        """One request to each worker that leads something."""
        shards = {route.endpoint: shard for shard, route in self.session.links.routes.items()}
        return [self.session.calls.ask(Stats(topics), shard) for shard in shards.values()]

    # --- farewell

    def farewell(self) -> None:
        self.closed = True
        Engine.alive.discard(self)
        self.session.publishing.plain.clear()
        self.session.farewell()
        self._send()
        self.transport.close(LINGER_MS)

    def lost(self) -> NotConfirmed:
        count = self.session.publishing.unconfirmed_records()
        return NotConfirmed(f"{count} records were not confirmed in time", hint="they may be stored; gossipq status")


def _new_producer() -> bytes:
    return os.urandom(16)


def _is_keyed(row: tuple[bytes, bytes | None]) -> bool:
    return row[1] is not None


def _in_child() -> None:
    """A forked child shares nothing with its parent's clients: they refuse to work there."""
    for engine in list(Engine.alive):
        engine.forked = True
        engine.on_fork()
        engine.session.publishing.plain.clear()


os.register_at_fork(after_in_child=_in_child)
