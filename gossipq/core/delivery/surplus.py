"""Finds consumers that hold more records than they can start while another consumer is idle.

Only the consumer knows which records its handlers have begun. So the leader asks it, and it gives
back what it can. No record goes to a second consumer while the first may still begin it.
"""

from collections.abc import Callable

from gossipq import limits
from gossipq.core.delivery.consumers import Group, Subscription
from gossipq.types import SessionId

SHARED = "shared"

Holds = Callable[[tuple[SessionId, int]], tuple[int, int]]
"""For a subscription: how many records it holds, and the boot time of its oldest delivery."""


def may_be_uneven(group: Group) -> bool:
    """A cheap check: of several members, at least one has credit and gets no records."""
    return len(group.members) > 1 and bool(group.lenders) and group.state.config.mode == SHARED


def uneven(group: Group, holds: Holds, boot_ms: int) -> tuple[list[tuple[Subscription, int]], bool]:
    """Returns members that have held too many records for a while, each with the number it may
    keep, and whether any member holds too many. The fair share is equal for all members that hold
    records or wait for them. A member that takes only certain routes does not count as waiting.
    """
    if not may_be_uneven(group) or group.state.config.paused:
        return [], False
    rows = [(member, *holds(member.name)) for member in group.members.values()]
    busy = [row for row in rows if row[1]]
    idle = sum(not count and member.has_credit and member.matches is None for member, count, _ in rows)
    if not idle or not busy:
        return [], False
    keep = max(1, sum(count for _, count, _ in busy) // (len(busy) + idle))
    rich = [(member, since_ms) for member, count, since_ms in busy if count > keep and member.shares]
    return [(member, keep) for member, since_ms in rich if boot_ms - since_ms >= limits.UNEVEN_MS], bool(rich)
