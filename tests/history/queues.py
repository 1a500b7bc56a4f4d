"""Queue: every record that was confirmed comes out, and nothing else does.

`account` follows `total-queue` of jepsen.checker (jepsen-io/jepsen, jepsen/src/jepsen/checker.clj): multisets
of the records that were attempted, confirmed and dequeued. A history must drain the queue in its end.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from history.record import Operation, pairs

Record = tuple[int, str]  #: (partition, name)


class Account(NamedTuple):
    attempted: int
    confirmed: int
    dequeued: int  #: of those that were attempted, each counted as often as it was attempted
    lost: list[Record]  #: confirmed, and not dequeued
    unexpected: list[Record]  #: dequeued, and never attempted
    duplicated: list[Record]  #: dequeued more often than attempted: allowed, since delivery is at least once
    recovered: list[Record]  #: dequeued, and their confirm is unknown
    revived: list[Record]  #: dequeued, although their publish certainly failed


def account(history: list[Operation]) -> Account:
    attempts, enqueues, dequeues = Counter[Record](), Counter[Record](), Counter[Record]()
    failed = Counter[Record]()
    for pair in pairs(history, "send", "fetch"):
        if pair.invoked.f == "send":
            names = [(partition, name) for _, partition, name in pair.invoked.value]
            attempts.update(names)
            if pair.is_ok:
                enqueues.update(names)
            if pair.has_failed:
                failed.update(names)
        elif pair.is_ok and pair.completed is not None:
            dequeues.update((partition, name) for partition, _, name, _ in pair.completed.value)
    ok = dequeues & attempts
    unexpected = Counter({record: count for record, count in dequeues.items() if record not in attempts})
    return Account(
        attempted=attempts.total(),
        confirmed=enqueues.total(),
        dequeued=ok.total(),
        lost=sorted((enqueues - dequeues).elements()),
        unexpected=sorted(unexpected.elements()),
        duplicated=sorted((dequeues - attempts - unexpected).elements()),
        recovered=sorted((ok - enqueues - failed).elements()),
        revived=sorted((ok & failed).elements()),
    )


def queue_failures(history: list[Operation]) -> Iterator[str]:
    found = account(history)
    for record in found.lost:
        yield f"queue: lost {record}: confirmed, and no consumer got it"
    for record in found.unexpected:
        yield f"queue: unexpected {record}: a consumer got it, and it was never published"
    for record in found.revived:
        yield f"queue: revived {record}: a consumer got it, and its publish was refused"


def acked_failures(history: list[Operation]) -> Iterator[str]:
    """At least once delivery ends with the ack: a record whose ack was confirmed is not delivered again.

    A leader that was deposed may deliver for another moment, since it does not know the acks of the next
    term. So a delivery counts only if its term is not below the term that confirmed the ack.
    """
    acked: dict[tuple[int, int], int] = {}  # (partition, offset) -> term, as known when an operation begins
    invoked: dict[int | str, int] = {}  # process -> index of its open fetch
    known: dict[tuple[int, int], int] = {}  # (partition, offset) -> index of the confirm
    for operation in history:
        if operation.f == "acked" and operation.type == "ok":
            for partition, first, end, term in operation.value:
                for offset in range(first, end):
                    acked.setdefault((partition, offset), term)
                    known.setdefault((partition, offset), operation.index)
        elif operation.f == "fetch" and operation.type == "invoke":
            invoked[operation.process] = operation.index
        elif operation.f == "fetch" and operation.type == "ok":
            began = invoked.pop(operation.process)
            for partition, offset, name, term in operation.value:
                place = partition, offset
                if known.get(place, began) < began and term >= acked[place]:
                    yield (
                        f"queue: acked {name} at {place} was delivered in term {term}, after its ack was "
                        f"confirmed in term {acked[place]}"
                    )
