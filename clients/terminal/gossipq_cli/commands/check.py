"""`gossipq check`: one line and an exit code for Nagios-like monitoring systems."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from gossipq.errors import ConfigError, GossipqError, UnknownTopic
from gossipq.health import State, of_error, of_node
from gossipq.messages import StatusReply
from gossipq.texts import many, printable, size
from gossipq.values import Alarm
from gossipq_cli import ask, failures
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Output, json_text
from gossipq_ops.clusters import health
from gossipq_ops.sums import lag_of

OK, WARNING, CRITICAL, UNKNOWN = range(4)
WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
DISK_ALARMS = ("store_full", "disk_low", "write_failed", "slow_disk")
CLUSTER_ALARMS_EXCEPT = ("lag", "dead_letters", *DISK_ALARMS)


class Verdict(NamedTuple):
    """The result of a check. `figures` are name, value, warning and
    critical threshold, "" = none.
    """

    code: int
    text: str
    figures: tuple[tuple[str, int, str, str], ...] = ()


class Check(Noun):
    """Commands with exit codes of monitoring systems. A wrong command line is UNKNOWN too."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with unknown_unless_known():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with unknown_unless_known():
            return super().invoke(ctx)


@contextmanager
def unknown_unless_known() -> Iterator[None]:
    """Convert any error to UNKNOWN. The line goes to stdout, because
    monitoring systems show only that.
    """
    try:
        yield
    except (failures.Failure, click.ClickException, GossipqError, OSError) as error:
        if isinstance(error, failures.Failure) and error.exit_code == UNKNOWN:
            raise  # printed already
        if isinstance(error, click.exceptions.NoArgsIsHelpError):  # its text is the help
            error = click.UsageError("name what to check: ready, cluster, lag or disk", error.ctx)
        told = failures.explain(error)
        Output.write(printable(f"GOSSIPQ CHECK UNKNOWN - {told.message.splitlines()[0]}"))
        raise failures.Failure(told.code, told.message, told.hint, UNKNOWN) from error


@click.group(cls=Check)
def command() -> None:
    """Answer a monitoring system: ready, cluster, lag, disk.

    \b
    gossipq check ready          one line; exits 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN
    """


def _run(choices: Choices, name: str, judge: Callable[[], Verdict], when_gone: int) -> int:
    """Print one line, or a JSON object, and return the code, also if the node does not answer."""
    try:
        verdict = judge()
    except GossipqError as error:
        verdict = Verdict(UNKNOWN if isinstance(error, ConfigError) else when_gone, told_of(error))
    if Output(choices).for_machines:
        figures: dict[str, Any] = {figure: value for figure, value, _, _ in verdict.figures}
        Output.write(
            json_text({"check": name, "state": WORDS[verdict.code], "text": verdict.text, "figures": figures})
        )
    else:
        tail = " ".join(
            f"{figure}={value}{_unit(figure)};{warn};{crit}" for figure, value, warn, crit in verdict.figures
        )
        line = f"GOSSIPQ {name.upper()} {WORDS[verdict.code]} - {verdict.text}" + (
            f" | {tail}" if tail else ""
        )
        Output.write(printable(line))
    return verdict.code


def told_of(error: GossipqError) -> str:
    """Return an error with its health word."""
    text, state = failures.explain(error).message, of_error(error)
    return f"{state}: {text}" if state else text


def _unit(figure: str) -> str:
    """Return a number with its unit, as Nagios-like systems write it."""
    return {"bytes": "B", "us": "us"}.get(figure.rpartition("_")[2], "")


def _worst(alarms: list[Alarm]) -> Verdict | None:
    """Return a verdict for the worst of these alarms."""
    if not alarms:
        return None
    alarms = sorted(alarms, key=lambda alarm: alarm.severity)  # "critical" sorts first
    more = f", and {len(alarms) - 1} more" if len(alarms) > 1 else ""
    return Verdict(CRITICAL if alarms[0].severity == "critical" else WARNING, alarms[0].text + more)


def _state(choices: Choices) -> tuple[StatusReply, list[Alarm]]:
    with ask.connect(choices) as mq:
        return mq.admin.raw.status(), mq.admin.raw.alarms()


@command.command("ready")
@pass_choices
def ready(choices: Choices) -> int:
    """Does the node serve clients? CRITICAL when it does not answer.

    \b
    gossipq check ready
    gossipq check ready -s tcp://10.0.0.7:7700 --timeout 2s
    """

    def judge() -> Verdict:
        with ask.connect(choices) as mq:
            status = mq.admin.raw.status()
        health = of_node(status)
        figures = (("led", status.led, "", ""), ("shards", status.shards, "", ""))
        if not health.serves:
            return Verdict(CRITICAL, health.text, figures)
        return Verdict(OK, "; ".join(filter(None, (f"{status.node} serves", health.text))), figures)

    return _run(choices, "ready", judge, CRITICAL)


@command.command("cluster")
@pass_choices
def cluster(choices: Choices) -> int:
    """Has every shard its leader, and is there an alarm of the node or the cluster?

    \b
    gossipq check cluster
    """

    def judge() -> Verdict:
        status, alarms = _state(choices)
        view = ask.look(choices)
        figures = (("led", len(view.leads), "", ""), ("shards", status.shards, "", ""))
        state = health(view)
        if state.findings and state.state is not State.DEGRADED:
            return Verdict(CRITICAL, state.text, figures)
        if state.findings and not any(alarm.severity == "critical" for alarm in alarms):
            return Verdict(WARNING, state.text, figures)
        worst = _worst([alarm for alarm in alarms if alarm.name not in CLUSTER_ALARMS_EXCEPT])
        return (
            worst._replace(figures=figures)
            if worst
            else Verdict(OK, f"all {status.shards} shards have a leader", figures)
        )

    return _run(choices, "cluster", judge, CRITICAL)


@command.command("lag")
@click.argument("topic", required=False)
@click.option("-g", "--group", help="only this group")
@click.option(
    "--warn", type=click.IntRange(min=0), help="records behind (default: the alarm_lag of each group)"
)
@click.option("--crit", type=click.IntRange(min=0), help="records behind")
@pass_choices
def lag(choices: Choices, topic: str | None, group: str | None, warn: int | None, crit: int | None) -> int:
    """How far are the groups behind?

    \b
    gossipq check lag --warn 10000 --crit 100000
    gossipq check lag orders -g billing --warn 1000

    Counts all partitions of a group together. Without --warn and --crit it looks at the alarms that the
    groups' own alarm_lag raises.
    """
    if warn is not None and crit is not None and crit < warn:
        raise click.UsageError("--crit lies below --warn")

    def judge() -> Verdict:
        with ask.connect(choices) as mq:
            try:
                rows = ask.groups_of(mq, topic) if topic else mq.admin.raw.stats().groups
                alarms = mq.admin.raw.alarms()
            except UnknownTopic:
                return Verdict(UNKNOWN, f"no topic {topic}")
        behind: dict[tuple[str, str], int] = {}
        for row in rows:
            if group in (None, row.group):
                name = row.topic, row.group
                behind[name] = behind.get(name, 0) + lag_of(row)
        if group and not behind:
            return Verdict(UNKNOWN, f"no group {group}" + (f" on {topic}" if topic else ""))
        if not behind:
            return Verdict(OK, "no groups")
        (on, worst), records = max(behind.items(), key=lambda item: item[1])
        figures = (("lag", records, "" if warn is None else str(warn), "" if crit is None else str(crit)),)
        text = f"{worst} on {on} is {many(records, 'record')} behind"
        if warn is None and crit is None:
            about = [
                each for each in alarms if each.name == "lag" and tuple(each.subject.split("/", 1)) in behind
            ]
            found = _worst(about)
            if found is None:
                return Verdict(OK, text, figures)
            return found._replace(text=f"{text} in all partitions; {found.text}", figures=figures)
        code = (
            CRITICAL
            if crit is not None and records > crit
            else WARNING
            if warn is not None and records > warn
            else OK
        )
        return Verdict(code, text, figures)

    return _run(choices, "lag", judge, UNKNOWN)


@command.command("disk")
@pass_choices
def disk(choices: Choices) -> int:
    """Is there space, and does the disk keep up?

    \b
    gossipq check disk
    """

    def judge() -> Verdict:
        status, alarms = _state(choices)
        stored = sum(worker.store_bytes for worker in status.workers)
        commit_us = max((worker.commit_us for worker in status.workers), default=0)
        figures = (("store_bytes", stored, "", ""), ("commit_us", commit_us, "100000", ""))
        worst = _worst([alarm for alarm in alarms if alarm.name in DISK_ALARMS])
        if worst:
            return worst._replace(figures=figures)
        return Verdict(OK, f"a commit takes {commit_us / 1_000:.1f} ms, {size(stored)} are stored", figures)

    return _run(choices, "disk", judge, UNKNOWN)
