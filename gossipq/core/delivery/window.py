"""The window: where each record of a group in a partition is while its leader serves it.

The ledger knows which records are open, and which have a row on disk (`ledger.life`). The leader
alone knows more, in memory: which records a consumer holds, which wait, and which an entry is about
to change. `Window.move` is the only writer of that. It follows the table MOVES, which a test prints
into ARCHITECTURE.md. A move without a row in the table raises NoSuchMove: the records of the shard
are then found on disk again, and the fault is counted.

Two indexes follow the states, and nothing else writes them: `ready`, the records that the next
consumer gets, and `lanes`, those that wait for a route or a key.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, NoReturn, Protocol

import msgspec

from gossipq.core.delivery import tries
from gossipq.core.ledger import ROUTE_LANE, key_of
from gossipq.core.storage import Intervals, RangeMap
from gossipq.types import Offset, Ranges, SessionId

if TYPE_CHECKING:
    from gossipq.core.delivery.consumers import PartitionView

NEW, LEASED, READY, WAITING, MOVING, LEFT = "new", "leased", "ready", "waiting", "moving", "left"

#: (state, next state) -> when this happens
MOVES: dict[tuple[str, str], str] = {
    (NEW, LEASED): "a consumer gets it",
    (NEW, READY): "a consumer says that it had the record, or a later one, from an earlier leader",
    (NEW, WAITING): "its key is busy, or the consumer does not take its route",
    (NEW, MOVING): "it has expired, or is acked on delivery",
    (NEW, LEFT): "it is a void, was removed, or passed before this leader began",
    (LEASED, LEASED): "its lease is extended, or user code begins",
    (LEASED, READY): "it is given back, or its lease ends before user code has begun",
    (LEASED, MOVING): "its attempt fails, or it is acked and has a row on disk",
    (LEASED, LEFT): "it is acked, or removed",
    (READY, LEASED): "a consumer gets it",
    (READY, READY): "its row is read back from disk, with more tries",
    (READY, WAITING): "its key is busy, or the consumer does not take its route",
    (READY, MOVING): "it expires, is acked on delivery, or a late ack arrives and it has a row on disk",
    (READY, LEFT): "a late ack arrives, or it is removed",
    (WAITING, LEASED): "a consumer of its route gets it",
    (WAITING, READY): "its key is free, or its row is read back from disk",
    (WAITING, WAITING): "a consumer takes its route, but its key is busy",
    (WAITING, MOVING): "it is parked, expires, or a late ack arrives and it has a row on disk",
    (WAITING, LEFT): "a late ack arrives, or it is removed",
    (MOVING, MOVING): "its ack is repeated",
    (MOVING, LEFT): "the entry is applied",
    (LEFT, READY): "its row is read back from disk",
    (LEFT, MOVING): "its row on disk expires, or a late ack arrives and it has a row on disk",
}


class NoSuchMove(Exception):
    """A record would move from one state to another, and MOVES does not have that. This is a fault
    of the program.
    """


class Slots(Protocol):
    """Counts leased records towards the limits of their flows."""

    def take(self, ranges: Ranges) -> None: ...
    def free(self, ranges: Ranges) -> None: ...


class Lease:
    """Records of a view that a consumer holds until a deadline."""

    where = LEASED
    __slots__ = (
        "attempt", "before", "consumer", "deadline_ms", "end", "failed", "first", "missed",
        "number", "open", "owned_leases", "run", "session", "since_ms", "started", "view", "waits",
    )  # fmt: skip

    def __init__(
        self,
        view: "PartitionView",
        session: SessionId,
        number: int,
        consumer: str,
        attempt: int,
        since_ms: int,
    ) -> None:
        self.view = view
        self.session = session
        self.number = number
        self.consumer = consumer
        self.attempt, self.since_ms = attempt, since_ms  #: boot time of the delivery
        self.before = tries.after(attempt - 1, started=True)  #: tries before this delivery
        self.deadline_ms = since_ms
        self.open = 0  #: records still held,
        self.first: Offset = 0  #: beginning here
        self.end: Offset = 0  #: and ending here, with gaps
        self.started = False  #: user code has begun
        #: its records have exception rows; None: not known. For records without rows, a failure is
        #: handled for all of a slice
        self.failed: bool | None = None
        self.run = 0  #: number of the delivery, in an exclusive group
        self.waits = False  #: until an entry is stored; its consumer has not seen the records
        #: the connection did not take the records, so no sign of life renews it
        self.missed = False
        self.owned_leases: OwnedLeases | None = None  #: all leases of its subscription, once it has begun

    @property
    def owner(self) -> tuple[SessionId, int]:
        return self.session, self.number

    @property
    def tries(self) -> int:
        """Tries of the records when they are given back."""
        return self.before if self.waits else tries.after(self.attempt, self.started)


class OwnedLeases(dict[Lease, None]):
    """The leases of a subscription, in the order of delivery, and how many records they have."""

    __slots__ = ("resume_at", "started", "unstarted")

    def __init__(self) -> None:
        super().__init__()
        self.unstarted = 0  #: records that no handler has started
        self.started = 0  #: all others
        #: its subscription has no room, and waits until so few are not started; -1: it has room
        self.resume_at = -1

    def count(self, lease: Lease, records: int) -> None:
        """The lease has that many records more, or fewer. Records that did not reach the consumer
        need no room, although they are its own until the lease ends.
        """
        if lease.started or lease.missed:
            self.started += records
        else:
            self.unstarted += records


class ReadyRecords(msgspec.Struct, frozen=True, gc=False):
    """Records that the next consumer gets."""

    tries: int
    where: ClassVar[str] = READY


class WaitingRecords(msgspec.Struct, frozen=True, gc=False):
    """Records that wait for a consumer of their route, or until their key is free."""

    lane: bytes
    tries: int
    where: ClassVar[str] = WAITING


class MovingRecords(msgspec.Struct, frozen=True, gc=False):
    """Records that no consumer gets until an entry is applied, which is on its way."""

    is_ack: bool  #: the entry acks them, so a repeated ack is not reported as lost
    where: ClassVar[str] = MOVING


MOVED, ACKED = MovingRecords(is_ack=False), MovingRecords(is_ack=True)

RecordState = Lease | ReadyRecords | WaitingRecords | MovingRecords
StateRange = tuple[Offset, Offset, RecordState]
LeaseRange = tuple[Offset, Offset, Lease]


class Lanes(dict[bytes, RangeMap[int]]):
    """The tries of records that wait for a route or a key, by lane. A lane without records does
    not exist.
    """

    __slots__ = ("newest", "of_keys", "opened", "routes")

    def __init__(self) -> None:
        super().__init__()
        self.newest = 0  #: number of the last lane of a route
        #: lanes of routes with their rising numbers
        self.routes: OrderedDict[bytes, int] = OrderedDict()
        self.of_keys: dict[int, RangeMap[int]] = {}  #: lanes of keys
        #: keys whose first records continue; the others follow when these are done
        self.opened: OrderedDict[int, None] = OrderedDict()

    def enter(self, lane: bytes, first: Offset, end: Offset, tried: int) -> None:
        if lane not in self:
            self[lane] = RangeMap()
            if lane[:1] == ROUTE_LANE:
                self.newest += 1
                self.routes[lane] = self.newest
            else:
                self.of_keys[key_of(lane)] = self[lane]
        self[lane].set(first, end, tried)

    def leave(self, lane: bytes, first: Offset, end: Offset) -> None:
        self[lane].clear(first, end)
        if not self[lane].starts:
            del self[lane]
            self.routes.pop(lane, None)
            self.of_keys.pop(key_of(lane), None)
            self.opened.pop(key_of(lane), None)

    def for_routes(self) -> int:
        """Count the records that wait for a consumer of their route."""
        return sum(self[lane].total() for lane in self.routes)

    def total(self) -> int:
        """Count the records that wait."""
        return sum(ranges.total() for ranges in self.values())


def _refuse(state: str, to: str) -> NoReturn:
    raise NoSuchMove(f"records that are {state} become {to}, and the table does not have this move")


class Window:
    """The states of a group's records in a partition.

    A record is in one state of `_states`. Without one it is new from offset `next` on, unless it is
    in `ahead`. All other records have left: they are done, or their row on disk says what they
    wait for.
    """

    __slots__ = ("_states", "ahead", "came", "has_moved", "in_flight", "lanes", "next", "ready", "slots")

    def __init__(self, first: Offset) -> None:
        self.next = first  #: the first new record
        self.in_flight = 0  #: leased records
        self.ready: RangeMap[int] = RangeMap()  #: tries of ready records
        self.lanes = Lanes()
        self._states: RangeMap[RecordState] = RangeMap()
        self.ahead = Intervals()  #: records after `next` that are not new
        self.has_moved = False  #: some records have been moving
        #: ranges that became ready, for an index of flows; None if there is none
        self.came: Ranges | None = None
        self.slots: Slots | None = None  #: counts the leased records of each flow

    # --- questions ------------------------------------------------------------------------------------------

    def new(self, first: Offset, end: Offset) -> list[tuple[Offset, Offset]]:
        """Return the parts of [first, end) that are new."""
        return self.ahead.missing(max(first, self.next), end)

    def are_new(self, ranges: Ranges) -> bool:
        """True if all records of rising ranges are new."""
        return ranges[0][0] >= self.next and not self.ahead.reaches_any(ranges)

    def overlap(self, first: Offset, end: Offset) -> list[StateRange]:
        """Return the parts of [first, end) that have a state."""
        return self._states.overlap(first, end)

    def reaches(self, first: Offset, end: Offset) -> bool:
        """True if some record of [first, end) has a state."""
        return self._states.reaches(first, end)

    def at(self, offset: Offset) -> RecordState | None:
        """Return the state of a record. None: it is new, or has left."""
        at = self._states.around(offset, offset + 1)
        return self._states.values[at] if at >= 0 else None

    def leased(self, first: Offset, end: Offset) -> list[LeaseRange]:
        """Return the leased parts of [first, end)."""
        return [
            (low, high, state)
            for low, high, state in self._states.overlap(first, end)
            if isinstance(state, Lease)
        ]

    def first_free(self, first: Offset, end: Offset) -> tuple[str, Offset, Offset, int] | None:
        """Return the first part of [first, end) that is new or ready: its state, range and tries."""
        ready = self.ready
        at = bisect_right(ready.ends, first)
        low = max(first, ready.starts[at]) if at < len(ready.starts) else end
        fresh = self.ahead.gap(max(first, self.next), min(end, low)) if low > first else None
        if fresh is not None:
            return NEW, *fresh, 0
        return (READY, low, min(end, ready.ends[at]), ready.values[at]) if low < end else None

    def leases(self) -> Iterator[LeaseRange]:
        """Yield all leased ranges."""
        for first, end, state in self._states:
            if isinstance(state, Lease):
                yield first, end, state

    def lease_before(self, first: Offset) -> Lease | None:
        """Return the lease whose records end at `first`, if there is one."""
        ends = self._states.ends
        at = len(ends) - 1 if ends and ends[-1] == first else bisect_right(ends, first) - 1
        state = self._states.values[at] if at >= 0 and ends[at] == first else None
        return state if isinstance(state, Lease) else None

    # --- moves ----------------------------------------------------------------------------------------------

    def move(self, first: Offset, end: Offset, to: RecordState | None) -> None:
        """Move the records [first, end) to a state. None: they leave. Raises NoSuchMove."""
        states, where = self._states, LEFT if to is None else to.where
        at = bisect_left(states.starts, first)
        if at < len(states.starts) and states.starts[at] == first and states.ends[at] == end:
            old = states.values[at]
            if (old.where, where) not in MOVES:
                _refuse(old.where, where)
            self._take_off(old, [(first, end)])
            if to is None:
                del states.starts[at], states.ends[at], states.values[at]
            else:
                states.values[at] = to
        elif first == self.next and not self.ahead.starts:  # all are new
            if (NEW, where) not in MOVES:
                _refuse(NEW, where)
            self.next = end
            if to is not None:
                states.set(first, end, to)
        else:
            self._take_out(first, end, where)
            if end > self.next:
                self._pass(max(first, self.next), end)
            if to is not None:
                states.set(first, end, to)
        if to is None:
            return
        if isinstance(to, Lease):
            self.in_flight += end - first
            if self.slots is not None:
                self.slots.take([(first, end)])
        elif isinstance(to, ReadyRecords):
            self.ready.set(first, end, to.tries)
            if self.came is not None:
                self.came.append((first, end))
        elif isinstance(to, WaitingRecords):
            self.lanes.enter(to.lane, first, end, to.tries)
        else:
            self.has_moved = True

    def _take_out(self, first: Offset, end: Offset, where: str) -> None:
        """Remove the states of records that become `where`, if they all may."""
        at, parts = first, self._states.overlap(first, end)
        for low, high, state in parts:
            if at < low:
                self._check_stateless(at, low, where)
            at = high
            if (state.where, where) not in MOVES:
                _refuse(state.where, where)
        if at < end:
            self._check_stateless(at, end, where)
        for low, high, state in parts:
            self._take_off(state, [(low, high)])
        if parts:
            self._states.clear(first, end)

    def _check_stateless(self, first: Offset, end: Offset, where: str) -> None:
        """Check that records without a state, which are new or have left, may become `where`."""
        if (NEW, where) not in MOVES and self.new(first, end):
            _refuse(NEW, where)
        has_left = first < self.next or self.ahead.reaches(first, end)
        if has_left and where != LEFT and (LEFT, where) not in MOVES:
            _refuse(LEFT, where)

    def _pass(self, first: Offset, end: Offset) -> None:
        """The records [first, end), from `next` or a later one on, are no longer new."""
        if first > self.next:
            self.ahead.add(first, end)
            return
        self.next = end
        self.ahead.drop_below(end)
        if self.ahead and self.ahead.starts[0] == end:
            self.next = self.ahead.ends[0]
            self.ahead.drop_below(self.next)

    def skip_to(self, end: Offset) -> None:
        """Let the new records before `end` leave."""
        for part in self.new(self.next, end):
            self.move(*part, None)

    def move_all(self, ranges: Ranges, to: Lease | ReadyRecords) -> None:
        """Like `move` of each range. The ranges must rise."""
        states, first, end = self._states, ranges[0][0], ranges[-1][1]
        if end <= self.next and not states.reaches(first, end):
            self._check_stateless(first, end, to.where)
            states.set_all(ranges, to)
        else:
            found = states.carve(ranges, lambda state: (state.where, to.where) in MOVES, to)
            if found is None:
                for low, high in ranges:
                    self.move(low, high, to)
                return
            for state, parts in found:
                self._take_off(state, parts)
        if isinstance(to, Lease):
            self.in_flight += sum([high - low for low, high in ranges])
            if self.slots is not None:
                self.slots.take(ranges)
        else:
            self.ready.set_all(ranges, to.tries)
            if self.came is not None:
                self.came += ranges

    def lease_new(self, ranges: Ranges, lease: Lease) -> None:
        """Lease new records in rising ranges that do not touch. `slots` has counted them."""
        if (NEW, LEASED) not in MOVES:
            _refuse(NEW, LEASED)
        if not self.are_new(ranges):
            _refuse(LEFT, LEASED)
        self.ahead.add_all(ranges)
        if self.ahead.starts[0] == self.next:
            self.next = self.ahead.ends[0]
            self.ahead.drop_below(self.next)
        self._states.set_all(ranges, lease)
        self.in_flight += lease.open

    def _take_off(self, state: RecordState, parts: Ranges) -> None:
        """Take records that were in a state off the indexes."""
        if isinstance(state, Lease):
            self.in_flight -= sum([end - first for first, end in parts])
            if self.slots is not None:
                self.slots.free(parts)
        elif isinstance(state, WaitingRecords):
            for first, end in parts:
                self.lanes.leave(state.lane, first, end)
        elif isinstance(state, ReadyRecords):
            if self.ready.begins(parts, state.tries):
                self.ready.drop_first(len(parts))
                return
            for first, end in parts:
                self.ready.clear(first, end)

    def grow(self, lease: Lease, first: Offset, end: Offset) -> None:
        """Move records to the lease whose records end at `first`."""
        states = self._states
        if first == self.next and states.ends[-1] == first and not self.ahead:
            if (NEW, LEASED) not in MOVES:
                _refuse(NEW, LEASED)
            states.ends[-1] = self.next = end
            self.in_flight += end - first
            if self.slots is not None:
                self.slots.take([(first, end)])
            return
        self.move(first, end, lease)
        at = bisect_left(states.starts, first)
        states.ends[at - 1] = end
        del states.starts[at], states.ends[at], states.values[at]

    def take_leased(
        self, ranges: Ranges, session: SessionId, waiting: bool, to: MovingRecords | None
    ) -> list[tuple[Lease, Ranges, int]] | None:
        """Move leased records of a session to a state, or let them leave. Returns their leases, each
        with its ranges and how many records they have.

        Each range must lie inside one range of one lease, and the ranges must rise. Otherwise
        nothing changes, and the result is None. Without `waiting`, leases whose consumer has not
        seen the records do not fit.
        """

        def fits(state: RecordState) -> bool:
            return isinstance(state, Lease) and state.session == session and (waiting or not state.waits)

        where = LEFT if to is None else to.where
        if (LEASED, where) not in MOVES:
            _refuse(LEASED, where)
        found = self._states.carve(ranges, fits, to)
        if found is None:
            return None
        taken = list[tuple[Lease, Ranges, int]]()
        for lease, parts in found:
            assert isinstance(lease, Lease), "only these fit"
            count = sum([end - first for first, end in parts])
            self.in_flight -= count
            if self.slots is not None:
                self.slots.free(parts)
            taken.append((lease, parts, count))
        if to is not None:
            self.has_moved = True
        return taken

    def land(self, ranges: Ranges) -> None:
        """An entry is applied: those of the records that are moving leave."""
        states = self._states
        if not states.reaches(min(ranges)[0], max(ranges)[1]):
            return
        if (MOVING, LEFT) not in MOVES:
            _refuse(MOVING, LEFT)
        for first, end in states.drop(ranges, (MOVED, ACKED)) if len(ranges) > 1 else ranges:
            for low, high, state in states.overlap(first, end):
                if isinstance(state, MovingRecords):
                    states.clear(low, high)

    def open_lane(self, lane: bytes, most: int | None = None) -> None:
        """Make the first ranges of a lane ready; None: all of them. Of a key, the others follow
        when these are done.
        """
        for first, end, tried in list(islice(self.lanes.get(lane, ()), most)):
            self.move(first, end, ReadyRecords(tried))
        if most is not None and lane in self.lanes:
            self.lanes.opened[key_of(lane)] = None


def table() -> list[str]:
    """Return the moves as rows of the table in ARCHITECTURE.md."""
    rows = ["| a record that is | becomes | when |", "|---|---|---|"]
    return rows + [f"| {state} | {to} | {when} |" for (state, to), when in MOVES.items()]
