"""Compares published and delivered records by count and checksum. Pure."""

from array import array
from collections.abc import Iterable, Sequence
from struct import Struct
from zlib import crc32

HEAD = Struct("<iqI")  #: partition, first offset, number of checksums that follow


def checksums(values: Iterable[bytes]) -> "array[int]":
    return array("I", map(crc32, values))


def pack_run(partition: int, first: int, sums: "array[int]") -> bytes:
    """Return a consumer's report before its ack: records first .. first + len(sums) - 1."""
    return HEAD.pack(partition, first, len(sums)) + sums.tobytes()


def unpack_runs(report: bytes) -> list[tuple[int, int, "array[int]"]]:
    runs, at = [], 0
    while at < len(report):
        partition, first, count = HEAD.unpack_from(report, at)
        end = at + HEAD.size + 4 * count
        runs.append((partition, first, array("I", report[at + HEAD.size : end])))
        at = end
    return runs


class Account:
    """Two ledgers by (partition, offset): receipts of the producer, and reports of consumers."""

    def __init__(self) -> None:
        self.expected: dict[int, dict[int, int]] = {}
        self.arrived: dict[int, dict[int, int]] = {}
        self.published = self.confirmed = self.delivered = self.distinct = self.damaged = 0

    def confirm(self, partition: int, first: int, sums: Sequence[int]) -> None:
        """Note a receipt: checksums from offset `first` on. An offset assigned twice is damage."""
        book = self.expected.setdefault(partition, {})
        before = len(book)
        book.update(zip(range(first, first + len(sums)), sums, strict=True))
        self.damaged += before + len(sums) - len(book)
        self.confirmed += len(sums)

    def deliver(self, partition: int, first: int, sums: Sequence[int]) -> None:
        """Note a consumer's report. A record with another checksum is damage."""
        book = self.arrived.setdefault(partition, {})
        before = len(book)
        for offset, found in enumerate(sums, first):
            if book.setdefault(offset, found) != found:
                self.damaged += 1
        self.distinct += len(book) - before
        self.delivered += len(sums)

    @property
    def duplicated(self) -> int:
        """Number of repeated deliveries."""
        return self.delivered - self.distinct

    @property
    def lost(self) -> int:
        """Number of confirmed records that did not arrive, or arrived damaged."""
        return sum(
            1
            for partition, book in self.expected.items()
            for offset, sent in book.items()
            if self.arrived.get(partition, {}).get(offset) != sent
        )

    @property
    def strangers(self) -> int:
        """Number of delivered records that were never confirmed."""
        return sum(
            len(book.keys() - self.expected.get(partition, {}).keys())
            for partition, book in self.arrived.items()
        )

    @property
    def complete(self) -> bool:
        return self.published == self.confirmed == self.distinct and not (
            self.lost or self.strangers or self.damaged
        )
