"""How the sync client waits: I/O inline in the calling thread, under one lock, and an orderly end."""

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from gossipq.errors import ClientClosed, GossipqError, NotConfirmed
from gossipq.types import ShardId
from gossipq.values import Message as Request
from gossipq_client.asking import Result, Talk
from gossipq_client.calls import Answer, Call
from gossipq_client.engine import CLOSE_SECONDS, ERROR_CLOSE_SECONDS, Engine, log
from gossipq_client.keeper import Keeper
from gossipq_client.packer import Flight
from gossipq_client.transport import wait as wait_for


class Driver:
    """Drives an engine for callers of any thread. Whoever waits polls the sockets without the lock."""

    def __init__(self, addresses: list[str], name: str, timeout: float) -> None:
        self.lock = threading.RLock()
        self.engine = Engine(addresses, name, self._in_child)
        self.exchanges = 0  #: how often callers did I/O
        self.timeout = timeout
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waiters, self._rung = 0, False
        self._keeper = Keeper(self)
        try:
            self._require(lambda: self.engine.session.links.home.greeting > 0, timeout)
        except BaseException:
            self._shut()
            raise

    def _in_child(self) -> None:
        self.lock = threading.RLock()  # another thread of the parent may have held the old one

    def flush(self, timeout: float | None = None) -> None:
        """Waits until every publish is confirmed and every ack is stored.

        Raises NotConfirmed when `timeout` seconds are over, and the error of a failed publish whose receipt nobody asked.
        """
        session = self.engine.session
        with self.lock:
            self.engine.check()
            session.publishing.seal_all()
        if not self.until(lambda: session.settled, timeout):
            raise self.engine.lost()
        failures = session.publishing.failures()
        if failures:
            raise failures[0]

    def _ask(self, request: Request, shard: ShardId, kind: type[Answer]) -> Answer:
        with self.lock:
            self.engine.check()
            call = self.engine.session.calls.ask(request, shard)
        self._answered(call, self.timeout)
        return call.answer(kind)

    def _talk(self, talk: Talk[Result]) -> Result:
        """Waits for whatever a talk waits for, until its end."""
        while True:
            with self.lock:
                self.engine.check()
                try:
                    step = next(talk)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
            if isinstance(step, Call):
                self._answered(step, self.timeout)
            else:
                self.await_flights([step], self.timeout)

    def _answered(self, call: Call, timeout: float) -> None:
        try:
            self._require(lambda: call.done or self.engine.in_vain(call), timeout)
            if not call.done:
                raise self.engine.unreachable()
        except BaseException:
            with self.lock:
                self.engine.session.calls.cancel(call)
            raise

    def _require(self, ready: Callable[[], bool], timeout: float) -> None:
        if not self.until(ready, timeout):
            raise self.engine.unreachable()

    # --- I/O

    def turn(self, thorough: bool = False) -> None:
        """One exchange with the sockets; call with the lock."""
        if self.engine.exchange(thorough):
            self.wake()

    def _turn(self) -> None:
        self.exchanges += 1
        self.turn()

    def wake(self) -> None:
        """Who waits looks again whether it is ready; call with the lock."""
        if self._waiters and not self._rung:
            self._ring()

    def _ring(self) -> None:
        self._rung = True
        os.eventfd_write(self._bell, 1)

    def progress(self) -> bool:
        with self.lock:
            if self.engine.usable:
                self._turn()
            return self.engine.usable

    def until(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Does the I/O until `ready`, or until `timeout` seconds are over (False). The lock is free while it waits."""
        engine = self.engine
        deadline_ms = None if timeout is None else engine.now_ms() + timeout * 1000
        thorough = False
        while True:
            with self.lock:
                engine.check()
                self.exchanges += 1
                self.turn(thorough)
                if ready():
                    return True
                timeout_ms: float = engine.timeout_ms()
                if deadline_ms is not None:
                    left_ms = deadline_ms - engine.session.links.now_ms
                    if left_ms <= 0:
                        return False
                    timeout_ms = min(timeout_ms, left_ms)
                monitors = engine.transport.monitor_fds()
                descriptors = [*engine.transport.fds(), self._bell]
                self._waiters += 1
            try:
                readable = wait_for(descriptors, timeout_ms)
                thorough = not readable or not monitors.isdisjoint(readable)
            finally:
                with self.lock:
                    self._waiters -= 1
                    if self._rung and not self._waiters:
                        self._rung = False
                        os.eventfd_read(self._bell)
                        if engine.closed:
                            os.close(self._bell)

    def await_flights(self, flights: list[Flight], timeout: float | None) -> None:
        with self.lock:
            for flight in flights:
                self.engine.session.publishing.hurry(flight)
        if not self.until(lambda: all(flight.done for flight in flights), timeout):
            raise NotConfirmed(f"no confirm within {round(timeout or 0, 3)} s", hint="it may be stored; gossipq status")

    # --- farewell

    def close(self, flush: bool = True) -> None:
        """Ends the session; what is still in hand goes back uncounted. Before that `flush`, for half a minute at most."""
        self._close(CLOSE_SECONDS if flush else 0.0)

    def _before_flush(self) -> None:
        """What a client gives back before its last flush."""

    def _close(self, seconds: float) -> None:
        if not self.engine.usable:
            return
        try:
            if seconds:
                self._before_flush()
                self.flush(seconds)
        except ClientClosed:  # by another thread meanwhile
            if self.engine.session.publishing.unconfirmed_records():
                raise self.engine.lost() from None
        finally:
            self._shut()

    def _shut(self) -> None:
        with self.lock:
            if self.engine.closed:
                return
            self.engine.farewell()
            if not self._waiters:
                os.close(self._bell)
            elif not self._rung:
                self._ring()
        self._keeper.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        try:
            self._close(ERROR_CLOSE_SECONDS)
        except GossipqError as lost:
            log.error("while closing: %s", lost)
