"""How the sync client waits: I/O inline in the calling thread, under one lock, and an orderly end."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from inspect import iscoroutine
from operator import attrgetter
from typing import Any, TypeVar

from gossipq.errors import BadRequest, ClientClosed, GossipqError
from gossipq_client.api.sync.keeper import Keeper
from gossipq_client.handlers import Middleware
from gossipq_client.io import Bell, Engine, exits, in_handler, log
from gossipq_client.io import wait as wait_for
from gossipq_client.session import Awaited, Flight, Held, Patience, PendingReceipts, Record, Writer
from gossipq_client.session import PendingReceipt as PendingReceipt
from gossipq_client.values import NO_CREDENTIALS, UNSET, Credentials, Options, inputs

T = TypeVar("T")
Gate = threading.RLock  #: one after the other


class Opened:
    """What `_engine` is before the client is used: the first who asks for it connects."""

    def __get__(self, client: "Driver", kind: type) -> Engine:
        return client._open()


class Driver:
    """Drives an engine for callers of any thread. Whoever waits polls the sockets without the lock."""

    _engine = Opened()
    _kept = False  #: what has no confirm outlives this client, on a disk

    def __init__(self, addresses: list[str], name: str, timeout: float, key: bytes = b"") -> None:
        self._lock = threading.RLock()
        self._addresses, self._key = addresses, key
        self._credentials = NO_CREDENTIALS  #: what it shows, if anything
        #: finds both anew, each time that it connects
        self._where: Callable[[], tuple[list[str], Credentials]] | None = None
        self._exchanges = 0  #: how often callers did I/O
        self._timeout = timeout
        self._label = name
        self._waiting: dict[int, Bell] = {}  #: of threads that wait, by their number
        self._bells: list[Bell] = []  #: of nobody now
        self._close_told: float | None = (
            None  #: a signal handler wants it closed, after so many seconds at most
        )
        self._over = False  #: closed before it was used
        self._reset()

    def _reset(self) -> None:
        """Who waits looks at the engine that it began with."""

    def _open(self, timeout: float | None = None) -> Engine:
        """Connects, unless somebody did. Raises Unreachable when no node answers in time, ClientClosed; a
        client that could not connect tries again when it is used again."""
        with self._lock:
            engine = self.__dict__.get("_engine") or self._make()
            engine.check()
        links = engine.session.links
        if links.greetings:
            return engine
        try:
            seconds = self._timeout if timeout is None else timeout
            if not self._until(lambda: links.decided, seconds) or not links.home.greeting:
                raise engine.unreachable()
        except BaseException:
            self._give_up(engine)
            raise
        return engine

    def _make(self) -> Engine:
        """Raises ClientClosed."""
        if self._over:
            raise ClientClosed("this client is closed", hint="call connect() again")
        exits.require_time()
        if self._where is not None:
            self._addresses, self._credentials = self._where()
        engine = Engine(self._addresses, self._label, self._in_child, self._key, self._credentials)
        try:
            self._keeper = Keeper(self, engine)  # a signal handler that finds the engine needs it, too
            self.__dict__["_engine"] = engine
            self._made(engine)
            exits.note(self)
        except BaseException:  # an interrupt: the keeper of an engine that nobody has would go on for ever
            self.__dict__.pop("_engine", None)
            engine.farewell()
            self._set_aside()
            exits.forget(self)
            raise
        return engine

    @property
    def _busy(self) -> bool:
        """A step is under way."""
        return self._engine.busy

    def _give_up(self, engine: Engine | None) -> None:
        """Could not connect, or send what its spool has: that is over, unless others wait for something."""
        with self._lock:
            if engine is None or not engine.usable or self._waiting:
                return
            if not (engine.session.settled or self._kept):
                return
            engine.farewell()
        self._shut()
        self.__dict__.pop("_engine", None)
        self._set_aside()
        engine.session.publishing.give_up(engine.lost())

    def _made(self, engine: Engine) -> None:
        """There is an engine now, and nobody has used it."""

    def _in_child(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent may have held the old one
        self._waiting, self._bells = {}, []

    def _do(self, step: Callable[..., T], *arguments: Any) -> T:
        """One step of the session, done whole. Raises ClientClosed and what the step raises."""
        engine = self._engine
        with self._lock:
            return engine.step(step, *arguments)

    def _settle_later(self) -> None:
        """Does what was left in `engine.later`, as soon as that is possible: behind an exception, in a
        finalizer."""
        if not self._engine.usable:
            return
        if self._lock.acquire(blocking=False):
            try:
                # else a finalizer runs within a step, which the next one follows soon
                if not self._engine.busy:
                    self._exchange()
            finally:
                self._lock.release()
        self._keeper.wake()

    def _exchange(self) -> None:
        """One exchange with the sockets."""
        self._do(self._own_turn)

    def _breathe(self) -> None:
        """Other threads have their turn by themselves."""

    def _let_others(self) -> None:
        """Other threads add what they have while this one waits."""

    def _seconds(self, timeout: inputs.Timeout) -> float | None:
        """The time that a call waits; None = for ever. Raises BadRequest."""
        return self._timeout if timeout is UNSET else inputs.limit_s(timeout)

    def _pending(self, awaited: Awaited) -> PendingReceipt:
        return PendingReceipts(self, awaited)

    def _posted(self, topic: str, size: int, sent: Awaited) -> PendingReceipt:
        """The receipt of what was sent."""
        return PendingReceipts(self, sent)

    def _in_turn(self, topic: str, sent: Awaited) -> Awaited:
        """What is posted here is sent at once, in order."""
        return sent

    def _result_of(self, ware: Middleware, result: Any) -> Any:
        """Return the result of a layer of middleware. Raises BadRequest for a coroutine."""
        if iscoroutine(result):
            result.close()
            name = type(ware).__name__
            raise BadRequest(
                f"{name} is async", hint="use it with gossipq.aio.connect(), or write it with def"
            )
        return result

    def _posts_sent(self, seconds: float | None) -> None:
        """What is posted here is sent at once."""

    def _unsent_error(self) -> BaseException | None:
        """What cannot be sent raises where it is posted."""
        return None

    def _when_done(self, flights: list[Flight], call: Callable[[], object]) -> None:
        """Call `call` once all flights are done: here, or in the thread of the keeper."""
        if not self._do(self._engine.when_done, flights, call):
            call()

    def _ack_one(self, record: Record[Any]) -> None:
        """Notes an ack, to be sent within milliseconds: no lock is taken, and no moment is too early to do it
        again. Raises ClientClosed."""
        self._engine.noted.append(record)
        if self._keeper.parked:
            self._keeper.wake()

    def _ack_range(self, held: Held, first: int, end: int) -> None:
        """The same of neighbours."""
        with self._lock:
            engine = self._engine
            engine.note(engine.session.consuming.ack, held, first, end)
            if self._keeper.parked:
                self._keeper.wake()

    def _soon(self) -> None:
        """Something waits to be sent within milliseconds."""
        with self._lock:
            if self._keeper.parked:
                self._keeper.wake()

    def _begin(self, held: Held, offset: int) -> None:
        """As in the asyncio twin."""
        self._do(self._engine.begin, held, offset)
        self._mind_hands()

    def _mind_hands(self) -> None:
        """User code has begun with records. See to it that somebody looks in time whether it still has them:
        who waits has set its time before."""
        consuming = self._engine.session.consuming
        if not consuming.unminded:
            return
        with self._lock:
            consuming.unminded = False
            for bell in list(self._waiting.values())[:1]:
                bell.ring()
            if self._keeper.parked:
                self._keeper.wake()

    def _in_window(self, writer: Writer, wait_s: float | None, send: Callable[[Writer], T]) -> T:
        """Sends when the window has room for one more batch. Raises Backpressure when it has none and
        `Patience` is over."""
        engine, heir = self._engine, self._engine.session.publishing.heir
        patience: Patience | None = None

        def try_to() -> tuple[T] | None:
            if engine.full(heir(writer)):
                return None
            engine.session.advance(engine.clock.now())
            sent = send(heir(writer))
            links = engine.session.links
            if links.out or links.actions:
                self._own_turn()
            else:  # it waits in an open batch, and the keeper hears of what is before it
                self._soon()
            return (sent,)

        while (sent := self._do(try_to)) is None:
            patience = patience or engine.patience(writer, wait_s, self._timeout)
            left_s = patience.left_s(engine.now_ms())
            if left_s is not None and left_s <= 0:
                raise engine.backpressure(writer, patience.silent_s)
            self._until(lambda: not engine.full(heir(writer)), left_s)
        return sent[0]

    def _append_now(self, topic: str, raw: bytes, options: Options) -> tuple[Flight, int] | None:
        """As `Engine.append`, in a step of its own. Nothing is sent: see `_depart` and `_await_flights`."""
        engine = self._engine
        with self._lock:
            return engine.step(engine.append, topic, raw, options)

    def _depart(self) -> None:
        """Send what was appended; if that waits in an open batch, the keeper sends it in time."""
        links = self._engine.session.links
        if links.out or links.actions:
            self._exchange()
        else:
            self._soon()

    def _require_whole(self, gate: Gate) -> None:
        """Raises RuntimeError in a signal handler that interrupts this client at work. It must not wait
        behind the gate for who waits for what it has interrupted."""
        if any(lock._is_owned() for lock in (self._lock, gate)):  # type: ignore[attr-defined]
            raise in_handler()

    def _require_turn(self, writers: list[Writer]) -> None:
        """Threads that wait have no order among them."""

    # --- I/O

    def _turn(self, thorough: bool = False) -> None:
        """One exchange with the sockets; call within a step."""
        if self._engine.exchange(thorough):
            self._wake()
        if self._engine.untold:
            self._keeper.wake()

    def _keep(self) -> None:
        """The keeper's turn: acks go on waiting for their neighbours; call within a step."""
        if self._engine.exchange(lingering=True):
            self._wake()

    def _own_turn(self) -> None:
        self._exchanges += 1
        self._turn()

    def _wake(self) -> None:
        """Who waits looks again whether it is ready."""
        for bell in list(self._waiting.values()):
            bell.ring()

    def _progress(self) -> bool:
        if self._engine.usable:
            self._do(self._own_turn)
        return self._engine.usable

    def _until(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Does the I/O until `ready`, or until `timeout` seconds are over (False). The lock is free while it
        waits."""
        return self._wait_for(partial(self._engine.step, ready), timeout)

    def _wait_for(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """The same for a `ready` that needs no step."""
        engine, me = self._engine, threading.get_ident()
        links, transport = engine.session.links, engine.transport
        deadline_ms: float | None = None
        bell, thorough, first = self._bells.pop() if self._bells else Bell(), False, True
        outer = self._waiting.get(me)  # this may be a signal handler that interrupted a wait
        try:
            while True:
                with self._lock:
                    self._waiting.pop(me, None)
                    self._exchanges += 1
                    if engine.step(engine.exchange, thorough) and self._waiting:
                        self._wake()
                    if engine.untold:
                        self._keeper.wake()
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
                    self._waiting[me] = bell
                if rest_ms:
                    wait_for([bell.fd], max(0, min(rest_ms, timeout_ms)))
                readable = bell.wait(fds, max(0, timeout_ms))
                thorough = not readable or not monitors.isdisjoint(readable)
                if bell.rung:
                    bell.clear()
        finally:
            self._waiting.pop(me, None)
            self._bells.append(bell)
            if outer is not None:
                outer.ring()  # perhaps what it waits for was taken here
            if self._keeper.aside:
                self._keeper.wake()

    def _await_flights(self, flights: list[Flight], timeout: float | None) -> None:
        if not _are_done(flights):
            self._landed(partial(_are_done, flights), timeout)
            if not _are_done(flights):
                raise self._engine.unconfirmed(timeout)

    def _landing(self, flight: Flight, timeout: float | None) -> None:
        """Returns when a batch has its outcome, or when `timeout` seconds are over. Raises ClientClosed."""
        self._landed(partial(_is_done, flight), timeout)

    def _landed(self, ready: Callable[[], bool], timeout: float | None) -> None:
        try:
            self._wait_for(ready, timeout)
        except ClientClosed:
            if not ready():  # else it was closed behind that
                raise

    # --- farewell

    def _close_as_told(self) -> None:
        """Closes when a signal handler has asked for it, outside of the lock."""
        if self._close_told is not None:
            seconds, self._close_told = self._close_told, None
            try:
                self._close(seconds)
            except GossipqError as lost:
                log.error("while closing: %s", lost)

    def _let_go(self) -> None:
        """Of what a client has beside its connections, once it is closed for good."""

    def _set_aside(self) -> None:
        """Of the same, once it could not connect: others may have that until it is used again."""

    def _put_off(self, seconds: float) -> bool:
        """Whether it is closed later, since this very thread is at work for it: what was interrupted goes on
        behind the signal handler."""
        with self._lock:
            if self._engine.busy:
                self._close_told = seconds
                self._keeper.wake()
            return self._engine.busy

    def _close(self, seconds: float) -> None:
        """Flushes for so many seconds at most, and closes."""
        raise NotImplementedError

    def _shut(self) -> None:
        if self._over:
            self._let_go()
        with self._lock:
            if not self._engine.ended:
                self._engine.farewell()
            self._wake()
        exits.forget(self)
        self._keeper.stop()

    def _unconfirmed(self) -> int:
        """Records without a confirm."""
        return self._engine.session.publishing.unconfirmed_records()

    def _leave(self, seconds: float) -> GossipqError | None:
        """Closes at the end of the program, for good; see `exits`."""
        self._over = True
        if not self._engine.usable or not self._lock.acquire(timeout=max(seconds, 0.1)):
            return None
        try:
            return self._engine.finish(seconds)
        finally:
            self._lock.release()
            self._shut()


_is_done = attrgetter("done")


def _are_done(flights: list[Flight]) -> bool:
    return all(map(_is_done, flights))


Item = TypeVar("Item")


def started(items: Iterator[Item]) -> Iterator[Item]:
    """Takes the first item, which comes without waiting: what was begun is ended when it is dropped."""
    next(items)
    return items
