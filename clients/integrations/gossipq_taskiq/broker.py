"""The broker of taskiq: all tasks are records of one topic, consumed by one group."""

from collections.abc import AsyncGenerator
from typing import Any

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from gossipq_client import aio

TOPIC, GROUP = "taskiq", "taskiq"
ATTEMPTS_MAX = 20  #: workers that may die with a task before it is a dead letter
RETENTION = "1h"  #: of tasks that are done


class GossipqTaskiqBroker(AsyncBroker):
    """A broker that any number of workers share. Labels: `delay` in seconds, `priority` from 0 to 9.

    addresses and options: as for `gossipq.aio.connect`
    """

    def __init__(
        self,
        *addresses: str,
        topic: str = TOPIC,
        group: str = GROUP,
        attempts_max: int = ATTEMPTS_MAX,
        **options: Any,
    ) -> None:
        super().__init__()
        self.client = aio.connect(*addresses, **options)
        self.topic, self.group, self.attempts_max = topic, group, attempts_max

    async def startup(self) -> None:
        """Connect, and create the topic with its group, so that it keeps tasks before a worker starts."""
        await super().startup()
        await self.client.ready()
        info = await self.client.create_topic(self.topic, if_not_exists=True, retention=RETENTION)
        await self.client.group(self.topic, self.group).ack_below(dict.fromkeys(range(len(info.shards)), 0))

    async def shutdown(self) -> None:
        await super().shutdown()
        await self.client.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Publish a task, and wait until it is stored."""
        options: dict[str, Any] = {}
        delay = message.labels.get("delay")
        if delay is not None and float(delay) > 0:
            options["delay"] = float(delay)
        if message.labels.get("priority") is not None:
            options["priority"] = int(message.labels["priority"])
        headers = {"task": message.task_name, "task_id": message.task_id}
        await self.client.publish(self.topic, message.message, headers=headers, **options)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks. A task that is not acked belongs to this worker while it is connected."""
        tasks = self.client.subscribe(self.topic, group=self.group, attempts_max=self.attempts_max)
        async with tasks:
            async for record in tasks:
                yield AckableMessage(data=record.value, ack=record.ack)
