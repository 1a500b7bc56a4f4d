"""Chooses the next records for a member of a group, within its credit and the group's window.

It takes ready records first, then records waiting for a route that the member takes, then new
ones. A record that this member may not have goes into a lane of its route or key, and is looked at
again when that changes. An expired record becomes a dead letter.
"""

from bisect import bisect_right
from itertools import accumulate, takewhile
from math import ceil
from typing import NamedTuple

from gossipq.core.delivery import tries
from gossipq.core.delivery.attempts import RULED, Attempts, expiry_times
from gossipq.core.delivery.consumers import (
    EXCLUSIVE,
    DeliveryTurn,
    Part,
    PartitionView,
    Place,
    Subscription,
    place_of,
)
from gossipq.core.delivery.flow_feed import FlowFeed
from gossipq.core.delivery.flow_picks import FlowPicks
from gossipq.core.delivery.flows import FlowIndex
from gossipq.core.delivery.holdings import Holdings
from gossipq.core.delivery.key_order import BACK, KeyOrder
from gossipq.core.delivery.readback import Readback
from gossipq.core.delivery.settlement import Settlement
from gossipq.core.delivery.window import MOVED, NEW, READY, WAITING, Lease, WaitingRecords
from gossipq.core.ledger import Ledger, clip, key_lane, key_of, route_lane
from gossipq.core.storage import Deadlines, ParkRow
from gossipq.types import KEY_HASH, LEASE, TTL, Offset

PARK_ROWS = 2_048  #: rows in one PARK entry
#: how long new records of busy keys wait for their keys before later records are looked at
BUSY_KEYS_MS = 10
LANE_RANGES = 64  #: of a route, that become ready together in a group whose flows have limits
LOOKS_PAST = 256  #: runs of such records that are passed over then


class Candidate(NamedTuple):
    """Records [first, end) that may be next: NEW, READY, or WAITING for their route."""

    state: str
    first: Offset
    end: Offset
    tried: int


class Handed(NamedTuple):
    parts: list[Part]
    lease_ms: int


class Selector:
    """The records that a member of a group gets next."""

    def __init__(
        self,
        ledger: Ledger,
        turn: DeliveryTurn,
        attempts: Attempts,
        key_order: KeyOrder,
        holdings: Holdings,
        settlement: Settlement,
        readback: Readback,
        flow_feed: FlowFeed,
    ) -> None:
        self._ledger = ledger
        self.turn = turn
        self.attempts = attempts
        self.key_order = key_order
        self.holdings = holdings
        self.settlement = settlement
        self.readback = readback
        self.flow_feed = flow_feed
        self.flow_picks = FlowPicks(ledger, turn, attempts, holdings)
        self.parking: dict[int, list[ParkRow]] = {}  #: rows to log, per group
        #: groups to look at for records of other keys; boot time
        self.busy_keys: Deadlines[int] = Deadlines()
        #: views whose records wait for a rate or for the end of a pause; boot time
        self.limited: Deadlines[PartitionView] = Deadlines()
        self._looks_past = 0
        self.held_back = False  #: the last member that got nothing waits for its keys

    def next_parts(self, member: Subscription, sharers: int) -> Handed | None:
        """The next parts for a member, with one lease; `sharers` members
        share the available records.
        """
        self._looks_past, self.held_back = LOOKS_PAST, False
        for _ in range(len(member.views)):
            view = member.views[0]
            if len(member.views) > 1:
                member.views.append(member.views.pop(0))
            handed = self._from(view, member, sharers)
            if handed is not None:
                return handed
        return None

    def _from(self, view: PartitionView, member: Subscription, sharers: int) -> Handed | None:
        if view.due_ms is not None or view.draining or view.waking is not None:
            self.readback.refill(view)
        if view.flows is not None and not self.flow_feed.feed(view, view.flows, self.turn.leader_ms):
            self.turn.dirty.add(view.group.id)  # another turn continues
            self.turn.more = True
        if view.flows is not None and member.lane_in(view) is None:
            parts, lease_ms = self.flow_picks.hand(view, view.flows, member, sharers, self._room(view))
            if parts:
                return Handed(parts, lease_ms)
        while (candidate := self._candidate(view, member)) is not None:
            if self.holdings.overdue or self.turn.looks <= 0:
                # a backlog that has expired, or just a long one: another turn continues
                self.turn.dirty.add(view.group.id)
                return None
            self.turn.looks -= 1
            state, first, end, tried = candidate
            skipped = self._skip_voids(view, candidate)
            if skipped is not None:
                first, end = skipped
                if first >= end:
                    continue
            place = place_of(self._ledger, view.cursor, view.partition, first)
            if place is None or (
                state != NEW and place.row is None and not view.cursor.fresh(first, first + 1)
            ):
                view.window.move(first, first + 1, None)  # done meanwhile
                continue
            if place.ranges and state == READY and view.flows is None:
                handed = self._hand_together(view, member, first, tried, place, sharers)
                if handed is not None:
                    return handed
            end = min(end, place.end)
            end = self.expire_prefix(view, first, end, tried, place)
            if end == first:
                continue
            if member.matches is not None and not member.matches(place.route):
                view.window.move(first, end, WaitingRecords(route_lane(place.route), tried))
                self.key_order.release_keys(view, first, end, BACK, held=False)
                continue
            end = min(end, first + max(1, -(-(candidate.end - first) // sharers)))
            if view.keys is not None:
                end = self._in_key_order(view, member, state, first, end, tried, place)
                if end == first and self.held_back:
                    return None
                if end == first:
                    continue
            handed = self._hand(view, member, first, end, tried, place)
            if view.flows is not None:
                self._count_choice(view, view.flows, handed.parts[0], state)
                return handed
            if state == NEW and sharers == 1:
                self.extend_with_slices(view, member, handed, place, candidate.end)
            return handed
        if view.window.lanes:
            self._make_way(view, member)
        if view.draining or view.waking is not None:  # another turn continues
            self.turn.dirty.add(view.group.id)
            self.turn.more = True
        return None

    def _candidate(self, view: PartitionView, member: Subscription) -> Candidate | None:
        window = view.window
        if view.flows is not None:
            return self._next_in_turn(view, view.flows, member)
        ready, lanes = window.ready, window.lanes
        while lanes.opened and not ready.starts:
            key_hash, _ = lanes.opened.popitem(last=False)
            self.key_order.unblock_key(view, key_hash)
        if ready.starts:
            end = ready.ends[0] if view.keys is None else ready.end_of_equal()
            return Candidate(READY, ready.starts[0], end, ready.values[0])
        lane = member.lane_in(view)
        if lane is not None:
            ranges = lanes[lane]
            return Candidate(WAITING, ranges.starts[0], ranges.ends[0], ranges.values[0])
        end = min(self._ledger.partitions[view.partition].next, view.window_end)
        if window.ahead.starts:
            end = min(end, window.ahead.starts[0])
        return Candidate(NEW, window.next, end, 0) if window.next < end else None

    def _next_in_turn(self, view: PartitionView, flows: FlowIndex, member: Subscription) -> Candidate | None:
        """Like `_candidate`, by priority and flow. Records that waited for a consumer of their route come
        first.
        """
        window = view.window
        room = self._room(view)
        if room <= 0:
            return None
        lane = member.lane_in(view)
        if lane is not None and flows.bounds is None:
            ranges = window.lanes[lane]
            end = min(ranges.ends[0], ranges.starts[0] + room)
            return Candidate(WAITING, ranges.starts[0], end, ranges.values[0])
        if lane is not None:  # its records are subject to limits, as all others
            window.open_lane(lane, LANE_RANGES)
            self.flow_feed.feed(view, flows, self.turn.leader_ms)
        while (run := flows.head(self.turn.boot_ms, self.turn.leader_ms)) is not None:
            found = window.first_free(run.first, run.end)
            if found is None or found[1] > run.first:
                flows.drop(run, run.end if found is None else found[1])
                continue
            state, first, end, tried = found
            return Candidate(state, first, min(end, first + room), tried)
        if flows.later:
            self.limited.set(view, ceil(flows.later[0][0]))
        return None

    def _room(self, view: PartitionView) -> int:
        """How many records the limits of a group allow."""
        group = view.group
        room = group.state.config.in_flight_max - view.window.in_flight
        if group.limits is None:
            return room
        group.boot_ms = now_ms = self.turn.boot_ms
        allowed = group.limits.allowed(group.in_flight, now_ms)
        if allowed <= 0 and group.limits.shards > 1:
            self.flow_feed.wants_more = True
        if allowed <= 0 and (next_ms := group.limits.next_ms) is not None and next_ms > now_ms:
            self.limited.set(view, ceil(next_ms))
        return min(room, allowed)

    def _count_choice(self, view: PartitionView, flows: FlowIndex, part: Part, state: str) -> None:
        """Count delivered records towards the turn of their flow, and towards limits."""
        if view.group.limits is not None:
            view.group.limits.delivered(part.count, self.turn.boot_ms)
        if state == WAITING:
            return  # it waited for its route, and was not in the index
        flow = flows.run.flow
        flows.drop(flows.run, part.offset + part.count, part.count)
        if view.flow_limits is not None:
            view.flow_limits.delivered(flow, part.count, self.turn.boot_ms)

    def _skip_voids(self, view: PartitionView, candidate: Candidate) -> tuple[Offset, Offset] | None:
        """The part of a candidate before the next void; None: all of it."""
        voids = self._ledger.voids.get(view.partition)
        if voids is None:
            return None
        left = voids.gap(candidate.first, candidate.end)
        first, end = left or (candidate.end, candidate.end)
        if first > candidate.first:
            view.window.move(candidate.first, first, None)
        return first, end

    def expire_prefix(
        self, view: PartitionView, first: Offset, end: Offset, tried: int, place: Place
    ) -> Offset:
        """Return the end of the first records that have not expired. If the first record has
        expired, bury it with those that expired with it, and return `first`.
        """
        over, end = self.is_expired(view, first, end, tried, place)
        if not over:
            return end
        self.holdings.bury_expired(view, first, end, tried)
        return first

    def is_expired(
        self, view: PartitionView, first: Offset, end: Offset, tried: int, place: Place
    ) -> tuple[bool, Offset]:
        """Returns whether the first record has expired, and the end of the
        records with the same answer.
        """
        times_ms = expiry_times(self._ledger, view, place, end - first, tried)
        over = 0 < times_ms[0] <= self.turn.leader_ms
        if len(times_ms) > 1:  # each record by itself, up to the first with another answer
            alike = takewhile(lambda time_ms: (0 < time_ms <= self.turn.leader_ms) == over, times_ms)
            end = first + sum(1 for _ in alike)
        return over, end

    def still_held(self, view: PartitionView, member: Subscription, part: Part, run: int) -> list[Part]:
        """The rest of a part that waited after its delivery: records that its consumer still holds
        by that delivery and that have not expired.
        """
        left: list[Part] = []
        for at, stop, lease in view.window.leased(part.offset, part.end):
            while (lease.owner, lease.run) == (member.name, run) and at < stop:
                lease.waits = False
                place = place_of(self._ledger, view.cursor, part.partition, at)
                assert place is not None, "what is held is there"
                over, end = self.is_expired(view, at, min(stop, place.end), lease.before, place)
                if over:
                    self.holdings.forget(view, at, end)
                    self.holdings.bury_expired(view, at, end, lease.before)
                else:
                    left.append(part.cut(at, end))
                at = end
        return left

    def _in_key_order(
        self,
        view: PartitionView,
        member: Subscription,
        state: str,
        first: Offset,
        end: Offset,
        tried: int,
        place: Place,
    ) -> Offset:
        """The end of the records whose keys the member may have. Records before the first of these
        go into their lanes, unless it is better to wait until their keys are free.
        """
        keys = view.keys
        column = self._ledger.opened.column(place.entry, KEY_HASH) if place.columns & KEY_HASH else None
        if keys is None or column is None:
            return end
        hashes = column[place.record : place.record + end - first]
        allowed = keys.allowed(hashes, first, member.name, view.window.lanes.of_keys, member.runs)
        if not allowed and first < end and state == NEW and view.group.ahead:
            self.held_back = self._waits_for_keys(view, member)
            if self.held_back:
                return first
        if not allowed and first < end:  # nor later records of its key
            stop = first + sum(1 for _ in takewhile(hashes[0].__eq__, hashes))
            view.window.move(first, stop, WaitingRecords(key_lane(hashes[0]), tried))
        return first + allowed

    def _waits_for_keys(self, view: PartitionView, member: Subscription) -> bool:
        """True if a member gets no new records for now, since the next one is of a busy key. A fast
        consumer finishes its records at once and then gets the next ones in whole slices; passing
        over thousands of records one by one would cost more. But records of other keys never wait
        longer than BUSY_KEYS_MS.
        """
        if member.blocked_ms is None or not self._looks_past:
            member.blocked_ms = self.turn.boot_ms
        if self.turn.boot_ms - member.blocked_ms >= BUSY_KEYS_MS:
            self._looks_past -= 1
            return False
        self.busy_keys.set(view.group.id, member.blocked_ms + BUSY_KEYS_MS)
        return True

    def _hand(
        self,
        view: PartitionView,
        member: Subscription,
        first: Offset,
        end: Offset,
        tried: int,
        place: Place,
    ) -> Handed:
        record_bytes = -(-place.size // place.batch_count)
        count = min(end - first, member.most_records, max(1, member.credit_bytes // record_bytes))
        if place.columns & LEASE:
            count = self._same_lease(place, count)
        end = first + count
        charge = count * record_bytes
        member.spend(view.partition, first, end, record_bytes)
        if not member.has_credit:
            member.blocked_ms = None
        self.turn.delivered += count
        view.delivered += count
        lease_ms = 0
        if member.ack:
            lease_ms = self.attempts.policy(view, place).lease_ms
            failed = place.row is not None
            self.holdings.grant(member, view, first, end, tried, self.turn.boot_ms, lease_ms, failed)
        else:
            self.settlement.ack_on_delivery(member, view, first, end)
        whole = place.record == 0 and count == place.batch_count
        part = Part(
            view.partition,
            first,
            place.entry,
            place.record,
            count,
            whole,
            tries.begun(tried) + 1,
            charge,
            place.time_ms,
            failures=place.row.failures if place.row else 0,
            again=_again(tried),
        )
        return Handed([part], lease_ms)

    def extend_with_slices(
        self, view: PartitionView, member: Subscription, handed: Handed, place: Place, end: Offset
    ) -> None:
        """Adds whole slices after the new one at `place`, below `end`, if they need the same
        treatment. Plain batches so avoid the way through `_from`, which handles all special cases.
        """
        ledger, partition = self._ledger, view.partition
        first = stop = view.window.next
        special = view.keys is not None or view.cursor.exceptional or view.draining or view.waking is not None
        if special or not member.ack or place.columns & RULED or partition in ledger.voids:
            return  # a topic's time to live needs no check: a later slice lives longer
        most = member.most_records
        for each in ledger.slices.whole(partition, first, end, self.turn.looks):
            record_bytes = -(-each.size // each.batch_count)
            charge = each.count * record_bytes
            alike = each.route == place.route and not each.columns & RULED
            if not alike or each.count > most or charge > member.credit_bytes:
                break
            member.spend(partition, each.offset, each.end, record_bytes)
            whole = each.count == each.batch_count
            # hot: one for each batch, so its fields are passed by position
            part = Part(
                partition, each.offset, each.index, each.first, each.count, whole, 1, charge, each.time_ms
            )
            handed.parts.append(part)
            most -= each.count
            stop = each.end
        if stop > first:
            count = stop - first
            self.turn.looks -= len(handed.parts) - 1
            self.turn.delivered += count
            view.delivered += count
            self.holdings.grant(member, view, first, stop, 0, self.turn.boot_ms, handed.lease_ms, False)

    def _hand_together(
        self,
        view: PartitionView,
        member: Subscription,
        first: Offset,
        tried: int,
        place: Place,
        sharers: int,
    ) -> Handed | None:
        """Delivers records that failed together as one part, or returns None if one of
        them needs a look of its own.
        """
        ledger, partition = self._ledger, view.partition
        if not member.gaps or view.keys is not None or view.group.state.config.mode == EXCLUSIVE:
            return None
        if place.columns & (LEASE | TTL) or ledger.config(partition).ttl_ms or partition in ledger.voids:
            return None
        if member.matches is not None and not member.matches(place.route):
            return None
        record_bytes = -(-place.size // place.batch_count)
        ranges = clip(place.ranges, first, place.ranges[-1][1])
        total = list(accumulate([end - low for low, end in ranges]))
        room = min(member.most_records, member.credit_bytes // record_bytes, -(-total[-1] // sharers))
        ranges = ranges[: bisect_right(total, room)]
        if len(ranges) < 2 or not view.window.ready.begins(ranges, tried):
            return None
        count = total[len(ranges) - 1]
        member.spend_some(count, record_bytes)
        self.turn.delivered += count
        view.delivered += count
        lease_ms = self.attempts.policy(view, place).lease_ms
        attempt = tries.begun(tried) + 1
        lease = Lease(view, member.session, member.number, member.consumer, attempt, self.turn.boot_ms)
        lease.before = tried
        self.holdings.lease_all(view, ranges, lease, self.turn.boot_ms + lease_ms)
        self.holdings.log_later(view, ranges[0][0], ranges[-1][1])
        part = Part(
            partition=partition,
            offset=first,
            index=place.entry,
            first=place.record,
            count=count,
            whole=False,
            attempt=attempt,
            charge=count * record_bytes,
            time_ms=place.time_ms,
            ranges=ranges,
            failures=place.row.failures if place.row else 0,
            again=_again(tried),
        )
        return Handed([part], lease_ms)

    def _same_lease(self, place: Place, count: int) -> int:
        """How many records from the first on ask for the same lease."""
        column = self._ledger.opened.column(place.entry, LEASE)
        if column is None:
            return count
        asked = column[place.record]
        return next((n for n in range(1, count) if column[place.record + n] != asked), count)

    def _make_way(self, view: PartitionView, member: Subscription) -> None:
        """Moves records to disk when they fill the window and no consumer may have them, so
        that the cursor can pass.
        """
        state, cursor = self._ledger.partitions[view.partition], view.cursor.state
        window = view.window
        if view.flows is not None:
            if window.lanes.total() < view.group.state.config.in_flight_max:
                return  # they wait in memory
        elif window.next < min(state.next, view.window_end) or window.next >= state.next:
            return
        rows = self.parking.setdefault(view.group.id, [])
        room = view.group.state.config.parked_max - cursor.parked
        for lane, ranges in list(window.lanes.items()):
            if not key_of(lane) and view.group.takes_lane(view, lane):
                continue  # it has consumers, which are only slow
            for first, end, tried in list(ranges):
                if key_of(lane):
                    end = min(end, first + room)
                if len(rows) >= PARK_ROWS or end <= first:
                    break
                if not view.cursor.fresh(first, end):
                    continue  # it has a row already, and does not block the window
                window.move(first, end, MOVED)
                if view.keys is not None and key_of(lane):
                    view.keys.parks(key_of(lane), first)
                attempts = tries.begun(tried)
                rows.append(
                    ParkRow(
                        partition=view.partition,
                        first=first,
                        end=end,
                        attempts=attempts,
                        lane=lane,
                        handed_out=_again(tried),
                    )
                )
                room -= (end - first) if key_of(lane) else 0


def _again(tried: int) -> bool:
    """True if records were delivered since their last attempt began."""
    return tries.newest(tried) > tries.begun(tried)
