"""`gossipq status`."""

from collections.abc import Collection, Iterator
from typing import Any

import click
import msgspec

from gossipq.health import wrong_clocks
from gossipq.texts import size, typed
from gossipq_cli import ask, failures
from gossipq_cli.kinds import Duration
from gossipq_cli.nodes import NODE_COLUMNS, node_rows
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Column, Output, counter
from gossipq_ops import clusters

ROWS = ("workers", "routes", "members", "leads", "copies", "events")


def as_object(view: clusters.ClusterView, nodes: int = 0) -> dict[str, Any]:
    """Return STATUS for JSON, with names instead of positions, and the
    facts learned from all nodes.
    """
    fields = msgspec.structs.asdict(view.asked)
    health = clusters.health(view, nodes)
    fields |= {"cluster": view.asked.cluster.hex(), "healthy": not health.findings, "state": health.state}
    fields |= {"findings": [finding._asdict() for finding in health.findings]}
    fields |= {name: [msgspec.structs.asdict(item) for item in fields[name]] for name in ROWS}
    return fields | {"copies": [msgspec.structs.asdict(row) for row in view.copies]}


@click.command(cls=Verb)
@click.option(
    "--wait-healthy",
    "wait_s",
    type=Duration(),
    metavar="SECONDS",
    help="wait until every shard has a leader and all its copies are in sync; the node need not be up yet",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="not healthy before N nodes answer: a new cluster does not know how many are still to join",
)
@pass_choices
def command(choices: Choices, wait_s: float | None, nodes: int) -> int:
    """Show the health of a node and its cluster, or wait for it.

    \b
    gossipq status
    gossipq status --wait-healthy 30 && echo go
    gossipq status --wait-healthy 60 --nodes 3
    gossipq status -o json

    Exits 0 when all is well: every shard has a leader, every copy exists and is in sync, and publishes are
    accepted; else 1, and 75 when the wait was too short. `gossipq help health` explains the words.
    """
    view = ask.look(choices) if wait_s is None else ask.wait_healthy(choices, wait_s, nodes)
    out = Output(choices)
    if out.for_machines or out.form == "names":
        out.one(as_object(view, nodes), name=view.asked.node)
    else:
        _print(out, view, nodes)
    return failures.FAILED if wait_s is None and clusters.unhealthy(view, nodes) else failures.DONE


def _print_dead(out: Output, view: clusters.ClusterView) -> None:
    """Print dead letters of all nodes that answer."""
    answers = [node.status for node in view.nodes if node.status is not None] or [view.asked]
    workers = [worker for status in answers for worker in status.workers]
    dead, last = sum(worker.dead for worker in workers), sum(worker.dead_per_minute for worker in workers)
    if dead:
        of = (
            ""
            if len(answers) == max(1, len(view.nodes))
            else f" (of {len(answers)} of {len(view.nodes)} nodes)"
        )
        out.write(
            f"dead letters since the workers started{of}: {dead:,}, {last:,} of them in the last minute: "
            "gossipq dlq ls"
        )


def unanswered(view: clusters.ClusterView, known: Collection[str]) -> Iterator[str]:
    """Yield how old the facts are about silent nodes that are not `known` to be away."""
    for node in view.nodes:
        rows = [row for row in view.copies if row.copy == node.member.copy and row.role != "leader"]
        if node.status is None and rows and node.member.name not in known:
            ago = typed(max(row.silent_ms for row in rows))
            yield f"{node.member.name} does not answer: what stands here of it the others heard {ago} ago"


def _print(out: Output, view: clusters.ClusterView, nodes: int) -> None:
    status = view.asked
    out.write(
        f"{status.node}  {status.mode}  cluster {status.cluster_name}  up {typed(status.uptime_ms)}  gossipq "
        f"{status.version}"
    )
    health = clusters.health(view, nodes)
    for finding in health.findings:
        out.write(f"{finding.state}: {finding.text}")
    if health.findings:
        out.write(f"see: {health.command}")
    else:
        out.write(f"{health.state}: {status.shards} shards, each with a leader and all its copies")
    for text in unanswered(view, {finding.subject for finding in health.findings}):
        out.write(text)
    _print_dead(out, view)
    for text in wrong_clocks(view.copies, view.members).values():
        out.write(f"clock: {text}")
    for warning in status.warnings:
        out.write(f"warning: {warning}")
    if len(view.nodes) > 1:
        out.rows(NODE_COLUMNS, node_rows(view))
    columns = [
        counter("worker"),
        Column("state"),
        Column("pid", right=True),
        counter("leading"),
        counter("sessions"),
    ]
    columns += [
        *map(counter, ("published", "delivered", "acked", "refused", "dead")),
        counter("dead_per_minute", "dead/min"),
        Column("store_bytes", size, right=True),
        counter("restarts"),
    ]
    out.rows(columns, [msgspec.structs.asdict(worker) for worker in status.workers])
    for worker in status.workers:
        if worker.detail:
            out.write(f"worker {worker.worker}: {worker.detail}")
