"""The sync client: its I/O happens inline in the calling thread, under one lock; a keeper thread fills the
pauses."""

from collections.abc import Iterable
from inspect import signature
from typing import Any, Unpack

from gossipq.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from gossipq_client.api.sync.facade import Facade
from gossipq_client.handlers import shows
from gossipq_client.io import ConnectOptions, connecting
from gossipq_client.session import PendingReceipt, PendingRecord
from gossipq_client.values import PublishOptions


class Client(Facade):
    """A connection to a cluster. Safe to share between threads; not across fork. Use `connect` to make
    one."""

    def post(self, topic: str, value: Any, **options: Unpack[PublishOptions]) -> PendingReceipt:
        if type(value) is bytes and (not options or _asks_nothing(options)):
            added = len(value)
            driver = self._driver
            with driver.lock:
                flight = driver.plain.get(topic)
                # from here to `append` nothing is called, so that no signal handler can come between
                if flight is not None:
                    values, index, size = flight.values, flight.count, flight.size + added
                    room = size < BATCH_BYTES_MAX and index < BATCH_RECORDS_MAX - 1
                    if values is not None and room and not driver.steps.busy:
                        flight.count, flight.size = index + 1, size
                        values.append(value)
                        return PendingRecord(driver, flight, index)
        return self._publisher.post(topic, value, options)

    post.__doc__ = Facade.post.__doc__
    post.__signature__ = signature(Facade.post)  # type: ignore[attr-defined]


def _asks_nothing(options: PublishOptions) -> bool:
    """Whether they are what holds without them; who joins an open batch waits for no room."""
    wait = options.get("wait")
    patient = type(wait) in (float, int) and wait >= 0  # type: ignore[operator]
    return list(options.values()).count(None) + patient == len(options)


@shows(connecting, ConnectOptions)
def connect(*addresses: str | Iterable[str], **options: Unpack[ConnectOptions]) -> Client:
    """A client of the cluster behind these addresses: tcp://HOST:PORT, HOST:PORT, or the name of a context
    (`gossipq context save`). None: $GOSSIPQ_SERVER, else the context in use, else tcp://127.0.0.1:7700.

    It connects when it is used first, or in `with`: a module may make it and register handlers without a
    node. A `with` may be entered again: the client connects anew, with its handlers. Addresses are looked up
    each time that it connects. Raises Unreachable when no node answers within `wait`, ConfigError for a name
    that is no context, and for a spool that another client has.

    A closed cluster asks who this is: see `credentials` and `insecure`.
    """
    asked = connecting(addresses, **options)
    client = Client(asked)
    if asked.wait_s is not None:
        client._driver.connect(asked.wait_s)
    return client
