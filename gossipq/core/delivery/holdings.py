"""Holdings: which session holds which records, and until when. Also the records that no consumer
gets until an entry is applied, and the leases that must be logged.

A record that is simply given back stays in memory as `ReadyRecords`, lazily logged. A
failed attempt becomes a `Failed`, which `attempts` turns into entries; until those are applied, no
consumer gets the records.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from gossipq import limits
from gossipq.core.delivery import tries
from gossipq.core.delivery.consumers import EXCLUSIVE, DeliveryTurn, PartitionView, Subscription
from gossipq.core.delivery.key_order import BACK, DONE, FAILED, KeyOrder
from gossipq.core.delivery.window import MOVED, Lease, MovingRecords, OwnedLeases, ReadyRecords
from gossipq.core.storage import Deadlines, Intervals, LeaseRow
from gossipq.types import Offset, Origin, SessionId
from gossipq.values import Range

EXPIRED = "expired"


class Waiter:
    """A request that waits until its entries are stored, with the ranges that it
    has lost to other consumers.
    """

    __slots__ = ("entries", "lost", "origin", "request_id")

    def __init__(self, origin: Origin, request_id: int, lost: list[Range] | None = None) -> None:
        self.origin, self.request_id = origin, request_id
        self.lost: list[Range] = [] if lost is None else lost
        self.entries = 0  #: entries that are not stored yet


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
    ranges: Sequence[tuple[Offset, Offset]] = ()

    @property
    def of(self) -> Sequence[tuple[Offset, Offset]]:
        return self.ranges or [(self.first, self.end)]


class Holdings:
    """Leases by session and deadline."""

    def __init__(self, turn: DeliveryTurn, key_order: KeyOrder) -> None:
        self.turn, self.key_order = turn, key_order
        self.failed: deque[Failed] = deque()  #: oldest first
        self.unlogged: dict[PartitionView, None] = {}  #: views with leases for the lazy log
        self._deadlines: Deadlines[Lease] = Deadlines()
        # session -> subscription number -> leases
        self._by_session: dict[SessionId, dict[int, OwnedLeases]] = {}
        #: subscriptions that had no room for more records, and have some again
        self.relieved: dict[tuple[SessionId, int], None] = {}

    def lease(self, view: PartitionView, first: Offset, end: Offset, lease: Lease, deadline_ms: int) -> None:
        """Lease records that are being delivered. Raises NoSuchMove."""
        lease.first = first
        lease.end = end
        lease.open = end - first
        view.window.move(first, end, lease)
        self._start(lease, deadline_ms)
        self.log_later(view, first, end)

    def lease_all(
        self, view: PartitionView, ranges: list[tuple[Offset, Offset]], lease: Lease, deadline_ms: int
    ) -> None:
        """Lease records in rising ranges with gaps. Raises NoSuchMove."""
        lease.first, lease.end = ranges[0][0], ranges[-1][1]
        lease.open = sum([high - low for low, high in ranges])
        view.window.move_all(ranges, lease)
        self._start(lease, deadline_ms)

    def lease_new(
        self, view: PartitionView, ranges: list[tuple[Offset, Offset]], lease: Lease, deadline_ms: int
    ) -> None:
        """Lease new records that are being delivered, in rising ranges. The limits of their flows count
        them already. Raises NoSuchMove.
        """
        lease.first, lease.end = ranges[0][0], ranges[-1][1]
        lease.open = sum([high - low for low, high in ranges])
        view.window.lease_new(ranges, lease)
        self._start(lease, deadline_ms)
        view.unlogged += ranges
        self.unlogged[view] = None

    def _start(self, lease: Lease, deadline_ms: int) -> None:
        lease.deadline_ms = deadline_ms
        self._deadlines.set(lease, deadline_ms)
        of_session = self._by_session.setdefault(lease.session, {})
        owned = of_session.get(lease.number)
        if owned is None:
            owned = of_session[lease.number] = OwnedLeases()
        owned[lease] = None
        lease.owned_leases = owned
        owned.count(lease, lease.open)

    def entry_applied(self, view: PartitionView, ranges: list[tuple[Offset, Offset]]) -> None:
        """The entry that these records waited for is applied."""
        if view.window.has_moved:
            view.window.land(ranges)
        self.turn.dirty.add(view.group.id)

    def ack_applied(self, view: PartitionView, ranges: list[tuple[Offset, Offset]]) -> None:
        """An ACK entry is applied, so the keys of its records are free. They must not be freed
        earlier. A leader that is cut off would deliver the next records, and the next leader, which
        never saw the ack, the acked ones again.
        """
        self.entry_applied(view, ranges)
        for first, end in ranges if view.keys is not None else ():
            self.key_order.release_keys(view, first, end, DONE)

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
        """Lease [first, end) to a member; `failed` tells whether the records failed before.

        The lease before these records grows if it is of this turn. A lease of the same millisecond
        whose records were sent already, or did not reach the consumer, does not grow.
        """
        window, deadline_ms = view.window, boot_ms + lease_ms
        run = self.turn.number if view.group.state.config.mode == EXCLUSIVE else 0
        last = window.lease_before(first) if view.keys is None else None
        if (
            last is not None
            and last.deadline_ms == deadline_ms
            and last.before == tried
            and last.owner == member.name
            and last.started is member.is_silent
            and not last.missed
            and last.run == run
            and last.failed is failed
            and last.end == first
        ):
            window.grow(last, first, end)
            last.end = end
            last.open += end - first
            if last.owned_leases is not None:
                last.owned_leases.count(last, end - first)
            self.log_later(view, first, end)
            return
        lease = Lease(view, member.session, member.number, member.consumer, tries.begun(tried) + 1, boot_ms)
        lease.before = tried
        lease.started = member.is_silent
        lease.failed = failed
        lease.run = run
        lease.waits = run > 0
        self.lease(view, first, end, lease, deadline_ms)
        self.key_order.take_keys(view, first, end, lease)

    def close(self, lease: Lease, count: int) -> None:
        lease.open -= count
        self._uncount(lease, count)
        if not lease.open:
            self._gone(lease)

    def _uncount(self, lease: Lease, count: int) -> None:
        """Records of a lease are held no longer, or are counted in another way from now on."""
        owned = lease.owned_leases
        if owned is not None:
            owned.count(lease, -count)
            if owned.unstarted <= owned.resume_at:
                self.relieved[lease.owner] = None

    def _gone(self, lease: Lease) -> None:
        if lease.open:  # its partition is gone
            self._uncount(lease, lease.open)
        lease.owned_leases = None
        self._deadlines.cancel(lease)
        of_session = self._by_session.get(lease.session, {})
        owned = of_session.get(lease.number)
        if owned is None:
            return
        owned.pop(lease, None)
        if not owned:
            del of_session[lease.number]
            if not of_session:
                del self._by_session[lease.session]

    def mark_started(self, lease: Lease) -> None:
        """User code has begun all records of a lease."""
        self._uncount(lease, lease.open)
        lease.started = True
        if lease.owned_leases is not None:
            lease.owned_leases.count(lease, lease.open)

    def mark_missed(self, lease: Lease) -> None:
        """The records of a lease did not reach the consumer."""
        self._uncount(lease, lease.open)
        lease.missed = True
        if lease.owned_leases is not None:
            lease.owned_leases.count(lease, lease.open)

    def owned_by(self, name: tuple[SessionId, int]) -> OwnedLeases | None:
        """The leases of a subscription; None if it has no lease."""
        return self._by_session.get(name[0], {}).get(name[1])

    def leases_of(self, name: tuple[SessionId, int]) -> list[Lease]:
        """The leases of a subscription."""
        return list(self._by_session.get(name[0], {}).get(name[1], ()))

    def forget(self, view: PartitionView, first: Offset, end: Offset) -> None:
        """Let records leave memory that are gone by themselves, by retention for example. New ones
        stay new: the ledger says that they are void.
        """
        known = view.window.overlap(first, end)
        for low, high, _ in known:
            view.window.move(low, high, None)
        for low, high, state in known:
            if isinstance(state, Lease):
                self.close(state, high - low)
                self.key_order.release_keys(view, low, high, DONE)

    def drop_view(self, view: PartitionView) -> None:
        """Drop the leases and failures of a view that is gone. The requests that wait for these
        failures are answered.
        """
        self.unlogged.pop(view, None)
        for _, _, lease in view.window.leases():
            self._gone(lease)
        theirs = (
            each._replace(first=each.end, ranges=()) if each.view is view else each for each in self.failed
        )
        self.failed = deque(each for each in theirs if each.first < each.end or each.waiter is not None)

    def give_back(self, view: PartitionView, first: Offset, end: Offset, tried: int) -> None:
        """Make records ready again, with their tries. Raises NoSuchMove."""
        view.window.move(first, end, ReadyRecords(tried))
        self.recheck_expiry(view, [(first, end)])
        self.log_later(view, first, end)
        self.turn.dirty.add(view.group.id)

    @staticmethod
    def recheck_expiry(view: PartitionView, ranges: Sequence[tuple[Offset, Offset]]) -> None:
        """Records wait again, and may have expired meanwhile."""
        if view.spans is not None:
            for first, end in ranges:
                view.spans.back.add(first, end)

    def _end_part(self, view: PartitionView, first: Offset, end: Offset, lease: Lease, why: str) -> None:
        """Ends a lease. If its holder did not end it (`why` gives the cause), records that were
        delivered before and have begun now have failed. All others are given back: at the first
        time, the consumer may just have been stopped.
        """
        self.close(lease, end - first)
        if lease.started and lease.before and why and not lease.waits:
            self.key_order.release_keys(view, first, end, FAILED)
            self.fail(
                Failed(
                    view=view,
                    first=first,
                    end=end,
                    attempts=lease.attempt,
                    consumer=lease.consumer,
                    reason=why,
                )
            )
        else:
            self.key_order.release_keys(view, first, end, BACK)
            self.give_back(view, first, end, lease.tries)

    def fail(self, failed: Failed) -> None:
        failed.view.window.move(failed.first, failed.end, MOVED)
        self.queue_failure(failed)

    def queue_failure(self, failed: Failed) -> None:
        self.failed.append(failed)
        if failed.waiter is not None:
            failed.waiter.entries += 1  # subtracted again when its entries are counted

    @property
    def overdue(self) -> bool:
        """True if more failures wait than one turn can turn into entries; expired
        records are not looked for then.
        """
        return len(self.failed) >= limits.FAILURES_PER_TURN

    def holds_any(self, session: SessionId) -> bool:
        """True if the session holds a record."""
        return session in self._by_session

    def holders(self) -> Collection[SessionId]:
        """Return the sessions that hold a record."""
        return self._by_session.keys()

    def held_in(self, session: SessionId) -> dict[int, tuple[int, int]]:
        """For each subscription of a session: how many records it holds, and the boot
        time of its oldest delivery.
        """
        return {
            number: (owned.started + owned.unstarted, min(lease.since_ms for lease in owned))
            for number, owned in self._by_session.get(session, {}).items()
        }

    def held_by(self, name: tuple[SessionId, int]) -> tuple[int, int]:
        """How many records a subscription holds, and the boot time of its
        oldest delivery; (0, 0) = none.
        """
        owned = self.owned_by(name)
        if owned is None:
            return 0, 0
        return owned.started + owned.unstarted, min(lease.since_ms for lease in owned)

    def end_session(self, session: SessionId, why: str) -> None:
        """Ends all leases of a session."""
        for number in list(self._by_session.get(session, ())):
            self.end_subscription((session, number), why)

    def end_subscription(self, name: tuple[SessionId, int], why: str = "") -> None:
        """Ends all leases of a subscription; without `why` the client ended it."""
        self.end(self.leases_of(name), why)

    def end(self, leases: list[Lease], why: str) -> None:
        for first, end, lease in self.parts_of(leases):
            self._end_part(lease.view, first, end, lease, why)

    @staticmethod
    def parts_of(leases: list[Lease]) -> Iterator[tuple[Offset, Offset, Lease]]:
        """The ranges of these leases, view by view. Leases may overlap; no
        place is looked at twice.
        """
        spans: dict[PartitionView, Intervals] = {}
        for lease in leases:
            spans.setdefault(lease.view, Intervals()).add(lease.first, lease.end)
        these = set(leases)
        for view, span in spans.items():
            for low, high in span:
                for part in view.window.leased(low, high):
                    if part[2] in these:
                        yield part

    def next_deadline(self) -> int | None:
        """When the next lease ends."""
        return self._deadlines.next()

    def expire(self, boot_ms: int) -> None:
        """Ends the leases that are over by now."""
        self.end(self._deadlines.expire(boot_ms), "its lease ended")

    def renew(self, subscription: Subscription, boot_ms: int) -> None:
        """Renews leases of a subscription that are half over, up to the longest lease allowed."""
        for lease in self.leases_of(subscription.name):
            deadline_ms = min(boot_ms + subscription.lease_ms, lease.since_ms + limits.LEASE_TOTAL_MS_MAX)
            if deadline_ms - lease.deadline_ms > subscription.lease_ms // 2 and not lease.missed:
                lease.deadline_ms = deadline_ms
                self._deadlines.set(lease, deadline_ms)
                self.log_later(lease.view, lease.first, lease.end)

    def replace(
        self, view: PartitionView, first: Offset, end: Offset, old: Lease, lease: Lease, deadline_ms: int
    ) -> None:
        self.close(old, end - first)
        self.lease(view, first, end, lease, deadline_ms)

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

    def take_leases(self, boot_ms: int, timer_ms: int) -> dict[int, list[LeaseRow]]:
        """Rows per group of all records that are still leased or given back; records
        acked meanwhile cost nothing.
        """
        taken: dict[int, list[LeaseRow]] = {}
        views, self.unlogged = self.unlogged, {}
        for view in views:
            spans, held = Intervals(), dict[Lease, list[tuple[Offset, Offset]]]()
            back: list[tuple[Offset, Offset, int]] = []
            for low, high in sorted(view.unlogged):
                spans.add(low, high)
            view.unlogged.clear()
            for low, high in spans:
                for first, end, state in view.window.overlap(low, high):
                    if isinstance(state, Lease):
                        held.setdefault(state, []).append((first, end))
                    elif isinstance(state, MovingRecords):
                        continue
                    elif back and back[-1][1:] == (first, state.tries):
                        back[-1] = back[-1][0], end, state.tries
                    else:
                        back.append((first, end, state.tries))
            rows = taken.setdefault(view.group.id, [])
            for lease, ranges in held.items():
                row = LeaseRow(
                    partition=view.partition,
                    first=ranges[0][0],
                    end=ranges[-1][1],
                    session=lease.session,
                    deadline_ms=timer_ms + lease.deadline_ms - boot_ms,
                    attempt=lease.attempt,
                    consumer=lease.consumer,
                    started=lease.started,
                    ranges=ranges if len(ranges) > 1 else [],
                )
                rows.append(row)
            for first, end, tried in back:
                attempt = tries.newest(tried)
                started = 0 < attempt == tries.begun(tried)
                rows.append(
                    LeaseRow(
                        partition=view.partition,
                        first=first,
                        end=end,
                        session=b"",
                        deadline_ms=0,
                        attempt=attempt,
                        started=started,
                    )
                )
        return {group_id: rows for group_id, rows in taken.items() if rows}

    def bury_expired(self, view: PartitionView, first: Offset, end: Offset, tried: int) -> None:
        """Turn expired records, which no consumer holds, into dead letters, or drop them."""
        view.window.move(first, end, MOVED)
        attempts = tries.begun(tried)
        self.failed.append(
            Failed(
                view=view,
                first=first,
                end=end,
                attempts=attempts,
                consumer="",
                reason="",
                counted=False,
                dead=EXPIRED,
            )
        )
