"""Measures the gateway: records and messages a second over HTTP and SQS. Node, gateway and callers share the
same cores.

    python perf/gateway.py                three rounds of each; rows go to RESULTS.md
    python perf/gateway.py --seconds 2 --rounds 1 --dry

The asyncio client sends the same requests to the same node, in turns.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple, cast

import stage
import uvloop
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from report import Row, write
from websockets.asyncio.client import connect as open_socket

from gossipq_client.aio import Client, connect

RESULTS = Path(__file__).with_name("RESULTS.md")
VALUE, LINES, BATCH, SOCKETS = b"x" * 100, 500, 10, 2_000
KEY_ID, SECRET = "AKIAPERF", "perf"
WARM_S = 1.0
COMMAND = "python perf/gateway.py"


class Place(NamedTuple):
    pid: int
    port: int
    server: str


@contextmanager
def gateway(home: Path, server: str) -> Iterator[Place]:
    keys = home / "keys"
    keys.write_text(json.dumps({KEY_ID: {"secret": SECRET}}))
    keys.chmod(0o600)
    line = [
        *stage.GOSSIPQ,
        "-s",
        server,
        "gateway",
        "--http",
        "127.0.0.1:0",
        "--sqs",
        "--sqs-keys",
        str(keys),
    ]
    process = subprocess.Popen(line, cwd=home, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said.startswith("ready"):
            raise SystemExit(f"the gateway did not start: {said!r}")
        yield Place(process.pid, int(said.rpartition(":")[2]), server)
    finally:
        process.terminate()
        process.wait()


def request(port: int, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"host: 127.0.0.1:{port}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def sqs_request(port: int, action: str, data: dict[str, object]) -> bytes:
    body = json.dumps(data).encode()
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
    made = AWSRequest("POST", f"http://127.0.0.1:{port}/sqs", headers=headers, data=body)
    SigV4Auth(Credentials(KEY_ID, SECRET), "sqs", "any").add_auth(made)
    return request(port, "/sqs", body, dict(made.headers))


class Asking(asyncio.Protocol):
    """One connection: the same request, as soon as the last was answered."""

    done, going, refused = 0, True, b""

    def __init__(self, asked: bytes) -> None:
        self._asked, self._said = asked, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._asked)

    def data_received(self, data: bytes) -> None:
        self._said += data
        head, end, body = self._said.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]):
            return
        if not head.startswith(b"HTTP/1.1 20"):
            Asking.refused = self._said
            self._transport.close()
            return
        self._said = b""
        Asking.done += 1
        if Asking.going:
            self._transport.write(self._asked)
        else:
            self._transport.close()


async def over_http(port: int, asked: bytes, connections: int, seconds: float) -> float:
    """Requests a second."""
    Asking.going = True
    for _ in range(connections):
        await asyncio.get_running_loop().create_connection(lambda: Asking(asked), "127.0.0.1", port)
    await asyncio.sleep(WARM_S)
    before, began = Asking.done, time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (Asking.done - before) / (time.perf_counter() - began)
    Asking.going = False
    await asyncio.sleep(0.5)
    if Asking.refused or not Asking.done:
        raise SystemExit(f"refused: {Asking.refused!r}")
    return rate


async def straight(
    server: str, connections: int, seconds: float, ask: Callable[[Client], Awaitable[object]]
) -> float:
    """Do the same with a client and no gateway, with this number of calls in flight."""
    done, going = 0, True

    async def one(mq: Client) -> None:
        nonlocal done
        while going:
            await ask(mq)
            done += 1

    async with connect(server) as mq:
        tasks = [asyncio.create_task(one(mq)) for _ in range(connections)]
        await asyncio.sleep(WARM_S)
        before, began = done, time.perf_counter()
        await asyncio.sleep(seconds)
        rate = (done - before) / (time.perf_counter() - began)
        going = False
        await asyncio.gather(*tasks)
    return rate


async def publish_lines(mq: Client) -> object:
    return await mq.publish_many("lines", [VALUE] * LINES, timeout=10)


async def publish_one(mq: Client) -> object:
    return await mq.publish("single", VALUE)


async def publish_batch(mq: Client) -> object:
    return await mq.publish_many("queue", [VALUE] * BATCH, timeout=10)


class Figure(NamedTuple):
    name: str
    records: int  #: of one request
    connections: int
    asked: str
    bound: float
    request: Callable[[int], bytes]
    straight: Callable[[Client], Awaitable[object]]


def lines(port: int) -> bytes:
    body = b"".join(b'{"value":"%s"}\n' % VALUE for _ in range(LINES))
    return request(port, "/v1/topics/lines/records", body, {"content-type": "application/x-ndjson"})


def single(port: int) -> bytes:
    return request(port, "/v1/topics/single/records", VALUE, {"content-type": "text/plain"})


def batch(port: int) -> bytes:
    entries = [{"Id": str(at), "MessageBody": VALUE.decode()} for at in range(BATCH)]
    return sqs_request(port, "SendMessageBatch", {"QueueUrl": "/queue", "Entries": entries})


FIGURES = (
    Figure(
        "HTTP, NDJSON of 500, 4 connections, records/s", LINES, 4, ">= 150,000", 150_000, lines, publish_lines
    ),
    Figure("HTTP, single POSTs, 50 connections, records/s", 1, 50, ">= 2,500", 2_500, single, publish_one),
    Figure(
        "SQS, batches of 10, 10 connections, messages/s", BATCH, 10, ">= 3,000", 3_000, batch, publish_batch
    ),
)


async def measured(at: Place, figure: Figure, rounds: int, seconds: float) -> Row:
    ours, theirs = list[float](), list[float]()
    for _ in range(rounds):
        ours.append(
            figure.records * await over_http(at.port, figure.request(at.port), figure.connections, seconds)
        )
        theirs.append(
            figure.records * await straight(at.server, figure.connections, seconds, figure.straight)
        )
    rate, raw = median(ours), median(theirs)
    verdict = "" if rate >= figure.bound else ", not reached"
    return Row(
        figure.name,
        f"{rate:,.0f}",
        f"{raw:,.0f} (client without a gateway)",
        f"{rate / raw:.2f}",
        f"{figure.asked}{verdict}",
        COMMAND,
    )


async def sockets(at: Place) -> Row:
    """Memory of a gateway with idle WebSockets, each a consumer."""
    before, opened = stage.memory_mb(at.pid), list[object]()
    for number in range(SOCKETS):
        url = f"ws://127.0.0.1:{at.port}/v1/topics/idle-{number % 8}/consume?group=g&create=true"
        opened.append(await open_socket(url, ping_interval=None, compression=None))
    await asyncio.sleep(2)
    after = stage.memory_mb(at.pid)
    verdict = "" if after < 200 else ", not reached"
    return Row(
        f"gateway with {SOCKETS:,} idle WebSockets, MB",
        f"{after:.0f}",
        f"{before:.0f} (without them)",
        f"{after / before:.2f}",
        f"< 200{verdict}",
        COMMAND,
    )


async def all_rows(at: Place, rounds: int, seconds: float) -> list[Row]:
    Asking.going = False
    await over_http(at.port, sqs_request(at.port, "CreateQueue", {"QueueName": "queue"}), 1, 0.1)
    rows = [await measured(at, figure, rounds, seconds) for figure in FIGURES]
    return [*rows, await sockets(at)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="tell, and note nothing")
    given = parser.parse_args()
    with stage.node() as node, gateway(node.directory, node.server) as at:
        rows = uvloop.run(all_rows(at, given.rounds, given.seconds))
    for row in rows:
        print(*row[:5], sep=" | ")
    if not given.dry:
        write(RESULTS, rows, given.rounds)
    sys.stdout.flush()
    os._exit(0)  # sockets that are left need no farewell


if __name__ == "__main__":
    main()
