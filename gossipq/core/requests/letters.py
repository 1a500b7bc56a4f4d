"""REPLAY_DEAD and PURGE_DEAD: dead letters become ready again, or leave, a bounded piece in each turn.

A request is answered when its last piece is stored, with the records of all its pieces. What is done of one
that is cut short (this copy does not lead any more) stays done, so whoever asks again goes on there. A letter
that comes after the request is not its business: what is replayed and fails again is not replayed twice.
"""

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from gossipq import limits
from gossipq.core.ledger import Counted, Cursor, Ledger, Outcome
from gossipq.core.raft import Pending, Requester
from gossipq.core.storage import Intervals, log, payloads
from gossipq.errors import BadRequest, Busy, GossipqError
from gossipq.messages import Done, PurgeDead, ReplayDead
from gossipq.types import Index, Offset, Origin, PartitionKey
from gossipq.values import Message

EVERYTHING = (0, limits.NUMBER_MAX)
AGAIN_MS = 200  #: a client waits so long while too many requests of this kind are under way


class LettersHost(Protocol):
    """What this room asks of its shard."""

    @property
    def boot_ms(self) -> int: ...
    @property
    def last(self) -> Index:
        """The newest entry."""

    def propose(self, kind: int, payload: bytes, promise: bool = True, body: bytes = b"") -> Index: ...
    def reply(self, origin: Origin, request_id: int, message: Message) -> None: ...
    def refuse(self, origin: Origin, request_id: int, error: GossipqError) -> None: ...
    def refuse_by(self, asker: Requester, outcome: Outcome) -> None: ...


class LetterJob:
    """One request under way. `at` is the offset from which it goes on in the first of its `ranges`."""

    def __init__(
        self,
        asker: Requester,
        message: ReplayDead | PurgeDead,
        group_id: int,
        ranges: Iterable[tuple[Offset, Offset]],
        newest: Index,
    ) -> None:
        self.asker, self.group_id, self.newest = asker, group_id, newest
        self.partition: PartitionKey = message.partition
        self.kind = log.REPLAY if isinstance(message, ReplayDead) else log.PURGE
        self.dry_run = message.dry_run
        self.ranges = deque(ranges)
        self.count = 0

    def piece(self, cursor: Cursor) -> tuple[list[tuple[Offset, Offset]], int]:
        """The next letters, as ranges in order, and how many records they hold; both empty: there are no
        more, or what was looked at was too young. Looks at LETTERS_PER_TURN rows at most."""
        chosen, count = Intervals(), 0
        rows, size = limits.LETTERS_PER_TURN, limits.LETTER_BYTES_PER_TURN
        while self.ranges and rows > 0 and size > 0:
            first, end = self.ranges.popleft()
            rows -= 1  # also a range without letters costs a look
            for part in cursor.dead.within(first, end):
                if rows < 0 or size <= 0:
                    self.ranges.appendleft((part.first, end))
                    break
                rows -= 1
                if part.row.index <= self.newest:
                    size -= part.row.size
                    count += chosen.add(part.first, part.end)
        return list(chosen), count


class LetterJobs:
    def __init__(self, host: LettersHost, ledger: Ledger, pending: Pending[Outcome]) -> None:
        self._host, self._ledger, self._pending = host, ledger, pending
        self._jobs: deque[LetterJob] = deque()  # the first one is worked at
        self._storing = False  # a piece of it

    def take(self, origin: Origin, request_id: int, message: ReplayDead | PurgeDead, cursor: Cursor) -> None:
        """A request for the letters of `cursor`. Raises BadRequest, Busy."""
        for first, end in message.ranges:
            if not 0 <= first < end <= limits.NUMBER_MAX:
                raise BadRequest(
                    f"range {first} to {end}",
                    hint="ranges are half-open: the first offset, and one past the last",
                )
        if len(self._jobs) >= limits.LETTER_JOBS_MAX:
            raise Busy(
                f"{len(self._jobs)} replays and purges of dead letters are under way", retry_after_ms=AGAIN_MS
            )
        if message.dry_run and not message.ranges:
            self._host.reply(origin, request_id, Done(cursor.state.dead))
            return
        ranges = Intervals()
        for first, end in sorted(message.ranges) or [EVERYTHING]:
            ranges.add(first, end)
        asker = Requester(origin, request_id)
        self._jobs.append(LetterJob(asker, message, cursor.state.group_id, ranges, self._host.last))

    def next_deadline(self) -> int | None:
        """Boot time of the next tick that has something to do."""
        return self._host.boot_ms if self._jobs and not self._storing else None

    def tick(self) -> None:
        """The next piece of the oldest request."""
        if not self._jobs or self._storing:
            return
        job = self._jobs[0]
        cursor = self._ledger.cursors.get(job.partition, {}).get(job.group_id)
        if cursor is None:
            self._jobs.popleft()
            self._host.refuse(*job.asker, BadRequest("the group, or its topic, was removed meanwhile"))
            return
        ranges, count = job.piece(cursor)
        if ranges and not job.dry_run:
            payload = payloads.encode(payloads.Letters(job.group_id, job.partition, ranges))
            self._storing = True
            self._pending.add(self._host.propose(job.kind, payload), partial(self._stored, job), *job.asker)
            return
        job.count += count
        self._finish_if_done(job)

    def _stored(self, job: LetterJob, asker: Requester, index: Index, outcome: Outcome) -> None:
        self._storing = False
        if outcome.error:
            self._jobs.popleft()
            self._host.refuse_by(asker, outcome)
            return
        job.count += outcome.count if isinstance(outcome, Counted) else 0
        self._finish_if_done(job)

    def _finish_if_done(self, job: LetterJob) -> None:
        if not job.ranges:
            self._jobs.popleft()
            self._host.reply(*job.asker, Done(job.count))

    def waiting(self) -> list[tuple[Origin, int]]:
        """Requests without an entry of their own: they are abandoned when this copy does not lead any
        more."""
        jobs = list(self._jobs)[1:] if self._storing else list(self._jobs)
        return [(job.asker.origin, job.asker.request_id) for job in jobs if job.asker.origin]
