"""The entry point for `opentelemetry-instrument`, whose package a stand-in replaces."""

import sys
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gossipq_client import testing

PATIENCE_S = 30


class BaseInstrumentor:
    """As in opentelemetry-instrumentation."""

    def instrument(self, **options: Any) -> None:
        self._instrument(**options)  # type: ignore[attr-defined]

    def uninstrument(self, **options: Any) -> None:
        self._uninstrument(**options)  # type: ignore[attr-defined]


@pytest.fixture
def instrumentor(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("instrumentation", "instrumentation.instrumentor"):
        module = ModuleType(f"opentelemetry.{name}")
        module.__dict__["BaseInstrumentor"] = BaseInstrumentor
        monkeypatch.setitem(sys.modules, f"opentelemetry.{name}", module)
    monkeypatch.delitem(sys.modules, "gossipq_client.instrumentation", raising=False)
    return import_module("gossipq_client.instrumentation").GossipqInstrumentor()


@pytest.mark.e2e
def test_each_new_client_has_traces_and_metrics(broker: testing.Broker, instrumentor: Any) -> None:
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracer_provider = TracerProvider()
    tracer_provider.add_span_processor(SimpleSpanProcessor(spans))
    before = broker.connect()
    instrumentor.instrument(tracer_provider=tracer_provider, meter_provider=MeterProvider([reader]))
    try:
        with before, broker.connect() as mq:
            before.publish("seen", b"0", timeout=PATIENCE_S)
            assert not spans.get_finished_spans()
            mq.publish("seen", b"1", timeout=PATIENCE_S)
    finally:
        instrumentor.uninstrument()
    assert [span.name for span in spans.get_finished_spans()] == ["send seen"]
    data = reader.get_metrics_data()
    assert data is not None
    names = {m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert names == {"messaging.client.sent.messages"}
    with broker.connect() as mq:
        mq.publish("seen", b"2", timeout=PATIENCE_S)
    assert len(spans.get_finished_spans()) == 1


def test_the_entry_point_names_the_class() -> None:
    found = {each.name: each.value for each in entry_points(group="opentelemetry_instrumentor")}
    if "gossipq" not in found:
        pytest.skip("gossipq is not installed here, or was before it had the entry point")
    assert found["gossipq"] == "gossipq_client.instrumentation:GossipqInstrumentor"
