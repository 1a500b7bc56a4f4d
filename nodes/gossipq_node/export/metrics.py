"""Prometheus metrics of a follower: its lag, its output, its losses."""

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from gossipq.errors import BadBatch
from gossipq_node.export.follower import Look


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._waiting = Gauge(
            "gossipq_export_waiting_messages",
            "Records of the cluster that the export lacks",
            ["topic"],
            registry=registry,
        )
        self._records = Counter("gossipq_export_messages", "Records exported", registry=registry)
        self._bytes = Counter("gossipq_export_bytes", "Bytes of files written", registry=registry)
        self._files = Counter("gossipq_export_files", "Files written", registry=registry)
        self._merged = Counter(
            "gossipq_export_merged_files", "Files that went into larger ones", registry=registry
        )
        self._lost = Counter(
            "gossipq_export_lost_messages",
            "Records that retention removed before their export",
            ["topic"],
            registry=registry,
        )
        self._errors = Counter(
            "gossipq_export_errors", "Steps that failed and were tried again", ["error"], registry=registry
        )
        self._step_s = Gauge("gossipq_export_step_seconds", "What the newest step took", registry=registry)
        self._success = Gauge(
            "gossipq_export_last_success_timestamp_seconds", "When a step went well last", registry=registry
        )

    def serve(self, host: str, port: int) -> None:
        """Serve from a thread of this process. Raises OSError if the port is in use."""
        start_http_server(port, host, self.registry)

    def count(self, step: Look) -> None:
        done = step.done
        self._waiting.clear()  # topics can disappear
        for topic, records in done.waiting.items():
            self._waiting.labels(topic).set(records)
        for gap in done.gaps:
            self._lost.labels(gap.topic).inc(gap.end - gap.start)
        self._records.inc(done.records)
        self._bytes.inc(done.bytes)
        self._files.inc(done.files)
        self._merged.inc(step.merged_files)
        self._step_s.set(done.seconds)
        if done.unopened:
            self._errors.labels(BadBatch.__name__).inc()
        else:
            self._success.set_to_current_time()

    def failed(self, error: Exception) -> None:
        self._errors.labels(type(error).__name__).inc()
