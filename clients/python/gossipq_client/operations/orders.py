"""Operators' requests about nodes, topics, groups and clients, as talks."""

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import attrgetter

from gossipq import limits
from gossipq.errors import BadRequest, GossipqError, UnknownTopic
from gossipq.messages import Done, DropTopic, Resolve, Status, StatusReply, Topics
from gossipq.operator_messages import (
    Alarms,
    Clients,
    ConfigShown,
    DropGroup,
    GroupShown,
    Grown,
    Growth,
    Kick,
    ListAlarms,
    ListClients,
    PurgeTopic,
    SeekGroup,
    SetTopic,
    ShowConfig,
    ShowGroup,
    Sought,
)
from gossipq.types import META_SHARD, NODE_SHARD, Offset, PartitionKey, partition_key
from gossipq.values import (
    Alarm,
    ClientRow,
    ConfigRow,
    FlowRow,
    GrowthRow,
    Message,
    SoughtRow,
    Start,
    TopicInfo,
    TopicOptions,
)
from gossipq_client import answers
from gossipq_client.operations import progress
from gossipq_client.operations.questions import Asking, Position, Talk, by_shard, require
from gossipq_client.session import Answer
from gossipq_client.values import inputs

SESSION_BYTES = 16


class Operating(Asking):
    # --- nodes

    def growth(self, topics: Iterable[str], hours: bool, since_ms: int) -> Talk[list[GrowthRow]]:
        names, since = (
            inputs.names_of(topics) if topics else [],
            inputs.whole(since_ms, "since_ms", 0, inputs.OFFSET_END - 1),
        )
        parts = yield from self._of_workers(lambda more: Growth(names, hours, since, more or []), Grown)
        rows = {(row.topic, row.shard, row.time_ms): row for part in parts for row in part.rows}
        return [rows[place] for place in sorted(rows)]

    def clients(self) -> Talk[list[ClientRow]]:
        parts = yield from self._of_workers(lambda more: ListClients(more or b""), Clients)
        rows = {(row.session, row.node, row.worker): row for part in parts for row in part.rows}
        return list(rows.values())

    def kick(self, session: bytes, for_ms: int) -> Talk[int]:
        if not limits.SESSION_SHOWN_BYTES <= len(session) <= SESSION_BYTES:
            raise BadRequest(
                f"a session is shown by {limits.SESSION_SHOWN_BYTES} bytes, not {len(session)}",
                hint="clients() has those of all",
            )
        parts = yield from self._of_workers(lambda more: Kick(session, for_ms), Done)
        return sum(part.count for part in parts)

    def status(self) -> Talk[StatusReply]:
        return (yield from self.ask(Status(), NODE_SHARD, StatusReply))

    def alarms(self) -> Talk[list[Alarm]]:
        return (yield from self.ask(ListAlarms(), NODE_SHARD, Alarms)).rows

    def running_config(self) -> Talk[list[ConfigRow]]:
        return (yield from self.ask(ShowConfig(), NODE_SHARD, ConfigShown)).rows

    # --- topics

    def set_topic(self, name: str, options: TopicOptions) -> Talk[TopicInfo]:
        (info,) = (yield from self.ask(SetTopic(name, options), META_SHARD, Topics)).topics
        self._session.publishing.learn(info)
        return info

    def described(self, name: str) -> Talk[TopicInfo]:
        """Returns a topic, also a virtual one. Raises NotFound."""
        found = (yield from self.ask(Resolve([name]), META_SHARD, Topics)).topics if "*" not in name else []
        if not found:
            raise UnknownTopic(f"topic {name!r} does not exist", hint="gossipq topic ls")
        return found[0]

    def delete_topic(self, name: str) -> Talk[None]:
        yield from self.ask(DropTopic(name), META_SHARD, Topics)
        self._session.publishing.drop(name)

    def positions(self, topic: str, start: Position) -> "Talk[dict[int, answers.Span]]":
        return (yield from progress.positions(self, topic, start))

    def purge_topic(self, name: str, partition: int | None, dry_run: bool) -> Talk[int]:
        """Removes the records that are there now; records published meanwhile stay."""
        info = yield from self.topic(name)
        last = len(info.shards) - 1
        numbers = range(last + 1) if partition is None else [inputs.whole(partition, "partition", 0, last)]
        places = {partition_key(info.id, number): info.shards[number] for number in numbers}
        shards: dict[int, list[PartitionKey]] = {}
        for key, shard in places.items():
            shards.setdefault(shard, []).append(key)
        count = 0
        for key, (_, end) in (yield from self._positions(shards, ("new", 0))).items():
            gone = -1
            while gone:
                gone = (yield from self.ask(PurgeTopic(key, end, dry_run), places[key], Done)).count
                count += gone
                if dry_run:
                    break
        return count

    # --- groups

    def seek_group(self, topic: str, group: str, to: inputs.Start, dry_run: bool) -> Talk[list[SoughtRow]]:
        require(group)
        info = yield from self.topic(topic)
        kind, value = inputs.start_of(to, self._session.links.wall_ms, "to")
        # a missing group is created
        config = (yield from self.group_policy(topic, group)).config

        def make(shard: int, partitions: list[PartitionKey], dry: bool) -> Message:
            return SeekGroup(
                info.id, group, [Start(partition, kind, value) for partition in partitions], dry, config
            )

        parts = yield from self._in_all(info, make, Sought, dry_run)
        return sorted((row for part in parts for row in part.rows), key=lambda row: row.partition)

    def delete_group(self, topic: str, group: str, dead: bool) -> Talk[int]:
        require(group)
        info = yield from self.topic(topic)
        parts = yield from self._in_all(
            info, lambda _, __, dry: DropGroup(info.id, group, dead, dry), Done, False
        )
        count = sum(part.count for part in parts)
        if not count:
            raise no_group(topic, group)
        return count

    def ack_below(self, topic: str, group: str, ends: Mapping[int, Offset]) -> Talk[None]:
        return (yield from progress.ack_below(self, self._session, topic, group, ends))

    def ack_delivered(
        self, topic: str, group: str, deliveries: "Collection[answers.Delivery]"
    ) -> "Talk[set[answers.Delivery]]":
        return (yield from progress.ack_delivered(self, topic, group, deliveries))

    def _in_all(
        self,
        info: TopicInfo,
        make: Callable[[int, list[PartitionKey], bool], Message],
        kind: type[Answer],
        dry_run: bool,
    ) -> Talk[list[Answer]]:
        """Asks every shard of a topic whether it would agree; only then sends the real requests."""
        shards, answers = by_shard(info), []
        for shard, partitions in shards.items():
            answers.append((yield from self.ask(make(shard, partitions, True), shard, kind)))
        if dry_run:
            return answers
        answers = []
        for done, (shard, partitions) in enumerate(shards.items()):
            try:
                answers.append((yield from self.ask(make(shard, partitions, False), shard, kind)))
            except GossipqError as error:
                if done:
                    text = f"{error.message}; done in {done} of {len(shards)} shards"
                    raise type(error)(text, hint=f"{error.hint}, then do it again".strip(", ")) from None
                raise
        return answers

    def group_policy(self, topic: str, group: str, flows: int = 0) -> Talk[GroupShown]:
        """The policy from the first shard that knows the group, with
        the consumers and flows of all shards.
        """
        require(group)
        info = yield from self.topic(topic)
        shown: GroupShown | None = None
        consumers: set[str] = set()
        busy: list[FlowRow] = []
        for shard in by_shard(info):
            try:
                found = yield from self.ask(ShowGroup(info.id, group, flows), shard, GroupShown)
            except BadRequest:
                continue
            shown, consumers = shown or found, consumers.union(found.consumers)
            busy += found.flows
        if shown is None:
            raise no_group(topic, group)
        busy.sort(key=attrgetter("waiting"), reverse=True)
        return GroupShown(shown.config, shown.policy, sorted(consumers), busy)


def no_group(topic: str, group: str) -> BadRequest:
    return BadRequest(f"no group {group} on {topic}", hint=f"gossipq group ls {topic}")
