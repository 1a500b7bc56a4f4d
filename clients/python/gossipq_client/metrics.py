"""Metrics by OpenTelemetry: what a client publishes and what its handlers work on, named by the semantic
conventions for messaging. Needs opentelemetry-api (pip install "gossipq[otel]").

    mq.add_middleware(Metrics())
"""

from contextvars import ContextVar
from typing import Any

from opentelemetry import metrics

from gossipq.clock import SystemClock
from gossipq_client.handlers import Middleware
from gossipq_client.session import Record

__all__ = ["Metrics"]

SYSTEM = {"messaging.system": "gossipq"}
#: seconds; the buckets that the conventions advise
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


class Metrics(Middleware):
    """By topic: messaging.client.sent.messages (given to `publish`, whatever becomes of them),
    messaging.client.consumed.messages (given to handlers), messaging.process.duration (a histogram, in
    seconds, with `error.type` for those that failed), gossipq.client.expired.messages (their handler is in a
    thread and went on beyond its time limit).

    meter: of whom the metrics are; None: the one of the application's meter provider
    """

    def __init__(self, meter: metrics.Meter | None = None) -> None:
        meter = meter or metrics.get_meter("gossipq_client")
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}")
        self._expired = meter.create_counter("gossipq.client.expired.messages", "{message}")
        self._seconds = meter.create_histogram(
            "messaging.process.duration", "s", explicit_bucket_boundaries_advisory=BUCKETS_S
        )
        self._ticks_us = SystemClock().ticks_us
        self._begun: ContextVar[tuple[int, ...]] = ContextVar("begun", default=())

    def before_publish(self, topic: str, options: dict[str, Any], count: int) -> None:
        """They are counted as sent."""
        self._sent.add(count, _attributes("send", topic))

    def before(self, message: Record) -> None:
        """It is counted as consumed, and its time begins."""
        self._consumed.add(1, _attributes("process", message.topic))
        self._begun.set((*self._begun.get(), self._ticks_us()))

    def after(self, message: Record, result: Any) -> None:
        """Its time ends well."""
        self._end(_attributes("process", message.topic))

    def expired(self, message: Record, error: BaseException) -> None:
        """Counts it; its time runs until its handler ends."""
        self._expired.add(1, _attributes("process", message.topic))

    def error(self, message: Record, error: BaseException) -> None:
        """Its time ends with the error."""
        self._end(_attributes("process", message.topic) | {"error.type": type(error).__qualname__})

    def _end(self, attributes: dict[str, str]) -> None:
        *rest, begun_us = self._begun.get()
        self._begun.set(tuple(rest))
        self._seconds.record((self._ticks_us() - begun_us) / 1e6, attributes)


def _attributes(operation: str, topic: str) -> dict[str, str]:
    return {
        **SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
