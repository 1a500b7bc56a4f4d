"""The checkers of the options that records and groups have: times, ids, keys, attempts, routes and modes."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import permutations

from sim.clients import CREDIT, RUN
from sim.history import History, Job, JobConfirmed, Pushed
from sim.jobs import ATTEMPTS_MAX, FOREVER_MS, RUNNERS

LATE_MS = 6_000  #: a due record has its offset within this time, also after slow commits and takeovers
Offsets = dict[bytes, int]


def offset_of(history: History) -> Offsets:
    """Return the offset of each job that a copy has."""
    return {
        value: offset
        for copy in history.copies
        for records in copy.records.values()
        for offset, value in records.items()
        if value in history.jobs
    }


def handed(history: History) -> Iterator[tuple[Pushed, int, Job]]:
    """Yield each delivery of a job to a consumer: the row of the history, the offset, the job."""
    for row in history.pushed:
        if row.group == "jobs":
            for offset, value in enumerate(row.values, row.offset):
                if value in history.jobs:  # `topics_are_apart` tells of others
                    yield row, offset, history.jobs[value]


def jobs_are_kept(history: History) -> Iterator[str]:
    """P1: a confirmed job is at one offset, or scheduled. P6: a job that was confirmed as a duplicate is not
    stored, but another job with its id is."""
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
    """P6: until a delayed record is due, no other record with its id is stored."""
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
    """Yield each job of a confirmed batch, and whether it was a duplicate."""
    jobs = list(row.jobs)
    if not row.runs:
        yield from ((job, False) for job in jobs)
    for count, _, _, _, duplicate in row.runs:
        yield from ((job, duplicate) for job in jobs[:count])
        del jobs[:count]


def at_most_once(history: History) -> Iterator[str]:
    """P8: to a group without acks, each record is delivered once at most."""
    seen = (
        Counter(offset for _, offset, _ in handed(history)) if history.mode == "at most once" else Counter()
    )
    for offset, count in seen.items():
        if count > 1:
            yield f"P8 {offset} was delivered {count} times, at most once was asked for"


def one_at_a_time(history: History) -> Iterator[str]:
    """P10: in one term, one consumer holds all records of an exclusive group, and one consumer holds all
    records of a key in a key-ordered group. The first attempts of a key come in the order of its records."""
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
    """P10: with key order, a new record of a key is delivered only when the earlier ones of that key are
    done. A consumer with runs of keys (RUNNERS) may hold several records of a key: a part of its credit, so
    that the rest is left for other keys. Times of acks are read from the copies, because the leader that
    heard an ack may not be the one that stored it."""
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
    """Return for each consumer, in order of time, when it stopped holding which range: (time, first, end)."""
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
    """P11: no record is delivered before it is due, and a due record gets its offset. P12: no record is
    delivered after its time to live. A delay may be too short only in runs in which machines booted: boot
    clocks begin anew then, and wall clocks, which are off by some milliseconds, must do."""
    error_ms = history.clock_error_ms
    early_ms = max(2 * error_ms, history.late_ms + error_ms) if history.counts.get("boot") else 0
    acked: dict[tuple[int, int], int] = {}
    # A record of "at most once" is acked before it is sent. It leaves when that ack is on a majority of
    # disks, so its time to live counts at the ack.
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
            yield f"P11 {offset} was delivered at {row.time_ms}, and is due at {job.due_ms}"
        over_ms = given.get((row.partition, offset), row.led_ms) + job.ttl_ms
        decided_ms = min(row.led_ms, acked.get((row.partition, offset), row.led_ms))
        if job.ttl_ms and decided_ms > over_ms + 2 * error_ms:
            yield f"P12 {offset} was delivered at {row.time_ms}, and was over at {over_ms}"
    for copy in history.copies:
        for where, values in copy.scheduled.items():
            for value in values if where in history.shard_of else ():
                # a copy counts the delay from the arrival of the publish, not from its sending
                due_ms = history.jobs[value].due_ms + history.way_ms[value]
                if due_ms < history.end_ms - LATE_MS - 2 * error_ms:
                    yield f"P11 {value!r} has no offset on {copy.name}, and was due at {due_ms}"


def _ends(failed: list[int], given: list[int]) -> list[int]:
    """Return the times at which a failure ended an attempt. A consumer that got a record twice over the wire
    reports its failure twice, and has failed once."""
    ends: list[int] = []
    for time_ms in failed:
        if any((ends[-1] if ends else -1) < at <= time_ms for at in given):
            ends.append(time_ms)
    return ends


def attempts_are_counted(history: History) -> Iterator[str]:
    """P13: a record whose attempts are used up is a dead letter, and is not delivered again. A dead letter of
    failures has used up its attempts."""
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
            continue  # P1 and P3 report it
        most, ends = jobs[offset].attempts or ATTEMPTS_MAX, _ends(sorted(times), given[offset])
        if len(ends) >= most and offset not in acked:  # a failure that comes after an ack changes nothing
            over[offset] = ends[most - 1]
    for row, offset, _ in handed(history):
        if offset in over and row.time_ms > over[offset]:
            yield f"P13 {offset} was delivered at {row.time_ms}, its last attempt was over at {over[offset]}"
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
    """P13: only a delivery that a consumer has begun with counts as an attempt."""
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
    even if the consumer then dies. Deliveries that waited for an entry are left out, because their leases can
    be over by the time that they reach the consumer."""
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
    """P7, P13: a record that a consumer heard to be acked is not a dead letter."""
    for copy in history.copies:
        for ack in history.acks:
            dead = copy.dead.get((ack.partition, ack.group), {})
            for offset in dead.keys() & range(ack.first, ack.end):
                yield (
                    f"P13 {offset} was acked at {ack.time_ms}, and is a dead letter on {copy.name}: "
                    f"{dead[offset]}"
                )


def routes_are_kept(history: History) -> Iterator[str]:
    """P16: a consumer gets only records whose route it accepts."""
    for row, offset, job in handed(history):
        if history.mode == "routes" and row.consumer == "k1" and not job.route.startswith(b"eu."):
            yield f"P16 {offset} of route {job.route!r} went to {row.consumer}"


def topics_are_apart(history: History) -> Iterator[str]:
    """P2: the group of jobs gets jobs only, and no records of another topic."""
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
