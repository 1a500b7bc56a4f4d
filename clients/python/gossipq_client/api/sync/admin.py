# Made by clients/python/make_twins.py from api/aio/admin.py: change that, then run it.
"""The operator of a whole cluster: how it grows, who is connected, alarms, and the verbs for topics and
groups."""

from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from gossipq import limits
from gossipq.export_messages import BackedUp, BackUp, States
from gossipq.messages import DropTopic, StatsReply, Status, StatusReply, Topics
from gossipq.types import META_SHARD, NODE_SHARD, Index, PartitionKey
from gossipq.values import AckRun, Alarm, ClientRow, ConfigRow, GroupStats, GrowthRow, SoughtRow, TopicInfo
from gossipq.wire.schemas import Declared, Schema
from gossipq_client.api.sync.menders import Menders
from gossipq_client.handlers import shows
from gossipq_client.operations import GroupRules, Span, group_rules
from gossipq_client.values import TopicPolicy, inputs, topic_options


class Admin(Menders):
    """The verbs of operators, as `mq.admin`: nodes and clients, topics and groups, single records and dead
    letters.

    A record is named by (topic, partition, offset), by ref= (of its receipt), or by topic and id=.
    Each verb raises Unreachable if no node answers within the client's timeout.
    """

    def alarms(self) -> list[Alarm]:
        """Return the alarms that the connected node raises now. The topic `_alarms` has the alarms of all
        nodes, over time."""
        return self._talk(self._asking.alarms())

    def running_config(self) -> list[ConfigRow]:
        """The options that node runs with, and where each comes from."""
        return self._talk(self._asking.running_config())

    def growth(
        self, topics: Iterable[str] = (), *, hours: bool = False, since_ms: int = 0
    ) -> list[GrowthRow]:
        """Counters at the end of each minute of the last 6 hours, or of each hour of the last 7 days; of all
        topics together, or of those named. `gossipq_client.values.series` makes curves of them."""
        return self._talk(self._asking.growth(topics, hours, since_ms))

    def clients(self) -> list[ClientRow]:
        """List the connected clients: a row for each session and worker that knows it."""
        return self._talk(self._asking.clients())

    def kick(self, session: bytes, for_ms: int = limits.KICK_MS) -> int:
        """End a client's session at every worker. Its unacked records are redelivered, and it cannot connect
        again for this time. Returns the number of workers that knew it."""
        return self._talk(self._asking.kick(session, for_ms))

    @shows(topic_options, TopicPolicy)
    def set_topic(self, name: str, **policy: Unpack[TopicPolicy]) -> TopicInfo:
        """Changes the policy of a topic; what is left away stays. Raises NotFound, BadRequest."""
        return self._talk(self._asking.set_topic(name, topic_options(**policy)))

    def purge_topic(self, name: str, partition: int | None = None, *, dry_run: bool = False) -> int:
        """Removes all records that a topic, or one of its partitions, has now; scheduled ones and dead
        letters stay, also those that were replayed. Returns how many."""
        return self._talk(self._asking.purge_topic(name, partition, dry_run))

    def seek_group(
        self, topic: str, group: str, to: inputs.Start, *, dry_run: bool = False
    ) -> list[SoughtRow]:
        """Move a group to another position: "first", "new", an offset, an aware datetime, "-10m". Its
        counters start over.

        Raises Refused while it has consumers or dead letters."""
        return self._talk(self._asking.seek_group(topic, group, to, dry_run))

    def delete_group(self, topic: str, group: str, *, dead: bool = False) -> int:
        """A group ends; with `dead` also when it has dead letters, which go with it. Returns in how many
        shards it was.

        Raises Refused while it has consumers."""
        return self._talk(self._asking.delete_group(topic, group, dead))

    def group_policy(self, topic: str, group: str) -> GroupRules:
        """Return the policy of a group, the origin of each value, and its consumers. Raises BadRequest for an
        unknown group."""
        return group_rules(self._talk(self._asking.group_policy(topic, group)))

    # --- how topics and nodes are

    def delete_topic(self, name: str) -> None:
        """The topic, its records and its groups. Raises NotFound."""
        self._client._ask(DropTopic(name), META_SHARD, Topics)
        self._client._do(lambda: self._client._engine.session.publishing.drop(name))
        self._client._check_no_more(name)

    def groups(self, topic: str) -> list[GroupStats]:
        """Counters of each group of a topic, one row for each partition."""
        return (self.stats([topic])).groups

    def stats(self, topics: Iterable[str] = (), *, endpoint: str = "") -> StatsReply:
        """Counters of partitions and groups, of all topics or the ones named; led anywhere, or at one
        endpoint."""
        return self._talk(self._asking.stats(list(topics), endpoint))

    def status(self) -> StatusReply:
        """How the node sees itself and its workers."""
        return self._client._ask(Status(), NODE_SHARD, StatusReply)

    # --- schemas

    def schemas(self) -> Declared:
        """Return the declared schemas by topic id. `versions` includes topics whose schema was removed."""
        return self._schemas.declared()

    def known_schema(self, topic: str) -> Schema | None:
        """The schema of a topic, if it has one; this client checks nothing by it."""
        return self._schemas.of(topic)

    def next_schema(self, topic: str, declared: Any) -> Schema:
        """Return what `mq.schema(topic, declared)` would declare, and change nothing. Raises NotFound,
        BadRequest as that does."""
        return self._schemas.next(topic, declared)

    def delete_schema(self, topic: str) -> None:
        """Remove the schema of a topic; its records stay as they are. Raises NotFound."""
        self._schemas.delete(topic)

    # --- exports

    def spans(self, topics: Sequence[TopicInfo], start: inputs.Start = "first") -> dict[PartitionKey, Span]:
        """Return (start, end) offsets of each partition of these topics. `start` is the first offset, or the
        one where a reader from `start` would begin; `end` is one past the last record. Waits for a leader of
        each shard, which `stats` does not. Raises NotFound."""
        where = inputs.start_of(start, self._client._engine.clock.now().wall_ms)
        return self._talk(self._asking.spans(topics, where))

    def ack_runs(self, topic: TopicInfo, partition: int, since: Index = 0) -> tuple[Index, list[AckRun]]:
        """Acks of a partition by log entries from `since` on, and the entry up to which these are all."""
        return self._talk(self._asking.acks(topic, partition, since))

    def state_pages(self, topic: TopicInfo, partition: int) -> list[States]:
        """Return the state of each record of a partition, for each group."""
        return self._talk(self._asking.states(topic, partition))

    def backup_part(self, shard: int, request: BackUp) -> tuple[BackedUp, bytes]:
        """Return a part of a restore point of a shard, as its leader sends it for `gossipq backup`. Raises
        Refused when the point is gone."""
        return self._talk(self._asking.backup_part(shard, request))
