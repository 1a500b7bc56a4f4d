"""Does the verbs of `verbs`, or tells what they would do, with a client that is handed in. Pure.

The command line, `gossipq top` and the console all call these functions, so that a verb has one text
and one undo on all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gossipq.errors import WrongState
from gossipq.messages import StatusReply
from gossipq.texts import many, typed
from gossipq.values import ClientRow, GroupStats
from gossipq_ops import jobs
from gossipq_ops.clusters import ClusterView
from gossipq_ops.inputs import place_of, seconds_of
from gossipq_ops.questions import Act, Done
from gossipq_ops.sums import waiting_of
from gossipq_ops.verbs import seek_back, undo_if

if TYPE_CHECKING:
    from gossipq_client import Client
    from gossipq_client.operations import DeadLetter

RANGES_AT_ONCE = 1_000  #: ranges of dead letters in one request
MOVES_SHOWN = 4
SESSION_DIGITS = 8  #: of a session: enough to identify it

Connect = Callable[[str], "Client"]  #: a client of the node at this address; "" = of any node
Ranges = Sequence[tuple[int, int, int]]  #: partition, first offset, end
Action = Callable[["Client", Act, bool, "Means"], "Outcome"]  #: (client, act, only preview, means)


class Outcome(NamedTuple):
    """The outcome of a verb, or of its preview."""

    text: str
    row: Mapping[str, Any] = MappingProxyType({})  #: for `-o json`
    undo: Act | None = None  #: takes it back; None: nothing does


class Move(Protocol):
    """The place of a shard now, and the one that the cluster plans."""

    @property
    def shard(self) -> int: ...
    @property
    def leads_then(self) -> str: ...
    @property
    def moves(self) -> bool: ...


class Means(NamedTuple):
    """The means of verbs besides a client."""

    #: the STATUS of each node
    look: Callable[[StatusReply], ClusterView]
    #: the secret of the cluster, which changes of its nodes need; raises GossipqError
    secret: Callable[[], bytes]
    plans: Callable[[ClusterView], Sequence[Move]]


def preview(mq: "Client", act: Act, means: Means) -> Done:
    """Return what an act would do. Raises GossipqError, and ValueError for a wrong text."""
    return Done(ACTIONS[act.subject.kind, act.verb](mq, act, True, means).text)


def execute(mq: "Client", act: Act, means: Means) -> Done:
    """Execute an act. Raises as `preview`."""
    outcome = ACTIONS[act.subject.kind, act.verb](mq, act, False, means)
    return Done(outcome.text, outcome.undo)


# --- one record


def requeue(mq: "Client", where: dict[str, Any], group: str) -> Outcome:
    ref = mq.record(**where).requeue(group=group)
    return Outcome(f"{ref} is ready for {group}", {"ref": ref, "group": group})


def edit(mq: "Client", where: dict[str, Any], name: str, **change: Any) -> Outcome:
    receipt = mq.record(**where).edit(**change)
    row = {"ref": receipt.ref, "partition": receipt.partition, "offset": receipt.offset}
    return Outcome(f"{name} is void, {receipt.ref} replaces it", row)


def reschedule(mq: "Client", where: dict[str, Any], **when: Any) -> Outcome:
    ref = mq.record(**where).reschedule(**when)
    at: datetime | None = when.get("at")
    due = f"in {when['delay']:g} s" if at is None else f"at {at:%Y-%m-%d %H:%M:%S%z}"
    return Outcome(f"{ref} is due {due}", {"ref": ref})


def cancel(mq: "Client", where: dict[str, Any], reason: str = "") -> Outcome:
    ref = mq.record(**where).cancel(reason=reason)
    return Outcome(f"{'removed' if reason == 'removed' else 'cancelled'} {ref}", {"ref": ref})


# --- jobs and schedules


def cancel_job(mq: "Client", ref: str, reason: str = "") -> Outcome:
    """Cancel a job, also one that runs."""
    done = mq.cancel(ref, reason=reason)
    return Outcome(f"cancelled {done}", {"ref": done})


def replay_error(mq: "Client", topic: str, group: str, error: str, dry: bool = False) -> Outcome:
    """Redeliver the jobs that failed with this error. Raises WrongState if there are none."""
    rows = jobs.errors_of(mq.dead(topic, group).letters(values=False))
    chosen = next((row for row in rows if row.name == error), None)
    if chosen is None:
        text = f"no job of {group} on {topic} failed with error {error} any more"
        raise WrongState(text, hint=f"gossipq job errors {topic}/{group}")
    return replay(mq, topic, group, chosen.ranges, dry=dry)


def run_schedule(mq: "Client", topic: str, name: str) -> Outcome:
    """Store the record of a schedule now."""
    ref = mq.schedules.run(topic, name)
    return Outcome(f"stored as {ref}", {"topic": topic, "name": name, "ref": ref})


def pause_schedule(mq: "Client", topic: str, name: str) -> Outcome:
    changed = mq.schedules.pause(topic, name)
    row = {"topic": topic, "name": name, "changed": changed}
    undo = undo_if(changed, "pause", "schedule", topic, name)
    return Outcome(f"schedule {name} of {topic} is paused", row, undo)


def resume_schedule(mq: "Client", topic: str, name: str) -> Outcome:
    changed = mq.schedules.resume(topic, name)
    row = {"topic": topic, "name": name, "changed": changed}
    undo = undo_if(changed, "resume", "schedule", topic, name)
    return Outcome(f"schedule {name} of {topic} goes on", row, undo)


def remove_schedule(mq: "Client", topic: str, name: str) -> Outcome:
    removed = mq.schedules.remove(topic, name)
    text = f"schedule {name} of {topic} is removed" if removed else f"{topic} has no schedule {name}"
    return Outcome(text, {"topic": topic, "name": name, "removed": removed})


# --- a group, and its dead letters


def replay(
    mq: "Client",
    topic: str,
    group: str,
    ranges: Ranges | None = None,
    to: str | None = None,
    dry: bool = False,
) -> Outcome:
    """Redeliver dead letters, all or some, or publish them to another topic."""
    count = _in_portions(mq.dead(topic, group).replay, ranges, to=to, dry_run=dry)
    done = f"published to {to}" if to else f"ready for {group} again"
    row = {"topic": topic, "group": group, "to": to, "count": count, "dry_run": dry}
    return Outcome(f"{many(count, 'dead letter')} {_would(dry)}{done}", row)


def purge(mq: "Client", topic: str, group: str, ranges: Ranges | None = None, dry: bool = False) -> Outcome:
    """Remove dead letters, all or some."""
    count = _in_portions(mq.dead(topic, group).purge, ranges, dry_run=dry)
    row = {"topic": topic, "group": group, "count": count, "dry_run": dry}
    return Outcome(f"{many(count, 'dead letter')} of {group} {_would(dry)}removed for good", row)


def _would(dry: bool) -> str:
    return "would be " if dry else ""


def _in_portions(verb: Callable[..., int], ranges: Ranges | None, **options: Any) -> int:
    if ranges is None:
        return verb(None, **options)
    portions = (ranges[at : at + RANGES_AT_ONCE] for at in range(0, len(ranges), RANGES_AT_ONCE))
    return sum(verb(portion, **options) for portion in portions)


def letters_of(mq: "Client", act: Act) -> Iterator["DeadLetter"]:
    """Yield the dead letters with the reason of the subject."""
    topic, group, reason, error = act.subject.names
    for letter in mq.dead(topic, group).letters(values=False):
        if (letter.reason, letter.error) == (reason, error):
            yield letter


def _parts(mq: "Client", topic: str, group: str) -> list[GroupStats]:
    """Return the partitions of a group. Raises WrongState if it was removed."""
    found = [
        part for part in mq.admin.raw.stats([topic]).groups if (part.topic, part.group) == (topic, group)
    ]
    if not found:
        raise WrongState(f"there is no group {group} on {topic} any more", hint=f"gossipq group ls {topic}")
    return found


def pause(mq: "Client", topic: str, group: str, dry: bool = False) -> Outcome:
    return _set_paused(mq, topic, group, dry, paused=True)


def resume(mq: "Client", topic: str, group: str, dry: bool = False) -> Outcome:
    return _set_paused(mq, topic, group, dry, paused=False)


def _set_paused(mq: "Client", topic: str, group: str, dry: bool, paused: bool) -> Outcome:
    """Pause or resume a group. There is no undo if it was so before."""
    parts = _parts(mq, topic, group)
    waiting, consumers = sum(map(waiting_of, parts)), max(part.consumers for part in parts)
    was = any(part.paused for part in parts) if not paused else all(part.paused for part in parts)
    row = {"topic": topic, "group": group, "paused": paused, "partitions": len(parts)}
    if not dry:
        (mq.group(topic, group).pause if paused else mq.group(topic, group).resume)()
        ready = "" if paused else f": {many(sum(part.ready for part in parts), 'record')} ready"
        undo = undo_if(was != paused, "pause" if paused else "resume", "group", topic, group)
        return Outcome(f"{group} on {topic} is {'paused' if paused else 'resumed'}{ready}", row, undo)
    if paused:
        said = "it is paused already; " if was else ""
        flying = sum(part.in_flight for part in parts)
        nothing = f"{many(consumers, 'consumer')} would get nothing more of {many(waiting, 'record')}"
        return Outcome(f"{said}{nothing}; {flying:,} in flight may be acked", row)
    said = "" if was else "it is not paused; "
    return Outcome(f"{said}{many(waiting, 'record')} would go to {many(consumers, 'consumer')}", row)


def seek(mq: "Client", topic: str, group: str, to: str, dry: bool = False) -> Outcome:
    """Move a group to another position."""
    rows = mq.group(topic, group).seek(place_of(to), dry_run=dry)
    again, skipped = sum(row.again for row in rows), sum(row.skipped for row in rows)
    what = f"{many(again, 'record')} again, {many(skipped, 'record')} skipped"
    undo = None if dry else seek_back(topic, group, [row.before for row in rows])
    text = f"{group} on {topic} {'would move' if dry else 'moved'} to {to}: {what}"
    return Outcome(text, {"partitions": rows}, undo)


# --- topics


def empty(mq: "Client", topic: str, partition: int | None = None, dry: bool = False) -> Outcome:
    """Remove all records that a topic, or one of its partitions, has now."""
    count = mq.topic(topic).purge(partition, dry_run=dry)
    place = topic if partition is None else f"{topic}/{partition}"
    row = {"topic": topic, "partition": partition, "count": count, "dry_run": dry}
    return Outcome(f"{many(count, 'record')} of {place} {_would(dry)}removed for good", row)


# --- clients and nodes


def _session(mq: "Client", begins: str) -> tuple[bytes, list[ClientRow]]:
    """Return the session with this beginning, and its rows. Raises WrongState."""
    rows: dict[bytes, list[ClientRow]] = {}
    for row in mq.admin.raw.clients():
        if row.session.hex().startswith(begins.lower()):
            rows.setdefault(row.session, []).append(row)
    if not rows:
        raise WrongState(f"session {begins} is gone already", hint="gossipq client ls")
    if len(rows) > 1:
        raise WrongState(f"{len(rows)} sessions begin with {begins}", hint="gossipq client ls")
    return next(iter(rows.items()))


def kick(mq: "Client", begins: str, for_s: float, dry: bool = False) -> Outcome:
    """End the session that begins with these digits. Its client may connect again after `for_s`."""
    session, rows = _session(mq, begins)
    for_ms = round(for_s * 1_000)
    held = many(sum(each.in_flight for row in rows for each in row.subscriptions), "record")
    client = next((row.client for row in rows if row.client), "")
    name = f"{client or 'a client'} ({session.hex()[:SESSION_DIGITS]})"
    row = {"session": session.hex(), "client": client, "for_ms": for_ms}
    if dry:
        return Outcome(f"{name} holds {held}; it may not reconnect for {typed(for_ms)}", row)
    mq.admin.kick(session, for_s)
    return Outcome(f"{name} may not reconnect for {typed(for_ms)}; {held} redelivered", row)


def drain(mq: "Client", node: str, secret: Callable[[], bytes], dry: bool = False) -> Outcome:
    row = {"node": node, "state": "leaving"}
    if dry:
        members = mq.admin.raw.status().members
        if not any(member.name == node for member in members):
            raise WrongState(f"no node is named {node} any more", hint="gossipq cluster ls")
        stays = sum(member.state == "in" and member.name != node for member in members)
        return Outcome(f"all that {node} leads and keeps would move to the {many(stays, 'other node')}", row)
    mq.admin.raw.set_member(node, "leaving", secret())
    return Outcome(f"{node} is being drained", row, undo_if(True, "drain", "node", node))


def undrain(mq: "Client", node: str, secret: Callable[[], bytes], dry: bool = False) -> Outcome:
    row = {"node": node, "state": "in"}
    if dry:
        states = {member.name: member.state for member in mq.admin.raw.status().members}
        return Outcome(f"{node} is {states.get(node, 'gone')!r} in the roster, and would be 'in'", row)
    mq.admin.raw.set_member(node, "in", secret())
    return Outcome(f"{node} stays: its drain is cancelled", row, undo_if(True, "undrain", "node", node))


def _rebalance(mq: "Client", means: Means) -> Outcome:
    """Return the planned moves, by the answers of all nodes; for silent ones, by their leaders."""
    plans = means.plans(means.look(mq.admin.raw.status()))
    moves = [f"{row.shard} to {row.leads_then}" for row in plans if row.moves]
    if not moves:
        return Outcome("every shard is where it should be")
    more = f" and {len(moves) - MOVES_SHOWN} more" if len(moves) > MOVES_SHOWN else ""
    shown = ", ".join(moves[:MOVES_SHOWN])
    return Outcome(f"{len(moves)} of {len(plans)} shards will move: {shown}{more}")


def _on_names(verb: Callable[..., Outcome]) -> Action:
    """Return the action of a verb that takes the names of its row and no text."""

    def action(mq: "Client", act: Act, dry: bool, means: Means) -> Outcome:
        return verb(mq, *act.subject.names, dry=dry)

    return action


def _on_record(verb: Callable[["Client", dict[str, Any], Act], Outcome]) -> Action:
    """Return the action on a record. Its question is in the table: it has no preview."""

    def action(mq: "Client", act: Act, dry: bool, means: Means) -> Outcome:
        return verb(mq, {"name": act.subject.names[0]}, act)

    return action


def _asked(verb: Callable[..., Outcome]) -> Action:
    """Return the action of a verb whose question is in the table, on the names of its row."""

    def action(mq: "Client", act: Act, dry: bool, means: Means) -> Outcome:
        return verb(mq, *act.subject.names)

    return action


def _on_some(verb: Callable[..., Outcome]) -> Action:
    """Return the action on the dead letters of a group that have the same reason."""

    def action(mq: "Client", act: Act, dry: bool, means: Means) -> Outcome:
        topic, group = act.subject.names[:2]
        letters = letters_of(mq, act)
        ranges = [(each.partition, each.offset, each.offset + each.count) for each in letters]
        return verb(mq, topic, group, ranges, dry=dry)

    return action


ACTIONS: dict[tuple[str, str], Action] = {
    ("record", "requeue"): _on_record(lambda mq, where, act: requeue(mq, where, act.text)),
    ("record", "edit"): _on_record(lambda mq, where, act: edit(mq, where, where["name"], value=act.text)),
    ("record", "reschedule"): _on_record(
        lambda mq, where, act: reschedule(mq, where, delay=seconds_of(act.text))
    ),
    ("record", "cancel"): _on_record(lambda mq, where, act: cancel(mq, where)),
    ("record", "rm"): _on_record(lambda mq, where, act: cancel(mq, where, "removed")),
    ("job", "retry"): lambda mq, act, dry, means: requeue(
        mq, {"name": act.subject.names[0]}, act.subject.names[1]
    ),
    ("job", "cancel"): lambda mq, act, dry, means: cancel_job(mq, act.subject.names[0]),
    ("error", "replay"): _on_names(replay_error),
    ("schedule", "run-now"): _asked(run_schedule),
    ("schedule", "pause"): _asked(pause_schedule),
    ("schedule", "resume"): _asked(resume_schedule),
    ("schedule", "remove"): _asked(remove_schedule),
    ("group", "replay"): _on_names(replay),
    ("group", "purge"): _on_names(purge),
    ("group", "pause"): _on_names(pause),
    ("group", "resume"): _on_names(resume),
    ("group", "seek"): lambda mq, act, dry, means: seek(
        mq, act.subject.names[0], act.subject.names[1], act.text, dry=dry
    ),
    ("dead", "replay"): _on_some(replay),
    ("dead", "purge"): _on_some(purge),
    ("topic", "purge"): _on_names(empty),
    ("partition", "purge"): lambda mq, act, dry, means: empty(
        mq, act.subject.names[0], int(act.subject.names[1]), dry=dry
    ),
    ("client", "kick"): lambda mq, act, dry, means: kick(
        mq, act.subject.names[0], seconds_of(act.text), dry=dry
    ),
    ("node", "drain"): lambda mq, act, dry, means: drain(mq, act.subject.names[0], means.secret, dry=dry),
    ("node", "undrain"): lambda mq, act, dry, means: undrain(mq, act.subject.names[0], means.secret, dry=dry),
    ("node", "rebalance"): lambda mq, act, dry, means: _rebalance(mq, means),
}
