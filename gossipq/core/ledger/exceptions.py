"""What a group has beside its cursor in one partition: records that wait for another attempt or for their
lane, and the dead.

Each exception row has one index row: by due time ("Y"), or by lane ("U"): a route that nobody takes, or a key
that is busy.
"""

import msgspec

from gossipq.core.ledger import records
from gossipq.core.ledger.records import U64, U64X2, DeadRow, ExceptionRow
from gossipq.core.ledger.runs import Found, Runs
from gossipq.core.storage import Table
from gossipq.types import Offset, PartitionKey

decode_exception = msgspec.msgpack.Decoder(ExceptionRow).decode
decode_dead = msgspec.msgpack.Decoder(DeadRow).decode


def dead_rows(state: Table, partition: PartitionKey, group_id: int) -> Runs[DeadRow]:
    """Dead letters of a group in a partition."""
    return Runs(state, records.row_key(b"L", partition, group_id), decode_dead)


class Exceptions(Runs[ExceptionRow]):
    __slots__ = ("_due_prefix", "_group_id", "_partition")

    def __init__(self, state: Table, partition: PartitionKey, group_id: int) -> None:
        super().__init__(state, records.row_key(b"V", partition, group_id), decode_exception)
        self._partition, self._group_id = partition, group_id
        self._due_prefix = records.row_key(b"Y", partition, group_id)

    def _index_key(self, first: Offset, row: ExceptionRow) -> bytes:
        if row.lane:
            return records.lane_key(self._partition, self._group_id, row.lane, first)
        return self._due_prefix + U64X2.pack(row.due_ms, first)

    def put(self, first: Offset, row: ExceptionRow) -> None:
        super().put(first, row)
        self._state.put(self._index_key(first, row), b"")

    def put_many(self, rows: list[tuple[Offset, ExceptionRow]]) -> None:
        if rows:
            super().put_many(rows)
            self._state.put_many([(self._index_key(first, row), b"") for first, row in rows])

    def delete(self, found: Found[ExceptionRow]) -> None:
        super().delete(found)
        self._state.delete(self._index_key(*found))

    def change(self, found: Found[ExceptionRow], row: ExceptionRow) -> None:
        """Another row in the place of one that is there."""
        if row == found.row:
            return
        super().put(found.first, row)
        old, new = self._index_key(*found), self._index_key(found.first, row)
        if old != new:
            self._state.delete(old)
            self._state.put(new, b"")

    def due(self, since: tuple[int, Offset], until_ms: int, limit: int) -> list[tuple[int, Offset]]:
        """(due, first) of rows that wait for their time, from `since` to `until_ms`, in order; the first
        few."""
        low = self._due_prefix + U64X2.pack(*since)
        high = self._due_prefix + U64.pack(until_ms + 1)
        found = []
        for row_key, _ in self._state.scan(low, high):
            found.append(U64X2.unpack_from(row_key, 17))
            if len(found) == limit:
                break
        return found

    def lanes(self, behind: bytes, limit: int) -> list[bytes]:
        """Lanes that have rows, the first few behind that one in their order; b"" = from the beginning."""
        found: list[bytes] = []
        prefix = records.row_key(b"U", self._partition, self._group_id)
        low, high = prefix, records.after(prefix)
        if behind:
            low = records.after(records.lane_key(self._partition, self._group_id, behind, 0)[:-8])
        while len(found) < limit and (row := next(iter(self._state.scan(low, high)), None)) is not None:
            end = 19 + int.from_bytes(row[0][17:19], "big")
            found.append(row[0][19:end])
            low = records.after(row[0][:end])
        return found

    def in_lane(self, lane: bytes, first: Offset, limit: int) -> list[Offset]:
        """Firsts of the rows of a lane from `first` on, in order; the first few."""
        low = records.lane_key(self._partition, self._group_id, lane, first)
        found = []
        for row_key, _ in self._state.scan(low, records.after(low[:-8])):
            found.append(U64.unpack_from(row_key, len(row_key) - 8)[0])
            if len(found) == limit:
                break
        return found
