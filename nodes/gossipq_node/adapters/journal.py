"""A journal of turns that LMDB has not committed yet: one synced write for
each turn, into one file.

    block 0     magic, uuid of the store, CRC
    then        records, each from the start of a block of 4,096 bytes:
                magic "GQjr", u32 size, u64 base, u64 sequence, u32 CRC, and `size` bytes of a turn

`base` is the number of LMDB's last transaction. After LMDB commits, the records in the file have an
old base and are ignored, so the file need not be emptied. `sequence` counts the records of a base.
The CRC covers a whole record and begins with the uuid, so that a stored batch cannot pass for a
record. The file is filled with zeros when it is created. So a write changes neither its size nor
its block map, and one O_DIRECT write with O_DSYNC is one write of the disk.

A commit of LMDB is two syncs and some dozen copied pages, an append is one write. LMDB commits when
a turn is larger than 256 KiB, creates tables, or when 1 MiB, 4,000 changes or 4 MiB of blocks have
come together. With 4 MiB of changes the slowest confirms at half of the peak took twice as long, at
the same throughput.
"""

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from gossipq import limits
from gossipq.errors import StoreError
from gossipq.wire.checksum import crc32

JOURNAL_FILE = "journal"
NEW_JOURNAL_FILE = "journal.new"
BLOCK_BYTES = 4_096
_MAGIC, _FILE_MAGIC = b"GQjr", b"GQjournal1"
_HEAD = Struct("<4sIQQI")
_FILE_HEAD = Struct("<10s16sI")
JOIN_OR_LOAD = (
    "other nodes have copies, start with an empty --data to join them again; else gossipq store restore a "
    "backup"
)
JOIN_OR_LOAD_IT = f"if you copied it, copy it again; if {JOIN_OR_LOAD}"
GONE = f"what was confirmed last is in it: put it back beside data.mdb; if it is lost and {JOIN_OR_LOAD}"


def make_journal(directory: Path, uuid: bytes) -> None:
    """Create an empty journal, in place of any other. Raises OSError."""
    new = directory / NEW_JOURNAL_FILE
    head = _FILE_HEAD.pack(_FILE_MAGIC, uuid, crc32(uuid))
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        whole = head.ljust(limits.JOURNAL_BYTES, b"\0")
        if os.write(file, whole) != len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)
    except OSError:
        os.unlink(new)  # a full disk needs the space back
        raise
    finally:
        os.close(file)
    os.rename(new, directory / JOURNAL_FILE)
    names = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(names)
    finally:
        os.close(names)


class Journal:
    """The open file of one store. The next record is written at `position` with `sequence`."""

    def __init__(self, directory: Path, uuid: bytes) -> None:
        """Raises StoreError: missing, unreadable, cut short, or of another store."""
        self._path, self._uuid_crc = directory / JOURNAL_FILE, crc32(uuid)
        self._file = -1
        try:
            self._file = self._open()
            with open(self._path, "rb") as file:
                head, there = file.read(_FILE_HEAD.size), os.fstat(self._file).st_size
        except OSError as error:
            self.close()
            raise StoreError(f"{self._path} cannot be used: {error.strerror}", GONE) from None
        if head != _FILE_HEAD.pack(_FILE_MAGIC, uuid, crc32(uuid)):
            self.close()
            raise StoreError(f"{self._path} is not the journal of the data.mdb beside it", GONE)
        if there < limits.JOURNAL_BYTES:  # the part that was cut off would count as never written
            self.close()
            lacking = limits.JOURNAL_BYTES - there
            raise StoreError(
                f"{self._path} is cut short: {lacking} bytes of it are not there", JOIN_OR_LOAD_IT
            )
        self._buffer = memoryview(mmap.mmap(-1, limits.JOURNAL_TURN_BYTES + 2 * BLOCK_BYTES))
        self.was_read = False  #: until then it is unknown up to where the file is valid
        self.rewind()

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_DSYNC | os.O_CLOEXEC
        try:
            return os.open(self._path, flags | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:  # direct writes are not supported by this file system
                raise
            return os.open(self._path, flags)

    def rewind(self) -> None:
        """LMDB has committed: records of the new base begin at the front."""
        self.position = BLOCK_BYTES
        self.sequence = 0
        self._bytes = 0

    def fits(self, size: int) -> bool:
        """True if a turn of `size` bytes should be written here, and has room."""
        more = size <= limits.JOURNAL_TURN_BYTES and self._bytes < limits.JOURNAL_ROWS_BYTES
        return more and self.position + size + BLOCK_BYTES <= limits.JOURNAL_BYTES

    def append(self, base: int, turn: bytes) -> None:
        """Write and sync a turn. Raises OSError: the file behind `position` is unknown then.

        After that, nothing may be appended before LMDB has committed.
        """
        size, sequence = _HEAD.size + len(turn), self.sequence
        begun = crc32(_HEAD.pack(_MAGIC, len(turn), base, sequence, 0), self._uuid_crc)
        head = _HEAD.pack(_MAGIC, len(turn), base, sequence, crc32(turn, begun))
        padded = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        # behind it are remains of an earlier turn, but a record never begins within a block
        self._buffer[: _HEAD.size] = head
        self._buffer[_HEAD.size : size] = turn
        if os.pwrite(self._file, self._buffer[:padded], self.position) != padded:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.position += padded
        self.sequence += 1
        self._bytes += size

    def turns(self, base: int, end: int | None = None) -> list[bytes]:
        """Return all turns since LMDB's transaction `base`, oldest first,
        and set the next position.

        `end` is the position up to which the file is known to be valid; turns behind it were never
        confirmed. A last incomplete record was being written when the machine stopped, and is
        ignored. Raises StoreError if the file is damaged, or newer than LMDB's data.
        """
        try:
            whole = self._path.read_bytes()
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error.strerror}", GONE) from None
        self.rewind()
        found = []
        while (end is None or self.position < end) and (record := self._record(whole, self.position)):
            its_base, sequence, turn = record
            if its_base > base:
                raise StoreError(
                    f"data.mdb is older than {self._path}", "put back the two that belong together"
                )
            if (its_base, sequence) != (base, self.sequence):
                break
            found.append(turn)
            self.position += -(-(_HEAD.size + len(turn)) // BLOCK_BYTES) * BLOCK_BYTES
            self.sequence += 1
        if end is not None and self.position < end and (found or not self._record(whole, self.position)):
            raise StoreError(f"{self._path} is damaged at byte {self.position}", GONE)
        if end is None and any(key > (base, self.sequence) for key in self._behind(whole)):
            raise StoreError(
                f"{self._path} is damaged at byte {self.position}: later turns are whole",
                f"if {JOIN_OR_LOAD}",
            )
        self.was_read = True
        return found

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _behind(self, whole: bytes) -> Iterator[tuple[int, int]]:
        for position in range(self.position + BLOCK_BYTES, len(whole), BLOCK_BYTES):
            if record := self._record(whole, position):
                yield record[0], record[1]

    def _record(self, whole: bytes, position: int) -> tuple[int, int, bytes] | None:
        """Return base, sequence and turn of a complete record at a position, else None."""
        if whole[position : position + len(_MAGIC)] != _MAGIC or len(whole) - position < _HEAD.size:
            return None
        _, size, base, sequence, crc = _HEAD.unpack_from(whole, position)
        first = position + _HEAD.size
        turn = whole[first : first + size]
        return (base, sequence, turn) if crc == self._crc(base, sequence, turn) else None

    def _crc(self, base: int, sequence: int, turn: bytes) -> int:
        return crc32(turn, crc32(_HEAD.pack(_MAGIC, len(turn), base, sequence, 0), self._uuid_crc))
