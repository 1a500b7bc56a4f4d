"""Questions and repairs of operators, as talks: generators that yield each call they wait
for, and return the result.

A talk is written once for both clients: the sync client and its asyncio twin
only wait for what it yields.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from gossipq import limits
from gossipq.errors import BadRequest, GossipqError, UnknownRecord, UnknownTopic
from gossipq.export_messages import AckRuns, BackedUp, BackUp, ListAcks, ListStates, States
from gossipq.messages import (
    Access,
    AskAccess,
    AskMembers,
    BindTopic,
    Cancel,
    Challenge,
    Confirm,
    DeadLetters,
    Done,
    Edit,
    Explained,
    GroupExplained,
    Identity,
    ListDead,
    Members,
    PurgeDead,
    ReplayDead,
    Requeue,
    Reschedule,
    Resolve,
    SetAccess,
    SetGroup,
    SetMember,
    SetOptions,
    Show,
    Shown,
    Stats,
    StatsReply,
    Subscribe,
    Subscribed,
    Topics,
    Trace,
    Traced,
    Unsubscribe,
    WhoAmI,
    Why,
    WhyGroup,
)
from gossipq.types import (
    ATTEMPTS,
    BACKOFF,
    FLOW_HASH,
    FLOWS,
    KEY_HASH,
    LEASE,
    META_SHARD,
    NODE_SHARD,
    PRIORITY,
    TTL,
    UNIQUE_HASH,
    UNIQUES,
    UNTIL,
    Index,
    Offset,
    PartitionKey,
    partition_key,
    partition_of,
)
from gossipq.values import (
    AccessChange,
    AccessTable,
    AckRun,
    GroupOptions,
    Message,
    Ref,
    Start,
    TopicInfo,
    TraceEvent,
)
from gossipq.wire import batch as wire
from gossipq.wire import proofs
from gossipq_client import answers
from gossipq_client.answers import value_of
from gossipq_client.operations.search import Search
from gossipq_client.operations.stored import DeadLetter, Opened, StoredRecord, dead_letters, stored_record
from gossipq_client.session import Answer, Call, Calls, Flight, Reading, Receipt, Session, receipt_of
from gossipq_client.values import Address, inputs, refs, terms_of

Result = TypeVar("Result")
Talk = Generator[Call | Flight, None, Result]
Position = tuple[str, int]  #: as in Start
Ranges = Sequence[tuple[int, Offset, Offset]]  #: (partition number, first, end)

PROBE_NUMBERS = 1 << 32  #: subscriptions with a higher number only ask for positions
PROOFS_MAX = 4  #: attempts to prove that we know the secret; the leader may change in between
KEPT_BY_EDIT = (KEY_HASH, TTL, LEASE, ATTEMPTS, BACKOFF, FLOW_HASH, PRIORITY, UNIQUE_HASH, UNTIL)


def go_on(talk: Talk[Result]) -> tuple[Call | Flight | None, Result | None]:
    """The next call that a talk waits for, and None; at the end None and its result."""
    try:
        return next(talk), None
    except StopIteration as end:
        return None, end.value


class Found(NamedTuple):
    """An answer, and the topic it came from."""

    info: TopicInfo
    call: Call

    def ref(self, answered: Ref | None, asked: Address) -> str:
        """The record's ref: as in the answer, else as the caller asked for it."""
        if answered is not None:
            return refs.text_of(self.info.name, answered)
        return refs.text(asked.topic, asked.number or 0, asked.offset, asked.entry, asked.record)


class Letters:
    """Dead letters of one partition, page by page. `after` is where the next page
    begins; -1 after the last one.
    """

    def __init__(
        self, calls: Calls, info: TopicInfo, number: int, group: str, values: bool, after: Offset = 0
    ) -> None:
        self._calls, self._info, self._number, self._group, self._values = calls, info, number, group, values
        self.after = after

    def page(self) -> Talk[list[DeadLetter]]:
        request = ListDead(
            partition_key(self._info.id, self._number),
            self._group,
            self.after,
            limits.DEAD_LIST_MAX,
            self._values,
        )
        call = self._calls.ask(request, self._info.shards[self._number])
        yield call
        answer, letters = call.answer(DeadLetters), []
        raws = wire.split(call.frames[0] if call.frames else b"", [row.size for row in answer.letters])
        for row, raw in zip(answer.letters, raws, strict=True):
            letters += dead_letters(self._info.name, row, Opened(raw) if row.size else None)
        self.after = answer.more
        return letters


class Asking:
    def __init__(self, session: Session) -> None:
        self._session, self._calls = session, session.calls

    # --- single questions

    def ask(
        self, message: Message, shard: int, kind: type[Answer], body: bytes | bytearray = b""
    ) -> Talk[Answer]:
        call = self._calls.ask(message, shard, body=body)
        yield call
        return call.answer(kind)

    def topics(self, pattern: str) -> Talk[list[TopicInfo]]:
        """Lists all topics, page by page."""
        found: list[TopicInfo] = []
        page = yield from self.ask(Resolve([pattern]), META_SHARD, Topics)
        while page.more:
            found += page.topics
            page = yield from self.ask(Resolve([pattern], after=page.more), META_SHARD, Topics)
        return found + page.topics

    def _of_workers(
        self, request: Callable[[Any], Message], kind: type[Answer], endpoint: str = ""
    ) -> Talk[list[Answer]]:
        """The answers of each worker that leads a shard, or of the one at `endpoint`; lists come
        page by page. `request` gets the `more` of the last page, at first None. A worker that took
        over meanwhile may have answered twice.
        """
        links = self._session.links
        workers = links.leaders.workers(links.leaderless).items()
        calls = [self._calls.ask(request(None), shard) for place, shard in workers if endpoint in ("", place)]
        found: list[Answer] = []
        while calls:
            yield from calls
            pages = [(call.shard, call.answer(kind)) for call in calls]
            found += [page for _, page in pages]
            follow = [(shard, getattr(page, "more", None)) for shard, page in pages]
            calls = [self._calls.ask(request(more), shard) for shard, more in follow if more]
        return found

    def stats(self, topics: list[str], endpoint: str = "") -> Talk[StatsReply]:
        """Returns each row once."""
        pages = yield from self._of_workers(lambda more: Stats(topics, more or []), StatsReply, endpoint)
        partitions = {row.partition: row for page in pages for row in page.partitions}
        groups = {(row.partition, row.group): row for page in pages for row in page.groups}
        return StatsReply([*partitions.values()], [*groups.values()])

    def topic(self, name: str) -> Talk[TopicInfo]:
        """A topic with partitions; never creates one. Raises NotFound, or
        BadRequest for a virtual topic.
        """
        topics = (yield from self.ask(Resolve([name]), META_SHARD, Topics)).topics if "*" not in name else []
        if not topics:
            raise UnknownTopic(f"no topic {name}", hint="gossipq topic ls")
        if topics[0].config.virtual:
            raise refs.is_virtual(topics[0])
        return topics[0]

    def of_record(
        self,
        asked: Address,
        make: Callable[[Ref], Message],
        kind: type[Message],
        body: bytes | bytearray = b"",
    ) -> Talk[Found]:
        """Asks the partition of a record. A record named by its id is
        looked for in all partitions.
        """
        info = yield from self.topic(asked.topic)
        unknown: GossipqError | None = None
        for number in asked.numbers(len(info.shards)):
            call = self._calls.ask(make(asked.ref(info.id, number)), info.shards[number], body=body)
            yield call
            if not isinstance(call.error, UnknownRecord):
                call.answer(kind)
                return Found(info, call)
            unknown = unknown or call.error
        assert unknown is not None, "every topic has a partition"
        raise unknown

    # --- the roster

    def members(self) -> Talk[Members]:
        return (yield from self.ask(AskMembers(), META_SHARD, Members))

    def set_member(self, name: str, state: str, secret: bytes = b"") -> Talk[Members]:
        return (yield from self._prove(SetMember(name, state), secret, Members))

    def access(self) -> Talk[AccessTable]:
        return (yield from self.ask(AskAccess(), META_SHARD, Access)).table

    def set_access(self, change: AccessChange, secret: bytes = b"") -> Talk[AccessTable]:
        return (yield from self._prove(SetAccess(change), secret, Access)).table

    def whoami(self) -> Talk[Identity]:
        return (yield from self.ask(WhoAmI(), NODE_SHARD, Identity))

    def _prove(
        self, asked: SetMember | SetOptions | SetAccess, secret: bytes, kind: type[Answer]
    ) -> Talk[Answer]:
        request = asked = self._calls.with_key(asked)
        for _ in range(PROOFS_MAX):
            call = self._calls.ask(request, META_SHARD)
            yield call
            if not isinstance(call.reply, Challenge):
                return call.answer(kind)
            if secret:
                token = proofs.token(secret, self._calls.cluster)
                request = proofs.proven(token, call.reply.nonce, asked)
        raise BadRequest(
            "changing the nodes, options and users of a cluster needs its secret"
            if not secret
            else "the cluster has another secret",
            hint="give its --secret-file; a node that was given none made its own: DIR/secret",
        )

    def set_cluster_options(self, options: dict[str, str], secret: bytes = b"") -> Talk[Members]:
        return (yield from self._prove(SetOptions(options), secret, Members))

    # --- explain

    def why(self, asked: Address, group: str) -> "Talk[answers.Explanation]":
        found = yield from self.of_record(asked, lambda ref: Why(ref, group), Explained)
        told = found.call.answer(Explained)
        return value_of(
            answers.Explanation,
            told,
            partition=partition_of(told.ref.partition),
            ref=found.ref(told.ref, asked),
            offset=told.ref.offset,
        )

    def why_group(self, topic: str, group: str) -> "Talk[list[answers.GroupStand]]":
        info, rows = (yield from self.topic(topic)), list[tuple[PartitionKey, str, str, str, int]]()
        for shard, partitions in by_shard(info).items():
            rows += (yield from self.ask(WhyGroup(group, partitions), shard, GroupExplained)).rows
        return answers.group_stands(rows)

    def trace(self, asked: Address, group: str) -> Talk[list[TraceEvent]]:
        found = yield from self.of_record(asked, lambda ref: Trace(ref, group), Traced)
        return found.call.answer(Traced).steps

    def show(self, asked: Address) -> Talk[StoredRecord]:
        found = yield from self.of_record(asked, Show, Shown)
        shown = found.call.answer(Shown)
        return stored_record(found.info.name, shown.ref, shown.time_ms, Opened(found.call.frames[0]))

    # --- mend

    def cancel(self, asked: Address, reason: str, running: bool = False) -> Talk[str]:
        return (yield from self._mend(asked, lambda ref: Cancel(ref, reason, running=running)))

    def reschedule(self, asked: Address, delay_ms: int) -> Talk[str]:
        return (yield from self._mend(asked, lambda ref: Reschedule(ref, delay_ms)))

    def requeue(self, asked: Address, group: str) -> Talk[str]:
        require(group)
        return (yield from self._mend(asked, lambda ref: Requeue(ref, group)))

    def _mend(self, asked: Address, make: Callable[[Ref], Message]) -> Talk[str]:
        found = yield from self.of_record(asked, make, Done)
        return found.ref(found.call.answer(Done).ref, asked)

    def edit(self, asked: Address, value: bytes | None, headers: bytes | None) -> Talk[Receipt]:
        """The record keeps its key, route and policy, but not its id, which
        belongs to the old record.
        """
        found = yield from self.of_record(asked, Show, Shown)
        shown, opened = found.call.answer(Shown), Opened(found.call.frames[0])
        key, kept = opened.key(0), opened.header_bytes(0) if headers is None else headers
        columns = {bit: column for bit in KEPT_BY_EDIT if (column := opened.batch.fixed(bit)) is not None}
        body = wire.seal(
            [opened.values[0] if value is None else value],
            publish_ms=self._session.links.wall_ms,
            route=opened.batch.route,
            keys=None if key is None else [key],
            headers=[kept] if kept else None,
            flows=opened.batch.column(FLOWS),
            uniques=opened.batch.column(UNIQUES),
            fixed=columns,
        )
        number, name = partition_of(shown.ref.partition), found.info.name
        call = self._calls.ask(Edit(shown.ref), found.info.shards[number], body=body)
        yield call
        confirm = call.answer(Confirm)
        (_, offset, copies, duplicate), runs = confirm.rows[0], dict(confirm.runs).get(call.request_id)
        run = runs[0] if runs else None
        ref = (
            refs.text(name, number, offset, run.index, run.record) if run else refs.text(name, number, offset)
        )
        return Receipt(name, number, offset, ref, copies, duplicate)

    # --- dead letters

    def dead_letters(
        self, topic: str, group: str, values: bool, partition: int | None, start: Offset
    ) -> Talk[list[Letters]]:
        """Dead letters for each partition. Raises NotFound, BadRequest."""
        info = yield from self.topic(topic)
        first, last = inputs.whole(start, "start", 0, inputs.OFFSET_END - 1), len(info.shards) - 1
        numbers = range(last + 1) if partition is None else [inputs.whole(partition, "partition", 0, last)]
        return [Letters(self._calls, info, number, group, values, first) for number in numbers]

    def replay_dead(
        self, topic: str, group: str, ranges: Ranges | None, to: str | None, dry_run: bool
    ) -> Talk[int]:
        if to is not None:
            yield from self.topic(to)
            if not dry_run:
                return (yield from self._move_dead(topic, group, ranges, to))
        return (yield from self._of_dead(ReplayDead, topic, group, ranges, dry_run))

    def purge_dead(self, topic: str, group: str, ranges: Ranges | None, dry_run: bool) -> Talk[int]:
        return (yield from self._of_dead(PurgeDead, topic, group, ranges, dry_run))

    def _of_dead(
        self, kind: type[ReplayDead | PurgeDead], topic: str, group: str, ranges: Ranges | None, dry_run: bool
    ) -> Talk[int]:
        require(group)
        info = yield from self.topic(topic)
        count = 0
        for number, pairs in _by_partition(info, ranges).items():
            request = kind(partition_key(info.id, number), group, pairs, dry_run)
            count += (yield from self.ask(request, info.shards[number], Done)).count
        return count

    def _move_dead(self, topic: str, group: str, ranges: Ranges | None, to: str) -> Talk[int]:
        """Publishes dead letters to another topic, then purges them. The id of each names its
        old place, so that a letter which is published but not yet purged is not published
        twice. They do not expire again.
        """
        require(group)
        info, target = (yield from self.topic(topic)), (yield from self.topic(to))
        count = 0
        for number, pairs in _by_partition(info, ranges).items():
            letters = Letters(
                self._calls, info, number, group, True, min((first for first, _ in pairs), default=0)
            )
            while letters.after >= 0:
                page = yield from letters.page()
                meant = [
                    letter for letter in page if not pairs or any(a <= letter.offset < b for a, b in pairs)
                ]
                yield from self._publish_letters(target, meant)
                moved = [(letter.offset, letter.offset + 1) for letter in meant]
                if moved:
                    request = PurgeDead(partition_key(info.id, number), group, moved)
                    count += (yield from self.ask(request, info.shards[number], Done)).count
        return count

    def _publish_letters(self, target: TopicInfo, letters: list[DeadLetter]) -> Talk[None]:
        """Raises the error of the first letter that is not confirmed."""
        publishing = self._session.publishing
        topic, flights = publishing.learn(target), []
        for letter in letters:
            name = f"{letter.ref}@{letter.group}".encode()
            writer = topic.writer(letter.key if letter.key is not None else name, None)
            record = (
                letter.value,
                letter.key,
                letter.header_bytes,
                letter.route.encode(),
                "stored",
            )
            terms = terms_of(letter.own_options, name)._replace(ttl_ms=0)
            flights.append(publishing.append(writer, *record, terms)[0])
        for flight in dict.fromkeys(flights):
            yield flight
        for flight in flights:
            receipt_of(flight, 0)

    # --- search

    def cover(self, pattern: str, search: Search) -> Talk[None]:
        """Tells a search between which offsets it looks. Raises NotFound."""
        topics = yield from self.topics(pattern)
        infos = [info for info in topics if not info.config.virtual]
        if not infos:
            yield from self.topic(pattern)
        places = {
            partition_key(info.id, number): (info.name, number)
            for info in infos
            for number in range(len(info.shards))
        }
        shards = by_shard(*infos)
        for partition, (first, end) in (yield from self._bounds(shards, search.start, search.end)).items():
            search.cover(places[partition], first, end)
        search.report()

    def reading(
        self, name: str, start: Position, stop: Position | None, partition: int | None
    ) -> Talk[Reading]:
        """The records between two positions of a topic, ready to be read. Raises NotFound,
        BadRequest.
        """
        info = yield from self.topic(name)
        if partition is not None:
            number = inputs.whole(partition, "partition", 0, len(info.shards) - 1)
            shards = {info.shards[number]: [partition_key(info.id, number)]}
        else:
            shards = by_shard(info)
        return Reading(self._session.consuming, info, (yield from self._bounds(shards, start, stop)))

    def _bounds(
        self, shards: dict[int, list[PartitionKey]], start: Position, stop: Position | None
    ) -> Talk[dict[PartitionKey, tuple[Offset, Offset]]]:
        """(first, end) of each partition between two positions, found by asking where readers would
        start. Without `stop` the end is the current one.
        """
        firsts, stops = (yield from self._positions(shards, start)), {}
        if stop is not None and stop[0] == "time":
            stops = yield from self._positions(shards, stop)
        last = stop[1] if stop is not None and not stops else None
        found = {}
        for partition, (first, end) in firsts.items():
            found[partition] = (
                first,
                min(end, stops[partition][0] if stops else end if last is None else last),
            )
        return found

    def _positions(
        self, shards: dict[int, list[PartitionKey]], start: Position
    ) -> "Talk[dict[PartitionKey, answers.Span]]":
        """For each partition, where a reader would start, and one past the last offset. All
        shards are asked at once.
        """
        number = PROBE_NUMBERS + self._session.links.next_id()
        asked = []
        for shard, partitions in shards.items():
            request = Subscribe(number, "", [Start(partition, *start) for partition in partitions], 0, 0)
            asked.append(self._calls.ask(request, shard))
        yield from asked
        subscribed = [call for call in asked if call.error is None]
        yield from [self._calls.ask(Unsubscribe(number), call.shard) for call in subscribed]
        return {
            partition: answers.Span(first, end)
            for call in asked
            for partition, first, end in call.answer(Subscribed).ends
        }

    # --- export

    def spans(
        self, infos: Sequence[TopicInfo], start: Position = ("first", 0)
    ) -> "Talk[dict[PartitionKey, answers.Span]]":
        """For each partition of the topics, where a reader would start, and one past the
        last offset. Only leaders that are certainly still leaders answer. Raises
        NotFound.
        """
        return (yield from self._positions(by_shard(*infos), start))

    def acks(self, info: TopicInfo, number: int, since: Index) -> Talk[tuple[Index, list[AckRun]]]:
        """Acks of a partition in entries from `since` on, and the entry up
        to which they are complete.
        """
        request, runs, last = ListAcks(partition_key(info.id, number), since), [], -1
        while True:
            page = yield from self.ask(request, info.shards[number], AckRuns)
            last = page.index if last < 0 else last
            runs += [run for run in page.runs if run.index <= last]
            if page.more_group_id < 0:
                return last, runs
            request = ListAcks(request.partition, since, page.more_group_id, page.more_offset)

    def states(self, info: TopicInfo, number: int, most: int = 0) -> Talk[list[States]]:
        """The state of all records of a partition, page by page; with `most`, only the first pages."""
        request, pages = ListStates(partition_key(info.id, number)), []
        while True:
            pages.append((yield from self.ask(request, info.shards[number], States)))
            if pages[-1].more_group_id < 0 or len(pages) == most:
                return pages
            request = ListStates(request.partition, pages[-1].more_group_id, pages[-1].more_offset)

    def backup_part(self, shard: int, request: BackUp) -> Talk[tuple[BackedUp, bytes]]:
        """A part of a shard's backup point, from its leader."""
        call = self._calls.ask(request, shard)
        yield call
        return call.answer(BackedUp), b"".join(call.frames)

    # --- groups and virtual topics

    def set_group(self, topic: str, group: str, options: GroupOptions) -> Talk[None]:
        """Changes the group in every shard of the topic. Raises BadRequest if
        the group does not exist.
        """
        require(group)
        info = yield from self.topic(topic)
        for shard in by_shard(info):
            yield from self.ask(SetGroup(info.id, group, options), shard, Done)

    def bind_topic(self, name: str, targets: Sequence[str]) -> Talk[TopicInfo]:
        if isinstance(targets, str) or not targets or name in targets or len(set(targets)) < len(targets):
            raise BadRequest(
                f"virtual topic {name!r} of {targets!r}",
                hint='name other topics, each once, as in ["a", "b"]',
            )
        topics = (yield from self.ask(BindTopic(name, list(targets)), META_SHARD, Topics)).topics
        (bound,) = (info for info in topics if info.name == name)  # the others were created with it
        self._session.publishing.learn(bound)
        return bound


def require(group: str) -> None:
    if not group:
        raise BadRequest("no group named", hint="gossipq group ls TOPIC")


def by_shard(*infos: TopicInfo) -> dict[int, list[PartitionKey]]:
    """The partitions of topics, by shard."""
    shards: dict[int, list[PartitionKey]] = {}
    for info in infos:
        for number, shard in enumerate(info.shards):
            shards.setdefault(shard, []).append(partition_key(info.id, number))
    return shards


def _by_partition(info: TopicInfo, ranges: Ranges | None) -> dict[int, list[tuple[Offset, Offset]]]:
    """Ranges of each named partition; None means all of all partitions. Raises BadRequest."""
    if ranges is None:
        return {number: [] for number in range(len(info.shards))}
    found: dict[int, list[tuple[Offset, Offset]]] = {}
    for number, first, end in ranges:
        if not 0 <= number < len(info.shards) or not 0 <= first < end:
            raise BadRequest(
                f"range {first}..{end} of partition {number}",
                hint=f"partitions are 0 to {len(info.shards) - 1}; the end is greater than the first",
            )
        found.setdefault(number, []).append((first, end))
    return found
