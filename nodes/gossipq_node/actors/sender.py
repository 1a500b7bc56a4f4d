"""Turn effects into frames: gather confirms by client; read, check and cut the batches of deliveries."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import structs

from gossipq import limits
from gossipq.core.delivery import Delivery, Part
from gossipq.core.desk import INTERNAL, INTERNAL_HINT, ConfirmRow, refusal
from gossipq.core.effects import Effects
from gossipq.core.shard import Shard
from gossipq.errors import (
    BadBatch,
    Busy,
    CorruptLog,
    GossipqError,
    Internal,
    NotLeader,
    ProtocolError,
    TooLarge,
)
from gossipq.messages import Confirm, Deliver, DeliverPlain, RefusedMessage, Reset, Subscribed
from gossipq.types import Index, Origin
from gossipq.values import Delivered, Message, Run
from gossipq.wire import batch as batches
from gossipq.wire import plain
from gossipq.wire.frames import Header, encode, peek
from gossipq_node.actors.cluster import OtherNodes
from gossipq_node.actors.faults import Faults
from gossipq_node.actors.timings import Timings
from gossipq_node.ports import DIRECT_ORIGIN_PARTS, Mailbox
from gossipq_node.settings import WorkerSettings

_ABANDONED = refusal(
    NotLeader(
        "the leader changed before this request was answered: it may have been executed",
        hint="ask the new leader again",
    )
)

_ENDED = "subscriptions have ended: with their leader, their topic or their group"
RUN_BYTES = 24  #: of a run in a CONFIRM, at most
RUNS_MAX = limits.CONTROL_BYTES_MAX // 2 // RUN_BYTES  #: in one, unless one batch has more
assert limits.ID_RECORDS_MAX * RUN_BYTES <= 3 * limits.CONTROL_BYTES_MAX // 4, "the rows need some of it, too"
UNREAD_MS = 20  #: after which a client that does not read its answers asks again


log = logging.getLogger(__name__)


class Sender:
    """Sends the effects of a turn, once they are on disk."""

    def __init__(
        self,
        settings: WorkerSettings,
        mailbox: Mailbox,
        cluster: OtherNodes,
        timings: Timings,
        faults: Faults,
        resets: Callable[[Origin], bool] = lambda origin: False,
    ) -> None:
        """`resets`: whether the session of a connection asked for RESET."""
        self._settings = settings
        self._mailbox = mailbox
        self._cluster = cluster
        self._resets = resets
        self._timings, self._faults = timings, faults

    def send(self, shard: Shard, effects: Effects) -> None:
        reply, term = self._reply, effects.term
        for origin, rows in effects.confirms.items():
            if origin in effects.runs:
                self._confirm_runs(origin, rows, effects.runs[origin], shard.id, term)
                continue
            direct = self._settings.endpoint if len(origin) > DIRECT_ORIGIN_PARTS else ""
            confirm = Confirm(rows, self._settings.window_bytes, direct)
            reply(origin, confirm, shard.id, 0, term)
        for origin, request_id, message in effects.replies:
            if isinstance(message, Subscribed):
                message = structs.replace(message, direct=self._direct(origin))
            elif isinstance(message, RefusedMessage):
                self.refuse(origin, shard.id, request_id, message)
                continue
            reply(origin, message, shard.id, request_id, term)
        for origin, request_id in effects.abandoned:
            if request_id or not self._resets(origin):
                self.refuse(origin, shard.id, request_id, _ABANDONED)
            else:
                reply(origin, Reset([shard.id], _ENDED), shard.id, 0, term)
        for origin, request_id, message, bodies in effects.enclosed:
            if self._mailbox.crowded(origin):
                self.refuse(origin, shard.id, request_id, refusal(unread()))
            else:
                reply(origin, message, shard.id, request_id, term, bodies)
        for warning in effects.warnings:
            log.warning("shard %d: %s", shard.id, warning)
        for target, message in effects.told:
            self._cluster.tell(target, message, term)
        if effects.answers:
            self._cluster.answer(shard, effects.answers)
        for delivery in effects.deliveries:
            try:
                self._deliver(shard, delivery, term)
            except GossipqError:
                raise
            except Exception as error:  # its records are redelivered when their lease ends
                self._faults.met("Deliver", shard.id, error)
        for origin, notice in effects.notices:
            reply(origin, notice, shard.id, 0, term)

    def _confirm_runs(
        self,
        origin: Origin,
        all_rows: list[ConfirmRow],
        all_runs: list[tuple[int, list[Run]]],
        shard: int,
        term: int,
    ) -> None:
        """Confirm batches of which some have runs: in several frames, if these are many."""
        for rows, runs in _frames(all_rows, all_runs):
            confirm = Confirm(rows, self._settings.window_bytes, self._direct(origin), runs)
            self._reply(origin, confirm, shard, 0, term)

    def _reply(
        self,
        origin: Origin,
        message: Message,
        shard: int,
        request_id: int,
        term: int,
        bodies: Sequence[bytes] = (),
    ) -> None:
        try:
            control = encode(message, shard, request_id, term)
        except Exception as error:
            self._faults.met(type(message).__name__, shard, error)
            self.refuse(origin, shard, request_id, refusal(Internal(INTERNAL, hint=INTERNAL_HINT)))
            return
        if (
            request_id and len(control) > limits.CONTROL_BYTES_MAX
        ):  # no client reads a larger frame, so it would wait for ever
            self.refuse(origin, shard, request_id, refusal(_too_much(len(control))))
            return
        self._mailbox.reply(origin, control, bodies or b"")

    def refuse(self, origin: Origin, shard: int, request_id: int, refused: RefusedMessage) -> None:
        """Refuse a request. A client that asked the wrong worker learns the right one and its term, if
        known."""
        if not origin:
            return
        term = 0
        if refused.code == NotLeader.code:
            _, known_term, endpoint = structs.astuple(self._cluster.view.route(shard))
            if endpoint and endpoint != self._settings.endpoint:
                refused, term = structs.replace(refused, endpoint=endpoint), known_term
        self._mailbox.reply(origin, encode(refused, shard, request_id, term))

    def _direct(self, origin: Origin) -> str:
        """Return the address of this worker for clients that came through the frontdoor; "" for others."""
        return self._settings.endpoint if len(origin) > DIRECT_ORIGIN_PARTS else ""

    def _deliver(self, shard: Shard, delivery: Delivery, term: int) -> None:
        """In several frames where the loan counted less than there is: of a batch with one large record and
        many small ones each counts the same."""
        slices, bodies, size, sent = list[Delivered](), list[bytes](), 0, 0
        opened: dict[
            Index, batches.Batch
        ] = {}  # redelivered records are slices of one record each, and mostly of few batches
        first = [part for part in delivery.parts if part.attempt == 1 and not part.again]
        new = Counter([part.time_ms for part in first if part.time_ms])
        for time_ms, parts in new.items():  # most are of one turn
            self._timings.delivery.add(max(0, shard.desk.leader_ms - time_ms) * 1_000, parts)
        for at, part in enumerate(delivery.parts):
            body = self._body(shard, part, opened)
            if slices and size + len(body) > limits.DELIVER_BYTES_MAX:
                if not self._hand_over(shard, delivery, term, slices, bodies):
                    break
                slices, bodies, size, sent = [], [], 0, at
            delivered = Delivered(
                partition=part.partition,
                offset=part.offset,
                count=part.count,
                attempt=part.attempt,
                size=len(body),
                charge=part.charge,
                ranges=part.ranges,
                failures=part.failures,
                again=part.again,
            )
            slices.append(delivered)
            bodies.append(body)
            size += len(body)
        else:
            if self._hand_over(shard, delivery, term, slices, bodies):
                return
        shard.undelivered(delivery._replace(parts=delivery.parts[sent:]))

    def _hand_over(
        self, shard: Shard, delivery: Delivery, term: int, slices: list[Delivered], bodies: list[bytes]
    ) -> bool:
        """Return whether the connection accepts the delivery."""
        deliver: Message = Deliver(delivery.subscription, slices, delivery.lease_ms)
        frames: Iterable[Sequence[bytes]] = (bodies,)
        if delivery.plain:
            deliver = DeliverPlain(delivery.subscription, delivery.lease_ms)
            frames = ([frame] for frame in plain.unseal(slices, bodies))
        control = encode(deliver, shard.id, 0, term)
        return all(self._mailbox.reply(delivery.origin, control, frame) for frame in frames)

    def _body(self, shard: Shard, part: Part, opened: dict[Index, batches.Batch]) -> bytes:
        """The bytes of a part; `opened` are batches that were cut before. Raises CorruptLog when the disk
        does not give back what was stored."""
        if not part.whole and part.index in opened:
            return _cut(opened[part.index], part)
        body, from_disk = shard.body(part.index)
        if body is None:
            raise CorruptLog(f"shard {shard.id}: the batch of entry {part.index} is missing")
        if from_disk:
            try:
                batches.check(body)
            except BadBatch as error:
                raise CorruptLog(
                    f"shard {shard.id}: the batch of entry {part.index} is damaged: {error}"
                ) from None
        if part.whole:
            return body
        opened.clear()  # one is enough, and a batch can be large
        batch = opened[part.index] = batches.Batch(body, batches.peek(body))
        return _cut(batch, part)


def _cut(batch: batches.Batch, part: Part) -> bytes:
    if not part.ranges:
        return bytes(batch.cut(part.first, part.count))
    base = part.offset - part.first
    return bytes(batch.pick([(first - base, end - base) for first, end in part.ranges]))


def _frames(
    rows: list[ConfirmRow], runs: list[tuple[int, list[Run]]]
) -> Iterator[tuple[list[ConfirmRow], list[tuple[int, list[Run]]]]]:
    """Divide rows and their runs over several CONFIRM frames.

    `runs` belong to some of the rows, in their order. A batch of which some ids were known can have a run for
    each record, so all runs of a turn may not fit one frame.
    """
    if sum(len(each) for _, each in runs) <= RUNS_MAX:
        yield rows, runs
        return
    some, told, count, at = list[ConfirmRow](), list[tuple[int, list[Run]]](), 0, 0
    for row in rows:
        own = runs[at : at + 1] if at < len(runs) and runs[at][0] == row[0] else []
        more = sum(len(each) for _, each in own)
        if some and count + more > RUNS_MAX:
            yield some, told
            some, told, count = [], [], 0
        some.append(row)
        told += own
        count, at = count + more, at + len(own)
    yield some, told


def _too_much(size: int) -> TooLarge:
    return TooLarge(
        f"an answer of {size} bytes; a frame may have {limits.CONTROL_BYTES_MAX}",
        hint="ask for less at a time: of one group",
    )


def unread() -> Busy:
    """Return the error for a request on a connection with too many unread answers."""
    return Busy(
        f"more than {limits.UNREAD_BYTES_MAX} bytes of unread answers wait on this connection",
        hint="read them before you send more requests",
        retry_after_ms=UNREAD_MS,
    )


def header_of(control: bytes) -> Header | None:
    """Return the header of a malformed frame, so that its sender learns which request failed; None if the
    header is malformed too."""
    try:
        return peek(control)
    except ProtocolError:
        return None
