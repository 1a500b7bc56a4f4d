"""TCP connections of dialects.

Bounded are their number, their open requests, their unread answers,
incomplete requests, and silence.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from gossipq_dialects.answers import Answers, Slot
from gossipq_gateway.connection import FAREWELL_S
from gossipq_gateway.counters import Counters
from gossipq_gateway.dialect import Place
from gossipq_gateway.listener import bound
from gossipq_gateway.room import Room, Share

LINES_MAX = 8_192  #: connections of one dialect
PENDING_MAX = 2_048  #: open requests of a connection; above this, it is not read
PENDING_BYTES_MAX = 4 << 20  #: bytes of those requests; likewise
UNREAD_BYTES_MAX = 256 << 10  #: unread answers; likewise, and records are not pushed
SWEEP_S = 1.0


class Hangup(Exception):
    """The input must not be answered: close the connection."""


class Line(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, lines: "Lines") -> None:
        self.lines, self.answers = lines, Answers()
        self._share = Share(lines.room)
        self.heard_s = 0.0  #: when the last bytes came, on the clock of the loop
        self.ends_s = 0.0  #: since when it has been closing; 0.0: it is open
        self.is_open = self.is_full = self._ending = self._braked = self._flushing = False

    # --- for the dialect

    def opened(self) -> None:
        """The connection is open."""

    def take(self, data: bytes) -> None:
        """Handle input. Raises Hangup."""
        raise NotImplementedError

    def unfinished(self) -> int:
        """Return the bytes of an incomplete request, if the dialect has large ones."""
        return 0

    def closed(self) -> None:
        """The connection is closed: give its records back."""

    def roomy(self) -> None:
        """It reads again."""

    def answered(self) -> None:
        """All its requests are answered."""

    def swept(self) -> None:
        """Called once a second."""

    # --- answers

    def say(self, answer: bytes) -> None:
        """Answer after all earlier requests."""
        self.answers.say(answer)
        self._flush_soon()

    def answer(self, slot: Slot, answer: bytes) -> None:
        """Set an answer, from any code, also after the connection was closed."""
        slot.answer = answer
        self._flush_soon()

    def push(self, data: bytes) -> None:
        """Send at once, before open answers."""
        if self.is_open:
            self.transport.write(data)

    def hang_up(self) -> None:
        """Close after all earlier answers."""
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
        """Stop reading a client with too many open requests or unread answers."""
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
        """A client that closed its sending side may still wait for answers."""
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
        """Yield the bound address. Leaving closes all connections. Raises OSError."""
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
        """Abort silent connections, and closing ones that do not read the rest.

        A close would wait for that without limit and keep records.
        """
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
