"""A whole node inside the test's process, with a clock that the test moves, and a client of it."""

import contextlib
import tempfile
import threading
from types import TracebackType
from typing import Self

from gossipq.clock import SystemClock
from gossipq.errors import missing_extra
from gossipq.types import Now
from gossipq_client.api import sync
from gossipq_client.io import REQUEST_SECONDS, Connecting
from gossipq_client.values import CheckedCodec, Codec, inputs

SHARDS = 4


class MovableClock(SystemClock):
    """The system's clock, and what it was moved ahead."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def now(self) -> Now:
        """Milliseconds since boot and since 1970, both moved."""
        now = super().now()
        return Now(now.boot_ms + self._ahead_ms, now.wall_ms + self._ahead_ms)

    def advance(self, milliseconds: int) -> None:
        """Moves it ahead from now on."""
        self._ahead_ms += milliseconds


class Client(sync.Client):
    """A client of a broker for tests."""

    def __init__(self, broker: "Broker", name: str, codec: Codec | None) -> None:
        self.broker = broker
        asked = Connecting.to(broker.endpoint, name, REQUEST_SECONDS)
        super().__init__(asked._replace(codec=CheckedCodec(codec)))

    def advance(self, duration: inputs.Duration) -> None:
        """As `Broker.advance` (seconds, or "1h"), once what this client has published and acked is stored."""
        self.flush()
        self.broker.advance(duration)


class Broker:
    """A node of one worker on threads of this process. Its clock runs, and `advance` moves it forward."""

    def __init__(self) -> None:
        try:
            from gossipq_node.inline import InlineNode
        except ModuleNotFoundError as missing:
            raise missing_extra(missing.name, "server") from None

        self._directory = tempfile.TemporaryDirectory(prefix="gossipq-")
        self._clock, self._lock = MovableClock(), threading.Lock()
        self._closed = False
        try:
            self._node = InlineNode(self._directory.name, self._clock, SHARDS)
        except BaseException:
            self._directory.cleanup()
            raise
        self.endpoint = self._node.endpoint

    def connect(self, name: str = "test", codec: Codec | None = None) -> Client:
        """Return a client of this node. It has the methods of any other client, and `advance`."""
        return Client(self, name, codec)

    def advance(self, duration: inputs.Duration) -> None:
        """Move the clock forward by `duration` (seconds, or "1h"). Everything that becomes due has happened
        when this returns.

        A lease that ends by it ends as if its consumer had hung, because the client had no time to extend it.
        """
        milliseconds = inputs.duration_ms(duration, "duration")
        with self._lock:
            self._clock.advance(milliseconds)
            self._node.await_whole_turns()

    def close(self) -> None:
        """Stop the node and delete its records. A second call does nothing: a test may close it before the
        fixture does."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._node.close()
        with contextlib.suppress(OSError):
            self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
