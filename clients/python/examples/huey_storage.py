"""A storage for huey: its queue, schedule, results, locks and counters are records. Needs huey and a node.

huey = Huey("shop", storage_class=GossipqStorage, server="127.0.0.1:7700")
"""

import struct
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from huey.constants import EmptyData
from huey.storage import BaseStorage

import gossipq
from gossipq_keyed import KeyedTopic

GROUP = "huey"
KEPT_S = 7 * 86_400.0  #: for which results, locks and counters are found
LISTED_MAX = 1_000
PRIORITY_MAX = 9
EXPIRY = struct.Struct(">Q")  #: unix time in ms, in front of a value; 0 = it does not expire
DATA, COUNTER = "data/", "counter/"


class GossipqStorage(BaseStorage):
    """As huey defines it, a task leaves the queue when a worker takes it. The broker holds tasks of the
    schedule on disk until they are due."""

    blocking = True

    def __init__(
        self, name: str = "huey", server: str | None = None, utc: bool = True, wait_s: float = 1.0
    ) -> None:
        """`utc`: as that of Huey. `wait_s`: how long `dequeue` waits for a task."""
        super().__init__(name)
        self._mq = gossipq.connect(server) if server else gossipq.connect()
        self._utc, self._wait_s = utc, wait_s
        self._queue, self._schedule = f"{name}-queue", f"{name}-schedule"
        for topic in (self._queue, self._schedule):
            self._mq.create_topic(topic, 1, if_not_exists=True)
            self._mq.group(topic, GROUP).ack_below({0: 0})
        self._mq.group(self._queue, GROUP).configure(order="priority")
        self._tasks, self._due = (
            self._mq.fetcher(topic, GROUP, ahead=False) for topic in (self._queue, self._schedule)
        )
        self._keyed = KeyedTopic(lambda: self._mq, f"{name}-values", KEPT_S)

    def close(self) -> None:
        self._mq.close()

    # --- the queue

    def enqueue(self, data: bytes, priority: float | None = None) -> None:
        self._mq.publish(self._queue, data, priority=min(max(int(priority or 0), 0), PRIORITY_MAX))

    def dequeue(self) -> bytes | None:
        for task in self._tasks.fetch(n=1, wait=self._wait_s):
            task.ack()
            return task.value
        return None

    def queue_size(self) -> int:
        return self._mq.group(self._queue, GROUP).lag()

    def enqueued_items(self, limit: int | None = None) -> list[bytes]:
        return _seen(self._tasks, limit)

    def flush_queue(self) -> None:
        self._mq.topic(self._queue).purge()

    # --- the schedule

    def add_to_schedule(self, data: bytes, ts: datetime) -> None:
        due_s = (ts.replace(tzinfo=UTC) if self._utc else ts.astimezone()).timestamp()
        delay_s = max(0.0, due_s - time.time())
        self._mq.publish(self._schedule, data, headers={"due": ts.isoformat()}, delay=delay_s)

    def read_schedule(self, ts: datetime) -> list[bytes]:
        found = sorted(self._due.fetch(n=LISTED_MAX, wait=0), key=_due)
        for task in found:
            task.ack() if _due(task) <= ts else task.release()
        return [task.value for task in found if _due(task) <= ts]

    def schedule_size(self) -> int:
        return self._mq.group(self._schedule, GROUP).lag()

    def scheduled_items(self, limit: int | None = None) -> list[bytes]:
        """Return tasks that are due and were not read yet."""
        return _seen(self._due, limit, by=_due)

    def flush_schedule(self) -> None:
        self._mq.topic(self._schedule).purge()

    # --- values by key

    def put_data(self, key: str | bytes, value: bytes, is_result: bool = False) -> None:
        self._keyed.set(_name(key), EXPIRY.pack(0) + value)

    def peek_data(self, key: str | bytes) -> Any:
        return _opened(self._keyed.get(_name(key)))

    def has_data_for_key(self, key: str | bytes) -> bool:
        return self.peek_data(key) is not EmptyData

    def pop_data(self, key: str | bytes) -> Any:
        taken: Any = EmptyData

        def take(raw: bytes | None) -> bytes | None:
            nonlocal taken
            taken = _opened(raw)
            return None if raw is None else b""

        self._keyed.change(_name(key), take)
        return taken

    def put_if_empty(self, key: str | bytes, value: bytes, ttl: float | None = None) -> bool:
        ends_ms = int((time.time() + ttl) * 1000) if ttl else 0
        new = EXPIRY.pack(ends_ms) + value
        return self._keyed.change(_name(key), lambda raw: new if _opened(raw) is EmptyData else None)

    def result_items(self) -> dict[str, bytes]:
        found = ((key, _opened(self._keyed.get(DATA + key))) for key in self._keys(DATA))
        return {key: value for key, value in found if value is not EmptyData}

    def result_store_size(self) -> int:
        return len(self.result_items())

    def flush_results(self) -> None:
        for key in self._keys(DATA):
            self._keyed.delete(DATA + key)

    def _keys(self, kind: str) -> Iterator[str]:
        """Yield each key that the topic knows, deleted ones too."""
        self._keyed.make()
        ids = (record.id or "" for record in self._mq.read(self._keyed.topic))
        yield from dict.fromkeys(
            each.removeprefix(kind).rpartition("#")[0] for each in ids if each.startswith(kind)
        )

    # --- counters

    def incr(self, key: str | bytes, amount: int = 1) -> int:
        counted = 0

        def add(raw: bytes | None) -> bytes:
            nonlocal counted
            counted = int(raw or 0) + amount
            return b"%d" % counted

        self._keyed.change(_name(key, COUNTER), add)
        return counted

    def delete_counter(self, key: str | bytes) -> None:
        self._keyed.delete(_name(key, COUNTER))

    def flush_counters(self) -> None:
        for key in self._keys(COUNTER):
            self._keyed.delete(COUNTER + key)


def _name(key: str | bytes, kind: str = DATA) -> str:
    return kind + (key.decode() if isinstance(key, bytes) else key)


def _opened(raw: bytes | None) -> Any:
    """Return the value behind its expiry; EmptyData if there is none, or it has expired."""
    if raw is None:
        return EmptyData
    (ends_ms,) = EXPIRY.unpack_from(raw)
    return EmptyData if ends_ms and ends_ms <= time.time() * 1000 else raw[EXPIRY.size :]


def _due(task: Any) -> datetime:
    return datetime.fromisoformat(task.headers["due"])


def _seen(fetcher: Any, limit: int | None, by: Any = None) -> list[bytes]:
    """Fetch records and give them back. Other workers do not see them meanwhile."""
    found = list(fetcher.fetch(n=LISTED_MAX, wait=0))
    for task in found:
        task.release()
    return [task.value for task in (sorted(found, key=by) if by else found)[:limit]]
