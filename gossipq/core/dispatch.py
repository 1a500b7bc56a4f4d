"""Who gets what next: the leader's volatile side of a shard. Rebuilt from the ledger when leadership begins.

Dispatch hands out committed records against credit, remembers who holds them until when, and collects what must be logged
(`take_acks`, `take_leases`). It reads the ledger and never changes it; nothing here may influence apply.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from gossipq import limits
from gossipq.core.deadlines import Deadlines
from gossipq.core.groups import Group, Lease, Part, Subscription, View
from gossipq.core.intervals import Intervals
from gossipq.core.ledger import Ledger
from gossipq.core.payloads import LeaseRow
from gossipq.messages import AtEnd, Message, Range, Ready
from gossipq.types import Offset, Origin, PartitionKey, SessionId

UNKNOWN_NUMBER = -1  #: of a subscription before a restart


class Delivery(NamedTuple):
    """Parts for one subscription, in the order in which they were handed out."""

    origin: Origin
    subscription: int
    lease_ms: int
    parts: list[Part]


class Waiter(NamedTuple):
    """Who waits for an ack to be stored, and what of it was lost to others."""

    origin: Origin
    request_id: int
    lost: list[Range]


class Acks:
    """Ranges of one group and consumer, gathered over a turn."""

    __slots__ = ("ranges", "waiters")

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.waiters: list[Waiter] = []

    def add(self, partition: PartitionKey, first: Offset, end: Offset) -> None:
        if self.ranges and self.ranges[-1][0] == partition and self.ranges[-1][2] == first:
            first = self.ranges.pop()[1]
        self.ranges.append((partition, first, end))


class Dispatch:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.groups: dict[int, Group] = {}
        self.subscriptions: dict[tuple[SessionId, int], Subscription] = {}
        self._readers: dict[PartitionKey, list[Subscription]] = {}
        self._deadlines: Deadlines[Lease] = Deadlines()
        self._dirty: set[int] = set()  # groups that may have something to hand out
        self._dirty_readers: dict[Subscription, None] = {}
        self._acks: dict[tuple[int, str], Acks] = {}
        self._unlogged: dict[View, None] = {}  # views with something for the lazy log
        self.notices: list[tuple[Origin, Message]] = []
        self.delivered = 0  #: records handed out

    # --- sessions, subscriptions -----------------------------------------------------------------------------------

    def rebuild(self, boot_ms: int, leader_ms: int) -> set[SessionId]:
        """Opens every group of the ledger; returns the sessions that hold something."""
        sessions: set[SessionId] = set()
        for partition, cursors in self._ledger.cursors.items():
            for group_id, cursor in cursors.items():
                view = self._view(group_id, partition)
                position = cursor.state.cursor
                high = max([position, *cursor.acked.ends[-1:], *cursor.holds.ends[-1:]])
                for first, end in cursor.acked.missing(position, high):
                    view.returned.set(first, end, 0)
                for first, end, hold in cursor.holds:
                    left_ms = hold.deadline_ms - leader_ms
                    if hold.session and left_ms > 0:
                        sessions.add(hold.session)
                        view.returned.clear(first, end)
                        self._lease(
                            view,
                            first,
                            end,
                            Lease(view, hold.session, UNKNOWN_NUMBER, hold.consumer, hold.attempt, boot_ms),
                            boot_ms + left_ms,
                        )
                    else:
                        view.returned.set(first, end, hold.attempt)
                view.next = high
                view.unlogged.clear()
        self._unlogged.clear()
        return sessions

    def _view(self, group_id: int, partition: PartitionKey) -> View:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(self._ledger.groups[group_id])
        view = group.views.get(partition)
        if view is None:
            cursor = self._ledger.cursors[partition][group_id]
            view = group.views[partition] = View(group, partition, cursor)
        return view

    def subscribe(
        self, subscription: Subscription, group_id: int | None, partitions: list[tuple[PartitionKey, Offset]]
    ) -> None:
        """Adds a member to a group, or a reader at the given positions. Replaces one of the same name."""
        self._detach(subscription.name)
        self.subscriptions[subscription.name] = subscription
        if group_id is None:
            subscription.positions = dict(partitions)
            for partition, _ in partitions:
                self._readers.setdefault(partition, []).append(subscription)
            self._dirty_readers[subscription] = None
            return
        subscription.views = [self._view(group_id, partition) for partition, _ in partitions]
        subscription.group = self.groups[group_id]
        subscription.group.members.append(subscription)
        self._dirty.add(group_id)

    def keep(self, subscription: Subscription, holding: list[Range], boot_ms: int) -> None:
        """After a lost connection: what the client says it holds is its own, unless others hold it; the rest goes back."""
        for view in subscription.views:
            mine = Intervals()
            for partition, first, end in holding:
                if partition == view.partition:
                    mine.add(max(first, view.cursor.state.cursor), min(end, self._ledger.partitions[partition].next))
            for low, high, lease in list(view.leases):
                if lease.session == subscription.session and lease.number in (subscription.number, UNKNOWN_NUMBER):
                    for first, end in mine.missing(low, high):
                        view.leases.clear(first, end)
                        self._close(lease, end - first)
                        self._return(view, first, end, lease.attempt)
            for first, end in mine:
                self._hold_again(subscription, view, first, end, boot_ms)
        self._dirty |= {view.group.id for view in subscription.views}

    def _hold_again(self, subscription: Subscription, view: View, first: Offset, end: Offset, boot_ms: int) -> None:
        """Leases what the leader before handed out and could not log."""
        if end > view.next:
            view.returned.set(view.next, end, 1)
            view.next = end
        for low, high, attempt in view.returned.pop(first, end):
            lease = Lease(view, subscription.session, subscription.number, subscription.consumer, attempt, boot_ms)
            self._lease(view, low, high, lease, boot_ms + subscription.lease_ms)

    def _detach(self, name: tuple[SessionId, int]) -> None:
        old = self.subscriptions.pop(name, None)
        if old is None:
            return
        if old.group is not None:
            old.group.members.remove(old)
            self._dirty.add(old.group.id)
        for partition in old.positions:
            self._readers[partition].remove(old)
        self._dirty_readers.pop(old, None)

    def unsubscribe(self, name: tuple[SessionId, int]) -> None:
        """The subscription ends; what it holds goes back."""
        session, number = name
        self._detach(name)
        self._give_back(lambda lease: lease.session == session and lease.number == number)

    def holds(self, session: SessionId) -> bool:
        """Whether the session has a subscription or a record here."""
        return any(name[0] == session for name in self.subscriptions) or any(
            lease.session == session
            for group in self.groups.values()
            for view in group.views.values()
            for _, _, lease in view.leases
        )

    def end_session(self, session: SessionId) -> None:
        """Everything of a session ends; what it holds goes back."""
        for name in [name for name in self.subscriptions if name[0] == session]:
            self._detach(name)
        self._give_back(lambda lease: lease.session == session)

    def _give_back(self, mine: Callable[[Lease], bool]) -> None:
        for group in self.groups.values():
            for view in group.views.values():
                for first, end, lease in [row for row in view.leases if mine(row[2])]:
                    view.leases.clear(first, end)
                    self._close(lease, end - first)
                    self._return(view, first, end, lease.attempt)

    def drop_partition(self, partition: PartitionKey) -> None:
        """Its topic is gone."""
        for group in self.groups.values():
            view = group.views.pop(partition, None)
            if view is not None:
                self._unlogged.pop(view, None)
                for _, _, lease in view.leases:
                    self._deadlines.cancel(lease)
        for subscription in self.subscriptions.values():
            subscription.views = [view for view in subscription.views if view.partition != partition]
            subscription.positions.pop(partition, None)
        self._readers.pop(partition, None)

    def trim(self) -> None:
        """Retention moved: what left is nobody's any more."""
        for group in self.groups.values():
            for view in group.views.values():
                first = self._ledger.partitions[view.partition].first
                for low, high, lease in view.leases.pop(0, first):
                    self._close(lease, high - low)
                view.returned.clear(0, first)
                view.next = max(view.next, first)

    # --- leases ----------------------------------------------------------------------------------------------------

    def _lease(self, view: View, first: Offset, end: Offset, lease: Lease, deadline_ms: int) -> None:
        lease.deadline_ms = deadline_ms
        lease.open += end - first
        view.leases.set(first, end, lease)
        self._deadlines.set(lease, deadline_ms)
        self._log_later(view, first, end)

    def _close(self, lease: Lease, count: int) -> None:
        lease.open -= count
        if not lease.open:
            self._deadlines.cancel(lease)

    def _return(self, view: View, first: Offset, end: Offset, attempt: int) -> None:
        view.returned.set(first, end, attempt)
        self._log_later(view, first, end)
        self._dirty.add(view.group.id)

    def _log_later(self, view: View, first: Offset, end: Offset) -> None:
        if view.unlogged and view.unlogged[-1][1] == first:
            first = view.unlogged.pop()[0]
        view.unlogged.append((first, end))
        self._unlogged[view] = None

    def next_deadline(self) -> int | None:
        return self._deadlines.next()

    def expire(self, boot_ms: int) -> None:
        """Leases, and pauses before another attempt, that end by now."""
        for lease in self._deadlines.expire(boot_ms):
            view = lease.view
            for first, end, owner in [row for row in view.leases if row[2] is lease]:
                view.leases.clear(first, end)
                self._return(view, first, end, owner.attempt)

    def _held(
        self, view: View, session: SessionId, low: Offset, high: Offset, lost: list[Range]
    ) -> list[tuple[Offset, Offset, Lease]]:
        """Takes the leases of `session` in [low, high) out; what others hold stays and is added to `lost`."""
        mine = []
        for first, end, lease in view.leases.overlap(low, high):
            if lease.session and lease.session != session:
                lost.append((view.partition, first, end))
            else:
                mine.append((first, end, lease))
        for first, end, lease in mine:
            view.leases.clear(first, end)
            self._close(lease, end - first)
        return mine

    def ack(self, subscription: Subscription, ranges: list[Range], origin: Origin, request_id: int) -> None:
        """Done, unless somebody else holds it by now. The last known holder may be late (lease over, leader new)."""
        group = subscription.group
        assert group is not None, "readers are refused before"
        acks = self._acks.setdefault((group.id, subscription.consumer), Acks())
        lost: list[Range] = []
        for partition, low, high in ranges:
            view = group.views.get(partition)
            if view is None:
                continue
            low, high = max(low, view.cursor.state.cursor), min(high, self._ledger.partitions[partition].next)
            if low >= high:
                continue
            if high > view.next:  # handed out by a leader before this one, and not logged
                if low > view.next:
                    view.returned.set(view.next, low, 0)
                view.next = high
            kept = len(lost)
            self._held(view, subscription.session, low, high, lost)
            for _, first, end in lost[kept:]:
                self._done(view, acks, low, first)
                low = end
            self._done(view, acks, low, high)
            self._dirty.add(group.id)
        acks.waiters.append(Waiter(origin, request_id, lost))

    def _done(self, view: View, acks: Acks, first: Offset, end: Offset) -> None:
        if first < end:
            if view.returned:
                view.returned.clear(first, end)
            acks.add(view.partition, first, end)

    def nack(self, subscription: Subscription, ranges: list[Range], delay_ms: int, boot_ms: int) -> list[Range]:
        """Gives back what the session holds, to come again after a pause. Returns what it did not hold any more."""
        lost: list[Range] = []
        for view, low, high in self._views(subscription, ranges):
            for first, end, lease in self._held(view, subscription.session, low, high, lost):
                if delay_ms > 0:
                    pause = Lease(view, b"", UNKNOWN_NUMBER, "", lease.attempt, boot_ms)
                    self._lease(view, first, end, pause, boot_ms + delay_ms)
                else:
                    self._return(view, first, end, lease.attempt)
        return lost

    def extend(self, subscription: Subscription, ranges: list[Range], lease_ms: int, boot_ms: int) -> list[Range]:
        """Moves deadlines, up to the longest a record may be held. Returns what the session does not hold any more."""
        lost: list[Range] = []
        for view, low, high in self._views(subscription, ranges):
            held = self._held(view, subscription.session, low, high, lost)
            at = low
            for first, end, old in held:
                if at < first:
                    lost.append((view.partition, at, first))
                at = end
                lease = Lease(view, subscription.session, subscription.number, subscription.consumer, old.attempt, old.since_ms)
                self._lease(view, first, end, lease, min(boot_ms + lease_ms, old.since_ms + limits.LEASE_TOTAL_MS_MAX))
            if at < high:
                lost.append((view.partition, at, high))
        return lost

    def _views(self, subscription: Subscription, ranges: list[Range]) -> Iterator[tuple[View, Offset, Offset]]:
        assert subscription.group is not None, "readers are refused before"
        for partition, low, high in ranges:
            view = subscription.group.views.get(partition)
            if view is not None:
                yield view, max(low, view.cursor.state.cursor), high

    # --- what must be logged ---------------------------------------------------------------------------------------

    def take_acks(self) -> dict[tuple[int, str], Acks]:
        taken, self._acks = self._acks, {}
        return taken

    @property
    def unlogged(self) -> bool:
        """Whether something waits for the lazy log."""
        return bool(self._unlogged)

    def take_leases(self, boot_ms: int, leader_ms: int) -> dict[int, list[LeaseRow]]:
        """Rows per group of what is still leased or given back; what was acked meanwhile costs nothing."""
        taken: dict[int, list[LeaseRow]] = {}
        views, self._unlogged = self._unlogged, {}
        for view in views:
            rows = taken.setdefault(view.group.id, [])
            unlogged, view.unlogged = view.unlogged, []
            for low, high in unlogged:
                for first, end, lease in view.leases.overlap(low, high):
                    deadline_ms = leader_ms + lease.deadline_ms - boot_ms
                    rows.append(LeaseRow(view.partition, first, end, lease.session, deadline_ms, lease.attempt, lease.consumer))
                for first, end, attempt in view.returned.overlap(low, high):
                    rows.append(LeaseRow(view.partition, first, end, b"", 0, attempt))
        return {group_id: rows for group_id, rows in taken.items() if rows}

    # --- handing out -----------------------------------------------------------------------------------------------

    def wake(self, partition: PartitionKey) -> None:
        """New records are committed in this partition."""
        for group_id in self._ledger.cursors.get(partition, ()):
            self._dirty.add(group_id)
        for subscription in self._readers.get(partition, ()):
            self._dirty_readers[subscription] = None

    def lend(self, subscription: Subscription, records: int, size: int) -> None:
        subscription.credit_records = min(subscription.credit_records + records, limits.CREDIT_MAX)
        subscription.credit_bytes = min(subscription.credit_bytes + size, limits.CREDIT_BYTES_MAX)
        subscription.told_ready = False
        if subscription.group is None:
            self._dirty_readers[subscription] = None
        else:
            self._dirty.add(subscription.group.id)

    def run(self, boot_ms: int) -> list[Delivery]:
        """Hands out what credit allows."""
        deliveries: list[Delivery] = []
        dirty, self._dirty = self._dirty, set()
        for group_id in dirty:
            group = self.groups.get(group_id)
            if group is not None and group.members:
                self._serve(group, boot_ms, deliveries)
        readers, self._dirty_readers = self._dirty_readers, {}
        for subscription in readers:
            while subscription.has_credit and (part := self._read(subscription)):
                self._add(deliveries, subscription, part)
            self._notify(subscription)
        return deliveries

    def _serve(self, group: Group, boot_ms: int, deliveries: list[Delivery]) -> None:
        """Round robin over the members that lend credit; a small rest is shared among them."""
        members = group.members
        idle = 0
        lending = sum(member.has_credit for member in members)
        while lending and idle < len(members):
            member = members[0]
            members.rotate(-1)
            part = self._take(member, lending, boot_ms) if member.has_credit else None
            if part is None:
                idle += 1
                continue
            idle = 0
            self._add(deliveries, member, part)
            if not member.has_credit:
                lending = sum(member.has_credit for member in members)
        for member in members:
            self._notify(member)

    def _take(self, member: Subscription, sharers: int, boot_ms: int) -> Part | None:
        """The next part for a member: what came back first, then what is new, inside the window."""
        for _ in range(len(member.views)):
            view = member.views[0]
            if len(member.views) > 1:
                member.views.append(member.views.pop(0))
            state = self._ledger.partitions[view.partition]
            if view.returned.starts:
                first, end, attempt = view.returned.starts[0], view.returned.ends[0], view.returned.values[0]
            else:
                first, attempt = view.next, 0
                end = min(state.next, view.cursor.state.cursor + member.group_window)
            if first >= end:
                continue
            part = self._part(
                member, view.partition, first, min(end, first + max(1, -(-(end - first) // sharers))), attempt + 1
            )
            end = part.end
            if attempt or view.returned.starts:
                view.returned.clear(view.returned.starts[0], end)
            else:
                view.next = end
            self._hold(member, view, first, end, attempt + 1, boot_ms)
            return part
        return None

    def _hold(self, member: Subscription, view: View, first: Offset, end: Offset, attempt: int, boot_ms: int) -> None:
        """Leases [first, end); grows the last lease when it is of this turn."""
        leases, deadline_ms = view.leases, boot_ms + member.lease_ms
        if leases.ends and leases.ends[-1] == first:
            last = leases.values[-1]
            if last.deadline_ms == deadline_ms and last.attempt == attempt and last.owner == member.name:
                leases.ends[-1] = end
                last.open += end - first
                self._log_later(view, first, end)
                return
        lease = Lease(view, member.session, member.number, member.consumer, attempt, boot_ms)
        self._lease(view, first, end, lease, deadline_ms)

    def undelivered(self, delivery: Delivery) -> None:
        """The connection did not take it. A reader goes on from there; a group's records come back with the lease."""
        for subscription in self.subscriptions.values():
            name = subscription.origin, subscription.number
            if subscription.group is None and name == (delivery.origin, delivery.subscription):
                subscription.untake(delivery.parts)
                self._dirty_readers[subscription] = None

    def _read(self, subscription: Subscription) -> Part | None:
        for partition, position in subscription.positions.items():
            state = self._ledger.partitions[partition]
            position = max(position, state.first)
            if position < state.next:
                part = self._part(subscription, partition, position, state.next, 1)
                subscription.positions[partition] = part.end
                return part
        return None

    def _part(self, subscription: Subscription, partition: PartitionKey, first: Offset, end: Offset, attempt: int) -> Part:
        """As much of the slice at `first` as the credit and `end` allow, at least one record."""
        at = self._ledger.slice_at(partition, first)
        assert at is not None, "what is committed has a slice row"
        record_bytes = -(-at.size // at.batch_count)
        count = min(at.end, end) - first
        count = min(count, subscription.credit_records, max(1, subscription.credit_bytes // record_bytes))
        charge = count * record_bytes
        subscription.credit_records -= count
        subscription.credit_bytes -= charge
        self.delivered += count
        return Part(partition, first, at.index, at.first + first - at.offset, count, count == at.batch_count, attempt, charge)

    def _add(self, deliveries: list[Delivery], subscription: Subscription, part: Part) -> None:
        subscription.told_end = False
        last = deliveries[-1] if deliveries else None
        if last is not None and last.origin == subscription.origin and last.subscription == subscription.number:
            subscription.frame_bytes += part.charge
            if subscription.frame_bytes <= limits.DELIVER_BYTES_MAX:
                last.parts.append(part)
                return
        subscription.frame_bytes = part.charge
        deliveries.append(Delivery(subscription.origin, subscription.number, subscription.lease_ms, [part]))

    def _notify(self, subscription: Subscription) -> None:
        """READY when records wait and nothing is lent; AT_END when everything readable is handed out."""
        waiting = subscription.waiting(self._ledger)
        if waiting and not subscription.has_credit and not subscription.told_ready:
            subscription.told_ready = True
            self.notices.append((subscription.origin, Ready(subscription.number)))
        elif not waiting and subscription.notify_end and not subscription.told_end:
            subscription.told_end = True
            self.notices.append((subscription.origin, AtEnd(subscription.number, subscription.ends(self._ledger))))
