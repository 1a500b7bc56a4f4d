"""Clients that are still open when the program ends: what they owe is sent then, and what stays unconfirmed
is told."""

import atexit
import os
import sys
import time
import warnings
from typing import Protocol

from gossipq.errors import GossipqError
from gossipq.texts import many

EXIT_SECONDS = 5.0  #: how long all clients together wait for their confirms at the end of the program


class Leaver(Protocol):
    @property
    def _label(self) -> str:
        """For messages."""

    @property
    def _kept(self) -> bool:
        """What has no confirm outlives it."""

    def _unconfirmed(self) -> int:
        """Records without a confirm."""

    def _leave(self, seconds: float) -> GossipqError | None:
        """Sends what waits, for so long at most, and closes. What a publish failed with that nobody was told
        of."""


_open: dict[Leaver, None] = {}


def note(client: Leaver) -> None:
    _open[client] = None


def forget(client: Leaver) -> None:
    _open.pop(client, None)


def leave_all() -> None:
    """Each open client is closed as by `close`, with one time limit for all of them."""
    deadline_s, texts = time.monotonic() + EXIT_SECONDS, list[str]()
    for client in list(_open):
        forget(client)
        owed, failure = client._unconfirmed(), None
        try:
            failure = client._leave(max(0.0, deadline_s - time.monotonic()))
        except BaseException as error:  # as KeyboardInterrupt: the next client has its turn all the same
            print(f"gossipq: client {client._label!r} at exit: {error!r}", file=sys.stderr)
        texts.append(_told(client, owed, client._unconfirmed(), failure))
    for text in texts:  # behind all of them: a warning may be an error here
        warnings.warn(text, ResourceWarning, stacklevel=1)


def _told(client: Leaver, owed: int, left: int, failure: GossipqError | None) -> str:
    """Says what was lost; returns what a client that is still open is warned of."""
    hint = "call close(), or use `with connect() as mq:`"
    if left:
        lost = (
            f"{many(left, 'record')} of client {client._label!r} had no confirm when the program ended: "
            + ("what is in its spool stays there" if client._kept else "they may be lost")
        )
        print(f"gossipq: {lost}; {hint}", file=sys.stderr)
    if failure is not None:
        print(f"gossipq: a publish of client {client._label!r} failed: {failure}", file=sys.stderr)
    return (
        f"client {client._label!r} was not closed: {many(owed, 'record')} sent at the end, {left:,} "
        f"without a confirm; {hint}"
    )


def _in_child() -> None:
    """A forked child does not end its parent's clients."""
    _open.clear()


atexit.register(leave_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
