"""Views of delivered records and batches for the consumer; they are made on access."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Generic, overload

from msgspec import UNSET, Struct

from gossipq.errors import LeaseLost
from gossipq.times import time_of
from gossipq.types import partition_of, topic_id_of
from gossipq_client.session.held import Held, Piece
from gossipq_client.values import JoinedJob, Undecodable, inputs, joined_jobs, own_options, payloads

if TYPE_CHECKING:  # type checkers know these defaults of type variables; Python 3.11 does not
    from typing_extensions import TypeVar

    Data = TypeVar("Data", default=bytes)
else:
    from typing import TypeVar

    Data = TypeVar("Data")


class _Decoded(Struct, kw_only=True, eq=False):
    """Keeps the decoded value of a record. Its field comes behind all positional ones."""

    _data: Any = UNSET


class Record(_Decoded, Generic[Data], eq=False):
    """One delivered record: a view into its batch."""

    _held: Held
    offset: int

    @property
    def data(self) -> Data:
        """The value as the type that `consume` or `read` named; without one, the bytes of `value`.

        Raises Undecodable, which is a Reject, if the value is not of that type.
        """
        if self._data is UNSET:
            decode = self._held.part.subscription.decode
            self._data = self.value if decode is None else decode(self.value)
        found: Data = self._data
        return found

    @property
    def value(self) -> bytes:
        """The value as it was published."""
        held = self._held
        return (held.opened or held.values())[self.offset - held.base]

    @property
    def key(self) -> bytes | None:
        """The key that chose the partition, or None."""
        return self._held.key(self.offset)

    @property
    def headers(self) -> dict[str, str | bytes]:
        """The headers that the producer gave, or {}. Raises Undecodable, which is a Reject, if a
        client of another kind published unreadable ones.
        """
        try:
            return payloads.headers_of(self.header_bytes)
        except Undecodable as error:
            raise Undecodable(f"headers of {self.ref}: {error}") from None

    @property
    def headers_shown(self) -> dict[str, str | bytes]:
        """The headers for display. Unreadable ones become one header,
        `gossipq-unreadable-headers`, with their bytes.
        """
        return payloads.headers_shown(self.header_bytes)

    @property
    def header_bytes(self) -> bytes:
        """The headers as they are stored, or b"". Pass them on as `headers=` to publish the record
        somewhere else. Nothing is lost then, even if they are unreadable.
        """
        return self._held.header_bytes(self.offset)

    @property
    def route(self) -> str:
        """Words between dots, such as "eu.fr", or ""."""
        return self._held.batch.route.decode(errors="replace")

    @property
    def id(self) -> str | None:
        """The id that its producer gave it, with escapes for bytes that UTF-8 does not allow."""
        return inputs.id_text(self._held.id(self.offset))

    @property
    def id_bytes(self) -> bytes | None:
        """The id as it is stored, for `id=` of another publish."""
        return self._held.id(self.offset) or None

    @property
    def unique(self) -> str | None:
        """The unique name that its producer gave it, with escapes for bytes that UTF-8 does not allow."""
        return inputs.id_text(self._held.unique(self.offset))

    @property
    def joined(self) -> list[JoinedJob]:
        """The jobs that this record waited for, and how each of them ended (see `join`); [] if it waited for
        none."""
        return joined_jobs(self.header_bytes)

    @property
    def own_options(self) -> dict[str, float | int | str]:
        """Options that the producer gave to this record alone: ttl, lease, attempts_max, backoff
        (durations in seconds), flow and priority, for `publish(..., **msg.own_options)`.
        """
        return own_options(self._held.batch, self.offset - self._held.base)

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._held.part.subscription.topics[topic_id_of(self._held.partition)].name

    @property
    def group(self) -> str:
        """Name of the group that it was delivered to; "" for a reader."""
        return self._held.part.subscription.group

    @property
    def topic_id(self) -> int:
        """Id of the topic. A topic that was removed and created again has another id."""
        return topic_id_of(self._held.partition)

    @property
    def partition(self) -> int:
        """Number of the partition within the topic."""
        return partition_of(self._held.partition)

    @property
    def ref(self) -> str:
        """Name of the record for `ref=` of any verb: TOPIC/PARTITION/OFFSET."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def attempt(self) -> int:
        """How often user code has begun the record, this time included. It is 1 at first, even if
        the record was delivered to other consumers that did not begin it.
        """
        return self._held.attempt

    @property
    def failures(self) -> int:
        """How many of the attempts have failed; `attempts_max` failures make
        the record a dead letter.
        """
        return self._held.failures

    @property
    def _is_last_attempt(self) -> bool:
        """True if the record becomes a dead letter when this attempt fails."""
        return self.failures + 1 >= self._held.attempts_max(self.offset)

    @property
    def publish_time(self) -> datetime:
        """When the producer sealed its batch, by the clock of the producer."""
        return time_of(self._held.batch.info.publish_ms)

    @property
    def late(self) -> bool:
        """With order="time": a record that was published later has come before this one."""
        return self._held.late

    @property
    def lost(self) -> bool:
        """True if another consumer is known to have the record, or if it was given back."""
        return bool(self._held.lost) and self._held.is_lost(self.offset)

    @property
    def cancelled(self) -> bool:
        """True if the job was cancelled while it is here: stop the work, nothing of it will be stored. A
        coroutine that is the handler of one record is cancelled without asking.
        """
        return bool(self._held.cancelled) and self._held.is_cancelled(self.offset)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic}/{self.partition}/{self.offset} attempt {self.attempt}>"

    def _require_lease(self) -> None:
        """Raises LeaseLost if another consumer is known to have the
        record, or if it was given back.
        """
        held = self._held
        if self.cancelled:
            raise LeaseLost(f"{self.ref} was cancelled", hint="stop the work: nothing of it is stored")
        if self.lost:
            hint = "ask for a longer lease= in consume()"
            if held.part.subscription.key_ordered:
                hint = (
                    "an earlier record of its key failed, or its lease= in consume() is too short: it "
                    "is redelivered"
                )
            raise LeaseLost(
                f"{self.topic}/{self.partition}/{self.offset} is not leased to this consumer any more",
                hint=hint,
            )


Item = TypeVar("Item", bound=Record[Any])


class FetchedBatch(Sequence[Item], Generic[Item]):
    """The messages of one `fetch`, maybe none. Messages are made on access; `values()` makes none.

    Iterating skips messages that other consumers have by then. It also skips those given back
    because an earlier record of their key failed.
    """

    __slots__ = ("_changes", "_ends", "_make", "engine", "pieces")

    def __init__(
        self, pieces: list[Piece], make: Callable[[Held, int], Item], engine: object, changes: bool = False
    ) -> None:
        """`engine` is the engine of the client that fetched the batch and acks it; `changes`: `make` may give
        records other values."""
        self.pieces, self._make, self.engine, self._changes = pieces, make, engine, changes
        self._ends: list[int] | None = None

    def values(self) -> list[bytes]:
        """The values alone, in order, without a cost per message."""
        if self._changes:
            return [self[at].value for at in range(len(self))]
        return list(chain.from_iterable(piece.values() for piece in self.pieces))

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def __iter__(self) -> Iterator[Item]:
        make = self._make
        for piece in self.pieces:
            held = piece.held
            for offset in range(piece.first, piece.end):
                if not held.lost or not held.is_lost(offset):
                    yield make(held, offset)

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> list[Item]: ...
    def __getitem__(self, at: int | slice) -> Item | list[Item]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        if self._ends is None:
            self._ends = list(accumulate(map(len, self.pieces)))
        count = self._ends[-1] if self._ends else 0
        at += count if at < 0 else 0
        if not 0 <= at < count:
            raise IndexError(f"batch of {count} messages")
        which = bisect_right(self._ends, at)
        piece = self.pieces[which]
        return self._make(piece.held, piece.end - (self._ends[which] - at))

    def __repr__(self) -> str:
        return f"<FetchedBatch of {len(self)}>"
