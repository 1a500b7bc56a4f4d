"""The relay: sends the rows of an outbox to the broker, in order, and deletes those that are stored."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, Unpack

from gossipq.clock import SystemClock
from gossipq.errors import GossipqError, Internal, NotConfirmed, Refused
from gossipq_client.values import PublishOptions, duration_ms, inputs
from gossipq_outbox.databases import TABLE
from gossipq_outbox.rows import Row, publish_arguments
from gossipq_outbox.source import source_of

log = logging.getLogger("gossipq.outbox")
HOLD_S = 5.0  #: a transaction is not kept open longer while confirms are missing
PAUSE_S = 1.0  #: after an error of the database or the broker


class _Receipt(Protocol):
    def exception(self, timeout: float) -> GossipqError | None: ...


class _Publisher(Protocol):
    """The part of a client that a relay uses."""

    def post(self, topic: str, value: Any, **options: Unpack[PublishOptions]) -> Any: ...


class Relay:
    """Publishes the rows of an outbox, each with its id, so that a row that is sent again is stored once.

        with gossipq.connect() as mq:
            Relay(mq, "postgresql://shop@db/shop").run()

    `database` is a URL (postgresql:// or sqlite:///), an Engine of SQLAlchemy, or a function that returns a
    new DB-API connection. `every`: pause between looks at an empty table. `batch`: rows of one look.

    `run` works until `stop`; `with relay:` works in a thread. A relay that dies at any point leaves rows that
    the next one sends again: run it again within the topic's `dedup` time. A second relay is a standby on
    PostgreSQL; on SQLite both send each row, and the broker stores it once.
    """

    def __init__(
        self,
        mq: _Publisher,
        database: str | Callable[[], Any] | Any,
        *,
        table: str = TABLE,
        batch: int = 500,
        every: inputs.Duration = "200ms",
    ) -> None:
        self._mq, self.source = mq, source_of(database, table)
        self._batch = inputs.whole(batch, "batch", 1, 10_000)
        self._every_s = duration_ms(every, "every", 1) / 1_000
        self._clock = SystemClock()
        #: rows that were posted and not finished -> the receipt, or why the row can never be published
        self._posted: dict[tuple[int, str], _Receipt | Exception] = {}
        self._woken, self._stopped = threading.Event(), False
        self._thread: threading.Thread | None = None
        self.published = self.refused = 0  #: rows since it began
        self.trouble = ""  #: why rows wait now

    def once(self) -> int:
        """Publish the oldest rows and delete them; return how many rows are done. Raises the errors of the
        driver. Rows that the broker does not take now stay, and `trouble` says why."""
        self.trouble = ""
        try:
            rows = self.source.take(self._batch)
            self._posted = {key: self._posted[key] for row in rows if (key := row[:2]) in self._posted}
            self._post(rows)
            published, refused = self._outcomes(rows)
            self.source.finish(published, refused)
        except BaseException:
            self.source.abandon()
            raise
        done = {*published, *refused}
        self._posted = {key: each for key, each in self._posted.items() if key[0] not in done}
        self.published += len(published)
        self.refused += len(refused)
        for number, reason in refused.items():
            log.error("row refused number=%d table=%s reason=%s", number, self.source.table, reason)
        return len(done)

    def _post(self, rows: Sequence[Row]) -> None:
        """Post in order; a row that cannot be sent now ends the batch, so that none overtakes it."""
        for row in rows:
            if row[:2] in self._posted:
                continue
            try:
                arguments = publish_arguments(row, self._clock.now().wall_ms)
                self._posted[row[:2]] = self._mq.post(row.topic, row.value, **arguments)
            except (GossipqError, TypeError, ValueError) as error:
                if not _is_final(error):
                    self.trouble = str(error)
                    return
                self._posted[row[:2]] = error

    def _outcomes(self, rows: Sequence[Row]) -> tuple[list[int], dict[int, str]]:
        """Wait for the confirms, HOLD_S at most. Return the numbers of published rows, and those of refused
        ones with the reason."""
        published: list[int] = []
        refused: dict[int, str] = {}
        end = time.monotonic() + HOLD_S
        for row in rows:
            posted = self._posted.get(row[:2])
            if posted is None:
                break
            error = posted if isinstance(posted, Exception) else self._outcome(posted, end)
            if error is None:
                published.append(row.number)
            elif _is_final(error):
                refused[row.number] = f"{type(error).__name__}: {error}"
            else:
                self.trouble = self.trouble or str(error)
                # the client still sends a record whose confirm is late
                if not isinstance(error, NotConfirmed):
                    del self._posted[row[:2]]
        return published, refused

    def _outcome(self, receipt: _Receipt, end: float) -> Exception | None:
        try:
            return receipt.exception(timeout=max(0.0, end - time.monotonic()))
        except NotConfirmed as late:
            return late

    def run(self, *, until_empty: bool = False) -> None:
        """Publish rows until `stop` is called, or with `until_empty` until no row is left that can be
        published. Errors of the database and the broker are logged, and tried again after a second. The
        connection to the database is closed at the end."""
        try:
            self._work(until_empty)
        finally:
            self.source.abandon()

    def _work(self, until_empty: bool) -> None:
        said = ""
        while not self._stopped:
            self._woken.clear()
            try:
                count = self.once()
            except Exception as error:  # of whatever driver; a relay that ends would publish nothing
                count, self.trouble = 0, f"{type(error).__name__}: {error}"
            if self.trouble != said:
                log.warning(
                    "rows wait table=%s reason=%s", self.source.table, self.trouble or "none any more"
                )
                said = self.trouble
            if self.trouble:
                self._woken.wait(PAUSE_S)
            elif count < self._batch:
                if until_empty and not count and not self.source.is_standby:
                    return
                self._woken.wait(self._every_s)

    def wake(self) -> None:
        """Look at the table now: a transaction in this process has committed."""
        self._woken.set()

    def stop(self) -> None:
        """Let `run` return once it is done with the rows that it took. Signal handlers may call this."""
        self._stopped = True
        self._woken.set()

    def close(self) -> None:
        """Stop, and wait for the thread."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        self._stopped = False
        self._thread = threading.Thread(target=self.run, name="gossipq-outbox", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_final(error: Exception) -> bool:
    """True if the row can never be published as it is."""
    if not isinstance(error, GossipqError):
        return True  # its options are wrong
    return isinstance(error, Refused) and not error.retryable and not isinstance(error, Internal)
