"""Unexpected exceptions that were contained: all are counted, and each kind is
logged once with its traceback.
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
