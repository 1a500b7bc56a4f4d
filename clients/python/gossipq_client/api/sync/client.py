"""The sync client: its I/O happens inline in the calling thread, under one lock; a keeper thread fills the
pauses."""

import math
from collections.abc import Iterable
from inspect import signature
from typing import Any, Self, Unpack

from gossipq.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from gossipq_client.api.sync.facade import Facade
from gossipq_client.handlers import shows
from gossipq_client.io import ConnectOptions, Engine, connecting
from gossipq_client.session import Flight, PendingReceipt, PendingRecord
from gossipq_client.values import UNSET, CheckedCodec, PublishOptions, inputs


class Client(Facade):
    """A connection to a cluster. Safe to share between threads; not across fork. Use `connect` to make
    one."""

    _steps: Engine  #: `_engine` once it is made: for `post`, where the look-up of a descriptor counts

    def __init__(
        self,
        addresses: list[str],
        name: str,
        timeout: float,
        key: bytes = b"",
        codec: CheckedCodec | None = None,
    ) -> None:
        super().__init__(addresses, name, timeout, key, codec)
        self._plain: dict[str, Flight] = {}

    def _made(self, engine: Engine) -> None:
        self._steps = engine
        if self._direct:
            self._plain = engine.session.publishing.plain

    def __enter__(self) -> Self:
        """Connects, and sends what its spool has; a client that was closed connects again. Raises Unreachable
        when no node answers in time."""
        self._reopen()
        try:
            self._open()
            with self._spooling:
                self._send_spooled()
        except BaseException:
            self._give_up(self.__dict__.get("_engine"))
            raise
        return self

    def ready(self, timeout: inputs.Timeout = UNSET) -> Self:
        """Connect, send what the spool holds, and return this client once a node answers.

        `timeout` is in seconds, or "5s"; without it the client's timeout, None: for ever. Raises Unreachable
        when it is over, and ClientClosed.
        """
        seconds = self._seconds(timeout)
        self._open(math.inf if seconds is None else seconds)
        with self._spooling:
            self._send_spooled()
        return self

    def _look_at_each(self) -> None:
        super()._look_at_each()
        self._plain = {}  # nothing passes by the checks

    def post(self, topic: str, value: Any, **options: Unpack[PublishOptions]) -> PendingReceipt:
        if type(value) is bytes and (not options or _asks_nothing(options)):
            added = len(value)
            with self._lock:
                flight = self._plain.get(topic)
                # from here to `append` nothing is called, so that no signal handler can come between
                if flight is not None:
                    values, index, size = flight.values, flight.count, flight.size + added
                    room = size < BATCH_BYTES_MAX and index < BATCH_RECORDS_MAX - 1
                    if values is not None and room and not self._steps.busy:
                        flight.count, flight.size = index + 1, size
                        values.append(value)
                        return PendingRecord(self, flight, index)
        return super().post(topic, value, **options)

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
    client = Client([], asked.name, asked.timeout_s, codec=asked.codec)
    client._where = asked.where
    if asked.spool is not None:
        client._use_spool(asked.spool)
    if asked.wait_s is not None:
        client._open(asked.wait_s)
    return client
