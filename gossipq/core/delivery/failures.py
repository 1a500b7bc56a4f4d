"""What follows a failed attempt, and an expiry: another attempt later, or a dead letter. Decided by the
leader, row by row."""

from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from msgspec import structs

from gossipq import limits
from gossipq.core.delivery.consumers import PartitionView, Place, place_of
from gossipq.core.delivery.leases import Failed, Leases, Ranges
from gossipq.core.delivery.policy import NOTHING, Policy, Said, ruling
from gossipq.core.ledger import Ledger
from gossipq.core.storage import Dead, FailRow, Opened
from gossipq.types import ATTEMPTS, BACKOFF, LEASE, TTL, Offset
from gossipq.values import GroupConfig, TopicConfig

EXPIRED, FAILURES = "expired", "failures"
#: columns by which records of a batch may have a policy of their own
RULED = LEASE | ATTEMPTS | BACKOFF | TTL


def expires_ms(ledger: Ledger, view: PartitionView, place: Place) -> int:
    """Leader time at which the record at the start of a place expires; 0 = never, as a dead letter that was
    replayed: it would be one again at once, or be dropped."""
    if place.row is not None and place.row.own_body:
        return 0
    ttl_ms = ledger.config(view.partition).ttl_ms
    if place.columns & TTL:
        column = ledger.opened.column(place.entry, TTL)
        ttl_ms = (column[place.record] if column else 0) or ttl_ms
    return place.time_ms + ttl_ms if ttl_ms and place.time_ms else 0


def said_by(opened: Opened, place: Place) -> Said:
    """What the record at the start of a place says of its own policy."""
    if not place.columns & (LEASE | ATTEMPTS | BACKOFF):
        return NOTHING
    columns = [
        opened.column(place.entry, bit) if place.columns & bit else None for bit in (LEASE, ATTEMPTS, BACKOFF)
    ]
    return Said(*(column[place.record] if column else 0 for column in columns))


class Burial(NamedTuple):
    """A DEAD entry: its payload, and the batch of the records; empty when they are dropped."""

    dead: Dead
    body: bytes


class Budget:
    """What one turn may still make entries of. The first one always fits, however large it is."""

    __slots__ = ("pieces", "size")

    def __init__(self) -> None:
        self.pieces, self.size = limits.FAILURES_PER_TURN, limits.BURIED_BYTES_PER_TURN

    def __bool__(self) -> bool:
        return self.pieces > 0 and self.size > 0


class Failures(Leases):
    def __init__(self, ledger: Ledger, cluster: GroupConfig) -> None:
        super().__init__(ledger)
        self.cluster = cluster  #: what it says where group and topic say nothing
        # of records that say nothing, by group id
        self._plain: dict[int, tuple[GroupConfig, TopicConfig, Policy]] = {}

    def policy(self, view: PartitionView, place: Place) -> Policy:
        """What rules the next attempt at a record, and who said so."""
        said = said_by(self._ledger.opened, place)
        group, topic = view.group.state.config, self._ledger.config(view.partition)
        if said is not NOTHING:
            return ruling(said, group, topic, self.cluster)
        known = self._plain.get(view.group.id)
        if known is None or known[0] is not group or known[1] is not topic:
            known = self._plain[view.group.id] = group, topic, ruling(said, group, topic, self.cluster)
        return known[2]

    def _pieces(self, failed: Failed) -> Iterator[tuple[Ranges, Place]]:
        """Records with one fate: of one place and row; single ones where records have a policy of their
        own."""
        some: list[tuple[Offset, Offset]] = []
        place: Place | None = None
        for first, end in failed.of:
            while first < end:
                if place is None or first >= _reach(place, first) or _special(place):
                    if some and place is not None:
                        yield some, place
                    some = []
                    place = place_of(self._ledger, failed.view.cursor, failed.view.partition, first)
                    if place is None:  # retention, or a purge, was faster
                        first = self._left_from(failed.view, first + 1, end)
                        continue
                stop = first + 1 if _special(place) else min(end, _reach(place, first))
                some.append((first, stop))
                first = stop
        if some and place is not None:
            yield some, place

    def sort_out(
        self, failed: Failed, leader_ms: int, budget: Budget
    ) -> tuple[list[FailRow], list[Burial], Failed | None]:
        """What is tried again, what is dead, and what the budget leaves for another turn."""
        rows: list[FailRow] = []
        burials: list[Burial] = []
        for ranges, place in self._pieces(failed):
            first, end = ranges[0][0], ranges[-1][1]
            if not budget:
                return rows, burials, _behind(failed, first)
            budget.pieces -= len(ranges)
            policy = self.policy(failed.view, place)
            failures = (place.row.failures if place.row else 0) + failed.counted
            expiry_ms = expires_ms(self._ledger, failed.view, place)
            dead = failed.dead
            if not dead and failed.counted and failures >= policy.attempts_max:
                dead = FAILURES
            if not dead and expiry_ms and expiry_ms <= leader_ms:
                dead = EXPIRED
            if dead:
                for low, high in ranges:
                    moved = structs.replace(place, record=place.record + low - first)
                    burials.append(self._burial(failed, low, high, moved, dead))
                    budget.size -= len(burials[-1].body)
                continue
            pause_ms = failed.delay_ms if failed.delay_ms >= 0 else policy.pause_ms(max(1, failures))
            reason = _short(failed.reason)
            name = failed.view.partition, first, end, failed.attempts, failed.counted
            told = leader_ms + pause_ms, reason, failed.consumer
            rows.append(FailRow(*name, *told, list(ranges) if len(ranges) > 1 else []))
            budget.size -= len(reason)
        return rows, burials, None

    def _burial(self, failed: Failed, first: Offset, end: Offset, place: Place, reason: str) -> Burial:
        view = failed.view
        dropped = reason == EXPIRED and self._ledger.config(view.partition).expire == "drop"
        body = b"" if dropped else self._ledger.opened.cut(place.entry, place.record, end - first)
        name = view.group.id, view.partition, first, end, reason, _short(failed.reason)
        return Burial(Dead(*name, failed.consumer, failed.attempts, failed.counted), body)


def _reach(place: Place, offset: Offset) -> Offset:
    """Where records of a place end, from one on that lies behind its first. Not behind `offset`: that is not
    of them."""
    if not place.ranges:
        return place.end
    at = bisect_right(place.ranges, offset, key=itemgetter(0)) - 1
    return place.ranges[at][1]


def _special(place: Place) -> bool:
    """Whether records of a place may have a policy of their own."""
    return bool(place.columns & RULED)


def _behind(failed: Failed, offset: Offset) -> Failed:
    """What is left of it from an offset on."""
    ranges = [(max(first, offset), end) for first, end in failed.of if end > offset]
    return failed._replace(first=offset, ranges=ranges if len(ranges) > 1 else ())


def _short(reason: str) -> str:
    """At most ERROR_BYTES_MAX bytes of what a consumer said."""
    return reason.encode("utf-8", "replace")[: limits.ERROR_BYTES_MAX].decode("utf-8", "ignore")
