"""A disk in memory: what was not committed is lost by a crash, and a commit may fail. Undone by a journal, so
that a commit costs what it wrote."""

from random import Random

from gossipq.core.storage.tables import MemoryTable

Change = tuple[bytes, bytes | None]  #: a key, and the value that it had


class JournalTable(MemoryTable):
    def __init__(self) -> None:
        super().__init__()
        self.journal: list[Change] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.journal.append((key, self.rows.get(key)))
        super().put(key, value)

    def append(self, key: bytes, value: bytes) -> None:
        self.journal.append((key, None))
        super().append(key, value)

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

    def undo(self) -> None:
        for key, value in reversed(self.journal):
            if value is None:
                super().delete(key)
            else:
                super().put(key, value)
        self.journal.clear()


class Disk:
    """The Tables of one copy, over all its restarts."""

    def __init__(self) -> None:
        self.log, self.body, self.state = JournalTable(), JournalTable(), JournalTable()

    @property
    def tables(self) -> tuple[JournalTable, ...]:
        return self.log, self.body, self.state

    def commit(self) -> None:
        for table in self.tables:
            table.journal.clear()

    def undo(self) -> None:
        for table in self.tables:
            table.undo()

    def tear(self, dice: Random) -> bool:
        """Damages the newest log row, as a torn write does. False: there is none."""
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
