"""Connections of dialects that speak over plain TCP: bounded in number, in what waits to be answered, in what
is not read, in what is not whole, and in silence."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from gossipq_gateway.counters import Counters
from gossipq_gateway.dialect import Place
from gossipq_gateway.dialects.answers import Answers, Slot
from gossipq_gateway.listener import FAREWELL_S, bound
from gossipq_gateway.room import Room, Share

LINES_MAX = 8_192  #: connections of one dialect
PENDING_MAX = 2_048  #: requests of a connection that wait for their answers; then it is not read
PENDING_BYTES_MAX = 4 << 20  #: that those hold; likewise
UNREAD_BYTES_MAX = 256 << 10  #: answers that it has not taken; likewise, and nothing is pushed to it
SWEEP_S = 1.0


class Hangup(Exception):
    """What came is not to be answered: the connection ends."""


class Line(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, lines: "Lines") -> None:
        self.lines, self.answers = lines, Answers()
        self._share = Share(lines.room)
        self.heard_s = 0.0  #: when the last bytes came, on the clock of the loop
        self.ends_s = 0.0  #: since when it is seen to end; 0.0: it is not
        self.is_open = self.is_full = self._ending = self._braked = self._flushing = False

    # --- what a dialect does

    def opened(self) -> None:
        """It stands."""

    def take(self, data: bytes) -> None:
        """Something came. Raises Hangup."""
        raise NotImplementedError

    def unfinished(self) -> int:
        """Bytes of a request that is not whole yet, where one may be large."""
        return 0

    def closed(self) -> None:
        """It is gone: what it held goes back."""

    def roomy(self) -> None:
        """It reads again what is sent to it."""

    def answered(self) -> None:
        """Nothing that was asked waits for its answer."""

    def swept(self) -> None:
        """Once a second."""

    # --- answers

    def say(self, answer: bytes) -> None:
        """Behind all that was asked so far."""
        self.answers.say(answer)
        self._flush_soon()

    def answer(self, slot: Slot, answer: bytes) -> None:
        """From anywhere, also when it is gone."""
        slot.answer = answer
        self._flush_soon()

    def push(self, data: bytes) -> None:
        """At once, before answers that are not known yet."""
        if self.is_open:
            self.transport.write(data)

    def hang_up(self) -> None:
        """Behind what is said so far."""
        if self.is_open:
            self._ending = True
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing and self.is_open:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self.is_open:
            return
        if data := self.answers.take():
            self.transport.write(data)
        self._brake()
        if not self.answers:
            self.answered()
            if self._ending:
                self.transport.close()

    def _brake(self) -> None:
        """Who asks more than is answered, or does not read the answers, is not read either."""
        heavy = len(self.answers) >= PENDING_MAX or self.answers.size >= PENDING_BYTES_MAX or self.is_full
        if heavy != self._braked and not self.transport.is_closing():
            self._braked = heavy
            (self.transport.pause_reading if heavy else self.transport.resume_reading)()

    # --- asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        transport.set_write_buffer_limits(UNREAD_BYTES_MAX)
        if not self.lines.admit(self):
            transport.abort()
            return
        self.is_open, self.heard_s = True, asyncio.get_running_loop().time()
        self.opened()

    def data_received(self, data: bytes) -> None:
        self.heard_s = asyncio.get_running_loop().time()
        if not self.is_open or self.transport.is_closing():
            return
        try:
            self.take(data)
            if not self._share.hold(self.unfinished()):
                raise Hangup("too much is under way at this gateway")
        except Hangup:
            self.lines.counters.error()
            self._flush()
            self.transport.close()
            return
        self._flush()

    def eof_received(self) -> bool:
        """Who says no more may still wait for answers."""
        self._ending = True
        self._flush_soon()
        return True

    def pause_writing(self) -> None:
        self.is_full = True
        self._brake()

    def resume_writing(self) -> None:
        self.is_full = False
        self._brake()
        self.roomy()

    def connection_lost(self, error: Exception | None) -> None:
        self._share.end()
        if self.is_open:
            self.is_open = False
            self.lines.dismiss(self)
            self.closed()


class Lines:
    """All connections of one port."""

    def __init__(self, make: Callable[["Lines"], Line], counters: Counters, idle_s: float = 0.0) -> None:
        self._make, self.counters, self._idle_s = make, counters, idle_s
        self._open: set[Line] = set()
        self.room = Room()

    def admit(self, line: Line) -> bool:
        if len(self._open) >= LINES_MAX:
            self.counters.error()
            return False
        self._open.add(line)
        self.counters.connected()
        return True

    def dismiss(self, line: Line) -> None:
        self._open.discard(line)
        self.counters.disconnected()

    @asynccontextmanager
    async def listening(self, where: Place) -> AsyncIterator[Place]:
        """Yields where it listens, for port 0; closes all connections when it is left. Raises OSError."""
        listener, loop = bound(where), asyncio.get_running_loop()
        server = await loop.create_server(lambda: self._make(self), sock=listener)
        sweeper = asyncio.create_task(self._sweep())
        try:
            yield Place(where.host, listener.getsockname()[1])
        finally:
            sweeper.cancel()
            server.close()
            for line in list(self._open):
                line.transport.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(2):
                    while self._open:
                        await asyncio.sleep(0.01)
            for line in list(self._open):
                line.transport.abort()
            await asyncio.sleep(0)

    async def _sweep(self) -> None:
        """Ends who has been silent for too long, and who is told to end and does not take what is left for
        it: a close waits for that without end, and what the connection holds with it."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_S)
            oldest_s = loop.time() - self._idle_s if self._idle_s else 0.0
            for line in list(self._open):
                line.swept()
                if line.transport.is_closing():
                    line.ends_s = line.ends_s or loop.time()
                    if loop.time() - line.ends_s >= FAREWELL_S:
                        line.transport.abort()
                elif line.heard_s < oldest_s and not line.answers:
                    line.transport.close()
