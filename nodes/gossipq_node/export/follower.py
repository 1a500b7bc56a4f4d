"""`gossipq export --follow`: what an export needs to go on for months. It looks often, writes rarely, and
tidies up itself.

Records wait in the cluster until they are worth a file: there are many of them, or the first one has waited
long enough. Once an hour small files are merged and a base is published; what was replaced is removed an hour
later. Time is handed in.
"""

from collections.abc import Callable

import msgspec

from gossipq_node.export.compaction import KEEP_S, compact
from gossipq_node.export.exporter import Exporter, RunTotals
from gossipq_node.export.folder import Folder
from gossipq_node.export.iceberg import Committed

ROLL_S = 300.0  #: records wait no longer for their file, unless one asks for another time
ROLL_RECORDS = 1 << 18  #: so many of a partition wait no longer
STATES_S = 600.0  #: acks and deliveries are exported so often
BASE_S = 3600.0  #: between two bases


class Look(msgspec.Struct):
    """What one look at the cluster came to."""

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
        """`now`: seconds of a clock that never goes back. roll_s 0: nothing waits. commit: to tables, after
        each base."""
        self._base_s, self._commit = base_s, commit
        self._exporter, self._folder, self._now, self._roll_s, self._keep_s = (
            exporter,
            folder,
            now,
            roll_s,
            keep_s,
        )
        #: whether others than the exporter have published since it last read the folder
        self._changed = False
        self._waiting_since: float | None = now() - roll_s  # what is there at the start does not wait
        self._states_at = now()
        # what a crash kept from a table is there soon
        self._base_at = now() + (base_s if commit is None else 0.0)

    def look(self) -> Look:
        """Exports what is due. Raises what `Exporter.run` raises; the next step goes on."""
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
        self._changed = True  # also by what fails in the middle
        merged = compact(self._folder, self._keep_s, tiered=True)
        committed = self._commit() if self._commit is not None else None
        self._base_at = now + self._base_s
        return Look(done, merged, True, committed)
