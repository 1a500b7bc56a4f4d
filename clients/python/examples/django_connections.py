"""Middleware for handlers that use the database of Django. Needs django and a node."""

from django.db import close_old_connections

import gossipq


class CloseOldConnections(gossipq.Middleware):
    """Django closes stale database connections around requests. This does it around messages."""

    def before(self, message: gossipq.Message) -> None:
        close_old_connections()

    def after(self, message: gossipq.Message, result: object) -> None:
        close_old_connections()

    def error(self, message: gossipq.Message, error: BaseException) -> None:
        close_old_connections()


mq = gossipq.connect()
mq.add_middleware(CloseOldConnections())
