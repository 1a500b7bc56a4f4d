"""The outbox on SQLite: rows go with their transaction, and each is published once, in order."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import gossipq
from gossipq.errors import BadRequest, ConfigError, TopicFull, UnknownTopic
from gossipq.outbox import Outbox, Relay
from gossipq_client import testing
from gossipq_outbox.databases import opened
from integrations import kill_points


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def shared(broker: testing.Broker) -> Iterator[testing.Client]:
    with broker.connect() as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of this test alone."""
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def connection(url: str) -> Iterator[sqlite3.Connection]:
    connection = opened(url)
    Outbox().create(connection)
    connection.commit()
    yield connection
    connection.close()


def values_of(mq: Any, topic: str) -> list[bytes]:
    return [msg.value for msg in mq.read(topic)]


def test_a_row_goes_with_its_transaction(
    shared: testing.Client, connection: sqlite3.Connection, url: str, topic: str
) -> None:
    outbox = Outbox()
    relay = Relay(shared, url)
    with connection:
        outbox.publish(connection, topic, "kept", key="ada", headers={"shop": "north"})
        assert relay.once() == 0, "the transaction is open"
    outbox.publish(connection, topic, "dropped")
    connection.rollback()
    assert relay.once() == 1
    assert relay.once() == 0
    relay.source.abandon()
    (msg,) = shared.read(topic)
    assert (msg.value, msg.key, msg.headers) == (b"kept", b"ada", {"shop": "north"})
    assert connection.execute("select count(*) from gossipq_outbox").fetchone() == (0,)


def test_rows_are_published_in_order(
    shared: testing.Client, connection: sqlite3.Connection, url: str, topic: str
) -> None:
    with connection:
        for number in range(25):
            Outbox().publish(connection, topic, str(number))
    relay = Relay(shared, url, batch=10)
    relay.run(until_empty=True)
    assert relay.published == 25
    assert values_of(shared, topic) == [str(number).encode() for number in range(25)]


def test_a_row_that_is_sent_again_is_stored_once(
    shared: testing.Client, connection: sqlite3.Connection, url: str, topic: str
) -> None:
    """As after a crash between the confirm and the delete."""
    with connection:
        Outbox().publish(connection, topic, "one")
    relay = Relay(shared, url)
    relay._post(relay.source.take(10))
    relay.source.abandon()
    shared.flush()
    Relay(shared, url).run(until_empty=True)
    assert values_of(shared, topic) == [b"one"]


def test_sql_alone_can_insert_a_row(
    shared: testing.Client, connection: sqlite3.Connection, url: str, topic: str
) -> None:
    with connection:
        connection.execute("insert into gossipq_outbox (topic, value) values (?, 'by a trigger')", (topic,))
    Relay(shared, url).run(until_empty=True)
    (msg,) = shared.read(topic)
    assert (msg.value, len(msg.id or "")) == (b"by a trigger", 32)


def test_a_row_that_can_never_be_published_is_kept_with_the_reason(
    shared: testing.Client, connection: sqlite3.Connection, url: str, topic: str
) -> None:
    insert = "insert into gossipq_outbox (topic, value, options) values (?, 'x', ?)"
    with connection:
        for options in ('{"ttl": "-1s"}', "[]", '{"colour": "red"}', "nonsense"):
            connection.execute(insert, (topic, options))
        Outbox().publish(connection, topic, "good")
    relay = Relay(shared, url)
    relay.run(until_empty=True)
    assert (relay.published, relay.refused) == (1, 4)
    rows = relay.source.rows(10)
    assert [reason is not None for _, reason in rows] == [True] * 4
    assert "colour" in (rows[2][1] or "")
    connection.execute("update gossipq_outbox set options = '{}'")
    connection.commit()
    assert relay.source.retry() == 4
    relay.source.abandon()
    Relay(shared, url).run(until_empty=True)
    assert len(values_of(shared, topic)) == 5


class Receipt:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def exception(self, timeout: float) -> Any:
        return self._error


class Fickle:
    """A publisher whose posts end as it is told."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors, self.values = list(errors), list[bytes]()

    def post(self, topic: str, value: bytes, **options: Any) -> Receipt:
        self.values.append(value)
        return Receipt(self.errors.pop(0))


@pytest.mark.parametrize(("error", "is_refused"), [(TopicFull("full"), False), (UnknownTopic("none"), True)])
def test_a_refusal_that_can_end_is_tried_again(
    connection: sqlite3.Connection, url: str, error: Exception, is_refused: bool
) -> None:
    with connection:
        for value in ("one", "two"):
            Outbox().publish(connection, "orders", value)
    mq = Fickle(None, error, None)
    relay = Relay(mq, url)
    assert relay.once() == 1 + is_refused
    assert bool(relay.trouble) is not is_refused
    assert relay.once() == 1 - is_refused
    assert mq.values == ([b"one", b"two"] if is_refused else [b"one", b"two", b"two"])
    relay.source.abandon()


def test_a_relay_in_a_thread_survives_errors_of_the_database(
    shared: testing.Client, tmp_path: Path, topic: str
) -> None:
    url = f"sqlite:///{tmp_path}/late.db"  # there is no table yet
    with Relay(shared, url, every=60) as relay:
        connection = opened(url)
        Outbox().create(connection)
        Outbox().publish(connection, topic, "one")
        connection.commit()
        connection.close()
        relay.wake()
        assert next(iter(shared.read(topic, start="first", follow=True, create=True))).value == b"one"
    assert relay.trouble == ""


def test_what_is_no_database_is_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(ConfigError, match="names no database"):
        opened("mysql://db/shop")
    with pytest.raises(BadRequest, match="no connection that an outbox knows"):
        Outbox().publish(object(), "orders", "one")
    with pytest.raises(BadRequest, match="table="):
        Outbox("a; drop table b")


def test_a_kill_before_every_fourth_statement_loses_and_doubles_nothing(
    broker: testing.Broker, url: str, topic: str
) -> None:
    assert killed_at_each(broker, url, topic, step=4) > 30


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_kill_before_any_statement_loses_and_doubles_nothing(
    broker: testing.Broker, url: str, topic: str, database: str, request: pytest.FixtureRequest
) -> None:
    if database == "postgresql":
        url = request.getfixturevalue("postgresql").url("killed")
    assert killed_at_each(broker, url, topic, step=1) > 120


def killed_at_each(broker: testing.Broker, url: str, topic: str, step: int) -> int:
    """Return how many processes were killed, after counting what they published."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", kill_points.__file__, broker.endpoint, url, topic, str(step)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    with closing(opened(url)) as connection:
        cursor = connection.execute("select number from sales order by number")
        sales = [number for (number,) in cursor.fetchall()]
        assert connection.execute("select count(*) from gossipq_outbox").fetchone() == (0,)
    expected = [f"{number}/{at}".encode() for number in sales for at in range(kill_points.ROWS)]
    with broker.connect() as mq:
        assert values_of(mq, topic) == expected
    return int(ran.stdout)


def test_the_module_is_an_attribute_of_gossipq() -> None:
    assert gossipq.outbox.Outbox is Outbox
