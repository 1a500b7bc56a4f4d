"""The turn of a worker over its shards: the only driver of `Shard`, in nodes, tests and simulator.

One call of `Turn.run` is one turn. For each shard with work, in this order:

    begin(now)             sets the clocks, when the shard is touched first
    step, publish          any number of times: requests, and messages of other copies
    tick()                 advances timers; collected work becomes entries
    ready(sync)            -> Ready: what to store, and what may be sent before that
    write(ready)           into the open transaction of all shards
      `TurnHost.commit`    one sync for all of them
    stored()               marks it as stored
    answers()              to other copies
    advance()              -> Effects: entries are applied, records delivered; the host sends it

A turn commits only if a shard promises something. Other writes (leases, retention, applied rows)
join the next commit, at most LEASE_LOG_MS later.

If the disk fails (StoreError) or a shard fails (ShardStopped), the rest of the turn is not sent.
All memory is dropped, the transaction is aborted, and the shards are opened again from their
tables: after RECOVER_MS, or in the next turn without the failed shard.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

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


class TurnHost(Protocol):
    """The process in which turns run."""

    def open(self, shard: ShardId) -> Shard:
        """Open a shard over its tables. Raises StoreError, and errors that make the shard
        unusable.
        """

    def abort(self) -> None:
        """Abort everything since the last commit. Raises StoreError."""

    def commit(self) -> None:
        """Commit: everything is on disk when this returns. Raises StoreError if nothing was
        committed.
        """

    def boot_ms(self) -> int:
        """Boot time now: a commit may have outlasted a lease."""

    def replicate(self, shard: Shard, appends: Sequence[Replication]) -> None:
        """Send messages that may leave before the commit."""

    def answer(self, shard: Shard, answers: Sequence[Mail]) -> None:
        """Send answers to other copies, after the commit."""

    def send(self, shard: Shard, effects: Effects) -> None:
        """Send everything else."""

    def flush(self) -> None:
        """Send all collected messages to other processes."""

    def opened(self) -> None:
        """The shards are open, and their first entries are stored."""

    def dropped(self, shards: Collection[Shard]) -> None:
        """The memory of these shards is dropped, with everything that waits in it."""

    def refused(self, error: StoreError) -> None:
        """The disk failed. The shards are opened again after RECOVER_MS."""

    def stopped(self, shard: ShardId, error: Exception) -> None:
        """This shard stays closed; the others are opened again."""


class Turn:
    """The turns of the shards in `owned`. Their first turn opens them."""

    def __init__(self, host: TurnHost, owned: Iterable[ShardId]) -> None:
        self.shards: dict[ShardId, Shard] = {}  #: open shards
        self.stopped: dict[ShardId, str] = {}  #: stopped shards, and why
        self._host, self._owned = host, tuple(owned)
        self._now = Now(0, 0)
        #: boot time at which each shard, and each other part of a worker, has work without a message
        self.due: dict[ShardId | str, int] = {OPEN: 0}
        self._opened_before = False
        self._touched: dict[ShardId, Shard] = {}
        self._replicated = False  # something waits to be sent before the commit
        self._at: Shard | None = None  # the shard whose part of a turn is running
        self._told: list[tuple[ShardId, Message]] = []  # messages between shards of this worker
        self._waiting: set[ShardId] = set()  # shards with lazy writes

    @property
    def open(self) -> bool:
        """True if the shards are open and can store."""
        return OPEN not in self.due

    @property
    def again(self) -> bool:
        """True if the last turn left work for another one at once."""
        return bool(self._told) or any(shard.promised for shard in self.shards.values())

    def next_deadline_ms(self) -> int | None:
        """Boot time of the next turn that has work without a message."""
        return min(self.due.values(), default=None)

    def ends(self, error: Exception) -> bool:
        """True if `error` ends the turn: a shard failed, or the store. It must reach `run`."""
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
        return set().union(*(shard.sessions() for shard in self.shards.values()))

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

    def run(self, now: Now, work: Callable[[], None]) -> None:
        """Run one turn: open shards if needed, call `work` to step messages, store, and send.

        Raises the exceptions of `TurnHost.refused`.
        """
        self._now = now
        if OPEN in self.due and now.boot_ms >= self.due[OPEN]:
            self._attempt(self._open, self._finish, self._host.opened)
        self._attempt(work, self._finish)

    def last(self, now: Now) -> None:
        """Commit lazy writes when the worker stops. Raises StoreError, ShardStopped."""
        self._now = now
        if self.open:
            try:
                self._store(self._ready(sync=True))
            except StoreError:
                raise
            except Exception as error:
                raise error if self._at is None else _trouble(self._at.id, error) from error

    def _attempt(self, *parts: Callable[[], None]) -> None:
        """Run parts of a turn. Either all promises are stored and sent, or memory starts over."""
        try:
            for part in parts:
                part()
        except StoreError as error:
            self._start_over(error)
        except Exception as error:
            if self._at is not None:
                self._start_over(_trouble(self._at.id, error))
            elif isinstance(error, MemoryError):
                self._start_over(OutOfMemory("no memory was left in a turn", OutOfMemory.HINT))
            else:
                raise
        finally:
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

    def _finish(self) -> None:
        """Store the promises of the turn, then send the effects."""
        host = self._host
        if min(self.due.values(), default=NEVER_MS) <= self._now.boot_ms:
            self._touch_due()
        for shard in self._touched.values():
            self._at = shard
            shard.tick()
        sync = self._now.boot_ms >= self.due.get(LAZY, NEVER_MS)
        for shard in self._touched.values():
            sync = sync or shard.promised
        sync = sync and OPEN not in self.due
        readies = self._ready(sync)
        if self._replicated:
            self._replicated = False
            host.flush()  # other copies store while this one does
        if sync:
            self._store(readies)
        touched, self._touched = self._touched, {}
        answered = False
        for shard in touched.values():
            self._at = shard
            if answers := shard.answers():
                host.answer(shard, answers)
                answered = True
        if answered:
            host.flush()  # clients wait for confirms: send them before the rest
        for shard in touched.values():
            self._at = shard
            self._advance(shard)
        self._at = None
        host.flush()

    def _ready(self, sync: bool) -> list[tuple[Shard, Ready]]:
        """Return the writes of each shard, and send what may leave before the commit."""
        if sync:
            for shard_id in self._waiting:
                self.touch(shard_id)
        readies = []
        for shard in self._touched.values():
            self._at = shard
            ready = shard.ready(sync)
            readies.append((shard, ready))
            if ready.appends:
                self._host.replicate(shard, ready.appends)
                self._replicated = True
        return readies

    def _store(self, readies: list[tuple[Shard, Ready]]) -> None:
        """Write and commit all shards in one transaction."""
        self.due.pop(LAZY, None)
        self._waiting.clear()
        for shard, ready in readies:
            if ready.must_sync:
                self._at = shard
                shard.write(ready)
        self._at = None
        self._host.commit()
        for shard, ready in readies:
            if ready.must_sync:
                self._at = shard
                shard.stored()

    def _advance(self, shard: Shard) -> None:
        """Apply and send the effects of a shard."""
        effects = shard.advance(self._host.boot_ms())
        if effects.told:
            effects.told = [each for each in effects.told if not self._told_here(*each)]
        self._host.send(shard, effects)
        due_ms = shard.next_deadline()
        if due_ms is None:
            self.due.pop(shard.id, None)
        else:
            self.due[shard.id] = due_ms
        if shard.pending and OPEN not in self.due:
            self._waiting.add(shard.id)
            self.due.setdefault(LAZY, self._now.boot_ms + limits.LEASE_LOG_MS)

    def _told_here(self, shard_id: ShardId, message: Message) -> bool:
        """Pass a message to a shard that this worker leads: it is stepped in the next turn."""
        shard = self.shards.get(shard_id)
        if shard is None or not shard.leading:
            return False
        self._told.append((shard_id, message))
        self.due[TOLD] = 0
        return True

    # --- opening, starting over -----------------------------------------------------------------------------

    def _open(self) -> None:
        """Open every shard from disk, and start the next term."""
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

    def _load(self) -> None:
        """Load the shards from disk. Uncommitted changes are dropped. Raises StoreError."""
        self._forget()
        if self._opened_before:
            self._host.abort()
        self._opened_before = True
        for shard_id in self._owned:
            if shard_id in self.stopped:
                continue
            try:
                self.shards[shard_id] = self._host.open(shard_id)
            except StoreError:
                raise
            except MemoryError as error:
                raise _trouble(shard_id, error) from error
            except Exception as error:
                self._stop(shard_id, error)

    def _forget(self) -> None:
        ended: list[ShardId | str] = [*self.shards, LAZY, TOLD]
        for part in ended:
            self.due.pop(part, None)
        self.shards, self._touched, self._waiting = {}, {}, set()
        self._told.clear()

    def _stop(self, shard_id: ShardId, error: Exception) -> None:
        self.stopped[shard_id] = str(error) if isinstance(error, GossipqError) else repr(error)
        self._host.stopped(shard_id, error)

    def _start_over(self, error: StoreError | ShardStopped) -> None:
        """Drop all memory. While the disk fails, the shards exist only to report that."""
        self._host.dropped(self.shards.values())
        self._forget()
        if isinstance(error, ShardStopped):
            self.due[OPEN] = 0
            self._stop(error.shard, error.error)
            return
        self.due[OPEN] = self._now.boot_ms + RECOVER_MS
        self._host.refused(error)
        try:
            self._load()
        except StoreError:
            self._forget()


def _trouble(shard_id: ShardId, error: Exception) -> StoreError | ShardStopped:
    """Convert an exception of a shard. Without memory, all shards restart: none is at fault."""
    if isinstance(error, MemoryError):
        return OutOfMemory(f"no memory was left in a turn of shard {shard_id}", OutOfMemory.HINT)
    return ShardStopped(shard_id, error)
