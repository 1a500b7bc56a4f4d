"""Keeps the processes of a node running: starts and restarts them, and drains them at the end.

It does nothing else, so that it has few reasons to fail.
"""

import logging
import multiprocessing
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType, ModuleType
from typing import Any

from gossipq.errors import GossipqError, NotAdmitted, StoreError, from_code
from gossipq.texts import many
from gossipq_node.processes import ALIVE, FAILED, NOT_FOR_CHILDREN, READY, STOP
from gossipq_node.service import Service
from gossipq_node.settings import WorkerState

RESTART_MS_FIRST, RESTART_MS_MAX = 100, 10_000
SETTLED_MS = 60_000  #: a process that ran this long is restarted at once
TELL_AGAIN_MS = 500  #: pause before a message is sent again to a process whose pipe is full
#: processes of a killed node may hold its ports and stores for a moment
START_PATIENCE_MS = 1_500

NO_REASON = "the log above says why; of a kill it has nothing: then look at memory and disk (dmesg, df)"

ProcessMain = Callable[[Any, Connection], None]


def restart_pause_ms(previous_ms: int, lived_ms: int) -> int:
    """Return the pause before a process that ran `lived_ms` is restarted.

    `previous_ms` is the last pause. It doubles, up to a maximum.
    """
    return (
        RESTART_MS_FIRST
        if not previous_ms or lived_ms >= SETTLED_MS
        else min(2 * previous_ms, RESTART_MS_MAX)
    )


class Child:
    """One process of the node, over all its restarts. `settings` is called for each start."""

    def __init__(self, name: str, entry: ProcessMain, settings: Callable[[int], Any]) -> None:
        self.name = name
        self._entry = entry
        self._settings = settings
        self.process: SpawnProcess | None = None
        self.pipe: Connection | None = None
        self.ready = False
        self.restarts = -1
        self.failures = 0  #: ended runs, and starts that the system refused
        self.started_ms = self.restart_ms = self.pause_ms = self.heard_ms = 0
        self.failure: GossipqError | None = None
        self.end = ""  #: how its last run ended

    def start(self, now_ms: int) -> None:
        """Start the process. Raises OSError if the system lacks a free process or pipe."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        try:
            process = context.Process(
                target=self._entry, args=(self._settings(self.restarts + 1), theirs), name=self.name
            )
            with _no_main_module(), _signals_wait():
                process.start()
        except OSError:
            ours.close()
            raise
        finally:
            # the child has this end: its end of file tells that the child has ended
            theirs.close()
        self.restarts += 1
        self.process = process
        self.pipe = ours
        self.ready = False
        self.failure = None
        self.started_ms = self.heard_ms = now_ms

    def pause(self, now_ms: int, lived_ms: int) -> None:
        """Set the time of the next start."""
        self.failures += 1
        self.pause_ms = restart_pause_ms(self.pause_ms, lived_ms)
        self.restart_ms = now_ms + self.pause_ms

    @property
    def running(self) -> bool:
        return self.process is not None

    @property
    def pid(self) -> int:
        return self.process.pid or 0 if self.process else 0

    def listen(self) -> None:
        """Read the messages of the process."""
        with suppress(EOFError, OSError):
            while self.pipe is not None and self.pipe.poll(0):
                said, *rest = self.pipe.recv()
                self.heard_ms = _now_ms()
                if said == READY:
                    self.ready = True
                elif said == ALIVE:
                    continue
                elif said == FAILED:
                    self.failure = from_code(*rest)

    def bury(self, now_ms: int) -> int:
        """Clean up after the process ended. Sets the time of the next
        start, returns the exit code.
        """
        assert self.process is not None
        assert self.pipe is not None
        self.listen()
        self.process.join()
        code = self.process.exitcode or 0
        self.process.close()
        self.pipe.close()
        self.process = self.pipe = None
        self.ready = False
        self.pause(now_ms, now_ms - self.started_ms)
        self.end = f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"
        return code

    def tell(self, words: Any) -> bool:
        """Send a message. False: the pipe is full, because the process hangs. Never blocks."""
        if self.pipe is not None:
            with suppress(OSError):
                writable = select.poll()
                writable.register(self.pipe, select.POLLOUT)
                if not writable.poll(0):
                    return False
                self.pipe.send(words)
        return True


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep children from importing the parent's main module, which would make them large."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Block SIGINT and SIGTERM while a child starts. `processes.child` unblocks them.

    A new child cannot know yet that it should ignore them.
    """
    # otherwise the first start would run it, and unblock the signals after that
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_CHILDREN)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Supervisor:
    """Runs `workers` and `frontdoor` until a signal.

    `announce` is called once, when all of them have been ready for the first time.
    """

    def __init__(
        self,
        workers: Sequence[Child],
        frontdoor: Child,
        drain_ms: int,
        announce: Callable[[], None],
        log: logging.Logger,
        service: Service | None = None,
    ) -> None:
        self._service = service or Service({})
        self._workers = workers
        self._frontdoor = frontdoor
        self._children = [*workers, frontdoor]
        self._drain_ms = drain_ms
        self._announce = announce
        self._log = log
        self._signals: list[int] = []
        self._announced = False
        self._untold = False  # the frontdoor does not know the newest states

    def run(self) -> int:
        """Run until a signal. Returns the exit code.

        0 after a drain, 1 if a process had to be killed, 128 + signal after a second signal. Raises
        ConfigError or StoreError if the node cannot start, NotAdmitted if its cluster refuses it.
        """
        with self._signals_to_pipe() as wakeup:
            try:
                return self._supervise(wakeup)
            finally:
                self._kill()

    def _supervise(self, wakeup: int) -> int:
        begin_ms = _now_ms()
        while not self._signals:
            changed = self._start_due() | self._look()
            if isinstance(refusal := self._frontdoor.failure, NotAdmitted):
                self._drain(wakeup, refusal.message)
                raise refusal
            if changed or self._untold:
                self._untold = not self._frontdoor.tell(self._states())
            if not self._announced:
                self._starting(begin_ms)
            self._service.beat(_now_ms(), self._well())
            self._wait(wakeup, self._until_next_ms())
        return self._drain(wakeup, signal.Signals(self._signals[0]).name)

    def _start_due(self) -> bool:
        """Start processes that are due. Returns whether there were any."""
        now_ms = _now_ms()
        due = [child for child in self._children if not child.running and now_ms >= child.restart_ms]
        for child in due:
            try:
                child.start(now_ms)
            except (OSError, GossipqError) as error:
                hint = "free some memory, or raise its limits"
                # for example a file of the node that cannot be read
                if isinstance(error, GossipqError):
                    if not self._announced:
                        raise
                    hint = error.hint
                child.pause(now_ms, 0)
                child.failure = StoreError(f"{child.name} cannot be started: {error}", hint)
                self._log.error("%s; tried again in %d ms", child.failure.message, child.pause_ms)
        return bool(due)

    def _starting(self, begin_ms: int) -> None:
        """Announce the node when all processes are ready.

        Raises the error of a process that cannot start after some patience and a second attempt.
        """
        if all(child.ready for child in self._children):
            self._announced = True
            self._announce()
            self._service.ready(f"{many(len(self._workers), 'worker')} at work")
            return
        for child in self._children:
            if not child.running and child.failures > 1 and _now_ms() - begin_ms >= START_PATIENCE_MS:
                raise child.failure or StoreError(f"{child.name} does not start: {child.end}", NO_REASON)

    def _wait(self, wakeup: int, timeout_ms: int | None) -> None:
        handles: list[Any] = [wakeup]
        for child in self._children:
            if child.process is not None and child.pipe is not None:
                handles.append(child.process.sentinel)
                if not child.pipe.closed:
                    handles.append(child.pipe)
        if wakeup in wait(handles, None if timeout_ms is None else timeout_ms / 1000):
            os.read(wakeup, 64)

    def _until_next_ms(self) -> int | None:
        """Return the time until the next start of a process, or the next heartbeat."""
        now_ms = _now_ms()
        times = [max(0, child.restart_ms - now_ms) for child in self._children if not child.running]
        beat_ms = self._service.until_beat_ms(now_ms)
        untold = [TELL_AGAIN_MS] if self._untold else []
        return min([*times, *untold, *([] if beat_ms is None else [beat_ms])], default=None)

    def _well(self) -> bool:
        """True if no loop hangs. Processes that start or have ended are handled elsewhere."""
        silent_ms = _now_ms() - self._service.stuck_ms
        return all(not child.ready or child.heard_ms >= silent_ms for child in self._children)

    def _look(self) -> bool:
        """Read messages of the children and clean up ended ones. Returns
        whether anything changed.
        """
        changed = False
        for child in self._children:
            was = child.ready
            child.listen()
            if child.process is not None and child.process.exitcode is not None:
                pid = child.pid
                child.bury(_now_ms())
                why = child.failure.message if child.failure else child.end
                if self._announced and not self._ending:
                    self._log.warning(
                        "%s (pid %d) ended: %s; starts again in %d ms", child.name, pid, why, child.pause_ms
                    )
                changed = True
            elif child.ready != was:
                if self._announced:
                    self._log.info(
                        "%s (pid %d) is ready, restarts: %d", child.name, child.pid, child.restarts
                    )
                changed = True
        return changed

    @property
    def _ending(self) -> bool:
        """True if the node should stop: on request, or because its cluster refuses it."""
        return bool(self._signals) or isinstance(self._frontdoor.failure, NotAdmitted)

    def _states(self) -> list[WorkerState]:
        return [
            WorkerState(
                number,
                child.pid,
                child.running,
                max(0, child.restarts),
                child.failure.message if child.failure else "",
            )
            for number, child in enumerate(self._workers)
        ]

    def _drain(self, wakeup: int, why: str) -> int:
        self._service.stopping()
        self._log.info("draining: %s, at most %d ms", why, self._drain_ms)
        untold, deadline_ms = self._children, _now_ms() + self._drain_ms
        while any(child.running for child in self._children) and len(self._signals) <= 1:
            # a child whose pipe is full hangs: it is told again until the deadline
            untold = [child for child in untold if not child.tell(STOP)]
            left_ms = deadline_ms - _now_ms()
            if left_ms <= 0:
                self._log.warning(
                    "not drained in time: %s", ", ".join(c.name for c in self._children if c.running)
                )
                return 1
            self._wait(wakeup, min(left_ms, TELL_AGAIN_MS) if untold else left_ms)
            self._look()
        if len(self._signals) > 1:
            return 128 + self._signals[1]
        self._log.info("drained")
        return 0

    def _kill(self) -> None:
        """Kill running processes. Confirmed records survive that."""
        left = [child for child in self._children if child.process is not None]
        for child in left:
            assert child.process is not None
            child.process.kill()
        for child in left:
            child.bury(_now_ms())

    @contextmanager
    def _signals_to_pipe(self) -> Iterator[int]:
        """Write SIGTERM and SIGINT to a pipe, which ends a wait."""
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

        def note(number: int, frame: FrameType | None) -> None:
            self._signals.append(number)

        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
        wakeup_before = signal.set_wakeup_fd(writer)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
