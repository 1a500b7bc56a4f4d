"""Producers that a shard remembers, so that a repeated batch is answered instead of stored
twice.

Sequences are checked when an entry is applied, not when a request arrives. So every copy gives the
same answer, also after a restart. A full shard still takes repeats of stored batches, because they
add nothing.
"""

from array import array
from collections.abc import Iterable

import msgspec

from gossipq import limits
from gossipq.core.ledger import records
from gossipq.core.ledger.records import ProducerState
from gossipq.core.storage import Table
from gossipq.types import PartitionKey

ProducerName = tuple[PartitionKey, bytes]
OPENED_MAX = 4 * limits.TURN_MESSAGES_MAX

decode_producer = msgspec.msgpack.Decoder(ProducerState).decode


class Producer:
    """A decoded ProducerState. `recent` has the places of the last sequences, newest last."""

    __slots__ = ("last", "recent", "time_ms")

    def __init__(self, state: ProducerState | None) -> None:
        self.last = state.last if state else 0
        self.time_ms = state.time_ms if state else 0
        self.recent = state.places() if state else array("q")


class Producers:
    """Producers, decoded at their first batch and written once a turn."""

    def __init__(self, state: Table) -> None:
        self._state = state
        self._opened: dict[ProducerName, Producer] = {}
        self._dirty: set[ProducerName] = set()

    def get(self, partition: PartitionKey, producer: bytes) -> Producer:
        name = partition, producer
        found = self._opened.get(name)
        if found is None:
            self._close_some()
            row = self._state.get(records.key(b"S", partition) + producer)
            found = self._opened[name] = Producer(decode_producer(row) if row else None)
        return found

    def spoke(
        self, partition: PartitionKey, producer: bytes, sequence: int, place: int, time_ms: int
    ) -> None:
        """Note that `sequence` is stored at `place`, which is the answer to a repeat of it."""
        name = partition, producer
        found = self._opened.get(name) or self.get(partition, producer)
        found.last, found.time_ms = sequence, time_ms
        # `recent` has the last sequences without gaps, so a place is found by counting back from `last`
        found.recent.append(place)
        if len(found.recent) > limits.PRODUCER_REPEATS:
            del found.recent[0]
        self._dirty.add(name)

    def take_rows(self) -> list[tuple[bytes, bytes]]:
        """Return the rows that changed since the last call, to be written now."""
        rows = []
        for name in self._dirty:
            producer = self._opened[name]
            row = ProducerState(producer.last, producer.time_ms, producer.recent.tobytes())
            rows.append((b"S" + records.U64.pack(name[0]) + name[1], records.encode(row)))
        self._dirty.clear()
        return rows

    def _close_some(self) -> None:
        """Drop the decoded producers if all are written. They are read again when needed."""
        # a producer that was not written would be read again as it was before
        if len(self._opened) > OPENED_MAX and not self._dirty:
            self._opened.clear()

    def drop(self, partition: PartitionKey) -> None:
        """Forget a removed partition. Its rows are swept later."""
        for name in [name for name in self._opened if name[0] == partition]:
            del self._opened[name]
            self._dirty.discard(name)

    def forget(self, names: Iterable[ProducerName], before_ms: int) -> int:
        """Forget producers that were silent since `before_ms`, leader time. Returns how many."""
        count = 0
        for name in names:
            if self.get(*name).time_ms >= before_ms:
                continue
            count += 1
            self._opened.pop(name, None)
            self._dirty.discard(name)
            self._state.delete(records.key(b"S", name[0]) + name[1])
        return count
