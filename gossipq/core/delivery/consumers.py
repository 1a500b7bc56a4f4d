"""State of dispatch: groups, their view of each partition, members, leases,
and the parts for consumers.
"""

from collections import OrderedDict
from itertools import islice, takewhile

import msgspec

from gossipq import limits
from gossipq.core.delivery.flow_limits import FlowLimits, GroupLimits
from gossipq.core.delivery.flows import ARRIVAL, FlowIndex, OrderPolicy, order_of
from gossipq.core.delivery.keys import ONE_OF_EACH, UNBOUNDED, KeyRuns, Keys
from gossipq.core.delivery.prefetch import Prefetch
from gossipq.core.delivery.routes import matcher
from gossipq.core.delivery.window import Window
from gossipq.core.ledger import Cursor, ExceptionRow, GroupState, Ledger, key_of, run_at
from gossipq.core.storage import Intervals, RangeMap
from gossipq.messages import Subscribe
from gossipq.types import KEY_HASH, Index, Offset, Origin, PartitionKey, SessionId
from gossipq.values import Range

#: records: a consumer that grants more credit at a time finishes them within a second
KEY_RUNS_CREDIT = 500
KEY_RUN_PART = 16  #: with less credit, one key may use this fraction of it,
KEY_RUNS_PART = 2  #: and the second and later records of all keys this fraction
UNKNOWN_NUMBER = -1  #: number of a subscription before a restart
EXCLUSIVE, KEY_ORDERED = "exclusive", "key_ordered"
#: ranges of a key that continue together; with more, each consumer that may not have
#: them would look at all
KEY_RANGES = 64
LANES_GONE_MAX = 64  #: removed lanes that a consumer remembers, beside as many as exist
MODES = ("shared", EXCLUSIVE, KEY_ORDERED)

MemberIndex = OrderedDict[tuple[SessionId, int], "Subscription"]


class Part(msgspec.Struct, frozen=True, gc=False):
    """Records of one stored batch for one consumer: `count` from record `first` of the
    batch at log index `index`.
    """

    partition: PartitionKey
    offset: Offset
    index: Index
    first: int
    count: int
    whole: bool  #: the stored bytes are sent unchanged
    attempt: int
    charge: int  #: bytes of credit that it used
    time_ms: int = 0  #: when the records got their offsets, leader time; 0 = no longer known
    ranges: list[tuple[Offset, Offset]] = []  #: their offsets, unless they follow each other
    failures: int = 0
    again: bool = False  #: delivered before as this attempt, which had not begun

    @property
    def end(self) -> Offset:
        return self.ranges[-1][1] if self.ranges else self.offset + self.count

    def cut(self, first: Offset, end: Offset) -> "Part":
        """The records [first, end) of this part."""
        if (first, end) == (self.offset, self.end):
            return self
        count, record = end - first, self.first + first - self.offset
        charge = self.charge // self.count * count
        return msgspec.structs.replace(
            self, offset=first, first=record, count=count, whole=False, charge=charge
        )


class Place(msgspec.Struct, frozen=True, gc=False):
    """The place of the records from some offset up to `end`, and the facts about them that need
    no look into their batch.
    """

    entry: Index
    record: int
    end: Offset
    size: int
    batch_count: int
    columns: int
    route: bytes
    time_ms: int  #: when they got their offsets; 0 = no longer known
    row: ExceptionRow | None = None
    #: all ranges of its exception row, if there are several
    ranges: list[tuple[Offset, Offset]] = []


def place_of(ledger: Ledger, cursor: Cursor | None, partition: PartitionKey, offset: Offset) -> Place | None:
    """The place of a record. For a group that has passed the record, it
    comes from the exception row.
    """
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
            return Place(
                entry=row.index,
                record=record,
                end=row.end,
                size=row.size,
                batch_count=row.batch_count,
                columns=columns,
                route=route,
                time_ms=time_ms,
                row=row,
                ranges=whole.row.ranges,
            )
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


def first_left(ledger: Ledger, view: "PartitionView", first: Offset, end: Offset) -> Offset:
    """The first record from `first` on that still exists; `end` if there is none before."""
    state = ledger.partitions.get(view.partition)
    if state is None:
        return end
    kept = view.cursor.exceptions.within(first, end) if view.cursor.exceptional else ()
    return min(max(first, state.first), next((found.first for found in kept), end), end)


class DeliveryTurn:
    """The current turn of a dispatch, for all of its parts: clocks, budget, and groups to serve."""

    __slots__ = ("boot_ms", "delivered", "dirty", "leader_ms", "looks", "more", "number", "timer_ms")

    def __init__(self) -> None:
        self.boot_ms = self.leader_ms = self.timer_ms = 0
        self.number = 0  #: how often `Dispatch.run` has chosen records for consumers
        self.looks = 0  #: slices that this turn may still look at
        self.dirty: set[int] = set()  #: groups that may have records to deliver
        self.more = False  #: some lanes must still be read back
        self.delivered = 0  #: delivered records of all turns


class ExpirySpans:
    """The times at which records of a group in a partition expire. A span of slices has one time: that of
    its first record to expire. So records with a long time to live cost a few bytes for each slice."""

    __slots__ = ("back", "next", "spans", "spans_max", "ttl_ms")

    def __init__(self, first: Offset, ttl_ms: int) -> None:
        """`first` is the first record that was not looked at; `ttl_ms` is
        the topic's time to live.
        """
        self.next, self.ttl_ms = first, ttl_ms
        #: leader time at which the first record of each span expires
        self.spans: RangeMap[int] = RangeMap()
        self.spans_max = 0  #: with more spans than this, those without an open record are dropped
        #: records that came back from a consumer, or by an entry, since the last look
        self.back = Intervals()


class PartitionView:
    """One group in one partition. `window` knows where its records are in memory. Exception rows
    become ready at their time, or when their lane opens.
    """

    __slots__ = (
        "cursor",
        "delivered",
        "draining",
        "due_ms",
        "flow_limits",
        "flows",
        "group",
        "inherited",
        "keys",
        "ordered_by",
        "partition",
        "paused",
        "since",
        "spans",
        "unlogged",
        "waking",
        "window",
    )  # fmt: skip

    def __init__(self, group: "Group", partition: PartitionKey, cursor: Cursor) -> None:
        self.group = group
        self.partition = partition
        self.cursor = cursor
        self.window = Window(cursor.state.cursor)
        self.inherited: Offset = 0  #: an earlier leader may have delivered records below, without an entry
        self.spans: ExpirySpans | None = None  #: when records expire; None if no record here does
        #: lanes that are being read back from disk, with the next offset
        self.draining: dict[bytes, Offset] = {}
        #: the lanes on disk after this one may have found a consumer; None: none has
        self.waking: bytes | None = None
        self.keys = Keys() if group.state.config.mode == KEY_ORDERED else None
        self.unlogged: list[tuple[Offset, Offset]] = []  #: leased or given back since the last LEASE entry
        self.delivered = 0  #: delivered records
        self.since = (0, 0)  #: (due, offset) from which exception rows are not read back yet
        self.due_ms: int | None = None  #: when some rows may be due; timer time
        self.flows: FlowIndex | None = None  #: in a group of order "priority" or "fair"
        self.flow_limits: FlowLimits | None = None
        self.ordered_by: OrderPolicy | None = None  #: the part of the policy that decides what is next
        self.paused: dict[int, float] | None = None  #: flows that wait until a boot time; None if none did

    def index_flows(self) -> None:
        """Begin or end the index of flows, as the order of the group says."""
        window, config, first = self.window, self.group.state.config, self.cursor.state.cursor
        self.flows = self.flow_limits = window.came = window.slots = None
        self.ordered_by = order_of(config)
        if config.order == ARRIVAL:
            return
        self.flows = FlowIndex(first, config)
        window.came = [(low, high) for low, high, _ in window.ready.overlap(0, first)]
        if config.flow_concurrency or config.flow_rate.records or (self.paused and self.flows.by_flow):
            self.flows.bounds = self.flow_limits = FlowLimits(config, self.paused)

    def pause_flow(self, flow: int, until_ms: float) -> None:
        """Deliver no record of a flow before a boot time."""
        if self.paused is None:
            self.paused = {}
        self.paused[flow] = max(until_ms, self.paused.get(flow, 0))
        if self.flow_limits is not None:
            self.flow_limits.paused = self.paused
        elif self.flows is not None:
            self.flows.bounds = self.flow_limits = FlowLimits(self.group.state.config, self.paused)

    def empty_buckets(self, boot_ms: int) -> None:
        """Begin with empty buckets: an earlier leader may have used what the rates allow by now."""
        limits_, flow_limits = self.group.limits, self.flow_limits
        if limits_ is not None and limits_.pace is not None:
            limits_.full_ms = boot_ms + limits_.pace.burst_ms
        if flow_limits is not None and flow_limits.pace is not None:
            flow_limits.begin_ms = boot_ms + flow_limits.pace.burst_ms

    @property
    def window_end(self) -> Offset:
        """Records below this offset may be delivered now. With an index of flows, records anywhere may be."""
        if self.flows is not None:
            return limits.NUMBER_MAX
        return self.cursor.window_end(self.group.state.config.in_flight_max, self.window.ahead.total())

    @property
    def is_full(self) -> bool:
        """True if no more records may be in flight. Without an index of flows the window bounds them."""
        return self.flows is not None and self.window.in_flight >= self.group.state.config.in_flight_max

    @property
    def is_limited(self) -> bool:
        """True if a limit keeps all records back that could be delivered."""
        if self.flows is None:
            return False
        limits_ = self.group.limits
        group_waits = limits_ is not None and limits_.allowed(self.group.in_flight, self.group.boot_ms) <= 0
        return group_waits or (bool(self.flows.held) and not any(level.turns for level in self.flows.levels))

    def offers(self, ledger: Ledger, timer_ms: int) -> bool:
        """True if a consumer with credit may get records of this view. Rows on disk that are due
        count, since they are read back when there is credit.
        """
        window = self.window
        end = min(ledger.partitions[self.partition].next, self.window_end)  # `next` is new, if there is one
        if self.is_full or self.is_limited:
            return False
        here = window.ready.starts or self.draining or window.lanes.opened
        due = self.due_ms is not None and self.due_ms <= timer_ms
        return bool(here) or due or self.waking is not None or window.next < end

    def open_lane(self, lane: bytes) -> None:
        """Let records of a lane be chosen again. Of a key only the first ones; the others follow
        when these are done. Records on disk follow after those of the lane.
        """
        self.window.open_lane(lane, min(KEY_RANGES, self.group.run_of_key) if key_of(lane) else None)


class Group:
    """A group with its members. `lenders` to `unended` list the members that an event may concern,
    so that a turn costs nothing for the others.
    """

    __slots__ = (
        "ahead",
        "boot_ms",
        "id",
        "lenders",
        "limits",
        "members",
        "state",
        "unended",
        "unready",
        "views",
    )

    def __init__(self, state: GroupState) -> None:
        self.id, self.state = state.id, state
        self.members: MemberIndex = OrderedDict()  #: members in the order of joining
        #: members with credit, in the order in which they are served
        self.lenders: MemberIndex = OrderedDict()
        #: members without credit that were not told READY since
        self.unready: MemberIndex = OrderedDict()
        #: members that want AT_END and were not told since the last record
        self.unended: MemberIndex = OrderedDict()
        self.ahead: MemberIndex = OrderedDict()  #: members that may hold several records of a key
        self.views: dict[PartitionKey, PartitionView] = {}
        self.limits: GroupLimits | None = None
        self.boot_ms = 0  #: when it was served last, if it has limits

    @property
    def in_flight(self) -> int:
        """Count its records in flight, in all partitions of the shard."""
        return sum([view.window.in_flight for view in self.views.values()])

    def served_members(self) -> list["Subscription"]:
        """The members that may be served: only the first of an exclusive group, and none while it
        is paused.
        """
        config = self.state.config
        if config.paused:
            return []
        return list(islice(self.members.values(), 1 if config.mode == EXCLUSIVE else None))

    def sharers(self) -> int:
        """How many of them have credit."""
        config = self.state.config
        if config.paused or not self.lenders:
            return 0
        if config.mode == EXCLUSIVE:
            return int(next(iter(self.members)) in self.lenders)
        return len(self.lenders)

    @property
    def run_of_key(self) -> int:
        """About how many records of a key a member may hold at a time."""
        first = next(iter(self.ahead.values()), None)
        return 1 if first is None else first.runs.each

    def takes(self, route: bytes) -> bool:
        return any(member.takes(route) for member in self.members.values())

    def takes_lane(self, view: PartitionView, lane: bytes) -> bool:
        """True if a member takes the route of a lane of the view."""
        return any(member.takes_lane(view, lane) for member in self.members.values())

    def file(self, member: "Subscription") -> None:
        """Updates the lists above after a change of a member's credit, or of what it was told."""
        _list(self.lenders, member, member.can_take)
        _list(self.unready, member, not member.has_credit and not member.ready_sent)
        _list(self.unended, member, member.notify_end and not member.end_sent)
        _list(self.ahead, member, member.runs.each > 1)

    def leave(self, member: "Subscription") -> None:
        for members in (self.members, self.lenders, self.unready, self.unended, self.ahead):
            members.pop(member.name, None)


def _list(members: MemberIndex, member: "Subscription", listed: bool) -> None:
    if listed:
        members[member.name] = member
    else:
        members.pop(member.name, None)


class Subscription:
    """A member of a group, or a reader (no group). Its credit is what the client has granted and
    deliveries have not used.
    """

    __slots__ = (
        "_lanes", "ack", "acked", "auto", "blocked_ms", "cancels", "charges", "consumer",
        "credit_bytes", "credit_peak", "credit_records", "delivered", "end_sent", "failed",
        "fetches", "frame_bytes", "gaps", "group", "is_silent", "key_runs", "lease_ms", "matches",
        "name", "notify_end", "number", "origin", "plain", "positions", "prefetch", "ready_sent",
        "room", "session", "shares", "views",
    )  # fmt: skip

    def __init__(
        self, session: SessionId, consumer: str, origin: Origin, message: Subscribe, lease_ms: int = 0
    ) -> None:
        self.session = session
        self.consumer = consumer
        self.origin = origin
        self.number = message.subscription
        self.name = session, message.subscription
        self.credit_records, self.credit_bytes = message.credit_records, message.credit_bytes
        self.notify_end, self.ack = message.notify_end, message.ack
        self.matches = matcher(message.routes)
        self.group: Group | None = None
        self.views: list[PartitionView] = []
        self.positions: dict[PartitionKey, Offset] = {}
        self.end_sent = self.ready_sent = False
        self.frame_bytes = self.delivered = self.acked = self.failed = 0
        self.auto = message.auto
        self.plain = message.plain
        self.lease_ms = lease_ms
        self.shares = message.shares
        self.fetches = message.fetches
        self.cancels = message.cancels
        #: it sends neither STARTED nor the records that it gives back: its records
        #: count as begun on delivery
        self.is_silent = message.auto and not message.shares
        #: the bound of records that it may hold unstarted; None: only its credit is one
        self.prefetch: Prefetch | None = None
        self.room = limits.CREDIT_MAX  #: records that it may get by that bound
        self.key_runs = message.key_runs and not message.auto
        self.credit_peak = message.credit_records  #: the most credit in records at a time
        #: boot time since when it has unused credit because new records are of busy keys
        self.blocked_ms: int | None = None
        #: records of one batch, even with gaps between them, come as one slice
        self.gaps = message.gaps and message.ack and not message.auto and not message.plain
        #: with `auto`: the bytes of credit of each delivered record that is not settled
        self.charges: dict[PartitionKey, RangeMap[int]] = {}
        # by partition: the newest lane that was checked, and the lanes that it takes
        self._lanes: dict[PartitionKey, tuple[int, OrderedDict[bytes, None]]] = {}

    def spend(self, partition: PartitionKey, first: Offset, end: Offset, record_bytes: int) -> None:
        """Uses credit for the delivery of [first, end)."""
        self.spend_some(end - first, record_bytes)
        if self.auto:
            # it may have been delivered before, and its lease has ended
            self.settle(partition, first, end)
            self.charges.setdefault(partition, RangeMap()).set(first, end, record_bytes)

    def spend_some(self, count: int, record_bytes: int) -> None:
        self.delivered += count
        if self.prefetch is not None:
            self.room -= count
        self.credit_records -= count
        self.credit_bytes -= count * record_bytes

    def settle(self, partition: PartitionKey, first: Offset, end: Offset) -> None:
        """With `auto`: the client has finished these records, which grants their credit again."""
        charges = self.charges.get(partition)
        for low, high, record_bytes in charges.pop(first, end) if charges is not None else ():
            self.credit_records += high - low
            self.credit_bytes += (high - low) * record_bytes

    @property
    def runs(self) -> KeyRuns:
        """How many records of a key it may hold. A fast consumer finishes any number at once.
        For a slower one, records of busy keys use only a part of the credit, because workers
        wait for records of other keys.
        """
        if not self.key_runs:
            return ONE_OF_EACH
        if self.credit_peak > KEY_RUNS_CREDIT:
            return UNBOUNDED
        more = self.credit_peak // (KEY_RUNS_PART * max(1, len(self.views)))
        return KeyRuns(max(1, self.credit_peak // KEY_RUN_PART), more)

    @property
    def most_records(self) -> int:
        """How many records it may get now, apart from the bytes of its credit."""
        return min(self.credit_records, self.room)

    @property
    def has_credit(self) -> bool:
        return self.credit_records > 0 and self.credit_bytes > 0

    @property
    def can_take(self) -> bool:
        """True if it may get records now: it has credit, and holds fewer unstarted ones than it may."""
        return self.has_credit and self.room > 0

    def covered(self) -> set[PartitionKey]:
        """Partitions of the subscription."""
        return {view.partition for view in self.views} | self.positions.keys()

    def takes(self, route: bytes) -> bool:
        return self.matches is None or self.matches(route)

    def _lanes_of(self, view: PartitionView) -> OrderedDict[bytes, None]:
        """Lanes of routes that it takes, the oldest first, and some that are gone. Each lane is
        checked only once, as there may be as many lanes as records.
        """
        seen, mine = self._lanes.get(view.partition, (0, OrderedDict()))
        routes = view.window.lanes.routes
        if seen < view.window.lanes.newest:
            later = takewhile(lambda lane: routes[lane] > seen, reversed(routes))
            mine.update((lane, None) for lane in reversed(list(later)) if self.takes(lane[1:]))
            if len(mine) > 2 * len(routes) + LANES_GONE_MAX:
                mine = OrderedDict.fromkeys(lane for lane in mine if lane in routes)
            self._lanes[view.partition] = view.window.lanes.newest, mine
        return mine

    def lane_in(self, view: PartitionView) -> bytes | None:
        """The oldest lane of a route that it takes."""
        routes = view.window.lanes.routes
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
        """True if it takes the route of an existing lane."""
        return self.matches is None or lane in self._lanes_of(view)

    def rewind(self, parts: list[Part]) -> None:
        """Undoes parts that did not reach a reader: restores its positions and credit."""
        for part in reversed(parts):
            if self.auto:
                self.settle(part.partition, part.offset, part.end)
            else:
                self.credit_records += part.count
                self.credit_bytes += part.charge
            if part.partition in self.positions:
                self.positions[part.partition] = part.offset

    def waiting(self, ledger: Ledger, timer_ms: int) -> bool:
        """True if records could be delivered now, apart from credit."""
        for partition, position in self.positions.items():
            if position < ledger.partitions[partition].next:
                return True
        if self.group is not None and self.group.state.config.paused:
            return False
        return any(view.offers(ledger, timer_ms) or self.lane_in(view) is not None for view in self.views)

    def at_end(self, ledger: Ledger, timer_ms: int) -> bool:
        """True if all records have been delivered once."""
        if self.waiting(ledger, timer_ms):
            return False
        return all(
            view.window.next == ledger.partitions[view.partition].next
            and len(view.window.lanes.routes) == len(view.window.lanes)
            for view in self.views
        )

    def ends(self, ledger: Ledger) -> list[Range]:
        """(partition, position, end) of everything subscribed."""
        reading = [
            (partition, position, ledger.partitions[partition].next)
            for partition, position in self.positions.items()
        ]
        sharing = [
            (view.partition, view.window.next, ledger.partitions[view.partition].next) for view in self.views
        ]
        return reading + sharing
