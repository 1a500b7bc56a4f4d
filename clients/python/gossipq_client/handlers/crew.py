"""The workers of one handler: where they get records, and which of them are stuck."""

from typing import Any

from gossipq_client.handlers.lanes import Item, Lanes
from gossipq_client.handlers.registry import Handler
from gossipq_client.io import Engine
from gossipq_client.session import Record

#: number of stuck workers of a handler that get a replacement; for more workers, their number
STUCK_MAX = 10
#: seconds that the end of a run waits for stuck workers
STUCK_END_S = 5.0


class Crew:
    """The workers of one handler, and the subscription whose records they share."""

    def __init__(self, engine: Engine, handler: Handler, stop_at_end: bool) -> None:
        self.handler = handler
        subscription = engine.subscribe(handler.asked, stop_at_end)
        subscription.has_handler = True
        self.lanes = Lanes(engine.session.consuming, subscription)
        #: workers (threads or tasks) whose handlers run beyond their time limit, with their records
        self.stuck: dict[Any, Record] = {}
        #: workers that end themselves: a stuck one has returned, and another has its place
        self.surplus = 0
        #: records whose keys became free before their handlers ended
        self._freed: set[Item] = set()

    @property
    def can_replace(self) -> bool:
        """True if another worker may take the place of the one that got stuck last."""
        return len(self.stuck) <= max(STUCK_MAX, self.handler.workers)

    def settled(self, item: Item) -> None:
        """The handler of a record has ended: the next record of its key may begin."""
        if item in self._freed:
            self._freed.remove(item)
        else:
            self.lanes.done(*item)

    def expired(self, item: Item) -> None:
        """A record has failed while its handler runs: the next record of its key may begin."""
        self._freed.add(item)
        self.lanes.done(*item)

    def leave(self) -> bool:
        """True for a worker that has to end because another has its place."""
        if not self.surplus:
            return False
        self.surplus -= 1
        return True
