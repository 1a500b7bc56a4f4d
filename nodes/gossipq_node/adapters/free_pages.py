"""Gives free pages of an LMDB file back to the file system. The file never shrinks, but gets holes.

LMDB lists the pages that became free under the number of the transaction, in a tree of its own.
It writes a free page completely before it reads it again, so the zeros of a hole are never used.
The format is that of version 0.9 on a 64-bit machine, in native byte order (`mdb.c`: MDB_meta,
MDB_db, MDB_page, MDB_node).
"""

import ctypes
import os
import sys
from array import array
from collections.abc import Iterator
from itertools import pairwise
from struct import Struct, unpack_from
from struct import error as StructError
from typing import NamedTuple

KEEP_SIZE, PUNCH_HOLE = 1, 2  #: modes of fallocate(2)
HEAD_BYTES = 16  #: size of a page's head, and offset of the data in a meta page
MAGIC, VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, META = 1, 2, 8  #: flags of a page
BIG = 1  #: flag of a node: its value is on pages of its own
NO_PAGE = (1 << 64) - 1
WORD_BYTES = 8
STEP_BYTES_MAX = 64 << 20  #: bytes given back in one step
STEP_PAGES_MAX = 1 << 16  #: pages examined in one step

_META = Struct("@IIQQ")  #: magic, version, address, size of the map
_DB = Struct("@IHHQQQQQ")  #: page size, flags, depth, three counts of pages, entries, root
_NODE = Struct("@HHHH")  #: low and high half of the size, flags, size of the key

PageRange = tuple[int, int]  #: pages [first, end)


class MetaPage(NamedTuple):
    txn: int  #: the last committed transaction
    page_bytes: int
    root: int  #: root of the tree of free pages
    last: int  #: highest page ever used


class FreePages:
    """Free pages of one file. Each step gives some back, and the next
    step continues behind them.
    """

    def __init__(self) -> None:
        self._seen_pages = 0  # pages of the list seen in earlier steps
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def release(self, path: str, txn: int) -> int:
        """Punch holes for pages that no snapshot since `txn` uses. Returns the bytes given back.

        Call it only between transactions, when everything is committed. Raises
        OSError if the file is missing.
        """
        if self._libc is None or array("Q").itemsize != WORD_BYTES:
            return 0
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return self._step(file, txn)
        finally:
            os.close(file)

    def _step(self, file: int, txn: int) -> int:
        meta = newest_meta(file)
        given, seen = 0, 0
        for pages in free_lists(file, meta, txn):
            seen += len(pages)
            if seen <= self._seen_pages:
                continue
            for first, end in runs(pages):
                for at in range(first * meta.page_bytes, end * meta.page_bytes, STEP_BYTES_MAX):
                    given += self._punch(file, at, min(end * meta.page_bytes, at + STEP_BYTES_MAX))
                    if given >= STEP_BYTES_MAX:
                        return given  # the rest of this list comes in the next step
            if seen - self._seen_pages >= STEP_PAGES_MAX:
                self._seen_pages = seen
                return given
        self._seen_pages = 0
        return given

    def _punch(self, file: int, first: int, end: int) -> int:
        """Punch a hole. Returns the bytes that were not a hole before."""
        try:
            if os.lseek(file, first, os.SEEK_DATA) >= end:
                return 0
        except OSError:  # a hole up to the end
            return 0
        assert self._libc is not None
        mode, size = KEEP_SIZE | PUNCH_HOLE, end - first
        done = self._libc.fallocate(file, mode, ctypes.c_int64(first), ctypes.c_int64(size))
        return 0 if done else size


def newest_meta(file: int) -> MetaPage:
    """Return the newest meta page. Raises ValueError for another format."""
    page_bytes = _meta(os.pread(file, 256, 0)).page_bytes
    return max(_meta(os.pread(file, 256, at)) for at in (0, page_bytes))


def _meta(page: bytes) -> MetaPage:
    magic, version, _, _ = _META.unpack_from(page, HEAD_BYTES)
    if (magic, version) != (MAGIC, VERSION) or not unpack_from("@H", page, 10)[0] & META:
        raise ValueError("not a store of LMDB 0.9")
    at = HEAD_BYTES + _META.size
    page_bytes, *_, root = _DB.unpack_from(page, at)
    last, txn = unpack_from("@QQ", page, at + 2 * _DB.size)
    return MetaPage(txn, page_bytes, root, last)


def lacking_bytes(path: str) -> int:
    """Return how many used bytes are missing behind the end of the file.

    Reading them through the map would kill the process with SIGBUS. Free pages there may never have
    been written. Raises OSError; ValueError for another format.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        meta, there = newest_meta(file), os.fstat(file).st_size
        lacking = (meta.last + 1) * meta.page_bytes - there
        if lacking <= 0:
            return 0
        try:
            end = there // meta.page_bytes
            free = {page for pages in free_lists(file, meta, meta.txn) for page in pages if page >= end}
        except (ValueError, StructError):  # the list of free pages is cut off, too
            return lacking
        return 0 if len(free) == meta.last + 1 - end else lacking
    finally:
        os.close(file)


def free_lists(file: int, meta: MetaPage, txn: int) -> Iterator["array[int]"]:
    """Yield lists of free pages, falling, that no snapshot since `txn`
    uses: one per transaction.
    """
    waiting = [] if meta.root == NO_PAGE else [meta.root]
    while waiting:
        page = os.pread(file, meta.page_bytes, waiting.pop() * meta.page_bytes)
        flags, lower = unpack_from("@HH", page, 10)
        if not flags & (BRANCH | LEAF):
            raise ValueError("a page of the free list is none")
        places = unpack_from(f"@{(lower - HEAD_BYTES) // 2}H", page, HEAD_BYTES)
        for at in reversed(places) if flags & BRANCH else places:
            low, high, more, key_bytes = _NODE.unpack_from(page, at)
            if flags & BRANCH:
                waiting.append(low | high << 16 | more << 32)
                continue
            key = at + _NODE.size
            if unpack_from("@Q", page, key)[0] > txn:
                return
            size, value = low | high << 16, key + key_bytes
            if more & BIG:
                big = unpack_from("@Q", page, value)[0]
                raw = os.pread(file, size, big * meta.page_bytes + HEAD_BYTES)
            else:
                raw = page[value : value + size]
            words = array("Q", raw)
            yield words[1 : 1 + words[0]]


def runs(pages: "array[int]") -> Iterator[PageRange]:
    """Yield runs of neighbouring pages."""
    if not pages:
        return
    end = pages[0] + 1
    for above, below in pairwise(pages):
        if below != above - 1:
            yield above, end
            end = below + 1
    yield pages[-1], end
