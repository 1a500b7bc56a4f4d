"""Leases: which consumer holds which records and until when. Also acks, records given back, failed
attempts, and which of these changes must be logged.

A record that is simply given back stays in memory (`PartitionView.returned`, lazily logged). A
failed attempt becomes a `Failed`, which `failures` turns into entries; until those are applied, no
consumer gets the records.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from gossipq import limits
from gossipq.core.delivery import tries
from gossipq.core.delivery.consumers import (
    EXCLUSIVE,
    UNKNOWN_NUMBER,
    Lease,
    PartitionView,
    Subscription,
    place_of,
)
from gossipq.core.delivery.policy import NUMBER_MAX
from gossipq.core.ledger import Ledger, key_lane
from gossipq.core.storage import Deadlines, Intervals, LeaseRow
from gossipq.errors import BadRequest, Busy
from gossipq.types import KEY_HASH, Offset, Origin, PartitionKey, SessionId
from gossipq.values import Range

Ranges = Sequence[tuple[Offset, Offset]]

DONE, FAILED, BACK = "done", "failed", "back"
MOVING_MS = 20  #: pause before a client asks again for a record that an entry is moving
OVER = -1  #: in place of an attempt number: the record is acked or was removed
#: in place of a subscription: a repeated ack of these records is not reported as lost
ACKED_NUMBER = -2


class Waiter:
    """A request that waits until its entries are stored, with the ranges that it
    has lost to other consumers.
    """

    __slots__ = ("entries", "lost", "origin", "request_id")

    def __init__(self, origin: Origin, request_id: int, lost: list[Range] | None = None) -> None:
        self.origin, self.request_id = origin, request_id
        self.lost: list[Range] = [] if lost is None else lost
        self.entries = 0  #: entries that are not stored yet


class Acks:
    """Ranges that one group and consumer has acked, collected over a turn."""

    __slots__ = ("_found", "_sorted", "ranges", "waiters")

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.waiters: list[Waiter] = []
        self._found: dict[PartitionKey, Intervals] = {}  # intervals of the first `_sorted` ranges
        self._sorted = 0

    def add(self, partition: PartitionKey, first: Offset, end: Offset) -> None:
        if self.ranges and self.ranges[-1][0] == partition and self.ranges[-1][2] == first:
            first = self.ranges.pop()[1]
        self.ranges.append((partition, first, end))

    def add_all(self, ranges: list[Range]) -> None:
        self.add(*ranges[0])
        self.ranges += ranges[1:]

    def without(
        self, partition: PartitionKey, parts: list[tuple[Offset, Offset]]
    ) -> list[tuple[Offset, Offset]]:
        """The parts that are not among the ranges. This is rarely asked, so ranges that came since
        the last call are sorted only now.
        """
        for number, first, end in self.ranges[self._sorted :]:
            self._found.setdefault(number, Intervals()).add(first, end)
        self._sorted = max(0, len(self.ranges) - 1)  # the last one may still grow
        found = self._found.get(partition)
        return parts if found is None else [left for part in parts for left in found.missing(*part)]


class Failed(NamedTuple):
    """An attempt that ended without success. With `delay_ms` -1 the policy gives the pause. `dead`
    is the reason why no further attempt follows. `ranges`: only these of [first, end).
    """

    view: PartitionView
    first: Offset
    end: Offset
    attempts: int
    consumer: str
    reason: str
    delay_ms: int = -1
    counted: bool = True
    dead: str = ""
    waiter: Waiter | None = None
    ranges: Ranges = ()

    @property
    def of(self) -> Ranges:
        return self.ranges or [(self.first, self.end)]


def _moves(offset: Offset) -> Busy:
    return Busy(f"an entry that moves offset {offset} is being stored", retry_after_ms=MOVING_MS)


def apart(ranges: list[Range]) -> list[Range]:
    """The same records without overlaps, partition by partition. So each record costs once, and a
    look-up is shared by neighbours.
    """
    ends: dict[PartitionKey, Offset] = {}
    last = None
    for partition, first, end in ranges if len(ranges) > 1 else ():
        if partition in ends and (partition != last or first < ends[partition]):
            break
        ends[partition], last = max(end, first), partition
    else:
        return ranges
    found: dict[PartitionKey, Intervals] = {}
    for partition, first, end in sorted(ranges):
        found.setdefault(partition, Intervals()).add(first, end)
    return [(partition, *part) for partition, parts in found.items() for part in parts]


class Leases:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.failed: deque[Failed] = deque()  #: oldest first
        self.dirty: set[int] = set()  #: groups that may have records to deliver
        self.runs = 0  #: how often `run` has chosen records for consumers
        #: leader time at which exception rows are due
        self.again: Deadlines[PartitionView] = Deadlines()
        self._deadlines: Deadlines[Lease] = Deadlines()
        # session -> subscription number -> leases
        self._by_session: dict[SessionId, dict[int, dict[Lease, None]]] = {}
        self._acks: dict[tuple[int, str], Acks] = {}
        #: by the same names: acks in entries that are not applied, the oldest first
        self._acking: dict[tuple[int, str], deque[Acks]] = {}
        self.unlogged: dict[PartitionView, None] = {}  #: views with leases for the lazy log

    # --- leases ---------------------------------------------------------------------------------------------

    def lease(self, view: PartitionView, first: Offset, end: Offset, lease: Lease, deadline_ms: int) -> None:
        """Leases records that are being delivered. Raises TwoPlaces."""
        view.enters("leased", first, end)
        self._open(view, first, end, lease, deadline_ms)
        self._take_keys(view, first, end, lease)

    def _take_keys(self, view: PartitionView, first: Offset, end: Offset, lease: Lease) -> None:
        """In a key-ordered group, closes the keys of leased records to all other consumers."""
        if view.keys is not None:
            for at, hashes in self._columns(view, first, end):
                view.keys.took(hashes, at, lease.owner)

    def lease_all(self, view: PartitionView, ranges: Ranges, lease: Lease, deadline_ms: int) -> None:
        """Leases records in rising ranges with gaps, where keys have no order. Raises TwoPlaces."""
        first, end = ranges[0][0], ranges[-1][1]
        if view.holds_some(first, end):
            for each in ranges:
                view.enters("leased", *each)
        self._open_all(view, ranges, lease, deadline_ms)
        self.log_later(view, first, end)

    def _open_all(self, view: PartitionView, ranges: Ranges, lease: Lease, deadline_ms: int) -> None:
        lease.first, lease.end = ranges[0][0], ranges[-1][1]
        lease.open = sum([high - low for low, high in ranges])
        view.leases.set_all(list(ranges), lease)
        self._begin(lease, deadline_ms)

    def _open(self, view: PartitionView, first: Offset, end: Offset, lease: Lease, deadline_ms: int) -> None:
        lease.first, lease.end, lease.open = first, end, end - first
        view.leases.set(first, end, lease)
        self._begin(lease, deadline_ms)
        self.log_later(view, first, end)

    def _begin(self, lease: Lease, deadline_ms: int) -> None:
        lease.deadline_ms = deadline_ms
        self._deadlines.set(lease, deadline_ms)
        self._by_session.setdefault(lease.session, {}).setdefault(lease.number, {})[lease] = None

    def reserve(self, view: PartitionView, first: Offset, end: Offset, number: int = 0) -> None:
        """Reserves records for an entry that will move them: no consumer gets
        them until it is applied.
        """
        view.leases.set(first, end, self._nobody(view, number))

    @staticmethod
    def _nobody(view: PartitionView, number: int) -> Lease:
        nobody = view.reserved.get(number)
        if nobody is None:  # one for all reserved records
            nobody = view.reserved[number] = Lease(view, b"", number, "", 0, 0)
        return nobody

    def landed(self, view: PartitionView, first: Offset, end: Offset) -> None:
        """The entry for which [first, end) was reserved is applied."""
        leases = view.leases
        at = leases.place(first, end)
        parts = [(first, end, leases.values[at])] if at >= 0 else leases.overlap(first, end)
        for low, high, lease in parts:
            if not lease.session:
                leases.clear(low, high)
        self.dirty.add(view.group.id)

    def all_landed(self, view: PartitionView, ranges: list[tuple[Offset, Offset]]) -> None:
        """Like `landed`, for each range."""
        if view.reserved and view.leases.reaches(min(ranges)[0], max(ranges)[1]):
            left = view.leases.drop(ranges, view.reserved.values()) if len(ranges) > 1 else ranges
            for first, end in left:
                self.landed(view, first, end)
        self.dirty.add(view.group.id)

    def acked(self, view: PartitionView, ranges: list[tuple[Offset, Offset]]) -> None:
        """An ACK entry is applied, so the keys of its records are free. They must not be freed
        earlier. A leader that is cut off would deliver the next records, and the next leader, which
        never saw the ack, the acked ones again.
        """
        self.all_landed(view, ranges)
        for first, end in ranges if view.keys is not None else ():
            self._let_go(view, first, end, DONE)

    def grant(
        self,
        member: Subscription,
        view: PartitionView,
        first: Offset,
        end: Offset,
        tried: int,
        boot_ms: int,
        lease_ms: int,
        failed: bool,
    ) -> None:
        """Leases [first, end) to a member; `failed` tells whether the records failed before.
        Extends the last lease if it is of this turn. A lease of the same millisecond that has left
        already, or did not reach its consumer, is not extended.
        """
        leases, deadline_ms = view.leases, boot_ms + lease_ms
        run = self.runs if view.group.state.config.mode == EXCLUSIVE else 0
        if view.keys is None and leases.ends and leases.ends[-1] == first:
            last = leases.values[-1]
            if (
                last.deadline_ms == deadline_ms
                and last.before == tried
                and last.owner == member.name
                and last.started is member.is_silent
                and not last.missed
                and last.run == run
                and last.failed is failed
            ):
                leases.ends[-1] = last.end = end
                last.open += end - first
                self.log_later(view, first, end)
                return
        owner = member.session, member.number, member.consumer
        lease = Lease(view, *owner, tries.begun(tried) + 1, boot_ms)
        lease.before = tried
        lease.started = member.is_silent
        lease.failed = failed
        lease.run, lease.waits = run, run > 0
        self.lease(view, first, end, lease, deadline_ms)

    def _close(self, lease: Lease, count: int) -> None:
        lease.open -= count
        if not lease.open:
            self._gone(lease)

    def _gone(self, lease: Lease) -> None:
        self._deadlines.cancel(lease)
        of_session = self._by_session.get(lease.session, {})
        known = of_session.get(lease.number, {})
        known.pop(lease, None)
        if not known and of_session.pop(lease.number, None) is not None and not of_session:
            del self._by_session[lease.session]

    def _of(self, name: tuple[SessionId, int]) -> list[Lease]:
        """The leases of a subscription."""
        return list(self._by_session.get(name[0], {}).get(name[1], ()))

    def forget(self, view: PartitionView, first: Offset, end: Offset) -> None:
        """Ends leases of records that left by themselves, by retention for example."""
        for low, high, lease in view.leases.pop(first, end):
            self._close(lease, high - low)
            if lease.session:
                self._let_go(view, low, high, DONE)
        view.returned.clear(first, end)
        view.lanes.leave(first, end)

    def look_again(self, view: PartitionView, due_ms: int | None) -> None:
        """Sets when exception rows of a view are to be read back; None if
        no row waits for its time.
        """
        view.due_ms = due_ms
        if due_ms is None:
            self.again.cancel(view)
        else:
            self.again.set(view, due_ms)

    def _drop(self, view: PartitionView) -> None:
        """The partition of a view is gone. Its failures are dropped, but the requests that
        wait for them are answered.
        """
        self.again.cancel(view)
        self.unlogged.pop(view, None)
        for _, _, lease in view.leases:
            self._gone(lease)
        theirs = (
            each._replace(first=each.end, ranges=()) if each.view is view else each for each in self.failed
        )
        self.failed = deque(each for each in theirs if each.first < each.end or each.waiter is not None)

    def give_back(self, view: PartitionView, first: Offset, end: Offset, tried: int) -> None:
        """Makes records ready again, with their tries. Raises TwoPlaces."""
        view.enters("returned", first, end)
        view.returned.set(first, end, tried)
        self.came_back(view, [(first, end)])
        self.log_later(view, first, end)
        self.dirty.add(view.group.id)

    @staticmethod
    def came_back(view: PartitionView, ranges: Ranges) -> None:
        """Records wait again, and may have expired meanwhile."""
        if view.spans is not None:
            for first, end in ranges:
                view.spans.back.add(first, end)

    def _end_part(self, view: PartitionView, first: Offset, end: Offset, lease: Lease, why: str) -> None:
        """Ends a lease. If its holder did not end it (`why` gives the cause), records that were
        delivered before and have begun now have failed. All others are given back: at the first
        time, the consumer may just have been stopped.
        """
        view.leases.clear(first, end)
        self._close(lease, end - first)
        if lease.started and lease.before and why and not lease.waits:
            self._let_go(view, first, end, FAILED)
            self._fail(Failed(view, first, end, lease.attempt, lease.consumer, why))
        else:
            self._let_go(view, first, end, BACK)
            self.give_back(view, first, end, lease.tries)

    def _fail(self, failed: Failed) -> None:
        self.reserve(failed.view, failed.first, failed.end)
        self._note(failed)

    def _note(self, failed: Failed) -> None:
        self.failed.append(failed)
        if failed.waiter is not None:
            failed.waiter.entries += 1  # subtracted again when its entries are counted

    @property
    def overdue(self) -> bool:
        """True if more failures wait than one turn can turn into entries; expired
        records are not looked for then.
        """
        return len(self.failed) >= limits.FAILURES_PER_TURN

    def holds_some(self, session: SessionId) -> bool:
        """True if the session holds a record."""
        return session in self._by_session

    def holders(self) -> Collection[SessionId]:
        """Return the sessions that hold a record."""
        return self._by_session.keys()

    def held(self, session: SessionId) -> dict[int, tuple[int, int]]:
        """For each subscription of a session: how many records it holds, and the boot
        time of its oldest delivery.
        """
        return {
            number: (sum(lease.open for lease in leases), min(lease.since_ms for lease in leases))
            for number, leases in self._by_session.get(session, {}).items()
        }

    def held_by(self, name: tuple[SessionId, int]) -> tuple[int, int]:
        """How many records a subscription holds, and the boot time of its
        oldest delivery; (0, 0) = none.
        """
        leases = self._by_session.get(name[0], {}).get(name[1], ())
        return sum(lease.open for lease in leases), min((lease.since_ms for lease in leases), default=0)

    def _end_all(self, session: SessionId, why: str) -> None:
        """Ends all leases of a session."""
        for number in list(self._by_session.get(session, ())):
            self._end_subscription((session, number), why)

    def _end_subscription(self, name: tuple[SessionId, int], why: str = "") -> None:
        """Ends all leases of a subscription; without `why` the client ended it."""
        self._end(self._of(name), why)

    def _end(self, leases: list[Lease], why: str) -> None:
        for first, end, lease in self._parts_of(leases):
            self._end_part(lease.view, first, end, lease, why)

    @staticmethod
    def _parts_of(leases: list[Lease]) -> Iterator[tuple[Offset, Offset, Lease]]:
        """The ranges of these leases, view by view. Leases may overlap; no
        place is looked at twice.
        """
        spans: dict[PartitionView, Intervals] = {}
        for lease in leases:
            spans.setdefault(lease.view, Intervals()).add(lease.first, lease.end)
        these = set(leases)
        for view, span in spans.items():
            for low, high in span:
                for part in view.leases.overlap(low, high):
                    if part[2] in these:
                        yield part

    def _ends_ms(self) -> int | None:
        """When the next lease ends."""
        return self._deadlines.next()

    def expire(self, boot_ms: int) -> None:
        """Ends the leases that are over by now."""
        self._end(self._deadlines.expire(boot_ms), "its lease ended")

    # --- keys -----------------------------------------------------------------------------------------------

    def hashes(self, view: PartitionView, first: Offset, end: Offset) -> Iterator[tuple[Offset, int]]:
        """(offset, key hash) of records in a key-ordered group, without those that have no key."""
        for at, hashes in self._columns(view, first, end):
            for offset, key_hash in enumerate(hashes, at):
                if key_hash:
                    yield offset, key_hash

    def _left_from(self, view: PartitionView, first: Offset, end: Offset) -> Offset:
        """The first record from `first` on that still exists; `end` if there is none before."""
        state = self._ledger.partitions.get(view.partition)
        if state is None:
            return end
        kept = view.cursor.exceptions.within(first, end) if view.cursor.exceptional else ()
        return min(max(first, state.first), next((found.first for found in kept), end), end)

    def _columns(
        self, view: PartitionView, first: Offset, end: Offset
    ) -> Iterator[tuple[Offset, Sequence[int]]]:
        """The key hashes of records of a key-ordered group, in runs, each with its first offset."""
        while first < end:
            place = place_of(self._ledger, view.cursor, view.partition, first)
            if place is None:  # this record left; later ones may exist
                first = self._left_from(view, first + 1, end)
                continue
            stop = min(end, place.end)
            column = self._ledger.opened.column(place.entry, KEY_HASH) if place.columns & KEY_HASH else None
            if column:
                yield first, column[place.record : place.record + stop - first]
            first = stop

    def _let_go(
        self, view: PartitionView, first: Offset, end: Offset, outcome: str, held: bool = True
    ) -> None:
        """Records of a key-ordered group are no longer in flight, or wait for a route. Keys that
        become free let their next records through.
        """
        keys = view.keys
        if keys is None:
            return
        free = keys.let_go(first, end) if held else []  # also for records that have left meanwhile
        if outcome == FAILED:
            for offset, key_hash in self.hashes(view, first, end):
                keys.failed(key_hash, offset)
        elif outcome == DONE and keys.some_failed:
            for offset, key_hash in self.hashes(view, first, end):
                keys.done(key_hash, offset)
        in_memory, on_disk = view.lanes.of_keys, keys.on_disk
        if in_memory or on_disk:
            hashes = {each for _, column in self._columns(view, first, end) for each in column}
            for key_hash in hashes.union(free):
                if key_hash in in_memory or key_hash in on_disk:
                    self.let_on(view, key_hash)
        self.dirty.add(view.group.id)

    def let_on(self, view: PartitionView, key_hash: int) -> None:
        """If the key is free, lets the first record that waits for it through: from
        memory or from disk. From both, if one record is first in both because it was read
        back from disk meanwhile.
        """
        assert view.keys is not None
        lane, on_disk = key_lane(key_hash), view.keys.on_disk.get(key_hash)
        waiting = view.lanes.of_keys.get(key_hash)
        here = waiting.starts[0] if waiting else None
        firsts = [each for each in (here, on_disk) if each is not None]
        if not view.keys.opens(key_hash, min(firsts, default=0)) or not firsts:
            return
        if here == min(firsts):
            view.open_lane(lane)  # records after those on disk come back into the lane
        if on_disk == min(firsts):
            view.draining.setdefault(lane, on_disk)

    def key_done(self, view: PartitionView, offset: Offset, key_hash: int) -> None:
        """A record of a key-ordered group is finished for good."""
        if view.keys is not None:
            view.keys.done(key_hash, offset)
            self.let_on(view, key_hash)

    # --- requests -------------------------------------------------------------------------------------------

    def _held(
        self,
        view: PartitionView,
        session: SessionId,
        low: Offset,
        high: Offset,
        lost: list[Range],
        waiting: bool = True,
    ) -> list[tuple[Offset, Offset, Lease]]:
        """Removes leases of `session` in [low, high); with `waiting` also those of deliveries that
        have not left yet. Records of other consumers stay and are added to `lost`.
        """
        mine: list[tuple[Offset, Offset, Lease]] = []
        leases = view.leases
        at = leases.around(low, high)
        if at >= 0 and (lease := leases.values[at]).session == session and (waiting or not lease.waits):
            leases.cut(at, low, high)
            self._close(lease, high - low)
            return [(low, high, lease)]
        for first, end, lease in leases.overlap(low, high):
            if lease.session == session and (waiting or not lease.waits):
                mine.append((first, end, lease))
            elif lease.session or lease.number != ACKED_NUMBER:
                lost.append((view.partition, first, end))
        for first, end, lease in mine:
            leases.clear(first, end)
            self._close(lease, end - first)
        return mine

    def _mine(
        self, subscription: Subscription, ranges: list[Range], number: int, waiting: bool = False
    ) -> list[tuple[Lease, list[tuple[Offset, Offset]]]] | None:
        """Removes records from leases, and reserves those that have an exception row. It is a fast
        form of `_held` for many ranges. It needs ranges in one partition, each within one lease of
        the subscription's session. Otherwise it changes nothing and returns None.
        """
        if not ranges:
            return None
        (partition, low, _), (_, _, high), group = ranges[0], ranges[-1], subscription.group
        view = group.views.get(partition) if group is not None else None
        state = self._ledger.partitions.get(partition)
        if view is None or state is None or view.keys is not None:
            return None
        if low < (0 if view.cursor.exceptional else state.first) or high > min(view.next, state.next):
            return None
        if any(each[0] != partition for each in ranges):
            return None
        session = subscription.session
        nobody = None
        if number != ACKED_NUMBER or view.cursor.exceptional:
            nobody = self._nobody(view, number)
        found = view.leases.carve(
            [(first, end) for _, first, end in ranges],
            lambda lease: lease.session == session and (waiting or not lease.waits),
            nobody,
        )
        for lease, parts in found or ():
            self._close(lease, sum([end - first for first, end in parts]))
        if found is not None:
            self.dirty.add(view.group.id)
        return found

    def ack(
        self,
        subscription: Subscription,
        ranges: list[Range],
        origin: Origin,
        request_id: int,
        unseen: bool = False,
    ) -> None:
        """Acks records. An ack is lost if another consumer holds or has acked the record, or if it
        was never delivered. The last holder may be late: its lease is over, or the leader is new.
        With `unseen` records that were never delivered are acked, too.
        """
        acks = self._acks_of(subscription)
        waiter = Waiter(origin, request_id)
        if self._mine(subscription, ranges, ACKED_NUMBER, waiting=True) is not None:
            acks.add_all(ranges)
            acks.waiters.append(waiter)
            subscription.acked += sum([end - first for _, first, end in ranges])
            return
        for view, low, high in self._by_view(subscription, ranges, waiter.lost):
            for first, end in self._done(view, subscription, low, high, waiter.lost, unseen):
                acks.add(view.partition, first, end)
                subscription.acked += end - first
        acks.waiters.append(waiter)

    def ack_delivered(
        self,
        view: PartitionView,
        consumer: str,
        deliveries: list[tuple[Offset, int]],
        origin: Origin,
        request_id: int,
    ) -> None:
        """Ack deliveries of committed records by (offset, attempt),
        whichever sessions they went to.

        A record is lost to the caller if it was delivered again since, was never delivered, or is a
        dead letter. A record that is acked already, or was removed, counts as acked. Raises Busy,
        before anything changes, while an entry that moves one of the records is being stored.
        """
        waiter, mine = Waiter(origin, request_id), list[Offset]()
        for offset, attempt in deliveries:
            last = self._last_attempt(view, offset)
            if last > attempt:
                waiter.lost.append((view.partition, offset, offset + 1))
            elif last != OVER:
                mine.append(offset)
        acks = self._acks.setdefault((view.group.id, consumer), Acks())
        for offset in mine:
            self._look_up_to(view, offset, offset + 1)
            for _, _, lease in view.leases.pop(offset, offset + 1):
                self._close(lease, 1)
            view.returned.clear(offset, offset + 1)
            view.lanes.leave(offset, offset + 1)
            # it may have a row, which would be read back when it is due
            if view.cursor.exceptional:
                self.reserve(view, offset, offset + 1, ACKED_NUMBER)
            acks.add(view.partition, offset, offset + 1)
        self.dirty.add(view.group.id)
        acks.waiters.append(waiter)

    @staticmethod
    def _last_attempt(view: PartitionView, offset: Offset) -> int:
        """The attempt number of a record's last delivery. OVER if it is acked or was removed,
        NUMBER_MAX if it was never delivered or is a dead letter. Raises Busy.
        """
        cursor, end = view.cursor, offset + 1
        for _, _, lease in view.leases.overlap(offset, end):
            if not lease.session:
                raise _moves(offset)
            return lease.attempt
        for _, _, tried in view.returned.overlap(offset, end) + view.lanes.overlap(offset, end):
            return tries.newest(tried)
        if cursor.fresh(offset, end):
            if offset < view.next:  # it is in no place because its ack is being stored
                raise _moves(offset)
            # an earlier leader may have delivered it
            return 0 if offset < view.inherited else NUMBER_MAX
        waiting = cursor.exceptions.at(offset) if cursor.exceptional else None
        if waiting is not None:
            return waiting.row.attempts + waiting.row.handed_out
        return NUMBER_MAX if cursor.state.dead and cursor.dead.at(offset) is not None else OVER

    def _acks_of(self, subscription: Subscription) -> Acks:
        assert subscription.group is not None, "readers are refused before"
        return self._acks.setdefault((subscription.group.id, subscription.consumer), Acks())

    def ack_all(self, subscription: Subscription, view: PartitionView, first: Offset, end: Offset) -> None:
        """Acks records on delivery, for subscriptions with at most once."""
        self._acks_of(subscription).add(view.partition, first, end)
        self._let_go(view, first, end, DONE, held=False)
        if view.cursor.exceptional:
            self.reserve(view, first, end, ACKED_NUMBER)

    def _done(
        self,
        view: PartitionView,
        subscription: Subscription,
        low: Offset,
        high: Offset,
        lost: list[Range],
        unseen: bool,
    ) -> Iterator[tuple[Offset, Offset]]:
        """Yields the parts of [low, high) that this ack finishes, and removes
        them from all places here.
        """
        kept = len(lost)
        known = NUMBER_MAX if unseen else view.inherited
        self._look_up_to(view, low, min(high, known))
        mine = self._held(view, subscription.session, low, high, lost)
        if len(mine) == 1 and mine[0][:2] == (low, high):  # the usual case: it is in no other place
            self.dirty.add(view.group.id)
            if view.cursor.exceptional:
                self.reserve(view, low, high, ACKED_NUMBER)
            yield low, high
            return
        if sum(end - first for first, end, _ in mine) < high - low:
            had = Intervals([(first, end) for first, end, _ in mine])
            self._elsewhere(view, subscription.consumer, low, high, had, known, lost)
            never = self._never_had(view, max(low, known), high, had)
            lost += self._but_acking(view, subscription.consumer, never) if never else ()
        self.dirty.add(view.group.id)
        at, gaps = low, sorted((first, end) for _, first, end in lost[kept:]) if len(lost) > kept else []
        for first, end in [*gaps, (high, high)]:
            if at < first:
                if view.returned:
                    view.returned.clear(at, first)
                view.lanes.leave(at, first)
                if view.cursor.exceptional:  # otherwise its row would bring it back when it is due
                    self.reserve(view, at, first, ACKED_NUMBER)
                yield at, first
            at = max(at, end)

    def _but_acking(
        self, view: PartitionView, consumer: str, parts: list[tuple[Offset, Offset]]
    ) -> list[Range]:
        """The parts without those that this consumer acked by an entry on its
        way: an ACK may be repeated.
        """
        name = view.group.id, consumer
        for acks in (*self._acking.get(name, ()), self._acks[name]):
            parts = acks.without(view.partition, parts)
        return [(view.partition, *part) for part in parts]

    @staticmethod
    def _look_up_to(view: PartitionView, low: Offset, end: Offset) -> None:
        """Treats new records below `end` as delivered, since a consumer has [low, end)."""
        if end > view.next:
            for first, stop in view.new(view.next, min(low, end)):
                view.returned.set(first, stop, 0)
            for first, stop in view.new(low, end):
                view.returned.set(first, stop, 1)
            view.goes_to(end)

    @staticmethod
    def _never_had(
        view: PartitionView, low: Offset, high: Offset, had: Intervals
    ) -> list[tuple[Offset, Offset]]:
        """The parts of [low, high) that were never delivered to the group.

        An earlier leader may have delivered everything in its window without an entry:
        short leases are not logged, and a leader that is cut off delivers until its own
        lease ends. Only entries move the cursor, so its window ended where the window that
        this leader found ends (`PartitionView.inherited`). Records of other consumers count
        as delivered; they are lost already.
        """
        low = max(low, view.cursor.state.cursor)
        fresh = view.cursor.fresh(low, high) if low < high else []
        if not fresh:
            return []
        seen = Intervals()
        for start, stop in had:
            seen.add(start, stop)
        for start, stop, _ in view.leases.overlap(low, high):
            seen.add(start, stop)
        for start, stop, tried in view.returned.overlap(low, high) + view.lanes.overlap(low, high):
            if tried:
                seen.add(start, stop)
        return [part for first, end in fresh for part in seen.missing(first, end)]

    def _elsewhere(
        self,
        view: PartitionView,
        consumer: str,
        low: Offset,
        high: Offset,
        had: Intervals,
        known: Offset,
        lost: list[Range],
    ) -> None:
        """Adds records that the cursor has passed to `lost`. Three kinds are left out: those in
        `had`, those with an exception row that were delivered (below `known` all may have been),
        and those that this consumer acked. It looks at a bounded number of rows and adds the rest.
        """
        cursor = view.cursor
        if low >= cursor.state.cursor and not cursor.passed.starts:
            return
        passed = [(low, min(high, cursor.state.cursor)), *cursor.passed.overlap(low, high)]
        fine, end = Intervals(), passed[-1][1]
        for first, stop in had:
            fine.add(first, stop)
        rows = cursor.exceptions.within(low, end) if cursor.exceptional and low < end else ()
        for found in islice(rows, limits.RANGES_MAX):
            if found.row.attempts or found.row.handed_out or found.first < known:
                fine.add(found.first, found.end)
        for at, row in islice(cursor.acks.within(low, end), limits.RANGES_MAX):
            if row.consumer == consumer:
                fine.add(max(at, low), min(row.end, end))
        for first, stop in passed:
            lost += [(view.partition, *missing) for missing in fine.missing(first, stop)]

    def nack(
        self,
        subscription: Subscription,
        ranges: list[Range],
        waiter: Waiter,
        delay_ms: int,
        failed: bool,
        reason: str,
        dead: str,
    ) -> None:
        """Ends an attempt, counted or not, with a pause or without. Records that the
        session does not hold are lost.
        """
        plain = not failed and not dead and delay_ms <= 0
        counted = failed or bool(dead)
        ended = partial(Failed, delay_ms=delay_ms, counted=counted, dead=dead, waiter=waiter)
        taken = None if plain else self._mine(subscription, ranges, 0)
        for lease, parts in taken or ():
            subscription.failed += sum([end - first for first, end in parts]) if failed or dead else 0
            whole = lease.view, parts[0][0], parts[-1][1], lease.attempt
            self._note(ended(*whole, subscription.consumer, reason, ranges=parts if len(parts) > 1 else ()))
        if taken is not None:
            return
        for view, low, high in self._by_view(subscription, ranges, waiter.lost):
            mine = self._held(view, subscription.session, low, high, [], waiting=False)
            if len(mine) != 1 or mine[0][:2] != (low, high):
                gaps = Intervals([(first, end) for first, end, _ in mine]).missing(low, high)
                waiter.lost += [(view.partition, *gap) for gap in gaps]
            for first, end, lease in mine:
                if plain:
                    self._let_go(view, first, end, BACK)
                    self.give_back(view, first, end, lease.tries)
                else:
                    self._let_go(view, first, end, FAILED)
                    subscription.failed += end - first if failed or dead else 0
                    self._fail(ended(view, first, end, lease.attempt, subscription.consumer, reason))

    def start(self, subscription: Subscription, ranges: list[Range]) -> None:
        """Notes that user code has begun these records: they count as an
        attempt when their lease ends.
        """
        begun: dict[Lease, list[tuple[Offset, Offset]]] = {}
        for view, low, high in self._by_view(subscription, ranges):
            for first, end, lease in view.leases.overlap(low, high):
                if lease.session == subscription.session and not lease.started:
                    begun.setdefault(lease, []).append((first, end))
        for old, parts in begun.items():
            view, count = old.view, sum([end - first for first, end in parts])
            if count == old.open and old.owner == subscription.name:
                old.started = True
            else:
                lease = self._renewed(subscription, view, old)
                lease.started = True
                self._close(old, count)
                self._open_all(view, parts, lease, old.deadline_ms)
            for first, end in parts:  # the records between may belong to the leases of many others
                self.log_later(view, first, end)

    def extend(
        self, subscription: Subscription, ranges: list[Range], lease_ms: int, boot_ms: int
    ) -> list[Range]:
        """Moves deadlines, up to the longest lease allowed. Returns the ranges that
        the session no longer holds.
        """
        lost: list[Range] = []
        for view, low, high in self._by_view(subscription, ranges, lost):
            at = low
            for first, end, old in view.leases.overlap(low, high):
                if at < first:
                    lost.append((view.partition, at, first))
                at = end
                if old.session != subscription.session:
                    lost.append((view.partition, first, end))
                    continue
                deadline_ms = min(boot_ms + lease_ms, old.since_ms + limits.LEASE_TOTAL_MS_MAX)
                self._replace(view, first, end, old, self._renewed(subscription, view, old), deadline_ms)
            if at < high:
                lost.append((view.partition, at, high))
        return lost

    def _renew(self, subscription: Subscription, boot_ms: int) -> None:
        """Renews leases of a subscription that are half over, up to the longest lease allowed."""
        for lease in self._of(subscription.name):
            deadline_ms = min(boot_ms + subscription.lease_ms, lease.since_ms + limits.LEASE_TOTAL_MS_MAX)
            if deadline_ms - lease.deadline_ms > subscription.lease_ms // 2 and not lease.missed:
                lease.deadline_ms = deadline_ms
                self._deadlines.set(lease, deadline_ms)
                self.log_later(lease.view, lease.first, lease.end)

    @staticmethod
    def _renewed(subscription: Subscription, view: PartitionView, old: Lease) -> Lease:
        lease = Lease(
            view, subscription.session, subscription.number, subscription.consumer, old.attempt, old.since_ms
        )
        lease.started, lease.run, lease.waits = old.started, old.run, old.waits
        lease.before = old.before
        return lease

    def _replace(
        self, view: PartitionView, first: Offset, end: Offset, old: Lease, lease: Lease, deadline_ms: int
    ) -> None:
        self._close(old, end - first)
        self._open(view, first, end, lease, deadline_ms)

    def holds_all(self, subscription: Subscription, ranges: list[Range]) -> bool:
        """True if the session holds every record of the ranges."""
        found = 0
        for view, low, high in self._by_view(subscription, ranges):
            rows = view.leases.overlap(low, high)
            found += sum(end - first for first, end, lease in rows if lease.session == subscription.session)
        return found == sum(end - first for _, first, end in apart(ranges))

    def take(
        self, subscription: Subscription, ranges: list[Range]
    ) -> list[tuple[PartitionView, Offset, Offset, Lease]]:
        """An entry that acks these records is on its way. Returns the
        leases to restore if it fails.
        """
        taken = []
        for view, low, high in self._by_view(subscription, ranges):
            for first, end, lease in self._held(view, subscription.session, low, high, []):
                self.reserve(view, first, end)
                taken.append((view, first, end, lease))
        return taken

    def taken(self, taken: list[tuple[PartitionView, Offset, Offset, Lease]], done: bool) -> int:
        """That entry is applied: acks the records, or gives back those that are still open, because
        it was refused or was a repeat that acked nothing. Returns how many are acked.
        """
        count = 0
        for view, first, end, lease in taken:
            cursor, left = view.cursor, Intervals()
            for low, high in cursor.fresh(first, end):
                left.add(low, high)
            for found in cursor.exceptions.within(first, end) if cursor.exceptional else ():
                left.add(found.first, found.end)
            self.landed(view, first, end)
            for low, high in left.missing(first, end):
                self._let_go(view, low, high, DONE)
                count += high - low
            for low, high in left:
                self._let_go(view, low, high, BACK)
                self.give_back(view, low, high, lease.tries)
        return count if done else 0

    def _keep(
        self,
        subscription: Subscription,
        view: PartitionView,
        kept: Intervals,
        boot_ms: int,
        lease_ms: int,
    ) -> None:
        """After a lost connection the client keeps what it still holds, unless other consumers hold
        it; its other records are given back.
        """
        before = self._of(subscription.name) + self._of((subscription.session, UNKNOWN_NUMBER))
        for low, high, lease in self._parts_of([lease for lease in before if lease.view is view]):
            for first, end in kept.missing(low, high):
                self._let_go(view, first, end, BACK)
                view.leases.clear(first, end)
                self._close(lease, end - first)
                self.give_back(view, first, end, lease.tries)
        for first, end in kept:
            # the records between were delivered, too, and lost
            self._look_up_to(view, view.next, min(end, view.inherited))
            for low, high, tried in view.returned.pop(first, end):
                # never delivered, and a claim cannot change that
                if not tried and high > view.inherited:
                    view.returned.set(max(low, view.inherited), high, 0)
                    high = max(low, view.inherited)
                    if low == high:
                        continue
                owner = subscription.session, subscription.number, subscription.consumer
                lease = Lease(view, *owner, max(1, tries.newest(tried)), boot_ms)
                lease.started = tries.begun(tried) == lease.attempt
                barred = self._barred(view, subscription.session, low, high)
                for start, stop in barred:
                    view.returned.set(start, stop, tried)
                for start, stop in barred.missing(low, high):
                    self.lease(view, start, stop, lease, boot_ms + lease_ms)

    def _barred(self, view: PartitionView, session: SessionId, low: Offset, high: Offset) -> Intervals:
        """The part of [low, high) that a claim must not take, because other consumers
        have records of its keys now.
        """
        found = Intervals()
        if view.keys is None:
            return found
        for at, key_hash in self.hashes(view, low, high):
            if view.keys.barred(key_hash, at, session):
                found.add(at, at + 1)
        return found

    def _by_view(
        self, subscription: Subscription, ranges: list[Range], lost: list[Range] | None = None
    ) -> Iterator[tuple[PartitionView, Offset, Offset]]:
        """Ranges by view, as far as the records exist; others are added to `lost`, except those
        that retention removed completely. Raises BadRequest before the first range.
        """
        assert subscription.group is not None, "readers are refused before"
        ranges = apart(ranges)
        for _, low, high in ranges:
            if low < 0 or high > NUMBER_MAX:
                raise BadRequest(f"range {low} to {high}", hint=f"offsets are 0 to {NUMBER_MAX}")
        for partition, low, high in ranges:
            view, state = subscription.group.views.get(partition), self._ledger.partitions.get(partition)
            if view is None or state is None:
                if lost is not None and low < high:
                    lost.append((partition, low, high))
                continue
            if lost is not None and max(low, state.next) < high:
                lost.append((partition, max(low, state.next), high))
            low, high = max(low, 0), min(high, state.next)
            if low < (removed := min(high, state.first)):
                yield from self._removed(view, low, removed, lost)
                low = removed
            if low < high:
                yield view, low, high

    @staticmethod
    def _removed(
        view: PartitionView, low: Offset, high: Offset, lost: list[Range] | None
    ) -> Iterator[tuple[PartitionView, Offset, Offset]]:
        """Of records that retention removed, yields those that still wait: they were dead letters,
        which have a body. Dead letters are added to `lost`, acked records are not. It looks at a
        bounded number of rows and adds the rest to `lost`.
        """
        cursor, most = view.cursor, limits.RANGES_MAX
        waiting: list[tuple[Offset, Offset]] = []
        if cursor.exceptional:
            waiting = [(row.first, row.end) for row in islice(cursor.exceptions.within(low, high), most)]
        if lost is not None:
            letters: list[tuple[Offset, Offset]] = []
            if cursor.state.dead:
                letters = [(row.first, row.end) for row in islice(cursor.dead.within(low, high), most)]
            rests = [(some[-1][1], high) for some in (letters, waiting) if len(some) == most]
            lost += [(view.partition, *each) for each in (*letters, *rests)]
        for first, end in waiting:
            yield view, first, end

    # --- what must be logged --------------------------------------------------------------------------------

    def log_later(self, view: PartitionView, first: Offset, end: Offset) -> None:
        if view.unlogged and view.unlogged[-1][1] == first:
            first = view.unlogged.pop()[0]
        view.unlogged.append((first, end))
        self.unlogged[view] = None

    def logged(self) -> None:
        """Forgets what `log_later` noted: leases that were opened from
        the log are in it already.
        """
        for view in self.unlogged:
            view.unlogged.clear()
        self.unlogged.clear()

    def take_acks(self) -> dict[tuple[int, str], Acks]:
        taken, self._acks = self._acks, {}
        for name, acks in taken.items():
            if acks.ranges:
                self._acking.setdefault(name, deque()).append(acks)
        return taken

    def _acked_by(self, name: tuple[int, str]) -> None:
        """The oldest of these entries is applied."""
        entries = self._acking.get(name)
        if entries is not None:
            entries.popleft()
            if not entries:
                del self._acking[name]

    def waiters(self) -> list[Waiter]:
        """Requests that wait for changes which are not in the log yet."""
        found = [waiter for acks in self._acks.values() for waiter in acks.waiters]
        return found + [each.waiter for each in self.failed if each.waiter is not None]

    def take_leases(self, boot_ms: int, timer_ms: int) -> dict[int, list[LeaseRow]]:
        """Rows per group of all records that are still leased or given back; records
        acked meanwhile cost nothing.
        """
        taken: dict[int, list[LeaseRow]] = {}
        views, self.unlogged = self.unlogged, {}
        for view in views:
            spans, held, back = Intervals(), dict[Lease, list[tuple[Offset, Offset]]](), []
            for low, high in sorted(view.unlogged):
                spans.add(low, high)
            view.unlogged.clear()
            for low, high in spans:
                for first, end, lease in view.leases.overlap(low, high):
                    held.setdefault(lease, []).append((first, end))
                back += view.returned.overlap(low, high) if view.returned else []
                if view.lanes:  # it waits for a consumer of its route or key now
                    back += view.lanes.back(low, high)
            rows = taken.setdefault(view.group.id, [])
            for lease, ranges in held.items():
                if lease.session:
                    deadline_ms = timer_ms + lease.deadline_ms - boot_ms
                    whole = view.partition, ranges[0][0], ranges[-1][1], lease.session, deadline_ms
                    told = lease.attempt, lease.consumer, lease.started
                    rows.append(LeaseRow(*whole, *told, ranges if len(ranges) > 1 else []))
            for first, end, tried in back:
                attempt = tries.newest(tried)
                started = 0 < attempt == tries.begun(tried)
                rows.append(LeaseRow(view.partition, first, end, b"", 0, attempt, started=started))
        return {group_id: rows for group_id, rows in taken.items() if rows}
