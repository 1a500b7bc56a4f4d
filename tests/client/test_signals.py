"""Signals at random microseconds. Whatever a client was doing, every publish that returned is
stored once, acked records do not come again, nothing is lost and nothing hangs.

GOSSIPQ_STRIKES=10000 GOSSIPQ_COUNTS=FILE counts a longer run into a file; signals.json has the sum
of such runs, in which every check held, and docs/internals/testing.md states it.
"""

import asyncio
import gc
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from conftest import HOME
from gossipq_client import aio, testing

pytestmark = [
    pytest.mark.e2e,
    #: what strikes in a finalizer is told on stderr and goes no further: Python's own rule
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
STRIKES = int(os.environ.get("GOSSIPQ_STRIKES", "40"))  #: of each dress
MANY_STRIKES = 500  #: of each dress, in make accept
SHORTEST_S, LONGEST_S = 1e-6, 2e-2
PATIENCE_S = 30  #: above it something hangs
BATCH = 3


class Interrupt(BaseException):
    """An exception that is never caught by mistake."""


class Book:
    """The calls that were made, and how each ended."""

    def __init__(self) -> None:
        self.number = self.struck = self.calls = 0
        self.sure, self.maybe = set[bytes](), set[bytes]()
        self.handed, self.acked = set[bytes](), set[bytes]()
        self.longest_s = 0.0

    def values(self) -> list[bytes]:
        made = [b"%d" % (self.number + at) for at in range(BATCH)]
        self.number += BATCH
        self.maybe.update(made)
        return made

    def ended(self, struck: bool, began_s: float, published: list[bytes], taken: list[bytes]) -> None:
        self.calls += 1
        self.struck += struck
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        self.sure.update(published)
        self.handed.update(taken)
        if not struck:
            self.acked.update(taken)

    def judge(self, stored: list[bytes], rest: list[bytes]) -> None:
        doubled = [value for value, count in Counter(stored).items() if count > 1]
        assert doubled == [], "stored twice"
        assert self.sure - set(stored) == set(), "a publish that returned is not stored"
        assert set(stored) <= self.maybe
        assert self.acked & set(rest) == set(), "acked, and handed out again"
        assert self.handed | set(rest) == set(stored), "never handed out"
        assert self.longest_s < PATIENCE_S, "a call hung"

    def keep(self, dress: str, seed: int) -> None:
        if "GOSSIPQ_COUNTS" in os.environ:
            row = {"dress": dress, "seed": seed, "calls": self.calls, "interrupts": self.struck}
            row |= {"published": len(self.sure), "acked": len(self.acked)}
            with Path(os.environ["GOSSIPQ_COUNTS"]).open("a") as out:
                out.write(json.dumps(row) + "\n")


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker
    # objects that were interrupted before they had an owner are closed here,
    # where that gives no warning
    gc.collect()


@pytest.fixture
def seed() -> int:
    return random.SystemRandom().randrange(10**6)


def delay_s(chance: random.Random) -> float:
    """Any order of magnitude is as likely."""
    return SHORTEST_S * (LONGEST_S / SHORTEST_S) ** chance.random()


def found(broker: testing.Broker) -> tuple[list[bytes], list[bytes]]:
    """The stored records, and those that the group still gets after all
    held ones were given back.
    """
    with broker.connect() as mq:
        stored = [msg.value for msg in mq.read("t")]
        rest = list[bytes]()
        # a begun and interrupted record has failed, and comes again after its pause
        for _ in range(4):
            broker.advance("1h")
            rest += [msg.value for msg in mq.consume("t", group="g", stop_at_end=True)]
        return stored, rest


STRIKES_EACH = pytest.mark.parametrize(
    "strikes", [STRIKES, pytest.param(MANY_STRIKES, marks=pytest.mark.slow)]
)


@STRIKES_EACH
def test_signals_that_raise_in_a_sync_client(broker: testing.Broker, seed: int, strikes: int) -> None:
    print(f"seed {seed}")
    chance, book = random.Random(seed), Book()

    def strike(number: int, frame: FrameType | None) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, strike)
    mq = broker.connect()
    mq.create_topic("t", 2)
    published, taken = list[bytes](), list[bytes]()

    def publish() -> None:
        for value in book.values():
            mq.post("t", value, key=value if chance.random() < 0.3 else None)
            published.append(value)

    def publish_list() -> None:
        values = book.values()
        mq.post_many("t", values)
        published.extend(values)

    def fetch() -> None:
        batch = mq.fetch("t", "g", n=BATCH, wait=0.02)
        taken.extend(batch.values())
        mq.ack_soon(batch)
        mq.flush(PATIENCE_S)

    def consume() -> None:
        for msg in mq.consume("t", "g", stop_at_end=True):
            with msg:
                taken.append(msg.value)
            if len(taken) == BATCH:
                break
        mq.flush(PATIENCE_S)

    def close() -> None:
        mq.close()

    works: list[Callable[[], None]] = [publish, publish_list, fetch, consume, close]
    try:
        while book.struck < strikes:
            published, taken = [], []
            work, struck, began_s = chance.choices(works, (4, 2, 3, 3, 1))[0], False, time.monotonic()
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, delay_s(chance))
                    work()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                struck = True
            signal.setitimer(signal.ITIMER_REAL, 0)
            if work is close:
                mq.close()
                mq = broker.connect()
            mq.flush(PATIENCE_S)
            book.ended(struck, began_s, published, taken)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    mq.close()
    book.judge(*found(broker))
    book.keep("sync", seed)


@STRIKES_EACH
def test_signals_that_cancel_what_an_asyncio_client_does(
    broker: testing.Broker, seed: int, strikes: int
) -> None:
    """As asyncio.run does with Ctrl-C: the task is cancelled wherever it is."""
    print(f"seed {seed}")
    chance, book = random.Random(seed), Book()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task: asyncio.Task[None] | None = None

        def strike(number: int, frame: FrameType | None) -> None:
            if task is not None:
                loop.call_soon_threadsafe(task.cancel)

        mq = await aio.connect(broker.endpoint)
        await mq.create_topic("t", 2)
        published, taken = list[bytes](), list[bytes]()

        async def publish() -> None:
            for value in book.values():
                await mq.publish("t", value, key=value if chance.random() < 0.3 else None)
                published.append(value)

        async def publish_list() -> None:
            values = book.values()
            await mq.publish_many("t", values)
            published.extend(values)

        async def fetch() -> None:
            batch = await mq.fetch("t", "g", n=BATCH, wait=0.02)
            taken.extend(batch.values())
            mq.ack_soon(batch)
            await mq.flush(PATIENCE_S)

        async def consume() -> None:
            async with mq.subscribe("t", "g", stop_at_end=True) as messages:
                async for msg in messages:
                    async with msg:
                        taken.append(msg.value)
                    if len(taken) == BATCH:
                        break
            await mq.flush(PATIENCE_S)

        async def close() -> None:
            await mq.close()

        works: list[Callable[[], Coroutine[Any, Any, None]]] = [publish, publish_list, fetch, consume, close]
        before = signal.signal(signal.SIGALRM, strike)
        try:
            while book.struck < strikes:
                published, taken = [], []
                work, struck, began_s = chance.choices(works, (4, 2, 3, 3, 1))[0], False, time.monotonic()
                task = asyncio.create_task(work())
                signal.setitimer(signal.ITIMER_REAL, delay_s(chance))
                try:
                    await task
                except asyncio.CancelledError:
                    struck = True
                task = None
                signal.setitimer(signal.ITIMER_REAL, 0)
                if work is close:
                    with suppress(asyncio.CancelledError):
                        await mq.close()
                    mq = await aio.connect(broker.endpoint)
                await mq.flush(PATIENCE_S)
                book.ended(struck, began_s, published, taken)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        await mq.close()

    asyncio.run(main())
    book.judge(*found(broker))
    book.keep("asyncio", seed)


def test_the_document_states_what_was_counted() -> None:
    counts = json.loads(Path(__file__).with_name("signals.json").read_text("utf-8"))
    signals = sum(each["interrupts"] for each in counts.values())
    told = " ".join((HOME / "docs" / "internals" / "testing.md").read_text("utf-8").split())
    assert f"{signals:,} signals at random microseconds" in told
