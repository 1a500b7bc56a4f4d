"""What operators and owners change: CANCEL, RESCHEDULE, EDIT, REQUEUE, REPLAY_DEAD, PURGE_DEAD, SET_GROUP.

Checked here against what is committed and held now, logged, and answered when the entry is stored.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from gossipq import limits
from gossipq.core.delivery import Dispatch, Lease, MovingRecords, within
from gossipq.core.ledger import Counted, Cursor, Ledger, Outcome, Voided
from gossipq.core.raft import Pending, Requester
from gossipq.core.requests.consume import Client
from gossipq.core.requests.explain import Named, find
from gossipq.core.requests.letters import LetterJobs
from gossipq.core.requests.operate import OperateRequests
from gossipq.core.storage import Due, log, payloads
from gossipq.errors import BadBatch, GossipqError, WrongState
from gossipq.messages import Cancel, Done, Edit, PurgeDead, ReplayDead, Requeue, Reschedule
from gossipq.types import DELAY, BatchInfo, Index, Offset, Origin, PartitionKey, topic_id_of
from gossipq.values import Message, Ref


class MendHost(Protocol):
    """What this room asks of its shard."""

    @property
    def boot_ms(self) -> int: ...
    @property
    def leader_ms(self) -> int: ...
    def due_after(self, delay_ms: int) -> int: ...
    @property
    def last(self) -> Index: ...
    def propose(self, kind: int, payload: bytes, promise: bool = True, body: bytes = b"") -> Index: ...
    def reply(self, origin: Origin, request_id: int, message: Message) -> None: ...
    def answer_publish(self, origin: Origin, request_id: int, index: Index, outcome: Outcome) -> None: ...
    def refuse(self, origin: Origin, request_id: int, error: GossipqError) -> None: ...
    def refuse_by(self, asker: Requester, outcome: Outcome) -> None: ...
    def unknown(self, partition: PartitionKey) -> GossipqError: ...
    def admit_group(self, client: Client, partitions: int) -> None: ...
    def peek(self, batch: bytes) -> BatchInfo:
        """Header of a batch that was verified."""

    def due_of(self, info: BatchInfo, batch: bytes, age_ms: int) -> Due | None: ...
    def require_space(self, partition: PartitionKey, info: BatchInfo) -> None: ...


class MendRequests:
    def __init__(self, host: MendHost, ledger: Ledger, dispatch: Dispatch, pending: Pending[Outcome]) -> None:
        self._host, self._ledger, self._dispatch, self._pending = host, ledger, dispatch, pending
        self._letters = LetterJobs(host, ledger, pending)
        self._serve: dict[type[Message], Callable[[Origin, int, Client, Any, bytes], None]] = {
            Cancel: self._cancel,
            Reschedule: self._reschedule,
            Edit: self._edit,
            Requeue: self._requeue,
            ReplayDead: self._take_letters,
            PurgeDead: self._take_letters,
        }
        self._serve |= OperateRequests(host, ledger, dispatch, self._propose).serves

    def step(self, origin: Origin, request_id: int, client: Client, message: Message, batch: bytes) -> None:
        """Raises what must be refused."""
        self._serve[type(message)](origin, request_id, client, message, batch)

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
        self, origin: Origin, request_id: int, kind: int, payload: bytes, answer: Message, body: bytes = b""
    ) -> None:
        self._pending.add(
            self._host.propose(kind, payload, body=body), partial(self._answer, answer), origin, request_id
        )

    def _answer(self, answer: Message, asker: Requester, index: Index, outcome: Outcome) -> None:
        """An entry is applied; `answer` is for one that is done, the number of records as it turned out."""
        if outcome.error:
            self._host.refuse_by(asker, outcome)
        elif isinstance(outcome, Voided) and outcome.published is not None:
            self._host.answer_publish(*asker, index, outcome.published)
        elif isinstance(outcome, Counted) and isinstance(answer, Done):
            self._host.reply(*asker, Done(outcome.count, answer.ref))
        else:
            self._host.reply(*asker, answer)

    # --- single records -------------------------------------------------------------------------------------

    def _named(self, ref: Ref) -> Named:
        if ref.partition not in self._ledger.partitions:
            raise self._host.unknown(ref.partition)
        return find(self._ledger, ref)

    def _removable(self, ref: Ref) -> Named:
        """The record, if it may be taken away. Raises WrongState."""
        named = self._named(ref)
        partition, offset = named.partition, named.offset
        if offset < 0:
            if self._ledger.schedule.get(partition, named.entry, named.record) is None:
                raise WrongState("the record is cancelled already")
            return named
        if offset < self._ledger.partitions[partition].first:
            raise WrongState(f"retention removed offset {offset}")
        if self._ledger.is_void(partition, offset):
            raise WrongState(f"offset {offset} is void already")
        for group_id in self._ledger.cursors.get(partition, ()):
            self._nobody_holds(group_id, partition, offset)
        if self._ledger.done_everywhere(partition, offset):
            raise WrongState(
                f"offset {offset} is done in every group",
                hint="what is acked stays until retention removes it",
            )
        return named

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

    def _cancel(self, origin: Origin, request_id: int, client: Client, message: Cancel, batch: bytes) -> None:
        named = self._removable(message.ref)
        name = named.partition, named.offset, named.entry, named.record
        reason = message.reason[: limits.ERROR_BYTES_MAX]
        payload = payloads.encode(payloads.Void(*name, reason, client.consumer))
        self._propose(origin, request_id, log.VOID, payload, Done(1, named.ref))

    def _reschedule(
        self, origin: Origin, request_id: int, client: Client, message: Reschedule, batch: bytes
    ) -> None:
        within("delay_ms", message.delay_ms, 0, limits.DELAY_MS_MAX)
        named = self._named(message.ref)
        if named.offset >= 0:
            raise WrongState(
                f"the record is due already, it has offset {named.offset}",
                hint="gossipq msg requeue hands it out again at once",
            )
        if self._ledger.schedule.get(named.partition, named.entry, named.record) is None:
            raise WrongState("the record is cancelled already")
        due_ms = self._host.due_after(message.delay_ms)
        payload = payloads.encode(payloads.DueChange(named.partition, named.entry, named.record, due_ms))
        self._propose(origin, request_id, log.RESCHEDULE, payload, Done(1, named.ref))

    def _edit(self, origin: Origin, request_id: int, client: Client, message: Edit, batch: bytes) -> None:
        if not batch:
            raise BadBatch(
                "an edit needs the new record", hint="send it as a batch of one in the second frame"
            )
        info = self._host.peek(batch)
        if info.count != 1:
            raise BadBatch(f"an edit puts one record in the place of another, not {info.count}")
        named = self._removable(message.ref)
        waits = DELAY if named.offset < 0 else 0  # it keeps its time
        # it is no repeat of a publish
        new = msgspec.structs.replace(info, sequence=0, columns=info.columns | waits)
        self._host.require_space(named.partition, new)
        publish = log.publish_payload(named.partition, info, self._host.due_of(info, batch, 0))
        name = named.partition, named.offset, named.entry, named.record
        payload = payloads.encode(payloads.Void(*name, "", client.consumer, publish))
        self._propose(origin, request_id, log.EDIT, payload, Done(1, named.ref), batch)

    # --- records of a group ---------------------------------------------------------------------------------

    def _cursor(self, partition: PartitionKey, group_name: str) -> Cursor:
        if partition not in self._ledger.partitions:
            raise self._host.unknown(partition)
        group = self._ledger.group(topic_id_of(partition), group_name)
        cursor = self._ledger.cursors.get(partition, {}).get(group.id) if group else None
        if cursor is None:
            raise self._ledger.no_cursor(partition, group_name)
        return cursor

    def _requeue(
        self, origin: Origin, request_id: int, client: Client, message: Requeue, batch: bytes
    ) -> None:
        named = self._named(message.ref)
        cursor, offset = self._cursor(named.partition, message.group), named.offset
        if offset < 0:
            raise WrongState("the record is not due yet", hint="gossipq msg reschedule REF --delay 0s")
        self._nobody_holds(cursor.state.group_id, named.partition, offset)
        if self._ledger.is_void(named.partition, offset):
            raise WrongState(f"offset {offset} is void", hint="publish it again")
        dead = cursor.dead.at(offset)
        if dead is None and offset < self._ledger.partitions[named.partition].first:
            raise WrongState(f"retention removed offset {offset}", hint="publish it again")
        if offset < cursor.state.start:
            raise WrongState(f"the group began behind offset {offset}", hint="read it without a group")
        if cursor.fresh(offset, offset + 1):
            raise WrongState(
                "the record is ready and was never handed out", hint="gossipq why tells what it waits for"
            )
        waits = dead is not None or (cursor.exceptional and cursor.exceptions.at(offset) is not None)
        if not waits and not cursor.acks.cover(offset, offset + 1):
            raise WrongState(
                f"offset {offset} was dropped, or purged as a dead letter", hint="publish it again"
            )
        payload = payloads.Letters(
            cursor.state.group_id,
            named.partition,
            [(offset, offset + 1)],
            [] if waits else [(offset, offset + 1)],
        )
        self._propose(origin, request_id, log.REQUEUE, payloads.encode(payload), Done(1, named.ref))

    def _take_letters(
        self, origin: Origin, request_id: int, client: Client, message: ReplayDead | PurgeDead, batch: bytes
    ) -> None:
        self._letters.take(origin, request_id, message, self._cursor(message.partition, message.group))
