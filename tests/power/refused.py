"""python refused.py STORE: the life of a store whose disk refuses each write and sync of a commit and of an
end once; what was confirmed is marked in the journal of the writes. The shim of journal.c refuses."""

import ctypes
import os
import sys
from contextlib import suppress
from itertools import product
from pathlib import Path

from gossipq import limits
from gossipq.errors import StoreError
from gossipq_node.adapters.journal import BLOCK_BYTES
from gossipq_node.adapters.lmdb_store import LmdbStore, make_store
from gossipq_node.files import sync_directory
from power.journal import HEAD, Kind

CALLS = 8  #: more than a commit of LMDB and opening the store make
MAP_BYTES, SHARDS = 64 << 20, 1
JOURNAL_BYTES, TURN_BYTES = 8 * BLOCK_BYTES, 2 * BLOCK_BYTES
ATTEMPTS = 3


class Life:
    def __init__(self, place: Path) -> None:
        self._place, self._turns = place, 0
        self._marks = os.open(os.environ["POWER_JOURNAL"], os.O_WRONLY | os.O_APPEND)
        make_store(place)
        sync_directory(place)
        self._store = self._opened()
        self._fault = ctypes.CDLL(None).power_fault

    def run(self) -> None:
        self._until_confirmed()
        either = (True, False)
        for call, on_disk, journaled, ends in product(range(1, CALLS), either, either, either):
            self._store.maintain()  # the journal has nothing that LMDB lacks
            if journaled:
                self._until_confirmed()
            self._fault(call, on_disk)
            if ends:
                self._store.close()
                self._fault(0, 0)
                self._store = self._opened()
            else:
                self._turn(limits.JOURNAL_TURN_BYTES + 1)
                self._fault(0, 0)
            self._until_confirmed()

    def _opened(self) -> LmdbStore:
        for _ in range(ATTEMPTS):
            with suppress(StoreError):
                return LmdbStore(self._place, MAP_BYTES, SHARDS)
        raise SystemExit("the store cannot be opened")

    def _until_confirmed(self) -> None:
        if not any(self._turn(1) for _ in range(ATTEMPTS)):
            raise SystemExit("the store takes nothing")

    def _turn(self, size: int) -> bool:
        """Stores one more row with the number of turns; returns True if it was confirmed."""
        self._turns += 1
        try:
            self._store.tables(0).state.put(b"turns", b"%d" % self._turns + bytes(size))
            self._store.commit()
        except StoreError:
            return False
        raw = b"%d" % self._turns
        os.write(self._marks, HEAD.pack(Kind.MARK, 0, 0, 0, len(raw)) + raw)
        return True


if __name__ == "__main__":
    limits.JOURNAL_BYTES, limits.JOURNAL_TURN_BYTES = JOURNAL_BYTES, TURN_BYTES
    Life(Path(sys.argv[1])).run()
