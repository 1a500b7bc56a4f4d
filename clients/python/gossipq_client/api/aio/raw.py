"""Answers in the form of the wire, for the tools of gossipq: commands, consoles, gateway, exports."""

from collections.abc import Iterable, Sequence

from gossipq.export_messages import BackedUp, BackUp, States
from gossipq.messages import Identity, Members, StatsReply, StatusReply
from gossipq.types import Index, PartitionKey
from gossipq.values import (
    AccessChange,
    AccessTable,
    AckRun,
    Alarm,
    ClientRow,
    ConfigRow,
    GrowthRow,
    TopicInfo,
)
from gossipq_client import answers
from gossipq_client.api.aio.operator import Operator
from gossipq_client.values import inputs


class RawAnswers:
    """The answers of nodes as they send them, at `mq.admin.raw`. Any version of gossipq may change its verbs
    and their answers. Programs use `mq.admin` and handles."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    # --- nodes, clients and users: as `mq.admin` has them

    async def status(self) -> StatusReply:
        """Return the state of the connected node."""
        return await self._operator.run(self._operator.asking.status())

    async def alarms(self) -> list[Alarm]:
        """Return the alarms that the connected node raises now."""
        return await self._operator.run(self._operator.asking.alarms())

    async def running_config(self) -> list[ConfigRow]:
        """Return the options that the connected node runs with."""
        return await self._operator.run(self._operator.asking.running_config())

    async def stats(self, topics: Iterable[str] = (), *, endpoint: str = "") -> StatsReply:
        """Return counters of partitions and groups, of all topics or of those named; of all workers, or of
        the one at an endpoint."""
        return await self._operator.run(self._operator.asking.stats(list(topics), endpoint))

    async def growth(
        self, topics: Iterable[str] = (), *, hours: bool = False, since_ms: int = 0
    ) -> list[GrowthRow]:
        """Return counters at the end of each minute or hour. `gossipq_client.values.series` makes curves of
        them."""
        return await self._operator.run(self._operator.asking.growth(topics, hours, since_ms))

    async def clients(self) -> list[ClientRow]:
        """List the connected clients: a row for each session and worker that knows it."""
        return await self._operator.run(self._operator.asking.clients())

    async def members(self) -> Members:
        """Return the nodes of the cluster."""
        return await self._operator.run(self._operator.asking.members())

    async def set_member(self, name: str, state: str, secret: bytes = b"") -> Members:
        """Change the state of a node in the roster. Raises BadRequest, Refused."""
        return await self._operator.run(self._operator.asking.set_member(name, state, secret))

    async def set_cluster_options(self, options: dict[str, str], secret: bytes = b"") -> Members:
        """Change options of [cluster]. Raises BadRequest, Refused."""
        return await self._operator.run(self._operator.asking.set_cluster_options(options, secret))

    async def whoami(self) -> Identity:
        """Return the user of this client."""
        return await self._operator.run(self._operator.asking.whoami())

    async def access(self) -> AccessTable:
        """Return the users and roles of the cluster. Raises Forbidden."""
        return await self._operator.run(self._operator.asking.access())

    async def set_access(self, change: AccessChange, secret: bytes = b"") -> AccessTable:
        """Change users, roles and invitations, close or open the cluster. Raises BadRequest, Refused."""
        return await self._operator.run(self._operator.asking.set_access(change, secret))

    # --- topics

    async def topics(self, pattern: str = "*") -> list[TopicInfo]:
        """Return the topics whose names match."""
        return await self._operator.run(self._operator.asking.topics(pattern))

    # --- exports and backups

    async def spans(
        self, topics: Sequence[TopicInfo], start: inputs.Start = "first"
    ) -> "dict[PartitionKey, answers.Span]":
        """Return (start, end) offsets of each partition of these topics. `start` is the first offset, or the
        one where a reader from `start` would begin; `end` is one past the last record. Waits for a leader of
        each shard, which `stats` does not. Raises NotFound."""
        where = inputs.start_of(start, self._operator.wall_ms)
        return await self._operator.run(self._operator.asking.spans(topics, where))

    async def ack_runs(
        self, topic: TopicInfo, partition: int, since: Index = 0
    ) -> tuple[Index, list[AckRun]]:
        """Return acks of a partition by log entries from `since` on, and the entry up to which these are
        all."""
        return await self._operator.run(self._operator.asking.acks(topic, partition, since))

    async def state_pages(self, topic: TopicInfo, partition: int, most: int = 0) -> list[States]:
        """Return the state of each record of a partition, for each group; with `most`, only the first
        pages."""
        return await self._operator.run(self._operator.asking.states(topic, partition, most))

    async def backup_part(self, shard: int, request: BackUp) -> tuple[BackedUp, bytes]:
        """Return a part of a restore point of a shard, as its leader sends it. Raises Refused when the point
        is gone."""
        return await self._operator.run(self._operator.asking.backup_part(shard, request))
