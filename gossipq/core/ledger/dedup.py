"""Ids that are remembered: for a time and a count, per partition. New ones evict old ones, so time costs
nothing."""

from array import array
from itertools import repeat
from struct import Struct

import msgspec

from gossipq.core.ledger import records
from gossipq.core.ledger.records import ID, ID_ENTRY, U64, U64X2
from gossipq.core.storage import Table
from gossipq.types import Index, PartitionKey
from gossipq.values import Run

EVICT_ENTRIES_MAX = (
    8  #: forgotten by one entry; more than one brings, so the window never grows past its bound
)
FEW = 16  #: ids whose rows are made one by one, since that is faster then
HASH_AT, RECORD_AT = 1 + U64.size, 1 + U64X2.size + ID_ENTRY.size  #: in the row of an id, its key first
ID_ROW = Struct(f"{1 + U64X2.size}s{ID.size}s")


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
        # a batch mostly repeats another one as a whole, or has new ids alone: one search for each id
        one = next(filter(None, hashes), 0)
        repeats = self.find(partition, one) is not None
        there: dict[bytes, bytes] | None = None
        differ = 0 not in hashes and len(set(hashes)) == len(hashes)
        if differ and not repeats:
            there = self._state.add_many(self._rows(partition, index, hashes, time_ms))
            if not there:  # as in most batches
                self._remember(partition, index, hashes, time_ms)
                return [Run(len(hashes), -1, index, 0)]
        keys, since_ms = self._keys(partition, hashes), time_ms - window_ms
        first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))  # record of each id
        first.pop(b"", None)

        def rows(keys: list[bytes]) -> list[tuple[bytes, bytes]]:
            packed = map(ID.pack, repeat(time_ms), repeat(index), map(first.__getitem__, keys))
            return list(zip(keys, packed, strict=True))

        order = sorted(first)
        if there is None:
            there = self._state.get_many(order) if repeats else self._state.add_many(rows(order))
        known = {key: place for key, row in there.items() if (place := ID.unpack(row))[0] > since_ms}
        self._state.put_many(rows([key for key in (order if repeats else there) if key not in known]))
        fresh = {key: record for key, record in first.items() if key not in known}
        self._remember(
            partition, index, array("Q", [hashes[record] for record in sorted(fresh.values())]), time_ms
        )
        return self._runs(index, keys, known, fresh)

    def _remember(self, partition: PartitionKey, index: Index, taken: "array[int]", time_ms: int) -> None:
        """Which ids an entry brought, so that they are forgotten together."""
        if taken:
            self._state.put(records.key(b"J", partition, index), U64.pack(time_ms) + taken.tobytes())

    def _rows(
        self, partition: PartitionKey, index: Index, hashes: "array[int]", time_ms: int
    ) -> list[tuple[bytes, bytes]]:
        """Of the ids of a batch, which all differ. Those of many are made byte by byte of all of them, which
        takes a third of the time; LMDB would not take them faster if they were in order."""
        if len(hashes) <= FEW:
            keys = self._keys(partition, hashes)
            return [(key, ID.pack(time_ms, index, record)) for record, key in enumerate(keys)]
        one = records.key(b"I", partition, 0) + ID.pack(time_ms, index, 0)
        rows, raw = bytearray(one * len(hashes)), hashes.tobytes()
        numbers = array("I", range(len(hashes))).tobytes()
        for byte in range(8):
            rows[HASH_AT + 7 - byte :: len(one)] = raw[byte::8]  # big endian, as in each key
        for byte in range(4):
            rows[RECORD_AT + byte :: len(one)] = numbers[byte::4]
        return list(ID_ROW.iter_unpack(rows))

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
        """The answer to a repeat of the batch that entry `index` stored: neighbours that lie side by side are
        one run."""
        keys = self._keys(partition, hashes)
        known = {key: ID.unpack(row) for key, row in self._state.get_many(sorted(filter(None, keys))).items()}
        runs, begun, run = [], 0, (0, 0, False)
        for record, key in enumerate(keys):
            _, its_index, its_record = known.get(key, (0, 0, 0)) if key else (0, index, record)
            here = its_index, its_record, (its_index, its_record) != (index, record)
            if record and (not its_index or here != (run[0], run[1] + record - begun, run[2])):
                runs.append(Run(record - begun, -1, *run))
                begun, run = record, here
            elif not record:
                run = here
        runs.append(Run(len(keys) - begun, -1, *run))
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
            own = ID_ENTRY.pack(U64.unpack_from(row)[0], index)  # not that of an id that came again since
            self._state.delete_many(sorted(self._keys(partition, hashes)), own)
            self._state.delete(row_key)
        return gone
