"""Receipts of publishes: where a record is, as soon as that is certain."""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol, overload

from msgspec import Struct

from gossipq.errors import Backpressure, GossipqError, NotUnique
from gossipq.texts import many
from gossipq.values import Run
from gossipq_client.session.packer import UNKNOWN_OFFSET, Flight, Special
from gossipq_client.values import UNSET, inputs, refs

NOWHERE = Run(1, UNKNOWN_OFFSET)  #: for a record that the confirm does not name


@dataclass(frozen=True, slots=True)
class Receipt:
    """A record that is stored on `copies` disks. With level "none" nothing was promised:
    offset -1, copies 0, no ref.

    A scheduled record has offset -1 until it is due; `ref` is its name for `why`, `cancel` and
    `reschedule`, before and after. `duplicate`: the id was known and nothing was added; offset and
    ref are those of the stored record. `kept`: likewise, because that record has the unique name.

    For a list, the fields are those of the first record, and `count` is the number of records.
    `receipts` has one receipt for each record if the records have ids or due times, else one for
    each partition and batch. For a virtual topic it has one for each topic that got a copy.
    """

    topic: str
    partition: int
    offset: int
    ref: str
    copies: int
    duplicate: bool
    count: int = 1
    receipts: Sequence["Receipt"] = ()
    kept: bool = False


NO_RECEIPT = Receipt("", 0, UNKNOWN_OFFSET, "", 0, False, 0)


def receipt_of(flight: Flight, index: int, count: int = 1) -> Receipt:
    """The receipt of record `index` of a flight that is done. Raises the batch's error."""
    if flight.error is not None:
        flight.show_error(index, count)
        raise flight.error
    writer, special, duplicate = flight.writer, flight.special, flight.duplicate
    offset, entry, record, kept = UNKNOWN_OFFSET, 0, 0, False
    if special is not None and special.runs:
        run, record = _run(special, index)
        offset, entry, duplicate, kept = (
            run.offset + record if run.offset >= 0 else UNKNOWN_OFFSET,
            run.index,
            run.duplicate,
            run.kept,
        )
        record += run.record
    elif flight.offset >= 0:
        offset = flight.offset + index
    topic, number = writer.topic.name, writer.number
    ref = refs.text(topic, number, offset, entry, record)
    if kept and special is not None and special.strict:
        at = special.places[index] if special.places is not None else index
        if special.strict[at]:
            raise not_unique(special.strict[at], "" if offset < 0 and not entry else ref)
    return Receipt(topic, number, offset, ref, flight.copies, duplicate, count, kept=kept)


def not_unique(name: bytes, ref: str) -> NotUnique:
    """The error of a record whose unique name the record `ref` has."""
    holder, hint = (f"the record {ref}", f"gossipq why {ref}") if ref else ("another record", "publish again")
    error = NotUnique(f"unique={name.decode(errors='backslashreplace')!r} is the name of {holder}", hint=hint)
    error.ref = ref
    return error


def _run(special: Special, index: int) -> tuple[Run, int]:
    """The confirmed run with a record, and the record's place in the run."""
    if not special.ends:
        special.ends = list(accumulate(run.count for run in special.runs))
    at = special.places[index] if special.places is not None else index
    which = bisect_right(special.ends, at)
    if which == len(special.ends):
        return NOWHERE, 0
    return special.runs[which], at - special.ends[which] + special.runs[which].count


class Awaited(Protocol):
    """Records whose receipt is still to come, and the flights that it waits for."""

    @property
    def flights(self) -> list[Flight]: ...

    def receipt(self) -> Receipt:
        """The receipt, when all flights are done. Raises the error of the
        first flight that has one.
        """

    def under_way(self) -> "UnderWay":
        """The records that are being sent, when the publish may have ended half way."""


class UnderWay(NamedTuple):
    """The records of a publish that are being sent, by their places in it, and their flights."""

    places: list[int]
    flights: list[Flight]


class One:
    """One record."""

    __slots__ = ("flights", "index")

    def __init__(self, flight: Flight, index: int) -> None:
        self.flights, self.index = [flight], index

    def receipt(self) -> Receipt:
        return receipt_of(self.flights[0], self.index)

    def under_way(self) -> "UnderWay":
        return UnderWay([0], self.flights)


class Merged:
    """A list of plain records that share a batch with earlier and later records."""

    __slots__ = ("_count", "_first", "flights")

    def __init__(self, flight: Flight, first: int, count: int) -> None:
        self.flights, self._first, self._count = [flight], first, count

    def receipt(self) -> Receipt:
        return receipt_of(self.flights[0], self._first, self._count)

    def under_way(self) -> "UnderWay":
        return UnderWay(list(range(self._count)), self.flights)


class Listed(Sequence[Receipt]):
    """The records of a list. As a sequence it has the receipt of each, made on access.

    `order[i]` is the place of record i, counted over all flights; None if
    they keep the list's order.
    """

    __slots__ = ("_starts", "flights", "order", "single")

    def __init__(
        self, flights: list[Flight], order: "array[int] | None" = None, single: bool = False
    ) -> None:
        self.flights, self.order = flights, order
        self.single = single  #: True: a receipt for each record
        self._starts: list[int] = []

    def receipt(self) -> Receipt:
        self._require_free()
        if len(self.flights) == 1 and not self.single:
            return receipt_of(self.flights[0], 0, self.flights[0].count)
        receipts: Sequence[Receipt] = tuple(receipt_of(flight, 0, flight.count) for flight in self.flights)
        if not receipts:
            return NO_RECEIPT
        first = self[0] if self.single else receipts[0]
        duplicate = all(_all_duplicate(flight) for flight in self.flights)
        kept = self.single and all(_all_kept(flight) for flight in self.flights)
        copies = min(flight.copies for flight in self.flights)
        return Receipt(
            first.topic,
            first.partition,
            first.offset,
            first.ref,
            copies,
            duplicate,
            sum(flight.count for flight in self.flights),
            self if self.single else receipts,
            kept,
        )

    def _require_free(self) -> None:
        """Raises NotUnique for the first record whose unique name had to be free and was not."""
        for flight in self.flights:
            special = flight.special
            if special is None or not special.strict or not any(run.kept for run in special.runs):
                continue
            for index in range(flight.count):
                receipt_of(flight, index)

    def under_way(self) -> "UnderWay":
        flights = [flight for flight in self.flights if flight.sealed]
        end = sum(flight.count for flight in flights)  # they are in the order of the list
        order = range(end) if self.order is None else self.order
        return UnderWay([at for at, place in enumerate(order) if place < end], flights)

    def __len__(self) -> int:
        return sum(flight.count for flight in self.flights)

    @overload
    def __getitem__(self, at: int) -> Receipt: ...
    @overload
    def __getitem__(self, at: slice) -> list[Receipt]: ...
    def __getitem__(self, at: int | slice) -> Receipt | list[Receipt]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        if not self._starts:
            self._starts = list(accumulate((flight.count for flight in self.flights), initial=0))
        at += self._starts[-1] if at < 0 else 0
        if not 0 <= at < self._starts[-1]:
            raise IndexError(f"receipts of {many(len(self), 'record')}")
        place = at if self.order is None else self.order[at]
        which = bisect_right(self._starts, place) - 1
        return receipt_of(self.flights[which], place - self._starts[which])

    def __iter__(self) -> Iterator[Receipt]:
        return (self[at] for at in range(len(self)))

    def __repr__(self) -> str:
        return f"<receipts of {many(len(self), 'record')}>"


class Copied:
    """One record or list that was copied to several topics; each record is recognized by its id."""

    __slots__ = ("ids", "parts")

    def __init__(self, parts: Sequence[Awaited], ids: Sequence[bytes]) -> None:
        self.parts, self.ids = parts, ids

    @property
    def flights(self) -> list[Flight]:
        return [flight for part in self.parts for flight in part.flights]

    def receipt(self) -> Receipt:
        try:
            receipts = tuple(part.receipt() for part in self.parts)
        except GossipqError as error:
            raise half_way(error, self.ids) from None
        first, duplicate = receipts[0], all(receipt.duplicate for receipt in receipts)
        copies = min(receipt.copies for receipt in receipts)
        return Receipt(
            first.topic, first.partition, first.offset, first.ref, copies, duplicate, first.count, receipts
        )

    def under_way(self) -> "UnderWay":
        """The records that at least one topic gets."""
        parts = [part.under_way() for part in self.parts]
        flights = [flight for part in parts for flight in part.flights]
        return UnderWay(sorted({at for part in parts for at in part.places}), flights)


class Successive:
    """A list that was sent in parts, one after the other, since its records differ in more than values."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Awaited]) -> None:
        self.parts = parts

    @property
    def flights(self) -> list[Flight]:
        return [flight for part in self.parts for flight in part.flights]

    def receipt(self) -> Receipt:
        found = [part.receipt() for part in self.parts]
        return replace(
            found[0],
            copies=min(each.copies for each in found),
            duplicate=all(each.duplicate for each in found),
            count=sum(each.count for each in found),
            receipts=tuple(one for each in found for one in each.receipts or (each,)),
        )

    def under_way(self) -> "UnderWay":
        """The records of all parts, numbered through."""
        places, flights, first = list[int](), list[Flight](), 0
        for part in self.parts:
            under_way = part.under_way()
            places += [first + at for at in under_way.places]
            flights += under_way.flights
            first += part.receipt().count if all(each.done for each in part.flights) else 0
        return UnderWay(places, flights)


def half_way(error: GossipqError, ids: Sequence[bytes]) -> GossipqError:
    """The error of a publish that only some topics of a virtual one may have. It carries the ids,
    with which a repeat is safe.
    """
    texts = tuple(each.decode(errors="backslashreplace") for each in ids)
    again = (
        f"publish again with id={texts[0]!r}"
        if len(texts) == 1
        else "publish again with ids= the error's .ids"
    )
    named = type(error)(
        error.message, f"{again}: topics that have it know that", error.retry_after_ms, error.detail
    )
    named.ids = texts
    return named


def part_sent(full: Backpressure, sent: Sequence[Flight]) -> Backpressure:
    """The error of a list of which a part was sent."""
    records = many(sum(flight.count for flight in sent), "record")
    return Backpressure(f"{full.message}; {records} of the list are on their way all the same", full.hint)


def _all_duplicate(flight: Flight) -> bool:
    runs = flight.special.runs if flight.special is not None else []
    return all(run.duplicate for run in runs) if runs else flight.duplicate


def _all_kept(flight: Flight) -> bool:
    runs = flight.special.runs if flight.special is not None else []
    return bool(runs) and all(run.kept for run in runs)


class Waiter(Protocol):
    def await_flights(self, flights: list[Flight], timeout: float | None) -> None:
        """Returns when all are done. Raises NotConfirmed when the time is over."""

    def seconds(self, timeout: inputs.Timeout) -> float | None:
        """The time that a call waits; None = for ever."""

    def progress(self) -> bool:
        """Takes messages that have arrived, without waiting. Returns False if the client is
        closed and no more will come.
        """

    def when_done(self, flights: list[Flight], call: Callable[[], object]) -> None:
        """Calls it once all are done."""


class PendingReceipt(Struct, eq=False):
    """The future of a receipt: of one record, of a list, or of a record that is copied to several topics."""

    _client: Waiter
    _sent: Flight | Awaited  #: of one record its flight, since there is one for each `post`
    _index: int = 0  #: of one record: its place in the flight

    def done(self) -> bool:
        """True if `result` returns or raises at once."""
        if self._ended() or not self._client.progress():
            return True
        return self._ended()

    def _flights(self) -> list[Flight]:
        return [self._sent] if isinstance(self._sent, Flight) else self._sent.flights

    def _ended(self) -> bool:
        return all(flight.done for flight in self._flights())

    def result(self, timeout: inputs.Timeout = UNSET) -> Receipt:
        """Wait for the receipt, `timeout` at most, in seconds or as "5s"; without it the client's timeout,
        None: for ever.

        Raises NotConfirmed (may be stored) or Refused (certainly not stored). For a list it raises the first
        error; records of other batches may be stored then.
        """
        sent = self._sent
        if not isinstance(sent, Flight):
            self._client.await_flights(sent.flights, self._client.seconds(timeout))
            return sent.receipt()
        if not sent.done:
            self._client.await_flights([sent], self._client.seconds(timeout))
        return receipt_of(sent, self._index)

    def exception(self, timeout: inputs.Timeout = UNSET) -> GossipqError | None:
        """Wait as `result` does, also in seconds, and return the error that it raises, or None. Raises
        NotConfirmed when the time is over.
        """
        try:
            self.result(timeout)
        except GossipqError as error:
            if not self.done():
                raise
            return error
        return None

    def add_done_callback(self, call: "Callable[[PendingReceipt], object]") -> None:
        """Call `call` with this receipt once it is done: in this thread if it is done now, else in a thread
        of the client, which it must not hold up for long.
        """
        self._client.when_done(self._flights(), partial(call, self))
