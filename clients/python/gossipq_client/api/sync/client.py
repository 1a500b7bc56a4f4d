"""The sync client: its I/O happens inline in the calling thread, under one lock; a keeper thread fills the
pauses."""

from collections.abc import Iterable
from typing import Any, Unpack

from gossipq.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from gossipq_client.api.sync.facade import Facade
from gossipq_client.io import ConnectOptions, connecting
from gossipq_client.session import PendingReceipt
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
                        return PendingReceipt(driver, flight, index)
        return self._publisher.post(topic, value, options)

    post.__doc__ = Facade.post.__doc__


def _asks_nothing(options: PublishOptions) -> bool:
    """Whether they are what holds without them; who joins an open batch waits for no room."""
    wait = options.get("wait")
    patient = type(wait) in (float, int) and wait >= 0  # type: ignore[operator]
    return list(options.values()).count(None) + patient == len(options)


def connect(*addresses: str | Iterable[str], **options: Unpack[ConnectOptions]) -> Client:
    """A client of the cluster behind these addresses: tcp://HOST:PORT, HOST:PORT, or the name of a context
    (`gossipq context save`). None: $GOSSIPQ_SERVER, else the context in use, else tcp://127.0.0.1:7700.

    It connects when it is used first, or in `with`: a module may make it and register handlers without a
    node. A `with` may be entered again: the client connects anew, with its handlers. Addresses are looked up
    each time that it connects. Raises Unreachable when no node answers within `wait`, BadRequest, and another
    ValueError for a name that is no context, and for a spool that another client has.

    A closed cluster asks who this is: see `credentials` and `insecure`.

    Durations are seconds, a timedelta, or text such as "5s". Options and their defaults:

    name="": the client's name in `gossipq status`; "" = python-PID
    timeout=10.0: how long requests wait for an answer; then they raise Unreachable
    wait=None: how long connecting waits (None = as long as requests); the sync client with `wait` connects
        at once
    spool=None: a directory. Records are on this machine's disk from before they are sent until they are
        confirmed. The next client with the same spool sends the records that are left, in order. By their
        ids the cluster recognizes records that it has (within the topic's `dedup`). Needs lmdb (pip install
        "gossipq[spool]").
    spool_bytes_max=1073741824: largest size of the spool; then publish raises Backpressure
    credentials=None: a file with the token for a closed cluster, and the key for encrypted connections to
        it. Bytes are the token itself (b"" for none). None = the file of $GOSSIPQ_CREDENTIALS, else of the
        context, else, for nodes of this machine, that of this user.
    insecure=False: send the token over the network without encryption, where others may read it
    act_for="": the user for whom this client acts, as gateways do. The client then has the rights of that
        user only. It needs the permission act_for on `*`.
    codec=None: encodes and decodes values that are neither bytes nor text (None = JSON): see `Codec`
    """
    asked = connecting(addresses, **options)
    client = Client(asked)
    if asked.wait_s is not None:
        client._driver.connect(asked.wait_s)
    return client
