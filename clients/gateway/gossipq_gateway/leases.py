"""What callers have in hand: who fetches by a protocol without connections holds a record by a token, until
it settles the record or its time is over. Pure: the clock is handed in."""

import re
from collections import OrderedDict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, Protocol, TypeVar

from gossipq.errors import BadRequest, LeaseLost
from gossipq_client.operations import Delivery

HELD_MAX = 100_000  #: by one caller
DONE_MAX = 10_000  #: tokens that were acked and are remembered, so that an ack can be repeated
ENDS_SPARE = 1_000  #: ends that do not count any more, beyond as many as count, before they are swept out


class Leasable(Protocol):
    """A record in hand, as `gossipq_client.aio.Message` is one."""

    @property
    def ref(self) -> str: ...
    @property
    def topic_id(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def lost(self) -> bool: ...


Record = TypeVar("Record", bound=Leasable)


class Lease(Generic[Record]):
    """A record in hand until `until_ms` of boot time; then it fails, and comes again after `delay` seconds
    (None: as the backoff of its group says)."""

    __slots__ = ("delay", "record", "token", "until_ms")

    def __init__(self, token: str, record: Record, until_ms: int, delay: float | None) -> None:
        self.token, self.record, self.until_ms, self.delay = token, record, until_ms, delay


class Named(NamedTuple):
    """What a token says of itself: the delivery that it stands for, and the gateway that made it."""

    group: str
    topic: str
    delivery: Delivery
    gateway: str

    @property
    def ref(self) -> str:
        return f"{self.topic}/{self.delivery.partition}/{self.delivery.offset}"


_TOKEN = re.compile(
    r"(?P<group>.*)@(?P<topic>[^/@]+)/(?P<partition>\d{1,9})/(?P<offset>\d{1,18})"
    r"~(?P<topic_id>\d{1,9})\.(?P<attempt>\d{1,9})\.(?P<gateway>[^.-]+)-[0-9a-f]+",
    re.ASCII | re.DOTALL,
)


def named(token: str) -> Named:
    """Raises BadRequest for what is no token."""
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise BadRequest(
            "this is not the token of a lease", hint="pass the `lease` of a record that was fetched"
        )
    numbers = [int(found[name]) for name in ("topic_id", "partition", "offset", "attempt")]
    return Named(found["group"], found["topic"], Delivery(*numbers), found["gateway"])


class Leases(Generic[Record]):
    """Of one caller. `gateway` tells the tokens of this run from those of others."""

    def __init__(self, gateway: str) -> None:
        self._gateway, self._count = gateway, 0
        self._held: dict[str, Lease[Record]] = {}
        self._ends: list[tuple[int, str]] = []  #: a heap; entries that were put off are passed over
        self._done: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def room(self) -> int:
        """How many more it may hold."""
        return HELD_MAX - len(self._held)

    def add(self, group: str, record: Record, until_ms: int, delay: float | None) -> Lease[Record]:
        self._count += 1
        made_by = f"{self._gateway}-{self._count:x}"
        token = f"{group}@{record.ref}~{record.topic_id}.{record.attempt}.{made_by}"
        lease = self._held[token] = Lease(token, record, until_ms, delay)
        self._ends_at(until_ms, token)
        return lease

    def _ends_at(self, until_ms: int, token: str) -> None:
        """Ends of leases that were settled or put off may lie hours ahead: they are swept out when they are
        most of what is there."""
        heappush(self._ends, (until_ms, token))
        if len(self._ends) > 2 * len(self._held) + ENDS_SPARE:
            self._ends = [(lease.until_ms, token) for token, lease in self._held.items()]
            heapify(self._ends)

    def find(self, token: str) -> Lease[Record]:
        """Raises LeaseLost when it is over, BadRequest for what is no token."""
        lease = self._held.get(token)
        if lease is None or lease.record.lost:
            raise self._over(token)
        return lease

    def is_of(self, token: str) -> bool:
        """Whether it was made by this run of this gateway. Raises BadRequest."""
        return named(token).gateway == self._gateway

    def _over(self, token: str) -> LeaseLost:
        if not self.is_of(token):
            return LeaseLost(
                f"{named(token).ref} was fetched at another gateway, or before this one was started",
                hint="ack it at that gateway; otherwise it is redelivered",
            )
        ref = named(token).ref
        return LeaseLost(
            f"the lease of {ref} has ended: the record was acked or nacked, or the lease expired",
            hint="ask for a longer `lease`",
        )

    def holds(self, lease: Lease[Record]) -> bool:
        """Whether it stands."""
        return self._held.get(lease.token) is lease and not lease.record.lost

    def was_acked(self, token: str) -> bool:
        """Whether it is known that this token was acked before."""
        return token in self._done

    def extend(self, lease: Lease[Record], until_ms: int) -> None:
        lease.until_ms = until_ms
        self._ends_at(until_ms, lease.token)

    def drop(self, lease: Lease[Record], acked: bool = False) -> None:
        """It was settled."""
        self.forget(lease.token)
        if acked:
            self._done[lease.token] = None
            if len(self._done) > DONE_MAX:
                self._done.popitem(last=False)

    def forget(self, token: str) -> bool:
        """It is over; whether it was not before."""
        return self._held.pop(token, None) is not None

    def due(self, now_ms: int) -> list[Lease[Record]]:
        """Those whose time is over; they are dropped."""
        found = []
        while self._ends and self._ends[0][0] <= now_ms:
            _, token = heappop(self._ends)
            lease = self._held.get(token)
            if lease is not None and lease.until_ms <= now_ms:
                del self._held[token]
                found.append(lease)
        return found

    def all(self) -> Iterable[Lease[Record]]:
        return list(self._held.values())
