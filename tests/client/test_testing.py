"""The broker for tests of applications, its clock, and the pytest fixtures."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from conftest import HOME, ROOTS
from gossipq_client import BadRequest, connect, testing

pytestmark = pytest.mark.e2e
PATIENCE_S = 30
BEGUN_S = 0.3  #: a leader knows by then that user code has begun with a record

APPLICATION = """
from dataclasses import dataclass

from gossipq_client import Retry, aio

mq = aio.connect()
mailed = []


@dataclass
class Order:
    id: int


@mq.consumer("orders", group="billing", backoff=["1m"])
def bill(order: Order, msg) -> None:
    if msg.attempt == 1:
        raise Retry("10m")
    mailed.append(order.id)
"""

TESTS = """
import app
from gossipq_client import connect


def test_a_failure_comes_again(mq):
    mq.include(app.mq.handlers)
    mq.publish("orders", b'{"id": 17}', delay="1h")
    mq.run(stop_at_end=True)
    mq.advance("1h")
    mq.run(stop_at_end=True)
    assert app.mailed == []
    mq.advance("10m")
    mq.run(stop_at_end=True)
    assert app.mailed == [17]


def test_another_one_begins_with_nothing(mq, gossipq_broker):
    assert mq.topics() == []
    with connect() as other:
        other.publish("orders", b"x", timeout=30)
    assert mq.fetch("orders", "g").values() == [b"x"]
    gossipq_broker.advance(1)
"""


def test_the_fixture_in_a_project_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "conftest.py").write_text("from gossipq_client.pytest_plugin import gossipq_broker, mq\n")
    (tmp_path / "app.py").write_text(APPLICATION)
    (tmp_path / "test_app.py").write_text(TESTS)
    paths = os.pathsep.join([str(tmp_path), *(str(HOME / root) for root in ROOTS)])
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout


class TestClock:
    def test_it_goes_on_by_itself_and_is_moved(self) -> None:
        clock = testing.MovableClock()
        before = clock.now()
        clock.advance(3_600_000)
        after = clock.now()
        assert 3_600_000 <= after.boot_ms - before.boot_ms < 3_601_000
        assert 3_600_000 <= after.wall_ms - before.wall_ms < 3_601_000

    def test_what_falls_due_has_happened(self) -> None:
        with testing.Broker() as broker, broker.connect() as mq:
            mq.post_many("orders", [b"b", b"a"], delays=["2h", "1h"])
            mq.advance("3599s")
            assert mq.fetch("orders", "g", wait=0).values() == []
            mq.advance("2s")
            assert mq.fetch("orders", "g", wait=PATIENCE_S).values() == [b"a"]
            mq.advance("30d")
            assert mq.fetch("orders", "g", wait=PATIENCE_S).values() == [b"b"]

    def test_what_expires_is_a_dead_letter(self) -> None:
        with testing.Broker() as broker, broker.connect() as mq:
            mq.create_topic("orders")
            assert list(mq.consume("orders", "g", stop_at_end=True)) == []
            mq.publish("orders", b"x", ttl="1h", timeout=PATIENCE_S)
            mq.advance("61m")
            assert list(mq.consume("orders", "g", stop_at_end=True)) == []
            letters = [(letter.value, letter.reason) for letter in mq.dead("orders", "g").letters()]
            assert letters == [(b"x", "expired")]

    def test_an_idle_client_outlives_the_jump(self) -> None:
        with testing.Broker() as broker, broker.connect() as mq:
            mq.publish_many("orders", [b"1", b"2"], timeout=PATIENCE_S)
            loop = mq.consume("orders", "g")
            with next(loop):
                pass
            for _ in range(3):
                mq.advance("1d")
            with next(loop) as msg:
                assert msg.value == b"2"
            mq.flush(PATIENCE_S)
            assert mq.topic("orders").groups()[0].acked == 2

    def test_a_lease_that_ends_by_it_is_lost(self) -> None:
        with testing.Broker() as broker, broker.connect() as hung, broker.connect() as mq:
            mq.publish("orders", b"x", timeout=PATIENCE_S)
            loop = hung.consume("orders", "g", credit=1)
            assert next(loop).attempt == 1
            time.sleep(BEGUN_S)
            loop.close()  # type: ignore[attr-defined]
            broker.advance("31s")
            (msg,) = mq.fetch("orders", "g", wait=PATIENCE_S)
            assert msg.attempt == 2

    @pytest.mark.parametrize("duration", [-1, "-1s", float("nan"), "soon"])
    def test_it_goes_forward(self, duration: float | str) -> None:
        with testing.Broker() as broker, pytest.raises(BadRequest, match="duration"):
            broker.advance(duration)


def test_brokers_side_by_side_and_their_threads_end() -> None:
    before = {thread.name for thread in threading.enumerate()}
    with testing.Broker() as one, testing.Broker() as two:
        assert one.endpoint != two.endpoint
        for number, broker in enumerate((one, two)):
            with connect(broker.endpoint) as mq:
                mq.publish("t", b"%d" % number, timeout=PATIENCE_S)
                assert mq.fetch("t", "g", wait=PATIENCE_S).values() == [b"%d" % number]
        one.close()
    end = time.monotonic() + PATIENCE_S
    while {thread.name for thread in threading.enumerate()} - before:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert not Path(one.endpoint.removeprefix("ipc://")).parent.exists()
