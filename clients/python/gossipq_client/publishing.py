"""Batches on their way to the leaders: sealing, sending in order, confirms, refusals, and what a lost connection means.

A batch keeps its sequence until it is confirmed, so whatever was sent on a lost connection is sent again unchanged and the
leader answers a repeat with its old offset. A refusal for good lowers the sequences behind it, since the leader still waits for
that one.
"""

from collections import Counter
from collections.abc import Callable
from itertools import islice

from gossipq import limits
from gossipq.errors import Busy, GossipqError, NotConfirmed, NotLeader, OutOfSequence, UnknownTopic
from gossipq.messages import Confirm, Publish
from gossipq.values import Range, TopicInfo
from gossipq.wire import frames
from gossipq_client.connections import Lane
from gossipq_client.links import Links
from gossipq_client.packer import UNCONFIRMED_MAX, WINDOW_BATCHES, Flight, Special, Topic, Writer, runs
from gossipq_client.terms import NOTHING, Options, Terms

RETRY_MS = 20  #: pause before a batch is sent again when the leader named none
LINGER_MS = 2  #: how long records that ask for no confirm wait for company


class Publishing:
    def __init__(self, links: Links, new_producer: Callable[[], bytes]) -> None:
        self.topics: dict[str, Topic] = {}
        self.plain: dict[str, Flight] = {}  #: open flights that take a record of bytes and nothing else, by topic
        self.unconfirmed_bytes = 0
        self.stale: list[Topic] = []  #: to be resolved again: their leader does not know them
        self.linger_ms = 0  #: when an open flight without confirm must go; 0 = none waits
        self.stands: Callable[[int], bool] = lambda subscription: True  #: whether its leader knows that subscription
        self._links, self._new_producer = links, new_producer
        self._producer = new_producer()
        self._flying: dict[int, Flight] = {}
        self._loose: list[Flight] = []  #: sealed, without confirm, no open way yet
        self._failed: list[Flight] = []
        self._waiting: set[Writer] = set()  #: have flights that are not under way
        self._asked_again: set[int] = set()  #: partitions whose topics were resolved a second time

    @property
    def idle(self) -> bool:
        return not self._flying and not self._waiting and not self._loose and not any(map(_is_open, self._writers()))

    def _writers(self) -> list[Writer]:
        return [writer for topic in self.topics.values() for writer in topic.writers]

    def unconfirmed_records(self) -> int:
        return sum(flight.count for writer in self._writers() for flight in writer.flights)

    def failures(self) -> list[GossipqError]:
        """Errors of batches whose receipts nobody has looked at; each is told once."""
        untold = [flight.error for flight in self._failed if flight.error is not None and not flight.told]
        self._failed.clear()
        return untold

    def full(self, writer: Writer) -> bool:
        """Whether one more batch must wait for a confirm."""
        return writer.full or (self.unconfirmed_bytes > 0 and self.unconfirmed_bytes >= self._window_bytes(writer))

    def has_room(self, flights: list[Flight]) -> bool:
        """Whether all of them can go now. What nothing is waiting before always can."""
        size = self.unconfirmed_bytes + sum(flight.size for flight in flights)
        counts = Counter(flight.writer for flight in flights)
        return all(
            len(writer.flights) + count <= WINDOW_BATCHES and (not self.unconfirmed_bytes or size <= self._window_bytes(writer))
            for writer, count in counts.items()
        )

    def _window_bytes(self, writer: Writer) -> int:
        lane = self._links.lane(writer.shard)
        return lane.window_bytes if lane else limits.PUBLISH_WINDOW_BYTES

    # --- records in

    def append(
        self,
        writer: Writer,
        value: bytes,
        key: bytes | None,
        headers: bytes,
        route: bytes,
        level: str,
        terms: Terms | None = None,
    ) -> tuple[Flight, int]:
        """The flight that took the record, and its index there. With nothing unconfirmed before it, it goes at once."""
        flight = writer.open
        size = len(value) + len(key or b"") + len(headers)
        keyed, level, scheduled = key is not None, level or writer.topic.level, terms is not None and terms.due_ms > 0
        if flight is not None and not flight.takes(size, keyed, route, level, scheduled):
            self.seal(writer)
            flight = None
        if flight is None:
            flight = writer.open = Flight(writer, keyed, route, level, scheduled)
        index = flight.add(value, key, headers, terms)
        if flight.size >= limits.BATCH_BYTES_MAX or index + 1 >= limits.BATCH_RECORDS_MAX:
            self.seal(writer)
        elif level == "none":
            self.linger_ms = self.linger_ms or self._links.now_ms + LINGER_MS
            self._note_plain(flight)
        elif not writer.flights:
            self.seal(writer)
        else:
            self._note_plain(flight)
        return flight, index

    def _note_plain(self, flight: Flight) -> None:
        topic = flight.writer.topic
        plain = flight.keys is None and flight.headers is None and flight.special is None
        if plain and not flight.route and flight.level == topic.level:
            self.plain[topic.name] = flight
        elif self.plain.get(topic.name) is flight:
            del self.plain[topic.name]

    def batches(
        self,
        writer: Writer,
        values: list[bytes],
        keys: list[bytes] | None,
        headers: bytes,
        route: bytes,
        level: str,
        terms: list[Terms] | None = None,
    ) -> list[Flight]:
        """Flights made of a list, not sealed yet: `take` sends each as the window allows. All or none are scheduled."""
        count, level, made = len(values), level or writer.topic.level, []
        total = sum(map(len, values)) + sum(map(len, keys or ())) + count * len(headers)
        ranges = [(0, count)]
        if total > limits.BATCH_BYTES_MAX or count > limits.BATCH_RECORDS_MAX:
            ranges = runs(
                [len(value) + len(key) + len(headers) for value, key in zip(values, keys or [b""] * count, strict=True)]
            )
        for first, end in ranges:
            flight = Flight(writer, keys is not None, route, level, terms is not None and terms[0].due_ms > 0)
            whole = end - first == count
            flight.size = total * (end - first) // count
            flight.values = values if whole else values[first:end]
            if keys is not None:
                flight.keys = keys if whole else keys[first:end]
            if headers:
                flight.headers = [headers] * (end - first)
            if terms is not None:
                flight.special = Special()
                flight.special.terms = terms if whole else terms[first:end]
            made.append(flight)
        return made

    def step(
        self,
        writer: Writer,
        options: Options,
        value: bytes,
        subscription: int,
        acks: list[Range],
        then: Callable[[Flight], None],
    ) -> Flight:
        """One record and the acks of the records it comes of, as one atomic step, sent at once behind what its partition has.

        The flight fails with LeaseLost when somebody else holds one of them; `then` is told when it is done, well or not.
        """
        terms = options.terms
        self.seal(writer)
        flight = Flight(writer, options.key is not None, options.route, "stored", terms is not None and terms.due_ms > 0)
        flight.add(value, options.key, options.headers, terms or NOTHING)
        assert flight.special is not None, "terms make a flight special"
        flight.special.subscription, flight.special.acks, flight.special.then = subscription, acks, then
        writer.open = flight
        self.seal(writer)
        return flight

    def take(self, flight: Flight) -> None:
        """Seals and sends a flight of `batches`, behind whatever its partition has open."""
        writer = flight.writer
        self.seal(writer)
        writer.open = flight
        self.seal(writer)

    def seal(self, writer: Writer) -> None:
        """Closes the open flight of a partition and sends it."""
        flight, writer.open = writer.open, None
        if flight is None:
            return
        topic = writer.topic
        if self.plain.get(topic.name) is flight:
            del self.plain[topic.name]
        topic.turn += 1
        if flight.level == "none":
            flight.seal(0, self._links.wall_ms, self._links.now_ms)
            self._send_loose(flight)
            return
        flight.seal(writer.sequence, self._links.wall_ms, self._links.now_ms)
        writer.sequence += 1
        writer.flights.append(flight)
        flight.size = len(flight.batch)
        self.unconfirmed_bytes += flight.size
        self.pump(writer)

    def hurry(self, flight: Flight) -> None:
        """Somebody waits for this flight: it goes now."""
        if flight.writer.open is flight:
            self.seal(flight.writer)

    def seal_all(self) -> None:
        for topic in self.topics.values():
            self._seal_topic(topic)

    def _seal_topic(self, topic: Topic) -> None:
        for writer in topic.writers:
            self.seal(writer)

    # --- sending

    def pump(self, writer: Writer) -> None:
        """Sends what is not under way, in order, as far as there is an open way, and no more than the leader can remember."""
        lane = self._links.lane(writer.shard)
        news = lane is not None and lane.greeting != writer.greeting  # who paused this writer has no say there
        if lane is None or (self._links.now_ms < writer.paused_until_ms and not news):
            self._waiting.add(writer)
            return
        if news:
            self._doubt(writer)
            writer.greeting, writer.sent = lane.greeting, 0
        flights = writer.flights
        for at in range(writer.sent, min(len(flights), UNCONFIRMED_MAX)):
            flight = flights[at]
            if flight.special is not None and flight.special.acks and not self.stands(flight.special.subscription):
                self._waiting.add(writer)
                return
            self._flying.pop(flight.request_id, None)
            flight.request_id = self._links.next_id()
            if flight.special is not None:
                flight.special.term = max(flight.special.term, self._links.term(writer.shard))
            self._flying[flight.request_id] = flight
            self._send(lane, flight)
            writer.sent = at + 1
        self._waiting.discard(writer)

    @staticmethod
    def _doubt(writer: Writer) -> None:
        """What is under way may be stored, and nobody there will say so."""
        for flight in islice(writer.flights, writer.sent):
            flight.uncertain = True

    def _send(self, lane: Lane, flight: Flight) -> None:
        writer, special = flight.writer, flight.special
        if special is None:
            request = Publish(writer.partition, flight.level)
        else:
            request = special.request(writer.partition, flight.level, self._links.now_ms)
        control = frames.encode(request, writer.shard, flight.request_id)
        self._links.out.append((lane.endpoint, [control, flight.batch]))

    def _send_loose(self, flight: Flight) -> None:
        lane = self._links.lane(flight.writer.shard)
        if lane is None:
            self._loose.append(flight)
        else:
            self._send(lane, flight)

    def pump_all(self) -> None:
        """After any change of the ways: what was sent on an old greeting goes again."""
        for writer in self._writers():
            if writer.flights:
                self.pump(writer)
        loose, self._loose = self._loose, []
        for flight in loose:
            self._send_loose(flight)

    def tick(self) -> None:
        now_ms = self._links.now_ms
        if self.linger_ms and now_ms >= self.linger_ms:
            self.linger_ms = 0
            for writer in self._writers():
                if writer.open is not None and writer.open.level == "none":
                    self.seal(writer)
        for writer in list(self._waiting):
            if now_ms >= writer.paused_until_ms:
                self.pump(writer)

    def deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        pauses = [writer.paused_until_ms for writer in self._waiting if writer.paused_until_ms > self._links.now_ms]
        if self.linger_ms:
            pauses.append(self.linger_ms)
        return min(pauses, default=None)

    # --- answers

    def confirmed(self, confirm: Confirm) -> list[int]:
        """Request ids of the rows that are not for a publish of ours, or for an old one."""
        runs, others = dict(confirm.runs) if confirm.runs else None, []
        for request_id, offset, copies, duplicate in confirm.rows:
            flight = self._flying.pop(request_id, None)
            if flight is None:
                others.append(request_id)
                continue
            self.unconfirmed_bytes -= flight.size
            if runs is not None and flight.special is not None:
                flight.special.runs = runs.get(request_id, [])
            writer = flight.writer
            flights = writer.flights
            flights.remove(flight)  # the first, since a leader confirms in order
            writer.sent -= writer.sent > 0
            flight.settle(offset, copies, duplicate)
            if not flights and writer.open is not None:
                self.seal(writer)
            elif writer.sent < len(flights):
                self.pump(writer)
        return others

    def refused(self, request_id: int, error: GossipqError) -> bool:
        """False when the request is not a publish of ours, or an old one."""
        flight = self._flying.get(request_id)
        if flight is None:
            return False
        writer = flight.writer
        if isinstance(error, NotLeader):
            self._doubt(writer)  # a leader that had to go says this of what it has stored, too
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
        """Who answered did not know what a step is about: it goes again if it was sent before `term`. Whether it does."""
        flight = self._flying.get(request_id)
        if flight is None or flight.special is None or term <= flight.special.term:
            return False
        flight.special.term = term
        self._rewind(flight.writer, 0, 0)
        flight.writer.paused_until_ms = 0
        return True

    def doubtful(self, request_id: int) -> None:
        """Who answered was no leader any more: whether it is stored, only the next one knows."""
        flight = self._flying.get(request_id)
        if flight is not None:
            self._doubt(flight.writer)
            self._rewind(flight.writer, 0, 0)

    def _rewind(self, writer: Writer, to: int, retry_after_ms: int) -> None:
        """Everything from flight `to` on is sent again, after a pause; answers to the old requests no longer count."""
        for flight in islice(writer.flights, to, None):
            self._flying.pop(flight.request_id, None)
        writer.sent = min(writer.sent, to)
        writer.paused_until_ms = self._links.now_ms + (retry_after_ms or RETRY_MS)
        self._waiting.add(writer)

    def _resequence(self, flight: Flight, expected: int) -> None:
        writer = flight.writer
        if expected < writer.flights[0].sequence:
            self._start_over(writer)
        elif flight.sequence < expected:  # its repeats, and those of older ones, are refused for ever
            newest = max(flight.sequence, expected - 1 - limits.PRODUCER_REPEATS)
            for old in [old for old in writer.flights if old.sequence <= newest]:
                self._drop(old, NotConfirmed("stored, but its offset is not remembered any more", hint="read it back"))
        self._rewind(writer, 0, 0)

    def _start_over(self, writer: Writer) -> None:
        """The leader has forgotten this producer: under a new one goes what certainly is not stored, the rest is unknown."""
        writer.producer, writer.sequence = self._new_producer(), 1
        for flight in list(writer.flights):
            if flight.uncertain:
                self._drop(flight, NotConfirmed("the leader no longer knows whether this batch is stored", hint="read it back"))
            else:
                flight.restamp(writer.producer, writer.sequence)
                writer.sequence += 1

    def _fail(self, flight: Flight, error: GossipqError) -> None:
        """Refused for good. The batches behind it move up one sequence, and go again."""
        writer, at = flight.writer, flight.writer.flights.index(flight)
        self._rewind(writer, at, 0)
        writer.paused_until_ms = 0
        self._drop(flight, error)
        for later in islice(writer.flights, at, None):
            later.restamp(later.producer, later.sequence - 1)
        writer.sequence -= 1
        self.pump(writer)

    def _drop(self, flight: Flight, error: GossipqError) -> None:
        self._flying.pop(flight.request_id, None)
        flight.writer.flights.remove(flight)
        self.unconfirmed_bytes -= flight.size
        self._failed.append(flight)
        flight.fail(error)

    # --- topics

    def learn(self, info: TopicInfo) -> Topic:
        """The topic under its name; when its id has changed, what was meant for the old one moves along."""
        known = self.topics.get(info.name)
        if known is not None and known.info.id == info.id:
            known.info, known.learned_ms = info, self._links.now_ms
            for writer in known.writers:
                writer.paused_until_ms = 0
            return known
        topic = self.topics[info.name] = Topic(info, self._producer)
        topic.learned_ms = self._links.now_ms
        if known is not None and not topic.writers:
            self.forget(known, UnknownTopic(f"topic {info.name!r} is virtual now", hint="publish again: it goes to its topics"))
        elif known is not None:
            self._move(known, topic)
        return topic

    def _move(self, old: Topic, new: Topic) -> None:
        self._seal_topic(old)
        for writer in old.writers:
            target = new.writers[writer.number % len(new.writers)]
            for flight in [flight for flight in writer.flights if flight.special and flight.special.acks]:
                self._drop(flight, UnknownTopic(f"topic {old.name!r} was made anew", hint="do the step again"))
            for flight in writer.flights:
                self._flying.pop(flight.request_id, None)
                flight.writer = target
                flight.restamp(target.producer, target.sequence)
                target.sequence += 1
                target.flights.append(flight)
            self._waiting.discard(writer)
            self.pump(target)

    def drop(self, name: str) -> None:
        """The topic was deleted from here: the next publish looks its name up, unless some are still under way."""
        topic = self.topics.get(name)
        if topic is not None and not any(writer.flights or writer.open for writer in topic.writers):
            del self.topics[name]

    def forget(self, topic: Topic, error: GossipqError) -> None:
        """The topic is gone: its batches fail."""
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]
        self.plain.pop(topic.name, None)
        for writer in topic.writers:
            self._waiting.discard(writer)
            for flight in list(writer.flights):
                self._drop(flight, error)
            if writer.open is not None:
                writer.open.fail(error)
                self._failed.append(writer.open)
                writer.open = None


def _is_open(writer: Writer) -> bool:
    return writer.open is not None
