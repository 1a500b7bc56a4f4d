"""Schedules of taskiq, whose ticks are sent once, however many schedulers run."""

import hashlib
import json
import time
from datetime import timedelta
from typing import Any

from taskiq import ScheduledTask, ScheduleSource
from taskiq.exceptions import ScheduledTaskCancelledError
from taskiq.utils import maybe_awaitable

from gossipq_taskiq.broker import GossipqTaskiqBroker

TOPIC = "taskiq-ticks"
REMEMBERED = "7d"
MINUTE_S = 60.0  #: a scheduler sends each cron tick within its minute


class ClaimedScheduleSource(ScheduleSource):
    """The schedules of another source. The scheduler that stores the id of a tick first sends its task.

    A scheduler that dies between these two steps loses the tick.
    """

    def __init__(self, source: ScheduleSource, broker: GossipqTaskiqBroker) -> None:
        self._source, self._broker = source, broker

    async def startup(self) -> None:
        await self._source.startup()
        await self._broker.client.create_topic(TOPIC, if_not_exists=True, retention=0, dedup=REMEMBERED)

    async def shutdown(self) -> None:
        await self._source.shutdown()

    async def get_schedules(self) -> list[ScheduledTask]:
        return await self._source.get_schedules()

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        await self._source.add_schedule(schedule)

    async def delete_schedule(self, schedule_id: str) -> None:
        await self._source.delete_schedule(schedule_id)

    async def pre_send(self, task: ScheduledTask) -> None:
        """Claim the tick. Raises ScheduledTaskCancelledError if another scheduler has it."""
        name = tick_name(task, time.time())
        receipt = await self._broker.client.publish(TOPIC, b"", id=name)
        if receipt.duplicate:
            raise ScheduledTaskCancelledError
        await maybe_awaitable(self._source.pre_send(task))

    async def post_send(self, task: ScheduledTask) -> None:
        await maybe_awaitable(self._source.post_send(task))


def tick_name(task: ScheduledTask, now: float) -> str:
    """Return the id of the tick that is due at `now`, unix seconds. All schedulers find the same."""
    said = [task.task_name, task.args, task.kwargs, task.cron, task.time, task.interval]
    schedule = hashlib.blake2b(json.dumps(said, default=str).encode(), digest_size=16).hexdigest()
    return f"{schedule}/{_moment(task, now)}"


def _moment(task: ScheduledTask, now: float) -> int:
    if task.time is not None:
        return int(task.time.timestamp())
    interval: Any = task.interval
    if interval is None:
        return int(now // MINUTE_S)
    seconds = interval.total_seconds() if isinstance(interval, timedelta) else float(interval)
    return round(now / seconds)
