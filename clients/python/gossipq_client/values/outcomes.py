"""How the work on a record ended, and what the broker is told of it."""

from typing import NamedTuple

from gossipq import limits
from gossipq_client.values import inputs

BACKOFF = -1  #: the pause before the next attempt is that of the policy


class Retry(Exception):
    """Raised by who works on a record: it failed, and comes again after `delay`, in seconds or as "5m"
    (default: as the backoff policy says)."""

    def __init__(self, delay: inputs.Duration | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.delay_ms, self.reason = delay_ms(delay), reason


class Reject(Exception):
    """Raised by who works on a record: no further attempt, it becomes a dead letter."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class TimeLimitExceeded(Exception):
    """A handler took longer than its `time_limit`: the message has failed."""

    told = False  #: while the handler goes on, to the broker, the log and who asked


class Undecodable(Reject):
    """The value is not what the handler's annotation says, or the headers are none."""


class Outcome(NamedTuple):
    """A NACK in the making. `failed` counts; a `dead` record gets no further attempt."""

    failed: bool = False
    delay_ms: int = 0
    reason: str = ""
    dead: str = ""


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
    """What an exception says of the record. One that is no Exception ends the program, not the record."""
    match error:
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


def shortened(text: str) -> str:
    """What a node keeps of a reason."""
    raw = text.encode(errors="replace")
    return raw[: limits.ERROR_BYTES_MAX].decode(errors="ignore")
