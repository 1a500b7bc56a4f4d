"""The table of an outbox for SQLAlchemy, so that `create_all` and Alembic know it."""

from sqlalchemy import BigInteger, Column, Identity, Integer, LargeBinary, MetaData, Table, Text

from gossipq_outbox.databases import TABLE, table_name


def outbox_table(metadata: MetaData, name: str = TABLE) -> Table:
    """Add the table to `metadata` and return it. `Outbox(name)` and the relay work on it."""
    schema, _, table = table_name(name).rpartition(".")
    number = BigInteger().with_variant(Integer(), "sqlite")  # SQLite numbers rows of this type only
    return Table(
        table,
        metadata,
        Column("number", number, Identity(always=True), primary_key=True),
        Column("id", Text, nullable=False),
        Column("topic", Text, nullable=False),
        Column("key", LargeBinary),
        Column("value", LargeBinary, nullable=False),
        Column("options", Text, nullable=False, server_default="{}"),
        Column("created_ms", BigInteger, nullable=False),
        Column("refused", Text),
        schema=schema or None,
        sqlite_autoincrement=True,  # a number that was deleted is not used again
    )
