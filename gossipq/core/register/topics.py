"""The register of topics: what the leader of the meta shard does besides leading a shard.

A topic is made in three steps: META_TOPIC is committed here; each shard that holds a partition logs its own TOPIC entry
(INSTALL_TOPIC, repeated until it answers); then the client hears of it. What is known twice is answered twice.
"""

from fnmatch import fnmatchcase
from typing import Protocol

import msgspec

from gossipq import limits
from gossipq.core.copies import topic_shards
from gossipq.core.delivery import check_policy, within
from gossipq.core.ledger import Ledger
from gossipq.core.storage import log, payloads
from gossipq.errors import BadName, BadRequest, Busy, Refused, TopicExists, UnknownTopic
from gossipq.messages import BindTopic, CreateTopic, DropTopic, Resolve, Topics
from gossipq.operator_messages import SetTopic
from gossipq.peer_messages import AskTopic, InstallTopic, TopicInstalled
from gossipq.texts import many
from gossipq.types import Index, Origin
from gossipq.values import Message, TopicConfig, TopicInfo

INSTALL_AGAIN_MS = 500
REGISTER_VERBS = (Resolve, CreateTopic, BindTopic, DropTopic, SetTopic, TopicInstalled, AskTopic)  #: what the register serves
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class Proposes(Protocol):
    """What the register asks of its shard."""

    def propose(self, kind: int, payload: bytes) -> Index: ...
    def reply(self, origin: Origin, request_id: int, message: Message) -> None: ...
    def tell(self, shard: int, message: Message) -> None: ...
    def warn(self, text: str) -> None:
        """For whoever looks after this node."""


def check_name(name: str) -> None:
    """Raises BadName. Names go into keys, file names and patterns, so they are plain."""
    if not name or len(name.encode("utf-8", "replace")) > limits.NAME_BYTES_MAX:
        raise BadName(f"topic name of {len(name.encode('utf-8', 'replace'))} bytes; 1 to {limits.NAME_BYTES_MAX} are allowed")
    if not _NAME_CHARS.issuperset(name) or name in {".", ".."}:
        raise BadName(f"topic name {name!r}", hint="letters, digits, dot, dash and underscore are allowed")


def check_config(config: TopicConfig) -> None:
    """Raises BadRequest naming the field."""
    if not 1 <= config.partitions <= limits.PARTITIONS_MAX:
        raise BadRequest(f"partitions = {config.partitions}", hint=f"1 to {limits.PARTITIONS_MAX} are allowed")
    if config.retention_ms < 0 or config.bytes_max < 0:
        raise BadRequest("retention_ms and bytes_max are 0 or more")
    within("ttl_ms", config.ttl_ms, 0, limits.DELAY_MS_MAX)
    within("dedup_ms", config.dedup_ms, 0, limits.DEDUP_HARD_MS)
    within("dedup_count", config.dedup_count, 0, limits.DEDUP_HARD_COUNT)
    within("alarm_lag", config.alarm_lag, 0, limits.ALARM_LAG_MAX)
    check_policy(config)
    for field, allowed in (
        ("retain", ("acked", "forever")),
        ("overflow", ("refuse", "drop_oldest")),
        ("level", ("stored", "none")),
        ("expire", ("dead", "drop", "try_once")),
        ("trace", ("failures", "all", "off")),
    ):
        if getattr(config, field) not in allowed:
            raise BadRequest(f"{field} = {getattr(config, field)!r}", hint=f"one of {', '.join(allowed)}")


class Creation:
    """A request that waits: topics still being logged, and the answer gathered so far."""

    __slots__ = ("found", "missing", "origin", "request_id")

    def __init__(self, origin: Origin, request_id: int, found: list[TopicInfo], missing: set[str]) -> None:
        self.origin, self.request_id, self.found, self.missing = origin, request_id, found, missing


class TopicRegister:
    def __init__(
        self,
        shard: Proposes,
        ledger: Ledger,
        shards: int,
        auto_create: bool,
        defaults: TopicConfig,
        virtual: dict[str, list[str]],
    ) -> None:
        """`virtual` topics of the cluster's file are made as soon as this shard leads."""
        self._shard, self._ledger, self._shards = shard, ledger, shards
        self._auto_create, self._defaults, self._virtual = auto_create, defaults, virtual
        self._creations: list[Creation] = []
        self._proposed: set[str] = set()
        self._installing: dict[tuple[str, int], set[int]] = {}  # (name, version) -> shards that have not answered
        self._infos: dict[tuple[str, int], tuple[TopicInfo, bool]] = {}
        self._drops: dict[str, list[tuple[Origin, int]]] = {}
        self._again_ms: int | None = None

    # --- requests --------------------------------------------------------------------------------------------------

    def resolve(self, origin: Origin, request_id: int, message: Resolve) -> None:
        found: dict[str, TopicInfo] = {}
        missing: list[str] = []
        for name in message.names:
            if "*" in name:
                found |= {known: info for known, info in self._ledger.names.items() if fnmatchcase(known, name)}
            elif info := self._ledger.names.get(name):
                found[name] = info
            elif message.create:
                check_name(name)
                missing.append(name)
        if missing and not self._auto_create:
            raise UnknownTopic(f"no topic {missing[0]}", hint=f"gossipq topic create {missing[0]}")
        self._make(origin, request_id, list(found.values()), dict.fromkeys(missing, self._defaults))

    def create(self, origin: Origin, request_id: int, message: CreateTopic) -> None:
        check_name(message.name)
        config = message.config.over(self._defaults)
        check_config(config)
        if config.virtual:
            raise BadRequest("a virtual topic is made by binding it", hint=f"gossipq topic virtual {message.name} TOPIC...")
        known = self._ledger.names.get(message.name)
        if known is not None:
            if not message.if_not_exists:
                raise TopicExists(f"topic {message.name} exists", hint=f"gossipq topic show {message.name}")
            self._shard.reply(origin, request_id, Topics([known]))
            return
        self._make(origin, request_id, [], {message.name: config})

    def bind(self, origin: Origin, request_id: int, message: BindTopic) -> None:
        """A virtual topic, new or bound anew. Its real topics are made if they are missing."""
        check_name(message.name)
        targets = list(dict.fromkeys(message.targets))
        self._check_targets(message.name, targets)
        known = self._ledger.names.get(message.name)
        if known is not None and not known.config.virtual:
            raise TopicExists(f"{message.name} is a topic with records of its own", hint="choose another name")
        missing = [name for name in targets if name not in self._ledger.names]
        if missing and not self._auto_create:
            raise UnknownTopic(f"no topic {missing[0]}", hint=f"gossipq topic create {missing[0]}")
        if known is not None and known.config.virtual == targets:
            self._shard.reply(origin, request_id, Topics([known]))
            return
        config = msgspec.structs.replace(self._defaults, partitions=0, virtual=targets)
        self._make(origin, request_id, [], {**dict.fromkeys(missing, self._defaults), message.name: config})

    def change(self, origin: Origin, request_id: int, message: SetTopic) -> None:
        """Another policy for a topic that is there. What decides where records lie stays."""
        known = self._ledger.names.get(message.name)
        if known is None:
            raise UnknownTopic(f"no topic {message.name}", hint="gossipq topic ls")
        if known.config.virtual:
            raise BadRequest(
                f"{known.name} is virtual: it has no records", hint=f"set its topics: {', '.join(known.config.virtual)}"
            )
        for field in ("partitions", "beside", "virtual"):
            if getattr(message.config, field) is not None:
                raise BadRequest(f"{field} is chosen when a topic is made", hint="make another topic, and copy what is needed")
        if any(known.name in creation.missing for creation in self._creations):
            raise Busy(f"topic {known.name} is being changed", retry_after_ms=20)
        config = message.config.over(known.config)
        check_config(config)
        if config == known.config:
            self._shard.reply(origin, request_id, Topics([known]))
            return
        info = msgspec.structs.replace(known, version=known.version + 1, config=config)
        self._shard.propose(log.META_TOPIC, payloads.encode(payloads.Topic(info)))
        self._creations.append(Creation(origin, request_id, [], {known.name}))

    def _check_targets(self, name: str, targets: list[str]) -> None:
        if not 0 < len(targets) <= limits.VIRTUAL_TARGETS_MAX:
            hint = f"1 to {limits.VIRTUAL_TARGETS_MAX} are allowed"
            raise BadRequest(f"virtual topic {name} would have {many(len(targets), 'topic')}", hint=hint)
        for target in targets:
            check_name(target)
            known = self._ledger.names.get(target)
            if target == name:
                raise BadRequest(f"virtual topic {name} would contain itself", hint="name topics with records of their own")
            if known is not None and known.config.virtual:
                names = ", ".join(known.config.virtual)
                raise BadRequest(f"{target} is virtual itself", hint=f"name its topics instead: {names}")
        holders = [info.name for info in self._ledger.names.values() if name in info.config.virtual]
        if holders:
            raise BadRequest(f"{name} belongs to the virtual topic {holders[0]}", hint="virtual topics hold real ones only")

    def lead(self) -> None:
        """This shard leads: virtual topics of the cluster's file that are missing are made, and topics that were changed are
        told to their shards again, since nobody asks for a change."""
        for info in self._ledger.names.values():
            if info.version > 1 and info.shards:
                self.applied(payloads.Topic(info))
        for name, targets in self._virtual.items():
            known = self._ledger.names.get(name)
            if known is None or known.config.virtual != targets:
                try:
                    self.bind((), 0, BindTopic(name, targets))
                except Refused as error:
                    self._shard.warn(f"virtual topic {name} of the configuration: {error}")

    def _make(self, origin: Origin, request_id: int, found: list[TopicInfo], configs: dict[str, TopicConfig]) -> None:
        busy = {name for info in found for name, _ in self._installing if name == info.name}
        if not configs and not busy:
            self._shard.reply(origin, request_id, Topics(found))
            return
        if len(self._ledger.names) + len(configs) > limits.TOPICS_MAX:
            raise BadRequest(f"{limits.TOPICS_MAX} topics exist", hint="remove one: gossipq topic rm NAME")
        for name, config in configs.items():
            shards = self._place(name, config)
            if name not in self._proposed:
                self._proposed.add(name)
                info = TopicInfo(0, name, 1, config, shards)
                self._shard.propose(log.META_TOPIC, payloads.encode(payloads.Topic(info)))
        ready = [info for info in found if info.name not in busy]
        self._creations.append(Creation(origin, request_id, ready, busy | set(configs)))

    def _place(self, name: str, config: TopicConfig) -> list[int]:
        if config.virtual:
            return []
        if not config.beside:
            return topic_shards(name, config.partitions, self._shards)
        other = self._ledger.names.get(config.beside)
        if other is None:
            raise UnknownTopic(f"no topic {config.beside}, beside which {name} was to lie")
        return [other.shards[i % len(other.shards)] for i in range(config.partitions)]

    def drop(self, origin: Origin, request_id: int, message: DropTopic) -> None:
        known = self._ledger.names.get(message.name)
        if known is None:
            raise UnknownTopic(f"no topic {message.name}", hint="gossipq topic ls")
        holders = [info.name for info in self._ledger.names.values() if message.name in info.config.virtual]
        if holders:
            raise BadRequest(
                f"topic {message.name} belongs to the virtual topic {holders[0]}",
                hint=f"gossipq topic virtual {holders[0]} with the others, or remove that first",
            )
        first = message.name not in self._drops
        self._drops.setdefault(message.name, []).append((origin, request_id))
        if first:
            self._shard.propose(log.META_TOPIC, payloads.encode(payloads.Topic(known, deleted=True)))

    # --- what follows ----------------------------------------------------------------------------------------------

    def applied(self, payload: payloads.Topic) -> None:
        """A META_TOPIC is committed: its shards are told."""
        info = payload.info
        self._proposed.discard(info.name)
        name = info.name, -info.id if payload.deleted else info.version
        self._installing[name] = set(info.shards)
        self._infos[name] = info, payload.deleted
        self._tell(name)
        if not info.shards:  # a virtual topic lives in the register alone
            self._complete(name, info, payload.deleted)

    def _tell(self, name: tuple[str, int]) -> None:
        info, deleted = self._infos[name]
        for shard in self._installing[name]:
            self._shard.tell(shard, InstallTopic(info, deleted))

    def installed(self, message: TopicInstalled) -> None:
        """A shard has logged a version; the last one frees who waits."""
        for name, (info, deleted) in list(self._infos.items()):
            if info.id != message.topic_id or (-info.id if deleted else info.version) != message.version:
                continue
            self._installing[name].discard(message.shard)
            if not self._installing[name]:
                self._complete(name, info, deleted)

    def _complete(self, name: tuple[str, int], info: TopicInfo, deleted: bool) -> None:
        """Every shard of a topic knows this version of it."""
        del self._installing[name], self._infos[name]
        if deleted:
            for origin, request_id in self._drops.pop(info.name, ()):
                self._shard.reply(origin, request_id, Topics([]))
        else:
            self._arrived(info)

    def _arrived(self, info: TopicInfo) -> None:
        for creation in list(self._creations):
            if info.name in creation.missing:
                creation.missing.discard(info.name)
                creation.found.append(info)
            if not creation.missing:
                self._creations.remove(creation)
                self._shard.reply(creation.origin, creation.request_id, Topics(creation.found))

    def ask(self, message: AskTopic) -> None:
        """A shard met a topic id that it does not know: it gets the topic, or hears that it holds none of it."""
        nothing = TopicInfo(message.topic_id, "", 0, TopicConfig(), [])
        found = next((info for info in self._ledger.names.values() if info.id == message.topic_id), nothing)
        if 0 <= message.shard < self._shards:
            self._shard.tell(message.shard, InstallTopic(found, deleted=message.shard not in found.shards))

    def tick(self, boot_ms: int) -> None:
        """Repeats what was not answered."""
        if not self._installing:
            self._again_ms = None
        elif self._again_ms is None:
            self._again_ms = boot_ms + INSTALL_AGAIN_MS
        elif boot_ms >= self._again_ms:
            self._again_ms = boot_ms + INSTALL_AGAIN_MS
            for name in self._installing:
                self._tell(name)

    def next_deadline(self) -> int | None:
        return self._again_ms

    def waiting(self) -> list[tuple[Origin, int]]:
        """Requests that were not answered yet."""
        creating = [(creation.origin, creation.request_id) for creation in self._creations]
        return creating + [asker for askers in self._drops.values() for asker in askers]

    def serve(self, origin: Origin, request_id: int, message: Message) -> None:
        """Any request of this room. Raises what a client must hear."""
        if isinstance(message, Resolve):
            self.resolve(origin, request_id, message)
        elif isinstance(message, CreateTopic):
            self.create(origin, request_id, message)
        elif isinstance(message, BindTopic):
            self.bind(origin, request_id, message)
        elif isinstance(message, DropTopic):
            self.drop(origin, request_id, message)
        elif isinstance(message, SetTopic):
            self.change(origin, request_id, message)
        elif isinstance(message, TopicInstalled):
            self.installed(message)
        elif isinstance(message, AskTopic):
            self.ask(message)
