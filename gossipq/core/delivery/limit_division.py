"""Divides the limits of a group among the leaders of the shards that have partitions of its topic.

The leader of the topic's first shard divides. Each leader reports what it has, and how many of its records
wait. A leader with a backlog gets more after another one has confirmed that it has less. So all parts
together never exceed the limit, whichever messages are lost, late or repeated.

Terms of both leaders order the messages. A leader follows the divider of the highest term. A new divider
divides nothing before each leader follows it and has said what it has. Beside its part, each leader has a
small *floor*, which is not divided. A new leader of a shard has only that, until the divider tells it the
part of the leader before it.
"""

from typing import NamedTuple

from gossipq.types import ShardId, Term

PACE = 1_000  #: parts of a rate
#: a leader always has this fraction of its even part, so it can serve while the divider is unreachable
FLOOR = 32
STEP = 100  #: a part grows by this fraction of the limit at least, unless the leader has nothing

Pair = tuple[int, int]  #: records in flight, parts of the rate
NOTHING: Pair = (0, 0)


def floor_of(whole: Pair, shards: int) -> Pair:
    """Return what the leader of each of these shards always has."""
    return whole[0] // (FLOOR * shards), whole[1] // (FLOOR * shards)


def pool_of(whole: Pair, shards: int) -> Pair:
    """Return what is divided among the leaders, beside their floors."""
    floor = floor_of(whole, shards)
    return whole[0] - floor[0] * shards, whole[1] - floor[1] * shards


def _larger(one: Pair, other: Pair) -> Pair:
    return max(one[0], other[0]), max(one[1], other[1])


def _smaller(one: Pair, other: Pair) -> Pair:
    return min(one[0], other[0]), min(one[1], other[1])


class LimitUse(NamedTuple):
    """Report of the leader of a shard. `part` counts beside its floor, and is what it has at most."""

    shard: ShardId
    term: Term  #: in which it leads
    follows: tuple[Term, int]  #: term of the divider, and number, of the last part that it was told
    whole: Pair  #: the limits of its group; (0, 0) if it has no such group
    part: Pair
    demand: int  #: records in flight and waiting


class PartTold(NamedTuple):
    """Message of the divider to a leader. Without a part, the leader keeps what it has."""

    shard: ShardId
    term: Term  #: of the divider
    number: int
    part: Pair | None
    leads: Term  #: the term of the leader that is meant; only that one takes a part


class LimitPart:
    """The part of a group's limits that the leader of a shard has beside its floor."""

    __slots__ = ("follows", "part")

    def __init__(self) -> None:
        self.follows: tuple[Term, int] = (0, 0)
        self.part: Pair | None = None  #: not known before the divider has said something

    def hear(self, told: PartTold, term: Term) -> bool:
        """Take what a divider says, and return whether it is news. `term`: in which this one leads."""
        if (told.term, told.number) <= self.follows or (told.part is not None and told.leads != term):
            return False
        self.follows = told.term, told.number
        if told.part is not None:
            self.part = told.part
        elif self.part is None:
            self.part = NOTHING  # records in flight end, and others may have their part already
        return True

    def at_most(self, in_use: Pair) -> Pair:
        """Return what it has at most. `in_use`: what its records in flight need beside the floor. They end
        later than their part.
        """
        return _larger(self.part or NOTHING, in_use)


class _Of:
    """One leader, as the divider knows it."""

    __slots__ = ("demand", "known", "number", "part", "sent", "term", "whole")

    def __init__(self, number: int) -> None:
        self.term: Term = 0
        self.number = number  #: of what it was told last
        self.known = False
        self.sent: Pair | None = None  #: what it was told to have; None: what it has
        self.part: Pair = NOTHING  #: what it has at most
        self.whole: Pair = NOTHING
        self.demand = 0


class LimitDivision:
    """The parts of all leaders, as the divider of a term knows them."""

    def __init__(self, term: Term, shards: list[ShardId], number: int = 1) -> None:
        """`shards`: of the partitions of the topic. `number`: of the first message; it must be above those of
        an earlier division of the same term.
        """
        self.term = term
        self._weights = {shard: shards.count(shard) for shard in dict.fromkeys(shards)}
        self._of = {shard: _Of(number) for shard in self._weights}

    def hear(self, use: LimitUse) -> list[PartTold]:
        """Take a report. Returns what leaders must be told now."""
        of = self._of.get(use.shard)
        if of is None or use.term < of.term:
            return []
        of.whole, of.demand = use.whole, use.demand
        if use.follows == (self.term, of.number):
            # an earlier report may come later: it must not give back what others have by now
            of.part, of.known = _smaller(of.part, use.part) if of.known else use.part, True
        elif of.known and use.term > of.term:
            of.number += 1  # what its earlier leader was told may still be on its way
            of.sent = of.sent or of.part
        is_stale = use.follows != (self.term, of.number)
        of.term = use.term
        changed = self._divide() if all(each.known for each in self._of.values()) else []
        unknown = [shard for shard, each in self._of.items() if not each.known]
        tell = dict.fromkeys([*([use.shard] if is_stale else []), *changed, *unknown])
        return [self._told(shard) for shard in tell]

    def _told(self, shard: ShardId) -> PartTold:
        of = self._of[shard]
        return PartTold(shard, self.term, of.number, of.sent if of.known else None, of.term)

    def _divide(self) -> list[ShardId]:
        """Lower and raise parts. Returns the leaders whose parts change."""
        wholes = [each.whole for each in self._of.values() if each.whole != NOTHING]
        if not wholes:
            return []
        slots = min([each[0] for each in wholes if each[0]], default=0)
        pool = pool_of((slots, max(each[1] for each in wholes)), len(self._of))
        before = {shard: each.sent for shard, each in self._of.items()}
        moved = self._moved(0, pool[0]), self._moved(1, pool[1])
        changed = []
        for shard, of in self._of.items():
            sent = moved[0][shard], moved[1][shard]
            if sent != (before[shard] or of.part):
                of.sent = sent
                of.part = _larger(of.part, sent)
                of.number = of.number + 1
                changed.append(shard)
        return changed

    def _moved(self, which: int, pool: int) -> dict[ShardId, int]:
        """Return the new parts of one limit."""
        targets = self._targets(which, pool)
        most = {shard: of.part[which] for shard, of in self._of.items()}
        sent = {shard: (of.sent or of.part)[which] for shard, of in self._of.items()}
        step = max(1, pool // STEP)
        wants = {
            shard: target - most[shard]
            for shard, target in targets.items()
            if target - most[shard] >= step or (target and not sent[shard])
        }
        free = pool - sum(most.values())
        for shard in sorted(wants, key=lambda each: (sent[each] > 0, -wants[each])):
            sent[shard] = min(targets[shard], most[shard])  # takes back what it was told to give
            gets = max(0, min(free, wants[shard]))
            sent[shard], free, wants[shard] = sent[shard] + gets, free - gets, wants[shard] - gets
        needed = sum(max(0, each) for each in wants.values()) - sum(
            max(0, most[shard] - sent[shard]) for shard in most if shard not in wants
        )
        needed = max(needed, sum(sent.values()) - pool)  # the limit itself may be lower now
        for shard in sorted(targets, key=lambda each: targets[each] - sent[each]):
            less = min(needed, sent[shard] - targets[shard]) if shard not in wants else 0
            if less > 0:
                sent[shard], needed = sent[shard] - less, needed - less
        return sent

    def _targets(self, which: int, pool: int) -> dict[ShardId, int]:
        """Divide by demand, or by partitions if nothing waits. Each leader with demand gets one, if there are
        enough.
        """
        by = {shard: of.demand if of.whole != NOTHING else 0 for shard, of in self._of.items()}
        spare, found = pool, dict.fromkeys(by, 0)
        if which == 0 and sum(by.values()) <= pool:
            found, spare = dict(by), pool - sum(by.values())
            by = self._weights
        elif not any(by.values()):
            by = self._weights
        else:
            for shard in sorted(by, key=lambda each: -by[each]):
                if by[shard] and spare:
                    found[shard], spare = 1, spare - 1
        total, left = sum(by.values()), spare
        for shard in sorted(by, key=lambda each: by[each]):
            more = left if total == by[shard] else spare * by[shard] // sum(by.values())
            more = min(more, left)
            found[shard], left, total = found[shard] + more, left - more, total - by[shard]
        return found
