"""Unexpected exceptions that were contained: all are counted, and each kind is
logged once with its traceback.

A fault in a request, or in the volatile state of a leader, takes proposed entries back. Volatile
state is rebuilt from the ledger as at a takeover, in the same term, and the request is answered
`internal`. A second fault within 10 s stops the shard.

A fault in apply, in a message of another copy, or in opening makes this copy untrustworthy. The
open transaction is aborted, the other shards are opened again, and this one stays closed and says
why (`ShardStopped`).

A fault of the worker or the frontdoor itself abandons that message, or that piece of housekeeping.
"""

import logging
from traceback import extract_tb

from gossipq.types import ShardId

TOLD_MAX = 256  #: different exceptions; further ones are only counted

log = logging.getLogger(__name__)


class Faults:
    """Faults of one actor since it started."""

    def __init__(self, actor: str) -> None:
        self._actor = actor
        # (request or part of a turn, exception, where it was raised)
        self._told: set[tuple[str, str, str]] = set()
        self.count = 0

    def met(self, what: str, shard: ShardId | None, error: Exception) -> None:
        """`what` names the request or the part of a turn that raised the error."""
        self.count += 1
        frames = extract_tb(error.__traceback__)
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        key = what, type(error).__name__, where
        if key in self._told or len(self._told) >= TOLD_MAX:
            return
        self._told.add(key)
        place = "" if shard is None else f" of shard {shard}"
        log.error(
            "%s: internal error at %s%s; this place is logged once", self._actor, what, place, exc_info=error
        )
