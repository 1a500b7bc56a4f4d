"""Requests that wait for entries: by index, the requester and the function for its answer.

Each shard has one. Only a leader's contains anything.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from gossipq.types import Index, Origin

Outcome = TypeVar("Outcome")

NOBODY: Origin = ()


class Requester(NamedTuple):
    """A request. NOBODY stands for work that nobody waits for."""

    origin: Origin
    request_id: int


Then = Callable[[Requester, Index, Outcome], None]


class Pending(Generic[Outcome]):
    def __init__(self) -> None:
        self._waiting: dict[Index, list[tuple[Requester, Then[Outcome]]]] = {}
        #: who is confirmed when a PUBLISH is stored: the most frequent request, answered in bulk
        self.publishes: dict[Index, tuple[Origin, int]] = {}

    def add(self, index: Index, then: Then[Outcome], origin: Origin = NOBODY, request_id: int = 0) -> None:
        """Call `then` with requester, index and outcome when entry `index` is applied and
        stored.
        """
        self._waiting.setdefault(index, []).append((Requester(origin, request_id), then))

    def resolve(self, index: Index, outcome: Outcome) -> None:
        """Answer the requests of an entry that is applied and stored."""
        for asker, then in self._waiting.pop(index, ()):
            then(asker, index, outcome)

    def abandon(self) -> list[tuple[Origin, int]]:
        """Drop all requests, because this copy lost leadership. Returns each request once."""
        waiting = [(index, asker) for index, askers in self._waiting.items() for asker, _ in askers]
        waiting += [(index, Requester(*asker)) for index, asker in self.publishes.items()]
        self._waiting.clear()
        self.publishes.clear()
        askers = dict.fromkeys(asker for _, asker in sorted(waiting))
        return [(asker.origin, asker.request_id) for asker in askers if asker.origin]
