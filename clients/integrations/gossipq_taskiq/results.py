"""Results and progress of taskiq, as values by key in a topic."""

import asyncio
from typing import Any, TypeVar

from taskiq import AsyncResultBackend, TaskiqResult
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError
from taskiq.serializers import PickleSerializer

from gossipq_client import connect
from gossipq_keyed import KeyedTopic

TOPIC = "taskiq-results"
KEPT_SECONDS = 86_400.0

Returned = TypeVar("Returned")


class GossipqTaskiqResults(AsyncResultBackend[Returned]):
    """A result backend. A result is found for `kept_s` seconds, at most 7 days.

    addresses and options: as for `gossipq.connect`
    serializer: of results; pickle unless another one is given
    """

    def __init__(
        self,
        *addresses: str,
        topic: str = TOPIC,
        kept_s: float = KEPT_SECONDS,
        serializer: Any = None,
        **options: Any,
    ) -> None:
        self._client = connect(*addresses, **options)
        self._keyed = KeyedTopic(lambda: self._client, topic, kept_s)
        self._serializer = serializer or PickleSerializer()

    async def startup(self) -> None:
        await asyncio.to_thread(self._keyed.make)

    async def shutdown(self) -> None:
        await asyncio.to_thread(self._client.close)

    async def set_result(self, task_id: str, result: TaskiqResult[Returned]) -> None:
        raw = self._serializer.dumpb(result.model_dump())
        await asyncio.to_thread(self._keyed.set, task_id, raw)

    async def is_result_ready(self, task_id: str) -> bool:
        return await asyncio.to_thread(self._keyed.get, task_id) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Returned]:
        """Return the result of a task. Raises ResultGetError if there is none."""
        raw = await asyncio.to_thread(self._keyed.get, task_id)
        if raw is None:
            raise ResultGetError
        result: TaskiqResult[Returned] = TaskiqResult.model_validate(self._serializer.loadb(raw))
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        raw = self._serializer.dumpb(progress.model_dump())
        await asyncio.to_thread(self._keyed.set, _progress(task_id), raw)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        raw = await asyncio.to_thread(self._keyed.get, _progress(task_id))
        if raw is None:
            return None
        progress: TaskProgress[Any] = TaskProgress.model_validate(self._serializer.loadb(raw))
        return progress


def _progress(task_id: str) -> str:
    return f"{task_id}/progress"
