"""Who of a group holds too much: what a consumer has not started on is for one that has nothing to do.

A leader does not know on what a consumer has started. So it asks, and the consumer gives back what it can:
no record is handed to a second one while the first may begin with it.
"""

from collections.abc import Callable

from gossipq import limits
from gossipq.core.delivery.consumers import Group, Subscription
from gossipq.types import SessionId

SHARED = "shared"

Holds = Callable[[tuple[SessionId, int]], tuple[int, int]]
"""Of a subscription: records it holds, boot time of the oldest handing-over."""


def may_be_uneven(group: Group) -> bool:
    """Whether one of several members has credit and gets nothing; cheap."""
    return len(group.members) > 1 and bool(group.lenders) and group.state.config.mode == SHARED


def uneven(group: Group, holds: Holds, boot_ms: int) -> tuple[list[tuple[Subscription, int]], bool]:
    """(member, how many records it may keep) of those who have had too much for a while, and whether somebody
    has too much at all. Even is the same number for each who holds some or waits for some; who takes certain
    routes only counts as one who waits for none."""
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
