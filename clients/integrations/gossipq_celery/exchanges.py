"""The table of exchanges and bindings, kept in the broker: a topic of changes that all processes read."""

import json
import time
from collections.abc import Mapping
from threading import RLock
from typing import Any

from gossipq.errors import NotFound
from gossipq_celery.names import prefix_of, topic_of
from gossipq_celery.routes import Binding, Exchange, Table
from gossipq_client import Client

BYTES_MAX = 16 * 2**20  #: of the topic; older changes are dropped
SNAPSHOT_AFTER = 2_000  #: changes, far fewer than `BYTES_MAX` has room for


class Exchanges:
    """Reads and writes the table of one virtual host. Safe to share between threads."""

    def __init__(self, client: Client, virtual_host: str) -> None:
        self._client, self._lock = client, RLock()
        self._topic = topic_of("", f"{prefix_of(virtual_host)}kombu-exchanges")
        self._table, self._next = Table(), 0
        #: changes since the last snapshot, with their offsets
        self._recent: list[tuple[int, Mapping[str, Any]]] = []
        self._is_made = False

    def table(self) -> Table:
        """Return the table with each change that was stored before this call."""
        with self._lock:
            self._read()
            if len(self._recent) > SNAPSHOT_AFTER:
                self._publish({"do": "snapshot", "upto": self._next, "table": self._table.snapshot()})
                self._read()
            return self._table

    def declare(self, name: str, exchange: Exchange) -> None:
        """Store an exchange, unless it is stored so."""
        if self.table().exchanges.get(name) != exchange:
            self._publish({"do": "declare", "exchange": name, "as": exchange._asdict()})

    def bind(self, binding: Binding, expires_ms: int) -> None:
        """Store a binding, unless it is stored. One that expires is confirmed each time."""
        if expires_ms or binding not in self.table().bindings:
            now_ms = int(time.time() * 1000)
            change = {"do": "bind", **binding._asdict(), "at_ms": now_ms, "expires_ms": expires_ms}
            self._publish(change)

    def unbind(self, binding: Binding) -> None:
        if binding in self.table().bindings:
            self._publish({"do": "unbind", **binding._asdict()})

    def delete_queue(self, queue: str) -> None:
        """Remove all bindings of a queue."""
        if any(each.queue == queue for each in self.table().bindings):
            self._publish({"do": "delete_queue", "queue": queue})

    def delete_exchange(self, name: str) -> None:
        table = self.table()
        if name in table.exchanges or any(each.exchange == name for each in table.bindings):
            self._publish({"do": "delete_exchange", "exchange": name})

    def _publish(self, change: Mapping[str, Any]) -> None:
        if not self._is_made:
            self._make()
        self._client.publish(self._topic, json.dumps(change))

    def _make(self) -> None:
        self._client.create_topic(
            self._topic,
            1,
            if_not_exists=True,
            retain="forever",
            bytes_max=BYTES_MAX,
            overflow="drop_oldest",
        )
        self._is_made = True

    def _read(self) -> None:
        """Apply the changes that are stored by now."""
        try:
            self._read_from(self._next)
        except NotFound:  # nothing was declared yet, older changes were dropped, or the topic was deleted
            if self._next:
                self._table, self._next, self._recent = Table(), 0, []
                self._read()

    def _read_from(self, first: int) -> None:
        for stretch in self._client.read(self._topic, start=first or "first").batches():
            for offset, value in enumerate(stretch.values(), stretch.first):
                self._next = offset + 1
                self._apply(offset, json.loads(value))

    def _apply(self, offset: int, change: Mapping[str, Any]) -> None:
        if change.get("do") != "snapshot":
            self._recent.append((offset, change))
            self._table.apply(change)
            return
        self._table.restore(change["table"])
        self._recent = [each for each in self._recent if each[0] >= change["upto"]]
        for _, later in self._recent:  # stored while the snapshot was being made
            self._table.apply(later)
