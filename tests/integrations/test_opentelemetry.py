"""Traces and metrics as a collector receives them over OTLP, by the names of the semantic conventions."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.semconv._incubating.attributes import messaging_attributes as attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics as metrics

from gossipq_client import Reject, testing
from gossipq_client.metrics import Metrics
from gossipq_client.traces import Tracing

NAMES = {each for name, each in vars(attributes).items() if name.startswith("MESSAGING_")}
METRICS = {each for name, each in vars(metrics).items() if name.startswith("MESSAGING_")}


class Collector(ThreadingHTTPServer):
    """Takes what exporters send over OTLP and HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: list[Any] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        else:
            for found in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.server.metrics += [each for scope in found.scope_metrics for each in scope.metrics]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def told(element: Any) -> dict[str, Any]:
    """Return the attributes of a span, or of a point of a metric."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value"))  # protobuf's own way to ask
        for each in element.attributes
    }


def test_a_collector_gets_spans_and_metrics_by_the_names_of_the_convention(
    collector: Collector, mq: testing.Client
) -> None:
    traces = TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector.url}/v1/traces")))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{collector.url}/v1/metrics"), 3_600_000)
    meters = MeterProvider([reader])
    mq.add_middleware(Tracing(traces.get_tracer("test")))
    mq.add_middleware(Metrics(meters.get_meter("test")))

    @mq.consumer("orders", group="billing")
    def bill(value: str) -> None:
        if value == "bad":
            raise Reject("no such customer")

    mq.publish_many("orders", ["good", "good"])
    mq.publish("orders", "bad")
    mq.run(stop_at_end=True)
    meters.shutdown()
    traces.shutdown()

    spans = {span.span_id: span for span in collector.spans}
    sent = [span for span in collector.spans if span.kind == span.SPAN_KIND_PRODUCER]
    processed = [span for span in collector.spans if span.kind == span.SPAN_KIND_CONSUMER]
    assert [span.name for span in sent] == ["send orders"] * 2
    assert [span.name for span in processed] == ["process orders"] * 3
    for span in processed:
        (link,) = span.links
        assert spans[link.span_id].kind == span.SPAN_KIND_PRODUCER
        assert link.trace_id == span.trace_id
    assert [told(span).get(attributes.MESSAGING_BATCH_MESSAGE_COUNT) for span in sent] == [2, None]
    assert [told(span).get("error.type") for span in processed] == [None, None, "Reject"]
    assert told(processed[0]) == {
        "messaging.system": "gossipq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": "orders/0/0",
        "messaging.message.body.size": 4,
        "messaging.consumer.group.name": "billing",
    }

    points = [
        (metric, point)
        for metric in collector.metrics
        for point in (*metric.sum.data_points, *metric.histogram.data_points)
    ]
    assert {metric.name for metric, _ in points} == METRICS & {
        "messaging.client.sent.messages",
        "messaging.client.consumed.messages",
        "messaging.process.duration",
    }
    units = {metric.name: metric.unit for metric, _ in points}
    assert units == dict.fromkeys(units, "{message}") | {"messaging.process.duration": "s"}
    for element in [*collector.spans, *(point for _, point in points)]:
        names = set(told(element)) - {"error.type"}
        assert names <= NAMES
        assert {"messaging.system", "messaging.operation.name"} <= names, "the convention requires them"
