"""How the asyncio client waits: the event loop watches the sockets and wakes whoever waits for their outcome."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Generator
from typing import Any

from gossipq.errors import ClientClosed, NotConfirmed
from gossipq.types import ShardId
from gossipq.values import Message as Request
from gossipq_client.asking import Result, Talk
from gossipq_client.calls import Answer, Call
from gossipq_client.engine import CLOSE_SECONDS, PAUSE_SECONDS, Engine
from gossipq_client.packer import Flight, Writer
from gossipq_client.receipts import Awaited, Receipt


class PendingReceipt:
    """A receipt before and after it is certain: `await` it, or `await receipt.result(timeout)`."""

    __slots__ = ("_awaited", "_client", "_flights")

    def __init__(self, client: "Driver", awaited: Awaited) -> None:
        self._client, self._awaited, self._flights = client, awaited, awaited.flights

    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        return all(flight.done for flight in self._flights) or not self._client.engine.usable

    async def result(self, timeout: float | None = None) -> Receipt:
        """Raises NotConfirmed (may be stored) or Refused (certainly not stored)."""
        await self._client.await_flights(self._flights, timeout)
        return self._awaited.receipt()

    def __await__(self) -> Generator[Any, None, Receipt]:
        return self.result().__await__()


class Driver:
    """Drives an engine from one event loop."""

    def __init__(self, addresses: list[str], name: str, timeout: float) -> None:
        self.engine = Engine(addresses, name, _nothing)
        self.timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._watched: set[int] = set()
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._landings: dict[Flight, asyncio.Future[None]] = {}
        self._gates: defaultdict[Writer, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Raises Unreachable when no node answers in time."""
        try:
            await self._require(lambda: self.engine.session.links.home.greeting > 0, self.timeout)
        except BaseException:
            self._shut()
            raise

    def turn(self, thorough: bool = False) -> None:
        """One exchange with the sockets; then whoever waits for its outcome goes on."""
        if not self.engine.usable:
            return
        again_s = PAUSE_SECONDS  # after an error of whatever kind the client goes on
        try:
            self.engine.exchange(thorough)
            if thorough:
                self._watch()
            for flight in [flight for flight in self._landings if flight.done]:
                self._landings.pop(flight).set_result(None)
            for future, ready in list(self._waiters.items()):
                if not future.done():
                    self._look(future, ready)
            again_s = self.engine.timeout_ms() / 1000
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(again_s, self.turn, True)

    @staticmethod
    def _look(future: asyncio.Future[None], ready: Callable[[], bool]) -> None:
        """What `ready` raises is for who waits, not for who turns."""
        try:
            if ready():
                future.set_result(None)
        except Exception as error:
            future.set_exception(error)

    def soon(self) -> None:
        """Something waits to be sent within milliseconds."""
        due_s = self._loop.time() + self.engine.timeout_ms() / 1000
        if self._timer is None or self._timer.when() > due_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due_s, self.turn, True)

    def _watch(self) -> None:
        wanted = set(self.engine.transport.fds())
        for fd in self._watched - wanted:
            self._loop.remove_reader(fd)
        for fd in wanted - self._watched:
            self._loop.add_reader(fd, self.turn, True)
        self._watched = wanted

    async def until(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until `ready`; False when `timeout` seconds are over."""
        self.engine.check()
        self.turn(thorough=True)
        if ready():
            return True
        future = self._loop.create_future()
        self._waiters[future] = ready
        try:
            await asyncio.wait_for(future, timeout)
        except TimeoutError:
            return False
        finally:
            del self._waiters[future]
        return True

    async def room(self, writer: Writer) -> None:
        """Waits until the window has room for one more batch."""
        gate = self._gates[writer]
        if gate.locked() or self.engine.full(writer):
            async with gate:  # who waits first goes first, and the others do not look in between
                while self.engine.full(writer):
                    await self.until(lambda: not self.engine.full(writer), None)
        self.engine.check()
        self.engine.session.advance(self.engine.clock.now())

    async def _require(self, ready: Callable[[], bool], timeout: float) -> None:
        if not await self.until(ready, timeout):
            raise self.engine.unreachable()

    async def answered(self, call: Call) -> None:
        try:
            await self._require(lambda: call.done or self.engine.in_vain(call), self.timeout)
            if not call.done:
                raise self.engine.unreachable()
        except BaseException:
            self.engine.session.calls.cancel(call)
            raise

    async def ask(self, request: Request, shard: ShardId, kind: type[Answer]) -> Answer:
        self.engine.check()
        call = self.engine.session.calls.ask(request, shard)
        await self.answered(call)
        return call.answer(kind)

    async def talk(self, talk: Talk[Result]) -> Result:
        """Waits for whatever a talk waits for, until its end."""
        while True:
            self.engine.check()
            try:
                step = next(talk)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(step, Call):
                await self.answered(step)
            else:
                await self.await_flights([step], self.timeout)

    async def await_flights(self, flights: list[Flight], timeout: float | None) -> None:
        """Returns when all are done. Raises NotConfirmed when the time is over."""
        for flight in flights:
            if not flight.done:
                self.engine.check()
                self.engine.session.publishing.hurry(flight)
                if self.engine.session.links.out:
                    self.turn()
        try:
            async with asyncio.timeout(timeout):
                for flight in flights:
                    if not flight.done:
                        await asyncio.shield(self._landing(flight))
        except TimeoutError:
            raise NotConfirmed(
                f"no confirm within {round(timeout or 0, 3)} s", hint="it may be stored; gossipq status"
            ) from None

    def _landing(self, flight: Flight) -> asyncio.Future[None]:
        """One future for all who wait for the same flight."""
        future = self._landings.get(flight)
        if future is None:
            future = self._landings[flight] = self._loop.create_future()
        return future

    async def flush(self, timeout: float | None = None) -> None:
        """As the sync `flush`."""
        session = self.engine.session
        self.engine.check()
        session.publishing.seal_all()
        if not await self.until(lambda: session.settled, timeout):
            raise self.engine.lost()
        failures = session.publishing.failures()
        if failures:
            raise failures[0]

    def _before_flush(self) -> None:
        """What a client gives back before its last flush."""

    async def close(self, flush: bool = True) -> None:
        """As the sync `close`."""
        await self._close(CLOSE_SECONDS if flush else 0.0)

    async def _close(self, seconds: float) -> None:
        if not self.engine.usable:
            return
        try:
            if seconds:
                self._before_flush()
                await self.flush(seconds)
        except ClientClosed:  # by another task meanwhile
            if self.engine.session.publishing.unconfirmed_records():
                raise self.engine.lost() from None
        finally:
            self._shut()

    def _shut(self) -> None:
        if self.engine.closed:
            return
        for fd in self._watched:
            self._loop.remove_reader(fd)
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
        for future in [*self._waiters, *self._landings.values()]:
            if not future.done():
                future.set_exception(ClientClosed("this client was closed", hint="call connect() again"))
                future.exception()  # seen: perhaps nobody waits any more
        self.engine.farewell()


def _nothing() -> None:
    """An event loop does not survive a fork either: there is no lock to renew."""
