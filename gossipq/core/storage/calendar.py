"""The calendar that the core needs: the ticks of a cron expression in a time zone.

The node passes an implementation in (`gossipq_node.adapters.calendar`). Only a leader asks it, so copies
with other tables of time zones apply the same entries.
"""

from typing import Protocol

from gossipq.errors import BadRequest


class Calendar(Protocol):
    """Times are unix milliseconds. A tick is a whole second."""

    def check(self, cron: str, zone: str) -> None:
        """Raise BadRequest if the expression or the time zone is not known."""

    def after(self, cron: str, zone: str, time_ms: int) -> int | None:
        """Return the first tick after a time, or None."""

    def before(self, cron: str, zone: str, time_ms: int) -> int | None:
        """Return the last tick before a time, or None."""


class NoCalendar:
    """For a shard that never gets a cron expression."""

    def check(self, cron: str, zone: str) -> None:
        raise BadRequest("this node cannot read cron expressions", hint="say how often: every")

    def after(self, cron: str, zone: str, time_ms: int) -> int | None:
        return None

    def before(self, cron: str, zone: str, time_ms: int) -> int | None:
        return None
