"""Ids that are remembered: for a time and a count, per partition. New ones evict old ones, so time costs
nothing."""

from array import array
from itertools import repeat

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
        keys, since_ms = self._keys(partition, hashes), time_ms - window_ms
        first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))  # record of each id
        first.pop(b"", None)
        order = sorted(first)
        packed = map(ID.pack, repeat(time_ms), repeat(index), map(first.__getitem__, order))
        there = self._remember(list(zip(order, packed, strict=True)))
        if not there and len(first) == len(keys):  # as in most batches
            taken, runs = hashes, [Run(len(keys), -1, index, 0)]
        else:
            known = {key: place for key, row in there.items() if (place := ID.unpack(row))[0] > since_ms}
            late = [(key, ID.pack(time_ms, index, first[key])) for key in there if key not in known]
            self._state.put_many(late)
            fresh = {key: first[key] for key in first if key not in known}
            taken = array("Q", [hashes[record] for record in sorted(fresh.values())])
            runs = self._runs(index, keys, known, fresh)
        if taken:
            self._state.put(records.key(b"J", partition, index), U64.pack(time_ms) + taken.tobytes())
        return runs

    def _remember(self, rows: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
        """Puts rows of ids, in order, that are not there yet; returns those that are. One search of the table
        for each: who repeats a batch mostly repeats its first id, who does not has none of them there."""
        if not rows or self._state.get(rows[0][0]) is None:
            return self._state.add_many(rows)
        there = self._state.get_many([key for key, _ in rows])
        self._state.put_many([row for row in rows if row[0] not in there])
        return there

    @staticmethod
    def _runs(
        index: Index, keys: list[bytes], known: dict[bytes, tuple[int, Index, int]], fresh: dict[bytes, int]
    ) -> list[Run]:
        """Of a batch with ids that were `known`, that come twice in it, or with records without one (b"")."""
        runs: list[Run] = []
        first, place = 0, (0, 0, False)  # where the run begins, and where what is in it lies
        for record, key in enumerate(keys):
            if key in known:
                _, its_index, its_record = known[key]
                here = its_index, its_record, True
            else:
                its_record = fresh.get(key, record)
                here = index, its_record, its_record < record
            if record and here != (place[0], place[1] + record - first, place[2]):
                runs.append(Run(record - first, -1, *place))
                first, place = record, here
            elif not record:
                place = here
        runs.append(Run(len(keys) - first, -1, *place))
        return runs

    @staticmethod
    def _keys(partition: PartitionKey, hashes: "array[int]") -> list[bytes]:
        """Of the rows of ids; b"" for none."""
        prefix, pack = records.key(b"I", partition), U64.pack
        return [prefix + pack(each) if each else b"" for each in hashes]

    def again(self, partition: PartitionKey, index: Index, hashes: "array[int]") -> list[Run]:
        """The answer to a repeat of the batch that entry `index` stored."""
        keys = self._keys(partition, hashes)
        known = {key: ID.unpack(row) for key, row in self._state.get_many(sorted(filter(None, keys))).items()}
        runs = []
        for record, key in enumerate(keys):
            _, its_index, its_record = known.get(key, (0, 0, 0)) if key else (0, index, record)
            duplicate = (its_index, its_record) != (index, record)
            runs.append(Run(1, -1, its_index, its_record, duplicate))
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
            gone += (len(row) - U64.size) // U64.size
            hashes = array("Q")
            hashes.frombytes(row[U64.size :])
            for key, row in self._state.get_many(sorted(self._keys(partition, hashes))).items():
                if ID.unpack(row)[1] == index:
                    self._state.delete(key)
            self._state.delete(row_key)
        return gone
