"""Dispatch decides which consumer gets which records next. It is the volatile side of a shard's
leader, rebuilt from the ledger when leadership begins.

Dispatch owns the parts: `selector` chooses records within the credit of a member, `holdings`
remembers which session holds them until when, `settlement` serves the requests of holders. It
collects changes that must be logged. Dispatch reads the ledger and never changes it; nothing here
may influence apply.
"""

from bisect import bisect_right
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec

from gossipq import limits
from gossipq.core.delivery import tries
from gossipq.core.delivery.attempts import Attempts
from gossipq.core.delivery.consumers import (
    EXCLUSIVE,
    KEY_ORDERED,
    UNKNOWN_NUMBER,
    DeliveryTurn,
    Group,
    Part,
    PartitionView,
    Subscription,
    place_of,
)
from gossipq.core.delivery.expiry import Expiry
from gossipq.core.delivery.flow_backlog import FlowBacklogs
from gossipq.core.delivery.flow_feed import FlowFeed
from gossipq.core.delivery.flow_pauses import FlowPauses
from gossipq.core.delivery.flows import order_of
from gossipq.core.delivery.holdings import Holdings
from gossipq.core.delivery.key_order import KeyOrder
from gossipq.core.delivery.keys import Keys
from gossipq.core.delivery.numbers import Numbers
from gossipq.core.delivery.prefetch import Prefetch
from gossipq.core.delivery.readback import Readback
from gossipq.core.delivery.selector import Handed, Selector
from gossipq.core.delivery.settlement import Settlement
from gossipq.core.delivery.surplus import SHARED, may_be_uneven, uneven
from gossipq.core.delivery.window import Lease, ReadyRecords
from gossipq.core.ledger import AT_ONCE_MS, Ledger, key_of
from gossipq.core.storage import Deadlines, FailRow, Intervals, log, payloads
from gossipq.messages import AtEnd, Cancelled, ReadyMessage, Share
from gossipq.rates import Payer
from gossipq.types import Index, Offset, Origin, PartitionKey, SessionId, topic_id_of
from gossipq.values import GroupConfig, Message, Range

NO_LEASE_MS = 0
MOVES = (log.ACK, log.RESULT, log.FAIL, log.PARK, log.DEAD, log.REPLAY, log.PURGE, log.REQUEUE)


def voids_among(held: dict[PartitionKey, Intervals], ledger: Ledger) -> list[Range]:
    """Return the void records among those that a client claims."""
    found: list[Range] = []
    for partition in sorted(held.keys() & ledger.voids.keys()):
        voids = ledger.voids[partition]
        found += [(partition, *part) for claimed in held[partition] for part in voids.overlap(*claimed)]
    return found


class Delivery(NamedTuple):
    """Parts for one subscription, in order of delivery. A `late` one waits
    until an entry is stored.
    """

    origin: Origin
    subscription: int
    lease_ms: int
    parts: list[Part]
    late: Subscription | None = None
    run: int = 0  #: number of the delivery
    #: the subscription to inform if the connection did not take it
    refund_to: Subscription | None = None
    plain: bool = False  #: the records are sent opened


class Joining(msgspec.Struct):
    """A subscription that begins when entry `index` is stored, and the credit
    granted after its SUBSCRIBE.
    """

    index: Index
    credit_records: int = 0
    credit_bytes: int = 0


class Dispatch:
    """The members of a shard's groups and its readers, and what entries change for them. Everything
    else is decided by its parts, each of which knows those made before it.
    """

    def __init__(self, ledger: Ledger, cluster: GroupConfig) -> None:
        self._ledger = ledger
        self.turn = DeliveryTurn()
        self.attempts = Attempts(ledger, cluster)
        self.key_order = KeyOrder(ledger, self.turn)
        self.holdings = Holdings(self.turn, self.key_order)
        self.settlement = Settlement(ledger, self.turn, self.holdings, self.key_order)
        self.readback = Readback(self.turn, self.holdings, self.key_order)
        flow_feed = self.flow_feed = FlowFeed(ledger, self.turn)
        self.selector = Selector(
            ledger,
            self.turn,
            self.attempts,
            self.key_order,
            self.holdings,
            self.settlement,
            self.readback,
            flow_feed,
        )
        self.flow_pauses = FlowPauses(self.turn, flow_feed)
        self.backlogs = FlowBacklogs(ledger, self.turn, flow_feed, self._view)
        self.groups: dict[int, Group] = {}
        self.subscriptions: dict[tuple[SessionId, int], Subscription] = {}
        #: subscriptions that begin when an entry is stored; of each name the newest
        self.joining: dict[tuple[SessionId, int], Joining] = {}
        self.notices: list[tuple[Origin, Message]] = []
        #: subscription numbers of each session, including those that have not begun
        self.numbers = Numbers()
        self._readers: dict[PartitionKey, list[Subscription]] = {}
        self._views: dict[PartitionKey, dict[int, PartitionView]] = {}  # by group id
        self._consumed: dict[PartitionKey, dict[int, None]] = {}  # ids of groups with members
        self._dirty_readers: dict[Subscription, None] = {}
        #: session -> subscriptions of groups that do not tell what they hold
        self._automatics: dict[SessionId, dict[tuple[SessionId, int], None]] = {}
        #: groups to look at for members with too many records; boot time
        self._uneven: Deadlines[int] = Deadlines()
        self.expiry = Expiry(ledger, self.turn, self.holdings)
        self._cut = False  #: the last run was cut short
        self._last: Index = -1  #: id of the last group that was served

    @property
    def unfinished(self) -> bool:
        """True if some work was left for another turn."""
        return bool(
            self.holdings.failed
            or self.selector.parking
            or self.expiry.is_behind
            or self._cut
            or self.turn.more
        )

    @property
    def awake(self) -> bool:
        """True if `run` has work to do, or if notices wait."""
        dirty = self.turn.dirty or self.holdings.relieved
        return bool(dirty or self._dirty_readers or self.notices or self.unfinished)

    def begin(self, boot_ms: int, leader_ms: int, timer_ms: int) -> None:
        """Sets the clocks of this turn."""
        self.turn.boot_ms = boot_ms
        self.turn.leader_ms = leader_ms
        self.turn.timer_ms = timer_ms

    def rebuild(self, boot_ms: int, leader_ms: int, timer_ms: int) -> set[SessionId]:
        """Opens every group of the ledger; returns the sessions that hold records."""
        self.begin(boot_ms, leader_ms, timer_ms)
        sessions: set[SessionId] = set()
        for partition, cursors in self._ledger.cursors.items():
            for group_id in cursors:
                sessions |= self._reopen(self._view(group_id, partition), boot_ms, timer_ms)
                self._view(group_id, partition).empty_buckets(boot_ms)
        self.holdings.logged()
        return sessions

    def _reopen(self, view: PartitionView, boot_ms: int, timer_ms: int) -> set[SessionId]:
        cursor, sessions = view.cursor, set()
        if cursor.pauses:
            self.flow_pauses.restore(view)
        position = cursor.state.cursor
        high = max([position, *cursor.passed.ends[-1:]])
        # behind the window, records have expired; those between them were never delivered
        high = min(high, cursor.filled_to(view.group.state.config.in_flight_max))
        high = max([high, *cursor.holds.ends[-1:]])
        if view.flows is not None:
            high = position  # records are delivered in any order, so those between others stay new
        window = view.window
        for first, end in cursor.passed.missing(position, high):
            window.move(first, end, ReadyRecords(0))
        for first, end, hold in cursor.holds:
            left_ms = hold.deadline_ms - timer_ms
            if hold.session and left_ms > 0:
                sessions.add(hold.session)
                window.move(first, end, ReadyRecords(0))
                lease = Lease(view, hold.session, UNKNOWN_NUMBER, hold.consumer, hold.attempt, boot_ms)
                lease.started = hold.started
                self.holdings.lease(view, first, end, lease, boot_ms + left_ms)
                self.key_order.take_keys(view, first, end, lease)
            else:
                for low, high_ in cursor.fresh(first, end):
                    window.move(low, high_, ReadyRecords(tries.after(hold.attempt, hold.started)))
        for first, end in cursor.passed.overlap(high, max([high, *cursor.passed.ends[-1:]])):
            for low, high_ in window.new(first, end):  # a record of a row may be held
                window.move(low, high_, None)
        window.skip_to(high)
        view.inherited = min(self._ledger.partitions[view.partition].next, view.window_end)
        if cursor.exceptional:
            self.readback.set_retry_deadline(view, 0)
        if view.keys is not None:
            self.key_order.reopen_keys(view)
        return sessions

    def _view(self, group_id: int, partition: PartitionKey) -> PartitionView:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(self._ledger.groups[group_id])
        view = group.views.get(partition)
        if view is None:
            cursor = self._ledger.cursors[partition][group_id]
            view = group.views[partition] = PartitionView(group, partition, cursor)
            self.selector.flow_feed.index(view)
            self._views.setdefault(partition, {})[group_id] = view
        return view

    def joins(self, name: tuple[SessionId, int], index: Index, payers: tuple[Payer, ...] = ()) -> None:
        """Adds a subscription, charged to `payers`, that begins when that entry is stored.
        Until then the subscription that it replaces gets no records: they would be taken back
        while the client handles them.
        """
        self.joining[name] = Joining(index)
        self.numbers.add(*name, payers)
        old = self.subscriptions.get(name)
        if old is not None:
            old.credit_records, old.ready_sent = 0, True
            if old.group is not None:
                old.group.file(old)

    def subscribe(
        self,
        subscription: Subscription,
        group_id: int | None,
        partitions: list[tuple[PartitionKey, Offset]],
        payers: tuple[Payer, ...] = (),
    ) -> None:
        """Adds a member to a group, or a reader at the given positions. It replaces a
        subscription of the same name and takes over its records; if that one was of
        another group, it ends first.
        """
        self.joining.pop(subscription.name, None)
        old = self.subscriptions.get(subscription.name)
        mine = self.groups.get(group_id) if group_id is not None else None
        if old is not None and (old.group is None or old.group is not mine):
            self._detach(subscription.name)
            self.holdings.end_subscription(subscription.name)
        self._not_automatic(subscription.name)
        self.subscriptions[subscription.name] = subscription
        self.numbers.add(*subscription.name, payers)
        if group_id is None:
            subscription.positions = dict(partitions)
            for partition, _ in partitions:
                self._readers.setdefault(partition, []).append(subscription)
            self._dirty_readers[subscription] = None
            return
        subscription.views = [self._view(group_id, partition) for partition, _ in partitions]
        group = subscription.group = self.groups[group_id]
        group.members[subscription.name] = subscription
        if subscription.auto:
            self._automatics.setdefault(subscription.session, {})[subscription.name] = None
        self._bound(subscription, group, old)
        group.file(subscription)
        self._members_changed(group)

    def _bound(self, member: Subscription, group: Group, old: Subscription | None) -> None:
        """Bounds the records that a new member may hold unstarted. A fetch gets what it asks for.
        A consumer that does not tell which records have started is not bounded: one that collects
        records before it acks them would wait for ever.
        """
        if group.state.config.mode != SHARED or not member.ack or member.is_silent or member.fetches:
            return
        member.prefetch = old.prefetch if old is not None and old.group is group else None
        if old is None or member.prefetch is None:
            member.prefetch = Prefetch(self._started(member), self.turn.boot_ms)
        else:
            member.prefetch.shift(-old.acked - old.failed)  # the new one has finished nothing
        self._adapt(member, member.prefetch)

    def _started(self, member: Subscription) -> int:
        owned = self.holdings.owned_by(member.name)
        return 0 if owned is None else owned.started

    def _adapt(self, member: Subscription, prefetch: Prefetch) -> None:
        """Adapts the bound of a member to its work, and counts anew what it may get."""
        owned = self.holdings.owned_by(member.name)
        started, unstarted = (0, 0) if owned is None else (owned.started, owned.unstarted)
        prefetch.adapt(member.acked + member.failed + started, self.turn.boot_ms)
        member.room = prefetch.room(unstarted)
        if owned is not None:
            owned.resume_at = -1 if member.room > 0 else prefetch.resume_at

    def _relieve(self) -> None:
        """Members that had no room get records again."""
        relieved, self.holdings.relieved = self.holdings.relieved, {}
        for name in relieved:
            member = self.subscriptions.get(name)
            if member is not None and member.prefetch is not None and member.group is not None:
                self._adapt(member, member.prefetch)
                member.group.file(member)
                self.turn.dirty.add(member.group.id)

    def _members_changed(self, group: Group) -> None:
        self.turn.dirty.add(group.id)
        for view in group.views.values():
            self.readback.wake_lanes(view)
            consumed = self._consumed.setdefault(view.partition, {})
            if group.members:
                consumed[group.id] = None
            else:
                consumed.pop(group.id, None)

    def keep(self, subscription: Subscription, holding: list[Range], boot_ms: int, lease_ms: int) -> None:
        """After a lost connection: takes the client's claim of records that it holds."""
        held: dict[PartitionKey, Intervals] = {}
        for partition, first, end in holding:
            if (state := self._ledger.partitions.get(partition)) is not None:
                held.setdefault(partition, Intervals()).add(first, min(end, state.next))
        started = self._started(subscription)
        for view in subscription.views:
            self.settlement.keep_claimed(
                subscription, view, held.get(view.partition, Intervals()), boot_ms, lease_ms
            )
            self.turn.dirty.add(view.group.id)
        if subscription.cancels and (gone := voids_among(held, self._ledger)):
            # an earlier leader may have cancelled them without telling it
            self.notices.append((subscription.origin, Cancelled(subscription.number, gone)))
        if subscription.prefetch is not None and subscription.group is not None:
            claimed = self._started(subscription) - started
            # claimed records began before, so they do not count again; records that went back are not counted
            subscription.prefetch.shift(max(0, claimed))
            self._adapt(subscription, subscription.prefetch)
            subscription.group.file(subscription)

    def _detach(self, name: tuple[SessionId, int]) -> None:
        old = self.subscriptions.pop(name, None)
        if old is None:
            return
        self._not_automatic(name)
        if old.group is not None:
            old.group.leave(old)
            self._members_changed(old.group)
        for partition in old.positions:
            self._readers[partition].remove(old)
            if not self._readers[partition]:
                del self._readers[partition]
        self._dirty_readers.pop(old, None)

    def _leaves(self, name: tuple[SessionId, int]) -> None:
        """Ends a subscription whose group is gone. A number that is joining again stays counted."""
        self._detach(name)
        if name not in self.joining:
            self.numbers.remove(*name)

    def _not_automatic(self, name: tuple[SessionId, int]) -> None:
        mine = self._automatics.get(name[0])
        if mine is not None:
            mine.pop(name, None)
            if not mine:
                del self._automatics[name[0]]

    def unsubscribe(self, name: tuple[SessionId, int]) -> None:
        """Ends a subscription, even one that has not begun; its records are given back."""
        self.joining.pop(name, None)
        self._detach(name)
        self.numbers.remove(*name)
        self.holdings.end_subscription(name)

    def holds(self, session: SessionId) -> bool:
        """True if the session has a subscription or a record here."""
        return session in self.numbers or self.holdings.holds_any(session)

    def sessions(self) -> set[SessionId]:
        """Return the sessions that have a subscription or a record here."""
        return {*self.numbers.sessions(), *self.holdings.holders()}

    def of_session(self, session: SessionId) -> list[tuple[Subscription, int, int]]:
        """The session's subscriptions, how many records each of them holds, and since
        which boot time; 0 = none.
        """
        held = self.holdings.held_in(session)
        found = [self.subscriptions.get((session, number)) for number in self.numbers.of(session)]
        return [(each, *held.get(each.number, (0, 0))) for each in found if each is not None]

    def end_session(self, session: SessionId, silent: bool) -> None:
        """Ends everything of a session, and gives its records back. It
        ended itself, or fell silent.
        """
        for number in self.numbers.end(session):
            self.joining.pop((session, number), None)
            self._detach((session, number))
        self.holdings.end_session(session, "its consumer fell silent" if silent else "")

    def drop_topic(self, topic_id: int) -> set[Origin]:
        """A topic is gone, and its groups. Returns the connections that subscribed to it."""
        origins = {
            subscription.origin
            for subscription in self.subscriptions.values()
            if any(topic_id_of(partition) == topic_id for partition in subscription.covered())
        }
        readers = {
            each: None
            for partition, each_readers in self._readers.items()
            if topic_id_of(partition) == topic_id
            for each in each_readers
        }
        known = self._views.keys() | self._readers.keys()
        for partition in sorted(p for p in known if topic_id_of(p) == topic_id):
            self._drop_partition(partition)
        for name in [each.name for each in readers if not each.positions]:
            self._leaves(name)
        for group in [group for group in self.groups.values() if group.state.topic_id == topic_id]:
            self.drop_group(group.id)
        return origins

    def _drop_partition(self, partition: PartitionKey) -> None:
        """The partition's topic is gone."""
        for view in self._views.pop(partition, {}).values():
            del view.group.views[partition]
            self._drop_view(view)
        self._consumed.pop(partition, None)
        for subscription in self.subscriptions.values():
            subscription.views = [view for view in subscription.views if view.partition != partition]
            subscription.positions.pop(partition, None)
        self._readers.pop(partition, None)

    def _drop_view(self, view: PartitionView) -> None:
        """The group or the partition is gone."""
        self.readback.retry_deadlines.cancel(view)
        self.selector.limited.cancel(view)
        self.holdings.drop_view(view)

    def drop_group(self, group_id: int) -> set[Origin]:
        """Ends the group, also for subscriptions that are about to join. Returns the
        connections of its consumers.
        """
        group = self.groups.pop(group_id, None)
        self.attempts.forget_group(group_id)
        self.flow_feed.divided.pop(group_id, None)
        if group is None:
            return set()
        origins = {member.origin for member in group.members.values()}
        for name in list(group.members):
            self._leaves(name)
        for view in group.views.values():
            self._drop_view(view)
            del self._views[view.partition][group_id]
        return origins

    def trim(self, partition: PartitionKey) -> None:
        """Retention removed records: ends their leases and removes them from all places."""
        state = self._ledger.partitions.get(partition)
        if state is None:
            return  # it ended in the same turn
        first = state.first
        for view in self._views.get(partition, {}).values():
            here = Intervals()
            for low, high, _ in view.window.overlap(0, first):
                here.add(low, high)
            for low, high in here:
                rows = view.cursor.exceptions.overlap(low, high) if view.cursor.exceptional else []
                for gap in Intervals([(found.first, found.end) for found in rows]).missing(low, high):
                    self.holdings.forget(view, *gap)
            view.window.skip_to(first)
            if view.keys is not None:
                self.key_order.trim_keys(view, view.keys, first, bool(here))
            self.turn.dirty.add(view.group.id)  # its window may have moved

    def voided(self, void: payloads.Void) -> None:
        """A VOID or EDIT removed a record, and may have added another one."""
        if void.offset >= 0:
            self.void(void.partition, void.offset)
        self.wake(void.partition)

    def void(self, partition: PartitionKey, offset: Offset) -> None:
        """A record was voided: take it from its consumers, and tell them."""
        for view in self._views.get(partition, {}).values():
            holder = view.window.at(offset)
            member = self.subscriptions.get(holder.owner) if isinstance(holder, Lease) else None
            if member is not None and member.cancels:
                gone = Cancelled(member.number, [(partition, offset, offset + 1)])
                self.notices.append((member.origin, gone))
            self.holdings.forget(view, offset, offset + 1)
            if view.keys is not None:
                for _, key_hash in self.key_order.hashes(view, offset, offset + 1):
                    self.key_order.key_done(view, offset, key_hash)
            self.turn.dirty.add(view.group.id)

    def applied(self, kind: int, payload: Any) -> None:
        """An entry that moved records of a group is applied: one of MOVES."""
        if kind in (log.ACK, log.RESULT):
            ack: payloads.AckRanges = payload if kind == log.ACK else payload.ack
            self.settlement.ack_applied((ack.group_id, ack.consumer))
            for partition, ranges in groupby(ack.ranges, itemgetter(0)):
                if (view := self._view_of(ack.group_id, partition)) is not None:
                    self.holdings.ack_applied(view, [(first, end) for _, first, end in ranges])
            self._failed(ack.group_id, ack.failed)
        elif kind == log.FAIL:
            self._failed(payload.group_id, payload.rows)
        elif kind == log.PARK:
            for row in payload.rows:
                if (view := self._view_of(payload.group_id, row.partition)) is not None:
                    self.readback.parked(view, row.lane, row.first, row.end)
        elif kind == log.DEAD:
            self._free_buried(payload.group_id, payload.partition, payload.first, payload.end)
        else:  # dead letters are replayed, purged, or requeued
            view = self._view_of(payload.group_id, payload.partition)
            if view is not None and payload.ranges:
                self._again(view, [(first, end, AT_ONCE_MS) for first, end in payload.ranges])

    def _entry_applied(
        self, group_id: int, partition: PartitionKey, first: Offset, end: Offset
    ) -> PartitionView | None:
        """The entry is applied, so its records no longer move."""
        view = self._view_of(group_id, partition)
        if view is not None:
            self.holdings.entry_applied(view, [(first, end)])
        return view

    def _view_of(self, group_id: int, partition: PartitionKey) -> PartitionView | None:
        """The view, or None if the group or the partition is gone."""
        group = self.groups.get(group_id)
        return group.views.get(partition) if group else None

    def _failed(self, group_id: int, rows: list[FailRow]) -> None:
        for partition, some in groupby(rows, attrgetter("partition")):
            if (view := self._view_of(group_id, partition)) is not None:
                each = [(row, row.ranges or [(row.first, row.end)]) for row in some]
                self._again(view, [(*part, row.due_ms) for row, ranges in each for part in ranges])

    def _again(self, view: PartitionView, ranges: list[tuple[Offset, Offset, int]]) -> None:
        """Records will be delivered again, [first, end) at `due_ms`. Until
        then their keys are closed.
        """
        self.holdings.entry_applied(view, [(first, end) for first, end, _ in ranges])
        self.holdings.recheck_expiry(view, [(first, end) for first, end, _ in ranges])
        due_ms, soonest = min([(due_ms, first) for first, _, due_ms in ranges])
        view.since = min(view.since, (due_ms, soonest))
        if view.due_ms is None or due_ms < view.due_ms:
            self.readback.set_retry_deadline(view, due_ms)
        for first, end, _ in ranges if view.keys is not None else ():
            self.key_order.close_failed(view, first, end)

    def _free_buried(self, group_id: int, partition: PartitionKey, first: Offset, end: Offset) -> None:
        """Records are dead, dropped or done, so their keys are free."""
        view = self._entry_applied(group_id, partition, first, end)
        if view is not None and view.keys is not None:
            for offset, key_hash in self.key_order.hashes(view, first, end):
                if not view.cursor.fresh(offset, offset + 1) and view.cursor.exceptions.at(offset) is None:
                    self.key_order.key_done(view, offset, key_hash)

    def changed(self, change: payloads.GroupChange) -> None:
        """A GROUP entry may have changed the policy of a group."""
        group = self._ledger.group(change.topic_id, change.name)
        if group is not None and group.id in self.groups:
            self.turn.dirty.add(group.id)
            for view in self.groups[group.id].views.values():
                if (view.keys is not None) != (group.config.mode == KEY_ORDERED):
                    self._remode(view)
                if view.ordered_by != order_of(group.config):
                    view.group.limits = None
                    self.selector.flow_feed.index(view)

    def _remode(self, view: PartitionView) -> None:
        """Begins or ends key order. The group had no consumer at the request, but one that came
        before the entry was applied may hold records.
        """
        for lane in [lane for lane in view.window.lanes if key_of(lane)]:
            view.window.open_lane(lane)
        view.keys = Keys() if view.group.state.config.mode == KEY_ORDERED else None
        if view.keys is not None:
            for first, end, lease in view.window.leases():
                self.key_order.take_keys(view, first, end, lease)
            self.key_order.reopen_keys(view)
        else:
            self.readback.wake_lanes(view)

    def wake(self, partition: PartitionKey) -> None:
        """New records are committed in this partition, or some are gone. Groups
        without consumers need not know.
        """
        self.turn.dirty.update(self._consumed.get(partition, ()))
        for subscription in self._readers.get(partition, ()):
            self._dirty_readers[subscription] = None

    def grant_credit(self, subscription: Subscription, records: int, size: int) -> None:
        if subscription.name in self.joining:
            return  # it will be replaced, and its credit with it
        subscription.credit_records = min(subscription.credit_records + records, limits.CREDIT_MAX)
        subscription.credit_bytes = min(subscription.credit_bytes + size, limits.CREDIT_BYTES_MAX)
        subscription.credit_peak = max(subscription.credit_peak, subscription.credit_records)
        subscription.ready_sent = False
        if subscription.group is None:
            self._dirty_readers[subscription] = None
        else:
            subscription.group.file(subscription)
            self.turn.dirty.add(subscription.group.id)

    def settle(self, subscription: Subscription, ranges: list[Range]) -> None:
        """A consumer with `auto` has finished these records."""
        for partition, first, end in ranges:
            subscription.settle(partition, first, end)
        self.grant_credit(subscription, 0, 0)

    def _automatic(self, session: SessionId) -> list[Subscription]:
        found = [self.subscriptions.get(name) for name in self._automatics.get(session, ())]
        return [each for each in found if each is not None]

    def renews(self, session: SessionId) -> bool:
        """True if the session has a subscription with `auto` in a group."""
        return session in self._automatics

    def renew(self, session: SessionId, boot_ms: int) -> None:
        """A sign of life: renews the leases of the session's subscriptions with `auto`."""
        for subscription in self._automatic(session):
            self.holdings.renew(subscription, boot_ms)

    def recall(self, subscription: Subscription) -> tuple[int, int]:
        """Withdraws unused credit; returns its records and bytes."""
        records, size = max(0, subscription.credit_records), max(0, subscription.credit_bytes)
        subscription.credit_records -= records
        subscription.credit_bytes -= size
        if subscription.group is not None:
            subscription.group.file(subscription)
        return records, size

    def next_deadline(self, ahead_ms: int) -> int | None:
        """Boot time at which a lease ends, a record is due again, records lie unevenly, or busy
        keys are passed over. Timer time is `ahead_ms` ahead of boot time.
        """
        again_ms = self.readback.retry_deadlines.next()
        times_ms = [self.holdings.next_deadline(), self._uneven.next(), self.selector.busy_keys.next()]
        times_ms.append(self.selector.limited.next())
        times_ms += [again_ms - ahead_ms] if again_ms is not None else []
        return min([each for each in times_ms if each is not None], default=None)

    def tick(self, boot_ms: int, timer_ms: int) -> None:
        """Ends leases that are over, and reads back records that are due."""
        self.holdings.expire(boot_ms)
        for view in self.readback.retry_deadlines.expire(timer_ms):
            self.turn.dirty.add(view.group.id)
        self.turn.dirty.update(self.selector.busy_keys.expire(boot_ms))
        for view in self.selector.limited.expire(boot_ms):
            self.turn.dirty.add(view.group.id)
        for group_id in self._uneven.expire(boot_ms):
            self._even_out(group_id)
        if self.expiry.is_behind:
            self.expire_records()

    def _even_out(self, group_id: int) -> None:
        """Asks members to give back records if they hold too many while others have none. A later
        delivery or ack makes the group be looked at again.
        """
        group = self.groups.get(group_id)
        if group is None or any(map(self.offers, group.views.values())):
            return
        asked, more = uneven(group, self.holdings.held_by, self.turn.boot_ms)
        self.notices += [(member.origin, Share(member.number, keep)) for member, keep in asked]
        if more:
            self._uneven.set(group_id, self.turn.boot_ms + limits.UNEVEN_MS)

    def expire_records(self) -> None:
        """Expires records wherever they wait, even if no consumer has asked for them yet."""
        self.expiry.look(
            self._view(group_id, partition)
            for partition, cursors in self._ledger.cursors.items()
            if self.expiry.concerns(partition)
            for group_id in cursors
        )

    def run(self) -> list[Delivery]:
        """Delivers records as far as credit allows."""
        deliveries: list[Delivery] = []
        self.turn.number += 1
        if self.holdings.relieved:
            self._relieve()
        self.turn.looks, dirty = limits.SLICES_PER_TURN, sorted(self.turn.dirty)
        self.turn.dirty, self.turn.more = set(), False
        at = bisect_right(dirty, self._last)  # a group that was cut short comes last
        for group_id in dirty[at:] + dirty[:at]:
            if self.turn.looks <= 0:
                self.turn.dirty.add(group_id)
            elif (group := self.groups.get(group_id)) is not None and group.members:
                self._last = group_id
                self._serve(group, deliveries)
        self._cut = self.turn.looks <= 0
        self._serve_readers(deliveries)
        return deliveries

    def _serve_readers(self, deliveries: list[Delivery]) -> None:
        self.turn.looks, readers = limits.SLICES_PER_TURN, list(self._dirty_readers)
        for subscription in readers:
            del self._dirty_readers[subscription]
            while subscription.has_credit and (part := self._read(subscription)):
                self._add(deliveries, subscription, Handed([part], NO_LEASE_MS))
            self._notify(subscription)
            if self.turn.looks <= 0:
                self._dirty_readers[subscription] = None  # after the other readers
                self._cut = True
                return

    def _serve(self, group: Group, deliveries: list[Delivery]) -> None:
        """Serves the members with credit in turn; a small rest is shared among them."""
        exclusive, lenders, idle = group.state.config.mode == EXCLUSIVE, group.lenders, 0
        while (sharers := group.sharers()) > idle:
            member = next(iter((group.members if exclusive else lenders).values()))
            if member.prefetch is not None and member.prefetch.is_due(self.turn.boot_ms):
                self._adapt(member, member.prefetch)
                group.file(member)
                continue
            handed = self.selector.next_parts(member, sharers)
            takes_all = member.matches is None and len(member.views) == len(group.views)
            if handed is None and takes_all and not self.selector.held_back:
                break  # it takes any record, so none is left for others
            if not exclusive:
                lenders.move_to_end(member.name)
            if handed is None:
                idle += 1
                continue
            idle = 0
            self._add(deliveries, member, handed, member if exclusive or not member.ack else None)
        self._notify_group(group)
        if group.id not in self._uneven and may_be_uneven(group):
            self._uneven.set(group.id, self.turn.boot_ms + limits.UNEVEN_MS)

    def offers(self, view: PartitionView) -> bool:
        """True if a consumer with credit may get records of a view now."""
        return view.offers(self._ledger, self.turn.timer_ms)

    def _notify_group(self, group: Group) -> None:
        if group.unready or group.unended:
            views = group.views.values()
            offers = any(map(self.offers, views))
            for member in list(group.unended.values()) if not offers else ():
                self._notify(member)
            if offers or any(view.window.lanes.routes for view in views):
                # the other members of an exclusive group get no records, whatever credit they grant
                exclusive = group.state.config.mode == EXCLUSIVE
                for member in group.served_members() if exclusive else list(group.unready.values()):
                    if member.name in group.unready:
                        self._notify(member)

    def still_valid(self, delivery: Delivery) -> Delivery:
        """A delivery that waited for an entry, without records that its consumer no longer
        holds or that have expired; their credit is free again. Records that count as acked
        on delivery always leave.
        """
        member = delivery.late
        if member is None or member.group is None or not member.ack:
            return delivery
        known, views, parts = self.subscriptions.get(member.name), member.group.views, list[Part]()
        for part in delivery.parts:
            if known is not None and known.group is member.group and part.partition in views:
                parts += self.selector.still_held(views[part.partition], member, part, delivery.run)
        if known is member and member.auto and parts != delivery.parts:
            self._settle_but(member, delivery.parts, parts)
        elif known is member and parts != delivery.parts:
            records = sum(part.count for part in delivery.parts) - sum(part.count for part in parts)
            self.grant_credit(
                member,
                records,
                sum(part.charge for part in delivery.parts) - sum(part.charge for part in parts),
            )
        return delivery._replace(parts=parts)

    def _settle_but(self, member: Subscription, parts: list[Part], kept: list[Part]) -> None:
        """Frees the credit of those `parts` that are not `kept`."""
        left = {(part.partition, part.offset): part for part in kept}
        for part in parts:
            at = part.offset
            while at < part.end:
                stays = left.get((part.partition, at))
                if stays is None:
                    member.settle(part.partition, at, at + 1)
                at = stays.end if stays else at + 1
        self.grant_credit(member, 0, 0)

    def undelivered(self, delivery: Delivery) -> None:
        """The connection did not take a delivery. A reader continues from its old position. A
        group's records come back when the lease ends, even if signs of life renew other leases, and
        their credit is free again.
        """
        refund_to = delivery.refund_to
        if refund_to is None or self.subscriptions.get(refund_to.name) is not refund_to:
            return
        if refund_to.group is None:
            refund_to.rewind(delivery.parts)
            self._dirty_readers[refund_to] = None
            return
        for part in delivery.parts:
            view = refund_to.group.views[part.partition]
            for _, _, lease in view.window.leased(part.offset, part.end):
                if (lease.owner, lease.attempt) == (refund_to.name, part.attempt) and not lease.missed:
                    self.holdings.mark_missed(lease)
        self._settle_but(refund_to, delivery.parts, [])

    def _read(self, subscription: Subscription) -> Part | None:
        """The next part for a reader; skips voids, and routes that it does not take."""
        for partition, position in subscription.positions.items():
            state, voids = self._ledger.partitions[partition], self._ledger.voids.get(partition)
            position = max(position, state.first)
            while position < state.next:
                left = voids.gap(position, state.next) if voids is not None else (position, state.next)
                if left is None:
                    position = state.next
                    break
                position, end = left
                if self.turn.looks <= 0:
                    break
                self.turn.looks -= 1
                place = place_of(self._ledger, None, partition, position)
                assert place is not None, "what is committed has a slice row"
                if not subscription.takes(place.route):
                    position = place.end
                    continue
                record_bytes = -(-place.size // place.batch_count)
                count = min(place.end, end) - position
                count = min(
                    count, subscription.credit_records, max(1, subscription.credit_bytes // record_bytes)
                )
                charge = count * record_bytes
                subscription.spend(partition, position, position + count, record_bytes)
                self.turn.delivered += count
                whole = place.record == 0 and count == place.batch_count
                subscription.positions[partition] = position + count
                return Part(
                    partition, position, place.entry, place.record, count, whole, 1, charge, place.time_ms
                )
            subscription.positions[partition] = position
        return None

    def _add(
        self,
        deliveries: list[Delivery],
        subscription: Subscription,
        handed: Handed,
        late: Subscription | None = None,
    ) -> None:
        # other subscriptions stay as they are filed
        if subscription.room <= 0 and subscription.prefetch is not None:
            self._adapt(subscription, subscription.prefetch)
        if subscription.end_sent or not subscription.can_take:
            subscription.end_sent = False
            if subscription.group is not None:
                subscription.group.file(subscription)
        last = deliveries[-1] if deliveries else None
        same = subscription.origin, subscription.number, handed.lease_ms
        if last is not None and (last.origin, last.subscription, last.lease_ms) != same:
            last = None
        for part in handed.parts:
            subscription.frame_bytes += part.charge
            if last is not None and subscription.frame_bytes <= limits.DELIVER_BYTES_MAX:
                last.parts.append(part)
                continue
            subscription.frame_bytes = part.charge
            refund_to = subscription if subscription.group is None or subscription.auto else None
            last = Delivery(
                origin=subscription.origin,
                subscription=subscription.number,
                lease_ms=handed.lease_ms,
                parts=[part],
                late=late,
                run=self.turn.number,
                refund_to=refund_to,
                plain=subscription.plain,
            )
            deliveries.append(last)

    def _notify(self, subscription: Subscription) -> None:
        """Sends READY if records wait and there is no credit, or AT_END if all
        readable records were delivered.
        """
        waiting = subscription.waiting(self._ledger, self.turn.timer_ms)
        if waiting and not subscription.has_credit and not subscription.ready_sent:
            subscription.ready_sent = True
            self.notices.append((subscription.origin, ReadyMessage(subscription.number)))
        elif (
            subscription.notify_end
            and not subscription.end_sent
            and subscription.at_end(self._ledger, self.turn.timer_ms)
        ):
            subscription.end_sent = True
            self.notices.append(
                (subscription.origin, AtEnd(subscription.number, subscription.ends(self._ledger)))
            )
        else:
            return
        if subscription.group is not None:
            subscription.group.file(subscription)
