"""The workers of one handler: where they get records, and how many of them are blocked."""

from gossipq_client.handlers.lanes import Lanes
from gossipq_client.handlers.registry import Handler
from gossipq_client.io import Engine
from gossipq_client.session import Record


class Crew:
    """The workers of one handler, and the subscription whose records they share."""

    def __init__(self, engine: Engine, handler: Handler, stop_at_end: bool) -> None:
        self.handler = handler
        subscription = engine.subscribe(handler.asked, stop_at_end)
        subscription.has_handler = True
        self.lanes = Lanes(engine.session.consuming, subscription)
        #: records whose handlers exceeded their time limit and still run, each blocking a worker
        self.overdue: list[Record] = []
