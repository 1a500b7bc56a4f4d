"""A task as the value of a record, and how it ended as the result of a job: JSON, readable by any client."""

from typing import Any, Self

import msgspec


class Payload(msgspec.Struct, frozen=True):
    """The task, its arguments, and after how many failures it ends."""

    task: str  #: dotted path
    args: list[Any]
    kwargs: dict[str, Any]
    attempts_max: int = 1

    @classmethod
    def of(cls, value: bytes) -> Self:
        """Decode the value of a record. Raises ValueError."""
        return msgspec.json.decode(value, type=cls)


class Ended(msgspec.Struct, frozen=True):
    """What a worker keeps of a task that succeeded; times are seconds since 1970."""

    value: Any
    started: float
    finished: float
    workers: list[str]
