"""A whole node as its operator meets it: start, ready line, errors of the start, restart of workers, drain,
small memory."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import zmq

from gossipq import limits
from gossipq.messages import Hello, Ping, Pong, RefusedMessage, Status, StatusReply, Welcome
from gossipq.types import NODE_SHARD
from gossipq.values import Message
from gossipq.wire import ownership
from gossipq.wire.frames import decode, encode
from gossipq_node.machine import raise_file_limit
from ports import settled_port
from processes import lives
from waiting import until

pytestmark = pytest.mark.e2e
HOME = Path(__file__).parents[2]
PATIENCE_S = 30
IDLE_BYTES_MAX = 150 << 20


class Node:
    """One `python -m gossipq_node` on ports of its own."""

    def __init__(self, data: Path, *flags: str, port: int = 0) -> None:
        self.port = port or settled_port()
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        paths = os.pathsep.join(map(str, (HOME, HOME / "nodes")))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gossipq_node", "--data", str(data), "--bind", self.endpoint, *flags],
            env={name: value for name, value in os.environ.items() if not name.startswith("GOSSIPQ")}
            | {"PYTHONPATH": paths},
            cwd=data.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.end()
        return line

    def end(self) -> tuple[int, str]:
        """The exit code and the text on stderr."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors

    def family(self) -> list[int]:
        """Its own pid and those of its children."""
        pid = self.process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def stop(self) -> None:
        self.process.kill()
        with self.process:
            pass


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def start(*flags: str, port: int = 0, data: str = "data") -> Node:
        nodes.append(Node(tmp_path / data, *flags, port=port))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def asking() -> Iterator[Callable[[Node], "Asker"]]:
    with zmq.Context() as context:
        askers: list[Asker] = []

        def ask(node: Node) -> Asker:
            askers.append(Asker(context, node.endpoint))
            return askers[-1]

        yield ask
        for asker in askers:
            asker.socket.close(0)


class Asker:
    """A client that asks one thing at a time, and again when no answer comes: a process that dies takes
    questions with it."""

    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.RCVTIMEO, 500)
        self.socket.connect(endpoint)
        self._requests = 0

    def ask(self, message: Message, shard: int = NODE_SHARD) -> Message:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            self._requests += 1
            self.socket.send(encode(message, shard, self._requests))
            with suppress(zmq.Again):
                while True:
                    header, answer = decode(self.socket.recv_multipart()[0])
                    if header.request_id == self._requests:
                        return answer
        raise AssertionError(f"no answer to {message}")

    def status(self, wanted: Callable[[StatusReply], bool]) -> StatusReply:
        """The first status that is as wanted."""
        end = time.monotonic() + PATIENCE_S
        while True:
            status = self.ask(Status())
            assert isinstance(status, StatusReply)
            if wanted(status):
                return status
            assert time.monotonic() < end, status
            time.sleep(0.01)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_node_is_ready_small_answers_and_drains(
    start: Callable[..., Node], asking: Callable[[Node], Asker]
) -> None:
    node = start("--workers", "2", "--name", "ada")
    assert re.fullmatch(rf"ready in \d+\.\d s  clients {node.endpoint}  data .*/data\n", node.ready())
    asker = asking(node)
    status = asker.status(lambda status: status.led == status.shards)
    for process in (status, *status.workers):
        assert process.cpu_ms > 0
        assert limits.MIB < process.rss_bytes < limits.GIB
    assert [worker.state for worker in status.workers] == ["ready", "ready"]
    memory = sum(
        int(re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)[1]) << 10  # type: ignore[index]
        for pid in node.family()
    )
    print(f"an idle node with 2 workers takes {memory >> 20} MiB (PSS, all processes)")
    assert memory < IDLE_BYTES_MAX
    children = node.family()[1:]
    node.process.send_signal(signal.SIGTERM)
    code, log = node.end()
    assert code == 0, log
    assert "drained" in log
    until(lambda: not any(map(lives, children)))


def test_a_killed_worker_is_back_and_status_says_so(
    start: Callable[..., Node], asking: Callable[[Node], Asker]
) -> None:
    node = start("--workers", "2")
    node.ready()
    asker = asking(node)
    victim = asker.status(lambda status: status.led == status.shards).workers[1]
    os.kill(victim.pid, signal.SIGKILL)
    status = asker.status(
        lambda status: (
            status.workers[1].restarts == 1
            and status.workers[1].state == "ready"
            and status.led == status.shards
        )
    )
    assert status.workers[1].pid != victim.pid
    assert isinstance(asker.ask(Hello(bytes(16), "test", "1"), 1), Message)
    assert asker.ask(Ping(), 1) == Pong()


def test_a_killed_frontdoor_is_back(start: Callable[..., Node], asking: Callable[[Node], Asker]) -> None:
    node = start("--workers", "1")
    node.ready()
    asker = asking(node)
    worker = asker.status(lambda status: status.led == status.shards).workers[0]
    (frontdoor,) = [
        pid for pid in node.family()[1:] if pid != worker.pid and b"spawn_main" in command_line(pid)
    ]
    os.kill(frontdoor, signal.SIGKILL)
    until(lambda: not lives(frontdoor))
    assert asker.status(lambda status: status.led == status.shards).workers[0].pid == worker.pid


def test_forwarding_reaches_every_worker(start: Callable[..., Node], asking: Callable[[Node], Asker]) -> None:
    node = start("--workers", "2")
    node.ready()
    asker = asking(node)
    refused = asker.ask(Ping(), 1)
    assert isinstance(refused, RefusedMessage)
    assert "HELLO" in refused.hint
    for shard in (0, 1):
        asker.ask(Hello(bytes(16), "test", "1"), shard)
        assert asker.ask(Ping(), shard) == Pong()


def test_children_end_with_their_parent_and_the_next_node_starts(start: Callable[..., Node]) -> None:
    node = start("--workers", "1")
    node.ready()
    children = node.family()[1:]
    node.process.kill()
    node.process.wait()  # it has the lock of the directory until then
    again = start("--workers", "1", port=node.port)
    assert again.ready()
    until(lambda: not any(map(lives, children)))


def test_a_directory_in_use_is_refused(start: Callable[..., Node]) -> None:
    node = start("--workers", "1")
    node.ready()
    code, error = start("--workers", "1").end()
    assert code == 1
    assert f"in use by process {node.process.pid}" in error
    assert " hint: " in error


def test_a_port_that_is_taken_is_refused(start: Callable[..., Node], tmp_path: Path) -> None:
    node = start("--workers", "1")
    node.ready()
    code, error = start("--workers", "1", data="other", port=node.port).end()
    assert code == 1, "a service manager tries again: it may be free, or the address there, by then"
    assert not (tmp_path / "other").exists(), "nothing began there"
    assert "is taken by another program" in error
    assert "--bind" in error


def test_a_thousand_clients_are_served(start: Callable[..., Node]) -> None:
    node = start("--workers", "1")
    node.ready()
    raise_file_limit()
    with zmq.Context() as context:
        context.set(zmq.MAX_SOCKETS, 2_000)
        with ExitStack() as stack:
            askers = dict[Asker, bytes]()
            for _ in range(1_000):
                asker = Asker(context, node.endpoint)
                stack.callback(asker.socket.close, 0)
                asker.socket.set(zmq.RCVTIMEO, PATIENCE_S * 1000)
                askers[asker] = encode(Hello(ownership.unowned(os.urandom(16)), "test", "1"), 0, 1)
                asker.socket.send(askers[asker])  # at once: a client that is silent for 5 s is hung up on
            for asker, hello in askers.items():
                while isinstance(said := decode(asker.socket.recv_multipart()[0])[1], RefusedMessage):
                    assert said.code == "busy", "more are sent at once than the queue of a worker takes"
                    asker.socket.send(hello)
                assert isinstance(said, Welcome)


def test_options_that_contradict_are_refused(start: Callable[..., Node]) -> None:
    first = start("--workers", "1")
    first.ready()
    first.process.send_signal(signal.SIGTERM)
    code, error = first.end()
    assert code == 0, error
    abroad = ("--bind", "tcp://0.0.0.0:7700", "--advertise", "10.0.0.7", "--encrypt", "never")
    for flags, says, hint in (
        (("--workers", "3"), "node.workers = 3, but", "--workers 1"),
        (("--cluster", "other"), "cluster.name = 'other', but", ""),
        (abroad, "is open to other machines", "--insecure"),
        (("--config", "/none.toml"), "config /none.toml cannot be read", "--config"),
    ):
        code, error = start(*flags).end()
        assert code == 78
        assert error.startswith("error: ")
        assert says in error
        assert hint in error
