"""The main functions of a node's child processes.

Each builds its ports and its actor, and runs turns until the parent says stop. A child listens to
its parent on a pipe; when the pipe ends, the parent is gone and the child ends too. Modules are
imported inside the functions, so that the parent and the other kind of child stay small.
"""

import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

from gossipq.clock import Clock, SystemClock
from gossipq.errors import ConfigError, NotAdmitted, StoreError
from gossipq_node import machine
from gossipq_node.files import keep_access, keep_roster
from gossipq_node.ports import Membership
from gossipq_node.service import PERIOD
from gossipq_node.settings import FrontdoorSettings, GossipSettings, WorkerSettings, WorkerState

if TYPE_CHECKING:
    from gossipq_node.actors.board import Board

STOP = "stop"  #: parent to child
READY, FAILED, ALIVE = "ready", "failed", "alive"  #: child to parent
ALIVE_S = 1.0  #: interval of heartbeats if a service manager waits for them
EXIT_FAILED = 1
NOT_FOR_CHILDREN = (signal.SIGINT, signal.SIGTERM)  #: only the parent handles these


class Parent:
    """The child's end of the pipe. `running` is called once a turn."""

    def __init__(
        self, pipe: Connection, ready: Callable[[], bool], tell: Callable[[Sequence[WorkerState]], None]
    ) -> None:
        self._pipe = pipe
        self._ready = ready
        self._tell = tell
        self._said_ready = False
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(pipe, select.POLLOUT)
        self._alive_s = 0.0 if PERIOD in os.environ else inf

    def running(self) -> bool:
        try:
            if not self._said_ready and self._ready():
                self._pipe.send((READY,))
                self._said_ready = True
            if self._alive_s < inf and time.monotonic() >= self._alive_s and self._writable.poll(0):
                self._alive_s = time.monotonic() + ALIVE_S
                self._pipe.send((ALIVE,))
            while self._poll.poll(0):
                told = self._pipe.recv()
                if told == STOP:
                    return False
                self._tell(told)
        except (EOFError, OSError):
            return False
        return True


def run_worker(settings: WorkerSettings, pipe: Connection) -> None:
    """Main function of a worker process."""
    from gossipq_node.actors import loop
    from gossipq_node.actors.worker import Worker
    from gossipq_node.adapters.calendar import CronCalendar
    from gossipq_node.adapters.lmdb_store import LmdbStore
    from gossipq_node.adapters.zmq_mailbox import ZmqMailbox

    def serve() -> None:
        machine.bound_memory(settings.memory_bytes_max)
        store = LmdbStore(settings.directory, settings.map_bytes, settings.shards)
        try:
            mailbox = ZmqMailbox(
                settings.clients_bind,
                settings.peers_bind,
                (pipe.fileno(),),
                settings.quota,
                settings.keys,
                settings.doors_bind,
            )
            try:
                clock = SystemClock()
                worker = Worker(
                    settings,
                    mailbox,
                    store,
                    clock,
                    SystemRandom().randrange,
                    machine.measure,
                    CronCalendar(),
                )
                loop.run(
                    worker, mailbox, clock, Parent(pipe, lambda: worker.ready, lambda states: None).running
                )
                worker.leave(clock.now())
                loop.run(worker, mailbox, clock, worker.leaving)
                worker.stop()
            finally:
                mailbox.close()
        finally:
            store.close()

    child(f"worker-{settings.worker}", settings.log_json, pipe, serve)


def run_frontdoor(settings: FrontdoorSettings, pipe: Connection) -> None:
    """Main function of the frontdoor process."""
    from gossipq_node.actors import loop
    from gossipq_node.actors.frontdoor import Frontdoor, Keeping
    from gossipq_node.adapters.zmq_mailbox import ZmqMailbox

    def serve() -> None:
        machine.bound_memory(settings.memory_bytes_max)
        clock = SystemClock()
        mailbox = ZmqMailbox(
            settings.clients_bind,
            settings.peers_bind,
            (pipe.fileno(),),
            settings.quota,
            settings.keys,
            settings.doors_bind,
        )
        keep = Keeping(
            partial(keep_roster, Path(settings.roster_file)),
            partial(keep_access, Path(settings.access_file)),
        )
        # close the mailbox first: leaving gossip takes seconds, and clients that can still connect
        # would wait for an answer
        with ExitStack() as ends, closing(mailbox):
            others = ends.enter_context(membership(settings.gossip))
            door = Frontdoor(settings, mailbox, clock.now(), keep, others, machine.measure)
            beside(settings, door.board, clock, ends)
            loop.run(door, mailbox, clock, Parent(pipe, lambda: door.ready, door.set_states).running)

    child("frontdoor", settings.log_json, pipe, serve)


@contextmanager
def membership(settings: GossipSettings | None) -> Iterator[Membership | None]:
    """Run the node's discovery while the block runs."""
    if settings is None:
        yield None
    elif settings.mode == "static":
        from gossipq_node.adapters.static_membership import StaticMembership

        yield StaticMembership(settings)
    else:
        from gossipq_node.adapters.serf_membership import SerfMembership

        others = SerfMembership(settings)
        try:
            yield others
        finally:
            others.close()


def beside(settings: FrontdoorSettings, board: "Board", clock: Clock, ends: ExitStack) -> None:
    """Start the threads beside the frontdoor's loop. Raises ConfigError if a
    configured port is in use.
    """
    if settings.admin:
        _serve_pages(settings, board, clock, ends)
    audits = bool(settings.token and settings.access_file)
    if audits or settings.alarms:
        from gossipq_node import node_writer

        sources = list[node_writer.NewsSource]()
        if audits:
            sources.append(node_writer.AuditSource(board, settings.node))
        if settings.alarms:
            sources.append(node_writer.AlarmSource(board, settings.node, clock))
        writer = node_writer.NodeWriter(settings.endpoint, settings.token, sources)
        ends.callback(writer.close)
        writer.start()


def _serve_pages(settings: FrontdoorSettings, board: "Board", clock: Clock, ends: ExitStack) -> None:
    """Serve metrics and health."""
    from gossipq_node.admin import Admin, Callers, Pages

    log = logging.getLogger("frontdoor")
    try:
        pages = Pages(board, settings.endpoint, clock)
        admin = Admin(settings.admin, pages, Callers(settings.admin_hosts, settings.admin_token))
    except ConfigError as error:
        if not settings.admin_auto:
            raise
        log.warning("%s; the node runs without metrics and health", error)
        return
    ends.callback(admin.close)
    log.info("metrics and health: http://%s/metrics /livez /readyz /statusz", settings.admin)


def child(name: str, log_json: bool, pipe: Connection, serve: Callable[[], None]) -> None:
    """Run `serve`, and end the process with an exit code.

    Errors that an operator can fix are sent to the parent, others are logged. Ctrl-C of a terminal
    and SIGTERM of a service manager reach every process, but only the parent handles them.
    """
    for number in NOT_FOR_CHILDREN:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOT_FOR_CHILDREN)
    machine.raise_file_limit()
    log = machine.open_log(name, log_json)
    try:
        serve()
    except (ConfigError, NotAdmitted, StoreError) as error:
        with suppress(OSError):  # the parent is gone
            pipe.send((FAILED, error.code, error.message, error.hint))
        raise SystemExit(EXIT_FAILED) from None
    except Exception as error:
        log.exception("ends: %s", error)
        raise SystemExit(EXIT_FAILED) from None
