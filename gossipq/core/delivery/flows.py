"""Flows: the records of a view that no consumer has, by priority and flow, and which of them is next.

Groups of order "priority" and "fair" have this index; groups of order "arrival" pay nothing for it. The
highest priority with records comes first. Inside a priority the flows take turns by deficit round robin
(Shreedhar and Varghese, 1995). A visit gives a flow as many records as its weight. A flow whose last record
leaves loses the rest of its deficit. So a flow that floods delays itself alone, and choosing a record costs
the same with 10 flows and with 100,000. With `age_after_ms`, a priority whose records wait longer gets one of
`AGED_SHARE` deliveries, so that none starves.

The index may have records that left meanwhile, so the selector checks each run against the window. A record
that comes back is added anew.
"""

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gossipq.core.delivery.policy import within
from gossipq.errors import BadRequest
from gossipq.limits import (
    DELAY_MS_MAX,
    FLOW_BYTES_MAX,
    FLOW_WEIGHT_MAX,
    FLOW_WEIGHTS_MAX,
    PRIORITY_MAX,
)
from gossipq.types import Offset
from gossipq.values import GroupConfig, Rate

if TYPE_CHECKING:
    from gossipq.core.delivery.window import Window

ARRIVAL, BY_PRIORITY, FAIR = "arrival", "priority", "fair"
ORDERS = (ARRIVAL, BY_PRIORITY, FAIR)
BY_RANK = tuple(range(PRIORITY_MAX, -1, -1))  #: priorities, the highest first
WEIGHT = 1  #: of a flow without one of its own
NONE = -1  #: no entry, no slot
AGED_SHARE = 10  #: one of ten deliveries is of a lower priority whose records wait too long
AGE_STEPS = 16  #: times of records are kept in steps of this part of `age_after_ms`
LEVELLED_TURNS = 4  #: a fetch that gets fewer records of each flow does not deviate from its turns


def flow_hash(flow: bytes) -> int:
    """Return BLAKE2b-64 of a flow, little endian, as the column FLOW_HASH has it; 0 without a flow."""
    return int.from_bytes(blake2b(flow, digest_size=8).digest(), "little") if flow else 0


def weights_of(config: GroupConfig) -> Mapping[int, int]:
    """Return the weights of flows by their hash; other flows have WEIGHT."""
    return {flow_hash(name.encode()): weight for name, weight in config.weights.items()}


def check_order(config: GroupConfig) -> None:
    """Raises BadRequest if the order of a group is wrong, or does not go with its mode."""
    if config.order not in ORDERS:
        raise BadRequest(f"order {config.order!r}", hint=f"one of {', '.join(ORDERS)}")
    if config.order != ARRIVAL and config.mode != "shared":
        raise BadRequest(
            f"order {config.order!r} in a group of mode {config.mode}",
            hint="groups of mode shared can have it; the other modes deliver by arrival",
        )
    within("flows in weights", len(config.weights), 0, FLOW_WEIGHTS_MAX)
    within("age_after_ms", config.age_after_ms, 0, DELAY_MS_MAX)
    if config.age_after_ms and config.order == ARRIVAL:
        raise BadRequest(
            "age_after in a group of order 'arrival'", hint="it needs --order fair, or --order priority"
        )
    for flow, weight in config.weights.items():
        within("bytes of a flow in weights", len(flow.encode()), 0, FLOW_BYTES_MAX)
        within(f"the weight of flow {flow!r}", weight, 1, FLOW_WEIGHT_MAX)


class OrderPolicy(NamedTuple):
    """The part of a group's policy that decides which record is next."""

    order: str
    weights: dict[str, int]
    concurrency: int
    flow_concurrency: int
    rate: Rate
    flow_rate: Rate
    age_after_ms: int


def order_of(config: GroupConfig) -> OrderPolicy:
    """Return the part of a policy that decides which record is next."""
    return OrderPolicy(*(getattr(config, name) for name in OrderPolicy._fields))


class Bounds(Protocol):
    """The limits of flows. `allowed`: records of a flow that may be delivered now."""

    def allowed(self, flow: int, now_ms: int) -> int: ...
    def is_full(self, flow: int) -> bool: ...
    def next_ms(self, flow: int) -> float: ...


class FlowRun(NamedTuple):
    """Records [first, end) of one flow that may be next."""

    priority: int
    flow: int  #: its hash; 0 = no flow
    first: Offset
    end: Offset


class Level:
    """The flows of one priority. A flow has a slot while it has records."""

    __slots__ = (
        "ages", "count", "deficits", "flows", "heads", "owed", "sizes", "slots", "spare", "tails", "turns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = 0  #: records of all flows
        self.slots: dict[int, int] = {}  #: by hash of the flow
        self.flows = array("Q")  #: by slot, as the next ones
        self.heads, self.tails = array("i"), array("i")  #: first and last entry of its queue
        self.deficits = array("i")  #: records that it may have before the next flow
        self.owed = array("d")  #: records that fetches gave it too few; negative: too many
        self.sizes = array("i")  #: records in its queue
        self.spare: list[int] = []  #: slots without a flow
        self.turns: deque[int] = deque()  #: slots in the order of their visits
        #: [leader time, records that came then], the oldest first; only in a group with `age_after_ms`
        self.ages: deque[list[int]] = deque()

    def open(self, flow: int) -> int:
        """Return the slot of a flow that gets its first record. Its turn comes last."""
        if self.spare:
            slot = self.spare.pop()
            self.flows[slot] = flow
        else:
            slot = len(self.flows)
            self.flows.append(flow)
            self.heads.append(NONE)
            self.tails.append(NONE)
            self.deficits.append(0)
            self.owed.append(0)
            self.sizes.append(0)
        self.slots[flow] = slot
        self.turns.append(slot)
        return slot

    def close(self, slot: int) -> None:
        """Remove the flow whose turn it is, with the rest of its deficit."""
        self._clear(slot)
        self.turns.popleft()

    def close_all(self, slots: set[int]) -> None:
        """Remove flows, whosever turn it is."""
        for slot in slots:
            self._clear(slot)
        self.turns = deque([slot for slot in self.turns if slot not in slots])

    def _clear(self, slot: int) -> None:
        del self.slots[self.flows[slot]]
        self.deficits[slot] = 0
        self.owed[slot] = 0
        self.tails[slot] = NONE
        self.spare.append(slot)

    def came(self, count: int, time_ms: int, step_ms: int) -> None:
        """Records came at a leader time."""
        if self.ages and time_ms < self.ages[-1][0] + step_ms:
            self.ages[-1][1] += count
        else:
            self.ages.append([time_ms, count])

    def left(self, count: int) -> None:
        """Records left. They count as the oldest ones, whichever flow they were of."""
        while count and self.ages:
            oldest = self.ages[0]
            gone = min(count, oldest[1])
            oldest[1] -= gone
            count -= gone
            if not oldest[1]:
                self.ages.popleft()


class FlowIndex:
    """The records of a view that wait for a consumer, by priority and flow.

    A flow takes about 160 bytes, and a run of its records 16.
    """

    __slots__ = (
        "_counts", "_firsts", "_lifted", "_nexts", "_passed", "_spare", "_spare_count", "_weights_more",
        "age_after_ms", "bounds", "by_flow",
        "held", "is_plain", "later", "levels", "next", "record_bytes", "run", "weights",
    )  # fmt: skip

    def __init__(self, first: Offset, config: GroupConfig) -> None:
        """`first`: no record from here on is in the index yet."""
        self.next = first
        self.by_flow = config.order == FAIR  #: otherwise all records are of one flow
        self.weights = weights_of(config)
        self._weights_more = sum([weight - WEIGHT for weight in self.weights.values()])
        self.age_after_ms = config.age_after_ms
        self._passed = 0  # records of higher priorities that were delivered while a lower one was too old
        self._lifted = NONE  # the priority of `run`, if it is next because of its age
        self.run = FlowRun(0, 0, 0, 0)  #: the last `head`
        self.bounds: Bounds | None = None  #: limits of its flows
        #: flows whose turn does not come because of a limit, with their priorities
        self.held: dict[int, list[int]] = {}
        self.later: list[tuple[float, int]] = []  #: when the rate lets a flow through: a heap
        self.levels = [Level() for _ in range(PRIORITY_MAX + 1)]
        # entries of all queues: a run of records each, and the entry behind it
        self._firsts = array("q")
        self._counts = array("i")
        self._nexts = array("i")
        self._spare, self._spare_count = NONE, 0  # first unused entry, and how many there are
        self.is_plain = True  #: no record in it had a lease or a time to live of its own
        self.record_bytes = 1  #: of the largest record, as the average of its batch

    # --- filling --------------------------------------------------------------------------------------------

    def _entry(self, first: Offset, count: int, behind: int) -> int:
        entry = self._spare
        if entry == NONE:
            self._firsts.append(first)
            self._counts.append(count)
            self._nexts.append(behind)
            return len(self._firsts) - 1
        self._spare, self._spare_count = self._nexts[entry], self._spare_count - 1
        self._firsts[entry], self._counts[entry], self._nexts[entry] = first, count, behind
        return entry

    def append(self, priority: int, flow: int, first: Offset, end: Offset, time_ms: int = 0) -> None:
        """Add records behind all others of their flow. They came at this leader time."""
        level = self.levels[priority]
        level.count += end - first
        if self.age_after_ms:
            level.came(end - first, time_ms, self.age_after_ms // AGE_STEPS)
        slot = level.slots.get(flow)
        if slot is None:
            slot = level.open(flow)
            level.heads[slot] = level.tails[slot] = self._entry(first, end - first, NONE)
            level.sizes[slot] = end - first
            return
        level.sizes[slot] += end - first
        tail = level.tails[slot]
        if self._firsts[tail] + self._counts[tail] == first:
            self._counts[tail] += end - first
            return
        level.tails[slot] = self._nexts[tail] = self._entry(first, end - first, NONE)

    def append_all(self, priority: int, flow: int, offsets: list[Offset], time_ms: int = 0) -> None:
        """Like `append` of each record, at once. The offsets must rise."""
        count = len(offsets)
        if count == offsets[-1] - offsets[0] + 1:
            self.append(priority, flow, offsets[0], offsets[-1] + 1, time_ms)
            return
        self.append(priority, flow, offsets[0], offsets[0] + 1, time_ms)
        if 2 * self._spare_count > len(self._firsts):  # use entries again
            for offset in offsets[1:]:
                self.append(priority, flow, offset, offset + 1, time_ms)
            return
        level, entry = self.levels[priority], len(self._firsts)
        if self.age_after_ms:
            level.came(count - 1, time_ms, self.age_after_ms // AGE_STEPS)
        slot = level.slots[flow]
        self._firsts.extend(offsets[1:])
        self._counts.extend(repeat(1, count - 1))
        self._nexts.extend(range(entry + 1, entry + count))
        self._nexts[-1] = NONE
        self._nexts[level.tails[slot]] = entry
        level.tails[slot] = entry + count - 2
        level.sizes[slot] += count - 1
        level.count += count - 1

    def put_first(self, priority: int, flow: int, first: Offset, end: Offset, time_ms: int = 0) -> None:
        """Add records before all others of their flow. They came back at this leader time."""
        level = self.levels[priority]
        slot = level.slots.get(flow)
        if slot is None:
            self.append(priority, flow, first, end, time_ms)
        else:
            if self.age_after_ms:
                level.came(end - first, time_ms, self.age_after_ms // AGE_STEPS)
            level.heads[slot] = self._entry(first, end - first, level.heads[slot])
            level.sizes[slot] += end - first
            level.count += end - first

    # --- choosing -------------------------------------------------------------------------------------------

    def head(self, now_ms: int = 0, leader_ms: int = 0) -> FlowRun | None:
        """Return the records that are next, as many as their flow may have now."""
        while self.later and self.later[0][0] <= now_ms:
            self.release(heappop(self.later)[1])
        self._lifted = self._lift(leader_ms) if self.age_after_ms else NONE
        for priority in BY_RANK if self._lifted == NONE else (self._lifted, *BY_RANK):
            level = self.levels[priority]
            most = self._most(level, priority, now_ms) if self.bounds is not None else None
            if not level.turns:
                continue
            slot = level.turns[0]
            flow = level.flows[slot]
            entry = level.heads[slot]
            first, count = self._firsts[entry], self._counts[entry]
            if most is not None:
                count = min(count, most)
            if len(level.turns) > 1:
                if level.deficits[slot] <= 0:
                    level.deficits[slot] += self.weights.get(flow, WEIGHT)
                count = min(count, level.deficits[slot])
            if priority == self._lifted:
                count = min(count, self._passed // (AGED_SHARE - 1))
            else:
                self._lifted = NONE
            self.run = FlowRun(priority, flow, first, first + count)
            return self.run
        return None

    def _lift(self, leader_ms: int) -> int:
        """Return the priority that is next because its records wait too long; NONE if none is."""
        ranked = [priority for priority in BY_RANK if self.levels[priority].turns]
        ages = [(self.levels[priority].ages[0][0], priority) for priority in ranked[1:]]
        if not ages or min(ages)[0] > leader_ms - self.age_after_ms:
            self._passed = 0
            return NONE
        return min(ages)[1] if self._passed >= AGED_SHARE - 1 else NONE

    def is_aged(self, priority: int, leader_ms: int) -> bool:
        """True if records of a priority wait too long."""
        ages = self.levels[priority].ages
        return bool(self.age_after_ms and ages) and ages[0][0] <= leader_ms - self.age_after_ms

    def _most(self, level: Level, priority: int, now_ms: int) -> int:
        """Let flows wait that are behind a limit, until the turn is that of another one. Returns how many
        records the limits allow it.
        """
        bounds = self.bounds
        assert bounds is not None, "only flows with limits wait for them"
        while level.turns:
            flow = level.flows[level.turns[0]]
            most = bounds.allowed(flow, now_ms)
            if most > 0:
                return most
            level.turns.popleft()
            self.held.setdefault(flow, []).append(priority)
            if not bounds.is_full(flow):
                heappush(self.later, (bounds.next_ms(flow), flow))
        return 0

    def waiting(self) -> tuple[int, int]:
        """Count the records that wait because of a limit: of records in flight, and of a rate."""
        counts = [0, 0]
        for flow, priorities in self.held.items():
            for priority in priorities:
                level = self.levels[priority]
                by_rate = self.bounds is not None and not self.bounds.is_full(flow)
                counts[by_rate] += level.sizes[level.slots[flow]]
        return counts[0], counts[1]

    def waiting_flows(self) -> Iterator[tuple[int, int, Offset]]:
        """Yield the flows of each priority: hash, number of records, and the first one."""
        for level in self.levels:
            for flow, slot in level.slots.items():
                yield flow, level.sizes[slot], self._firsts[level.heads[slot]]

    def release(self, flow: int) -> None:
        """Let a flow take its turns again, the next one after all others."""
        for priority in self.held.pop(flow, ()):
            level = self.levels[priority]
            level.turns.append(level.slots[flow])

    def before(self, priority: int, flow: int) -> tuple[int, int]:
        """Return the highest priority with records, and how many other flows of `priority` have records."""
        highest = max([at for at, level in enumerate(self.levels) if level.turns], default=0)
        level = self.levels[priority]
        return highest, len(level.turns) - (flow in level.slots)

    def drop(self, run: FlowRun, end: Offset, spent: int = 0) -> None:
        """Remove the records below `end` from `run`, which is `head`. A consumer got `spent` of them."""
        level = self.levels[run.priority]
        slot = level.turns[0]
        self._cut(level, slot, end - run.first)
        if self.age_after_ms and run.priority == self._lifted:
            self._passed -= spent * (AGED_SHARE - 1)
        elif self.age_after_ms:
            self._passed += spent
        level.deficits[slot] -= spent
        if level.heads[slot] == NONE:
            level.close(slot)
        elif level.deficits[slot] <= 0:
            level.deficits[slot] = 0
            level.turns.rotate(-1)

    @property
    def top(self) -> Level | None:
        """The highest priority with records that wait for their turn, or None."""
        return next((self.levels[each] for each in BY_RANK if self.levels[each].turns), None)

    def take(self, most: int, together: bool) -> list[tuple[Offset, Offset]]:
        """Remove the next records of one priority, up to `most`, from an index without limits and ages.
        Returns their ranges in turn. `together`: the order of the ranges does not matter, so a flow may get
        the records of several turns in one if all flows get as many.
        """
        level = self.top
        assert level is not None, "some records wait"
        if together and most >= LEVELLED_TURNS * (len(level.turns) + self._weights_more) > LEVELLED_TURNS:
            return self._take_level(level, most)
        found, left, visits, rounds = list[tuple[Offset, Offset]](), most, 0, 1
        turns, deficits, flows, weight_of = level.turns, level.deficits, level.flows, self.weights.get
        while left > 0 and turns:
            if visits <= 0:  # a round begins
                visits = len(turns)
                rounds = max(1, left // (visits + self._weights_more)) if together else 1
            slot, visits = turns[0], visits - 1
            if len(turns) == 1:
                deficits[slot] = left
            elif deficits[slot] <= 0:
                deficits[slot] = weight_of(flows[slot], WEIGHT) * rounds
            count = self._take_of(level, slot, min(deficits[slot], left), found)
            deficits[slot] -= count
            left -= count
            if level.heads[slot] == NONE:
                level.close(slot)
            elif deficits[slot] <= 0:
                turns.rotate(-1)
        level.count -= most - left
        return found

    def _take_level(self, level: Level, most: int) -> list[tuple[Offset, Offset]]:
        """Like `take` for a fetch that gets several records of each flow. Records with low offsets come
        first, so that few gaps remain. A flow gets at least one record, and at most twice its share. The
        next fetches make up for the difference, which is never more than one share.
        """
        flows, sizes, owed, weight_of = level.flows, level.sizes, level.owed, self.weights.get
        weights = {slot: weight_of(flows[slot], WEIGHT) for slot in level.turns}
        least, share = self._shares(level, weights, most)
        of_flow, more = dict[int, list[Offset]](), list[Offset]()
        for slot, weight in weights.items():
            mine, high = share * weight, least[slot]
            if sizes[slot] > mine:
                owed[slot] += mine
                # its last record stays, since a flow without records forgets what it owes
                high = max(high, min(sizes[slot] - 1, int(owed[slot] + mine)))
            of_flow[slot] = offsets = self._first_of(level, slot, high)
            least[slot] = min(least[slot], len(offsets))
            more += offsets[least[slot] :]
        left = min(most - sum(least.values()), len(more))
        more.sort()
        last = more[left - 1] if left > 0 else NONE
        found, closed = list[Offset](), set[int]()
        for slot, offsets in of_flow.items():
            count = max(least[slot], bisect_right(offsets, last))
            found += offsets[:count]
            self._remove(level, slot, count)
            owed[slot] -= count
            if level.heads[slot] == NONE:
                closed.add(slot)
        if closed:
            level.close_all(closed)
        level.count -= len(found)
        found.sort()
        cuts = [at for at, (one, next_) in enumerate(pairwise(found), 1) if next_ - one != 1]
        return [(found[low], found[high - 1] + 1) for low, high in pairwise([0, *cuts, len(found)])]

    @staticmethod
    def _shares(level: Level, weights: Mapping[int, int], most: int) -> tuple[dict[int, int], float]:
        """Return the records that each flow gets at least, and the share of weight 1 of those that have more
        than their share. The others get all their records.
        """
        sizes, owed, least = level.sizes, level.owed, dict[int, int]()
        large, left, share = weights, most, 0.0
        while large:
            share = left / sum(large.values())
            small = [slot for slot, weight in large.items() if sizes[slot] <= share * weight]
            if not small:
                break
            least.update((slot, sizes[slot]) for slot in small)
            left -= sum([sizes[slot] for slot in small])
            large = {slot: weight for slot, weight in large.items() if slot not in least}
        least.update((slot, max(1, int(min(owed[slot], share * weight)))) for slot, weight in large.items())
        return least, share

    def _first_of(self, level: Level, slot: int, most: int) -> list[Offset]:
        """Return the first records of a flow, up to `most`, as far as their offsets rise. A record that
        came back is first, so lower offsets can follow it.
        """
        firsts, counts, nexts, entry = self._firsts, self._counts, self._nexts, level.heads[slot]
        found, last, left = list[Offset](), NONE, most
        while left > 0 and (first := firsts[entry]) > last:
            if (count := counts[entry]) == 1:
                last = first
                found.append(first)
            else:
                last = first + count - 1
                found += range(first, first + min(count, left))
            left -= count
            entry = nexts[entry]
        return found

    def _remove(self, level: Level, slot: int, count: int) -> None:
        """Remove the first records of a flow."""
        counts, nexts, entry, left = self._counts, self._nexts, level.heads[slot], count
        gone, last = 0, NONE
        while left and counts[entry] <= left:
            left, last, entry, gone = left - counts[entry], entry, nexts[entry], gone + 1
        if gone:
            nexts[last], self._spare = self._spare, level.heads[slot]
            self._spare_count += gone
            level.heads[slot] = entry
        if left:
            self._firsts[entry] += left
            counts[entry] -= left
        level.sizes[slot] -= count

    def _take_of(self, level: Level, slot: int, most: int, found: list[tuple[Offset, Offset]]) -> int:
        """Move the first records of a flow into `found`, up to `most`. Returns how many."""
        firsts, counts, nexts, entry, left = self._firsts, self._counts, self._nexts, level.heads[slot], most
        while left and entry != NONE:
            first, count = firsts[entry], counts[entry]
            if count > left:
                found.append((first, first + left))
                firsts[entry], counts[entry], left = first + left, count - left, 0
                break
            found.append((first, first + count))
            left -= count
            behind = nexts[entry]
            nexts[entry] = self._spare
            self._spare = entry
            entry = behind
            self._spare_count += 1
        level.heads[slot] = entry
        level.sizes[slot] -= most - left
        return most - left

    def _cut(self, level: Level, slot: int, count: int) -> None:
        """Remove records from the first entry of a flow."""
        entry = level.heads[slot]
        self._firsts[entry] += count
        self._counts[entry] -= count
        level.sizes[slot] -= count
        level.count -= count
        if self.age_after_ms:
            level.left(count)
        if not self._counts[entry]:
            level.heads[slot] = self._nexts[entry]
            self._free(entry)

    def _free(self, entry: int) -> None:
        self._nexts[entry] = self._spare
        self._spare, self._spare_count = entry, self._spare_count + 1

    def backlog(self, flow: int, window: "Window") -> int:
        """Count the records of a flow that wait, without those at its head that have left."""
        count = 0
        for level in self.levels:
            slot = level.slots.get(flow)
            if slot is not None:
                count += self._prune(level, slot, window)
        return count

    def _prune(self, level: Level, slot: int, window: "Window") -> int:
        """Remove records that have left from the head of a flow, and count the others. The last entry of a
        flow stays: `drop` removes the flow when its turn comes.
        """
        while True:
            entry = level.heads[slot]
            first = self._firsts[entry]
            end = first + self._counts[entry]
            found = window.first_free(first, end)
            if found is None and self._nexts[entry] == NONE:
                return 0
            gone = end - first if found is None else found[1] - first
            if gone:
                self._cut(level, slot, gone)
            if found is not None:
                return level.sizes[slot]
