# Made by clients/python/make_twins.py from api/aio/schemas.py: change that, then run it.
"""Schemas of topics: declared as records of the topic `_schemas`, checked by whoever publishes here."""

from typing import Any

from gossipq.errors import BadRequest, Busy, UnknownTopic
from gossipq.values import TopicInfo
from gossipq.wire import schemas
from gossipq.wire.schemas import Declaration, Schema
from gossipq_client.api.sync.reader import Readers
from gossipq_client.api.sync.topics import TopicKeepers

DECLARE_TRIES = 16  #: others may declare at the same time


class SchemaKeepers(Readers, TopicKeepers):
    """The part of a client that declares what values look like, and knows what others declared."""

    def schema(self, topic: str, declared: Any = None) -> Schema:
        """The schema of a topic. From now on this client publishes nothing to it that does not fit (it raises
        SchemaMismatch), and `publish` takes what JSON can say besides bytes and text.

        declared: a msgspec.Struct, a dataclass or a JSON Schema, which becomes the topic's schema unless it
        is already, or newer versions have followed it. Fields may be added if they are optional; what would
        refuse what fitted before raises SchemaMismatch. Raises UnknownTopic, and BadRequest for what is no
        schema, or when there is none."""
        info = self._known_topic(topic)
        if declared is not None:
            self._declare(info, schemas.document_of(declared))
        found = (self._schemas()).schemas.get(info.id)
        if found is None:
            self._checking.pop(topic, None)  # what was known is of another topic of that name, or removed
            raise BadRequest(f"topic {topic} has no schema", hint=f"gossipq schema set {topic} FILE")
        self._check_by(found)
        return found

    def _next_schema(self, topic: str, declared: Any) -> Schema:
        info, document = self._known_topic(topic), schemas.document_of(declared)
        known = self._schemas()
        made = Schema(topic, info.id, known.versions.get(info.id, 0) + 1, document)
        if info.id in known.schemas:
            schemas.require_follows(known.schemas[info.id], made.shape)
        return made

    def _delete_schema(self, topic: str) -> None:
        self._declare(self._known_topic(topic), None)
        self._checking.pop(topic, None)

    def _known_topic(self, name: str) -> TopicInfo:
        """Raises UnknownTopic, and BadRequest for a topic that has no records of its own."""
        found = [info for info in self.topics(name) if info.name == name]
        if not found:
            raise UnknownTopic(f"topic {name!r} does not exist", hint=f"gossipq topic create {name}")
        if found[0].config.virtual or name == schemas.TOPIC:
            raise BadRequest(f"topic {name} can have no schema", hint="declare one for the real topics")
        return found[0]

    def _declare(self, info: TopicInfo, document: dict[str, Any] | None) -> None:
        """Publishes the next version and reads back if it counts: of two at a time the first one does."""
        for _ in range(DECLARE_TRIES):
            known = self._schemas()
            now = known.schemas.get(info.id)
            if (now.document if now is not None else None) == document:
                return
            if document in known.earlier.get(info.id, ()):
                return
            if now is not None and document is not None:
                schemas.require_follows(now, schemas.parse(document))
            version = known.versions.get(info.id, 0) + 1
            entry = schemas.encode(Declaration(info.name, info.id, version, document))
            self.create_topic(schemas.TOPIC, partitions=1, retain="forever", if_not_exists=True)
            receipt = self.publish(schemas.TOPIC, entry, key=info.name)
            receipt.result(self._timeout)
        raise Busy(
            f"others declare schemas of {info.name} at the same time, again and again", hint="try again"
        )
