"""Leases: no record is at two consumers at once.

A lease is a lock with a time limit (Gray and Cheriton, "Leases: an efficient fault-tolerant mechanism for
distributed file cache consistency", SOSP 1989). A consumer holds a record from the moment when its program
got it until it settles the record, closes, or its lease ends. One leader must not give the record to another
consumer in between. The next leader may not know a lease, so both deliveries must be of one term.
"""

from collections.abc import Iterator
from typing import NamedTuple

from history.record import Operation

#: a lease never ends sooner, even if the connection of its consumer breaks (guarantees.md, Limits)
LEASE_MIN_NS = 1_000_000_000


class Hold(NamedTuple):
    client: str
    since_ns: int
    term: int


def lease_failures(history: list[Operation]) -> Iterator[str]:
    holds: dict[tuple[int, int], Hold] = {}
    for operation in history:
        if operation.f == "fetch" and operation.type == "ok":
            for partition, offset, name, term in operation.value:
                place = partition, offset
                hold = holds.get(place)
                if (
                    hold is not None
                    and hold.client != operation.client
                    and hold.term == term
                    and operation.time - hold.since_ns < LEASE_MIN_NS
                ):
                    yield (
                        f"lease: {name} at {place} was given to {operation.client} while {hold.client} held "
                        f"it for {(operation.time - hold.since_ns) // 1_000_000} ms, in term {term}"
                    )
                holds[place] = Hold(operation.client, operation.time, term)
        elif operation.f == "settle" and operation.type == "invoke":
            for partition, offset in operation.value:
                hold = holds.get((partition, offset))
                if hold is not None and hold.client == operation.client:
                    del holds[partition, offset]
        elif operation.f == "close" and operation.type == "invoke":
            for place in [place for place, hold in holds.items() if hold.client == operation.client]:
                del holds[place]
