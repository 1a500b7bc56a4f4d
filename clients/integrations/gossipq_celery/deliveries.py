"""Records on their way to the callbacks of a channel: the prefetch window, and the thread that fills it."""

import logging
from collections.abc import Callable, Iterable
from threading import Condition, Thread, current_thread

from gossipq.errors import ClientClosed, GossipqError, LeaseLost, NotFound
from gossipq_client import Fetcher, Message
from gossipq_client.values import outcomes

FETCH_MAX = 100  #: records of one fetch
FETCH_SECONDS = 30.0  #: how long a fetch waits in the broker
PAUSE_SECONDS = 1.0  #: after an error, until the next try
STOP_SECONDS = 5.0

log = logging.getLogger("gossipq_celery")


def give_back(messages: Iterable[Message]) -> None:
    """Return records to their queue. It costs none of their attempts."""
    for each in messages:
        try:
            each.settle(outcomes.GIVEN_BACK)
        except GossipqError as error:
            log.warning("not given back ref=%s error=%s", each.ref, error)


class Window:
    """The `QoS` of a channel: what its consumers have and did not ack, and how much more it may have.

    Acks may come from any thread.
    """

    def __init__(self, prefetch_count: int = 0) -> None:
        self._prefetch_count = prefetch_count
        self._unacked: dict[int, Message] = {}
        self.waiting = 0  #: records that were fetched and that no callback has seen
        self.changed = Condition()

    @property
    def prefetch_count(self) -> int:
        """How many records may be unacked; 0 = any number."""
        return self._prefetch_count

    @prefetch_count.setter
    def prefetch_count(self, count: int) -> None:
        with self.changed:
            self._prefetch_count = count or 0
            self.changed.notify_all()

    def room(self) -> int:
        """Return how many records may be fetched now; call it with `changed` held."""
        if not self._prefetch_count:
            return FETCH_MAX - self.waiting
        return min(FETCH_MAX, self._prefetch_count - len(self._unacked) - self.waiting)

    def can_consume(self) -> bool:
        with self.changed:
            return self.room() > 0

    def append(self, message: Message, tag: int) -> None:
        self._unacked[tag] = message

    def ack(self, tag: int) -> None:
        """Ack a record, within milliseconds; a lost lease is logged, since its task is done."""
        message = self._taken(tag)
        if message is None:
            return
        try:
            message.ack_soon()
        except LeaseLost as lost:
            log.warning("acked too late ref=%s error=%s", message.ref, lost)

    def reject(self, tag: int, requeue: bool = False) -> None:
        """Return a record to its queue, or make it a dead letter."""
        message = self._taken(tag)
        if message is None:
            return
        if requeue:
            give_back([message])
        else:
            message.reject("rejected by the consumer")

    def _taken(self, tag: int) -> Message | None:
        with self.changed:
            message = self._unacked.pop(tag, None)
            self.changed.notify_all()
        return message

    def restore_unacked(self) -> list[object]:
        """Give all records back that are not acked. Returns no errors: their leases end anyhow."""
        with self.changed:
            unacked, self._unacked = self._unacked, {}
            self.changed.notify_all()
        give_back(unacked.values())
        return []

    def note_waiting(self, count: int) -> None:
        """Count records that were fetched, or (negative) that callbacks got."""
        with self.changed:
            self.waiting += count
            self.changed.notify_all()


class Feed:
    """A thread that fetches for the consumers of one channel whenever its window has room."""

    def __init__(
        self,
        window: Window,
        fetcher: Callable[[], Fetcher],
        on_records: Callable[["Feed", list[Message]], None],
        on_missing: Callable[[], None],
    ) -> None:
        """Start the thread. `fetcher` makes the fetcher of these consumers. `on_records` takes the records,
        and `on_missing` is called when a queue was deleted."""
        self._window, self._make, self._on_records, self._on_missing = window, fetcher, on_records, on_missing
        self._fetcher: Fetcher | None = None
        self.is_over = False
        self._thread = Thread(target=self._run, name="gossipq-feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it, and wait until no fetch is running. Records that callbacks have not seen are given back."""
        with self._window.changed:
            self.is_over = True
            self._window.changed.notify_all()
        if self._fetcher is not None:
            self._fetcher.close()
        if self._thread is not current_thread():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self.is_over:
            try:
                self._fetch()
            except ClientClosed:
                return
            except NotFound:
                self._fetcher = None
                self._recover()
            except GossipqError as error:
                log.warning("fetch failed, next try in %s s error=%s", PAUSE_SECONDS, error)
                self._fetcher = None
                self._pause()

    def _fetch(self) -> None:
        changed = self._window.changed
        with changed:
            changed.wait_for(lambda: self.is_over or self._window.room() > 0)
            count = self._window.room()
        if self.is_over:
            return
        if self._fetcher is None:
            self._fetcher = self._make()
        if self.is_over:  # `stop` has not seen this fetcher
            return
        messages = list(self._fetcher.fetch(n=count, wait=FETCH_SECONDS))
        if self.is_over:
            give_back(messages)
        elif messages:
            self._window.note_waiting(len(messages))
            self._on_records(self, messages)

    def _recover(self) -> None:
        try:
            self._on_missing()
        except GossipqError as error:
            log.warning("queues are not declared, next try in %s s error=%s", PAUSE_SECONDS, error)
            self._pause()

    def _pause(self) -> None:
        with self._window.changed:
            self._window.changed.wait_for(lambda: self.is_over, PAUSE_SECONDS)
