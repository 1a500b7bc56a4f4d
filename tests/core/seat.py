"""One copy of one shard, run by the product's own `Turn` over memory tables. Its
owner gets what it sends.
"""

from collections import deque
from collections.abc import Callable, Sequence

from core.turns import run
from gossipq import limits
from gossipq.core.copies import Mail
from gossipq.core.desk import Client, Request
from gossipq.core.effects import Effects
from gossipq.core.raft import Replication
from gossipq.core.shard import Shard
from gossipq.core.storage import Entry
from gossipq.core.storage.bodies import Bodies
from gossipq.core.storage.settings import ShardSettings
from gossipq.core.storage.tables import MemoryTables
from gossipq.core.turn import Turn
from gossipq.errors import StoreError
from gossipq.messages import Publish
from gossipq.types import BatchInfo, Now, Origin, ShardId
from gossipq.values import Message
from gossipq.wire.opener import Opener

#: arguments: sender, receiver, term, message
Post = Callable[[str, str, int, Replication | Mail], None]


class Seat:
    def __init__(
        self, name: str, shard: ShardId, settings: ShardSettings, tables: MemoryTables, now: Now, post: Post
    ) -> None:
        """Opens the shard in a turn at `now`."""
        self.name, self._settings, self._tables, self._post = name, settings, tables, post
        self.now = now
        self.turn = Turn([shard], self.open, lambda: self.abort())  # which a test may replace
        self.inbox: deque[Callable[[], object]] = deque()  #: steps for the next turn
        self.seen: list[Effects] = []  #: includes the answers to other copies
        #: runs at the beginning of each turn
        self.before: Callable[[Shard], None] = lambda shard: None
        self._answers: list[Mail] = []
        self._kept: MemoryTables | None = None  # the tables as they were when the disk became full
        self._full = False
        self.run(now)

    @property
    def shard(self) -> Shard:
        (shard,) = self.turn.shards.values()
        return shard

    def run(self, now: Now) -> None:
        self.now = now
        run(self, self.turn, now, self._work)

    def fill(self) -> None:
        """Fills the disk: from now on it refuses every commit that writes something."""
        self._kept, self._full = self._tables.copy(), True

    def free(self) -> None:
        self._full = False

    def _work(self) -> None:
        if not self.turn.is_open:
            self.inbox.clear()  # as a worker does that cannot store
            return
        for shard_id, shard in self.turn.shards.items():
            self.turn.touch(shard_id)
            self.before(shard)
        while self.inbox:
            self.inbox.popleft()()

    def hear(self, term: int, sent: Replication | Mail) -> None:
        """Queues a message of another copy for the next turn."""
        if isinstance(sent, Replication):
            self.step((), 0, None, sent.append, term, sent.entries)
        else:
            self.step((), 0, None, sent.message, term, [], sent.rows)

    def step(
        self,
        origin: Origin,
        request_id: int,
        who: Client | None,
        message: Message,
        term: int = 0,
        entries: Sequence[Entry] = (),
        batch: bytes = b"",
    ) -> None:
        """Queues a call of `Turn.step` for the next turn."""
        request = Request(message, origin, request_id, who, batch, None, term, entries)
        self.inbox.append(lambda: self.turn.step(self.shard, request))

    def publish(
        self,
        origin: Origin,
        request_id: int,
        who: Client | None,
        message: Publish,
        info: BatchInfo,
        batch: bytes,
    ) -> None:
        """Queues a call of `Turn.publish` for the next turn."""
        request = Request(message, origin, request_id, who, batch, info)
        self.inbox.append(lambda: self.turn.publish(self.shard, request))

    def tell(self, message: Message) -> None:
        """Queues a message of another shard for the next turn."""
        self.step((), 0, None, message)

    # --- parts of a turn ------------------------------------------------------------------------------------

    def open(self, shard: ShardId) -> Shard:
        return Shard(shard, self._settings, self._tables, Bodies(limits.MIB), Opener())

    def abort(self) -> None:
        assert self._kept is not None, "no other commit fails here"
        self._tables = self._kept.copy()

    def commit(self) -> None:
        mine, kept = self._tables, self._kept
        if self._full and kept is not None:
            pairs = (mine.log, kept.log), (mine.body, kept.body), (mine.state, kept.state)
            if any(now.rows != then.rows for now, then in pairs):
                raise StoreError("the disk is full")

    def boot_ms(self) -> int:
        return self.now.boot_ms

    def replicate(self, shard: Shard, appends: Sequence[Replication]) -> None:
        for append in appends:
            self._post(self.name, append.to, shard.term, append)

    def answer(self, shard: Shard, answers: Sequence[Mail]) -> None:
        self._answers += answers

    def send(self, shard: Shard, effects: Effects) -> None:
        effects.answers[:0] = self._answers
        self._answers = []
        self.seen.append(effects)
        for mail in effects.answers:
            self._post(self.name, mail.to, shard.term, mail)

    def refused(self, error: StoreError) -> None:
        assert self._full, error

    def stopped(self, shard: ShardId, error: Exception) -> None:
        raise error
