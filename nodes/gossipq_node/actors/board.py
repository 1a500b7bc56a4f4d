"""What a frontdoor knows, for threads beside its loop: whole values, replaced and never changed."""

from collections import deque

import msgspec

from gossipq.messages import StatusReply
from gossipq.types import Now
from gossipq.values import Alarm, AuditRow, Timing

AUDIT_MAX = 10_000  #: rows that wait to be told, while nobody leads


class Facts(msgspec.Struct, frozen=True):
    """One look at the node."""

    status: StatusReply
    timings: dict[int, list[Timing]]  #: by worker
    alarms: list[Alarm]
    heard_ms: dict[int, int]  #: boot time of each worker's last report
    turned_ms: int  #: boot time of the frontdoor's last turn
    moves: int = 0  #: shards that got another leader, as this node saw it since its start
    queued: int = 0  #: messages of gossip that wait to be told on


class Board:
    """Written by the frontdoor's loop once a second; read by anybody."""

    def __init__(self, boot_ms: int) -> None:
        self.turned_ms = boot_ms
        self.facts: Facts | None = None  #: None: it has not turned yet
        self.audit: deque[AuditRow] = deque(maxlen=AUDIT_MAX)  #: the oldest first; taken by who tells it
        self._outdated = False

    def outdate(self) -> None:
        """Something has changed that readers must not wait a second for."""
        self._outdated = True

    def written(self, facts: Facts, boot_ms: int) -> None:
        """By the loop: what it sees now."""
        self.facts, self.turned_ms, self._outdated = facts, boot_ms, False

    def due(self, now: Now, period_ms: int) -> bool:
        return self.facts is None or self._outdated or now.boot_ms - self.facts.turned_ms >= period_ms
