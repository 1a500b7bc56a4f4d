"""Measures the protocols of older brokers: confirmed and consumed messages a second through one gateway, and
the memory of idle WebSockets. Node, gateway and clients share the same cores.

Clients are plain sockets that keep a window of requests in flight. Each figure is compared with the asyncio
client, which handles the same messages one by one in the same run.
"""

import asyncio
import json
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from report import Row, write
from stage import GOSSIPQ, HERE, Node, memory_mb, node

from gossipq_cli.demo.stage import free_port
from gossipq_client.aio import connect

COUNT, ROUNDS = 60_000, 3
LINES, WINDOW, SIZE = 4, 500, 100
IDLE_SOCKETS = 2_000
TEXT = "x" * SIZE
ASKED = ">= 10,000/s"


class Ports(NamedTuple):
    pid: int
    http: int
    kapokmq: int
    moonmq: int
    queue_server: int


@contextmanager
def gateway(at: Node) -> Iterator[Ports]:
    ports = [free_port(0) for _ in range(4)]
    flags = [
        f"--{name}=127.0.0.1:{port}"
        for name, port in zip(("http", "kapokmq", "moonmq", "queue-server"), ports, strict=True)
    ]
    line = [*GOSSIPQ, "-s", at.server, "gateway", *flags]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not (said := process.stdout.readline()).startswith("ready"):
            raise SystemExit(f"the gateway did not start: {said!r}")
        yield Ports(process.pid, *ports)
    finally:
        process.terminate()
        process.wait()


# --- clients


class Line:
    """A connection, and how many answers have come."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.rest = b""

    def count(self, data: bytes) -> int:
        """Answers in what came."""
        raise NotImplementedError

    def run(self, request: bytes, count: int) -> None:
        """Send `count` requests, at most WINDOW of them in flight."""
        sent = done = 0
        while done < count:
            some = min(WINDOW // 2, count - sent)
            if some > 0 and sent - done <= WINDOW // 2:
                self.socket.sendall(request * some)
                sent += some
            data = self.socket.recv(1 << 18)
            if not data:
                raise SystemExit("a connection ended")
            done += self.count(data)


def masked(text: bytes) -> bytes:
    """A text frame as a client sends it, under a mask of zeros."""
    size = bytes([0x80 | len(text)]) if len(text) < 126 else b"\xfe" + struct.pack(">H", len(text))
    return b"\x81" + size + b"\0\0\0\0" + text


class KapokLine(Line):
    def __init__(self, port: int, path: str) -> None:
        super().__init__(port)
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\r\n"
        self.socket.sendall((head + key).encode())
        self.until(b"secret key")
        self.socket.sendall(masked(b"test"))
        self.until(b"succeeded")

    def until(self, text: bytes) -> None:
        said = b""
        while text not in said:
            said += self.socket.recv(4_096)

    def count(self, data: bytes) -> int:
        self.rest += data
        found, odd = divmod(len(self.rest), 4)
        self.rest = self.rest[len(self.rest) - odd :]
        return found

    def consume(self, count: int) -> None:
        """Acks each message as it comes."""
        done = 0
        while done < count:
            self.rest += self.socket.recv(1 << 18)
            acks, at = [], 0
            while len(self.rest) >= at + 4:
                size, head = self.rest[at + 1], 2
                if size == 126:
                    size, head = struct.unpack_from(">H", self.rest, at + 2)[0], 4
                if len(self.rest) < at + head + size:
                    break
                code = self.rest[at + head + 16 : at + head + 48]
                acks.append(masked(code))
                at += head + size
            self.rest = self.rest[at:]
            done += len(acks)
            self.socket.sendall(b"".join(acks))


def moon_frame(method: int, body: bytes = b"", **fields: str) -> bytes:
    header = json.dumps({"method": method, "fields": fields}).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


class MoonLine(Line):
    def frames(self, data: bytes) -> list[bytes]:
        self.rest += data
        found, at = [], 0
        while len(self.rest) >= at + 4:
            end = at + 4 + struct.unpack_from(">I", self.rest, at)[0]
            if len(self.rest) < end:
                break
            found.append(self.rest[at:end])
            at = end
        self.rest = self.rest[at:]
        return found

    def count(self, data: bytes) -> int:
        found = self.frames(data)
        if any(b'"method":11,' not in frame for frame in found):
            raise SystemExit(f"not confirmed: {found}")
        return len(found)

    def consume(self, queue: str, count: int, done: list[int]) -> None:
        self.socket.sendall(moon_frame(20, queue=queue))
        self.socket.settimeout(0.5)
        while sum(done) < count:
            try:
                found = self.frames(self.socket.recv(1 << 18))
            except TimeoutError:
                continue
            acks = []
            for frame in found:
                size = struct.unpack_from(">I", frame, 4)[0]
                header = json.loads(frame[8 : 8 + size])
                if header["method"] == 10030:
                    acks.append(moon_frame(10040, queue=queue, msg_id=header["fields"]["msg_id"]))
            done.append(len(acks))
            self.socket.sendall(b"".join(acks))


class QueueLine(Line):
    mark = b'"msg_id":'

    def count(self, data: bytes) -> int:
        """Answers end with `}`; none of theirs has another."""
        return data.count(b"}")


# --- figures


class Figure(NamedTuple):
    name: str
    per_s: float


def timed(name: str, works: list[Callable[[], Any]], count: int) -> Figure:
    with ThreadPoolExecutor(len(works)) as pool:
        start = time.perf_counter()
        for each in [pool.submit(work) for work in works]:
            each.result(None)
        return Figure(name, count / (time.perf_counter() - start))


def kapokmq(at: Ports, number: int) -> list[Figure]:
    topic, each = f"kapok-{number}", COUNT // LINES
    message = masked(json.dumps({"MessageData": TEXT, "DelayTime": 0}).encode())
    lines = [KapokLine(at.kapokmq, f"/Producers/Conn/{topic}/{line}") for line in range(LINES)]
    made = timed("KapokMQ produce", [lambda line=line: line.run(message, each) for line in lines], COUNT)
    readers = [KapokLine(at.kapokmq, f"/Consumers/Conn/{topic}/{line}") for line in range(1)]
    taken = timed("KapokMQ consume", [lambda line=line: line.consume(COUNT) for line in readers], COUNT)
    for line in [*lines, *readers]:
        line.socket.close()
    return [made, taken]


def moonmq(at: Ports, number: int) -> list[Figure]:
    queue, each = f"moon-{number}", COUNT // LINES
    request = moon_frame(10, TEXT.encode(), queue=queue, pub_type="direct")
    lines = [MoonLine(at.moonmq) for _ in range(LINES)]
    made = timed("moonmq publish", [lambda line=line: line.run(request, each) for line in lines], COUNT)
    readers, done = [MoonLine(at.moonmq) for _ in range(LINES)], list[int]()
    taken = timed(
        "moonmq push and ack", [lambda line=line: line.consume(queue, COUNT, done) for line in readers], COUNT
    )
    for line in [*lines, *readers]:
        line.socket.close()
    return [made, taken]


def queue_server(at: Ports, number: int) -> list[Figure]:
    queue, each = f"queue-{number}", COUNT // LINES
    request = json.dumps({"action": 1, "queue": queue, "data": TEXT}).encode()
    lines = [QueueLine(at.queue_server) for _ in range(LINES)]
    made = timed("queue_server produce", [lambda line=line: line.run(request, each) for line in lines], COUNT)
    request = json.dumps({"action": 2, "queue": queue}).encode()
    taken = timed(
        "queue_server consume", [lambda line=line: line.run(request, each) for line in lines], COUNT
    )
    for line in lines:
        line.socket.close()
    return [made, taken]


async def native(server: str, number: int) -> float:
    """One by one, by the asyncio client: what a gateway of no cost would do."""
    topic, raw = f"native-{number}", TEXT.encode()
    async with connect(server) as mq:
        await mq.create_topic(topic)
        start = time.perf_counter()
        pending = [mq.post(topic, raw) for _ in range(COUNT)]
        for each in pending:
            await each.result(60)
        return COUNT / (time.perf_counter() - start)


def sockets_mb(at: Ports) -> tuple[float, float]:
    """Of the gateway: before, and with idle consumers."""
    before = memory_mb(at.pid)
    lines = [KapokLine(at.kapokmq, f"/Consumers/Conn/idle/{number}") for number in range(IDLE_SOCKETS)]
    time.sleep(2)
    after = memory_mb(at.pid)
    for line in lines:
        line.socket.close()
    return before, after


def main() -> None:
    found: dict[str, list[float]] = {}
    beside, memory = list[float](), list[tuple[float, float]]()
    for number in range(ROUNDS):
        with node() as at, gateway(at) as ports:
            beside.append(asyncio.run(native(at.server, number)))
            for figure in [*kapokmq(ports, number), *moonmq(ports, number), *queue_server(ports, number)]:
                found.setdefault(figure.name, []).append(figure.per_s)
        with node() as at, gateway(at) as ports:
            memory.append(sockets_mb(ports))
    raw = statistics.median(beside)
    rows = []
    for name, values in found.items():
        ours = statistics.median(values)
        what = f"{raw:,.0f}/s (asyncio client, one by one)"
        figure = f"dialect {name}: {LINES} connections, window {WINDOW}"
        rows.append(Row(figure, f"{ours:,.0f}/s", what, f"{ours / raw:.2f}", ASKED, "perf/dialects.py"))
    empty, full = (statistics.median(each) for each in zip(*memory, strict=True))
    rows.append(
        Row(
            f"gateway with {IDLE_SOCKETS:,} idle WebSockets",
            f"{full:.0f} MB",
            f"{empty:.0f} MB without",
            f"{full / empty:.2f}",
            "< 200 MB",
            "perf/dialects.py",
        )
    )
    for row in rows:
        print(*row, sep="  ")
    if "--dry" not in sys.argv:
        write(HERE / "RESULTS.md", rows, ROUNDS)


if __name__ == "__main__":
    main()
