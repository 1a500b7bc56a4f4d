"""A worker without sockets and disks: shards over memory tables, a clock that the test moves,
and commits that can fail.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from core.turns import run
from gossipq import limits
from gossipq.core.copies import Mail
from gossipq.core.delivery import Dispatch
from gossipq.core.desk import Client, Request
from gossipq.core.effects import Effects
from gossipq.core.ledger import Ledger
from gossipq.core.raft import Replication
from gossipq.core.requests import IdleGroups, stats
from gossipq.core.shard import Shard
from gossipq.core.storage.bodies import Bodies
from gossipq.core.storage.settings import ShardSettings
from gossipq.core.storage.tables import MemoryTable, MemoryTables
from gossipq.core.turn import Turn
from gossipq.errors import StoreError
from gossipq.messages import CreateTopic, Publish, RefusedMessage, Subscribe, Topics
from gossipq.types import BatchInfo, Now, Origin, PartitionKey, partition_key
from gossipq.values import (
    GroupOptions,
    GroupStats,
    Message,
    PartitionStats,
    Range,
    Start,
    TopicInfo,
    TopicOptions,
)
from gossipq.wire import batch as batches
from gossipq.wire.opener import Opener

TOPIC, GROUP = TopicOptions(), GroupOptions()
WALL_MS = 1_700_000_000_000
Step = Callable[[], None]


class WorkingTable(MemoryTable):
    """A table in the open transaction. A commit stores only the keys that have changed, because thousands of
    turns would copy the same rows.
    """

    def __init__(self, stored: MemoryTable) -> None:
        super().__init__()
        self.rows, self.keys = dict(stored.rows), list(stored.keys)
        self._changed: set[bytes] = set()

    def put(self, key: bytes, value: bytes) -> None:
        self._changed.add(key)
        super().put(key, value)

    def append_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        self._changed.update(key for key, _ in rows)
        super().append_many(rows)

    def delete(self, key: bytes) -> bool:
        self._changed.add(key)
        return super().delete(key)

    def delete_range(self, first: bytes, end: bytes, rows_max: int) -> int:
        self._changed.update(islice(self.scan_keys(first, end), rows_max))
        return super().delete_range(first, end, rows_max)

    def store(self, stored: MemoryTable) -> None:
        """Bring the stored table up to date."""
        for key in sorted(self._changed):
            value = self.rows.get(key)
            if value is None:
                stored.delete(key)
            else:
                stored.put(key, value)
        self._changed.clear()


class WorkingTables:
    """The tables of a shard in the open transaction."""

    def __init__(self, stored: MemoryTables) -> None:
        self.log, self.body = WorkingTable(stored.log), WorkingTable(stored.body)
        self.state = WorkingTable(stored.state)

    def store(self, stored: MemoryTables) -> None:
        """Commit."""
        self.log.store(stored.log)
        self.body.store(stored.body)
        self.state.store(stored.state)


def client(name: str) -> Client:
    return Client(name.encode().ljust(16, b"."), name)


class FakeWorker:
    """Runs turns like a worker: effects are seen only after everything
    they promise is committed.
    """

    contains = False  #: whether faults of a shard are contained, as in a node, or raised

    def __init__(self, shards: int = 2) -> None:
        self.now = Now(1_000_000, WALL_MS)
        self.settings = ShardSettings("n1", shards=shards)
        self.disk = {shard: MemoryTables() for shard in range(shards)}
        self.seen: list[Effects] = []
        self.slow = False  #: a turn that was requested at once waits for the next call of `turn`
        self.restart()

    def restart(self) -> None:
        """Drops the memory; the disk keeps what the last commit left."""
        self.refuses = False
        self._revert()
        self.turns = Turn(self.disk, self.open, self.abort)
        self.turn()
        self.held = {session for effects in self._sent for session in effects.returning}

    @property
    def shards(self) -> dict[int, Shard]:
        return self.turns.shards

    def advance(self, ms: int, wall_ms: int | None = None) -> None:
        self.now = Now(self.now.boot_ms + ms, self.now.wall_ms + (ms if wall_ms is None else wall_ms))

    def turn(self, *steps: Step, commit: bool = True) -> dict[int, Effects]:
        """Runs one turn of all shards, and the turns that it requests at once. Without `commit` the
        disk refuses: nothing is sent, and memory is read from the disk again.
        """
        self._sent: list[Effects] = []
        self.effects: dict[int, Effects] = {}
        self.refuses = not commit
        run(self, self.turns, self.now, lambda: self._work(steps))
        if self.refuses and not self.turns.is_open:
            self.restart()
            return {}
        self.refuses = False
        # after a shard has stopped, the others open again
        while (self.turns.again and not self.slow) or not self.turns.is_open:
            run(self, self.turns, self.now, lambda: self._work(()))
        return self.effects

    def _work(self, steps: Sequence[Step]) -> None:
        for shard in self.turns.shards:
            self.turns.touch(shard)
        for step in steps:
            step()

    def step(
        self, shard: int, origin: Origin, request_id: int, who: Client | None, message: Message, **more: Any
    ) -> None:
        """Calls `Turn.step` within a turn."""
        self.turns.step(self.shards[shard], Request(message, origin, request_id, who, **more))

    def take(
        self,
        shard: int,
        origin: Origin,
        request_id: int,
        who: Client | None,
        message: Publish,
        info: BatchInfo,
        batch: bytes,
    ) -> None:
        """Calls `Turn.publish` within a turn."""
        self.turns.publish(self.shards[shard], Request(message, origin, request_id, who, batch, info))

    def end_session(self, session: bytes, silent: bool = False) -> None:
        """Ends a session within a turn."""
        self.turns.end_session(session, silent)

    # --- parts of a turn ------------------------------------------------------------------------------------

    def _revert(self) -> None:
        self.tables = {shard: WorkingTables(stored) for shard, stored in self.disk.items()}
        self.bodies = Bodies(limits.RECENT_BYTES_MAX)

    def open(self, shard: int) -> Shard:
        return Shard(shard, self.settings, self.tables[shard], self.bodies, Opener())

    def abort(self) -> None:
        self._revert()

    def commit(self) -> None:
        if self.refuses:
            raise StoreError("no space")
        for shard, tables in self.tables.items():
            tables.store(self.disk[shard])

    def boot_ms(self) -> int:
        return self.now.boot_ms

    def send(self, shard: Shard, effects: Effects) -> None:
        if effects.faults and not self.contains:  # a test that does not expect one would not see it
            raise effects.faults[0].error
        self._sent.append(effects)
        first = self.effects.setdefault(shard.id, effects)
        if first is effects:
            return
        for name in ("replies", "deliveries", "notices", "enclosed", "abandoned", "warnings"):
            getattr(first, name).extend(getattr(effects, name))
        for origin, rows in effects.confirms.items():
            first.confirms.setdefault(origin, []).extend(rows)

    def replicate(self, shard: Shard, appends: Sequence[Replication]) -> None: ...
    def answer(self, shard: Shard, answers: Sequence[Mail]) -> None: ...
    def refused(self, error: StoreError) -> None: ...

    def stopped(self, shard: int, error: Exception) -> None:
        raise error

    def settle(self) -> None:
        """Lets time pass until the lazy log is on disk."""
        self.advance(limits.LEASE_LOG_MS)
        self.turn()

    # --- requests -------------------------------------------------------------------------------------------

    def ask(
        self, shard: int, who: Client, message: Message, request_id: int = 1, origin: Origin = (b"c", b"1")
    ) -> Message | None:
        """Sends one message and returns its answer, or None if this turn brought none."""
        effects = self.turn(lambda: self.step(shard, origin, request_id, who, message))
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
    ) -> tuple[int, int, int, bool] | RefusedMessage | None:
        """Publishes and returns the confirm row or the refusal. An attempt
        without an answer returns None.
        """
        batch = bytes(batches.seal(values, producer=producer, sequence=sequence, **columns))
        origin, info = (b"c", b"p"), batches.check(batch)
        step: Step = lambda: self.take(shard, origin, 7, None, Publish(partition, level), info, batch)  # noqa: E731
        effects = self.turn(step, commit=commit)
        if not effects:
            return None
        self.seen.append(effects[shard])
        refusals = [m for o, r, m in effects[shard].replies if o == origin and isinstance(m, RefusedMessage)]
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
        shares: bool = False,
        auto: bool = False,
        fetches: bool = True,
        cancels: bool = False,
    ) -> Message | None:
        """With `fetches`, deliveries depend on the credit alone."""
        starts = [start or Start(partition)]
        fields = {"shares": shares, "auto": auto, "fetches": fetches, "cancels": cancels}
        message = Subscribe(
            number, group, starts, records, limits.CREDIT_BYTES, config, notify_end, holding, **fields
        )
        return self.ask(1, who, message, 2, (b"c", who.session))

    def taken(self) -> list[tuple[bytes, int, int, int]]:
        """Deliveries since the last call, as (session, first, end, attempt)."""
        rows = [
            (delivery.origin[1], first, end, part.attempt)
            for effects in self.seen
            for delivery in effects.deliveries
            for part in delivery.parts
            for first, end in part.ranges or [(part.offset, part.end)]
        ]
        self.seen.clear()
        return rows

    def tick(self, ms: int) -> None:
        self.advance(ms)
        self.seen += self.turn().values()


def single(info: TopicInfo) -> PartitionKey:
    return partition_key(info.id, 0)


def counters(ledger: Ledger, dispatch: Dispatch) -> tuple[list[PartitionStats], list[GroupStats]]:
    """All STATS rows of a shard."""
    nobody = IdleGroups(None, ledger, dispatch)  # type: ignore[arg-type]
    partitions, groups, more = stats(ledger, dispatch, nobody, 0, lambda name: True, (-1, -1), 1_000_000)
    assert more is None
    return partitions, groups
