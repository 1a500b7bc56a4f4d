"""Ids that are remembered: for a time and a count, per partition. New ones evict old ones, so time costs
nothing."""

from array import array

import msgspec

from gossipq.core.ledger import records
from gossipq.core.ledger.records import ID, U64
from gossipq.core.storage import Table
from gossipq.types import Index, PartitionKey
from gossipq.values import Run

EVICT_ENTRIES_MAX = (
    8  #: forgotten by one entry; more than one brings, so the window never grows past its bound
)


class FirstStored(msgspec.Struct, frozen=True):
    """Where a record with this id was stored first."""

    index: Index
    record: int


class Dedup:
    def __init__(self, state: Table) -> None:
        self._state = state

    def find(self, partition: PartitionKey, id_hash: int, since_ms: int = -1) -> FirstStored | None:
        """The record of an id, if it was published after `since_ms`, leader time."""
        row = self._state.get(records.key(b"I", partition, id_hash))
        if row is None:
            return None
        time_ms, index, record = ID.unpack(row)
        return FirstStored(index, record) if time_ms > since_ms else None

    def sort_out(
        self, partition: PartitionKey, index: Index, hashes: "array[int]", time_ms: int, window_ms: int
    ) -> list[Run]:
        """Runs over the records of a batch: fresh ones, remembered now, and duplicates. Id 0 is none and
        always fresh."""
        runs: list[Run] = []
        get, put, taken = self._state.get, self._state.put, array("Q")
        prefix, since_ms, fresh = records.key(b"I", partition), time_ms - window_ms, -1
        for record, id_hash in enumerate(hashes):
            if id_hash:
                row_key = prefix + U64.pack(id_hash)
                row = get(row_key)
                if row is not None and (known := ID.unpack(row))[0] > since_ms:
                    if fresh >= 0:
                        runs.append(Run(record - fresh, -1, index, fresh))
                        fresh = -1
                    runs.append(Run(1, -1, known[1], known[2], True))
                    continue
                taken.append(id_hash)
                put(row_key, ID.pack(time_ms, index, record))
            if fresh < 0:
                fresh = record
        if fresh >= 0:
            runs.append(Run(len(hashes) - fresh, -1, index, fresh))
        if taken:
            put(records.key(b"J", partition, index), U64.pack(time_ms) + taken.tobytes())
        return runs

    def again(self, partition: PartitionKey, index: Index, hashes: "array[int]") -> list[Run]:
        """The answer to a repeat of the batch that entry `index` stored."""
        runs = []
        for record, id_hash in enumerate(hashes):
            known = self.find(partition, id_hash) if id_hash else FirstStored(index, record)
            if known is None:
                runs.append(Run(1, -1, 0, 0, True))
            else:
                runs.append(Run(1, -1, known.index, known.record, known != FirstStored(index, record)))
        return runs

    def evict(self, partition: PartitionKey, ids: int, count_max: int, before_ms: int) -> int:
        """Forgets the oldest entries beyond the window; `ids` are remembered now. Returns how many went."""
        gone = 0
        low = records.key(b"J", partition)
        for _ in range(EVICT_ENTRIES_MAX):
            found = next(iter(self._state.scan(low, records.after(low))), None)
            if found is None:
                break
            row_key, row = found
            if ids - gone <= count_max and U64.unpack_from(row)[0] > before_ms:
                break
            (index,) = U64.unpack_from(row_key, 9)
            hashes = array("Q")
            hashes.frombytes(row[8:])
            for id_hash in hashes:
                known = self.find(partition, id_hash)
                if known is not None and known.index == index:
                    self._state.delete(records.key(b"I", partition, id_hash))
            self._state.delete(row_key)
            gone += len(hashes)
        return gone
