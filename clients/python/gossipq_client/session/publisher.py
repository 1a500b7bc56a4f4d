"""Collects records in batches, and moves batches when their topic changes."""

from collections.abc import Callable

from gossipq import limits
from gossipq.errors import GossipqError, UnknownTopic
from gossipq.values import Range, TopicInfo
from gossipq_client.session.packer import Flight, Special, Topic, Writer, runs
from gossipq_client.session.sender import Sending
from gossipq_client.values import NOTHING, Options, Terms, Unique

LINGER_MS = 2  #: how long records without confirm wait for others to share a batch


class Publishing(Sending):
    """Publishing of a client: records, lists and steps, for topics that come and go."""

    # --- records in

    def append(
        self,
        writer: Writer,
        value: bytes,
        key: bytes | None = None,
        headers: bytes = b"",
        route: bytes = b"",
        level: str = "",
        terms: Terms | None = None,
    ) -> tuple[Flight, int]:
        """Adds a record. Returns the flight that took it, and its index there. If no
        batch of its partition is being sent, it is sent at once, or by the next `depart`
        while the client gathers.
        """
        size = len(value) + len(key or b"") + len(headers)
        keyed, scheduled = key is not None, terms is not None and terms.due_ms > 0
        level = level or writer.topic.info.config.level
        if level == "none" and size >= limits.BATCH_BYTES_MAX:
            level = "stored"  # otherwise a publisher of large records would never be slowed down
        flight = writer.open
        if flight is None:
            flight = writer.open = Flight(writer, keyed, route, level, scheduled)
        elif not flight.takes(size, 1, keyed, route, level, scheduled):
            flight = self._opened_anew(writer, keyed, route, level, scheduled)
        index = flight.add(value, key, headers, terms)
        self._added(flight)
        return flight, index

    def merge(
        self, writer: Writer, values: list[bytes], size: int, route: bytes, level: str
    ) -> tuple[Flight, int]:
        """Like `append`, for a list of plain records of `size` bytes in all that one batch takes.
        Returns the flight and the index of the first record.
        """
        level = level or writer.topic.level
        flight = writer.open
        if flight is None or not flight.takes(size, len(values), False, route, level, False):
            flight = self._opened_anew(writer, False, route, level, False)
        index = flight.merge(values, size)
        self._added(flight)
        return flight, index

    def _opened_anew(self, writer: Writer, keyed: bool, route: bytes, level: str, scheduled: bool) -> Flight:
        """Seal the open flight of a partition, if it has one, and open the next."""
        self.seal(writer)
        flight = writer.open = Flight(writer, keyed, route, level, scheduled)
        return flight

    def _added(self, flight: Flight) -> None:
        """Records were added: sends the flight if it is full, or if no
        earlier batch is being sent.
        """
        writer = flight.writer
        if flight.size >= limits.BATCH_BYTES_MAX or flight.count >= limits.BATCH_RECORDS_MAX:
            self.seal(writer)
        elif flight.level == "none":
            self.linger_ms = self.linger_ms or self._links.now_ms + LINGER_MS
            self._note_plain(flight)
        elif writer.flights:
            self._note_plain(flight)
        elif self.gathers:
            self.gathered.add(writer)
        else:
            self.seal(writer)

    def _note_plain(self, flight: Flight) -> None:
        """Lets the sync client add records to this batch without a call,
        if all of them are plain.
        """
        if self.gathers:
            return
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
        ids: list[bytes] | None = None,
        names: list[bytes] | None = None,
        unique: Unique | None = None,
    ) -> list[Flight]:
        """Makes flights of a list, not sealed yet: `take` sends each as the window allows. Either
        all or none are scheduled. `ids` and unique `names` are not in the options.
        """
        count, level, made = len(values), level or writer.topic.level, []
        total = sum(map(len, values)) + sum(map(len, keys or ())) + count * len(headers)
        ranges = [(0, count)]
        if total > limits.BATCH_BYTES_MAX or count > limits.BATCH_RECORDS_MAX:
            ranges = runs(
                [
                    len(value) + len(key) + len(headers)
                    for value, key in zip(values, keys or [b""] * count, strict=True)
                ]
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
            if terms is not None or ids is not None or names is not None:
                flight.special = Special()
                flight.special.terms = (terms if whole else terms[first:end]) if terms else []
                flight.special.ids = ids if whole or ids is None else ids[first:end]
                flight.special.names = names if whole or names is None else names[first:end]
                flight.special.unique = None if names is None else unique
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
        """Sends one record and the acks of the records it results from, as one atomic step, right
        after the earlier batches of its partition.

        The flight fails with LeaseLost if another consumer holds one of them. `then` is called when
        it is done, successful or not.
        """
        terms = options.terms
        self.seal(writer)
        flight = Flight(
            writer, options.key is not None, options.route, "stored", terms is not None and terms.due_ms > 0
        )
        flight.add(value, options.key, options.headers, terms or NOTHING)
        assert flight.special is not None, "terms make a flight special"
        flight.special.subscription, flight.special.acks, flight.special.then = subscription, acks, then
        writer.open = flight
        self.seal(writer)
        return flight

    def take(self, flight: Flight, writer: Writer | None = None) -> None:
        """Seals and sends a flight of `batches`, after the open one of its partition."""
        writer = flight.writer = writer or self.heir(flight.writer)
        self.seal(writer)
        writer.open = flight
        self.seal(writer)

    def depart(self) -> None:
        """Sends the gathered records."""
        while self.gathered:
            writer = self.gathered.pop()
            if writer.open is not None and not writer.flights:
                self.seal(writer)

    def seal_all(self) -> None:
        for topic in self.topics.values():
            self._seal_topic(topic)

    def mark(self) -> Callable[[], bool]:
        """Sends all waiting records. The returned function tells whether all of these have an
        outcome, whatever was published later.
        """
        self.seal_all()
        flights = [flight for writer in self.writers() for flight in reversed(writer.flights)]
        loose = set(self.loose)

        def passed() -> bool:
            while flights and flights[-1].done:
                flights.pop()
            return not flights and loose.isdisjoint(self.loose)

        return passed

    def _seal_topic(self, topic: Topic) -> None:
        for writer in topic.writers:
            self.seal(writer)

    # --- topics

    def learn(self, info: TopicInfo) -> Topic:
        """The topic under its name. If its id has changed, records for the old one move to it."""
        known = self.topics.get(info.name)
        if known is not None and known.info.id == info.id:
            if known.level != info.config.level:
                self.plain.pop(info.name, None)  # the open flight belongs to the old one
            known.info, known.learned_ms = info, self._links.now_ms
            for writer in known.writers:
                writer.paused_until_ms = 0
            return known
        topic = Topic(info, self._producer)
        topic.learned_ms = self._links.now_ms
        if known is not None:
            self.moves.append((known, topic))
        self.topics[info.name] = topic
        self.finish_moves()
        return topic

    def finish_moves(self) -> None:
        for old, new in list(self.moves):
            if new.writers:
                self._move(old, new)
            else:
                hint = "publish again: it goes to its topics"
                self.forget(old, UnknownTopic(f"topic {old.name!r} is virtual now", hint=hint))
            self.moves.remove((old, new))

    def _move(self, old: Topic, new: Topic) -> None:
        self._seal_topic(old)
        for writer in old.writers:
            target, flights = new.writers[writer.number % len(new.writers)], writer.flights
            while flights:
                flight = flights[0]
                if flight.special and flight.special.acks:
                    self._drop(
                        flight, UnknownTopic(f"topic {old.name!r} was made anew", hint="do the step again")
                    )
                    continue
                if not target.flights or target.flights[-1] is not flight:
                    self.in_flight.pop(flight.request_id, None)
                    flight.restamp(target.producer, target.sequence)
                    flight.writer = target
                    target.flights.append(flight)
                    target.sequence += 1
                flights.popleft()  # so that callers waiting for room in the old window continue
            writer.sent = 0
            self.waiting.discard(writer)
            self.pump(target)

    def heir(self, writer: Writer) -> Writer:
        """The present writer of a partition; another one if its topic was created again
        meanwhile. Raises NotFound.
        """
        topic = self.topics.setdefault(writer.topic.name, writer.topic)
        if not topic.writers:
            raise UnknownTopic(
                f"topic {topic.name!r} is virtual now", hint="publish again: it goes to its topics"
            )
        return topic.writers[writer.number % len(topic.writers)]

    def drop(self, name: str) -> None:
        """This client deleted the topic: the next publish looks its name up, unless
        batches are still being sent.
        """
        topic = self.topics.get(name)
        if topic is not None and not any(writer.flights or writer.open for writer in topic.writers):
            del self.topics[name]

    def forget(self, topic: Topic, error: GossipqError) -> None:
        """The topic is gone: its batches fail."""
        self.plain.pop(topic.name, None)
        for writer in topic.writers:
            self.waiting.discard(writer)
            for flight in list(writer.flights):
                self._drop(flight, error)
            if writer.open is not None:
                writer.open.fail(error)
                self.note_failed(writer.open)
                writer.open = None
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]

    def give_up(self, error: GossipqError) -> None:
        """Ends sending: all unconfirmed records fail with this error."""
        for topic in [*(old for old, _ in self.moves), *self.topics.values()]:
            self.forget(topic, error)
        for flight in self.loose:
            flight.fail(error)
