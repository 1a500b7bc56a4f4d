"""Operations on topics, groups, single records and dead letters, for operators."""

from contextlib import suppress
from typing import Any

import msgspec

from gossipq import limits
from gossipq.errors import JobFailed, NoReply
from gossipq_client.answers import TopicDetails, plain_of
from gossipq_client.api.aio import RecordHandle
from gossipq_client.values import inputs
from gossipq_gateway.v1 import plain, shapes
from gossipq_gateway.v1.operation import Call
from gossipq_ops.sums import GroupSum, group_sums
from gossipq_ops.verbs import seek_back


def _topic(found: TopicDetails) -> shapes.Topic:
    return shapes.Topic(name=found.name, partitions=len(found.shards), config=plain_of(found.config))


# --- topics


async def topics(call: Call) -> shapes.Topics:
    """List topics whose names match a pattern."""
    found = await call.caller.mq.topics(call.query.pattern)
    return shapes.Topics(topics=list(map(_topic, found)))


async def create_topic(call: Call) -> shapes.Topic:
    """Create a topic."""
    body: shapes.NewTopic = call.body
    policy = plain.options_of(body, "name", "partitions", "if_not_exists")
    made = await call.caller.mq.create_topic(
        body.name, body.partitions, if_not_exists=body.if_not_exists, **policy
    )
    return _topic(made)


async def topic(call: Call) -> shapes.Topic:
    """Return a topic and its policy."""
    return _topic(await call.caller.mq.topic(call.path["topic"]).describe())


async def set_topic(call: Call) -> shapes.Topic:
    """Change the policy of a topic."""
    return _topic(await call.caller.mq.topic(call.path["topic"]).configure(**plain.options_of(call.body)))


async def delete_topic(call: Call) -> None:
    """Delete a topic with its records and groups."""
    await call.caller.mq.topic(call.path["topic"]).delete()


async def purge_topic(call: Call) -> shapes.Counted:
    """Remove all records that the topic has now; scheduled records stay."""
    body: shapes.Purge = call.body
    count = await call.caller.mq.topic(call.path["topic"]).purge(body.partition, dry_run=body.dry_run)
    return shapes.Counted(count=count)


# --- groups


def _group(found: GroupSum) -> shapes.Group:
    same = (
        "group",
        "lag",
        "ready",
        "in_flight",
        "retrying",
        "parked",
        "dead",
        "acked",
        "consumers",
        "paused",
        "behind_limit",
        "behind_rate",
    )
    return shapes.Group(
        oldest_s=found.oldest_ms / 1000,
        work=found.ready - found.behind_limit - found.behind_rate + found.in_flight,
        **{name: getattr(found, name) for name in same},
    )


async def groups(call: Call) -> shapes.Groups:
    """List the groups of a topic with their counters."""
    counted = await call.caller.mq.admin.raw.stats([call.path["topic"]])
    found = group_sums(counted.groups)
    return shapes.Groups(groups=[_group(found[name]) for name in sorted(found)])


async def flows(call: Call) -> shapes.Flows:
    """List the busiest and the most delayed flows of a group of order "fair"."""
    group = call.caller.mq.group(call.path["topic"], call.path["group"])
    found = (await group.describe(flows=call.query.n)).flows
    same = "flow", "partition", "waiting", "in_flight", "waits_for"
    rows = [
        shapes.Flow(oldest_s=each.oldest.total_seconds(), **{name: getattr(each, name) for name in same})
        for each in found
    ]
    return shapes.Flows(flows=rows)


async def set_group(call: Call) -> None:
    """Change the policy of a group."""
    path = call.path
    await call.caller.mq.group(path["topic"], path["group"]).configure(**plain.options_of(call.body))


async def delete_group(call: Call) -> shapes.Counted:
    """Delete a group. Returns the number of its shards."""
    path = call.path
    count = await call.caller.mq.group(path["topic"], path["group"]).delete(dead=call.body.dead)
    return shapes.Counted(count=count)


async def seek_group(call: Call) -> shapes.SoughtList:
    """Move a group to another position."""
    body: shapes.Seek = call.body
    to, topic, group = plain.start_of(body.to), call.path["topic"], call.path["group"]
    rows = await call.caller.mq.group(topic, group).seek(to, dry_run=body.dry_run)
    undo = None if body.dry_run else seek_back(topic, group, [row.before for row in rows])
    partitions = msgspec.convert(rows, list[shapes.Sought], from_attributes=True)
    return shapes.SoughtList(partitions=partitions, undo=plain.undo(undo))


async def why_group(call: Call) -> shapes.Why:
    """Explain in each partition why a group waits."""
    topic, group = call.path["topic"], call.path["group"]
    stands = await call.caller.mq.group(topic, group).why()
    return shapes.Why(
        ref=f"{topic}/{group}",
        standings=[_stand(each, group=group, partition=each.partition) for each in stands],
    )


def _stand(standing: Any, **where: Any) -> shapes.Stand:
    return shapes.Stand(state=standing.state, because=standing.because, next=standing.next, **where)


# --- single records


def _record(call: Call) -> RecordHandle:
    """Return a handle of the record that the path names.

    It is TOPIC/PARTITION/OFFSET, TOPIC/PARTITION/@ENTRY.RECORD, or TOPIC/by-id/ID.
    """
    topic, partition, place = (call.path[name] for name in ("topic", "partition", "place"))
    if partition == "by-id":
        return call.caller.mq.record(topic, id=place)
    return call.caller.mq.record(f"{topic}/{partition}/{place}")


async def show(call: Call) -> shapes.Delivery:
    """Return a record, also a scheduled one or a dead letter."""
    return plain.shown(await _record(call).show())


async def why(call: Call) -> shapes.Why:
    """Explain the state of a record for one or all groups: state, reason, and
    the command to change it.
    """
    found = await _record(call).why(group=call.query.group)
    return shapes.Why(
        ref=_ref(call),
        standings=[_stand(each, group=each.group) for each in found.standings],
    )


async def job(call: Call) -> shapes.Job:
    """Return the state of a record as a job, and its result."""
    return plain.job(await call.caller.mq.job(_ref(call), group=call.query.group))


async def join(call: Call) -> shapes.Moved:
    """Publish a record once when jobs have ended. Its header `gossipq-parts` tells how each one ended."""
    value, options = plain.sealed(call.body)
    jobs = options.pop("jobs")
    ref = await call.caller.mq.join(jobs, then=(call.path["topic"], value), **options)
    return shapes.Moved(ref=ref)


async def result(call: Call) -> shapes.Job:
    """Wait until a job has ended, and return its state and result."""
    mq, ref, group = call.caller.mq, _ref(call), call.query.group
    wait_s = inputs.duration_ms(call.query.wait, "wait", 0, limits.JOB_WAIT_MS_MAX) / 1_000
    with suppress(JobFailed, NoReply):  # the state tells
        await mq.result(ref, timeout=wait_s, group=group)
    return plain.job(await mq.job(ref, group=group))


def _ref(call: Call) -> str:
    return "/".join(call.path[name] for name in ("topic", "partition", "place"))


async def trace(call: Call) -> shapes.Steps:
    """Return the history of a record, as far as the topic keeps it."""
    found = await _record(call).trace(group=call.query.group)
    return shapes.Steps(
        steps=[
            shapes.Step(
                time=each.time.timestamp(),
                what=each.what,
                group=each.group,
                consumer=each.consumer,
                reason=each.reason,
                attempt=each.attempt,
            )
            for each in found
        ]
    )


async def edit(call: Call) -> shapes.Stored:
    """Replace the value or the headers of a record by a new record."""
    body: shapes.Edit = call.body
    given = bytes(body.value) or body.value_base64 is not None
    value = plain.value_of(body.value, body.value_base64) if given else None
    headers = plain.headers_in(body)
    return plain.stored(await _record(call).edit(value=value, headers=headers))


async def cancel(call: Call) -> shapes.Moved:
    """Void a record that not every group has acked; if a consumer holds it, only with `running`."""
    body: shapes.Reason = call.body
    return shapes.Moved(ref=await _record(call).cancel(reason=body.reason, running=body.running))


async def reschedule(call: Call) -> shapes.Moved:
    """Change the due time of a scheduled record."""
    options = plain.options_of(call.body)
    return shapes.Moved(ref=await _record(call).reschedule(**options))


async def requeue(call: Call) -> shapes.Moved:
    """Make a record ready for a group once more."""
    ref = await _record(call).requeue(group=call.body.group)
    return shapes.Moved(ref=ref)


# --- dead letters


async def dead_letters(call: Call) -> shapes.DeadList:
    """List the dead letters of a group."""
    asked: shapes.DeadPage = call.query
    found: list[shapes.Dead] = []
    async for letter in call.caller.mq.dead(call.path["topic"], call.path["group"]).letters(
        values=asked.values
    ):
        found.append(plain.dead(letter, asked.values))
        if len(found) == asked.n:
            break
    return shapes.DeadList(dead=found)


async def replay_dead(call: Call) -> shapes.Counted:
    """Make dead letters ready for their group again, or publish them to another topic."""
    body: shapes.Replay = call.body
    count = await call.caller.mq.dead(call.path["topic"], call.path["group"]).replay(
        body.ranges, to=body.to, dry_run=body.dry_run
    )
    return shapes.Counted(count=count)


async def purge_dead(call: Call) -> shapes.Counted:
    """Delete dead letters."""
    body: shapes.Letters = call.body
    count = await call.caller.mq.dead(call.path["topic"], call.path["group"]).purge(
        body.ranges, dry_run=body.dry_run
    )
    return shapes.Counted(count=count)


# --- callers


async def whoami(call: Call) -> shapes.WhoAmI:
    """Return the caller's user and permissions."""
    found = await call.caller.mq.admin.whoami()
    return shapes.WhoAmI(
        user=found.user,
        closed=found.closed,
        acting=found.acting,
        rules=[{"topics": rule.topics, "permissions": rule.permissions} for rule in found.rules],
    )
