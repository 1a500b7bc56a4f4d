"""Retention, and deletion on disk: what a leader may remove, and how each copy sweeps its own rows.

With `retention_ms = 0` nothing is removed before the first group exists. Otherwise records that are
published before the first consumer comes would be removed unread.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from types import MappingProxyType

import msgspec

from gossipq import limits
from gossipq.core.ledger import records
from gossipq.core.ledger.acks import decode_ack
from gossipq.core.ledger.exceptions import decode_dead, decode_exception
from gossipq.core.ledger.ledger import Ledger, decode_void
from gossipq.core.ledger.producers import decode_producer
from gossipq.core.ledger.runs import Found
from gossipq.core.ledger.schedule import decode_scheduled
from gossipq.core.storage import (
    INDEX_KEY,
    Entry,
    LogState,
    Tables,
    Trim,
    decode_row,
    log,
)
from gossipq.types import PLACED, Index, Offset, PartitionKey, topic_id_of
from gossipq.values import Ref, Start, TopicConfig

SLICES_MAX = 1_024  #: slices removed in one pass, over all partitions of a shard
LOG_KEEP = 1_024  #: applied entries kept for followers that are a little behind
LOG_STEP = 64  #: log rows worth one sweep
PRODUCERS_MAX = 1_000  #: forgotten in one pass
PRODUCERS_LOOKED_AT = 10_000  #: examined in one pass
NEVER = 2**63  #: above all offsets
NOTHING: Mapping[PartitionKey, Offset] = MappingProxyType({})


def awaited(
    ledger: Ledger, unapplied: Iterable[Entry]
) -> tuple[dict[PartitionKey, Offset], set[PartitionKey]]:
    """Return the lowest offset that unapplied entries need, by partition, and partitions with a
    TRIM.

    Each entry holds back only its own partition. Otherwise a client that keeps sending such
    requests could stop retention everywhere.
    """
    needed: dict[PartitionKey, Offset] = {}
    trimming: set[PartitionKey] = set()
    for entry in unapplied:
        found: list[tuple[PartitionKey, Offset]] = []
        if entry.kind == log.TRIM:
            trimming.add(log.message_of(entry).partition)
        elif entry.kind == log.GROUP:
            made = log.message_of(entry)
            known = ledger.group_ids.get((made.topic_id, made.name))
            found = [
                _begin(start) for start in made.starts if known not in ledger.cursors.get(start.partition, ())
            ]
        elif entry.kind == log.REGROUP:
            found = [_begin(start) for start in log.message_of(entry).starts]
        elif entry.kind == log.REQUEUE:
            letters = log.message_of(entry)
            # dead letters need no log
            found = [(letters.partition, first) for first, _ in letters.ready]
        elif entry.kind == log.TOPIC:
            topic_id = log.message_of(entry).info.id
            found = [(each, 0) for each in ledger.partitions if topic_id_of(each) == topic_id]
        for partition, first in found:
            needed[partition] = min(first, needed.get(partition, first))
    return needed, trimming


def _begin(start: Start) -> tuple[PartitionKey, Offset]:
    """Return the partition, and the first offset that a group needs which starts there."""
    return start.partition, {"first": 0, "new": NEVER}.get(start.kind, start.value)


def due(
    ledger: Ledger,
    leader_ms: int,
    begin: PartitionKey | None,
    needed: Mapping[PartitionKey, Offset] = NOTHING,
    trimming: Collection[PartitionKey] = (),
    wanted: Mapping[PartitionKey, int] = NOTHING,
) -> tuple[list[Trim], PartitionKey | None]:
    """Return the trims that are due, and the partition at which the next pass continues.

    One pass examines SLICES_MAX slices, from partition `begin` on; the partition is None if all
    were examined. `needed` and `trimming` as from `awaited`. `wanted`: by full partition, the bytes of
    the largest batch that did not fit.
    """
    partitions = list(ledger.partitions)
    at = partitions.index(begin) if begin in ledger.partitions else 0
    trims: list[Trim] = []
    left = SLICES_MAX
    for partition in [*partitions[at:], *partitions[:at]]:
        if left <= 0:
            return trims, partition
        # its TRIM is not applied yet: a second one would be planned from the same state
        if partition in trimming:
            continue
        bounds = needed.get(partition, NEVER), wanted.get(partition, 0)
        trim, slices = plan(ledger, partition, leader_ms, left, *bounds)
        if trim is not None:
            trims.append(trim)
            left -= slices
    return trims, None


def plan(
    ledger: Ledger, partition: PartitionKey, leader_ms: int, slices_max: int, needed: Offset, wanted: int = 0
) -> tuple[Trim | None, int]:
    """Return the due trim of a partition and its slices; None if nothing may be removed.

    Whole slices, oldest first. Age removes records that every group has acked and that are below
    `needed` (`retain = "acked"`; without groups all old records, but never at once). A size bound
    removes acked records of any age, and with `overflow = "drop_oldest"` also others: an eighth of
    the bound is kept free, or the bytes that are `wanted`.
    """
    state = ledger.partitions[partition]
    config = ledger.topics[state.topic_id].config
    done = min(ledger.done_below(partition), needed)
    room = min(config.bytes_max // 8 * 7, config.bytes_max - wanted)
    first, freed, grouped, slices = state.first, 0, bool(ledger.cursors.get(partition)), 0
    while slices < slices_max:
        part = ledger.slices.at(partition, first) if first < state.next else None
        crowded = config.bytes_max > 0 and state.bytes - freed > room
        if part is None or not _may_leave(
            config, part.time_ms, part.end <= done, crowded, leader_ms, grouped
        ):
            break
        first, freed, slices = part.end, freed + part.share_bytes, slices + 1
    return (Trim(partition, first) if slices else None), slices


def purge_plan(ledger: Ledger, partition: PartitionKey, before: Offset) -> Trim | None:
    """Return the next step of a purge: whole slices up to `before`, as many as one pass
    examines.
    """
    state = ledger.partitions[partition]
    first = state.first
    for _ in range(SLICES_MAX):
        part = ledger.slices.at(partition, first) if first < before else None
        if part is None or part.end > before:
            break
        first = part.end
    return Trim(partition, first) if first > state.first else None


def _may_leave(
    config: TopicConfig, time_ms: int, done: bool, crowded: bool, leader_ms: int, grouped: bool
) -> bool:
    if crowded and config.overflow == "drop_oldest":
        return True
    if not done or config.retain == "forever":
        return False
    if grouped:
        return crowded or time_ms <= leader_ms - config.retention_ms
    return time_ms <= leader_ms - (config.retention_ms or limits.RETENTION_MS)


def idle_producers(
    tables: Tables, first: bytes, before_ms: int
) -> tuple[list[tuple[PartitionKey, bytes]], bytes]:
    """Return producers silent since `before_ms`, leader time, and the row of the next pass.

    A pass examines a limited number of rows from row `first` on, and then begins again.
    """
    idle: list[tuple[PartitionKey, bytes]] = []
    for number, (row_key, row) in enumerate(tables.state.scan(first, records.after(b"S"))):
        if number == PRODUCERS_LOOKED_AT or len(idle) == PRODUCERS_MAX:
            return idle, row_key
        if decode_producer(row).time_ms < before_ms:
            idle.append((records.U64.unpack_from(row_key, 1)[0], row_key[9:]))
    return idle, b"S"


def old_cancelled(tables: Tables, ledger: Ledger, first: bytes, leader_ms: int) -> tuple[list[Ref], bytes]:
    """Return records voided before they had an offset, so long ago that they can be forgotten.

    Their topic keeps no record of that age, and no producer resends them. Rows as in
    `idle_producers`.
    """
    old: list[Ref] = []
    for number, (row_key, row) in enumerate(tables.state.scan(first, records.after(b"v"))):
        if number == PRODUCERS_LOOKED_AT or len(old) == PRODUCERS_MAX:
            return old, row_key
        partition, index, record = records.U64X3.unpack_from(row_key, 1)
        if partition not in ledger.partitions or (config := ledger.config(partition)).retain == "forever":
            continue
        # a producer that is still known may repeat the batch, and must hear that its record was cancelled
        kept_ms = max(config.retention_ms or limits.RETENTION_MS, limits.PRODUCER_IDLE_MS)
        if decode_void(row).time_ms < leader_ms - kept_ms:
            old.append(Ref(partition, index=index, record=record))
    return old, b"v"


class Sweeper:
    """Deletes rows that the ledger no longer counts, a few at a time, in the open transaction."""

    def __init__(self, tables: Tables, ledger: Ledger, log_state: LogState, whole: bool) -> None:
        """`whole`: the state is complete. While a snapshot is being installed, only log rows are
        swept.
        """
        self._tables = tables
        self._ledger = ledger
        self._log = log_state
        self._swept: dict[PartitionKey, Offset] = {}
        self.behind = whole  #: True if another sweep has work
        self.keep_from: Index = 2**63  #: log rows from here on are kept for copies that are behind

    def sweep(self, rows_max: int) -> None:
        first, applied = self._ledger.meta.log_first, self._ledger.applied
        end = min(first + rows_max, applied - LOG_KEEP, self.keep_from)
        left = rows_max - (self._log_rows(end, rows_max) if end >= first + LOG_STEP else 0)
        if not self.behind:
            return
        for partition, state in self._ledger.partitions.items():
            if left > 0 and self._swept.get(partition, -1) < state.first:
                left -= self._partition(partition, state.first, left)
        if left > 0:
            for row_key, _ in list(self._tables.state.scan(b"D", records.after(b"D"))):
                left -= self._gone(row_key, left)
                if left <= 0:
                    break
        if left > 0:
            for row_key, _ in list(self._tables.state.scan(b"d", records.after(b"d"))):
                left -= self._gone_group(row_key, left)
                if left <= 0:
                    break
        self.behind = left <= 0

    def _log_rows(self, end: Index, rows_max: int) -> int:
        """Delete log rows before `end`, and remember the chain before the first remaining one."""
        meta = self._ledger.meta
        row = self._tables.log.get(INDEX_KEY.pack(end - 1))
        assert row is not None, "applied entries are in the log until they are swept"
        meta.chain = decode_row(end - 1, row).chain
        count = self._tables.log.delete_range(INDEX_KEY.pack(meta.log_first), INDEX_KEY.pack(end), rows_max)
        meta.log_first = self._log.first = end
        meta.epochs = self._log.compact()
        self._ledger.dirty = True
        return count

    def _partition(self, partition: PartitionKey, first: Offset, rows_max: int) -> int:
        count = self._slices(partition, first, rows_max)
        for group_id in self._ledger.cursors.get(partition, ()):
            for prefix in (b"A", b"Q"):
                if count >= rows_max:
                    return count
                low, high = (records.row_key(prefix, partition, group_id, offset) for offset in (0, first))
                if prefix == b"A":
                    high = self._reaching(low, high, first)
                count += self._tables.state.delete_range(low, high, rows_max - count)
        if count >= rows_max:
            return count
        low, high = records.key(b"Z", partition, 0), records.key(b"Z", partition, first)
        count += self._tables.state.delete_range(low, high, rows_max)
        if count < rows_max:
            self._swept[partition] = first
        return count

    def _reaching(self, low: bytes, high: bytes, first: Offset) -> bytes:
        """Return the key up to which acks can go: the last ack can reach over `first`."""
        found = self._tables.state.floor(high)
        reaches = found is not None and low <= found[0] < high and decode_ack(found[1]).end > first
        return found[0] if found is not None and reaches else high

    def _slices(self, partition: PartitionKey, end: Offset, rows_max: int) -> int:
        """Delete slice rows below `end`, each with its body."""
        scan = self._tables.state.scan(records.slice_key(partition, 0), records.slice_key(partition, end))
        rows = list(islice(scan, rows_max))
        for row_key, row in rows:
            part = records.decode_slice(row_key, row)
            if part.columns & PLACED:
                self._ledger.not_needed(part.index, part.count)
                self._tables.state.delete(records.key(b"R", partition, part.index, part.first))
                self._forget_earlier(partition, part.index)
            else:
                self._ledger.sweep_body(part.index)
        if rows:
            self._tables.state.delete_range(rows[0][0], records.slice_key(partition, end), len(rows))
        return 2 * len(rows)

    def _forget_earlier(self, partition: PartitionKey, index: Index) -> None:
        """Delete what the record of an EDIT or JOINED entry replaced: the earlier place of a joined one."""
        row_key = records.key(b"F", partition, index)
        row = self._tables.state.get(row_key)
        if row is None:
            return
        offset, *earlier = msgspec.msgpack.decode(row)
        if offset < 0:
            self._tables.state.delete(records.key(b"R", partition, *earlier))
        self._tables.state.delete(row_key)

    def _gone(self, row_key: bytes, rows_max: int) -> int:
        """Delete rows of a partition whose topic was removed."""
        partition = records.U64.unpack_from(row_key, 1)[0]
        count = self._slices(partition, 2**63, rows_max) + self._bodies(
            (b"L", b"V", b"W"), (partition,), rows_max
        )
        return self._rest(
            (
                *(b"A", b"S", b"Q", b"Y", b"U", b"p", b"h", b"i", b"I", b"J", b"j", b"Z", b"F", b"R", b"v"),
                *(b"s", b"l", b"u", b"r", b"c", b"w", b"f", b"z"),
            ),
            row_key,
            (partition,),
            count,
            rows_max,
        )

    def _gone_group(self, row_key: bytes, rows_max: int) -> int:
        """Delete rows of a group that has ended, in one partition."""
        name = records.U64X2.unpack_from(row_key, 1)
        count = self._bodies((b"L", b"V"), name, rows_max)
        return self._rest((b"A", b"Q", b"Y", b"U", b"p", b"h", b"f"), row_key, name, count, rows_max)

    def _rest(
        self, prefixes: tuple[bytes, ...], row_key: bytes, name: tuple[int, ...], count: int, rows_max: int
    ) -> int:
        """Delete rows without a body; then the row that requested the deletion."""
        for prefix in prefixes:
            low = records.key(prefix, *name)
            count += self._tables.state.delete_range(low, records.after(low), rows_max)
        if count < rows_max:
            self._tables.state.delete(row_key)
        return count + 1

    def _bodies(self, prefixes: tuple[bytes, ...], name: tuple[int, ...], rows_max: int) -> int:
        """Delete dead letters, exception rows and scheduled records, each with its share of a
        body.
        """
        state, not_needed = self._tables.state, self._ledger.not_needed
        rows: list[tuple[bytes, bytes]] = []
        for prefix in prefixes:
            low = records.key(prefix, *name)
            rows += islice(state.scan(low, records.after(low)), rows_max - len(rows))
        for row_key, row in rows:
            first = records.U64.unpack_from(row_key, 17)[0]
            if row_key[:1] == b"L":
                dead = decode_dead(row)
                not_needed(dead.index, dead.end - first)
            elif row_key[:1] == b"V":
                exception = decode_exception(row)
                if exception.own_body:
                    not_needed(exception.index, Found(first, exception).total)
            else:
                scheduled, (index,) = decode_scheduled(row), records.U64.unpack_from(row_key, 9)
                not_needed(index, scheduled.end - first)
                state.delete(records.key(b"E", scheduled.due_ms, index, first))
            state.delete(row_key)
        return 2 * len(rows)
