"""The asyncio producer: the same names as the sync one, awaited."""

from collections.abc import Callable, Iterable
from typing import Unpack

from gossipq.errors import GossipqError
from gossipq_client import inputs
from gossipq_client.aio_driver import Driver, PendingReceipt
from gossipq_client.held import Held
from gossipq_client.lists import plan
from gossipq_client.packer import Flight, Topic
from gossipq_client.receipts import Copied, One, half_way
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
        copies, ids = list[One](), [checked.made_id]
        for target in targets:
            try:
                copies.append(await self._append(target, raw, checked))
            except GossipqError as error:
                raise half_way(error, ids) if copies else error from None
        return PendingReceipt(self, Copied(copies, ids))

    async def _append(self, topic: Topic, raw: bytes, options: Options) -> One:
        writer = topic.writer(options.chooser, options.partition)
        if not options.block:
            self.engine.require_open([writer])
        await self.room(writer)
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
                await self.room(flight.writer)
            self.engine.session.publishing.take(flight)
            self.turn()
        return PendingReceipt(self, Copied(listed, many.made_ids) if known.virtual else listed[0])

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
        writer = self.engine.writer_beside(held, await self._topic(topic), checked)
        if not checked.block:
            self.engine.require_open([writer])
        await self.room(writer)
        acks = [(held.partition, offset, offset + 1)]
        flight = self.engine.session.publishing.step(writer, checked, raw, held.part.number, acks, then)
        self.turn()
        return PendingReceipt(self, One(flight, 0))

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
