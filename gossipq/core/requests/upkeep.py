"""Periodic work of a leader on the records of its shard, logged as RELEASE, TRIM and FORGET."""

from gossipq import limits
from gossipq.core.delivery import Dispatch
from gossipq.core.desk import Desk
from gossipq.core.ledger import Ledger, retention
from gossipq.core.storage import ROLLUP, TRIM, Rollup, Tables, Trim, log, payloads
from gossipq.types import Index, PartitionKey

RETENTION_CHECK_MS = 1_000
FORGET_CHECK_MS = limits.HOUR_MS
FORGET_AGAIN_MS = limits.SECOND_MS  #: until the next pass


class Upkeep:
    """Periodic work of a leader.

    It gives offsets to due records, removes old records and forgets idle producers.
    """

    def __init__(self, desk: Desk, ledger: Ledger, tables: Tables, dispatch: Dispatch) -> None:
        self._desk = desk
        self._ledger = ledger
        self._tables = tables
        self._dispatch = dispatch
        self._retain_ms = self._forget_ms = 0
        #: partition at which the next pass of retention begins
        self._partitions_from: PartitionKey | None = None
        #: bytes of a batch that found its partition full
        self._wanted: dict[PartitionKey, int] = {}
        self._producers_from = b"S"  #: row of the next producer to examine
        self._cancelled_from = b"v"  #: row of the next cancelled record to examine
        self._releasing = False  #: a RELEASE is not applied yet
        self._names_wanted = False  #: a batch found no room for its unique names
        self._swept: Index = 0  #: entry of the last FORGET of unique names

    def start(self) -> None:
        """Start when this copy begins to serve as leader."""
        self._retain_ms, self._forget_ms = (
            self._desk.boot_ms + RETENTION_CHECK_MS,
            self._desk.boot_ms + FORGET_CHECK_MS,
        )

    def next_deadline(self) -> int | None:
        """Boot time of the next work."""
        if not self._ledger.partitions:
            return None  # until a topic comes, nothing is scheduled, and nothing can be removed
        scheduled_ms = None if self._releasing else self._ledger.schedule.next_ms()
        if scheduled_ms is None:
            return self._retain_ms
        return min(self._retain_ms, scheduled_ms - self._desk.replica.time.timer_ahead_ms)

    def tick(self) -> None:
        """Release due records. Once a second, expire and remove old records."""
        self._release()
        if self._desk.boot_ms >= self._retain_ms:
            self._dispatch.expire_records()
            self._retain()

    def _release(self) -> None:
        """Log a RELEASE for the scheduled records that are due."""
        next_ms = self._ledger.schedule.next_ms()
        if next_ms is None or next_ms > self._desk.timer_ms or self._releasing:
            return
        rows = self._ledger.schedule.plan(self._desk.timer_ms, self._ledger.opened)
        if rows:
            self._releasing = True
            self._desk.propose(log.RELEASE, payloads.encode(payloads.Release(rows)))

    def released(self) -> None:
        self._releasing = False

    def make_room(self, partition: PartitionKey, size_bytes: int) -> bool:
        """A batch of `size_bytes` finds its partition full: remove what may be removed soon.

        Only as much as the batch needs. Returns True if something can be removed.
        """
        size_bytes = self._wanted[partition] = max(size_bytes, self._wanted.get(partition, 0))
        self._retain_ms = self._desk.boot_ms
        self._desk.stirred = True  # the next tick removes old records
        leader_ms, never = self._desk.leader_ms, retention.NEVER
        trim, _ = retention.plan(self._ledger, partition, leader_ms, 1, never, size_bytes)
        return trim is not None

    def _retain(self) -> None:
        """Log a TRIM for records that may be removed.

        Records that an unapplied entry needs stay: otherwise a new group would lose its first
        records.
        """
        desk = self._desk
        self._retain_ms = desk.boot_ms + RETENTION_CHECK_MS
        needed, trimming = retention.awaited(self._ledger, desk.unapplied)
        begin = self._partitions_from
        wanted, self._wanted = self._wanted, {}
        due = retention.due(self._ledger, desk.leader_ms, begin, needed, trimming, wanted)
        trims, self._partitions_from = due
        if not trims and (needed or trimming) and retention.due(self._ledger, desk.leader_ms, begin)[0]:
            self._retain_ms = desk.boot_ms + limits.LEASE_LOG_MS
        rollup = self._ledger.growth.due(desk.leader_ms, len(desk.replica.config.voters))
        found: list[tuple[int, Trim | Rollup]] = [(TRIM, trim) for trim in trims]
        for kind, payload in found if rollup is None else [*found, (ROLLUP, rollup)]:
            desk.propose(kind, payloads.encode(payload), promise=False)
            self._retain_ms = desk.boot_ms + limits.LEASE_LOG_MS  # more may follow
        if desk.boot_ms >= self._forget_ms:
            self._forget()
        elif self._names_wanted:
            self._free_names()

    def sweep_names(self) -> None:
        """A batch with unique names finds no room: the next tick frees those of records that are done."""
        self._retain_ms = self._desk.boot_ms
        self._names_wanted = self._desk.stirred = True

    def _free_names(self) -> None:
        self._names_wanted = False
        named = self._ledger.uniques.named()
        if named and self._swept <= self._ledger.applied:
            payload = payloads.encode(payloads.Forget([], uniques=named))
            self._swept = self._desk.propose(log.FORGET, payload, promise=False)

    def _forget(self) -> None:
        self._free_names()
        desk = self._desk
        before_ms = desk.leader_ms - limits.PRODUCER_IDLE_MS
        idle, self._producers_from = retention.idle_producers(self._tables, self._producers_from, before_ms)
        cancelled, self._cancelled_from = retention.old_cancelled(
            self._tables, self._ledger, self._cancelled_from, desk.leader_ms
        )
        through = self._producers_from == b"S" and self._cancelled_from == b"v"
        self._forget_ms = desk.boot_ms + (FORGET_CHECK_MS if through else FORGET_AGAIN_MS)
        if idle or cancelled:
            payload = payloads.encode(payloads.Forget(idle, before_ms, cancelled))
            desk.propose(log.FORGET, payload, promise=False)
