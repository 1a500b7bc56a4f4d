"""A disk in memory. A process that ends loses what was not committed, a machine that ends
loses what was not synced, and a commit may fail. Journals undo the lost writes, so a commit
costs only what it wrote.
"""

from bisect import insort
from collections.abc import Iterator, Sequence
from random import Random

from gossipq.core.storage.tables import MemoryTable, Reader

Change = tuple[bytes, bytes | None]  #: a key and its old value


class CountedReader:
    """Reads a table as it was, and counts the rows it reads."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self.rows = reader, 0

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row in self._reader.scan(first, end):
            self.rows += 1
            yield row

    def close(self) -> None:
        self._reader.close()


class JournalTable(MemoryTable):
    def __init__(self) -> None:
        super().__init__()
        self.journal: list[Change] = []  #: changes that are not committed
        #: changes that are committed but only in the kernel's memory
        self.unsynced: list[Change] = []
        self.readers: list[CountedReader] = []

    def reader(self) -> CountedReader:
        self.readers.append(CountedReader(super().reader()))
        return self.readers[-1]

    def put(self, key: bytes, value: bytes) -> None:
        before = self.rows.get(key)
        self.journal.append((key, before))
        if before is None:
            insort(self.keys, key)
        self.rows[key] = bytes(value)

    def append_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        self.journal += [(key, None) for key, _ in rows]
        super().append_many(rows)

    def delete(self, key: bytes) -> bool:
        if key in self.rows:
            self.journal.append((key, self.rows[key]))
        return super().delete(key)

    def delete_range(self, first: bytes, end: bytes, rows_max: int) -> int:
        for count, (key, value) in enumerate(self.scan(first, end)):
            if count == rows_max:
                break
            self.journal.append((key, value))
        return super().delete_range(first, end, rows_max)

    def commit(self) -> None:
        if self.journal:
            self.unsynced += self.journal
            self.journal.clear()

    def undo(self) -> None:
        self._take_back(self.journal)

    def lose(self) -> None:
        self._take_back(self.journal)
        self._take_back(self.unsynced)

    def _take_back(self, changes: list[Change]) -> None:
        for key, value in reversed(changes):
            if value is None:
                super().delete(key)
            else:
                super().put(key, value)
        changes.clear()


class Disk:
    """The Tables of one copy, across all its restarts."""

    def __init__(self) -> None:
        self.log, self.body, self.state = JournalTable(), JournalTable(), JournalTable()

    @property
    def tables(self) -> tuple[JournalTable, ...]:
        return self.log, self.body, self.state

    def commit(self) -> None:
        for table in self.tables:
            table.commit()

    def sync(self) -> None:
        for table in self.tables:
            table.unsynced.clear()

    def lose(self) -> None:
        """Loses what was not synced: the machine ends."""
        for table in self.tables:
            table.lose()

    def undo(self) -> None:
        for table in self.tables:
            table.undo()

    def tear(self, dice: Random) -> bool:
        """Damages the newest log row as a torn write does. Returns False if the log is empty."""
        if not self.log.keys:
            return False
        key = self.log.keys[-1]
        row = bytearray(self.log.rows[key])
        if dice.random() < 0.5:
            del row[dice.randrange(len(row)) :]
        else:
            row[dice.randrange(len(row))] ^= 1 << dice.randrange(8)
        self.log.rows[key] = bytes(row)
        return True
