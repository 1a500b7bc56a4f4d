"""The Store over LMDB: one environment with an always open write transaction, and a journal.

Each shard has three named tables. A small turn is one synced write into the journal, and
stays in the open transaction. Because that is always open, reading and writing are one code path, without a
snapshot that goes stale. LMDB commits when a turn is large or many changes have come
together. After a crash, opening the store repeats the turns in the journal that LMDB lacks.
After a clean end there is no journal.

Full sync and no write map: a commit that returned is on disk, and a full disk is an error instead
of a signal. Every LMDB error, also one of a put, becomes StoreError. By then the environment has
been opened again at the last good commit. `make_store` creates a store once. A missing store is
refused, never created again, because it would have forgotten its votes.
"""

import ctypes
import fcntl
import logging
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn
from uuid import uuid4

import lmdb
import msgspec

from gossipq import limits
from gossipq.errors import OutOfMemory, StoreError
from gossipq_node.adapters.free_pages import FreePages, lacking_bytes
from gossipq_node.adapters.journal import JOIN_OR_LOAD, JOIN_OR_LOAD_IT, JOURNAL_FILE, Journal, make_journal
from gossipq_node.ports import StoreUsage

ENGINE = 0  #: major version of the LMDB engine; other versions cannot read its files
ENGINE_NAME = "lmdb-0.9"
TABLES = ("log", "body", "state")
LOCK_FILE = "lock"
JOURNAL_TABLE = b"journal"
JOURNAL_ID = b"uuid"  #: uuid of the store's journal; no row: it ended cleanly
JOURNAL_MENDED = b"mended"  #: written when the journal could not be written
Change = tuple[Any, ...]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[list[Any]]).decode
log = logging.getLogger(__name__)
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)  # of glibc only
DATA_FILE = "data.mdb"
NEW_DATA_FILE = "data.mdb.new"
LMDB_LOCK_FILE = "lock.mdb"
LMDB_LOCK_BYTES = 8_192  #: with LMDB's default number of readers
NO_ADDRESSES = f"{OutOfMemory.HINT}; ulimit -v and node.map_bytes bound the map of a store"
AS_STORED = 0  #: keep the map size of the store
NEW_MAP_BYTES = limits.MIB  #: while a store is created; opening it sets the real size
NOT_OURS = "start as the user whose directory it is, or make it yours: chown -R USER DIR"
GONE = f"mount its disk again; if it is lost and {JOIN_OR_LOAD}"


class DirectoryLock:
    """An exclusive lock on a directory, until `release` or the end of the process.

    LMDB itself would admit a second owner.
    """

    def __init__(self, directory: Path) -> None:
        """Raises StoreError naming the holder if another process has it,
        or why it cannot be locked.
        """
        path = directory / LOCK_FILE
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(
                f"{directory} cannot be used: {error.strerror}",
                "give a directory this user can write with --data",
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.inode = os.fstat(self._fd).st_ino
            with suppress(OSError):  # a full disk: a second process is not told the holder
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise StoreError(
                f"{directory} is in use by process {holder}",
                "stop that node first, or give another directory with --data",
            ) from None
        except OSError as error:
            os.close(self._fd)
            raise StoreError(
                f"{directory} cannot be locked: {error.strerror}",
                "give a directory on another disk with --data",
            ) from None

    def release(self) -> None:
        """Safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> "DirectoryLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _NoTransaction:
    """Stands for the transaction when the environment could not be reopened.

    Each use fails, and tries to open it again.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise lmdb.Error("the environment is closed")


class LmdbTable:
    """A named table in the store's open transaction. It stays valid over commits.

    See gossipq.core.storage.tables.Table.
    """

    __slots__ = ("_db", "_store", "name")

    def __init__(self, store: "LmdbStore", name: bytes) -> None:
        self._store, self.name = store, name
        self._db: Any = None

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._store.txn.get(key, None, self._db)  # type: ignore[no-any-return]
        except lmdb.Error as error:
            self._store.fail(error)

    def put(self, key: bytes, value: bytes) -> None:
        store = self._store
        try:
            store.txn.put(key, value, True, True, False, self._db)
        except lmdb.Error as error:
            store.fail(error)
        store.changes.append((self.name, key, value))
        store.changed_bytes += len(value)

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        try:
            with self._store.txn.cursor(self._db) as cursor:
                return dict(cursor.getmulti(keys))
        except lmdb.Error as error:
            self._store.fail(error)

    def put_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        store, name, changes = self._store, self.name, self._store.changes
        try:
            if len(rows) == 1:  # half the cost of a cursor
                ((key, value),) = rows
                store.txn.put(key, value, True, True, False, self._db)
            else:
                with store.txn.cursor(self._db) as cursor:
                    cursor.putmulti(rows)
        except lmdb.Error as error:
            store.fail(error)
        for key, value in rows:
            changes.append((name, key, value))
            store.changed_bytes += len(value)

    def append_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        # a publish calls both: a function that they shared would be two more calls in each
        store, name, changes = self._store, self.name, self._store.changes
        try:
            if len(rows) == 1:
                ((key, value),) = rows
                stored = store.txn.put(key, value, True, True, True, self._db)
            else:
                with store.txn.cursor(self._db) as cursor:
                    _, stored = cursor.putmulti(rows, append=True)
        except lmdb.Error as error:
            store.fail(error)
        assert stored == len(rows), "append goes above all other keys"
        for key, value in rows:
            changes.append((name, key, value))
            store.changed_bytes += len(value)

    def delete(self, key: bytes) -> bool:
        store = self._store
        try:
            found: bool = store.txn.delete(key, b"", self._db)
        except lmdb.Error as error:
            store.fail(error)
        if found:
            store.changes.append((self.name, key))
        return found

    def delete_many(self, keys: Iterable[bytes], prefix: bytes) -> None:
        store, name = self._store, self.name
        try:
            with store.txn.cursor(self._db) as cursor:
                gone = [
                    key
                    for key in keys
                    if cursor.set_key(key) and cursor.value().startswith(prefix) and cursor.delete()
                ]
        except lmdb.Error as error:
            store.fail(error)
        store.changes += [(name, key) for key in gone]

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            with self._store.txn.cursor(self._db) as cursor:
                if cursor.set_range(first):
                    for row in cursor:
                        if row[0] >= end:
                            return
                        yield row
        except lmdb.Error as error:
            self._store.fail(error)

    def scan_keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        try:
            with self._store.txn.cursor(self._db) as cursor:
                if cursor.set_range(first):
                    for key in cursor.iternext(keys=True, values=False):
                        if key >= end:
                            return
                        yield key
        except lmdb.Error as error:
            self._store.fail(error)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        try:
            with self._store.txn.cursor(self._db) as cursor:
                found = cursor.last() if not cursor.set_range(key) else cursor.key() == key or cursor.prev()
                return cursor.item() if found else None
        except lmdb.Error as error:
            self._store.fail(error)

    def delete_range(self, first: bytes, end: bytes, rows_max: int) -> int:
        gone, last = 0, b""
        try:
            with self._store.txn.cursor(self._db) as cursor:
                found = cursor.set_range(first)
                while found and gone < rows_max and (key := cursor.key()) < end:
                    cursor.delete()  # moves to the next row; the key is empty after the last
                    gone, last = gone + 1, key
                    found = cursor.key() != b""
        except lmdb.Error as error:
            self._store.fail(error)
        if gone:
            self._store.changes.append((self.name, first, last, True))
        return gone

    def reader(self) -> "LmdbReader":
        try:
            return LmdbReader(self._store, self)
        except lmdb.Error as error:
            self._store.fail(error)

    def rows(self) -> int:
        """Return the number of rows."""
        return int(self._store.txn.stat(self._db)["entries"])

    def bind(self, db: Any) -> None:
        """Use a new handle, because the store reopened its environment."""
        self._db = db

    @property
    def db(self) -> Any:
        return self._db


class LmdbReader:
    """A table in a read transaction of its own; see gossipq.core.storage.tables.Reader."""

    def __init__(self, store: "LmdbStore", table: LmdbTable) -> None:
        self._store = store
        self.txn: Any = store.read()  # this may reopen the store
        self._db = table.db
        store.readers.add(self)

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            with self.txn.cursor(self._db) as cursor:
                if cursor.set_range(first):
                    for row in cursor:
                        if row[0] >= end:
                            return
                        yield row
        except lmdb.Error as error:
            raise StoreError(f"the read transaction ended: {error}", hint="send the request again") from None

    def close(self) -> None:
        self._store.readers.discard(self)
        if not isinstance(self.txn, _NoTransaction):
            self.txn.abort()
        self.txn = _NoTransaction()


class LmdbTables(NamedTuple):
    log: LmdbTable
    body: LmdbTable
    state: LmdbTable


def make_store(directory: Path) -> None:
    """Create an empty store; an existing one stays. The caller syncs its
    directory. Raises StoreError.
    """
    path, new = directory / DATA_FILE, directory / NEW_DATA_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # renamed when complete: LMDB does not sync its first pages, and cannot open half of them
        if not path.exists():
            new.unlink(missing_ok=True)
            with lmdb.open(
                str(new), map_size=NEW_MAP_BYTES, subdir=False, lock=False, lib_version=ENGINE
            ) as env:
                env.sync(True)
            os.rename(new, path)
    except OSError as error:
        raise StoreError(
            f"{directory} cannot be made: {error.strerror}", "give another directory with --data"
        ) from None
    except lmdb.Error as error:
        raise StoreError(
            f"{directory} cannot be made: {error}", "free some space, or check the disk"
        ) from None


class LmdbStore:
    """A worker's environment in `directory`, locked while open. `shards`
    is the maximum of shards.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        map_bytes: int = limits.MAP_BYTES,
        shards: int = limits.SHARDS,
    ) -> None:
        """Raises StoreError: missing, in use, not writable, no space, or made by another engine."""
        self._directory, self._map_bytes = Path(directory), map_bytes
        self._tables_max = len(TABLES) * shards
        self._tables: dict[int, LmdbTables] = {}
        self._env: Any = None
        self.txn: Any = _NoTransaction()
        self.readers: set[LmdbReader] = set()  #: open readers
        #: since the last commit: (table, key, value), deleted (table, key), or (table,
        #: first, last key, True)
        self.changes: list[Change] = []
        self.changed_bytes = 0  #: of values in `changes`
        self._journal: Journal | None = None
        self._base = 0  #: number of LMDB's last transaction
        #: changes in the open transaction that the journal has, and LMDB has not
        self._journaled_rows = 0
        #: tables were created since LMDB's last commit: the journal cannot store that
        self._made_tables = False
        #: position up to which the journal is valid; None: it was not read yet
        self._end: int | None = None
        self._unsure = True  #: True if invalid data may follow `_end`
        self._free_pages, self._shrinks = FreePages(), False
        self._check_there()
        self._lock = DirectoryLock(self._directory)
        try:
            self._open()
        except StoreError:
            self._lock.release()
            raise

    def _check_there(self) -> None:
        """Check that the store exists, because LMDB would create it. Raises StoreError."""
        path = self._directory / DATA_FILE
        try:
            if path.stat().st_size:
                return
            why = "is empty"
        except PermissionError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}", NOT_OURS) from None
        except OSError as error:
            why = f"cannot be found: {error.strerror}"
        raise StoreError(f"a store of this node is gone: {path} {why}", GONE)

    def _check_whole(self) -> None:
        """Check for an interrupted copy, for example to a full disk. Raises StoreError."""
        path = self._directory / DATA_FILE
        with suppress(OSError, ValueError, struct.error):  # LMDB reports the problem
            if lacking := lacking_bytes(str(path)):
                raise StoreError(f"{path} is cut short: {lacking} bytes of it are not there", JOIN_OR_LOAD_IT)

    def _sync(self) -> None:
        """Sync the file. Raises StoreError.

        A failed commit can be on the disk, though LMDB shows the one before. The journal relies on
        the state that LMDB shows.
        """
        try:
            file = os.open(self._directory / DATA_FILE, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            self._unsure = True  # a later sync succeeds without having written the lost pages
            raise self._error(f"cannot be synced: {error.strerror}") from None

    def _reserve(self) -> None:
        """Reserve space for LMDB's lock file. Raises StoreError.

        LMDB writes to a map of it. Without space on the disk the kernel would kill the process.
        """
        try:
            file = os.open(self._directory / LMDB_LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, LMDB_LOCK_BYTES)
            finally:
                os.close(file)
        except OSError as error:
            raise self._error(f"its lock file cannot be written: {error.strerror}") from None

    def _open(self) -> None:
        """Open the environment. Raises StoreError; then it is closed."""
        self._check_there()
        self._check_whole()
        self._sync()
        self._reserve()
        error = self._opening(commit=True)
        if isinstance(error, lmdb.MapFullError):  # the turns of the journal do not fit
            self._map_bytes += limits.JOURNAL_MAP_BYTES
            error = self._opening(commit=True)
        # a full disk: turns stay in the journal, and are served
        if error is not None and not self._unsure:
            error = self._opening(commit=False)
        if isinstance(error, lmdb.MemoryError):
            raise OutOfMemory(f"{self._directory} cannot be opened: {error}", NO_ADDRESSES) from None
        if isinstance(error, lmdb.InvalidError | lmdb.CorruptedError):
            said = str(error).replace(f"{self._directory}: ", "")
            raise StoreError(
                f"{self._directory / DATA_FILE} cannot be opened: {said}", JOIN_OR_LOAD_IT
            ) from None
        if error is not None:
            raise self._error(f"cannot be opened: {error}") from None

    def _opening(self, commit: bool) -> lmdb.Error | None:
        """Try to open the environment. Returns the error; then it is closed.

        Raises StoreError for a bad journal.
        """
        try:
            self._open_environment(commit)
        except lmdb.Error as error:
            self._close()
            return error
        except StoreError:
            self._close()
            raise
        return None

    def _open_environment(self, commit: bool) -> None:
        self._env = lmdb.open(
            str(self._directory),
            map_size=self._map_bytes,
            max_dbs=self._tables_max + 1,
            sync=True,
            metasync=True,
            writemap=False,
            lib_version=ENGINE,
        )
        self._env.reader_check()
        self._page_bytes, self._map_bytes = self._env.stat()["psize"], self._env.info()["map_size"]
        txn, handles = self._env.begin(write=True), [each for all_ in self._tables.values() for each in all_]
        for table in handles:
            table.bind(self._open_table(table.name, txn, create=False))
        self._journal_db = self._open_table(JOURNAL_TABLE, txn, create=False)
        # readers may use the handles only after this; it writes nothing, so
        # the journal keeps its base
        txn.commit()
        self.txn = self._env.begin(write=True)
        uuid = self.txn.get(JOURNAL_ID, db=self._journal_db) if self._journal_db is not None else None
        if uuid is None:
            self._new_journal()
        else:
            self._journal = Journal(self._directory, uuid)
            self._replay(commit)
        for table in handles:
            if table.db is None:  # created since LMDB's last commit
                table.bind(self._open_table(table.name, self.txn, create=True))
                self._made_tables = True

    def _open_table(self, name: bytes, txn: Any, create: bool) -> Any:
        with suppress(lmdb.NotFoundError):
            return self._env.open_db(name, txn=txn, create=create)
        return None

    def _new_journal(self) -> None:
        """Create the journal of a new or cleanly closed store. Without space for
        it, LMDB commits each turn.
        """
        uuid = uuid4().bytes
        try:
            make_journal(self._directory, uuid)
            self._journal_db = self._open_table(JOURNAL_TABLE, self.txn, create=True)
            self.txn.put(JOURNAL_ID, uuid, db=self._journal_db)
            self._commit_environment()
            self._journal = Journal(self._directory, uuid)
            self._journal.was_read = True
        except (OSError, lmdb.Error) as error:
            log.warning("%s: goes on without a journal: %s", self._directory, error)
            if not isinstance(self.txn, _NoTransaction):
                self.txn.abort()
            self.txn = self._env.begin(write=True)
        self._unsure = False

    def _replay(self, commit: bool) -> None:
        """Repeat the turns that the journal has and LMDB lacks.

        With `commit` LMDB commits them, so that anything behind the last
        valid record has an old base.
        """
        assert self._journal is not None
        self._base = self._env.info()["last_txnid"]
        turns = self._journal.turns(self._base, self._end)
        rows = self._repeat(turns)
        # a turn that may be complete in the file anyway
        refused = self._unsure and self._end is not None
        if refused:
            self.txn.put(JOURNAL_MENDED, b"", db=self._journal_db)
        if commit and (turns or refused):
            self._commit_environment()
            rows = 0
        self._journaled_rows, self._unsure = rows, False

    def _commit_environment(self) -> None:
        """Commit in LMDB. Raises lmdb.Error."""
        self.txn.commit()
        self.txn = _NoTransaction()
        base = self._env.info()["last_txnid"]
        if base != self._base and self._journal is not None:
            self._journal.rewind()
        self._base, self._journaled_rows = base, 0
        if self._shrinks:
            self._shrink()
        # the commit is done; the next use fails instead, and tries again
        with suppress(lmdb.Error):
            self.txn = self._env.begin(write=True)

    def _repeat(self, turns: list[bytes]) -> int:
        """Apply turns of the journal to the open transaction. Returns the number of changes."""
        rows, handles = 0, dict[bytes, Any]()
        for turn in turns:
            for name, key, *rest in _decode(turn):
                db = handles.get(name)
                if db is None:
                    db = handles[name] = self._env.open_db(name, txn=self.txn, create=True)
                if not rest:
                    self.txn.delete(key, db=db)
                elif len(rest) == 1:
                    self.txn.put(key, rest[0], db=db)
                else:
                    _delete_through(self.txn, db, key, rest[0])
                rows += 1
        return rows

    def read(self) -> Any:
        """Open a read transaction over the last commit. Raises lmdb.Error."""
        if self._env is None:
            raise lmdb.Error("the environment is closed")
        if self._journaled_rows and not self.changes:
            self._commit_environment()
        elif self._journaled_rows:  # later changes are not committed, and must not be
            changes = self._forget()
            self.abort()
            if self._journaled_rows:  # the disk is full: LMDB would show the state before them
                raise lmdb.Error("the last turns are in the journal alone")
            self._repeat([_encode(changes)])
            self.changes += changes
            self.changed_bytes = limits.JOURNAL_TURN_BYTES
        return self._env.begin(write=False)

    def _forget(self) -> list["Change"]:
        """Forget and return the changes since the last commit."""
        changes = self.changes
        self.changes = []
        self.changed_bytes = 0
        return changes

    def _close(self) -> None:
        for reader in list(self.readers):
            reader.close()
        if self._journal is not None:
            if self._journal.was_read:
                self._end = self._journal.position
            self._journal.close()
            self._journal = None
        self._forget()
        self._journaled_rows = 0
        env = self._env
        txn = self.txn
        self._env = None
        self.txn = _NoTransaction()
        if env is not None:
            if not isinstance(txn, _NoTransaction):
                txn.abort()
            env.close()

    def fail(self, error: lmdb.Error) -> NoReturn:
        """Reopen the environment at the last good commit, and raise StoreError.

        After a failed commit LMDB may consider the environment broken. Only a new
        one shows what is on disk.
        """
        self._close()
        self._open()
        if isinstance(error, lmdb.MemoryError):
            raise OutOfMemory(f"{self._directory}: {error}", OutOfMemory.HINT) from error
        raise self._error(str(error)) from error

    def _error(self, what: str) -> StoreError:
        """Return a StoreError. LMDB reports a full disk as input/output
        error: the free space decides.
        """
        what = what.replace(f"{self._directory}: ", "")
        try:
            disk = os.statvfs(self._directory)
        except OSError as error:
            return StoreError(
                f"{self._directory}: {what} (and its disk: {error.strerror})", "check the disk, and its mount"
            )
        free = disk.f_bavail * disk.f_frsize
        return StoreError(
            f"{self._directory}: {what} ({free} bytes free on its disk)", "free some space, or check the disk"
        )

    def tables(self, shard: int) -> LmdbTables:
        """Return the tables of a shard, created if missing. Raises StoreError without space."""
        found = self._tables.get(shard)
        if found is None:
            found = LmdbTables(*(LmdbTable(self, f"{name}-{shard:02}".encode()) for name in TABLES))
            try:
                if self._env is None:
                    self._open()
                for table in found:
                    table.bind(self._env.open_db(table.name, txn=self.txn, create=True))
                self._made_tables = True
            except lmdb.Error as error:
                self.fail(error)
            self._tables[shard] = found
        return found

    def shards(self) -> list[int]:
        """Return the shards that have tables here, in order."""
        names = self._env.dbs(self.txn)
        return sorted({int(name.rpartition(b"-")[2]) for name in names if name != JOURNAL_TABLE})

    def commit(self) -> None:
        """Commit. Without changes nothing is written or synced."""
        large = self.changed_bytes > limits.JOURNAL_TURN_BYTES
        gone = isinstance(self.txn, _NoTransaction)
        if self._journal is None or gone or large or self._made_tables or self._shrinks:
            self._commit_lmdb()
        elif self.changes:
            self._commit_turn(self._journal)

    def _commit_turn(self, journal: Journal) -> None:
        """Commit into the journal if it has room, else in LMDB."""
        rows, turn = self._journaled_rows + len(self.changes), _encode(self.changes)
        if rows > limits.JOURNAL_ROWS or not journal.fits(len(turn)):
            self._commit_lmdb()
            return
        try:
            journal.append(self._base, turn)
        except OSError as error:
            self._unsure = True
            self.fail(lmdb.Error(f"its journal: {error.strerror}"))
        self._journaled_rows = rows
        self.changes, self.changed_bytes = [], 0

    def _commit_lmdb(self) -> None:
        try:
            self._commit_environment()
        except lmdb.Error as error:
            self.fail(error)
        self._made_tables = False
        self._forget()

    def shrink(self) -> None:
        self._shrinks = True

    def _shrink(self) -> None:
        self._shrinks = False
        last = self._env.info()["last_txnid"]
        oldest = min((reader.txn.id() for reader in self.readers), default=last)
        with suppress(OSError, ValueError):  # the space stays in the file
            self._free_pages.release(str(self._directory / DATA_FILE), oldest)

    def abort(self) -> None:
        """Drop everything since the last commit. New tables are created again, empty."""
        self._close()
        self._open()

    def usage(self) -> StoreUsage:
        """Return sizes. Raises StoreError, also if the file was deleted
        under the open environment.
        """
        self._check_there()
        used = 0
        try:
            for tables in self._tables.values():
                for table in tables:
                    stat = self.txn.stat(table.db)
                    used += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        except lmdb.Error as error:
            self.fail(error)
        try:
            disk, file = os.statvfs(self._directory), os.stat(self._directory / DATA_FILE)
        except OSError as error:
            raise self._error(f"cannot be looked at: {error.strerror}") from None
        return StoreUsage(
            map_bytes=self._map_bytes,
            used_bytes=used * self._page_bytes,
            file_bytes=file.st_blocks * 512,
            disk_free_bytes=disk.f_bavail * disk.f_frsize,
            disk_bytes=disk.f_blocks * disk.f_frsize,
        )

    def maintain(self) -> None:
        """Commit in LMDB if the journal has rows, and give free memory back. Called once a second.

        Pages of an open transaction would keep memory between them from being freed.
        """
        if self._env is not None:
            self._env.reader_check()
            if self._journaled_rows and not self.changes:
                try:
                    self._commit_environment()
                except lmdb.Error:
                    # a full disk: the journal still has everything, and nothing has changed since
                    self.abort()
                _malloc_trim(0)  # pages that LMDB keeps would hold free memory between them

    def close(self) -> None:
        """Close without committing changes since the last commit. A
        clean end removes the journal.
        """
        with suppress(StoreError, lmdb.Error, OSError):
            if self.changes:
                self.abort()
            if self._journal is not None:
                self.txn.delete(JOURNAL_ID, db=self._journal_db)
                self._commit_environment()
                (self._directory / JOURNAL_FILE).unlink()
        self._close()
        self._lock.release()


def _delete_through(txn: Any, db: Any, first: bytes, last: bytes) -> None:
    with txn.cursor(db) as cursor:
        found = cursor.set_range(first)
        while found and cursor.key() <= last:
            cursor.delete()
            found = cursor.key() != b""
