"""Growth of topics: their counters at the end of each minute and hour, in a bounded number of rows.

The leader logs a ROLLUP once a minute if anything was applied since the last one. Every copy writes
the same rows from its own ledger. A topic whose counters did not change gets no row.
"""

from collections.abc import Collection
from itertools import islice
from typing import Protocol

import msgspec

from gossipq.core.ledger import records
from gossipq.core.ledger.cursors import Cursor
from gossipq.core.ledger.records import U64, GrowthState, PartitionState
from gossipq.core.storage import Entry, Rollup, Table
from gossipq.limits import GROWTH_HOURS_MS, GROWTH_MINUTES_MS, HOUR_MS, MINUTE_MS
from gossipq.types import Index, PartitionKey, Term
from gossipq.values import GrowthRow, TopicInfo

EVERYTHING = 0  #: stands for all topics in place of a topic id
MINUTES, HOURS = 0, 1
STEPS = (
    (MINUTES, MINUTE_MS, GROWTH_MINUTES_MS),
    (HOURS, HOUR_MS, GROWTH_HOURS_MS),
)  #: (step, its length, how long rows are kept)
STAGGER_MS = 1_789  #: shards do not all roll up in the same turn
SWEEP_ROWS = 1_024
LATEST = 2**63 - 1

RollupPlace = tuple[int, int]
"""position of a row in the list of a shard: topic id and time"""

GrowthSums = tuple[int, ...]  #: all fields of GrowthState except the last two

_decode = msgspec.msgpack.Decoder(GrowthState).decode


class GrowthHost(Protocol):
    """The part of the ledger that this room uses."""

    shard: int
    partitions: dict[PartitionKey, PartitionState]
    topics: dict[int, TopicInfo]
    cursors: dict[PartitionKey, dict[int, Cursor]]

    @property
    def state(self) -> Table: ...
    @property
    def applied(self) -> Index: ...


class GrowthRows:
    def __init__(self, host: GrowthHost) -> None:
        self._host = host
        newest = self._newest(EVERYTHING)
        self._rolled: Index = 0  #: index of the newest ROLLUP
        self._minute_ms = newest[0] if newest else 0

    def _newest(self, topic_id: int) -> tuple[int, GrowthState] | None:
        """Return (time, counters) of the last minute for which a topic has a row."""
        prefix = records.key(b"g", topic_id, MINUTES)
        row = self._host.state.floor(prefix + U64.pack(LATEST))
        if row is None or not row[0].startswith(prefix):
            return None
        return int(U64.unpack_from(row[0], 17)[0]), _decode(row[1])

    def due(self, leader_ms: int, voters: int) -> Rollup | None:
        """Return the payload of the next ROLLUP, or None if it is not due.

        It is due once, when a minute is over and an entry was applied in it.
        """
        late_ms = self._host.shard * STAGGER_MS % MINUTE_MS
        minute_ms = (leader_ms - late_ms) // MINUTE_MS * MINUTE_MS
        if minute_ms <= self._minute_ms or self._host.applied == self._rolled:
            return None
        self._minute_ms = minute_ms
        return Rollup(minute_ms, voters)

    def roll_up(self, entry: Entry, payload: Rollup) -> None:
        """Apply a ROLLUP."""
        time_ms, context = payload.time_ms, (entry.term, payload.voters)
        self._rolled, self._minute_ms = entry.index, max(time_ms, self._minute_ms)
        began = self._newest(EVERYTHING) is not None
        total: GrowthSums = (0,) * 7
        for topic_id, counts in self._counts().items():
            total = tuple(map(sum, zip(total, counts, strict=True)))
            state = _state(counts, *context)
            newest = self._newest(topic_id)
            if newest is None and began:  # a new topic: its counters are its growth
                self._put(topic_id, time_ms - MINUTE_MS, _state((0,) * 7, *context))
            if newest is None or _counts_of(newest[1]) != counts:
                self._put(topic_id, time_ms, state)
        state = _state(total, *context)
        newest = self._newest(EVERYTHING)
        if newest is None or newest[1] != state:
            self._put(EVERYTHING, time_ms, state)

    def _counts(self) -> dict[int, GrowthSums]:
        """Counters by topic, added up over its partitions in this shard."""
        found: dict[int, GrowthSums] = {}
        for partition, state in self._host.partitions.items():
            acked = dead = backlog = 0
            for cursor in self._host.cursors.get(partition, {}).values():
                acked, dead, backlog = (
                    acked + cursor.state.acked,
                    dead + cursor.state.dead,
                    backlog + cursor.behind(state.next),
                )
            counts = (
                state.published,
                acked,
                dead,
                state.removed,
                state.next - state.first,
                state.bytes,
                backlog,
            )
            before = found.get(state.topic_id)
            found[state.topic_id] = (
                counts if before is None else tuple(map(sum, zip(before, counts, strict=True)))
            )
        return found

    def _put(self, topic_id: int, time_ms: int, state: GrowthState) -> None:
        """Write the row of a minute, and that of its hour when the minute ends it; drop rows too
        old.
        """
        table, row = self._host.state, records.encode(state)
        for step, length_ms, kept_ms in STEPS:
            end_ms = -(-time_ms // length_ms) * length_ms
            table.put(records.key(b"g", topic_id, step, end_ms), row)
            low, high = (
                records.key(b"g", topic_id, step),
                records.key(b"g", topic_id, step, max(0, end_ms - kept_ms)),
            )
            table.delete_range(low, high, SWEEP_ROWS)

    def drop(self, topic_id: int) -> None:
        """Forget a removed topic."""
        low = records.key(b"g", topic_id)
        self._host.state.delete_range(low, records.after(low), 2 * SWEEP_ROWS)

    def rows(
        self, names: Collection[str], hours: bool, since_ms: int, after: RollupPlace, rows_max: int
    ) -> tuple[list[GrowthRow], RollupPlace | None]:
        """Return the next rows, by topic and time, and the place of the last one if more may
        follow.

        `names` are topics; if empty, the rows are those of all topics together.
        """
        wanted = (
            sorted((info.id, info.name) for info in self._host.topics.values() if info.name in names)
            if names
            else [(EVERYTHING, "")]
        )
        found: list[GrowthRow] = []
        last = after
        for topic_id, name in wanted:
            if topic_id < after[0]:
                continue
            prefix = records.key(b"g", topic_id, HOURS if hours else MINUTES)
            behind_ms = max(since_ms, after[1]) if topic_id == after[0] else since_ms
            rows = self._host.state.scan(prefix + U64.pack(behind_ms + 1), records.after(prefix))
            for row_key, row in islice(rows, rows_max - len(found)):
                state = _decode(row)
                last = topic_id, int(U64.unpack_from(row_key, 17)[0])
                fields = [name, self._host.shard, last[1], *_counts_of(state), state.term, state.voters]
                found.append(msgspec.convert(fields, GrowthRow))
            if len(found) >= rows_max:
                return found, last
        return found, None


def _counts_of(state: GrowthState) -> GrowthSums:
    return state.published, state.acked, state.dead, state.removed, state.records, state.bytes, state.backlog


def _state(counts: GrowthSums, term: Term, voters: int) -> GrowthState:
    return msgspec.convert([*counts, term, voters], GrowthState)
