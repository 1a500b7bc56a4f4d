"""What dispatch remembers: groups, their view of each partition, members, leases, and the parts they are
handed."""

from collections import OrderedDict
from itertools import islice, takewhile

import msgspec

from gossipq.core.delivery import tries
from gossipq.core.delivery.keys import ONE_OF_EACH, UNBOUNDED, KeyRuns, Keys
from gossipq.core.delivery.routes import matcher
from gossipq.core.ledger import ROUTE_LANE, Cursor, ExceptionRow, GroupState, Ledger, key_of, run_at
from gossipq.core.storage import Intervals, RangeMap
from gossipq.messages import Subscribe
from gossipq.types import KEY_HASH, Index, Offset, Origin, PartitionKey, SessionId
from gossipq.values import Range

KEY_RUNS_LOAN = 500  #: records: a consumer that lends more at a time is through with them in a second
KEY_RUN_PART = 16  #: of a smaller loan this part may be records of one key,
KEY_RUNS_PART = 2  #: and this one the second and later records of all keys
UNKNOWN_NUMBER = -1  #: of a subscription before a restart
EXCLUSIVE, KEY_ORDERED = "exclusive", "key_ordered"
#: of a key that go on together: all that wait would be looked at by each consumer that may have none of them
KEY_RANGES = 64
LANES_GONE_MAX = 64  #: that are remembered of one that takes them, beside as many as are there
MODES = ("shared", EXCLUSIVE, KEY_ORDERED)

Members = OrderedDict[tuple[SessionId, int], "Subscription"]


class Part(msgspec.Struct, frozen=True, gc=False):
    """Records of one stored batch, handed to one consumer: `count` from record `first` of the batch at log
    index `index`."""

    partition: PartitionKey
    offset: Offset
    index: Index
    first: int
    count: int
    whole: bool  #: the stored bytes go out as they are
    attempt: int
    charge: int  #: bytes of credit it took
    time_ms: int = 0  #: when the records got their offsets, leader time; 0 = not known any more
    ranges: list[tuple[Offset, Offset]] = []  #: where they are, unless they follow each other
    failures: int = 0
    again: bool = False  #: delivered before as this attempt, which did not begin then

    @property
    def end(self) -> Offset:
        return self.ranges[-1][1] if self.ranges else self.offset + self.count

    def cut(self, first: Offset, end: Offset) -> "Part":
        """The records [first, end) of it."""
        if (first, end) == (self.offset, self.end):
            return self
        count, record = end - first, self.first + first - self.offset
        charge = self.charge // self.count * count
        return msgspec.structs.replace(
            self, offset=first, first=record, count=count, whole=False, charge=charge
        )


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where the records from some offset up to `end` lie, and what is known of them without opening their
    batch."""

    entry: Index
    record: int
    end: Offset
    size: int
    batch_count: int
    columns: int
    route: bytes
    time_ms: int  #: when they got their offsets; 0 = not known any more
    row: ExceptionRow | None = None
    ranges: list[tuple[Offset, Offset]] = []  #: all of its exception row, when those are several


def place_of(ledger: Ledger, cursor: Cursor | None, partition: PartitionKey, offset: Offset) -> Place | None:
    """The place of a record; for a group that has passed it, that of its exception row."""
    state = ledger.partitions.get(partition)
    if state is None:
        return None  # its topic ended in the same turn
    at = ledger.slices.at(partition, offset) if offset >= state.first else None
    if cursor is not None and cursor.exceptional and not cursor.fresh(offset, offset + 1):
        whole = cursor.exceptions.row_at(offset)
        found = run_at(whole, offset) if whole is not None else None
        if whole is not None and found is not None:
            row, record = found.row, found.row.record + offset - found.first
            if at is not None:
                columns, route, time_ms = at.columns, at.route, at.time_ms
            else:
                # its batch says the same. When it got its offset is not known any more; its key does not
                # count, since nothing would tell it when the record is done
                header = ledger.opened.header(row.index)
                columns, route, time_ms = header.columns & ~KEY_HASH, header.route, 0
            sizes = row.end, row.size, row.batch_count
            return Place(row.index, record, *sizes, columns, route, time_ms, row, whole.row.ranges)
    if at is None:
        return None
    return Place(
        at.index,
        at.first + offset - at.offset,
        at.end,
        at.size,
        at.batch_count,
        at.columns,
        at.route,
        at.time_ms,
    )


class Lease:
    """Who holds some records of a view, until when. An empty session: nobody, an entry that moves them is on
    its way."""

    __slots__ = (
        "attempt", "before", "consumer", "deadline_ms", "end", "failed", "first", "missed", "number", "open",
        "run", "session", "since_ms", "started", "view",
        "waits",
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
        self.view, self.session, self.number, self.consumer = view, session, number, consumer
        self.attempt, self.since_ms = attempt, since_ms  #: boot time of the handing-over
        self.before = tries.after(attempt - 1, started=True)  #: tries when it was handed out
        self.deadline_ms = since_ms
        self.open = 0  #: records still held,
        self.first: Offset = 0  #: from here
        self.end: Offset = 0  #: to here, among others that are not
        self.started = False  #: user code has begun
        #: its records have exception rows; None: not known. Of those without, what follows a failure is
        #: decided for all of a slice
        self.failed: bool | None = None
        self.run = 0  #: which handing-out it is of, in an exclusive group
        self.waits = False  #: till an entry is stored; its taker has not seen the records
        self.missed = False  #: the connection did not take the records: no sign of life renews it

    @property
    def owner(self) -> tuple[SessionId, int]:
        return self.session, self.number

    @property
    def tries(self) -> int:
        """Tries of the records when they are given back."""
        return self.before if self.waits else tries.after(self.attempt, self.started)


class Lanes(dict[bytes, RangeMap[int]]):
    """What waits in memory for a route or a key, by lane: tries so far. No lane is empty, and what leaves
    is found by its offset: the cost goes with that, not with how many lanes there are."""

    __slots__ = ("newest", "of_keys", "opened", "places", "routes")

    def __init__(self) -> None:
        super().__init__()
        self.places: RangeMap[bytes] = RangeMap()  # the lane of each record that waits
        self.newest = 0  #: number of the last lane of a route
        self.routes: OrderedDict[bytes, int] = OrderedDict()  #: lanes of routes, by number, which rises,
        self.of_keys: dict[int, RangeMap[int]] = {}  #: and those of keys
        #: keys of which the first went on, and the rest follows when these are through
        self.opened: OrderedDict[int, None] = OrderedDict()

    def wait(self, lane: bytes, first: Offset, end: Offset, tried: int) -> None:
        self.leave(first, end)
        if lane not in self:
            self[lane] = RangeMap()
            if lane[:1] == ROUTE_LANE:
                self.newest += 1
                self.routes[lane] = self.newest
            else:
                self.of_keys[key_of(lane)] = self[lane]
        self[lane].set(first, end, tried)
        self.places.set(first, end, lane)

    def leave(self, first: Offset, end: Offset) -> None:
        """[first, end) waits no more."""
        if not self:
            return
        for low, high, lane in self.places.pop(first, end):
            self[lane].clear(low, high)
            if not self[lane].starts:
                del self[lane]
                self.routes.pop(lane, None)
                self.of_keys.pop(key_of(lane), None)
                self.opened.pop(key_of(lane), None)

    def take(self, lane: bytes, most: int | None = None) -> list[tuple[Offset, Offset, int]]:
        """The first ranges of a lane, out of it; None: all."""
        ranges = list(islice(self.get(lane, ()), most))
        for first, end, _ in ranges:
            self.leave(first, end)
        return ranges

    def for_routes(self) -> int:
        """Count the records that wait for a consumer of their route."""
        return sum(self[lane].total() for lane in self.routes)

    def overlap(self, first: Offset, end: Offset) -> list[tuple[Offset, Offset, int]]:
        """What of [first, end) waits, whatever for."""
        places = self.places.overlap(first, end)
        return [part for low, high, lane in places for part in self[lane].overlap(low, high)]

    def back(self, first: Offset, end: Offset) -> list[tuple[Offset, Offset, int]]:
        """What of [first, end) waits; neighbours with as many tries are one."""
        found: list[tuple[Offset, Offset, int]] = []
        for low, high, tried in self.overlap(first, end):
            if found and found[-1][1] == low and found[-1][2] == tried:
                found[-1] = found[-1][0], high, tried
            else:
                found.append((low, high, tried))
        return found


class ExpirySpans:
    """The times at which records of a group in a partition expire. A span of slices has one time: that of
    its first record to expire. So records with a long time to live cost a few bytes for each slice."""

    __slots__ = ("back", "next", "spans", "spans_max", "ttl_ms")

    def __init__(self, first: Offset, ttl_ms: int) -> None:
        """`first`: where the records begin that were not looked at. `ttl_ms`: that of the topic."""
        self.next, self.ttl_ms = first, ttl_ms
        self.spans: RangeMap[int] = RangeMap()  #: leader time when the first record of each expires
        self.spans_max = 0  #: with more spans than this, those without an open record are dropped
        self.back = (
            Intervals()
        )  #: records that came back from a consumer, or by an entry, since the last look


class TwoPlaces(Exception):
    """A record was to be in a second place: a fault, as a change that the table of its life does not have."""


class PartitionView:
    """One group in one partition. Above the ledger's cursor each record is passed, leased, returned, in a
    lane, or new: from `next` on, unless it is in `gone`. Exception rows come back into `returned` when their
    time or lane comes."""

    __slots__ = (
        "cursor",
        "delivered",
        "draining",
        "due_ms",
        "gone",
        "group",
        "inherited",
        "keys",
        "lanes",
        "leases",
        "next",
        "partition",
        "reserved",
        "returned",
        "since",
        "spans",
        "unlogged",
        "waking",
    )  # fmt: skip

    def __init__(self, group: "Group", partition: PartitionKey, cursor: Cursor) -> None:
        self.group, self.partition, self.cursor = group, partition, cursor
        self.next: Offset = cursor.state.cursor
        self.inherited: Offset = (
            0  #: a leader before this one may have handed out records below, without an entry that says so
        )
        self.gone = Intervals()  #: records behind `next` that have expired, and so are not new
        self.spans: ExpirySpans | None = None  #: when records expire; None: no record here does
        self.leases: RangeMap[Lease] = RangeMap()
        self.reserved: dict[int, Lease] = {}  #: what stands in `leases` for nobody, by number
        self.returned: RangeMap[int] = RangeMap()  #: tries so far
        self.lanes = Lanes()  #: nobody can have these now
        self.draining: dict[bytes, Offset] = {}  #: lanes that are read back from disk, from this offset on
        #: lanes on disk behind this one may have found somebody who takes them; None: none has
        self.waking: bytes | None = None
        self.keys = Keys() if group.state.config.mode == KEY_ORDERED else None
        self.unlogged: list[tuple[Offset, Offset]] = []  #: leased or returned since the last LEASE entry
        self.delivered = 0  #: records handed out
        self.since = (0, 0)  #: (due, offset) from which exception rows have not been read back
        self.due_ms: int | None = None  #: when there may be some; timer time

    @property
    def window_end(self) -> Offset:
        """What lies below may be handed out now."""
        return self.cursor.window_end(self.group.state.config.in_flight_max, self.gone.total())

    def new(self, first: Offset, end: Offset) -> list[tuple[Offset, Offset]]:
        """The parts of [first, end) that are new."""
        return self.gone.missing(max(first, self.next), end)

    def goes_to(self, end: Offset) -> None:
        """Records below `end` are not new any more."""
        self.next = end
        if self.gone:
            self.gone.drop_below(end)
            if self.gone and self.gone.starts[0] == end:
                self.next = self.gone.ends[0]
                self.gone.drop_below(self.next)

    def take_expired(self, first: Offset, end: Offset) -> None:
        """Take [first, end) out of the places where records wait. They are not leased."""
        self.returned.clear(first, end)
        self.lanes.leave(first, end)
        if end > self.next:
            self.gone.add(max(first, self.next), end)
            self.goes_to(self.next)

    def holds_some(self, first: Offset, end: Offset) -> bool:
        """Whether some of [first, end) is in a place that is kept here."""
        return (
            self.leases.reaches(first, end)
            or self.returned.reaches(first, end)
            or self.lanes.places.reaches(first, end)
        )

    def enters(self, place: str, first: Offset, end: Offset) -> None:
        """Before records come to a place, "leased", "returned" or "lane": they are in no other. Raises
        TwoPlaces."""
        for name, ranges in (
            ("leased", self.leases),
            ("returned", self.returned),
            ("lane", self.lanes.places),
        ):
            if ranges.starts and ranges.reaches(first, end) and (name != place or name == "leased"):
                raise TwoPlaces(f"records {first} to {end} are {name}, and were to be {place} too")

    def offers(self, ledger: Ledger, timer_ms: int) -> bool:
        """Whether anybody who has credit may have something of it: also what is due on disk, which is read
        back when somebody has."""
        end = min(ledger.partitions[self.partition].next, self.window_end)  # `next` is new, if there is one
        here = self.returned.starts or self.draining or self.lanes.opened
        due = self.due_ms is not None and self.due_ms <= timer_ms
        return bool(here) or due or self.waking is not None or self.next < end

    def in_flight(self) -> int:
        return sum(end - first for first, end, lease in self.leases if lease.session)

    def in_lanes(self) -> int:
        return sum(ranges.total() for ranges in self.lanes.values())

    def open_lane(self, lane: bytes) -> None:
        """What waits in a lane may be looked at again: of a key's the first of it, and the rest when these
        are through. On disk it goes on when the lane is."""
        key_hash = key_of(lane)
        of_key = min(KEY_RANGES, self.group.run_of_key)
        for first, end, tried in self.lanes.take(lane, of_key if key_hash else None):
            self.returned.set(first, end, tried)
        if key_hash in self.lanes.of_keys:
            self.lanes.opened[key_hash] = None

    def empty_lane(self, lane: bytes) -> None:
        """All that waits in a lane may be looked at again: nothing would tell the rest when the first is
        through."""
        for first, end, tried in self.lanes.take(lane):
            self.returned.set(first, end, tried)


class Group:
    """`lenders` to `unended` say which of the members something may happen to, so that a turn costs nothing
    for the others."""

    __slots__ = ("ahead", "id", "lenders", "members", "state", "unended", "unready", "views")

    def __init__(self, state: GroupState) -> None:
        self.id, self.state = state.id, state
        self.members: Members = OrderedDict()  #: in the order of joining
        self.lenders: Members = OrderedDict()  #: who has credit, in the order in which they are served
        self.unready: Members = OrderedDict()  #: who has none, and was not told READY since
        self.unended: Members = OrderedDict()  #: who wants AT_END, and was not told since the last record
        self.ahead: Members = OrderedDict()  #: who may hold several records of a key
        self.views: dict[PartitionKey, PartitionView] = {}

    @property
    def run_of_key(self) -> int:
        """About how many records of a key a member may hold at a time."""
        first = next(iter(self.ahead.values()), None)
        return 1 if first is None else first.runs.each

    def takes(self, route: bytes) -> bool:
        return any(member.takes(route) for member in self.members.values())

    def takes_lane(self, view: PartitionView, lane: bytes) -> bool:
        """Whether somebody takes the route of a lane of the view."""
        return any(member.takes_lane(view, lane) for member in self.members.values())

    def file(self, member: "Subscription") -> None:
        """The credit of a member, or what it was told, has changed."""
        _list(self.lenders, member, member.has_credit)
        _list(self.unready, member, not member.has_credit and not member.told_ready)
        _list(self.unended, member, member.notify_end and not member.told_end)
        _list(self.ahead, member, member.runs.each > 1)

    def leave(self, member: "Subscription") -> None:
        for members in (self.members, self.lenders, self.unready, self.unended, self.ahead):
            members.pop(member.name, None)


def _list(members: Members, member: "Subscription", listed: bool) -> None:
    if listed:
        members[member.name] = member
    else:
        members.pop(member.name, None)


class Subscription:
    """A member of a group, or a reader (no group). Credit is what the client lends and has not been used."""

    __slots__ = (
        "_lanes", "ack", "acked", "auto", "blocked_ms", "charges", "consumer", "credit_bytes",
        "credit_records", "delivered", "failed", "frame_bytes", "gaps", "group", "is_silent", "key_runs",
        "lease_ms", "loan", "matches", "name", "notify_end", "number", "origin", "plain", "positions",
        "session", "shares", "told_end", "told_ready", "views",
    )  # fmt: skip

    def __init__(
        self, session: SessionId, consumer: str, origin: Origin, message: Subscribe, lease_ms: int = 0
    ) -> None:
        self.session, self.consumer, self.origin, self.number = (
            session,
            consumer,
            origin,
            message.subscription,
        )
        self.name = session, message.subscription
        self.credit_records, self.credit_bytes = message.credit_records, message.credit_bytes
        self.notify_end, self.ack = message.notify_end, message.ack
        self.matches = matcher(message.routes)
        self.group: Group | None = None
        self.views: list[PartitionView] = []
        self.positions: dict[PartitionKey, Offset] = {}
        self.told_end = self.told_ready = False
        self.frame_bytes = self.delivered = self.acked = self.failed = 0
        self.auto, self.plain, self.lease_ms = message.auto, message.plain, lease_ms
        self.shares = message.shares
        #: it says neither STARTED nor what it gives back: its records count as begun when they are delivered
        self.is_silent = message.auto and not message.shares
        self.key_runs = message.key_runs and not message.auto
        self.loan = message.credit_records  #: the most records that it lent at a time
        #: boot time since when it has credit left because new records are of busy keys
        self.blocked_ms: int | None = None
        #: records of one batch with others between them come to it as one slice
        self.gaps = message.gaps and message.ack and not message.auto and not message.plain
        #: with `auto`: bytes that each record took which was handed out and not settled
        self.charges: dict[PartitionKey, RangeMap[int]] = {}
        # by partition: the newest lane that it was asked about, and those that it takes
        self._lanes: dict[PartitionKey, tuple[int, OrderedDict[bytes, None]]] = {}

    def spend(self, partition: PartitionKey, first: Offset, end: Offset, record_bytes: int) -> None:
        """[first, end) is handed out."""
        self.spend_some(end - first, record_bytes)
        if self.auto:
            self.settle(partition, first, end)  # it may have come before, and its lease ended
            self.charges.setdefault(partition, RangeMap()).set(first, end, record_bytes)

    def spend_some(self, count: int, record_bytes: int) -> None:
        self.delivered += count
        self.credit_records -= count
        self.credit_bytes -= count * record_bytes

    def settle(self, partition: PartitionKey, first: Offset, end: Offset) -> None:
        """With `auto`: the client is through with these, and lends again what they took."""
        charges = self.charges.get(partition)
        for low, high, record_bytes in charges.pop(first, end) if charges is not None else ():
            self.credit_records += high - low
            self.credit_bytes += (high - low) * record_bytes

    @property
    def runs(self) -> KeyRuns:
        """How many records of a key it may hold. A fast consumer is through with any number in a moment. For
        a slower one, the records of busy keys use no more than a part of the credit, because workers wait
        for records of other keys."""
        if not self.key_runs:
            return ONE_OF_EACH
        if self.loan > KEY_RUNS_LOAN:
            return UNBOUNDED
        more = self.loan // (KEY_RUNS_PART * max(1, len(self.views)))
        return KeyRuns(max(1, self.loan // KEY_RUN_PART), more)

    @property
    def has_credit(self) -> bool:
        return self.credit_records > 0 and self.credit_bytes > 0

    def covered(self) -> set[PartitionKey]:
        """Partitions of the subscription."""
        return {view.partition for view in self.views} | self.positions.keys()

    def takes(self, route: bytes) -> bool:
        return self.matches is None or self.matches(route)

    def _lanes_of(self, view: PartitionView) -> OrderedDict[bytes, None]:
        """Lanes of routes that it takes, the oldest first, and some that are gone. It is asked once about
        each lane: there may be as many as records."""
        seen, mine = self._lanes.get(view.partition, (0, OrderedDict()))
        routes = view.lanes.routes
        if seen < view.lanes.newest:
            later = takewhile(lambda lane: routes[lane] > seen, reversed(routes))
            mine.update((lane, None) for lane in reversed(list(later)) if self.takes(lane[1:]))
            if len(mine) > 2 * len(routes) + LANES_GONE_MAX:
                mine = OrderedDict.fromkeys(lane for lane in mine if lane in routes)
            self._lanes[view.partition] = view.lanes.newest, mine
        return mine

    def lane_in(self, view: PartitionView) -> bytes | None:
        """The oldest lane of a route that it takes."""
        routes = view.lanes.routes
        if self.matches is None or not routes:
            return next(iter(routes), None)
        mine = self._lanes_of(view)
        while mine:
            lane = next(iter(mine))
            if lane in routes:
                return lane
            del mine[lane]
        return None

    def takes_lane(self, view: PartitionView, lane: bytes) -> bool:
        """Whether it takes the route of a lane that is there."""
        return self.matches is None or lane in self._lanes_of(view)

    def untake(self, parts: list[Part]) -> None:
        """Parts that did not reach a reader: it is where it was, with the credit that it had."""
        for part in reversed(parts):
            if self.auto:
                self.settle(part.partition, part.offset, part.end)
            else:
                self.credit_records += part.count
                self.credit_bytes += part.charge
            if part.partition in self.positions:
                self.positions[part.partition] = part.offset

    def waiting(self, ledger: Ledger, timer_ms: int) -> bool:
        """Whether something could be handed out now, credit aside."""
        for partition, position in self.positions.items():
            if position < ledger.partitions[partition].next:
                return True
        if self.group is not None and self.group.state.config.paused:
            return False
        return any(view.offers(ledger, timer_ms) or self.lane_in(view) is not None for view in self.views)

    def at_end(self, ledger: Ledger, timer_ms: int) -> bool:
        """Whether everything there is has been handed out once."""
        if self.waiting(ledger, timer_ms):
            return False
        return all(
            view.next == ledger.partitions[view.partition].next and len(view.lanes.routes) == len(view.lanes)
            for view in self.views
        )

    def ends(self, ledger: Ledger) -> list[Range]:
        """(partition, position, end) of everything subscribed."""
        reading = [
            (partition, position, ledger.partitions[partition].next)
            for partition, position in self.positions.items()
        ]
        sharing = [(view.partition, view.next, ledger.partitions[view.partition].next) for view in self.views]
        return reading + sharing
