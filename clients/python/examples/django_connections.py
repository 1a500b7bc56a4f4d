"""Middleware for handlers that use the database of Django. Needs django and a node."""

from django.db import close_old_connections

from gossipq_client import Message, connect
from gossipq_client.middleware import Middleware


class CloseOldConnections(Middleware):
    """Django closes stale database connections around requests. This does it around messages."""

    def before(self, message: Message) -> None:
        close_old_connections()

    def after(self, message: Message, result: object) -> None:
        close_old_connections()

    def error(self, message: Message, error: BaseException) -> None:
        close_old_connections()


mq = connect()
mq.add_middleware(CloseOldConnections())
