"""A gateway that is killed under load, again and again: what its clients were told is stored is stored, and
what it held comes back."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from conftest import HOME, ROOTS, RunningNode
from gossipq_client import connect as connect_gossipq
from ports import settled_port
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
KILLS, PAUSE_S, WINDOW = 4, 2.0, 100


class Killable:
    """`gossipq gateway` as a process, at ports that stay."""

    def __init__(self, endpoint: str, directory: Path) -> None:
        self.kapokmq, self._http = settled_port(), settled_port()
        self._directory = directory
        self._line = [sys.executable, "-m", "gossipq_cli", "-s", endpoint, "gateway"]
        self._line += [f"--http=127.0.0.1:{self._http}", f"--dialect=kapokmq=127.0.0.1:{self.kapokmq}"]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        paths = os.pathsep.join(str(HOME / root) for root in (*ROOTS, "clients/gateway"))
        env = {name: text for name, text in os.environ.items() if not name.startswith("GOSSIPQ")}
        with open(self._directory / "gateway.log", "ab") as log:
            self._process = subprocess.Popen(
                self._line,
                env={**env, "PYTHONPATH": paths},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._directory,
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("ready"), (
            self._directory / "gateway.log"
        ).read_text()

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(number)
        self._process.wait(30)
        self._process.stdout.close()


def dial(stack: ExitStack, port: int, path: str) -> ClientConnection:
    """A WebSocket that is logged in, once somebody listens."""
    while True:
        with suppress(OSError, WebSocketException, TimeoutError):
            line = stack.enter_context(connect(f"ws://127.0.0.1:{port}/{path}", compression=None))
            line.recv(10)
            line.send("test")
            line.recv(10)
            return line
        time.sleep(0.05)


class Producer(threading.Thread):
    """Sends numbers, a window at a time, and after each failure continues with
    the first unconfirmed one.
    """

    def __init__(self, port: int, topic: str, name: str) -> None:
        super().__init__()
        self._port, self._path, self._producer = port, f"Producers/Conn/{topic}/{name}", name
        self.confirmed: list[str] = []
        self.over = False

    def run(self) -> None:
        number = 0
        while not self.over:
            with ExitStack() as stack, suppress(OSError, WebSocketException, TimeoutError):
                line = dial(stack, self._port, self._path)
                while not self.over:
                    sent = [f"{self._producer}-{number + at}" for at in range(WINDOW)]
                    number += WINDOW
                    for text in sent:
                        line.send(f'{{"MessageData":"{text}"}}')
                    for text in sent:
                        assert line.recv(30) == "ok"
                        self.confirmed.append(text)


class Consumer(threading.Thread):
    """Acks what it gets, and remembers it."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__()
        self._port, self._path = port, f"Consumers/Conn/{topic}/1"
        self.seen: set[str] = set()
        self.over = False

    def run(self) -> None:
        while not self.over:
            with ExitStack() as stack, suppress(OSError, WebSocketException, TimeoutError):
                line = dial(stack, self._port, self._path)
                while not self.over:
                    frame = line.recv(1)
                    code, _, rest = frame[16:].partition('"')  # type: ignore[arg-type]
                    self.seen.add(rest.split('"')[3])
                    line.send(code)


@contextmanager
def at_work(*threads: "Producer | Consumer") -> Iterator[None]:
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.over = True
        for thread in threads:
            thread.join(60)


def test_nothing_that_was_confirmed_is_lost(shared_node: RunningNode, tmp_path: Path) -> None:
    topic = f"killed-{uuid.uuid4().hex[:8]}"
    gateway = Killable(shared_node.endpoint, tmp_path)
    gateway.start()
    producers = [Producer(gateway.kapokmq, topic, f"p{number}") for number in range(3)]
    consumer = Consumer(gateway.kapokmq, topic)
    try:
        with at_work(consumer):
            with at_work(*producers):
                for _ in range(KILLS):
                    time.sleep(PAUSE_S)
                    gateway.kill()
                    gateway.start()
                time.sleep(PAUSE_S)
            confirmed = {text for producer in producers for text in producer.confirmed}
            assert len(confirmed) > 1_000
            with connect_gossipq(shared_node.endpoint) as mq:
                stored = {msg.value.decode() for msg in mq.read(topic)}
                assert confirmed <= stored
                # what a killed gateway held comes by its lease, and to somebody
                until(lambda: consumer.seen >= stored)
                until(lambda: sum(row.ready + row.in_flight for row in mq.topic(topic).groups()) == 0)
    finally:
        gateway.kill(signal.SIGTERM)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", gateway.kapokmq)) != 0
