"""The workers of one handler: what they take from, and how many of them are held up."""

import threading

from gossipq_client.handlers.lanes import Lanes
from gossipq_client.handlers.registry import Handler
from gossipq_client.io import Engine


class Crew:
    """The workers of one handler, and the subscription whose records they share."""

    def __init__(self, engine: Engine, handler: Handler, stop_at_end: bool) -> None:
        self.handler = handler
        self.lanes = Lanes(engine.session.consuming, engine.subscribe(handler.asked, stop_at_end))
        self.overdue = 0  #: workers whose handler goes on beyond its time limit
        self._gate = threading.Lock()

    def hold_up(self, workers: int) -> None:
        """So many more are held up by such a handler. From any thread."""
        with self._gate:
            self.overdue += workers
