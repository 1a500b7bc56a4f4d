"""How the sync client waits: I/O inline in the calling thread, under one lock, and an orderly end."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from inspect import iscoroutine
from operator import attrgetter
from typing import Any, TypeVar

from gossipq.errors import BadRequest, ClientClosed, GossipqError
from gossipq_client.api.sync.farewell import close
from gossipq_client.api.sync.keeper import Keeper
from gossipq_client.handlers import Middleware
from gossipq_client.io import Bell, Connecting, Engine, exits, in_handler, log
from gossipq_client.io import wait as wait_for
from gossipq_client.session import Awaited, Flight, Held, Patience, Record, Writer
from gossipq_client.session import PendingReceipt as PendingReceipt
from gossipq_client.values import UNSET, Options, inputs

T = TypeVar("T")
Gate = threading.RLock  #: one after the other


class Opened:
    """What `_engine` is before the client is used: the first who asks for it connects."""

    def __get__(self, driver: "Driver", kind: type) -> Engine:
        return driver.connect()


class Driver:
    """Drives an engine for callers of any thread. Whoever waits polls the sockets without the lock."""

    engine = Opened()
    steps: Engine  #: `engine` once it is made: for single records, where the look-up of a descriptor counts

    def __init__(self, asked: Connecting) -> None:
        self.lock = threading.RLock()
        self.asked = asked
        self.exchanges = 0  #: how often callers did I/O
        self.label, self.timeout_s, self.spool = asked.name, asked.timeout_s, asked.spool
        self.looks = self.spool is not None  #: something looks at records before they are sent
        self.plain: dict[str, Flight] = {}  #: open batches for records that nothing looks at, by topic
        self.waiting: dict[int, Bell] = {}  #: of threads that wait, by their number
        self._bells: list[Bell] = []  #: of nobody now
        self._close_told: float | None = (
            None  #: a signal handler wants it closed, after so many seconds at most
        )
        self.over = False  #: closed, if only before it was used
        self.reset()

    def reset(self) -> None:
        """Who waits looks at the engine that it began with."""
        self.spooling = Gate()
        self.asked.reopen()

    @property
    def made(self) -> Engine | None:
        """The engine, if this client was used."""
        return self.__dict__.get("engine")

    def drop(self) -> None:
        self.__dict__.pop("engine", None)

    @property
    def kept(self) -> bool:
        """True if records without a confirm outlive this client, on a disk."""
        return self.spool is not None

    def connect(self, timeout: float | None = None) -> Engine:
        """Connects, unless somebody did. Raises Unreachable when no node answers in time, ClientClosed; a
        client that could not connect tries again when it is used again."""
        with self.lock:
            engine = self.made or self._make()
            engine.check()
        links = engine.session.links
        if links.greetings:
            return engine
        try:
            seconds = self.timeout_s if timeout is None else timeout
            if not self.until(lambda: links.decided, seconds) or not links.home.greeting:
                raise engine.unreachable()
        except BaseException:
            self.give_up(engine)
            raise
        return engine

    def _make(self) -> Engine:
        """Raises ClientClosed."""
        if self.over:
            raise ClientClosed("this client is closed", hint="call connect() again")
        exits.require_time()
        engine = self.asked.engine(self.in_child)
        try:
            self.keeper = Keeper(self, engine)  # a signal handler that finds the engine needs it, too
            self.plain = {} if self.looks else engine.session.publishing.plain
            self.__dict__["engine"] = self.steps = engine
            exits.note(self)
        except BaseException:  # an interrupt: the keeper of an engine that nobody has would go on for ever
            self.drop()
            engine.farewell()
            self.asked.set_aside()
            exits.forget(self)
            raise
        return engine

    @property
    def busy(self) -> bool:
        """A step is under way."""
        return self.engine.busy

    def give_up(self, engine: Engine | None) -> None:
        """Could not connect, or send what its spool has: that is over, unless others wait for something."""
        with self.lock:
            if engine is None or not engine.usable or self.waiting:
                return
            if not (engine.session.settled or self.kept):
                return
            engine.farewell()
        self.shut()
        self.drop()
        self.asked.set_aside()
        engine.session.publishing.give_up(engine.lost())

    def look_at_each(self) -> None:
        """From now on something looks at each record before it is sent."""
        self.looks, self.plain = True, {}

    def in_child(self) -> None:
        """As in the asyncio twin."""
        self.lock = threading.RLock()  # another thread of the parent may have held the old one
        self.waiting, self._bells = {}, []
        if self.made is not None and self.asked.can_fork and self.made.disown():
            self.drop()
            self.reset()

    def step(self, step: Callable[..., T], *arguments: Any) -> T:
        """One step of the session, done whole. Raises ClientClosed and what the step raises."""
        engine = self.engine
        with self.lock:
            return engine.step(step, *arguments)

    def settle_later(self) -> None:
        """Does what was left in `engine.later`, as soon as that is possible: behind an exception, in a
        finalizer."""
        if not self.engine.usable:
            return
        if self.lock.acquire(blocking=False):
            try:
                # else a finalizer runs within a step, which the next one follows soon
                if not self.engine.busy:
                    self.exchange()
            finally:
                self.lock.release()
        self.keeper.wake()

    def exchange(self) -> None:
        """One exchange with the sockets."""
        self.step(self.own_turn)

    def breathe(self) -> None:
        """Other threads have their turn by themselves."""

    def let_others(self) -> None:
        """Other threads add what they have while this one waits."""

    def seconds(self, timeout: inputs.Timeout) -> float | None:
        """The time that a call waits; None = for ever. Raises BadRequest."""
        return self.timeout_s if timeout is UNSET else inputs.limit_s(timeout)

    def pending(self, awaited: Awaited) -> PendingReceipt:
        return PendingReceipt(self, awaited)

    def posted(self, topic: str, raws: list[bytes], sent: Awaited) -> PendingReceipt:
        """The receipt of what was sent."""
        return PendingReceipt(self, sent)

    def in_turn(self, topic: str, sent: Awaited) -> Awaited:
        """What is posted here is sent at once, in order."""
        return sent

    def result_of(self, ware: Middleware, result: Any) -> Any:
        """Return the result of a layer of middleware. Raises BadRequest for a coroutine."""
        if iscoroutine(result):
            result.close()
            name = type(ware).__name__
            raise BadRequest(
                f"{name} is async", hint="use it with gossipq.aio.connect(), or write it with def"
            )
        return result

    def posts_sent(self, seconds: float | None) -> None:
        """What is posted here is sent at once."""

    def unsent_error(self) -> BaseException | None:
        """What cannot be sent raises where it is posted."""
        return None

    def when_done(self, flights: list[Flight], call: Callable[[], object]) -> None:
        """Call `call` once all flights are done: here, or in the thread of the keeper."""
        if not self.step(self.engine.when_done, flights, call):
            call()

    def ack_one(self, record: Record[Any]) -> None:
        """Notes an ack, to be sent within milliseconds: no lock is taken, and no moment is too early to do it
        again. Raises ClientClosed."""
        self.steps.noted.append(record)
        if self.keeper.parked:
            self.keeper.wake()

    def ack_range(self, held: Held, first: int, end: int) -> None:
        """The same of neighbours."""
        with self.lock:
            engine = self.engine
            engine.note(engine.session.consuming.ack, held, first, end)
            if self.keeper.parked:
                self.keeper.wake()

    def soon(self) -> None:
        """Something waits to be sent within milliseconds."""
        with self.lock:
            if self.keeper.parked:
                self.keeper.wake()

    def begin(self, held: Held, offset: int) -> None:
        """As in the asyncio twin."""
        self.step(self.engine.begin, held, offset)
        self.mind_hands()

    def mind_hands(self) -> None:
        """User code has begun with records. See to it that somebody looks in time whether it still has them:
        who waits has set its time before."""
        consuming = self.engine.session.consuming
        if not consuming.unminded:
            return
        with self.lock:
            consuming.unminded = False
            for bell in list(self.waiting.values())[:1]:
                bell.ring()
            if self.keeper.parked:
                self.keeper.wake()

    def in_window(self, writer: Writer, wait_s: float | None, send: Callable[[Writer], T]) -> T:
        """Sends when the window has room for one more batch. Raises Backpressure when it has none and
        `Patience` is over."""
        engine, heir = self.engine, self.engine.session.publishing.heir
        patience: Patience | None = None

        def try_to() -> tuple[T] | None:
            if engine.full(heir(writer)):
                return None
            engine.session.advance(engine.clock.now())
            sent = send(heir(writer))
            links = engine.session.links
            if links.out or links.actions:
                self.own_turn()
            else:  # it waits in an open batch, and the keeper hears of what is before it
                self.soon()
            return (sent,)

        while (sent := self.step(try_to)) is None:
            patience = patience or engine.patience(writer, wait_s, self.timeout_s)
            left_s = patience.left_s(engine.now_ms())
            if left_s is not None and left_s <= 0:
                raise engine.backpressure(writer, patience.silent_s)
            self.until(lambda: not engine.full(heir(writer)), left_s)
        return sent[0]

    def append_now(self, topic: str, raw: bytes, options: Options) -> tuple[Flight, int] | None:
        """As `Engine.append`, in a step of its own. Nothing is sent: see `_depart` and `_await_flights`."""
        engine = self.engine
        with self.lock:
            return engine.step(engine.append, topic, raw, options)

    def depart(self) -> None:
        """Send what was appended; if that waits in an open batch, the keeper sends it in time."""
        links = self.engine.session.links
        if links.out or links.actions:
            self.exchange()
        else:
            self.soon()

    def require_whole(self, gate: Gate) -> None:
        """Raises RuntimeError in a signal handler that interrupts this client at work. It must not wait
        behind the gate for who waits for what it has interrupted."""
        if any(lock._is_owned() for lock in (self.lock, gate)):  # type: ignore[attr-defined]
            raise in_handler()

    def require_turn(self, writers: list[Writer]) -> None:
        """Threads that wait have no order among them."""

    # --- I/O

    def turn(self, thorough: bool = False) -> None:
        """One exchange with the sockets; call within a step."""
        if self.engine.exchange(thorough):
            self.wake()
        if self.engine.untold:
            self.keeper.wake()

    def keep(self) -> None:
        """The keeper's turn: acks go on waiting for their neighbours; call within a step."""
        if self.engine.exchange(lingering=True):
            self.wake()

    def own_turn(self) -> None:
        self.exchanges += 1
        self.turn()

    def wake(self) -> None:
        """Who waits looks again whether it is ready."""
        for bell in list(self.waiting.values()):
            bell.ring()

    def progress(self) -> bool:
        if self.engine.usable:
            self.step(self.own_turn)
        return self.engine.usable

    def until(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Does the I/O until `ready`, or until `timeout` seconds are over (False). The lock is free while it
        waits."""
        return self._wait_for(partial(self.engine.step, ready), timeout)

    def _wait_for(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """The same for a `ready` that needs no step."""
        engine, me = self.engine, threading.get_ident()
        links, transport = engine.session.links, engine.transport
        deadline_ms: float | None = None
        bell, thorough, first = self._bells.pop() if self._bells else Bell(), False, True
        outer = self.waiting.get(me)  # this may be a signal handler that interrupted a wait
        try:
            while True:
                with self.lock:
                    self.waiting.pop(me, None)
                    self.exchanges += 1
                    if engine.step(engine.exchange, thorough) and self.waiting:
                        self.wake()
                    if engine.untold:
                        self.keeper.wake()
                    if ready():
                        return True
                    # most callers wait once: only for those that wait again each part is asked
                    timeout_ms: float = engine.soon_ms - links.now_ms if first else engine.timeout_ms()
                    first = False
                    if timeout is not None:
                        deadline_ms = deadline_ms or links.now_ms + timeout * 1000
                        left_ms = deadline_ms - links.now_ms
                        if left_ms <= 0:
                            return False
                        timeout_ms = min(timeout_ms, left_ms)
                    fds, monitors = transport.fds, transport.monitor_fds
                    rest_ms = engine.session.rest_ms() if links.stirred_ms == links.now_ms else 0
                    self.waiting[me] = bell
                if rest_ms:
                    wait_for([bell.fd], max(0, min(rest_ms, timeout_ms)))
                readable = bell.wait(fds, max(0, timeout_ms))
                thorough = not readable or not monitors.isdisjoint(readable)
                if bell.rung:
                    bell.clear()
        finally:
            self.waiting.pop(me, None)
            self._bells.append(bell)
            if outer is not None:
                outer.ring()  # perhaps what it waits for was taken here
            if self.keeper.aside:
                self.keeper.wake()

    def await_flights(self, flights: list[Flight], timeout: float | None) -> None:
        if not _are_done(flights):
            self._landed(partial(_are_done, flights), timeout)
            if not _are_done(flights):
                raise self.engine.unconfirmed(timeout)

    def landing(self, flight: Flight, timeout: float | None) -> None:
        """Returns when a batch has its outcome, or when `timeout` seconds are over. Raises ClientClosed."""
        self._landed(partial(_is_done, flight), timeout)

    def _landed(self, ready: Callable[[], bool], timeout: float | None) -> None:
        try:
            self._wait_for(ready, timeout)
        except ClientClosed:
            if not ready():  # else it was closed behind that
                raise

    # --- farewell

    def close_as_told(self) -> None:
        """Closes when a signal handler has asked for it, outside of the lock."""
        if self._close_told is not None:
            seconds, self._close_told = self._close_told, None
            try:
                close(self, seconds)
            except GossipqError as lost:
                log.error("while closing: %s", lost)

    def put_off(self, seconds: float) -> bool:
        """Whether it is closed later, since this very thread is at work for it: what was interrupted goes on
        behind the signal handler."""
        with self.lock:
            if self.engine.busy:
                self._close_told = seconds
                self.keeper.wake()
            return self.engine.busy

    def shut(self) -> None:
        if self.over:
            self.asked.release()
        with self.lock:
            if not self.engine.ended:
                self.engine.farewell()
            self.wake()
        exits.forget(self)
        self.keeper.stop()
        if self.asked.on_shut is not None:
            self.asked.on_shut()

    def unconfirmed(self) -> int:
        """Records without a confirm."""
        return self.engine.session.publishing.unconfirmed_records()

    def leave(self, seconds: float) -> GossipqError | None:
        """Closes at the end of the program, for good; see `exits`."""
        self.over = True
        if not self.engine.usable or not self.lock.acquire(timeout=max(seconds, 0.1)):
            return None
        try:
            return self.engine.finish(seconds)
        finally:
            self.lock.release()
            self.shut()


_is_done = attrgetter("done")


def _are_done(flights: list[Flight]) -> bool:
    return all(map(_is_done, flights))


Item = TypeVar("Item")


def started(items: Iterator[Item]) -> Iterator[Item]:
    """Takes the first item, which comes without waiting: what was begun is ended when it is dropped."""
    next(items)
    return items
