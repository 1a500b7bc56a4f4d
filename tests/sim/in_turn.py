"""I19 to I25: the order and the limits of groups of order "priority" or "fair".

I19: no record is delivered while one of a higher priority waits. I20: between two records of a flow that
waits all the time, each other flow of its priority gets no more than two visits bring it. Both are read from
the batches, the windows and the deliveries, not from the index of the leader, and hold without limits.

I21: the slots that a leader counts for each flow are the leased records of the flow. I22: over all leaders,
each flow gets no more than its rate allows, and two bursts.

I23: no publish lets more records of a flow wait than its group allows. I24: records of a lower priority that
wait too long are not passed by all others. I25: a leader delivers no record of a flow that its ledger has as
paused.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from gossipq import limits
from gossipq.core.delivery import Delivery, PartitionView, place_of
from gossipq.core.delivery.flows import AGED_SHARE, WEIGHT, weights_of
from gossipq.core.shard import Shard
from gossipq.types import DELAY, FLOW_HASH, PRIORITY, Offset, SessionId

BURSTS = 2  #: one is that of a new leader
CLOCKS = 1.1  #: clocks of nodes may be as much faster
VISITS = 2  #: one may have begun before the other flow had records
PAUSE_MS = 100  #: clocks of a leader may be as far apart
AGES = 3  #: a record waits too long after this many times `age_after_ms`: its time may be rounded
PASSED = 2 * AGED_SHARE + 32  #: deliveries of the highest priority in a row, parts included
Asked = tuple[int, int]  #: priority, hash of the flow
Name = tuple[int, int, int, int]  #: shard, term, group and partition


def asked(shard: Shard, view: PartitionView, offset: Offset) -> Asked | None:
    """Return the priority and the flow of a record."""
    place = place_of(shard.ledger, view.cursor, view.partition, offset)
    if place is None:
        return None
    column = shard.ledger.opened.column
    priorities = column(place.entry, PRIORITY) if place.columns & PRIORITY else None
    flows = column(place.entry, FLOW_HASH) if place.columns & FLOW_HASH else None
    priority = limits.PRIORITY if priorities is None else priorities[place.record]
    is_fair = view.group.state.config.order == "fair"
    return priority, flows[place.record] if flows is not None and is_fair else 0


def waiting(shard: Shard, view: PartitionView) -> dict[Offset, Asked]:
    """The records that a consumer could get now."""
    ranges = [(first, end) for first, end, _ in view.window.ready]
    ranges += view.window.new(0, shard.ledger.partitions[view.partition].next)
    found = {offset: asked(shard, view, offset) for first, end in ranges for offset in range(first, end)}
    return {offset: what for offset, what in found.items() if what is not None}


def never_delivered(shard: Shard, view: PartitionView) -> Counter[int]:
    """Count the records by flow that were never delivered, without those that were delayed."""
    found = Counter[int]()
    for first, end in view.window.new(0, shard.ledger.partitions[view.partition].next):
        for offset in range(first, end):
            place = place_of(shard.ledger, view.cursor, view.partition, offset)
            what = asked(shard, view, offset)
            if place is not None and what is not None and not place.columns & DELAY:
                found[what[1]] += 1
    return found


class InTurn:
    """The choices of the leaders on one node."""

    def __init__(self) -> None:
        #: by shard, term, group and partition: what waited after the last turn
        self._before: dict[tuple[int, int, int, int], dict[Offset, Asked]] = {}
        self._given = defaultdict[tuple[int, int, int, int], list[Asked]](list)  # in this turn, in order
        #: how many records each flow got since a flow that waits got its last one
        self._passed: dict[tuple[tuple[int, int, int, int], Asked], Counter[int]] = {}
        self._depths: dict[Name, Counter[int]] = {}  # records of each flow that wait, after the last turn
        #: a record that is not of the highest priority, since when it waits, and how many passed it
        self._aging: dict[Name, tuple[Offset, int, int]] = {}

    @staticmethod
    def _slots(shard: Shard, view: PartitionView) -> Iterator[str]:
        """I21, after a turn."""
        if view.window.slots is None or view.flow_limits is None:
            return
        found = Counter[int]()
        for first, end, _ in view.window.leases():
            found.update((asked(shard, view, offset) or (0, 0))[1] for offset in range(first, end))
        if found != view.flow_limits.in_flight:
            yield f"I21 flows have {dict(found)} records in flight, and count {view.flow_limits.in_flight}"

    def _backlog(self, shard: Shard, name: Name, view: PartitionView) -> Iterator[str]:
        """I23, after a turn."""
        bound = view.group.state.config.flow_backlog
        if not bound:
            return
        before, now = self._depths.get(name), never_delivered(shard, view)
        self._depths[name] = now
        for flow, count in now.items() if before is not None else ():
            if flow and count > bound and before is not None and count > before[flow]:
                yield f"I23 flow {flow:x} of group {name[2]} has {count} records waiting, and {bound} may be"

    def _aged(self, shard: Shard, name: Name, view: PartitionView, now: dict[Offset, Asked]) -> Iterator[str]:
        """I24, after a turn."""
        age_ms, given = view.group.state.config.age_after_ms, self._given.get(name, [])
        top = max([priority for priority, _ in now.values()], default=0)
        lower = [offset for offset, (priority, _) in now.items() if priority < top]
        offset, since_ms, passed = self._aging.get(name, (-1, 0, 0))
        if offset not in lower or any(priority < top for priority, _ in given):
            self._aging[name] = min(lower, default=-1), shard.desk.boot_ms, 0
            return
        if shard.desk.boot_ms - since_ms > AGES * age_ms:
            passed += len(given)
        self._aging[name] = offset, since_ms, passed
        if passed > PASSED:
            yield f"I24 {passed} records passed offset {offset} of group {name[2]}, which waits too long"

    def delivered(self, shard: Shard, delivery: Delivery, session: SessionId) -> Iterator[str]:
        member = shard.dispatch.subscriptions.get((session, delivery.subscription))
        if member is None or member.group is None or member.group.state.config.order == "arrival":
            return
        for part in delivery.parts:
            view = member.group.views.get(part.partition)
            for first, end in part.ranges or [(part.offset, part.end)]:
                for offset in range(first, end) if view is not None else ():
                    if view is None or (what := asked(shard, view, offset)) is None:
                        continue
                    self._given[shard.id, shard.term, member.group.id, part.partition].append(what)
                    pause = view.cursor.pauses.get(what[1])
                    if pause is not None and pause.until_ms > shard.desk.timer_ms + PAUSE_MS:
                        yield f"I25 offset {offset} of flow {what[1]:x} is delivered, and the flow is paused"

    def look(self, shards: list[Shard]) -> Iterator[str]:
        """After a turn."""
        before, self._before = self._before, {}
        if not shards:
            self._given.clear()
            self._passed.clear()
            return
        for shard in shards:
            for group_id, group in shard.dispatch.groups.items() if shard.serving else ():
                if group.state.config.order == "arrival" or group.state.config.mode != "shared":
                    continue
                for partition, view in group.views.items():
                    yield from self._slots(shard, view)
                    name = shard.id, shard.term, group_id, partition
                    yield from self._backlog(shard, name, view)
                    if view.flow_limits is not None:
                        continue  # a record of a higher priority may wait for its limit
                    now = self._before[name] = waiting(shard, view)
                    stayed = {
                        what for offset, what in before.get(name, {}).items() if now.get(offset) == what
                    }
                    yield from self._judge(name, view, stayed)
                    if group.state.config.age_after_ms:
                        yield from self._aged(shard, name, view, now)
        self._given.clear()
        self._passed = {name: count for name, count in self._passed.items() if name[0] in self._before}

    def _judge(
        self, name: tuple[int, int, int, int], view: PartitionView, stayed: set[Asked]
    ) -> Iterator[str]:
        given = self._given.get(name, [])
        highest = max([priority for priority, _ in stayed], default=-1)
        if given and min(given)[0] < highest and not view.group.state.config.age_after_ms:
            yield f"I19 group {name[2]} got a record of priority {min(given)[0]} before one of {highest}"
        weights = weights_of(view.group.state.config)
        for key in [key for key in self._passed if key[0] == name]:
            if key[1] not in stayed or key[1] in given:
                del self._passed[key]
        for priority, flow in stayed.difference(given):
            passed = self._passed.setdefault((name, (priority, flow)), Counter())
            passed.update(other for level, other in given if level == priority)
            for other, count in passed.items():
                if count > VISITS * weights.get(other, WEIGHT):
                    passed.clear()
                    yield f"I20 group {name[2]}: flow {other:x} got {count} records while {flow:x} waits"
                    break


class Paces:
    """The deliveries to each flow by all leaders, as the filling of one bucket."""

    def __init__(self) -> None:
        #: by group, partition and flow: when its bucket is full again
        self._full: dict[tuple[str, int, int], float] = {}

    def delivered(self, shard: Shard, delivery: Delivery, session: SessionId, now_ms: int) -> Iterator[str]:
        """I22, for a delivery that leaves now."""
        member = shard.dispatch.subscriptions.get((session, delivery.subscription))
        if member is None or member.group is None or not member.group.state.config.flow_rate.records:
            return
        rate = member.group.state.config.flow_rate
        interval_ms = rate.per_ms / (rate.records * CLOCKS)
        for part in delivery.parts:
            view = member.group.views.get(part.partition)
            ranges = (part.ranges or [(part.offset, part.end)]) if view is not None else []
            for offset in [offset for first, end in ranges for offset in range(first, end)]:
                what = asked(shard, view, offset) if view is not None else None
                if what is None:
                    continue
                name = member.group.state.name, part.partition, what[1]
                self._full[name] = max(self._full.get(name, 0), now_ms) + interval_ms
                if self._full[name] - now_ms > BURSTS * rate.burst * interval_ms + 1:
                    yield f"I22 flow {what[1]:x} of group {name[0]} is faster than its rate at {now_ms}"
