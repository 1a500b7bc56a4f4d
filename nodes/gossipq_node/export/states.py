"""Rows of `acks` and `deliveries`, as columns. A row covers a run of records, so there are few."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gossipq.export_messages import States
from gossipq.values import AckRun, StateRun, TopicInfo
from gossipq.wire import export
from gossipq_client import columns

if TYPE_CHECKING:
    from pyarrow import Table


def acks(info: TopicInfo, partition: int, runs: Sequence[AckRun]) -> "Table":
    fields: dict[str, list[Any]] = {
        "group_name": [run.group for run in runs],
        "start_offset": [run.first for run in runs],
        "end_offset": [run.end for run in runs],
        "acked_at": [run.time_ms * 1000 for run in runs],
        "consumer": [run.consumer or None for run in runs],
        "change_seq": [run.index for run in runs],
    }
    return _table(export.ACKS, info, partition, len(runs), fields)


def deliveries(info: TopicInfo, partition: int, pages: Sequence[States]) -> "Table":
    runs: list[StateRun] = [run for page in pages for run in page.runs]
    fields: dict[str, list[Any]] = {
        "group_name": [run.group for run in runs],
        "state": [run.state for run in runs],
        "start_offset": [run.first for run in runs],
        "end_offset": [run.end for run in runs],
        "attempts": [run.attempts for run in runs],
        "failures": [run.failures for run in runs],
        "due_at": [run.due_ms * 1000 or None for run in runs],
        "changed_at": [run.time_ms * 1000 or None for run in runs],
        "reason": [run.reason or None for run in runs],
        "error": [run.error or None for run in runs],
        "consumer": [run.consumer or None for run in runs],
        "change_seq": [page.index for page in pages for _ in page.runs],
    }
    return _table(export.DELIVERIES, info, partition, len(runs), fields)


def _table(
    data_set: str, info: TopicInfo, partition: int, count: int, fields: dict[str, list[Any]]
) -> "Table":
    pa, schema = columns.arrow(), columns.schema(data_set)
    place = {"topic": [info.name] * count, "topic_id": [info.id] * count, "partition": [partition] * count}
    values = {**place, **fields}
    return pa.Table.from_arrays([pa.array(values[field.name], field.type) for field in schema], schema=schema)
