"""Stand-ins for the processes of a node, importable by spawned children. Their settings are a number."""

import os
import signal
import time
from multiprocessing.connection import Connection

from gossipq.errors import ConfigError, NotAdmitted
from gossipq_node.processes import READY, STOP, Parent, child


def steady(restarts: int, pipe: Connection) -> None:
    """Is ready at once and stops when told."""

    def serve() -> None:
        parent = Parent(pipe, lambda: True, lambda states: None)
        while parent.running():
            pipe.poll(None)

    child("steady", True, pipe, serve)


def deaf(restarts: int, pipe: Connection) -> None:
    """Is ready and never stops."""

    def serve() -> None:
        pipe.send((READY,))
        while pipe.poll(None):
            assert pipe.recv()

    child("deaf", True, pipe, serve)


def twice(restarts: int, pipe: Connection) -> None:
    """Dies before it is ready, the first time."""
    if restarts == 0:
        os._exit(9)
    steady(restarts, pipe)


def killed(restarts: int, pipe: Connection) -> None:
    """Killed as by a disk without a page for a mapped address."""
    os.kill(os.getpid(), signal.SIGBUS)


def broken(restarts: int, pipe: Connection) -> None:
    """Cannot start, and says why."""

    def serve() -> None:
        raise ConfigError("port 1 is taken", "take another")

    child("broken", True, pipe, serve)


def dismissed(restarts: int, pipe: Connection) -> None:
    """Is ready, and then its cluster does not have the node any more."""

    def serve() -> None:
        pipe.send((READY,))
        time.sleep(0.5)  # until the node is said to be ready
        raise NotAdmitted("bob was taken off this cluster", "start it with an empty data directory")

    child("dismissed", True, pipe, serve)


def crashing(restarts: int, pipe: Connection) -> None:
    """Cannot start, for an unforeseen reason."""

    def serve() -> None:
        raise ZeroDivisionError

    child("crashing", True, pipe, serve)


def listening(restarts: int, pipe: Connection) -> None:
    """Writes what it is told of the workers into the file named by LISTENING_TO."""

    def serve() -> None:
        pipe.send((READY,))
        with open(os.environ["LISTENING_TO"], "a") as file:
            while (told := pipe.recv()) != STOP:
                print(*((state.running, state.restarts) for state in told), file=file, flush=True)

    child("listening", True, pipe, serve)
