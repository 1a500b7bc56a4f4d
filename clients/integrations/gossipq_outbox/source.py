"""The rows of an outbox as a relay sees them: read in order, deleted when they are published."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gossipq_outbox.databases import DELETED_MAX, Database, database_of, driver_of, opened, table_name
from gossipq_outbox.rows import Row

READ = "number, id, topic, key, value, options, created_ms"


class Source:
    """A table over a DB-API connection of its own. The connection is opened when it is needed, and anew after
    an error."""

    def __init__(self, connect: Callable[[], Any], table: str) -> None:
        self._connect, self.table = connect, table_name(table)
        self._connection: Any = None
        self._mark = ""
        self._database: Database
        self.is_standby = False  #: whether another relay had the lock at the last `take`

    def _cursor(self) -> Any:
        if self._connection is None:
            connection = self._connect()
            inner = getattr(connection, "driver_connection", connection)  # of a pool of SQLAlchemy
            self._mark, self._database = driver_of(inner)[1].mark, database_of(inner)
            self._connection = connection
        return self._connection.cursor()

    def take(self, limit: int) -> list[Row]:
        """Return the oldest rows, in order; none if another relay holds the lock. `finish` or `abandon` must
        follow: a transaction is open. Raises the errors of the driver."""
        cursor = self._cursor()
        if self._database.lock:
            cursor.execute(self._database.lock.format(table=self.table))
            self.is_standby = not cursor.fetchone()[0]
            if self.is_standby:
                return []
        cursor.execute(
            f"select {READ} from {self.table} where refused is null order by number limit {int(limit)}"
        )
        return [_row(columns) for columns in cursor.fetchall()]

    def finish(self, published: Sequence[int], refused: Mapping[int, str]) -> None:
        """Delete published rows, keep the reason in refused ones, and commit. Raises the errors of the
        driver."""
        cursor = self._cursor()
        for number, reason in refused.items():
            cursor.execute(
                f"update {self.table} set refused = {self._mark} where number = {self._mark}",
                (reason, number),
            )
        for at in range(0, len(published), DELETED_MAX):
            numbers = tuple(published[at : at + DELETED_MAX])
            marks = ", ".join([self._mark] * len(numbers))
            cursor.execute(f"delete from {self.table} where number in ({marks})", numbers)
        self._connection.commit()

    def abandon(self) -> None:
        """Roll back and close: the next `take` opens another connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.rollback()
            finally:
                connection.close()

    def rows(self, limit: int) -> list[tuple[Row, str | None]]:
        """Return the oldest rows and why each was refused, if it was. Raises the errors of the driver."""
        cursor = self._cursor()
        cursor.execute(f"select {READ}, refused from {self.table} order by number limit {int(limit)}")
        found = [(_row(columns[:-1]), columns[-1]) for columns in cursor.fetchall()]
        self._connection.commit()
        return found

    def retry(self) -> int:
        """Hand all refused rows to the relay again, and return how many. Raises the errors of the driver."""
        cursor = self._cursor()
        cursor.execute(f"update {self.table} set refused = null where refused is not null")
        count = int(cursor.rowcount)
        self._connection.commit()
        return count


def _row(columns: Sequence[Any]) -> Row:
    number, record_id, topic, key, value, options, created_ms = columns
    # psycopg2 returns a memoryview for bytea; a text that SQL wrote into SQLite's value is its UTF-8
    return Row(
        number=number,
        id=record_id,
        topic=topic,
        key=None if key is None else _bytes(key),
        value=_bytes(value),
        options=options,
        created_ms=created_ms,
    )


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def source_of(database: Any, table: str) -> Source:
    """Return the rows of a database: a URL, an Engine of SQLAlchemy, or a function that connects."""
    if isinstance(database, str):
        url = database
        return Source(lambda: opened(url), table)
    connect = getattr(database, "raw_connection", database)
    return Source(connect, table)
