"""What runs inside the children of a node: each builds its ports and its actor and turns until its parent says stop.

A child hears its parent over one pipe. The end of that pipe is the end of the parent, and so of the child. The entries import
what they run: the parent, which loads this module too, and the other kind of child stay small.
"""

import select
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from gossipq.clock import SystemClock
from gossipq.errors import ConfigError, StoreError
from gossipq_node import machine
from gossipq_node.settings import FrontdoorSettings, WorkerSettings, WorkerState

STOP = "stop"  #: parent to child
READY, FAILED = "ready", "failed"  #: child to parent
EXIT_FAILED = 1


class Parent:
    """The child's end of the pipe. `running` is asked once a turn."""

    def __init__(self, pipe: Connection, ready: Callable[[], bool], tell: Callable[[Sequence[WorkerState]], None]) -> None:
        self._pipe, self._ready, self._tell = pipe, ready, tell
        self._said_ready = False
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)

    def running(self) -> bool:
        try:
            if not self._said_ready and self._ready():
                self._pipe.send((READY,))
                self._said_ready = True
            while self._poll.poll(0):
                told = self._pipe.recv()
                if told == STOP:
                    return False
                self._tell(told)
        except (EOFError, OSError):
            return False
        return True


def run_worker(settings: WorkerSettings, pipe: Connection) -> None:
    """Entry of a worker process."""
    from gossipq_node.actors import loop
    from gossipq_node.actors.worker import Worker
    from gossipq_node.adapters.lmdb_store import LmdbStore
    from gossipq_node.adapters.zmq_mailbox import ZmqMailbox

    def serve() -> None:
        machine.bound_memory(settings.memory_bytes_max)
        store = LmdbStore(settings.directory, settings.map_bytes, settings.shards)
        try:
            mailbox = ZmqMailbox(settings.clients_bind, settings.peers_bind, (pipe.fileno(),))
            try:
                worker = Worker(settings, mailbox, store, SystemClock())
                loop.run(worker, mailbox, SystemClock(), Parent(pipe, lambda: worker.ready, lambda states: None).running)
                worker.stop()
            finally:
                mailbox.close()
        finally:
            store.close()

    child(f"worker-{settings.worker}", settings.log_json, pipe, serve)


def run_frontdoor(settings: FrontdoorSettings, pipe: Connection) -> None:
    """Entry of the frontdoor process."""
    from gossipq_node.actors import loop
    from gossipq_node.actors.frontdoor import Frontdoor
    from gossipq_node.adapters.zmq_mailbox import ZmqMailbox

    def serve() -> None:
        machine.bound_memory(settings.memory_bytes_max)
        clock = SystemClock()
        mailbox = ZmqMailbox(settings.clients_bind, settings.peers_bind, (pipe.fileno(),))
        try:
            door = Frontdoor(settings, mailbox, clock.now())
            loop.run(door, mailbox, clock, Parent(pipe, lambda: door.ready, door.set_states).running)
        finally:
            mailbox.close()

    child("frontdoor", settings.log_json, pipe, serve)


def child(name: str, log_json: bool, pipe: Connection, serve: Callable[[], None]) -> None:
    """Runs `serve`, and ends the process with an exit code. What the operator can cure is told to the parent, the rest logged.

    A terminal's Ctrl-C and a service manager's SIGTERM reach every process; only the parent acts on them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    machine.raise_file_limit()
    log = machine.open_log(name, log_json)
    try:
        serve()
    except (ConfigError, StoreError) as error:
        with suppress(OSError):  # the parent is gone
            pipe.send((FAILED, error.code, error.message, error.hint))
        raise SystemExit(EXIT_FAILED) from None
    except Exception as error:
        log.exception("ends: %s", error)
        raise SystemExit(EXIT_FAILED) from None
