"""Edge cases of a whole client with a broker on a thread: full windows,
closing, abandoned calls.
"""

import asyncio
import errno
import gc
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zmq

from gossipq.errors import Backpressure, BadRequest, ClientClosed, NotConfirmed
from gossipq.limits import BATCH_RECORDS_MAX
from gossipq.messages import Confirm
from gossipq.types import Offset
from gossipq.wire import frames
from gossipq_client import Client, testing
from gossipq_client.aio import connect
from gossipq_client.io import transport
from gossipq_client.session import PendingReceipt
from gossipq_client.session.held import Held
from gossipq_client.session.packer import UNCONFIRMED_MAX, WINDOW_BATCHES

pytestmark = pytest.mark.e2e
PATIENCE_S = 25  #: less than a lease: a redelivery must not wait for its end
KEY = ["k"]  # a list with keys has batches of its own


@pytest.fixture
def mq(broker: testing.Broker) -> Iterator[Client]:
    with broker.connect() as mq:
        yield mq


def test_who_waits_together_for_the_window_goes_one_by_one(broker: testing.Broker) -> None:
    async def main() -> int:
        high = 0
        async with connect(broker.endpoint, timeout=60) as mq:
            await mq.create_topic("crowd", 1)

            async def publish(number: int) -> None:
                nonlocal high
                raws = [b"%d" % number]
                sent = await mq._publisher._send_list("crowd", raws, mq._publisher._prepared_list(raws, {}))
                high = max(high, len(mq._driver.engine.session.publishing.topics["crowd"].writers[0].flights))
                await mq._publisher.receipt(sent, None)

            real = mq._driver.engine.transport.receive
            mq._driver.engine.transport.receive = list  # type: ignore[method-assign]  # the confirms come all at once
            tasks = [asyncio.create_task(publish(number)) for number in range(1_000)]
            await asyncio.sleep(0.3)
            mq._driver.engine.transport.receive = real  # type: ignore[method-assign]
            await asyncio.gather(*tasks)
        return high

    assert asyncio.run(main()) <= WINDOW_BATCHES


def test_who_waits_for_the_window_goes_before_who_comes_later(broker: testing.Broker) -> None:
    """A caller that had just sent a record once found room for the next before the
    waiting callers had looked.
    """

    async def main() -> list[bytes]:
        async with connect(broker.endpoint, timeout=60) as mq:
            await mq.create_topic("queue", 1)
            await mq.publish("queue", b"first")
            real = mq._driver.engine.transport.receive
            mq._driver.engine.transport.receive = list  # type: ignore[method-assign]  # the confirms come all at once
            for _ in range(WINDOW_BATCHES):
                mq.post_many("queue", [b"filling"], keys=KEY)
            await mq._driver.posts_sent(PATIENCE_S)

            async def publish(number: int) -> None:
                for turn in range(2):
                    raws = [b"%d.%d" % (turn, number)]
                    await mq._publisher._send_list(
                        "queue", raws, mq._publisher._prepared_list(raws, {"keys": KEY})
                    )
                    if not number and not turn:
                        for values in ([b"no"], [b"no", b"no"]):
                            with pytest.raises(Backpressure):
                                await mq.publish_many("queue", values, wait=0)
                        with pytest.raises(Backpressure):
                            await mq.publish("queue", b"no", wait=0)

            tasks = [asyncio.create_task(publish(number)) for number in range(30)]
            await asyncio.sleep(0.1)
            mq._driver.engine.transport.receive = real  # type: ignore[method-assign]
            await asyncio.gather(*tasks)
            await mq.flush(PATIENCE_S)
            assert not mq._driver._gates
            assert not mq._driver._queued
            return [msg.value async for msg in mq.read("queue")]

    values = asyncio.run(main())[1 + WINDOW_BATCHES :]
    assert values == [b"%d.%d" % (turn, number) for turn in range(2) for number in range(30)]


def test_a_list_of_more_batches_than_the_window_has_goes_at_once_where_nothing_waits(
    broker: testing.Broker, mq: Client
) -> None:
    count = (UNCONFIRMED_MAX + 5) * BATCH_RECORDS_MAX
    values = [b""] * count
    receipt = mq.publish_many("long", values, wait=0, partition=0, timeout=PATIENCE_S)
    assert (receipt.count, len(receipt.receipts)) == (count, UNCONFIRMED_MAX + 5)

    async def main() -> None:
        async with connect(broker.endpoint) as mq:
            transport, kept = mq._driver.engine.transport, []
            real = transport.receive

            def without_confirms() -> list[tuple[str, list[bytes]]]:
                found = real()
                kept.extend(each for each in found if frames.peek(each[1][0]).verb == Confirm.verb)
                return [each for each in found if each not in kept]

            transport.receive = without_confirms  # type: ignore[method-assign]  # none makes room
            pending = mq.post_many("long", values, wait=0, partition=0)
            await mq._driver.posts_sent(PATIENCE_S)
            with pytest.raises(Backpressure):
                await mq.publish_many("long", [b"no"], wait=0, partition=0)
            transport.receive = lambda: [*kept[:], *(kept.clear() or []), *real()]  # type: ignore[method-assign]
            assert (await pending.result(PATIENCE_S)).offset == count

    asyncio.run(main())


def test_steps_wait_for_the_window(mq: Client) -> None:
    mq.create_topic("in", 1)
    mq.create_topic("out", 1, beside="in")
    mq.publish_many("in", [b"%d" % number for number in range(1_000)], timeout=PATIENCE_S)
    high = 0
    for msg in mq.consume("in", group="g", stop_at_end=True):
        msg.post_with("out", b"x")
        high = max(high, len(mq._driver.engine.session.publishing.topics["out"].writers[0].flights))
    assert high <= WINDOW_BATCHES


def test_asyncio_steps_wait_for_the_window(broker: testing.Broker) -> None:
    async def main() -> int:
        high = 0
        async with connect(broker.endpoint) as mq:
            await mq.create_topic("source", 1)
            await mq.create_topic("sink", 1, beside="source")
            await mq.publish_many("source", [b"%d" % number for number in range(1_000)])
            async for msg in mq.consume("source", group="g", stop_at_end=True):
                await msg.ack_with("sink", b"x")
                high = max(high, len(mq._driver.engine.session.publishing.topics["sink"].writers[0].flights))
        return high

    assert asyncio.run(main()) <= WINDOW_BATCHES


def test_the_keeper_survives_an_error(
    mq: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mq.publish("kept", b"x", timeout=PATIENCE_S)
    batch = mq.fetch("kept", "g", n=1, wait=PATIENCE_S)
    real, failed = mq._driver.engine.exchange, threading.Event()

    def exchange(thorough: bool = False, lingering: bool = False) -> bool:
        if threading.current_thread().name == "gossipq-keeper" and not failed.is_set():
            failed.set()
            raise OSError("once")
        return real(thorough, lingering)

    monkeypatch.setattr(mq._driver.engine, "exchange", exchange)
    assert failed.wait(PATIENCE_S)
    mq.ack_soon(batch)
    deadline = time.monotonic() + PATIENCE_S
    while not mq._driver.engine.session.settled:
        assert time.monotonic() < deadline, "nobody told the ack"
        time.sleep(0.05)
    assert "OSError: once" in caplog.text


def test_the_keeper_stands_aside_while_a_caller_waits_and_is_back_when_none_does(mq: Client) -> None:
    mq.publish("aside", b"x", timeout=PATIENCE_S)

    def aside(wanted: bool) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while mq._driver.keeper.aside != wanted:
            assert time.monotonic() < deadline, f"aside: {not wanted}"
            time.sleep(0.01)

    aside(False)
    with mq.subscribe("aside", "g", start="new") as subscription:
        taken = threading.Event()

        def consume() -> None:
            for message in subscription:
                message.ack_soon()
                taken.set()
                time.sleep(1.5)  # at work, while somebody pings and sends the ack
                break

        consumer = threading.Thread(target=consume)
        consumer.start()
        aside(True)
        mq.publish("aside", b"y", timeout=PATIENCE_S)
        assert taken.wait(PATIENCE_S)
        aside(False)
        deadline = time.monotonic() + PATIENCE_S
        while not mq._driver.engine.session.settled:
            assert time.monotonic() < deadline, "nobody told the ack"
            time.sleep(0.01)
        pinged_ms = mq._driver.engine.session.links.home.pinged_ms
        while mq._driver.engine.session.links.home.pinged_ms == pinged_ms:
            assert time.monotonic() < deadline, "nobody pings"
            time.sleep(0.01)
        consumer.join()


def test_the_asyncio_client_turns_on_after_an_error(broker: testing.Broker) -> None:
    async def main() -> None:
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: errors.append(context["exception"])
        )
        async with connect(broker.endpoint) as mq:
            await mq.publish("going", b"x")
            real = mq._driver.engine.exchange

            def exchange(thorough: bool = False) -> bool:
                if not errors:
                    raise OSError("once")
                return real(thorough)

            mq._driver.engine.exchange = exchange  # type: ignore[method-assign]
            while not errors:
                await asyncio.sleep(0.05)
            turns = mq._driver.engine.session.links.now_ms
            await asyncio.sleep(1)
            assert mq._driver.engine.session.links.now_ms > turns

    asyncio.run(main())


def test_without_descriptors_a_client_waits_for_some(
    broker: testing.Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, left = transport.Peer, [3]

    def peer(*arguments: Any) -> transport.Peer:
        if left[0]:
            left[0] -= 1
            raise zmq.ZMQError(errno.EMFILE)
        return real(*arguments)

    monkeypatch.setattr(transport, "Peer", peer)
    with broker.connect() as mq:
        assert left == [0]
        left[0] = 3
        assert mq.publish("later", b"x", timeout=PATIENCE_S).offset == 0
        assert left == [0]
    assert "no descriptor is left" in caplog.text


class Publishing(logging.Handler):
    """Sends lines of the log to a topic, from a thread of its own, as one with a queue does."""

    def __init__(self, mq: Client) -> None:
        super().__init__()
        self._mq, self._pool, self.stored = mq, ThreadPoolExecutor(1), queue.Queue[Offset]()

    def emit(self, record: logging.LogRecord) -> None:
        pending = self._pool.submit(self._mq.publish, "log", record.getMessage().encode())
        self.stored.put(pending.result(PATIENCE_S).offset)


def test_the_log_may_go_to_the_broker_by_the_client_that_writes_it(mq: Client) -> None:
    """A thread that writes a log line waits for the log's handlers, so it must not
    hold the client meanwhile.
    """
    mq.publish("log", b"first")
    publishing, log = Publishing(mq), logging.getLogger("gossipq_client")
    log.addHandler(publishing)
    try:
        mq._driver.engine.session.consuming.warnings.append("lease lost: 1..2 of partition 0x3")
        mq.flush(PATIENCE_S)
        assert publishing.stored.get(timeout=PATIENCE_S) == 1
    finally:
        log.removeHandler(publishing)


def closing(mq: Client, flush: bool, told: list[BaseException]) -> None:
    try:
        mq.close(flush)
    except BaseException as error:
        told.append(error)


def test_two_threads_may_close(broker: testing.Broker) -> None:
    told: list[BaseException] = []
    for _ in range(10):
        mq = broker.connect()
        mq.post("closing", b"x")
        threads = [threading.Thread(target=closing, args=(mq, True, told)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert told == []


def test_what_others_publish_during_a_close_is_stored_or_refused(broker: testing.Broker) -> None:
    """Between the last look for unconfirmed records and the end, another thread could publish a
    record that was never sent.
    """
    mq, told = broker.connect(), list[Exception]()
    mq.publish("published.late", b"0")
    shut = mq._driver.shut

    def publish() -> None:
        try:
            for _ in range(100):
                mq.post("published.late", b"late")
        except ClientClosed as error:
            told.append(error)

    def shut_late() -> None:
        late = threading.Thread(target=publish)
        late.start()
        late.join()
        shut()

    mq._driver.shut = shut_late  # type: ignore[method-assign]
    mq.close()
    assert told
    mq.close()
    with broker.connect() as reader:
        assert [msg.value for msg in reader.read("published.late")] == [b"0"]


def test_what_other_tasks_publish_during_a_close_is_stored_or_refused(broker: testing.Broker) -> None:
    async def main() -> int:
        mq, count = connect(broker.endpoint), 0
        await mq.create_topic("aclosing", 1)

        async def publish() -> None:
            nonlocal count
            while True:
                await mq.publish("aclosing", b"x")
                count += 1
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(publish()) for _ in range(3)]
        await asyncio.sleep(0.02)
        await mq.close()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, ClientClosed) for end in ends)
        return count

    for _ in range(5):
        with broker.connect() as reader:
            published = asyncio.run(main())
            stored = list(reader.read("aclosing"))
            assert len(stored) == published
            reader.topic("aclosing").delete()


def test_who_closes_with_a_flush_hears_that_somebody_closed_without() -> None:
    told: list[BaseException] = []
    with testing.Broker() as broker:
        mq = broker.connect()
        mq.publish("t", b"x", timeout=PATIENCE_S)
    pending = mq.post("t", b"y")
    thread = threading.Thread(target=closing, args=(mq, True, told))
    thread.start()
    time.sleep(0.3)
    assert not pending.done()
    mq.close(flush=False)
    thread.join()
    assert [type(error) for error in told] == [NotConfirmed]
    assert pending.done(), "result raises at once"
    with pytest.raises(ClientClosed):
        pending.result()


def test_who_waits_for_a_record_that_a_close_gets_confirmed_hears_so(broker: testing.Broker) -> None:
    """Its flight was done, and the client closed, before it looked again."""
    offsets, errors = list[int](), list[BaseException]()

    def wait(pending: PendingReceipt, ready: threading.Event) -> None:
        ready.set()
        try:
            offsets.append(pending.result(PATIENCE_S).offset)
        except BaseException as error:
            errors.append(error)

    for number in range(2):
        mq, ready = broker.connect(), threading.Event()
        mq.publish("waited", b"x")
        real = mq._driver.engine.transport.receive
        mq._driver.engine.transport.receive = list  # type: ignore[method-assign]  # it is confirmed by the close
        pending = mq.post_many("waited", [b"x"]) if number % 2 else mq.post("waited", b"x")
        thread = threading.Thread(target=wait, args=(pending, ready))
        thread.start()
        ready.wait()
        while not mq._driver.waiting:
            time.sleep(0.001)
        mq._driver.engine.transport.receive = real  # type: ignore[method-assign]
        with mq._driver.lock:  # whoever waits looks again behind it
            mq.close()
        thread.join()
        assert pending.done()
        assert pending.result() == pending.result(0)
    assert errors == []
    assert offsets == [1, 3]


def test_an_asyncio_result_whose_time_ends_with_the_confirm_is_the_receipt(broker: testing.Broker) -> None:
    async def main() -> None:
        async with connect(broker.endpoint) as mq:
            await mq.publish("in.time", b"x")
            pending = mq.post("in.time", b"y")
            result = asyncio.create_task(pending.result(0.3))
            await asyncio.sleep(0)
            real = mq._driver.engine.transport.receive
            mq._driver.engine.transport.receive = list  # type: ignore[method-assign]
            await asyncio.sleep(0.05)
            mq._driver.engine.transport.receive = real  # type: ignore[method-assign]
            time.sleep(0.4)  # the loop is busy until both have come
            mq._driver.turn()
            assert (await result).offset == 1

    asyncio.run(main())


def test_asyncio_waiters_for_what_a_close_gets_confirmed_hear_so(broker: testing.Broker) -> None:
    async def main() -> None:
        for number in range(10):
            mq = connect(broker.endpoint)
            pending = mq.post("awaited", b"x")
            result = asyncio.create_task(pending.result(PATIENCE_S))
            await asyncio.sleep(0)
            await mq.close()
            assert (await result).offset == number
            assert pending.done()
            assert (await pending).offset == number

    asyncio.run(main())


def test_asyncio_closes_leave_nothing_behind() -> None:
    async def main() -> list[Any]:
        unseen: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: unseen.append(context["message"])
        )
        broker = await asyncio.to_thread(testing.Broker)
        mq = await connect(broker.endpoint)
        await mq.publish("t", b"x")
        await asyncio.to_thread(broker.close)
        pending = mq.post("t", b"y")
        with pytest.raises(NotConfirmed):
            await pending.result(0.1)
        first = asyncio.create_task(mq.close())
        await asyncio.sleep(0.1)
        assert not pending.done()
        await mq.close(flush=False)
        with pytest.raises(NotConfirmed):
            await first
        assert pending.done()
        with pytest.raises(ClientClosed):
            await pending
        del pending, mq, first
        gc.collect()
        await asyncio.sleep(0)
        return unseen

    assert asyncio.run(main()) == []


def test_an_ack_after_the_close_is_refused(broker: testing.Broker) -> None:
    mq = broker.connect()
    mq.publish_many("acks", [b"1", b"2"], timeout=PATIENCE_S)
    batch = mq.fetch("acks", "g", n=2, wait=PATIENCE_S)
    message = batch[0]
    mq.close()
    with pytest.raises(ClientClosed):
        message.ack_soon()
    with pytest.raises(ClientClosed):
        mq.ack_soon(batch)

    async def main() -> None:
        mq = await connect(broker.endpoint)
        batch = await mq.fetch("acks", "g", n=2, wait=PATIENCE_S)
        message = batch[0]
        await mq.close()
        with pytest.raises(ClientClosed):
            message.ack_soon()
        with pytest.raises(ClientClosed):
            mq.ack_soon(batch)

    asyncio.run(main())


def test_what_a_waiter_meets_is_its_own(broker: testing.Broker, mq: Client) -> None:
    """Replies cannot be read here: the topic that they would come from is virtual."""
    mq.create_topic("real")
    mq.topic("_replies").bind(["real"])
    mq.create_topic("x")
    mq.fetch("x", "desk", n=1, wait="10ms")  # somebody is there who might answer

    async def main() -> None:
        async with connect(broker.endpoint, timeout=4) as mq:

            async def publish() -> None:
                while True:
                    await mq.publish("other", b"x")
                    await asyncio.sleep(0.01)

            other = asyncio.create_task(publish())
            await asyncio.sleep(0.1)
            with pytest.raises(BadRequest):
                await mq.request("x", b"?", timeout=3)
            assert not other.done()
            other.cancel()

    asyncio.run(main())


def lent(mq: Any) -> int:
    parts = [part for fetcher in mq._consumer.fetchers.values() for part in fetcher.state.parts]
    return sum(part.lent_records for part in parts)


def test_a_fetch_that_is_broken_off_keeps_nothing_lent(
    broker: testing.Broker, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.create_topic("broken", 1)
    mq.publish("broken", b"first", timeout=PATIENCE_S)
    with broker.connect() as other:
        assert other.fetch("broken", "g", n=1, wait=PATIENCE_S).values() == [b"first"]

        def interrupted(*_: object) -> bool:
            other._driver.until(lambda: False, 0.2)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(other._consumer, "await_records", interrupted)
            with pytest.raises(KeyboardInterrupt):
                other.fetch("broken", "g", n=10)
        assert lent(other) == 0
        mq.publish("broken", b"second", timeout=PATIENCE_S)
        assert mq.fetch("broken", "g", n=10, wait=PATIENCE_S).values() == [b"second"]
        mq.close()  # the records it holds are given back
        assert other.fetch("broken", "g", n=10, wait=PATIENCE_S).values() == [b"second"], (
            "a fetch goes on as before"
        )


def test_an_asyncio_fetch_that_is_cancelled_keeps_nothing_lent(broker: testing.Broker, mq: Client) -> None:
    mq.publish("cancelled", b"first", timeout=PATIENCE_S)

    async def main() -> None:
        async with connect(broker.endpoint) as other:
            await other.fetch("cancelled", "g", n=1, wait=PATIENCE_S)
            task = asyncio.create_task(other.fetch("cancelled", "g", n=10, wait=60))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert lent(other) == 0
            await asyncio.to_thread(mq.publish, "cancelled", b"second", timeout=PATIENCE_S)
            batch = await asyncio.to_thread(mq.fetch, "cancelled", "g", n=10, wait=PATIENCE_S)
            assert batch.values() == [b"second"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "ask",
    [
        lambda mq: mq.post("\udcff", b"x"),
        lambda mq: mq.fetch("\udcff*", "g", wait=0.0),
        lambda mq: mq.fetch("saying", "\udcff", wait=0.0),
        lambda mq: mq.create_topic("saying", 2**64),
        lambda mq: mq.admin.stats([object()]),
    ],
    ids=["publish", "pattern", "group", "number", "object"],
)
def test_what_no_frame_can_carry_is_refused_and_the_client_goes_on(
    broker: testing.Broker, ask: Callable[[Client], Any]
) -> None:
    """It was asked again at each exchange, which failed by that: nothing went through this client any
    more."""
    mq = broker.connect()
    mq.publish("saying", b"before")
    with pytest.raises(BadRequest):
        ask(mq)
    mq.publish("saying", b"after")
    mq.close()


def test_the_values_of_a_batch_belong_to_the_user(mq: Client) -> None:
    mq.publish_many("values", [b"1", b"2", b"3"], timeout=PATIENCE_S)
    batch = mq.fetch("values", "g", n=3, wait=PATIENCE_S)
    batch.values().reverse()
    assert [(msg.offset, msg.value) for msg in batch] == [(0, b"1"), (1, b"2"), (2, b"3")]


def test_a_pause_right_after_a_record_was_taken_leaves_it_to_the_user(
    mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.create_topic("paused", 1)
    mq.publish_many("paused", [b"%d" % number for number in range(5)], timeout=PATIENCE_S)
    messages = mq.consume("paused", group="g")
    held, pauses = next(messages)._held, [1]
    held.lost.append((10**9, 10**9 + 1))  # so that it is looked at

    def is_lost(held: Held, offset: int) -> bool:
        if pauses:
            pauses.pop()
            mq._driver.engine.session.consuming.pause(held.part.subscription)
        return False

    monkeypatch.setattr(Held, "is_lost", is_lost)
    assert [next(messages).offset for _ in range(4)] == [1, 2, 3, 4]
