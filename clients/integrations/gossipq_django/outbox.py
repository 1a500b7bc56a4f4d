"""An outbox in transactions of Django's ORM."""

from typing import Any, Unpack

from django.db import connections

from gossipq_client.values import PublishOptions
from gossipq_outbox import Outbox, Relay


def publish(topic: str, value: Any, *, using: str = "default", **options: Unpack[PublishOptions]) -> str:
    """Insert a record, to be published once the transaction of database `using` has committed.

    Options are those of `gossipq_outbox.Outbox.publish`, and so are the errors. Returns the record's id.
    """
    return Outbox().publish(connections[using], topic, value, **options)


def relay(mq: Any, *, using: str = "default", **options: Any) -> Relay:
    """Return a relay of database `using`, over a connection of its own; options are those of `Relay`."""
    wrapper = connections[using]

    def connect() -> Any:
        parameters = wrapper.get_connection_params()
        if wrapper.vendor == "sqlite":
            parameters["check_same_thread"] = False  # the thread of a relay is not the one that ends it
        return wrapper.get_new_connection(parameters)

    return Relay(mq, connect, **options)
