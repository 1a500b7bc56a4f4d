"""The asyncio producer: the same names as the sync one, awaited."""

from collections.abc import Callable, Iterable
from typing import Unpack

from gossipq_client import inputs
from gossipq_client.aio_driver import Driver, PendingReceipt
from gossipq_client.held import Held
from gossipq_client.lists import plan
from gossipq_client.packer import Flight, Topic, Writer
from gossipq_client.receipts import Copied, One
from gossipq_client.terms import PLAIN, ListOptions, Options, PublishOptions, list_options, publish_options


class Producers(Driver):
    """The part of a client that publishes."""

    async def publish(self, topic: str, value: inputs.Value, **options: Unpack[PublishOptions]) -> PendingReceipt:
        """As the sync `publish`; awaiting it means that the record is on its way, awaiting the receipt that it is kept."""
        raw = inputs.value_bytes(value)
        checked = publish_options(self.engine.clock.now, **options) if options else PLAIN
        known = await self._topic(topic)
        if not known.virtual:
            return PendingReceipt(self, await self._append(known, raw, checked))
        checked, targets = checked.with_id(self.engine.made_ids(1)[0]), await self._targets(known)
        writers = [target.writer(checked.chooser, checked.partition) for target in targets]
        if not checked.block:
            self.engine.require_open(writers)
        return PendingReceipt(self, Copied([await self._append(target, raw, checked) for target in targets]))

    async def _append(self, topic: Topic, raw: bytes, options: Options) -> One:
        writer = topic.writer(options.chooser, options.partition)
        if not options.block:
            self.engine.require_open([writer])
        await self._room(writer)
        appended = self.engine.session.publishing.append(writer, raw, *options.record)
        if self.engine.session.links.out:
            self.turn()
        else:
            self.soon()
        return One(*appended)

    async def publish_many(self, topic: str, values: Iterable[inputs.Value], **options: Unpack[ListOptions]) -> PendingReceipt:
        """As the sync `publish_many`."""
        raws = inputs.values_of(values)
        many = list_options(len(raws), self.engine.clock.now, **options)
        known = await self._topic(topic)
        targets = [known]
        if known.virtual:
            many, targets = many.with_ids(self.engine.made_ids(len(raws))), await self._targets(known)
        listed = [plan(self.engine.session.publishing, target, raws, many) for target in targets]
        flights = [flight for each in listed for flight in each.flights]
        if not many.block:
            self.engine.require_room(flights)
        for flight in flights:
            if many.block:
                await self._room(flight.writer)
            self.engine.session.publishing.take(flight)
            self.turn()
        return PendingReceipt(self, Copied(listed) if known.virtual else listed[0])

    async def step(
        self,
        held: Held,
        offset: int,
        then: Callable[[Flight], None],
        topic: str,
        value: inputs.Value,
        **options: Unpack[PublishOptions],
    ) -> PendingReceipt:
        """As the sync `step`."""
        raw = inputs.value_bytes(value)
        checked = publish_options(self.engine.clock.now, **options)
        known = await self._topic(topic)
        self.engine.session.advance(self.engine.clock.now())
        flight = self.engine.step(known, raw, checked, held, offset, then)
        self.turn()
        return PendingReceipt(self, One(flight, 0))

    async def _room(self, writer: Writer) -> None:
        self.engine.check()
        if self.engine.full(writer):
            await self.until(lambda: not self.engine.full(writer), None)
        self.engine.session.advance(self.engine.clock.now())

    async def _targets(self, topic: Topic) -> list[Topic]:
        """What a virtual topic is bound to."""
        return [await self._topic(name, create=False) for name in topic.virtual]

    async def _topic(self, name: str, create: bool = True) -> Topic:
        self.engine.check()
        found = self.engine.find_topic(name, create)
        if isinstance(found, Topic):
            return found
        await self.answered(found)
        return self.engine.learn_topic(name, found)
