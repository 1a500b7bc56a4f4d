"""Removal of unused groups: a leader removes a group when its topic says so (`group_idle_ms`).

A group is idle while it has no member and its positions do not change. The leader measures this
time since it began to lead. A takeover starts the measurement again, so a group may be removed late
but never early. Unfinished work keeps a group: leased records, records that wait for another
attempt or for others of their key, and dead letters.

A consumer may subscribe while the removal is on its way to the log. The removal still happens,
and the subscription then creates the group again at its old position (`ConsumeRequests`). The
consumer does not notice.
"""

from typing import NamedTuple

from gossipq import limits
from gossipq.core.delivery import Dispatch
from gossipq.core.desk import Desk
from gossipq.core.ledger import GroupState, Ledger
from gossipq.core.storage import log, payloads
from gossipq.types import partition_key

LOOK_MS = 5 * limits.SECOND_MS  #: time between two looks at all groups
CURSORS_PER_TURN = 1_024  #: cursors that one turn looks at


class _Rest(NamedTuple):
    """A group's position, and the boot time since which it has not changed. Leader time would be
    wrong here: it may be corrected by days at once, and the group would be removed early.
    """

    where: tuple[int, ...]
    since_ms: int


class IdleGroups:
    def __init__(self, desk: Desk, ledger: Ledger, dispatch: Dispatch) -> None:
        self._desk = desk
        self._ledger = ledger
        self._dispatch = dispatch
        self._resting: dict[int, _Rest] = {}  #: by group id
        self._leaving: set[int] = set()  #: ids of groups whose removal is on its way to the log
        self._look_ms = 0
        self._left: list[int] = []  #: ids of groups that this look has not reached yet

    def touch(self, group_id: int) -> bool:
        """Starts the idle time of a group again, because a consumer subscribes. Returns False if
        its removal is on its way to the log.
        """
        self._resting.pop(group_id, None)
        return group_id not in self._leaving

    def goes_ms(self, group_id: int) -> int:
        """Milliseconds until an unused group is removed; 0 if it stays or is in use."""
        rest, group = self._resting.get(group_id), self._ledger.groups.get(group_id)
        idle_ms = self._option(group) if group is not None else 0
        if rest is None or not idle_ms:
            return 0
        return max(1, rest.since_ms + idle_ms - self._desk.boot_ms)

    def next_deadline(self) -> None:
        """It has no deadline: it looks at groups when another room is due, once a second."""

    def tick(self) -> None:
        """Looks at some of the groups, if it is time."""
        if not self._left:
            if self._desk.boot_ms < self._look_ms:
                return
            self._look_ms = self._desk.boot_ms + LOOK_MS
            self._left = [group.id for group in self._ledger.groups.values() if self._option(group)]
            self._resting = {each: self._resting[each] for each in self._left if each in self._resting}
        looked = 0
        while self._left and looked < CURSORS_PER_TURN:
            group = self._ledger.groups.get(self._left.pop())
            if group is not None and (idle_ms := self._option(group)):
                looked += self._look(group, idle_ms)

    def _look(self, group: GroupState, idle_ms: int) -> int:
        """Looks at one group and returns how many cursors that took."""
        topic = self._ledger.topics[group.topic_id]
        found = (
            self._ledger.cursors.get(partition_key(topic.id, number), {}).get(group.id)
            for number in range(topic.config.partitions)
        )
        states = [cursor.state for cursor in found if cursor is not None]
        live = self._dispatch.groups.get(group.id)
        used = live is not None and (
            live.members or any(view.window.in_flight for view in live.views.values())
        )
        unfinished = any(state.retrying or state.parked or state.dead for state in states)
        where = tuple(at for state in states for at in (state.cursor, state.acked, state.redelivered))
        rest = self._resting.get(group.id)
        if used or unfinished or group.id in self._leaving:
            self._resting.pop(group.id, None)
        elif rest is None or rest.where != where:
            self._resting[group.id] = _Rest(where, self._desk.boot_ms)
        elif self._desk.boot_ms >= rest.since_ms + idle_ms:
            del self._resting[group.id]
            payload = payloads.encode(payloads.Regroup(group.id, []))
            index = self._desk.propose(log.REGROUP, payload, promise=False)
            self._leaving.add(group.id)
            self._desk.pending.add(index, lambda asker, index, outcome: self._leaving.discard(group.id))
            self._desk.warn(f"group {group.name} of topic {topic.name} goes: unused for {idle_ms} ms")
        return topic.config.partitions

    def _option(self, group: GroupState) -> int:
        return self._ledger.topics[group.topic_id].config.group_idle_ms
