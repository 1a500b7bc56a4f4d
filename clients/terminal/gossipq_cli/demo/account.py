"""What was published against what arrived: by count and by checksum, record by record. Pure."""

from array import array
from collections.abc import Iterable, Sequence
from struct import Struct
from zlib import crc32

HEAD = Struct("<iqI")  #: partition, first offset, number of checksums that follow


def checksums(values: Iterable[bytes]) -> "array[int]":
    return array("I", map(crc32, values))


def pack_run(partition: int, first: int, sums: "array[int]") -> bytes:
    """What a consumer reports before it acks: records first .. first + len(sums) - 1 of one partition."""
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
    """Two books over (partition, offset): one by the producer's receipts, one by the consumers' reports."""

    def __init__(self) -> None:
        self.expected: dict[int, dict[int, int]] = {}
        self.arrived: dict[int, dict[int, int]] = {}
        self.published = self.confirmed = self.delivered = self.distinct = self.damaged = 0

    def confirm(self, partition: int, first: int, sums: Sequence[int]) -> None:
        """A receipt: these checksums lie at `first` and after. An offset given out twice counts as damage."""
        book = self.expected.setdefault(partition, {})
        before = len(book)
        book.update(zip(range(first, first + len(sums)), sums, strict=True))
        self.damaged += before + len(sums) - len(book)
        self.confirmed += len(sums)

    def deliver(self, partition: int, first: int, sums: Sequence[int]) -> None:
        """A consumer's report. The same record with another checksum counts as damage."""
        book = self.arrived.setdefault(partition, {})
        before = len(book)
        for offset, found in enumerate(sums, first):
            if book.setdefault(offset, found) != found:
                self.damaged += 1
        self.distinct += len(book) - before
        self.delivered += len(sums)

    @property
    def duplicated(self) -> int:
        """Deliveries of a record that had been delivered before."""
        return self.delivered - self.distinct

    @property
    def lost(self) -> int:
        """Confirmed records that did not arrive, or not as they were sent."""
        return sum(
            1
            for partition, book in self.expected.items()
            for offset, sent in book.items()
            if self.arrived.get(partition, {}).get(offset) != sent
        )

    @property
    def strangers(self) -> int:
        """Records that arrived and were never confirmed to the producer."""
        return sum(
            len(book.keys() - self.expected.get(partition, {}).keys())
            for partition, book in self.arrived.items()
        )

    @property
    def complete(self) -> bool:
        return self.published == self.confirmed == self.distinct and not (
            self.lost or self.strangers or self.damaged
        )
