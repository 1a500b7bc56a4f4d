"""A frontdoor's facts for threads beside its loop: complete values that are
replaced and never changed.
"""

from collections import deque

import msgspec

from gossipq.messages import StatusReply
from gossipq.types import Now
from gossipq.values import Alarm, AuditRow, Timing

AUDIT_MAX = 10_000  #: audit rows that wait while no node leads the audit's shard


class Facts(msgspec.Struct, frozen=True):
    """One look at the node."""

    status: StatusReply
    timings: dict[int, list[Timing]]  #: by worker
    alarms: list[Alarm]
    heard_ms: dict[int, int]  #: boot time of each worker's last report
    turned_ms: int  #: boot time of the frontdoor's last turn
    moves: int = 0  #: shards that got another leader, as this node saw it since its start
    queued: int = 0  #: gossip messages that wait to be sent on


class Board:
    """Written by the frontdoor's loop once a second; other threads read it."""

    def __init__(self, boot_ms: int) -> None:
        self.turned_ms = boot_ms
        self.facts: Facts | None = None  #: None until the first turn
        #: oldest first; the sender of audit rows removes them
        self.audit: deque[AuditRow] = deque(maxlen=AUDIT_MAX)
        self._outdated = False

    def outdate(self) -> None:
        """Makes the next turn write: something has changed, and readers must
        not wait a second for it.
        """
        self._outdated = True

    def written(self, facts: Facts, boot_ms: int) -> None:
        """Stores what the loop sees now."""
        self.facts = facts
        self.turned_ms = boot_ms
        self._outdated = False

    def due(self, now: Now, period_ms: int) -> bool:
        return self.facts is None or self._outdated or now.boot_ms - self.facts.turned_ms >= period_ms
