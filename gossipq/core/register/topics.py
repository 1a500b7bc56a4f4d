"""The register of topics, kept by the leader of the meta shard.

A topic is created, changed or removed in three steps. META_TOPIC is committed here, with a row that
lists the version for the topic's shards. Each shard with a partition logs a TOPIC entry; the
register repeats INSTALL_TOPIC until it answers. Then the client is answered, and INSTALLED removes
the row. A new leader of the meta shard continues from the rows. Repeated messages are harmless.

Topic ids are indexes of entries, so they are never reused. A shard that lost a topic keeps a
tombstone for a week of leader time. Later messages are answered by the register, which knows all
ids that still exist.

The creation of a topic is confirmed when all its shards have logged it, because apply never reads
another shard. Its removal is confirmed when all earlier topics of its name are gone, too. So a
client that removes, creates and removes a name gets no record of it afterwards.
"""

import re
from collections.abc import Callable
from fnmatch import translate
from functools import partial

import msgspec

from gossipq import limits
from gossipq.core.copies import topic_shards
from gossipq.core.delivery import check_policy
from gossipq.core.desk import Asker, Desk, Request
from gossipq.core.ledger import ClusterState, Outcome, TopicChanged, refused
from gossipq.core.storage import ShardSettings, log, payloads
from gossipq.errors import BadName, BadRequest, Busy, Refused, TopicExists, UnknownTopic
from gossipq.messages import BindTopic, CreateTopic, DropTopic, Resolve, Topics
from gossipq.operator_messages import SetTopic
from gossipq.peer_messages import AskTopic, InstallTopic, TopicInstalled
from gossipq.permissions import CREATE, require_writer
from gossipq.rates import Payer, check_owned
from gossipq.texts import many
from gossipq.types import Index, Origin, ShardId
from gossipq.values import Message, TopicConfig, TopicInfo

INSTALL_AGAIN_MS = 500
#: after this time the client hears that a shard does not answer; shorter than clients wait
PATIENCE_MS = 3_000
NEVER = 1 << 62  #: a version that no topic reaches
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


Account = tuple[Payer, ...]


def check_name(name: str) -> None:
    """Raise BadName. Names are plain, because they become keys, file names and patterns."""
    if not name or len(name.encode("utf-8", "replace")) > limits.NAME_BYTES_MAX:
        raise BadName(
            f"topic name of {len(name.encode('utf-8', 'replace'))} bytes; 1 to {limits.NAME_BYTES_MAX} are "
            "allowed"
        )
    if not _NAME_CHARS.issuperset(name) or name in {".", ".."}:
        raise BadName(f"topic name {name!r}", hint="letters, digits, dot, dash and underscore are allowed")


def _size(name: str, config: TopicConfig) -> int:
    """Approximate size of a topic in an answer."""
    return 250 + len(name) + 3 * config.partitions + sum(map(len, config.virtual))


class Creation:
    """A waiting request: topics that are being logged, and the part of the answer that is known."""

    __slots__ = ("asker", "found", "made", "missing", "more", "until_ms")

    def __init__(self, asker: Asker, found: list[TopicInfo], missing: dict[str, int], more: str = "") -> None:
        """`missing`: topics, and the version from which on each answers the request. The shards may answer
        an earlier one when this request is logged already."""
        self.asker = asker
        self.found = found
        self.missing = missing
        self.more = more
        #: topics created or changed for it: all of their shards must know them
        self.made = set(missing)
        self.until_ms: int | None = None  #: boot time at which it is answered as it stands


class TopicRegister:
    def __init__(self, desk: Desk, cluster: ClusterState, settings: ShardSettings) -> None:
        """Virtual topics of the cluster's file are created when this shard leads."""
        self._desk = desk
        self._cluster = cluster
        self._shards = settings.shards
        self._auto_create, self._defaults = settings.auto_create, settings.topic
        self._virtual, self._quota = settings.virtual, settings.quota
        self._creations: list[Creation] = []
        # names being created, with their partitions and owners
        self._proposed: dict[str, tuple[int, Account]] = {}
        # by id in `ClusterState.installing`: shards that have not answered this leader
        self._missing: dict[int, set[int]] = {}
        # (id, version) that all shards have, to be logged
        self._installed: list[tuple[int, int]] = []
        # by id: requests that wait for the end of a topic
        self._drops: dict[int, list[Asker]] = {}
        self._drops_ms: dict[int, int] = {}  # boot time until which they wait
        self._again_ms: int | None = None
        self._handlers: dict[type[Message], Callable[[Request], None]] = {
            Resolve: self._resolve,
            CreateTopic: self._create,
            BindTopic: self._bind,
            DropTopic: self._drop,
            SetTopic: self._change,
            TopicInstalled: self._note_installed,
            AskTopic: self._answer_shard,
        }

    # --- requests -------------------------------------------------------------------------------------------

    def serve(self, request: Request) -> None:
        """Serve a request, or what a shard told. Raises Refused."""
        self._handlers[type(request.message)](request)

    def _resolve(self, request: Request) -> None:
        """Answer topics by name or pattern, and create missing ones if asked to.

        Patterns match topics that the user may see. System topics are created only for nodes.
        """
        message: Resolve = request.message
        client = request.client
        rights, node = (None, True) if client is None else (client.rights, client.node)
        known = self._cluster.names
        wild = [name for name in message.names if "*" in name]
        if len(wild) > limits.RESOLVE_PATTERNS_MAX or any(len(name) > limits.NAME_BYTES_MAX for name in wild):
            raise BadRequest(
                f"{len(wild)} patterns; {limits.RESOLVE_PATTERNS_MAX} are allowed, each of "
                f"{limits.NAME_BYTES_MAX} characters",
                hint="ask for the rest in another request",
            )
        fits = re.compile("|".join(map(translate, wild))).match
        named: dict[str, TopicInfo | None] = {}  # None: to be created
        if wild:
            named |= {
                name: info
                for name, info in known.items()
                if fits(name) and (rights is None or rights.sees(name))
            }
        for name in message.names:
            if name in wild:
                continue
            if name in known or message.create:
                named[name] = known.get(name)
        page, more = self._page(
            {name: info for name, info in named.items() if name > message.after or not message.after}
        )
        missing = [name for name, info in page.items() if info is None]
        for name in missing:
            check_name(name)
            if rights is not None:
                rights.require(Resolve, CREATE, name)
            require_writer(name, node)
        if missing and not self._auto_create:
            raise UnknownTopic(f"no topic {missing[0]}", hint=f"gossipq topic create {missing[0]}")
        found = [info for info in page.values() if info is not None]
        self._make(request, found, dict.fromkeys(missing, self._defaults), more)

    def _page(self, named: dict[str, TopicInfo | None]) -> tuple[dict[str, TopicInfo | None], str]:
        """Return the topics of one answer by name, and the last name if more follow."""
        page: dict[str, TopicInfo | None] = {}
        size = 0
        for name in sorted(named):
            if len(page) >= limits.LIST_ROWS_MAX or size >= limits.LIST_BYTES_MAX:
                return page, next(reversed(page))
            info = page[name] = named[name]
            size += _size(name, info.config if info is not None else self._defaults)
        return page, ""

    def _create(self, request: Request) -> None:
        message: CreateTopic = request.message
        check_name(message.name)
        config = message.config.over(self._defaults)
        check_policy(config)
        if config.virtual:
            raise BadRequest(
                "a virtual topic is made by binding it", hint=f"gossipq topic virtual {message.name} TOPIC..."
            )
        known = self._cluster.names.get(message.name)
        if known is not None:
            if not message.if_not_exists:
                raise TopicExists(f"topic {message.name} exists", hint=f"gossipq topic show {message.name}")
            self._make(request, [known], {})  # shards may still have to hear of it
            return
        self._make(request, [], {message.name: config})

    def _bind(self, request: Request) -> None:
        """Create a virtual topic or bind it anew. Missing target topics are created."""
        message: BindTopic = request.message
        check_name(message.name)
        targets = list(dict.fromkeys(message.targets))
        self._check_targets(message.name, targets)
        known = self._cluster.names.get(message.name)
        if known is not None and not known.config.virtual:
            raise TopicExists(
                f"{message.name} is a topic with records of its own", hint="choose another name"
            )
        missing = [name for name in targets if name not in self._cluster.names]
        if missing and not self._auto_create:
            raise UnknownTopic(f"no topic {missing[0]}", hint=f"gossipq topic create {missing[0]}")
        if known is not None and known.config.virtual == targets:
            self._desk.reply(request, Topics([known]))
            return
        config = msgspec.structs.replace(self._defaults, partitions=0, virtual=targets)
        configs = {**dict.fromkeys(missing, self._defaults), message.name: config}
        self._make(request, [], configs)

    def _change(self, request: Request) -> None:
        """Change the policy of a topic. Fields that decide about placement cannot change."""
        message: SetTopic = request.message
        known = self._cluster.names.get(message.name)
        if known is None:
            raise UnknownTopic(f"no topic {message.name}", hint="gossipq topic ls")
        if known.config.virtual:
            raise BadRequest(
                f"{known.name} is virtual: it has no records",
                hint=f"set its topics: {', '.join(known.config.virtual)}",
            )
        for field in ("partitions", "beside", "virtual"):
            if getattr(message.config, field) is not None:
                raise BadRequest(
                    f"{field} is chosen when a topic is made",
                    hint="make another topic, and copy what is needed",
                )
        if any(known.name in creation.missing for creation in self._creations):
            raise Busy(f"topic {known.name} is being changed", retry_after_ms=20)
        config = message.config.over(known.config)
        check_policy(config)
        if config == known.config:
            self._make(request, [known], {})
            return
        info = msgspec.structs.replace(known, version=known.version + 1, config=config)
        self._propose(info)
        self._creations.append(Creation(request, [], {known.name: info.version}))

    def _check_targets(self, name: str, targets: list[str]) -> None:
        if not 0 < len(targets) <= limits.VIRTUAL_TARGETS_MAX:
            hint = f"1 to {limits.VIRTUAL_TARGETS_MAX} are allowed"
            raise BadRequest(f"virtual topic {name} would have {many(len(targets), 'topic')}", hint=hint)
        for target in targets:
            check_name(target)
            known = self._cluster.names.get(target)
            if target == name:
                raise BadRequest(
                    f"virtual topic {name} would contain itself", hint="name topics with records of their own"
                )
            if known is not None and known.config.virtual:
                names = ", ".join(known.config.virtual)
                raise BadRequest(f"{target} is virtual itself", hint=f"name its topics instead: {names}")
        holders = [info.name for info in self._cluster.names.values() if name in info.config.virtual]
        if holders:
            raise BadRequest(
                f"{name} belongs to the virtual topic {holders[0]}", hint="virtual topics hold real ones only"
            )

    def lead(self) -> None:
        """Continue unfinished changes of earlier leaders, and create missing virtual topics of the
        file.
        """
        for installing in self._cluster.installing.values():
            self._begin(installing.info)
        for name, targets in self._virtual.items():
            known = self._cluster.names.get(name)
            if known is None or known.config.virtual != targets:
                try:
                    self._bind(Request(BindTopic(name, targets)))
                except Refused as error:
                    self._desk.warn(f"virtual topic {name} of the configuration: {error}")

    def _make(
        self,
        request: Request,
        found: list[TopicInfo],
        configs: dict[str, TopicConfig],
        more: str = "",
    ) -> None:
        account = () if request.client is None else request.client.payers
        # shards that have not logged a topic yet would refuse its records, so the answer waits for them
        busy = {info.name for info in found if info.id in self._missing}
        if not configs and not busy:
            self._desk.reply(request, Topics(found, more))
            return
        self._check_quota(configs, account)
        for name, config in configs.items():
            shards = self._place(name, config)
            # clients that create one topic at the same time share its entry
            if name not in self._proposed:
                self._proposed[name] = len(shards), account
                self._propose(TopicInfo(0, name, 1, config, shards), account)
        ready = [info for info in found if info.name not in busy]
        creation = Creation(request, ready, dict.fromkeys([*busy, *configs], 0), more)
        creation.made.intersection_update(configs)
        self._creations.append(creation)

    def _check_quota(self, configs: dict[str, TopicConfig], account: Account) -> None:
        """Raise BadRequest or Busy above a quota. An empty `account` is the cluster itself."""
        fresh = [config.partitions for name, config in configs.items() if name not in self._proposed]
        names, quota = self._cluster.names, self._quota
        topics = len(names) + len(self._proposed) + len(fresh)
        partitions = sum(len(info.shards) for info in names.values())
        partitions += sum(count for count, _ in self._proposed.values()) + sum(fresh)
        for what, asked, most in (
            ("topics", topics, quota.topics),
            ("partitions", partitions, quota.partitions),
        ):
            if fresh and asked > most:
                raise BadRequest(
                    f"{asked} {what}, and the quota cluster.quota.{what} is {most}",
                    hint="remove a topic: gossipq topic rm NAME; or raise it in cluster.toml",
                )
        owned = self._cluster.owned
        for payer in account:
            coming = [count for count, owners in self._proposed.values() if payer in owners]
            for what, more, count in (
                ("topics", len(coming), len(fresh)),
                ("partitions", sum(coming), sum(fresh)),
            ):
                check_owned(quota, payer, what, owned=owned.count(what, payer) + more, count=count)

    def _propose(self, info: TopicInfo, owners: Account = ()) -> None:
        change = payloads.TopicChange(info, owners=owners)
        index = self._desk.propose(log.META_TOPIC, payloads.encode(change))
        self._desk.pending.add(index, partial(self._logged, info.name))

    def _place(self, name: str, config: TopicConfig) -> list[int]:
        if config.virtual:
            return []
        if not config.beside:
            return topic_shards(name, config.partitions, self._shards)
        other = self._cluster.names.get(config.beside)
        if other is None:
            raise UnknownTopic(f"no topic {config.beside}, beside which {name} was to lie")
        if not other.shards:
            raise BadRequest(
                f"{config.beside} is virtual: {name} cannot lie beside it",
                hint=f"name one of its topics: {', '.join(other.config.virtual)}",
            )
        return [other.shards[i % len(other.shards)] for i in range(config.partitions)]

    def _drop(self, request: Request) -> None:
        message: DropTopic = request.message
        known = self._cluster.names.get(message.name)
        if known is None:
            if not self._await_end(message.name, request):
                raise UnknownTopic(f"no topic {message.name}", hint="gossipq topic ls")
            return
        holders = [info.name for info in self._cluster.names.values() if message.name in info.config.virtual]
        if holders:
            raise BadRequest(
                f"topic {message.name} belongs to the virtual topic {holders[0]}",
                hint=f"gossipq topic virtual {holders[0]} with the others, or remove that first",
            )
        first = known.id not in self._drops
        self._drops.setdefault(known.id, []).append(request)
        if first:
            index = self._desk.propose(
                log.META_TOPIC, payloads.encode(payloads.TopicChange(known, deleted=True))
            )
            self._desk.pending.add(index, partial(self._unnamed, known.id))

    def _await_end(self, name: str, asker: Asker) -> bool:
        """Wait for the end of a removed topic that shards still have. False if it does not
        exist.
        """
        under_way = [each.info.id for each in self._cluster.installing.values() if each.info.name == name]
        if not under_way or under_way[-1] not in self._missing:
            return False
        self._drops.setdefault(under_way[-1], []).append(asker)
        return True

    def repeat(self, request: Request) -> None:
        """Answer a repeated request whose first one succeeded, with the present state."""
        message: Message = request.message
        if isinstance(message, DropTopic):
            if message.name in self._cluster.names or not self._await_end(message.name, request):
                self._desk.reply(request, Topics([]))
            return
        assert isinstance(message, CreateTopic | SetTopic), message
        known = self._cluster.names.get(message.name)
        if known is None:
            raise UnknownTopic(f"topic {message.name} was removed since", hint="gossipq topic ls")
        self._make(request, [known], {})

    # --- what follows ---------------------------------------------------------------------------------------

    def _logged(self, name: str, asker: Asker, index: Index, outcome: Outcome) -> None:
        """An entry of this leader for a topic is applied. If refused, waiting requests are told."""
        self._proposed.pop(name, None)
        if outcome.error:
            self._refuse(name, outcome)
        elif isinstance(outcome, TopicChanged) and outcome.info.id not in self._missing:
            self._arrived(outcome.info)  # it existed before

    def _unnamed(self, topic_id: int, asker: Asker, index: Index, outcome: Outcome) -> None:
        """The removal of a topic is applied.

        The client is answered when all shards have logged it.
        """
        if outcome.error or topic_id not in self._missing:
            for each in self._drops.pop(topic_id, ()):
                self._desk.answer(each, outcome, Topics([]))

    def _refuse(self, name: str, outcome: Outcome) -> None:
        for creation in [each for each in self._creations if name in each.missing]:
            self._creations.remove(creation)
            self._desk.refuse_by(creation.asker, outcome)

    def applied(self, outcome: TopicChanged) -> None:
        """A META_TOPIC is committed: tell the shards."""
        self._begin(outcome.info)
        # requests for a change of a removed topic fail
        if outcome.deleted and outcome.info.name not in self._proposed:
            self._refuse(
                outcome.info.name, refused("unknown_topic", f"topic {outcome.info.name} was removed")
            )

    def _begin(self, info: TopicInfo) -> None:
        if info.id in self._cluster.installing:
            self._missing[info.id] = set(info.shards)
            self._tell(info.id)
            if self._again_ms is None:
                self._again_ms = self._desk.boot_ms + INSTALL_AGAIN_MS

    def _tell(self, topic_id: int) -> None:
        installing = self._cluster.installing[topic_id]
        for shard in self._missing[topic_id]:
            self._desk.tell(shard, InstallTopic(installing.info, installing.deleted))

    def _note_installed(self, request: Request) -> None:
        """A shard has logged a version. The last one completes the waiting requests.

        A shard that reports a removed topic is told so.
        """
        message: TopicInstalled = request.message
        installing, missing = (
            self._cluster.installing.get(message.topic_id),
            self._missing.get(message.topic_id),
        )
        if (
            installing is None
            and min(message.version, message.topic_id) > 0
            and message.topic_id not in self._cluster.ids
        ):
            self._tell_of(message.topic_id, message.shard)
        if installing is None or missing is None or installing.version != message.version:
            return
        missing.discard(message.shard)
        if missing:
            return
        del self._missing[message.topic_id]
        self._installed.append((message.topic_id, message.version))
        if installing.deleted:
            self._gone(installing.info)
        else:
            self._arrived(installing.info)

    def _gone(self, info: TopicInfo) -> None:
        """All shards have logged the removal. Answer requests unless an earlier topic of the name
        remains.
        """
        installing = self._cluster.installing
        earlier = [
            each for each in self._missing if each < info.id and installing[each].info.name == info.name
        ]
        for asker in self._drops.pop(info.id, ()):
            if earlier:
                self._drops.setdefault(earlier[-1], []).append(asker)
            else:
                self._desk.reply(asker, Topics([]))

    def _arrived(self, info: TopicInfo) -> None:
        """Every shard of a topic knows it."""
        for creation in list(self._creations):
            if info.version < creation.missing.get(info.name, NEVER):
                continue
            del creation.missing[info.name]
            creation.found.append(info)
            if not creation.missing:
                self._creations.remove(creation)
                found = sorted(creation.found, key=lambda info: info.name)
                self._desk.reply(creation.asker, Topics(found, creation.more))

    def _answer_shard(self, request: Request) -> None:
        """A shard asks about a topic id that it does not know."""
        message: AskTopic = request.message
        self._tell_of(message.topic_id, message.shard)

    def _tell_of(self, topic_id: int, shard: ShardId) -> None:
        """Send a topic to a shard, or that the shard has no part of it.

        Ids are never reused: an id that is not in the register was removed, or never existed.
        """
        name = self._cluster.ids.get(topic_id)
        nothing = TopicInfo(topic_id, "", 0, TopicConfig(), [])
        found = nothing if name is None else self._cluster.names[name]
        if 0 <= shard < self._shards:
            self._desk.tell(shard, InstallTopic(found, deleted=shard not in found.shards))

    def tick(self) -> None:
        """Repeat unanswered messages, and log what all shards have answered."""
        boot_ms = self._desk.boot_ms
        if self._installed:
            versions, self._installed = self._installed, []
            self._desk.propose(
                log.INSTALLED, payloads.encode(payloads.InstalledTopics(versions)), promise=False
            )
        self._give_up(boot_ms)
        if not self._missing:
            self._again_ms = None
        elif self._again_ms is None or boot_ms >= self._again_ms:
            self._again_ms = boot_ms + INSTALL_AGAIN_MS
            for topic_id in self._missing:
                self._tell(topic_id)

    def _give_up(self, boot_ms: int) -> None:
        """Answer requests that wait for a silent shard.

        Requests that only look topics up get them, because the other shards of such a topic serve.
        """
        for topic_id in self._drops:
            if boot_ms >= self._drops_ms.setdefault(topic_id, boot_ms + PATIENCE_MS):
                why = f"the topic is removed; {self._late_shards(topic_id)}"
                for asker in self._drops[topic_id]:
                    self._desk.refuse_by(asker, refused("refused", why))
                self._drops[topic_id] = []
        self._drops_ms = {each: at_ms for each, at_ms in self._drops_ms.items() if self._drops.get(each)}
        self._drops = {each: askers for each, askers in self._drops.items() if askers}
        for creation in list(self._creations):
            if creation.until_ms is None:
                creation.until_ms = boot_ms + PATIENCE_MS
            if boot_ms < creation.until_ms:
                continue
            self._creations.remove(creation)
            known = self._cluster.names
            late = sorted(creation.missing)
            if creation.made.isdisjoint(late) and all(name in known for name in late):
                found = sorted([*creation.found, *map(known.__getitem__, late)], key=lambda info: info.name)
                self._desk.reply(creation.asker, Topics(found, creation.more))
            else:
                self._desk.refuse_by(creation.asker, refused("refused", self._why_late(late[0])))

    def _why_late(self, name: str) -> str:
        info = self._cluster.names.get(name)
        return f"topic {name} is not ready: {self._late_shards(info.id if info is not None else 0)}"

    def _late_shards(self, topic_id: int) -> str:
        shards = sorted(self._missing.get(topic_id, ()))
        if not shards:
            return "its entry is not stored yet"
        return f"no answer of shard {', '.join(map(str, shards[:8]))}, which hears of it as soon as it serves"

    def next_deadline(self) -> int | None:
        return self._again_ms

    def waiting(self) -> list[tuple[Origin, int]]:
        """Requests that wait for shards."""
        askers = [creation.asker for creation in self._creations] + [
            each for askers in self._drops.values() for each in askers
        ]
        return [(asker.origin, asker.request_id) for asker in askers if asker.origin]
