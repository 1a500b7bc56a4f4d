"""Records that are acked one by one: noted at any moment, from any thread, and joined when the client takes
its next step."""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossipq.errors import ClientClosed
from gossipq_client import Client, testing
from gossipq_client.api.sync import keeper
from gossipq_client.io import Bell, wait
from gossipq_client.session import ACK_LINGER_MS, Record
from gossipq_client.session.held import Held
from gossipq_client.session.settlement import Settling

PATIENCE_S = 25  #: less than a lease: a redelivery must not wait for its end
BASE = 100


class Joining(Settling):
    """Joins acks without a client."""

    def __init__(self, acked: list[tuple[Held, int, int]]) -> None:
        self.noted: list[Record] = []
        self.acked = acked

    def ack(self, held: Held, first: int, end: int) -> None:
        self.acked.append((held, first, end))


def slices(count: int) -> list[Held]:
    part: Any = None
    batch: Any = SimpleNamespace(info=SimpleNamespace(columns=0))
    return [Held(part, 1 << 16, BASE, BASE, BASE + 40, batch, 1) for _ in range(count)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(BASE, BASE + 39)), min_size=1, max_size=60))
def test_what_is_noted_is_acked_neighbours_together(done: list[tuple[int, int]]) -> None:
    helds, acked = slices(3), list[tuple[Held, int, int]]()
    settling = Joining(acked)
    settling.noted += [Record(helds[which], offset) for which, offset in done]
    settling.join_noted()
    assert settling.noted == []
    one_by_one = [(held, offset) for held, first, end in acked for offset in range(first, end)]
    assert one_by_one == [(helds[which], offset) for which, offset in done]
    assert not any(held is other and end == first for (held, _, end), (other, first, _) in pairwise(acked))


def test_what_is_noted_meanwhile_stays_for_the_next_time() -> None:
    (held,), acked = slices(1), list[tuple[Held, int, int]]()
    settling = Joining(acked)
    settling.ack = lambda *_: settling.noted.append(Record(held, BASE + 7))  # type: ignore[method-assign]
    settling.noted.append(Record(held, BASE))
    settling.join_noted()
    assert [record.offset for record in settling.noted] == [BASE + 7]


def test_an_interrupt_forgets_none() -> None:
    (held,), acked = slices(1), list[tuple[Held, int, int]]()
    settling = Joining(acked)
    settling.noted += [Record(held, BASE), Record(held, BASE + 9)]
    real = settling.ack

    def struck(held: Held, first: int, end: int) -> None:
        real(held, first, end)
        raise KeyboardInterrupt

    settling.ack = struck  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        settling.join_noted()
    settling.ack = real  # type: ignore[method-assign]
    settling.join_noted()
    assert (held, BASE, BASE + 1) in acked
    assert (held, BASE + 9, BASE + 10) in acked


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


@pytest.fixture
def mq(broker: testing.Broker) -> Iterator[Client]:
    with broker.connect() as mq:
        yield mq


def left(broker: testing.Broker, topic: str) -> list[bytes]:
    """The records that another client of the group still gets."""
    with broker.connect() as other:
        return list(other.fetch(topic, "g", n=10_000, wait=0).values())


@pytest.mark.e2e
class TestClient:
    def test_an_ack_waits_for_nobody_who_is_at_work(self, broker: testing.Broker, mq: Client) -> None:
        mq.publish_many("free", [b"1", b"2"], timeout=PATIENCE_S)
        batch = mq.fetch("free", "g", n=2, wait=PATIENCE_S)
        with mq._driver.lock:  # somebody else does an exchange
            acking = threading.Thread(target=batch[0].ack_soon)
            acking.start()
            acking.join(PATIENCE_S)
            assert not acking.is_alive()
        mq.ack_soon(batch)
        mq.flush(PATIENCE_S)
        mq.close()
        assert left(broker, "free") == []

    def test_a_signal_handler_may_ack_in_the_middle_of_a_step(
        self, broker: testing.Broker, mq: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mq.publish_many("handled", [b"1", b"2"], timeout=PATIENCE_S)
        message = next(iter(mq.fetch("handled", "g", n=1, wait=PATIENCE_S)))
        receive, struck = mq._driver.engine.transport.receive, list[bool]()

        def strike() -> list[tuple[str, list[bytes]]]:
            if not struck and threading.current_thread() is threading.main_thread():
                struck.append(True)
                signal.raise_signal(signal.SIGUSR1)
            return receive()

        monkeypatch.setattr(mq._driver.engine.transport, "receive", strike)
        before = signal.signal(signal.SIGUSR1, lambda *_: message.ack_soon())
        try:
            mq.publish("handled", b"3", timeout=PATIENCE_S)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert struck
        mq.flush(PATIENCE_S)
        mq.close()
        assert left(broker, "handled") == [b"2", b"3"]

    def test_the_end_takes_what_is_noted(self, broker: testing.Broker, mq: Client) -> None:
        mq.publish_many("ended", [b"1", b"2", b"3"], timeout=PATIENCE_S)
        batch = mq.fetch("ended", "g", n=3, wait=PATIENCE_S)
        mq._driver.keeper.stop()  # otherwise it would join them
        for message in batch:
            message.ack_soon()
        assert mq._driver.engine.noted
        mq._driver.engine.farewell()
        assert left(broker, "ended") == []

    def test_acks_of_many_threads_are_all_stored(self, broker: testing.Broker, mq: Client) -> None:
        mq.publish_many("many", [b"%d" % number for number in range(8_000)], timeout=PATIENCE_S)
        messages = list(mq.fetch("many", "g", n=8_000, wait=PATIENCE_S))
        while len(messages) < 8_000:
            messages += mq.fetch("many", "g", n=8_000, wait=PATIENCE_S)

        def ack(which: int) -> None:
            for message in messages[which::4]:
                with message:
                    pass

        threads = [threading.Thread(target=ack, args=(which,)) for which in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            mq.flush(PATIENCE_S)  # takes steps meanwhile
        mq.flush(PATIENCE_S)
        mq.close()
        assert left(broker, "many") == []

    @pytest.mark.parametrize("aside", [False, True])
    def test_what_comes_while_the_keeper_lies_down_is_not_slept_over(
        self, mq: Client, monkeypatch: pytest.MonkeyPatch, aside: bool
    ) -> None:
        """It has looked for the last time, and does not yet say that it is to be woken. `aside`: somebody
        waits meanwhile, and minds the sockets."""
        mq.publish("slept", b"1", timeout=PATIENCE_S)
        other = mq.subscribe("idle", "g")
        waiting = threading.Thread(target=lambda: list(other))
        if aside:
            waiting.start()
            while not mq._driver.keeper.aside:
                time.sleep(0.01)
        message = mq.fetch("slept", "g", n=1, wait=PATIENCE_S)[0]
        mq.flush(PATIENCE_S)
        engine, waits, over = mq._driver.engine, list[float](), threading.Event()
        real_wait, real_timeout_ms, real_tell = wait, engine.timeout_ms, engine.tell
        begun: list[bool] = []  # a round of the keeper: the first question is how long it may rest

        def tell() -> None:
            real_tell()
            if threading.current_thread() is mq._driver.keeper._thread:
                begun[:] = [True]

        def timeout_ms() -> int:
            mine = threading.current_thread() is mq._driver.keeper._thread
            stands = not aside or sys._getframe(1).f_locals.get("seen") == mq._driver.exchanges
            if not (mine and begun and stands) or waits:
                begun.clear()
                return real_timeout_ms()
            message.ack_soon()
            waits.append(0)
            return 60_000

        def waited(fds: Sequence[int], timeout_ms: float) -> list[int]:
            if len(waits) == 1:
                waits.append(timeout_ms)
                over.set()
            return real_wait(fds, timeout_ms)

        monkeypatch.setattr(engine, "timeout_ms", timeout_ms)
        monkeypatch.setattr(engine, "tell", tell)
        monkeypatch.setattr(keeper, "wait", waited)
        deadline = time.monotonic() + PATIENCE_S
        while not over.wait(0.1):
            mq._driver.keeper.wake()
            assert time.monotonic() < deadline
        assert waits[1] <= ACK_LINGER_MS
        other.stop()
        if aside:
            waiting.join(PATIENCE_S)
        mq.flush(PATIENCE_S)

    def test_what_a_closed_client_refuses_is_not_kept(self, mq: Client) -> None:
        mq.publish("late", b"1", timeout=PATIENCE_S)
        message = mq.fetch("late", "g", n=1, wait=PATIENCE_S)[0]
        mq.close()
        for _ in range(3):
            with pytest.raises(ClientClosed):
                message.ack_soon()
        assert mq._driver.engine.noted == []

    @pytest.mark.parametrize("shuffled", [False, True])
    def test_an_interrupt_at_any_line_leaves_nothing_in_hand(self, mq: Client, shuffled: bool) -> None:
        """Python itself never interrupts between two statements without a call: a debugger may."""
        at, struck = 0, True
        while struck:
            at += 1
            mq.publish_many("struck", [b"%d" % number for number in range(8)], timeout=PATIENCE_S)
            messages = list(mq.fetch("struck", "g", n=8, wait=PATIENCE_S))
            assert len(messages) == 8
            held, left = messages[0]._held, [at]

            def strike(frame: FrameType, event: str, argument: Any, left: list[int] = left) -> Any:
                if frame.f_code not in (Settling.ack.__code__, Settling.join_noted.__code__):
                    return None
                left[0] -= event == "line"
                if left[0] == 0:
                    raise KeyboardInterrupt
                return strike

            with mq._driver.lock:  # the keeper stays out
                for message in sorted(messages, key=lambda each: each.offset % 3) if shuffled else messages:
                    message.ack_soon()
                sys.settrace(strike)
                with suppress(KeyboardInterrupt):
                    mq._driver.exchange()
                sys.settrace(None)
                mq._driver.exchange()
            assert (held.left, held in held.part.outstanding) == (0, False)
            struck = left[0] <= 0
        assert at > 10
        mq.flush(PATIENCE_S)


def test_a_ring_while_a_bell_is_cleared_does_not_silence_it() -> None:
    bell = Bell()
    heard = bell._heard

    class Heard:
        """Another thread rings right before the signals are read."""

        def recv(self, size: int) -> bytes:
            bell._heard = heard
            bell.ring()
            return heard.recv(size)

    bell.ring()
    bell._heard = Heard()  # type: ignore[assignment]
    bell.clear()
    bell.ring()
    assert wait([bell.fd], 1_000)
    bell.close()
