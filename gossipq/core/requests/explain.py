"""Explains why a record is where it is: WHY, WHY_GROUP, TRACE, SHOW, LIST_DEAD. Reads the ledger
and dispatch, and changes nothing.
"""

from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge
from itertools import chain, groupby
from math import ceil
from operator import itemgetter
from typing import NamedTuple

import msgspec

from gossipq import limits, next_steps
from gossipq.core.delivery import (
    AGED_SHARE,
    NUMBER_MAX,
    Dispatch,
    Lease,
    MovingRecords,
    PartitionView,
    Place,
    WaitingRecords,
    expiry_times,
    place_of,
    within,
)
from gossipq.core.desk import Desk, Request
from gossipq.core.ledger import (
    HASH,
    Cursor,
    DeadRow,
    ExceptionRow,
    JoinName,
    JoinRow,
    Ledger,
    ScheduledRow,
    TraceRow,
    VoidRow,
    decode_void,
    key_of,
    life,
    records,
)
from gossipq.core.requests.idle import IdleGroups
from gossipq.core.requests.survey import SurveyRequests
from gossipq.core.requests.topics_here import TopicsHere
from gossipq.errors import UnknownRecord
from gossipq.messages import (
    DeadLetters,
    Explained,
    GroupExplained,
    ListDead,
    Show,
    Shown,
    Trace,
    Traced,
    Why,
    WhyGroup,
)
from gossipq.texts import many, span
from gossipq.types import (
    DELAY,
    FLOW_HASH,
    FLOWS,
    UNIQUE_HASH,
    UNIQUES,
    UNTIL,
    Index,
    Offset,
    PartitionKey,
    partition_of,
    topic_id_of,
)
from gossipq.types import PRIORITY as PRIORITY_COLUMN
from gossipq.values import DeadLetter, Message, Ref, Standing, TraceEvent

TRACE_ROWS_MAX = 1_024
EVENT_BYTES = 64  #: size of a step or a dead letter in an answer, without its texts
SESSION_DIGITS = 8  #: of the name of a session, as `gossipq client ls` shows it
HOLDERS_MAX = 3  #: most consumers that an answer names
#: a row that covers an offset begins at most this far before it
TRACE_BACK = limits.BATCH_RECORDS_HARD_MAX

_decode_trace = msgspec.msgpack.Decoder(TraceRow).decode


def says(state: str, **words: str) -> str:
    """The reason for a record's state, in the words of the table of states."""
    return life.STATES[state].says.format(**words)


class Named(NamedTuple):
    """A record that a request named: by its offset, or scheduled as record `record` of an entry."""

    partition: PartitionKey
    offset: Offset
    entry: Index = 0
    record: int = 0

    @property
    def ref(self) -> Ref:
        return Ref(self.partition, self.offset, self.entry, self.record)


class LimitInForce(NamedTuple):
    """A limit that keeps a record back."""

    because: str
    option: str  #: of `gossipq group set`
    off: str  #: value of that option that ends the limit


def find(ledger: Ledger, ref: Ref) -> Named:
    """The record of a ref: it has an offset by now, or is scheduled, or waits for jobs, or was voided before.
    Raises UnknownRecord, BadRequest.
    """
    index, record, offset = ref.index, ref.record, ref.offset
    within("index", index, 0, NUMBER_MAX)
    within("record", record, 0, NUMBER_MAX)
    within("offset", offset, -1, NUMBER_MAX)
    within("id_hash", ref.id_hash, 0, 2**64 - 1)
    if ref.id_hash:
        known = ledger.dedup.find(ref.partition, ref.id_hash)
        if known is None:
            raise UnknownRecord(
                "no record with this id is remembered",
                hint="ids are remembered for `dedup` (10 min by default): use the ref of the record",
            )
        index, record, offset = known.index, known.record, -1
    if offset < 0:
        offset = -1 if (found := ledger.offset_of(ref.partition, index, record)) is None else found
        if offset < 0:
            is_known = (
                ledger.schedule.get(ref.partition, index, record) is not None
                or ledger.void_of(ref.partition, index, record) is not None
                or (record == 0 and JoinName(ref.partition, index) in ledger.joins.rows)
            )
            if not is_known:
                raise UnknownRecord(
                    "no such record is scheduled",
                    hint="it may have become due, or was cancelled and cleaned up: look for it by offset",
                )
            return Named(ref.partition, -1, index, record)
    if not 0 <= offset < ledger.partitions[ref.partition].next:
        end = ledger.partitions[ref.partition].next
        raise UnknownRecord(f"offset {offset} has no record yet", hint=f"offsets below {end} have one")
    return Named(ref.partition, offset, index, record)


def _waits(count: int) -> str:
    return f"{many(count, 'record')} {'waits' if count == 1 else 'wait'}"


def _holders(view: PartitionView) -> str:
    """Names of the consumers that hold records of the group now."""
    names = sorted({lease.consumer for _, _, lease in view.window.leases()})
    return ", ".join(names[:HOLDERS_MAX]) + (
        f" and {len(names) - HOLDERS_MAX} more" if len(names) > HOLDERS_MAX else ""
    )


class ExplainRequests:
    def __init__(
        self, desk: Desk, ledger: Ledger, dispatch: Dispatch, topics: TopicsHere, idle: IdleGroups
    ) -> None:
        self._desk = desk
        self._ledger = ledger
        self._dispatch = dispatch
        self._idle = idle
        self._topics = topics
        self._handlers: dict[type[Message], Callable[[Request], None]] = {
            Why: self._why,
            WhyGroup: self._why_group,
            Trace: self._trace,
            Show: self._show,
            ListDead: self._list_dead,
            **SurveyRequests(desk, ledger, topics).handlers,
        }

    def serve(self, request: Request) -> None:
        """Serve a request. Raises the error with which it must be refused."""
        self._handlers[type(request.message)](request)

    # --- a record -------------------------------------------------------------------------------------------

    def _named(self, ref: Ref) -> Named:
        if ref.partition not in self._ledger.partitions:
            raise self._topics.unknown(ref.partition)
        return find(self._ledger, ref)

    def _text(self, named: Named) -> str:
        """The ref in the form that users write."""
        topic = self._ledger.topics[self._ledger.partitions[named.partition].topic_id]
        return named.ref.text(topic.name)

    def _why(self, request: Request) -> None:
        message: Why = request.message
        named = self._named(message.ref)
        lines: list[str] = []
        if named.offset < 0:
            standings = [self._unplaced(named)]
        else:
            standings, lines = self._placed(named, message.group)
        lines += self._unique(named)
        self._desk.reply(request, Explained(named.ref, standings, lines))

    def _unique(self, named: Named) -> list[str]:
        """Tell the unique name of a record, and whether it holds it."""
        ledger, partition = self._ledger, named.partition
        found = ledger.schedule.get(partition, named.entry, named.record) if named.offset < 0 else None
        place = place_of(ledger, None, partition, named.offset) if named.offset >= 0 else None
        if found is not None and found[1].columns & UNIQUE_HASH:
            index, record = named.entry, named.record
        elif place is not None and place.columns & UNIQUE_HASH:
            index, record = place.entry, place.record
        else:
            return []
        hashes = ledger.opened.column(index, UNIQUE_HASH)
        if not hashes or not hashes[record]:
            return []
        text = ledger.opened.text(index, UNIQUES, record).decode("utf-8", "replace")
        name = HASH.pack(hashes[record])
        if not ledger.uniques.holds(partition, name, (index, record), self._desk.leader_ms):
            return [f"its unique name {text} is free, or another record has it"]
        untils = ledger.opened.column(index, UNTIL)
        if untils and untils[record]:
            return [f"has the unique name {text} for {span(untils[record])} from its publish"]
        return [f"has the unique name {text} until it is done"]

    def _unplaced(self, named: Named) -> Standing:
        """Explains a record without an offset."""
        void = self._ledger.void_of(named.partition, named.entry, named.record)
        if void is not None:
            return self._voided(void)
        join = self._ledger.joins.rows.get(JoinName(named.partition, named.entry))
        if join is not None:
            return self._joining(JoinName(named.partition, named.entry), join)
        found = self._ledger.schedule.get(named.partition, named.entry, named.record)
        assert found is not None, "a record that was found is scheduled or void"
        due_ms, text = self._due_ms(named, found[1]), self._text(named)
        left_ms = due_ms - self._desk.timer_ms
        because, verb = f"it is due in {span(left_ms)}", next_steps.of_record("scheduled", ref=text)
        return Standing("", "scheduled", because, verb, time_ms=self._desk.leader_ms + left_ms)

    def _joining(self, name: JoinName, join: JoinRow) -> Standing:
        """Explains a record that waits for jobs."""
        ends = self._ledger.joins.ends[name]
        open_one = next(part for number, part in enumerate(join.parts) if number not in ends)
        because = f"it waits for jobs: {len(ends)} of {join.count} have ended, "
        because += f"{open_one.ref.text(open_one.topic) or f'one of {open_one.topic}'} has not"
        return Standing("", "scheduled", because, time_ms=join.end_ms)

    def _due_ms(self, named: Named, row: ScheduledRow) -> int:
        delays = None if row.fixed else self._ledger.opened.column(named.entry, DELAY)
        return row.due_ms if delays is None else row.base_ms + delays[named.record]

    def _voided(self, void: VoidRow) -> Standing:
        by, reason = void.by or "an operator", f": {void.reason}" if void.reason else ""
        because = says(life.VOIDED, by=by, reason=reason)
        if void.replaced_by:
            because = f"{by} put another record in its place (entry {void.replaced_by})"
        return Standing("", "voided", because, time_ms=void.time_ms)

    def _placed(self, named: Named, group_name: str) -> tuple[list[Standing], list[str]]:
        if self._ledger.is_void(named.partition, named.offset):
            return self._void_standings(named), []
        return self.standings(named, group_name), self._policies(named, self._group_ids(named, group_name))

    def _group_ids(self, named: Named, group_name: str) -> list[int]:
        """Return the group with this name, or all groups of the partition. Raises BadRequest."""
        ledger, partition = self._ledger, named.partition
        group_ids = list(ledger.cursors.get(partition, {}))
        if not group_name:
            return group_ids
        group = ledger.group(topic_id_of(partition), group_name)
        if group is None or group.id not in group_ids:
            raise ledger.no_cursor(partition, group_name)
        return [group.id]

    def standings(self, named: Named, group_name: str) -> list[Standing]:
        """Return the state of a record for a group, or for each group. Raises BadRequest."""
        ledger, partition, offset = self._ledger, named.partition, named.offset
        if offset < 0:
            return [self._unplaced(named)]
        if ledger.is_void(partition, offset):
            return self._void_standings(named)
        standings = [self._known(named, group_id) for group_id in self._group_ids(named, group_name)]
        if not standings:
            state = "removed" if offset < ledger.partitions[partition].first else "ready"
            because, verb = says(life.REMOVED), ""
            if state == "ready":
                because = "no group reads this partition yet"
                topic = ledger.topics[topic_id_of(partition)].name
                verb = next_steps.of_group("no group", topic=topic)
            standings = [Standing("", state, because, verb)]
        return standings

    def _void_standings(self, named: Named) -> list[Standing]:
        """Explains a void record; some groups may have finished it before."""
        row = self._ledger.state.floor(records.key(b"Z", named.partition, named.offset))
        assert row is not None, "a void has its row"
        void, standings = self._voided(decode_void(row[1])), []
        for group_id in self._ledger.cursors.get(named.partition, {}):
            acked = self._acked(self._ledger.groups[group_id].name, named, group_id)
            name = self._ledger.groups[group_id].name
            standings.append(acked if acked.state == "acked" else msgspec.structs.replace(void, group=name))
        return standings or [void]

    def _policies(self, named: Named, group_ids: list[int]) -> list[str]:
        """The policy of the record, with the origin of each value."""
        place = place_of(self._ledger, None, named.partition, named.offset)
        if place is None:
            return []
        lines = [f"route {place.route.decode('utf-8', 'replace')}"] if place.route else []
        lines += self._flow_lines(place)
        replaced = self._ledger.state.get(records.key(b"F", named.partition, place.entry))
        if replaced is not None:
            offset, index, record = msgspec.msgpack.decode(replaced)
            earlier = self._text(Named(named.partition, offset, index, record))
            is_same = offset < 0 and self._ledger.offset_of(named.partition, index, record) == named.offset
            lines.append(f"was {earlier} while it waited for jobs" if is_same else f"replaces {earlier}")
        for group_id in group_ids:
            view = self._view(group_id, named.partition)
            if view is None:
                continue
            policy = self._dispatch.attempts.policy(view, place)
            backoff = ", ".join(map(span, policy.backoff_ms))
            lines.append(
                f"{view.group.state.name}: lease {span(policy.lease_ms)} ({policy.lease_by}), dead after "
                f"{many(policy.attempts_max, 'failure')} ({policy.attempts_by}), pauses {backoff} "
                f"({policy.backoff_by})"
            )
            left_ms = self._left_ms(named, view)
            if left_ms is not None and left_ms > 0:
                lines.append(f"{view.group.state.name}: expires in {span(left_ms)}")
        return lines

    def _flow_lines(self, place: Place) -> list[str]:
        """The flow and the priority that a record asks for."""
        lines = []
        if place.columns & FLOWS and (flow := self._ledger.opened.text(place.entry, FLOWS, place.record)):
            lines.append(f"flow {flow.decode('utf-8', 'replace')}")
        if place.columns & PRIORITY_COLUMN:
            priorities = self._ledger.opened.column(place.entry, PRIORITY_COLUMN)
            if priorities is not None and priorities[place.record] != limits.PRIORITY:
                lines.append(f"priority {priorities[place.record]}")
        return lines

    def _turn_of(self, view: PartitionView, offset: Offset) -> str:
        """Why a record that may be delivered waits for others, in a group of order "priority" or "fair"."""
        place = place_of(self._ledger, view.cursor, view.partition, offset)
        if view.flows is None or place is None:
            return says(life.OPEN)
        column, at = self._ledger.opened.column, place.record
        hashes = column(place.entry, FLOW_HASH) if place.columns & FLOW_HASH else None
        priorities = column(place.entry, PRIORITY_COLUMN) if place.columns & PRIORITY_COLUMN else None
        priority = limits.PRIORITY if priorities is None else priorities[at]
        higher, others = view.flows.before(priority, hashes[at] if hashes is not None else 0)
        if higher > priority:
            because = f"its priority is {priority}, and records of priority {higher} come first"
            if view.flows.is_aged(priority, self._desk.leader_ms):
                return f"{because}, but one of {AGED_SHARE}, since some of its priority wait too long"
            return because
        if others and view.flows.by_flow:
            flow = self._ledger.opened.text(place.entry, FLOWS, at).decode("utf-8", "replace")
            whose = f"flow {flow}" if flow else "the flow without a name"
            return f"{whose} of priority {priority} takes turns with {many(others, 'other flow')}"
        return f"{says(life.OPEN)}; its priority is {priority}"

    def _limit_of(self, view: PartitionView, offset: Offset) -> LimitInForce | None:
        """Return the limit that keeps a record back that could be delivered; None if none does."""
        group, flows, bounds = view.group, view.flows, view.flow_limits
        now_ms, config = self._dispatch.turn.boot_ms, group.state.config
        if group.limits is not None and group.limits.allowed(group.in_flight, now_ms) <= 0:
            if group.in_flight >= group.limits.most:
                count = many(group.in_flight, "record")
                because = f"the group is at its limit of {count} in flight, at {_holders(view)}"
                return LimitInForce(because, "concurrency", "0")
            left_ms = ceil((group.limits.next_ms or now_ms) - now_ms)
            because = f"it waits for the rate of the group, {span(max(1, left_ms))}"
            return LimitInForce(because, "rate", "none")
        flow, whose = self._flow_at(view, offset)
        if flows is None or bounds is None or flow not in flows.held:
            return None
        if bounds.is_full(flow):
            count = many(config.flow_concurrency, "record")
            because = f"{whose} is at its limit of {count} in flight, at {_holders(view)}"
            return LimitInForce(because, "flow-concurrency", "0")
        because = f"it waits for the rate of {whose}, {span(max(1, ceil(bounds.next_ms(flow) - now_ms)))}"
        return LimitInForce(because, "flow-rate", "none")

    def _flow_at(self, view: PartitionView, offset: Offset) -> tuple[int, str]:
        """Return the hash of a record's flow, and the flow in words."""
        place = place_of(self._ledger, view.cursor, view.partition, offset)
        hashes = None
        if place is not None and place.columns & FLOW_HASH:
            hashes = self._ledger.opened.column(place.entry, FLOW_HASH)
        if place is None or hashes is None or not hashes[place.record]:
            return 0, "the flow without a name"
        name = self._ledger.opened.text(place.entry, FLOWS, place.record)
        return hashes[place.record], f"flow {name.decode('utf-8', 'replace')}"

    def _pause_of(self, view: PartitionView, offset: Offset) -> str:
        """Say that the flow of a record is paused; "" if it is not."""
        if view.flow_limits is None or not view.flow_limits.paused:
            return ""
        flow, whose = self._flow_at(view, offset)
        left_ms = view.flow_limits.paused_ms(flow, self._dispatch.turn.boot_ms)
        if not left_ms:
            return ""
        row = view.cursor.pauses.get(flow)
        by = f" by {row.consumer}{f': {row.reason}' if row.reason else ''}" if row is not None else ""
        return f"{whose} is paused for another {span(ceil(left_ms))}{by}"

    def _left_ms(self, named: Named, view: PartitionView) -> int | None:
        """Time until a record of a group expires; negative if it has expired. None: it does not
        expire, or the group has finished it.
        """
        cursor, first, end = view.cursor, named.offset, named.offset + 1
        row = cursor.exceptions.at(first) if cursor.exceptional else None
        if row is None and not cursor.fresh(first, end):
            return None
        place = place_of(self._ledger, cursor, named.partition, first)
        if place is None:
            return None
        state = view.window.at(first)
        tried = 0 if state is None or isinstance(state, MovingRecords) else state.tries
        expiry_ms = expiry_times(self._ledger, view, place, 1, tried)[0]
        return expiry_ms - self._desk.leader_ms if expiry_ms else None

    def view_of(self, partition: PartitionKey, group_name: str) -> PartitionView | None:
        """Return what dispatch knows of a partition for the group with this name."""
        group = self._ledger.group(topic_id_of(partition), group_name)
        return None if group is None else self._view(group.id, partition)

    def _view(self, group_id: int, partition: PartitionKey) -> PartitionView | None:
        group = self._dispatch.groups.get(group_id)
        return group.views.get(partition) if group else None

    def _known(self, named: Named, group_id: int) -> Standing:
        """The state of a record in a group, including that it has expired there."""
        standing, view = self._standing(named, group_id), self._view(group_id, named.partition)
        left_ms = None if view is None else self._left_ms(named, view)
        if left_ms is None or left_ms > 0:
            return standing
        drops = self._ledger.config(named.partition).expire == "drop"
        fate = "is dropped" if drops else "becomes a dead letter"
        if standing.state == "in_flight":
            because = f"{standing.because}; it has expired: without an ack it {fate}"
            return msgspec.structs.replace(standing, because=because)
        because = f"it has expired {span(-left_ms)} ago, and {fate} now"
        return msgspec.structs.replace(standing, because=because, next="")

    def _standing(self, named: Named, group_id: int) -> Standing:
        partition, offset, text = named.partition, named.offset, self._text(named)
        name = self._ledger.groups[group_id].name
        cursor, view = self._ledger.cursors[partition][group_id], self._view(group_id, partition)
        lease = view.window.at(offset) if view else None
        if isinstance(lease, Lease):
            left_ms = lease.deadline_ms - self._dispatch.turn.boot_ms
            because = f"{lease.consumer} has it for another {span(left_ms)}, attempt {lease.attempt}"
            ends_ms = self._desk.leader_ms + left_ms
            return Standing(
                group=name,
                state="in_flight",
                because=because,
                next=next_steps.of_record("in_flight", session=lease.session.hex()[:SESSION_DIGITS]),
                consumer=lease.consumer,
                time_ms=ends_ms,
                attempts=lease.attempt,
                failures=self._failures(cursor, offset),
            )
        if cursor.exceptional and (found := cursor.exceptions.at(offset)) is not None:
            return self._waiting(name, text, found.row, cursor, view)
        dead = cursor.dead.at(offset)
        if dead is not None:
            row = dead.row
            because = says(life.DEAD, reason=row.reason, error=f": {row.error}" if row.error else "")
            topic, number, _ = text.rsplit("/", 2)
            verb = next_steps.of_record("dead", topic=topic, group=name, at=f"{number}/{offset}")
            return Standing(
                group=name,
                state="dead",
                because=because,
                next=verb,
                consumer="",
                time_ms=row.time_ms,
                attempts=row.attempts,
                failures=row.failures,
            )
        if cursor.fresh(offset, offset + 1):
            return self._fresh(name, named, cursor, view)
        return self._acked(name, named, group_id)

    @staticmethod
    def _failures(cursor: Cursor, offset: Offset) -> int:
        found = cursor.exceptions.at(offset) if cursor.exceptional else None
        return found.row.failures if found else 0

    def _waiting(
        self, name: str, text: str, row: ExceptionRow, cursor: Cursor, view: PartitionView | None
    ) -> Standing:
        topic = text.rsplit("/", 2)[0]

        def standing(state: str, because: str, verb: str, due_ms: int = 0) -> Standing:
            return Standing(
                group=name,
                state=state,
                because=because,
                next=verb,
                time_ms=due_ms,
                attempts=row.attempts,
                failures=row.failures,
            )

        if row.lane:
            because, verb = self._parked(topic, name, text, view, cursor, row.lane)
            return standing("parked", because, verb)
        left_ms = row.due_ms - self._desk.timer_ms
        last = f": {row.history[-1].reason}" if row.history and row.history[-1].reason else ""
        verb = next_steps.of_record("retrying", ref=text, group=name)
        if left_ms > 0:
            times, left = many(row.failures, "time"), span(left_ms)
            because = says(life.RETRYING, times=times, left=left, last=last)
            return standing("retrying", because, verb, due_ms=self._desk.leader_ms + left_ms)
        _, because, verb = self._stands(topic, name, view, cursor, cursor.state.cursor)
        failed = f"; it failed {many(row.failures, 'time')}{last}" if row.failures else ""
        return standing("ready", because + failed, verb)

    def _parked(
        self, topic: str, name: str, text: str, view: PartitionView | None, cursor: Cursor, lane: bytes
    ) -> tuple[str, str]:
        """Explain a record that waits for its key or its route: (reason, next command). `text` is the ref of
        a record on disk, which can be requeued; "" if it waits in memory.
        """
        because = self._lane(lane)
        state, more, verb = self._stands(topic, name, view, cursor, cursor.state.cursor)
        if state in ("paused", "window full"):  # no record moves before that
            return f"{because}; {more}", verb
        if not key_of(lane):
            route = lane[1:].decode("utf-8", "replace")
            wanted = "unmatched" if route else "no consumer"  # no pattern matches an empty route alone
            return because, next_steps.of_group(wanted, topic=topic, group=name, route=route)
        if text:
            return because, next_steps.of_record("parked", ref=text, group=name)
        session, first = (b"", -1) if view is None or view.keys is None else view.keys.blocker(key_of(lane))
        if session and view is not None:
            holder = next(
                (lease.consumer for _, _, lease in view.window.leases() if lease.session == session), ""
            )
            verb = next_steps.of_record("in_flight", session=session.hex()[:SESSION_DIGITS])
            return f"{because}: {holder} has it", verb
        if first >= 0:
            first_text = f"{topic}/{partition_of(cursor.state.partition)}/{first}"
            return because, next_steps.of_record("retrying", ref=first_text, group=name)
        return because, verb

    @staticmethod
    def _lane(lane: bytes) -> str:
        if key_of(lane):
            return says(life.PARKED)
        return says(life.UNMATCHED, route=lane[1:].decode("utf-8", "replace") or "(none)")

    def _fresh(self, name: str, named: Named, cursor: Cursor, view: PartitionView | None) -> Standing:
        topic = self._text(named).rsplit("/", 2)[0]
        state = view.window.at(named.offset) if view else None
        if isinstance(state, WaitingRecords):
            because, verb = self._parked(topic, name, "", view, cursor, state.lane)
            return Standing(name, "parked", because, verb)
        _, because, verb = self._stands(topic, name, view, cursor, named.offset)
        return Standing(name, "ready", because, verb)

    def _stands(
        self, topic: str, name: str, view: PartitionView | None, cursor: Cursor, offset: Offset
    ) -> tuple[str, str, str]:
        """(state, because, next command) of a record that is not leased, or of a
        group that does not move.
        """
        group = view.group if view else None
        config = self._ledger.groups[cursor.state.group_id].config
        step = partial(next_steps.of_group, topic=topic, group=name)
        wider = step("window full", count=min(2 * config.in_flight_max, limits.IN_FLIGHT_HARD_MAX))
        if config.paused:
            return "paused", "the group is paused", step("paused")
        if group is None or not any(view in member.views for member in group.members.values()):
            return "no consumer", "the group has no consumers", step("no consumer")
        if view is not None and (because := self._pause_of(view, offset)):
            return "moving", because, step("moving")
        members = group.served_members()
        if not any(member.can_take for member in members):
            because = "all consumers are busy: they hold as many records as they asked for"
            if any(member.has_credit for member in members):
                because = (
                    "all consumers are busy: they hold as many records that they have not started as they may"
                )
            if view is not None and view.flows is not None:
                because = f"{because}; {self._turn_of(view, offset)}"
            return "no credit", because, step("no credit")
        if view is not None and view.is_full:
            because = f"the group is at its in_flight_max of {many(config.in_flight_max, 'record')} in flight"
            return "window full", because, wider
        if offset >= cursor.window_end(config.in_flight_max) and (view is None or view.flows is None):
            because = (
                f"the window of {many(config.in_flight_max, 'record')} is full: the first that is not done "
                f"is {cursor.state.cursor}"
            )
            return "window full", because, wider
        if view is None or view.flows is None:
            return "moving", says(life.OPEN), step("moving")
        if (limit := self._limit_of(view, offset)) is not None:
            return "limited", limit.because, step("limited", limit=limit.option, off=limit.off)
        return "moving", self._turn_of(view, offset), step("moving")

    def _acked(self, name: str, named: Named, group_id: int) -> Standing:
        state = self._ledger.partitions[named.partition]
        if named.offset < state.first:
            return Standing(name, "removed", says(life.REMOVED))
        cursor = self._ledger.cursors[named.partition][group_id]
        found = cursor.acks.last(named.offset)
        if found is None or (ack := found[1]).end <= named.offset:
            if named.offset < cursor.state.start:
                text = self._text(named)
                verb = next_steps.of_record(
                    "skipped", topic=text.rsplit("/", 2)[0], group=name, offset=named.offset
                )
                return Standing(name, "skipped", "the group starts at a later offset", verb)
            if not cursor.state.dropped:  # nothing else is passed and leaves no row
                return Standing(name, "voided", "it was purged as a dead letter")
            return Standing(name, "removed", says(life.DROPPED))
        verb = next_steps.of_record("acked", ref=self._text(named), group=name)
        because = says(life.ACKED, consumer=ack.consumer)
        return Standing(
            group=name, state="acked", because=because, next=verb, consumer=ack.consumer, time_ms=ack.time_ms
        )

    # --- a group --------------------------------------------------------------------------------------------

    def _why_group(self, request: Request) -> None:
        message: WhyGroup = request.message
        rows = []
        for partition in dict.fromkeys(message.partitions):
            if partition not in self._ledger.partitions:
                raise self._topics.unknown(partition)
            group = self._ledger.group(topic_id_of(partition), message.group)
            cursor = self._ledger.cursors.get(partition, {}).get(group.id) if group else None
            if group is not None and cursor is not None:
                state, because, verb, since_ms = self._group_row(partition, group.id, cursor)
                if goes_ms := self._idle.goes_ms(group.id):
                    because += f"; nobody uses the group, so it goes in {span(goes_ms)}"
                rows.append((partition, state, because, verb, since_ms))
        self._desk.reply(request, GroupExplained(rows))

    def _group_row(self, partition: PartitionKey, group_id: int, cursor: Cursor) -> tuple[str, str, str, int]:
        """(state, because, next command, since)."""
        ledger, view = self._ledger, self._view(group_id, partition)
        state, name = ledger.partitions[partition], ledger.groups[group_id].name
        topic = ledger.topics[state.topic_id].name
        acked = cursor.acks.last(cursor.state.cursor)
        since_ms = acked[1].time_ms if acked is not None else 0
        behind = cursor.state.cursor + cursor.passed.total() < state.next
        config = ledger.groups[group_id].config
        if config.paused:
            return (*self._stands(topic, name, view, cursor, cursor.state.cursor), 0)
        if not behind and not cursor.exceptional:
            return "idle", "everything is done", next_steps.of_group("idle", topic=topic), since_ms
        if (
            cursor.state.parked - cursor.state.unmatched >= config.parked_max > 0
            and view is not None
            and view.window.lanes
        ):
            because = f"{many(config.parked_max, 'record')} wait behind others of their key"
            count = min(2 * config.parked_max, limits.PARKED_HARD_MAX)
            verb = next_steps.of_group("keys blocked", topic=topic, group=name, count=count)
            return "keys blocked", because, verb, since_ms
        for_routes = cursor.state.unmatched + (view.window.lanes.for_routes() if view else 0)
        first = view.window.next if view else cursor.state.cursor
        stuck = view is not None and not (view.window.in_flight or self._dispatch.offers(view))
        if first >= state.next and stuck and for_routes:
            because = f"{_waits(for_routes)} for a consumer of their route"
            return "unmatched", because, next_steps.of_group("no consumer", topic=topic, group=name), since_ms
        if view is not None and view.window.in_flight and first >= state.next:
            verb = next_steps.of_group("working", topic=topic, group=name)
            return (
                "working",
                f"{many(view.window.in_flight, 'record')} in flight, with {_holders(view)}",
                verb,
                since_ms,
            )
        behind_keys = cursor.state.parked + (view.window.lanes.total() if view else 0) - for_routes
        if not behind or (first >= state.next and stuck and behind_keys):
            return (*self._again(topic, name, view, cursor, behind_keys), since_ms)
        return (*self._stands(topic, name, view, cursor, first), since_ms)

    def _again(
        self, topic: str, name: str, view: PartitionView | None, cursor: Cursor, behind_keys: int
    ) -> tuple[str, str, str]:
        """Explains a group whose records were all delivered before, or wait
        behind others of their key.
        """
        state, because, verb = self._stands(topic, name, view, cursor, cursor.state.cursor)
        keyed = f"{_waits(behind_keys)} behind others of their key" if behind_keys else ""
        dues = cursor.exceptions.due((0, 0), self._desk.timer_ms + limits.DELAY_MS_MAX, 1)
        if not dues:
            return state, keyed if keyed and state == "moving" else because, verb
        due_ms, first = dues[0]
        waits, left_ms = _waits(cursor.state.retrying), due_ms - self._desk.timer_ms
        if left_ms <= 0:
            return state, f"{because}; {waits} to be delivered again", verb
        more = "".join(f"; {text}" for text in (keyed, because if state == "no consumer" else "") if text)
        text = f"{topic}/{partition_of(cursor.state.partition)}/{first}"
        requeue = next_steps.of_record("retrying", ref=text, group=name)
        return "retrying", f"{waits} for another attempt, the next is in {span(left_ms)}{more}", requeue

    # --- its history ----------------------------------------------------------------------------------------

    def _trace(self, request: Request) -> None:
        message: Trace = request.message
        named = self._named(message.ref)
        steps = sorted(self._steps(named, message.group), key=lambda step: step.time_ms)
        self._desk.reply(request, Traced(_newest(steps)))

    def _steps(self, named: Named, group_name: str) -> Iterator[TraceEvent]:
        ledger, partition, offset = self._ledger, named.partition, named.offset
        if offset < 0:
            found = ledger.schedule.get(partition, named.entry, named.record)
            if found is not None:
                yield TraceEvent(found[1].time_ms, "published")
            elif (void := ledger.void_of(partition, named.entry, named.record)) is not None:
                if void.published_ms:
                    yield TraceEvent(void.published_ms, "published")
                yield TraceEvent(void.time_ms, "voided", "", void.by, void.reason)
            return
        place = place_of(ledger, None, partition, offset)
        if place is not None:
            due = bool(place.columns & DELAY)
            # the time when the leader stored a delayed record is not kept; its batch
            # tells when it was sealed
            if due and (sealed_ms := ledger.opened.header(place.entry).publish_ms):
                sealed_ms = min(sealed_ms, place.time_ms)
                yield TraceEvent(sealed_ms, "published", reason="by the clock of its producer")
            yield TraceEvent(place.time_ms, "due" if due else "published")
        if ledger.is_void(partition, offset) and (
            row := ledger.state.floor(records.key(b"Z", partition, offset))
        ):
            void = decode_void(row[1])
            yield TraceEvent(void.time_ms, "voided", "", void.by, void.reason)
        for group_id, cursor in ledger.cursors.get(partition, {}).items():
            name = ledger.groups[group_id].name
            if group_name in ("", name):
                yield from self._group_steps(named, name, group_id, cursor)

    def _group_steps(self, named: Named, name: str, group_id: int, cursor: Cursor) -> Iterator[TraceEvent]:
        history = []
        found = cursor.exceptions.at(named.offset) if cursor.exceptional else None
        dead = cursor.dead.at(named.offset)
        if found is not None:
            history = found.row.history
        if dead is not None:
            history = dead.row.history
        state, partition = self._ledger.state, named.partition
        low, own, high = (
            records.row_key(b"Q", partition, group_id, max(0, offset))
            for offset in (named.offset - TRACE_BACK, named.offset, named.offset + 1)
        )
        acked_ms = set()
        # its own rows first, since its neighbours may have more rows than are looked at
        for count, (_, raw) in enumerate(chain(state.scan(own, high), state.scan(low, own))):
            row = _decode_trace(raw)
            if count >= TRACE_ROWS_MAX:
                break
            if row.tells_of(named.offset):
                history = history or row.history
                if row.what == "acked" and row.time_ms in acked_ms:
                    continue
                acked_ms |= {row.time_ms} if row.what == "acked" else set()
                yield TraceEvent(
                    time_ms=row.time_ms,
                    what=row.what,
                    group=name,
                    consumer=row.consumer,
                    reason=row.reason,
                    attempt=row.attempt,
                )
        for failure in history:
            yield TraceEvent(
                time_ms=failure.time_ms,
                what="failed",
                group=name,
                consumer=failure.consumer,
                reason=failure.reason,
                attempt=failure.attempt,
            )
        if dead is not None:
            yield TraceEvent(
                time_ms=dead.row.time_ms,
                what="dead",
                group=name,
                consumer="",
                reason=dead.row.reason,
                attempt=dead.row.attempts,
            )
        standing = self._standing(named, group_id)
        if standing.state == "acked" and standing.time_ms not in acked_ms:
            yield TraceEvent(standing.time_ms, "acked", name, standing.consumer)

    # --- bodies ---------------------------------------------------------------------------------------------

    def _show(self, request: Request) -> None:
        message: Show = request.message
        named = self._named(message.ref)
        place, time_ms = self._body_of(named)
        body = self._ledger.opened.cut(*place, 1)
        self._desk.enclose(request, Shown(named.ref, time_ms), [body])

    def _body_of(self, named: Named) -> tuple[tuple[Index, int], int]:
        """((entry, record), time) of a record: in the log, in the schedule, or with a present or
        former dead letter. Raises UnknownRecord.
        """
        if named.offset < 0:
            found = self._ledger.schedule.get(named.partition, named.entry, named.record)
            if found is None and JoinName(named.partition, named.entry) in self._ledger.joins.rows:
                raise UnknownRecord(
                    "the record waits for jobs: it can be read when it is published",
                    hint=f"gossipq why {self._text(named)}",
                )
            if found is None:
                text = self._text(named)
                raise UnknownRecord("the record was cancelled before it was due", hint=f"gossipq why {text}")
            return (named.entry, named.record), found[1].time_ms
        place = place_of(self._ledger, None, named.partition, named.offset)
        if place is not None:
            return (place.entry, place.record), place.time_ms
        for cursor in self._ledger.cursors.get(named.partition, {}).values():
            again = cursor.exceptions.at(named.offset) if cursor.exceptional else None
            if again is not None:  # a dead letter that was replayed
                return (again.row.index, again.row.record + named.offset - again.first), again.row.due_ms
            dead = cursor.dead.at(named.offset)
            if dead is not None:
                return (dead.row.index, dead.row.record + named.offset - dead.first), dead.row.time_ms
        raise UnknownRecord(f"retention removed {self._text(named)}")

    def _list_dead(self, request: Request) -> None:
        message: ListDead = request.message
        within("limit", message.limit, 1, limits.DEAD_LIST_HARD_MAX)
        within("after", message.after, 0, NUMBER_MAX)
        if message.partition not in self._ledger.partitions:
            raise self._topics.unknown(message.partition)
        letters, bodies, more = self._page(message)
        self._desk.enclose(request, DeadLetters(letters, more), bodies)

    def _page(self, message: ListDead) -> tuple[list[DeadLetter], list[bytes], Offset]:
        """Letters, their batches, and where the next page begins; -1 after the last page. A page
        begins at an offset, so all letters of one offset come together. The letters of the first
        offset always come, otherwise there would be no next page. Their number is bounded by the
        room in an answer, and so is that of their batches, with at least one batch.
        """
        letters, bodies, room, size = list[DeadLetter](), list[bytes](), limits.LIST_BYTES_MAX, 0
        most = limits.DELIVER_BYTES_MAX
        for first, rows in groupby(self._dead(message), itemgetter(0)):
            begun = len(letters)
            for _, name, row in rows:
                wanted = message.bodies and (begun or not letters or size + row.size <= most)
                raw = self._ledger.opened.cut(row.index, row.record, row.end - first) if wanted else b""
                letters.append(_letter(message.partition, name, first, row, len(raw)))
                bodies.append(raw)
                room, size = room - _size(letters[-1]), size + len(raw)
                if room < 0 or (begun and size > most):
                    break
            if begun and (room < 0 or size > most or len(letters) > message.limit):
                return letters[:begun], bodies[:begun], first
        return letters, bodies, -1

    def _dead(self, message: ListDead) -> Iterator[tuple[Offset, str, DeadRow]]:
        """Letters in the order of offsets, then of groups."""
        named = [
            (self._ledger.groups[group_id].name, cursor)
            for group_id, cursor in self._ledger.cursors.get(message.partition, {}).items()
            if cursor.state.dead
        ]
        rows = [
            _dead_of(name, cursor, message.after) for name, cursor in named if message.group in ("", name)
        ]
        return merge(*rows, key=itemgetter(0, 1))


def _dead_of(group: str, cursor: Cursor, after: Offset) -> Iterator[tuple[Offset, str, DeadRow]]:
    for found in cursor.dead.scan(after):
        yield found.first, group, found.row


def _newest(steps: list[TraceEvent]) -> list[TraceEvent]:
    """The newest ones that fit into an answer."""
    room = limits.LIST_BYTES_MAX
    for at in range(len(steps) - 1, -1, -1):
        room -= EVENT_BYTES + sum(
            len(text.encode()) for text in (steps[at].group, steps[at].consumer, steps[at].reason)
        )
        if room < 0:
            return steps[at + 1 :]
    return steps


def _letter(partition: PartitionKey, group: str, first: Offset, row: DeadRow, size: int) -> DeadLetter:
    history = [
        TraceEvent(
            time_ms=each.time_ms,
            what="failed",
            group=group,
            consumer=each.consumer,
            reason=each.reason,
            attempt=each.attempt,
        )
        for each in row.history
    ]
    return DeadLetter(
        partition=partition,
        group=group,
        offset=first,
        count=row.end - first,
        reason=row.reason,
        error=row.error,
        attempts=row.attempts,
        failures=row.failures,
        time_ms=row.time_ms,
        size=size,
        history=history,
    )


def _size(letter: DeadLetter) -> int:
    """About how many bytes it takes in an answer."""
    texts = [
        letter.group,
        letter.error,
        *(text for at in letter.history for text in (at.group, at.consumer, at.reason)),
    ]
    return EVENT_BYTES * (1 + len(letter.history)) + sum(len(text.encode()) for text in texts)
