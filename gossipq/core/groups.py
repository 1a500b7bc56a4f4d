"""What dispatch remembers: groups, their view of each partition, members, leases, and the parts they are handed."""

from collections import deque

import msgspec

from gossipq.core.intervals import RangeMap
from gossipq.core.ledger import Cursor, Ledger
from gossipq.core.records import GroupState
from gossipq.messages import Range, Subscribe
from gossipq.types import Index, Offset, Origin, PartitionKey, SessionId


class Part(msgspec.Struct, frozen=True, gc=False):
    """Records of one stored batch, handed to one consumer: `count` from record `first` of the batch at log index `index`."""

    partition: PartitionKey
    offset: Offset
    index: Index
    first: int
    count: int
    whole: bool  #: the stored bytes go out as they are
    attempt: int
    charge: int  #: bytes of credit it took

    @property
    def end(self) -> Offset:
        return self.offset + self.count


class Lease:
    """Who holds some records of a view, until when. An empty session: nobody, a pause before the next attempt."""

    __slots__ = ("attempt", "consumer", "deadline_ms", "number", "open", "session", "since_ms", "view")

    def __init__(self, view: "View", session: SessionId, number: int, consumer: str, attempt: int, since_ms: int) -> None:
        self.view, self.session, self.number, self.consumer = view, session, number, consumer
        self.attempt, self.since_ms = attempt, since_ms  #: boot time of the handing-over
        self.deadline_ms = since_ms
        self.open = 0  #: records still held

    @property
    def owner(self) -> tuple[SessionId, int]:
        return self.session, self.number


class View:
    """One group in one partition. Above the ledger's cursor each record is acked, leased, returned, or not yet handed out
    (from `next` on)."""

    __slots__ = ("cursor", "group", "leases", "next", "partition", "returned", "unlogged")

    def __init__(self, group: "Group", partition: PartitionKey, cursor: Cursor) -> None:
        self.group, self.partition, self.cursor = group, partition, cursor
        self.next: Offset = cursor.state.cursor
        self.leases: RangeMap[Lease] = RangeMap()
        self.returned: RangeMap[int] = RangeMap()  #: attempts so far
        self.unlogged: list[tuple[Offset, Offset]] = []  #: leased or returned since the last LEASE entry

    def in_flight(self) -> int:
        return sum(end - first for first, end, lease in self.leases if lease.session)


class Group:
    __slots__ = ("id", "members", "state", "views")

    def __init__(self, state: GroupState) -> None:
        self.id, self.state = state.id, state
        self.members: deque[Subscription] = deque()
        self.views: dict[PartitionKey, View] = {}


class Subscription:
    """A member of a group, or a reader (no group). Credit is what the client lends and has not been used."""

    __slots__ = (
        "consumer", "credit_bytes", "credit_records", "frame_bytes", "group", "lease_ms", "notify_end", "number", "origin",
        "positions", "session", "told_end", "told_ready", "views",
    )  # fmt: skip

    def __init__(self, session: SessionId, consumer: str, origin: Origin, message: Subscribe, lease_ms: int) -> None:
        self.session, self.consumer, self.origin, self.number = session, consumer, origin, message.subscription
        self.credit_records, self.credit_bytes = message.credit_records, message.credit_bytes
        self.lease_ms, self.notify_end = lease_ms, message.notify_end
        self.group: Group | None = None
        self.views: list[View] = []
        self.positions: dict[PartitionKey, Offset] = {}
        self.told_end = self.told_ready = False
        self.frame_bytes = 0

    @property
    def name(self) -> tuple[SessionId, int]:
        return self.session, self.number

    @property
    def has_credit(self) -> bool:
        return self.credit_records > 0 and self.credit_bytes > 0

    @property
    def group_window(self) -> int:
        assert self.group is not None
        return self.group.state.config.in_flight_max

    def untake(self, parts: list[Part]) -> None:
        """Parts that did not reach a reader: it is where it was, with the credit that it had."""
        for part in reversed(parts):
            self.credit_records += part.count
            self.credit_bytes += part.charge
            if part.partition in self.positions:
                self.positions[part.partition] = part.offset

    def waiting(self, ledger: Ledger) -> bool:
        """Whether something could be handed out now, credit aside."""
        for partition, position in self.positions.items():
            if position < ledger.partitions[partition].next:
                return True
        for view in self.views:
            end = min(ledger.partitions[view.partition].next, view.cursor.state.cursor + self.group_window)
            if view.returned.starts or view.next < end:
                return True
        return False

    def ends(self, ledger: Ledger) -> list[Range]:
        """(partition, position, end) of everything subscribed."""
        reading = [(partition, position, ledger.partitions[partition].next) for partition, position in self.positions.items()]
        sharing = [(view.partition, view.next, ledger.partitions[view.partition].next) for view in self.views]
        return reading + sharing
