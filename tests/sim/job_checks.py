"""The checkers of what records ask for: times, ids, keys, attempts, routes, and the modes of groups."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import permutations

from sim.clients import CREDIT, RUN
from sim.history import History, Job, JobConfirmed, Pushed
from sim.jobs import ATTEMPTS_MAX, FOREVER_MS, RUNNERS

LATE_MS = 6_000  #: what is due has its offset by then, also after slow commits and takeovers
Offsets = dict[bytes, int]


def offset_of(history: History) -> Offsets:
    """Where each job lies, as far as any copy knows."""
    return {
        value: offset
        for copy in history.copies
        for records in copy.records.values()
        for offset, value in records.items()
        if value in history.jobs
    }


def handed(history: History) -> Iterator[tuple[Pushed, int, Job]]:
    """Each job that was handed to a consumer: the row, the offset, the job."""
    for row in history.pushed:
        if row.group == "jobs":
            for offset, value in enumerate(row.values, row.offset):
                if value in history.jobs:  # `topics_are_apart` tells of others
                    yield row, offset, history.jobs[value]


def jobs_are_kept(history: History) -> Iterator[str]:
    """P1, P6: a confirmed job is at one offset, or scheduled; or its id was known, and then who had it first
    is."""
    confirmed = {job.value: run for row in history.job_confirms for job, run in each_run(row)}
    where = next((row.partition for row in history.job_confirms), 0)
    for copy in history.copies_of(where):
        places = Counter(
            value for records in copy.records.values() for value in records.values() if value in history.jobs
        )
        places.update(list(copy.scheduled.get(where, ())))
        ids = {history.jobs[value].id for value in places}
        for value, duplicate in confirmed.items():
            job = history.jobs[value]
            if duplicate and history.dedup_ms == FOREVER_MS and (not job.id or job.id not in ids):
                yield f"P6 {value!r} was said to be known on {copy.name}, and nothing has its id"
            if not duplicate and not places[value]:
                yield f"P1 {value!r} was confirmed and {copy.name} has it nowhere"
        for value, count in places.items():
            if count > 1:
                yield f"P6 {copy.name} has {value!r} {count} times"
        twice = [
            identity
            for identity, count in Counter(history.jobs[value].id for value in places).items()
            if identity and count > 1
        ]
        if twice and history.dedup_ms == FOREVER_MS:
            yield f"P6 {copy.name} has the ids {twice} more than once"


def ids_are_held(history: History) -> Iterator[str]:
    """P6: as long as a delayed record is not due, no other one with its id is stored."""
    error_ms = 2 * history.clock_error_ms + history.late_ms
    stored: dict[int, list[tuple[Job, int]]] = defaultdict(list)
    for row in history.job_confirms:
        for job, duplicate in each_run(row):
            if job.id and not duplicate:
                stored[job.id].append((job, row.time_ms))
    for same in stored.values():
        for (job, confirmed_ms), (other, other_ms) in permutations(same, 2):
            if confirmed_ms < other.sealed_ms and other_ms < job.due_ms - error_ms:
                yield (
                    f"P6 {other.value!r} was stored at {other_ms}, {job.value!r} has its id and is due at "
                    f"{job.due_ms}"
                )


def each_run(row: JobConfirmed) -> Iterator[tuple[Job, bool]]:
    """Each job of a confirmed batch, and whether it was known."""
    jobs = list(row.jobs)
    if not row.runs:
        yield from ((job, False) for job in jobs)
    for count, _, _, _, duplicate in row.runs:
        yield from ((job, duplicate) for job in jobs[:count])
        del jobs[:count]


def at_most_once(history: History) -> Iterator[str]:
    """P8: without acks nothing is handed out a second time."""
    seen = (
        Counter(offset for _, offset, _ in handed(history)) if history.mode == "at most once" else Counter()
    )
    for offset, count in seen.items():
        if count > 1:
            yield f"P8 {offset} was handed out {count} times, at most once was asked for"


def one_at_a_time(history: History) -> Iterator[str]:
    """P10: in one term, what an exclusive group holds is in one hand; what a key-ordered one holds, in one
    hand for each key, and new records of a key come in order."""
    if history.mode not in ("exclusive", "key_ordered"):
        return
    ends = let_go(history)
    term = 0
    held: dict[int, tuple[Pushed, int]] = {}
    newest: dict[int, int] = {}
    had: set[int] = set()
    for row, offset, job in handed(history):
        if row.term != term:
            term, held, newest, had = row.term, {}, {}, set()
        key = job.key if history.mode == "key_ordered" else -1
        if key == 0:
            continue
        for other, (before, its_key) in list(held.items()):
            over = row.time_ms >= before.time_ms + before.lease_ms
            if over or gone(ends[before.consumer], before, other, row.time_ms):
                del held[other]
            elif its_key == key and before.consumer != row.consumer and other != offset:
                yield (
                    f"P10 {offset} went to {row.consumer} at {row.time_ms}; {before.consumer} had {other}, "
                    f"key {key}"
                )
        held[offset] = row, key
        if row.attempt == 1 and key > 0 and offset not in had:
            if offset < newest.get(key, -1):
                yield f"P10 {offset} of key {key} came after {newest[key]}, first attempts both"
            newest[key] = offset
        had.add(offset)


def keys_stay_closed(history: History) -> Iterator[str]:
    """P10: with key order, a new record of a key is not delivered while an earlier one of it is not done. A
    consumer with runs of keys may have some more: more than a part of its credit would be kept from records
    of other keys. The leader that heard the ack may not be the one that stored it."""
    if history.mode != "key_ordered":
        return
    done: dict[int, int] = {}  # offset -> when, by leader time
    where = next((row.partition for row in history.job_confirms), 0)
    for copy in history.copies_of(where):
        for at, time_ms in copy.acked.get((where, "jobs"), {}).items():
            done[at] = max(time_ms, done.get(at, time_ms))
    dead = {at for copy in history.copies_of(where) for at in copy.dead.get((where, "jobs"), ())}
    failed: dict[int, list[int]] = defaultdict(list)  # offset -> when
    for each in history.failed:
        for offset in range(each.first, each.end) if (each.group, each.partition) == ("jobs", where) else ():
            failed[offset].append(each.time_ms)
    last: dict[int, dict[int, Pushed]] = defaultdict(dict)  # key -> offset -> who had it last
    for row, offset, job in handed(history):
        if job.key == 0 or job.ttl_ms:
            continue
        run = max(1, history.lent[row.consumer] * RUN // CREDIT) if row.consumer in RUNNERS else 1
        for other, before in sorted(last[job.key].items()) if row.attempt == 1 else ():
            late = done.get(other, row.led_ms + 1) > row.led_ms and other not in dead
            if other < offset and late:
                run -= 1
                waits = any(before.time_ms <= time_ms <= row.time_ms for time_ms in failed[other])
                if run and before.consumer == row.consumer and not waits:
                    continue
                yield (
                    f"P10 {offset} of key {job.key} went to {row.consumer} at {row.time_ms}, {other} was "
                    f"with {before.consumer} since {before.time_ms} and is not done"
                )
        last[job.key][offset] = row


def let_go(history: History) -> dict[str, list[tuple[int, int, int]]]:
    """For each consumer, in order of time: from when on it may have a range no more."""
    ends: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for row in sorted([*history.released, *history.asked], key=lambda row: row.time_ms):
        ends[row.consumer].append((row.time_ms, row.first, row.end))
    return ends


def gone(ends: list[tuple[int, int, int]], before: Pushed, offset: int, now_ms: int) -> bool:
    start = bisect_right(ends, before.time_ms - 1, key=lambda row: row[0])
    for time_ms, first, end in ends[start:]:
        if time_ms > now_ms:
            return False
        if first <= offset < end:
            return True
    return False


def in_time(history: History) -> Iterator[str]:
    """P11, P12: nothing comes before it is due, or after its time is over; what is due gets its offset. A
    delay can be early only after machines booted, because wall clocks are off by some milliseconds."""
    error_ms = history.clock_error_ms
    early_ms = max(2 * error_ms, history.late_ms + error_ms) if history.counts.get("boot") else 0
    acked: dict[tuple[int, int], int] = {}
    # decided with its ack; it leaves when that is on a majority of disks, however late
    if history.mode == "at most once":
        for copy in history.copies:
            acked |= {
                (where, at): ms
                for (where, group), times in copy.acked.items()
                if group == "jobs"
                for at, ms in times.items()
            }
    given = {
        (partition, offset): time_ms
        for copy in history.copies
        for partition, times in copy.given.items()
        for offset, time_ms in times.items()
    }
    for row, offset, job in handed(history):
        if row.time_ms < job.due_ms - early_ms:
            yield f"P11 {offset} was handed out at {row.time_ms}, and is due at {job.due_ms}"
        over_ms = given.get((row.partition, offset), row.led_ms) + job.ttl_ms
        decided_ms = min(row.led_ms, acked.get((row.partition, offset), row.led_ms))
        if job.ttl_ms and decided_ms > over_ms + 2 * error_ms:
            yield f"P12 {offset} was handed out at {row.time_ms}, and was over at {over_ms}"
    for copy in history.copies:
        for where, values in copy.scheduled.items():
            for value in values if where in history.shard_of else ():
                # what it was on its way is not in its age
                due_ms = history.jobs[value].due_ms + history.way_ms[value]
                if due_ms < history.end_ms - LATE_MS - 2 * error_ms:
                    yield f"P11 {value!r} has no offset on {copy.name}, and was due at {due_ms}"


def _ends(failed: list[int], given: list[int]) -> list[int]:
    """Of the times at which a failure was confirmed, those that ended an attempt: who says it twice of one,
    as when the record came doubled over the wire, has failed once."""
    ends: list[int] = []
    for time_ms in failed:
        if any((ends[-1] if ends else -1) < at <= time_ms for at in given):
            ends.append(time_ms)
    return ends


def attempts_are_counted(history: History) -> Iterator[str]:
    """P13: who has failed as often as it may is a dead letter, once, and does not come again; who is one has
    failed."""
    jobs = {offset: history.jobs[value] for value, offset in offset_of(history).items()}
    failed: dict[int, list[int]] = defaultdict(list)
    for row in history.failed:
        if row.group == "jobs":
            for offset in range(row.first, row.end):
                failed[offset].append(row.time_ms)
    places = {row.partition for row in history.job_confirms}
    acked = {
        offset
        for row in history.asked
        if row.well and row.partition in places
        for offset in range(row.first, row.end)
    }
    given: dict[int, list[int]] = defaultdict(list)
    for row, offset, _ in handed(history):
        given[offset].append(row.time_ms)
    over: dict[int, int] = {}
    for offset, times in failed.items():
        if offset not in jobs:
            continue  # P1 and P3 tell of it
        most, ends = jobs[offset].attempts or ATTEMPTS_MAX, _ends(sorted(times), given[offset])
        if len(ends) >= most and offset not in acked:  # a failure that comes after an ack changes nothing
            over[offset] = ends[most - 1]
    for row, offset, _ in handed(history):
        if offset in over and row.time_ms > over[offset]:
            yield f"P13 {offset} was handed out at {row.time_ms}, its last attempt was over at {over[offset]}"
    tries = Counter(offset for _, offset, _ in handed(history))
    for copy in history.copies:
        for (where, group), dead in copy.dead.items():
            if where not in history.shard_of:
                continue
            for offset in over:
                # or it had expired, and was dropped
                if group == "jobs" and offset not in dead and not jobs[offset].ttl_ms:
                    yield f"P13 {offset} has failed for good, and {copy.name} has no dead letter of it"
            for offset, reason in dead.items():
                if offset not in jobs:
                    continue
                if reason == "failures" and tries[offset] < (jobs[offset].attempts or ATTEMPTS_MAX):
                    yield f"P13 {offset} is dead on {copy.name} after {tries[offset]} attempts"
                if reason == "expired" and not jobs[offset].ttl_ms:
                    yield f"P12 {offset} has expired on {copy.name}, and never should"


def attempts_have_begun(history: History) -> Iterator[str]:
    """P13: a delivery that no consumer began with counts as no attempt."""
    begun: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for said in history.begun:
        for offset in range(said.first, said.end):
            begun[said.group, said.partition, offset].append(said.time_ms)
    for row in history.pushed:
        for offset in range(row.offset, row.offset + len(row.values)) if row.consumer else ():
            most = bisect_right(begun.get((row.group, row.partition, offset), ()), row.time_ms) + 1
            if row.attempt > most:
                yield f"P13 {offset} came as attempt {row.attempt} at {row.time_ms}, and {most - 1} had begun"


def starts_are_counted(history: History) -> Iterator[str]:
    """P13: a leader that hears that user code has begun with a record counts that delivery as an attempt,
    whatever comes of it. Deliveries that waited for an entry are left out, because their leases can be
    over by the time that they reach the consumer."""
    started: dict[tuple[int, str, int, int], list[int]] = defaultdict(list)
    for said in history.started:
        for offset in range(said.first, said.end):
            started[said.term, said.consumer, said.partition, offset].append(said.time_ms)
    ends = let_go(history)
    last: dict[tuple[int, str, int, int], Pushed] = {}  # by term, group, partition, offset
    for row in history.pushed:
        for offset in range(row.offset, row.offset + len(row.values)) if row.consumer else ():
            before = last.get((row.term, row.group, row.partition, offset))
            last[row.term, row.group, row.partition, offset] = row
            if before is None or before.late or row.attempt > before.attempt:
                continue
            name = before.term, before.consumer, before.partition, offset
            for time_ms in started.get(name, ()):
                holds = before.time_ms < time_ms < min(row.time_ms, before.time_ms + before.lease_ms)
                if holds and not gone(ends[before.consumer], before, offset, time_ms):
                    yield (
                        f"P13 {offset} came as attempt {row.attempt} at {row.time_ms}; {before.consumer} had "
                        f"it as {before.attempt} and began at {time_ms}"
                    )


def done_is_not_dead(history: History) -> Iterator[str]:
    """P7, P13: what a consumer heard to be acked is no dead letter."""
    for copy in history.copies:
        for ack in history.acks:
            dead = copy.dead.get((ack.partition, ack.group), {})
            for offset in dead.keys() & range(ack.first, ack.end):
                yield (
                    f"P13 {offset} was acked at {ack.time_ms}, and is a dead letter on {copy.name}: "
                    f"{dead[offset]}"
                )


def routes_are_kept(history: History) -> Iterator[str]:
    """P16: a consumer gets what its routes match, and nothing else."""
    for row, offset, job in handed(history):
        if history.mode == "routes" and row.consumer == "k1" and not job.route.startswith(b"eu."):
            yield f"P16 {offset} of route {job.route!r} went to {row.consumer}"


def topics_are_apart(history: History) -> Iterator[str]:
    """P2: a group of jobs gets jobs, and no record of another topic."""
    for row in history.pushed:
        if row.group == "jobs" and not history.jobs.keys() >= set(row.values):
            yield f"P2 {row.values} went to {row.consumer}, and is of another topic"


JOB_CHECKS: list[Callable[[History], Iterator[str]]] = [
    jobs_are_kept,
    ids_are_held,
    at_most_once,
    one_at_a_time,
    keys_stay_closed,
    in_time,
    attempts_are_counted,
    attempts_have_begun,
    starts_are_counted,
    done_is_not_dead,
    routes_are_kept,
    topics_are_apart,
]
