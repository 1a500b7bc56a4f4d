"""Leases of callers over protocols without connections. Pure: time is passed in.

A caller holds a record by a token, until it settles the record or the lease ends.
"""

import re
from collections import OrderedDict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, Protocol, TypeVar

from gossipq.errors import BadRequest, LeaseLost
from gossipq_client.answers import Delivery

HELD_MAX = 100_000  #: by one caller
DONE_MAX = 10_000  #: acked tokens that are remembered, so that an ack can be repeated
#: outdated entries of the heap, beyond the number of valid ones, before it is rebuilt
ENDS_SPARE = 1_000


class Leasable(Protocol):
    """A record in flight, such as `gossipq_client.aio.Message`."""

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
    """A record in flight until `until_ms`, boot time. Then it fails.

    It is redelivered after `delay` seconds (None: by the backoff of its group).
    """

    __slots__ = ("delay", "record", "token", "until_ms")

    def __init__(self, token: str, record: Record, until_ms: int, delay: float | None) -> None:
        self.token, self.record, self.until_ms, self.delay = token, record, until_ms, delay


class Named(NamedTuple):
    """The content of a token: the delivery, and the gateway that made it."""

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
    """Parse a token. Raises BadRequest for other texts."""
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise BadRequest(
            "this is not the token of a lease", hint="pass the `lease` of a record that was fetched"
        )
    numbers = [int(found[name]) for name in ("topic_id", "partition", "offset", "attempt")]
    return Named(found["group"], found["topic"], Delivery(*numbers), found["gateway"])


class Leases(Generic[Record]):
    """The leases of one caller. `gateway` marks the tokens of this run."""

    def __init__(self, gateway: str) -> None:
        self._gateway, self._count = gateway, 0
        self._held: dict[str, Lease[Record]] = {}
        self._ends: list[tuple[int, str]] = []  #: a heap; outdated entries are skipped
        self._done: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def room(self) -> int:
        """Number of leases that still fit."""
        return HELD_MAX - len(self._held)

    def add(self, group: str, record: Record, until_ms: int, delay: float | None) -> Lease[Record]:
        self._count += 1
        made_by = f"{self._gateway}-{self._count:x}"
        token = f"{group}@{record.ref}~{record.topic_id}.{record.attempt}.{made_by}"
        lease = self._held[token] = Lease(token, record, until_ms, delay)
        self._ends_at(until_ms, token)
        return lease

    def _ends_at(self, until_ms: int, token: str) -> None:
        """Note the end of a lease.

        Ends of settled or extended leases can be hours ahead, so they are removed
        when they are the majority.
        """
        heappush(self._ends, (until_ms, token))
        if len(self._ends) > 2 * len(self._held) + ENDS_SPARE:
            self._ends = [(lease.until_ms, token) for token, lease in self._held.items()]
            heapify(self._ends)

    def find(self, token: str) -> Lease[Record]:
        """Return a lease. Raises LeaseLost if it has ended, BadRequest for an invalid token."""
        lease = self._held.get(token)
        if lease is None or lease.record.lost:
            raise self._over(token)
        return lease

    def is_of(self, token: str) -> bool:
        """True if this run of this gateway made the token. Raises BadRequest."""
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
        """True if the lease is valid."""
        return self._held.get(lease.token) is lease and not lease.record.lost

    def was_acked(self, token: str) -> bool:
        """True if this token is known to be acked."""
        return token in self._done

    def extend(self, lease: Lease[Record], until_ms: int) -> None:
        lease.until_ms = until_ms
        self._ends_at(until_ms, lease.token)

    def drop(self, lease: Lease[Record], acked: bool = False) -> None:
        """Remove a settled lease."""
        self.forget(lease.token)
        if acked:
            self._done[lease.token] = None
            if len(self._done) > DONE_MAX:
                self._done.popitem(last=False)

    def forget(self, token: str) -> bool:
        """Remove a lease. Returns whether it existed."""
        return self._held.pop(token, None) is not None

    def due(self, now_ms: int) -> list[Lease[Record]]:
        """Remove and return the leases that have ended."""
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
