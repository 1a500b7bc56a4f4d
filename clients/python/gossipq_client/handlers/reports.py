"""What the log says of a record that a handler did not simply do."""

from gossipq.errors import LeaseLost
from gossipq_client.handlers.registry import Handler
from gossipq_client.io import log
from gossipq_client.session import Record
from gossipq_client.values import Reject, Retry, TimeLimitExceeded


def tell(handler: Handler, message: Record, error: Exception) -> None:
    """To the log, what became of a record; the line has its `topic`, `ref` and `attempt` as fields too."""
    fields = {"topic": message.topic, "ref": message.ref, "attempt": message.attempt}
    match error:
        case Retry():
            log.info("%s: %r comes again: %s", handler.name, message, error, extra=fields)
        case Reject():
            log.warning("%s: %r is a dead letter: %s", handler.name, message, error, extra=fields)
        case LeaseLost() | TimeLimitExceeded():
            log.warning("%s: %s", handler.name, error, extra=fields)
        case _:
            log.error("%s: %r failed", handler.name, message, exc_info=error, extra=fields)


def broken(ware: object, message: Record) -> None:
    """To the log, what middleware raised where nobody can be told."""
    log.exception("%s, told of an error: %r", type(ware).__name__, message, extra={"ref": message.ref})
