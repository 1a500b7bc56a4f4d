"""Tasks of Django as records: one topic for each queue, one group of workers."""

import os
import threading
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core import checks
from django.db import connections
from django.utils.module_loading import import_string

from gossipq.errors import BadRequest, GossipqError, NotFound
from gossipq_client import Client, connect
from gossipq_client.operations import Job, StoredRecord
from gossipq_client.values import inputs
from gossipq_django import outbox
from gossipq_django.payloads import Ended, Payload
from gossipq_django.versions import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)

GROUP = "workers"
EXPIRED = "gossipq.errors.JobFailed"  #: of a task that was cancelled or expired
ID_LENGTH_MAX = 64  #: of the id of a result, in Django
OPTIONS = {"SERVER", "TOPIC", "KEEP_RESULT", "ATTEMPTS_MAX", "OUTBOX"}


class TasksBackend(BaseTaskBackend):
    """The backend for TASKS.

    Its OPTIONS: `SERVER`, an address or a list (default: $GOSSIPQ_SERVER). `TOPIC`, the topic of a queue
    (default "tasks.{queue}"). `KEEP_RESULT`, how long a result can be read (default "1d"). `ATTEMPTS_MAX`
    (default 1). `OUTBOX`, the alias of a database: tasks are rows of its transactions, which
    `manage.py gossipq_relay` publishes.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        server = self.options.get("SERVER", ())
        self.servers: tuple[str, ...] = (server,) if isinstance(server, str) else tuple(server)
        self._topic = self.options.get("TOPIC", "tasks.{queue}")
        self.keep_result: inputs.Duration = self.options.get("KEEP_RESULT", "1d")
        self.attempts_max: int = self.options.get("ATTEMPTS_MAX", 1)
        self.outbox: str | None = self.options.get("OUTBOX")
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._pid = 0
        self._topics: set[str] = set()  #: those that exist

    @property
    def client(self) -> Client:
        """The client of this process. One that was made before a fork belongs to the parent process."""
        with self._lock:
            if self._client is None or self._pid != os.getpid():
                self._client, self._pid = self.connect(), os.getpid()
            return self._client

    def connect(self) -> Client:
        """Return a new client for the servers of this backend."""
        return connect(*self.servers, name=f"django-{self.alias}")

    def close(self) -> None:
        """Close the client. The next task connects again."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None and self._pid == os.getpid():
            client.close()

    def topic_of(self, queue: str) -> str:
        """Return the topic of a queue."""
        return str(self._topic.format(queue=queue))

    def require_topic(self, mq: Client, queue: str) -> str:
        """Create the topic of a queue and its group unless they exist, and return the name of the topic.

        The topic remembers the ids of tasks as long as their results, so that results are found. The group
        delivers by priority, and exists from the start, so that no task is removed before a worker has begun.
        Raises Refused.
        """
        topic = self.topic_of(queue)
        if topic not in self._topics:
            keep_ms = inputs.duration_ms(self.keep_result, "KEEP_RESULT", 1)
            info = mq.create_topic(topic, if_not_exists=True, dedup=self.keep_result)
            if info.config.dedup < timedelta(milliseconds=keep_ms):  # a relay has created it
                mq.topic(topic).configure(dedup=self.keep_result)
            group = mq.group(topic, GROUP)
            group.ack_below(dict.fromkeys(range(len(info.shards)), 0))
            group.configure(order="priority")
            self._topics.add(topic)
        return topic

    def validate_task(self, task: Task) -> None:
        super().validate_task(task)
        if len(_id_of(uuid.UUID(int=0), task.queue_name)) > ID_LENGTH_MAX:
            raise InvalidTask(f"The name of queue {task.queue_name!r} is longer than 31 characters.")

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Publish a task, or insert it into the outbox. Raises InvalidTask, and errors of gossipq or the
        database."""
        self.validate_task(task)
        payload = Payload(
            task.module_path, normalize_json(args), normalize_json(kwargs), attempts_max=self.attempts_max
        )
        result = new_result(task, _id_of(uuid.uuid4(), task.queue_name), payload, self.alias)
        options: dict[str, Any] = {
            "id": result.id,
            "keep_result": self.keep_result,
            "attempts_max": self.attempts_max,
            "at": task.run_after and task.run_after.timestamp(),
            "priority": priority_of(task.priority) if task.priority else None,
        }
        if self.outbox is not None:
            outbox.publish(self.topic_of(task.queue_name), payload, using=self.outbox, **options)
        else:
            mq = self.client
            mq.publish(self.require_topic(mq, task.queue_name), payload, **options)
        object.__setattr__(result, "enqueued_at", datetime.now(UTC))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """Return the state of a task. Raises TaskResultDoesNotExist, and errors of gossipq."""
        topic = self.topic_of(_queue_of(result_id))
        mq = self.client
        try:
            record = mq.record(topic, id=result_id).show()
            job = mq.job(record.ref, group=GROUP)
        except NotFound:
            return self._result_in_outbox(result_id)
        except BadRequest:  # no worker has ever begun in this partition
            job = None
        return self._result_of(record, job)

    def _result_of(self, record: StoredRecord, job: Job | None) -> TaskResult:
        payload = Payload.of(record.value)
        task = self.task_of(payload, _queue_of(record.id or ""))
        result = new_result(task, record.id or "", payload, self.alias)
        object.__setattr__(result, "enqueued_at", record.publish_time)
        if job is not None:
            _set_state(result, job)
        return result

    def _result_in_outbox(self, result_id: str) -> TaskResult:
        """Return a task that waits for the relay. Raises TaskResultDoesNotExist."""
        if self.outbox is not None:
            from gossipq_django.models import OutboxRow

            row = OutboxRow.objects.using(self.outbox).filter(id=result_id).first()
            if row is not None:
                payload = Payload.of(bytes(row.value))
                task = self.task_of(payload, _queue_of(result_id))
                result = new_result(task, result_id, payload, self.alias)
                object.__setattr__(result, "enqueued_at", datetime.fromtimestamp(row.created_ms / 1_000, UTC))
                return result
        raise TaskResultDoesNotExist(result_id)

    def task_of(self, payload: Payload, queue: str) -> Task:
        """Return the task that a record names. Raises ImportError."""
        found = import_string(payload.task)
        return found.using(queue_name=queue, backend=self.alias)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Check the options, and that the outbox has its database."""
        unknown = sorted(set(self.options) - OPTIONS)
        if unknown:
            yield checks.Error(f"TASKS[{self.alias!r}] has unknown OPTIONS: {', '.join(unknown)}")
        if self.outbox is not None and self.outbox not in connections:
            yield checks.Error(f"TASKS[{self.alias!r}]: OUTBOX={self.outbox!r} is no database")
        try:
            inputs.duration_ms(self.keep_result, "KEEP_RESULT", 1)
        except GossipqError as error:
            yield checks.Error(f"TASKS[{self.alias!r}]: {error}")


def priority_of(priority: int) -> int:
    """Return the priority of a record, 0 to 9, for one of Django, -100 to 100. The default, 0, gives 5.

    Priorities less than 25 apart can give the same one.
    """
    return 5 + priority // 25 if priority >= 0 else (priority + 100) // 20


def _set_state(result: TaskResult, job: Job) -> None:
    """Set what the broker knows of a task that its worker has begun, or ended."""
    found: dict[str, Any] = {"worker_ids": [job.consumer] * job.attempt}
    if job.state == "running":
        found |= {"status": TaskResultStatus.RUNNING, "started_at": job.time}
    elif job.state == "succeeded":
        ended = job.result(Ended)
        found |= {
            "status": TaskResultStatus.SUCCESSFUL,
            "started_at": datetime.fromtimestamp(ended.started, UTC),
            "finished_at": datetime.fromtimestamp(ended.finished, UTC),
            "worker_ids": ended.workers,
            "_return_value": ended.value,
        }
    elif job.ended:
        found |= {"status": TaskResultStatus.FAILED, "finished_at": job.time}
        path = job.error.partition(": ")[0] or EXPIRED
        found["errors"] = [TaskError(exception_class_path=path, traceback=job.traceback or job.because)]
    found["last_attempted_at"] = found.get("started_at") or (job.time if job.attempt else None)
    for name, value in found.items():
        object.__setattr__(result, name, value)


def _id_of(number: uuid.UUID, queue: str) -> str:
    return f"{number.hex}-{queue}"


def _queue_of(result_id: str) -> str:
    """Return the queue in the id of a result. Raises TaskResultDoesNotExist."""
    number, dash, queue = result_id.partition("-")
    if not dash or not number or not queue:
        raise TaskResultDoesNotExist(result_id)
    return queue


def new_result(task: Task, result_id: str, payload: Payload, alias: str) -> TaskResult:
    """Return the result of a task that has not begun."""
    return TaskResult(
        task=task,
        id=result_id,
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=payload.args,
        kwargs=payload.kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )
