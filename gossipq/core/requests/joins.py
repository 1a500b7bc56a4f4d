"""Joins of a leader: JOIN_JOBS, and the ends of the parts, which the leaders of their shards tell.

WATCH_JOBS asks such a leader once; JOBS_ENDED brings the ends as they come. Either message can be lost, and a
new leader knows of no question. So every shard with open parts is asked for its term every ASK_MS, and for
every part again after AGAIN_MS.
"""

from collections.abc import Callable
from functools import partial
from itertools import islice

import msgspec

from gossipq import limits
from gossipq.core.delivery import within
from gossipq.core.desk import Asker, Desk, Request
from gossipq.core.ledger import JoinName, JoinRow, Ledger, Outcome
from gossipq.core.requests.jobs import JobRequests
from gossipq.core.requests.publish import PublishRequests
from gossipq.core.requests.topics_here import TopicsHere
from gossipq.core.storage import Deadlines, log, payloads
from gossipq.errors import BadBatch, BadRequest, GossipqError, TooLarge
from gossipq.messages import Done, JoinJobs
from gossipq.peer_messages import JobsEnded, WatchJobs
from gossipq.permissions import READ, SYSTEM, require_writer
from gossipq.types import DELAY, HEADERS, PARTS_HEADER, UNIQUE_HASH, Index, ShardId, Term
from gossipq.values import EndedPart, JobWatch, JoinPart, Message, PartEnd, Ref

ASK_MS = 2_000  #: between two questions for the term of a leader
AGAIN_MS = 10_000  #: until a part is asked for again
RETRY_MS = 1_000  #: until a record is published again that found no space
CLOSED_PER_TURN = 64
PARTS_PER_TURN = 2_000  #: of the joins that a new leader takes over, about: 1 us each
PART_BYTES = 96  #: of a part in the header that tells how it ended, besides the name of its topic
OPEN = "open"  #: state of a part that has not ended when the time is over

PartName = tuple[JoinName, int]


class OpenJoin(msgspec.Struct):
    """A join of this shard, with the ends that its leader knows, logged or not."""

    row: JoinRow
    ends: dict[int, PartEnd]

    @property
    def is_over(self) -> bool:
        return len(self.ends) >= self.row.count


class AskedParts(msgspec.Struct):
    """The open parts in one shard."""

    fresh: dict[PartName, None] = {}  #: to ask for now
    parts: dict[PartName, int] = {}  #: boot time of the last question, the oldest first
    term: Term = 0  #: of the leader that answered last; 0 = none did


class JoinRequests:
    def __init__(
        self,
        desk: Desk,
        ledger: Ledger,
        topics: TopicsHere,
        publishing: PublishRequests,
        shards: int,
    ) -> None:
        self._desk = desk
        self._ledger = ledger
        self._topics = topics
        self._publishing, self._shards = publishing, shards
        self._rows = ledger.joins.rows
        self.known: dict[JoinName, OpenJoin] = {}  #: empty: there is nothing to do
        #: joins that a new leader has yet to take over, the newest first
        self.inherited: list[JoinName] = []
        self._asked: dict[ShardId, AskedParts] = {}
        self._ask_ms = 0  # boot time of the next questions
        self._late: Deadlines[JoinName] = Deadlines()  # ends of their times, by leader time
        self._over: dict[JoinName, None] = {}  # to be published
        self._over_ms = 0  # boot time of the next attempt
        self._publishes: set[JoinName] = set()  # whose entries are not applied yet
        self._noted: list[EndedPart] = []  # ends to be logged

    def lead(self) -> None:
        """Begin with the joins of the ledger, some of them in each turn: others wait meanwhile."""
        self.inherited = list(reversed(self._rows))
        self._take_over()

    def _take_over(self) -> None:
        """Begin with the oldest joins that are left."""
        parts = 0
        while self.inherited and parts < PARTS_PER_TURN:
            name = self.inherited.pop()
            if name in self._rows:  # neither cancelled meanwhile, nor gone with its topic
                self._begin(name)
                parts += len(self._rows[name].parts)

    def _begin(self, name: JoinName) -> None:
        row, ends = self._rows[name], dict(self._ledger.joins.ends[name])
        self.known[name] = join = OpenJoin(row, ends)
        self._late.set(name, row.end_ms)
        if join.is_over:
            self._over[name] = None
            return
        for number, part in enumerate(row.parts):
            if number not in ends:
                self._asked.setdefault(part.shard, AskedParts()).fresh[name, number] = None
        self._ask_ms = self._desk.boot_ms

    # --- requests of clients --------------------------------------------------------------------------------

    def serve(self, request: Request) -> None:
        """Begin a join. Raises what must be refused."""
        message: JoinJobs = request.message
        partition, batch = message.partition, request.batch
        state = self._ledger.partitions.get(partition)
        if state is None:
            raise self._topics.unknown(partition)
        topic = self._ledger.topics[state.topic_id]
        if topic.name.startswith(SYSTEM):
            require_writer(topic.name, request.sender.node)
        self._check(message, request)
        self._check_record(batch, message.parts)
        self._publishing.require_space(partition, self._desk.columns.peek(batch))
        count = message.count or len(message.parts)
        end_ms = self._desk.leader_ms + message.timeout_ms
        begun = payloads.JoinBegun(partition, message.parts, count, end_ms, message.group)
        index = self._desk.propose(log.JOIN, payloads.encode(begun), body=batch)
        self._desk.pending.add(index, partial(self._joined, JoinName(partition, index)), request)

    def _check(self, message: JoinJobs, request: Request) -> None:
        """Raises BadRequest, Forbidden."""
        count = len(message.parts)
        if not 0 < count <= limits.JOIN_PARTS_MAX:
            raise BadRequest(f"{count} jobs to wait for", hint=f"1 to {limits.JOIN_PARTS_MAX} are allowed")
        within("count", message.count, 0, count)
        within("timeout_ms", message.timeout_ms, 1, limits.DELAY_MS_MAX)
        rights = request.sender.rights
        for part in message.parts:
            within("shard", part.shard, 0, self._shards - 1)
            if rights is not None:  # the follow-up tells how they end
                rights.require(JoinJobs, READ, part.topic)

    def _check_record(self, batch: bytes, parts: list[JoinPart]) -> None:
        """Raises BadBatch, TooLarge."""
        if not batch:
            raise BadBatch("a join needs a record", hint="send it as a batch of one in the second frame")
        info = self._desk.columns.peek(batch)
        if info.count != 1:
            raise BadBatch(f"a join publishes one record, not {info.count}")
        if info.columns & (DELAY | UNIQUE_HASH):
            raise BadBatch("the record of a join has a delay or a unique name", hint="leave it out")
        size = len(self._desk.columns.text(batch, HEADERS, 0)) if info.columns & HEADERS else 0
        size += sum(PART_BYTES + len(part.topic.encode()) for part in parts)
        if size > limits.HEADERS_BYTES_MAX:
            text = f"headers with {len(parts)} jobs need {size} bytes; {limits.HEADERS_BYTES_MAX} are allowed"
            raise TooLarge(text, hint="join fewer jobs, or joins of them")

    def _joined(self, name: JoinName, asker: Asker, index: Index, outcome: Outcome) -> None:
        if name in self._rows:
            self._begin(name)
        self._desk.answer(asker, outcome, Done(1, Ref(name.partition, index=index)))

    # --- messages of other leaders --------------------------------------------------------------------------

    def hear(self, request: Request) -> None:
        """Note ends that the leader of a shard with parts tells."""
        message: JobsEnded = request.message
        asked = self._asked.get(message.shard)
        if asked is not None and message.term > asked.term:
            if asked.term:  # a new leader knows of no question
                asked.fresh |= dict.fromkeys(asked.parts)
                asked.parts.clear()
                self._ask_ms = self._desk.boot_ms
            asked.term = message.term
        for row in message.rows:
            name = JoinName(row.partition, row.index)
            join = self.known.get(name)
            if join is None or row.part in join.ends or row.part >= len(join.row.parts):
                continue
            join.ends[row.part] = row.end
            self._noted.append(row)
            if asked is not None:
                asked.parts.pop((name, row.part), None)
            if join.is_over and name not in self._publishes:
                self._over[name] = None

    # --- time -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Boot time of the next question, entry, or end of a time."""
        boot_ms = self._desk.boot_ms
        if self.inherited:
            return boot_ms
        due = [self._ask_ms] if self._asked else []
        if self._over:
            due.append(max(self._over_ms, boot_ms))
        if (late_ms := self._late.next()) is not None:
            due.append(boot_ms + max(0, late_ms - self._desk.leader_ms))
        return min(due, default=None)

    def tick(self) -> None:
        """Publish the records whose parts have ended or whose time is over, log other ends, and ask."""
        self._take_over()
        for name in self._late.expire(self._desk.leader_ms):
            if name not in self._publishes:
                self._over[name] = None
        if self._over and self._desk.boot_ms >= self._over_ms:
            for name in list(islice(self._over, CLOSED_PER_TURN)):
                self._close(name)
        noted, self._noted = self._noted, []
        if rows := [row for row in noted if JoinName(row.partition, row.index) not in self._publishes]:
            # a leader that never stored them asks again
            self._desk.propose(log.JOIN_ENDS, payloads.encode(payloads.PartsEnded(rows)), promise=False)
        if self._desk.boot_ms >= self._ask_ms:
            self._ask_all()

    def _close(self, name: JoinName) -> None:
        """Log that a record is published. If its topic has no space, others come first."""
        if name not in self._rows:  # cancelled, or the topic is gone
            self._forget(name)
            return
        columns, batch = self._desk.columns, self._ledger.joins.batch(name)
        text = _header(self.known[name], len(columns.text(batch, HEADERS, 0)))
        record_id = f"join/{name.partition}/{name.entry}".encode()
        batch = columns.joined(batch, record_id, PARTS_HEADER, text)
        info = columns.peek(batch)
        try:
            self._publishing.require_space(name.partition, info)
        except GossipqError:
            self._over_ms = self._desk.boot_ms + RETRY_MS
            self._over[name] = self._over.pop(name)
            return
        del self._over[name]
        self._publishes.add(name)
        done = payloads.JoinDone(name.partition, name.entry, log.publish_payload(name.partition, info))
        index = self._desk.propose(log.JOINED, payloads.encode(done), body=batch)
        self._desk.pending.add(index, partial(self._published, name))

    def _published(self, name: JoinName, asker: Asker, index: Index, outcome: Outcome) -> None:
        self._publishes.discard(name)
        self._forget(name)

    def _forget(self, name: JoinName) -> None:
        """A join is over."""
        join = self.known.pop(name, None)
        if join is None:
            return
        self._late.cancel(name)
        self._over.pop(name, None)
        for number, part in enumerate(join.row.parts):
            asked = self._asked.get(part.shard)
            if asked is not None:
                asked.fresh.pop((name, number), None)
                asked.parts.pop((name, number), None)

    def _ask_all(self) -> None:
        """Ask the leaders of all shards with open parts."""
        for name in [name for name in self.known if name not in self._rows]:
            if name not in self._publishes:
                self._forget(name)
        self._ask_ms = self._desk.boot_ms + ASK_MS
        for shard, asked in list(self._asked.items()):
            rows = self._questions(asked)
            if not asked.parts and not asked.fresh:
                del self._asked[shard]
            else:
                self._desk.tell(shard, WatchJobs(self._desk.shard, rows))
            if asked.fresh:  # they are too many for one message
                self._ask_ms = self._desk.boot_ms

    def _questions(self, asked: AskedParts) -> list[JobWatch]:
        """Return the next parts to ask for: those that were not asked for, then the oldest."""
        boot_ms, names = self._desk.boot_ms, list(islice(asked.fresh, limits.JOIN_PARTS_MAX))
        for each in names:
            del asked.fresh[each]
        for each, asked_ms in list(islice(asked.parts.items(), limits.JOIN_PARTS_MAX - len(names))):
            if asked_ms > boot_ms - AGAIN_MS:
                break
            del asked.parts[each]
            names.append(each)
        rows = list[JobWatch]()
        for name, number in names:
            join = self.known.get(name)
            if join is not None and number not in join.ends:
                asked.parts[name, number] = boot_ms
                partition, index = name
                row = JobWatch(
                    partition=partition,
                    index=index,
                    part=number,
                    wanted=join.row.parts[number],
                    group=join.row.group,
                )
                rows.append(row)
        return rows


class WatchRequests:
    """Messages between the leaders of joins and those of their parts."""

    def __init__(self, joins: JoinRequests, jobs: JobRequests) -> None:
        self._handlers: dict[type[Message], Callable[[Request], None]] = {
            WatchJobs: jobs.watch,
            JobsEnded: joins.hear,
        }

    def serve(self, request: Request) -> None:
        """Serve a message that has no answer."""
        self._handlers[type(request.message)](request)


def _header(join: OpenJoin, size: int) -> str:
    """Return how the parts ended, as JSON. `size` is that of the other headers of the record."""
    room = limits.HEADERS_BYTES_MAX - size
    room -= sum(PART_BYTES + len(part.topic.encode()) for part in join.row.parts)
    rows = list[dict[str, str]]()
    for number, part in enumerate(join.row.parts):
        end = join.ends.get(number) or PartEnd(OPEN, part.ref)
        row = {"ref": end.ref.text(part.topic), "state": end.state}
        because = {"because": end.because} if end.because else {}
        room -= len(msgspec.json.encode(because))
        rows.append(row | because if room > 0 else row)
    return msgspec.json.encode(rows).decode()
