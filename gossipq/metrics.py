"""Metrics of OpenTelemetry. See `gossipq_client.metrics`."""

from gossipq_client.metrics import Metrics

__all__ = ["Metrics"]
