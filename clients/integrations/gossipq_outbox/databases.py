"""What differs between the databases and drivers of an outbox: statements, and marks of parameters."""

import re
from typing import Any, NamedTuple

from gossipq.errors import BadRequest, ConfigError, missing_extra
from gossipq_outbox.rows import COLUMNS

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
TABLE = "gossipq_outbox"  #: default name of the table
DELETED_MAX = 500  #: rows of one DELETE: SQLite takes 999 parameters at least

#: `id` and `created_ms` have defaults, so that triggers and other languages can insert rows in SQL
_POSTGRESQL = """create table if not exists {table} (
    number bigint generated always as identity primary key,
    id text not null default gen_random_uuid()::text,
    topic text not null,
    key bytea,
    value bytea not null,
    options text not null default '{{}}',
    created_ms bigint not null default (extract(epoch from clock_timestamp()) * 1000)::bigint,
    refused text
)"""
_SQLITE = """create table if not exists {table} (
    number integer primary key autoincrement,
    id text not null default (lower(hex(randomblob(16)))),
    topic text not null,
    key blob,
    value blob not null,
    options text not null default '{{}}',
    created_ms integer not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer)),
    refused text
)"""


class Database(NamedTuple):
    """A database that can hold an outbox."""

    create: str
    lock: str = ""  #: takes a lock until the transaction ends, or answers false; "" = there is none


#: one relay at a time reads: others would publish the same records once more, for nothing
POSTGRESQL = Database(_POSTGRESQL, "select pg_try_advisory_xact_lock(hashtext('{table}'))")
SQLITE = Database(_SQLITE)


class Driver(NamedTuple):
    """How a driver marks parameters: ?, %s, $1 or :name."""

    mark: str
    database: Database | None = None  #: None: the connection says which


#: driver, or library around one -> how to talk to it
DRIVERS = {
    "sqlite3": Driver("?", SQLITE),
    "aiosqlite": Driver("?", SQLITE),
    "psycopg": Driver("%s", POSTGRESQL),
    "psycopg2": Driver("%s", POSTGRESQL),
    "asyncpg": Driver("$", POSTGRESQL),
    "sqlalchemy": Driver(":"),
    "django": Driver("%s"),
}


def driver_of(connection: Any) -> tuple[str, Driver]:
    """Return the name of the driver of a connection, cursor or session, and the driver.

    Raises BadRequest if gossipq does not know it.
    """
    for kind in type(connection).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in DRIVERS:
            return root, DRIVERS[root]
    raise BadRequest(
        f"a {type(connection).__name__} is no connection that an outbox knows",
        hint=f"pass a connection or session of {', '.join(DRIVERS)}",
    )


def database_of(connection: Any) -> Database:
    """Return the database behind a connection. Raises BadRequest unless it is PostgreSQL or SQLite."""
    name, driver = driver_of(connection)
    if driver.database is not None:
        return driver.database
    if name == "sqlalchemy" and (inner := getattr(connection, "driver_connection", None)) is not None:
        return database_of(inner)
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    vendor = str(getattr(getattr(bind, "dialect", None), "name", getattr(connection, "vendor", "")))
    for known, database in (("postgresql", POSTGRESQL), ("sqlite", SQLITE)):
        if vendor == known:
            return database
    raise BadRequest(f"no outbox in {vendor or 'this database'}", hint="PostgreSQL and SQLite can hold one")


def table_name(table: str) -> str:
    """Return the name of a table, with or without a schema. Raises BadRequest unless it is plain."""
    if not NAME.fullmatch(table):
        raise BadRequest(f"table={table!r}", hint="letters, digits and _; at most one dot, after the schema")
    return table


def insert_statement(table: str, mark: str) -> str:
    """Return the INSERT of one row, with the parameters of `COLUMNS` in their order."""
    marks = {
        "$": [f"${number}" for number in range(1, len(COLUMNS) + 1)],
        ":": [f":{name}" for name in COLUMNS],
    }.get(mark, [mark] * len(COLUMNS))
    return f"insert into {table} ({', '.join(COLUMNS)}) values ({', '.join(marks)})"


def opened(url: str) -> Any:
    """Open a connection by postgresql://USER@HOST/NAME or sqlite:///PATH. Raises ConfigError, the errors of
    the driver, and GossipqError if psycopg is not installed."""
    scheme, _, rest = url.partition("://")
    if scheme in ("postgresql", "postgres"):
        try:
            import psycopg
        except ModuleNotFoundError:
            raise missing_extra("psycopg", "outbox") from None
        return psycopg.connect(url)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        import sqlite3

        # the thread of a relay is not the one that opens it
        return sqlite3.connect(rest[1:], check_same_thread=False, timeout=10)
    raise ConfigError(f"{url!r} names no database", hint="postgresql://USER@HOST/NAME or sqlite:///PATH")
