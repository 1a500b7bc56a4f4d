"""The asyncio operator of a whole cluster: the same names as the sync one, awaited."""

from collections.abc import Iterable
from typing import Unpack

from gossipq import limits
from gossipq.operator_messages import GroupShown
from gossipq.values import Alarm, ClientRow, ConfigRow, GrowthRow, SoughtRow, TopicInfo
from gossipq_client import inputs
from gossipq_client.aio_mending import Menders
from gossipq_client.policies import TopicPolicy, topic_options


class Operators(Menders):
    """The part of a client that looks after nodes, topics and groups."""

    async def alarms(self) -> list[Alarm]:
        """As the sync `alarms`."""
        return await self.talk(self.engine.asking.alarms())

    async def running_config(self) -> list[ConfigRow]:
        """As the sync `running_config`."""
        return await self.talk(self.engine.asking.running_config())

    async def growth(self, topics: Iterable[str] = (), *, hours: bool = False, since_ms: int = 0) -> list[GrowthRow]:
        """As the sync `growth`."""
        return await self.talk(self.engine.asking.growth(topics, hours, since_ms))

    async def clients(self) -> list[ClientRow]:
        """As the sync `clients`."""
        return await self.talk(self.engine.asking.clients())

    async def kick(self, session: bytes, for_ms: int = limits.KICK_MS) -> int:
        """As the sync `kick`."""
        return await self.talk(self.engine.asking.kick(session, for_ms))

    async def set_topic(self, name: str, **policy: Unpack[TopicPolicy]) -> TopicInfo:
        """As the sync `set_topic`."""
        return await self.talk(self.engine.asking.set_topic(name, topic_options(**policy)))

    async def purge_topic(self, name: str, partition: int | None = None, *, dry_run: bool = False) -> int:
        """As the sync `purge_topic`."""
        return await self.talk(self.engine.asking.purge_topic(name, partition, dry_run))

    async def seek_group(self, topic: str, group: str, to: inputs.Start, *, dry_run: bool = False) -> list[SoughtRow]:
        """As the sync `seek_group`."""
        return await self.talk(self.engine.asking.seek_group(topic, group, to, dry_run))

    async def delete_group(self, topic: str, group: str, *, dead: bool = False) -> int:
        """As the sync `delete_group`."""
        return await self.talk(self.engine.asking.delete_group(topic, group, dead))

    async def group_policy(self, topic: str, group: str) -> GroupShown:
        """As the sync `group_policy`."""
        return await self.talk(self.engine.asking.group_policy(topic, group))
