"""A worker: runs the tasks of some queues in threads of this process."""

import logging
import os
import socket
import time
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from django.db import close_old_connections

from gossipq_client import Client, Message, Reject, Retry
from gossipq_django.backend import GROUP, TasksBackend, new_result
from gossipq_django.payloads import Ended, Payload
from gossipq_django.versions import (
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)

log = logging.getLogger("gossipq.django")


class Worker:
    """Runs tasks, `threads` of each queue at a time.

    Stale database connections are closed before and after each task, as Django does around requests. A task
    that raises has failed: it runs again until it has failed ATTEMPTS_MAX times, and is a dead letter then. A
    task whose worker dies runs again once its lease is over, without a failure.
    """

    def __init__(
        self, backend: TasksBackend, queues: Iterable[str], *, threads: int = 1, mq: Client | None = None
    ) -> None:
        self._backend, self.queues = backend, list(queues)
        self._name = own_name()
        self.mq = backend.connect() if mq is None else mq
        for queue in self.queues:
            topic = backend.require_topic(self.mq, queue)
            self.mq.consumer(topic, group=GROUP, workers=threads)(self._handler(queue))

    def _handler(self, queue: str) -> Any:
        def work(message: Message) -> Ended:
            close_old_connections()
            try:
                return self._run(message, queue)
            finally:
                close_old_connections()

        work.__name__ = f"queue_{queue}"
        return work

    def run(self, *, until_empty: bool = False, signals: bool = True) -> None:
        """Run tasks until SIGTERM or Ctrl-C, and let running ones finish. With `until_empty` it ends when no
        task waits."""
        with self.mq:
            self.mq.run(stop_at_end=until_empty, signals=signals)

    def _run(self, message: Message, queue: str) -> Ended:
        """Run one task and return what is kept. Raises Retry if it failed, Reject if it cannot run."""
        try:
            payload = Payload.of(message.value)
            task = self._backend.task_of(payload, queue)
        except Exception as error:
            raise Reject(_told(error)) from error
        result = new_result(task, message.id or message.ref, payload, self._backend.alias)
        started = time.time()
        _set(
            result,
            status=TaskResultStatus.RUNNING,
            enqueued_at=message.publish_time,
            started_at=datetime.fromtimestamp(started, UTC),
            last_attempted_at=datetime.fromtimestamp(started, UTC),
            worker_ids=[self._name] * message.attempt,
        )
        task_started.send(type(self._backend), task_result=result)
        try:
            context = [TaskContext(task_result=result)] if task.takes_context else []
            value = task.call(*context, *result.args, **result.kwargs)
            ended = Ended(normalize_json(value), started, time.time(), result.worker_ids)
        except Exception as error:
            if message.failures + 1 >= payload.attempts_max:
                self._failed(result, error)
            else:
                log.warning("task failed id=%s attempt=%d", result.id, message.attempt, exc_info=True)
            raise Retry(reason=_told(error)) from error
        finished = datetime.fromtimestamp(ended.finished, UTC)
        _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=finished, _return_value=ended.value)
        task_finished.send(type(self._backend), task_result=result)
        return ended

    def _failed(self, result: TaskResult, error: Exception) -> None:
        """Say that a task has failed for good. Receivers find the exception in sys.exc_info()."""
        result.errors.append(TaskError(exception_class_path=_path(error), traceback=_traceback(error)))
        _set(result, status=TaskResultStatus.FAILED, finished_at=datetime.now(UTC))
        task_finished.send(type(self._backend), task_result=result)


def own_name() -> str:
    """Return the name of this worker in results: host and process."""
    return f"{socket.gethostname()}-{os.getpid()}"[:64]


def _set(result: TaskResult, **values: Any) -> None:
    """Change a frozen result, as Django's own backends do."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _path(error: Exception) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _traceback(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def _told(error: Exception) -> str:
    """Return what is kept of an error: its class and text on the first line, then the traceback."""
    text = " ".join(str(error).split())
    return f"{_path(error)}: {text}\n{_traceback(error)}"
