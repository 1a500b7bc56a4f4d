"""Runs the shards of a restored directory in this process until removed topics are gone.

They are driven by the turn of a worker, and exchange messages only among themselves.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from gossipq import limits
from gossipq.clock import SystemClock
from gossipq.core.copies import Mail
from gossipq.core.desk import Client, Request
from gossipq.core.effects import Effects
from gossipq.core.raft import Replication
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
        """Opens the shards. Raises StoreError."""
        self._stores, self._clock, self._bodies = stores, SystemClock(), Bodies(limits.RECENT_BYTES_MAX)
        self._settings = ShardSettings(manifest.voter, shards=manifest.shards, boot=machine.boot_id())
        self._turn = Turn(self, range(manifest.shards))
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
        self._turn.last(self._clock.now())

    def _held(self) -> set[int]:
        return {info.id for shard in self._shards for info in shard.held_topics()}

    def _step(self, shard_id: ShardId, origin: Origin, request_id: int, message: Message) -> None:
        def work() -> None:
            shard = self._turn.touch(shard_id)
            assert shard is not None, "all shards are open"
            self._turn.step(shard, Request(message, origin, request_id, CLIENT))

        self._turn.run(self._clock.now(), work)

    def _until(self, enough: Callable[[], bool], trouble: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not (self._turn.open and enough()):
            if self._turn.stopped or time.monotonic() > end_s:
                why = "; ".join(self._turn.stopped.values()) or trouble
                raise StoreError(f"the restored cluster {why}", "restore an older point: --as-of")
            self._turn.run(self._clock.now(), lambda: None)
            if not self._turn.again:
                time.sleep(PAUSE_S)

    # --- the host of the turn

    def open(self, shard: ShardId) -> Shard:
        tables = self._stores[shard % len(self._stores)].tables(shard)
        return Shard(shard, self._settings, tables, self._bodies, Opener())

    def abort(self) -> None:
        for store in self._stores:
            store.abort()

    def commit(self) -> None:
        for store in self._stores:
            store.commit()

    def boot_ms(self) -> int:
        return self._clock.now().boot_ms

    def send(self, shard: Shard, effects: Effects) -> None:
        self._answers |= {request_id: message for _, request_id, message in effects.replies}

    def refused(self, error: StoreError) -> None:
        raise error

    def replicate(self, shard: Shard, appends: Sequence[Replication]) -> None: ...
    def answer(self, shard: Shard, answers: Sequence[Mail]) -> None: ...
    def flush(self) -> None: ...
    def opened(self) -> None: ...
    def dropped(self, shards: Collection[Shard]) -> None: ...
    def stopped(self, shard: ShardId, error: Exception) -> None: ...
