"""What the log says of a record that a handler did not simply do."""

from gossipq.errors import LeaseLost
from gossipq_client.handlers.registry import Handler
from gossipq_client.io import log
from gossipq_client.session import Record
from gossipq_client.values import Reject, Retry


def tell(handler: Handler, message: Record, error: Exception) -> None:
    """To the log, what became of a record."""
    match error:
        case Retry():
            log.info("%s: %r comes again: %s", handler.name, message, error)
        case Reject():
            log.warning("%s: %r is a dead letter: %s", handler.name, message, error)
        case LeaseLost():
            log.warning("%s: %s", handler.name, error)
        case _:
            log.error("%s: %r failed", handler.name, message, exc_info=error)
