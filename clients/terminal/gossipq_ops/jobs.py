"""The jobs of a group, and the last runs of a schedule, asked with a client that is handed in. Pure."""

import itertools
import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from gossipq.errors import UnknownRecord, UnknownTopic, WrongState
from gossipq.limits import MINUTE_MS
from gossipq.times import unix_ms_of
from gossipq_ops.questions import Job, JobError, Planned, Ran, Runs, Ticked, Work, Working

if TYPE_CHECKING:
    from gossipq_client import Client
    from gossipq_client.operations import DeadLetter, ScheduleState

PAGES_MAX = 2  #: pages of states of one partition: 8,192 runs of neighbours
#: rows of dead letters that are examined; neighbours that died together are one row
DEAD_MAX = 1_000
PARTITIONS_MAX = 64
SCHEDULES_MAX = 200
ERRORS_MAX = 50
SLOW_MS = MINUTE_MS  #: a job that runs for longer is shown as slow
HOUR_MS = 60 * MINUTE_MS  #: of the picture of a schedule
WAITS = ("in_flight", "retrying")


def working(mq: "Client", ask: Work) -> Working:
    """Return the jobs of a group. Raises UnknownTopic."""
    found, count, more = _unfinished(mq, ask)
    jobs = list(filter(None, (_job(mq, ask.topic, number, offset, ask.group) for number, offset in found)))
    jobs.sort(key=lambda job: (job.state != "running", job.time_ms))
    letters = list(itertools.islice(mq.dead(ask.topic, ask.group).letters(values=False), DEAD_MAX))
    schedules = [planned(state) for state in mq.schedules.all(ask.topic, SCHEDULES_MAX)]
    schedules.sort(key=lambda row: (not row.next_ms, row.next_ms, row.name))
    errors = _errors(ask.topic, ask.group, letters)
    cut = more or len(letters) == DEAD_MAX or len(schedules) > SCHEDULES_MAX or len(errors) > ERRORS_MAX
    return Working(jobs, errors[:ERRORS_MAX], schedules[:SCHEDULES_MAX], count, cut)


def _unfinished(mq: "Client", ask: Work) -> tuple[list[tuple[int, int]], int, bool]:
    """Return records that are in flight or retried, (partition, offset), the ones in flight first; how many
    there are; and whether more records exist than were examined."""
    infos = mq.admin.raw.topics(ask.topic)
    if not infos:
        raise UnknownTopic(f"no topic {ask.topic}")
    places: dict[str, list[tuple[int, int]]] = {state: [] for state in WAITS}
    count, more = 0, len(infos[0].shards) > PARTITIONS_MAX
    for number in range(min(len(infos[0].shards), PARTITIONS_MAX)):
        pages = mq.admin.raw.state_pages(infos[0], number, PAGES_MAX)
        more = more or pages[-1].more_group_id >= 0
        for run in itertools.chain.from_iterable(page.runs for page in pages):
            if run.group == ask.group and run.state in WAITS:
                count += run.end - run.first
                end = min(run.end, run.first + ask.most)
                places[run.state] += [(number, offset) for offset in range(run.first, end)]
    return [*places["in_flight"], *places["retrying"]][: ask.most], count, more


def _job(mq: "Client", topic: str, partition: int, offset: int, group: str) -> Job | None:
    """Return a job that has not ended; None if it has ended meanwhile."""
    try:
        job = mq.job(topic, partition, offset, group=group)
    except (UnknownRecord, WrongState):
        return None
    if job.ended or job.state in ("scheduled", "waiting"):
        return None
    return Job(
        ref=job.ref,
        group=group,
        state=job.state,
        because=job.because,
        consumer=job.consumer,
        time_ms=unix_ms_of(job.time),
        attempt=job.attempt,
        failures=job.failures,
        progress=-1.0 if job.progress is None else job.progress,
        text=job.text,
    )


def _errors(topic: str, group: str, letters: "list[DeadLetter]") -> list[JobError]:
    return [
        JobError(topic, group, each.name, each.error or each.reason, each.letters, each.last_ms, each.ref)
        for each in errors_of(letters)
    ]


def is_slow(job: Job, now_ms: int) -> bool:
    """True if a job has been running for more than SLOW_MS."""
    return job.state == "running" and 0 < job.time_ms < now_ms - SLOW_MS


def planned(state: "ScheduleState") -> Planned:
    when = f"{state.cron} {state.tz}" if state.cron else f"every {state.every:g} s"
    next_ms = unix_ms_of(state.next[0]) if state.next else 0
    return Planned(state.topic, state.name, when, next_ms, state.ticks, state.paused)


def ticked(mq: "Client", ask: Runs) -> Ticked:
    """Return the last ticks of a schedule, the newest first. Raises UnknownRecord."""
    state = mq.schedules.show(ask.topic, ask.name)
    runs = [
        _ran(mq, ask, state.partition, unix_ms_of(tick.time), tick.offset) for tick in reversed(state.last)
    ]
    return Ticked(planned(state), runs, [unix_ms_of(each) for each in state.next])


def _ran(mq: "Client", ask: Runs, partition: int, tick_ms: int, offset: int | None) -> Ran:
    if offset is None:
        return Ran(tick_ms, "", "skipped", because="the record of the tick before was not done")
    ref = f"{ask.topic}/{partition}/{offset}"
    try:
        job = mq.job(ref, group=ask.group)
    except (UnknownRecord, WrongState) as error:
        return Ran(tick_ms, ref, "gone", because=error.message)
    return Ran(
        tick_ms,
        ref,
        job.state,
        unix_ms_of(job.time) if job.state == "running" else 0,
        unix_ms_of(job.time) if job.ended else 0,
        job.because,
        -1.0 if job.progress is None else job.progress,
    )


class Lane(NamedTuple):
    """Where a run is drawn in the picture of an hour: shares of its width, 0 to 1."""

    begin: float  #: its tick
    run: float  #: its delivery, while it runs; else = begin, since deliveries are not stored
    end: float  #: its end, or now


def lanes(runs: list[Ran], now_ms: int) -> list[tuple[Ran, Lane]]:
    """Return the runs that were not over before the last hour, each with its place in the picture."""
    first_ms = now_ms - HOUR_MS

    def share(time_ms: int) -> float:
        return min(1.0, max(0.0, (time_ms - first_ms) / HOUR_MS))

    found = []
    for run in runs:
        end_ms = run.end_ms or (run.tick_ms if run.state in ("skipped", "gone") else now_ms)
        if max(end_ms, run.tick_ms) >= first_ms:
            begin = share(run.tick_ms)
            middle = max(begin, share(run.begin_ms)) if run.begin_ms else begin
            found.append((run, Lane(begin, middle, max(middle, share(end_ms)))))
    return found


# --- errors of failed jobs


class ErrorGroup(NamedTuple):
    """Dead letters of a group whose errors differ in numbers and ids only."""

    name: str  #: of the error: the same over all calls, topics and groups
    reason: str
    error: str  #: of the newest one
    letters: int
    first_ms: int  #: unix time of the oldest one
    last_ms: int
    ref: str  #: the newest one, as an example
    ranges: list[tuple[int, int, int]]  #: all of them: partition, first offset, end


def errors_of(letters: Iterable["DeadLetter"]) -> list[ErrorGroup]:
    """Group dead letters by error, the largest group first."""
    found: dict[str, ErrorGroup] = {}
    for letter in letters:
        name = error_name(letter.reason, letter.error)
        part, time_ms = (
            (letter.partition, letter.offset, letter.offset + letter.count),
            unix_ms_of(letter.time),
        )
        known = found.get(name)
        if known is None:
            newest = letter.error, letter.count, time_ms, time_ms, letter.ref
            found[name] = ErrorGroup(name, letter.reason, *newest, [part])
            continue
        known.ranges.append(part)
        is_newest = time_ms >= known.last_ms
        found[name] = known._replace(
            error=letter.error if is_newest else known.error,
            letters=known.letters + letter.count,
            first_ms=min(known.first_ms, time_ms),
            last_ms=max(known.last_ms, time_ms),
            ref=letter.ref if is_newest else known.ref,
        )
    return sorted(found.values(), key=lambda each: (-each.letters, each.name))


#: parts of an error text that differ from job to job: ids, addresses, quoted texts, numbers
_OWN_PARTS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F-]{16,}\b|'[^']*'|\"[^\"]*\"|\d+")


def error_name(reason: str, error: str) -> str:
    """Return a short name of an error, the same for errors that differ in numbers and quoted texts only."""
    alike = _OWN_PARTS.sub("#", error.partition("\n")[0])
    return blake2b(f"{reason}\0{alike}".encode(), digest_size=4).hexdigest()
