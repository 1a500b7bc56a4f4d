"""What a publish returns: where the record is, once that is certain."""

from dataclasses import dataclass
from typing import Protocol

from gossipq_client.packer import Flight


@dataclass(frozen=True, slots=True)
class Receipt:
    """A record that is kept on `copies` disks. With level "none" nothing was promised: offset -1, copies 0.

    For a list it is that of the first record, `count` says how many the receipt covers, and `receipts` has one for each
    partition and batch they went to. `ref` names the record for as long as it exists: producer, sequence, index in its batch.
    """

    topic: str
    partition: int
    offset: int
    ref: str
    copies: int
    duplicate: bool
    count: int = 1
    receipts: tuple["Receipt", ...] = ()


def receipt_of(flight: Flight, index: int, count: int = 1) -> Receipt:
    """Raises the error the batch ended with. The flight is done."""
    if flight.error is not None:
        flight.told = True
        raise flight.error
    promised = flight.level != "none"
    return Receipt(
        flight.writer.topic.name,
        flight.writer.number,
        flight.offset + index if promised else flight.offset,
        f"{flight.producer.hex()}-{flight.sequence}-{index}" if promised else "",
        flight.copies,
        flight.duplicate,
        count,
    )


def receipt_of_many(flights: list[Flight]) -> Receipt:
    """One receipt over several whole batches; an empty list gives an empty receipt. Raises the first error."""
    if len(flights) == 1:
        return receipt_of(flights[0], 0, flights[0].count)
    receipts = tuple(receipt_of(flight, 0, flight.count) for flight in flights)
    if not receipts:
        return Receipt("", 0, -1, "", 0, False, 0)
    first = receipts[0]
    count = sum(receipt.count for receipt in receipts)
    duplicate = all(receipt.duplicate for receipt in receipts)
    return Receipt(
        first.topic, first.partition, first.offset, first.ref, min(r.copies for r in receipts), duplicate, count, receipts
    )


class Waiter(Protocol):
    def await_flights(self, flights: list[Flight], timeout: float | None) -> None:
        """Returns when all are done. Raises NotConfirmed when the time is over."""

    def progress(self) -> None:
        """Takes what has arrived, without waiting."""


class PendingReceipt:
    """The receipt of one record, before and after it is certain."""

    __slots__ = ("_client", "_flight", "_index")

    def __init__(self, client: Waiter, flight: Flight, index: int) -> None:
        self._client, self._flight, self._index = client, flight, index

    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        if not self._flight.done:
            self._client.progress()
        return self._flight.done

    def result(self, timeout: float | None = None) -> Receipt:
        """Waits `timeout` seconds. Raises NotConfirmed (may be stored) or Refused (certainly not stored)."""
        if not self._flight.done:
            self._client.await_flights([self._flight], timeout)
        return receipt_of(self._flight, self._index)


class PendingReceipts:
    """The one receipt of a list."""

    __slots__ = ("_client", "_flights")

    def __init__(self, client: Waiter, flights: list[Flight]) -> None:
        self._client, self._flights = client, flights

    def done(self) -> bool:
        if not all(flight.done for flight in self._flights):
            self._client.progress()
        return all(flight.done for flight in self._flights)

    def result(self, timeout: float | None = None) -> Receipt:
        """Waits `timeout` seconds for all. Raises the first error; records of other batches may be stored then."""
        self._client.await_flights(self._flights, timeout)
        return receipt_of_many(self._flights)
