"""Who waits for entries: for each index, who asked and what the outcome becomes for them. One for each shard;
only a leader has anything in it."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from gossipq.types import Index, Origin

Outcome = TypeVar("Outcome")

NOBODY: Origin = ()


class Requester(NamedTuple):
    """A request. Nobody: something is to be done, and nobody is to be answered."""

    origin: Origin
    request_id: int


Then = Callable[[Requester, Index, Outcome], None]


class Pending(Generic[Outcome]):
    def __init__(self) -> None:
        self._waiting: dict[Index, list[tuple[Requester, Then[Outcome]]]] = {}

    def add(self, index: Index, then: Then[Outcome], origin: Origin = NOBODY, request_id: int = 0) -> None:
        """When entry `index` is applied and stored, `then` is called with the asker, the index and the
        outcome."""
        self._waiting.setdefault(index, []).append((Requester(origin, request_id), then))

    def resolve(self, index: Index, outcome: Outcome) -> None:
        """The entry is applied, and that is stored."""
        for asker, then in self._waiting.pop(index, ()):
            then(asker, index, outcome)

    def abandon(self) -> list[tuple[Origin, int]]:
        """This copy does not lead any more: nothing will be resolved. Returns who must hear that, each
        request once."""
        askers = dict.fromkeys(asker for waiting in self._waiting.values() for asker, _ in waiting)
        self._waiting.clear()
        return [(asker.origin, asker.request_id) for asker in askers if asker.origin]
