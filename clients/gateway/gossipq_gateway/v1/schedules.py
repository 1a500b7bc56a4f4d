"""Operations on the schedules of a topic."""

from gossipq_client.operations import ScheduleState
from gossipq_gateway.v1 import plain, shapes
from gossipq_gateway.v1.operation import Call
from gossipq_ops.verbs import undo_if


async def set_schedule(call: Call) -> shapes.Changed:
    """Set a schedule of a topic, or change it: one record at each tick."""
    body: shapes.NewSchedule = call.body
    topic, name = _named(call)
    value, options = plain.sealed(body)
    changed = await call.caller.mq.schedule(topic, value, name=name, **options)
    return shapes.Changed(changed=changed)


async def schedules(call: Call) -> shapes.ScheduleList:
    """List the schedules of a topic."""
    found = await call.caller.mq.schedules.all(call.path["topic"])
    return shapes.ScheduleList(schedules=[_shown(state) for state in found])


async def schedule(call: Call) -> shapes.ScheduleShown:
    """Show a schedule, its last ticks and the next ones."""
    return _shown(await call.caller.mq.schedules.show(*_named(call)))


async def delete_schedule(call: Call) -> shapes.Changed:
    """Remove a schedule. Records that it stored stay."""
    return shapes.Changed(changed=await call.caller.mq.schedules.remove(*_named(call)))


async def pause_schedule(call: Call) -> shapes.Changed:
    """Stop the ticks of a schedule until it is resumed. A tick of the pause never gets a record."""
    return _changed(await call.caller.mq.schedules.pause(*_named(call)), "pause", call)


async def resume_schedule(call: Call) -> shapes.Changed:
    """Let a paused schedule go on with its next tick."""
    return _changed(await call.caller.mq.schedules.resume(*_named(call)), "resume", call)


async def run_schedule(call: Call) -> shapes.Moved:
    """Store the record of a schedule now, besides its ticks."""
    return shapes.Moved(ref=await call.caller.mq.schedules.run(*_named(call)))


def _changed(changed: bool, verb: str, call: Call) -> shapes.Changed:
    return shapes.Changed(changed=changed, undo=plain.undo(undo_if(changed, verb, "schedule", *_named(call))))


def _named(call: Call) -> tuple[str, str]:
    return call.path["topic"], call.path["name"]


def _shown(state: ScheduleState) -> shapes.ScheduleShown:
    return shapes.ScheduleShown(
        topic=state.topic,
        partition=state.partition,
        name=state.name,
        cron=state.cron,
        tz=state.tz,
        every=state.every,
        start=None if state.start is None else state.start.timestamp(),
        end=None if state.end is None else state.end.timestamp(),
        count=state.count,
        jitter=state.jitter,
        missed=state.missed,
        missed_max=state.missed_max,
        overlap=state.overlap,
        paused=state.paused,
        ticks=state.ticks,
        last=[shapes.Tick(time=tick.time.timestamp(), offset=tick.offset) for tick in state.last],
        next=[at.timestamp() for at in state.next],
    )
