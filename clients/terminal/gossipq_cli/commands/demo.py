"""`gossipq demo`."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gossipq.texts import many
from gossipq_cli import ask, failures
from gossipq_cli.demo import stage
from gossipq_cli.demo.account import Account
from gossipq_cli.demo.nodes import READY_S, Nodes, nodes
from gossipq_cli.demo.play import CONSUMERS, GROUP, PARTITIONS, TOPIC, Play
from gossipq_cli.demo.screen import Screen, screen
from gossipq_cli.demo.source import library, lines_of
from gossipq_cli.demo.web import show
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output

if TYPE_CHECKING:
    from gossipq_client import Client

PULSE = "python.pulse"  #: published while a node joins


@click.command(cls=Verb)
@click.option(
    "--nodes",
    "count",
    type=click.Choice(["1", "3", "5"]),
    default="1",
    show_default=True,
    help="nodes to begin with",
)
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="publish the .py files below this directory instead",
)
@click.option("--web", is_flag=True, help="run a shop and the web console instead, until Ctrl-C")
@pass_choices
def command(choices: Choices, count: str, source: Path | None, web: bool) -> int:
    """Run a demo: nodes, a producer, consumers, some of them killed.

    \b
    gossipq demo
    gossipq demo --nodes 3
    gossipq demo --nodes 3 --web
    gossipq demo -o json

    Publishes every line of Python's own standard library (key = file name) to nodes of its own in a temporary
    directory, consumes them with three processes of one group, kills one of those half way (kill -9), and
    checks by count and checksum that every line arrived. With several nodes a leader is killed half way, too,
    and starts again; at the end one more node joins and takes its share. Leaves nothing behind. Exits 1 when
    a line is missing.
    """
    out = Output(choices)
    if web:
        return show(int(count), out)
    root = source or library()
    out.say(f"reading {root}")
    files = list(lines_of(root))
    total = sum(len(lines) for _, lines in files)
    size = int(count)
    out.say(f"{total:,} lines in {len(files):,} files; starting {_nodes(size)} and {CONSUMERS} consumers")
    with stage.terminable(), nodes(size) as cluster, ask.connect(Choices(servers=cluster.servers)) as mq:
        mq.create_topic(TOPIC, partitions=PARTITIONS)
        started = time.monotonic()
        with (
            stage.consumers(CONSUMERS, cluster.servers, TOPIC, GROUP) as members,
            screen(choices, total, cluster.servers) as shown,
        ):
            play = Play(mq, cluster, members, total, shown)
            play.publish(files)
            play.finish()
            seconds = time.monotonic() - started
            acked = play.acked()
            led = grow(mq, cluster, shown) if size > 1 else {}
    account, takeover = play.account, play.takeover
    row: dict[str, Any] = {"published": account.published, "confirmed": account.confirmed}
    row |= {"delivered": account.delivered, "acked": acked}
    row |= {"lost": account.lost, "duplicated": account.duplicated}
    row["takeovers"] = len(takeover.shards) if takeover is not None and takeover.over else 0
    row["takeover_ms_max"] = takeover.ms_max if takeover is not None else 0
    row["pause_ms_max"] = round(play.pause_s * 1_000)
    row["seconds"] = round(seconds, 2)
    if led:
        row["led"] = led
    out.one(row, _summary(row))
    _require_all(account, acked, total)
    if takeover is not None and not takeover.over:
        raise failures.Failure("failed", "nobody took over what the killed node led")
    if not out.for_machines:
        out.say("next:\n" + "\n".join(f"  {line}" for line in next_commands()))
    return failures.DONE


def _require_all(account: Account, acked: int, total: int) -> None:
    """Raise Failure if a record is missing."""
    if account.complete and acked == account.confirmed:
        return
    faults = {
        "lost": account.lost,
        "unknown": account.strangers,
        "damaged": account.damaged,
        "not acked": total - acked,
    }
    raise failures.Failure(
        "failed", f"of {total:,} records: " + ", ".join(f"{n:,} {what}" for what, n in faults.items())
    )


def _nodes(count: int) -> str:
    if count == 1:
        return "a node"
    return f"{count} nodes " + (
        "that find each other by Serf" if shutil.which("serf") else "with static peers (no serf here)"
    )


def grow(mq: "Client", cluster: Nodes, shown: Screen) -> dict[str, int]:
    """Let one more node join while records are published. Returns node -> shards that it leads."""
    cluster.wait_healthy()
    newcomer = cluster.add(workers=1)
    shown.say(f"{newcomer.name} joins")
    led: dict[str, int] = {}

    def has_its_share() -> bool:
        nonlocal led
        mq.publish(PULSE, b"one more", timeout=READY_S)
        before, led = led, cluster.led()
        if led != before:
            shown.say("leading: " + "  ".join(f"{name} {count}" for name, count in led.items()))
        return led[newcomer.name] >= sum(led.values()) // len(led) - 1

    cluster.wait(f"{newcomer.name} does not get its share", lambda view: has_its_share())
    return led


def _summary(row: dict[str, Any]) -> str:
    rate = row["delivered"] / row["seconds"] if row["seconds"] else 0.0
    counts = "  ".join(
        f"{name} {row[name]:,}"
        for name in ("published", "confirmed", "delivered", "acked", "lost", "duplicated")
    )
    text = (
        f"{counts}\n{row['seconds']:.1f} s  {rate:,.0f}/s  duplicated = redelivered after the kill; "
        f"consumers can detect them by offset\nnothing new was delivered for {row['pause_ms_max']} ms at most"
    )
    if row["takeovers"]:
        taken = many(row["takeovers"], "shard")
        text += f"\n{taken} failed over; longest pause in confirms: {row['takeover_ms_max']} ms"
    return text


def next_commands() -> list[str]:
    """Return three commands that can be pasted in any directory."""
    beside = Path(sys.executable).parent / "gossipq"
    name = "gossipq" if shutil.which("gossipq") or not beside.exists() else os.path.relpath(beside)
    return [f"{name} node &", f'{name} pub hello "first message"', f"{name} sub hello --from first -n 1"]
