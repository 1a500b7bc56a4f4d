"""Handlers at work against a whole node: threads and tasks, outcomes, order, stopping, requests."""

import asyncio
import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from gossipq_client import BadRequest, ClientClosed, LeaseLost, Message, NoReply, Reject, Retry, testing
from gossipq_client.aio import Client as AioClient
from gossipq_client.aio import connect as aio_connect
from gossipq_client.handlers.requests import REPLIES, TO
from gossipq_client.middleware import Middleware
from gossipq_client.values import inputs
from waiting import until

pytestmark = pytest.mark.e2e
PATIENCE_S = 25  #: less than a lease: a redelivery must not wait for its end


@dataclass
class Order:
    id: int


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


@pytest.fixture
def mq(broker: testing.Broker) -> Iterator[testing.Client]:
    with broker.connect() as client:
        yield client


def publish(mq: testing.Client, count: int, keys: list[str | None] | None = None) -> None:
    mq.publish_many("orders", [b'{"id": %d}' % at for at in range(count)], keys=keys, timeout=PATIENCE_S)


def in_time(what: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.005)


class TestOutcomes:
    def test_returning_is_the_ack(self, mq: testing.Client) -> None:
        publish(mq, 100)
        seen: list[int] = []

        @mq.consumer("orders", group="g")
        def work(order: Order) -> None:
            seen.append(order.id)

        mq.run(stop_at_end=True)
        assert seen == list(range(100))
        (row,) = mq.topic("orders").groups()
        assert (row.cursor, row.acked, row.consumers) == (100, 100, 0)

    def test_failures_come_again_after_their_pause_and_end_as_dead_letters(self, mq: testing.Client) -> None:
        publish(mq, 3)
        seen: list[tuple[int, int]] = []

        @mq.consumer("orders", group="g", attempts_max=2, backoff="10m")
        def work(order: Order, msg: Message) -> None:
            seen.append((order.id, msg.attempt))
            if order.id == 1:
                raise ValueError("one is bad")

        mq.run(stop_at_end=True)
        assert seen == [(0, 1), (1, 1), (2, 1)]
        mq.advance("9m")
        mq.run(stop_at_end=True)
        assert len(seen) == 3
        mq.advance("2m")
        mq.run(stop_at_end=True)
        assert seen[3:] == [(1, 2)]
        (letter,) = mq.dead("orders", "g").letters()
        assert (letter.offset, letter.reason, letter.error, letter.failures) == (
            1,
            "failures",
            "ValueError: one is bad",
            2,
        )

    def test_what_a_handler_says_of_a_record(self, mq: testing.Client) -> None:
        mq.publish_many(
            "orders", [b'{"id": "x"}', b'{"id": 1}', b'{"id": 2}', b'{"id": 3}'], timeout=PATIENCE_S
        )
        attempts: Counter[int] = Counter()

        @mq.consumer("orders", group="g")
        def work(order: Order, msg: Message) -> None:
            attempts[order.id] += 1
            if order.id == 1:
                raise Reject("no such customer")
            if order.id == 2 and msg.attempt == 1:
                raise Retry("1h", "not yet")
            if order.id == 3:
                msg.ack_soon()
                raise RuntimeError("too late")

        mq.run(stop_at_end=True)
        mq.advance("1h")
        mq.run(stop_at_end=True)
        assert attempts == {1: 1, 2: 2, 3: 1}
        letters = [
            (letter.offset, letter.reason, letter.error) for letter in mq.dead("orders", "g").letters()
        ]
        assert letters == [
            (0, "undecodable", "Expected `int`, got `str` - at `$.id`"),
            (1, "rejected", "no such customer"),
        ]

    def test_what_is_no_exception_ends_the_run_and_the_record_is_as_before(self, mq: testing.Client) -> None:
        publish(mq, 1)

        @mq.consumer("orders", group="g")
        def work(order: Order) -> None:
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            mq.run()
        assert len(mq.fetch("orders", "g", wait=PATIENCE_S)) == 1
        assert not list(mq.dead("orders", "g").letters())

    def test_a_refused_subscription_ends_the_run(self, mq: testing.Client) -> None:
        mq.create_topic("orders", partitions=3)
        mq.consumer("orders", group="g", mode="exclusive")(lambda msg: None)
        with pytest.raises(BadRequest, match="exclusive"):
            mq.run()


@pytest.fixture(params=["sync", "asyncio"])
def run_each(request: pytest.FixtureRequest, mq: testing.Client) -> Callable[[Callable[..., object]], None]:
    """Runs a handler over everything there is, one attempt for each record, by either client."""

    def run(work: Callable[..., object]) -> None:
        if request.param == "sync":
            mq.consumer("orders", group="g", attempts_max=1)(work)
            mq.run(stop_at_end=True)
        else:
            asyncio.run(main(work))

    async def main(work: Callable[..., object]) -> None:
        async with aio_connect(mq.broker.endpoint) as client:
            client.consumer("orders", group="g", attempts_max=1)(work)
            async with asyncio.timeout(PATIENCE_S):
                await client.run(stop_at_end=True)

    return run


class TestWhatIsReturned:
    """A record is acked once its work is done, and not by what only promises that."""

    def test_a_generator_is_work_that_nobody_did(
        self, mq: testing.Client, run_each: Callable[[Callable[..., object]], None]
    ) -> None:
        publish(mq, 1)

        def lazy(order: Order) -> Iterator[int]:
            yield order.id

        run_each(lambda msg: lazy(Order(1)))
        (letter,) = mq.dead("orders", "g").letters()
        assert letter.error.startswith("TypeError: the handler returned a generator (")

    def test_a_coroutine_within_a_coroutine_is_awaited(
        self, mq: testing.Client, run_each: Callable[[Callable[..., object]], None]
    ) -> None:
        publish(mq, 1)
        seen: list[str] = []

        async def work(msg: Message) -> None:
            await asyncio.sleep(0.01)
            seen.append("worked")

        async def around(msg: Message) -> object:
            return work(msg)  # as a decorator that was written for `def`

        run_each(around)
        assert seen == ["worked"]
        assert mq.topic("orders").groups()[0].acked == 1

    def test_a_future_of_a_pool_is_waited_for(
        self, mq: testing.Client, run_each: Callable[[Callable[..., object]], None]
    ) -> None:
        publish(mq, 2)

        def slow(offset: int) -> None:
            time.sleep(0.05)
            if offset == 1:
                raise ValueError("one is bad")

        with ThreadPoolExecutor() as pool:
            run_each(lambda msg: pool.submit(slow, msg.offset))
        (letter,) = mq.dead("orders", "g").letters()
        assert (letter.offset, letter.error) == (1, "ValueError: one is bad")
        assert mq.topic("orders").groups()[0].acked == 1

    @pytest.mark.parametrize(
        ("error", "says"),
        [
            (StopIteration(), "RuntimeError: the handler raised StopIteration"),
            (asyncio.CancelledError(), "RuntimeError: the handler was cancelled"),
        ],
    )
    def test_what_loops_and_tasks_take_for_their_own_is_a_failure_like_others(
        self,
        mq: testing.Client,
        run_each: Callable[[Callable[..., object]], None],
        error: BaseException,
        says: str,
    ) -> None:
        publish(mq, 1)

        def work(msg: Message) -> None:
            raise error

        run_each(work)
        (letter,) = mq.dead("orders", "g").letters()
        assert letter.error == says

    def test_headers_that_only_their_writer_understands_are_for_handlers_that_read_them(
        self,
        mq: testing.Client,
        run_each: Callable[[Callable[..., object]], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """As a client of another make may publish them: one such record was the end of the run."""
        monkeypatch.setattr(inputs, "header_bytes", lambda headers: b"\x81\xa1a\x01" if headers else b"")
        for value in ("left alone", "read"):
            mq.publish("orders", value, headers={"a": "b"}, timeout=PATIENCE_S)

        def work(value: str, msg: Message) -> object:
            return msg.headers if value == "read" else "done"

        run_each(work)
        (letter,) = mq.dead("orders", "g").letters(values=True)
        assert (letter.offset, letter.reason) == (1, "undecodable")
        assert letter.headers == {"gossipq-unreadable-headers": b"\x81\xa1a\x01"}
        assert letter.error == "headers of orders/0/1: no map of text to text or bytes"
        assert mq.topic("orders").groups()[0].acked == 1


class Together:
    """How many are inside at the same time, at most; how fast they are is another matter."""

    def __init__(self) -> None:
        self._lock, self._inside, self.most = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1


class TestWorkers:
    def test_so_many_at_a_time_and_no_more(self, mq: testing.Client) -> None:
        publish(mq, 20)
        together = Together()

        @mq.consumer("orders", group="g", workers=4)
        def work(order: Order) -> None:
            with together:
                time.sleep(0.02)

        mq.run(stop_at_end=True)
        assert together.most == 4

    def test_async_handlers_share_one_loop(self, mq: testing.Client) -> None:
        publish(mq, 40)
        loops, seen, together = set(), [], Together()

        @mq.consumer("orders", group="g", workers=20)
        async def work(order: Order, msg: Message) -> None:
            loops.add((asyncio.get_running_loop(), threading.current_thread().name))
            with together:
                await asyncio.sleep(0.05)
            if order.id == 7 and msg.attempt == 1:
                raise Retry(0)
            seen.append(order.id)

        mq.run(stop_at_end=True)
        assert together.most == 20
        assert len(loops) == 1
        in_time(lambda: mq.topic("orders").groups()[0].in_flight == 0)
        mq.run(stop_at_end=True)
        assert sorted(seen) == list(range(40))

    def test_a_cancelled_handler_has_failed(self, mq: testing.Client) -> None:
        publish(mq, 1)

        @mq.consumer("orders", group="g", attempts_max=1)
        async def work(order: Order) -> None:
            raise asyncio.CancelledError

        mq.run(stop_at_end=True)
        (letter,) = mq.dead("orders", "g").letters()
        assert "cancelled" in letter.error

    @pytest.mark.parametrize("workers", [1, 4])
    def test_a_key_is_worked_on_in_order_whatever_fails(self, mq: testing.Client, workers: int) -> None:
        count = 120
        publish(mq, count, keys=[f"key-{at % 7}" if at % 10 else None for at in range(count)])
        lock, running, done = threading.Lock(), set(), []

        @mq.consumer("orders", group="g", mode="key_ordered", workers=workers, backoff="100ms")
        def work(order: Order, msg: Message) -> None:
            key = msg.key
            with lock:
                assert key is None or key not in running
                running.add(key)
            time.sleep(0.001)
            with lock:
                running.discard(key)
            if order.id % 11 == 3 and msg.attempt < 3:
                raise Retry(reason="again")
            done.append((key, order.id))

        thread = threading.Thread(target=mq.run)
        thread.start()
        in_time(lambda: len(done) == count)
        mq.stop()
        thread.join()
        for key in {key for key, _ in done} - {None}:
            ids = [number for each, number in done if each == key]
            assert ids == sorted(ids)
        assert mq.topic("orders").groups()[0].acked == count


class TestStopping:
    def test_what_runs_is_finished_and_the_rest_goes_back(self, mq: testing.Client) -> None:
        publish(mq, 50)
        begun, done, go_on = [], [], threading.Event()

        @mq.consumer("orders", group="g", workers=3)
        def work(order: Order) -> None:
            begun.append(order.id)
            go_on.wait(PATIENCE_S)
            done.append(order.id)

        thread = threading.Thread(target=mq.run)
        thread.start()
        in_time(lambda: len(begun) == 3)
        with pytest.raises(BadRequest, match="run already"):
            mq.run()
        mq.stop()
        time.sleep(0.05)
        go_on.set()
        thread.join(PATIENCE_S)
        assert sorted(begun) == sorted(done) == [0, 1, 2]
        (row,) = mq.topic("orders").groups()
        assert (row.acked, row.in_flight, row.ready, row.consumers) == (3, 0, 47, 0)
        assert len(mq.fetch("orders", "g", n=47, min=47, wait=PATIENCE_S)) == 47

    def test_a_handler_may_stop_it(self, mq: testing.Client) -> None:
        publish(mq, 5)

        @mq.consumer("orders", group="g")
        def work(order: Order) -> None:
            if order.id == 2:
                mq.stop()

        mq.run()
        assert mq.topic("orders").groups()[0].acked == 3

    def test_it_begins_with_all_its_threads_or_not_at_all(
        self, mq: testing.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A container may allow too few."""
        publish(mq, 5)
        started, start = list[threading.Thread](), threading.Thread.start

        def some(thread: threading.Thread) -> None:
            if len(started) == 2:
                raise RuntimeError("can't start new thread")
            started.append(thread)
            start(thread)

        mq.consumer("orders", group="g", workers=3)(lambda msg: None)
        monkeypatch.setattr(threading.Thread, "start", some)
        with pytest.raises(RuntimeError, match="new thread"):
            mq.run()
        assert not any(thread.is_alive() for thread in started)
        assert all((row.in_flight, row.consumers) == (0, 0) for row in mq.topic("orders").groups())

    def test_closing_the_client_ends_it(self, mq: testing.Client, broker: testing.Broker) -> None:
        publish(mq, 1)
        begun, ended = threading.Event(), threading.Event()
        client = broker.connect()

        @client.consumer("orders", group="g", workers=2)
        def work(order: Order) -> None:
            begun.set()
            ended.wait(PATIENCE_S)

        def run() -> None:
            with pytest.raises(ClientClosed):
                client.run()
            ended.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(PATIENCE_S)
        client.close()
        ended.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert [msg.value for msg in mq.fetch("orders", "g", wait=PATIENCE_S)] == [b'{"id": 0}']

    def test_a_pattern_meets_topics_made_later(self, mq: testing.Client) -> None:
        seen: list[str] = []

        @mq.consumer("orders.*", group="g")
        def work(value: str) -> None:
            seen.append(value)
            mq.stop()

        thread = threading.Thread(target=mq.run)
        thread.start()
        mq.publish("orders.late", "here", timeout=PATIENCE_S)
        thread.join(PATIENCE_S)
        assert seen == ["here"]


class TestAsyncio:
    def test_tasks_and_threads(self, mq: testing.Client, broker: testing.Broker) -> None:
        publish(mq, 60)
        seen: Counter[str] = Counter()
        tasks, threads = Together(), Together()

        async def main() -> None:
            connecting = aio_connect(broker.endpoint)

            @connecting.consumer("orders", group="before")
            async def first(order: Order) -> None:
                seen["before"] += 1

            async with connecting as client:

                @client.consumer("orders", group="tasks", workers=10, attempts_max=1)
                async def work(order: Order) -> None:
                    with tasks:
                        await asyncio.sleep(0.02)
                    seen["tasks"] += 1
                    if order.id == 1:
                        raise asyncio.CancelledError

                @client.consumer("orders", group="threads", workers=10, attempts_max=1)
                def block(order: Order) -> None:
                    with threads:
                        time.sleep(0.02)
                    seen["threads"] += 1
                    if order.id == 1:
                        raise Reject("one")

                await client.run(stop_at_end=True)
                assert (tasks.most, threads.most) == (10, 10)
                assert [letter.group async for letter in client.dead("orders").letters()] == [
                    "tasks",
                    "threads",
                ]

        asyncio.run(main())
        assert seen == {"before": 60, "tasks": 60, "threads": 60}
        assert {row.group: row.acked for row in mq.topic("orders").groups()} == {
            "before": 60,
            "tasks": 59,
            "threads": 59,
        }

    def test_cancelling_is_orderly(self, mq: testing.Client, broker: testing.Broker) -> None:
        publish(mq, 10)

        async def main() -> None:
            async with aio_connect(broker.endpoint) as client:
                begun, done = asyncio.Event(), []

                @client.consumer("orders", group="g")
                async def work(order: Order) -> None:
                    begun.set()
                    await asyncio.sleep(0.05)
                    done.append(order.id)

                task = asyncio.create_task(client.run())
                await begun.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert done == [0]

        asyncio.run(main())
        assert (mq.topic("orders").groups()[0].acked, mq.topic("orders").groups()[0].ready) == (1, 9)

    def test_cancelling_twice_cancels_the_handlers_and_keeps_nothing(
        self, mq: testing.Client, broker: testing.Broker
    ) -> None:
        publish(mq, 10)
        free = threading.Event()

        async def main() -> None:
            async with aio_connect(broker.endpoint) as client:
                begun = asyncio.Event()

                @client.consumer("orders", group="tasks")
                async def work(order: Order) -> None:
                    begun.set()
                    await asyncio.sleep(PATIENCE_S)

                @client.consumer("orders", group="threads")
                def block(order: Order) -> None:
                    free.wait(PATIENCE_S)

                task = asyncio.create_task(client.run())
                await begun.wait()
                task.cancel()
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                async with asyncio.timeout(3):  # sooner than leases and silence would give them back
                    while {row.ready for row in await client.topic("orders").groups()} != {10}:
                        await asyncio.sleep(0.02)

        try:
            asyncio.run(main())
        finally:
            free.set()

    @pytest.mark.parametrize("way", ["run", "consume"])
    def test_who_never_waits_does_not_keep_the_loop(
        self, mq: testing.Client, broker: testing.Broker, way: str
    ) -> None:
        """What sends its acks and pings has its turn, and so have the other tasks of the program."""
        publish(mq, 500)
        seen, at_turns = list[int](), [0]

        def block(msg: Message) -> None:
            time.sleep(0.002)
            seen.append(msg.offset)

        async def other() -> None:
            while True:
                await asyncio.sleep(0)
                at_turns.append(len(seen))

        async def main() -> None:
            async with aio_connect(broker.endpoint) as client:

                @client.consumer("orders", group="run")
                async def work(msg: Message) -> None:
                    block(msg)

                task = asyncio.create_task(other())
                if way == "run":
                    await client.run(stop_at_end=True)
                else:
                    async for msg in client.consume("orders", "consume", stop_at_end=True):
                        async with msg:
                            block(msg)
                task.cancel()

        asyncio.run(main())
        assert sorted(seen) == list(range(500))
        assert max(later - before for before, later in pairwise([*at_turns, len(seen)])) < 200

    def test_messages_by_hand(self, mq: testing.Client, broker: testing.Broker) -> None:
        mq.create_topic("orders")
        mq.create_topic("bills", beside="orders")
        publish(mq, 5)

        async def main() -> None:
            async with aio_connect(broker.endpoint) as client:
                loop = client.consume("orders", "g", attempts_max=1, backoff="1h")
                async with await anext(loop) as msg:
                    await msg.ack_with("bills", b"0")
                    with pytest.raises(BadRequest, match="nothing to ack"):
                        await msg.ack_with("bills", b"twice")
                async with await anext(loop):
                    raise Retry
                async with await anext(loop):
                    raise Reject("two")
                await (await anext(loop)).reject("three")
                with pytest.raises(ZeroDivisionError):
                    async with await anext(loop):
                        raise ZeroDivisionError
                await client.flush(PATIENCE_S)

        asyncio.run(main())
        letters = [
            (letter.offset, letter.reason, letter.error) for letter in mq.dead("orders", "g").letters()
        ]
        assert letters == [
            (1, "failures", ""),
            (2, "rejected", "two"),
            (3, "rejected", "three"),
            (4, "failures", "ZeroDivisionError: "),
        ]
        assert mq.fetch("bills", "g", wait=PATIENCE_S).values() == [b"0"]

    def test_key_order(self, mq: testing.Client, broker: testing.Broker) -> None:
        publish(mq, 40, keys=[f"key-{at % 3}" for at in range(40)])
        done: list[int] = []

        async def main() -> None:
            async with aio_connect(broker.endpoint) as client:

                @client.consumer("orders", group="g", mode="key_ordered", workers=8, backoff="50ms")
                async def work(order: Order, msg: Message) -> None:
                    await asyncio.sleep(0.002)
                    if order.id % 5 == 0 and msg.attempt == 1:
                        raise Retry
                    done.append(order.id)
                    if len(done) == 40:
                        client.stop()

                await client.run()

        asyncio.run(main())
        for rest in range(3):
            assert [at for at in done if at % 3 == rest] == list(range(rest, 40, 3))


def await_consumers(mq: testing.Client, *topics: str) -> None:
    """A request says at once when nobody is there."""
    for topic in topics:
        mq.create_topic(topic, if_not_exists=True)
        while not any(group.consumers for group in mq.topic(topic).groups()):
            time.sleep(0.01)


class TestRequests:
    def test_the_value_returned_is_the_reply(self, mq: testing.Client, broker: testing.Broker) -> None:
        with broker.connect() as server:
            server.consumer("upper", group="g", workers=2)(lambda msg: msg.value.upper())

            @server.consumer("double", group="g")
            async def double(order: Order) -> Order:
                return Order(2 * order.id)

            @server.consumer("silent", group="g")
            def silent(value: bytes) -> None: ...

            thread = threading.Thread(target=server.run)
            thread.start()
            await_consumers(mq, "upper", "double", "silent")
            assert mq.request("upper", "hello").value == b"HELLO"
            assert mq.request("double", b'{"id": 4}', headers={"a": "b"}).value == b'{"id":8}'
            with pytest.raises(NoReply, match="silent"):
                mq.request("silent", b"x")
            answers: dict[int, bytes] = {}

            def ask(number: int) -> None:
                answers[number] = mq.request("upper", f"n{number}").value

            threads = [threading.Thread(target=ask, args=(number,)) for number in range(10)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            assert answers == {number: b"N%d" % number for number in range(10)}

            async def main() -> None:
                async with aio_connect(broker.endpoint) as client:
                    replies = await asyncio.gather(
                        *(client.request("upper", f"a{number}") for number in range(10))
                    )
                    assert [reply.value for reply in replies] == [b"A%d" % number for number in range(10)]
                    with pytest.raises(NoReply):
                        await client.request("silent", b"x", timeout=0.2)

            asyncio.run(main())
            server.stop()
            thread.join()

    def test_a_value_that_is_none_is_a_failure(self, mq: testing.Client) -> None:
        mq.consumer("odd", group="g", attempts_max=1)(lambda msg: object())
        thread = threading.Thread(target=mq.run)
        thread.start()
        await_consumers(mq, "odd")
        with pytest.raises(NoReply, match=r"BadRequest: .*JSON cannot express a value of type object"):
            mq.request("odd", b"x")
        mq.stop()
        thread.join()
        assert [letter.reason for letter in mq.dead("odd", "g").letters()] == ["failures"]

    def test_middleware_that_lets_no_reply_go_does_not_end_the_run(self, mq: testing.Client) -> None:
        class Stern(Middleware):
            def before_publish(self, topic: str, options: dict[str, Any], count: int) -> None:
                if topic == REPLIES:
                    raise ValueError("no replies")

        mq.consumer("stern", group="g", attempts_max=1)(lambda msg: b"!")
        mq.add_middleware(Stern())
        mq.publish("stern", b"1", headers={TO: REPLIES}, timeout=PATIENCE_S)
        mq.publish("stern", b"2", timeout=PATIENCE_S)
        mq.run(stop_at_end=True)
        assert [letter.value for letter in mq.dead("stern", "g").letters()] == [b"1"]

    def test_bad_timeouts(self, mq: testing.Client) -> None:
        for timeout in (-1, float("nan"), "soon"):
            with pytest.raises(BadRequest, match="timeout"):
                mq.request("t", b"x", timeout=timeout)

    def test_requests_go_on_after_the_topic_of_replies_was_removed(
        self, mq: testing.Client, broker: testing.Broker
    ) -> None:
        with broker.connect() as desk:
            desk.consumer("prices", group="desk")(lambda msg: msg.value)
            thread = threading.Thread(target=desk.run)
            thread.start()
            try:
                await_consumers(mq, "prices")
                assert mq.request("prices", b"1", timeout=PATIENCE_S).value == b"1"
                mq.topic("_replies").delete()
                in_time(lambda: mq._requester.requests.subscription.error is not None)
                with contextlib.suppress(NoReply):  # of a publisher that did not know yet
                    mq.request("prices", b"2", timeout=1)
                assert mq.request("prices", b"3", timeout=PATIENCE_S).value == b"3"
            finally:
                desk.stop()
                thread.join()

    def test_threads_that_ask_first_at_the_same_time_share_their_replies(
        self, mq: testing.Client, broker: testing.Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subscribed, subscribe = list[object](), mq._driver.engine.subscribe
        monkeypatch.setattr(
            mq._driver.engine, "subscribe", lambda *asked: (subscribed.append(asked), subscribe(*asked))[1]
        )
        both, ask = threading.Barrier(2), mq._operator.ask

        def together(*asked: object) -> object:
            answer = ask(*asked)
            both.wait(PATIENCE_S)
            return answer

        monkeypatch.setattr(mq._operator, "ask", together)
        threads = [threading.Thread(target=mq._requester.open_replies) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(subscribed) == 1


class TestMessages:
    """The same by hand: `with msg:` and its verbs."""

    def test_retry_and_reject_stay_inside_and_others_go_on(self, mq: testing.Client) -> None:
        publish(mq, 4)
        loop = mq.consume("orders", "g", backoff="1h")
        with next(loop):
            raise Retry("2h")
        with next(loop):
            raise Reject("bad")
        with pytest.raises(ZeroDivisionError), next(loop):
            raise ZeroDivisionError
        next(loop).reject("by hand")
        mq.flush(PATIENCE_S)
        reasons = [
            (letter.offset, letter.reason, letter.error) for letter in mq.dead("orders", "g").letters()
        ]
        assert reasons == [(1, "rejected", "bad"), (3, "rejected", "by hand")]
        assert mq.topic("orders").groups()[0].retrying == 2
        mq.advance("90m")
        assert next(loop).offset == 2
        mq.advance("90m")
        assert next(loop).offset == 0

    @pytest.mark.parametrize("verb", ["subscribe", "consume"])
    def test_a_wait_for_the_next_message_may_be_broken_off(
        self, mq: testing.Client, broker: testing.Broker, verb: str
    ) -> None:
        mq.create_topic("orders")

        async def main() -> None:
            async with (
                aio_connect(broker.endpoint) as client,
                contextlib.aclosing(getattr(client, verb)("orders", "tasks")) as loop,
            ):
                for _ in range(3):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(anext(loop), 0.05)
                publish(mq, 2)
                async with asyncio.timeout(PATIENCE_S):
                    seen = [(await anext(loop)).offset, (await anext(loop)).offset]
                assert seen == [0, 1]

        asyncio.run(main())

        def interrupt(number: int, frame: object) -> None:
            raise InterruptedError

        def broken_off(loop: Iterator[Message]) -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            next(loop)

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with contextlib.closing(getattr(mq, verb)("orders", "threads", start="new")) as loop:
                for _ in range(3):
                    with pytest.raises(InterruptedError):
                        broken_off(loop)
                until(lambda: {row.group for row in mq.topic("orders").groups()} == {"tasks", "threads"})
                publish(mq, 1)
                with next(loop) as msg:
                    assert msg.offset == 2
        finally:
            signal.signal(signal.SIGALRM, before)
        mq.flush(PATIENCE_S)
        assert {row.group: (row.in_flight, row.consumers) for row in mq.topic("orders").groups()} == {
            "tasks": (0, 0),
            "threads": (0, 0),
        }

    def test_who_is_and_what_it_was_published_with(self, mq: testing.Client) -> None:
        mq.publish(
            "orders", b"x", id="order-17", key="ada", headers={"a": "b"}, route="eu.fr", timeout=PATIENCE_S
        )
        mq.publish("orders", b"y", timeout=PATIENCE_S)
        first, second = mq.fetch("orders", "g", n=2, min=2)
        assert (first.id, first.key, first.headers, first.route) == ("order-17", b"ada", {"a": "b"}, "eu.fr")
        assert (second.id, second.route) == (None, "")

    def test_routes(self, mq: testing.Client) -> None:
        for route in ("eu.fr", "eu.de", "us", "eu.fr.paris", ""):
            mq.post("orders", route, route=route)
        mq.flush(PATIENCE_S)
        assert [msg.value for msg in mq.read("orders", route="eu.*")] == [
            b"eu.fr",
            b"eu.de",
        ]
        both = mq.consume("orders", "g", route=["us", "eu.#.paris"], stop_at_end=True)
        assert [msg.value for msg in both] == [b"us", b"eu.fr.paris"]

    def test_at_most_once(self, mq: testing.Client) -> None:
        publish(mq, 3)
        for msg in mq.consume("orders", "g", ack=False, stop_at_end=True):
            with msg:
                pass
            msg.nack()
        (row,) = mq.topic("orders").groups()
        assert (row.acked, row.in_flight, row.ready) == (3, 0, 0)

    def test_exclusive_is_one_after_the_other_and_the_next_takes_over(
        self, mq: testing.Client, broker: testing.Broker
    ) -> None:
        publish(mq, 3)
        first = mq.consume("orders", "g", mode="exclusive")
        msg = next(first)
        with broker.connect() as other:
            assert len(other.fetch("orders", "g", mode="exclusive", wait=0.2)) == 0
            assert mq.topic("orders").groups()[0].in_flight == 1
            msg.ack_soon()
            first.close()  # type: ignore[attr-defined]
            (taken,) = other.fetch("orders", "g", mode="exclusive", wait=PATIENCE_S)
            assert taken.offset == 1

    def test_a_virtual_topic_names_those_that_hold_its_records(self, mq: testing.Client) -> None:
        for name in ("one", "two"):
            mq.create_topic(name)
        mq.topic("both").bind(["one", "two"])
        mq.publish("both", b"x", timeout=PATIENCE_S)
        with pytest.raises(BadRequest, match="virtual") as refused:
            next(mq.consume("both", "g"))
        assert "one, two" in refused.value.hint
        mq.consumer("both", group="g")(lambda msg: None)
        with pytest.raises(BadRequest, match="virtual"):
            mq.run()
        assert [msg.value for msg in mq.consume(["one", "two"], "g", stop_at_end=True)] == [b"x", b"x"]

    def test_who_joins_a_key_ordered_group_keeps_its_order_unasked(self, mq: testing.Client) -> None:
        mq.create_topic("orders")
        assert list(mq.consume("orders", "g", mode="key_ordered", backoff="1h", stop_at_end=True)) == []
        publish(mq, 3, keys=["a", "a", "b"])
        loop = mq.consume("orders", "g")
        next(loop).nack()
        assert next(loop).key == b"b"

    def test_a_fetched_batch_has_one_record_of_a_key(self, mq: testing.Client) -> None:
        publish(mq, 5, keys=["a", "a", "b", "a", None])
        batch, seen = mq.fetch("orders", "g", mode="key_ordered", backoff="1h", wait=PATIENCE_S), []
        for msg in batch:
            with contextlib.suppress(ValueError), msg:
                seen.append(msg.offset)
                if msg.offset == 0:
                    raise ValueError
        assert seen == [0, 2, 4]
        mq.flush(PATIENCE_S)
        (row,) = mq.topic("orders").groups()
        assert (row.acked, row.in_flight, row.blocked_by_key) == (2, 0, 2)

    def test_a_record_that_kills_is_a_dead_letter_in_the_end(
        self, mq: testing.Client, broker: testing.Broker
    ) -> None:
        publish(mq, 1)
        for _ in range(2):
            with broker.connect() as hung:
                (msg,) = hung.fetch("orders", "g", mode="exclusive", attempts_max=1, wait=PATIENCE_S)
                assert msg.attempt == 1, "not known to have begun before"
                assert hung.topic("orders").groups()[0].in_flight == 1, "by now the node has heard it"
                broker.advance("31s")
        assert list(mq.consume("orders", "g", stop_at_end=True)) == []
        (letter,) = mq.dead("orders", "g").letters()
        assert (letter.reason, letter.attempts, letter.failures) == ("failures", 1, 1)

    def test_an_atomic_step(self, mq: testing.Client, broker: testing.Broker) -> None:
        mq.create_topic("orders")
        mq.create_topic("bills", beside="orders")
        publish(mq, 3)
        for msg in mq.consume("orders", "g", stop_at_end=True):
            with msg:
                assert (
                    msg.ack_with(
                        "bills", msg.value, headers={"of": str(msg.offset)}, timeout=PATIENCE_S
                    ).topic
                    == "bills"
                )
                with pytest.raises(BadRequest, match="nothing to ack"):
                    msg.post_with("bills", b"twice")
        assert [msg.headers["of"] for msg in mq.read("bills")] == [
            "0",
            "1",
            "2",
        ]
        assert mq.topic("orders").groups()[0].acked == 3

    def test_a_step_in_two_places_is_refused_and_the_record_still_in_hand(self, mq: testing.Client) -> None:
        mq.create_topic("orders", partitions=2)
        mq.create_topic("elsewhere", partitions=2)
        publish(mq, 1)
        (msg,) = mq.fetch("orders", "g")
        with pytest.raises(BadRequest, match="one shard") as refused:
            msg.ack_with("elsewhere", b"x", partition=1 - msg.partition, timeout=PATIENCE_S)
        assert "beside=" in refused.value.hint
        msg.ack_soon()

    def test_a_step_after_the_lease_is_lost(self, mq: testing.Client, broker: testing.Broker) -> None:
        mq.create_topic("orders")
        mq.create_topic("bills", beside="orders")
        publish(mq, 1)
        with broker.connect() as other:
            loop = mq.consume("orders", "g", lease="1s", credit=1)
            msg = next(loop)
            broker.advance("1h")
            (taken,) = other.fetch("orders", "g", wait=PATIENCE_S)
            with pytest.raises(LeaseLost):
                msg.ack_with("bills", b"x", timeout=PATIENCE_S)
            taken.ack_soon()
        assert list(mq.read("bills")) == []


def test_clients_of_both_kinds_have_the_same_names() -> None:
    names = {name for name in dir(testing.Client) if not name.startswith("_")}
    twin = {name for name in dir(AioClient) if not name.startswith("_")}
    assert {"consumer", "run", "stop", "request", "consume", "fetch"} <= names & twin
