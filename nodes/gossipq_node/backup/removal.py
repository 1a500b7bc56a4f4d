"""Runs the shards of a restored directory in this process until removed topics are gone.

They are driven by the turn of a worker, and exchange messages only among themselves.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from gossipq import limits
from gossipq.clock import SystemClock
from gossipq.core.desk import Client, Request
from gossipq.core.shard import Shard
from gossipq.core.storage import Bodies, ShardSettings
from gossipq.core.turn import Turn
from gossipq.errors import StoreError
from gossipq.messages import DropTopic, RefusedMessage
from gossipq.peer_messages import InstallTopic
from gossipq.types import META_SHARD, Origin, ShardId
from gossipq.values import Message
from gossipq.wire.opener import Opener
from gossipq_node import machine
from gossipq_node.adapters.lmdb_store import LmdbStore
from gossipq_node.directory import DirectoryManifest

PATIENCE_S = 120.0
PAUSE_S = 0.005
ASKER: Origin = (b"restore",)
CLIENT = Client(bytes(16), "restore")


class TopicRemoval:
    def __init__(self, stores: Sequence[LmdbStore], manifest: DirectoryManifest) -> None:
        """Open the shards, and wait until this process leads them all. Raises StoreError."""
        self._stores = stores
        self._clock = SystemClock()
        self._bodies = Bodies(limits.RECENT_BYTES_MAX)
        self._settings = ShardSettings(manifest.voter, shards=manifest.shards, boot=machine.boot_id())
        self._turn = Turn(range(manifest.shards), self._open_shard, self._abort)
        self._answers: dict[int, Message] = {}
        self._asked = 0
        self._until(lambda: all(shard.serving for shard in self._shards), "serves nobody")

    @property
    def _shards(self) -> Collection[Shard]:
        return self._turn.shards.values()

    @property
    def _meta(self) -> Shard:
        return self._turn.shards[META_SHARD]

    @property
    def names(self) -> list[str]:
        """Names of the topics in the register, virtual ones first."""
        known, _ = self._meta.registered()
        return [info.name for info in sorted(known, key=lambda info: (not info.config.virtual, info.name))]

    def remove(self, names: Iterable[str]) -> None:
        """Remove these topics, and remains of topics that the register lacks. Raises StoreError."""
        known, installing = self._meta.registered()
        ids = {info.id for info in known} | installing
        held = [(shard.id, info) for shard in self._shards for info in shard.held_topics()]
        stale = [(shard_id, info) for shard_id, info in held if info.id not in ids]
        # A point of a backup can have a shard from before a removal and the register from after it.
        for shard_id, info in stale:
            self._step(shard_id, (), 0, InstallTopic(info, deleted=True))
        for name in names:
            self._asked += 1
            asked = self._asked
            self._step(META_SHARD, ASKER, asked, DropTopic(name))
            self._until(partial(self._answers.__contains__, asked), f"does not let go of {name}")
            answer = self._answers.pop(asked)
            if isinstance(answer, RefusedMessage):
                raise StoreError(f"{name} cannot be left out: {answer.message}", answer.hint)
        gone = {info.id for _, info in stale}
        self._until(lambda: not gone & self._held(), "does not let go of topics that were removed")
        for _ in self._turn.ready(sync=True):
            pass  # no other copy exists
        self._commit()

    def _held(self) -> set[int]:
        return {info.id for shard in self._shards for info in shard.held_topics()}

    def _step(self, shard_id: ShardId, origin: Origin, request_id: int, message: Message) -> None:
        self._run_turn(shard_id, Request(message, origin, request_id, CLIENT))

    def _until(self, enough: Callable[[], bool], trouble: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not (self._turn.is_open and enough()):
            if self._turn.stopped or time.monotonic() > end_s:
                why = "; ".join(self._turn.stopped.values()) or trouble
                raise StoreError(f"the restored cluster {why}", "restore an older point: --as-of")
            self._run_turn()
            # elections and sweeps wait for timers, which need the time to pass
            if not self._turn.again:
                time.sleep(PAUSE_S)

    def _run_turn(self, shard_id: ShardId = META_SHARD, request: Request | None = None) -> None:
        """Raises StoreError."""
        turn, now = self._turn, self._clock.now()
        try:
            turn.begin(now)
            if turn.must_open(now):
                turn.open()
            if request is not None and (shard := turn.touch(shard_id)) is not None:
                turn.step(shard, request)
            turn.tick()
            for _ in turn.ready():
                pass  # no other copy exists
            self._commit()
            for shard in turn.finish():
                effects = turn.advance(shard, self._clock.now().boot_ms)
                self._answers |= {request_id: message for _, request_id, message in effects.replies}
                turn.sent(shard)
        except Exception as error:
            failure = turn.failure(error)
            if isinstance(failure, StoreError):
                raise failure from error
            turn.start_over(failure)

    def _commit(self) -> None:
        if self._turn.must_commit:
            self._turn.write()
            for store in self._stores:
                store.commit()
            self._turn.stored()

    def _open_shard(self, shard: ShardId) -> Shard:
        tables = self._stores[shard % len(self._stores)].tables(shard)
        return Shard(shard, self._settings, tables, self._bodies, Opener())

    def _abort(self) -> None:
        for store in self._stores:
            store.abort()
