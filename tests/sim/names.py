"""A client that publishes under unique names, a consumer of its records, and the checks of both (P27)."""

from array import array
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from gossipq.messages import CreateTopic, Publish, RefusedMessage, Topics
from gossipq.types import DELAY, REPLACE, UNIQUE_HASH, partition_key
from gossipq.values import TopicOptions
from gossipq.wire import batch as batches
from sim import cancels
from sim.clients import PATIENCE_MS, Consumer, Party
from sim.history import LOOSE, Claim, Claimed, Copy, History

if TYPE_CHECKING:
    from sim.world import World

TOPIC, GROUP = "names", "names"
NAMES_SHARE = 0.3  #: of the runs
NAMES = (b"a", b"b", b"c", b"d")
BATCHES_MAX = 40
DELAYS_MS = (0, 0, 0, 400, 2_000)


class Claimer(Party):
    """Makes the topic, then publishes one batch after the other; each is sent until it is confirmed."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "claimer")
        self.producer = self.name.encode().ljust(16, b".")
        self.partition = self.sequence = self.waiting = self.sealed_ms = 0
        self.home = 0, 0  #: partition and shard
        self.rows: list[Claim] = []
        self.batch = b""
        self.next()

    def next(self) -> None:
        if self.stopped or self.sequence >= BATCHES_MAX:
            return
        if self.partition:
            self.make()
        self.send()

    def make(self) -> None:
        dice, self.sealed_ms = self.dice, self.world.now
        self.sequence += 1
        names = [dice.choice(NAMES) for _ in range(dice.choice((1, 1, 2, 4)))]
        replaces, delay_ms = dice.random() < 0.3, dice.choice(DELAYS_MS)
        self.rows = [
            Claim(b"%s-claim-%d.%d" % (LOOSE, self.sequence, i), name, replaces, delay_ms)
            for i, name in enumerate(names)
        ]
        fixed = {UNIQUE_HASH: batches.id_column(names)}
        if replaces:
            fixed[REPLACE] = array("I", [1] * len(names))
        if delay_ms:
            fixed[DELAY] = array("q", [delay_ms] * len(names))
        values = [row.value for row in self.rows]
        self.batch = bytes(
            batches.seal(values, producer=self.producer, sequence=self.sequence, uniques=names, fixed=fixed)
        )
        self.world.history.attempted.update(values)
        self.world.history.claims |= {row.value: row for row in self.rows}

    def send(self) -> None:
        if self.partition:
            age_ms = self.world.now - self.sealed_ms
            self.waiting = self.ask(Publish(self.partition, age_ms=age_ms), self.batch)
        else:
            self.waiting = self.ask(CreateTopic(TOPIC, TopicOptions(1), if_not_exists=True))
        self.world.at(PATIENCE_MS, self.again, self.waiting)

    def again(self, request_id: int) -> None:
        if self.waiting == request_id and not self.stopped:
            self.turn_away()
            self.send()

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if request_id != self.waiting:
            return
        if isinstance(answer, RefusedMessage):
            if answer.code == "not_leader":
                self.turn_away()
            self.world.at(30, self.again, request_id)
            return
        self.waiting = 0
        if isinstance(answer, Topics):
            found = answer.topics[0]
            self.partition, self.shard = partition_key(found.id, 0), found.shards[0]
            self.home = self.partition, self.shard
            self.world.history.named = self.partition
        else:
            _, _, runs, _ = answer
            rows = iter(self.rows)
            for run in runs:
                for at in range(run.count):
                    offset = run.offset + at if run.offset >= 0 else -1
                    told = Claimed(next(rows), self.sealed_ms, run.kept, offset)
                    self.world.history.claimed.append(told)
        self.world.at(self.dice.randrange(200), self.next)


def name_parties(world: "World") -> list[Party]:
    """The client, a consumer of its records, and in some runs a client that cancels them."""
    claimer = Claimer(world)
    parties: list[Party] = [claimer, Consumer(world, "n1", home=lambda: claimer.home, group=GROUP)]
    if Random(f"{world.seed}/cancels").random() < cancels.CANCELS_SHARE:
        parties.append(cancels.Canceller(world, home=lambda: claimer.home, group=GROUP))
    return parties


def left_ms(copy: Copy, partition: int, offset: int) -> int | None:
    """Return when a record was acked; 0 = it was voided or is a dead letter, None = it waits."""
    if any(first <= offset < end for first, end in (copy.voids or {}).get(partition, ())):
        return 0
    if offset in copy.dead.get((partition, GROUP), {}):
        return 0
    return copy.acked.get((partition, GROUP), {}).get(offset)


def names_belong_to_one_record(history: History) -> Iterator[str]:
    """P27: a record is stored under a unique name when the one before it is done, and replaced ones are
    void. Of a name, one record waits. Times of records with a delay are those at which they were due, so
    they are only counted.
    """
    for copy in history.copies:
        partition = history.named
        stored = copy.records.get(partition, {})
        waiting: dict[bytes, list[str]] = defaultdict(list)
        for value in copy.scheduled.get(partition, {}):
            waiting[history.claims[value].name].append(repr(value))
        last: dict[bytes, int] = {}
        for offset, value in sorted(stored.items()):
            if value is None:
                continue
            claim = history.claims[value]
            done_ms = left_ms(copy, partition, offset)
            if done_ms is None:
                waiting[claim.name].append(f"{value!r} at {offset}")
            before = last.get(claim.name)
            if before is not None and not claim.delay_ms:
                stored_ms = copy.given[partition][offset]
                free_ms = left_ms(copy, partition, before)
                if free_ms is None or free_ms > stored_ms:
                    yield (
                        f"P27 {copy.name} stored {offset} of name {claim.name!r} at {stored_ms}; "
                        f"{before} had the name until {free_ms}"
                    )
            last[claim.name] = offset
        for name, records in waiting.items():
            if len(records) > 1:
                yield f"P27 on {copy.name} {records} of name {name!r} wait"


def done_records_keep_nobody_out(history: History) -> Iterator[str]:
    """P27: a record that its consumer knows to be acked holds no name."""
    for told in history.claimed:
        if not told.kept or told.offset < 0:
            continue
        for ack in history.acks:
            mine = (ack.partition, ack.group) == (history.named, GROUP)
            if mine and ack.first <= told.offset < ack.end and ack.time_ms < told.asked_ms:
                yield (
                    f"P27 {told.claim.value!r} was asked at {told.asked_ms} and kept out by {told.offset}, "
                    f"which was acked at {ack.time_ms}"
                )


NAME_CHECKS = [names_belong_to_one_record, done_records_keep_nobody_out]
