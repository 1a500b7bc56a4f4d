"""The spool keeps records on disk (LMDB), in order, from before they are sent until
they are confirmed. One client at a time uses it. No other module imports lmdb; clients
without a spool do not need it.
"""

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from typing import Any, ClassVar, Protocol

import msgspec

from gossipq.clock import SystemClock
from gossipq.errors import (
    Backpressure,
    ClientClosed,
    ConfigError,
    ForkedClient,
    GossipqError,
    NotConfirmed,
    StoreError,
)
from gossipq_client.values import Spooled

BYTES_MAX = 2**30  #: default size of a spool
PAGE_ROWS = 1_000  #: rows that one transaction reads
KEY_BYTES = 8
UNUSED = 0  #: no row has this number
LOCK_BYTES = 8_192  #: size of LMDB's lock file with its default number of readers
COMMITS_TO_REUSE = 2  #: LMDB reuses freed pages in the second commit after they were freed

log = logging.getLogger("gossipq_client")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Spooled).decode


class Sent(Protocol):
    """A batch that is being sent."""

    done: bool
    error: Any


def _key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


class Spool:
    """Rows by number, in the order in which they were published.

    When `put` returns, its records are on the disk: they survive the process and the machine.
    The next write removes confirmed records. After a crash they are sent once more, and the
    cluster recognizes their ids.

    A spool can be closed at any moment, even by another thread or by a signal handler that
    interrupts it. Its current operation is finished first.
    """

    alive: ClassVar["weakref.WeakSet[Spool]"] = weakref.WeakSet()

    def __init__(self, directory: str | os.PathLike[str], bytes_max: int = BYTES_MAX) -> None:
        """Creates the directory if it does not exist. Raises ConfigError if that fails, if another
        client has the directory, if its contents are no spool, or if lmdb is not installed.
        """
        self._over = self._forked = False
        self._rests = True  #: the spool is not open
        self.directory, self._bytes_max = os.fspath(directory), bytes_max
        self.now = SystemClock().now
        self._lock = threading.RLock()
        self._works = 0  #: nesting depth of operations in the thread that holds the lock
        self._begin()
        Spool.alive.add(self)

    def _begin(self) -> None:
        """Raises ConfigError."""
        try:
            os.makedirs(self.directory, exist_ok=True)
            _reserve(self.directory)
            self._owner = _own(self.directory)
        except OSError as error:
            raise ConfigError(f"no spool can be in {self.directory!r}: {error.strerror}") from None
        try:
            self._rows = _open(self.directory, self._bytes_max, readonly=False)
        except BaseException:
            self._owner.close()
            raise
        self._rests = False
        self._next = 1  #: number of the next row, unless the disk has it already
        self._sent = 0  #: rows up to this one are being sent, or done
        self._under_way: deque[tuple[Sequence[int], list[Sent], bool]] = deque()
        #: confirmed or dropped rows, which the next write removes from the disk
        self._gone: set[int] = set()

    def check(self) -> None:
        """Raises ClientClosed. It does so before it takes the lock, which another thread of
        the parent may have held.
        """
        if self._forked:
            raise ForkedClient(
                "this spool belongs to the parent process", hint="call connect() again in the child"
            )

    @contextmanager
    def _work(self) -> Iterator[None]:
        """Keeps the spool open during an operation. Raises ClientClosed, or
        ConfigError if another client took the spool while this one did not need it.
        """
        self.check()
        with self._lock:
            if self._over:
                raise ClientClosed("this client is closed", hint="call connect() again")
            if self._rests:
                self._begin()
            self._works += 1
            try:
                yield
            finally:
                self._works -= 1
                if self._over and not self._works:
                    self._end()

    def put(self, rows: Sequence[Spooled]) -> range:
        """Stores rows with one sync and returns their numbers. Raises Backpressure if the spool is
        full, or StoreError if the disk refuses; then none of the rows is stored.
        """
        import lmdb

        try:
            with self._work():
                self.sweep()
                try:
                    return self._write(rows)
                except lmdb.Error:  # the spool is full, or its disk
                    if not self._gone:
                        raise
                self._make_room()
                return self._write(rows)
        except lmdb.MapFullError:
            raise Backpressure(
                f"the spool in {self.directory} is full",
                hint="it empties when a node answers; gossipq status",
            ) from None
        except lmdb.Error as error:
            raise StoreError(f"the spool in {self.directory} takes nothing: {error}") from None

    def _write(self, rows: Sequence[Spooled]) -> range:
        """Takes numbers that the disk does not have: an interrupt may have come between a
        commit and the note of it.
        """
        with self._rows.begin(write=True) as writing:
            with writing.cursor() as cursor:
                last = int.from_bytes(cursor.key(), "big") if cursor.last() else 0
            numbers = range(first := max(self._next, last + 1), first + len(rows))
            self._delete(writing)
            for number, row in zip(numbers, rows, strict=True):
                writing.put(_key(number), _encode(row), append=True)
        self._next = numbers.stop
        self._gone.clear()
        return numbers

    def _make_room(self) -> None:
        """Removes finished rows and makes their pages usable at once."""
        self._write(())
        for _ in range(COMMITS_TO_REUSE):
            with self._rows.begin(write=True) as writing:
                writing.put(_key(UNUSED), b"")
                writing.delete(_key(UNUSED))

    def unsent(self) -> Iterator[tuple[int, Spooled]]:
        """Rows that are not being sent, in order; report each one with `sent`."""
        first = self._sent + 1
        while True:
            with self._work():
                page = list(read(self._rows, first, PAGE_ROWS))
            if not page:
                return
            yield from (each for each in page if each[0] not in self._gone)
            first = page[-1][0] + 1

    def sent(self, numbers: Sequence[int], flights: Iterable[Sent], heard: bool = True) -> None:
        """These rows are being sent together; without flights they are not sent in this run.
        `heard`: their publisher learns the result.
        """
        self._sent = max(self._sent, numbers[-1])
        if found := list(flights):
            self._under_way.append((numbers, found, heard))

    def drop(self, numbers: Iterable[int]) -> None:
        """Drops rows. Earlier rows may still have to be sent."""
        self._gone.update(numbers)

    def part_sent(self, numbers: range, places: Sequence[int], flights: Iterable[Sent]) -> None:
        """Of rows that were to be sent together, only those at `places`
        are; the others are dropped.
        """
        kept = [numbers[at] for at in places]
        self.drop(set(numbers).difference(kept))
        if kept:
            self.sent(kept, flights)

    def sweep(self) -> None:
        """Notes rows whose fate is certain: they were confirmed, or refused and their publisher was
        told. Rows in doubt stay for the next run, and so do refused ones whose publisher was gone.
        """
        waiting = self._under_way
        while waiting and all(flight.done for flight in waiting[0][1]):
            numbers, flights, heard = waiting.popleft()
            errors = [flight.error for flight in flights if flight.error is not None]
            if not errors or (heard and all(error.code != NotConfirmed.code for error in errors)):
                self._gone.update(numbers)
            elif not heard:
                self.stays(numbers[0], errors[0])

    def stays(self, number: int, error: GossipqError) -> None:
        """A row of an earlier publish was refused; the next run tries it again."""
        log.error("spool %s: record %s stays: %s", self.directory, number, error)

    def __len__(self) -> int:
        with self._work():
            return int(self._rows.stat()["entries"]) - len(self._gone)

    def _delete(self, writing: Any) -> None:
        for number in sorted(self._gone):
            writing.delete(_key(number))

    def rest(self) -> None:
        """Lets other clients have the spool until it is used again. Unfinished rows stay in it."""
        with self._lock:
            if not (self._forked or self._over or self._rests or self._works):
                self._end()
                self._rests = True

    def close(self) -> None:
        """Closes the spool; a second call is harmless. A running operation is finished first. If a
        signal handler calls this, the spool is closed after the interrupted operation.
        """
        if self._forked:
            return
        with self._lock:
            if self._over:
                return
            self._over = True
            if not (self._works or self._rests):
                self._end()

    def reopen(self) -> None:
        """Opens the spool again after `close`."""
        with self._lock:
            if self._over and not self._works:
                self._over, self._rests = False, True

    def _end(self) -> None:
        import lmdb

        try:
            self.sweep()
            with self._rows.begin(write=True) as writing:
                self._delete(writing)
        except lmdb.Error as error:
            log.warning("spool %s: what is confirmed goes once more: %s", self.directory, error)
        finally:
            self._rows.close()
            _disown(self._owner)

    def forget(self) -> None:
        """In a child process: leaves the spool to the parent."""
        self._forked = True
        if not (self._over or self._rests):
            self._owner.close()

    def __del__(self) -> None:
        """The client was not closed: the records stay, and the next client may have the spool."""
        if not (self._forked or self._over or self._rests):
            _disown(self._owner)


def _reserve(directory: str) -> None:
    """Fills LMDB's lock file. LMDB writes into a mapping of it, and the kernel would kill the
    program if the disk had no space for it. Raises OSError.
    """
    if hasattr(os, "posix_fallocate"):
        path = os.path.join(directory, "lock.mdb")
        with FileIO(path, "r+", opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o600)) as file:
            os.posix_fallocate(file.fileno(), 0, LOCK_BYTES)


def _own(directory: str) -> FileIO:
    """Opens a file that locks the directory until its process ends. Raises ConfigError. A file
    object is used because an interrupt could lose a bare descriptor number.
    """
    held = FileIO(os.path.join(directory, "owner"), "ab", opener=lambda path, how: os.open(path, how, 0o600))
    try:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass  # not POSIX: there is no lock
    except OSError:
        held.close()
        raise ConfigError(
            f"the spool in {directory} is that of another client",
            hint="each client has a directory of its own",
        ) from None
    return held


def _disown(held: FileIO) -> None:
    """Unlocks for all processes: a child that was started without Python's knowledge may have
    a copy of the descriptor.
    """
    try:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_UN)
    except ImportError:
        pass
    held.close()


def _open(directory: str, bytes_max: int, readonly: bool) -> Any:
    try:
        import lmdb
    except ImportError:
        raise ConfigError("a spool needs lmdb", hint='pip install "gossipq[spool]"') from None
    try:
        return lmdb.open(directory, map_size=bytes_max, readonly=readonly, max_spare_txns=1)
    except lmdb.Error as error:
        raise ConfigError(f"no spool can be in {directory!r}: {error}") from None


def read(rows: Any, first: int, count: int) -> Iterator[tuple[int, Spooled]]:
    """At most `count` rows, beginning with number `first`."""
    with rows.begin() as reading, reading.cursor() as cursor:
        found = cursor.set_range(_key(first))
        while found and count:
            yield int.from_bytes(cursor.key(), "big"), _decode(cursor.value())
            found, count = cursor.next(), count - 1


def show(directory: str) -> list[tuple[int, Spooled]]:
    """Reads all rows of a spool, even while a client has it; it may include rows that were just
    confirmed. Raises ConfigError if there is no spool.
    """
    if not os.path.exists(os.path.join(directory, "data.mdb")):
        raise ConfigError(f"there is no spool in {directory}", hint="connect(spool=DIR) makes one")
    rows = _open(directory, BYTES_MAX, readonly=True)
    try:
        return list(read(rows, 0, int(rows.stat()["entries"])))
    finally:
        rows.close()


def _in_child() -> None:
    for spool in list(Spool.alive):
        spool.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
