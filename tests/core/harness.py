"""A worker without sockets and disks: shards over memory tables, a hand-moved clock, commits that can be made to fail."""

from collections.abc import Callable, Sequence
from typing import Any

from gossipq import limits
from gossipq.core.effects import Effects
from gossipq.core.requests.consume import Client
from gossipq.core.shard import Shard
from gossipq.core.storage.bodies import Bodies
from gossipq.core.storage.settings import ShardSettings
from gossipq.core.storage.tables import MemoryTables
from gossipq.messages import CreateTopic, Publish, Refused, Subscribe, Topics
from gossipq.types import Now, Origin, PartitionKey, partition_key
from gossipq.values import GroupOptions, Message, Range, Start, TopicInfo, TopicOptions
from gossipq.wire import batch as batches
from gossipq.wire.opener import Opener

TOPIC, GROUP = TopicOptions(), GroupOptions()
WALL_MS = 1_700_000_000_000
Step = Callable[[], None]


def client(name: str) -> Client:
    return Client(name.encode().ljust(16, b"."), name)


class FakeWorker:
    """Turns like the worker's: everything a turn promises is committed before its effects are seen."""

    def __init__(self, shards: int = 2) -> None:
        self.now = Now(1_000_000, WALL_MS)
        self.settings = ShardSettings("n1", shards=shards)
        self.disk = {shard: MemoryTables() for shard in range(shards)}
        self.seen: list[Effects] = []
        self.restart()

    def restart(self) -> None:
        """Memory is gone, the disk is what the last commit left."""
        self.tables = {shard: tables.copy() for shard, tables in self.disk.items()}
        bodies = Bodies(limits.RECENT_BYTES_MAX)
        self.shards = {shard: Shard(shard, self.settings, tables, bodies, Opener()) for shard, tables in self.tables.items()}
        self.held = {session for shard in self.shards.values() for session in shard.lead(self.now)}
        self.lazy_ms: int | None = None
        self.turn()

    def advance(self, ms: int, wall_ms: int | None = None) -> None:
        self.now = Now(self.now.boot_ms + ms, self.now.wall_ms + (ms if wall_ms is None else wall_ms))

    def turn(self, *steps: Step, commit: bool = True) -> dict[int, Effects]:
        """One turn. Without `commit` the disk refuses: nothing is sent, and memory starts over from disk."""
        for shard in self.shards.values():
            shard.begin(self.now)
        for step in steps:
            step()
        for shard in self.shards.values():
            shard.tick()
            shard.gather()
        if any(shard.promised for shard in self.shards.values()) or (self.lazy_ms or 2**62) <= self.now.boot_ms:
            for shard in self.shards.values():
                shard.write(self.now)
            if not commit:
                self.restart()
                return {}
            self.disk = {shard: tables.copy() for shard, tables in self.tables.items()}
            self.lazy_ms = None
            for shard in self.shards.values():
                shard.stored()
        effects = {shard.id: shard.take() for shard in self.shards.values()}
        if self.lazy_ms is None and any(shard.pending for shard in self.shards.values()):
            self.lazy_ms = self.now.boot_ms + limits.LEASE_LOG_MS
        self._again(effects)
        told = [(target, message) for each in effects.values() for target, message in each.told]
        if told:
            more = self.turn(*[lambda t=t, m=m: self.shards[t].step((), 0, None, m) for t, m in told])
            for shard, each in more.items():
                effects[shard].replies += each.replies
                effects[shard].deliveries += each.deliveries
        return effects

    def _again(self, effects: dict[int, Effects]) -> None:
        """What was handed out or found in a turn may ask for another one at once."""
        if any(shard.promised for shard in self.shards.values()):
            for shard, each in self.turn().items():
                for name in ("replies", "deliveries", "notices", "enclosed"):
                    getattr(effects[shard], name).extend(getattr(each, name))

    def settle(self) -> None:
        """Lets the lazy log reach the disk."""
        self.advance(limits.LEASE_LOG_MS)
        self.turn()

    # --- requests ---------------------------------------------------------------------------------------------------

    def ask(
        self, shard: int, who: Client, message: Message, request_id: int = 1, origin: Origin = (b"c", b"1")
    ) -> Message | None:
        """Sends one message and returns its answer, if it came in this turn."""
        effects = self.turn(lambda: self.shards[shard].step(origin, request_id, who, message))
        answers = [m for e in effects.values() for o, r, m in e.replies if r == request_id and o == origin]
        self.seen.append(effects[shard])
        return answers[0] if answers else None

    def topic(self, name: str = "orders", config: TopicOptions = TOPIC) -> TopicInfo:
        answer = self.ask(0, client("admin"), CreateTopic(name, config))
        assert isinstance(answer, Topics), answer
        return answer.topics[0]

    def publish(
        self,
        partition: PartitionKey,
        values: Sequence[bytes],
        producer: bytes = batches.NO_PRODUCER,
        sequence: int = 0,
        level: str = "",
        commit: bool = True,
        shard: int = 1,
        **columns: Any,
    ) -> tuple[int, int, int, bool] | Refused | None:
        """The confirm row, the refusal, or None when there was no answer."""
        batch = bytes(batches.seal(values, producer=producer, sequence=sequence, **columns))
        origin, info = (b"c", b"p"), batches.check(batch)
        step: Step = lambda: self.shards[shard].publish(origin, 7, None, Publish(partition, level), info, batch)  # noqa: E731
        effects = self.turn(step, commit=commit)
        if not effects:
            return None
        self.seen.append(effects[shard])
        refusals = [m for o, r, m in effects[shard].replies if o == origin and isinstance(m, Refused)]
        rows = effects[shard].confirms.get(origin)
        return rows[0] if rows else refusals[0] if refusals else None

    def subscribe(
        self,
        who: Client,
        partition: PartitionKey,
        group: str = "billing",
        records: int = 1_000,
        start: Start | None = None,
        number: int = 1,
        config: GroupOptions = GROUP,
        notify_end: bool = False,
        holding: list[Range] | None = None,
    ) -> Message | None:
        starts = [start or Start(partition)]
        message = Subscribe(number, group, starts, records, limits.CREDIT_BYTES, config, notify_end, holding)
        return self.ask(1, who, message, 2, (b"c", who.session))

    def taken(self) -> list[tuple[bytes, int, int, int]]:
        """What was delivered since the last call: (session, first, end, attempt)."""
        rows = [
            (delivery.origin[1], part.offset, part.end, part.attempt)
            for effects in self.seen
            for delivery in effects.deliveries
            for part in delivery.parts
        ]
        self.seen.clear()
        return rows

    def tick(self, ms: int) -> None:
        self.advance(ms)
        self.seen += self.turn().values()


def single(info: TopicInfo) -> PartitionKey:
    return partition_key(info.id, 0)
