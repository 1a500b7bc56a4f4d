"""Entries, rows, ranges and deadlines, and the tables that store them. Imports no other core
package.
"""

from gossipq.core.storage import log, payloads
from gossipq.core.storage.bodies import Bodies
from gossipq.core.storage.calendar import Calendar, NoCalendar
from gossipq.core.storage.columns import Columns, Opened
from gossipq.core.storage.deadlines import Deadlines
from gossipq.core.storage.intervals import Intervals, RangeMap, StoredIntervals, StoredRangeMap, melted
from gossipq.core.storage.log import (
    INDEX_KEY,
    NO_CHAIN,
    ROLLUP,
    TRIM,
    Due,
    Entry,
    LogState,
    decode_row,
    encode_row,
)
from gossipq.core.storage.payloads import CopySet, Dead, FailRow, LeaseRow, ParkRow, ReleaseRow, Rollup, Trim
from gossipq.core.storage.recent import Recent, Shelf
from gossipq.core.storage.settings import ShardSettings
from gossipq.core.storage.tables import Reader, Table, Tables

__all__ = [
    "INDEX_KEY",
    "NO_CHAIN",
    "ROLLUP",
    "TRIM",
    "Bodies",
    "Calendar",
    "Columns",
    "CopySet",
    "Dead",
    "Deadlines",
    "Due",
    "Entry",
    "FailRow",
    "Intervals",
    "LeaseRow",
    "LogState",
    "NoCalendar",
    "Opened",
    "ParkRow",
    "RangeMap",
    "Reader",
    "Recent",
    "ReleaseRow",
    "Rollup",
    "ShardSettings",
    "Shelf",
    "StoredIntervals",
    "StoredRangeMap",
    "Table",
    "Tables",
    "Trim",
    "decode_row",
    "encode_row",
    "log",
    "melted",
    "payloads",
]
