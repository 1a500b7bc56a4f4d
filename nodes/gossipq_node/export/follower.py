"""`gossipq export --follow`: runs an export for months.

It looks often, writes rarely, and merges its files. Records wait in the cluster until there are
enough for a file, or until the first one has waited long enough. Once an hour small files are
merged and a base is published; replaced files are deleted an hour later. Time is passed in.
"""

from collections.abc import Callable

import msgspec

from gossipq_node.export.compaction import KEEP_S, compact
from gossipq_node.export.exporter import Exporter, RunTotals
from gossipq_node.export.folder import Folder
from gossipq_node.export.iceberg import Committed

ROLL_S = 300.0  #: records wait at most this long for their file by default
ROLL_RECORDS = 1 << 18  #: this many records of a partition do not wait
STATES_S = 600.0  #: interval for acks and deliveries
BASE_S = 3600.0  #: interval between two bases


class Look(msgspec.Struct):
    """The result of one look at the cluster."""

    done: RunTotals
    merged_files: int = 0
    based: bool = False
    committed: Committed | None = None


class Follower:
    def __init__(
        self,
        exporter: Exporter,
        folder: Folder,
        now: Callable[[], float],
        roll_s: float = ROLL_S,
        keep_s: float = KEEP_S,
        base_s: float = BASE_S,
        commit: Callable[[], Committed] | None = None,
    ) -> None:
        """`now` returns seconds of a monotonic clock. `roll_s` 0: records do not wait.

        `commit` is called after each base, to commit to tables.
        """
        self._base_s, self._commit = base_s, commit
        self._exporter = exporter
        self._folder = folder
        self._now = now
        self._roll_s = roll_s
        self._keep_s = keep_s
        #: True if the folder changed since the exporter last read it
        self._changed = False
        # records that exist at the start do not wait
        self._waiting_since: float | None = now() - roll_s
        self._states_at = now()
        # after a crash, tables catch up soon
        self._base_at = now() + (base_s if commit is None else 0.0)

    def look(self) -> Look:
        """Export what is due. Raises as `Exporter.run`; the next look continues."""
        now = self._now()
        if self._changed:
            self._exporter.reload()
            self._changed = False
        aged = not self._roll_s or (
            self._waiting_since is not None and now >= self._waiting_since + self._roll_s
        )
        with_states = now >= self._states_at
        done = self._exporter.run(with_states, records_min=0 if aged else ROLL_RECORDS, patient=True)
        if with_states:
            self._states_at = now + min(STATES_S, max(self._roll_s, 1.0) * 2)
        if not any(done.waiting.values()):
            self._waiting_since = None
        elif aged or self._waiting_since is None:
            self._waiting_since = now
        if now < self._base_at:
            return Look(done)
        self._changed = True  # also if the following fails halfway
        merged = compact(self._folder, self._keep_s, tiered=True)
        committed = self._commit() if self._commit is not None else None
        self._base_at = now + self._base_s
        return Look(done, merged, True, committed)
