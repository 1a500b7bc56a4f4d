"""Records as jobs: ASK_JOB, the requests that wait for the end of a job, and the end of results.

A request that waits is answered by the entry that ends its job, so nobody asks again and again. Leaders of
joins wait in the same way (WATCH_JOBS).
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gossipq import limits
from gossipq.core.delivery import EXPIRED, Lease, within
from gossipq.core.desk import Asker, Desk, Request
from gossipq.core.ledger import Ledger, Outcome, ResultRow
from gossipq.core.requests.explain import ExplainRequests, Named, find
from gossipq.core.requests.topics_here import TopicsHere
from gossipq.core.storage import Deadlines, log, payloads
from gossipq.errors import BadRequest, Busy, GossipqError
from gossipq.messages import AskJob, Job
from gossipq.peer_messages import JobsEnded, WatchJobs
from gossipq.types import Index, Offset, Origin, PartitionKey, ShardId, topic_id_of
from gossipq.values import EndedPart, JobInfo, JobWatch, Message, PartEnd, Ref, Standing

AGAIN_MS = 1_000  #: pause between two passes that delete old results, and of a client that cannot wait here
EXPIRED_PER_ENTRY = 1_000
WATCH_MS = limits.HOUR_MS  #: for which a leader waits that does not ask again
BECAUSE_CHARS_MAX = 200  #: of the error of a part
#: states of a record -> states of a job
STATES = {
    "scheduled": "scheduled",
    "ready": "waiting",
    "parked": "waiting",
    "in_flight": "running",
    "retrying": "retrying",
    "acked": "succeeded",
    "dead": "failed",
    "voided": "cancelled",
    "removed": "expired",
    "skipped": "expired",
}
ENDED = frozenset(("succeeded", "failed", "cancelled", "expired"))
JobPlace = tuple[Offset, Index, int]  #: of a record in its partition: offset, or entry and record


WatchName = tuple[ShardId, PartitionKey, Index, int]  #: shard and place of a join, and number of the part


class JobWait(msgspec.Struct, frozen=True, eq=False):
    """A request that waits for the end of a job."""

    request: Request
    partition: PartitionKey
    place: JobPlace
    limit_ms: int  #: boot time at which it is answered in any case
    watch: WatchName | None = None  #: it is that of the leader of a join, who gets the end only


class JobRequests:
    def __init__(self, desk: Desk, ledger: Ledger, topics: TopicsHere, explaining: ExplainRequests) -> None:
        self._desk = desk
        self._ledger = ledger
        self._topics = topics
        self._explaining = explaining
        #: requests that wait, by partition and place
        self.waiters: dict[PartitionKey, dict[JobPlace, dict[JobWait, None]]] = {}
        self._limits: Deadlines[JobWait] = Deadlines()
        self._watches: dict[WatchName, JobWait] = {}
        self._expire_ms = 0  # boot time of the next pass that deletes results
        self._expiring = False  # an entry that deletes results is not applied yet
        self._handlers: dict[type[Message], Callable[[Request], None]] = {AskJob: self._ask}

    def serve(self, request: Request) -> None:
        """Serve a request. Raises the error with which it must be refused."""
        self._handlers[type(request.message)](request)

    def waiting(self) -> list[tuple[Origin, int]]:
        """Return the requests that wait, when this leader ends."""
        found = [waiter for places in self.waiters.values() for each in places.values() for waiter in each]
        asked = [waiter.request for waiter in found if waiter.watch is None]
        return [(request.origin, request.request_id) for request in asked]

    # --- questions ------------------------------------------------------------------------------------------

    def _ask(self, request: Request) -> None:
        message: AskJob = request.message
        within("wait_ms", message.wait_ms, 0, limits.JOB_WAIT_MS_MAX)
        info = self._info(message)
        if not message.wait_ms or _is_news(message, info):
            self._desk.reply(request, Job(info))
            return
        if len(self._limits) - len(self._watches) >= limits.JOB_WAITERS_MAX:
            text = f"{limits.JOB_WAITERS_MAX} requests wait for jobs of shard {self._desk.shard}"
            raise Busy(text, retry_after_ms=AGAIN_MS)
        limit_ms = self._desk.boot_ms + message.wait_ms
        self._add(JobWait(request, info.ref.partition, _place(info.ref), limit_ms))

    def watch(self, request: Request) -> None:
        """Tell the leader of joins which of these jobs have ended, now and when others end."""
        message: WatchJobs = request.message
        ended = list[EndedPart]()
        for watch in message.rows:
            name = message.shard, watch.partition, watch.index, watch.part
            if (old := self._watches.get(name)) is not None:
                self._forget(old)
            end = self._ended_or_watched(name, watch)
            if end is not None:
                ended.append(EndedPart(watch.partition, watch.index, watch.part, end))
        self._tell(message.shard, ended)

    def _ended_or_watched(self, name: WatchName, watch: JobWatch) -> PartEnd | None:
        """Return how a job has ended. None: its end is told when it comes, or the leader must ask again."""
        wanted, asked = watch.wanted, AskJob(watch.wanted.ref, watch.group)
        topic = self._ledger.topics.get(topic_id_of(wanted.ref.partition))
        try:
            if topic is not None and topic.name != wanted.topic:
                raise BadRequest(f"the topic of its partition is not {wanted.topic}")
            info = self._info(asked)
        except Busy:
            return None
        except GossipqError as error:
            return _unknown(wanted.ref, error)
        if info.state in ENDED:
            return _end_of(info)
        if len(self._watches) < limits.JOB_WATCHES_MAX:
            limit_ms = self._desk.boot_ms + WATCH_MS
            waiter = JobWait(Request(asked), info.ref.partition, _place(info.ref), limit_ms, name)
            self._watches[name] = waiter
            self._add(waiter)
        return None

    def _tell(self, shard: ShardId, ended: list[EndedPart]) -> None:
        self._desk.tell(shard, JobsEnded(self._desk.shard, self._desk.replica.hard.term, ended))

    def _info(self, message: AskJob) -> JobInfo:
        """Return the state of a job, with its progress. Raises UnknownRecord, UnknownTopic, BadRequest."""
        info = self._bare_info(message)
        topic_id = topic_id_of(info.ref.partition)
        group = self._ledger.group(topic_id, info.group) if info.ref.offset >= 0 else None
        if group is None:
            return info
        row = self._ledger.results.progress(info.ref.partition, info.ref.offset, group.id)
        if row is None:
            return info
        return msgspec.structs.replace(info, done=row.done, text=row.text, progress_ms=row.time_ms)

    def _bare_info(self, message: AskJob) -> JobInfo:
        """Return the state of a job. Raises UnknownRecord, UnknownTopic, BadRequest."""
        ref, results = message.ref, self._ledger.results
        if ref.partition not in self._ledger.partitions:
            raise self._topics.unknown(ref.partition)
        within("index", ref.index, 0, limits.NUMBER_MAX)
        within("record", ref.record, 0, limits.NUMBER_MAX)
        offset = ref.offset
        if offset < 0 and ref.index and not ref.id_hash:
            known = results.offset_of(ref.partition, ref.index, ref.record)
            offset = -1 if known is None else known
        named = Named(ref.partition, offset, ref.index, ref.record)
        if offset < 0 or ref.id_hash or offset >= self._ledger.partitions[ref.partition].next:
            named = find(self._ledger, ref)
        if named.offset >= 0:
            row = self._result(named, message.group)
            if row is not None:
                return self._ended(named, row)
        return self._job(named, self._standing(named, message.group))

    def _result(self, named: Named, group: str) -> ResultRow | None:
        """Return the result of a record, unless its time is over. Raises BadRequest if several groups have
        one and none is named."""
        rows = [
            row
            for row in self._ledger.results.of(named.partition, named.offset).values()
            if group in ("", row.group) and row.end_ms > self._desk.leader_ms
        ]
        if len(rows) > 1:
            raise _several([row.group for row in rows])
        if not rows or self._is_open(named, rows[0].group):
            return None
        return rows[0]

    def _is_open(self, named: Named, group: str) -> bool:
        """True if an operator requeued a record that has a result."""
        return any(
            self._ledger.groups[group_id].name == group
            and (
                (cursor.exceptional and cursor.exceptions.at(named.offset) is not None)
                or (cursor.state.dead and cursor.dead.at(named.offset) is not None)
            )
            for group_id, cursor in self._ledger.cursors.get(named.partition, {}).items()
        )

    def _ended(self, named: Named, row: ResultRow) -> JobInfo:
        return JobInfo(
            ref=named.ref,
            group=row.group,
            state="succeeded",
            because=f"{row.consumer} was done with it",
            consumer=row.consumer,
            time_ms=row.time_ms,
            attempt=row.attempt,
            kind=row.kind,
            value=row.value,
            kept_ms=row.end_ms - self._desk.leader_ms,
        )

    def _standing(self, named: Named, group: str) -> Standing:
        standings = self._explaining.standings(named, group)
        if len(standings) > 1:  # a group that began behind the record never gets it
            standings = [each for each in standings if each.state != "skipped"] or standings[:1]
        if group:
            standings = [each for each in standings if each.group in (group, "")] or standings
        if len(standings) > 1:
            raise _several([each.group for each in standings])
        return standings[0]

    def _job(self, named: Named, standing: Standing) -> JobInfo:
        state, because, time_ms = STATES[standing.state], standing.because, standing.time_ms
        if standing.state == "in_flight":
            time_ms = self._since_ms(named, standing.group)
        elif standing.state == "dead":
            because = self._death(named, standing.group)
            state = "expired" if because == EXPIRED else state
        elif standing.state == "voided" and not self._is_void(named):
            state = "failed"  # its dead letter was purged
        return JobInfo(
            ref=named.ref,
            group=standing.group,
            state=state,
            because=because,
            consumer=standing.consumer,
            time_ms=time_ms,
            attempt=standing.attempts,
            failures=standing.failures,
        )

    def _is_void(self, named: Named) -> bool:
        return named.offset < 0 or self._ledger.is_void(named.partition, named.offset)

    def _death(self, named: Named, group: str) -> str:
        """Return the error of a dead letter, or the reason of its death."""
        for group_id, cursor in self._ledger.cursors[named.partition].items():
            dead = cursor.dead.at(named.offset)
            if dead is not None and self._ledger.groups[group_id].name == group:
                return dead.row.error or dead.row.reason
        return ""

    def _since_ms(self, named: Named, group: str) -> int:
        """Return the leader time since which a consumer has a record."""
        view = self._explaining.view_of(named.partition, group)
        lease = view.window.at(named.offset) if view is not None else None
        if not isinstance(lease, Lease):
            return 0
        return self._desk.leader_ms - (self._desk.boot_ms - lease.since_ms)

    # --- what ends a wait -----------------------------------------------------------------------------------

    def applied(self, kind: int, payload: Any) -> None:
        """An entry is applied: answer the requests whose jobs it ended. Called only if requests wait."""
        for partition, place in list(self._places(kind, payload)):
            for waiter in list(self.waiters.get(partition, {}).get(place, ())):
                self._look(waiter)

    def left(self, partition: PartitionKey, offset: Offset) -> None:
        """Another record took the unique name of this one, which is void now."""
        for waiter in list(self.waiters.get(partition, {}).get((offset, 0, 0), ())):
            self._look(waiter)

    def _look(self, waiter: JobWait, over: bool = False) -> None:
        """Answer a waiter if its job has ended, or its time is over."""
        try:
            info = self._info(waiter.request.message)
        except GossipqError as error:  # for example, the topic was removed
            self._forget(waiter)
            if waiter.watch is None:
                self._desk.refuse(waiter.request, error)
            else:
                self._tell_end(waiter.watch, _unknown(waiter.request.message.ref, error))
            return
        if over or _is_news(waiter.request.message, info):
            self._forget(waiter)
            if waiter.watch is None:
                self._desk.reply(waiter.request, Job(info))
            elif info.state in ENDED:
                self._tell_end(waiter.watch, _end_of(info))
        elif info.ref.offset >= 0 > waiter.place[0]:  # it is due now, and has an offset
            self._forget(waiter)
            moved = msgspec.structs.replace(waiter, place=(info.ref.offset, 0, 0))
            if waiter.watch is not None:
                self._watches[waiter.watch] = moved
            self._add(moved)

    def _tell_end(self, watch: WatchName, end: PartEnd) -> None:
        shard, partition, index, part = watch
        self._tell(shard, [EndedPart(partition, index, part, end)])

    def _add(self, waiter: JobWait) -> None:
        self.waiters.setdefault(waiter.partition, {}).setdefault(waiter.place, {})[waiter] = None
        self._limits.set(waiter, waiter.limit_ms)

    def _forget(self, waiter: JobWait) -> None:
        places = self.waiters[waiter.partition]
        del places[waiter.place][waiter]
        if not places[waiter.place]:
            del places[waiter.place]
        if not places:
            del self.waiters[waiter.partition]
        self._limits.cancel(waiter)
        if waiter.watch is not None:
            del self._watches[waiter.watch]

    def _places(self, kind: int, payload: Any) -> Iterator[tuple[PartitionKey, JobPlace]]:
        """Yield the places with waiters whose jobs an entry may have changed."""
        if kind in (log.ACK, log.RESULT, log.STEP):
            for partition, first, end in (payload if kind == log.ACK else payload.ack).ranges:
                yield from self._between(partition, first, end)
        elif kind == log.PROGRESS:
            for report in payload.rows:
                yield from self._between(report.partition, report.offset, report.offset + 1)
        elif kind == log.DEAD:
            yield from self._between(payload.partition, payload.first, payload.end)
        elif kind == log.TRIM:
            yield from self._between(payload.partition, 0, payload.first)
        elif kind in (log.VOID, log.EDIT):
            place = (payload.offset, 0, 0) if payload.offset >= 0 else (-1, payload.index, payload.record)
            yield payload.partition, place
        elif kind == log.JOINED:
            yield payload.partition, (-1, payload.index, 0)
        elif kind == log.RELEASE:
            for row in payload.rows:
                yield from self._scheduled(row)
        elif kind in (log.TOPIC, log.REGROUP, log.PURGE):  # rare
            yield from [(partition, each) for partition, places in self.waiters.items() for each in places]

    def _between(
        self, partition: PartitionKey, first: Offset, end: Offset
    ) -> Iterator[tuple[PartitionKey, JobPlace]]:
        places = self.waiters.get(partition)
        if not places:
            return
        # walk the shorter side: an ack can cover 10,000 records, and a shard can have as many waiters
        if end - first <= len(places):
            found = [(offset, 0, 0) for offset in range(first, end) if (offset, 0, 0) in places]
        else:
            found = [place for place in places if first <= place[0] < end]
        for place in found:
            yield partition, place

    def _scheduled(self, row: payloads.ReleaseRow) -> Iterator[tuple[PartitionKey, JobPlace]]:
        places = self.waiters.get(row.partition, {})
        if row.end - row.first <= len(places):
            found = [(-1, row.index, each) for each in range(row.first, row.end)]
        else:
            found = [place for place in places if place[1] == row.index and row.first <= place[2] < row.end]
        for place in found:
            if place in places:
                yield row.partition, place

    # --- time -----------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Boot time of the next answer or pass."""
        end_ms = self._ledger.results.first_end_ms
        due = [self._limits.next()]
        if end_ms is not None and not self._expiring:
            due.append(max(self._expire_ms, self._desk.boot_ms + end_ms - self._desk.leader_ms))
        return min([at for at in due if at is not None], default=None)

    def tick(self) -> None:
        """Answer the requests whose time is over, and log that results go, some of them at a time."""
        for waiter in self._limits.expire(self._desk.boot_ms):
            self._look(waiter, over=True)
        end_ms = self._ledger.results.first_end_ms
        if end_ms is None or end_ms > self._desk.leader_ms or self._expiring:
            return
        if self._desk.boot_ms >= self._expire_ms:
            self._expire_ms, self._expiring = self._desk.boot_ms + AGAIN_MS, True
            payload = payloads.ExpireResults(self._desk.leader_ms, EXPIRED_PER_ENTRY)
            # after a crash the pass begins again, so this entry needs no sync
            index = self._desk.propose(log.EXPIRE_RESULTS, payloads.encode(payload), promise=False)
            self._desk.pending.add(index, self._expired)

    def _expired(self, asker: Asker, index: Index, outcome: Outcome) -> None:
        self._expiring = False


def _is_news(message: AskJob, info: JobInfo) -> bool:
    """True if a request that waits can be answered."""
    return info.state in ENDED or 0 <= message.seen_ms < info.progress_ms


def _place(ref: Ref) -> JobPlace:
    return (ref.offset, 0, 0) if ref.offset >= 0 else (-1, ref.index, ref.record)


def _end_of(info: JobInfo) -> PartEnd:
    """Return the end of a job for the record that waits for it."""
    error = info.because.partition("\n")[0][:BECAUSE_CHARS_MAX] if info.state == "failed" else ""
    return PartEnd(info.state, info.ref, error)


def _unknown(ref: Ref, error: GossipqError) -> PartEnd:
    return PartEnd("unknown", ref, error.message[:BECAUSE_CHARS_MAX])


def _several(groups: list[str]) -> BadRequest:
    return BadRequest("several groups have this record", hint=f"name one: {', '.join(sorted(groups))}")
