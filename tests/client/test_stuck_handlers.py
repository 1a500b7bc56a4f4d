"""Handlers in threads that never return: other workers take their place, and a run ends without them."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gossipq_client import Message, TimeLimitExceeded, aio, testing
from gossipq_client.api.aio import runs as aio_runs
from gossipq_client.api.sync import runs
from gossipq_client.handlers import crew
from waiting import until

pytestmark = pytest.mark.e2e
PATIENCE_S = 60


@pytest.fixture
def mq(broker: testing.Broker) -> Iterator[testing.Client]:
    with broker.connect() as client:
        yield client


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (runs, aio_runs):
        monkeypatch.setattr(module, "STUCK_END_S", 0.1)


@pytest.fixture
def free() -> Iterator[threading.Event]:
    """What stuck handlers wait for."""
    event = threading.Event()
    yield event
    event.set()


Register = Callable[[Any], Any]


def run_sync(broker: testing.Broker, register: Register, is_over: Callable[[], bool]) -> None:
    with broker.connect() as client:
        register(client)
        failures: list[BaseException] = []

        def run() -> None:
            try:
                client.run(signals=False)
            except TimeLimitExceeded as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: is_over() or bool(failures))
        client.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        if failures:
            raise failures[0]


def run_aio(broker: testing.Broker, register: Register, is_over: Callable[[], bool]) -> None:
    async def main() -> None:
        async with aio.connect(broker.endpoint) as client:
            register(client)
            run = asyncio.create_task(client.run(signals=False))
            while not (is_over() or run.done()):
                await asyncio.sleep(0.01)
            client.stop()
            await run

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


twins = pytest.mark.parametrize("run", [run_sync, run_aio], ids=["sync", "aio"])


@twins
def test_others_take_the_place_of_stuck_workers(
    broker: testing.Broker,
    mq: testing.Client,
    free: threading.Event,
    run: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = f"hung.{run.__name__}"
    mq.publish_many(topic, [b"hang"] * 2 + [b"%d" % at for at in range(20)], timeout=PATIENCE_S)
    done: list[bytes] = []

    def register(client: Any) -> None:
        @client.consumer(topic, group="g", workers=2, time_limit="1s", attempts_max=1)
        def work(value: bytes) -> None:
            if value == b"hang":
                free.wait(PATIENCE_S)
            done.append(value)

    run(broker, register, lambda: len(done) == 20)
    assert sorted(done, key=int) == [b"%d" % at for at in range(20)]
    assert "another worker takes its place" in caplog.text
    assert "work (test_stuck_handlers.py:" in caplog.text, "where it hangs"
    assert "2 handlers did not end" in caplog.text
    assert len(list(mq.dead(topic).letters())) == 2


@twins
def test_too_many_stuck_workers_end_the_run(
    broker: testing.Broker,
    mq: testing.Client,
    free: threading.Event,
    run: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "STUCK_MAX", 1)
    topic = f"all.hung.{run.__name__}"
    mq.publish_many(topic, [b"hang"] * 9, timeout=PATIENCE_S)

    def register(client: Any) -> None:
        @client.consumer(topic, group="g", time_limit="50ms", attempts_max=1)
        def work(value: bytes) -> None:
            free.wait(PATIENCE_S)

    with pytest.raises(TimeLimitExceeded, match=r"2 handlers of .*work do not end"):
        run(broker, register, lambda: False)


@twins
def test_a_worker_that_returns_leaves_its_place_to_the_other(
    broker: testing.Broker, mq: testing.Client, free: threading.Event, run: Callable[..., None]
) -> None:
    """Never more records at a time than workers, but for those that are stuck."""
    topic = f"back.{run.__name__}"
    mq.publish(topic, b"hang", timeout=PATIENCE_S)
    now, most, lock, done = [0], [0], threading.Lock(), list[bytes]()

    def register(client: Any) -> None:
        @client.consumer(topic, group="g", time_limit="1s", attempts_max=2, backoff="1ms")
        def work(msg: Message) -> None:
            if msg.value == b"hang" and msg.attempt == 1:
                free.wait(PATIENCE_S)
                return
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            threading.Event().wait(0.02)
            with lock:
                now[0] -= 1
            done.append(msg.value)

    def is_over() -> bool:
        if done and not free.is_set():  # its second attempt is through, and the first one is stuck
            free.set()
            mq.publish_many(topic, [b"%d" % at for at in range(5)], timeout=PATIENCE_S)
        return len(done) == 6

    run(broker, register, is_over)
    assert most == [1]


@twins
def test_a_key_is_free_once_its_handler_exceeded_its_limit(
    broker: testing.Broker, mq: testing.Client, free: threading.Event, run: Callable[..., None]
) -> None:
    topic = f"keys.{run.__name__}"
    mq.publish_many(topic, [b"hang", b"next"], key=b"ada", timeout=PATIENCE_S)
    done: list[bytes] = []

    def register(client: Any) -> None:
        options: dict[str, Any] = {"mode": "key_ordered", "attempts_max": 2, "backoff": "1ms"}

        @client.consumer(topic, group="g", workers=2, time_limit="1s", **options)
        def work(msg: Message) -> None:
            if msg.value == b"hang" and msg.attempt == 1:
                free.wait(PATIENCE_S)
                return
            done.append(msg.value)

    run(broker, register, lambda: len(done) == 2)
    assert done == [b"hang", b"next"]
