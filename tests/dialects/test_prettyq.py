"""prettyQ: its bytes, a reader written after its layout, and its query over HTTP and as a verb."""

import json
import os
import socket
import struct
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from conftest import HOME, ROOTS, RunningNode
from dialects.harness import Gateway, gateway_of, vectors
from gossipq_cli import prettyq
from gossipq_cli.failures import Failure
from gossipq_client import connect, testing
from gossipq_dialects.prettyq import wire
from gossipq_dialects.prettyq.pages import PrettyQ

VECTORS = vectors("prettyq")


@pytest.mark.parametrize("vector", VECTORS["records"])
def test_records_byte_for_byte(vector: dict[str, Any]) -> None:
    assert wire.record(vector["number"], vector["data"].encode()) == bytes.fromhex(vector["hex"])


@pytest.mark.parametrize("vector", VECTORS["frames"])
def test_frames_byte_for_byte(vector: dict[str, Any]) -> None:
    assert wire.frame(vector["number"], vector["data"].encode()) == bytes.fromhex(vector["hex"])


@pytest.mark.parametrize(("topic", "start", "name"), VECTORS["stems"])
def test_names_of_files(topic: str, start: int, name: str) -> None:
    assert wire.stem(topic, start) == name


def read(path: Path, position: int, limit: int) -> list[tuple[int, bytes]]:
    """As prettyQ's storage reads one file: the last line of the index that is not behind, then records."""
    name, _, start = path.stem.partition("_")
    assert "_" not in name
    assert 0 <= int(start) < 2**16
    lines = [line.split(":") for line in path.with_suffix(".idx").read_text().splitlines()]
    index = [(int(number), int(place)) for number, place in lines]
    assert index == sorted(set(index))
    place = max(place for number, place in index if number <= max(position, index[0][0]))
    found, raw = [], path.with_suffix(".data").read_bytes()
    while place < len(raw) and len(found) < limit:
        number, size = struct.unpack_from(">QI", raw, place)
        data = raw[place + 12 : place + 8 + size]
        crc, tail = struct.unpack_from(">II", raw, place + 8 + size)
        assert (crc, tail) == (crc32(data), size)
        place += size + 16
        if number >= position:
            found.append((number, data))
    return found


def test_a_layout_is_read_back(tmp_path: Path) -> None:
    layout, files = wire.Layout("my_topic", 1_000), defaultdict(lambda: [b"", b""])
    numbers = [*range(5, 300), *range(400, 420), 70_000, 70_001, *range(80_000, 80_300)]
    for number in numbers:
        for piece in layout.put(number, b"x" * (number % 50)):
            files[piece.stem][0] += piece.data
            files[piece.stem][1] += piece.line
    for piece in layout.end():
        files[piece.stem][1] += piece.line
    for name, (data, index) in files.items():
        (tmp_path / f"{name}.data").write_bytes(data)
        (tmp_path / f"{name}.idx").write_bytes(index)
    found = [record for name in files for record in read(tmp_path / f"{name}.data", 0, 5_000)]
    assert found == [(number, b"x" * (number % 50)) for number in numbers]
    stems = list(files)
    assert stems[0] == "my-topic_000000"
    assert len(stems) > 5
    assert all(int(each.partition("_")[2]) < 2**16 for each in stems)
    with pytest.raises(ValueError, match="too large"):
        layout.put(99_999, b"x" * (wire.DATA_BYTES_MAX + 1))


def test_an_export_is_read_by_its_layout(tmp_path: Path) -> None:
    values = [b"%d" % at * (at % 7) for at in range(2_000)]
    with testing.Broker() as broker, broker.connect() as mq:
        mq.publish_many("my_orders", values)
        assert prettyq.export(mq, ["my_orders"], tmp_path, 10_000) == 2_000
        with pytest.raises(Failure, match="there already"):
            prettyq.export(mq, ["my_orders"], tmp_path)
    files = sorted((tmp_path / "0").glob("*.data"))
    assert len(files) > 3
    assert files[0].name == "my-orders_000000.data"
    assert [record for file in files for record in read(file, 0, 5_000)] == list(enumerate(values))
    assert read(files[0], 40, 3) == list(enumerate(values))[40:43]


@pytest.fixture(scope="module")
def served(shared_node: RunningNode) -> Iterator[Gateway]:
    with gateway_of(shared_node.endpoint, PrettyQ()) as running:
        yield running


def get(port: int, path: str, more: str = "") -> tuple[int, str, bytes]:
    with socket.create_connection(("127.0.0.1", port), 20) as line:
        line.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n".encode())
        said = b"".join(iter(lambda: line.recv(65_536), b""))
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode().lower(), body


@pytest.mark.e2e
def test_a_query_over_http_and_as_a_verb(served: Gateway, shared_node: RunningNode) -> None:
    topic, port = f"t-{uuid.uuid4().hex[:8]}", served.http.port
    with connect(shared_node.endpoint) as mq:
        mq.publish_many(topic, [b"%d" % at for at in range(1_000)])
    status, head, body = get(port, f"/prettyq/query?topic={topic}&pos=100&limit=300")
    assert status == 200
    assert "x-next-pos: 400" in head
    assert body == b"".join(wire.frame(at, b"%d" % at) for at in range(100, 400))
    assert "x-next-pos: 1000" in get(port, f"/prettyq/query?topic={topic}&pos=990&limit=300")[1]
    for path in (f"topic={topic}&pos=1000", "topic=nobody"):
        status, _, body = get(port, f"/prettyq/query?{path}")
        assert (status, json.loads(body)) == (404, {"code": 100, "msg": "no message"})
    for path in (
        "",
        f"topic={topic}&pos=x",
        f"topic={topic}&limit=0",
        f"topic={topic}&pos=-1",
        f"topic={topic}&partition=9",
    ):
        assert get(port, f"/prettyq/query?{path}")[0] == 400
    assert get(port, f"/prettyq/query?topic={topic}", "sec-fetch-mode: cors\r\n")[0] == 403
    paths = os.pathsep.join(str(HOME / root) for root in (*ROOTS, "clients/gateway"))
    line = [sys.executable, "-m", "gossipq_cli", "-s", shared_node.endpoint, "peek", topic]
    ran = [
        subprocess.run(
            [*line, *words], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, check=True
        )
        for words in (
            ["--position", "998", "-n", "5", "--frames"],
            ["--position", "7", "-n", "1", "-o", "jsonl"],
        )
    ]
    assert ran[0].stdout == wire.frame(998, b"998") + wire.frame(999, b"999")
    assert json.loads(ran[1].stdout) == {"position": 7, "value": "7", "size": 1}
