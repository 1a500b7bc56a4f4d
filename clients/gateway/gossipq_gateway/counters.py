"""Counters of the gateway by dialect, with Prometheus names like those of nodes."""

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest

_FACTS = {
    "connections": "Connections taken",
    "requests": "Requests, frames or texts understood",
    "errors": "Requests, frames or texts answered by an error, or not understood",
    "messages_published": "Records confirmed by the cluster",
    "messages_delivered": "Records handed out",
    "messages_acked": "Records acked",
}


class Metrics:
    """The metrics of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._facts = {
            fact: Counter(f"gossipq_gateway_{fact}", about, ["dialect"], registry=self.registry)
            for fact, about in _FACTS.items()
        }
        self._open = Gauge(
            "gossipq_gateway_open_connections", "Connections now", ["dialect"], registry=self.registry
        )

    def of(self, dialect: str) -> "Counters":
        return Counters(
            {fact: counter.labels(dialect) for fact, counter in self._facts.items()},
            self._open.labels(dialect),
        )

    def page(self) -> bytes:
        """Return the page for Prometheus."""
        return generate_latest(self.registry)


class Counters:
    """Counters of one dialect: `connection()` around each connection,
    and a method for each event.
    """

    def __init__(self, facts: dict[str, Counter], opened: Gauge) -> None:
        self._facts, self._open = facts, opened

    def connected(self) -> None:
        self._facts["connections"].inc()
        self._open.inc()

    def disconnected(self) -> None:
        self._open.dec()

    def request(self) -> None:
        self._facts["requests"].inc()

    def error(self) -> None:
        self._facts["errors"].inc()

    def published(self, records: int = 1) -> None:
        self._facts["messages_published"].inc(records)

    def delivered(self, records: int = 1) -> None:
        self._facts["messages_delivered"].inc(records)

    def acked(self, records: int = 1) -> None:
        self._facts["messages_acked"].inc(records)
