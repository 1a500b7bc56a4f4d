"""Requests that wait for entries: by index, the requester and the function for its answer.

Each shard has one. Only a leader's contains anything.
"""

from collections.abc import Callable

from gossipq.core.desk.request import NOBODY, Asker
from gossipq.core.ledger import Outcome
from gossipq.types import Index, Origin

Then = Callable[[Asker, Index, Outcome], None]


class Pending:
    def __init__(self) -> None:
        self._waiting: dict[Index, list[tuple[Asker, Then]]] = {}
        #: requests that are confirmed when a PUBLISH is stored: the most frequent kind, answered in bulk
        self.publishes: dict[Index, Asker] = {}

    def add(self, index: Index, then: Then, asker: Asker = NOBODY) -> None:
        """Call `then` with requester, index and outcome when entry `index` is applied and
        stored.
        """
        self._waiting.setdefault(index, []).append((asker, then))

    def resolve(self, index: Index, outcome: Outcome) -> None:
        """Answer the requests of an entry that is applied and stored."""
        for asker, then in self._waiting.pop(index, ()):
            then(asker, index, outcome)

    def abandon(self) -> list[tuple[Origin, int]]:
        """Drop all requests, because this copy lost leadership. Returns each request once."""
        waiting = [(index, asker) for index, askers in self._waiting.items() for asker, _ in askers]
        waiting += self.publishes.items()
        self._waiting.clear()
        self.publishes.clear()
        in_order = sorted((index, asker.origin, asker.request_id) for index, asker in waiting)
        return [*dict.fromkeys((origin, request_id) for _, origin, request_id in in_order if origin)]
