"""`gossipq demo`."""

import os
import shutil
import sys
import time
from collections import deque
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gossipq import limits
from gossipq_cli import ask, failures
from gossipq_cli.demo import stage
from gossipq_cli.demo.account import Account, checksums, unpack_runs
from gossipq_cli.demo.screen import Screen, screen
from gossipq_cli.demo.source import library, lines_of
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output

if TYPE_CHECKING:
    from gossipq_client import Client

TOPIC, GROUP, CONSUMERS, PARTITIONS = "python.lines", "readers", 3, 4
QUIET_S = 60.0  #: nothing new for so long: the demo gives up and reports what is missing
LOOK_S = 0.05


@click.command(cls=Verb)
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="publish the .py files below this directory instead",
)
@pass_choices
def command(choices: Choices, source: Path | None) -> int:
    """Run the whole thing once: a node, a producer, three consumers, one killed.

    \b
    gossipq demo
    gossipq demo -o json

    Publishes every line of Python's own standard library (key = file name) to a node of its own in a temporary directory,
    consumes them with three processes of one group, kills one of those half way (kill -9), and checks by count and checksum
    that every line arrived. Leaves nothing behind. Exits 1 when a line is missing.
    """
    out = Output(choices)
    root = source or library()
    out.say(f"reading {root}")
    files = list(lines_of(root))
    total = sum(len(lines) for _, lines in files)
    out.say(f"{total:,} lines in {len(files):,} files; starting a node and {CONSUMERS} consumers")
    with stage.terminable(), stage.node() as node, ask.connect(Choices(servers=[node.server])) as mq:
        mq.create_topic(TOPIC, partitions=PARTITIONS)
        started = time.monotonic()
        with stage.consumers(CONSUMERS, node.server, TOPIC, GROUP) as members, screen(choices, total) as shown:
            play = Play(mq, members, total, shown)
            play.publish(files)
            play.finish()
        seconds = time.monotonic() - started
        acked = play.acked()
    account = play.account
    row: dict[str, Any] = {"published": account.published, "confirmed": account.confirmed, "delivered": account.delivered}
    row |= {"acked": acked, "lost": account.lost, "duplicated": account.duplicated, "takeovers": 0, "takeover_ms_max": 0}
    row["seconds"] = round(seconds, 2)
    out.one(row, _summary(row))
    if not account.complete or acked != account.confirmed:
        faults = {"lost": account.lost, "unknown": account.strangers, "damaged": account.damaged, "not acked": total - acked}
        raise failures.Failure("failed", f"of {total:,} records: " + ", ".join(f"{n:,} {what}" for what, n in faults.items()))
    if not out.for_machines:
        out.say("next:\n" + "\n".join(f"  {line}" for line in next_commands()))
    return failures.DONE


class Play:
    """The run: one thread that publishes, reads the consumers' reports, and kills one of them half way."""

    def __init__(self, mq: "Client", members: list[stage.Member], total: int, shown: Screen) -> None:
        self.mq, self.members, self.total, self.shown = mq, list(members), total, shown
        self.account = Account()
        self.open: deque[tuple[Any, Any]] = deque()
        self.victim: stage.Member | None = members[-1]

    def publish(self, files: list[tuple[bytes, list[bytes]]]) -> None:
        for name, lines in files:
            self.open.append((self.mq.publish_many(TOPIC, lines, key=name), checksums(lines)))
            self.account.published += len(lines)
            self.look(0.0)
        self.mq.flush(QUIET_S)

    def finish(self) -> None:
        """Until everything has arrived and is acked, or nothing has moved for QUIET_S; then the consumers end by themselves."""
        quiet_since, before = time.monotonic(), -1
        while self.members and not self.over() and time.monotonic() - quiet_since < QUIET_S:
            self.look(LOOK_S)
            if self.account.delivered != before:
                quiet_since, before = time.monotonic(), self.account.delivered
        if not self.members:
            raise failures.Failure("failed", "all consumers ended early")
        for member in self.members:
            with suppress(OSError):  # one that is gone needs no word
                member.pipe.send_bytes(b"stop")
        deadline = time.monotonic() + stage.STOP_S
        while any(member.process.is_alive() for member in self.members) and time.monotonic() < deadline:
            self.look(LOOK_S)

    def over(self) -> bool:
        """What the victim had reported and not acked is still to come again when all has arrived."""
        return self.account.distinct >= self.total and self.acked() >= self.total

    def look(self, wait_s: float) -> None:
        """Books what has come: receipts and reports; kills the victim when half has been delivered."""
        while self.open and self.open[0][0].done():
            self.settle()
        if wait_s and self.open:
            self.settle()
        for member in self.ready(wait_s):
            self.read(member)
        if self.victim is not None and self.account.distinct * 2 >= self.total:
            self.kill(self.victim)
        self.shown.show(self.account.published, self.account.confirmed, self.account.distinct)

    def ready(self, wait_s: float) -> list[stage.Member]:
        found = set(map(id, wait([member.pipe for member in self.members], wait_s)))
        return [member for member in self.members if id(member.pipe) in found]

    def settle(self) -> None:
        pending, sums = self.open.popleft()
        receipt, at = pending.result(), 0
        for part in receipt.receipts or (receipt,):
            self.account.confirm(part.partition, part.offset, sums[at : at + part.count])
            at += part.count

    def read(self, member: stage.Member) -> None:
        try:
            report = member.pipe.recv_bytes()
        except (EOFError, OSError):
            self.members.remove(member)
            return
        for run in unpack_runs(report):
            self.account.deliver(*run)

    def kill(self, victim: stage.Member) -> None:
        self.victim = None
        victim.process.kill()
        who = f"kill -9 {victim.process.pid} ({victim.process.name})"
        silence_s = limits.SESSION_SILENCE_MS / 1_000
        self.shown.say(
            f"half way: {who}; what it holds comes back when its session ends, after {silence_s:g} s of silence; "
            f"until then the group may go no further than {limits.IN_FLIGHT_MAX:,} records beyond it"
        )

    def acked(self) -> int:
        """As the node counts it."""
        return sum(group.acked for group in self.mq.groups(TOPIC) if group.group == GROUP)


def _summary(row: dict[str, Any]) -> str:
    rate = row["delivered"] / row["seconds"] if row["seconds"] else 0.0
    counts = "  ".join(
        f"{name} {row[name]:,}" for name in ("published", "confirmed", "delivered", "acked", "lost", "duplicated")
    )
    return (
        f"{counts}\n{row['seconds']:.1f} s  {rate:,.0f}/s  duplicated = delivered again after the kill, known by their offset"
    )


def next_commands() -> list[str]:
    """Three lines that paste as they are, wherever the command lies."""
    beside = Path(sys.executable).parent / "gossipq"
    name = "gossipq" if shutil.which("gossipq") or not beside.exists() else os.path.relpath(beside)
    return [f"{name} node &", f'{name} pub hello "first message"', f"{name} sub hello --from first -n 1"]
