"""Limits of flows and of groups: how many records are in flight, and how many are delivered in a time.

A rate is kept by the generic cell rate algorithm, a token bucket of one number: the time at which the bucket
is full again. The number is not in the log. A new leader takes each bucket as empty when it begins, so no
takeover exceeds a rate. The records in flight follow from the leases, which a new leader reads from the log.
"""

from collections.abc import Iterable

from gossipq.core.delivery.flows import FAIR
from gossipq.core.delivery.limit_division import PACE, Pair, floor_of, pool_of
from gossipq.core.delivery.policy import within
from gossipq.core.storage import RangeMap
from gossipq.errors import BadRequest
from gossipq.limits import CREDIT_MAX, DELAY_MS_MAX, IN_FLIGHT_HARD_MAX
from gossipq.types import Offset
from gossipq.values import GroupConfig, Rate

UNLIMITED = CREDIT_MAX
SMOOTH_MS = 100  #: a rate without a burst of its own lets the records of this time through together
KNOWN_FLOWS = 1_024  #: with more buckets, the full ones are forgotten now and then


def check_limits(config: GroupConfig) -> None:
    """Raises BadRequest if limits are wrong, or do not go with the order of the group."""
    for name, most in (("concurrency", config.concurrency), ("flow_concurrency", config.flow_concurrency)):
        within(name, most, 0, IN_FLIGHT_HARD_MAX)
    for name, rate in (("rate", config.rate), ("flow_rate", config.flow_rate)):
        within(f"records of {name}", rate.records, 0, CREDIT_MAX)
        within(f"milliseconds of {name}", rate.per_ms, 1, DELAY_MS_MAX)
        within(f"burst of {name}", rate.burst, 0, CREDIT_MAX)
    within("flow_backlog", config.flow_backlog, 0, IN_FLIGHT_HARD_MAX)
    of_flows = config.flow_concurrency or config.flow_rate.records or config.flow_backlog
    if of_flows and config.order != FAIR:
        raise BadRequest(
            f"limits of flows in a group of order {config.order!r}", hint="they need --order fair"
        )
    if (config.concurrency or config.rate.records) and config.order == "arrival":
        raise BadRequest(
            "limits in a group of order 'arrival'", hint="they need --order fair, or --order priority"
        )


class TokenBucket:
    """A rate, as a token bucket. Times are boot time in milliseconds."""

    __slots__ = ("burst_ms", "interval_ms", "most")

    def __init__(self, rate: Rate, share: float = 1.0) -> None:
        """`share` is the part of the rate that is meant."""
        self.interval_ms = rate.per_ms / (rate.records * share)
        burst = rate.burst * share or SMOOTH_MS / self.interval_ms
        self.most = max(1.0, burst)  #: records that it lets through at once
        self.burst_ms = self.most * self.interval_ms

    def allowed(self, full_ms: float, now_ms: int) -> int:
        """How many records may be delivered, if the bucket is full again at `full_ms`."""
        return int((now_ms + self.burst_ms - max(full_ms, now_ms)) / self.interval_ms + 1e-6)

    def after(self, full_ms: float, now_ms: int, count: int) -> float:
        """When the bucket is full again after the delivery of `count` records."""
        return max(full_ms, now_ms) + count * self.interval_ms

    def next_ms(self, full_ms: float) -> float:
        """When one record may be delivered."""
        return full_ms - self.burst_ms + self.interval_ms


class FlowLimits:
    """The limits of the flows of a view, and what counts towards them."""

    __slots__ = ("_full", "_known_max", "begin_ms", "in_flight", "leased", "most", "pace", "paused")

    def __init__(self, config: GroupConfig, paused: dict[int, float] | None = None) -> None:
        self.most = config.flow_concurrency or UNLIMITED
        self.pace = TokenBucket(config.flow_rate) if config.flow_rate.records else None
        self.in_flight: dict[int, int] = {}  #: by flow
        self.leased: RangeMap[int] = RangeMap()  #: the flow of each record in flight
        self._full: dict[int, float] = {}  # when the bucket of a flow is full again
        self._known_max = KNOWN_FLOWS
        self.begin_ms = 0.0  #: buckets that are not known are full again then
        self.paused = paused  #: flows that wait until a boot time

    def allowed(self, flow: int, now_ms: int) -> int:
        """How many records of a flow may be delivered now."""
        if self.paused and self.paused_ms(flow, now_ms):
            return 0
        free = self.most - self.in_flight.get(flow, 0)
        if self.pace is None or free <= 0:
            return free
        return min(free, self.pace.allowed(self._full.get(flow, self.begin_ms), now_ms))

    def paused_ms(self, flow: int, now_ms: int) -> float:
        """How long a flow still waits because a consumer said so."""
        until_ms = self.paused.get(flow) if self.paused else None
        if until_ms is None or self.paused is None:
            return 0
        if until_ms <= now_ms:
            del self.paused[flow]
        return max(0, until_ms - now_ms)

    def is_full(self, flow: int) -> bool:
        """True if as many records of a flow are in flight as may be."""
        return self.in_flight.get(flow, 0) >= self.most

    def next_ms(self, flow: int) -> float:
        """When the rate, and the pause of a flow, let a record through."""
        paced_ms = 0.0 if self.pace is None else self.pace.next_ms(self._full.get(flow, self.begin_ms))
        return max(paced_ms, self.paused.get(flow, 0)) if self.paused else paced_ms

    def delivered(self, flow: int, count: int, now_ms: int) -> None:
        """Count delivered records towards the rate."""
        if self.pace is None:
            return
        self._full[flow] = self.pace.after(self._full.get(flow, self.begin_ms), now_ms, count)
        if len(self._full) > self._known_max:
            self._full = {name: full_ms for name, full_ms in self._full.items() if full_ms > now_ms}
            self._known_max = max(KNOWN_FLOWS, 2 * len(self._full))

    def pick(self, flow: int, first: Offset, end: Offset, now_ms: int) -> None:
        """Count records that are delivered next."""
        if self.most < UNLIMITED:
            self.take(first, end, flow)
        self.delivered(flow, end - first, now_ms)

    def take(self, first: Offset, end: Offset, flow: int) -> None:
        """Records of a flow are in flight from now on."""
        self.leased.set(first, end, flow)
        self.in_flight[flow] = self.in_flight.get(flow, 0) + end - first

    def free(self, ranges: Iterable[tuple[Offset, Offset]]) -> list[int]:
        """Records are in flight no longer. Returns the flows that were full."""
        flows = []
        for each in ranges:
            for first, end, flow in self.leased.pop(*each):
                if self.is_full(flow):
                    flows.append(flow)
                self.in_flight[flow] -= end - first
                if not self.in_flight[flow]:
                    del self.in_flight[flow]
        return flows


class GroupLimits:
    """The part of a group's limits that one leader has, for all partitions of its shard."""

    __slots__ = ("_rate", "floor", "full_ms", "is_closed", "most", "pace", "shards", "whole")

    def __init__(self, config: GroupConfig, shards: int) -> None:
        """`shards`: how many have partitions of the topic. With several, this leader has its floor, until
        `allot` says more.
        """
        self._rate = config.rate
        self.shards = shards
        self.whole = config.concurrency, PACE if config.rate.records else 0
        self.floor = floor_of(self.whole, shards) if shards > 1 else self.whole
        self.most = UNLIMITED  #: records in flight
        self.pace: TokenBucket | None = None
        self.is_closed = False  #: it has no part of the rate
        self.full_ms = 0.0  #: when its bucket is full again
        self._set(self.floor)

    def _set(self, part: Pair) -> None:
        if self.whole[0]:
            self.most = part[0]
        if self.whole[1]:
            self.pace = TokenBucket(self._rate, part[1] / PACE) if part[1] else None
            self.is_closed = not part[1]

    def allot(self, part: Pair, now_ms: int) -> bool:
        """Have a part beside the floor from now on. Its bucket keeps what is in it. Returns whether that is a
        change.
        """
        before, pace, was_closed = self.most, self.pace, self.is_closed
        pool = pool_of(self.whole, self.shards)  # the limit itself may be lower by now
        self._set((self.floor[0] + min(part[0], pool[0]), self.floor[1] + min(part[1], pool[1])))
        if self.pace is not None and not (pace and pace.interval_ms == self.pace.interval_ms):
            held_ms = 0.0 if pace is None else now_ms + pace.burst_ms - max(self.full_ms, now_ms)
            records = min(held_ms / pace.interval_ms, self.pace.most) if pace is not None else 0.0
            self.full_ms = now_ms + (self.pace.most - records) * self.pace.interval_ms
            return True
        return (self.most, self.is_closed) != (before, was_closed)

    def allowed(self, in_flight: int, now_ms: int) -> int:
        """How many records of the group may be delivered now."""
        if self.is_closed:
            return 0
        free = self.most - in_flight
        return free if self.pace is None else min(free, self.pace.allowed(self.full_ms, now_ms))

    def delivered(self, count: int, now_ms: int) -> None:
        """Count delivered records towards the rate."""
        if self.pace is not None:
            self.full_ms = self.pace.after(self.full_ms, now_ms, count)

    @property
    def next_ms(self) -> float | None:
        """When the rate lets a record through; None without a rate."""
        return None if self.pace is None else self.pace.next_ms(self.full_ms)
