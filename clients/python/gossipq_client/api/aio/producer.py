"""The producer: publishing records, lists and copies, and the publish that acks what it comes of."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Any, Unpack

from gossipq.errors import Backpressure, BadRequest, ClientClosed, GossipqError, Unreachable
from gossipq.limits import VALUE_BYTES_MAX
from gossipq.types import Now
from gossipq.wire.schemas import Schema
from gossipq_client.api.aio.connection import Connection
from gossipq_client.api.aio.driver import Gate, PendingReceipt
from gossipq_client.handlers import (
    Layers,
    Middleware,
    Outgoing,
    lists_of,
    makers,
    one_of,
    outgoing,
    sendable,
    shows,
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
    UNSET,
    CheckedCodec,
    Common,
    ListOptions,
    Many,
    Options,
    PublishOptions,
    inputs,
    list_options,
    payloads,
    publish_options,
    spooled,
)


class Producers(Connection):
    """The part of a client that publishes."""

    _spool: Spool | None = None

    def __init__(
        self,
        addresses: list[str],
        name: str,
        timeout: float,
        key: bytes = b"",
        codec: CheckedCodec | None = None,
    ) -> None:
        super().__init__(addresses, name, timeout, key)
        self._codec = CheckedCodec() if codec is None else codec
        self._checking: dict[str, Schema] = {}  #: by topic: what is published there is checked
        self._layers = Layers([make() for make in makers])
        #: nothing has a look at records before they are sent: no middleware, no schema, no spool
        self._direct = not makers

    def _reset(self) -> None:
        super()._reset()
        self._spooling = Gate()
        if self._spool is not None:
            self._spool.reopen()

    def add_middleware(self, middleware: Middleware) -> None:
        """Put middleware around what is published and received from now on; what is added first is the
        outermost. See `Middleware`."""
        self._layers = self._layers.with_one(middleware)
        self._look_at_each()

    def _use_spool(self, spool: Spool) -> None:
        """From now on records are on the disk before they are sent."""
        self._spool, self._kept = spool, True
        self._look_at_each()

    def _let_go(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def _set_aside(self) -> None:
        if self._spool is not None:
            self._spool.rest()

    def _look_at_each(self) -> None:
        """From now on nothing is published that is not looked at."""
        self._direct = False

    def _check_by(self, schema: Schema) -> None:
        """From now on."""
        self._checking[schema.topic] = schema
        self._look_at_each()

    def _check_no_more(self, topic: str) -> None:
        """Stop checking the values that are published to a topic."""
        self._checking.pop(topic, None)

    def _changed(self, topic: str, options: Mapping[str, Any], count: int = 1) -> Any:
        """The options of a publish of `count` records, as middleware changes them. Raises BadRequest.

        Each middleware gets the headers as a dict. Bytes that none of them changed are sent as they are.
        """
        changed, given = dict(options), options.get("headers")
        for ware in self._layers.all:
            changed["headers"] = payloads.headers_dict(changed.get("headers"))
            ware.before_publish(topic, changed, count)
        if isinstance(given, bytes) and changed.get("headers") == payloads.headers_dict(given):
            changed["headers"] = given
        return changed

    def _raw(self, topic: str, value: Any) -> bytes:
        """A value as bytes, and one that fits. Raises BadRequest."""
        raw = self._codec.encoded(value, topic)
        if self._checking and (schema := self._checking.get(topic)) is not None:
            schema.check(raw)
        return raw

    @shows(publish_options, Common, PublishOptions)
    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        timeout: inputs.Timeout = UNSET,
        **options: Unpack[PublishOptions],
    ) -> Receipt:
        """Publish one record and wait until it is stored.

        Bytes and text are sent as they are. Everything else that JSON can express (a dict, a list, a
        dataclass, a msgspec.Struct, a model of pydantic) is sent as JSON, or as the codec of `connect`
        encodes it. A consumer gets it as the type that it names. Records that several callers publish at the
        same time share a batch.

        `timeout`: how long it waits for the confirm; without it the client's timeout, None: for ever. Raises
        NotConfirmed when that is over (the record may be stored) and Refused if it is certainly not stored.
        Raises BadRequest before anything is sent, as for NaN in a value, for a type that JSON cannot express,
        or for a value that is too large or does not fit the schema. Raises NotFound, and Backpressure if the
        window stays full.
        """
        seconds = self._seconds(timeout)
        if self._direct:
            fits = type(value) is bytes and len(value) <= VALUE_BYTES_MAX
            raw = value if fits else self._codec.encoded(value, topic)
            checked = publish_options(self._engine.clock.now, **options) if options else PLAIN
            added = self._append_now(topic, raw, checked)
            if added is not None:
                flight, index = added
                await self._landing(flight, seconds)
                if not flight.done:
                    raise self._engine.unconfirmed(seconds)
                return receipt_of(flight, index)
        elif self._layers.publishing:
            passing = self._outgoing(topic, value, options)
            stored: Receipt = await self._through(
                passing, lambda record: self._publish_outgoing(record, seconds)
            )
            return stored
        else:
            raw, checked = self._prepared(topic, value, options)
        sent = await self._in_turn(topic, self._send(topic, raw, checked))
        return await self._receipt(sent, seconds)

    # --- layers of middleware

    def _outgoing(self, topic: str, value: Any, options: Mapping[str, Any]) -> Outgoing:
        """A record for the layers of middleware. Raises BadRequest."""
        return outgoing(topic, self._raw(topic, value), self._changed(topic, options))

    async def _through(self, record: Outgoing, send: Callable[[Outgoing], Any], at: int = 0) -> Any:
        """Pass a record through the layers from `at` on; `send` gets what comes of it."""
        if at == len(self._layers.publishing):
            return await send(record)
        ware = self._layers.publishing[at]

        async def call_next(changed: Outgoing) -> Any:
            return await self._through(changed, send, at + 1)

        result = await self._result_of(ware, ware.publish(record, call_next))
        if result is None:
            raise BadRequest(
                f"publish of {type(ware).__name__} returned None",
                hint="return what call_next returns; raise an error to refuse the record",
            )
        return result

    async def _publish_outgoing(self, record: Outgoing, seconds: float | None) -> Receipt:
        sent = await self._in_turn(record.topic, self._send_outgoing(record))
        return await self._receipt(sent, seconds)

    async def _send_outgoing(self, record: Outgoing) -> Awaited:
        raw, checked = self._ready_to_send(inputs.value_bytes(record.value), sendable(record))
        return await self._send(record.topic, raw, checked)

    async def _post_outgoing(self, record: Outgoing) -> Awaited:
        sent: Awaited = await self._through(record, self._send_outgoing)
        return sent

    async def _list_outgoing(self, topic: str, raws: list[bytes], options: Mapping[str, Any]) -> Awaited:
        """Pass each record of a list through the layers, and send them in as few lists as fit."""
        self._prepared_list(raws, options)  # raises for options of another length
        passed: list[Outgoing] = []

        async def keep(record: Outgoing) -> Outgoing:
            passed.append(record)
            return record

        for at, raw in enumerate(raws):
            await self._through(one_of(topic, raw, options, at), keep)
        parts = []
        for values, common in lists_of(passed):
            raws = inputs.values_of(values)
            parts.append(await self._send_list(topic, raws, self._prepared_list(raws, common)))
        return parts[0] if len(parts) == 1 else Successive(parts)

    @shows(publish_options, Common, PublishOptions)
    def post(self, topic: str, value: Any, **options: Unpack[PublishOptions]) -> PendingReceipt:
        """Publish one record and return at once: its receipt says when it is stored.

        Values and options are those of `publish`, and so are the errors of what is wrong before anything is
        sent. Batches form by themselves while earlier ones wait for their confirm. While the window is full,
        the sync client waits here, and raises Backpressure if nothing is confirmed for the client's timeout.
        The asyncio client keeps the record until there is room. It raises Backpressure here if too many wait,
        and `flush` waits for them.
        """
        if not self._direct and self._layers.publishing:
            record = self._outgoing(topic, value, options)
            return self._posted(topic, len(record.value), self._post_outgoing(record))
        raw, checked = self._prepared(topic, value, options)
        if self._spool is None:
            added = self._append_now(topic, raw, checked)
            if added is not None:
                self._depart()
                return self._pending(One(*added))
        return self._posted(topic, len(raw), self._send(topic, raw, checked))

    def _prepared(self, topic: str, value: Any, options: Mapping[str, Any]) -> tuple[bytes, Options]:
        """A value as bytes and its options, checked. Raises BadRequest."""
        if self._layers.all:
            options = self._changed(topic, options)
        return self._ready_to_send(self._raw(topic, value), options)

    def _ready_to_send(self, raw: bytes, options: Mapping[str, Any]) -> tuple[bytes, Options]:
        """A value and its checked options. Raises BadRequest."""
        checked = publish_options(self._now(), **options) if options else PLAIN
        return raw, checked if self._spool is None else checked.with_id(Engine.made_ids(1)[0])

    def _now(self) -> Callable[[], Now]:
        """The clock of the connection; with a spool there may be none yet."""
        return self._engine.clock.now if self._spool is None else self._spool.now

    async def _send(self, topic: str, raw: bytes, checked: Options) -> Awaited:
        if self._spool is not None:
            return await self._publish_spooled(self._spool, topic, [raw], checked)
        return await self._sent(topic, raw, checked)

    async def _receipt(self, sent: Awaited, seconds: float | None) -> Receipt:
        """Wait for the confirms of all sent records. Raises NotConfirmed, and the errors of refused
        records."""
        await self._await_flights(sent.flights, seconds)
        return sent.receipt()

    async def _publish_spooled(
        self, spool: Spool, topic: str, raws: list[bytes], checked: Options | Many
    ) -> Awaited:
        """Onto the disk first; then they go behind whatever is there. Raises Backpressure, Unreachable,
        ClientClosed; and RuntimeError in a signal handler that interrupted this client: nothing is kept."""
        spool.check()
        self._require_whole(self._spooling)
        parts: list[Awaited] = []
        now, each = spool.now(), [checked] if isinstance(checked, Options) else checked.each(len(raws))
        async with self._spooling:
            try:
                numbers = spool.put(list(map(spooled, repeat(topic), raws, each, repeat(now))))
            except Backpressure:
                with suppress(Unreachable, Backpressure):
                    await self._send_spooled()  # nothing else would ever make room
                raise
            try:
                await self._send_spooled(numbers.start)
                if isinstance(checked, Options):
                    sent = await self._sent(topic, raws[0], checked, parts)
                else:
                    sent = await self._sent_list(topic, raws, checked, parts)
            except (Unreachable, ClientClosed) as away:
                hint = f"it is in the spool {spool.directory}, and goes with the next publish or start"
                raise type(away)(away.message, hint=hint) from None
            except GossipqError:  # what was not sent leaves, and who publishes knows
                spool.part_sent(numbers, *Copied(parts, ()).under_way())
                raise
            spool.sent(numbers, sent.flights)
            return sent

    async def _send_spooled(self, end: int | None = None) -> None:
        """What an earlier run left, or could not be sent, in order, up to the row `end`. Raises
        Unreachable."""
        spool = self._spool
        if spool is None:
            return
        for number, row in spool.unsent():
            if number == end:
                return
            try:
                sent = await self._sent(row.topic, row.value, row.options(self._engine.clock.now()))
                spool.sent(range(number, number + 1), sent.flights, heard=False)
            except (Unreachable, Backpressure, ClientClosed):
                raise
            except GossipqError as error:
                spool.stays(number, error)
                spool.sent(range(number, number + 1), ())

    async def _sent(
        self, topic: str, raw: bytes, checked: Options, copies: list[Awaited] | None = None
    ) -> Awaited:
        """`copies` gets what is under way, even if that is not all."""
        added = self._append_now(topic, raw, checked)
        if added is not None:
            self._depart()
            return One(*added)
        known = await self._topic(topic)
        if not known.virtual:
            return await self._append(known, raw, checked)
        checked, targets = checked.with_id(self._engine.made_ids(1)[0]), await self._targets(known)
        writers = [target.writer(checked.chooser, checked.partition) for target in targets]
        if checked.wait_s == 0:
            self._require_turn(writers)
            self._do(self._engine.require_open, writers)
        ids = [checked.made_id]
        copies = [] if copies is None else copies
        for target in targets:
            try:
                copies.append(await self._append(target, raw, checked))
            except GossipqError as error:
                raise half_way(error, ids) if copies else error from None
        return Copied(copies, ids)

    async def _append(self, topic: Topic, raw: bytes, options: Options) -> One:
        publishing, writer = self._engine.session.publishing, topic.writer(options.chooser, options.partition)
        return One(
            *await self._in_window(
                writer, options.wait_s, lambda heir: publishing.append(heir, raw, *options.record)
            )
        )

    @shows(list_options, Common, ListOptions)
    async def publish_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        timeout: inputs.Timeout = UNSET,
        **options: Unpack[ListOptions],
    ) -> Receipt:
        """Publish a list in order, packed, and wait until all of it is stored.

        Options are those of `publish`, and for each value one of `keys`, `ids`, `delays`. Records that are
        due later go in the order of their due times. A spool takes all of them by one sync, or none. A short
        list of plain values shares a batch with its neighbours while earlier batches wait for their confirm.

        Returns one receipt for the list. Raises what `publish` raises: the first error of a record, and then
        records of other batches may be stored.
        """
        seconds = self._seconds(timeout)
        raws, changed = self._changed_list(topic, values, options)
        if self._layers.publishing and raws:
            sending = self._list_outgoing(topic, raws, changed)
        else:
            sending = self._send_list(topic, raws, self._prepared_list(raws, changed))
        return await self._receipt(await self._in_turn(topic, sending), seconds)

    @shows(list_options, Common, ListOptions)
    def post_many(self, topic: str, values: Iterable[Any], **options: Unpack[ListOptions]) -> PendingReceipt:
        """Publish a list as `publish_many` does, and return at once: its receipt says when all is stored.

        While the window is full, it does what `post` does.
        """
        raws, changed = self._changed_list(topic, values, options)
        if self._layers.publishing and raws:
            sending = self._list_outgoing(topic, raws, changed)
        else:
            sending = self._send_list(topic, raws, self._prepared_list(raws, changed))
        return self._posted(topic, sum(map(len, raws)), sending)

    def _changed_list(
        self, topic: str, values: Iterable[Any], options: Mapping[str, Any]
    ) -> tuple[list[bytes], Mapping[str, Any]]:
        """Values as bytes, and their options as middleware changes them. Raises BadRequest."""
        if topic in self._checking:
            values = [self._raw(topic, value) for value in values]
        raws = self._codec.encoded_list(values, topic)
        if self._layers.all:
            options = self._changed(topic, options, len(raws))
        return raws, options

    def _prepared_list(self, raws: list[bytes], options: Mapping[str, Any]) -> Many:
        """The options of a list, checked. Raises BadRequest."""
        many = list_options(len(raws), self._now(), **options)
        return many.with_ids(Engine.made_ids(len(raws))) if self._spool is not None else many

    async def _send_list(self, topic: str, raws: list[bytes], many: Many) -> Awaited:
        if self._spool is not None and raws:
            return await self._publish_spooled(self._spool, topic, raws, many)
        return await self._sent_list(topic, raws, many)

    async def _sent_list(
        self, topic: str, raws: list[bytes], many: Many, parts: list[Awaited] | None = None
    ) -> Awaited:
        """`parts` gets what is to go; of that, what is sealed is under way."""
        known = await self._topic(topic)
        targets, size = [known], sum(map(len, raws))
        if not known.virtual and (writer := writer_to_merge(known, raws, size, many)) is not None:
            return await self._merged(writer, raws, size, many)
        if known.virtual:
            many, targets = many.with_ids(self._engine.made_ids(len(raws))), await self._targets(known)
        publishing = self._engine.session.publishing
        listed = [self._do(plan, publishing, target, raws, many) for target in targets]
        flights = [flight for each in listed for flight in each.flights]
        if parts is not None:
            parts += listed
        if many.wait_s == 0:
            self._require_turn([flight.writer for flight in flights])
            self._do(self._engine.take_all, flights)
            self._exchange()
        else:
            for at, flight in enumerate(flights):
                try:
                    await self._in_window(flight.writer, many.wait_s, partial(publishing.take, flight))
                except Backpressure as full:
                    raise part_sent(full, flights[:at]) if at else full from None
        return Copied(listed, many.made_ids) if known.virtual else listed[0]

    async def _merged(self, writer: Writer, raws: list[bytes], size: int, many: Many) -> Merged:
        merge = self._engine.session.publishing.merge
        flight, first = await self._in_window(
            writer, many.wait_s, lambda heir: merge(heir, raws, size, many.route, many.level)
        )
        return Merged(flight, first, len(raws))

    async def _step(
        self,
        held: Held,
        offset: int,
        then: Callable[[Flight], None],
        topic: str,
        value: Any,
        **options: Unpack[PublishOptions],
    ) -> Awaited:
        """Publishes what comes of a record in hand and acks it, as one atomic step; `then` hears when it is
        done, well or not. It needs no spool: until the step is stored, the record in hand is not acked, and
        comes again.

        Raises BadRequest unless both lie in one shard.
        """
        if self._layers.publishing:

            async def send(record: Outgoing) -> Awaited:
                fit = inputs.value_bytes(record.value)
                return await self._step_as(held, offset, then, record.topic, fit, sendable(record))

            found: Awaited = await self._through(self._outgoing(topic, value, options), send)
            return found
        if self._layers.all:
            options = self._changed(topic, options)
        return await self._step_as(held, offset, then, topic, self._raw(topic, value), options)

    async def _step_as(
        self,
        held: Held,
        offset: int,
        then: Callable[[Flight], None],
        topic: str,
        raw: bytes,
        options: Mapping[str, Any],
    ) -> Awaited:
        checked = publish_options(self._engine.clock.now, **options)
        if self._spool is not None:
            self._spool.check()
            async with self._spooling:
                await self._send_spooled()
        writer = self._engine.writer_beside(held, await self._topic(topic), checked)
        acks, publishing = [(held.partition, offset, offset + 1)], self._engine.session.publishing

        def send(heir: Writer) -> Flight:
            return publishing.step(heir, checked, raw, held.part.number, acks, then)

        return One(await self._in_window(writer, checked.wait_s, send), 0)

    async def _targets(self, topic: Topic) -> list[Topic]:
        """Return the real topics of a virtual topic."""
        return [await self._topic(name, create=False) for name in topic.virtual]

    async def _topic(self, name: str, create: bool = True) -> Topic:
        found = self._do(self._engine.find_topic, name, create)
        if isinstance(found, Topic):
            return found
        await self._answered(found, self._timeout)
        return self._do(self._engine.learn_topic, name, found)
