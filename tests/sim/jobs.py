"""Clients that ask for more: times, keys, ids, routes, retries; and groups of every mode that take what they
publish."""

from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from gossipq.messages import CreateTopic, Publish, RefusedMessage, Subscribe, Subscribed, Topics
from gossipq.types import ATTEMPTS, DELAY, FLOW_HASH, ID_HASH, KEY_HASH, PRIORITY, TTL, partition_key
from gossipq.values import Rate, Start, TopicOptions
from gossipq.wire import batch as batches
from sim.clients import PATIENCE_MS, Consumer, Party
from sim.history import Job, JobConfirmed

if TYPE_CHECKING:
    from sim.world import World

TOPIC = "jobs"
ATTEMPTS_MAX = 3
BATCHES_MAX = 30
FOREVER_MS = 7 * 24 * 3_600_000
SHORT_MS = 500  #: a window of ids that is over before most delayed records are due
ASKS = (KEY_HASH, DELAY, TTL, ATTEMPTS, ID_HASH)  #: columns that a batch may have
DEDUP_MS = (FOREVER_MS, FOREVER_MS, SHORT_MS)  #: windows of ids
IDS = 40  #: as many ids, less one, are used again and again
COUNTS = (1, 1, 2, 4)  #: of the records of a batch
MODES = ("routes", "exclusive", "key_ordered", "at most once", "together", "fair")
#: in_flight_max of the group; small ones let records behind a failed one of their key soon wait on disk
WINDOWS = (None, None, 4, 10)
RUNNERS = ("k2",)  #: consumers that may hold several records of a key, in a group with key order
ABSENT = "absent"  #: a group without consumers
TOGETHER = "together"  #: records without options: the failed records of a batch are redelivered as one slice
FAIR = "fair"  #: flows take turns, by priority and weight
FLOWS = ("", "ada", "bob", "cid")
PRIORITIES = (5, 5, 5, 9, 0)
WEIGHTS = {"ada": 3}
LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"flow_concurrency": 2},
    {"flow_rate": Rate(10, 1_000, 3)},
    {"concurrency": 3, "flow_concurrency": 2, "flow_rate": Rate(20, 1_000, 3)},
    {"flow_backlog": 16, "rate": Rate(40, 1_000, 5)},
    {"age_after_ms": 200, "rate": Rate(50, 1_000, 5)},
)


class JobPublisher(Party):
    """Makes the topic, then publishes one batch after the other; each is sent until it is confirmed."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "j1")
        self.producer = self.name.encode().ljust(16, b".")
        self.expire = self.dice.choice(("dead", "drop"))
        self.dedup_ms = world.history.dedup_ms = self.dice.choice(DEDUP_MS)
        self.partition = self.sequence = self.waiting = self.sealed_ms = 0
        self.home = 0, 0  #: partition and shard
        self.rows: list[Job] = []
        self.batch = b""
        world.history.expire = self.expire
        self.next()

    def next(self) -> None:
        if self.stopped or self.sequence >= BATCHES_MAX:
            return
        if self.partition:
            self.make()
        self.send()

    def make(self) -> None:
        dice, together = self.dice, self.world.history.mode == TOGETHER
        fair = self.world.history.mode == FAIR
        count = dice.choice(COUNTS) * (4 if together or fair else 1)
        self.sequence += 1
        self.sealed_ms = self.world.now
        asks = [bit for bit in ASKS if dice.random() < 0.4 and not together]
        columns = {
            KEY_HASH: [dice.choice((0, 1, 2, 3)) for _ in range(count)],
            DELAY: list(accumulate(dice.choice((0, 0, 300, 1_500, 4_000)) for _ in range(count))),
            TTL: [dice.choice((0, 400, 3_000)) for _ in range(count)],
            ATTEMPTS: [dice.choice((0, 1, 2)) for _ in range(count)],
            ID_HASH: [dice.choice((0, dice.randrange(1, IDS))) for _ in range(count)],
        }
        said = {bit: columns[bit] if bit in asks else [0] * count for bit in columns}
        route = dice.choice((b"", b"eu.de", b"eu.fr", b"us.ny"))
        values = [b"job-%d.%d" % (self.sequence, i) for i in range(count)]
        self.rows = [
            Job(
                values[i],
                self.sealed_ms,
                *(said[bit][i] for bit in (KEY_HASH, DELAY, TTL, ATTEMPTS, ID_HASH)),
                route,
            )
            for i in range(count)
        ]
        fixed = {bit: array(batches.FIXED[bit][0], columns[bit]) for bit in asks}
        if fair:
            fixed[FLOW_HASH] = batches.id_column([dice.choice(FLOWS).encode() for _ in range(count)])
            fixed[PRIORITY] = array("B", [dice.choice(PRIORITIES) for _ in range(count)])
        self.batch = bytes(
            batches.seal(values, producer=self.producer, sequence=self.sequence, route=route, fixed=fixed)
        )
        self.world.history.attempted.update(values)
        self.world.history.jobs |= {row.value: row for row in self.rows}

    def send(self) -> None:
        if self.partition:
            self.waiting = self.ask(
                Publish(self.partition, age_ms=self.world.now - self.sealed_ms), self.batch
            )
        else:
            options = TopicOptions(
                1,
                expire=self.expire,
                attempts_max=ATTEMPTS_MAX,
                backoff_ms=[100, 400],
                dedup_ms=self.dedup_ms,
            )
            self.waiting = self.ask(CreateTopic(TOPIC, options, if_not_exists=True))
        self.world.at(PATIENCE_MS, self.again, self.waiting)

    def again(self, request_id: int) -> None:
        if self.waiting == request_id and not self.stopped:
            self.turn_away()
            self.send()

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if request_id != self.waiting:
            return
        if isinstance(answer, RefusedMessage):
            if answer.code in ("out_of_sequence", "unknown_topic"):
                self.world.broken(
                    f"P6 {node} refuses batch {self.sequence} of {self.name}: {answer.code} {answer.detail}"
                )
                self.stopped = True
                return
            if answer.code == "not_leader":
                self.turn_away()
            self.world.at(30, self.again, request_id)
            return
        self.waiting = 0
        if isinstance(answer, Topics):
            self.partition, self.shard = partition_key(answer.topics[0].id, 0), answer.topics[0].shards[0]
            self.home = self.partition, self.shard
            self.world.history.shard_of[self.partition] = self.shard
        else:
            offset, _, runs, _ = answer
            row = JobConfirmed(sent_ms, self.partition, tuple(self.rows), offset, tuple(map(tuple_of, runs)))
            self.world.history.job_confirms.append(row)
        self.world.at(self.dice.randrange(150), self.next)


class Absent(Party):
    """Creates a group that is never consumed."""

    def __init__(self, world: "World", home: Callable[[], tuple[int, int]]) -> None:
        super().__init__(world, "k0")
        self.home_of = home
        self.look()

    def look(self) -> None:
        partition, self.shard = self.home_of()
        if self.stopped:
            return
        if partition:
            self.turn_away()
            self.ask(Subscribe(1, ABSENT, [Start(partition)], 0, 0, shards=[self.shard]))
        self.world.at(300, self.look)

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        self.stopped |= isinstance(answer, Subscribed)


def tuple_of(run: Any) -> tuple[int, int, int, int, bool]:
    return run.count, run.offset, run.index, run.record, run.duplicate


def job_parties(world: "World") -> list[Party]:
    """A publisher, and a group of one mode with two members; sometimes they fail."""
    publisher = JobPublisher(world)
    mode, window = publisher.dice.choice(MODES), publisher.dice.choice(WINDOWS)
    world.history.mode = mode
    flows: dict[str, Any] = {}
    if mode == FAIR:
        flows = {"order": FAIR, "weights": WEIGHTS} | publisher.dice.choice(LIMITS)
    consumers: list[Party] = [Absent(world, lambda: publisher.home)]
    for number, routes in enumerate((["eu.*"] if mode == "routes" else [], []), 1):
        consumers.append(
            Consumer(
                world,
                f"k{number}",
                home=lambda: publisher.home,
                group="jobs",
                mode=mode if mode in ("exclusive", "key_ordered") else "shared",
                routes=routes,
                ack=mode != "at most once",
                fails=0.3,
                window=window,
                key_runs=f"k{number}" in RUNNERS,
                **flows,
            )
        )
    return [publisher, *consumers]
