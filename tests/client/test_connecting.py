"""The first connect of a client that several use: whoever gives up leaves it to the others."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gossipq.errors import ClientClosed, GossipqError, Unreachable
from gossipq_client import Client, aio, connect, testing

PATIENCE_S = 30


def in_thread(do: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """When the thread has ended, the list has the result or the error."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(do())
        except GossipqError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def await_waiting(mq: Client, count: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while len(mq._driver.waiting) < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("use", [lambda mq: mq.post("t", b"x"), lambda mq: mq._driver.connect(1.0)])
def test_a_connect_that_fails_leaves_others_their_own_time(nobody: str, use: Callable[[Client], Any]) -> None:
    mq = connect(nobody, timeout=1)
    first, fails = in_thread(lambda: mq._driver.connect(0.5))
    await_waiting(mq, 1)
    second, waits = in_thread(lambda: use(mq))
    await_waiting(mq, 2)
    first.join()
    assert [type(each) for each in fails] == [Unreachable]
    assert second.is_alive()
    second.join()
    assert [type(each) for each in waits] == [Unreachable]
    with pytest.raises(Unreachable), mq:
        pass
    assert mq._driver.made is None, "the last one that waits ends it"


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals of threads")
def test_an_interrupted_connect_leaves_others_theirs(broker: testing.Broker) -> None:
    class Enough(Exception):
        pass

    def stop(*_: object) -> None:
        raise Enough

    mq = connect(broker.endpoint, timeout=PATIENCE_S)
    before = signal.signal(signal.SIGUSR1, stop)
    waits: list[Any] = []
    threads: list[threading.Thread] = []

    def interrupt() -> None:
        await_waiting(mq, 1)
        thread, outcome = in_thread(lambda: mq.publish("interrupted", b"x", timeout=PATIENCE_S).offset)
        threads.append(thread)
        waits.append(outcome)
        await_waiting(mq, 2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    with pytest.MonkeyPatch.context() as patch:
        # the client ignores it
        patch.setattr("gossipq_client.session.links.Links.welcomed", lambda *_: False)
        try:
            interrupter = threading.Thread(target=interrupt)
            interrupter.start()
            with pytest.raises(Enough):
                mq.__enter__()
        finally:
            signal.signal(signal.SIGUSR1, before)
        interrupter.join()
    threads[0].join()
    assert waits == [[0]]
    mq.close()


def test_an_asyncio_connect_that_ends_leaves_others_theirs(broker: testing.Broker, nobody: str) -> None:
    async def main() -> None:
        mq = aio.connect(broker.endpoint)
        first, second = asyncio.create_task(mq._driver.connect()), asyncio.create_task(mq._driver.connect())
        third = asyncio.create_task(mq.publish("cancelled", b"x"))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert (await third).offset == 0
        await mq.close()

        away = aio.connect(nobody, wait=0.2, timeout=0.6)
        begun_s = time.monotonic()
        publishing = asyncio.create_task(away.publish("t", b"x"))
        with pytest.raises(Unreachable):
            await away
        with pytest.raises(Unreachable):
            await publishing
        assert time.monotonic() - begun_s > 0.5
        with pytest.raises(Unreachable):
            await away
        assert away._driver.made is None, "the last one that waits ends it"

    asyncio.run(main())


def test_who_uses_a_closed_client_is_told(broker: testing.Broker) -> None:
    mq = broker.connect()
    pending = mq.post("closed", b"x")
    mq.close()
    with pytest.raises(ClientClosed, match="closed") as told:
        mq.post("closed", b"x")
    assert told.value.hint == "call connect() again"
    assert pending.done()

    async def main() -> None:
        mq = aio.connect(broker.endpoint)
        pending = mq.post("closed", b"x")
        await mq.close()
        with pytest.raises(ClientClosed) as told:
            await mq
        assert told.value.hint == "call connect() again"
        async with mq:
            assert pending.done()
            assert (await pending).offset == 1

    asyncio.run(main())
