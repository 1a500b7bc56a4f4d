"""How the asyncio client waits: the event loop watches the sockets and wakes whoever waits for their
outcome."""

import asyncio
import math
import weakref
from asyncio import get_running_loop
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from inspect import isawaitable
from itertools import chain
from typing import Any, TypeVar

from gossipq.errors import Backpressure, ClientClosed, GossipqError
from gossipq.limits import PUBLISH_WINDOW_BYTES
from gossipq.texts import many
from gossipq_client.api.aio.farewell import close
from gossipq_client.api.aio.watcher import Watcher
from gossipq_client.handlers import Middleware
from gossipq_client.io import PAUSE_SECONDS, Connecting, Engine, exits
from gossipq_client.session import Awaited, Flight, Held, Patience, Receipt, Record, Writer
from gossipq_client.values import UNSET, Options, inputs

T = TypeVar("T")
Place = tuple[str, int]  #: a partition by topic and number, which outlive its writer
Gate = asyncio.Lock  #: one after the other
BUSY_TURNS = 3  #: a client that has turned so often since its timer fired sees to the timer again soon
POSTS_MAX = 10_000  #: posts that wait for room, at most
BREATH_S = 0.01  #: who goes on without waiting lets others have the loop so often


class PendingReceipt:
    """The future of a receipt: `await` it, or `await receipt.result(timeout=5)`."""

    __slots__ = ("_awaited", "_driver")

    def __init__(self, driver: "Driver", awaited: Awaited) -> None:
        self._driver, self._awaited = driver, awaited

    def done(self) -> bool:
        """True if `result` returns or raises at once."""
        return _are_done(self._awaited.flights) or not self._driver.engine.usable

    async def result(self, timeout: inputs.Timeout = UNSET) -> Receipt:
        """Wait for the receipt, `timeout` at most, in seconds or as "5s"; without it the client's timeout,
        None: for ever.

        Raises NotConfirmed (may be stored) or Refused (certainly not stored).
        """
        await self._driver.await_flights(self._awaited.flights, self._driver.seconds(timeout))
        return self._awaited.receipt()

    async def exception(self, timeout: inputs.Timeout = UNSET) -> GossipqError | None:
        """Wait as `result` does, also in seconds, and return the error that it raises, or None. Raises
        NotConfirmed when the time is over."""
        try:
            await self.result(timeout)
        except GossipqError as error:
            if not self.done():
                raise
            return error
        return None

    def add_done_callback(self, call: "Callable[[PendingReceipt], object]") -> None:
        """Call `call` with this receipt once it is done. The event loop calls it, soon if it is done now."""
        self._driver.when_done(self._awaited.flights, partial(call, self))

    def __await__(self) -> Generator[Any, None, Receipt]:
        return self.result().__await__()


class PendingPost(PendingReceipt):
    """The receipt of a record that still waits for room, or for what the client must look up."""

    __slots__ = ("_error", "_is_seen", "_task")

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._error: BaseException | None = None  #: why it was not sent
        self._is_seen = False  #: whether the user has seen that error, or waits for it
        self._task: asyncio.Task[None]

    async def send(self, turn: "Turn", sending: Coroutine[Any, Any, Awaited]) -> None:
        """Send it once earlier posts to the same topic were sent. Raises nothing."""
        try:
            async with turn:
                self._awaited = await sending
        except BaseException as error:
            self._error = error
            self._driver._unsent.append(self)
        finally:
            sending.close()

    def done(self) -> bool:
        if not self._task.done():
            return not self._driver.engine.usable
        return self._error is not None or super().done()

    async def result(self, timeout: inputs.Timeout = UNSET) -> Receipt:
        seconds, since_ms = self._driver.seconds(timeout), self._driver.engine.now_ms()
        self._is_seen = True  # who waits for the error sees it
        try:
            await asyncio.wait([self._task], timeout=seconds)
        finally:
            self._is_seen = self._task.done()
        if not self._task.done():
            raise self._driver.engine.unconfirmed(seconds)
        if isinstance(self._error, asyncio.CancelledError):
            raise ClientClosed("the event loop ended before the record was sent", hint="await flush() first")
        if self._error is not None:
            raise self._error
        left_s = None
        if seconds is not None:
            left_s = max(0.0, seconds - (self._driver.engine.now_ms() - since_ms) / 1000)
        return await super().result(left_s)

    def add_done_callback(self, call: "Callable[[PendingReceipt], object]") -> None:
        def heard(_: object) -> None:
            if self._error is None:
                self._driver.when_done(self._awaited.flights, partial(call, self))
            else:
                call(self)

        self._task.add_done_callback(heard)


class Line:
    """Posts to one topic that were not sent yet, in order."""

    def __init__(self) -> None:
        self.waiting = 0  #: posts, and publishes that came after them
        self.tasks: set[asyncio.Task[None]] = set()
        self._last: asyncio.Future[None] | None = None  #: done when the last of them was sent

    def join(self) -> "Turn":
        """Wait behind all that joined before: `async with` the turn that this returns."""
        turn = Turn(self._last)
        self._last = turn.over
        return turn


class Turn:
    """A place in a line."""

    def __init__(self, before: "asyncio.Future[None] | None") -> None:
        self._before, self.over = before, asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> None:
        try:
            if self._before is not None:
                await asyncio.wait([self._before])
        except BaseException:  # cancelled: who is behind waits for who is before
            assert self._before is not None
            self._before.add_done_callback(lambda _: self.over.cancel())
            raise

    async def __aexit__(self, *_: object) -> None:
        self.over.set_result(None)


class Opened:
    """What `_engine` is before the client is used: the first who asks for it decides which event loop it
    is."""

    def __get__(self, driver: "Driver", kind: type) -> Engine:
        return driver.open()


class Driver:
    """Drives an engine from one event loop."""

    engine = Opened()
    _loop: asyncio.AbstractEventLoop

    def __init__(self, asked: Connecting) -> None:
        self.asked, self.lock = asked, nullcontext()  # one thread uses it
        self.label, self.timeout_s, self.spool = asked.name, asked.timeout_s, asked.spool
        self.looks = self.spool is not None  #: something looks at records before they are sent
        self.over = False  #: closed, if only before it was used
        self.reset()

    def reset(self) -> None:
        """Nothing waits, and no event loop has a part of it."""
        self.spooling = Gate()
        self.asked.reopen()
        self._watched: dict[int, object] = {}  #: whose the descriptors are that the loop watches
        self._watched_fds: list[int] = []  #: those of the transport by then
        #: tasks that wait until something is so, and until when, boot time
        self._waiters: dict[asyncio.Future[bool], tuple[Callable[[], bool], float]] = {}
        #: tasks that wait for a batch, and until when, boot time: each has a future of its own, since a task
        #: that is cancelled cancels what it waits for
        self._landings: dict[Flight, dict[asyncio.Future[None], float]] = {}
        self._limit_ms = math.inf  #: the first of these times, or earlier
        self._gates: defaultdict[Place, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._queued: Counter[Place] = Counter()  #: how many wait for room there, or to be let through
        self._posting: dict[str, Line] = {}  #: by topic, posts that were not sent yet
        self._posts = self._posts_bytes = 0  #: how many they are
        self._unsent: list[PendingPost] = []  #: posts that could not be sent
        self._turns_soon = False  #: whether it turns once this turn of the event loop is over
        self._turns = 0  #: since the timer fired
        self._resting = False  #: whether they are left alone until the next turn
        self._timer: asyncio.Handle | None = None
        self._breath_s = 0.0  #: when others shall have the loop
        self._due_ms = math.inf  #: when it fires, boot time; inf = it is not set

    @property
    def made(self) -> Engine | None:
        """The engine, if this client was used."""
        return self.__dict__.get("engine")

    def drop(self) -> None:
        """The next use makes another engine."""
        self.__dict__.pop("engine", None)

    @property
    def kept(self) -> bool:
        """True if records without a confirm outlive this client, on a disk."""
        return self.spool is not None

    def look_at_each(self) -> None:
        """From now on something looks at each record before it is sent."""
        self.looks = True

    def in_child(self) -> None:
        """A forked child that uses this client connects anew. Records in flight, loops and receipts stay with
        the parent. A spool and an embedded node belong to the parent, so their clients refuse to work."""
        made = self.made
        if made is not None and self.asked.can_fork and made.disown():
            self.drop()
            self.reset()

    def open(self) -> Engine:
        """Raises ClientClosed, and RuntimeError where no event loop runs."""
        if self.over:
            raise ClientClosed("this client is closed", hint="call connect() again")
        self._loop = asyncio.get_running_loop()
        self._watcher = Watcher(self._loop)
        on_fork = partial(_on_fork, weakref.ref(self))
        engine = self.__dict__["engine"] = self.asked.engine(on_fork)
        engine.session.publishing.gathers = True
        exits.note(self)
        return engine

    async def connect(self, seconds: float | None = None) -> None:
        """Raises Unreachable when no node answers in time, ClientClosed."""
        engine = self.engine
        engine.check()
        links = engine.session.links
        try:
            patience_s = self.asked.patience_s if seconds is None else seconds
            if not await self.until(lambda: links.decided, patience_s) or not links.home.greeting:
                raise engine.unreachable()
        except BaseException:
            if not links.greetings:
                self.give_up(engine)
            raise

    def give_up(self, engine: Engine | None) -> None:
        """Could not connect, or send what its spool has: that is over, unless others wait for something."""
        if engine is None or engine.closed or self._waiters or self._landings:
            return
        if not (engine.session.settled or self.kept):
            return
        self.shut()
        self.drop()
        self.asked.set_aside()
        engine.session.publishing.give_up(engine.lost())

    @property
    def busy(self) -> bool:
        """A step is under way."""
        return self.engine.busy

    def _require_loop(self) -> None:
        """Raises ClientClosed where its event loop has ended: nothing would send what is asked for."""
        if self._loop.is_closed():
            raise ClientClosed(
                "the event loop of this client has ended",
                hint="a client is for one event loop: call connect() again in the one that runs, as in "
                "`async with connect() as mq:`",
            )

    def step(self, step: Callable[..., T], *arguments: Any) -> T:
        """One step of the session, done whole. Raises ClientClosed and what the step raises."""
        self.engine.check()
        self._require_loop()
        return self.engine.step(step, *arguments)

    def wake(self) -> None:
        """Whoever waits looks again whether it is ready. From any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.turn)

    def settle_later(self) -> None:
        """Does what was left in `engine.later`, as soon as that is possible: behind an exception, in a
        finalizer."""
        if self.engine.usable and not self.engine.busy and not self._loop.is_closed():
            self.turn()

    def exchange(self) -> None:
        """One exchange with the sockets."""
        self.turn()

    async def breathe(self) -> None:
        """Lets others have the loop, when they had to wait: who always finds the next record here would keep
        it, also from what sends the acks."""
        now_s = self._loop.time()
        if now_s >= self._breath_s:
            self._breath_s = now_s + BREATH_S
            await asyncio.sleep(0)

    async def let_others(self) -> None:
        """Lets other tasks add what they have to what is about to be sent and waited for."""
        await asyncio.sleep(0)

    def seconds(self, timeout: inputs.Timeout) -> float | None:
        """The time that a call waits; None = for ever. Raises BadRequest."""
        return self.timeout_s if timeout is UNSET else inputs.limit_s(timeout)

    def pending(self, awaited: Awaited) -> PendingReceipt:
        return PendingReceipt(self, awaited)

    def posted(self, topic: str, raws: list[bytes], sending: Coroutine[Any, Any, Awaited]) -> PendingReceipt:
        """Send values in a task, after the earlier posts to the same topic. Raises Backpressure."""
        if self._posts >= POSTS_MAX or self._posts_bytes >= PUBLISH_WINDOW_BYTES:
            sending.close()
            hint = "await flush(), or the receipt of an earlier post"
            raise Backpressure(f"{many(self._posts, 'post')} wait to be sent", hint=hint)
        size = sum(map(len, raws))
        pending, line = PendingPost(self), self._posting.setdefault(topic, Line())
        self._posts, self._posts_bytes, line.waiting = (
            self._posts + 1,
            self._posts_bytes + size,
            line.waiting + 1,
        )
        turn = line.join()
        pending._task = self._loop.create_task(pending.send(turn, sending))
        line.tasks.add(pending._task)

        def sent(task: asyncio.Task[None]) -> None:
            self._posts, self._posts_bytes = self._posts - 1, self._posts_bytes - size
            line.tasks.discard(task)
            if task.cancelled():  # before it began
                pending._error = asyncio.CancelledError()
                self._unsent.append(pending)
                sending.close()
                turn.over.cancel()
            self._leave_line(topic, line)

        pending._task.add_done_callback(sent)
        return pending

    async def in_turn(self, topic: str, sending: Coroutine[Any, Any, T]) -> T:
        """Await `sending` once earlier posts to the topic were sent."""
        line = self._posting.get(topic)
        if line is None:
            return await sending
        line.waiting += 1
        try:
            async with line.join():
                return await sending
        finally:
            sending.close()
            self._leave_line(topic, line)

    async def result_of(self, ware: Middleware, result: Any) -> Any:
        """Return the result of a layer of middleware; await it if it is a coroutine."""
        return await result if isawaitable(result) else result

    def _leave_line(self, topic: str, line: Line) -> None:
        line.waiting -= 1
        if not line.waiting and self._posting.get(topic) is line:
            del self._posting[topic]

    async def posts_sent(self, seconds: float | None) -> None:
        """Wait until earlier posts were sent. Raises NotConfirmed when the time is over."""
        tasks = [task for line in self._posting.values() for task in line.tasks]
        if tasks and (await asyncio.wait(tasks, timeout=seconds))[1]:
            raise self.engine.lost()

    def unsent_error(self) -> BaseException | None:
        """The error of a post that could not be sent, unless its user has seen it. Each is reported once."""
        errors = [post._error for post in self._unsent if not post._is_seen]
        self._unsent.clear()
        return errors[0] if errors else None

    def when_done(self, flights: list[Flight], call: Callable[[], object]) -> None:
        """Call `call` in the event loop once all flights are done."""
        later = partial(self._loop.call_soon, call)
        if not self.step(self.engine.when_done, flights, later):
            later()

    def ack_one(self, record: Record[Any]) -> None:
        """Notes an ack, to be sent within milliseconds. Raises ClientClosed."""
        noted = self.engine.noted
        if not noted:
            self._require_loop()
        noted.append(record)
        if len(noted) == 1:
            self.soon()

    def ack_range(self, held: Held, first: int, end: int) -> None:
        """The same of neighbours."""
        self._require_loop()
        self.engine.note(self.engine.session.consuming.ack, held, first, end)
        self.soon()

    def begin(self, held: Held, offset: int) -> None:
        """User code begins with a record whose leader must know before, or whose part has to be looked at."""
        self._require_loop()
        self.step(self.engine.begin, held, offset)
        self.mind_hands()

    def mind_hands(self) -> None:
        """User code has begun with records. See to it that somebody looks in time whether it still has
        them."""
        consuming = self.engine.session.consuming
        if consuming.unminded:
            consuming.unminded = False
            self.soon()

    def _fire(self) -> None:
        """The timer fired."""
        self._timer, self._due_ms = None, math.inf
        self.turn(True)

    def turn(self, thorough: bool = False) -> None:
        """One exchange with the sockets; then whoever waits for its outcome goes on."""
        self._turns_soon = False
        engine = self.engine
        if engine.closed or engine.forked or engine.busy:
            return
        thorough = thorough or engine.torn
        links = engine.session.links
        try:
            engine.step(engine.exchange, thorough)
            if engine.untold:
                engine.tell()
            rest_ms = engine.session.rest_ms() if links.stirred_ms == links.now_ms else 0
            if rest_ms:
                self._rest()
            elif self._resting or engine.transport.fds is not self._watched_fds:
                self._watch()
            for flight in self._landings:
                if flight.done:
                    self._land()
                    break
            if self._waiters:
                for future, (ready, _) in list(self._waiters.items()):
                    if not future.done():
                        self._look(future, ready)
            if links.now_ms >= self._limit_ms:
                self._end_late()
            # the timer fires early while there is traffic; each part is asked only where there is none
            due_ms: float = engine.soon_ms
            if thorough and self._turns < BUSY_TURNS:
                due_ms = links.now_ms + engine.timeout_ms()
            self._turns = 0 if thorough else self._turns + 1
            due_ms = min(due_ms, self._limit_ms, links.now_ms + rest_ms if rest_ms else math.inf)
            if thorough or due_ms < self._due_ms:
                self._again(due_ms, links.now_ms)
        finally:
            if self._due_ms == math.inf and engine.usable:
                self._again_by(
                    engine.now_ms() + 1000 * PAUSE_SECONDS
                )  # after an error of whatever kind the client goes on

    def _land(self) -> None:
        """Wake the tasks whose batch is done."""
        for flight in [*self._landings]:
            if flight.done:
                for future in self._landings.pop(flight):
                    if not future.done():
                        future.set_result(None)

    def _end_late(self) -> None:
        """Wake the tasks that have waited for too long."""
        now_ms, self._limit_ms = self.engine.session.links.now_ms, math.inf
        for waiting in self._landings.values():
            for landing, limit_ms in waiting.items():
                if limit_ms > now_ms:
                    self._limit_ms = min(self._limit_ms, limit_ms)
                elif not landing.done():
                    landing.set_result(None)
        for future, (_, limit_ms) in self._waiters.items():
            if limit_ms > now_ms:
                self._limit_ms = min(self._limit_ms, limit_ms)
            elif not future.done():
                future.set_result(False)

    def _limit_by(self, limit_ms: float) -> None:
        """See to it that the timer fires by then, boot time: no earlier limit of a task is known."""
        self._limit_ms = limit_ms
        self._again_by(limit_ms)

    def _again(self, due_ms: float, now_ms: float) -> None:
        """Set the timer; both are boot times."""
        before, seconds = self._timer, max(0, due_ms - now_ms) / 1000
        self._timer, self._due_ms = self._loop.call_later(seconds, self._fire), due_ms
        if before is not None:
            before.cancel()

    def _again_by(self, due_ms: float) -> None:
        """Set the timer unless it fires by then, boot time."""
        if due_ms < self._due_ms:
            self._again(due_ms, self.engine.now_ms())

    def _look(self, future: asyncio.Future[bool], ready: Callable[[], bool]) -> None:
        """What `ready` raises is for who waits, not for who turns."""
        try:
            if self.engine.step(ready):
                future.set_result(True)
        except Exception as error:
            future.set_exception(error)

    def soon(self) -> None:
        """Something waits to be sent within milliseconds."""
        self._again_by(self.engine.now_ms() + self.engine.timeout_ms())

    def _rest(self) -> None:
        """Until the next turn the sockets are left alone: the answers to pings come together, and wake the
        loop once."""
        for fd in self._watched:
            self._watcher.remove(fd)
        self._watched.clear()
        self._watched_fds = []
        self._resting = True

    def _watch(self) -> None:
        self._resting = False
        transport = self.engine.transport
        self._watched_fds, wanted = transport.fds, transport.owners()
        for fd, owner in list(self._watched.items()):
            if wanted.get(fd) is not owner:
                self._watcher.remove(fd)
                del self._watched[fd]
        for fd, owner in wanted.items():
            if fd not in self._watched:
                self._watcher.add(fd, self.turn, fd in transport.monitor_fds)
                self._watched[fd] = owner

    async def until(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Waits until `ready`; False when `timeout` seconds are over."""
        self.engine.check()
        self._require_loop()
        self.turn()
        if self.engine.step(ready):
            return True
        limit_ms = math.inf if timeout is None else self.engine.now_ms() + 1000 * timeout
        future: asyncio.Future[bool] = asyncio.Future(loop=self._loop)
        self._waiters[future] = ready, limit_ms
        if limit_ms < self._limit_ms:
            self._limit_by(limit_ms)
        try:
            return await future
        finally:
            del self._waiters[future]

    async def in_window(self, writer: Writer, wait_s: float | None, send: Callable[[Writer], T]) -> T:
        """Sends when the window has room for one more batch. Raises Backpressure when it has none and
        `Patience` is over."""
        engine, heir = self.engine, self.engine.session.publishing.heir
        engine.check()
        place = _place(writer)
        if self._queued[place] or engine.full(heir(writer)):
            if wait_s == 0:
                raise engine.backpressure(writer)
            patience = engine.patience(writer, wait_s, self.timeout_s)
            self._queued[place] += 1
            try:
                # who waits first goes first, and the others do not look in between
                async with self._within(patience), self._gates[place]:
                    while engine.full(heir(writer)):
                        await self.until(lambda: not engine.full(heir(writer)), None)
            except TimeoutError:
                raise engine.backpressure(writer, patience.silent_s) from None
            finally:
                self._queued[place] -= 1
                if not self._queued[place]:
                    del self._queued[place]
                    self._gates.pop(place, None)
        engine.session.advance(engine.clock.now())
        sent = self.step(send, heir(writer))
        self.depart()
        return sent

    def depart(self) -> None:
        """What was published goes once this turn of the event loop is over: what other tasks publish in it
        travels in the same batch."""
        session = self.engine.session
        if session.links.out:
            self.turn()
        elif session.publishing.gathered:
            if not self._turns_soon:
                self._turns_soon = True
                self._loop.call_soon(self.turn)
        elif session.publishing.linger_ms:  # else it goes with the confirm of the batch before it
            self.soon()

    def require_whole(self, gate: Gate) -> None:
        """Nothing is interrupted half way here."""

    def require_turn(self, writers: list[Writer]) -> None:
        """Raises Backpressure when others wait to publish there: they go first."""
        for writer in writers:
            if self._queued[_place(writer)]:
                raise self.engine.backpressure(writer)

    @asynccontextmanager
    async def _within(self, patience: Patience) -> AsyncIterator[None]:
        """Raises TimeoutError in it when patience is over, which news may put off."""
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal timer
            left_s = patience.left_s(self.engine.now_ms())
            if left_s is not None and left_s <= 0:
                limit.reschedule(self._loop.time())
            elif left_s is not None:
                timer = self._loop.call_later(left_s, look)

        async with asyncio.timeout(None) as limit:
            look()
            try:
                yield
            finally:
                if timer is not None:
                    timer.cancel()

    def append_now(self, topic: str, raw: bytes, options: Options) -> tuple[Flight, int] | None:
        """As `Engine.append`, in a step of its own; None also where others wait for room: they go first.
        Nothing is sent yet: see `_depart` and `_await_flights`."""
        engine = self.engine
        if self._queued or topic in self._posting:
            return None
        if get_running_loop() is not self._loop:
            self._require_loop()
        return engine.step(engine.append, topic, raw, options)

    async def await_flights(self, flights: list[Flight], timeout: float | None) -> None:
        """Returns when all are done. Raises NotConfirmed when the time is over."""
        limit_ms = None if timeout is None else self.engine.now_ms() + 1000 * timeout
        for flight in flights:
            if not flight.done:
                left_s = None if limit_ms is None else (limit_ms - self.engine.now_ms()) / 1000
                await self.landing(flight, left_s)
                if not flight.done:
                    raise self.engine.unconfirmed(timeout)

    def landing(self, flight: Flight, timeout: float | None) -> asyncio.Future[None]:
        """The end of the wait for a batch: it has its outcome, or `timeout` seconds are over. See to it that
        the batch is sent. Raises ClientClosed."""
        engine = self.engine
        if engine.closed or engine.forked or get_running_loop() is not self._loop:
            engine.check()
            self._require_loop()
        self.depart()
        limit_ms = math.inf
        if timeout is not None:
            # the clock was read in this turn of the event loop if something was published in it
            now_ms = engine.session.links.now_ms if self._turns_soon else engine.now_ms()
            limit_ms = now_ms + 1000 * timeout
            if limit_ms < self._limit_ms:
                self._limit_by(limit_ms)
        future: asyncio.Future[None] = asyncio.Future(loop=self._loop)
        waiting = self._landings.get(flight)
        if waiting is None:
            waiting = self._landings[flight] = {}
        waiting[future] = limit_ms
        return future

    def put_off(self, seconds: float) -> bool:
        """Whether it is closed later: never here, where nothing is interrupted half way."""
        return False

    def shut(self) -> None:
        if self.over:
            self.asked.release()
        exits.forget(self)
        if self.engine.ended:
            return
        if not self._loop.is_closed():
            for fd in self._watched:
                self._watcher.remove(fd)
            self._watched.clear()
            self._watcher.close()
            self._land()
        if self._timer is not None:
            self._timer.cancel()
        futures: list[asyncio.Future[Any]] = [*self._waiters, *chain.from_iterable(self._landings.values())]
        for future in futures:
            if not future.done() and not self._loop.is_closed():
                future.set_exception(ClientClosed("this client was closed", hint="call connect() again"))
                future.exception()  # seen: perhaps nobody waits any more
        self.engine.farewell()

    def unconfirmed(self) -> int:
        """Records without a confirm."""
        unseen = sum(not post._is_seen for post in self._unsent)
        return self.engine.session.publishing.unconfirmed_records() + self._posts + unseen

    def leave(self, seconds: float) -> GossipqError | None:
        """Closes at the end of the program, for good; see `exits`. The loop is gone by then, or runs in a
        thread of its own."""
        self.over = True
        if not self.engine.usable:
            return None
        if self._loop.is_running() and asyncio._get_running_loop() is not self._loop:
            asyncio.run_coroutine_threadsafe(close(self, seconds), self._loop).result(seconds + 1)
            return None
        try:
            return self.engine.finish(seconds)
        finally:
            self.shut()


Item = TypeVar("Item")


def started(items: AsyncIterator[Item]) -> AsyncIterator[Item]:
    """Takes the first item, which comes without waiting: what was begun is ended when it is dropped."""
    try:
        items.__anext__().send(None)  # type: ignore[attr-defined]
    except StopIteration:
        pass
    return items


def _are_done(flights: list[Flight]) -> bool:
    return all(flight.done for flight in flights)


def _place(writer: Writer) -> Place:
    return writer.topic.name, writer.number


def _on_fork(driver: "weakref.ref[Driver]") -> None:
    """Tell a client, if it still exists, that this process is a forked child."""
    found = driver()
    if found is not None:
        found.in_child()
