"""`gossipq job`."""

from typing import TYPE_CHECKING, Any

import click

from gossipq.texts import brief, dashed, many, moment, printable
from gossipq_cli import ask, failures
from gossipq_cli.commands.group import found
from gossipq_cli.kinds import Duration
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, counter

if TYPE_CHECKING:
    from gossipq_client import Job
    from gossipq_ops.jobs import ErrorGroup

group_option = click.option("-g", "--group", default="", help="of several groups, this one")


@click.group(cls=Noun)
def command() -> None:
    """Show a record as a job, wait for its result, join or cancel jobs, count errors."""


@command.command("show")
@click.argument("ref")
@group_option
@pass_choices
def show(choices: Choices, ref: str, group: str) -> None:
    """Show the state of a job: who runs it, since when, and what it returned.

    \b
    gossipq job show resize/0/17

    The states are scheduled, waiting, running and retrying; at the end succeeded, failed, cancelled or
    expired.
    """
    with ask.connect(choices) as mq:
        job = mq.job(ref, group=group)
    _tell(choices, job)


@command.command("wait")
@click.argument("ref")
@group_option
@click.option(
    "--for", "for_s", type=Duration(), default="30s", show_default=True, help="how long it waits at most"
)
@pass_choices
def wait(choices: Choices, ref: str, group: str, for_s: float) -> int:
    """Wait until a job has ended, and print what its handler returned.

    \b
    gossipq job wait resize/0/17
    gossipq job wait resize/0/17 --for 5m -o json

    Exits with 1 if the job failed, was cancelled or expired, and with 75 if it has not ended.
    """
    from gossipq_client import JobFailed, NoReply

    with ask.connect(choices) as mq:
        try:
            mq.result(ref, timeout=for_s, group=group)
        except (JobFailed, NoReply):
            pass  # its state tells
        job = mq.job(ref, group=group)
    if job.state != "succeeded":
        _tell(choices, job)
        return failures.FAILED if job.ended else failures.TIMED_OUT
    out = Output(choices)
    if out.for_machines:
        out.one(_row(job), name=job.ref)
    else:
        out.write(printable(_result(job), "\n\t"))
    return failures.DONE


@command.command("join")
@click.argument("topic")
@click.argument("value")
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@click.option("--when", default="all", show_default=True, help="all, any, or how many of the jobs")
@click.option(
    "--timeout", default="7d", show_default=True, metavar="DURATION", help="it is published then in any case"
)
@click.option("--keep-result", metavar="DURATION", help="keep what the handler of the record returns")
@group_option
@pass_choices
def join(
    choices: Choices, /, topic: str, value: str, refs: tuple[str, ...], when: str, **options: Any
) -> None:
    """Publish VALUE to TOPIC when jobs have ended, once.

    \b
    gossipq job join books "bind it" pages/0/17 pages/0/18
    gossipq job join books "begin" pages/0/17 pages/0/18 --when any --timeout 1h

    Prints the ref of the record. Its header gossipq-parts tells how each of the jobs ended.
    """
    count = int(when) if when.isascii() and when.isdigit() else when
    with ask.connect(choices) as mq:
        ref = mq.join(refs, then=(topic, value), when=count, **options)
    Output(choices).one({"ref": ref}, f"{ref} waits for {many(len(refs), 'job')}", ref)


@command.command("cancel")
@click.argument("ref")
@click.option("--reason", default="", help="kept with the job")
@pass_choices
def cancel(choices: Choices, ref: str, reason: str) -> None:
    """Cancel a job, also one that runs.

    \b
    gossipq job cancel resize/0/17 --reason "wrong size" --yes

    No consumer gets it from now on. The handler of a running job is told, and its result is not stored.
    """
    from gossipq_ops import actions

    ask.sure(choices, f"cancelling {ref}", f"cancel {ref} for every group, also if it runs?")
    with ask.connect(choices) as mq:
        done = actions.cancel_job(mq, ref, reason)
    Output(choices).one(dict(done.row), done.text, done.row["ref"])


@command.command("errors")
@click.argument("group", metavar="TOPIC/GROUP")
@click.option("--replay", metavar="ERROR", help="redeliver exactly the jobs that failed with this error")
@click.option("--dry-run", is_flag=True, help="with --replay: only count them")
@pass_choices
def errors(choices: Choices, group: str, replay: str | None, dry_run: bool) -> None:
    """Count the failed jobs of a group by error, the most frequent first.

    \b
    gossipq job errors resize/workers
    gossipq job errors resize/workers --replay 1f0c9a2e --dry-run
    gossipq job errors resize/workers --replay 1f0c9a2e

    Errors that differ in numbers, ids and quoted texts only are one. Failed jobs are dead letters; each line
    has the first and the last time, and the ref of one of them.
    """
    from gossipq_ops.jobs import errors_of

    topic, _, name = group.partition("/")
    if not name:
        raise click.UsageError(f"{group!r} is not TOPIC/GROUP, as in resize/workers")
    out = Output(choices)
    with ask.connect(choices) as mq:
        found(mq, topic, name)
        rows = errors_of(mq.dead(topic, name).letters(values=False))
        chosen = next((row for row in rows if row.name == replay), None)
        if replay is not None:
            if chosen is None:
                raise click.UsageError(f"no job of {group} failed with error {replay}")
            count = mq.dead(topic, name).replay(chosen.ranges, dry_run=dry_run)
    if replay is not None:
        row = {"topic": topic, "group": name, "error": replay, "count": count, "dry_run": dry_run}
        out.one(row, f"{many(count, 'job')} {'would be ' if dry_run else ''}ready for {name} again", name)
        return
    columns = [Column("name"), counter("letters", title="jobs"), Column("reason"), Column("error", _line)]
    columns += [Column("first_ms", moment, title="first"), Column("last_ms", moment, title="last")]
    out.rows([*columns, Column("ref", title="example")], [_error_row(row) for row in rows])
    if not rows:
        out.say(f"no failed jobs of {group}")


def _error_row(row: "ErrorGroup") -> dict[str, Any]:
    ranges = [f"{partition}/{first}-{end - 1}" for partition, first, end in row.ranges]
    return row._asdict() | {"ranges": ranges}


def _line(error: str) -> str:
    return dashed(brief(error.encode()))


def _result(job: "Job") -> str:
    return job.value.decode(errors="replace")


def _row(job: "Job") -> dict[str, Any]:
    at = job.time
    return {
        "ref": job.ref,
        "group": job.group,
        "state": job.state,
        "because": job.because,
        "consumer": job.consumer,
        "time_ms": None if at is None else round(at.timestamp() * 1_000),
        "attempt": job.attempt,
        "failures": job.failures,
        "error": job.error,
        "traceback": job.traceback,
        "progress": job.progress,
        "text": job.text,
        "kept_s": job.kept,
        "kind": job.kind,
        "result": _result(job) if job.kind else None,
    }


def _tell(choices: Choices, job: "Job") -> None:
    out, row = Output(choices), _row(job)
    if out.for_machines:
        out.one(row, name=job.ref)
        return
    fields = {"state": job.state, "because": job.because, "group": dashed(job.group)}
    fields |= {"consumer": dashed(job.consumer)}
    if row["time_ms"] is not None:
        fields["at"] = moment(row["time_ms"])
    if job.progress is not None:
        fields["progress"] = f"{job.progress:.0%} {job.text}".rstrip()
    if job.attempt:
        fields["attempt"] = str(job.attempt)
    if job.failures:
        fields["failed"] = many(job.failures, "time")
    if job.traceback:
        fields["traceback"] = job.traceback
    if job.kept:
        fields["result"] = _result(job) if job.kind else "-"
        fields["kept"] = f"{job.kept:.0f} s"
    out.one(fields, name=job.ref)
