"""Publishes by a row in the caller's transaction."""

from inspect import iscoroutinefunction
from typing import Any, Unpack

from gossipq.clock import Clock, SystemClock
from gossipq.errors import BadRequest
from gossipq_client.values import PublishOptions
from gossipq_outbox.databases import TABLE, database_of, driver_of, insert_statement, table_name
from gossipq_outbox.rows import new_row


class Outbox:
    """Publishes by rows of a table, which a `Relay` sends to the broker after their transaction committed.

        outbox = Outbox()
        with connection:  # a transaction
            connection.execute("update stock set figs = figs - 1")
            outbox.publish(connection, "orders", {"item": "figs"}, key="ada")

    `connection` is what the transaction runs on: a connection or cursor of sqlite3 or psycopg, a Connection
    or Session of SQLAlchemy, or `django.db.connection`. `apublish` takes those of psycopg, asyncpg, aiosqlite
    and SQLAlchemy that are awaited. Neither begins or ends a transaction.
    """

    def __init__(self, table: str = TABLE, clock: Clock | None = None) -> None:
        self.table = table_name(table)
        self._clock = SystemClock() if clock is None else clock

    def create(self, connection: Any) -> None:
        """Create the table unless it exists. The caller commits. Raises the errors of the driver."""
        statement = database_of(connection).create.format(table=self.table)
        name, _ = driver_of(connection)
        if name == "sqlalchemy":
            _alchemy_execute(connection, statement)
        else:
            _execute(connection, statement, ())

    def publish(self, connection: Any, topic: str, value: Any, **options: Unpack[PublishOptions]) -> str:
        """Insert one record, to be published once the transaction of `connection` has committed.

        Values and options are those of `publish` of a client, without `wait`. Times count from now on,
        however late the relay is. Returns the id of the record: a random one unless `id` is given. Raises
        BadRequest for what the broker would refuse, and the errors of the driver.
        """
        row = new_row(topic, value, options, self._clock)
        name, driver = driver_of(connection)
        if _is_awaited(connection, name):
            raise BadRequest(
                f"a {type(connection).__name__} of {name} is awaited", hint="await outbox.apublish(...)"
            )
        statement = insert_statement(self.table, driver.mark)
        if name == "sqlalchemy":
            _alchemy_execute(connection, statement, row)
        else:
            _execute(connection, statement, tuple(row.values()))
        return str(row["id"])

    async def apublish(
        self, connection: Any, topic: str, value: Any, **options: Unpack[PublishOptions]
    ) -> str:
        """As `publish`, on an awaited connection or session of psycopg, asyncpg, aiosqlite or SQLAlchemy."""
        row = new_row(topic, value, options, self._clock)
        name, driver = driver_of(connection)
        if not _is_awaited(connection, name):
            raise BadRequest(
                f"a {type(connection).__name__} of {name} is not awaited", hint="call outbox.publish(...)"
            )
        statement = insert_statement(self.table, driver.mark)
        if name == "sqlalchemy":
            await _alchemy_execute(connection, statement, row)
        elif name == "asyncpg":
            await connection.execute(statement, *row.values())
        else:
            await connection.execute(statement, tuple(row.values()))
        return str(row["id"])


def _is_awaited(connection: Any, name: str) -> bool:
    """True if the connection's `execute` must be awaited: a call that is not would insert nothing."""
    return name in ("asyncpg", "aiosqlite") or iscoroutinefunction(getattr(connection, "execute", None))


def _execute(connection: Any, statement: str, parameters: tuple[Any, ...]) -> None:
    if not hasattr(connection, "cursor"):  # it is a cursor
        connection.execute(statement, parameters)
        return
    cursor = connection.cursor()
    try:
        cursor.execute(statement, parameters)
    finally:
        cursor.close()


def _alchemy_execute(connection: Any, statement: str, row: dict[str, Any] | None = None) -> Any:
    """Execute on a Connection or Session; an awaited one returns what is to be awaited."""
    from sqlalchemy import text

    return connection.execute(text(statement), row)
