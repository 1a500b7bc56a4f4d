"""The spool: records on disk (LMDB) from before they are sent until they are confirmed, in order, for one
client at a time. The only importer of lmdb here; clients without a spool do without it."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from gossipq.clock import SystemClock
from gossipq.errors import Backpressure, ConfigError
from gossipq_client.values import Spooled

BYTES_MAX = 2**30  #: of a spool, unless it is said otherwise
PAGE_ROWS = 1_000  #: read in one transaction
KEY_BYTES = 8

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Spooled).decode


class Sent(Protocol):
    """A batch on its way."""

    done: bool
    error: Any


def _key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


class Spool:
    """Rows by number, in the order in which they were published.

    What is put is on the disk when `put` returns: it outlives the process and the machine. What is confirmed
    goes with the next write: after a crash it is sent once more, and the cluster knows it by its id.
    """

    def __init__(self, directory: str | os.PathLike[str], bytes_max: int = BYTES_MAX) -> None:
        """Makes the directory when it is not there. Raises ConfigError when another client has it, or lmdb is
        not installed."""
        self.directory = os.fspath(directory)
        os.makedirs(self.directory, exist_ok=True)
        self._owner = _own(self.directory)
        try:
            self._rows = _open(self.directory, bytes_max, readonly=False)
        except BaseException:
            os.close(self._owner)
            raise
        with self._rows.begin() as reading, reading.cursor() as cursor:
            self._next = int.from_bytes(cursor.key(), "big") + 1 if cursor.last() else 1
        self.now = SystemClock().now
        self._sent = 0  #: rows up to this one are under way, or done
        self._under_way: deque[tuple[range, list[Sent]]] = deque()
        self._gone: list[int] = []  #: confirmed, and on the disk until the next write

    def put(self, rows: Sequence[Spooled]) -> range:
        """Their numbers, once all are on the disk, by one sync. Raises Backpressure when the spool is full:
        then none of them is in it."""
        import lmdb

        self.sweep()
        numbers = range(self._next, self._next + len(rows))
        try:
            with self._rows.begin(write=True) as writing:
                self._delete(writing)
                for number, row in zip(numbers, rows, strict=True):
                    writing.put(_key(number), _encode(row), append=True)
        except lmdb.MapFullError:
            raise Backpressure(
                f"the spool in {self.directory} is full",
                hint="it empties when a node answers; gossipq status",
            ) from None
        self._gone.clear()
        self._next = numbers.stop
        return numbers

    def unsent(self) -> Iterator[tuple[int, Spooled]]:
        """Rows that are not under way, in order; tell of each by `sent`."""
        first = self._sent + 1
        while page := list(read(self._rows, first, PAGE_ROWS)):
            yield from page
            first = page[-1][0] + 1

    def sent(self, numbers: range, flights: Iterable[Sent]) -> None:
        """Rows are under way together; with no flights they are not sent in this run."""
        self._sent = max(self._sent, numbers.stop - 1)
        if found := list(flights):
            self._under_way.append((numbers, found))

    def drop(self, numbers: range) -> None:
        """Rows are not wanted any more."""
        self._sent = max(self._sent, numbers.stop - 1)
        self._gone += numbers

    def sweep(self) -> None:
        """Notes what is certain by now: confirmed, or refused, which its publisher was told. What ended in
        doubt stays for the next run."""
        waiting = self._under_way
        while waiting and all(flight.done for flight in waiting[0][1]):
            numbers, flights = waiting.popleft()
            if all(flight.error is None or flight.error.code != "not_confirmed" for flight in flights):
                self._gone += numbers

    def __len__(self) -> int:
        return int(self._rows.stat()["entries"]) - len(self._gone)

    def _delete(self, writing: Any) -> None:
        for number in self._gone:
            writing.delete(_key(number))

    def close(self) -> None:
        """Done twice it does no harm."""
        if self._owner < 0:
            return
        self.sweep()
        with self._rows.begin(write=True) as writing:
            self._delete(writing)
        self._rows.close()
        os.close(self._owner)
        self._owner = -1


def _own(directory: str) -> int:
    """A descriptor that holds the directory, until its process ends. Raises ConfigError."""
    held = os.open(os.path.join(directory, "owner"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass  # not POSIX: nobody looks
    except OSError:
        os.close(held)
        raise ConfigError(
            f"the spool in {directory} is that of another client",
            hint="each client has a directory of its own",
        ) from None
    return held


def _open(directory: str, bytes_max: int, readonly: bool) -> Any:
    try:
        import lmdb
    except ImportError:
        raise ConfigError("a spool needs lmdb", hint='pip install "gossipq[spool]"') from None
    return lmdb.open(directory, map_size=bytes_max, readonly=readonly, max_spare_txns=1)


def read(rows: Any, first: int, count: int) -> Iterator[tuple[int, Spooled]]:
    """At most `count` rows from number `first` on."""
    with rows.begin() as reading, reading.cursor() as cursor:
        found = cursor.set_range(_key(first))
        while found and count:
            yield int.from_bytes(cursor.key(), "big"), _decode(cursor.value())
            found, count = cursor.next(), count - 1


def show(directory: str) -> list[tuple[int, Spooled]]:
    """What is in a spool, also while a client has it; what was confirmed a moment ago may be there still.
    Raises ConfigError when there is none."""
    if not os.path.exists(os.path.join(directory, "data.mdb")):
        raise ConfigError(f"there is no spool in {directory}", hint="connect(spool=DIR) makes one")
    rows = _open(directory, BYTES_MAX, readonly=True)
    try:
        return list(read(rows, 0, int(rows.stat()["entries"])))
    finally:
        rows.close()
