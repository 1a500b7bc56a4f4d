"""The desk of a shard: the rooms read the clocks of the turn here, append entries, and leave answers.

It calls no room. A room that needs another room is given that room by name.

A leader ticks when something is due, or when a message other than a publish or an append came
(`stirred`). Ticks of ten rooms took a tenth of a turn with one record.
"""

from typing import NamedTuple

from msgspec import Struct

from gossipq import limits
from gossipq.core.desk.pending import Pending
from gossipq.core.desk.request import Asker
from gossipq.core.desk.unapplied import Unapplied
from gossipq.core.ledger import Outcome, Published
from gossipq.core.raft import LEADER, Replica
from gossipq.core.storage import Columns, log, payloads
from gossipq.errors import Busy, GossipqError, from_code
from gossipq.messages import RefusedMessage
from gossipq.texts import printable
from gossipq.types import Index, Offset, Origin, SessionId, ShardId
from gossipq.values import Message, Run

AGAIN_MS = 20  #: a client waits this long if another entry came before its own
LINES = "\n\t"  #: layout characters that texts for people may contain
INTERNAL = "internal error of the node"
INTERNAL_HINT = "the log of the node has the details"
ConfirmRow = tuple[int, Offset, int, bool]  #: of a CONFIRM


def refusal(error: GossipqError) -> RefusedMessage:
    """Return the message for a client. It may contain a name that a stranger made up."""
    message, hint = printable(error.message, LINES), printable(error.hint, LINES)
    return RefusedMessage(error.code, message, hint, error.retry_after_ms, error.detail)


class Fault(NamedTuple):
    """An unexpected exception that was contained."""

    what: str  #: the request, or the part of a turn, that failed
    error: Exception


class Answers(Struct, eq=False):
    """Answers and warnings of a turn, in order of arrival. They may be sent only after its commit."""

    confirms: dict[Origin, list[ConfirmRow]] = {}  #: publishes that a majority of disks has stored
    runs: dict[Origin, list[tuple[int, list[Run]]]] = {}  #: runs of those confirms, where needed
    enclosed: list[tuple[Origin, int, Message, list[bytes]]] = []  #: replies with batches
    enclosed_bytes: int = 0  #: bytes of those batches
    replies: list[tuple[Origin, int, Message]] = []  #: (to, request id, message)
    told: list[tuple[int, Message]] = []  #: to the leader of a shard
    warnings: list[str] = []  #: for the operator of this node
    faults: list[Fault] = []  #: for the operator of this node
    #: sessions that have held records here since before this leadership
    returning: set[SessionId] = set()
    #: requests that this copy can no longer answer, stored or not

    #: Request id 0 stands for a subscription that it no longer serves.
    abandoned: list[tuple[Origin, int]] = []

    def withdraw(self, origin: Origin, request_id: int) -> None:
        """Drop the answers to a request, because they are not valid."""
        self.replies = [each for each in self.replies if each[:2] != (origin, request_id)]
        self.enclosed = [each for each in self.enclosed if each[:2] != (origin, request_id)]
        self.abandoned = [each for each in self.abandoned if each != (origin, request_id)]


class Counts(Struct, eq=False):
    """The counters of a copy since it was opened."""

    published: int = 0  #: records
    acked: int = 0  #: records
    refused: int = 0  #: requests
    dead: int = 0  #: records


class Desk:
    def __init__(
        self, shard: ShardId, replica: Replica, columns: Columns, answers: Answers, clock_step_ms: int
    ) -> None:
        self.shard = shard
        self.replica = replica
        self.columns = columns
        self.answers = answers
        self._clock_step_ms = clock_step_ms
        self.pending = Pending()  #: requests that wait for entries
        self.unapplied = Unapplied()  #: entries that are not applied yet, oldest first
        self.boot_ms = self.leader_ms = self.timer_ms = 0  #: clocks of this turn
        self.full = ""  #: why publishes are refused for lack of space; "" = they are not
        self.counts = Counts()
        self.promised = False  #: True if this turn must sync
        self.stirred = True  #: something other than a plain publish came, so a tick is needed
        #: idempotency key of the current request: its first entry follows a NOOP with it
        self.key = b""

    # --- the log --------------------------------------------------------------------------------

    @property
    def last(self) -> Index:
        """Index of the newest entry."""
        return self.replica.log.last

    @property
    def leading(self) -> bool:
        return self.replica.role == LEADER

    @property
    def crowded(self) -> bool:
        """True if entries that wait for other copies have filled their share of memory."""
        return self.unapplied.bytes >= limits.UNAPPLIED_BYTES_MAX

    def propose(
        self, kind: int, payload: bytes, promise: bool = True, body: bytes = b"", body_crc: int = 0
    ) -> Index:
        """Append an entry. `promise` asks for a sync in this turn. `body_crc` is the CRC in the
        header of the body, if the caller has read it.
        """
        if self.key:
            key, self.key = self.key, b""
            self.propose(log.NOOP, payloads.encode(payloads.RequestKey(key)), promise)
        self.promised |= promise
        if body and not body_crc:
            body_crc = self.columns.crc(body)
        entry = self.replica.propose(kind, payload, body, body_crc, self.leader_ms)
        self.unapplied.append(entry)
        return entry.index

    def due_after(self, delay_ms: int) -> int:
        """Return when something that waits from now on is due, in timer time."""
        self.replica.time.pin()
        # boot time is rounded down, and may be a whole step later than it says
        return self.timer_ms + (delay_ms + self._clock_step_ms if delay_ms else 0)

    # --- answers --------------------------------------------------------------------------------

    def reply(self, asker: Asker, message: Message) -> None:
        if asker.origin:
            self.answers.replies.append((asker.origin, asker.request_id, message))

    def refuse(self, asker: Asker, error: GossipqError) -> None:
        self.counts.refused += 1
        self.reply(asker, refusal(error))

    def refuse_by(self, asker: Asker, outcome: Outcome) -> None:
        """An entry was refused when it was applied: tell the requester why."""
        if asker.origin:
            again_ms = AGAIN_MS if outcome.error == Busy.code else 0
            error = from_code(outcome.error, outcome.why, retry_after_ms=again_ms, detail=outcome.detail)
            self.refuse(asker, error)

    def answer(self, asker: Asker, outcome: Outcome, reply: Message) -> None:
        """Send the reply of an applied entry, or its refusal."""
        if outcome.error:
            self.refuse_by(asker, outcome)
        else:
            self.reply(asker, reply)

    def enclose(self, asker: Asker, message: Message, bodies: list[bytes]) -> None:
        """Reply with batches in the second frame. Raises Busy if this turn has sent enough."""
        if self.answers.enclosed_bytes > limits.ENCLOSED_BYTES_PER_TURN:
            raise Busy(f"shard {self.shard} reads what others asked for", retry_after_ms=AGAIN_MS)
        self.answers.enclosed_bytes += sum(map(len, bodies))
        self.answers.enclosed.append((asker.origin, asker.request_id, message, bodies))

    def confirm(self, asker: Asker, index: Index, outcome: Outcome) -> None:
        """Confirm a batch that is applied and stored, or refuse it."""
        if not isinstance(outcome, Published):
            self.refuse_by(asker, outcome)
            return
        origin, request_id = asker.origin, asker.request_id
        copies = self.replica.copies(index) if self.replica.progress else 1
        row = request_id, outcome.offset, copies, outcome.duplicate
        self.answers.confirms.setdefault(origin, []).append(row)
        if outcome.runs is not None:
            self.answers.runs.setdefault(origin, []).append((request_id, outcome.runs))

    def tell(self, shard: ShardId, message: Message) -> None:
        """Send a message to the leader of another shard."""
        self.answers.told.append((shard, message))

    def warn(self, text: str) -> None:
        """Warn the operator of this node."""
        self.answers.warnings.append(text)
