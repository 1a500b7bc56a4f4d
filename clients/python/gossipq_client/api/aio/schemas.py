"""Schemas of topics. They are declared as records of the topic `_schemas`; the publishing client checks
them."""

from typing import Any

from gossipq.errors import BadRequest, Busy, Forbidden, UnknownTopic
from gossipq.messages import CreateTopic, Resolve, Topics
from gossipq.types import META_SHARD
from gossipq.values import TopicInfo
from gossipq.wire import schemas
from gossipq.wire.schemas import Declaration, Declared, Schema
from gossipq_client.api.aio.operator import Operator
from gossipq_client.api.aio.publisher import Publisher
from gossipq_client.api.aio.reader import read_batches
from gossipq_client.values import topic_options

DECLARE_TRIES = 16  #: others may declare at the same time
SCHEMAS_CONFIG = topic_options(1, retain="forever")


class Schemas:
    """Declares the schemas of topics, and knows those that others declared."""

    def __init__(self, operator: Operator, publisher: Publisher) -> None:
        """`publisher` publishes declarations, and checks values by the schemas in use."""
        self._operator, self._publisher = operator, publisher

    async def use(self, topic: str, declared: Any = None) -> Schema:
        """Check what is published to a topic by its schema from now on, as `Facade.schema` says."""
        info = await self._known_topic(topic)
        if declared is not None:
            await self._declare(info, schemas.document_of(declared))
        found = (await self.declared()).schemas.get(info.id)
        if found is None:
            self._publisher.check_no_more(
                topic
            )  # what was known is of another topic of that name, or removed
            raise BadRequest(f"topic {topic} has no schema", hint=f"gossipq topic schema set {topic} FILE")
        self._publisher.check_by(found)
        return found

    async def next(self, topic: str, declared: Any) -> Schema:
        """Return what `use` would declare."""
        info, document = await self._known_topic(topic), schemas.document_of(declared)
        known = await self.declared()
        made = Schema(topic, info.id, known.versions.get(info.id, 0) + 1, document)
        if info.id in known.schemas:
            schemas.require_follows(known.schemas[info.id], made.shape)
        return made

    async def delete(self, topic: str) -> None:
        """Remove the schema of a topic."""
        await self._declare(await self._known_topic(topic), None)
        self._publisher.check_no_more(topic)

    def forget(self, topic: str) -> None:
        """Check nothing any more that this client publishes there: the topic is gone."""
        self._publisher.check_no_more(topic)

    async def _known_topic(self, name: str) -> TopicInfo:
        """Raise NotFound, or BadRequest for a topic without records of its own."""
        infos = await self._operator.run(self._operator.asking.topics(name))
        found = [info for info in infos if info.name == name]
        if not found:
            raise UnknownTopic(f"topic {name!r} does not exist", hint=f"gossipq topic create {name}")
        if found[0].config.virtual or name == schemas.TOPIC:
            raise BadRequest(f"topic {name} can have no schema", hint="declare one for the real topics")
        return found[0]

    async def _declare(self, info: TopicInfo, document: dict[str, Any] | None) -> None:
        """Publishes the next version and reads back if it counts: of two at a time the first one does."""
        for _ in range(DECLARE_TRIES):
            known = await self.declared()
            now = known.schemas.get(info.id)
            if (now.document if now is not None else None) == document:
                return
            if document in known.earlier.get(info.id, ()):
                return
            if now is not None and document is not None:
                schemas.require_follows(now, schemas.parse(document))
            version = known.versions.get(info.id, 0) + 1
            entry = schemas.encode(Declaration(info.name, info.id, version, document))
            await self._operator.ask(CreateTopic(schemas.TOPIC, SCHEMAS_CONFIG, True), META_SHARD, Topics)
            await self._publisher.publish(schemas.TOPIC, entry, {"key": info.name})
        raise Busy(
            f"others declare schemas of {info.name} at the same time, again and again", hint="try again"
        )

    async def declared(self) -> Declared:
        """Return the declared schemas by topic id; empty for a client that may not read them."""
        try:
            if not (await self._operator.ask(Resolve([schemas.TOPIC]), META_SHARD, Topics)).topics:
                return Declared()
            stretches = [each async for each in read_batches(self._operator, schemas.TOPIC, partition=0)]
        except Forbidden:
            return Declared()
        return Declared(value for each in stretches for value in each.values())

    async def of(self, topic: str) -> Schema | None:
        """The schema of a topic, if it has one. Values are not checked by it."""
        known = await self.declared()
        if not known.schemas:
            return None
        infos = (await self._operator.ask(Resolve([topic]), META_SHARD, Topics)).topics
        ids = [info.id for info in infos if info.name == topic]
        return known.schemas.get(ids[0]) if ids else None
