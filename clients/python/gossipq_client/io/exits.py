"""Clients that are still open when the program ends. They send what they owe, and report
records that stay unconfirmed.

`os._exit` skips that: it only reports how many records are lost. For children of
multiprocessing see `children`.
"""

import atexit
import os
import sys
import time
import warnings
from typing import NoReturn, Protocol

from gossipq.errors import ClientClosed, GossipqError
from gossipq.texts import many
from gossipq_client.io import children

EXIT_SECONDS = 5.0  #: how long all clients together wait for their confirms at the end of the program
HINT = "call close(), or use `with connect() as mq:`"


class Leaver(Protocol):
    @property
    def label(self) -> str:
        """Name for messages."""

    @property
    def kept(self) -> bool:
        """True if unconfirmed records survive the client."""

    @property
    def busy(self) -> bool:
        """True while a step runs: it must end before anything else can be done."""

    def unconfirmed(self) -> int:
        """Number of records without a confirm."""

    def leave(self, seconds: float) -> GossipqError | None:
        """Sends what waits, for at most `seconds`, and closes the client. Returns the error of a
        publish that no caller has seen.
        """


_open: dict[Leaver, None] = {}
_ended = False  #: the program ends, and all clients were closed for that


def require_time() -> None:
    """Raises ClientClosed if the interpreter is about to end: a thread started then never runs."""
    if sys.is_finalizing():
        raise ClientClosed(
            "the interpreter is about to end, and nothing can be sent any more",
            hint="publish before that, as in an atexit function, not in __del__",
        )


def note(client: Leaver) -> None:
    if _ended:
        print(
            f"gossipq: client {client.label!r} is used first when all clients were closed at the end of the "
            "program: records that are published without waiting for the confirm may be lost; register the "
            "atexit function after the import of gossipq_client",
            file=sys.stderr,
        )
    _open[client] = None
    children.end_with_child(leave_all, is_busy)


def forget(client: Leaver) -> None:
    _open.pop(client, None)


def is_busy() -> bool:
    """True if a client is within a step, which must end before `leave_all` can close it."""
    return any(client.busy for client in list(_open))


def _leave_at_exit() -> None:
    global _ended
    _ended = True
    leave_all()


def leave_all() -> None:
    """Close each open client as `close` does, with one time limit for all of them."""
    deadline_s, texts = time.monotonic() + EXIT_SECONDS, list[str]()
    for client in list(_open):
        forget(client)
        owed, failure = client.unconfirmed(), None
        try:
            failure = client.leave(max(0.0, deadline_s - time.monotonic()))
        except BaseException as error:
            # for example KeyboardInterrupt: the next client is closed all the same
            print(f"gossipq: client {client.label!r} at exit: {error!r}", file=sys.stderr)
        texts.append(_told(client, owed, client.unconfirmed(), failure))
    for text in texts:  # after all clients are closed, since a warning may raise here
        warnings.warn(text, ResourceWarning, stacklevel=1)


def _told(client: Leaver, owed: int, left: int, failure: GossipqError | None) -> str:
    """Reports what was lost; returns the warning for a client that is still open."""
    if left:
        print(_lost(client, left, "when the program ended"), file=sys.stderr)
    if failure is not None:
        print(f"gossipq: client {client.label!r} failed: {failure}", file=sys.stderr)
    return (
        f"client {client.label!r} was not closed: {many(owed, 'record')} sent at the end, {left:,} "
        f"without a confirm; {HINT}"
    )


def _lost(client: Leaver, left: int, when: str) -> str:
    fate = "what is in its spool stays there" if client.kept else "they may be lost"
    return f"gossipq: {many(left, 'record')} of client {client.label!r} had no confirm {when}: {fate}; {HINT}"


def _exit_aloud(status: int) -> NoReturn:
    """Report unconfirmed records, then do `os._exit`.

    Sends nothing: programs call `os._exit` when nothing else may happen.
    """
    try:
        for client in list(_open):
            left = client.unconfirmed()
            # not through sys.stderr: another thread may have held its lock when
            # this process was forked
            if left:
                os.write(2, f"{_lost(client, left, 'when os._exit was called')}\n".encode())
    except Exception:  # for example a closed descriptor: the process must end
        pass
    _exit(status)


def _in_child() -> None:
    """A forked child must not close its parent's clients."""
    _open.clear()


_exit = os._exit
os._exit = _exit_aloud
atexit.register(_leave_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
