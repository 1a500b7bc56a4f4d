"""A broker for tests of applications: a whole node inside the test's process, with a clock that the test
moves.

    with testing.Broker() as broker, broker.connect() as mq:
        mq.publish("orders", b"one", delay="1h")
        mq.advance("1h")
        assert mq.fetch("orders", "billing").values() == [b"one"]

`mq.run(stop_at_end=True)` runs the handlers of `mq` over everything there is. Those of an application are run
by `mq.handlers = app.mq.handlers` before. The pytest plugin has all of this as fixture `mq`.
"""

import contextlib
import tempfile
import threading
from types import TracebackType
from typing import Self

from gossipq.clock import SystemClock
from gossipq.types import Now
from gossipq_client import client, inputs
from gossipq_client.engine import REQUEST_SECONDS

SHARDS = 4


class MovableClock(SystemClock):
    """The system's clock, and what it was moved ahead."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def now(self) -> Now:
        boot_ms, wall_ms = super().now()
        return Now(boot_ms + self._ahead_ms, wall_ms + self._ahead_ms)

    def advance(self, milliseconds: int) -> None:
        self._ahead_ms += milliseconds


class Client(client.Client):
    """A client of a broker for tests."""

    def __init__(self, broker: "Broker", name: str) -> None:
        self.broker = broker
        super().__init__([broker.endpoint], name, REQUEST_SECONDS)

    def advance(self, duration: inputs.Duration) -> None:
        """As `Broker.advance`, once what this client has published and acked is stored."""
        self.flush(self.timeout)
        self.broker.advance(duration)


class Broker:
    """A node of one worker on threads of this process. Its clock goes on by itself, and by `advance`."""

    def __init__(self) -> None:
        from gossipq_node.inline import InlineNode

        self._directory = tempfile.TemporaryDirectory(prefix="gossipq-")
        self._clock, self._lock = MovableClock(), threading.Lock()
        try:
            self._node = InlineNode(self._directory.name, self._clock, SHARDS)
        except BaseException:
            self._directory.cleanup()
            raise
        self.endpoint = self._node.endpoint

    def connect(self, name: str = "test") -> Client:
        return Client(self, name)

    def advance(self, duration: inputs.Duration) -> None:
        """Lets so much time pass at once; what falls due by it has happened when this returns.

        A lease that ends by it ends as if its consumer had hung, since nobody had time to extend it.
        """
        milliseconds = inputs.duration_ms(duration, "duration")
        with self._lock:
            self._clock.advance(milliseconds)
            self._node.settle()

    def close(self) -> None:
        self._node.close()
        with contextlib.suppress(OSError):
            self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
