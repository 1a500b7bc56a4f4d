"""Traces by OpenTelemetry: a span for each publish and for each message that a handler works on, joined over
the header `traceparent`. Needs opentelemetry-api (pip install "gossipq[otel]").

    mq.add_middleware(Tracing())
"""

from contextvars import ContextVar, Token
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from gossipq_client.handlers import Middleware
from gossipq_client.session import Record

__all__ = ["Tracing"]

SYSTEM = {"messaging.system": "gossipq"}
Begun = tuple[Span, Token[Context]]


class Tracing(Middleware):
    """The span of a handler is in the trace of the publish, and linked to its span. Names and attributes are
    those of the semantic conventions for messaging.

    tracer: of whom the spans are; None: the one of the application's tracer provider
    """

    def __init__(self, tracer: trace.Tracer | None = None) -> None:
        self._tracer = tracer or trace.get_tracer("gossipq_client")
        self._begun: ContextVar[tuple[Begun, ...]] = ContextVar("begun", default=())

    def before_publish(self, topic: str, options: dict[str, Any], count: int) -> None:
        """A span of kind PRODUCER, whose context goes along in the headers."""
        attributes: dict[str, str | int] = {
            **SYSTEM,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": topic,
        }
        if count > 1:
            attributes["messaging.batch.message_count"] = count
        with self._tracer.start_as_current_span(
            f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes
        ):
            propagate.inject(options["headers"])

    def before(self, message: Record) -> None:
        """A span of kind CONSUMER, current for the handler."""
        carried = {name: value for name, value in message.headers_shown.items() if isinstance(value, str)}
        parent = propagate.extract(carried)
        sent = trace.get_current_span(parent).get_span_context()
        span = self._tracer.start_span(
            f"process {message.topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            links=[Link(sent)] if sent.is_valid else [],
            attributes={
                **SYSTEM,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.destination.name": message.topic,
                "messaging.destination.partition.id": str(message.partition),
                "messaging.message.id": message.ref,
                "messaging.message.body.size": len(message.value),
                **({"messaging.consumer.group.name": message.group} if message.group else {}),
            },
        )
        token = context.attach(trace.set_span_in_context(span, parent))
        self._begun.set((*self._begun.get(), (span, token)))

    def after(self, message: Record, result: Any) -> None:
        """The span ends well."""
        self._end(None)

    def error(self, message: Record, error: BaseException) -> None:
        """The span ends with the error."""
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        *rest, (span, token) = self._begun.get()
        self._begun.set(tuple(rest))
        context.detach(token)
        if error is not None:
            span.record_exception(error)
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end()
