"""Batches for the leaders: sealing, sending in order, confirms, refusals, and lost connections.

A batch keeps its sequence until it is confirmed. So a batch that was sent on a lost connection is
sent again unchanged, and the leader answers a repeat with the old offset. A final refusal lowers
the sequences of later batches, since the leader still waits for the refused one.
"""

from collections import Counter
from collections.abc import Callable
from itertools import islice

from gossipq import limits
from gossipq.errors import (
    Busy,
    Forbidden,
    GossipqError,
    Internal,
    NotConfirmed,
    NotLeader,
    OutOfSequence,
    Refused,
    UnknownTopic,
)
from gossipq.messages import Confirm, Publish
from gossipq.texts import many
from gossipq.wire import frames
from gossipq_client.session.connections import Lane
from gossipq_client.session.links import Links
from gossipq_client.session.packer import UNCONFIRMED_MAX, WINDOW_BATCHES, Flight, Topic, Writer

RETRY_MS = 20  #: pause before a batch is sent again if the leader named none
LINGER_MS = 2  #: how long records without confirm wait for others to share a batch
#: the leader gives these errors before it looks at sequences, so they say nothing of an
#: earlier attempt. Refused itself means that the shard has stopped there; errors
#: derived from it are not meant
UNSEEN = (Forbidden, Internal, Refused)
FAILURES_MAX = 1_000  #: failed batches kept for `failure`; further ones are only counted


class Sending:
    def __init__(self, links: Links, new_producer: Callable[[], bytes]) -> None:
        self.topics: dict[str, Topic] = {}
        #: topic -> open flight that takes records of bytes without options
        self.plain: dict[str, Flight] = {}
        self.gathers = False  #: whether records published until `depart` are sent together
        self.gathered: set[Writer] = set()  #: partitions whose open flight is sent by `depart`
        self.unconfirmed_bytes = 0
        #: topics to resolve again, because their leader does not know them
        self.stale: list[Topic] = []
        self.linger_ms = 0  #: when an open flight without confirm must be sent; 0 = none waits
        #: whether its leader knows that subscription
        self.stands: Callable[[int], bool] = lambda subscription: True
        self._freed_ms = 0  #: when any flight last ended
        self._links, self._new_producer = links, new_producer
        self._producer = new_producer()
        self.in_flight: dict[int, Flight] = {}
        #: sealed flights without confirm that have no open connection yet
        self.loose: list[Flight] = []
        self._failed: list[Flight] = []  #: flights whose errors the user has probably not seen
        self._untold = 0  #: how many more failed, of which only the number is kept
        #: topics that were replaced: records for the first go to the second
        self.moves: list[tuple[Topic, Topic]] = []
        self.waiting: set[Writer] = set()  #: writers with flights that are not being sent
        self._asked_again: set[int] = set()  #: partitions whose topics were resolved a second time

    @property
    def idle(self) -> bool:
        return (
            not self.in_flight
            and not self.waiting
            and not self.loose
            and not any(map(_is_open, self.writers()))
        )

    def writers(self) -> list[Writer]:
        return [writer for topic in self.topics.values() for writer in topic.writers]

    def unconfirmed_records(self) -> int:
        """Unconfirmed records, also those in open batches."""
        writers = self.writers()
        still_open = [
            writer.open.values for writer in writers if writer.open is not None and not writer.open.done
        ]
        return sum(flight.count for writer in writers for flight in writer.flights) + sum(
            len(each or ()) for each in still_open
        )

    def failure(self) -> GossipqError | None:
        """The first error of batches whose receipts were never looked at, with their
        number; each is reported once.
        """
        untold = self._untold_flights()
        count, self._untold = len(untold) + self._untold, 0
        self._failed.clear()
        first = untold[0].error if untold else None
        if first is not None and count > 1:
            return type(first)(
                f"{first.message} (the first of {many(count, 'batch', 'batches')})",
                first.hint,
                first.retry_after_ms,
                first.detail,
            )
        return first

    def _untold_flights(self) -> list[Flight]:
        return [flight for flight in self._failed if flight.untold]

    def note_failed(self, flight: Flight) -> None:
        self._failed.append(flight)
        if len(self._failed) > FAILURES_MAX:
            untold = self._untold_flights()
            self._failed = untold[: FAILURES_MAX // 2]
            self._untold += max(0, len(untold) - FAILURES_MAX // 2)

    def full(self, writer: Writer) -> bool:
        """True if one more batch must wait for a confirm or, without confirms, for a connection."""
        return (
            len(writer.flights) >= WINDOW_BATCHES
            or (self.unconfirmed_bytes > 0 and self.unconfirmed_bytes >= self._window_bytes(writer))
            or (bool(self.loose) and self._loose_bytes() >= limits.PUBLISH_WINDOW_BYTES)
        )

    def _loose_bytes(self) -> int:
        return sum(len(flight.batch) for flight in self.loose)

    def freed_ms(self, writer: Writer) -> int:
        """When the cause of the full window last changed, boot time; 0 = never."""
        return writer.freed_ms if writer.full else self._freed_ms

    def has_room(self, flights: list[Flight]) -> bool:
        """True if all of them can be sent now. A batch with no others before it always can."""
        size = self.unconfirmed_bytes + sum(flight.size for flight in flights)
        counts = Counter(flight.writer for flight in flights)
        return all(
            (not writer.flights or len(writer.flights) + count <= WINDOW_BATCHES)
            and (not self.unconfirmed_bytes or size <= self._window_bytes(writer))
            for writer, count in counts.items()
        )

    def _window_bytes(self, writer: Writer) -> int:
        lane = self._links.lane(writer.shard)
        return lane.window_bytes if lane else limits.PUBLISH_WINDOW_BYTES

    def seal(self, writer: Writer) -> None:
        """Closes the open flight of a partition and sends it."""
        flight = writer.open
        if flight is None:
            return
        topic = writer.topic
        if self.plain.get(topic.name) is flight:
            del self.plain[topic.name]
        topic.turn += 1
        if flight.level == "none":
            flight.seal(0, self._links.wall_ms, self._links.now_ms)
            self.loose.append(flight)
            writer.open = None
            self._pump_loose()
            return
        flight.seal(writer.sequence, self._links.wall_ms, self._links.now_ms)
        flight.size = len(flight.batch)
        writer.flights.append(flight)
        writer.open = None  # at any moment it is in one of the two places
        writer.sequence += 1
        self.unconfirmed_bytes += flight.size
        self.pump(writer)

    # --- sending

    def pump(self, writer: Writer) -> None:
        """Sends waiting flights in order if the connection is open, and no more
        than the leader can remember.
        """
        lane = self._links.lane(writer.shard)
        # the pause came from another process
        news = lane is not None and lane.greeting != writer.greeting
        if lane is None or (self._links.now_ms < writer.paused_until_ms and not news):
            self.waiting.add(writer)
            return
        if news:
            self.doubt(writer)
            writer.greeting, writer.sent = lane.greeting, 0
        flights = writer.flights
        for at in range(writer.sent, min(len(flights), UNCONFIRMED_MAX)):
            flight = flights[at]
            if (
                flight.special is not None
                and flight.special.acks
                and not self.stands(flight.special.subscription)
            ):
                self.waiting.add(writer)
                return
            self.in_flight.pop(flight.request_id, None)
            flight.request_id = self._links.next_id()
            if flight.special is not None:
                flight.special.term = max(flight.special.term, self._links.term(writer.shard))
            self.in_flight[flight.request_id] = flight
            self._send(lane, flight)
            writer.sent = at + 1
        self.waiting.discard(writer)

    @staticmethod
    def doubt(writer: Writer) -> None:
        """Marks the flights that were sent: they may be stored, and that
        leader will not confirm them.
        """
        for flight in islice(writer.flights, writer.sent):
            flight.uncertain = True

    def _send(self, lane: Lane, flight: Flight) -> None:
        writer, special = flight.writer, flight.special
        if special is None:
            request = Publish(writer.partition, flight.level)
        else:
            request = special.request(writer.partition, flight.level, self._links.now_ms)
        control = frames.encode(request, writer.shard, flight.request_id)
        lane.use(self._links.now_ms)
        self._links.out.append((lane.endpoint, [control, flight.batch]))

    def _pump_loose(self) -> None:
        kept = []
        for flight in self.loose:
            lane = self._links.lane(flight.writer.shard)
            if lane is None:
                kept.append(flight)
            else:
                self._send(lane, flight)
        self.loose = kept

    def pump_all(self) -> None:
        """Call after any change of connections: flights that were sent on an
        old greeting are sent again.
        """
        for writer in self.writers():
            if writer.flights:
                self.pump(writer)
        if self.loose:
            self._pump_loose()

    def tick(self) -> None:
        now_ms = self._links.now_ms
        if self.linger_ms and now_ms >= self.linger_ms:
            self.linger_ms = 0
            for writer in self.writers():
                if writer.open is not None and writer.open.level == "none":
                    self.seal(writer)
        for writer in list(self.waiting):
            if now_ms >= writer.paused_until_ms:
                self.pump(writer)

    def deadline_ms(self) -> int | None:
        """When `tick` has work to do."""
        pauses = [
            writer.paused_until_ms for writer in self.waiting if writer.paused_until_ms > self._links.now_ms
        ]
        if self.linger_ms:
            pauses.append(self.linger_ms)
        return min(pauses, default=None)

    # --- answers

    def confirmed(self, confirm: Confirm) -> list[int]:
        """Takes confirms. Returns request ids of the rows that do not belong to a
        current publish of this client.
        """
        runs, others = dict(confirm.runs) if confirm.runs else None, []
        for request_id, offset, copies, duplicate in confirm.rows:
            flight = self.in_flight.get(request_id)
            if flight is None:
                others.append(request_id)
                continue
            if runs is not None and flight.special is not None:
                flight.special.runs = runs.get(request_id, [])
            flight.settle(offset, copies, duplicate)  # before it is removed: see `rebuild`
            del self.in_flight[request_id]
            self.unconfirmed_bytes -= flight.size
            writer = flight.writer
            flights = writer.flights
            flights.remove(flight)  # the first one, since a leader confirms in order
            writer.freed_ms = self._freed_ms = self._links.now_ms
            writer.sent -= writer.sent > 0
            if writer.sent < len(flights):
                self.pump(writer)
            elif writer.open is not None:
                self._send_open(writer)
        return others

    def _send_open(self, writer: Writer) -> None:
        """Sends the open flight as soon as the last flight before it has ended."""
        if not writer.flights and writer.open is not None:
            self.seal(writer)

    def refused(self, request_id: int, error: GossipqError) -> bool:
        """Takes a refusal. Returns False if the request is no current publish of this client."""
        flight = self.in_flight.get(request_id)
        if flight is None:
            return False
        writer = flight.writer
        if isinstance(error, NotLeader):
            # a leader that stops leading also refuses records that it has stored
            self.doubt(writer)
            self._rewind(writer, 0, 0)
            writer.paused_until_ms = 0
        elif type(error) is Busy:
            self._rewind(writer, 0, error.retry_after_ms)
        elif isinstance(error, OutOfSequence):
            self._resequence(flight, error.expected)
        elif isinstance(error, UnknownTopic) and writer.partition not in self._asked_again:
            self._asked_again.add(writer.partition)
            self.stale.append(writer.topic)
            self._rewind(writer, 0, limits.MINUTE_MS)
        else:
            self._fail(flight, error)
        return True

    def forgotten(self, request_id: int, term: int) -> bool:
        """The process that answered did not know the step. Sends it again if it was last sent
        before `term`; returns True if so.
        """
        flight = self.in_flight.get(request_id)
        if flight is None or flight.special is None or term <= flight.special.term:
            return False
        flight.special.term = term
        self._rewind(flight.writer, 0, 0)
        flight.writer.paused_until_ms = 0
        return True

    def unheard(self, request_id: int) -> None:
        """That process does not know the session, so it has stored nothing of this attempt."""
        flight = self.in_flight.get(request_id)
        if flight is not None:
            self._rewind(flight.writer, flight.writer.flights.index(flight), 0)

    def doubtful(self, request_id: int) -> None:
        """The process that answered led no more; only the next leader knows
        whether the batch is stored.
        """
        flight = self.in_flight.get(request_id)
        if flight is not None:
            self.doubt(flight.writer)
            self._rewind(flight.writer, 0, 0)

    def _rewind(self, writer: Writer, to: int, retry_after_ms: int) -> None:
        """Sends everything from flight `to` on again, after a pause; answers to the old
        requests no longer count.
        """
        for flight in islice(writer.flights, to, None):
            self.in_flight.pop(flight.request_id, None)
        writer.sent = min(writer.sent, to)
        writer.paused_until_ms = self._links.now_ms + (retry_after_ms or RETRY_MS)
        self.waiting.add(writer)

    def _resequence(self, flight: Flight, expected: int) -> None:
        writer = flight.writer
        if expected < writer.flights[0].sequence:
            self._start_over(writer)
        elif flight.sequence < expected:
            # its repeats, and those of older ones, are refused for ever
            newest = max(flight.sequence, expected - 1 - limits.PRODUCER_REPEATS)
            for old in [old for old in writer.flights if old.sequence <= newest]:
                self._drop(
                    old,
                    NotConfirmed("stored, but its offset is not remembered any more", hint="read it back"),
                )
        self._rewind(writer, 0, 0)
        self._send_open(writer)

    def _start_over(self, writer: Writer) -> None:
        """The leader has forgotten this producer. Batches that are certainly not stored are sent
        under a new one; the fate of the others is unknown.
        """
        for flight in [flight for flight in writer.flights if flight.uncertain]:
            self._drop(
                flight,
                NotConfirmed("the leader no longer knows whether this batch is stored", hint="read it back"),
            )
        writer.producer = self._new_producer()
        self.adopt_producer(writer)

    @staticmethod
    def adopt_producer(writer: Writer) -> None:
        for sequence, flight in enumerate(writer.flights, 1):
            flight.restamp(writer.producer, sequence)
        writer.sequence = len(writer.flights) + 1

    def _fail(self, flight: Flight, error: GossipqError) -> None:
        """Fails a flight for good. Later batches get lower sequences by one, and are sent again.

        If the refusal says nothing about an earlier attempt, they keep their sequences: then the
        leader tells whether the batch before them is stored.
        """
        writer, at = flight.writer, flight.writer.flights.index(flight)
        self._rewind(writer, at, 0)
        writer.paused_until_ms = 0
        if flight.uncertain and type(error) in UNSEEN:
            why = f"{error.message}; it was sent before that was so, and may be stored"
            self._drop(flight, NotConfirmed(why, hint="read it back"))
        else:
            writer.gap = flight.sequence
            self._drop(flight, error)
            self.close_gap(writer)
        self.pump(writer)
        self._send_open(writer)

    def close_gap(self, writer: Writer) -> None:
        behind = [flight for flight in writer.flights if flight.sequence >= writer.gap]
        for sequence, flight in enumerate(behind, writer.gap):
            flight.restamp(flight.producer, sequence)
        writer.sequence, writer.gap = writer.gap + len(behind), 0

    def _drop(self, flight: Flight, error: GossipqError) -> None:
        flight.fail(error)  # before it is removed: see `rebuild`
        self.in_flight.pop(flight.request_id, None)
        flight.writer.flights.remove(flight)
        flight.writer.freed_ms = self._freed_ms = self._links.now_ms
        self.unconfirmed_bytes -= flight.size
        self.note_failed(flight)


def _is_open(writer: Writer) -> bool:
    return writer.open is not None
