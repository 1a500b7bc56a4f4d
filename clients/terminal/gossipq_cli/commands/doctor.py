"""`gossipq doctor`."""

import os
from dataclasses import replace

import click

from gossipq.errors import GossipqError
from gossipq.health import wrong_clocks
from gossipq_cli import ask, failures
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output

ASK_S = 2.0  #: for a node that runs
SIGNS = {"good": ("ok  ", "green"), "warning": ("warn", "yellow"), "bad": ("BAD ", "red")}


def clocks(choices: Choices) -> list[str]:
    """What the node that runs here knows of wrong clocks in its cluster; nothing when none answers."""
    try:
        status = ask.status(replace(choices, timeout_s=min(ASK_S, choices.timeout_s)))
    except GossipqError:
        return []
    return list(wrong_clocks(status.copies, status.members).values())


@click.command(cls=Verb)
@click.option(
    "--config",
    metavar="FILE",
    help="default: $GOSSIPQ_CONFIG, ./cluster.toml, /etc/gossipq/cluster.toml, none",
)
@click.option("--data", metavar="DIR", help="data directory, there or to be made")
@click.option("--bind", metavar="URL", help="where the node listens, or shall listen")
@click.option("--workers", type=click.IntRange(min=0), help="worker processes")
@pass_choices
def command(
    choices: Choices, config: str | None, data: str | None, bind: str | None, workers: int | None
) -> int:
    """Examine this machine: serf, ports, disk, limits, clock, versions.

    \b
    gossipq doctor
    gossipq doctor --data /var/lib/gossipq --bind tcp://127.0.0.1:7700
    gossipq doctor -o json

    Each finding has its remedy. Exits 1 when something would keep a node from working. No node needs to run;
    one that does says whose clock in its cluster is wrong.
    """
    from gossipq.config import find, load
    from gossipq_node import doctor

    flags = {"node.data": data, "node.bind": bind, "node.workers": workers}
    found = doctor.checked(load(find(config, os.environ), os.environ, flags).config)
    found += [
        doctor.Check(
            "cluster clock",
            doctor.WARNING,
            text,
            "set the clock of that machine: timedatectl set-ntp true, or chrony",
        )
        for text in clocks(choices)
    ]
    out, bad = Output(choices), any(finding.verdict == doctor.BAD for finding in found)
    if out.for_machines:
        out.one({"ok": not bad, "findings": [finding._asdict() for finding in found]})
    elif out.form == "names":
        for finding in found:
            if finding.verdict != doctor.GOOD:
                out.write(finding.name)
    else:
        width = max(len(finding.name) for finding in found)
        for finding in found:
            sign, color = SIGNS[finding.verdict]
            out.write(f"{out.paint(sign, color)}  {finding.name:<{width}}  {finding.text}")
            if finding.remedy:
                out.write(f"{'':4}  {'':<{width}}  -> {finding.remedy}")
    return failures.FAILED if bad else failures.DONE
