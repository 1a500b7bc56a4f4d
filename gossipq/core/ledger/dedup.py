"""Ids of records, remembered per partition for a time and a count. New ids evict old ones.

The ids of one entry are one row and are found through an index in memory. If that index is full,
each id gets a row of its own at a random place of the table, which costs several times as much.

The id of a delayed record is *held*: it is remembered until the record is due, and then for the
usual time. Held ids have rows of their own, because they are forgotten in the order of due times.
"""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice, repeat
from struct import Struct

import msgspec

from gossipq.core.ledger import records
from gossipq.core.ledger.id_index import NAME, NO_NAME, Brought, IdIndex, names_of
from gossipq.core.ledger.records import ID, ID_BATCH, ID_ENTRY, U64
from gossipq.core.storage import Table
from gossipq.types import Index, PartitionKey, StoredAt
from gossipq.values import Run

#: entries forgotten by one entry: more than one entry adds, so the window stays bounded
EVICT_ENTRIES_MAX = 8
FEW = 16  #: up to this many ids are searched in a row; for more, the row is decoded
HASH = Struct("<Q")
EVER = -1  #: before all leader times


class FirstStored(msgspec.Struct, frozen=True):
    """The place at which the record with an id was stored first."""

    index: Index
    record: int


class Dedup:
    def __init__(
        self,
        state: Table,
        exists: Callable[[PartitionKey], bool],
        scheduled: Callable[[PartitionKey, Index], bool],
    ) -> None:
        """`exists` tells whether a partition exists; rows of removed ones wait to be swept.
        `scheduled` tells whether a record of an entry is scheduled.
        """
        self._state = state
        self._exists = exists
        self._scheduled = scheduled
        self._loaded: IdIndex | None = None
        # partitions with held ids; None: not read yet
        self._holding: set[PartitionKey] | None = None

    @property
    def _index(self) -> IdIndex:
        """The index, read from its rows at the first use: 0.3 us an id."""
        if self._loaded is None:
            loaded = IdIndex()
            for row_key, row in self._state.scan(b"j", b"k"):
                partition, index = records.U64X2.unpack_from(row_key, 1)
                if self._exists(partition):
                    time_ms, names, _ = _parts(row)
                    loaded.add(partition, index, time_ms, names_of(names))
            # only complete: with missing ids, their records would be stored twice
            self._loaded = loaded
        return self._loaded

    def find(self, partition: PartitionKey, id_hash: int, since_ms: int = EVER) -> FirstStored | None:
        """Return the record of an id if it was published after `since_ms`, leader time."""
        for place in self._known(partition, [HASH.pack(id_hash)], since_ms).values():
            return FirstStored(*place)
        return None

    def sort_out(
        self,
        partition: PartitionKey,
        index: Index,
        hashes: "array[int]",
        time_ms: int,
        window_ms: int,
        due_ms: int = 0,
    ) -> tuple[list[Run], int]:
        """Sort the records of a batch into fresh ones and duplicates.

        Returns runs of records, and how many ids were added to the window. Id 0 means no id: always
        fresh. If `due_ms` is later than `time_ms`, the ids are held until then.
        """
        since_ms = time_ms - window_ms
        same = self._index.newest(partition, hashes[:1].tobytes())
        if same is not None and self._is_repeated(partition, same, hashes, since_ms):
            # most repeats repeat a whole batch
            return [Run(len(hashes), -1, same, 0, True)], 0
        names = names_of(hashes)
        different = set(names)
        if (
            len(different) == len(names)
            and NO_NAME not in different
            and due_ms <= time_ms
            and partition not in self._held_in
            and self._index.has_room(len(names))
            and self._oldest_row(partition) is None
            and self._index.add_unless_known(partition, index, time_ms, names)
        ):
            self._state.put(records.key(b"j", partition, index), _row(time_ms, names))
            return [Run(len(names), -1, index, 0)], len(names)  # the common case
        first = dict[bytes, int]()  # first record of each id
        for record, name in enumerate(names):
            first.setdefault(name, record)
        first.pop(NO_NAME, None)
        known = self._known(partition, first, since_ms)
        fresh = {name: record for name, record in first.items() if name not in known}
        runs = self._runs(index, names, known, fresh)
        if due_ms > time_ms:
            self._hold(partition, index, due_ms, list(fresh), list(fresh.values()))
            return runs, 0
        self._remember(partition, index, time_ms, list(fresh), list(fresh.values()))
        return runs, len(fresh)

    # --- lookup ---------------------------------------------------------------------------------

    def _known(
        self, partition: PartitionKey, names: Collection[bytes], since_ms: int
    ) -> dict[bytes, StoredAt]:
        """Return the place of each of these ids that was stored last after `since_ms`, leader
        time, or whose records are scheduled.
        """
        known = dict[bytes, StoredAt]()
        entries, brought = self._index.entries(partition), dict[Index, list[bytes]]()
        for name in names:
            index = self._index.newest(partition, name)
            if index is not None and entries[index].time_ms > since_ms:
                brought.setdefault(index, []).append(name)
        for index, its in brought.items():
            known |= {name: (index, record) for name, record in self._records(partition, index, its)}
        if partition in self._held_in or self._oldest_row(partition) is not None:
            rows = self._state.get_many(self._keys(partition, names))
            for key, row in rows.items():
                time_ms, index, record = ID.unpack(row)
                name = key[: -NAME.size - 1 : -1]
                if (index, record) <= known.get(name, (0, 0)):
                    continue
                if time_ms > since_ms or self._scheduled(partition, index):
                    known[name] = index, record
        return known

    def known(self, partition: PartitionKey, names: set[bytes], since_ms: int) -> set[bytes]:
        """Return those ids, as bytes, whose records are remembered. NO_NAME is never among them."""
        return set(self._known(partition, names - {NO_NAME}, since_ms))

    def _is_repeated(
        self, partition: PartitionKey, index: Index, hashes: "array[int]", since_ms: int = EVER
    ) -> bool:
        """True if that entry came after `since_ms` and has exactly these ids, in order."""
        row = self._state.get(records.key(b"j", partition, index))
        if row is None:
            return False
        its_ms, count = ID_BATCH.unpack_from(row)
        return its_ms > since_ms and count == len(hashes) and row[ID_BATCH.size :] == hashes.tobytes()

    def _records(
        self, partition: PartitionKey, index: Index, wanted: list[bytes]
    ) -> Iterator[tuple[bytes, int]]:
        """Yield some ids of an entry, with the record of each."""
        row = self._state.get(records.key(b"j", partition, index))
        assert row is not None, "what is in memory has a row"
        _, names, numbers = _parts(row)
        if len(wanted) <= FEW:
            return ((name, numbers[_place(names, name)]) for name in wanted)
        places = dict(zip(names_of(names), numbers, strict=True))
        return ((name, places[name]) for name in wanted)

    @staticmethod
    def _keys(partition: PartitionKey, names: Iterable[bytes]) -> list[bytes]:
        """Keys of the rows of ids, sorted. Numbers in keys are big endian."""
        prefix = records.key(b"I", partition)
        return sorted([prefix + name[::-1] for name in names])

    @staticmethod
    def _runs(
        index: Index, names: Sequence[bytes], known: dict[bytes, StoredAt], fresh: dict[bytes, int]
    ) -> list[Run]:
        """Runs of a batch in which ids are `known` or repeated, or records have no id."""
        runs: list[Run] = []
        first, place = 0, (0, 0, False)  # start of the run, and the place of its records
        for record, name in enumerate(names):
            if name in known:
                index_then, record_then = known[name]
                here = index_then, record_then, True
            else:
                its_record = fresh.get(name, record)
                here = index, its_record, its_record < record
            if record and here != (place[0], place[1] + record - first, place[2]):
                runs.append(_run(record - first, place))
                first, place = record, here
            elif not record:
                place = here
        runs.append(_run(len(names) - first, place))
        return runs

    def again(
        self, partition: PartitionKey, index: Index, hashes: "array[int]", stored: Callable[[int], bool]
    ) -> list[Run]:
        """Return the answer to a repeat of the batch of entry `index`.

        Neighbours that are stored side by side make one run. `stored` tells whether the batch
        itself stored a record, for ids that were forgotten.
        """
        if self._is_repeated(partition, index, hashes):
            return [Run(len(hashes), -1, index, 0)]
        names = names_of(hashes)
        known = self._known(partition, set(names) - {NO_NAME}, EVER)
        runs, begun, run = list[Run](), 0, (0, 0, False)
        for record, name in enumerate(names):
            place = None if name == NO_NAME else known.get(name)
            if place is None:
                place = (index, record) if name == NO_NAME or stored(record) else (0, 0)
            its_index, its_record = place
            here = its_index, its_record, (its_index, its_record) != (index, record)
            if record and (not its_index or here != (run[0], run[1] + record - begun, run[2])):
                runs.append(_run(record - begun, run))
                begun, run = record, here
            elif not record:
                run = here
        runs.append(_run(len(names) - begun, run))
        return runs

    # --- remembering, forgetting ----------------------------------------------------------------

    def _remember(
        self,
        partition: PartitionKey,
        index: Index,
        time_ms: int,
        names: list[bytes],
        numbers: list[int],
    ) -> None:
        """Remember the ids of an entry, with the numbers of their records in the batch."""
        if not names:
            return
        if self._index.has_room(len(names)):
            self._state.put(records.key(b"j", partition, index), _row(time_ms, names, numbers))
            self._index.add(partition, index, time_ms, names)
            return
        self._put_rows(partition, index, time_ms, names, numbers)
        self._state.put(records.key(b"J", partition, index), U64.pack(time_ms) + b"".join(names))

    def _put_rows(
        self, partition: PartitionKey, index: Index, time_ms: int, names: list[bytes], numbers: list[int]
    ) -> None:
        """Write a row for each id."""
        keys = [records.key(b"I", partition) + name[::-1] for name in names]
        packed = map(ID.pack, repeat(time_ms), repeat(index), numbers)
        self._state.put_many(sorted(zip(keys, packed, strict=True)))

    @property
    def _held_in(self) -> set[PartitionKey]:
        """Partitions with held ids."""
        if self._holding is None:
            found, low = set[PartitionKey](), b"i"
            while (row_key := next(iter(self._state.scan_keys(low, b"j")), None)) is not None:
                (partition,) = U64.unpack_from(row_key, 1)
                found.add(partition)
                low = records.after(records.key(b"i", partition))
            self._holding = found
        return self._holding

    def _hold(
        self, partition: PartitionKey, index: Index, due_ms: int, names: list[bytes], numbers: list[int]
    ) -> None:
        """Hold the ids of an entry until `due_ms`, with the numbers of their records in the
        batch.
        """
        if names:
            self._put_rows(partition, index, due_ms, names, numbers)
            row_key = records.key(b"i", partition, due_ms, index)
            self._state.put(row_key, (self._state.get(row_key) or b"") + b"".join(names))
            self._held_in.add(partition)

    def hold_until(self, partition: PartitionKey, id_hash: int, place: StoredAt, due_ms: int) -> None:
        """The delayed record at `place` got another due time: hold its id until then.

        Does nothing if another record has the id by now.
        """
        name = HASH.pack(id_hash)
        if self._known(partition, [name], EVER).get(name) == place:
            self._hold(partition, place[0], due_ms, [name], [place[1]])

    def free(self, partition: PartitionKey, id_hash: int, place: StoredAt) -> None:
        """The delayed record at `place` was cancelled: another record can use its id."""
        (row_key,) = self._keys(partition, [HASH.pack(id_hash)])
        row = self._state.get(row_key)
        if row is not None and ID.unpack(row)[1:] == place:
            self._state.delete(row_key)

    def _release(self, partition: PartitionKey, before_ms: int) -> None:
        """Forget held ids whose records were due by `before_ms`, oldest first.

        Leader time may be ahead of timer time, so a record may still be scheduled then.
        """
        low = records.key(b"i", partition)
        oldest = list(islice(self._state.scan(low, records.after(low)), EVICT_ENTRIES_MAX + 1))
        for number, (row_key, names) in enumerate(oldest):
            due_ms, index = records.U64X2.unpack_from(row_key, 1 + U64.size)
            if due_ms > before_ms or number == EVICT_ENTRIES_MAX or self._scheduled(partition, index):
                return
            self._state.delete_many(self._keys(partition, names_of(names)), ID_ENTRY.pack(due_ms, index))
            self._state.delete(row_key)
        self._held_in.discard(partition)

    def evict(self, partition: PartitionKey, ids: int, count_max: int, before_ms: int) -> int:
        """Forget the oldest entries beyond the window; `ids` ids are in it now.

        Returns how many of these ids were forgotten. Held ids do not count; those beyond the window
        are forgotten too.
        """
        if partition in self._held_in:
            self._release(partition, before_ms)
        gone = 0
        for _ in range(EVICT_ENTRIES_MAX):
            oldest = min(self._oldest(partition), default=None)
            if oldest is None or (ids - gone <= count_max and oldest[1].time_ms > before_ms):
                break
            index, brought, prefix = oldest
            gone += brought.ids
            if prefix == b"J":
                self._drop_rows(partition, index)
            else:
                self._index.forget(partition, index)
            self._state.delete(records.key(prefix, partition, index))
        return gone

    def drop(self, partition: PartitionKey) -> None:
        """Forget a removed partition. Its rows are swept later."""
        if self._loaded is not None:
            self._loaded.drop(partition)
        self._held_in.discard(partition)

    def _oldest(self, partition: PartitionKey) -> Iterator[tuple[Index, Brought, bytes]]:
        """Yield the oldest entries with ids, with the prefix of the row that stores them."""
        for index, brought in self._index.entries(partition).items():
            yield index, brought, b"j"
            break
        row = self._oldest_row(partition)
        if row is not None:
            yield *row, b"J"

    def _oldest_row(self, partition: PartitionKey) -> tuple[Index, Brought] | None:
        """Return the oldest entry whose ids have rows of their own."""
        low = records.key(b"J", partition)
        for row_key, row in self._state.scan(low, records.after(low)):
            (index,), (time_ms,) = U64.unpack_from(row_key, 1 + U64.size), U64.unpack_from(row)
            return index, Brought(time_ms, len(row) // NAME.size - 1)
        return None

    def _drop_rows(self, partition: PartitionKey, index: Index) -> None:
        """Delete the rows of an entry's ids, except ids that a later entry stored again."""
        row = self._state.get(records.key(b"J", partition, index))
        assert row is not None, "it was just read"
        own = ID_ENTRY.pack(U64.unpack_from(row)[0], index)
        self._state.delete_many(self._keys(partition, names_of(row[U64.size :])), own)


def _run(count: int, at: tuple[Index, int, bool]) -> Run:
    """Return a run of records that are stored `at` an entry and its record, or repeat that one."""
    index, record, duplicate = at
    return Run(count, -1, index, record, duplicate)


def _row(time_ms: int, names: Sequence[bytes], numbers: Sequence[int] = ()) -> bytes:
    """Row of an entry's ids. Without `numbers`, record i has id i."""
    row = ID_BATCH.pack(time_ms, len(names)) + b"".join(names)
    return row + array("I", numbers).tobytes() if numbers and numbers[-1] >= len(names) else row


def _parts(row: bytes) -> tuple[int, bytes, Sequence[int]]:
    """Return leader time, ids, and their records, from the row of an entry."""
    time_ms, count = ID_BATCH.unpack_from(row)
    end = ID_BATCH.size + count * NAME.size
    numbers = array("I", row[end:]) if end < len(row) else range(count)
    return time_ms, row[ID_BATCH.size : end], numbers


def _place(names: bytes, name: bytes) -> int:
    """Return the position of an id among these. It must be one of them."""
    at = names.index(name)
    while at % NAME.size:  # a match across two ids
        at = names.index(name, at + 1)
    return at // NAME.size
