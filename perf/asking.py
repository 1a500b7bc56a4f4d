"""Measures records with options: a due time, a retry, key order, an id, a route.

Each figure has a topic and a loop of its own. Where it makes sense, the same loop without the option runs
beside it. Published records are counted again at the end, so that no figure comes from lost records.
"""

import asyncio
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from struct import Struct
from subprocess import PIPE
from typing import Any, NamedTuple

from costs import Measured, Watch
from groups import make_groups
from report import Row
from stage import GOSSIPQ, HERE, Node, answer, cpu_s, directory, disk_mb, memory_mb, node, node_in

from gossipq_client import Client, Message, connect

RECORDS, SCHEDULED, EXPIRING = 1_000_000, 10_000_000, 1_000_000
TOPICS, MADE_AT_ONCE, SETTLE_S, IDLE_S = 10_000, 32, 8.0, 20.0
LOOKS = (
    "status",
    "topic ls",
    "group ls",
    "top --once",
    "top --once --view topics",
    "top --once --view groups",
)
QUIET = 500  #: confirms that are timed while nothing else happens
BATCH, SIZE = 500, 100
KEYS, FAILING = 1_000, 10  #: number of keys; each tenth record fails once
FEW_KEYS, MANY_KEYS = 10, 100_000
STEPS, HOLES, ACKS = 20_000, 10_000, 2_000  #: atomic steps; holes in a window; acks that are told one by one
CROWD, CROWDS, HELD, WATCH_S = (
    2_000,
    4,
    5,
    8.0,
)  #: consumers; their processes; records that each holds; seconds that are watched afterwards
BACKOFF_S = 0.1
RESULT, MINUTELY, MINUTES_S = 42, 10_000, 120.0  #: of a job; schedules; whole minutes that are watched
HORIZON_S = (3_600, 25 * 3_600)  #: nothing of it is due while it is measured
LEAD_S, PATIENCE_S = 5.0, 60.0  #: from the first publish to the first due time; wait for the last record
DUE = (  #: name, records, seconds over which they are due at random, what is asked
    ("at once", 100_000, 0.0, ""),
    ("mixed", 100_000, 1.0, ""),
    ("few", 1_000, 1.0, "< 50 ms"),
)
STAMP = Struct("<d")
VALUE = bytes(SIZE)


def sized(count: int, scale: float) -> int:
    """`count` scaled, in whole batches."""
    return max(2, round(count * scale / BATCH)) * BATCH


def batches(records: int) -> Iterator[range]:
    for first in range(0, records, BATCH):
        yield range(first, first + BATCH)


class Figure(NamedTuple):
    """One number, and the number that it is compared with."""

    name: str
    ours: float
    beside: float | None
    unit: str
    asked: str
    what: str


def check(found: int, expected: int, what: str) -> None:
    if found != expected:
        raise SystemExit(f"{found:,} of {expected:,} {what}")


# --- due times ----------------------------------------------------------------------------------------------


def schedule(scale: float) -> list[Figure]:
    """Due times over a day: memory and start-up of a node that keeps them, and what they take on disk."""
    records, draw = sized(SCHEDULED, scale), random.Random(1)
    with directory() as home:
        with node_in(home) as at, connect(at.server) as mq:
            mq.create_topic("later", partitions=2)
            empty_mb, start = memory_mb(at.pid, "Pss_Anon"), time.perf_counter()
            for _ in batches(records):
                mq.post_many(
                    "later", [VALUE] * BATCH, delays=[draw.uniform(*HORIZON_S) for _ in range(BATCH)]
                )
            mq.flush(None)
            seconds = time.perf_counter() - start
            check(scheduled(mq, "later"), records, "records scheduled")
            full_mb = memory_mb(at.pid, "Pss_Anon")
        held = answer([*GOSSIPQ, "store", "info", "--data", str(home / "data"), "-o", "json"])
        rows_on_disk = sum(sum(worker["rows"].values()) for worker in held["workers"])
        with node_in(home) as again, connect(again.server) as mq:
            check(scheduled(mq, "later"), records, "records scheduled after a restart")
            restarted_mb, ready_s, files_mb = memory_mb(again.pid, "Pss_Anon"), again.ready_s, disk_mb(home)
    what = (
        f"{records:,} records, due at random over {HORIZON_S[1] // 3_600 - HORIZON_S[0] // 3_600} h, "
        f"batches of {BATCH}"
    )
    return [
        Figure("schedule speed", records / seconds, None, "/s", "", what),
        Figure(
            "schedule memory", full_mb, empty_mb, " MB", "< 50 MB more", "anonymous memory, beside before it"
        ),
        Figure(
            "schedule restart", restarted_mb, empty_mb, " MB", "< 50 MB more", "the same, after a restart"
        ),
        Figure(
            "schedule start", ready_s, None, " s", "< 2 s", "from exec to the ready line, with all of them"
        ),
        Figure("schedule disk", files_mb, None, " MB", "", f"{rows_on_disk:,} rows of the store in all"),
    ]


def expire(scale: float) -> list[Figure]:
    """Let the backlog of a group without consumers expire at one moment. Meanwhile another client publishes
    one record after the other. Returns the longest confirm, and memory before and after."""
    records = sized(EXPIRING, scale)
    with node() as at, connect(at.server) as mq:
        mq.create_topic("old")
        mq.create_topic("other")
        mq.fetch("old", "late", n=1, wait=0.0)
        for _ in batches(records):
            mq.post_many("old", [VALUE] * BATCH)
        mq.flush(None)
        mq.publish("other", VALUE)
        laps_ms, quiet_ms, most_mb = list[float](), list[float](), 0.0
        before_mb = memory_mb(at.pid, "Pss_Anon")
        for _ in range(QUIET):
            quiet_ms.append(confirmed_ms(mq))
        mq.topic("old").configure(ttl=1.0)
        end = time.perf_counter() + PATIENCE_S
        while sum(row.dead for row in mq.topic("old").groups()) < records and time.perf_counter() < end:
            laps_ms += [confirmed_ms(mq) for _ in range(20)]
            most_mb = max(most_mb, memory_mb(at.pid, "Pss_Anon"))
        check(sum(row.dead for row in mq.topic("old").groups()), records, "records expired")
    what = f"{records:,} records expire at once; {len(laps_ms):,} confirms meanwhile, beside: {QUIET} before"
    return [
        Figure("expire confirm", max(laps_ms), max(quiet_ms), " ms", "< 200 ms", f"the longest; {what}"),
        Figure("expire memory", most_mb, before_mb, " MB", "flat", "anonymous memory, beside before it"),
    ]


def topics(scale: float) -> list[Figure]:
    """Many topics, each with an unused group: start, memory, processor time, lists."""
    count = round(TOPICS * scale)
    with directory() as home:
        with node_in(home) as at:
            start = time.perf_counter()
            names = [(f"t{number:05}", "g") for number in range(count)]
            asyncio.run(make_groups(at.server, names, MADE_AT_ONCE))
            made_s = time.perf_counter() - start
        with node_in(home) as again, connect(again.server, timeout=PATIENCE_S) as mq:
            time.sleep(SETTLE_S)
            spent_s, start = cpu_s(again.pid), time.perf_counter()
            time.sleep(IDLE_S)
            idle = 100 * (cpu_s(again.pid) - spent_s) / (time.perf_counter() - start)
            memory, ready_s, start = memory_mb(again.pid), again.ready_s, time.perf_counter()
            check(len(mq.topics()), count, "topics listed")
            topics_s, start = time.perf_counter() - start, time.perf_counter()
            check(len(mq.admin.stats().groups), count, "groups listed")
            stats_s = time.perf_counter() - start
            asked_s = {verb: command_s(again, *verb.split()) for verb in LOOKS}
    what = f"{count:,} topics with a group each on one node"
    return [
        Figure(
            "topics made", count / made_s, None, "/s", "", f"{MADE_AT_ONCE} at a time by one client; {what}"
        ),
        Figure("topics start", ready_s, None, " s", "< 5 s", f"from exec to the ready line, {what}"),
        Figure("topics memory", memory, None, " MB", "< 400 MB", f"PSS of all processes, {what}"),
        Figure("topics idle", idle, None, " %", "< 5 %", f"of a core, {what}"),
        Figure("topics listed", topics_s, stats_s, " s", "", "all topics, beside all counters"),
        *(
            Figure(f"topics {verb}", took_s, None, " s", "", f"`gossipq {verb}`, {what}")
            for verb, took_s in asked_s.items()
        ),
    ]


def command_s(at: Node, *line: str) -> float:
    """How long a command takes from exec to its end."""
    start = time.perf_counter()
    command = [*GOSSIPQ, "-s", at.server, "--timeout", f"{PATIENCE_S:g}s", *line]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=10 * PATIENCE_S)
    return time.perf_counter() - start


def confirmed_ms(mq: Client) -> float:
    start = time.perf_counter()
    mq.publish("other", VALUE)
    return (time.perf_counter() - start) * 1_000


def scheduled(mq: Client, topic: str) -> int:
    return sum(part.scheduled for part in mq.admin.stats([topic]).partitions)


def due(scale: float) -> list[Figure]:
    """Measure how late delayed records arrive: many due at one moment, then many and few due at random within
    a second."""
    figures: list[Figure] = []
    for name, full, spread_s, asked in DUE:
        records = sized(full, scale)
        with node() as at, connect(at.server) as mq:
            late_ms = sorted(lateness_ms(mq, records, spread_s))
        check(len(late_ms), records, "records delivered")
        if late_ms[0] < 0:
            raise SystemExit(f"a record came {-late_ms[0]:.3f} ms early")
        p50, p99 = (late_ms[len(late_ms) * share // 100] for share in (50, 99))
        what = (
            f"{records:,} due within {spread_s:g} s: p99 of how late they come, beside p50; the last "
            f"{late_ms[-1]:,.0f} ms"
        )
        figures.append(Figure(f"due {name}", p99, p50, " ms", asked, what))
    return figures


def lateness_ms(mq: Client, records: int, spread_s: float) -> list[float]:
    """Each record carries its due time by this machine's monotonic clock; delays are whole milliseconds,
    rounded up."""
    draw, late_ms = random.Random(2), list[float]()
    first_due = time.monotonic() + LEAD_S
    mq.create_topic("soon")
    for _ in batches(records):
        now = time.monotonic()
        delays = [int((first_due + draw.uniform(0, spread_s) - now) * 1_000) + 1 for _ in range(BATCH)]
        values = [STAMP.pack(now + delay / 1_000).ljust(SIZE, b"\0") for delay in delays]
        mq.post_many("soon", values, delays=[delay / 1_000 for delay in delays])
    mq.flush(None)
    if time.monotonic() > first_due:
        raise SystemExit(f"publishing {records:,} records took longer than {LEAD_S:g} s")
    end = first_due + spread_s + PATIENCE_S
    while len(late_ms) < records and time.monotonic() < end:
        batch = mq.fetch("soon", "bench", wait=1.0)
        now = time.monotonic()
        late_ms += [(now - STAMP.unpack_from(value)[0]) * 1_000 for value in batch.values()]
        mq.ack_soon(batch)
    return late_ms


# --- delivery -----------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """Records to publish, and how to take them."""

    topic: str
    records: int
    publish: Callable[[Client, str, range], object]
    take: Callable[[Message], bool]  #: settles the message; whether it was acked
    acked: int  #: the run ends when this number is acked
    options: dict[str, Any]  #: of `consume`


def plain(mq: Client, topic: str, numbers: range) -> None:
    mq.post_many(topic, [STAMP.pack(number).ljust(SIZE, b"\0") for number in numbers])


def number_of(message: Message) -> int:
    return int(STAMP.unpack_from(message.value)[0])


def ack(message: Message) -> bool:
    message.ack_soon()
    return True


def consumed_per_s(at: Node, work: Work) -> float:
    """The topic is filled first; the clock runs from the first record to the last ack."""
    with connect(at.server) as mq:
        mq.create_topic(work.topic)
        for numbers in batches(work.records):
            work.publish(mq, work.topic, numbers)
        mq.flush(None)
        left, take, start = work.acked, work.take, time.perf_counter()
        for message in mq.consume(work.topic, "bench", **work.options):
            left -= take(message)
            if not left:
                break
        mq.flush(None)
        seconds = time.perf_counter() - start
        check(sum(group.acked for group in mq.topic(work.topic).groups()), work.acked, "records acked")
    return work.acked / seconds


def retry(scale: float) -> list[Figure]:
    """Each tenth record fails once and is redelivered after its pause."""
    records = sized(RECORDS, scale)

    def failing(rest: int) -> Callable[[Message], bool]:
        """Use the same handler with and without failures, so that its checks do not count as a cost of
        failing."""

        def take(message: Message) -> bool:
            if message.attempt == 1 and number_of(message) % FAILING == rest:
                message.nack(reason="planned")
                return False
            return ack(message)

        return take

    with node() as at:
        beside = consumed_per_s(at, Work("beside", records, plain, failing(-1), records, {}))
        ours = consumed_per_s(
            at, Work("retry", records, plain, failing(0), records, {"backoff": [BACKOFF_S]})
        )
    return [
        Figure(
            "retry",
            ours,
            beside,
            "/s",
            "",
            f"{records:,} records, 1 of {FAILING} fails once, beside none fails in the same handler",
        )
    ]


def keys(scale: float) -> list[Figure]:
    """Key order, with ten keys, with some and with many, and one key whose first record does not get done:
    its records wait, all others flow."""
    records = sized(RECORDS, scale)
    stuck = len(range(0, records, KEYS))

    def publish(mq: Client, topic: str, numbers: range, count: int = KEYS) -> None:
        values = [STAMP.pack(number).ljust(SIZE, b"\0") for number in numbers]
        mq.post_many(topic, values, keys=[b"%d" % (number % count) for number in numbers])

    def publish_many(mq: Client, topic: str, numbers: range) -> None:
        publish(mq, topic, numbers, MANY_KEYS)

    def publish_few(mq: Client, topic: str, numbers: range) -> None:
        publish(mq, topic, numbers, FEW_KEYS)

    def take(message: Message) -> bool:
        if number_of(message) % KEYS == 0:
            message.nack(delay=HORIZON_S[0], reason="stuck")
            return False
        return ack(message)

    ordered: dict[str, Any] = {"mode": "key_ordered"}
    with node() as at:
        beside = consumed_per_s(at, Work("beside", records, publish, ack, records, {}))
        free = consumed_per_s(at, Work("free", records, publish, ack, records, ordered))
        few = consumed_per_s(at, Work("few", records, publish_few, ack, records, ordered))
        many = consumed_per_s(at, Work("many", records, publish_many, ack, records, ordered))
        ours = consumed_per_s(at, Work("stuck", records, publish, take, records - stuck, ordered))
    what = f"{records:,} records of {KEYS:,} keys"
    return [
        Figure("keys", free, beside, "/s", "", f"{what}, key_ordered, beside shared"),
        Figure(
            "keys, few",
            few,
            beside,
            "/s",
            "",
            f"{records:,} records of {FEW_KEYS} keys, key_ordered, beside shared",
        ),
        Figure(
            "keys, many",
            many,
            beside,
            "/s",
            "",
            f"{records:,} records of {MANY_KEYS:,} keys, key_ordered, beside shared",
        ),
        Figure("keys, one stuck", ours, free, "/s", "", f"{what}, one of them stuck, beside none"),
    ]


def routes(scale: float) -> list[Figure]:
    """Alternating routes, of which the group takes one; the other half is parked."""
    records = sized(RECORDS, scale)

    def publish(mq: Client, topic: str, numbers: range) -> None:
        values = [STAMP.pack(number).ljust(SIZE, b"\0") for number in numbers]
        mq.post_many(topic, values, route="eu.fr" if numbers.start // BATCH % 2 else "us.ny")

    taken = sum(len(numbers) for numbers in batches(records) if numbers.start // BATCH % 2)
    with node() as at:
        beside = consumed_per_s(at, Work("beside", taken, plain, ack, taken, {}))
        ours = consumed_per_s(at, Work("routes", records, publish, ack, taken, {"routes": ["eu.*"]}))
        with connect(at.server) as mq:
            unmatched = sum(group.unmatched for group in mq.topic("routes").groups())
    check(unmatched, records - taken, "records parked")
    return [
        Figure(
            "routes",
            ours,
            beside,
            "/s",
            "",
            f"{records:,} records, each second batch is taken, beside as many, all taken",
        )
    ]


def steps(scale: float) -> list[Figure]:
    """Acks that publish what comes of a record, in one step each, beside as two."""
    records = sized(STEPS, scale)

    def two(mq: Client, topic: str, message: Message) -> None:
        mq.post(topic, VALUE)
        message.ack_soon()

    def one(mq: Client, topic: str, message: Message) -> None:
        message.post_with(topic, VALUE)

    def stepped_per_s(mq: Client, name: str, step: Callable[[Client, str, Message], None]) -> float:
        source, out = f"{name}-in", f"{name}-out"
        mq.create_topic(source)
        mq.create_topic(out, beside=source)
        for numbers in batches(records):
            plain(mq, source, numbers)
        mq.flush(None)
        left, start = records, time.perf_counter()
        for message in mq.consume(source, "bench"):
            step(mq, out, message)
            left -= 1
            if not left:
                break
        mq.flush(None)
        seconds = time.perf_counter() - start
        check(sum(part.next for part in mq.admin.stats([out]).partitions), records, "records published")
        check(sum(group.acked for group in mq.topic(source).groups()), records, "records acked")
        return records / seconds

    with node() as at, connect(at.server) as mq:
        beside, ours = stepped_per_s(mq, "two", two), stepped_per_s(mq, "one", one)
    what = f"{records:,} records, each acked with a publish, beside an ack and a publish"
    return [Figure("steps", ours, beside, "/s", "", what)]


def acks(scale: float) -> list[Figure]:
    """Ack records one by one in random order. Also measure one ack when each second record of a full window
    is acked."""
    records, draw = sized(2 * HOLES, scale), random.Random(3)

    def taken(mq: Client, topic: str) -> list[Message]:
        mq.create_topic(topic)
        for numbers in batches(records):
            plain(mq, topic, numbers)
        mq.flush(None)
        found = list[Message]()
        while len(found) < records:
            found += mq.fetch(topic, "bench", n=records - len(found))
        return found

    def acked_per_s(mq: Client, messages: list[Message]) -> float:
        start = time.perf_counter()
        for message in messages:
            message.ack_soon()
        mq.flush(None)
        return len(messages) / (time.perf_counter() - start)

    def cpu_ms_of_one(mq: Client, pid: int, messages: list[Message]) -> float:
        before = cpu_s(pid)
        for message in messages:
            message.ack_soon()
            mq.flush(None)
        return (cpu_s(pid) - before) * 1_000 / len(messages)

    with node() as at, connect(at.server) as mq:
        beside, messages = acked_per_s(mq, taken(mq, "row")), taken(mq, "random")
        draw.shuffle(messages)
        ours = acked_per_s(mq, messages)
        whole_ms = cpu_ms_of_one(mq, at.pid, taken(mq, "whole")[:ACKS])
        messages = taken(mq, "holes")
        acked_per_s(mq, messages[1::2])
        holes_ms = cpu_ms_of_one(mq, at.pid, draw.sample(messages[::2], min(ACKS, records // 2)))
    return [
        Figure("acks", ours, beside, "/s", "", f"{records:,} records in random order, beside in order"),
        Figure(
            "ack among holes",
            holes_ms - whole_ms,
            whole_ms,
            " ms",
            "< 0.1 ms",
            f"processor time of a node for one ack among {records // 2:,} holes, more than for one in order, "
            "which stands beside: it is that of its turn",
        ),
    ]


@contextmanager
def crowd(at: Node, topic: str, consumers: int) -> Iterator[None]:
    """This number of consumers hold HELD records each, and are killed at the end. They are spread over
    several processes, because a client has about 17 open files."""
    share = -(-consumers // CROWDS)
    line = [sys.executable, str(HERE / "crowd.py"), at.server, topic, "g", str(share), str(HELD)]
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(line, stdin=PIPE, stdout=PIPE, text=True))
            for _ in range(CROWDS)
        ]
        check(
            sum(int(one.stdout.readline()) for one in started if one.stdout),
            share * CROWDS * HELD,
            "records held",
        )
        yield
        for one in started:
            one.kill()


def vanish(scale: float) -> list[Figure]:
    """Consumers that vanish at one moment with what they hold, while somebody publishes one record after the
    other: how long the longest of those confirms takes."""
    consumers = CROWDS * max(1, round(CROWD * scale / CROWDS))
    with node() as at, connect(at.server, timeout=PATIENCE_S) as mq:
        mq.create_topic("crowd")
        mq.create_topic("other")
        for numbers in batches(sized(consumers * HELD, 1.0)):
            plain(mq, "crowd", numbers)
        mq.fetch("crowd", "g", n=1, wait=0.0)
        mq.flush(None)
        with crowd(at, "crowd", consumers):
            mq.publish("other", VALUE)
            quiet_ms = [confirmed_ms(mq) for _ in range(QUIET)]
        laps_ms, end = list[float](), time.perf_counter() + WATCH_S
        while time.perf_counter() < end:
            laps_ms.append(confirmed_ms(mq))
        (left,) = mq.topic("crowd").groups()
        check(left.in_flight, 0, "records in flight")
    what = f"{consumers:,} consumers vanish with {consumers * HELD:,} records; {len(laps_ms):,} confirms"
    return [
        Figure("vanish confirm", max(laps_ms), max(quiet_ms), " ms", "< 200 ms", f"the longest; {what}"),
    ]


# --- publishing ---------------------------------------------------------------------------------------------


def ids(scale: float) -> list[Figure]:
    """With an id each, then all of them once more: the second time nothing is stored."""
    records = sized(RECORDS, scale)
    with node() as at, connect(at.server) as mq:

        def published(topic: str, named: bool) -> Measured:
            made = [[b"order-%d" % number for number in numbers] for numbers in batches(records)]
            watch = Watch(at.pid)
            for ids in made:
                mq.post_many(topic, [VALUE] * BATCH, ids=ids if named else None)
            mq.flush(None)
            return watch.spent().of_each(records)

        mq.create_topic("named")
        mq.create_topic("beside")
        beside, ours, again = (published(*of) for of in (("beside", False), ("named", True), ("named", True)))
        check(sum(part.next for part in mq.admin.stats(["named"]).partitions), records, "records stored")
    what = f"{records:,} records, batches of {BATCH}"
    return [
        Figure("ids", ours.per_s, beside.per_s, "/s", "", f"{what}, an id each, beside none"),
        Figure(
            "ids, all known",
            again.per_s,
            beside.per_s,
            "/s",
            "",
            f"{what}, all duplicates, beside stored, without ids",
        ),
        Figure("ids, time of a node", ours.nodes_us, beside.nodes_us, " us", "", f"of a record; {what}"),
        Figure("ids, time of clients", ours.clients_us, beside.clients_us, " us", "", f"of a record; {what}"),
    ]


def uniques(scale: float) -> list[Figure]:
    """With a unique name each, beside an id each; then all of them once more: they are kept out."""
    records = sized(RECORDS // 2, scale)
    with node() as at, connect(at.server) as mq:

        def published(topic: str, option: str) -> Measured:
            made = [[b"order-%d" % number for number in numbers] for numbers in batches(records)]
            watch = Watch(at.pid)
            for names in made:
                mq.post_many(topic, [VALUE] * BATCH, **{option: names})
            mq.flush(None)
            return watch.spent().of_each(records)

        mq.create_topic("unique")
        mq.create_topic("beside")
        order = ("beside", "ids"), ("unique", "uniques"), ("unique", "uniques")
        beside, ours, again = (published(*of) for of in order)
        check(sum(part.next for part in mq.admin.stats(["unique"]).partitions), records, "records stored")
    what = f"{records:,} records, batches of {BATCH}"
    return [
        Figure(
            "unique names", ours.per_s, beside.per_s, "/s", "0.50", f"{what}, a name each, beside an id each"
        ),
        Figure("unique names, all taken", again.per_s, beside.per_s, "/s", "", f"{what}, nothing is stored"),
        Figure(
            "unique names, time of a node", ours.nodes_us, beside.nodes_us, " us", "", f"of a record; {what}"
        ),
    ]


# --- jobs ---------------------------------------------------------------------------------------------------


def results(scale: float) -> list[Figure]:
    """Published and handled, each with a result that is kept, beside the same without."""
    records = sized(RECORDS // 4, scale)

    def handled(mq: Client, topic: str, **options: Any) -> Measured:
        mq.create_topic(topic)
        watch, left = Watch(at.pid), records
        for _ in batches(records):
            mq.post_many(topic, [VALUE] * BATCH, **options)
        for message in mq.consume(topic, "bench"):
            message.ack_soon(RESULT)
            left -= 1
            if not left:
                break
        mq.flush(None)
        return watch.spent().of_each(records)

    with node() as at, connect(at.server) as mq:
        beside = handled(mq, "beside")
        ours = handled(mq, "kept", keep_result="1h")
        check(
            int(mq.result(f"kept/0/{mq.admin.stats(['kept']).partitions[0].next - 1}")), RESULT, "the result"
        )
    what = f"{records:,} records published and handled"
    return [
        Figure("results", ours.per_s, beside.per_s, "/s", "0.50", f"{what} with a result, beside without"),
        Figure("results, time of a node", ours.nodes_us, beside.nodes_us, " us", "", f"of a record; {what}"),
        Figure(
            "results, time of clients", ours.clients_us, beside.clients_us, " us", "", f"of a record; {what}"
        ),
    ]


def minutes(scale: float) -> list[Figure]:
    """Schedules that store a record each minute, on a node that has nothing else to do."""
    count = max(1, round(MINUTELY * scale))
    with node() as at, connect(at.server) as mq:
        mq.create_topic("minutely")
        start = time.perf_counter()
        for number in range(count):
            mq.schedule("minutely", VALUE, name=f"job-{number}", every="1m")
        set_s = time.perf_counter() - start
        time.sleep(SETTLE_S)
        spent, began = cpu_s(at.pid), time.perf_counter()
        stored = sum(part.next for part in mq.admin.stats(["minutely"]).partitions)
        time.sleep(MINUTES_S)
        share = 100 * (cpu_s(at.pid) - spent) / (time.perf_counter() - began)
        stored = sum(part.next for part in mq.admin.stats(["minutely"]).partitions) - stored
        check(stored, round(MINUTES_S / 60) * count, "ticks")
    what = f"{count:,} schedules of a minute each, all at the same second"
    return [
        Figure(
            "schedules of a minute", share, None, " % of a core", "< 10", f"{what}; for {MINUTES_S:.0f} s"
        ),
        Figure("schedules, set one by one", count / set_s, None, "/s", "", what),
    ]


FIGURES: dict[str, Callable[[float], list[Figure]]] = {
    "schedule": schedule,
    "due": due,
    "expire": expire,
    "retry": retry,
    "keys": keys,
    "ids": ids,
    "uniques": uniques,
    "results": results,
    "minutes": minutes,
    "routes": routes,
    "steps": steps,
    "acks": acks,
    "vanish": vanish,
    "topics": topics,
}


def measure(name: str, times: int, scale: float) -> list[Row]:
    """Medians of `times` runs, each on nodes of its own."""
    rows = []
    for runs in zip(*(FIGURES[name](scale) for _ in range(times)), strict=True):
        first, ours = runs[0], statistics.median(run.ours for run in runs)
        besides = [run.beside for run in runs if run.beside is not None]
        beside = shown(statistics.median(besides), first.unit) if besides else ""
        ratio = statistics.median(run.ours / (run.beside or 1) for run in runs)
        compared = f"{ratio:.2f}" if besides and first.unit == "/s" else ""
        rows.append(Row(first.name, shown(ours, first.unit), beside, compared, first.asked, first.what))
        print(*rows[-1], sep="  ", file=sys.stderr)
    return rows


def shown(number: float, unit: str) -> str:
    return f"{number:,.{0 if number >= 100 else 2}f}{unit}"
