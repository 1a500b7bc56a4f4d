"""REPLAY_DEAD and PURGE_DEAD make dead letters ready again or remove them, a
bounded piece in each turn.

The answer comes after the last piece is stored and counts the records of all pieces. If the copy
stops leading midway, the finished pieces stay, and a second request continues from there. Later
letters are not part of a request, so a replayed record that fails again is not replayed twice.

A dead letter carries a batch of its own. So it outlives retention, and replay needs nothing else.
"""

from collections import deque
from collections.abc import Iterable
from functools import partial

from gossipq import limits
from gossipq.core.desk import Asker, Desk, Request
from gossipq.core.ledger import Counted, Cursor, Ledger, Outcome
from gossipq.core.storage import Intervals, log, payloads
from gossipq.errors import BadRequest, Busy
from gossipq.messages import Done, PurgeDead, ReplayDead
from gossipq.types import Index, Offset, Origin, PartitionKey

EVERYTHING = (0, limits.NUMBER_MAX)
AGAIN_MS = 200  #: how long a client waits when too many of these requests are running


class LetterJob:
    """One running request. `at` is the offset where it continues in the first of its `ranges`."""

    def __init__(
        self,
        request: Request,
        group_id: int,
        ranges: Iterable[tuple[Offset, Offset]],
        newest: Index,
    ) -> None:
        message: ReplayDead | PurgeDead = request.message
        self.asker = request
        self.group_id = group_id
        self.newest = newest
        self.partition: PartitionKey = message.partition
        self.kind = log.REPLAY if isinstance(message, ReplayDead) else log.PURGE
        self.dry_run = message.dry_run
        self.ranges = deque(ranges)
        self.count = 0

    def piece(self, cursor: Cursor) -> tuple[list[tuple[Offset, Offset]], int]:
        """The next letters, as sorted ranges, and their number of records. Both are empty if
        no letters are left, or if all that it looked at are too new. Looks at
        LETTERS_PER_TURN rows at most.
        """
        chosen, count = Intervals(), 0
        rows, size = limits.LETTERS_PER_TURN, limits.LETTER_BYTES_PER_TURN
        while self.ranges and rows > 0 and size > 0:
            first, end = self.ranges.popleft()
            rows -= 1  # a range without letters costs a look, too
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
    def __init__(self, desk: Desk, ledger: Ledger) -> None:
        self._desk, self._ledger = desk, ledger
        self._jobs: deque[LetterJob] = deque()  # the first one is being served
        self._storing = False  # whether one of its pieces is being stored

    def take(self, request: Request, cursor: Cursor) -> None:
        """Begins a request for the letters of `cursor`. Raises BadRequest, Busy."""
        message: ReplayDead | PurgeDead = request.message
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
            self._desk.reply(request, Done(cursor.state.dead))
            return
        ranges = Intervals()
        for first, end in sorted(message.ranges) or [EVERYTHING]:
            ranges.add(first, end)
        self._jobs.append(LetterJob(request, cursor.state.group_id, ranges, self._desk.last))

    def next_deadline(self) -> int | None:
        """Boot time of the next tick that has work to do."""
        return self._desk.boot_ms if self._jobs and not self._storing else None

    def tick(self) -> None:
        """Stores the next piece of the oldest request."""
        if not self._jobs or self._storing:
            return
        job = self._jobs[0]
        cursor = self._ledger.cursors.get(job.partition, {}).get(job.group_id)
        if cursor is None:
            self._jobs.popleft()
            self._desk.refuse(job.asker, BadRequest("the group, or its topic, was removed meanwhile"))
            return
        ranges, count = job.piece(cursor)
        if ranges and not job.dry_run:
            payload = payloads.encode(payloads.Letters(job.group_id, job.partition, ranges))
            self._storing = True
            self._desk.pending.add(
                self._desk.propose(job.kind, payload), partial(self._stored, job), job.asker
            )
            return
        job.count += count
        self._finish_if_done(job)

    def _stored(self, job: LetterJob, asker: Asker, index: Index, outcome: Outcome) -> None:
        self._storing = False
        if outcome.error:
            self._jobs.popleft()
            self._desk.refuse_by(asker, outcome)
            return
        job.count += outcome.count if isinstance(outcome, Counted) else 0
        self._finish_if_done(job)

    def _finish_if_done(self, job: LetterJob) -> None:
        if not job.ranges:
            self._jobs.popleft()
            self._desk.reply(job.asker, Done(job.count))

    def waiting(self) -> list[tuple[Origin, int]]:
        """Requests without an entry of their own. They are refused when this copy stops leading."""
        jobs = list(self._jobs)[1:] if self._storing else list(self._jobs)
        return [(job.asker.origin, job.asker.request_id) for job in jobs if job.asker.origin]
