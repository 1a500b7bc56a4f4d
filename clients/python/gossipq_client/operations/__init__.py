"""Questions and repairs of operators, as talks: generators that yield each
call they wait for. Pure.
"""

from gossipq_client.operations.jobs import Job, Jobs, ends_s, named_job, reported_ms, wait_ms_of
from gossipq_client.operations.joins import TIMEOUT, Joining, JoinOptions, joined_records, then_of
from gossipq_client.operations.orders import Operating
from gossipq_client.operations.questions import Ranges, Result, Talk, go_on
from gossipq_client.operations.schedules import (
    Place,
    Planning,
    ScheduleOptions,
    ScheduleState,
    Tick,
    record_of,
    schedule_of,
)
from gossipq_client.operations.search import Progress, Search
from gossipq_client.operations.stored import DeadLetter, StoredRecord

__all__ = [
    "TIMEOUT",
    "DeadLetter",
    "Job",
    "Jobs",
    "JoinOptions",
    "Joining",
    "Operating",
    "Place",
    "Planning",
    "Progress",
    "Ranges",
    "Result",
    "ScheduleOptions",
    "ScheduleState",
    "Search",
    "StoredRecord",
    "Talk",
    "Tick",
    "ends_s",
    "go_on",
    "joined_records",
    "named_job",
    "record_of",
    "reported_ms",
    "schedule_of",
    "then_of",
    "wait_ms_of",
]
