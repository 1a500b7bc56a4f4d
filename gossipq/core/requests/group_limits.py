"""Limits of groups whose topics lie in several shards: `LimitDivision` divides them, the leaders report.

A leader without such groups reports nothing and has no timer. `delivery.limit_division` has the rules.
"""

from gossipq import limits
from gossipq.core.delivery import (
    NOTHING_HELD,
    Dispatch,
    Group,
    LimitDivision,
    LimitPart,
    LimitUse,
    Pair,
    PartTold,
)
from gossipq.core.desk import Desk, Request
from gossipq.core.ledger import Ledger
from gossipq.peer_messages import LimitTold, LimitUsed

REPORT_MS = 100  #: between two reports of a leader, if something changed
SAME_MS = limits.SECOND_MS  #: between two equal reports
FORGET_MS = limits.MINUTE_MS  #: without a report for this time, a division is forgotten

GroupName = tuple[int, str]  #: topic id, group


class LimitRequests:
    def __init__(self, desk: Desk, ledger: Ledger, dispatch: Dispatch) -> None:
        self._desk = desk
        self._ledger = ledger
        self._dispatch = dispatch
        self._parts: dict[GroupName, LimitPart] = {}
        self._used: dict[GroupName, int] = {}  # boot time at which each part was used last
        self._reported: dict[GroupName, tuple[LimitUse, int]] = {}  # the last report, and its boot time
        #: as the leader of the first shard of a topic; and boot times of the last reports
        self._divisions: dict[GroupName, LimitDivision] = {}
        self._heard: dict[GroupName, int] = {}
        self._feed = dispatch.flow_feed
        self._done_ms = 0  # boot time of the last tick with work
        self._is_busy = True  # some records wait or are in flight

    def next_deadline(self) -> int | None:
        if not (self._feed.divided or self._divisions or self._parts):
            return None
        return self._done_ms + (REPORT_MS if self._is_busy or self._feed.wants_more else SAME_MS)

    def tick(self) -> None:
        """Report what the groups of this shard have, and forget old divisions and parts."""
        desk, due_ms = self._desk, self.next_deadline()
        if due_ms is None or desk.boot_ms < due_ms:
            return
        self._done_ms = desk.boot_ms
        self._is_busy = False
        self._feed.wants_more = False
        for group in self._feed.divided.values():
            name = group.state.topic_id, group.state.name
            self._apply(name, group)
            use = self._use(name, group)
            self._is_busy = self._is_busy or use.demand > 0
            last = self._reported.get(name)
            if last is None or last[0] != use or desk.boot_ms >= last[1] + SAME_MS:
                self._report(name, use)
        for name in [each for each, at_ms in self._heard.items() if at_ms < desk.boot_ms - FORGET_MS]:
            del self._heard[name], self._divisions[name]
        # the divider of a group that was removed can name it until it forgets its division
        for name in [each for each, at_ms in self._used.items() if at_ms < desk.boot_ms - 2 * FORGET_MS]:
            del self._used[name], self._parts[name]
            self._reported.pop(name, None)

    def serve(self, request: Request) -> None:
        """Take a report, or what the divider says. A message of a topic that is not known here is dropped:
        it will be repeated.
        """
        message: LimitUsed | LimitTold = request.message
        topic = self._ledger.topics.get(message.topic_id)
        if topic is None:
            return
        name = message.topic_id, message.group
        if isinstance(message, LimitUsed):
            if topic.shards[0] == self._desk.shard:
                self._divide(name, topic.shards, message)
        else:
            self._hear(name, message)

    def _divide(self, name: GroupName, shards: list[int], message: LimitUsed) -> None:
        desk = self._desk
        division = self._divisions.get(name)
        if division is None:
            # numbers rise also if the division was forgotten meanwhile
            division = LimitDivision(desk.replica.hard.term, shards, desk.boot_ms)
            self._divisions[name] = division
        self._heard[name] = desk.boot_ms
        use = LimitUse(
            shard=message.shard,
            term=message.term,
            follows=(message.follows_term, message.follows),
            whole=(message.concurrency, message.pace),
            part=(message.has_concurrency, message.has_pace),
            demand=message.demand,
        )
        for told in division.hear(use):
            part = [] if told.part is None else list(told.part)
            answer = LimitTold(
                topic_id=name[0],
                group=name[1],
                term=told.term,
                number=told.number,
                leads=told.leads,
                part=part,
            )
            desk.tell(told.shard, answer)

    def _hear(self, name: GroupName, message: LimitTold) -> None:
        group = self._group(name)
        part = self._part(name)
        pair = (message.part[0], message.part[1]) if len(message.part) > 1 else None
        told = PartTold(self._desk.shard, message.term, message.number, pair, message.leads)
        if part.hear(told, self._desk.replica.hard.term):
            if group is not None:
                self._apply(name, group)
            self._report(name, self._use(name, group))

    def _part(self, name: GroupName) -> LimitPart:
        self._used[name] = self._desk.boot_ms
        return self._parts.setdefault(name, LimitPart())

    def _group(self, name: GroupName) -> Group | None:
        state = self._ledger.group(*name)
        group = self._dispatch.groups.get(state.id) if state is not None else None
        return group if group is not None and group.limits is not None and group.limits.shards > 1 else None

    def _use(self, name: GroupName, group: Group | None) -> LimitUse:
        part, demand, whole = self._part(name), 0, NOTHING_HELD
        if group is not None and group.limits is not None:
            whole, demand = group.limits.whole, group.in_flight
            for view in group.views.values() if group.members else ():
                if view.flows is not None:
                    left = self._ledger.partitions[view.partition].next - view.flows.next
                    demand += max(0, left) + sum([level.count for level in view.flows.levels])
        term = self._desk.replica.hard.term
        return LimitUse(
            shard=self._desk.shard,
            term=term,
            follows=part.follows,
            whole=whole,
            part=part.at_most(_in_use(group)),
            demand=demand,
        )

    def _report(self, name: GroupName, use: LimitUse) -> None:
        self._reported[name] = use, self._desk.boot_ms
        (topic_id, group), (follows_term, follows) = name, use.follows
        (concurrency, pace), (has_concurrency, has_pace) = use.whole, use.part
        message = LimitUsed(
            topic_id=topic_id,
            group=group,
            shard=use.shard,
            term=use.term,
            follows_term=follows_term,
            follows=follows,
            concurrency=concurrency,
            pace=pace,
            has_concurrency=has_concurrency,
            has_pace=has_pace,
            demand=use.demand,
        )
        self._desk.tell(self._ledger.topics[topic_id].shards[0], message)

    def _apply(self, name: GroupName, group: Group) -> None:
        """Let a group have its part from now on."""
        self._feed.allot(group, self._part(name).part or NOTHING_HELD)


def _in_use(group: Group | None) -> Pair:
    """Return what the records in flight of a group need beside its floor."""
    if group is None or group.limits is None:
        return NOTHING_HELD
    return max(0, group.in_flight - group.limits.floor[0]), 0
