"""Ids that are remembered: for a time and a count, per partition. New ones evict old ones, so time costs
nothing.

The ids that an entry brought are one row, and are found in memory. Beyond what a shard may have there, each
gets a row of its own, at a random place of the table, which costs several times as much.

The id of a delayed record is *held*: it is remembered until the record is due, and then for the time of the
window. Held ids have rows of their own, since they leave in the order in which their records are due.
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
from gossipq.types import Index, PartitionKey
from gossipq.values import Run

#: forgotten by one entry; more than one brings, so the window never grows past its bound
EVICT_ENTRIES_MAX = 8
FEW = 16  #: so many ids of an entry are looked for in its row; for more it pays to take that apart
HASH = Struct("<Q")
EVER = -1  #: before all leader times
Place = tuple[Index, int]  #: entry, and number of the record in its batch


class FirstStored(msgspec.Struct, frozen=True):
    """Where a record with this id was stored first."""

    index: Index
    record: int


class Dedup:
    def __init__(self, state: Table, exists: Callable[[PartitionKey], bool]) -> None:
        """`exists`: what is left of other partitions is being swept."""
        self._state, self._exists = state, exists
        self._loaded: IdIndex | None = None
        self._holding: set[PartitionKey] | None = None  # partitions with held ids; None: not known yet

    @property
    def _index(self) -> IdIndex:
        """Read from its rows when it is needed first: 0.3 us an id."""
        if self._loaded is None:
            loaded = IdIndex()
            for row_key, row in self._state.scan(b"j", b"k"):
                partition, index = records.U64X2.unpack_from(row_key, 1)
                if self._exists(partition):
                    time_ms, names, _ = _parts(row)
                    loaded.add(partition, index, time_ms, names_of(names))
            self._loaded = loaded  # all or nothing: one that lacks ids would store their records again
        return self._loaded

    def find(self, partition: PartitionKey, id_hash: int, since_ms: int = EVER) -> FirstStored | None:
        """The record of an id, if it was published after `since_ms`, leader time."""
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
        """Runs over the records of a batch, fresh ones and duplicates, and how many ids the window gets. Id 0
        is none and always fresh. `due_ms`: if it is later than `time_ms`, the ids are held until then."""
        since_ms = time_ms - window_ms
        same = self._index.newest(partition, hashes[:1].tobytes())
        if same is not None and self._is_repeated(partition, same, hashes, since_ms):
            # as a batch mostly repeats another one as a whole
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
            return [Run(len(names), -1, index, 0)], len(names)  # as most batches are
        first = dict[bytes, int]()  # record of each id
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

    # --- what is known --------------------------------------------------------------------------------------

    def _known(self, partition: PartitionKey, names: Collection[bytes], since_ms: int) -> dict[bytes, Place]:
        """Those of these ids that came after `since_ms`, leader time, and where they were stored last."""
        known = dict[bytes, Place]()
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
                if time_ms > since_ms and (index, record) > known.get(name, (0, 0)):
                    known[name] = index, record
        return known

    def _is_repeated(
        self, partition: PartitionKey, index: Index, hashes: "array[int]", since_ms: int = EVER
    ) -> bool:
        """Whether an entry that came after `since_ms` brought just these ids, one with each record."""
        row = self._state.get(records.key(b"j", partition, index))
        if row is None:
            return False
        its_ms, count = ID_BATCH.unpack_from(row)
        return its_ms > since_ms and count == len(hashes) and row[ID_BATCH.size :] == hashes.tobytes()

    def _records(
        self, partition: PartitionKey, index: Index, wanted: list[bytes]
    ) -> Iterator[tuple[bytes, int]]:
        """Some of the ids that an entry brought, and the record of each."""
        row = self._state.get(records.key(b"j", partition, index))
        assert row is not None, "what is in memory has a row"
        _, names, numbers = _parts(row)
        if len(wanted) <= FEW:
            return ((name, numbers[_place(names, name)]) for name in wanted)
        places = dict(zip(names_of(names), numbers, strict=True))
        return ((name, places[name]) for name in wanted)

    @staticmethod
    def _keys(partition: PartitionKey, names: Iterable[bytes]) -> list[bytes]:
        """Of the rows of ids, in order; their numbers are big endian there."""
        prefix = records.key(b"I", partition)
        return sorted([prefix + name[::-1] for name in names])

    @staticmethod
    def _runs(
        index: Index, names: Sequence[bytes], known: dict[bytes, Place], fresh: dict[bytes, int]
    ) -> list[Run]:
        """Of a batch with ids that were `known`, that come twice in it, or with records without one."""
        runs: list[Run] = []
        first, place = 0, (0, 0, False)  # where the run begins, and where what is in it lies
        for record, name in enumerate(names):
            if name in known:
                here = *known[name], True
            else:
                its_record = fresh.get(name, record)
                here = index, its_record, its_record < record
            if record and here != (place[0], place[1] + record - first, place[2]):
                runs.append(Run(record - first, -1, *place))
                first, place = record, here
            elif not record:
                place = here
        runs.append(Run(len(names) - first, -1, *place))
        return runs

    def again(
        self, partition: PartitionKey, index: Index, hashes: "array[int]", stored: Callable[[int], bool]
    ) -> list[Run]:
        """The answer to a repeat of the batch that entry `index` stored: neighbours that lie side by side are
        one run. `stored`: whether the batch brought this record itself, for ids that are forgotten."""
        if self._is_repeated(partition, index, hashes):
            return [Run(len(hashes), -1, index, 0)]
        names = names_of(hashes)
        known = self._known(partition, set(names) - {NO_NAME}, EVER)
        runs, begun, run = [], 0, (0, 0, False)
        for record, name in enumerate(names):
            place = None if name == NO_NAME else known.get(name)
            if place is None:
                place = (index, record) if name == NO_NAME or stored(record) else (0, 0)
            its_index, its_record = place
            here = its_index, its_record, (its_index, its_record) != (index, record)
            if record and (not its_index or here != (run[0], run[1] + record - begun, run[2])):
                runs.append(Run(record - begun, -1, *run))
                begun, run = record, here
            elif not record:
                run = here
        runs.append(Run(len(names) - begun, -1, *run))
        return runs

    # --- remembering, forgetting ----------------------------------------------------------------------------

    def _remember(
        self,
        partition: PartitionKey,
        index: Index,
        time_ms: int,
        names: list[bytes],
        numbers: list[int],
    ) -> None:
        """The ids that an entry brought, and the numbers of their records in its batch."""
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
        """A row of its own for each id."""
        keys = [records.key(b"I", partition) + name[::-1] for name in names]
        packed = map(ID.pack, repeat(time_ms), repeat(index), numbers)
        self._state.put_many(sorted(zip(keys, packed, strict=True)))

    @property
    def _held_in(self) -> set[PartitionKey]:
        """Partitions that have held ids."""
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
        """The ids of an entry, and the numbers of their records in its batch, which are due by `due_ms`."""
        if names:
            self._put_rows(partition, index, due_ms, names, numbers)
            row_key = records.key(b"i", partition, due_ms, index)
            self._state.put(row_key, (self._state.get(row_key) or b"") + b"".join(names))
            self._held_in.add(partition)

    def hold_until(self, partition: PartitionKey, id_hash: int, place: Place, due_ms: int) -> None:
        """The delayed record at `place` has another due time. Its id is held until then, unless another
        record has it by now."""
        name = HASH.pack(id_hash)
        if self._known(partition, [name], EVER).get(name) == place:
            self._hold(partition, place[0], due_ms, [name], [place[1]])

    def free(self, partition: PartitionKey, id_hash: int, place: Place) -> None:
        """The delayed record at `place` was cancelled. Another record may have its id."""
        (row_key,) = self._keys(partition, [HASH.pack(id_hash)])
        row = self._state.get(row_key)
        if row is not None and ID.unpack(row)[1:] == place:
            self._state.delete(row_key)

    def _release(self, partition: PartitionKey, before_ms: int) -> None:
        """Forget held ids whose records were due by `before_ms`, the oldest first."""
        low = records.key(b"i", partition)
        oldest = list(islice(self._state.scan(low, records.after(low)), EVICT_ENTRIES_MAX + 1))
        for number, (row_key, names) in enumerate(oldest):
            due_ms, index = records.U64X2.unpack_from(row_key, 1 + U64.size)
            if due_ms > before_ms or number == EVICT_ENTRIES_MAX:
                return
            self._state.delete_many(self._keys(partition, names_of(names)), ID_ENTRY.pack(due_ms, index))
            self._state.delete(row_key)
        self._held_in.discard(partition)

    def evict(self, partition: PartitionKey, ids: int, count_max: int, before_ms: int) -> int:
        """Forgets the oldest entries beyond the window; `ids` are remembered now. Returns how many went of
        these. Held ids do not count; those beyond the window go, too."""
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
        """The partition is gone; its rows are swept."""
        if self._loaded is not None:
            self._loaded.drop(partition)
        self._held_in.discard(partition)

    def _oldest(self, partition: PartitionKey) -> Iterator[tuple[Index, Brought, bytes]]:
        """The oldest entries that brought ids, by the letter of the row that has them."""
        for index, brought in self._index.entries(partition).items():
            yield index, brought, b"j"
            break
        row = self._oldest_row(partition)
        if row is not None:
            yield *row, b"J"

    def _oldest_row(self, partition: PartitionKey) -> tuple[Index, Brought] | None:
        """The oldest entry whose ids have rows of their own."""
        low = records.key(b"J", partition)
        for row_key, row in self._state.scan(low, records.after(low)):
            (index,), (time_ms,) = U64.unpack_from(row_key, 1 + U64.size), U64.unpack_from(row)
            return index, Brought(time_ms, len(row) // NAME.size - 1)
        return None

    def _drop_rows(self, partition: PartitionKey, index: Index) -> None:
        """Of the ids that an entry brought; not those of ids that came again since."""
        row = self._state.get(records.key(b"J", partition, index))
        assert row is not None, "it was just read"
        own = ID_ENTRY.pack(U64.unpack_from(row)[0], index)
        self._state.delete_many(self._keys(partition, names_of(row[U64.size :])), own)


def _row(time_ms: int, names: Sequence[bytes], numbers: Sequence[int] = ()) -> bytes:
    """Of the ids that an entry brought; without `numbers` its records have one each."""
    row = ID_BATCH.pack(time_ms, len(names)) + b"".join(names)
    return row + array("I", numbers).tobytes() if numbers and numbers[-1] >= len(names) else row


def _parts(row: bytes) -> tuple[int, bytes, Sequence[int]]:
    """Leader time, ids, and their records, of the row of an entry."""
    time_ms, count = ID_BATCH.unpack_from(row)
    end = ID_BATCH.size + count * NAME.size
    numbers = array("I", row[end:]) if end < len(row) else range(count)
    return time_ms, row[ID_BATCH.size : end], numbers


def _place(names: bytes, name: bytes) -> int:
    """Which of these ids it is; it is one of them."""
    at = names.index(name)
    while at % NAME.size:  # parts of two others
        at = names.index(name, at + 1)
    return at // NAME.size
