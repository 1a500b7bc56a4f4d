"""`gossipq cluster`."""

import time
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from gossipq.health import REPLICATED, VOTERS
from gossipq.texts import many
from gossipq.values import GossipEvent
from gossipq_cli import ask, clusters, failures
from gossipq_cli.kinds import Duration
from gossipq_cli.nodes import NODE_COLUMNS, node_row, node_rows
from gossipq_cli.options import Choices, Noun, nearest, pass_choices
from gossipq_cli.output import Column, Output, counter, iso, moment

AGAIN_S = 0.5
FOLLOW_S = 1.0
MET_MS = 10_000  #: whom a node meets so soon after its start may have been there before it
MET = "is there"
EVENT_TEXTS = {
    "join": "joined",
    "leave": "is gone",
    "fail": "does not answer",
    "back": "is back",
    "update": "tells something new of itself",
    "degraded": "gossip of the asked node is degraded",
    "well": "gossip of the asked node is well again",
}


@click.group(cls=Noun)
def command() -> None:
    """List, show, drain and remove nodes; follow gossip; recover a survivor."""


@command.command("ls")
@pass_choices
def ls(choices: Choices) -> None:
    """List the nodes of the cluster, and what each does.

    \b
    gossipq cluster ls
    gossipq cluster ls -o json

    "away": in the roster, and does not answer. "lost": silent for so long that its copies are rebuilt elsewhere.
    """
    Output(choices).rows(NODE_COLUMNS, node_rows(clusters.look(choices)))


@command.command("show")
@click.argument("node")
@pass_choices
def show(choices: Choices, node: str) -> None:
    """Say which shards a node leads, follows, learns.

    \b
    gossipq cluster show ada
    """
    view, out = clusters.look(choices), Output(choices)
    found = _node(view, node)
    roles = clusters.roles_of(found.member.copy, view.copies)
    shards = {role: roles.get(role, []) for role in ("leader", "follower", "witness", "learner")}
    behind = sum(row.behind for row in view.copies if row.copy == found.member.copy)
    row = node_row(view, found) | {"shards": shards, "entries_behind": behind}
    if out.for_machines:
        out.one(row)
    else:
        texts = {role: ", ".join(map(str, where)) or "-" for role, where in shards.items()}
        out.one({key: text for key, text in row.items() if key != "shards"} | texts, name=found.member.name)


def _node(view: clusters.ClusterView, name: str) -> clusters.NodeView:
    """Raises Failure when there is none of that name."""
    for node in view.nodes:
        if node.member.name == name:
            return node
    names = [member.name for member in view.members]
    raise failures.Failure(
        "unknown_node", f"no node is named {name}{nearest(name, names)}", "gossipq cluster ls", failures.NOT_FOUND
    )


@command.command("drain")
@click.argument("node")
@click.option("--undo", is_flag=True, help="take it back")
@click.option("--wait", "wait_s", type=Duration(), metavar="SECONDS", help="wait until it keeps nothing any more")
@pass_choices
def drain(choices: Choices, node: str, undo: bool, wait_s: float | None) -> None:
    """Move everything away from a node: it hands over what it leads, others rebuild its copies.

    \b
    gossipq cluster drain ada --wait 10m && gossipq cluster rm ada
    gossipq cluster drain ada --undo
    """
    view, out = clusters.look(choices), Output(choices)
    found = _node(view, node)
    with ask.connect(choices) as mq:
        mq.set_member(node, "in" if undo else "leaving")
    if wait_s is not None and not undo:
        _await_empty(choices, found.member.copy, node, wait_s)
    done = "keeps nothing any more" if wait_s is not None else "is being drained"
    text = f"{node} is taken back" if undo else f"{node} {done}"
    out.one({"node": node, "state": "in" if undo else "leaving"}, text, node)
    if wait_s is None and not undo:
        out.say(f"`gossipq cluster show {node}` says what is left; then: gossipq cluster rm {node}")


def _await_empty(choices: Choices, copy: str, name: str, wait_s: float) -> None:
    """Learners of shard 0 are what every node is."""
    deadline = time.monotonic() + wait_s
    while True:
        view = clusters.look(choices)
        left = [row for row in view.copies if row.copy == copy and row.role in VOTERS]
        if not left and not clusters.unhealthy(view):
            return
        if time.monotonic() >= deadline:
            what = many(len(left), "shard")
            raise failures.Failure(
                "timed_out", f"{name} still votes on {what}", f"it goes on: gossipq cluster show {name}", failures.TIMED_OUT
            )
        time.sleep(AGAIN_S)


@command.command("rm")
@click.argument("node")
@click.option("--force", is_flag=True, help="also while it answers and still votes")
@pass_choices
def rm(choices: Choices, node: str, force: bool) -> None:
    """Take a node off the roster: one that was drained, or is gone for good.

    \b
    gossipq cluster rm ada --yes

    A node that comes back after this needs an empty data directory.
    """
    view = clusters.look(choices)
    votes = clusters.votes(view, _node(view, node).member.copy)
    if votes and not force:
        raise failures.Failure(
            "wrong_state",
            f"{node} still votes on {many(votes, 'shard')}",
            f"gossipq cluster drain {node} --wait 10m, and then again; or stop it; or --force",
            failures.CONFLICT,
        )
    ask.sure(choices, "removing a node", f"take {node} off the roster?")
    with ask.connect(choices) as mq:
        left = mq.set_member(node, "gone").members
    Output(choices).one({"node": node, "left": [member.name for member in left]}, f"{node} is removed", node)


@command.command("rebalance")
@click.option("--plan", is_flag=True, help="show what the cluster strives for")
@click.option("--copies", type=click.Choice(["3", "5", "7"]), help="as in cluster.toml (default: as many as shards have now)")
@click.option("--all", "everything", is_flag=True, help="shards that stay where they are, too")
@pass_choices
def rebalance(choices: Choices, plan: bool, copies: str | None, everything: bool) -> None:
    """Show which shards will move. The cluster moves them by itself, so there is nothing to start.

    \b
    gossipq cluster rebalance --plan
    """
    from gossipq_node.planning import shard_plans

    if not plan:
        raise click.UsageError("the cluster moves its shards by itself: `--plan` shows what it strives for")
    view, out = clusters.look(choices), Output(choices)
    rows = view.copies
    most = max((sum(r.shard == row.shard and r.role in VOTERS for r in rows) for row in rows), default=0)
    wanted = int(copies) if copies else max(REPLICATED, most)
    plans = shard_plans(view.members, view.asked.shards, wanted, view.leads, rows)
    moving = [row for row in plans if row.moves]
    columns = [counter("shard"), *(Column(name) for name in ("leader", "leads_then"))]
    columns += [Column(name, ", ".join) for name in ("voters", "voters_then")]
    out.rows(columns, [row._asdict() for row in (plans if everything else moving)])
    out.say(f"{len(moving)} of {len(plans)} shards move" if moving else "every shard is where it should be")


@command.command("events")
@click.option("--follow", "-f", is_flag=True, help="go on with what comes")
@pass_choices
def events(choices: Choices, follow: bool) -> None:
    """Print what gossip has shown to the asked node: who came, went, failed.

    \b
    gossipq cluster events --follow

    "is there": the asked node met it when it began itself. "is gone": it said goodbye, as a node does that is stopped, and
    as its processes do when only its first one is killed. "tells something new": there is nothing to do when its endpoint
    changed, others follow it; with another copy it has another data directory: see `gossipq cluster ls`.
    """
    out = Output(choices)

    def lines() -> Iterator[tuple[dict[str, Any], str]]:
        for event, met in _events(choices, follow, out):
            text = MET if met else EVENT_TEXTS.get(event.what, event.what)
            row = msgspec.structs.asdict(event) | {"time": iso(event.time_ms)}
            yield row, "  ".join(part for part in (moment(event.time_ms), event.node, text, event.detail) if part)

    for _ in out.stream(lines(), "node"):
        pass


def _events(choices: Choices, follow: bool, out: Output) -> Iterator[tuple[GossipEvent, bool]]:
    """Each once, and whether the asked node met it there: a node keeps the newest only, and tells them again and again."""
    seen: set[GossipEvent] = set()
    with ask.connect(choices) as mq:
        while True:
            status = mq.status()
            if not seen and status.gossip == "off":
                out.say(f"{status.node} is standalone: it gossips with nobody")
            met_until_ms = time.time_ns() // 1_000_000 - status.uptime_ms + MET_MS
            for event in status.events:
                if event not in seen:
                    yield event, event.what == "join" and event.time_ms < met_until_ms
            seen = set(status.events)
            if not follow:
                return
            time.sleep(FOLLOW_S)


@command.command("recover")
@click.option("--data", default="gossipq-data", show_default=True, metavar="DIR", help="data directory of a stopped survivor")
@click.option("--force", is_flag=True, help="do it")
@pass_choices
def recover(choices: Choices, data: str, force: bool) -> int:
    """Let one stopped survivor go on alone, when the majority of its cluster is gone for good.

    \b
    gossipq cluster recover --data gossipq-data
    gossipq cluster recover --data gossipq-data --force

    Without --force it only says what may be missing, and exits 1. With it the survivor is a cluster of its own, by a new
    identity: all others need empty directories to join it.
    """
    from gossipq_node import recovery

    out, rows = Output(choices), recovery.outlook(data)
    columns = [
        counter("shard"),
        Column("role"),
        counter("last"),
        Column("time_ms", lambda ms: moment(ms) if ms else "-", title="newest"),
    ]
    if not force or not out.for_machines:
        out.rows(columns, [msgspec.structs.asdict(row) for row in rows])
    for role in sorted({row.role for row in rows}):
        where = ", ".join(str(row.shard) for row in rows if row.role == role)
        out.say(f"{role}: this copy {recovery.MEANING[role]}. Shards {where}")
    out.say("What other copies confirmed after the newest entry here is missing for good.")
    if not force:
        out.say(f"Nothing was changed. To go on with this copy alone: gossipq cluster recover --data {data} --force")
        return failures.FAILED
    manifest = recovery.recover(data)
    row = {"cluster": manifest.cluster_uuid, "copy": manifest.voter, "shards": [msgspec.structs.asdict(row) for row in rows]}
    out.one(
        row, f"{data} is cluster {manifest.cluster_uuid[:8]} now: start it with `gossipq node --data {data}`", manifest.voter
    )
    return failures.DONE
