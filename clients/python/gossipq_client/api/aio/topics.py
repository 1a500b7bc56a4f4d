"""Topics and what is known of them: making, deleting, listing, counting."""

from typing import Unpack

from gossipq.messages import CreateTopic, Topics
from gossipq.types import META_SHARD
from gossipq.values import TopicInfo
from gossipq_client.api.aio.consumer import Consumers
from gossipq_client.handlers import shows
from gossipq_client.values import TopicPolicy, as_asked, topic_options


class TopicKeepers(Consumers):
    """The part of a client that makes topics and asks how they are."""

    @shows(topic_options, TopicPolicy)
    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        if_not_exists: bool = False,
        **policy: Unpack[TopicPolicy],
    ) -> TopicInfo:
        """Makes a topic of so many partitions, which are for its life (None: as the cluster says). With
        `if_not_exists` a topic that is there stays as it is. Raises TopicExists, also for one with other
        partitions; BadName, BadRequest.
        """
        config = topic_options(partitions, **policy)
        return as_asked(
            (await self._ask(CreateTopic(name, config, if_not_exists), META_SHARD, Topics)).topics[0],
            partitions,
        )

    async def topics(self, pattern: str = "*") -> list[TopicInfo]:
        """Topics whose name fits, `*` standing for any text; never makes one."""
        return await self._talk(self._engine.asking.topics(pattern))
