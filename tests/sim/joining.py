"""A client that joins jobs, and the checks of the records that it gets for that (P30)."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gossipq.core.requests.joins import OPEN
from gossipq.messages import CreateTopic, Done, JoinJobs, RefusedMessage, Topics
from gossipq.types import partition_key
from gossipq.values import JoinPart, Message, Ref, TopicOptions
from gossipq.wire import batch as batches
from sim.clients import PATIENCE_MS, Party
from sim.history import LOOSE, History, JoinAsked

if TYPE_CHECKING:
    from sim.world import World

TOPIC, PARTS_OF, GROUP = "joined", "orders", "g"
JOINS_SHARE = 0.3  #: of the runs
JOINS_MAX = 30
COUNTS = (1, 1, 2, 3, 5)  #: of the parts
TIMES_MS = (400, 3_000, 600_000)
AHEAD = 3  #: parts are at most this many records ahead of the newest delivered one


class Joiner(Party):
    """Joins records that consumers have or get soon; each request is sent until it is answered."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "joiner")
        self.partition = self.waiting = self.home_shard = 0
        self.message: Message | None = None
        self.batch = b""
        self.next()

    def next(self) -> None:
        """Make the topic, then join jobs again and again."""
        if self.stopped or len(self.world.history.joins) >= JOINS_MAX:
            self.message = None
        elif not self.partition:
            self.message = CreateTopic(TOPIC, TopicOptions(partitions=1), if_not_exists=True)
            self.send()
        elif self.world.admin.places:
            self.join()
            self.send()
        else:
            self.world.at(100, self.next)

    def join(self) -> None:
        dice, rows = self.dice, self.world.history.joins
        parts = [self.part() for _ in range(dice.choice(COUNTS))]
        count, timeout_ms = dice.randrange(len(parts) + 1), dice.choice(TIMES_MS)
        value = b"%s-join-%d" % (LOOSE, len(rows))
        places = tuple((part.ref.partition, part.ref.offset) for part in parts)
        rows[value] = JoinAsked(self.world.now, places, count or len(parts), timeout_ms)
        self.world.history.attempted.add(value)
        self.batch = bytes(batches.seal([value]))
        self.message = JoinJobs(self.partition, parts, timeout_ms, count, GROUP, value)

    def part(self) -> JoinPart:
        partition, shard = self.dice.choice(self.world.admin.places)
        newest = max(
            (row.offset for row in self.world.history.pushed[-50:] if row.partition == partition), default=0
        )
        offset = max(0, newest + AHEAD - self.dice.randrange(10))
        return JoinPart(Ref(partition, offset), PARTS_OF, shard)

    def send(self) -> None:
        assert self.message is not None
        self.shard = self.home_shard if self.partition else 0
        self.waiting = self.ask(self.message, self.batch)
        self.world.at(PATIENCE_MS, self.again, self.waiting)

    def again(self, request_id: int) -> None:
        if request_id == self.waiting and not self.stopped:
            self.turn_away()
            self.send()

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if request_id != self.waiting:
            return
        if isinstance(answer, RefusedMessage):
            if answer.code == "not_leader":
                self.turn_away()
            self.world.at(50, self.again, request_id)
            return
        self.waiting = 0
        if isinstance(answer, Topics):
            found = answer.topics[0]
            self.partition, self.home_shard = partition_key(found.id, 0), found.shards[0]
            self.world.history.joining = self.partition
            self.world.history.shard_of[self.partition] = self.home_shard
        elif isinstance(answer, Done):
            self.world.history.joined.append(self.batch_value)
        self.world.at(self.dice.randrange(20, 600), self.next)

    @property
    def batch_value(self) -> bytes:
        return batches.Batch(self.batch).values()[0]


def joins_are_kept(history: History) -> Iterator[str]:
    """P30: a join that was confirmed waits or is published, once."""
    for copy in history.copies_of(history.joining) if history.joining else ():
        stored = Counter(copy.records.get(history.joining, {}).values())
        waiting = Counter((copy.waiting or {}).get(history.joining, ()))
        for value in history.joins:
            if stored[value] + waiting[value] > 1:
                yield f"P30 {copy.name} has {value!r} {stored[value]} times, and {waiting[value]} wait"
        for value in history.joined:
            if not stored[value] + waiting[value]:
                yield f"P30 {value!r} was confirmed, and {copy.name} has it nowhere"


def joins_are_in_time(history: History) -> Iterator[str]:
    """P30: a record is published when enough of its parts have ended or its time is over. Parts that are said
    to have succeeded were acked before."""
    acked: dict[int, dict[int, int]] = {}
    for copy in history.copies:
        for (partition, group), rows in copy.acked.items():
            if group == GROUP:
                acked.setdefault(partition, {}).update(rows)
    error_ms = 2 * history.clock_error_ms + history.late_ms
    for copy in history.copies_of(history.joining) if history.joining else ():
        for offset, text in (copy.told or {}).get(history.joining, {}).items():
            join = history.joins[copy.records[history.joining][offset] or b""]
            given_ms, parts = copy.given[history.joining][offset], json.loads(text)
            ended = sum(part["state"] != OPEN for part in parts)
            if ended < join.count and given_ms < join.asked_ms + join.timeout_ms - error_ms:
                yield f"P30 {copy.name} published {offset} at {given_ms}: {ended} of {join} had ended"
            for (partition, at), part in zip(join.parts, parts, strict=True):
                done_ms = acked.get(partition, {}).get(at)
                if part["state"] == "succeeded" and done_ms is not None and done_ms > given_ms + error_ms:
                    yield f"P30 {copy.name} published {offset} at {given_ms}: {at} was acked at {done_ms}"
                if part["state"] == "succeeded" and done_ms is None and _stays(history, partition, at):
                    yield f"P30 {copy.name} has {offset} with {at} as succeeded, and nothing acked that"


def _stays(history: History, partition: int, offset: int) -> bool:
    """True if the rows of a record are on every copy of its shard."""
    copies = history.copies_of(partition)
    return bool(copies) and all(copy.firsts.get(partition, 0) <= offset for copy in copies)


JOIN_CHECKS = [joins_are_kept, joins_are_in_time]
