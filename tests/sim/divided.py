"""I26: the leaders of several shards have parts of a group's limits that together never exceed the limits."""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from gossipq.core.delivery.flow_limits import GroupLimits
from gossipq.core.delivery.limit_division import PACE
from gossipq.core.shard import Shard
from gossipq.values import Rate
from sim.clients import Consumer, Party

if TYPE_CHECKING:
    from sim.world import World

SHARE = 0.25  #: of the clusters with several shards; planted bugs raise it
GROUP = "limited"
CONCURRENCY, RATE = 12, Rate(200, 1_000, 20)
ROUNDED = 2  #: parts of a rate


def limited_parties(world: "World") -> list[Party]:
    """A group with limits that has a consumer for each partition, and so for each shard."""
    if world.shards == 1 or Random(f"{world.seed}/limited").random() >= SHARE:
        return []
    policy: dict[str, Any] = {"order": "priority", "concurrency": CONCURRENCY, "rate": RATE}
    return [
        Consumer(world, f"m{at}", home=partial(world.admin.home, at), group=GROUP, fails=0.2, **policy)
        for at in range(world.partitions)
    ]


def pace_of(limits: GroupLimits) -> float:
    """Return the part of the rate that a leader has."""
    return 0.0 if limits.pace is None else PACE * RATE.per_ms / RATE.records / limits.pace.interval_ms


class Divided:
    """The parts of the newest leader of each shard."""

    def __init__(self) -> None:
        #: by topic and shard: term, records in flight, part of the rate
        self._parts: dict[int, dict[int, tuple[int, int, float]]] = {}

    def look(self, shards: list[Shard]) -> Iterator[str]:
        """After a turn of a node."""
        for shard in shards:
            for group in shard.dispatch.flow_feed.divided.values() if shard.serving else ():
                known = self._parts.setdefault(group.state.topic_id, {})
                if group.limits is None or shard.term < known.get(shard.id, (0, 0, 0.0))[0]:
                    continue
                known[shard.id] = shard.term, group.limits.most, pace_of(group.limits)
                slots, pace = sum(part[1] for part in known.values()), sum(part[2] for part in known.values())
                if slots > CONCURRENCY or pace > PACE + ROUNDED:
                    yield f"I26 leaders have {slots} of {CONCURRENCY} records, {pace:.0f} of {PACE} parts"
