"""A frontdoor's view of the membership: lines for `status`, and the facts that
gossip spreads about this node.
"""

import logging
from collections import deque
from collections.abc import Iterable

from gossipq import limits
from gossipq.types import Now
from gossipq.values import GossipEvent, Member
from gossipq_node.ports import Membership, SeenNode

PAIR = (
    "a pair without a witness will not take over by itself: "
    "gossipq node --witness --join HOST on a third host"
)
OFF = "off"  #: discovery is switched off
LOOK_MS = 2_000
EVENTS_MAX = 200  #: number of events in status
STRANGERS_MAX = 3
LOAD_DIGITS = 2  #: digits of the load in gossip, so that a tag changes only when the load does

log = logging.getLogger(__name__)


class Discovery:
    def __init__(self, membership: Membership | None, cluster: bytes, me: Member, now: Now) -> None:
        self._membership = membership
        self._cluster = cluster.hex()
        self._me = me
        self._look_ms = now.boot_ms
        self._count: tuple[int, int] | None = None  # records, when they were counted
        #: the newest events, oldest first
        self.events: deque[GossipEvent] = deque(maxlen=EVENTS_MAX)

    @property
    def state(self) -> str:
        """ "" = well, "off" = a standalone node, else why others may not be found."""
        return OFF if self._membership is None else self._membership.state

    @property
    def queued(self) -> int:
        """Gossip messages that wait to be sent on."""
        return 0 if self._membership is None else self._membership.queued

    def next_deadline_ms(self) -> int | None:
        return None if self._membership is None else self._look_ms

    def turn(self, records: int, now: Now) -> None:
        """`records` is the number of records in and out of this node since it started."""
        if self._membership is None or now.boot_ms < self._look_ms:
            return
        self._look_ms = now.boot_ms + LOOK_MS
        news = self._membership.events()
        self.events += news
        for event in news:
            if event.what == "degraded":
                log.warning("gossip is degraded: %s", event.detail)
            elif event.what == "well":
                log.info("gossip is well again")
        if self._count is not None:
            before, at_ms = self._count
            per_s = max(0, records - before) * limits.SECOND_MS // max(1, now.boot_ms - at_ms)
            self._membership.tell({"load": str(_rounded(per_s))})
        self._count = records, now.boot_ms

    def found(self) -> list[SeenNode]:
        """Nodes of this cluster that gossip shows, even those that are not in the roster."""
        known = self._membership.found() if self._membership is not None else []
        return [found for found in known if not found.cluster or self._cluster.startswith(found.cluster)]

    def warnings(self, members: Iterable[Member]) -> list[str]:
        """Warnings for people about how this node and the `members` of
        its cluster find each other.
        """
        members = list(members)
        lines = [PAIR] if pair_without_witness(members) else []
        lines += [text for member in members if (text := clash(self._me, member))]
        if self._membership is None:
            return lines
        others = [
            row
            for row in self._membership.found()
            # one that is gone stays in the gossip for a day
            if row.alive and row.cluster and not self._cluster.startswith(row.cluster)
        ]
        strangers = [
            f"gossip shows node {row.name} of another cluster at {row.endpoint}: check its --join"
            for row in others
        ]
        return [
            *lines,
            *([f"gossip is degraded: {self.state}"] if self.state else []),
            *strangers[:STRANGERS_MAX],
        ]


def clash(me: Member, other: Member) -> str:
    """Why `me` cannot enter the roster next to `other`; "" if it can."""
    if me.copy == other.copy:
        return ""
    if me.name == other.name:
        return f"the node at {other.endpoint} is named {me.name}, too, and was first: choose another --name"
    if me.endpoint == other.endpoint:
        return (
            f"{me.endpoint} is the address of {other.name}, too, which was first: choose another --bind "
            "or --advertise"
        )
    return ""


def pair_without_witness(members: Iterable[Member]) -> bool:
    """True if the cluster is two full nodes, which cannot take over from each other."""
    return [member.witness for member in members] == [False, False]


def _rounded(number: int) -> int:
    """Rounds to the first digits."""
    unit = int("1" + "0" * (len(str(number)) - LOAD_DIGITS))
    return number // unit * unit
