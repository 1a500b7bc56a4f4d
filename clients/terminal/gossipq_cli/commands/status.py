"""`gossipq status`."""

from typing import Any

import click
import msgspec

from gossipq.messages import StatusReply
from gossipq_cli import ask, failures
from gossipq_cli.kinds import Duration
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Column, Output, counter, size, span


def as_object(status: StatusReply) -> dict[str, Any]:
    """For JSON: names instead of positions."""
    fields = msgspec.structs.asdict(status)
    fields |= {"cluster": status.cluster.hex(), "healthy": ask.healthy(status)}
    return fields | {name: [msgspec.structs.asdict(item) for item in fields[name]] for name in ("workers", "routes")}


@click.command(cls=Verb)
@click.option(
    "--wait-healthy",
    "wait_s",
    type=Duration(),
    metavar="SECONDS",
    help="ask again until every shard has a leader; the node need not be up yet",
)
@pass_choices
def command(choices: Choices, wait_s: float | None) -> int:
    """Say how the node is, or wait until it is healthy.

    \b
    gossipq status
    gossipq status --wait-healthy 30 && echo go
    gossipq status -o json

    Exits 0 when every shard has a leader (elsewhere called master; followers are slaves), else 1, and 75 when the wait was
    too short.
    """
    status = ask.status(choices) if wait_s is None else ask.wait_healthy(choices, wait_s)
    out = Output(choices)
    if out.for_machines or out.form == "names":
        out.one(as_object(status), name=status.node)
    else:
        _print(out, status)
    return failures.DONE if ask.healthy(status) else failures.FAILED


def _print(out: Output, status: StatusReply) -> None:
    out.write(
        f"{status.node}  {status.mode}  cluster {status.cluster_name}  up {span(status.uptime_ms)}  gossipq {status.version}"
    )
    out.write(f"shards with a leader: {status.led} of {status.shards}")
    dead = sum(worker.dead for worker in status.workers)
    if dead:
        last = sum(worker.dead_per_minute for worker in status.workers)
        out.write(f"dead letters since the workers started: {dead:,}, {last:,} of them in the last minute: gossipq dlq ls")
    for warning in status.warnings:
        out.write(f"warning: {warning}")
    columns = [counter("worker"), Column("state"), Column("pid", right=True), counter("leading"), counter("sessions")]
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
