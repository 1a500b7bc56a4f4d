"""Values by key, kept as records that are found by their ids.

Each value of a key is a record with the id `key#n`. A record is stored once for an id, so appending the next
version is atomic, and the newest version is found by a search over n. A deletion is an empty version. The
topic forgets a version after its lifetime, so a key that lives longer needs another name for each period.
"""

import time
from collections.abc import Callable
from threading import Lock

from gossipq.errors import NotFound, Refused
from gossipq_client import Client

PARTITIONS = 4
REMEMBERED_MAX = 10_000  #: keys whose newest version this process has seen
REMEMBERED_SECONDS = 60.0  #: the topic forgets ids much later


class KeyedTopic:
    """A topic whose records are values by key. Safe to share between threads."""

    def __init__(self, client: Callable[[], Client], topic: str, lifetime_s: float) -> None:
        """`lifetime_s`: how long after it was stored a value can be found."""
        self._client, self.topic, self._lifetime_s = client, topic, lifetime_s
        self._newest: dict[str, tuple[int, bytes, float]] = {}
        self._lock = Lock()
        self._is_made = False

    def get(self, key: str) -> bytes | None:
        """Return the newest value of a key; None if it has none, or if it was deleted."""
        return self._find(key)[1] or None

    def set(self, key: str, value: bytes, route: str = "") -> None:
        """Store a value. `route` names those who wait for it."""
        self.change(key, lambda _: value, route)

    def count(self, key: str) -> int:
        """Add one to the counter of a key and return it. It begins at 0, also after a deletion."""
        counted = 0

        def add_one(value: bytes | None) -> bytes:
            nonlocal counted
            counted = int(value or 0) + 1
            return b"%d" % counted

        self.change(key, add_one)
        return counted

    def change(self, key: str, decide: Callable[[bytes | None], bytes | None], route: str = "") -> bool:
        """Replace the value of a key by what `decide` makes of it, as one step. None leaves it, and returns
        False. `decide` is called again when another process was faster. `route` as in `set`."""
        version, value = self._known(key)  # may be old; so the first value of a key costs one round trip
        is_newest = False
        while True:
            new = decide(value or None)
            if new is None and is_newest:
                return False
            if new is not None and self._append(key, version + 1, new, route):
                self._remember(key, version + 1, new)
                return True
            version, value = self._find(key)
            is_newest = True

    def delete(self, key: str) -> None:
        if self.get(key) is not None:
            self.set(key, b"")

    def make(self) -> None:
        """Create the topic."""
        if not self._is_made:
            self._client().create_topic(
                self.topic,
                PARTITIONS,
                if_not_exists=True,
                retention=self._lifetime_s,
                dedup=self._lifetime_s,
            )
            self._is_made = True

    def _append(self, key: str, version: int, value: bytes, route: str) -> bool:
        """Store a version, and return False if another one has this number."""
        self.make()
        receipt = self._client().publish(self.topic, value, id=_id(key, version), route=route)
        return not receipt.duplicate

    def _find(self, key: str) -> tuple[int, bytes]:
        """Return the newest version and its value; -1 without one."""
        low, value = self._known(key)
        step, high = 1, None
        while high is None or high - low > 1:
            middle = low + step if high is None else (low + high) // 2
            found = self._version(key, middle)
            if found is None:
                high = middle
            else:
                low, value = middle, found
                step *= 2
        if low >= 0:
            self._remember(key, low, value)
        return low, value

    def _known(self, key: str) -> tuple[int, bytes]:
        """Return a version that exists, and its value, which never changes."""
        version, value, seen = self._newest.get(key, (-1, b"", 0.0))
        return (version, value) if time.monotonic() - seen < REMEMBERED_SECONDS else (-1, b"")

    def _version(self, key: str, version: int) -> bytes | None:
        try:
            return self._client().record(self.topic, id=_id(key, version)).show().value
        except NotFound:
            return None
        except Refused as refused:
            if refused.retryable:
                raise
            return None

    def _remember(self, key: str, version: int, value: bytes) -> None:
        with self._lock:
            if len(self._newest) >= REMEMBERED_MAX:
                self._newest.clear()
            self._newest[key] = version, value, time.monotonic()


def _id(key: str, version: int) -> str:
    return f"{key}#{version}"
