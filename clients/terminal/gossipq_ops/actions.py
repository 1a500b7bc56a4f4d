"""Previews and executes the verbs of `verbs` with a client that is handed in. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gossipq.errors import WrongState
from gossipq.messages import StatusReply
from gossipq.texts import many, typed
from gossipq.values import ClientRow, GroupStats
from gossipq_ops.clusters import ClusterView
from gossipq_ops.inputs import place_of, seconds_of
from gossipq_ops.questions import Act, Done
from gossipq_ops.sums import waiting_of

if TYPE_CHECKING:
    from gossipq_client import Client
    from gossipq_client.operations import DeadLetter

RANGES_AT_ONCE = 1_000  #: ranges of dead letters in one request
MOVES_SHOWN = 4

Connect = Callable[[str], "Client"]  #: a client of the node at this address; "" = of any node
Action = Callable[["Client", Act, bool, "Means"], str]  #: (client, act, only try, means) -> sentence


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
    return Done(ACTIONS[act.subject.kind, act.verb](mq, act, True, means))


def execute(mq: "Client", act: Act, means: Means) -> Done:
    """Execute an act. Raises as `preview`."""
    return Done(ACTIONS[act.subject.kind, act.verb](mq, act, False, means))


# --- one record


def _requeue(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    (ref,) = act.subject.names
    return f"{mq.record(ref).requeue(group=act.text)} is ready for {act.text}"


def _edit(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    (ref,) = act.subject.names
    return f"{ref} is void, {mq.record(ref).edit(value=act.text).ref} replaces it"


def _reschedule(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    (ref,) = act.subject.names
    return f"{mq.record(ref).reschedule(delay=seconds_of(act.text))} is due in {act.text}"


def _cancel(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    (ref,) = act.subject.names
    return f"cancelled {mq.record(ref).cancel(reason='')}"


def _rm(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    (ref,) = act.subject.names
    return f"removed {mq.record(ref).cancel(reason='removed')}"


# --- a group, and its dead letters


def _replay(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    topic, group = act.subject.names
    count = mq.dead(topic, group).replay(dry_run=dry)
    return f"{many(count, 'dead letter')} {'would be' if dry else 'made'} ready for {group} again"


def _purge(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    topic, group = act.subject.names
    count = mq.dead(topic, group).purge(dry_run=dry)
    return f"{many(count, 'dead letter')} of {group} {'would be ' if dry else ''}removed for good"


def letters_of(mq: "Client", act: Act) -> Iterator["DeadLetter"]:
    """Yield the dead letters with the reason of the subject."""
    topic, group, reason, error = act.subject.names
    for letter in mq.dead(topic, group).letters(values=False):
        if (letter.reason, letter.error) == (reason, error):
            yield letter


def _of_some(mq: "Client", act: Act, dry: bool, replay: bool) -> int:
    """Replay or purge some dead letters in portions, or only count them. Returns how many."""
    topic, group = act.subject.names[:2]
    dead = mq.dead(topic, group)
    verb = dead.replay if replay else dead.purge
    ranges = [
        (letter.partition, letter.offset, letter.offset + letter.count) for letter in letters_of(mq, act)
    ]
    return sum(
        verb(ranges[at : at + RANGES_AT_ONCE], dry_run=dry) for at in range(0, len(ranges), RANGES_AT_ONCE)
    )


def _replay_some(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    count = _of_some(mq, act, dry, replay=True)
    return (
        f"{many(count, 'dead letter')} {'would be' if dry else 'made'} ready for {act.subject.names[1]} again"
    )


def _purge_some(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    count = _of_some(mq, act, dry, replay=False)
    return (
        f"{many(count, 'dead letter')} of {act.subject.names[1]} {'would be ' if dry else ''}removed for good"
    )


def _parts(mq: "Client", topic: str, group: str) -> list[GroupStats]:
    """Return the partitions of a group. Raises WrongState if it was removed."""
    found = [
        part for part in mq.admin.raw.stats([topic]).groups if (part.topic, part.group) == (topic, group)
    ]
    if not found:
        raise WrongState(f"there is no group {group} on {topic} any more", hint=f"gossipq group ls {topic}")
    return found


def _waiting(parts: list[GroupStats]) -> int:
    """Count the records that no consumer holds."""
    return sum(map(waiting_of, parts))


def _pause(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    topic, group = act.subject.names
    parts = _parts(mq, topic, group)
    if not dry:
        mq.group(topic, group).pause()
        return f"{group} on {topic} is paused"
    told = "it is paused already; " if all(part.paused for part in parts) else ""
    flying = sum(part.in_flight for part in parts)
    return (
        f"{told}{many(max(part.consumers for part in parts), 'consumer')} would get nothing more of "
        f"{many(_waiting(parts), 'record')}; {flying:,} in flight may be acked"
    )


def _resume(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    topic, group = act.subject.names
    parts = _parts(mq, topic, group)
    if not dry:
        mq.group(topic, group).resume()
        return f"{group} on {topic} goes on"
    told = "" if any(part.paused for part in parts) else "it is not paused; "
    there = max(part.consumers for part in parts)
    return f"{told}{many(_waiting(parts), 'record')} would go to {many(there, 'consumer')}"


def _seek(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    topic, group = act.subject.names
    rows = mq.group(topic, group).seek(place_of(act.text), dry_run=dry)
    again, skipped = sum(row.again for row in rows), sum(row.skipped for row in rows)
    what = f"{many(again, 'record')} again, {many(skipped, 'record')} skipped"
    return f"{group} on {topic} {'would go' if dry else 'goes'} on from {act.text}: {what}"


# --- topics


def _empty(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    topic, *number = act.subject.names
    count = mq.topic(topic).purge(int(number[0]) if number else None, dry_run=dry)
    told = f"{many(count, 'record')} of {'/'.join(act.subject.names)}"
    return f"{told} {'would be ' if dry else ''}removed for good"


# --- clients and nodes


def _sessions(mq: "Client", begins: str) -> tuple[bytes, list[ClientRow]]:
    """Return the session with this beginning, and its rows. Raises WrongState."""
    rows: dict[bytes, list[ClientRow]] = {}
    for row in mq.admin.raw.clients():
        if row.session.hex().startswith(begins):
            rows.setdefault(row.session, []).append(row)
    if not rows:
        raise WrongState(f"session {begins} is gone already", hint="gossipq client ls")
    if len(rows) > 1:
        raise WrongState(f"{len(rows)} sessions begin with {begins}", hint="gossipq client ls")
    return next(iter(rows.items()))


def _kick(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    session, rows = _sessions(mq, act.subject.names[0])
    for_s = seconds_of(act.text)
    for_ms = round(for_s * 1_000)
    held = many(sum(each.in_flight for row in rows for each in row.subscriptions), "record")
    name = next((row.client for row in rows if row.client), "") or act.subject.names[0]
    if dry:
        return f"{name} holds {held}; it may not reconnect for {typed(for_ms)}"
    mq.admin.kick(session, for_s)
    return f"{name} may not reconnect for {typed(for_ms)}; {held} redelivered"


def _drain(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    (name,) = act.subject.names
    if dry:
        told = mq.admin.raw.status()
        if not any(member.name == name for member in told.members):
            raise WrongState(f"no node is named {name} any more", hint="gossipq cluster ls")
        stays = sum(member.state == "in" and member.name != name for member in told.members)
        return f"all that {name} leads and keeps would move to the {many(stays, 'other node')}"
    mq.admin.raw.set_member(name, "leaving", means.secret())
    return f"{name} is being drained; `gossipq cluster show {name}` says what is left"


def _undrain(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    (name,) = act.subject.names
    if dry:
        state = next(
            (member.state for member in mq.admin.raw.status().members if member.name == name), "gone"
        )
        return f"{name} is {state!r} in the roster, and would be 'in'"
    mq.admin.raw.set_member(name, "in", means.secret())
    return f"{name} stays: its drain is cancelled"


def _rebalance(mq: "Client", act: Act, dry: bool, means: Means) -> str:
    """Return the planned moves, by the answers of all nodes; for silent ones, by their leaders."""
    plans = means.plans(means.look(mq.admin.raw.status()))
    moves = [f"{row.shard} to {row.leads_then}" for row in plans if row.moves]
    if not moves:
        return "every shard is where it should be"
    more = f" and {len(moves) - MOVES_SHOWN} more" if len(moves) > MOVES_SHOWN else ""
    return f"{len(moves)} of {len(plans)} shards will move: {', '.join(moves[:MOVES_SHOWN])}{more}"


ACTIONS: dict[tuple[str, str], Action] = {
    ("record", "requeue"): _requeue,
    ("record", "edit"): _edit,
    ("record", "reschedule"): _reschedule,
    ("record", "cancel"): _cancel,
    ("record", "rm"): _rm,
    ("group", "replay"): _replay,
    ("group", "purge"): _purge,
    ("group", "pause"): _pause,
    ("group", "resume"): _resume,
    ("group", "seek"): _seek,
    ("dead", "replay"): _replay_some,
    ("dead", "purge"): _purge_some,
    ("topic", "purge"): _empty,
    ("partition", "purge"): _empty,
    ("client", "kick"): _kick,
    ("node", "drain"): _drain,
    ("node", "undrain"): _undrain,
    ("node", "rebalance"): _rebalance,
}
