"""A client at the top of a module lives as often as its `with` is entered: with each test of an application,
each start of a web server."""

import asyncio
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from conftest import HOME
from gossipq.errors import BadRequest, ClientClosed, LeaseLost
from gossipq_client import aio, connect, testing

pytestmark = pytest.mark.e2e
EXAMPLES = HOME / "clients/python/examples"


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


def test_a_with_connects_a_closed_client_again(broker: testing.Broker) -> None:
    seen = list[bytes]()
    mq = connect(broker.endpoint)

    @mq.consumer("again", group="g")
    def note(value: bytes) -> None:
        seen.append(value)

    for number in range(3):
        with mq:
            mq.publish("again", b"%d" % number)
            mq.run(stop_at_end=True)
        with pytest.raises(ClientClosed):
            mq.post("again", b"x")
    assert seen == [b"0", b"1", b"2"]


def test_one_that_was_closed_before_it_was_used_connects(broker: testing.Broker) -> None:
    mq = connect(broker.endpoint)
    mq.close()
    with mq:
        mq.publish("unused", b"x")


def test_operators_ask_by_the_session_in_use(broker: testing.Broker) -> None:
    mq = connect(broker.endpoint)
    mq.create_topic("asked", if_not_exists=True)
    topic, admin = mq.topic("asked"), mq.admin
    for _ in range(2):
        with mq:
            assert topic.describe().name == "asked"
            assert admin.status().led > 0


def test_what_is_left_of_an_earlier_life_fails(broker: testing.Broker) -> None:
    """In the new session the same numbers name other records."""
    mq = connect(broker.endpoint)
    with mq:
        receipt = mq.post_many("left", [b"0", b"1", b"2"])
        fetcher = mq.fetcher("left", group="g")
        batch = fetcher.fetch(2)
        loop = mq.subscribe("left", group="h")
        in_hand = next(loop)
    with mq:
        assert receipt.result(5).count == 3
        assert [len(mq.fetch("left", "g", n=3, min=3, wait=30))] == [3]
        with pytest.raises(LeaseLost):
            in_hand.ack_soon()
        with pytest.raises(BadRequest):
            mq.ack_soon(batch)
        with pytest.raises(ClientClosed):
            fetcher.fetch(1)
        with pytest.raises(ClientClosed):
            next(loop)
        mq.flush(None)
        assert {group.group: group.acked for group in mq.topic("left").groups()} == {"g": 0, "h": 0}


def test_a_spool_is_used_again(broker: testing.Broker, tmp_path: Path) -> None:
    mq = connect(broker.endpoint, spool=tmp_path)
    for number in range(2):
        with mq:
            mq.publish("spooled", b"%d" % number)
    with mq:
        assert [msg.value for msg in mq.read("spooled")] == [b"0", b"1"]


def test_it_connects_to_where_the_environment_says_then(
    broker: testing.Broker, monkeypatch: pytest.MonkeyPatch, nobody: str
) -> None:
    """A module that was imported before the fixture of a test had its client at the node of the machine."""
    monkeypatch.setenv("GOSSIPQ_SERVER", nobody)
    mq = connect()
    monkeypatch.setenv("GOSSIPQ_SERVER", broker.endpoint)
    with mq:
        mq.publish("here", b"x")
    with testing.Broker() as other:
        monkeypatch.setenv("GOSSIPQ_SERVER", other.endpoint)
        with mq:
            assert [topic.name for topic in mq.topics()] == []


def test_a_web_application_is_started_twice(
    broker: testing.Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    starlette = pytest.importorskip("starlette.testclient")
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("GOSSIPQ_SERVER", broker.endpoint)
    web = import_module("web")
    said = ""
    for name in ("ada", "bob"):
        with starlette.TestClient(web.app) as client:
            assert client.post(f"/signups/{name}").status_code == 200
            deadline_s = time.monotonic() + 10
            while f"welcome {name}" not in said and time.monotonic() < deadline_s:
                time.sleep(0.01)
                said += capsys.readouterr().out
    assert said == "welcome ada\nwelcome bob\n"


def test_asyncio_clients_live_in_one_event_loop_after_the_other(
    broker: testing.Broker, tmp_path: Path
) -> None:
    mq, seen = aio.connect(broker.endpoint, spool=tmp_path), list[bytes]()

    @mq.consumer("loops", group="g")
    async def note(value: bytes) -> None:
        seen.append(value)

    async def main(number: int) -> None:
        async with mq:
            await mq.publish("loops", b"%d" % number)
            await mq.run(stop_at_end=True, signals=False)
            await asyncio.gather(*(mq.post("crowd", b"x") for _ in range(20)))
        with pytest.raises(ClientClosed):
            await mq.publish("loops", b"x")

    for number in range(3):
        asyncio.run(main(number))
    assert seen == [b"0", b"1", b"2"]
