"""`gossipq doctor`."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gossipq.endpoints import endpoint
from gossipq.errors import GossipqError
from gossipq.health import MEANINGS, State, of_error, wrong_clocks
from gossipq.limits import DOOR_PORT_STEP
from gossipq.texts import many
from gossipq.values import Member
from gossipq_cli import ask, failures, reach
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output
from gossipq_ops import clusters

if TYPE_CHECKING:
    from gossipq_node.doctor import Check

NODES_MAX, AT_ONCE = 100, 32  #: nodes whose ports are tested; simultaneous connections
ASK_S = 2.0  #: for a running node
SIGNS = {"good": ("ok  ", "green"), "warning": ("warn", "yellow"), "bad": ("BAD ", "red")}


def of_cluster(choices: Choices) -> "list[Check]":
    """Check the health and the clocks of the cluster of a local node.

    Empty if no node is running and no server was given.
    """
    from gossipq_node.doctor import BAD, GOOD, WARNING, Check

    try:
        view = ask.look(replace(choices, timeout_s=min(ASK_S, choices.timeout_s)))
    except GossipqError as error:
        if not choices.servers:
            return []
        told = failures.explain(error)
        return [
            Check("cluster", WARNING, f"{of_error(error) or State.UNREACHABLE}: {told.message}", told.hint)
        ]
    health = clusters.health(view)
    verdict = GOOD if not health.findings else WARNING if health.serves else BAD
    text = health.text or f"{health.state}: {MEANINGS[health.state].text}"
    found = [Check("cluster", verdict, text, health.command if health.findings else "")]
    remedy = "set the clock of that machine: timedatectl set-ntp true, or chrony"
    wrong = wrong_clocks(view.copies, view.members).values()
    found += [Check("cluster clock", WARNING, text, remedy) for text in wrong]
    return [*found, *of_doors(view.members)]


def of_doors(members: Sequence[Member]) -> "list[Check]":
    """Check by TCP whether the ports of each node are reachable: client
    ports, and ports for nodes.
    """
    from gossipq_node.doctor import GOOD, WARNING, Check, doors_of

    asked = list[tuple[str, str]]()
    for member in members[:NODES_MAX]:
        clients, nodes = doors_of(member.workers)
        above = DOOR_PORT_STEP if member.encrypts else 0
        steps = sorted([*(step + above for step in clients), *nodes])
        place = endpoint(member.endpoint)
        if place.transport == "tcp":
            asked += [(member.name, place.step(step)) for step in steps]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        troubles = list(pool.map(lambda each: reach.trouble_of(each[1], ASK_S), asked))
    shut: dict[str, list[str]] = {}
    for (name, address), trouble in zip(asked, troubles, strict=True):
        if trouble is not None:
            shut.setdefault(name, []).append(address.rpartition(":")[2])
    if not shut:
        encrypted = sum(member.encrypts for member in members)
        text = f"all {len(asked)} of {many(len(members), 'node')} are reached, {encrypted} encrypt"
        return [Check("cluster doors", GOOD, text)] if asked else []
    remedy = "is the node up? let these ports through the firewall: docs/operate/security.md has the ports"
    return [
        Check("cluster doors", WARNING, f"{name}: {', '.join(ports)} are not reached from here", remedy)
        for name, ports in shut.items()
    ]


@click.command(cls=Verb)
@click.option(
    "--config",
    metavar="FILE",
    help="default: $GOSSIPQ_CONFIG, ./cluster.toml, /etc/gossipq/cluster.toml, none",
)
@click.option("--data", metavar="DIR", help="data directory; it need not exist")
@click.option("--bind", metavar="URL", help="where the node listens, or will listen")
@click.option("--workers", type=click.IntRange(min=0), help="worker processes")
@click.option(
    "--bundle",
    "bundled",
    metavar="FILE.tar.gz",
    help="write an archive for a bug report: findings, configuration, logs",
)
@click.option("--log", "logs", multiple=True, metavar="FILE", help="a log for the bundle (repeatable)")
@pass_choices
def command(
    choices: Choices,
    config: str | None,
    data: str | None,
    bind: str | None,
    workers: int | None,
    bundled: str | None,
    logs: tuple[str, ...],
) -> int:
    """Examine this machine: Serf, ports, disk, limits, clock, versions.

    \b
    gossipq doctor
    gossipq doctor --data /var/lib/gossipq --bind tcp://127.0.0.1:7700
    gossipq doctor --bundle fault.tar.gz --log node.log
    gossipq doctor -o json

    A bundle has these findings, versions, configuration, status and counters of every node, alarms, clients
    and logs: no records, and no secrets.

    Each finding names its remedy. Exits 1 when something would keep a node from working. No node needs to
    run; if one does, the health and the clocks of its cluster are checked, too.
    """
    from gossipq.config import find, load
    from gossipq_node import doctor

    flags = {"node.data": data, "node.bind": bind, "node.workers": workers}
    configured = load(find(config, os.environ), os.environ, flags).config
    found = doctor.checked(configured)
    found += of_cluster(choices)
    if bundled is not None:
        return _bundle(choices, bundled, found, configured, logs)
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


def _bundle(choices: Choices, path: str, found: "list[Check]", config: Any, logs: tuple[str, ...]) -> int:
    from gossipq_cli import bundle

    try:
        names = bundle.write(path, choices, found, config, logs)
    except OSError as error:
        raise failures.Failure(
            "unwritable", f"{path} cannot be written: {error.strerror}", "name another file"
        ) from None
    Output(choices).one({"bundle": path, "files": names}, bundle.summary(path, names), path)
    return failures.DONE
