"""Joins: records that wait until others have ended as jobs. Part of the ledger.

A join has the place of a record without an offset: its entry, record 0. The leader collects the ends of its
parts and logs them, and publishes the record in the entry that deletes the join. So it is published once,
also if two leaders log that.
"""

from typing import NamedTuple

import msgspec

from gossipq import limits
from gossipq.core.ledger import records
from gossipq.core.ledger.outcomes import DONE, Counted, Outcome, refused
from gossipq.core.ledger.records import PLACE, JoinRow, VoidRow
from gossipq.core.ledger.timetable import StoringHost
from gossipq.core.storage import Entry, payloads
from gossipq.types import Index, PartitionKey, topic_id_of
from gossipq.values import PartEnd

ROW, BATCH, PARTS = 0, 1, 2  #: numbers in keys "z": row, batch, end of the first part
DUPLICATE = "a record with its id"  #: who keeps the record of a join out

_decode_row = msgspec.msgpack.Decoder(JoinRow).decode
_decode_end = msgspec.msgpack.Decoder(PartEnd).decode


class JoinName(NamedTuple):
    partition: PartitionKey
    entry: Index  #: the entry that began the join

    def key(self, number: int) -> bytes:
        return records.key(b"z", *self, number)


class Joins:
    def __init__(self, host: StoringHost) -> None:
        self._host = host
        self.rows: dict[JoinName, JoinRow] = {}
        self.ends: dict[JoinName, dict[int, PartEnd]] = {}  #: by number of the part; of the joins in `rows`
        self._parts = 0  # parts of all joins; at most JOIN_PARTS_OPEN_MAX

    def load(self) -> None:
        for row_key, row in self._host.state.scan(b"z", records.after(b"z")):
            partition, index, number = records.U64X3.unpack_from(row_key, 1)
            name = JoinName(partition, index)
            if partition not in self._host.partitions or number == BATCH:
                continue
            if number == ROW:
                self._add(name, _decode_row(row))
            else:
                self.ends[name][number - PARTS] = _decode_end(row)

    def batch(self, name: JoinName) -> bytes:
        """Return the batch of the record that waits."""
        return self._host.state.get(name.key(BATCH)) or b""

    def _add(self, name: JoinName, row: JoinRow) -> None:
        self.rows[name], self.ends[name] = row, {}
        self._parts += len(row.parts)

    def _pop(self, name: JoinName) -> JoinRow | None:
        row = self.rows.pop(name, None)
        if row is not None:
            del self.ends[name]
            self._parts -= len(row.parts)
        return row

    def drop(self, partition: PartitionKey) -> None:
        """Forget the joins of a removed partition. Their rows are swept."""
        for name in [name for name in self.rows if name.partition == partition]:
            self._pop(name)

    # --- applying -------------------------------------------------------------------------------------------

    def begin(self, entry: Entry, payload: payloads.JoinBegun) -> Outcome:
        """Store a record that waits for its parts."""
        self._host.needed(entry.index, 0)  # the record is in a row of its own
        if payload.partition not in self._host.partitions:
            topic_id = topic_id_of(payload.partition)
            return refused("unknown_topic", f"the topic with id {topic_id} is not here any more")
        if len(self.rows) >= limits.JOINS_MAX:
            return refused("bad_request", f"{limits.JOINS_MAX} records of this shard wait for jobs")
        if self._parts + len(payload.parts) > limits.JOIN_PARTS_OPEN_MAX:
            text = f"records of this shard wait for {limits.JOIN_PARTS_OPEN_MAX} jobs"
            return refused("bad_request", text)
        name = JoinName(payload.partition, entry.index)
        row = JoinRow(payload.parts, payload.count, payload.end_ms, payload.group, entry.time_ms)
        self._add(name, row)
        self._host.state.put(name.key(ROW), records.encode(row))
        self._host.state.put(name.key(BATCH), bytes(entry.body))
        return Counted(1)

    def note(self, entry: Entry, payload: payloads.PartsEnded) -> Outcome:
        """Store how parts ended, each once."""
        for each in payload.rows:
            name = JoinName(each.partition, each.index)
            ends = self.ends.get(name)
            # two leaders may log the same end, and the join may be closed by now
            if ends is not None and each.part not in ends:
                ends[each.part] = each.end
                self._host.state.put(name.key(PARTS + each.part), records.encode(each.end))
        return DONE

    def close(self, entry: Entry, payload: payloads.JoinDone) -> Outcome:
        """Publish the record of a join, once."""
        name = JoinName(payload.partition, payload.index)
        row = self._remove(name)
        if row is None:
            self._host.needed(entry.index, 0)
            return refused("wrong_state", "the record was published or cancelled at the same moment")
        published = self._host.store_record(entry, payload.publish)
        state, place = self._host.state, (name.partition, name.entry, 0)
        if published.added:
            # found by its first place, as long as it exists
            state.put(records.key(b"R", *place), PLACE.pack(published.offset, 1))
            state.put(records.key(b"F", name.partition, entry.index), records.encode((-1, name.entry, 0)))
        else:
            # a record with its id was stored already; `why` of the join's ref must say so
            self._void(entry, name, row, "", DUPLICATE)
        return published

    def cancel(self, entry: Entry, payload: payloads.Void) -> Outcome | None:
        """Void the record of a join. Returns None if there is no such join."""
        name = JoinName(payload.partition, payload.index)
        row = self._remove(name) if payload.record == 0 else None
        if row is None:
            return None
        self._void(entry, name, row, payload.reason, payload.by)
        return DONE

    def _void(self, entry: Entry, name: JoinName, row: JoinRow, reason: str, by: str) -> None:
        """Count the record of a join as published and as voided before it had an offset."""
        state = self._host.partitions[name.partition]
        state.published += 1
        state.voided += 1
        self._host.changed(name.partition)
        void = VoidRow(1, entry.time_ms, reason, by, published_ms=row.time_ms)
        self._host.state.put(records.key(b"v", name.partition, name.entry, 0), records.encode(void))

    def _remove(self, name: JoinName) -> JoinRow | None:
        row = self._pop(name)
        if row is not None:
            prefix = records.key(b"z", *name)
            for row_key in list(self._host.state.scan_keys(prefix, records.after(prefix))):
                self._host.state.delete(row_key)
        return row
