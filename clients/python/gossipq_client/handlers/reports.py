"""Log lines about records whose handlers failed or ran too long."""

import logging
import sys
import traceback
from collections.abc import Iterable
from os.path import basename
from typing import TYPE_CHECKING, Any

from gossipq.errors import LeaseLost
from gossipq.texts import printable
from gossipq_client.handlers.crew import Crew
from gossipq_client.handlers.registry import Handler
from gossipq_client.io import log
from gossipq_client.session import Record
from gossipq_client.values import Reject, Retry, RetryFlow, TimeLimitExceeded

if TYPE_CHECKING:
    from gossipq_client.handlers.middleware import Middleware

FRAMES_SHOWN = 3


def _fields(message: Record) -> dict[str, Any]:
    """Extra fields of a log line."""
    return {"topic": message.topic, "ref": message.ref, "attempt": message.attempt}


def tell(handler: Handler, message: Record, error: Exception) -> None:
    """Log how the work on a record ended; the line has its `topic`, `ref` and `attempt` as fields too.

    A failure that is retried is one line. Its traceback comes with the last attempt, or if the logger is at
    level DEBUG.
    """
    fields, last = _fields(message), message._is_last_attempt
    match error:
        case LeaseLost() | TimeLimitExceeded():
            log.warning("%s: %s", handler.name, error, extra=fields)
        case Reject():
            log.warning("%s: %r is a dead letter: %s", handler.name, message, error, extra=fields)
        case RetryFlow():
            log.info(
                "%s: %r and its flow will be delivered later: %s", handler.name, message, error, extra=fields
            )
        case Retry() if last:
            log.warning("%s: %r failed for the last time: %s", handler.name, message, error, extra=fields)
        case Retry():
            log.info("%s: %r will be redelivered: %s", handler.name, message, error, extra=fields)
        case _ if last:
            log.error("%s: %r failed for the last time", handler.name, message, exc_info=error, extra=fields)
        case _:
            log.warning(
                "%s: %r failed and will be redelivered: %s",
                handler.name,
                message,
                printable(f"{type(error).__name__}: {error}"),
                exc_info=error if log.isEnabledFor(logging.DEBUG) else None,
                extra=fields,
            )


def tell_cancelled(handler: Handler, message: Record) -> None:
    """Log that the handler of a cancelled job has ended."""
    log.info("%s: %r was cancelled", handler.name, message, extra=_fields(message))


def untold(handler: Handler, message: Record, error: Exception) -> None:
    """Log that a node, or the client that asked, was not told how the work on a record ended."""
    log.error(
        "%s: the outcome of %r was not reported",
        handler.name,
        message,
        exc_info=error,
        extra=_fields(message),
    )


def overdue(
    crew: Crew,
    message: Record,
    error: TimeLimitExceeded,
    wares: "Iterable[Middleware]",
    stack: str,
    is_replaced: bool,
) -> None:
    """Tell the log and the middleware that a handler still runs after its message has
    failed; it cannot be stopped.
    """
    then = "another worker takes its place" if is_replaced else "no other worker takes its place"
    log.warning(
        "%s: %s; it keeps running without its message, %s (stuck=%d%s)",
        crew.handler.name,
        error,
        then,
        len(crew.stuck),
        f" at={stack}" if stack else "",
        extra=_fields(message),
    )
    for ware in wares:
        try:
            ware.expired(message, error)
        except Exception:
            broken(ware, message)


def returned(crew: Crew, message: Record, error: BaseException | None) -> None:
    """Log that an overdue handler has ended, and its error."""
    log.warning(
        "%s: the handler of %r has ended, after its time limit",
        crew.handler.name,
        message,
        exc_info=error,
        extra=_fields(message),
    )


def left(crew: Crew) -> None:
    """Log that handlers still run when their run ends."""
    if crew.stuck:
        refs = ", ".join(message.ref for message in list(crew.stuck.values()))
        log.error("%s: %d handlers did not end: %s", crew.handler.name, len(crew.stuck), refs)


def broken(ware: object, message: Record) -> None:
    """Log an exception of middleware that no caller can get."""
    log.exception("%s, told of an error: %r", type(ware).__name__, message, extra={"ref": message.ref})


def stack_of(thread: int | None) -> str:
    """The innermost calls of a thread, as in "work (app.py:12) > wait (threading.py:355)"; "" if it ended."""
    frame = sys._current_frames().get(thread or 0)
    if frame is None:
        return ""
    calls = traceback.extract_stack(frame)[-FRAMES_SHOWN:]
    return " > ".join(f"{each.name} ({basename(each.filename)}:{each.lineno})" for each in calls)
