"""Topics, groups, single records, dead letters: what operators ask and mend."""

from typing import Any

from gossipq.types import partition_of
from gossipq.values import GroupStats, TopicInfo
from gossipq_gateway.v1 import plain, shapes
from gossipq_gateway.v1.operation import Call

TRACE_SECONDS = 1000


def _topic(info: TopicInfo) -> shapes.Topic:
    return shapes.Topic(
        name=info.name,
        partitions=len(info.shards),
        config={name: getattr(info.config, name) for name in info.config.__struct_fields__},
    )


# --- topics


async def topics(call: Call) -> shapes.Topics:
    """Topics whose name fits a pattern."""
    found = await call.caller.mq.topics(call.query.pattern)
    return shapes.Topics(topics=list(map(_topic, found)))


async def create_topic(call: Call) -> shapes.Topic:
    """Makes a topic."""
    body: shapes.NewTopic = call.body
    policy = plain.options_of(body, "name", "partitions", "if_not_exists")
    made = await call.caller.mq.create_topic(
        body.name, body.partitions, if_not_exists=body.if_not_exists, **policy
    )
    return _topic(made)


async def topic(call: Call) -> shapes.Topic:
    """One topic and its policy."""
    name = call.path["topic"]
    found = [info for info in await call.caller.mq.topics(name) if info.name == name]
    if not found:
        await call.caller.mq.admin.positions(name)  # says that there is none
    return _topic(found[0])


async def set_topic(call: Call) -> shapes.Topic:
    """Changes the policy of a topic."""
    return _topic(await call.caller.mq.admin.set_topic(call.path["topic"], **plain.options_of(call.body)))


async def delete_topic(call: Call) -> None:
    """The topic, its records and its groups."""
    await call.caller.mq.admin.delete_topic(call.path["topic"])


async def purge_topic(call: Call) -> shapes.Counted:
    """Removes all records that the topic has now; scheduled ones stay."""
    body: shapes.Purge = call.body
    count = await call.caller.mq.admin.purge_topic(call.path["topic"], body.partition, dry_run=body.dry_run)
    return shapes.Counted(count=count)


# --- groups


def _group(rows: list[GroupStats]) -> shapes.Group:
    return shapes.Group(
        group=rows[0].group,
        lag=sum(row.ready + row.in_flight + row.retrying + row.parked for row in rows),
        ready=sum(row.ready for row in rows),
        in_flight=sum(row.in_flight for row in rows),
        retrying=sum(row.retrying for row in rows),
        parked=sum(row.parked for row in rows),
        dead=sum(row.dead for row in rows),
        acked=sum(row.acked for row in rows),
        consumers=max(row.consumers for row in rows),
        paused=any(row.paused for row in rows),
        oldest_s=max(row.oldest_ms for row in rows) / 1000,
    )


async def groups(call: Call) -> shapes.Groups:
    """Groups of a topic with their counters."""
    rows: dict[str, list[GroupStats]] = {}
    for row in await call.caller.mq.admin.groups(call.path["topic"]):
        rows.setdefault(row.group, []).append(row)
    return shapes.Groups(groups=[_group(rows[name]) for name in sorted(rows)])


async def set_group(call: Call) -> None:
    """Changes the policy of a group."""
    path = call.path
    await call.caller.mq.admin.set_group(path["topic"], path["group"], **plain.options_of(call.body))


async def delete_group(call: Call) -> shapes.Counted:
    """A group ends; returns in how many shards it was."""
    path = call.path
    count = await call.caller.mq.admin.delete_group(path["topic"], path["group"], dead=call.body.dead)
    return shapes.Counted(count=count)


async def seek_group(call: Call) -> shapes.SoughtList:
    """A group goes on from somewhere else."""
    body: shapes.Seek = call.body
    to = plain.start_of(body.to)
    rows = await call.caller.mq.admin.seek_group(
        call.path["topic"], call.path["group"], to, dry_run=body.dry_run
    )
    return shapes.SoughtList(
        partitions=[
            shapes.Sought(
                partition=partition_of(row.partition),
                before=row.before,
                after=row.after,
                again=row.again,
                skipped=row.skipped,
            )
            for row in rows
        ]
    )


async def why_group(call: Call) -> shapes.Why:
    """Why a group stands still, or does not, in each partition."""
    topic, group = call.path["topic"], call.path["group"]
    stands = await call.caller.mq.admin.why_group(topic, group)
    return shapes.Why(
        ref=f"{topic}/{group}",
        standings=[_stand(each, group=group, partition=each.partition) for each in stands],
    )


def _stand(standing: Any, **where: Any) -> shapes.Stand:
    return shapes.Stand(state=standing.state, because=standing.because, next=standing.next, **where)


# --- single records


def _named(call: Call) -> dict[str, Any]:
    """How the path names a record: TOPIC/PARTITION/OFFSET, TOPIC/PARTITION/@ENTRY.RECORD, or
    TOPIC/by-id/ID."""
    topic, partition, place = (call.path[name] for name in ("topic", "partition", "place"))
    if partition == "by-id":
        return {"topic": topic, "id": place}
    return {"ref": f"{topic}/{partition}/{place}"}


async def show(call: Call) -> shapes.Delivery:
    """The record itself, also while it is scheduled or a dead letter."""
    return plain.shown(await call.caller.mq.admin.show(**_named(call)))


async def why(call: Call) -> shapes.Why:
    """Where a record stands for a group, or for each: its state, because of what, and the command that
    changes it."""
    found = await call.caller.mq.why(**_named(call), group=call.query.group)
    return shapes.Why(
        ref="/".join(call.path[name] for name in ("topic", "partition", "place")),
        standings=[_stand(each, group=each.group) for each in found.standings],
    )


async def trace(call: Call) -> shapes.Steps:
    """What happened to a record, as far as the topic keeps it."""
    found = await call.caller.mq.admin.trace(**_named(call), group=call.query.group)
    return shapes.Steps(
        steps=[
            shapes.Step(
                time=each.time_ms / TRACE_SECONDS,
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
    """A record with another value or other headers takes the place of the old one."""
    body: shapes.Edit = call.body
    given = bytes(body.value) or body.value_base64 is not None
    value = plain.value_of(body.value, body.value_base64) if given else None
    headers = plain.headers_in(body)
    return plain.stored(await call.caller.mq.admin.edit(**_named(call), value=value, headers=headers))


async def cancel(call: Call) -> shapes.Moved:
    """Voids a record that no consumer holds and not every group has acked."""
    return shapes.Moved(ref=await call.caller.mq.cancel(**_named(call), reason=call.body.reason))


async def reschedule(call: Call) -> shapes.Moved:
    """Another due time for a scheduled record."""
    options = plain.options_of(call.body)
    return shapes.Moved(ref=await call.caller.mq.reschedule(**_named(call), **options))


async def requeue(call: Call) -> shapes.Moved:
    """Hands a record to a group once more."""
    ref = await call.caller.mq.admin.requeue(**_named(call), group=call.body.group)
    return shapes.Moved(ref=ref)


# --- dead letters


async def dead_letters(call: Call) -> shapes.DeadList:
    """Dead letters of a group."""
    asked: shapes.DeadPage = call.query
    found: list[shapes.Dead] = []
    async for letter in call.caller.mq.admin.dead_letters(
        call.path["topic"], call.path["group"], values=asked.values
    ):
        found.append(plain.dead(letter, asked.values))
        if len(found) == asked.n:
            break
    return shapes.DeadList(dead=found)


async def replay_dead(call: Call) -> shapes.Counted:
    """Dead letters are ready for their group again, or go to another topic."""
    body: shapes.Replay = call.body
    count = await call.caller.mq.admin.replay_dead(
        call.path["topic"], call.path["group"], body.ranges, to=body.to, dry_run=body.dry_run
    )
    return shapes.Counted(count=count)


async def purge_dead(call: Call) -> shapes.Counted:
    """Dead letters go for good."""
    body: shapes.Letters = call.body
    count = await call.caller.mq.admin.purge_dead(
        call.path["topic"], call.path["group"], body.ranges, dry_run=body.dry_run
    )
    return shapes.Counted(count=count)


# --- who asks


async def whoami(call: Call) -> shapes.WhoAmI:
    """Who the caller is to the cluster, and what it may do."""
    found = await call.caller.mq.admin.whoami()
    return shapes.WhoAmI(
        user=found.user,
        closed=found.closed,
        acting=found.acting,
        rules=[{"topics": rule.topics, "permissions": rule.permissions} for rule in found.rules],
    )
