"""Exceptions that come from outside, at any point of a client's work: as Ctrl-C, or what a signal handler
raises.

CPython runs signal handlers where a function begins and behind a call of C code. A profile function is called
at just these points, so it can raise at the first, the second, the third ... of them, one after the other,
and no point is left out.
"""

import asyncio
import gc
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gossipq_client import Client, aio, connect, testing
from gossipq_client.io import Spool

pytestmark = [
    pytest.mark.e2e,
    #: what strikes in a finalizer is told on stderr and goes no further: Python's own rule
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PATIENCE_S = 25  #: less than a lease: a redelivery must not wait for its end
ROUNDS = 60  #: of each kind, each with an interrupt at another point
STRIDE = 7


class Interrupt(BaseException):
    """What nobody catches by mistake."""


class Interrupter:
    """Raises Interrupt at the point number `at` of what runs within it, in this thread."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.struck = False
        self._hook = self._look  # as it raises, the interpreter lets go of it, and may still call it

    def __enter__(self) -> "Interrupter":
        sys.setprofile(self._hook)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_return") or self.struck or frame.f_code.co_filename == __file__:
            return
        self.left -= 1
        if self.left < 0:
            self.struck = True
            raise Interrupt


class Ledger:
    """What a test has published, and how each call ended."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.number = 0
        self.sure: set[bytes] = set()  #: the call returned
        self.maybe: set[bytes] = set()  #: the call was interrupted

    def next(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    def judge(self, stored: list[bytes], named: int) -> None:
        """`named`: records that an error told of."""
        counts = Counter(stored)
        assert [value for value, count in counts.items() if count > 1] == [], "stored twice"
        assert set(stored) <= self.sure | self.maybe
        lost = self.sure - set(stored)
        assert len(lost) <= named, f"{len(lost)} lost, {named} named: {sorted(lost)[:5]}"


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


def publish_some(mq: Client, ledger: Ledger, batch: bool) -> None:
    if batch:
        values = [ledger.next() for _ in range(3)]
        ledger.maybe.update(values)
        mq.post_many(ledger.topic, values)
        ledger.sure.update(values)
        return
    for key in (None, b"k", None):
        value = ledger.next()
        ledger.maybe.add(value)
        mq.post(ledger.topic, value, key=key)
        ledger.sure.add(value)


def everything(broker: testing.Broker, topic: str) -> list[bytes]:
    with broker.connect() as mq:
        return [value for msg in mq.read(topic) if (value := msg.value) is not None]


def strike(at: int, work: Callable[[], None]) -> bool:
    interrupter = Interrupter(at)
    try:
        with interrupter:
            work()
    except Interrupt:
        pass
    return interrupter.struck


def test_publishing(broker: testing.Broker) -> None:
    ledger, struck, at, named = Ledger("published"), 0, 0, 0
    with broker.connect() as mq:
        mq.create_topic("published", 2)
        mq.publish("published", ledger.next(), timeout=PATIENCE_S)
        ledger.sure.add(b"1")
        for number in range(ROUNDS):

            def work(batch: bool = bool(number % 2)) -> None:
                publish_some(mq, ledger, batch)
                mq.flush(PATIENCE_S)

            hit = strike(at, work)
            mq.flush(PATIENCE_S)
            struck += hit
            at = at + STRIDE if hit else 0
        mq.flush(PATIENCE_S)
    assert struck > ROUNDS / 2
    ledger.judge(everything(broker, "published"), named)


def test_publishing_and_waiting(broker: testing.Broker) -> None:
    """At each point of one call: what was appended before the interrupt is stored once, or not at all."""
    ledger, at, hit = Ledger("awaited"), 0, True
    with broker.connect() as mq:
        mq.create_topic("awaited", 1)
        mq.publish("awaited", ledger.next())
        ledger.sure.add(b"1")
        while hit:
            value = ledger.next()
            ledger.maybe.add(value)
            hit = strike(at, lambda value=value: mq.publish("awaited", value))
            if not hit:
                ledger.sure.add(value)
            at += 1
            value = ledger.next()
            mq.publish("awaited", value)
            ledger.sure.add(value)
    assert at > ROUNDS
    ledger.judge(everything(broker, "awaited"), 0)


def rest_of(broker: testing.Broker, topic: str) -> list[bytes]:
    """What a group still gets, once the client that was interrupted is closed."""
    with broker.connect() as mq:
        broker.advance("1h")  # what was in hand comes again
        return [msg.value for msg in mq.consume(topic, group="g", stop_at_end=True)]


def work_through(
    broker: testing.Broker, topic: str, count: int, work: Callable[[testing.Client, list[bytes]], None]
) -> None:
    """Interrupts `work` (which notes what it was handed, and acks it) again and again: nothing is lost, and
    what was acked does not come again."""
    acked, handed = set[bytes](), set[bytes]()
    with broker.connect() as mq:
        mq.create_topic(topic, 2)
        mq.publish_many(topic, [b"%d" % number for number in range(count)], timeout=PATIENCE_S)
        at = struck = 0
        for _ in range(ROUNDS):
            taken: list[bytes] = []
            hit = strike(at, partial(work, mq, taken))
            mq.flush(PATIENCE_S)
            handed.update(taken)
            if not hit:
                acked.update(taken)
            struck += hit
            at = at + STRIDE if hit else 0
    assert struck > ROUNDS / 2
    rest = rest_of(broker, topic)
    assert not acked & set(rest), "acked, and handed out again"
    assert handed | set(rest) == {b"%d" % number for number in range(count)}


def test_fetching_and_acking(broker: testing.Broker) -> None:
    def work(mq: testing.Client, taken: list[bytes]) -> None:
        batch = mq.fetch("fetched", "g", n=2, wait=0.05)
        taken.extend(batch.values())
        mq.ack_soon(batch)
        mq.flush(PATIENCE_S)

    work_through(broker, "fetched", 2 * ROUNDS, work)


def test_consuming(broker: testing.Broker) -> None:
    def work(mq: testing.Client, taken: list[bytes]) -> None:
        left = 3
        for msg in mq.consume("consumed", group="g", stop_at_end=True):
            with msg:
                taken.append(msg.value)
            left -= 1
            if not left:
                break
        mq.flush(PATIENCE_S)

    work_through(broker, "consumed", 3 * ROUNDS, work)


def test_a_record_that_was_not_yielded_comes_again_though_another_thread_was_faster(
    broker: testing.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper connects anew before the loop that was interrupted ends."""
    with broker.connect() as mq:
        mq.publish_many("faster", [b"1", b"2", b"3"])

        def begin(*_: object) -> None:
            mq._driver.engine.torn = True
            mq._driver.step(lambda: None)
            raise Interrupt

        monkeypatch.setattr(mq._driver, "begin", begin)
        with pytest.raises(Interrupt):
            next(iter(mq.consume("faster", group="g")))
        with broker.connect() as other:
            batch = other.fetch("faster", "g", n=3, min=3, wait=PATIENCE_S)
            assert sorted(batch.values()) == [b"1", b"2", b"3"]


def test_reading_without_a_group(broker: testing.Broker) -> None:
    """A reader that goes on after an interrupt has every record, and none twice."""
    topic, seen = "read", list[bytes]()
    with broker.connect() as mq:
        mq.create_topic(topic, 1)
        mq.fetch(topic, n=1, start="first", wait=0.01)
        at = struck = 0
        for number in range(ROUNDS):
            mq.publish_many(
                topic, [b"%d" % each for each in range(3 * number, 3 * number + 3)], timeout=PATIENCE_S
            )
            taken: list[bytes] = []

            def work(taken: list[bytes] = taken) -> None:
                batch = mq.fetch(topic, n=2, start="first", wait=0.5)
                taken.extend(msg.value for msg in batch)

            hit = strike(at, work)
            struck += hit
            at = at + STRIDE if hit else 0
            if hit and not taken and not mq._driver.engine.torn:
                mq.flush(PATIENCE_S)
            seen += taken
        while batch := mq.fetch(topic, n=100, wait=1):
            seen += batch.values()
    assert struck > ROUNDS / 2
    assert len(seen) == len(set(seen)), "twice"
    assert [int(value) for value in seen] == sorted(map(int, seen))


def test_asyncio_publishing(broker: testing.Broker) -> None:
    ledger, struck = Ledger("apublished"), 0

    async def main() -> None:
        nonlocal struck
        async with aio.connect(broker.endpoint) as mq:
            await mq.create_topic("apublished", 2)
            at = 0
            for number in range(ROUNDS):
                interrupter = Interrupter(at)
                real = mq._driver.engine.exchange

                def exchange(
                    thorough: bool = False, interrupter: Interrupter = interrupter, real: Any = real
                ) -> bool:
                    with interrupter:
                        return bool(real(thorough))

                mq._driver.engine.exchange = exchange  # type: ignore[method-assign]
                value = ledger.next()
                ledger.maybe.add(value)
                try:
                    await mq.publish("apublished", value, key=b"k" if number % 2 else None)
                    ledger.sure.add(value)
                    await mq.flush(PATIENCE_S)
                except Interrupt:
                    pass
                finally:
                    del mq._driver.engine.exchange
                await mq.flush(PATIENCE_S)
                struck += interrupter.struck
                at = at + STRIDE if interrupter.struck else 0
            await mq.flush(PATIENCE_S)

    asyncio.run(main())
    assert struck > ROUNDS / 4
    ledger.judge(everything(broker, "apublished"), 0)


@pytest.mark.parametrize("seed", range(4))
def test_signals_at_any_time(broker: testing.Broker, seed: int) -> None:
    """Real signals, at random microseconds, over publishing, fetching, consuming, acking."""
    dice, ledger, ends = random.Random(seed), Ledger("signals"), Counter[str]()
    armed = False

    def strike(number: int, frame: object) -> None:
        if armed:
            raise Interrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        mq = broker.connect()
        mq.create_topic("signals", 2)
        end = time.monotonic() + PATIENCE_S
        while ends.total() < ROUNDS or (ends["interrupted"] <= ROUNDS / 10 and time.monotonic() < end):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, 4e-3))
                publish_some(mq, ledger, dice.random() < 0.5)
                if dice.random() < 0.5:
                    mq.ack_soon(mq.fetch("signals", "g", n=5, wait=0.01))
                if dice.random() < 0.3:
                    mq.flush(PATIENCE_S)
                ends["well"] += 1
            except Interrupt:
                ends["interrupted"] += 1
            finally:
                armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        mq.flush(PATIENCE_S)
        mq.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert ends["interrupted"] > ROUNDS / 10
    ledger.judge(everything(broker, "signals"), 0)
    assert threading.active_count() < 20


def test_beginning_with_a_spool(broker: testing.Broker, tmp_path: Path) -> None:
    """Whatever of it was broken off: the next client gets the spool."""
    at, begun = 0, list[Client]()
    while True:
        hit = strike(at, lambda: begun.append(connect(broker.endpoint, spool=tmp_path).__enter__()))
        for mq in begun:
            mq.close()
        if not hit:
            break
        begun.clear()
        gc.collect()
        Spool(tmp_path).close()
        at += 13 * STRIDE
    assert at > 100 * STRIDE
    assert begun


def test_a_farewell_that_is_broken_off_is_said_again(
    broker: testing.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sockets stayed open, and a garbage collector that found them waited for ever."""

    def interrupt() -> None:
        raise Interrupt

    mq = broker.connect()
    mq.publish("farewells", b"x")
    with monkeypatch.context() as patched:
        patched.setattr(mq._driver.engine.session, "farewell", interrupt)
        with pytest.raises(Interrupt):
            mq.close()
    mq.close()
    assert mq._driver.engine.ended
    assert mq._driver.engine.transport.fds == []
