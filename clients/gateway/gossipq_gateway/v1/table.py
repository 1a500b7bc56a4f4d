"""All operations of the native API, the most frequent ones first.

Routes and OpenAPI are made of this table.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from gossipq_gateway.v1 import operators, records, schedules, shapes, streams
from gossipq_gateway.v1.operation import JSON, NDJSON, Call, Operation

Handle = Callable[[Call], Awaitable[Any]]
Shape = type[msgspec.Struct]

_TOPIC, _GROUP = "/v1/topics/{topic}", "/v1/topics/{topic}/groups/{group}"
_RECORD = "/v1/records/{topic}/{partition}/{place}"
_SCHEDULE = f"{_TOPIC}/schedules/{{name}}"
_KINDS = (
    (JSON, (shapes.Record, shapes.Records)),
    (NDJSON, (shapes.Record,)),
    ("application/octet-stream", ()),
)


def _op(
    method: str,
    path: str,
    name: str,
    handle: Handle,
    query: Shape | None = None,
    body: Shape | None = None,
    reply: Shape | None = None,
    status: int = 200,
    kinds: tuple[tuple[str, tuple[Shape, ...]], ...] = (),
    streams: bool = False,
) -> Operation:
    """Return an operation. Its description in OpenAPI is the docstring of its handler."""
    about = " ".join((handle.__doc__ or "").split())
    return Operation(method, path, name, about, handle, query, body, reply, status, kinds, streams)


OPERATIONS: tuple[Operation, ...] = (
    _op(
        "POST",
        f"{_TOPIC}/records",
        "publish",
        records.publish,
        shapes.Publish,
        None,
        shapes.Stored,
        201,
        kinds=_KINDS,
    ),
    _op("POST", f"{_GROUP}/fetch", "fetch", records.fetch, None, shapes.Fetch, shapes.Deliveries),
    _op("POST", "/v1/ack", "ack", records.ack, None, shapes.Ack, shapes.Settled),
    _op("POST", "/v1/nack", "nack", records.nack, None, shapes.Nack, shapes.Settled),
    _op("POST", "/v1/reject", "reject", records.reject, None, shapes.Reject, shapes.Settled),
    _op("POST", "/v1/extend", "extend", records.extend, None, shapes.Extend, shapes.Settled),
    _op("GET", f"{_TOPIC}/records", "read", records.read_range, shapes.Read, None, shapes.Page),
    _op("GET", f"{_TOPIC}/find", "find", records.find, shapes.Find, None, shapes.Deliveries),
    _op("GET", f"{_TOPIC}/stream", "stream", streams.events, shapes.Stream, streams=True),
    _op("GET", _RECORD, "show", operators.show, None, None, shapes.Delivery),
    _op("PATCH", _RECORD, "edit", operators.edit, None, shapes.Edit, shapes.Stored),
    _op("GET", f"{_RECORD}/why", "why", operators.why, shapes.OfGroup, None, shapes.Why),
    _op("GET", f"{_RECORD}/job", "job", operators.job, shapes.OfGroup, None, shapes.Job),
    _op("GET", f"{_RECORD}/result", "result", operators.result, shapes.Wait, None, shapes.Job),
    _op("GET", f"{_RECORD}/follow", "follow", streams.follow, shapes.OfGroup, streams=True),
    _op("GET", f"{_RECORD}/trace", "trace", operators.trace, shapes.OfGroup, None, shapes.Steps),
    _op("POST", f"{_TOPIC}/join", "join", operators.join, None, shapes.NewJoin, shapes.Moved, 201),
    _op("POST", f"{_RECORD}/cancel", "cancel", operators.cancel, None, shapes.Reason, shapes.Moved),
    _op(
        "POST", f"{_RECORD}/reschedule", "reschedule", operators.reschedule, None, shapes.Later, shapes.Moved
    ),
    _op("POST", f"{_RECORD}/requeue", "requeue", operators.requeue, None, shapes.ForGroup, shapes.Moved),
    _op("GET", "/v1/topics", "topics", operators.topics, shapes.Names, None, shapes.Topics),
    _op(
        "POST", "/v1/topics", "create_topic", operators.create_topic, None, shapes.NewTopic, shapes.Topic, 201
    ),
    _op("GET", _TOPIC, "topic", operators.topic, None, None, shapes.Topic),
    _op("PATCH", _TOPIC, "set_topic", operators.set_topic, None, shapes.Policy, shapes.Topic),
    _op("DELETE", _TOPIC, "delete_topic", operators.delete_topic),
    _op("POST", f"{_TOPIC}/purge", "purge_topic", operators.purge_topic, None, shapes.Purge, shapes.Counted),
    _op("GET", f"{_TOPIC}/schedules", "schedules", schedules.schedules, None, None, shapes.ScheduleList),
    _op("GET", _SCHEDULE, "schedule", schedules.schedule, None, None, shapes.ScheduleShown),
    _op("PUT", _SCHEDULE, "set_schedule", schedules.set_schedule, None, shapes.NewSchedule, shapes.Changed),
    _op("DELETE", _SCHEDULE, "delete_schedule", schedules.delete_schedule, None, None, shapes.Changed),
    _op("POST", f"{_SCHEDULE}/pause", "pause_schedule", schedules.pause_schedule, None, None, shapes.Changed),
    _op(
        "POST",
        f"{_SCHEDULE}/resume",
        "resume_schedule",
        schedules.resume_schedule,
        None,
        None,
        shapes.Changed,
    ),
    _op("POST", f"{_SCHEDULE}/run", "run_schedule", schedules.run_schedule, None, None, shapes.Moved),
    _op("GET", f"{_TOPIC}/groups", "groups", operators.groups, None, None, shapes.Groups),
    _op("PATCH", _GROUP, "set_group", operators.set_group, None, shapes.GroupPolicy),
    _op("DELETE", _GROUP, "delete_group", operators.delete_group, None, shapes.Removal, shapes.Counted),
    _op("POST", f"{_GROUP}/seek", "seek_group", operators.seek_group, None, shapes.Seek, shapes.SoughtList),
    _op("GET", f"{_GROUP}/flows", "flows", operators.flows, shapes.FlowPage, None, shapes.Flows),
    _op("GET", f"{_GROUP}/why", "why_group", operators.why_group, None, None, shapes.Why),
    _op(
        "GET",
        f"{_GROUP}/dead",
        "dead_letters",
        operators.dead_letters,
        shapes.DeadPage,
        None,
        shapes.DeadList,
    ),
    _op(
        "POST",
        f"{_GROUP}/dead/replay",
        "replay_dead",
        operators.replay_dead,
        None,
        shapes.Replay,
        shapes.Counted,
    ),
    _op(
        "POST",
        f"{_GROUP}/dead/purge",
        "purge_dead",
        operators.purge_dead,
        None,
        shapes.Letters,
        shapes.Counted,
    ),
    _op("GET", "/v1/whoami", "whoami", operators.whoami, None, None, shapes.WhoAmI),
)
