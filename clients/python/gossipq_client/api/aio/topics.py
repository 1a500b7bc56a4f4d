"""Topics and what is known of them: making, deleting, listing, counting."""

from collections.abc import Iterable
from typing import Unpack

from gossipq.messages import CreateTopic, DropTopic, StatsReply, Status, StatusReply, Topics
from gossipq.types import META_SHARD, NODE_SHARD
from gossipq.values import GroupStats, TopicInfo
from gossipq_client.api.aio.consumer import Consumers
from gossipq_client.values import TopicPolicy, as_asked, topic_options


class TopicKeepers(Consumers):
    """The part of a client that makes topics and asks how they are."""

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        if_not_exists: bool = False,
        **policy: Unpack[TopicPolicy],
    ) -> TopicInfo:
        """Policy: retention, retain, bytes_max, overflow, level, beside, ttl, expire, dedup, dedup_count,
        trace, lease, attempts_max, backoff; see TopicPolicy. With `if_not_exists` a topic that is there stays
        as it is. Raises TopicExists, also for one with other partitions; BadName, BadRequest.
        """
        config = topic_options(partitions, **policy)
        return as_asked(
            (await self.ask(CreateTopic(name, config, if_not_exists), META_SHARD, Topics)).topics[0],
            partitions,
        )

    async def delete_topic(self, name: str) -> None:
        """The topic, its records and its groups. Raises UnknownTopic."""
        await self.ask(DropTopic(name), META_SHARD, Topics)
        self.do(lambda: self.engine.session.publishing.drop(name))

    async def topics(self, pattern: str = "*") -> list[TopicInfo]:
        """Topics whose name fits, `*` standing for any text; never makes one."""
        return await self.talk(self.engine.asking.topics(pattern))

    async def groups(self, topic: str) -> list[GroupStats]:
        """Counters of each group of a topic, one row for each partition."""
        return (await self.stats([topic])).groups

    async def stats(self, topics: Iterable[str] = (), *, endpoint: str = "") -> StatsReply:
        """Counters of partitions and groups, of all topics or the ones named; led anywhere, or at one
        endpoint."""
        return await self.talk(self.engine.asking.stats(list(topics), endpoint))

    async def status(self) -> StatusReply:
        """How the node sees itself and its workers."""
        return await self.ask(Status(), NODE_SHARD, StatusReply)
