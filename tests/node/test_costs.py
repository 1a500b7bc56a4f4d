"""What one request may cost: the table of docs/internals/attacks.md, tried with the largest arguments that
are allowed, and with more than that.

Work is counted, not timed: the calls of functions that one turn makes. A turn must stay below so many for
each thing that the bound of the table counts, however much there is.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from conftest import HOME
from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.core.requests import idle
from gossipq.export_messages import ListAcks, ListStates
from gossipq.messages import (
    Ack,
    BindTopic,
    Confirm,
    CreateTopic,
    DeadLetters,
    DropTopic,
    Extend,
    ListDead,
    Nack,
    Publish,
    PurgeDead,
    RefusedMessage,
    ReplayDead,
    Resolve,
    Show,
    Started,
    Stats,
    Subscribe,
    Topics,
)
from gossipq.operator_messages import Growth, ListClients, PurgeTopic
from gossipq.types import PartitionKey, partition_key
from gossipq.values import GroupOptions, Message, Ref, Start, TopicOptions
from gossipq.wire import batch as batches
from gossipq_node.actors import worker_stats
from gossipq_node.actors.sessions import Session, Sessions

SIZES = {"MiB": limits.MIB, "KiB": limits.KIB}
RECORDS = 3_000  #: each in a batch, and so in a slice, of its own
ADA, BOB = client("ada"), client("bob")
SETTINGS: Any = SimpleNamespace(worker=0, node="n1")  #: all that lists ask of a worker's
BASE = 6_000  #: calls of a turn beside what its request costs


def table() -> dict[str, list[int]]:
    """The numbers of each bound, by request."""
    text = (HOME / "docs" / "internals" / "attacks.md").read_text("utf-8")
    part = text[text.index("## What one request may cost") :].split("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) \|$", part, re.MULTILINE)
    return {
        request: [
            int(number.replace(",", "")) * SIZES.get(unit, 1)
            for number, unit in re.findall(r"([\d,]*\d)(?: (MiB|KiB))?", bound)
        ]
        for request, _, bound in rows
        if request not in ("request", "---")
    }


BOUNDS = table()
COMMIT = FakeWorker.commit.__code__


class Bench:
    """A node's core in memory, and how many calls its turns make."""

    def __init__(self) -> None:
        self.worker = FakeWorker()

    def turns(self, *steps: Callable[[], None]) -> tuple[list[int], list[Message]]:
        """The calls of a turn and of the turns that it requests at once, and the answers."""
        costs, answers = list[int](), list[Message]()
        self.worker.slow = True
        while not costs or self.again():
            with counted() as calls:
                effects = self.worker.turn(*(() if costs else steps))
            costs.append(calls[0])
            for each in effects.values():
                answers += [message for _, _, message in each.replies]
                answers += [message for _, _, message, _ in each.enclosed]
                answers += [Confirm(rows) for rows in each.confirms.values()]
        self.worker.slow = False
        return costs, answers

    def again(self) -> bool:
        """True if there is more to do at once."""
        due_ms = self.worker.turns.next_deadline_ms()
        return self.worker.turns.again or (due_ms is not None and due_ms <= self.worker.now.boot_ms)

    def ask(
        self, message: Message, shard: int = 1, who: Any = ADA, batch: bytes = b""
    ) -> tuple[int, Message]:
        """The most calls of a turn, and the first answer."""
        costs, answers = self.turns(self.step(message, shard, who, batch))
        return max(costs), answers[0]

    def step(
        self, message: Message, shard: int = 1, who: Any = ADA, batch: bytes = b""
    ) -> Callable[[], None]:
        worker, origin = self.worker, (b"c", who.session)
        if isinstance(message, Publish):
            return lambda: worker.take(shard, origin, 1, who, message, batches.check(batch), batch)
        return lambda: worker.step(shard, origin, 1, who, message)

    def refused(self, message: Message, shard: int = 1, who: Any = ADA, batch: bytes = b"") -> None:
        """It says no, and that costs nothing."""
        cost, answer = self.ask(message, shard, who, batch)
        assert isinstance(answer, RefusedMessage), type(answer)
        assert answer.code in ("bad_request", "busy", "protocol"), answer
        assert cost < BASE, f"a refusal costs {cost} calls"

    def topic(self, name: str = "big", records: int = RECORDS, **options: Any) -> PartitionKey:
        """A topic with `records` records, each in a slice of its own."""
        partition = single(self.worker.topic(name, TopicOptions(**options)))
        batch = bytes(batches.seal([b"x"]))
        self.turns(*[self.step(Publish(partition), batch=batch)] * records)
        return partition

    def held(self, partition: PartitionKey, group: str = "g", **options: Any) -> None:
        """`ada` has all of it."""
        self.worker.subscribe(ADA, partition, group, 10**6, config=GroupOptions(**options))
        self.turns()

    def dead(self, partition: PartitionKey) -> None:
        """As dead letters of a group."""
        self.held(partition)
        self.turns(self.step(Nack(1, [(partition, 0, RECORDS)], dead="rejected")))

    def odd(self, partition: PartitionKey, count: int) -> list[tuple[PartitionKey, int, int]]:
        """Ranges of one record each that do not touch."""
        return [(partition, 2 * at, 2 * at + 1) for at in range(count)]


@contextmanager
def counted() -> Iterator[list[int]]:
    """Counts the calls of a node's core, and not those that keep rows in the fake worker."""
    calls, stores = [0], [False]

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code is COMMIT and event in ("call", "return"):
            stores[0] = event == "call"
        elif event in ("call", "c_call") and not stores[0] and code.co_filename != COMMIT.co_filename:
            calls[0] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@pytest.fixture
def bench() -> Bench:
    return Bench()


COSTS: dict[str, Callable[[Bench, list[int]], None]] = {}


def costs(request: str) -> Callable[[Callable[[Bench, list[int]], None]], Callable[[Bench, list[int]], None]]:
    def noted(check: Callable[[Bench, list[int]], None]) -> Callable[[Bench, list[int]], None]:
        COSTS[request] = check
        return check

    return noted


def within(cost: int, count: int, each: int) -> None:
    print(f"{cost} calls, {cost / count:.1f} for each of {count}")
    assert cost <= BASE + each * count, f"{cost} calls for {count}"


@costs("PUBLISH")
def _publish(bench: Bench, bounds: list[int]) -> None:
    size, ranges = bounds
    assert size == limits.VALUE_BYTES_MAX
    partition, one = bench.topic(), bytes(batches.seal([b"x"]))
    bench.held(partition)
    cost, _ = bench.ask(Publish(partition, subscription=1, acks=bench.odd(partition, ranges)), batch=one)
    within(cost, ranges, 300)
    bench.refused(Publish(partition, subscription=1, acks=bench.odd(partition, ranges + 1)), batch=one)


@costs("SUBSCRIBE")
def _subscribe(bench: Bench, bounds: list[int]) -> None:
    (size,) = bounds
    assert size == limits.CONTROL_BYTES_MAX
    partition = bench.topic()
    ranges = bench.odd(partition, size // 20)
    message = Subscribe(1, "g", [Start(partition)], 10, 10_000, holding=ranges)
    within(bench.ask(message)[0], len(ranges), 40)
    within(bench.ask(message)[0], len(ranges), 40)


@costs("ACK")
def _ack(bench: Bench, bounds: list[int]) -> None:
    (most,) = bounds
    partition = bench.topic()
    bench.held(partition)
    cost, _ = bench.ask(Ack(1, bench.odd(partition, most)))
    within(cost, most, 80)
    bench.refused(Ack(1, bench.odd(partition, most + 1)))


@costs("NACK, EXTEND, STARTED")
def _nack(bench: Bench, bounds: list[int]) -> None:
    (most,) = bounds
    partition = bench.topic()
    bench.held(partition)
    within(bench.ask(Extend(1, bench.odd(partition, most), 60_000))[0], most, 80)
    within(max(bench.turns(bench.step(Started(1, bench.odd(partition, most))))[0]), most, 80)
    within(bench.ask(Nack(1, bench.odd(partition, most), 60_000))[0], most, 1_000)
    for message in (
        Extend(1, bench.odd(partition, most + 1), 60_000),
        Nack(1, bench.odd(partition, most + 1)),
    ):
        bench.refused(message)


@costs("RESOLVE")
def _resolve(bench: Bench, bounds: list[int]) -> None:
    patterns, rows, size, topics = bounds
    assert (size, topics) == (limits.LIST_BYTES_MAX, limits.TOPICS_MAX)
    bench.turns(*[bench.step(CreateTopic(f"t{at}", TopicOptions()), 0) for at in range(rows + 200)])
    bench.turns(bench.step(CreateTopic("a" * 200 + "b", TopicOptions()), 0))
    hostile = [f"*{'a*' * 90}{at}" for at in range(patterns - 1)]
    cost, answer = bench.ask(Resolve([*hostile, "*"]), 0)
    assert isinstance(answer, Topics)
    assert len(answer.topics) == rows
    assert answer.more
    within(cost, rows + patterns * 100, 400)  # the expression is compiled once
    bench.refused(Resolve(["*"] * (patterns + 1)), 0)


@costs("CREATE_TOPIC, BIND_TOPIC")
def _create(bench: Bench, bounds: list[int]) -> None:
    partitions, targets = bounds
    assert partitions == limits.PARTITIONS_MAX
    within(bench.ask(CreateTopic("wide", TopicOptions(partitions)), 0)[0], partitions, 80)
    bench.refused(CreateTopic("wider", TopicOptions(partitions + 1)), 0)
    names = [f"b{at}" for at in range(targets + 1)]
    bench.turns(*[bench.step(CreateTopic(name, TopicOptions()), 0) for name in names])
    within(bench.ask(BindTopic("all", names[:targets]), 0)[0], targets, 80)
    bench.refused(BindTopic("more", names), 0)


@costs("SHOW, FIND and what reads batches")
def _show(bench: Bench, bounds: list[int]) -> None:
    (size,) = bounds
    partition = single(bench.worker.topic("large"))
    batch = bytes(batches.seal([bytes(4 * limits.MIB)]))
    for _ in range(3):
        bench.turns(bench.step(Publish(partition), batch=batch))
    _, answers = bench.turns(*[bench.step(Show(Ref(partition, at % 3))) for at in range(40)])
    shown = [each for each in answers if not isinstance(each, RefusedMessage)]
    assert len(shown) <= size // (4 * limits.MIB) + 1
    assert {each.code for each in answers if isinstance(each, RefusedMessage)} == {"busy"}


@costs("STATS")
def _stats(bench: Bench, bounds: list[int]) -> None:
    (most,) = bounds
    bench.turns(bench.step(CreateTopic("wide", TopicOptions(1_024)), 0))
    (info,) = [info for info in bench.worker.shards[1].ledger.topics.values() if info.name == "wide"]
    starts = [Start(partition_key(info.id, at)) for at in range(1_024)]
    bench.turns(bench.step(Subscribe(1, "g", starts, 10, 10_000)))
    shards = bench.worker.shards.values()
    for request in (Stats(), Stats(["wide"] * 10_000)):
        with counted() as calls:
            reply = worker_stats.answer(request, SETTINGS, shards, Sessions(), bench.worker.now, None)
        assert isinstance(reply, worker_stats.StatsReply)
        assert len(reply.partitions) + len(reply.groups) == most
        assert reply.more
        within(calls[0], most, 60)


@costs("GROWTH")
def _growth(bench: Bench, bounds: list[int]) -> None:
    (most,) = bounds
    one, made = bytes(batches.seal([b"x"])), [bench.topic(f"t{at}", records=1) for at in range(40)]
    for _ in range(2 * most // len(made)):
        bench.worker.advance(limits.MINUTE_MS)
        bench.turns(*[bench.step(Publish(partition), batch=one) for partition in made])
        bench.worker.settle()
    names = [f"t{at}" for at in range(10_000)]
    with counted() as calls:
        reply = worker_stats.answer(
            Growth(names), SETTINGS, bench.worker.shards.values(), Sessions(), bench.worker.now, None
        )
    assert isinstance(reply, worker_stats.Grown)
    assert len(reply.rows) == most
    assert reply.more
    within(calls[0], most, 60)


@costs("dead letters: list, replay, purge")
def _letters(bench: Bench, bounds: list[int]) -> None:
    listed, rows, size, jobs = bounds
    assert (size, jobs) == (limits.LETTER_BYTES_PER_TURN, limits.LETTER_JOBS_MAX)
    partition = bench.topic()
    bench.dead(partition)
    cost, answer = bench.ask(ListDead(partition, "g", 0, listed))
    assert isinstance(answer, DeadLetters)
    assert len(answer.letters) == listed
    within(cost, listed, 80)
    bench.refused(ListDead(partition, "g", 0, listed + 1))
    within(bench.ask(ReplayDead(partition, "g", [(0, 10**6)], dry_run=True))[0], rows, 120)
    within(bench.ask(PurgeDead(partition, "g", [(0, RECORDS // 2)]))[0], rows, 120)
    within(bench.ask(ReplayDead(partition, "g"))[0], rows, 225)


@costs("PURGE, retention")
def _purge(bench: Bench, bounds: list[int]) -> None:
    (slices,) = bounds
    partition = bench.topic()
    cost, _ = bench.ask(PurgeTopic(partition, RECORDS))
    within(cost, slices, 80)
    assert bench.worker.shards[1].ledger.partitions[partition].first <= slices


@costs("export")
def _export(bench: Bench, bounds: list[int]) -> None:
    (most,) = bounds
    assert most == limits.SURVEY_ROWS_MAX
    partition = bench.topic()
    bench.held(partition)
    bench.turns(bench.step(Ack(1, bench.odd(partition, RECORDS // 2))))
    within(bench.ask(ListStates(partition))[0], most, 80)
    within(bench.ask(ListAcks(partition))[0], most, 80)


@costs("end of a session")
def _end(bench: Bench, bounds: list[int]) -> None:
    sessions, subscriptions = bounds
    assert (limits.SESSIONS_ENDED_PER_TURN, bench.worker.settings.quota.subscriptions) == (
        sessions,
        subscriptions,
    )
    partition = bench.topic(records=10)
    ask = [bench.step(Subscribe(at, "", [Start(partition)], 1, 1)) for at in range(1, subscriptions + 1)]
    bench.turns(*ask)
    bench.refused(Subscribe(subscriptions + 1, "", [Start(partition)], 1, 1))
    costs, _ = bench.turns(lambda: bench.worker.end_session(ADA.session))
    within(max(costs), subscriptions, 40)


@costs("handing out")
def _handing_out(bench: Bench, bounds: list[int]) -> None:
    (most,) = bounds
    assert most == limits.SLICES_PER_TURN
    partition = bench.topic(records=2 * most)
    for group in ("", "g"):
        for routes in ([], ["eu.*"]):
            message = Subscribe(1, group, [Start(partition)], 10**6, limits.CREDIT_BYTES_MAX, routes=routes)
            costs, _ = bench.turns(bench.step(message))
            within(max(costs), most, 100)
            bench.turns(lambda: bench.worker.end_session(ADA.session))


@costs("expired and failed records")
def _expired(bench: Bench, bounds: list[int]) -> None:
    (most,) = bounds
    partition = bench.topic(ttl_ms=60_000)
    bench.worker.subscribe(ADA, partition, records=1)
    bench.worker.advance(120_000)
    costs, _ = bench.turns()
    within(max(costs), most, 1_000)
    failing = bench.topic("failing", attempts_max=2)
    bench.worker.subscribe(BOB, failing, records=10**6)
    bench.turns()
    costs, _ = bench.turns(bench.step(Nack(1, [(failing, 0, RECORDS)], 0), who=BOB))
    within(max(costs), most, 1_000)


@costs("idle groups")
def _idle(bench: Bench, bounds: list[int]) -> None:
    (cursors,) = bounds
    assert cursors == idle.CURSORS_PER_TURN
    partition = bench.topic(records=1, group_idle_ms=limits.HOUR_MS)
    bench.turns(*[bench.step(Subscribe(at, f"g{at}", [Start(partition)], 0, 0)) for at in range(1, 1_900)])
    bench.turns(lambda: bench.worker.end_session(ADA.session))
    bench.worker.advance(idle.LOOK_MS)
    costs, _ = bench.turns()
    within(max(costs), cursors, 100)


@costs("LIST_CLIENTS")
def _clients(bench: Bench, bounds: list[int]) -> None:
    rows, size, subscriptions = bounds
    assert (rows, size) == (limits.LIST_ROWS_MAX, limits.LIST_BYTES_MAX)
    assert subscriptions == limits.SUBSCRIPTIONS_LISTED_MAX
    partition = bench.topic(records=1)
    for who in (ADA, BOB):
        bench.turns(
            *[bench.step(Subscribe(at, "", [Start(partition)], 1, 1), who=who) for at in range(1, 1_900)]
        )
    names = [ADA.session, BOB.session, *(b"%016d" % at for at in range(rows + 200))]
    there: Any = [Session(client(name.decode()), 0) for name in names]
    for each, name in zip(there, names, strict=True):
        each.client = structs.replace(each.client, session=name)
    with counted() as calls:
        reply = worker_stats.answer(
            ListClients(), SETTINGS, bench.worker.shards.values(), there, bench.worker.now, None
        )
    assert isinstance(reply, worker_stats.Clients)
    assert len(reply.rows) == rows
    assert reply.more
    assert max(len(row.subscriptions) for row in reply.rows) <= subscriptions
    within(calls[0], rows, 120)


@costs("snapshots, dismissed copies, sweeps")
def _sweeps(bench: Bench, bounds: list[int]) -> None:
    snapshot_rows, stray_rows, swept = bounds
    assert (snapshot_rows, stray_rows) == (limits.SNAPSHOT_ROWS_PER_TURN, limits.STRAY_ROWS)
    partition = bench.topic()
    bench.dead(partition)
    most = 0
    bench.turns(bench.step(DropTopic("big"), 0))
    for _ in range(20):
        bench.worker.advance(limits.SECOND_MS)
        costs, _ = bench.turns()
        most = max(most, *costs)
    within(most, swept, 60)
    rows = bench.worker.tables[1].state.rows
    assert not [key for key in rows if key[:1] in b"OL"], "all of it is swept by then"


@pytest.mark.parametrize("request_name", BOUNDS)
def test_a_request_costs_no_more_than_the_table_says(bench: Bench, request_name: str) -> None:
    COSTS[request_name](bench, BOUNDS[request_name])


def test_the_table_has_what_is_tried() -> None:
    assert set(COSTS) == set(BOUNDS)
