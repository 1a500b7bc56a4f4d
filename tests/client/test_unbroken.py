"""Things that a client must never do: lose records silently, hang without a reason, or
change its user's objects.
"""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gossipq.errors import Backpressure, ClientClosed, ConfigError, NotConfirmed, TooLarge, Unreachable
from gossipq.values import TopicConfig, TopicInfo
from gossipq_client import Client, LeaseLost, aio, connect, embedded, testing
from gossipq_client.io import Bell
from gossipq_client.session.credit import Part
from gossipq_client.session.packer import WINDOW_BATCHES
from gossipq_client.session.sender import FAILURES_MAX
from tests.client.hand import SHARD, Hand

pytestmark = pytest.mark.e2e
PATIENCE_S = 25  #: less than a lease: a redelivery must not wait for its end
KEY = ["k"]  # a list with keys has batches of its own
HOME = Path(__file__).resolve().parents[2]
SYNC = """
import sys, gossipq_client
mq = gossipq_client.connect(sys.argv[1])
"""
ASYNC = """
import asyncio, sys
from gossipq_client import aio
async def main():
    mq = await aio.connect(sys.argv[1])
    await mq.publish("left", b"0")  # now it knows the topic, and a post waits for nothing
    for number in range(1, 20_000):
        mq.post("left", b"%d" % number)
asyncio.run(main())
"""


@pytest.fixture
def mq(broker: testing.Broker) -> Iterator[Client]:
    with broker.connect() as mq:
        yield mq


def in_an_ack(mq: Client, monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Does it once, in the middle of the next ack."""
    consuming, left = mq._driver.engine.session.consuming, [do]
    real = consuming._flush_soon

    def flush_soon(part: Part) -> None:
        real(part)
        if left:
            left.pop()()

    monkeypatch.setattr(consuming, "_flush_soon", flush_soon)


def script(text: str, endpoint: str) -> "subprocess.Popen[str]":
    paths = os.pathsep.join(str(HOME / root) for root in ("", "nodes", "clients/python"))
    return subprocess.Popen(
        [sys.executable, "-W", "always", "-c", text, endpoint],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class TestTheEndOfAProgram:
    @pytest.mark.parametrize(
        "text",
        [SYNC + "for number in range(20_000):\n    mq.post('left', b'%d' % number)", ASYNC],
        ids=["sync", "asyncio"],
    )
    def test_what_was_published_is_sent_without_a_close(self, text: str) -> None:
        with testing.Broker() as broker:
            process = script(text, broker.endpoint)
            _, said = process.communicate(timeout=60)
            assert process.returncode == 0
            assert "ResourceWarning" in said
            assert "0 without a confirm" in said
            with broker.connect() as mq:
                assert sum(row.next - row.first for row in mq.admin.stats(["left"]).partitions) == 20_000

    def test_each_client_sends_what_it_has_where_warnings_are_errors(self) -> None:
        text = SYNC + "import warnings\nother = gossipq_client.connect(sys.argv[1])\n"
        text += "for number in range(20_000):\n    mq.post('one', b'x'), other.post('other', b'x')\n"
        with testing.Broker() as broker:
            process = script(text + "warnings.simplefilter('error')\n", broker.endpoint)
            _, said = process.communicate(timeout=60)
            assert "ResourceWarning" in said
            with broker.connect() as mq:
                stats = mq.admin.stats(["one", "other"])
                assert sum(row.next - row.first for row in stats.partitions) == 40_000

    def test_what_stays_unconfirmed_is_told(self) -> None:
        broker = testing.Broker()
        text = SYNC + "mq.publish('lost', b'x')\nprint('ready', flush=True)\ninput()\n"
        process = script(
            text + "for number in range(7):\n    mq.post('lost', b'%d' % number)\n", broker.endpoint
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        broker.close()
        begun_s = time.monotonic()
        _, said = process.communicate("\n", timeout=60)
        assert time.monotonic() - begun_s < 30
        assert "7 records of client" in said
        assert "had no confirm when the program ended" in said
        assert "ResourceWarning" in said

    def test_what_is_not_confirmed_because_no_node_answers_says_so(self) -> None:
        broker = testing.Broker()
        mq = broker.connect()
        mq.publish("away", b"before", timeout=PATIENCE_S)
        broker.close()
        try:
            with pytest.raises(NotConfirmed, match=rf"within 3.0 s: no node answers at {broker.endpoint}"):
                mq.publish("away", b"after", timeout=3)
            with pytest.raises(NotConfirmed, match=rf"for 1 record: no node answers at {broker.endpoint}"):
                mq.flush(0.5)
        finally:
            mq.close(flush=False)

    def test_a_closed_client_says_nothing(self, broker: testing.Broker) -> None:
        process = script(SYNC + "mq.post('closed', b'x')\nmq.close()", broker.endpoint)
        assert process.communicate(timeout=60)[1] == ""


class TestFetchesSideBySide:
    def test_of_threads(self, mq: Client) -> None:
        mq.create_topic("threads", 1)
        found: list[bytes] = []
        patient = threading.Thread(
            target=lambda: found.extend(mq.fetch("threads", "g", n=10, wait=PATIENCE_S).values())
        )
        patient.start()
        time.sleep(0.2)
        assert mq.fetch("threads", "g", n=10, wait=0.1).values() == []
        mq.publish("threads", b"one", timeout=PATIENCE_S)
        patient.join(PATIENCE_S / 2)
        assert found == [b"one"]

    def test_of_tasks(self, broker: testing.Broker) -> None:
        async def main() -> None:
            async with aio.connect(broker.endpoint) as mq:
                await mq.create_topic("tasks", 1)
                patient = asyncio.create_task(mq.fetch("tasks", "g", n=10, wait=PATIENCE_S))
                await asyncio.sleep(0.2)
                assert (await mq.fetch("tasks", "g", n=10, wait=0.1)).values() == []
                await mq.publish("tasks", b"one")
                assert (await asyncio.wait_for(patient, PATIENCE_S / 2)).values() == [b"one"]

        asyncio.run(main())

    def test_who_comes_too_late_waits_on(self, mq: Client) -> None:
        mq.create_topic("late", 1)
        found: list[bytes] = []

        def fetch() -> None:
            found.extend(mq.fetch("late", "g", n=1, wait=PATIENCE_S).values())

        threads = [threading.Thread(target=fetch) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(3):
            time.sleep(0.1)
            mq.publish("late", b"%d" % number, timeout=PATIENCE_S)
        for thread in threads:
            thread.join(PATIENCE_S / 2)
        assert sorted(found) == [b"0", b"1", b"2"]


class TestSignals:
    def test_a_handler_may_close_a_client_that_is_at_work(
        self, broker: testing.Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mq = broker.connect()
        mq.publish("signalled", b"first", timeout=PATIENCE_S)
        real, left = mq._driver.engine.transport.receive, [1]

        def receive() -> list[tuple[str, list[bytes]]]:
            arrived = real()
            if left and threading.current_thread() is threading.main_thread():
                left.pop()
                signal.raise_signal(signal.SIGUSR1)
            return arrived

        monkeypatch.setattr(mq._driver.engine.transport, "receive", receive)
        before = signal.signal(signal.SIGUSR1, lambda *_: mq.close())
        try:
            pending = mq.post("signalled", b"kept")
            with pytest.raises(ClientClosed):
                mq._driver.until(lambda: False, PATIENCE_S)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert pending.result().offset == 1

    def test_who_was_interrupted_hears_what_a_handler_that_waits_has_taken(self, mq: Client) -> None:
        """The handler's wait took the place of the other one, which was never woken."""
        mq.publish("nested", b"0", timeout=PATIENCE_S)
        real, bells, rung = mq._driver.engine.transport.receive, list[Bell](), list[bool]()

        def handle(*_: object) -> None:
            if mq._driver.engine.busy or not mq._driver.waiting or bells:
                return  # it does not wait just now
            bells.extend(mq._driver.waiting.values())
            mq._driver.engine.transport.receive = real  # type: ignore[method-assign]
            mq.topic("nested").groups()
            rung.extend(bell.rung for bell in bells)

        def interrupt() -> None:
            while not rung:
                time.sleep(0.01)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, handle)
        interrupter = threading.Thread(target=interrupt)
        try:
            mq._driver.engine.transport.receive = list  # type: ignore[method-assign]  # the handler takes the confirm
            pending = mq.post("nested", b"1")
            interrupter.start()
            assert pending.result(PATIENCE_S).offset == 1
        finally:
            rung.append(False)  # at the latest now no more is sent
            interrupter.join()
            signal.signal(signal.SIGUSR1, before)
        assert rung == [True, False]
        assert not mq._driver.waiting

    def test_a_handler_that_publishes_in_a_step_is_told(
        self, mq: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, left = mq._driver.engine.transport.receive, [1]

        def receive() -> list[tuple[str, list[bytes]]]:
            if left and threading.current_thread() is threading.main_thread():
                left.pop()
                signal.raise_signal(signal.SIGUSR1)
            return real()

        mq.publish("handled", b"0", timeout=PATIENCE_S)
        monkeypatch.setattr(mq._driver.engine.transport, "receive", receive)
        before = signal.signal(signal.SIGUSR1, lambda *_: mq.post("handled", b"2"))
        try:
            with pytest.raises(RuntimeError, match="signal handler"):
                mq.post("handled", b"1")
        finally:
            signal.signal(signal.SIGUSR1, before)
        mq.flush(PATIENCE_S)
        assert mq.fetch("handled", "g", n=10, min=2, wait=PATIENCE_S).values() == [b"0", b"1"]

    def test_a_handler_that_publishes_in_an_ack_is_told_and_no_ack_is_lost(
        self, broker: testing.Broker, mq: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mq.publish_many("acked", [b"1", b"2"], timeout=PATIENCE_S)
        batch = mq.fetch("acked", "g", n=2, wait=PATIENCE_S)
        in_an_ack(mq, monkeypatch, lambda: signal.raise_signal(signal.SIGUSR1))
        before = signal.signal(signal.SIGUSR1, lambda *_: mq.post("handled", b"2"))
        try:
            with pytest.raises(RuntimeError, match="signal handler"):
                mq.ack_soon(batch)
        finally:
            signal.signal(signal.SIGUSR1, before)
        mq.ack_soon(batch)
        mq.flush(PATIENCE_S)
        mq.close()
        with broker.connect() as other:
            assert not other.fetch("acked", "g", wait=0)

    def test_a_loop_that_is_dropped_in_an_ack_loses_none(
        self, broker: testing.Broker, mq: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mq.publish_many("dropped", [b"1", b"2"], timeout=PATIENCE_S)
        loops = [mq.consume("dropped", group="other")]
        batch = mq.fetch("dropped", "g", n=2, wait=PATIENCE_S)
        in_an_ack(mq, monkeypatch, loops.clear)
        mq.ack_soon(batch)
        mq.flush(PATIENCE_S)
        mq.close()
        with broker.connect() as other:
            assert not other.fetch("dropped", "g", wait=0)

    @pytest.mark.parametrize("signals", [True, False])
    def test_run_takes_signals_only_where_it_may(self, mq: Client, signals: bool) -> None:
        topic, seen = f"embedded-{signals}", list[object]()
        mq.publish(topic, b"x", timeout=PATIENCE_S)

        @mq.consumer(topic, group="g")
        def work(value: bytes) -> None:
            seen.append(signal.getsignal(signal.SIGTERM))

        before = signal.getsignal(signal.SIGTERM)
        mq.run(stop_at_end=True, signals=signals)
        assert (seen == [before]) is not signals
        assert signal.getsignal(signal.SIGTERM) is before


class TestSubscriptions:
    def test_one_that_was_never_begun_keeps_no_place(self, mq: Client) -> None:
        mq.publish("place", b"x", timeout=PATIENCE_S)
        dropped = mq.consume("place", group="g", mode="exclusive")
        mq.flush(PATIENCE_S)
        del dropped
        assert next(mq.consume("place", group="g", mode="exclusive")).value == b"x"

    def test_an_asyncio_one_neither(self, broker: testing.Broker) -> None:
        async def main() -> None:
            async with aio.connect(broker.endpoint) as mq:
                await mq.publish("aplace", b"x")
                dropped = mq.consume("aplace", group="g", mode="exclusive")
                await mq.flush(PATIENCE_S)
                del dropped
                async for msg in mq.consume("aplace", group="g", mode="exclusive"):
                    assert msg.value == b"x"
                    break

        asyncio.run(main())

    def test_it_stops_behind_the_message_in_hand(self, broker: testing.Broker, mq: Client) -> None:
        mq.create_topic("stopped", 1)
        mq.publish_many("stopped", [b"%d" % number for number in range(100)], timeout=PATIENCE_S)
        seen = []
        with mq.subscribe("stopped", group="g") as sub:
            for msg in sub:
                with msg:
                    seen.append(msg.offset)
                    if msg.offset == 9:
                        sub.stop()
        mq.flush(PATIENCE_S)
        with broker.connect() as other:
            rest = other.fetch("stopped", "g", n=1_000, wait=PATIENCE_S)
            assert seen == list(range(10))
            assert [msg.offset for msg in rest] == list(range(10, 100))

    def test_another_thread_stops_one_that_waits(self, mq: Client) -> None:
        mq.create_topic("quiet", 1)
        sub = mq.subscribe("quiet", group="g")
        threading.Timer(0.3, sub.stop).start()
        assert list(sub) == []

    def test_one_that_is_held_goes_on_after_a_break(self, mq: Client) -> None:
        mq.create_topic("held", 1)
        mq.publish_many("held", [b"%d" % number for number in range(10)], timeout=PATIENCE_S)
        with mq.subscribe("held", group="g", stop_at_end=True) as sub:
            for msg in sub:
                if msg.offset == 3:
                    break
            assert [msg.offset for msg in sub] == list(range(4, 10))

    def test_a_lost_lease_ends_a_message_and_not_the_loop(self, mq: Client) -> None:
        mq.create_topic("leases", 1)
        mq.publish_many("leases", [b"%d" % number for number in range(4)], timeout=PATIENCE_S)
        seen = []
        for msg in mq.consume("leases", group="g", stop_at_end=True):
            with msg:
                seen.append(msg.offset)
                if msg.offset == 1:
                    raise LeaseLost("in other hands")
                if msg.offset == 2:
                    msg._held.lose([(2, 3)])
        assert seen[:4] == [0, 1, 2, 3]
        with pytest.raises(LeaseLost, match="leases/0/2"):
            mq.flush(None)


class TestFullWindows:
    def test_publish_waits_no_longer_than_it_may(self, mq: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        mq.create_topic("full", 1)
        mq.publish("full", b"x", timeout=PATIENCE_S)
        with monkeypatch.context() as patched:
            patched.setattr(mq._driver.engine.transport, "receive", list)  # no confirm comes
            for _ in range(WINDOW_BATCHES):
                mq.post_many("full", [b"x"], keys=KEY, wait=0.2)
            with pytest.raises(Backpressure):
                mq.post_many("full", [b"x"], keys=KEY, wait=0.2)
            begun_s = time.monotonic()
            with pytest.raises(Backpressure):
                mq.post("full", b"x", key=b"k", wait="300ms")
            assert time.monotonic() - begun_s >= 0.25
        mq.flush(PATIENCE_S)

    def test_a_list_says_what_of_it_is_on_its_way(
        self, broker: testing.Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with connect(broker.endpoint, timeout=1) as mq:
            mq.create_topic("parted", 1)
            mq.publish("parted", b"x", timeout=PATIENCE_S)
            with monkeypatch.context() as patched:
                patched.setattr(mq._driver.engine.transport, "receive", list)  # no confirm comes
                with pytest.raises(
                    Backpressure, match=r"for 1 s: .*; \d+ records of the list are on their way"
                ):
                    mq.post_many("parted", [b"x" * 100_000] * 1_000)
            mq.flush(PATIENCE_S)
            assert 1 < mq.admin.stats(["parted"]).partitions[0].next < 1_001

    def test_asyncio_publish_waits_no_longer_than_it_may(self, broker: testing.Broker) -> None:
        async def main() -> None:
            async with aio.connect(broker.endpoint) as mq:
                await mq.create_topic("afull", 1)
                await mq.publish("afull", b"x")
                real = mq._driver.engine.transport.receive
                mq._driver.engine.transport.receive = list  # type: ignore[method-assign]
                for _ in range(WINDOW_BATCHES):
                    mq.post_many("afull", [b"x"], keys=KEY, wait=0.2)
                await mq._driver.posts_sent(PATIENCE_S)
                with pytest.raises(Backpressure):
                    await mq.publish_many("afull", [b"x"], keys=KEY, wait=0.2)
                with pytest.raises(Backpressure):
                    await mq.publish("afull", b"x", wait=0)
                mq._driver.engine.transport.receive = real  # type: ignore[method-assign]

        asyncio.run(main())

    def test_who_waits_goes_on_when_the_topic_was_made_anew(self) -> None:
        hand = Hand()
        old = hand.topic()
        for _ in range(WINDOW_BATCHES):
            hand.batch(old)
        hand.published()
        writer = old.writers[0]
        assert hand.session.publishing.full(writer)
        hand.session.publishing.learn(TopicInfo(8, "t", 2, TopicConfig(1), [SHARD]))
        assert not writer.flights
        sent = hand.published()
        assert len(sent) == WINDOW_BATCHES
        hand.confirm(*sent)
        heir = hand.session.publishing.heir(writer)
        assert heir is not writer
        assert not hand.session.publishing.full(heir)


def test_refusals_that_nobody_reads_take_no_room() -> None:
    hand = Hand()
    topic = hand.topic()
    for _ in range(3 * FAILURES_MAX):
        hand.batch(topic)
        hand.refuse(hand.published()[0], "too_large")
    publishing = hand.session.publishing
    assert len(publishing._failed) <= FAILURES_MAX
    failure = publishing.failure()
    assert isinstance(failure, TooLarge)
    assert f"{3 * FAILURES_MAX:,} batches" in str(failure)
    assert publishing.failure() is None


OTHER = """
import sys
from gossipq_client import embedded
with embedded.open(sys.argv[1]) as mq:
    print("open", flush=True)
    input()
    print(mq.publish("shared", b"later").offset, flush=True)
"""


def test_an_embedded_node_stays_for_the_others_when_its_first_client_leaves(tmp_path: Path) -> None:
    first = embedded.open(tmp_path / "q")
    first.publish("shared", b"first", timeout=PATIENCE_S)
    other = script(OTHER, str(tmp_path / "q"))
    assert other.stdout is not None
    assert other.stdout.readline() == "open\n"
    first.close()
    said, complaints = other.communicate("\n", timeout=60)
    assert said == "1\n", complaints
    with embedded.open(tmp_path / "q") as again:  # the last one has ended it, and nothing is lost
        assert again.fetch("shared", "g", n=10, min=2, wait=PATIENCE_S).values() == [b"first", b"later"]


def test_nobody_else_can_listen_for_an_embedded_node_of_a_long_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket lies in a directory for temporary files, where any user may put one of the same name."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    long = tmp_path / ("q" * embedded.SOCKET_PATH_MAX)
    with embedded.open(long) as mq:
        mq.publish("kept", b"1", timeout=PATIENCE_S)
    mine = tmp_path / f"gossipq-{os.getuid()}"
    assert mine.stat().st_mode & 0o777 == 0o700
    mine.chmod(0o770)
    with pytest.raises(ConfigError, match="of this user alone"):
        embedded.open(long)


def test_what_cannot_be_the_directory_of_a_node_is_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, why in ((tmp_path / "file", "File exists"), (tmp_path / ("q" * 300), "File name too long")):
        with pytest.raises(ConfigError, match=f"no node can be in .*: {why}"):
            embedded.open(path)


@pytest.mark.parametrize("program", ["", "/usr/sbin/uwsgi", "/bin/true"])
def test_an_embedded_node_starts_where_python_is_part_of_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """It started that program once more."""
    monkeypatch.setattr(sys, "executable", program)
    with embedded.open(tmp_path) as mq:
        mq.publish("kept", b"1")
    monkeypatch.setattr(embedded.os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="no Python interpreter is in"):
        embedded.open(tmp_path)


def test_a_forked_child_keeps_no_embedded_node_at_work(tmp_path: Path) -> None:
    """With copies of the parent's descriptors the node ran on with no client to end it, and the
    next `open` of the directory waited for ever.
    """
    mq = embedded.open(tmp_path)
    mq.publish("kept", b"1")
    child = os.fork()
    if not child:
        time.sleep(PATIENCE_S)
        os._exit(0)
    try:
        began_s = time.monotonic()
        mq.close()
        assert time.monotonic() - began_s < embedded.STOP_SECONDS / 2
        with embedded.open(tmp_path) as again:
            assert [msg.value for msg in again.read("kept")] == [b"1"]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_who_opens_a_directory_whose_node_does_not_end_is_told(tmp_path: Path) -> None:
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(Unreachable, match="about to end"):
        embedded.open(tmp_path, timeout="50ms")
    os.close(held)
