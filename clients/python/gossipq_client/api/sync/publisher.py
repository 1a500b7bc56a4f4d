# Made by clients/python/make_twins.py from api/aio/publisher.py: change that, then run it.
"""The producer: publishing records, lists and copies, and the publish that acks what it comes of."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import repeat
from types import MappingProxyType
from typing import Any

from gossipq.errors import Backpressure, BadRequest, ClientClosed, GossipqError, Unreachable
from gossipq.limits import VALUE_BYTES_MAX
from gossipq.types import Now
from gossipq.wire.schemas import Schema
from gossipq_client.api.sync.driver import Driver, PendingReceipt
from gossipq_client.api.sync.operator import Operator
from gossipq_client.handlers import (
    Layers,
    Middleware,
    Outgoing,
    lists_of,
    makers,
    one_of,
    outgoing,
    sendable,
)
from gossipq_client.io import Engine, Spool
from gossipq_client.session import (
    Awaited,
    Copied,
    Flight,
    Held,
    Merged,
    One,
    Receipt,
    Successive,
    Topic,
    Writer,
    half_way,
    part_sent,
    plan,
    receipt_of,
    writer_to_merge,
)
from gossipq_client.values import (
    PLAIN,
    PLAIN_LIST,
    UNSET,
    CheckedCodec,
    Many,
    Options,
    inputs,
    list_options,
    payloads,
    publish_options,
    spooled,
)

NOTHING_ASKED: Mapping[str, Any] = MappingProxyType({})


class Publisher:
    """Publishes records for a client."""

    def __init__(self, driver: Driver, operator: Operator, codec: CheckedCodec) -> None:
        self._driver, self._operator, self.codec = driver, operator, codec
        self._checking: dict[str, Schema] = {}  #: by topic: what is published there is checked
        self.layers = Layers([make() for make in makers])
        if makers:
            driver.look_at_each()

    def add_middleware(self, middleware: Middleware) -> None:
        """Put middleware around what is published and received from now on."""
        self.layers = self.layers.with_one(middleware)
        self._driver.look_at_each()

    def check_by(self, schema: Schema) -> None:
        """Check the values that are published to the topic of a schema, from now on."""
        self._checking[schema.topic] = schema
        self._driver.look_at_each()

    def check_no_more(self, topic: str) -> None:
        """Stop checking the values that are published to a topic."""
        self._checking.pop(topic, None)

    def _changed(self, topic: str, options: Mapping[str, Any], count: int = 1) -> Any:
        """The options of a publish of `count` records, as middleware changes them. Raises BadRequest.

        Each middleware gets the headers as a dict. Bytes that none of them changed are sent as they are.
        """
        changed, given = dict(options), options.get("headers")
        for ware in self.layers.all:
            changed["headers"] = payloads.headers_dict(changed.get("headers"))
            ware.before_publish(topic, changed, count)
        if isinstance(given, bytes) and changed.get("headers") == payloads.headers_dict(given):
            changed["headers"] = given
        return changed

    def raw_value(self, topic: str, value: Any) -> bytes:
        """A value as bytes, and one that fits. Raises BadRequest."""
        raw = self.codec.encoded(value, topic)
        if self._checking and (schema := self._checking.get(topic)) is not None:
            schema.check(raw)
        return raw

    def publish(
        self,
        topic: str,
        value: Any,
        options: Mapping[str, Any] = NOTHING_ASKED,
        timeout: inputs.Timeout = UNSET,
    ) -> Receipt:
        """Publish one record and wait until it is stored, as `Facade.publish` says."""
        driver = self._driver
        seconds = driver.timeout_s if timeout is UNSET else driver.seconds(timeout)
        if not driver.looks:
            fits = type(value) is bytes and len(value) <= VALUE_BYTES_MAX
            raw = value if fits else self.codec.encoded(value, topic)
            checked = publish_options(driver.engine.clock.now, **options) if options else PLAIN
            added = driver.append_now(topic, raw, checked)
            if added is not None:
                flight, index = added
                driver.landing(flight, seconds)
                if not flight.done:
                    raise driver.engine.unconfirmed(seconds)
                return receipt_of(flight, index)
        elif self.layers.publishing:
            passing = self._outgoing(topic, value, options)
            stored: Receipt = self._through(passing, lambda record: self._publish_outgoing(record, seconds))
            return stored
        else:
            raw, checked = self._prepared(topic, value, options)
        sent = driver.in_turn(topic, self._send(topic, raw, checked))
        return self.receipt(sent, seconds)

    # --- layers of middleware

    def _outgoing(self, topic: str, value: Any, options: Mapping[str, Any]) -> Outgoing:
        """A record for the layers of middleware. Raises BadRequest."""
        return outgoing(topic, self.raw_value(topic, value), self._changed(topic, options))

    def _through(self, record: Outgoing, send: Callable[[Outgoing], Any], at: int = 0) -> Any:
        """Pass a record through the layers from `at` on; `send` gets what comes of it."""
        if at == len(self.layers.publishing):
            return send(record)
        ware = self.layers.publishing[at]

        def call_next(changed: Outgoing) -> Any:
            return self._through(changed, send, at + 1)

        result = self._driver.result_of(ware, ware.publish(record, call_next))
        if result is None:
            raise BadRequest(
                f"publish of {type(ware).__name__} returned None",
                hint="return what call_next returns; raise an error to refuse the record",
            )
        return result

    def _publish_outgoing(self, record: Outgoing, seconds: float | None) -> Receipt:
        sent = self._driver.in_turn(record.topic, self._send_outgoing(record))
        return self.receipt(sent, seconds)

    def _send_outgoing(self, record: Outgoing) -> Awaited:
        raw, checked = self._ready_to_send(inputs.value_bytes(record.value), sendable(record))
        return self._send(record.topic, raw, checked)

    def _post_outgoing(self, record: Outgoing) -> Awaited:
        sent: Awaited = self._through(record, self._send_outgoing)
        return sent

    def _list_outgoing(self, topic: str, raws: list[bytes], options: Mapping[str, Any]) -> Awaited:
        """Pass each record of a list through the layers, and send them in as few lists as fit."""
        self._prepared_list(raws, options)  # raises for options of another length
        passed: list[Outgoing] = []

        def keep(record: Outgoing) -> Outgoing:
            passed.append(record)
            return record

        for at, raw in enumerate(raws):
            self._through(one_of(topic, raw, options, at), keep)
        parts = []
        for values, common in lists_of(passed):
            raws = inputs.values_of(values)
            parts.append(self._send_list(topic, raws, self._prepared_list(raws, common)))
        return parts[0] if len(parts) == 1 else Successive(parts)

    def post(self, topic: str, value: Any, options: Mapping[str, Any] = NOTHING_ASKED) -> PendingReceipt:
        """Publish one record and return at once, as `Facade.post` says."""
        driver = self._driver
        if driver.looks and self.layers.publishing:
            record = self._outgoing(topic, value, options)
            return driver.posted(topic, [record.value], self._post_outgoing(record))
        raw, checked = self._prepared(topic, value, options)
        if driver.spool is None:
            added = driver.append_now(topic, raw, checked)
            if added is not None:
                driver.depart()
                return driver.pending(One(*added))
        return driver.posted(topic, [raw], self._send(topic, raw, checked))

    def _prepared(self, topic: str, value: Any, options: Mapping[str, Any]) -> tuple[bytes, Options]:
        """A value as bytes and its options, checked. Raises BadRequest."""
        if self.layers.all:
            options = self._changed(topic, options)
        return self._ready_to_send(self.raw_value(topic, value), options)

    def _ready_to_send(self, raw: bytes, options: Mapping[str, Any]) -> tuple[bytes, Options]:
        """A value and its checked options. Raises BadRequest."""
        checked = publish_options(self._now(), **options) if options else PLAIN
        return raw, checked if self._driver.spool is None else checked.with_id(Engine.made_ids(1)[0])

    def _now(self) -> Callable[[], Now]:
        """The clock of the connection; with a spool there may be none yet."""
        return self._driver.engine.clock.now if self._driver.spool is None else self._driver.spool.now

    def _send(self, topic: str, raw: bytes, checked: Options) -> Awaited:
        if self._driver.spool is not None:
            return self._publish_spooled(self._driver.spool, topic, [raw], checked)
        return self._sent(topic, raw, checked)

    def receipt(self, sent: Awaited, seconds: float | None) -> Receipt:
        """Wait for the confirms of all sent records. Raises NotConfirmed, and the errors of refused
        records."""
        self._driver.await_flights(sent.flights, seconds)
        return sent.receipt()

    def _publish_spooled(
        self, spool: Spool, topic: str, raws: list[bytes], checked: Options | Many
    ) -> Awaited:
        """Onto the disk first; then they go behind whatever is there. Raises Backpressure, Unreachable,
        ClientClosed; and RuntimeError in a signal handler that interrupted this client: nothing is kept."""
        spool.check()
        self._driver.require_whole(self._driver.spooling)
        parts: list[Awaited] = []
        now, each = spool.now(), [checked] if isinstance(checked, Options) else checked.each(len(raws))
        with self._driver.spooling:
            try:
                numbers = spool.put(list(map(spooled, repeat(topic), raws, each, repeat(now))))
            except Backpressure:
                with suppress(Unreachable, Backpressure):
                    self.send_spooled()  # nothing else would ever make room
                raise
            try:
                self.send_spooled(numbers.start)
                if isinstance(checked, Options):
                    sent = self._sent(topic, raws[0], checked, parts)
                else:
                    sent = self._sent_list(topic, raws, checked, parts)
            except (Unreachable, ClientClosed) as away:
                hint = f"it is in the spool {spool.directory}, and goes with the next publish or start"
                raise type(away)(away.message, hint=hint) from None
            except GossipqError:  # what was not sent leaves, and who publishes knows
                spool.part_sent(numbers, *Copied(parts, ()).under_way())
                raise
            spool.sent(numbers, sent.flights)
            return sent

    def send_spooled(self, end: int | None = None) -> None:
        """What an earlier run left, or could not be sent, in order, up to the row `end`. Raises
        Unreachable."""
        spool = self._driver.spool
        if spool is None:
            return
        for number, row in spool.unsent():
            if number == end:
                return
            try:
                sent = self._sent(row.topic, row.value, row.options(self._driver.engine.clock.now()))
                spool.sent(range(number, number + 1), sent.flights, heard=False)
            except (Unreachable, Backpressure, ClientClosed):
                raise
            except GossipqError as error:
                spool.stays(number, error)
                spool.sent(range(number, number + 1), ())

    def _sent(self, topic: str, raw: bytes, checked: Options, copies: list[Awaited] | None = None) -> Awaited:
        """`copies` gets what is under way, even if that is not all."""
        added = self._driver.append_now(topic, raw, checked)
        if added is not None:
            self._driver.depart()
            return One(*added)
        known = self._operator.topic(topic)
        if not known.virtual:
            return self._append(known, raw, checked)
        checked, targets = checked.with_id(self._driver.engine.made_ids(1)[0]), self._targets(known)
        writers = [target.writer(checked.chooser, checked.partition) for target in targets]
        if checked.wait_s == 0:
            self._driver.require_turn(writers)
            self._driver.step(self._driver.engine.require_open, writers)
        ids = [checked.made_id]
        copies = [] if copies is None else copies
        for target in targets:
            try:
                copies.append(self._append(target, raw, checked))
            except GossipqError as error:
                raise half_way(error, ids) if copies else error from None
        return Copied(copies, ids)

    def _append(self, topic: Topic, raw: bytes, options: Options) -> One:
        append = self._driver.engine.session.publishing.append
        writer = topic.writer(options.chooser, options.partition)
        return One(
            *self._driver.in_window(writer, options.wait_s, lambda heir: append(heir, raw, *options.record))
        )

    def publish_many(
        self, topic: str, values: Iterable[Any], options: Mapping[str, Any], timeout: inputs.Timeout
    ) -> Receipt:
        """Publish a list and wait until all of it is stored, as `Facade.publish_many` says."""
        seconds = self._driver.seconds(timeout)
        _, sending = self._sending_list(topic, values, options)
        return self.receipt(self._driver.in_turn(topic, sending), seconds)

    def post_many(self, topic: str, values: Iterable[Any], options: Mapping[str, Any]) -> PendingReceipt:
        """Publish a list and return at once, as `Facade.post_many` says."""
        raws, sending = self._sending_list(topic, values, options)
        return self._driver.posted(topic, raws, sending)

    def _sending_list(
        self, topic: str, values: Iterable[Any], options: Mapping[str, Any]
    ) -> tuple[list[bytes], Awaited]:
        """Values as bytes, and what sends them, as middleware changes them. Raises BadRequest."""
        if topic in self._checking:
            values = [self.raw_value(topic, value) for value in values]
        raws = self.codec.encoded_list(values, topic)
        if self.layers.all:
            options = self._changed(topic, options, len(raws))
        if self.layers.publishing and raws:
            return raws, self._list_outgoing(topic, raws, options)
        return raws, self._send_list(topic, raws, self._prepared_list(raws, options))

    def _prepared_list(self, raws: list[bytes], options: Mapping[str, Any]) -> Many:
        """The options of a list, checked. Raises BadRequest."""
        many = list_options(len(raws), self._now(), **options) if options else PLAIN_LIST
        return many.with_ids(Engine.made_ids(len(raws))) if self._driver.spool is not None else many

    def _send_list(self, topic: str, raws: list[bytes], many: Many) -> Awaited:
        if self._driver.spool is not None and raws:
            return self._publish_spooled(self._driver.spool, topic, raws, many)
        return self._sent_list(topic, raws, many)

    def _sent_list(
        self, topic: str, raws: list[bytes], many: Many, parts: list[Awaited] | None = None
    ) -> Awaited:
        """`parts` gets what is to go; of that, what is sealed is under way."""
        known = self._operator.topic(topic)
        targets, size = [known], sum(map(len, raws))
        if not known.virtual and (writer := writer_to_merge(known, raws, size, many)) is not None:
            return self._merged(writer, raws, size, many)
        if known.virtual:
            many, targets = many.with_ids(self._driver.engine.made_ids(len(raws))), self._targets(known)
        publishing = self._driver.engine.session.publishing
        listed = [self._driver.step(plan, publishing, target, raws, many) for target in targets]
        flights = [flight for each in listed for flight in each.flights]
        if parts is not None:
            parts += listed
        if many.wait_s == 0:
            self._driver.require_turn([flight.writer for flight in flights])
            self._driver.step(self._driver.engine.take_all, flights)
            self._driver.exchange()
        else:
            for at, flight in enumerate(flights):
                try:
                    self._driver.in_window(flight.writer, many.wait_s, partial(publishing.take, flight))
                except Backpressure as full:
                    raise part_sent(full, flights[:at]) if at else full from None
        return Copied(listed, many.made_ids) if known.virtual else listed[0]

    def _merged(self, writer: Writer, raws: list[bytes], size: int, many: Many) -> Merged:
        merge = self._driver.engine.session.publishing.merge
        flight, first = self._driver.in_window(
            writer, many.wait_s, lambda heir: merge(heir, raws, size, many.route, many.level)
        )
        return Merged(flight, first, len(raws))

    def step(
        self,
        held: Held,
        offset: int,
        then: Callable[[Flight], None],
        topic: str,
        value: Any,
        options: Mapping[str, Any],
    ) -> Awaited:
        """Publishes what comes of a record in hand and acks it, as one atomic step; `then` hears when it is
        done, well or not. It needs no spool: until the step is stored, the record in hand is not acked, and
        comes again.

        Raises BadRequest unless both lie in one shard.
        """
        if self.layers.publishing:

            def send(record: Outgoing) -> Awaited:
                fit = inputs.value_bytes(record.value)
                return self._step_as(held, offset, then, record.topic, fit, sendable(record))

            found: Awaited = self._through(self._outgoing(topic, value, options), send)
            return found
        if self.layers.all:
            options = self._changed(topic, options)
        return self._step_as(held, offset, then, topic, self.raw_value(topic, value), options)

    def _step_as(
        self,
        held: Held,
        offset: int,
        then: Callable[[Flight], None],
        topic: str,
        raw: bytes,
        options: Mapping[str, Any],
    ) -> Awaited:
        checked = publish_options(self._driver.engine.clock.now, **options)
        if self._driver.spool is not None:
            self._driver.spool.check()
            with self._driver.spooling:
                self.send_spooled()
        writer = self._driver.engine.writer_beside(held, self._operator.topic(topic), checked)
        acks, publishing = [(held.partition, offset, offset + 1)], self._driver.engine.session.publishing

        def send(heir: Writer) -> Flight:
            return publishing.step(heir, checked, raw, held.part.number, acks, then)

        return One(self._driver.in_window(writer, checked.wait_s, send), 0)

    def _targets(self, topic: Topic) -> list[Topic]:
        """Return the real topics of a virtual topic."""
        return [self._operator.topic(name, create=False) for name in topic.virtual]
