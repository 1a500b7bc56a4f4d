"""The broker of taskiq against a node, with a receiver in the test's process."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from taskiq import InMemoryBroker, ScheduledTask, TaskiqResult
from taskiq.api import run_receiver_task
from taskiq.depends.progress_tracker import TaskProgress, TaskState
from taskiq.exceptions import ResultGetError, ScheduledTaskCancelledError
from taskiq.schedule_sources import LabelScheduleSource

from conftest import RunningNode
from gossipq_taskiq import ClaimedScheduleSource, GossipqTaskiqBroker, GossipqTaskiqResults
from gossipq_taskiq.schedules import tick_name

pytestmark = [pytest.mark.e2e]
names = (f"taskiq-{number}" for number in itertools.count())


def with_broker(node: RunningNode, test: Callable[[GossipqTaskiqBroker], Awaitable[None]]) -> None:
    async def run() -> None:
        topic = next(names)
        broker = GossipqTaskiqBroker(node.endpoint, topic=topic)
        results = GossipqTaskiqResults[Any](node.endpoint, topic=f"{topic}-results")
        broker = broker.with_result_backend(results)
        await broker.startup()
        try:
            await test(broker)
        finally:
            await broker.shutdown()

    asyncio.run(run())


def test_a_task_runs_once_among_two_receivers_and_waits_for_its_delay(shared_node: RunningNode) -> None:
    async def test(broker: GossipqTaskiqBroker) -> None:
        runs: list[tuple[str, float]] = []

        @broker.task
        async def note(word: str) -> str:
            runs.append((word, time.monotonic()))
            return word.upper()

        sent = time.monotonic()
        later = await note.kicker().with_labels(delay=1).kiq("later")
        soon = await note.kiq("now")
        receivers = [asyncio.create_task(run_receiver_task(broker)) for _ in range(2)]
        assert (await soon.wait_result(timeout=30)).return_value == "NOW"
        assert (await later.wait_result(timeout=30)).return_value == "LATER"
        assert [word for word, _ in runs] == ["now", "later"]
        assert runs[1][1] - sent >= 1
        for receiver in receivers:
            receiver.cancel()
        await asyncio.gather(*receivers, return_exceptions=True)

    with_broker(shared_node, test)


def test_results_and_progress_are_found_by_the_id_of_a_task(shared_node: RunningNode) -> None:
    async def test(broker: GossipqTaskiqBroker) -> None:
        results = broker.result_backend
        assert not await results.is_result_ready("17")
        with pytest.raises(ResultGetError):
            await results.get_result("17")
        assert await results.get_progress("17") is None
        for page in (1, 2):
            await results.set_progress("17", TaskProgress(state=TaskState.STARTED, meta=page))
        found = await results.get_progress("17")
        assert found is not None
        assert found.meta == 2
        said = TaskiqResult[int](is_err=False, log="said", return_value=5, execution_time=0.1)
        await results.set_result("17", said)
        assert await results.is_result_ready("17")
        assert (await results.get_result("17")).log is None
        assert await results.get_result("17", with_logs=True) == said

    with_broker(shared_node, test)


def test_a_tick_is_sent_by_one_scheduler(shared_node: RunningNode) -> None:
    async def test(broker: GossipqTaskiqBroker) -> None:
        at = datetime(2026, 1, 30, 7, tzinfo=UTC)
        task = ScheduledTask(task_name=broker.topic, labels={}, args=[], kwargs={}, time=at)
        sources = [ClaimedScheduleSource(LabelScheduleSource(InMemoryBroker()), broker) for _ in range(2)]
        for source in sources:
            await source.startup()
        await sources[0].pre_send(task)
        with pytest.raises(ScheduledTaskCancelledError):
            await sources[1].pre_send(task)

    with_broker(shared_node, test)


def test_schedulers_agree_on_the_name_of_a_tick() -> None:
    def task(**options: Any) -> ScheduledTask:
        return ScheduledTask(task_name="report", labels={}, args=[1], kwargs={}, **options)

    assert tick_name(task(cron="* * * * *"), 120.1) == tick_name(task(cron="* * * * *"), 179.9)
    assert tick_name(task(cron="* * * * *"), 120.1) != tick_name(task(cron="* * * * *"), 180.0)
    assert tick_name(task(interval=10), 99.8) == tick_name(task(interval=10), 100.3)
    assert tick_name(task(interval=10), 100.3) != tick_name(task(interval=10), 110.0)
