"""The outbox in transactions of each library: SQLAlchemy, psycopg, asyncpg, aiosqlite; on both databases."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import MetaData, create_engine, inspect, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from gossipq.errors import BadRequest
from gossipq.outbox import Outbox, Relay
from gossipq_client import testing
from gossipq_outbox.databases import opened
from gossipq_outbox.tables import outbox_table

DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def shared() -> Iterator[testing.Client]:
    with testing.Broker() as broker, broker.connect() as client:
        yield client


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with an empty outbox."""
    name = "".join(each for each in request.node.name if each.isalnum()).lower()
    if request.param == "postgresql":
        url = str(request.getfixturevalue("postgresql").url(name))
    else:
        url = f"sqlite:///{tmp_path}/{name}.db"
    with closing(opened(url)) as connection:
        Outbox().create(connection)
        connection.commit()
    return url


def values_of(mq: Any, url: str, topic: str) -> list[bytes]:
    """Relay what is there, and return the values of a topic that no other test uses."""
    Relay(mq, url).run(until_empty=True)
    return [msg.value for msg in mq.read(topic)]


def topic_of(url: str) -> str:
    return url.rpartition("/")[2].replace(".", "-")


def alchemy(url: str, driver: str) -> str:
    """The URL as SQLAlchemy writes it."""
    return url.replace("postgresql:", f"postgresql+{driver}:").replace("sqlite:", f"sqlite+{driver}:")


def test_sessions_and_connections_of_sqlalchemy(shared: testing.Client, url: str) -> None:
    outbox, topic = Outbox(), topic_of(url)
    engine = create_engine(alchemy(url, "psycopg" if url.startswith("postgresql") else "pysqlite"))
    with Session(engine) as session, session.begin():
        outbox.publish(session, topic, "by a session")
    with engine.begin() as connection:
        outbox.publish(connection, topic, "by a connection", key="ada")
    with Session(engine) as session:
        with pytest.raises(BadRequest, match="not awaited"):
            asyncio.run(outbox.apublish(session, topic, "one"))
        outbox.publish(session, topic, "rolled back")
        session.rollback()
    relay = Relay(shared, engine)
    relay.run(until_empty=True)
    assert relay.published == 2
    assert values_of(shared, url, topic) == [b"by a session", b"by a connection"]
    engine.dispose()


def test_awaited_sessions_of_sqlalchemy(shared: testing.Client, url: str) -> None:
    async def publish() -> None:
        engine = create_async_engine(alchemy(url, "asyncpg" if url.startswith("postgresql") else "aiosqlite"))
        async with AsyncSession(engine) as session, session.begin():
            with pytest.raises(BadRequest, match="awaited"):
                Outbox().publish(session, topic_of(url), "one")
            await Outbox().apublish(session, topic_of(url), {"n": 1}, key="ada")
        async with engine.connect() as connection:
            await Outbox().apublish(connection, topic_of(url), "rolled back")
        await engine.dispose()

    asyncio.run(publish())
    assert values_of(shared, url, topic_of(url)) == [b'{"n":1}']


async def by_psycopg(url: str, publish: Callable[[Any], Awaitable[str]]) -> None:
    import psycopg

    async with await psycopg.AsyncConnection.connect(url) as connection:
        await publish(connection)


async def by_asyncpg(url: str, publish: Callable[[Any], Awaitable[str]]) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await publish(connection)
    await connection.close()


async def by_aiosqlite(url: str, publish: Callable[[Any], Awaitable[str]]) -> None:
    async with aiosqlite.connect(url.removeprefix("sqlite:///")) as connection:
        await publish(connection)
        await connection.commit()


@pytest.mark.parametrize("by", [by_psycopg, by_asyncpg, by_aiosqlite])
def test_awaited_connections(shared: testing.Client, url: str, by: Callable[..., Any]) -> None:
    if url.startswith("sqlite") is not (by is by_aiosqlite):
        pytest.skip("a driver of the other database")
    topic = f"{topic_of(url)}-{by.__name__}"

    async def publish(connection: Any) -> str:
        with pytest.raises(BadRequest, match="awaited"):
            Outbox().publish(connection, topic, "one")
        return await Outbox().apublish(connection, topic, "one", delay="1ms")

    asyncio.run(by(url, publish))
    Relay(shared, url).run(until_empty=True)
    shared.advance("1s")
    assert values_of(shared, url, topic) == [b"one"]


def test_the_table_of_sqlalchemy_has_the_columns_of_the_plain_one(url: str) -> None:
    engine = create_engine(alchemy(url, "psycopg" if url.startswith("postgresql") else "pysqlite"))
    plain = [each["name"] for each in inspect(engine).get_columns("gossipq_outbox")]
    metadata = MetaData()
    outbox_table(metadata, "other")
    metadata.create_all(engine)
    assert [each["name"] for each in inspect(engine).get_columns("other")] == plain
    with engine.begin() as connection:
        Outbox("other").create(connection)  # it exists
        connection.execute(text("insert into other (topic, value, id, created_ms) values ('a', '1', 'b', 1)"))
        Outbox("other").publish(connection, "a", "2")
        assert connection.execute(text("select number from other order by number")).all() == [(1,), (2,)]
    engine.dispose()


@pytest.mark.slow
def test_a_second_relay_stands_by_on_postgresql(shared: testing.Client, postgresql: Any) -> None:
    url = postgresql.url("standby")
    with closing(opened(url)) as connection:
        Outbox().create(connection)
        Outbox().publish(connection, "standby", "one")
        connection.commit()
    first, second = Relay(shared, url), Relay(shared, url)
    assert len(first.source.take(10)) == 1
    assert (second.once(), second.source.is_standby) == (0, True)
    first.source.abandon()
    assert (second.once(), second.source.is_standby) == (1, False)
    second.source.abandon()


@pytest.mark.slow
def test_a_relay_whose_connection_was_ended_opens_another(shared: testing.Client, postgresql: Any) -> None:
    url = postgresql.url("ended")
    with closing(opened(url)) as connection:
        Outbox().create(connection)
        connection.commit()
    with Relay(shared, url, every="10ms") as relay:
        with closing(opened(url)) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where pid <> pg_backend_pid() and datname = 'ended'"
            )
            Outbox().publish(connection, "ended", "one")
            connection.commit()
        assert next(iter(shared.read("ended", start="first", follow=True, create=True))).value == b"one"
    assert relay.trouble == ""
