"""Crowds, slow readers, sudden deaths, pauses and clean ends around a
running node, always under load.
"""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import zmq

from conftest import HOME, ROOTS
from e2e.harness import Node, Raw, Tcp, stopped
from gossipq import limits
from gossipq.messages import Credit, Hello, RefusedMessage, Subscribe, Subscribed, Welcome
from gossipq.types import NODE_SHARD, partition_key
from gossipq.values import Start, WorkerStats
from gossipq_client import Client, connect
from gossipq_client.session.receipts import PendingReceipt
from waiting import until

pytestmark = pytest.mark.e2e
PATIENCE_S = 25  #: less than a lease: a redelivery must not wait for its end
STALLED_S = 5.0  #: in which a peer that still reads takes a megabyte, even on a loaded machine
CONNECTIONS = 1_000
UNDER_WAY_MAX = 50  #: batches of a load
GROWTH_BYTES_MAX = 2 * limits.CREDIT_BYTES_MAX  #: of a whole node that serves somebody who never reads
Make = Callable[..., Node]


def roundtrip(mq: Client, topic: str, count: int = 1_000) -> None:
    """Publishes, consumes and acks."""
    values = [b"%d" % number for number in range(count)]
    mq.publish_many(topic, values, timeout=PATIENCE_S)
    got: list[bytes] = []
    while len(got) < count:
        batch = mq.fetch(topic, "roundtrip", n=count, wait=PATIENCE_S)
        assert len(batch)
        got += batch.values()
        mq.ack_soon(batch)
    assert got == values
    mq.flush(PATIENCE_S)


class Load(threading.Thread):
    """Publishes without end into a topic of two partitions; `confirmed` and `unknown` say how each batch
    ended."""

    def __init__(self, endpoint: str, topic: str) -> None:
        super().__init__()
        self.endpoint, self.topic = endpoint, topic
        self.stopping = threading.Event()
        self.abandon = False
        self.confirmed: dict[bytes, tuple[int, int]] = {}  # value -> (partition, offset)
        self.sent = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error

    def _run(self) -> None:
        mq = connect(self.endpoint)
        under_way: deque[tuple[list[bytes], PendingReceipt]] = deque()
        try:
            while not self.stopping.is_set():
                if len(under_way) < UNDER_WAY_MAX:
                    values = [b"%d" % number for number in range(self.sent, self.sent + 20)]
                    under_way.append(
                        (values, mq.post_many(self.topic, values, partition=self.sent // 20 % 2))
                    )
                    self.sent += len(values)
                self._collect(under_way)
                time.sleep(0.001)
            end = time.monotonic() + PATIENCE_S
            while under_way and time.monotonic() < end and not self.abandon:
                self._collect(under_way)
                time.sleep(0.001)
        finally:
            mq.close(flush=False)

    def _collect(self, under_way: deque[tuple[list[bytes], PendingReceipt]]) -> None:
        while under_way and under_way[0][1].done():
            values, pending = under_way.popleft()
            receipt = pending.result(0)
            for at, value in enumerate(values):
                self.confirmed[value] = receipt.partition, receipt.offset + at

    def finish(self, abandon: bool = False) -> None:
        """Stops the load. With `abandon`, the fate of unconfirmed records stays unknown."""
        self.abandon = abandon
        self.stopping.set()
        self.join(2 * PATIENCE_S)
        if self.error is not None:
            raise self.error


@contextmanager
def load(node: Node, topic: str) -> Iterator[Load]:
    with connect(node.endpoint) as mq:
        mq.create_topic(topic, partitions=2)
    running = Load(node.endpoint, topic)
    running.start()
    try:
        until(lambda: len(running.confirmed) > 200 or running.error)
        yield running
    finally:
        running.stopping.set()
        running.join(2 * PATIENCE_S)


def check_kept(node: Node, running: Load) -> None:
    """Everything confirmed is at its offset, nothing is there twice."""
    with connect(node.endpoint) as mq:
        found = [(msg.value, (msg.partition, msg.offset)) for msg in mq.read(running.topic)]
    places = dict(found)
    assert len(places) == len(found), "a record is there twice"
    assert running.confirmed.items() <= places.items()


def worker_stats(mq: Client, worker: int) -> WorkerStats:
    return mq.admin.status().workers[worker]


class TestPorts:
    def test_a_port_that_is_taken(self, make: Make) -> None:
        first = make().start()
        for step in (0, 1):
            second = make()
            second.port = first.port + step
            second.endpoint = f"tcp://127.0.0.1:{second.port}"
            code, log = second.fail_to_start()
            assert code == 1, log
            assert "is taken by another program" in log
            assert "--bind" in log
            assert "Traceback" not in log
        with connect(first.endpoint) as mq:
            roundtrip(mq, "t")


class TestCrowds:
    def test_a_thousand_connections(self, make: Make) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < 4 * CONNECTIONS:
            pytest.skip(f"only {hard} files may be open here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * CONNECTIONS), hard))
        node = make().start()
        with zmq.Context() as context:
            context.set(zmq.MAX_SOCKETS, 2 * CONNECTIONS)
            clients = [Raw(context, node.endpoint if at % 2 else node.worker(0)) for at in range(CONNECTIONS)]
            try:
                for at, client in enumerate(clients):
                    client.say(Hello(at.to_bytes(16, "big"), "crowd", "1"), NODE_SHARD if at % 2 else 0)
                for client in clients:
                    answer = client.receive()
                    assert answer is not None
                    assert isinstance(answer.message, Welcome)
                with connect(node.endpoint) as mq:
                    roundtrip(mq, "t")
                    assert worker_stats(mq, 0).restarts == 0
            finally:
                for client in clients:
                    client.close()

    @pytest.mark.parametrize("group", ["", "sleepers"])
    def test_a_consumer_that_never_reads(self, make: Make, raw: Callable[..., Raw], group: str) -> None:
        """It grants all possible credit and reads nothing from its socket."""
        node = make().start()
        with connect(node.endpoint) as mq:
            info = mq.create_topic("t")
            shard = info.shards[0]
            sleeper = raw(node.worker(shard % 2), 1).hello(shard)
            starts = [Start(partition_key(info.id, 0), "first")]
            loan = limits.CREDIT_MAX, limits.CREDIT_BYTES_MAX
            assert isinstance(
                sleeper.ask(Subscribe(1, group, starts, loan[0], loan[1] + 1), shard), RefusedMessage
            )
            assert isinstance(sleeper.ask(Subscribe(1, group, starts, *loan), shard), Subscribed)
            for _ in range(10):
                sleeper.say(Credit(1, *loan), shard)
            roundtrip(mq, "t", 100)
            before = node.memory_bytes()
            for _ in range(16):
                mq.publish_many("t", [bytes(100 * limits.KIB)] * 160, timeout=PATIENCE_S)
            grown = node.memory_bytes() - before
            print(f"256 MB for one who never reads: the node grew by {grown >> 20} MiB")
            assert grown < GROWTH_BYTES_MAX
            roundtrip(mq, "others")

    def test_a_client_that_never_reads_its_messages(self, make: Make) -> None:
        """The same through the client, whose credit is small."""
        node = make().start()
        with connect(node.endpoint) as mq, connect(node.endpoint) as slow:
            loop = slow.consume("t", "g", start="first")
            mq.publish("t", b"first", timeout=PATIENCE_S)
            assert next(loop).value == b"first"
            before = node.memory_bytes()
            for _ in range(8):
                mq.publish_many("t", [bytes(100 * limits.KIB)] * 160, timeout=PATIENCE_S)
            assert node.memory_bytes() - before < GROWTH_BYTES_MAX
            roundtrip(mq, "others")


class TestNeverFinished:
    """A multipart whose last frame never comes. libzmq keeps its frames out of sight of the process that owns
    the socket."""

    def test_others_are_served_and_the_memory_comes_back(self, make: Make) -> None:
        node = make().start()
        before = node.memory_bytes()
        tcp = Tcp(node.port + 1).handshake()
        endless(tcp, 64 * limits.MIB)
        with connect(node.endpoint) as mq:
            roundtrip(mq, "t")
        tcp.close()
        until(lambda: node.memory_bytes() - before < 48 * limits.MIB, what="memory of a lost message is kept")

    def test_its_memory_is_bounded(self, make: Make) -> None:
        """Neither libzmq nor the node counts the frames of one message, so the process reaches
        its own bound. Then libzmq closes the connection, or the process ends and is replaced; the
        node continues either way.
        """
        node = make()
        node.environment["GOSSIPQ_NODE__MEMORY_BYTES_MAX"] = str(200 * limits.MIB)
        node.start()
        with connect(node.endpoint) as mq:
            kept = [mq.publish("t", b"before", partition=0, timeout=PATIENCE_S).offset]
            tcp = Tcp(node.port + 1).handshake()
            endless(tcp, 400 * limits.MIB)
            tcp.close()
            assert node.memory_bytes() < 4 * 200 * limits.MIB, (
                "supervisor, frontdoor and two workers at their bounds"
            )
            kept.append(mq.publish("t", b"after", partition=0, timeout=PATIENCE_S).offset)
            assert kept == [0, 1]
            assert [message.value for message in mq.fetch("t", group="g", n=2, min=2, wait=PATIENCE_S)] == [
                b"before",
                b"after",
            ]


def endless(tcp: Tcp, size: int) -> None:
    """Send `size` bytes of frames that all say that more follow. Stops early if the other side hangs up, or
    takes no bytes for STALLED_S, as a process at its bound may do."""
    tcp.socket.settimeout(STALLED_S)
    body = bytes(limits.MIB)
    with suppress(OSError):
        for _ in range(size // len(body)):
            tcp.frame(body, more=True)


class TestDeaths:
    def test_a_publisher_killed_in_mid_batch(self, make: Make, raw: Callable[..., Raw]) -> None:
        """Half a frame arrived: none of it is stored, and no other client waits for it."""
        node = make().start()
        with connect(node.endpoint) as mq:
            before = mq.publish("t", b"before", timeout=PATIENCE_S)
            shard = mq.topics("t")[0].shards[0]
            tcp = Tcp(node.port + 1 + shard % 2).handshake()
            tcp.head(10 * limits.MIB, more=True)
            tcp.socket.sendall(bytes(3 * limits.MIB))
            tcp.close()
            assert mq.publish("t", b"after", timeout=PATIENCE_S).offset == before.offset + 1
            assert [msg.value for msg in mq.read("t")] == [
                b"before",
                b"after",
            ]

    def test_a_consumer_killed_with_500_in_flight(self, make: Make) -> None:
        """Its records go to another consumer within the silence of 5 s plus 1
        s, as the second attempt.
        """
        node = make().start()
        script = (
            "import sys, time\n"
            "from gossipq_client import connect\n"
            "mq = connect(sys.argv[1])\n"
            "got = 0\n"
            "while got < 500: got += len(mq.fetch('t', 'g', n=500 - got))\n"
            "time.sleep(0.5)\n"
            "print(got, flush=True)\n"
            "time.sleep(60)\n"
        )
        with connect(node.endpoint) as mq:
            values = [b"%d" % number for number in range(500)]
            mq.publish_many("t", values, timeout=PATIENCE_S)
            paths = ":".join(str(HOME / root) for root in ROOTS)
            victim = subprocess.Popen(
                [sys.executable, "-c", script, node.endpoint],
                env={"PYTHONPATH": paths},
                stdout=subprocess.PIPE,
                text=True,
            )
            with victim:
                assert victim.stdout is not None
                assert victim.stdout.readline() == "500\n"
                victim.kill()
            began = time.monotonic()
            got = []
            while len(got) < 500 and time.monotonic() - began < PATIENCE_S:
                for msg in mq.fetch("t", "g", n=500, wait=3):
                    assert msg.attempt == 2, f"{msg} after {time.monotonic() - began:.2f} s"
                    got.append(msg.value)
                    msg.ack_soon()
            took = time.monotonic() - began
        print(f"500 records in flight came to another consumer after {took:.1f} s")
        assert sorted(got) == sorted(values)
        assert took < limits.LEASE_MS / 1000, "long before their leases ended"

    def test_a_worker_that_crashes_is_seen(self, make: Make) -> None:
        node = make().start()
        with load(node, "t") as running, connect(node.endpoint) as mq:
            victim = worker_stats(mq, 1)
            os.kill(victim.pid, signal.SIGKILL)
            back = until(
                lambda: (row := worker_stats(mq, 1)).pid != victim.pid and row.state == "ready" and row
            )
            assert (back.restarts, worker_stats(mq, 0).restarts) == (1, 0)
            running.finish()
            assert len(running.confirmed) == running.sent
        assert f"worker-1 (pid {victim.pid}) ended" in node.log()
        assert "restarts: 1" in node.log()
        check_kept(node, running)


class TestFarewells:
    def test_sigterm_under_load_loses_nothing_confirmed(self, make: Make) -> None:
        node = make().start()
        with load(node, "t") as running:
            assert node.end(signal.SIGTERM) == 0, "not drained in time"
            running.finish(abandon=True)
        assert "drained" in node.log()
        node.start()
        check_kept(node, running)

    def test_a_second_sigterm_ends_at_once(self, make: Make) -> None:
        node = make()
        node.environment["GOSSIPQ_NODE__DRAIN_MS"] = "60000"
        pids = node.start().pids()
        with stopped(pids[2]):
            node.signal(signal.SIGTERM)
            until(lambda: "draining" in node.log())
            time.sleep(0.2)
            began = time.monotonic()
            assert node.end(signal.SIGTERM) == 128 + signal.SIGTERM
            assert time.monotonic() - began < PATIENCE_S, "long before the drain would end"
            until(lambda: not any(map(alive, pids)))

    def test_a_worker_that_hangs_does_not_keep_a_drain_for_ever(self, make: Make) -> None:
        node = make()
        node.environment["GOSSIPQ_NODE__DRAIN_MS"] = "500"
        pids = node.start().pids()
        with stopped(pids[2]):
            assert node.end(signal.SIGTERM) == 1
            until(lambda: not any(map(alive, pids)))
        assert "not drained in time: worker-0" in node.log()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestPauses:
    def test_a_worker_that_stands_still_for_seven_seconds(self, make: Make) -> None:
        """The pause exceeds the silence that ends a session. Still no session ends, because
        the worker itself paused.
        """
        node = make().start()
        with connect(node.endpoint) as consumer, load(node, "t") as running:
            taken: list[tuple[bytes, int]] = []
            errors: list[BaseException] = []
            enough = threading.Event()

            def consume() -> None:
                try:
                    while not enough.is_set():
                        batch = consumer.fetch("t", "g", n=200, wait=0.2)
                        taken.extend((msg.value, msg.attempt) for msg in batch)
                        consumer.ack_soon(batch)
                    consumer.flush(PATIENCE_S)
                except BaseException as error:
                    errors.append(error)

            thread = threading.Thread(target=consume)
            thread.start()
            until(lambda: taken or errors)
            pids = [worker.pid for worker in consumer.admin.status().workers]
            with stopped(pids[0]):
                time.sleep(7)
            at_wake = len(running.confirmed)
            until(lambda: len(running.confirmed) > at_wake + 500 or running.error, PATIENCE_S)
            running.finish()
            with connect(node.endpoint) as mq:
                until(
                    lambda: sum(row.acked for row in mq.topic("t").groups()) == running.sent or errors,
                    PATIENCE_S,
                )
                enough.set()
                thread.join(PATIENCE_S)
                assert [worker.pid for worker in mq.admin.status().workers] == pids
        assert not errors
        assert len(running.confirmed) == running.sent
        check_kept(node, running)
        assert {value for value, _ in taken} == set(running.confirmed)
        again = len(taken) - len(running.confirmed)
        print(f"{len(taken)} handed out, {again} of them again")
        assert again <= limits.CREDIT_RECORDS * 8, "at least once, and not many times"
