"""Bounds so small that a short run meets them: compaction, snapshots in many parts, full windows."""

from collections.abc import Iterator
from contextlib import contextmanager

from gossipq import limits
from gossipq.core.copies import snapshot
from gossipq.core.delivery import consumers, prefetch
from gossipq.core.ledger import retention
from gossipq.core.register import roster
from sim.clients import CREDIT, RUN

FAILURES_PER_TURN, LETTERS_PER_TURN, SNAPSHOT_ROWS_PER_TURN = 4, 3, 20
SMALL = [
    (retention, "LOG_KEEP", 6),
    (retention, "LOG_STEP", 3),
    (snapshot, "WIPE_ROWS", 9),
    (limits, "LOG_LAG_ROWS", 25),
    (limits, "SNAPSHOT_PART_BYTES", 400),
    (limits, "REPLICATE_BYTES_MAX", 1_000),
    (limits, "RECENT_BYTES_MAX", 3_000),
    (limits, "IN_FLIGHT_APPENDS_MAX", 4),
    (limits, "HAND_BACK_MS", 2_000),
    (limits, "FAILURES_PER_TURN", FAILURES_PER_TURN),
    (limits, "LETTERS_PER_TURN", LETTERS_PER_TURN),
    (limits, "SNAPSHOT_ROWS_PER_TURN", SNAPSHOT_ROWS_PER_TURN),
    (limits, "UNAPPLIED_BYTES_MAX", 20_000),
    (limits, "STRAY_MS", 1_800),
    (limits, "UNEVEN_MS", 60),
    (limits, "PREFETCH_START", 6),
    (limits, "PREFETCH_MIN", 2),
    (limits, "PREFETCH_MAX", 1_000),
    (limits, "PREFETCH_GROWTH", 2),
    (prefetch, "PERIOD_MS", 100),
    (limits, "STRAY_ROWS", 5),
    (roster, "LIVING_MS", 2_000),
    (consumers, "KEY_RANGES", 2),
    (consumers, "KEY_RUN_PART", CREDIT // RUN),
]


@contextmanager
def small() -> Iterator[None]:
    before = [getattr(module, name) for module, name, _ in SMALL]
    for module, name, value in SMALL:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(SMALL, before, strict=True):
            setattr(module, name, value)
