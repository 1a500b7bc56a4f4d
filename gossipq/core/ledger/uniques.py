"""Unique names of records: one record of a name waits at a time. Part of the ledger.

The names of one entry are one row, found through an index in memory, as ids are. A name is free when its
time is over or its record is done in every group, so an ack costs nothing: the record is looked up when
the name is used again. Rows whose names are free are deleted a few at a time: each entry with unique names
looks at some of the others.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import islice
from struct import Struct
from typing import NamedTuple

from gossipq.core.ledger import records
from gossipq.core.ledger.id_index import NAME, NO_NAME, IdIndex, names_of
from gossipq.core.ledger.records import PartitionState
from gossipq.core.storage import Table
from gossipq.types import Index, PartitionKey, StoredAt

HEAD = Struct("<IB")  #: names, and which columns follow
NUMBERS, UNTILS = 1, 2  #: columns of a row: u32 record numbers if not 0, 1, 2, ...; i64 times if not all 0
ROWS_SWEPT = 2  #: rows that an entry with unique names looks at; each adds one, so the free ones stay few


class Asked(NamedTuple):
    """The unique names that the records of a batch ask for. NO_NAME: the record asks for none."""

    names: Sequence[bytes]
    untils: "array[int] | None"  #: ms for which the name is held, 0 = until the record is done; None: all 0
    replaces: "array[int] | None"  #: 1 = the record that holds the name leaves; None: all 0


class Sorted(NamedTuple):
    """The records of a batch that are not stored, and the records that leave for the others."""

    kept: dict[int, StoredAt]  #: by number of the record: the place of the one that holds its name
    replaced: list[StoredAt]


NOTHING = Sorted({}, [])


class NamesRow(NamedTuple):
    """The names that an entry took."""

    names: tuple[bytes, ...]
    numbers: Sequence[int]
    untils: Sequence[int]  #: leader times; 0 = until the record is done

    def packed(self) -> bytes:
        flags, parts = 0, [b"", b"".join(self.names)]
        if self.numbers and self.numbers[-1] >= len(self.numbers):
            flags |= NUMBERS
            parts.append(array("I", self.numbers).tobytes())
        if any(self.untils):
            flags |= UNTILS
            parts.append(array("q", self.untils).tobytes())
        parts[0] = HEAD.pack(len(self.names), flags)
        return b"".join(parts)


def _opened(row: bytes) -> NamesRow:
    count, flags = HEAD.unpack_from(row)
    end = HEAD.size + count * NAME.size
    names = names_of(row[HEAD.size : end])
    numbers: Sequence[int] = range(count)
    untils: Sequence[int] = (0,) * count
    if flags & NUMBERS:
        numbers = array("I", row[end : end + 4 * count])
        end += 4 * count
    if flags & UNTILS:
        untils = array("q", row[end : end + 8 * count])
    return NamesRow(names, numbers, untils)


class Uniques:
    def __init__(
        self,
        state: Table,
        partitions: dict[PartitionKey, PartitionState],
        waiting: Callable[[PartitionKey, Index, Sequence[int]], set[int]],
        changed: Callable[[PartitionKey], None],
    ) -> None:
        """`waiting` returns those of the records of an entry that are not done. `changed` has the row of a
        partition written at the next flush.
        """
        self._state, self._partitions = state, partitions
        self._waiting, self._changed = waiting, changed
        self._loaded: IdIndex | None = None

    @property
    def _index(self) -> IdIndex:
        """The index, read from the rows at the first use."""
        if self._loaded is None:
            loaded = IdIndex()
            for row_key, raw in self._state.scan(b"u", b"v"):
                partition, index = records.U64X2.unpack_from(row_key, 1)
                if partition in self._partitions:  # otherwise it is being swept
                    loaded.add(partition, index, 0, _opened(raw).names)
            self._loaded = loaded
        return self._loaded

    def has_room(self, count: int) -> bool:
        """True if `count` more names fit into the index. Free names that were not swept yet count."""
        return self._index.has_room(count)

    def named(self) -> list[PartitionKey]:
        """Return the partitions with names."""
        return [each for each in self._partitions if self._index.entries(each)]

    # --- a batch ----------------------------------------------------------------------------------------

    def sort_out(
        self,
        partition: PartitionKey,
        index: Index,
        time_ms: int,
        asked: Asked,
        ids: Sequence[bytes] = (),
        known: Sequence[bytes] | set[bytes] = (),
    ) -> Sorted:
        """Take the names of a batch, the earlier record first.

        A record with one of the `known` ids is a duplicate, and its name is left alone.
        """
        taken = self._taken_at_once(partition, index, time_ms, asked) if not ids else None
        if taken is None:
            taken = self._one_by_one(partition, index, time_ms, asked, ids, known)
        self.sweep(partition, time_ms, ROWS_SWEPT, index)
        return taken

    def _taken_at_once(
        self, partition: PartitionKey, index: Index, time_ms: int, asked: Asked
    ) -> Sorted | None:
        """Take all names of a batch if each is new. Returns None if one may be known."""
        names = asked.names
        different = set(names)
        if len(different) < len(names) or NO_NAME in different:
            return None
        if not self._index.add_unless_known(partition, index, 0, names):
            return None
        untils = _ends(asked.untils, range(len(names)), time_ms)
        self._put(partition, index, NamesRow(tuple(names), range(len(names)), untils))
        return NOTHING

    def _one_by_one(
        self,
        partition: PartitionKey,
        index: Index,
        time_ms: int,
        asked: Asked,
        ids: Sequence[bytes],
        known: Sequence[bytes] | set[bytes],
    ) -> Sorted:
        held = self.holders(partition, set(asked.names) - {NO_NAME}, time_ms)
        kept, mine, seen = dict[int, StoredAt](), dict[bytes, int](), set[bytes]()
        before = set[int]()  # records that a later one of this batch replaces
        for number, name in enumerate(asked.names):
            its_id = ids[number] if ids else NO_NAME
            if its_id != NO_NAME and (its_id in known or its_id in seen):
                continue
            replaces = bool(asked.replaces and asked.replaces[number])
            if name != NO_NAME and not replaces and (name in mine or name in held):
                kept[number] = (index, mine[name]) if name in mine else held[name]
                continue
            if name in mine:
                before.add(mine[name])
                if ids:
                    seen.discard(ids[mine[name]])
            if name != NO_NAME:
                mine[name] = number
            seen.add(its_id)
        for number in {*before, *kept}:  # the last record of the name has it
            if (name := asked.names[number]) in mine:
                kept[number] = index, mine[name]
        replaced = [held[name] for name in mine if name in held]
        for name in mine:
            if name in held:
                self.free(partition, name, held[name])
        self._take(partition, index, time_ms, mine, asked.untils)
        return Sorted(kept, replaced)

    def _take(
        self,
        partition: PartitionKey,
        index: Index,
        time_ms: int,
        names: dict[bytes, int],
        untils: "array[int] | None",
    ) -> None:
        if not names:
            return
        ordered = sorted(names, key=names.__getitem__)
        numbers = [names[name] for name in ordered]
        self._index.add(partition, index, 0, ordered)
        self._put(partition, index, NamesRow(tuple(ordered), numbers, _ends(untils, numbers, time_ms)))

    def hold(self, partition: PartitionKey, index: Index, time_ms: int, name: bytes, until_ms: int) -> None:
        """The only record of an entry takes the name of the one that it replaces."""
        self._take(partition, index, time_ms, {name: 0}, array("q", [until_ms]))

    def holders(self, partition: PartitionKey, names: set[bytes], time_ms: int) -> dict[bytes, StoredAt]:
        """Return the places of the records that hold these names."""
        entries, found = dict[Index, list[bytes]](), dict[bytes, StoredAt]()
        for name in names:
            index = self._index.newest(partition, name)
            if index is not None:
                entries.setdefault(index, []).append(name)
        for index, its in entries.items():
            row = self._row(partition, index)
            places = {name: at for at, name in enumerate(row.names)}
            ats = [places[name] for name in its if name in places]
            waiting = self._held(partition, index, row, ats, time_ms)
            found |= {row.names[at]: (index, row.numbers[at]) for at in ats if at in waiting}
        return found

    def holds(self, partition: PartitionKey, name: bytes, place: StoredAt, time_ms: int) -> bool:
        """True if the record at `place` holds this name."""
        return self.holders(partition, {name}, time_ms).get(name) == place

    def _held(
        self, partition: PartitionKey, index: Index, row: NamesRow, ats: Sequence[int], time_ms: int
    ) -> set[int]:
        """Return those of the names, by their place in the row, that are held."""
        if any(row.untils):
            held = {at for at in ats if row.untils[at] > time_ms}
            ats = [at for at in ats if not row.untils[at]]
        else:
            held = set()
        if ats:
            numbers = [row.numbers[at] for at in ats]
            waiting = self._waiting(partition, index, numbers)
            held.update(ats if len(waiting) == len(ats) else [at for at in ats if row.numbers[at] in waiting])
        return held

    # --- names that are free ----------------------------------------------------------------------------

    def free(self, partition: PartitionKey, name: bytes, place: StoredAt) -> bool:
        """Free the name of a record that was cancelled or replaced, if it had it. Returns True then."""
        index, number = place
        raw = self._state.get(records.key(b"u", partition, index))
        if raw is None:
            return False
        row = _opened(raw)
        if name not in row.names or row.numbers[at := row.names.index(name)] != number:
            return False
        self._keep(partition, index, row, [other for other in range(len(row.names)) if other != at])
        return True

    def sweep(self, partition: PartitionKey, time_ms: int, rows_max: int, before: Index) -> None:
        """Look at some rows of entries before `before`, and delete the names in them that are free."""
        state = self._partitions[partition]
        low, high = records.key(b"u", partition, state.unique_hand), records.key(b"u", partition, before)
        looked = list(islice(self._state.scan(low, high), rows_max))
        hand = 0
        for row_key, raw in looked:
            (index,) = records.U64.unpack_from(row_key, 1 + records.U64.size)
            hand, row = index + 1, _opened(raw)
            ats = range(len(row.names))
            ends = sorted({0, len(ats) - 1})
            if len(self._held(partition, index, row, ends, time_ms)) == len(ends):
                continue  # most records of a batch are done at about the same time
            held = self._held(partition, index, row, ats, time_ms)
            if 2 * len(held) <= len(ats):  # writing the row again for each name would cost more
                self._keep(partition, index, row, sorted(held))
        hand = hand if len(looked) == rows_max else 0
        if hand != state.unique_hand:
            state.unique_hand = hand
            self._changed(partition)

    def _keep(self, partition: PartitionKey, index: Index, row: NamesRow, ats: Sequence[int]) -> None:
        """Keep only the names at these places of a row."""
        kept = set(ats)
        row_key = records.key(b"u", partition, index)
        if not kept:
            self._index.forget(partition, index)
            self._state.delete(row_key)
            return
        self._index.remove(partition, index, [name for at, name in enumerate(row.names) if at not in kept])
        numbers, untils = ([column[at] for at in ats] for column in (row.numbers, row.untils))
        left = NamesRow(tuple(row.names[at] for at in ats), numbers, untils)
        self._state.put(row_key, left.packed())

    def drop(self, partition: PartitionKey) -> None:
        """Forget a removed partition. Its rows are swept later."""
        if self._loaded is not None:
            self._loaded.drop(partition)

    # --- rows -------------------------------------------------------------------------------------------

    def _put(self, partition: PartitionKey, index: Index, row: NamesRow) -> None:
        self._state.put(records.key(b"u", partition, index), row.packed())

    def _row(self, partition: PartitionKey, index: Index) -> NamesRow:
        raw = self._state.get(records.key(b"u", partition, index))
        assert raw is not None, "what is in memory has a row"
        return _opened(raw)


def _ends(untils: "array[int] | None", numbers: Sequence[int], time_ms: int) -> Sequence[int]:
    """Return the leader times at which names are free again; 0 = when their records are done."""
    if untils is None:
        return (0,) * len(numbers)
    return [time_ms + untils[number] if untils[number] else 0 for number in numbers]
