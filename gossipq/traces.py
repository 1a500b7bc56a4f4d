"""Traces of OpenTelemetry. See `gossipq_client.traces`."""

from gossipq_client.traces import Tracing

__all__ = ["Tracing"]
