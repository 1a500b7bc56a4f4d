"""Handles failed attempts and expiry: another attempt later, or a dead letter. The
leader decides, row by row.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple, Protocol

from msgspec import structs

from gossipq import limits
from gossipq.core.delivery import tries
from gossipq.core.delivery.consumers import PartitionView, Place, first_left, place_of
from gossipq.core.delivery.holdings import EXPIRED, Failed
from gossipq.core.delivery.policy import NOTHING, Policy, Said, ruling
from gossipq.core.ledger import Ledger
from gossipq.core.storage import Dead, FailRow, Opened
from gossipq.types import ATTEMPTS, BACKOFF, LEASE, TTL, Offset, Ranges
from gossipq.values import GroupConfig, TopicConfig

FAILURES = "failures"
#: columns by which records of a batch may have a policy of their own
RULED = LEASE | ATTEMPTS | BACKOFF | TTL


def expiry_times(ledger: Ledger, view: PartitionView, place: Place, count: int, tried: int) -> Sequence[int]:
    """Leader times at which the first `count` records of a place expire; 0 = never. One number if it is the
    same for all of them. `tried`: their tries.

    A dead letter that was replayed does not expire: it would be one again at once, or be dropped. A record
    that an operator requeued does not expire before it was delivered once.
    """
    row, config = place.row, ledger.config(view.partition)
    column = ledger.opened.column(place.entry, TTL) if place.columns & TTL else None
    if not (config.ttl_ms or column):
        return (0,)
    if row is not None:
        tried = max(tried, tries.after(row.attempts + row.handed_out, not row.handed_out))
    if (
        not place.time_ms
        or (row is not None and (row.own_body or not (row.lane or tried)))
        or (not tries.begun(tried) and config.expire == "try_once")
    ):
        return (0,)
    if column is None:
        return (place.time_ms + config.ttl_ms,)
    asked = column[place.record : place.record + count]
    return [place.time_ms + own_ms if (own_ms := ttl_ms or config.ttl_ms) else 0 for ttl_ms in asked]


def said_by(opened: Opened, place: Place) -> Said:
    """The options of its own that the record at the start of a place has."""
    if not place.columns & (LEASE | ATTEMPTS | BACKOFF):
        return NOTHING
    columns = [
        opened.column(place.entry, bit) if place.columns & bit else None for bit in (LEASE, ATTEMPTS, BACKOFF)
    ]
    return Said(*(column[place.record] if column else 0 for column in columns))


class Burial(NamedTuple):
    """A DEAD entry: its payload, and the batch of the records; empty if they are dropped."""

    dead: Dead
    body: bytes


class Budget:
    """The rest of a turn's budget for entries. The first entry always fits, however large it is."""

    __slots__ = ("pieces", "size")

    def __init__(self) -> None:
        self.pieces, self.size = limits.FAILURES_PER_TURN, limits.BURIED_BYTES_PER_TURN

    def __bool__(self) -> bool:
        return self.pieces > 0 and self.size > 0


class Times(Protocol):
    """The times of a shard."""

    @property
    def leader_ms(self) -> int: ...
    def due_after(self, delay_ms: int) -> int: ...


class Attempts:
    """Decides how a record continues when an attempt at it ends: ready again, a retry, or a dead letter."""

    def __init__(self, ledger: Ledger, cluster: GroupConfig) -> None:
        self._ledger = ledger
        self.cluster = cluster  #: the cluster's policy, for options that group and topic leave open
        # policies for records without their own, by group id
        self._plain: dict[int, tuple[GroupConfig, TopicConfig, Policy]] = {}

    def forget_group(self, group_id: int) -> None:
        self._plain.pop(group_id, None)

    def policy(self, view: PartitionView, place: Place) -> Policy:
        """The policy for the next attempt at a record, and the origin of each value."""
        said = said_by(self._ledger.opened, place)
        group, topic = view.group.state.config, self._ledger.config(view.partition)
        if said is not NOTHING:
            return ruling(said, group, topic, self.cluster)
        known = self._plain.get(view.group.id)
        if known is None or known[0] is not group or known[1] is not topic:
            known = self._plain[view.group.id] = group, topic, ruling(said, group, topic, self.cluster)
        return known[2]

    def _pieces(self, failed: Failed) -> Iterator[tuple[Ranges, Place]]:
        """Records with the same outcome: of one place and row; single records if they
        have policies of their own.
        """
        some: list[tuple[Offset, Offset]] = []
        place: Place | None = None
        for first, end in failed.of:
            while first < end:
                if place is None or first >= _reach(place, first) or _special(place):
                    if some and place is not None:
                        yield some, place
                    some = []
                    place = place_of(self._ledger, failed.view.cursor, failed.view.partition, first)
                    if place is None:  # retention or a purge was faster
                        first = first_left(self._ledger, failed.view, first + 1, end)
                        continue
                stop = first + 1 if _special(place) else min(end, _reach(place, first))
                some.append((first, stop))
                first = stop
        if some and place is not None:
            yield some, place

    def sort_out(
        self, failed: Failed, times: Times, budget: Budget
    ) -> tuple[list[FailRow], list[Burial], Failed | None]:
        """Returns the records that are tried again, the burials, and the
        rest that exceeds the budget.
        """
        rows: list[FailRow] = []
        burials: list[Burial] = []
        for ranges, place in self._pieces(failed):
            first, end = ranges[0][0], ranges[-1][1]
            if not budget:
                return rows, burials, _behind(failed, first)
            budget.pieces -= len(ranges)
            policy = self.policy(failed.view, place)
            failures = (place.row.failures if place.row else 0) + failed.counted
            tried = tries.after(failed.attempts, started=True)
            expiry_ms = expiry_times(self._ledger, failed.view, place, 1, tried)[0]
            dead = failed.dead
            if not dead and failed.counted and failures >= policy.attempts_max:
                dead = FAILURES
            if not dead and expiry_ms and expiry_ms <= times.leader_ms:
                dead = EXPIRED
            if dead:
                for low, high in ranges:
                    moved = structs.replace(place, record=place.record + low - first)
                    burials.append(self._burial(failed, low, high, moved, dead))
                    budget.size -= len(burials[-1].body)
                continue
            pause_ms = failed.delay_ms if failed.delay_ms >= 0 else policy.pause_ms(max(1, failures))
            reason = _short(failed.reason)
            row = FailRow(
                partition=failed.view.partition,
                first=first,
                end=end,
                attempts=failed.attempts,
                counted=failed.counted,
                due_ms=times.due_after(pause_ms),
                reason=reason,
                consumer=failed.consumer,
                ranges=list(ranges) if len(ranges) > 1 else [],
            )
            rows.append(row)
            budget.size -= len(reason)
        return rows, burials, None

    def _burial(self, failed: Failed, first: Offset, end: Offset, place: Place, reason: str) -> Burial:
        view = failed.view
        dropped = reason == EXPIRED and self._ledger.config(view.partition).expire == "drop"
        body = b"" if dropped else self._ledger.opened.cut(place.entry, place.record, end - first)
        dead = Dead(
            group_id=view.group.id,
            partition=view.partition,
            first=first,
            end=end,
            reason=reason,
            error=_short(failed.reason),
            consumer=failed.consumer,
            attempts=failed.attempts,
            counted=failed.counted,
        )
        return Burial(dead, body)


def _reach(place: Place, offset: Offset) -> Offset:
    """The end of the place's records from a later one on. Not for `offset` itself,
    which need not be one of them.
    """
    if not place.ranges:
        return place.end
    at = bisect_right(place.ranges, offset, key=itemgetter(0)) - 1
    return place.ranges[at][1]


def _special(place: Place) -> bool:
    """True if records of a place may have a policy of their own."""
    return bool(place.columns & RULED)


def _behind(failed: Failed, offset: Offset) -> Failed:
    """The rest of it from an offset on."""
    ranges = [(max(first, offset), end) for first, end in failed.of if end > offset]
    return failed._replace(first=offset, ranges=ranges if len(ranges) > 1 else ())


def _short(reason: str) -> str:
    """Shortens a consumer's text to ERROR_BYTES_MAX bytes."""
    return reason.encode("utf-8", "replace")[: limits.ERROR_BYTES_MAX].decode("utf-8", "ignore")
