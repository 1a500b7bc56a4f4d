"""Traces and metrics of all clients without a change of the program, for `opentelemetry-instrument`.

    pip install "gossipq[otel]" opentelemetry-distro
    opentelemetry-instrument gossipq run app:mq

A program can do the same: `GossipqInstrumentor().instrument()`, before it makes its clients.
"""

from collections.abc import Callable, Collection
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.instrumentation.instrumentor import (  # type: ignore[import-not-found, unused-ignore]
    BaseInstrumentor,
)

from gossipq_client.handlers import Middleware, makers
from gossipq_client.metrics import Metrics
from gossipq_client.traces import Tracing

__all__ = ["GossipqInstrumentor"]

NAME = "gossipq_client"


class GossipqInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Give each new client `Tracing` and `Metrics` as its outermost middleware."""

    _made: "list[Callable[[], Middleware]] | None" = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """It works with the version that it comes with."""
        return ()

    def _instrument(self, **options: Any) -> None:
        """Take `tracer_provider` and `meter_provider` from the options, or those of the application."""
        tracer = trace.get_tracer(NAME, tracer_provider=options.get("tracer_provider"))
        meter = metrics.get_meter(NAME, meter_provider=options.get("meter_provider"))
        self._made = [lambda: Tracing(tracer), lambda: Metrics(meter)]
        makers.extend(self._made)

    def _uninstrument(self, **options: Any) -> None:
        """Clients that exist keep their middleware."""
        for make in self._made or ():
            makers.remove(make)
        self._made = None
