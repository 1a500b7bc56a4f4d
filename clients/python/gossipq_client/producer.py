"""The sync producer: publishing records, lists and copies, and the publish that acks what it comes of."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar, Unpack

from gossipq import limits
from gossipq.errors import GossipqError
from gossipq_client import inputs
from gossipq_client.driver import Driver
from gossipq_client.held import Held
from gossipq_client.lists import plan
from gossipq_client.packer import Flight, Topic, Writer
from gossipq_client.receipts import Copied, One, PendingReceipt, PendingReceipts, half_way
from gossipq_client.terms import PLAIN, ListOptions, Options, PublishOptions, list_options, publish_options

Sent = TypeVar("Sent")


class Producers(Driver):
    """The part of a client that publishes."""

    def __init__(self, addresses: list[str], name: str, timeout: float) -> None:
        super().__init__(addresses, name, timeout)
        self._plain = self.engine.session.publishing.plain

    def publish(self, topic: str, value: inputs.Value, **options: Unpack[PublishOptions]) -> PendingReceipt:
        """Sends one record; batches form by themselves while earlier ones wait for their confirm.

        Options: key, headers, route, partition, level; delay or at (due later), ttl, id (stored once), lease, attempts_max,
        backoff; see PublishOptions. Waits while the window is full, or raises Backpressure with block=False.
        Raises TooLarge, BadRequest, UnknownTopic before anything is sent.
        """
        if (not options or list(options.values()).count(None) == len(options)) and type(value) is bytes:
            with self.lock:
                flight = self._plain.get(topic)
                if flight is not None:
                    values = flight.values
                    size = flight.size + len(value)
                    if size < limits.BATCH_BYTES_MAX and len(values) < limits.BATCH_RECORDS_MAX - 1:  # type: ignore[arg-type]
                        flight.size = size
                        values.append(value)  # type: ignore[union-attr]
                        return PendingReceipt(self, flight, len(values) - 1)  # type: ignore[arg-type]
        raw = inputs.value_bytes(value)
        checked = publish_options(self.engine.clock.now, **options) if options else PLAIN
        known = self._topic(topic)
        if known.virtual:
            return self._publish_copies(known, raw, checked)
        return PendingReceipt(self, *self._append(known, raw, checked))

    def _append(self, topic: Topic, raw: bytes, options: Options) -> tuple[Flight, int]:
        publishing, writer = self.engine.session.publishing, topic.writer(options.chooser, options.partition)
        return self._in_window(writer, options.block, lambda: publishing.append(writer, raw, *options.record))

    def _in_window(self, writer: Writer, block: bool, send: Callable[[], Sent]) -> Sent:
        """Sends when the window has room for one more batch; if it shall not wait for that it raises Backpressure."""
        engine = self.engine
        while True:
            with self.lock:
                engine.check()
                if not block:
                    engine.require_open([writer])
                if not engine.full(writer):
                    engine.session.advance(engine.clock.now())
                    sent = send()
                    self._turn()
                    return sent
            self.until(lambda: not engine.full(writer), None)

    def _publish_copies(self, topic: Topic, raw: bytes, options: Options) -> PendingReceipt:
        options, targets = options.with_id(self.engine.made_ids(1)[0]), self._targets(topic)
        writers = [target.writer(options.chooser, options.partition) for target in targets]
        with self.lock:
            if not options.block:
                self.engine.require_open(writers)
        copies, ids = list[One](), [options.made_id]
        for target in targets:
            try:
                copies.append(One(*self._append(target, raw, options)))
            except GossipqError as error:
                raise half_way(error, ids) if copies else error from None
        return PendingReceipts(self, Copied(copies, ids))

    def publish_many(self, topic: str, values: Iterable[inputs.Value], **options: Unpack[ListOptions]) -> PendingReceipts:
        """Sends a list in order, packed, under one receipt. Options as in `publish`, and for each value one of `keys`, `ids`,
        `delays`; see ListOptions. Records that are due later go in the order of their due times."""
        raws = inputs.values_of(values)
        many = list_options(len(raws), self.engine.clock.now, **options)
        known = self._topic(topic)
        targets = [known]
        if known.virtual:
            many, targets = many.with_ids(self.engine.made_ids(len(raws))), self._targets(known)
        publishing = self.engine.session.publishing
        with self.lock:
            self.engine.check()
            listed = [plan(publishing, target, raws, many) for target in targets]
            flights = [flight for each in listed for flight in each.flights]
            if not many.block:
                self.engine.require_room(flights)
                self.engine.session.advance(self.engine.clock.now())
                for flight in flights:
                    publishing.take(flight)
                self._turn()
        if many.block:
            for flight in flights:
                self._in_window(flight.writer, True, partial(publishing.take, flight))
        return PendingReceipts(self, Copied(listed, many.made_ids) if known.virtual else listed[0])

    def step(
        self,
        held: Held,
        offset: int,
        then: Callable[[Flight], None],
        topic: str,
        value: inputs.Value,
        **options: Unpack[PublishOptions],
    ) -> PendingReceipt:
        """Publishes what comes of a record in hand and acks it, as one atomic step; `then` hears when it is done, well or not.

        Raises BadRequest unless both lie in one shard.
        """
        raw = inputs.value_bytes(value)
        checked = publish_options(self.engine.clock.now, **options)
        writer = self.engine.writer_beside(held, self._topic(topic), checked)
        acks, publishing = [(held.partition, offset, offset + 1)], self.engine.session.publishing
        step = partial(publishing.step, writer, checked, raw, held.part.number, acks, then)
        return PendingReceipt(self, self._in_window(writer, checked.block, step), 0)

    def _targets(self, topic: Topic) -> list[Topic]:
        """What a virtual topic is bound to."""
        return [self._topic(name, create=False) for name in topic.virtual]

    def _topic(self, name: str, create: bool = True) -> Topic:
        with self.lock:
            self.engine.check()
            found = self.engine.find_topic(name, create)
        if isinstance(found, Topic):
            return found
        self._answered(found, self.timeout)
        with self.lock:
            return self.engine.learn_topic(name, found)
