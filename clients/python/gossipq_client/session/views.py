"""What a consumer sees of a delivered record or batch: made when touched, opened when asked."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Generic, TypeVar, overload

from msgspec import Struct

from gossipq.errors import LeaseLost
from gossipq.types import partition_of, topic_id_of
from gossipq_client.session.held import Held, Piece
from gossipq_client.values import Undecodable, inputs, own_options, payloads


class Record(Struct, eq=False):
    """One delivered record: a view into its batch."""

    _held: Held
    offset: int

    @property
    def value(self) -> bytes:
        """As it was published."""
        held = self._held
        return (held.opened or held.values())[self.offset - held.base]

    @property
    def key(self) -> bytes | None:
        """What chose its partition; None when it has none."""
        return self._held.key(self.offset)

    @property
    def headers(self) -> dict[str, str | bytes]:
        """As its producer gave them; empty when there were none. Raises Undecodable, which is a Reject, for
        what a client of another make may have published as such."""
        try:
            return payloads.headers_of(self.header_bytes)
        except Undecodable as error:
            raise Undecodable(f"headers of {self.ref}: {error}") from None

    @property
    def headers_shown(self) -> dict[str, str | bytes]:
        """The same for who takes records of any making: what cannot be read is one header,
        `gossipq-unreadable-headers`, with its bytes."""
        return payloads.headers_shown(self.header_bytes)

    @property
    def header_bytes(self) -> bytes:
        """The same as they are stored, b"" for none: whoever publishes the record somewhere else passes them
        on as `headers=`, and nothing of them is lost, whether they can be read or not."""
        return self._held.header_bytes(self.offset)

    @property
    def route(self) -> str:
        """Words between dots, as in "eu.fr"; "" when it has none."""
        return self._held.batch.route.decode(errors="replace")

    @property
    def id(self) -> str | None:
        """The id that its producer gave it, with escapes for bytes that UTF-8 does not allow."""
        return inputs.id_text(self._held.id(self.offset))

    @property
    def id_bytes(self) -> bytes | None:
        """The id as it is stored, to be passed on as `id=` of another publish."""
        return self._held.id(self.offset) or None

    @property
    def own_options(self) -> dict[str, float | int]:
        """Options that its producer gave to this record alone: ttl, lease, attempts_max, backoff (durations
        in seconds), for `publish(..., **msg.own_options)`."""
        return own_options(self._held.batch, self.offset - self._held.base)

    @property
    def topic(self) -> str:
        """Its name."""
        return self._held.part.subscription.topics[topic_id_of(self._held.partition)].name

    @property
    def topic_id(self) -> int:
        """Of its topic: another one when a topic was removed and made anew under its name."""
        return topic_id_of(self._held.partition)

    @property
    def partition(self) -> int:
        """Its number within the topic."""
        return partition_of(self._held.partition)

    @property
    def ref(self) -> str:
        """Its name for `ref=` of any verb: TOPIC/PARTITION/OFFSET."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def attempt(self) -> int:
        """How often user code has begun with it, this time included: 1 at first, even if it was delivered to
        other consumers that did not come to it."""
        return self._held.attempt

    @property
    def failures(self) -> int:
        """How many of its attempts have failed; `attempts_max` of them make it a dead letter."""
        return self._held.failures

    @property
    def _is_last_attempt(self) -> bool:
        """Whether the record is not redelivered if this attempt fails."""
        return self.failures + 1 >= self._held.attempts_max(self.offset)

    @property
    def publish_time(self) -> float:
        """When the producer sealed its batch, in seconds since 1970."""
        return self._held.batch.info.publish_ms / 1000

    @property
    def late(self) -> bool:
        """With order="time": a record that was published after it has come before it."""
        return self._held.late

    @property
    def lost(self) -> bool:
        """It is known that somebody else has the record, or that it went back."""
        return bool(self._held.lost) and self._held.is_lost(self.offset)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic}/{self.partition}/{self.offset} attempt {self.attempt}>"

    def _require_lease(self) -> None:
        """Raises LeaseLost when it is known that somebody else has the record, or that it went back."""
        held = self._held
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


Item = TypeVar("Item", bound=Record)


class FetchedBatch(Sequence[Item], Generic[Item]):
    """What one `fetch` brought, possibly nothing. Messages are made when touched; `values()` makes none.

    Walking over it leaves out what is in other hands by then, also what went back because an earlier record
    of its key failed.
    """

    __slots__ = ("_ends", "_make", "engine", "pieces")

    def __init__(self, pieces: list[Piece], make: Callable[[Held, int], Item], engine: object) -> None:
        """`engine`: of the client that fetched it, and acks it."""
        self.pieces, self._make, self.engine = pieces, make, engine
        self._ends: list[int] | None = None

    def values(self) -> list[bytes]:
        """The values alone, in order, at no cost per message."""
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
