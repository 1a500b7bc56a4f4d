"""A node with one worker in this process, on two threads, with a settable
clock. For tests of users.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from gossipq import limits
from gossipq.clock import Clock
from gossipq.config import load
from gossipq.errors import StoreError
from gossipq_node.actors import loop
from gossipq_node.actors.frontdoor import Frontdoor
from gossipq_node.actors.worker import Worker
from gossipq_node.adapters.calendar import CronCalendar
from gossipq_node.adapters.lmdb_store import LmdbStore
from gossipq_node.adapters.zmq_mailbox import ZmqMailbox
from gossipq_node.composition import Composition
from gossipq_node.directory import DataDirectory
from gossipq_node.settings import FrontdoorSettings, WorkerSettings

START_S = 30.0
TURNS = 2  #: the first turn may have read the clock before the test moved it
WAKE_S = 0.002

log = logging.getLogger(__name__)

Serve = Callable[["Turning"], None]


class Turning:
    """The loop of one actor on a thread of its own."""

    def __init__(self, name: str, serve: Serve) -> None:
        self.ready: Callable[[], bool] = lambda: False
        self.failure: BaseException | None = None
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._changed = threading.Condition()
        self._turns, self._stopping = 0, False
        self._thread = threading.Thread(target=self._run, args=(serve,), name=f"gossipq-{name}", daemon=True)
        self._thread.start()

    def _run(self, serve: Serve) -> None:
        try:
            serve(self)
        except BaseException as error:
            self.failure = error
            log.exception("%s ends", self._thread.name)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def running(self) -> bool:
        """True while the loop should run. Called once a turn."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        with self._changed:
            self._turns += 1
            self._changed.notify_all()
            return not self._stopping

    def await_turns(self, enough: Callable[[], bool], seconds: float) -> None:
        """Wait until `enough` returns True. Raises StoreError after `seconds`."""
        with self._changed:
            end = time.monotonic() + seconds
            while not enough() and not self._stopping and time.monotonic() < end:
                # the loop may sleep until a time of the test's clock, which stands still
                os.eventfd_write(self.wake_fd, 1)
                self._changed.wait(WAKE_S)
            if not enough():
                raise StoreError(f"{self._thread.name} does not turn") from self.failure

    def await_ready(self) -> None:
        self.await_turns(lambda: self.ready(), START_S)  # its thread may not have set `ready` yet

    def await_whole_turns(self) -> None:
        """Wait until complete turns have run after this call."""
        turns = self._turns + TURNS
        self.await_turns(lambda: self._turns > turns, START_S)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
        os.eventfd_write(self.wake_fd, 1)
        self._thread.join()
        os.close(self.wake_fd)


class InlineNode:
    """A whole node over `directory`. Raises StoreError if it cannot start."""

    def __init__(self, directory: str, clock: Clock, shards: int) -> None:
        flags: dict[str, object] = {
            "node.data": f"{directory}/data",
            "node.bind": f"ipc://{directory}/node.sock",
        }
        flags |= {"node.workers": 1, "cluster.shards": shards, "node.map_bytes": limits.GIB}
        # without a reserve, so that no test fails because the disk of its machine is nearly full
        flags |= {"node.disk_reserve_bytes": 0, "node.disk_reserve_percent": 0}
        config = load("", {}, flags).config
        self.endpoint = config.node.bind
        self._directory = DataDirectory(config.node.data)
        manifest = self._directory.found(config.cluster.name, 1, shards)
        composition = Composition(config, self._directory, manifest, False)
        worker, door = composition.worker(0, 0), composition.frontdoor()
        self._loops = [
            Turning("frontdoor", lambda turning: _serve_frontdoor(door, clock, turning)),
            Turning("worker", lambda turning: _serve_worker(worker, clock, turning)),
        ]
        try:
            for turning in self._loops:
                turning.await_ready()
        except BaseException:
            self.close()
            raise

    def await_whole_turns(self) -> None:
        """Wait until everything is done that is due by the clock now."""
        # the worker first, so that the frontdoor then handles the messages of the worker's turns
        for turning in reversed(self._loops):
            turning.await_whole_turns()

    def close(self) -> None:
        for turning in self._loops:
            turning.stop()
        self._directory.close()


def _serve_worker(settings: WorkerSettings, clock: Clock, turning: Turning) -> None:
    store = LmdbStore(settings.directory, settings.map_bytes, settings.shards)
    try:
        mailbox = ZmqMailbox(settings.clients_bind, settings.peers_bind, (turning.wake_fd,))
        try:
            worker = Worker(settings, mailbox, store, clock, calendar=CronCalendar())
            turning.ready = lambda: worker.ready
            loop.run(worker, mailbox, clock, turning.running)
            worker.stop()
        finally:
            mailbox.close()
    finally:
        store.close()


def _serve_frontdoor(settings: FrontdoorSettings, clock: Clock, turning: Turning) -> None:
    mailbox = ZmqMailbox(settings.clients_bind, settings.peers_bind, (turning.wake_fd,))
    try:
        door = Frontdoor(settings, mailbox, clock.now())
        turning.ready = lambda: door.ready
        loop.run(door, mailbox, clock, turning.running)
    finally:
        mailbox.close()
