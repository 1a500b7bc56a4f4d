"""The result backend: results of tasks are records, found by the id of their task."""

import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import islice
from threading import local
from typing import Any

from celery import states
from celery.backends.asynchronous import AsyncBackendMixin, BaseResultConsumer
from celery.backends.base import BaseKeyValueStoreBackend
from kombu.utils.encoding import bytes_to_str
from kombu.utils.url import url_to_parts

from gossipq.errors import GossipqError
from gossipq_celery import sessions
from gossipq_celery.names import topic_of
from gossipq_celery.transport import CONNECT_SECONDS, PORT
from gossipq_client import Client, Fetcher
from gossipq_keyed import KeyedTopic

TOPIC = "celery-results"
LIFETIME_S_MAX = timedelta(days=7).total_seconds()  #: for which a topic remembers ids
SIZE = ".s"  #: behind the key of a group: how many tasks its chord waits for
SIZES_MAX = 1_000
LOOK_SECONDS = 0.5  #: between two looks for results that other processes asked for
LOOKED_MAX = 100  #: results of one look
LOOKUPS_AT_A_TIME = 16


class Arrivals(BaseResultConsumer):
    """Brings the results of tasks to the thread that sent them, and looks for those that others sent."""

    _fetcher: Fetcher | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaited: dict[str, None] = {}  #: ids, that which was looked for last at the end
        self._looked = 0.0

    def start(self, initial_task_id: str, **kwargs: Any) -> None:
        self.consume_from(initial_task_id)

    def consume_from(self, task_id: str) -> None:
        """Await a result. Nothing is called back from here, since the result is still being set up."""
        self._awaited[task_id] = None

    def cancel_for(self, task_id: str) -> None:
        self._awaited.pop(task_id, None)

    def on_wait_for_pending(self, result: Any, **kwargs: Any) -> None:
        """Take what is stored already of a result, or of a group of them.

        Celery sleeps between two looks at a group, for `interval` seconds or until the `timeout` is over.
        """
        for meta in result._iter_meta(**kwargs):
            if meta is not None:
                self.on_state_change(meta, None)

    def drain_events(self, timeout: float | None = None) -> None:
        """Take results that arrive within `timeout` seconds."""
        wait_s = min(LOOK_SECONDS, LOOK_SECONDS if timeout is None else timeout)
        for message in self._arriving().fetch(n=100, wait=wait_s):
            if message.value:
                self.on_state_change(self.backend.decode_result(message.value), None)
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._look()

    def _arriving(self) -> Fetcher:
        if self._fetcher is None:
            backend = self.backend
            backend.keyed.make()
            route = self.app.thread_oid
            self._fetcher = backend.broker().fetcher(backend.keyed.topic, None, start="new", route=route)
            self._fetcher.fetch(n=1, wait=0)
        return self._fetcher

    def _look(self) -> None:
        """Look for some of the awaited results, so that a group of thousands does not keep its thread from
        those that arrive."""
        self._looked = time.monotonic()
        chosen = list(islice(self._awaited, LOOKED_MAX))
        for task_id in chosen:
            if self._awaited.pop(task_id, 0) is None:  # another thread may have cancelled it
                self._awaited[task_id] = None
        backend = self.backend
        for raw in backend.mget([backend.get_key_for_task(task_id) for task_id in chosen]):
            if raw is not None and (meta := backend.decode_result(raw))["status"] in states.READY_STATES:
                self.on_state_change(meta, None)

    def stop(self) -> None:
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            try:
                fetcher.close()
            except GossipqError:  # its client is closed
                pass

    def on_after_fork(self) -> None:
        self._fetcher = None
        self._awaited = {}


class GossipqBackend(AsyncBackendMixin, BaseKeyValueStoreBackend):
    """Results in gossipq: `result_backend = "gossipq://[:TOKEN@]HOST[:PORT][/VIRTUAL_HOST]"`."""

    supports_native_join = True
    supports_autoexpire = True
    implements_incr = True
    persistent = True
    ResultConsumer = Arrivals
    key_t = staticmethod(bytes_to_str)  #: keys are text

    def __init__(self, app: Any, url: str | None = None, expires: Any = None, **kwargs: Any) -> None:
        super().__init__(app=app, url=url, **kwargs)
        parts = url_to_parts(url or "gossipq://")
        options = app.conf.get("result_backend_transport_options") or {}
        self._clients: dict[int, Client] = {}
        self._sizes: dict[str, int] = {}  #: of chords, by the id of their group
        self._counted = local()  #: number of the task that this thread has counted, until Celery asks for it
        self._place = sessions.place_of(
            parts.hostname or "localhost", parts.port or PORT, parts.password, options
        )
        self.expires = self.prepare_expires(expires, type=int)
        chord_expires = getattr(self, "chord_expires", None)  # not in Celery 5.6, which Airflow needs
        lifetime_s = min(max(self.expires or LIFETIME_S_MAX, chord_expires or 0, 60), LIFETIME_S_MAX)
        self.keyed = KeyedTopic(self.broker, topic_of(parts.path or "", TOPIC), lifetime_s)
        self.result_consumer = self.ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    def broker(self) -> Client:
        """Return the client of this process."""
        client = self._clients.get(os.getpid())
        if client is None:
            client = self._clients[os.getpid()] = sessions.acquire(self._place, CONNECT_SECONDS)
        return client

    def as_uri(self, include_password: bool = False) -> str:
        host = f"{self._place.host}:{self._place.port}"
        token = self._place.token.decode() if include_password else "**"
        return f"gossipq://{f':{token}@' if self._place.token else ''}{host}"

    def get(self, key: str) -> bytes | None:
        return self.keyed.get(bytes_to_str(key))

    def mget(self, keys: Iterable[str]) -> list[bytes | None]:
        """Return the values of several keys; None where there is none."""
        wanted = list(keys)
        if len(wanted) <= LOOKUPS_AT_A_TIME:
            return [self.get(key) for key in wanted]
        with ThreadPoolExecutor(LOOKUPS_AT_A_TIME) as pool:
            return list(pool.map(self.get, wanted))

    def set(self, key: str, value: str | bytes) -> None:
        self.keyed.set(bytes_to_str(key), value if isinstance(value, bytes) else value.encode())

    def delete(self, key: str) -> None:
        self.keyed.delete(bytes_to_str(key))

    def incr(self, key: str) -> int:
        counted, self._counted.number = getattr(self._counted, "number", 0), 0
        return counted or self.keyed.count(bytes_to_str(key))

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Store how many tasks a chord waits for; each task of a nested group counts."""
        self.set(self.get_key_for_group(group_id, SIZE), str(chord_size))

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Count a task of a chord, and send the body of the chord with the last one.

        Celery takes the number of results without a stored size. A nested group is one of these, so the body
        would be sent before all tasks of that group have run. And Celery reads the list of all results with
        each task, so Celery learns only of the last one here.
        """
        if not request.group or not request.chord:
            return
        counted = self.incr(self.get_key_for_chord(request.group))
        # the size is stored before the last task is sent, and by then the first ones may have run
        if 0 < (size := self._size_of(request.group)) <= counted:
            request.chord["chord_size"], self._counted.number = size, counted
            try:
                super().on_chord_part_return(request, state, result, **kwargs)
            finally:
                self._counted.number = 0

    def _size_of(self, group_id: str) -> int:
        """Return how many tasks the chord of a group waits for; 0 = not all of them were sent yet."""
        size = self._sizes.get(group_id, 0)
        if not size and (raw := self.get(self.get_key_for_group(group_id, SIZE))):
            if len(self._sizes) >= SIZES_MAX:
                self._sizes.clear()
            size = self._sizes[group_id] = int(raw)
        return size

    def expire(self, key: str, value: Any) -> None:
        """Each value ends after the lifetime of its topic."""

    def _store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Store a result, unless the task has succeeded already, and send it to the thread that asked."""
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = bytes_to_str(task_id)
        value = self.encode(meta)
        raw = value if isinstance(value, bytes) else value.encode()

        def replace(stored: bytes | None) -> bytes | None:
            if stored is not None and self.decode_result(stored)["status"] == states.SUCCESS:
                return None
            return raw

        key = bytes_to_str(self.get_key_for_task(task_id))
        self.keyed.change(key, replace, route=getattr(request, "reply_to", None) or "")
        return result
