"""Shared by the tests with faults: a node whose log is kept, a raw ZeroMQ and a raw TCP
client, and a look at processes.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import pack
from typing import NamedTuple, Self

import zmq

from conftest import HOME, ROOTS, STOP_SECONDS, RunningNode
from gossipq.messages import Hello, Ping, Pong, Status, StatusReply, Welcome
from gossipq.types import NODE_SHARD
from gossipq.values import Message
from gossipq.wire import ownership
from gossipq.wire.frames import Header, decode, encode

PATIENCE_S = 60.0
KEY = b"raw-session-0000" * 2
SESSION = ownership.session_of(KEY)
PRODUCER = ownership.producer_of(KEY, 1)


class Node(RunningNode):
    """A running node whose stderr is kept in `log_path`, over all its lives."""

    def __init__(self, data: Path, *flags: str) -> None:
        super().__init__(data, *flags)
        self.log_path = data.with_name(f"{data.name}.log")
        self.environment: dict[str, str] = {}
        self.prefix: list[str] = []  #: of the command line: what the node runs under

    def spawn(self) -> "subprocess.Popen[str]":
        """Starts the process and does not wait."""
        paths = os.pathsep.join(str(HOME / root) for root in ROOTS)
        plain = {name: value for name, value in os.environ.items() if not name.startswith("GOSSIPQ")}
        with open(self.log_path, "ab") as errors:
            self.process = subprocess.Popen(
                [
                    *self.prefix,
                    sys.executable,
                    "-m",
                    "gossipq_node",
                    "--data",
                    str(self.data),
                    "--bind",
                    self.endpoint,
                    "--admin",
                    "",
                    *self.flags,
                ],
                env={"GOSSIPQ_NODE__ALARMS": "false", **plain, **self.environment, "PYTHONPATH": paths},
                cwd=self.data.parent,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        return self.process

    def start(self) -> Self:
        """Returns when the node says that it is ready."""
        self.spawn()
        self.await_ready()
        return self

    def await_ready(self) -> None:
        """Of a process that was spawned."""
        self._await_ready()

    def fail_to_start(self) -> tuple[int, str]:
        """Exit code and log of a node that cannot start."""
        process = self.spawn()
        self.process = None
        with process:
            try:
                code = process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return code, self.log()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)  # nobody, if it has ended: its number may be a stranger's

    def end(self, number: int) -> int:
        """Sends a signal and waits; the exit code."""
        self.signal(number)
        return self._wait()

    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")

    def pids(self) -> list[int]:
        """The supervisor's, then those of its children."""
        assert self.process is not None
        pid = self.process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def memory_bytes(self) -> int:
        """Anonymous memory of all its processes: file pages of the store belong to the system."""
        return sum(map(anonymous_bytes, self.pids()))

    def worker(self, number: int) -> str:
        """The address at which that worker accepts clients."""
        return f"tcp://127.0.0.1:{self.port + 1 + number}"

    def store_file(self, worker: int) -> Path:
        return self.data / "stores" / "0" / f"worker-{worker}" / "data.mdb"


def anonymous_bytes(pid: int) -> int:
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) << 10 if found else 0


class Answer(NamedTuple):
    header: Header
    message: Message
    batch: bytes


def bad_frames(status: StatusReply) -> int:
    """Messages that no process of the node could use."""
    return status.bad_frames + sum(worker.bad_frames for worker in status.workers)


class Raw:
    """A DEALER that sends whatever it is told."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, receive_queue: int = 1_000
    ) -> None:
        """`receive_queue` messages are read ahead; with a few, whoever does not `receive` lets TCP hold the
        other side back."""
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVHWM, receive_queue)
        self.socket.connect(endpoint)
        self._ids = 1_000

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def say(self, message: Message, shard: int = NODE_SHARD, request_id: int = 1, batch: bytes = b"") -> None:
        self.send(encode(message, shard, request_id), *([batch] if batch else []))

    def receive(self, patience_s: float = PATIENCE_S) -> Answer | None:
        """The next message, or None. A PONG without a request is the node's look for who is still there."""
        end_s = time.monotonic() + patience_s
        while self.socket.poll(max(0, int((end_s - time.monotonic()) * 1000))):
            frames = self.socket.recv_multipart()
            header, message = decode(frames[0])
            if header.request_id or not isinstance(message, Pong):
                return Answer(header, message, frames[1] if len(frames) > 1 else b"")
        return None

    def ask(self, message: Message, shard: int = NODE_SHARD, batch: bytes = b"") -> Message:
        """The answer with the request's id. A request without any is an assertion error."""
        self._ids += 1
        self.say(message, shard, self._ids, batch)
        return self.answer(self._ids)

    def answer(self, request_id: int) -> Message:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            answer = self.receive(end - time.monotonic())
            if answer is not None and answer.header.request_id == request_id:
                return answer.message
        raise AssertionError(f"no answer to request {request_id}")

    def hello(self, shard: int = NODE_SHARD, session: bytes = SESSION) -> "Raw":
        key = KEY if session == SESSION else b""
        assert isinstance(self.ask(Hello(session, "raw", "1", key=key), shard), Welcome)
        return self

    def alive(self, shard: int = NODE_SHARD) -> None:
        assert self.ask(Ping(), shard) == Pong()

    def status(self) -> StatusReply:
        reply = self.ask(Status())
        assert isinstance(reply, StatusReply)
        return reply

    def close(self) -> None:
        self.socket.close(0)


class Tcp:
    """A plain socket that can speak just enough ZMTP 3 to be let in as a DEALER."""

    GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    MORE, LONG, COMMAND = 1, 2, 4

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)

    def handshake(self) -> "Tcp":
        self.socket.sendall(self.GREETING)
        self._take(len(self.GREETING))
        ready = (
            b"\x05READY" + b"\x0bSocket-Type" + pack(">I", 6) + b"DEALER" + b"\x08Identity" + pack(">I", 0)
        )
        self.socket.sendall(bytes((self.COMMAND, len(ready))) + ready)
        flags, size = self._take(2)
        assert flags == self.COMMAND
        self._take(size)
        return self

    def _take(self, size: int) -> bytes:
        taken = b""
        while len(taken) < size:
            more = self.socket.recv(size - len(taken))
            assert more, "closed in the handshake"
            taken += more
        return taken

    def frame(self, body: bytes, more: bool = False) -> None:
        self.head(len(body), more)
        self.socket.sendall(body)

    def head(self, size: int, more: bool = False) -> None:
        """Announces a frame."""
        self.socket.sendall(self.heading(size, more))

    def heading(self, size: int, more: bool) -> bytes:
        return pack(">BQ", self.LONG | (self.MORE if more else 0), size)

    def closed(self, patience_s: float = PATIENCE_S) -> bool:
        """True if the other side closes the connection."""
        self.socket.settimeout(patience_s)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP, and SIGCONT in the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
