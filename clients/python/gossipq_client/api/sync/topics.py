# Made by clients/python/make_twins.py from api/aio/topics.py: change that, then run it.
"""Topics and what is known of them: making, deleting, listing, counting."""

from collections.abc import Iterable
from typing import Unpack

from gossipq.messages import CreateTopic, DropTopic, StatsReply, Status, StatusReply, Topics
from gossipq.types import META_SHARD, NODE_SHARD
from gossipq.values import GroupStats, TopicInfo
from gossipq_client.api.sync.consumer import Consumers
from gossipq_client.values import TopicPolicy, as_asked, topic_options


class TopicKeepers(Consumers):
    """The part of a client that makes topics and asks how they are."""

    def create_topic(
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
            (self.ask(CreateTopic(name, config, if_not_exists), META_SHARD, Topics)).topics[0],
            partitions,
        )

    def delete_topic(self, name: str) -> None:
        """The topic, its records and its groups. Raises UnknownTopic."""
        self.ask(DropTopic(name), META_SHARD, Topics)
        self.do(lambda: self.engine.session.publishing.drop(name))

    def topics(self, pattern: str = "*") -> list[TopicInfo]:
        """Topics whose name fits, `*` standing for any text; never makes one."""
        return self.talk(self.engine.asking.topics(pattern))

    def groups(self, topic: str) -> list[GroupStats]:
        """Counters of each group of a topic, one row for each partition."""
        return (self.stats([topic])).groups

    def stats(self, topics: Iterable[str] = (), *, endpoint: str = "") -> StatsReply:
        """Counters of partitions and groups, of all topics or the ones named; led anywhere, or at one
        endpoint."""
        return self.talk(self.engine.asking.stats(list(topics), endpoint))

    def status(self) -> StatusReply:
        """How the node sees itself and its workers."""
        return self.ask(Status(), NODE_SHARD, StatusReply)
