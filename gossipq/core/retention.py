"""What may leave, and taking it off the disk. Leaving is decided by the leader and logged as TRIM; sweeping is each copy's."""

from itertools import islice

from gossipq import limits
from gossipq.core import records
from gossipq.core.exceptions import decode_dead, decode_exception
from gossipq.core.ledger import Ledger
from gossipq.core.log import INDEX_KEY, LogState, decode_row
from gossipq.core.payloads import Trim
from gossipq.core.producers import decode_producer
from gossipq.core.schedule import decode_scheduled
from gossipq.core.tables import Tables
from gossipq.types import DELAY, ID_HASH, Index, Offset, PartitionKey
from gossipq.values import TopicConfig

SLICES_MAX = 1_024  #: looked at in one go
LOG_KEEP = 1_024  #: applied entries that stay for followers a little behind
LOG_STEP = 64  #: log rows that are worth a sweep
PRODUCERS_MAX = 1_000  #: forgotten in one go


def trims(ledger: Ledger, leader_ms: int) -> list[Trim]:
    """What is due in all partitions."""
    return [trim for partition in ledger.partitions if (trim := plan(ledger, partition, leader_ms)) is not None]


def plan(ledger: Ledger, partition: PartitionKey, leader_ms: int) -> Trim | None:
    """The trim that is due in a partition: whole slices, oldest first; None when nothing may leave.

    Age removes what every group has acked (`retain = "acked"`; without groups, everything old, but never at once). A size
    bound removes acked records of any age, and with `overflow = "drop_oldest"` also others.
    """
    state = ledger.partitions[partition]
    config = ledger.topics[state.topic_id].config
    done = ledger.done_below(partition)
    first, freed, grouped = state.first, 0, bool(ledger.cursors.get(partition))
    for _ in range(SLICES_MAX):
        part = ledger.slices.at(partition, first) if first < state.next else None
        if part is None or not _may_leave(config, part.time_ms, part.end <= done, state.bytes - freed, leader_ms, grouped):
            break
        first, freed = part.end, freed + part.share_bytes
    return Trim(partition, first, freed) if first > state.first else None


def _may_leave(config: TopicConfig, time_ms: int, done: bool, stored_bytes: int, leader_ms: int, grouped: bool) -> bool:
    crowded = config.bytes_max > 0 and stored_bytes > config.bytes_max // 8 * 7
    if crowded and config.overflow == "drop_oldest":
        return True
    if not done or config.retain == "forever":
        return False
    if grouped:
        return crowded or time_ms <= leader_ms - config.retention_ms
    return time_ms <= leader_ms - (config.retention_ms or limits.RETENTION_MS)


def idle_producers(tables: Tables, before_ms: int) -> list[tuple[PartitionKey, bytes]]:
    """Producers that were last heard before `before_ms`, leader time; the first PRODUCERS_MAX of them."""
    idle = []
    for row_key, row in tables.state.scan(b"S", records.after(b"S")):
        if decode_producer(row).time_ms < before_ms:
            idle.append((records.U64.unpack_from(row_key, 1)[0], row_key[9:]))
            if len(idle) == PRODUCERS_MAX:
                break
    return idle


class Sweeper:
    """Deletes what the ledger no longer counts, a few rows at a time, inside whatever transaction is open."""

    def __init__(self, tables: Tables, ledger: Ledger, log: LogState) -> None:
        self._tables, self._ledger, self._log = tables, ledger, log
        self._swept: dict[PartitionKey, Offset] = {}
        self.behind = True  #: whether another sweep has work
        self.hold: Index = 2**63  #: log rows from here on are kept for copies that are behind

    def sweep(self, rows_max: int) -> None:
        left = rows_max - self._log_rows(rows_max)
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
        self.behind = left <= 0

    def _log_rows(self, rows_max: int) -> int:
        """Drops applied log rows, remembering what the first kept one continues."""
        meta = self._ledger.meta
        end = min(meta.log_first + rows_max, self._ledger.applied - LOG_KEEP, self.hold)
        if end < meta.log_first + LOG_STEP:
            return 0
        row = self._tables.log.get(INDEX_KEY.pack(end - 1))
        assert row is not None, "applied entries are in the log until they are swept"
        meta.chain = decode_row(end - 1, row).chain
        count = self._tables.log.delete_range(INDEX_KEY.pack(meta.log_first), INDEX_KEY.pack(end), rows_max)
        meta.log_first = self._log.first = end
        meta.epochs = self._log.compact()
        self._ledger.meta_changed = True
        return count

    def _partition(self, partition: PartitionKey, first: Offset, rows_max: int) -> int:
        count = self._slices(partition, first, rows_max)
        for group_id in self._ledger.cursors.get(partition, ()):
            for prefix in (b"A", b"Q"):
                low, high = (records.row_key(prefix, partition, group_id, offset) for offset in (0, first))
                count += self._tables.state.delete_range(low, high, rows_max)
        low, high = records.key(b"Z", partition, 0), records.key(b"Z", partition, first)
        count += self._tables.state.delete_range(low, high, rows_max)
        if count < rows_max:
            self._swept[partition] = first
        return count

    def _slices(self, partition: PartitionKey, end: Offset, rows_max: int) -> int:
        """Slice rows below `end`, each with its body."""
        scan = self._tables.state.scan(records.slice_key(partition, 0), records.slice_key(partition, end))
        rows = list(islice(scan, rows_max))
        for row_key, row in rows:
            part = records.decode_slice(row_key, row)
            if part.columns & (DELAY | ID_HASH):
                self._ledger.not_needed(part.index, part.count)
                self._tables.state.delete(records.key(b"R", partition, part.index, part.first))
                self._tables.state.delete(records.key(b"F", partition, part.index))
            else:
                self._tables.body.delete(INDEX_KEY.pack(part.index))
        if rows:
            self._tables.state.delete_range(rows[0][0], records.slice_key(partition, end), len(rows))
        return 2 * len(rows)

    def _gone(self, row_key: bytes, rows_max: int) -> int:
        """A partition whose topic was removed."""
        partition = records.U64.unpack_from(row_key, 1)[0]
        count = self._slices(partition, 2**63, rows_max) + self._bodies(partition, rows_max)
        for prefix in (b"A", b"S", b"Q", b"Y", b"U", b"I", b"J", b"Z", b"F", b"R", b"v"):
            low = records.key(prefix, partition)
            count += self._tables.state.delete_range(low, records.after(low), rows_max)
        if count < rows_max:
            self._tables.state.delete(row_key)
        return count + 1

    def _bodies(self, partition: PartitionKey, rows_max: int) -> int:
        """Dead letters, exception rows and scheduled records of such a partition, each with its share of a body."""
        state, not_needed = self._tables.state, self._ledger.not_needed
        rows: list[tuple[bytes, bytes]] = []
        for prefix in (b"L", b"V", b"W"):
            low = records.key(prefix, partition)
            rows += islice(state.scan(low, records.after(low)), rows_max - len(rows))
        for row_key, row in rows:
            first = records.U64.unpack_from(row_key, 17)[0]
            if row_key[:1] == b"L":
                dead = decode_dead(row)
                not_needed(dead.index, dead.end - first)
            elif row_key[:1] == b"V":
                exception = decode_exception(row)
                if exception.own_body:
                    not_needed(exception.index, exception.end - first)
            else:
                scheduled, (index,) = decode_scheduled(row), records.U64.unpack_from(row_key, 9)
                not_needed(index, scheduled.end - first)
                state.delete(records.key(b"E", scheduled.due_ms, index, first))
            state.delete(row_key)
        return 2 * len(rows)
