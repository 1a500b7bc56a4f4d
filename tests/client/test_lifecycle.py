"""What a run does at its start and its end, handlers of several modules, and runs that end by themselves."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gossipq_client import BadRequest, Handlers, aio, testing
from gossipq_client.api.aio import runs as aio_runs
from gossipq_client.api.sync import runs
from gossipq_client.handlers import limits

pytestmark = pytest.mark.e2e
PATIENCE_S = 60


@pytest.fixture
def mq(broker: testing.Broker) -> Iterator[testing.Client]:
    with broker.connect() as client:
        yield client


Register = Callable[[Any], Any]


def run_sync(broker: testing.Broker, register: Register, **how: Any) -> str:
    with broker.connect() as client:
        register(client)
        return client.run(signals=False, **how)


def run_aio(broker: testing.Broker, register: Register, **how: Any) -> str:
    async def main() -> str:
        async with aio.connect(broker.endpoint) as client:
            register(client)
            return await client.run(signals=False, **how)

    return asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


twins = pytest.mark.parametrize("run", [run_sync, run_aio], ids=["sync", "aio"])


@twins
def test_hooks_run_around_all_handlers_and_the_last_one_first_at_the_end(
    broker: testing.Broker, mq: testing.Client, run: Callable[..., str]
) -> None:
    notes: list[str] = []
    part = Handlers()
    topic = f"hooks.{run.__name__}"
    mq.publish(topic, b"x", timeout=PATIENCE_S)

    @part.on_startup
    async def later() -> None:
        await asyncio.sleep(0)
        notes.append("up 2")

    @part.on_shutdown
    def also() -> None:
        notes.append("down 2")

    @part.consumer(topic, group="part")
    def work(value: bytes) -> None:
        notes.append("work")

    def register(client: Any) -> None:
        client.include(part)
        client.on_startup(lambda: notes.append("up 1"))
        client.on_shutdown(lambda: notes.append("down 1"))

    assert run(broker, register, stop_at_end=True) == "at_end"
    assert notes == ["up 1", "up 2", "work", "down 2", "down 1"]


@twins
def test_hooks_that_raise_end_the_run_and_the_others_are_called(
    broker: testing.Broker, run: Callable[..., str]
) -> None:
    notes: list[str] = []

    def register(client: Any) -> None:
        @client.consumer("never", group="g")
        def work(value: bytes) -> None:
            notes.append("work")

        @client.on_startup
        def fail() -> None:
            raise OSError("no database")

        @client.on_shutdown
        def fail_too() -> None:
            raise ValueError("second")

        client.on_shutdown(lambda: notes.append("down"))

    with pytest.raises(OSError, match="no database"):
        run(broker, register, stop_at_end=True)
    assert notes == ["down"]


def test_handlers_are_included_once_and_also_those_that_come_later() -> None:
    outer, inner = Handlers(), Handlers()
    inner.include(outer)
    outer.include(inner, inner)

    @inner.consumer("t", group="g")
    def work(value: bytes) -> None: ...

    assert [handler.function for handler in outer.some()] == [work]
    wrong: Any = "shop.mails"
    with pytest.raises(BadRequest, match=r"'shop.mails' has no handlers to include"):
        outer.include(wrong)


@twins
def test_a_run_ends_after_a_number_of_records(
    broker: testing.Broker, mq: testing.Client, run: Callable[..., str]
) -> None:
    topic = f"counted.{run.__name__}"
    mq.publish_many(topic, [b"x"] * 20, timeout=PATIENCE_S)
    done: list[bytes] = []

    def register(client: Any) -> None:
        client.consumer(topic, group="g")(lambda msg: done.append(msg.value))

    assert run(broker, register, max_records=7) == "max_records"
    assert len(done) == 7
    (row,) = mq.topic(topic).groups()
    assert (row.acked, row.ready, row.in_flight) == (7, 13, 0)


@twins
def test_a_run_ends_above_its_memory(
    broker: testing.Broker, mq: testing.Client, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"large.{run.__name__}"
    mq.publish_many(topic, [b"x"] * 5, timeout=PATIENCE_S)
    done: list[bytes] = []
    for module in (runs, aio_runs):
        monkeypatch.setattr(module, "resident_bytes", lambda: (1 << 30) if len(done) == 5 else 1 << 20)
        monkeypatch.setattr(module, "LOOK_MS", 0)

    def register(client: Any) -> None:
        client.consumer(topic, group="g")(lambda msg: done.append(msg.value))

    assert run(broker, register, max_memory=1 << 29) == "max_memory"
    assert len(done) == 5


def test_limits_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (limits.resident_bytes() or 0) > 1 << 20
    for how in ((False, 0, None), (False, None, 17), (False, True, None)):
        with pytest.raises(BadRequest):
            limits.Limits.of(*how)
    monkeypatch.setattr(limits, "resident_bytes", lambda: None)
    with pytest.raises(BadRequest, match="needs Linux or macOS"):
        limits.Limits.of(False, None, 1 << 30)
