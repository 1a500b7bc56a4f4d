"""Applies committed entries to partitions and groups, identically on every copy, and stores the
rows.
"""

from gossipq.core.ledger import life, records
from gossipq.core.ledger.acks import decode_ack, runs_of
from gossipq.core.ledger.cluster_state import ClusterState
from gossipq.core.ledger.cursors import Cursor
from gossipq.core.ledger.dedup import HASH
from gossipq.core.ledger.exceptions import AT_ONCE_MS, clip, ranges_of, run_at
from gossipq.core.ledger.joins import JoinName
from gossipq.core.ledger.lanes import ROUTE_LANE, key_lane, key_of, route_lane
from gossipq.core.ledger.ledger import Ledger, decode_void
from gossipq.core.ledger.outcomes import (
    AppliedEntry,
    Counted,
    Outcome,
    Published,
    Regrouped,
    Released,
    TopicChanged,
    Voided,
    refused,
)
from gossipq.core.ledger.records import (
    U64,
    U64X2,
    AckRow,
    DeadRow,
    ExceptionRow,
    GroupState,
    Installing,
    JoinRow,
    Meta,
    PartitionState,
    ResultRow,
    ScheduledRow,
    ScheduleRow,
    TraceRow,
    VoidRow,
)
from gossipq.core.ledger.repeats import stored_by
from gossipq.core.ledger.results import Results
from gossipq.core.ledger.retention import Sweeper, purge_plan
from gossipq.core.ledger.runs import Found, RunRow, Runs
from gossipq.core.ledger.timetable import ScheduleName

__all__ = [
    "AT_ONCE_MS",
    "HASH",
    "ROUTE_LANE",
    "U64",
    "U64X2",
    "AckRow",
    "AppliedEntry",
    "ClusterState",
    "Counted",
    "Cursor",
    "DeadRow",
    "ExceptionRow",
    "Found",
    "GroupState",
    "Installing",
    "JoinName",
    "JoinRow",
    "Ledger",
    "Meta",
    "Outcome",
    "PartitionState",
    "Published",
    "Regrouped",
    "Released",
    "ResultRow",
    "Results",
    "RunRow",
    "Runs",
    "ScheduleName",
    "ScheduleRow",
    "ScheduledRow",
    "Sweeper",
    "TopicChanged",
    "TraceRow",
    "VoidRow",
    "Voided",
    "clip",
    "decode_ack",
    "decode_void",
    "key_lane",
    "key_of",
    "life",
    "purge_plan",
    "ranges_of",
    "records",
    "refused",
    "retention",
    "route_lane",
    "run_at",
    "runs_of",
    "stored_by",
]
