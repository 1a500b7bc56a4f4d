"""The workers of one handler: what they take from, and how many of them are held up."""

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
        self.overdue: list[Record] = []  #: whose handlers go on beyond their time limit, each with a worker
