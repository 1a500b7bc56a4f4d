"""How a handler ended, and the answer to the broker."""

from typing import NamedTuple

from gossipq import limits
from gossipq_client.values import inputs

FRAMES_SHOWN = 5  #: of a traceback, the innermost ones
BACKOFF = -1  #: use the policy's pause before the next attempt


class Retry(Exception):
    """A handler raises this to fail a record and have it redelivered after `delay`, in seconds or
    as "5m" (default: the pause of the backoff policy).
    """

    def __init__(self, delay: inputs.Duration | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.delay_ms, self.reason = delay_ms(delay), reason


class RetryFlow(Retry):
    """A handler raises this when the whole flow of a record must wait for `after`, in seconds or as "5m": a
    service answered 429, for example. The record is redelivered then, and no other record of its flow before.
    No failure is counted. In a group of another order than "fair", only the record itself waits.
    """

    def __init__(self, after: inputs.Duration, reason: str = "") -> None:
        super().__init__(reason=reason)
        self.delay_ms = inputs.duration_ms(after, "after", 1, limits.DELAY_MS_MAX)


class Reject(Exception):
    """A handler raises this to end the attempts: the record becomes a dead letter."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class TimeLimitExceeded(Exception):
    """A handler took longer than its `time_limit`: the message has failed."""

    #: True once the broker, the log and the requester know it, while the handler still runs
    told = False


class Undecodable(Reject):
    """The value does not match the handler's annotation, or the headers cannot be read."""


class Outcome(NamedTuple):
    """The contents of a NACK. `failed` counts as a failure; a `dead`
    record gets no further attempt. With `pause_flow` its whole flow waits.
    """

    failed: bool = False
    delay_ms: int = 0
    reason: str = ""
    dead: str = ""
    pause_flow: bool = False


GIVEN_BACK = Outcome()


def delay_ms(delay: inputs.Duration | None) -> int:
    """Raises BadRequest."""
    return BACKOFF if delay is None else inputs.duration_ms(delay, "delay", 0, limits.DELAY_MS_MAX)


def failed(delay: inputs.Duration | None, reason: str) -> Outcome:
    """Raises BadRequest."""
    return Outcome(True, delay_ms(delay), shortened(reason))


def rejected(reason: str, dead: str = "rejected") -> Outcome:
    return Outcome(True, BACKOFF, shortened(reason), dead)


def of(error: BaseException) -> Outcome:
    """The outcome for an exception. An exception that is not an Exception, such as SystemExit, ends
    the program and leaves the record unfinished.
    """
    match error:
        case RetryFlow():
            return Outcome(False, error.delay_ms, shortened(error.reason), "", True)
        case Retry():
            return Outcome(True, error.delay_ms, shortened(error.reason))
        case Undecodable():
            return rejected(error.reason, "undecodable")
        case Reject():
            return rejected(error.reason)
        case Exception():
            return Outcome(True, BACKOFF, shortened(f"{type(error).__name__}: {error}"))
        case _:
            return GIVEN_BACK


def traced(outcome: Outcome, error: BaseException) -> Outcome:
    """Return the same outcome, with a short traceback behind the reason."""
    if isinstance(error, Retry | Reject) or not isinstance(error, Exception):
        return outcome
    lines, at = list[str](), error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        lines.append(f"  {code.co_filename}:{at.tb_lineno} in {code.co_name}")
        at = at.tb_next
    return outcome._replace(reason=shortened("\n".join([outcome.reason, *lines[-FRAMES_SHOWN:]])))


def shortened(text: str) -> str:
    """Shortens a reason to the length that a node keeps."""
    raw = text.encode(errors="replace")
    return raw[: limits.ERROR_BYTES_MAX].decode(errors="ignore")
