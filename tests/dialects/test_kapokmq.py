"""KapokMQ: what it sends and compares, by bytes; then against a real node, over WebSockets and HTTP."""

import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from conftest import RunningNode
from dialects.harness import ANYWHERE, Gateway, gateway_of, vectors
from gossipq_client import connect as connect_gossipq
from gossipq_dialects import forms
from gossipq_dialects.kapokmq import KapokMq, wire
from gossipq_dialects.options import KapokMqOptions
from gossipq_gateway import connection, room
from gossipq_gateway.connection import BoundedConnection
from waiting import until

VECTORS = vectors("kapokmq")
KEY = "test"


def test_the_login_says_what_the_original_says() -> None:
    login = wire.Login(VECTORS["login"]["key"])
    for step in VECTORS["login"]["conversation"]:
        said = login.enter(step["enters"].encode()) if "enters" in step else login.begin()
        assert [text.decode() for text in said] == step["says"]
    assert login.is_done


@pytest.mark.parametrize("vector", VECTORS["sent"])
def test_what_producers_send(vector: dict[str, Any]) -> None:
    if vector["text"] is None:
        with pytest.raises(wire.Malformed):
            wire.sent(vector["frame"].encode())
    else:
        assert wire.sent(vector["frame"].encode()) == (vector["text"], vector["delay"])


@pytest.mark.parametrize("vector", VECTORS["frames"])
def test_what_consumers_get_byte_for_byte(vector: dict[str, Any]) -> None:
    assert wire.frame(wire.Message(*vector["message"])).decode() == vector["frame"]


@pytest.mark.parametrize("vector", VECTORS["forms"])
def test_what_is_posted(vector: dict[str, Any]) -> None:
    found = wire.form(vector["fields"])
    if "form" in vector:
        assert found == tuple(vector["form"])
    else:
        assert found == vector["answer"].encode()


@pytest.mark.parametrize("vector", VECTORS["nodes"])
def test_what_nodes_there_are(vector: dict[str, Any]) -> None:
    assert wire.nodes(vector["places"]).decode() == vector["answer"]


def test_codes_name_records() -> None:
    code = wire.code_of("orders", 3, 2**40)
    assert len(code) == 32
    named = wire.named(code)
    assert named is not None
    assert (named.partition, named.offset, named.id) == (3, 2**40, "")
    later = wire.scheduled_code("orders", bytes(range(12)))
    assert len(later) == 32
    assert wire.named(later) == (named.topic_crc, -1, -1, later)
    assert [wire.named(text) for text in ("", "x" * 32, code[:-1], code.upper() + "G")] == [None] * 4


def test_both_kinds_of_forms_are_read() -> None:
    parts = [b'--B\r\ncontent-disposition: form-data; name="topic"\r\n\r\n\xc3\xa9\r\n', b"--B--\r\n"]
    assert forms.parse(b"".join(parts), "multipart/form-data; boundary=B") == {"topic": "é"}
    assert forms.parse(b"a=1&b=%C3%A9&a=2&c=", "application/x-www-form-urlencoded") == {
        "a": "1",
        "b": "é",
        "c": "",
    }
    assert forms.parse(b"nonsense", "multipart/form-data") == {}
    with pytest.raises(forms.BadForm):
        forms.parse(b"&".join(b"a%d=1" % at for at in range(200)), "")


# --- against a node


@pytest.fixture(scope="module")
def served(shared_node: RunningNode) -> Iterator[tuple[Gateway, KapokMq]]:
    options = KapokMqOptions(push_retry_time=1, nodes=["127.0.0.1:8011"], origins=["http://console"])
    dialect = KapokMq(ANYWHERE, options)
    with gateway_of(shared_node.endpoint, dialect) as running:
        yield running, dialect


@pytest.fixture
def port(served: tuple[Gateway, KapokMq]) -> int:
    return served[1].at.port


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:10]}"


def dialled(stack: ExitStack, url: str, **more: Any) -> ClientConnection:
    return stack.enter_context(connect(url, compression=None, **more))


Dial = Callable[[str], ClientConnection]


@pytest.fixture
def dial(port: int) -> Iterator[Dial]:
    """dial("Producers/Conn/topic/id") is a WebSocket that is logged in."""
    stack = ExitStack()

    def make(path: str) -> ClientConnection:
        line = stack.enter_context(connect(f"ws://127.0.0.1:{port}/{path}", compression=None))
        assert line.recv(10) == "Please enter the secret key"
        line.send(KEY)
        assert line.recv(10) == "Secret key matching succeeded"
        return line

    with stack:
        yield make


def post(port: int, path: str, key: str = KEY, **fields: str) -> tuple[int, str]:
    """(status, body) as the original's HTTP clients see them."""
    body = urlencode(fields).encode()
    with socket.create_connection(("127.0.0.1", port)) as line:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nsecretKey: {key}\r\n"
        kind = "content-type: application/x-www-form-urlencoded\r\n"
        line.sendall(f"{head}{kind}content-length: {len(body)}\r\n\r\n".encode() + body)
        said = b"".join(iter(lambda: line.recv(65_536), b""))
    head, _, text = said.decode().partition("\r\n\r\n")
    return int(head.split()[1]), text


@pytest.mark.e2e
def test_produce_consume_ack(dial: Dial, topic: str, shared_node: RunningNode) -> None:
    consumer, producer = dial(f"Consumers/Conn/{topic}/1"), dial(f"Producers/Conn/{topic}/1")
    producer.send('{"MessageData":"hello <b>","DelayTime":0}')
    assert producer.recv(10) == "ok"
    producer.send(b'{"messageData":"from java","delayTime":0}')  # a binary frame
    assert producer.recv(10) == "ok"
    texts = []
    for _ in range(2):
        frame = consumer.recv(10)
        assert isinstance(frame, str)
        assert frame.endswith('"Status":-1}\n')
        found = json.loads(frame)
        assert list(found) == [
            *("MessageCode", "MessageData", "Topic", "CreateTime", "ConsumedTime", "DelayTime", "Status")
        ]
        assert (found["Topic"], found["DelayTime"]) == (topic, 0)
        texts.append(found["MessageData"])
        consumer.send("no such code")
        consumer.send(found["MessageCode"])
    assert texts == ["hello <b>", "from java"]
    with connect_gossipq(shared_node.endpoint) as mq:
        until(lambda: [row.acked for row in mq.topic(topic).groups()] == [2])


@pytest.mark.e2e
def test_a_wrong_key_is_asked_for_again(port: int, topic: str) -> None:
    with connect(f"ws://127.0.0.1:{port}/Producers/Conn/{topic}/1", compression=None) as line:
        assert line.recv(10) == "Please enter the secret key"
        for wrong in ("qqq", b"", '{"MessageData":"x"}'):
            line.send(wrong)
            assert [line.recv(10), line.recv(10)] == [
                *("Secret key matching error", "Please enter the secret key")
            ]
        line.send(b"test")
        assert line.recv(10) == "Secret key matching succeeded"
    assert post(port, "/Console/GetMessageList", topic=topic, status="3")[1] == '{"code":0,"data":null}'


@pytest.mark.e2e
def test_a_message_without_an_ack_comes_again(dial: Dial, topic: str) -> None:
    producer, first = dial(f"Producers/Conn/{topic}/1"), dial(f"Consumers/Conn/{topic}/1")
    producer.send("{}")
    assert producer.recv(10) == "ok"
    one = json.loads(first.recv(10))
    assert one["MessageData"] == ""
    again = json.loads(first.recv(20))  # after push_retry_time
    assert again["MessageCode"] == one["MessageCode"]
    assert again["DelayTime"] >= 1  # its age
    second = dial(f"Consumers/Conn/{topic}/2")
    first.close()  # what it had goes to the other one at once
    assert json.loads(second.recv(10))["MessageCode"] == one["MessageCode"]
    third = dial(f"Consumers/Conn/{topic}/3")
    third.send(one["MessageCode"])  # any consumer may ack
    with pytest.raises(TimeoutError):
        second.recv(2.5)


@pytest.mark.e2e
def test_a_delayed_message_comes_when_it_is_due(dial: Dial, port: int, topic: str) -> None:
    consumer, begun_s = dial(f"Consumers/Conn/{topic}/1"), time.monotonic()
    status, said = post(port, "/Producer/Send", messageData="later", topic=topic, delayTime="1")
    assert status == 200
    code = json.loads(said)["msg"]
    assert post(port, "/Console/GetMessage", messageCode=code)[1].endswith('"Status":0}}')
    found = json.loads(consumer.recv(10))
    assert time.monotonic() - begun_s > 0.9
    assert (found["MessageCode"], found["DelayTime"], found["Status"]) == (code, 1, -1)


@pytest.mark.e2e
def test_pipelined_messages_are_confirmed_each(dial: Dial, topic: str, shared_node: RunningNode) -> None:
    producer, count = dial(f"Producers/Conn/{topic}/1"), 1_000
    for at in range(count):
        producer.send(f'{{"MessageData":"{at}"}}')
    assert [producer.recv(20) for _ in range(count)] == ["ok"] * count
    with connect_gossipq(shared_node.endpoint) as mq:
        assert [int(msg.value) for msg in mq.read(topic)] == list(range(count))


def _raw(port: int, path: str) -> socket.socket:
    """A WebSocket that is logged in, and between whose ends little lies."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    line.settimeout(10)
    line.connect(("127.0.0.1", port))
    head = f"GET /{path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\r\n"
    line.sendall((head + key).encode())
    until(lambda: b"secret key" in line.recv(4_096))
    line.sendall(b"\x81\x84\0\0\0\0test")
    return line


@pytest.mark.e2e
def test_oks_that_nobody_reads_stop_nothing(port: int, topic: str, shared_node: RunningNode) -> None:
    """The original's cluster producer never reads them, and so its publish loop stands still."""
    count = 20_000
    with _raw(port, f"Producers/Conn/{topic}/1") as line:
        for _ in range(count // 100):
            line.sendall(b"\x81\x82\0\0\0\0{}" * 100)
        with connect_gossipq(shared_node.endpoint) as mq:
            until(lambda: [row.next for row in mq.admin.stats([topic]).partitions] == [count])


@pytest.mark.e2e
def test_what_a_consumer_does_not_read_goes_to_others(
    shared_node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before it counts as not acked."""
    monkeypatch.setattr(connection, "STALLED_S", 1.0)
    dialect, count = KapokMq(ANYWHERE, KapokMqOptions(push_retry_time=300)), 100
    with gateway_of(shared_node.endpoint, dialect), ExitStack() as stack:
        stalled = stack.enter_context(_raw(dialect.at.port, f"Consumers/Conn/{topic}/1"))
        until(lambda: b"succeeded" in stalled.recv(4_096))
        mq, texts = stack.enter_context(connect_gossipq(shared_node.endpoint)), set[str]()
        mq.publish_many(topic, [f"{at:03}".encode() + b"x" * 100_000 for at in range(count)], timeout=20)
        until(lambda: [row.in_flight for row in mq.topic(topic).groups()] != [0])
        time.sleep(0.5)
        reader = dialled(stack, f"ws://127.0.0.1:{dialect.at.port}/Consumers/Conn/{topic}/2")
        reader.recv(10)
        reader.send(KEY)
        reader.recv(10)
        while len(texts) < count:
            found = json.loads(reader.recv(20))
            texts.add(found["MessageData"][:3])
            reader.send(found["MessageCode"])


@pytest.mark.e2e
def test_pings_and_fragments_of_strangers_have_a_bound(
    port: int, served: tuple[Gateway, KapokMq], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unread answers to pings, endless fragments, incomplete messages."""
    monkeypatch.setattr(room, "ROOM_BYTES_MAX", 1 << 20)
    made = list[BoundedConnection]()
    upgrade = BoundedConnection.upgrade
    monkeypatch.setattr(
        BoundedConnection, "upgrade", lambda self, protocol: made.append(self) or upgrade(self, protocol)
    )
    with _raw(port, "Producers/Conn/t/1") as line:
        for _ in range(200):
            line.sendall((b"\x89\xfd\0\0\0\0" + bytes(125)) * 1_000)
        until(lambda: made)
        assert made[0].unread_bytes < 1 << 20
    large = b"\x81\xff" + (2 << 20).to_bytes(8, "big") + bytes(4 + (900 << 10))
    with _raw(port, "Producers/Conn/t/1") as line:
        line.sendall(b"\x01\x80\0\0\0\0" + b"\x00\x80\0\0\0\0" * 20_000)
        assert _ends(line)
    with _raw(port, "Producers/Conn/t/1") as first, _raw(port, "Producers/Conn/t/1") as second:
        first.sendall(large)
        until(lambda: len(made) > 3 and made[2].message_bytes > 800 << 10)
        second.sendall(large)
        assert _ends(second)
        assert not made[2].is_closing
    with _raw(port, "Producers/Conn/t/1") as third:
        third.sendall(large)
        until(lambda: len(made) > 4 and made[4].message_bytes > 800 << 10)


def _ends(line: socket.socket) -> bool:
    with suppress(ConnectionError):
        while line.recv(65_536):
            pass
    return True


@pytest.mark.e2e
def test_to_all_when_it_is_told_so(shared_node: RunningNode, topic: str) -> None:
    dialect = KapokMq(ANYWHERE, KapokMqOptions(push_type=2, secret_key="s"))
    with gateway_of(shared_node.endpoint, dialect), ExitStack() as stack:
        lines = [
            dialled(stack, f"ws://127.0.0.1:{dialect.at.port}/{path}")
            for path in (
                f"Consumers/Conn/{topic}/a",
                f"Consumers/Conn/{topic}/b",
                f"Producers/Conn/{topic}/p",
            )
        ]
        for line in lines:
            line.recv(10)
            line.send("s")
            line.recv(10)
        with connect_gossipq(shared_node.endpoint) as mq:
            until(lambda: len([row for row in mq.topic(topic).groups() if row.consumers]) == 2)
            lines[2].send('{"MessageData":"both"}')
            assert lines[2].recv(10) == "ok"
            codes = [json.loads(line.recv(10))["MessageCode"] for line in lines[:2]]
            lines[0].send(codes[0])  # of the one alone
            until(lambda: sorted(row.acked for row in mq.topic(topic).groups()) == [0, 1])


@pytest.mark.e2e
def test_the_console_answers(dial: Dial, port: int, topic: str) -> None:
    assert post(port, "/Console/Ping") == (200, '{"code":0}')
    for path in ("/Console/Ping", "/Producer/Send", "/Console/DelMessage", "/Registry/GetNodes"):
        assert post(port, path, key="no") == (200, '{"code":-1,"msg":"Secret key matching error"}')
    sent = json.loads(post(port, "/Producer/Send", messageData="é", topic=topic, delayTime="0")[1])
    assert sent["code"] == 0
    shown = json.loads(post(port, "/Console/GetMessage", messageCode=sent["msg"])[1])
    assert (shown["data"]["MessageData"], shown["data"]["Topic"], shown["data"]["Status"]) == ("é", topic, -1)
    assert post(port, "/Console/GetMessage", messageCode="zz")[1] == '{"code":-1,"data":"error"}'
    now = datetime.now()
    hour = {"startTime": f"{now - timedelta(hours=1):%Y-%m-%d %H:%M:%S}"}
    hour |= {"endTime": f"{now + timedelta(hours=1):%Y-%m-%d %H:%M:%S}"}
    listed = json.loads(post(port, "/Console/GetMessageList", topic=topic, status="3", **hour)[1])
    assert [each["MessageCode"] for each in listed["data"]] == [sent["msg"]]
    assert listed["data"][0]["MessageData"] == ""
    assert (
        post(port, "/Console/GetMessageList", topic=topic, status="1", **hour)[1] == '{"code":0,"data":null}'
    )
    counts = json.loads(post(port, "/Console/CountMessage")[1])["data"]
    assert list(counts) == ["all", "consumed", "delay", "unconsumed"]
    assert counts["unconsumed"] >= 1
    assert len(json.loads(post(port, "/Console/GetConfig")[1])["data"]) == 23
    assert json.loads(post(port, "/Console/GetNodes")[1]) == [
        {"Name": "mq:127.0.0.1:8011", "Addr": "127.0.0.1", "Port": "8011"}
    ]
    dial(f"Producers/Conn/{topic}/seven")
    clients = json.loads(post(port, "/Console/GetClients")[1])
    mine = [each for each in clients["producers"] if each["Topic"] == topic]
    assert mine == [
        {"ProducerId": "seven", "Topic": topic, "ProducerIp": "127.0.0.1", "JoinTime": mine[0]["JoinTime"]}
    ]
    assert post(port, "/Console/DelMessage", messageCode=sent["msg"])[1] == '{"code":0}'
    assert (
        post(port, "/Console/GetMessageList", topic=topic, status="3", **hour)[1] == '{"code":0,"data":null}'
    )


@pytest.mark.e2e
def test_malformed_input_ends_its_socket_and_no_other(
    dial: Dial, port: int, topic: str, served: tuple[Gateway, KapokMq]
) -> None:
    neighbour, before = dial(f"Producers/Conn/{topic}/1"), served[0].count("errors", "kapokmq")
    bad = [vector["frame"] for vector in VECTORS["sent"] if vector["text"] is None]
    for frame in bad:
        line = dial(f"Producers/Conn/{topic}/2")
        line.send(frame)
        with pytest.raises(ConnectionClosed) as gone:
            line.recv(10)
        assert gone.value.rcvd is None  # no frame, as the original
    for path, status in (("Nobody/Conn/a/b", 404), ("Producers/Conn/a", 404), ("Sync/Conn/a/b", 404)):
        with pytest.raises(InvalidStatus) as refused, ExitStack() as stack:
            dialled(stack, f"ws://127.0.0.1:{port}/{path}")
        assert refused.value.response.status_code == status
    with pytest.raises(InvalidStatus), ExitStack() as stack:  # a page of a stranger, in a browser of ours
        dialled(stack, f"ws://127.0.0.1:{port}/Producers/Conn/{topic}/1", origin="http://evil")
    with ExitStack() as stack:
        dialled(stack, f"ws://127.0.0.1:{port}/Producers/Conn/{topic}/1", origin="http://console")
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"GET /Producers/Conn/a/b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert b"400" in raw.recv(4_096)
    assert post(port, "/Nothing") == (404, "404 page not found")
    assert post(port, "/Console/Ping", key=f"{KEY}\r\norigin: http://evil") == (
        403,
        "web pages are not served",
    )
    assert post(port, "/Console/Ping", key=f"{KEY}\r\norigin: http://console") == (200, '{"code":0}')
    neighbour.send("{}")
    assert neighbour.recv(10) == "ok"
    assert served[0].count("errors", "kapokmq") >= before + len(bad)


@pytest.mark.e2e
def test_sync_gets_nothing(port: int) -> None:
    """The original sends every message there, before any login."""
    with connect(f"ws://127.0.0.1:{port}/Sync/Conn") as line:
        assert line.recv(10) == "Please enter the secret key"
        line.send(KEY)
        with pytest.raises(ConnectionClosed):
            line.recv(10)
