"""queue_server over TCP and UDP, at one port."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from starlette.routing import BaseRoute

from gossipq_dialects.lines import Hangup, Line, Lines
from gossipq_dialects.options import QueueServerOptions
from gossipq_dialects.queue_server import wire
from gossipq_dialects.queue_server.broker import Answer, Broker, Wanted
from gossipq_gateway.dialect import Desk, Place, place

IDLE_S = 60.0  #: a silent connection is closed after this time, as in the original
DATAGRAMS_MAX = 4_096  #: open UDP requests; further ones are dropped
ANSWER_BYTES_MAX = 65_000  #: by UDP
ANSWERED_BYTES_MAX = 1 << 20  #: of the gateway that serves
FORWARD_S = 30.0  #: the leader has failed if it does not answer in this time


Forwarded = wire.Produce | wire.Consume | wire.Confirm | wire.Monitor | wire.Listing


class QueueServer:
    """The dialect."""

    name = "queue_server"

    def __init__(self, where: Place, options: QueueServerOptions) -> None:
        self._where, self._options = where, options
        self._at = where

    def routes(self, desk: Desk) -> Sequence[BaseRoute]:
        return ()

    @asynccontextmanager
    async def serve(self, desk: Desk) -> AsyncIterator[None]:
        options, loop = self._options, asyncio.get_running_loop()
        leader = place(options.leader, "leader") if options.leader else None
        broker = Broker(desk, options.group, self._told)
        clerk: Clerk = Clerk(desk, broker)
        if leader is not None:
            to = wire.Told(options.leader_node_id, *leader)
            clerk = Follower(desk, broker, to, options.forward_request != 0)
        lines = Lines(lambda lines: QueueLine(lines, clerk), desk.counters, IDLE_S)
        async with lines.listening(self._where) as at:
            self._at = at
            datagrams, _ = await loop.create_datagram_endpoint(lambda: Datagrams(clerk), local_addr=at)
            sweeper = asyncio.create_task(_sweep(broker))
            try:
                yield
            finally:
                sweeper.cancel()
                datagrams.close()
                clerk.close()
                await broker.close()

    def _told(self) -> wire.Told:
        return wire.Told(self._options.node_id, *self._at)

    @property
    def at(self) -> Place:
        """The bound address."""
        return self._at


async def _sweep(broker: Broker) -> None:
    while True:
        await asyncio.sleep(1)
        broker.sweep()


class Clerk:
    """Handles complete requests of any transport."""

    def __init__(self, desk: Desk, broker: Broker) -> None:
        self.desk, self._broker = desk, broker

    def take(self, raw: bytes, answer: Answer, wanted: Wanted) -> None:
        """Handle a request. Raises Malformed."""
        self.desk.counters.request()
        self.ask(raw, wire.parse(raw, self.desk.clock.now().wall_ms // 1_000), answer, wanted)

    def ask(self, raw: bytes, request: wire.Request, answer: Answer, wanted: Wanted) -> None:
        self._broker.ask(request, answer, wanted)

    def close(self) -> None:
        """Stop."""


class Follower(Clerk):
    """Forwards requests about queues to another gateway, or tells clients its address."""

    def __init__(self, desk: Desk, broker: Broker, leader: wire.Told, forwards: bool) -> None:
        super().__init__(desk, broker)
        self._leader, self._forwards = leader, forwards
        self._upstream: Upstream | None = None
        self._waiting: deque[bytes] = deque()

    def ask(self, raw: bytes, request: wire.Request, answer: Answer, wanted: Wanted) -> None:
        local = isinstance(request, wire.Monitor | wire.Listing) and request.is_local
        if isinstance(request, wire.Answered) or local:
            self._broker.ask(request, answer, wanted)
        elif isinstance(request, wire.Leader):
            answer(wire.answer(request.members, **wire.leader(self._leader)))
        elif not self._forwards:
            answer(wire.redirected(self._leader))
        else:
            if self._upstream is None or self._upstream.is_over:
                self._upstream = Upstream(self._leader)
            self._upstream.ask(raw, answer, partial(self._failed, request, answer))

    def _failed(self, request: Forwarded, answer: Answer) -> None:
        self.desk.counters.error()
        self.desk.log.warning("%s:%s did not answer", self._leader.host, self._leader.port)
        shown = wire.echo(request.members) if isinstance(request, wire.Produce) else request.members
        answer(wire.refusal(shown, "system error"))

    def close(self) -> None:
        if self._upstream is not None:
            self._upstream.end()


class Upstream(asyncio.Protocol):
    """A connection to the gateway that serves, which answers in order."""

    def __init__(self, leader: wire.Told) -> None:
        self.is_over = False
        self._splitter, self._unsent = wire.Splitter(ANSWERED_BYTES_MAX), list[bytes]()
        self._asked: deque[tuple[float, Answer, partial[None]]] = deque()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._task = asyncio.create_task(self._connect(leader))

    def ask(self, raw: bytes, answer: Answer, failed: "partial[None]") -> None:
        self._asked.append((self._loop.time() + FORWARD_S, answer, failed))
        if self._transport is None:
            self._unsent.append(raw)
        else:
            self._transport.write(raw)

    def end(self) -> None:
        """Fail all waiting requests."""
        self.is_over = True
        self._task.cancel()
        if self._transport is not None:
            self._transport.abort()
        while self._asked:
            self._asked.popleft()[2]()

    async def _connect(self, leader: wire.Told) -> None:
        try:
            async with asyncio.timeout(FORWARD_S):
                await self._loop.create_connection(lambda: self, leader.host, leader.port)
            while not self._asked or self._asked[0][0] > self._loop.time():
                await asyncio.sleep(1)
        except OSError:
            pass
        self.end()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        transport.writelines(self._unsent)
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        try:
            answers = self._splitter.feed(data)
        except wire.Malformed:
            self.end()
            return
        for each in answers:
            if self._asked:
                self._asked.popleft()[1](each)

    def connection_lost(self, error: Exception | None) -> None:
        self.end()


class QueueLine(Line):
    """One TCP connection."""

    def __init__(self, lines: Lines, clerk: Clerk) -> None:
        super().__init__(lines)
        self._clerk, self._splitter = clerk, wire.Splitter()

    def wanted(self) -> bool:
        return self.is_open

    def take(self, data: bytes) -> None:
        try:
            for raw in self._splitter.feed(data):
                self._clerk.take(raw, partial(self.answer, self.answers.slot(len(raw))), self.wanted)
        except wire.Malformed as error:
            raise Hangup(str(error)) from None


def _always() -> bool:
    return True


class Datagrams(asyncio.DatagramProtocol):
    """UDP requests, one in each datagram."""

    def __init__(self, clerk: Clerk) -> None:
        self._clerk, self._pending = clerk, 0

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        if self._pending >= DATAGRAMS_MAX or len(data) > wire.DATAGRAM_BYTES_MAX:
            self._clerk.desk.counters.error()
            return
        self._pending += 1
        try:
            self._clerk.take(data, partial(self._answer, address), _always)
        except wire.Malformed:
            self._pending -= 1
            self._clerk.desk.counters.error()

    def _answer(self, address: tuple[str, int], answer: bytes) -> None:
        self._pending -= 1
        if answer and len(answer) <= ANSWER_BYTES_MAX and not self._transport.is_closing():
            self._transport.sendto(answer, address)
