"""Requests that change records and groups: CANCEL, RESCHEDULE, EDIT, REQUEUE, REPLAY_DEAD, PURGE_DEAD,
SET_GROUP.

Each is checked against the committed state and the current leases, logged, and answered when its entry is
stored.

With key order, a record that an operator requeues or replays may pass other records of its key,
because the operator asked for it now.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from gossipq import limits
from gossipq.core.delivery import Dispatch, Lease, MovingRecords, within
from gossipq.core.desk import Asker, Desk, Request
from gossipq.core.ledger import Counted, Cursor, JoinName, Ledger, Outcome, Voided
from gossipq.core.requests.consume import ConsumeRequests
from gossipq.core.requests.explain import Named, find
from gossipq.core.requests.letters import LetterJobs
from gossipq.core.requests.operate import OperateRequests
from gossipq.core.requests.publish import PublishRequests
from gossipq.core.requests.topics_here import TopicsHere
from gossipq.core.storage import log, payloads
from gossipq.errors import BadBatch, WrongState
from gossipq.messages import Cancel, Done, Edit, PurgeDead, ReplayDead, Requeue, Reschedule
from gossipq.types import DELAY, Index, Offset, Origin, PartitionKey, topic_id_of
from gossipq.values import Message, Ref

CANCELS_IT = "cancel it, and join the jobs again"


class MendRequests:
    def __init__(
        self,
        desk: Desk,
        ledger: Ledger,
        dispatch: Dispatch,
        topics: TopicsHere,
        consuming: ConsumeRequests,
        publishing: PublishRequests,
    ) -> None:
        self._desk = desk
        self._ledger = ledger
        self._dispatch = dispatch
        self._topics, self._publishing = topics, publishing
        self._letters = LetterJobs(desk, ledger)
        self._handlers: dict[type[Message], Callable[[Request], None]] = {
            Cancel: self._cancel,
            Reschedule: self._reschedule,
            Edit: self._edit,
            Requeue: self._requeue,
            ReplayDead: self._take_letters,
            PurgeDead: self._take_letters,
        }
        operating = OperateRequests(desk, ledger, dispatch, topics, consuming, self._propose)
        self._handlers |= operating.handlers

    def serve(self, request: Request) -> None:
        """Serve a request. Raises the error with which it must be refused."""
        self._handlers[type(request.message)](request)

    def tick(self) -> None:
        """Requests that take several turns go on."""
        self._letters.tick()

    def next_deadline(self) -> int | None:
        """Boot time of the next tick that has something to do."""
        return self._letters.next_deadline()

    def waiting(self) -> list[tuple[Origin, int]]:
        """Requests for which there is no entry yet."""
        return self._letters.waiting()

    def _propose(
        self, request: Request, kind: int, payload: bytes, answer: Message, body: bytes = b""
    ) -> None:
        self._desk.pending.add(
            self._desk.propose(kind, payload, body=body), partial(self._answer, answer), request
        )

    def _answer(self, answer: Message, asker: Asker, index: Index, outcome: Outcome) -> None:
        """An entry is applied; `answer` is for one that is done, the number of records as it turned out."""
        if outcome.error:
            self._desk.refuse_by(asker, outcome)
        elif isinstance(outcome, Voided) and outcome.published is not None:
            self._desk.confirm(asker, index, outcome.published)
        elif isinstance(outcome, Counted) and isinstance(answer, Done):
            self._desk.reply(asker, Done(outcome.count, answer.ref))
        else:
            self._desk.reply(asker, answer)

    # --- single records -------------------------------------------------------------------------------------

    def _named(self, ref: Ref) -> Named:
        if ref.partition not in self._ledger.partitions:
            raise self._topics.unknown(ref.partition)
        return find(self._ledger, ref)

    def _removable(self, ref: Ref, running: bool = False) -> Named:
        """The record, if it may be taken away; with `running`, also from a consumer. Raises WrongState."""
        named = self._named(ref)
        partition, offset = named.partition, named.offset
        if offset < 0:
            if self._waits_for_jobs(named):
                return named
            if self._ledger.schedule.get(partition, named.entry, named.record) is None:
                raise WrongState("the record is cancelled already")
            return named
        if offset < self._ledger.partitions[partition].first:
            raise WrongState(f"retention removed offset {offset}")
        if self._ledger.is_void(partition, offset):
            raise WrongState(f"offset {offset} is void already")
        for group_id in () if running else self._ledger.cursors.get(partition, ()):
            self._nobody_holds(group_id, partition, offset)
        if self._ledger.done_everywhere(partition, offset):
            raise WrongState(
                f"offset {offset} is done in every group",
                hint="what is acked stays until retention removes it",
            )
        return named

    def _waits_for_jobs(self, named: Named) -> bool:
        return JoinName(named.partition, named.entry) in self._ledger.joins.rows

    def _nobody_holds(self, group_id: int, partition: PartitionKey, offset: Offset) -> None:
        group = self._dispatch.groups.get(group_id)
        view = group.views.get(partition) if group else None
        state = view.window.at(offset) if view else None
        if isinstance(state, (Lease, MovingRecords)):
            holder = state.consumer if isinstance(state, Lease) else "an entry that is being stored"
            name = self._ledger.groups[group_id].name
            raise WrongState(
                f"offset {offset} is in flight to {holder} in group {name}",
                hint="wait until it is acked or its lease ends, or stop that consumer",
            )

    def _cancel(self, request: Request) -> None:
        message: Cancel = request.message
        named = self._removable(message.ref, message.running)
        void = payloads.Void(
            partition=named.partition,
            offset=named.offset,
            index=named.entry,
            record=named.record,
            reason=message.reason[: limits.ERROR_BYTES_MAX],
            by=request.sender.consumer,
        )
        self._propose(request, log.VOID, payloads.encode(void), Done(1, named.ref))

    def _reschedule(self, request: Request) -> None:
        message: Reschedule = request.message
        within("delay_ms", message.delay_ms, 0, limits.DELAY_MS_MAX)
        named = self._named(message.ref)
        if named.offset >= 0:
            raise WrongState(
                f"the record is due already, it has offset {named.offset}",
                hint="gossipq msg requeue delivers it again at once",
            )
        if self._waits_for_jobs(named):
            raise WrongState("the record waits for jobs, not for a time", hint=CANCELS_IT)
        if self._ledger.schedule.get(named.partition, named.entry, named.record) is None:
            raise WrongState("the record is cancelled already")
        due_ms = self._desk.due_after(message.delay_ms)
        payload = payloads.encode(payloads.DueChange(named.partition, named.entry, named.record, due_ms))
        self._propose(request, log.RESCHEDULE, payload, Done(1, named.ref))

    def _edit(self, request: Request) -> None:
        message: Edit = request.message
        batch = request.batch
        if not batch:
            raise BadBatch(
                "an edit needs the new record", hint="send it as a batch of one in the second frame"
            )
        info = self._desk.columns.peek(batch)
        if info.count != 1:
            raise BadBatch(f"an edit puts one record in the place of another, not {info.count}")
        named = self._removable(message.ref)
        if named.offset < 0 and self._waits_for_jobs(named):
            raise WrongState("the record waits for jobs, and is sealed until then", hint=CANCELS_IT)
        waits = DELAY if named.offset < 0 else 0  # it keeps its time
        # it is no repeat of a publish
        new = msgspec.structs.replace(info, sequence=0, columns=info.columns | waits)
        self._publishing.require_space(named.partition, new)
        void = payloads.Void(
            partition=named.partition,
            offset=named.offset,
            index=named.entry,
            record=named.record,
            reason="",
            by=request.sender.consumer,
            publish=log.publish_payload(named.partition, info, self._publishing.due_of(info, batch, 0)),
        )
        self._propose(request, log.EDIT, payloads.encode(void), Done(1, named.ref), batch)

    # --- records of a group ---------------------------------------------------------------------------------

    def _cursor(self, partition: PartitionKey, group_name: str) -> Cursor:
        if partition not in self._ledger.partitions:
            raise self._topics.unknown(partition)
        group = self._ledger.group(topic_id_of(partition), group_name)
        cursor = self._ledger.cursors.get(partition, {}).get(group.id) if group else None
        if cursor is None:
            raise self._ledger.no_cursor(partition, group_name)
        return cursor

    def _requeue(self, request: Request) -> None:
        message: Requeue = request.message
        named = self._named(message.ref)
        cursor, offset = self._cursor(named.partition, message.group), named.offset
        if offset < 0:
            raise WrongState("the record is not due yet", hint="gossipq msg reschedule REF --delay 0s")
        self._nobody_holds(cursor.state.group_id, named.partition, offset)
        if self._ledger.is_void(named.partition, offset):
            raise WrongState(f"offset {offset} is void", hint="publish it again")
        # a dead letter keeps its value, also after retention removed the batch
        dead = cursor.dead.at(offset)
        if dead is None and offset < self._ledger.partitions[named.partition].first:
            raise WrongState(f"retention removed offset {offset}", hint="publish it again")
        if offset < cursor.state.start:
            raise WrongState(
                f"the group starts after offset {offset}, so it never got this record",
                hint="read it without a group",
            )
        if cursor.fresh(offset, offset + 1):
            raise WrongState(
                "the record is ready and was never delivered", hint="gossipq why tells what it waits for"
            )
        waits = dead is not None or (cursor.exceptional and cursor.exceptions.at(offset) is not None)
        if not waits and not cursor.acks.cover(offset, offset + 1):
            raise WrongState(
                f"offset {offset} was dropped, or purged as a dead letter", hint="publish it again"
            )
        # records with a row are found by it; an acked record has none, and is named in `ready`
        payload = payloads.Letters(
            cursor.state.group_id,
            named.partition,
            [(offset, offset + 1)],
            [] if waits else [(offset, offset + 1)],
        )
        self._propose(request, log.REQUEUE, payloads.encode(payload), Done(1, named.ref))

    def _take_letters(self, request: Request) -> None:
        message: ReplayDead | PurgeDead = request.message
        self._letters.take(request, self._cursor(message.partition, message.group))
