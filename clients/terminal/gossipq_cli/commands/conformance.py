"""`gossipq client conformance`."""

import time

import click

from gossipq.errors import GossipqError
from gossipq_cli import ask, failures
from gossipq_cli.conformance.driver import Driver
from gossipq_cli.conformance.trials import LEVELS, TAKEOVERS, TRIALS, Counts, Stage, Trial
from gossipq_cli.demo.nodes import Nodes, nodes
from gossipq_cli.demo.stage import terminable
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Column, Output

COLUMNS = (
    Column("level"),
    Column("trial"),
    Column("passed", lambda passed: "yes" if passed else "NO"),
    Column("records", right=True),
    Column("takeovers", right=True),
    Column("again", right=True),
    Column("ack_ms", right=True),
    Column("seconds", right=True),
    Column("why"),
)


@click.command(cls=Verb)
@click.option(
    "--driver",
    required=True,
    metavar="CMD",
    help="command of the driver: a program that runs the client under test",
)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default=LEVELS[-1],
    show_default=True,
    help="how far the client goes: one node; one that is killed and comes back; takeovers; sealed batches "
    "straight to the leaders",
)
@click.option(
    "--takeovers",
    type=click.IntRange(1, 1_000),
    default=TAKEOVERS,
    show_default=True,
    help="leaders that are killed while it publishes; one fewer while it consumes",
)
@pass_choices
def command(choices: Choices, driver: str, level: str, takeovers: int) -> int:
    """Test a client in another language against nodes that are killed meanwhile.

    \b
    gossipq client conformance --driver "python clients/minimal_driver.py"
    gossipq client conformance --driver ./driver --level mini

    The driver reads JSON lines and answers with JSON lines; it calls the public verbs of its client and has
    no protocol of its own (the module gossipq_cli.conformance.driver has the lines). `again` are records with
    an attempt above 1: they were in flight, or their ack was not stored yet, when a node was killed. A
    record whose ack was stored must not be redelivered. The command starts its own nodes and removes
    them. Exits 1 when a trial fails.
    """
    out = Output(choices)
    wanted = [trial for trial in TRIALS if LEVELS.index(trial.level) <= LEVELS.index(level)]
    rows = []
    with terminable():
        for size in sorted({trial.nodes for trial in wanted}):
            out.say(f"starting {size} node{'s' * (size > 1)}")
            with nodes(size) as cluster:
                for trial in (each for each in wanted if each.nodes == size):
                    rows.append(_tried(trial, cluster, driver, takeovers))
                    out.say(f"{trial.title}: {rows[-1]['why'] or 'passed'}")
    out.rows(COLUMNS, rows)
    return failures.DONE if all(row["passed"] for row in rows) else failures.FAILED


def _tried(trial: Trial, cluster: Nodes, command: str, takeovers: int) -> dict[str, object]:
    started, why = time.monotonic(), ""
    counts: Counts | None = None
    try:
        cluster.wait_healthy()  # the trial before may have killed a node whose workers still start
        with ask.connect(Choices(servers=cluster.servers)) as mq, Driver(command) as driver:
            driver.ask("connect", servers=cluster.servers)
            counts = trial.run(Stage(cluster.servers, mq, driver, cluster, takeovers))
            driver.ask("close")
    except (AssertionError, GossipqError, failures.Failure) as error:
        why = str(error) or type(error).__name__
    seconds = round(time.monotonic() - started, 1)
    row = {"level": trial.level, "trial": trial.title, "passed": not why}
    return row | (counts or Counts())._asdict() | {"seconds": seconds, "why": why}
