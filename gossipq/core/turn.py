"""The turn of a worker over its shards: the only driver of `Shard`, in nodes, tests and simulator.

The process pulls: it calls these functions of `Turn` in this order, and a turn calls nothing of it.

    begin(now)             sets the clocks
    open()                 if `must_open(now)`: in a turn of its own, before requests are taken
    touch, step, publish   any number of times: requests, and messages of other copies
    tick()                 advances timers; collected work becomes entries
    ready()                -> entries for other copies, which may be sent before the commit
    write()                if `must_commit`: into the open transaction of all shards
                           then one commit of the process, for all of them
    stored()               marks it as stored
    answers()              -> answers to other copies
    finish()               -> the shards of this turn; for each of them:
        advance(shard, boot_ms)   -> Effects: entries are applied, records delivered
        sent(shard)               after the process has sent them

A turn commits only if a shard promises something. Other writes (leases, retention, applied rows)
join the next commit, at most LEASE_LOG_MS later.

If one of them raises, the process passes the error to `failure`. If the disk failed (StoreError) or
a shard (ShardStopped), the rest of the turn is not sent: `start_over` drops all memory, aborts the
transaction, and the shards are opened again from their tables: after RECOVER_MS, or in the next
turn without the failed shard.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from gossipq import limits
from gossipq.core.copies import Mail
from gossipq.core.desk import Request
from gossipq.core.effects import Effects
from gossipq.core.raft import Replication
from gossipq.core.shard import Ready, Shard
from gossipq.errors import GossipqError, OutOfMemory, StoreError
from gossipq.types import Now, SessionId, ShardId
from gossipq.values import Message

#: what is due in a turn beside shards: opening them, lazy writes, messages between them
OPEN, LAZY, TOLD = "open", "lazy writes", "messages of shards"
NEVER_MS = 2**63
RECOVER_MS = 500  #: pause between two attempts to open the shards while the disk fails


class ShardStopped(Exception):
    """One shard failed. Its part of the open transaction is incomplete and must be aborted."""

    def __init__(self, shard: ShardId, error: Exception) -> None:
        super().__init__(shard, error)
        self.shard, self.error = shard, error


class Turn:
    def __init__(
        self,
        owned: Iterable[ShardId],
        open_shard: Callable[[ShardId], Shard],
        abort: Callable[[], None],
    ) -> None:
        """The first turn opens the shards in `owned`.

        `open_shard` opens one over its tables. `abort` drops everything since the last commit. Both
        raise StoreError; other errors of `open_shard` make that shard unusable.
        """
        self.shards: dict[ShardId, Shard] = {}  #: open shards
        self.stopped: dict[ShardId, str] = {}  #: stopped shards, and why
        self._owned = tuple(owned)
        self._open_shard = open_shard
        self._abort = abort
        self._now = Now(0, 0)
        #: boot time at which each shard, and each other part of a worker, has work without a message
        self.due: dict[ShardId | str, int] = {OPEN: 0}
        self.must_commit = False  #: this turn has something to store
        self._opened_before = False
        self._touched: dict[ShardId, Shard] = {}
        self._readies: list[tuple[Shard, Ready]] = []
        self._at: Shard | None = None  # the shard whose part of a turn is running
        self._told: list[tuple[ShardId, Message]] = []  # messages between shards of this worker
        self._waiting: set[ShardId] = set()  # shards with lazy writes
        self.unnoticed: list[ShardStopped] = []  #: stopped shards that the process has not handled yet

    @property
    def is_open(self) -> bool:
        """True if the shards are open and can store."""
        return OPEN not in self.due

    def must_open(self, now: Now) -> bool:
        """Return whether a turn must open the shards before one takes requests."""
        return self.due.get(OPEN, NEVER_MS) <= now.boot_ms

    @property
    def again(self) -> bool:
        """True if the last turn left work for another one at once."""
        return bool(self._told) or any(shard.promised for shard in self.shards.values())

    def next_deadline_ms(self) -> int | None:
        """Boot time of the next turn that has work without a message."""
        return min(self.due.values(), default=None)

    def ends(self, error: Exception) -> bool:
        """True if `error` ends the turn: a shard failed, or the store. It must reach `failure`."""
        return self._at is not None or isinstance(error, StoreError)

    # --- what work does -------------------------------------------------------------------------------------

    def touch(self, shard_id: ShardId) -> Shard | None:
        """Return the shard with the clocks of this turn, and include it in the turn. None if
        closed.
        """
        shard = self._touched.get(shard_id)
        if shard is None and (shard := self.shards.get(shard_id)) is not None:
            self._touched[shard_id] = self._at = shard
            shard.begin(self._now, self._ahead_ms)
            self._at = None
        return shard

    def _ahead_ms(self) -> int | None:
        """Leader time minus boot time, the latest of all shards: messages of leaders arrive
        late.
        """
        known = (shard.replica.time.known_ahead_ms(self._now) for shard in self.shards.values())
        return max((ahead_ms for ahead_ms in known if ahead_ms is not None), default=None)

    def wake(self, shard_id: ShardId) -> None:
        """Include this shard in the next turn."""
        self.due[shard_id] = 0

    def store_soon(self) -> None:
        """Commit in the next turn even without promises, because the store has work."""
        self.due[LAZY] = self._now.boot_ms

    def step(self, shard: Shard, request: Request) -> None:
        """Handle a request, or a message of another copy, on a touched shard."""
        self._at = shard
        shard.step(request)
        self._at = None

    def publish(self, shard: Shard, request: Request) -> bool:
        """Publish a verified batch on a touched shard. False: it was refused."""
        self._at = shard
        accepted = shard.publish(request)
        self._at = None
        return accepted

    def sessions(self) -> set[SessionId]:
        """Return the sessions with state in any shard that ends with them."""
        found: set[SessionId] = set()
        for shard in self.shards.values():
            if shard.leadership is not None:
                found |= shard.sessions()
        return found

    def end_session(self, session: SessionId, silent: bool = False) -> None:
        """End a session in every shard that knows it."""
        for shard_id, shard in self.shards.items():
            if shard.knows(session):
                self.touch(shard_id)
                self._at = shard
                shard.end_session(session, silent)
        self._at = None

    def renew(self, session: SessionId) -> None:
        """Extend the leases of a session that was heard."""
        for shard_id, shard in self.shards.items():
            if shard.renews(session):
                self.touch(shard_id)
                self._at = shard
                shard.renew(session)
        self._at = None

    # --- a turn ---------------------------------------------------------------------------------------------

    def begin(self, now: Now) -> None:
        """Begin a turn."""
        self._now = now
        for shard in self._touched.values():  # touched while the last turn was sent
            self._at = shard
            shard.begin(now, self._ahead_ms)
            self._at = None

    def open(self) -> None:
        """Open every shard from disk, and start the next term. Raises StoreError."""
        self._load()
        # always commit after opening, to prove that the disk can be written
        del self.due[OPEN]
        self.due[LAZY] = self._now.boot_ms
        for shard_id in self.shards:
            self.touch(shard_id)
        for shard in self.shards.values():
            self._at = shard
            shard.lead(self._now)
        self._at = None

    def tick(self) -> None:
        """Include the shards that have work by now, and advance the timers of all in this turn."""
        if min(self.due.values(), default=NEVER_MS) <= self._now.boot_ms:
            self._touch_due()
        for shard in self._touched.values():
            self._at = shard
            shard.tick()
        self._at = None

    def _touch_due(self) -> None:
        """Step what shards told each other, and include the shards that have work by now."""
        told, self._told = self._told, []
        self.due.pop(TOLD, None)
        for shard_id, message in told:
            shard = self.touch(shard_id)
            if shard is not None:
                self.step(shard, Request(message))
        for shard_id in self.shards:
            if self.due.get(shard_id, NEVER_MS) <= self._now.boot_ms:
                self.touch(shard_id)

    def ready(self, sync: bool = False) -> Iterator[tuple[Shard, Sequence[Replication]]]:
        """Prepare the commit of all shards. Yields messages that may leave before it.

        `sync`: commit lazy writes, too, because the worker stops.
        """
        sync = sync or self._now.boot_ms >= self.due.get(LAZY, NEVER_MS)
        for shard in self._touched.values():
            sync = sync or shard.promised
        self.must_commit = sync = sync and OPEN not in self.due
        if sync:
            for shard_id in self._waiting:
                self.touch(shard_id)
        self._readies = []
        for shard in self._touched.values():
            self._at = shard
            ready = shard.ready(sync)
            self._readies.append((shard, ready))
            if ready.appends:
                yield shard, ready.appends
        self._at = None

    def write(self) -> None:
        """Write all shards into the open transaction."""
        self.due.pop(LAZY, None)
        self._waiting.clear()
        for shard, ready in self._readies:
            if ready.must_sync:
                self._at = shard
                shard.write(ready)
        self._at = None

    def stored(self) -> None:
        """The transaction is on disk."""
        for shard, ready in self._readies:
            if ready.must_sync:
                self._at = shard
                shard.stored()
        self._at = None

    def answers(self) -> Iterator[tuple[Shard, list[Mail]]]:
        """Yield answers to other copies, after the commit."""
        for shard in self._touched.values():
            self._at = shard
            if answers := shard.answers():
                yield shard, answers
        self._at = None

    def finish(self) -> Iterable[Shard]:
        """End the turn: return the shards that must advance."""
        touched, self._touched = self._touched, {}
        return touched.values()

    def advance(self, shard: Shard, boot_ms: int) -> Effects:
        """Apply what is committed in a shard. Returns everything that may be sent now.

        `boot_ms` is now: the commit may have outlasted a lease.
        """
        self._at = shard
        effects = shard.advance(boot_ms)
        if effects.told:
            effects.told = [each for each in effects.told if not self._told_here(*each)]
        return effects

    def sent(self, shard: Shard) -> None:
        """The effects of a shard are sent: find out when it has work again."""
        due_ms = shard.next_deadline()
        if due_ms is None:
            self.due.pop(shard.id, None)
        else:
            self.due[shard.id] = due_ms
        if shard.pending and OPEN not in self.due:
            self._waiting.add(shard.id)
            self.due.setdefault(LAZY, self._now.boot_ms + limits.LEASE_LOG_MS)
        self._at = None

    def _told_here(self, shard_id: ShardId, message: Message) -> bool:
        """Pass a message to a shard that this worker leads: it is stepped in the next turn."""
        shard = self.shards.get(shard_id)
        if shard is None or not shard.leading:
            return False
        self._told.append((shard_id, message))
        self.due[TOLD] = 0
        return True

    # --- opening, starting over -----------------------------------------------------------------------------

    def _load(self) -> None:
        """Load the shards from disk. Uncommitted changes are dropped. Raises StoreError."""
        self._forget()
        if self._opened_before:
            self._abort()
        self._opened_before = True
        for shard_id in self._owned:
            if shard_id in self.stopped:
                continue
            try:
                self.shards[shard_id] = self._open_shard(shard_id)
            except StoreError:
                raise
            except MemoryError as error:
                raise _trouble(shard_id, error) from error
            except Exception as error:
                self._stop(ShardStopped(shard_id, error))

    def _forget(self) -> None:
        ended: list[ShardId | str] = [*self.shards, LAZY, TOLD]
        for part in ended:
            self.due.pop(part, None)
        self.shards = {}
        self._touched = {}
        self._waiting = set()
        self._told.clear()

    def _stop(self, stopped: ShardStopped) -> None:
        error = stopped.error
        self.stopped[stopped.shard] = str(error) if isinstance(error, GossipqError) else repr(error)
        self.unnoticed.append(stopped)

    def failure(self, error: Exception) -> StoreError | ShardStopped:
        """Return what failed in a part of a turn. Raises `error` if no shard and no store did."""
        at, self._at = self._at, None
        if isinstance(error, StoreError | ShardStopped):
            return error
        if at is not None:
            return _trouble(at.id, error)
        if isinstance(error, MemoryError):
            return OutOfMemory("no memory was left in a turn", OutOfMemory.HINT)
        raise error

    def start_over(self, failure: StoreError | ShardStopped) -> None:
        """Drop all memory. While the disk fails, the shards exist only to report that."""
        self._forget()
        if isinstance(failure, ShardStopped):
            self.due[OPEN] = 0
            self._stop(failure)
            return
        self.due[OPEN] = self._now.boot_ms + RECOVER_MS
        try:
            self._load()
        except StoreError:
            self._forget()


def _trouble(shard_id: ShardId, error: Exception) -> StoreError | ShardStopped:
    """Convert an exception of a shard. Without memory, all shards restart: none is at fault."""
    if isinstance(error, MemoryError):
        return OutOfMemory(f"no memory was left in a turn of shard {shard_id}", OutOfMemory.HINT)
    return ShardStopped(shard_id, error)
