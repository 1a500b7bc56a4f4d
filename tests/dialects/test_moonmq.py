"""moonmq: what it sends and compares, by bytes; then against a real node, over plain sockets."""

import json
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from conftest import RunningNode
from dialects.harness import ANYWHERE, Gateway, gateway_of, vectors
from gossipq_client import connect
from gossipq_dialects import lines
from gossipq_dialects.moonmq import MoonMq, wire
from gossipq_dialects.options import MoonMqOptions
from gossipq_gateway import manners, room
from waiting import until

VECTORS = vectors("moonmq")


def filled(fields: dict[str, str]) -> dict[str, str]:
    """QQQ stands for a name that is too long."""
    return {name: "q" * 201 if value == "QQQ" else value for name, value in fields.items()}


@pytest.mark.parametrize("vector", VECTORS["frames"])
def test_frames_are_cut_wherever_segments_end(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    wanted = (vector["method"], vector["fields"], vector["body"].encode())
    assert wire.Splitter().feed(raw * 3) == [wanted] * 3
    splitter = wire.Splitter()
    assert [each for byte in raw * 2 for each in splitter.feed(bytes([byte]))] == [wanted] * 2
    assert wire.encode(*wanted) == raw


@pytest.mark.parametrize("vector", VECTORS["replies"])
def test_replies_byte_for_byte(vector: dict[str, Any]) -> None:
    header, body = (part.encode() for part in vector["frame"])
    raw = struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body
    assert getattr(wire, vector["reply"])(*vector["arguments"]) == raw


@pytest.mark.parametrize("vector", VECTORS["requests"])
def test_what_clients_ask(vector: dict[str, Any]) -> None:
    frame = wire.Frame(vector["method"], filled(vector["fields"]), vector["body"].encode())
    if vector.get("closes"):
        with pytest.raises(wire.Malformed):
            wire.request(frame, {"bound": 1})
        return
    found = wire.request(frame, {"bound": 1})
    if "refused" in vector:
        assert found == wire.Refusal(*vector["refused"])
    else:
        asks, *values = vector["asks"]
        assert type(found).__name__ == asks
        assert [each for each in found if not isinstance(each, bytes)] == values


@pytest.mark.parametrize("raw", VECTORS["closing"])
def test_what_is_no_frame_ends_the_connection(raw: str) -> None:
    with pytest.raises(wire.Malformed):
        [wire.request(frame, {}) for frame in wire.Splitter().feed(bytes.fromhex(raw))]


def test_a_length_of_gigabytes_takes_no_memory() -> None:
    with pytest.raises(wire.Malformed):
        wire.Splitter().feed(struct.pack(">II", 2**31, 5))


def test_each_key_has_a_route_of_its_own() -> None:
    keys = ["", "a", "a.b", "*", "#", "a.*", "-", "-a", ".", "a..b", "é", "k" * 200, "a b"]
    routes = [wire.route_of(key) for key in keys]
    assert len(set(routes)) == len(keys)
    assert wire.route_of("eu.fr") == "eu.fr"
    assert not any(set(route) & set("*# ") for route in routes)
    assert max(map(len, routes)) <= 200


def test_numbers_do_not_meet() -> None:
    numbers = [
        wire.number_of(*each) for each in ((0, 0, False), (0, 0, True), (1, 0, False), (1023, 9, True))
    ]
    assert len(set(numbers)) == 4
    assert all(0 < number < 2**63 for number in numbers)


# --- against a node


class Caller:
    """As the original's own client: frames over a socket."""

    def __init__(self, port: int) -> None:
        self.line = socket.create_connection(("127.0.0.1", port), 20)

    def send(self, method: int, body: bytes = b"", **fields: str) -> None:
        header = json.dumps({"method": method, "fields": fields}).encode()
        self.line.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)

    def read(self) -> tuple[int, dict[str, str], bytes]:
        total, size = struct.unpack(">II", self._take(8))
        header = json.loads(self._take(size))
        return header["method"], header["fields"], self._take(total - 4 - size)

    def _take(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            data = self.line.recv(size - len(found))
            assert data, "the connection ended"
            found += data
        return found

    def publish(self, queue: str, body: bytes, kind: str = "direct", key: str = "") -> int:
        self.send(10, body, queue=queue, pub_type=kind, routing_key=key)
        method, fields, number = self.read()
        assert (method, fields) == (11, {})
        return int(number)

    def bind(self, queue: str, key: str = "", no_ack: str = "0") -> None:
        self.send(20, queue=queue, routing_key=key, no_ack=no_ack)
        assert self.read() == (21, {"queue": queue}, b"")

    def pushed(self, queue: str, ack: bool = True) -> bytes:
        method, fields, body = self.read()
        assert (method, fields["queue"]) == (10030, queue)
        if ack:
            self.send(10040, queue=queue, msg_id=fields["msg_id"])
        return body

    def is_silent(self, seconds: float = 0.7) -> bool:
        self.line.settimeout(seconds)
        try:
            return not self.line.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.line.settimeout(20)

    def is_closed(self) -> bool:
        try:
            return self.line.recv(1) == b""
        except ConnectionError:
            return True


@pytest.fixture(scope="module")
def served(shared_node: RunningNode) -> Iterator[tuple[Gateway, MoonMq]]:
    dialect = MoonMq(ANYWHERE, ANYWHERE, MoonMqOptions())
    with gateway_of(shared_node.endpoint, dialect) as running:
        yield running, dialect


Dial = Callable[[], Caller]


@pytest.fixture
def dial(served: tuple[Gateway, MoonMq]) -> Iterator[Dial]:
    with ExitStack() as stack:

        def make() -> Caller:
            caller = Caller(served[1].at.port)
            stack.callback(caller.line.close)
            return caller

        yield make


@pytest.fixture
def queue() -> str:
    return f"q:{uuid.uuid4().hex[:8]}"


@pytest.mark.e2e
def test_direct_messages_go_to_one(dial: Dial, queue: str) -> None:
    producer, one, other = dial(), dial(), dial()
    # no consumer is bound, so they are kept
    numbers = [producer.publish(queue, b"%d" % at) for at in range(20)]
    assert numbers == list(range(1, 21))
    one.bind(queue)
    other.bind(queue)
    found = [one.pushed(queue) for _ in range(8)]
    seen = set(found) | {other.pushed(queue) for _ in range(1)}
    for _ in range(11):
        who = other if one.is_silent(0.05) else one
        seen.add(who.pushed(queue))
    assert seen == {b"%d" % at for at in range(20)}
    assert one.is_silent()
    assert other.is_silent()


@pytest.mark.e2e
def test_what_was_not_acked_goes_to_the_next(dial: Dial, queue: str) -> None:
    producer, one = dial(), dial()
    for at in range(3):
        producer.publish(queue, b"%d" % at)
    one.bind(queue)
    assert {one.pushed(queue, ack=False) for _ in range(3)} == {b"0", b"1", b"2"}
    one.line.close()
    other = dial()
    other.bind(queue)
    assert {other.pushed(queue) for _ in range(3)} == {b"0", b"1", b"2"}


@pytest.mark.e2e
def test_keys_choose_and_nothing_is_dropped(dial: Dial, queue: str) -> None:
    producer, french, plain = dial(), dial(), dial()
    french.bind(queue, "eu.fr")
    producer.publish(queue, b"oui", key="eu.fr")
    producer.publish(queue, b"si", key="eu.it")  # the original deletes it now
    producer.publish(queue, b"hm")
    assert french.pushed(queue) == b"oui"
    assert french.is_silent()
    plain.bind(queue)
    assert plain.pushed(queue) == b"hm"
    assert plain.is_silent()
    french.bind(queue, "eu.it")  # binding again changes the key
    assert french.pushed(queue) == b"si"


@pytest.mark.e2e
def test_no_ack_and_unbind(dial: Dial, queue: str, shared_node: RunningNode) -> None:
    producer, consumer = dial(), dial()
    consumer.bind(queue, no_ack="1")
    for at in range(20):
        producer.publish(queue, b"%d" % at)
    assert [consumer.pushed(queue, ack=False) for _ in range(20)] == [b"%d" % at for at in range(20)]
    consumer.send(30, queue=queue)
    assert consumer.read() == (31, {"queue": queue}, b"")
    consumer.send(30)
    assert consumer.read() == (31, {"queue": ""}, b"")
    producer.publish(queue, b"later")
    assert consumer.is_silent()
    with connect(shared_node.endpoint) as mq:
        until(lambda: [row.acked for row in mq.topic(queue.replace(":", "-x3A-")).groups()] == [20])


@pytest.mark.e2e
def test_fanout_reaches_all_and_waits_for_all(dial: Dial, queue: str) -> None:
    producer, one, other = dial(), dial(), dial()
    producer.publish(queue, b"kept", "fanout")  # no consumer is bound
    one.bind(queue)
    assert one.pushed(queue) == b"kept"
    other.bind(queue)
    producer.publish(queue, b"both", "FANOUT")
    assert one.pushed(queue) == b"both"
    assert other.pushed(queue, ack=False) == b"both"  # its failure is its own
    other.line.close()
    third = dial()
    third.bind(queue)
    assert third.pushed(queue) == b"both"
    assert one.is_silent(0.3)
    assert third.is_silent(0.3)


@pytest.mark.e2e
def test_fanout_that_all_acked_is_over(dial: Dial, queue: str, shared_node: RunningNode) -> None:
    producer, one = dial(), dial()
    one.bind(queue)
    producer.publish(queue, b"x", "fanout")
    assert one.pushed(queue) == b"x"
    name = f"{queue.replace(':', '-x3A-')}.fanout"
    with connect(shared_node.endpoint) as mq:
        until(lambda: [row.cursor for row in mq.topic(name).groups()] == [1])
    one.line.close()
    time.sleep(1.5)
    late = dial()
    late.bind(queue)
    assert late.is_silent()


@pytest.mark.e2e
def test_requests_one_behind_the_other(dial: Dial, queue: str) -> None:
    producer, count = dial(), 2_000
    header = json.dumps({"method": 10, "fields": {"queue": queue, "pub_type": "direct"}}).encode()
    frame = struct.pack(">II", 4 + len(header) + 1, len(header)) + header + b"x"
    producer.line.sendall(frame * count)
    assert [producer.read()[2] for _ in range(count)] == [b"%d" % (at + 1) for at in range(count)]


@pytest.mark.e2e
def test_errors_leave_the_connection(dial: Dial, queue: str) -> None:
    caller = dial()
    caller.bind("bound")
    for vector in VECTORS["requests"]:
        if "refused" in vector:
            caller.send(vector["method"], vector["body"].encode(), **filled(vector["fields"]))
            code, text = vector["refused"]
            assert caller.read() == (10010, {"code": str(code)}, text.encode())
    caller.send(0, b"sum")
    assert caller.read() == (1, {}, b"")
    caller.send(10020)
    assert caller.publish(queue, b"well") == 1


@pytest.mark.e2e
def test_malformed_input_ends_its_connection_and_no_other(
    dial: Dial, queue: str, served: tuple[Gateway, MoonMq]
) -> None:
    neighbour, before = dial(), served[0].count("errors", "moonmq")
    for raw in VECTORS["closing"]:
        caller = dial()
        caller.line.sendall(bytes.fromhex(raw))
        assert caller.is_closed()
    caller = dial()
    caller.send(77)
    assert caller.is_closed()
    assert neighbour.publish(queue, b"well") == 1
    assert served[0].count("errors", "moonmq") >= before + len(VECTORS["closing"]) + 1


@pytest.mark.e2e
def test_silence_ends_a_connection(shared_node: RunningNode) -> None:
    dialect = MoonMq(ANYWHERE, None, MoonMqOptions(keepalive=2))
    with gateway_of(shared_node.endpoint, dialect):
        silent, loud = Caller(dialect.at.port), Caller(dialect.at.port)
        for _ in range(12):
            assert loud.publish("loud", b"x")  # no heartbeats: what it publishes tells enough
            time.sleep(0.4)
        assert silent.is_closed()
        silent.line.close()
        loud.line.close()


@pytest.mark.e2e
def test_who_stands_still_keeps_no_message(shared_node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection ends even if it reads nothing; other consumers get its messages."""
    monkeypatch.setattr(lines, "FAREWELL_S", 1.0)
    dialect = MoonMq(ANYWHERE, None, MoonMqOptions(keepalive=1, in_flight_max=1))
    with gateway_of(shared_node.endpoint, dialect), ExitStack() as stack:
        still, other = Caller(dialect.at.port), Caller(dialect.at.port)
        stack.callback(still.line.close)
        stack.callback(other.line.close)
        still.bind("stands")
        other.publish("stands", bytes(15 << 20))
        time.sleep(4)
        again = Caller(dialect.at.port)
        stack.callback(again.line.close)
        again.bind("stands")
        assert len(again.pushed("stands")) == 15 << 20


@pytest.mark.e2e
def test_frames_that_are_not_whole_have_a_common_bound(
    dial: Dial, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "ROOM_BYTES_MAX", 1 << 20)
    half = struct.pack(">II", 2 << 20, 40) + bytes(900 << 10)
    for _ in range(2):  # when one is gone there is room again
        first, second = dial(), dial()
        first.line.sendall(half)
        time.sleep(0.5)
        second.line.sendall(half)
        with suppress(ConnectionError):
            assert second.line.recv(1) == b""
        first.line.settimeout(0.5)
        with pytest.raises(TimeoutError):
            first.line.recv(1)
        first.line.close()
        time.sleep(0.5)
    assert dial().publish(queue, b"small") == 1


def http(port: int, method: str, path: str, body: bytes = b"", host: str = "localhost") -> tuple[int, bytes]:
    with socket.create_connection(("127.0.0.1", port), 20) as line:
        head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
        line.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        said = b"".join(iter(lambda: line.recv(65_536), b""))
    head, _, text = said.decode("latin-1").partition("\r\n\r\n")
    return int(head.split()[1]), text.encode("latin-1")


@pytest.mark.e2e
def test_a_body_that_does_not_come_is_no_fault_of_the_gateway(
    served: tuple[Gateway, MoonMq], queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manners, "BODY_S", 0.2)
    with socket.create_connection(("127.0.0.1", served[1].http_at.port), 20) as line:
        line.sendall(
            f"POST /msg?queue={queue} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n".encode()
        )
        assert line.recv(4_096).startswith(b"HTTP/1.1 408 ")


@pytest.mark.e2e
def test_messages_over_http(served: tuple[Gateway, MoonMq], queue: str, dial: Dial) -> None:
    port, path = served[1].http_at.port, f"/msg?queue={queue}&pub_type=direct&routing_key=k"
    assert http(port, "POST", path, b"\x00\xffraw") == (200, b"1")
    assert http(port, "PUT", path, b"two") == (200, b"2")
    assert http(port, "GET", f"/msg?queue={queue}&routing_key=k") == (200, b"\x00\xffraw")
    assert http(port, "GET", f"/msg?queue={queue}&routing_key=k") == (200, b"two")
    assert http(port, "POST", f"/msg?queue={queue}&pub_type=fanout", b"all") == (200, b"%d" % (2**62 + 1))
    assert http(port, "GET", f"/msg?queue={queue}") == (200, b"all")
    assert http(port, "POST", path) == (400, b"publish empty data forbidden\n")
    assert http(port, "GET", "/msg") == (400, b"queue empty forbidden\n")
    assert http(port, "POST", f"/msg?queue={queue}&pub_type=zz", b"x") == (400, b"invalid publish type zz\n")
    assert http(port, "DELETE", path) == (405, b"invalid http method\n")
    # a caller that leaves takes no message away
    with socket.create_connection(("127.0.0.1", port)) as gone:
        gone.sendall(f"GET /msg?queue={queue}&routing_key=k HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        time.sleep(0.3)
    time.sleep(1.5)
    dial().publish(queue, b"three", key="k")
    assert http(port, "GET", f"/msg?queue={queue}&routing_key=k") == (200, b"three")


@pytest.mark.e2e
def test_http_is_served_to_callers_that_name_this_gateway(shared_node: RunningNode, queue: str) -> None:
    """A page whose host name leads here sends its GET as any client does, and would take messages."""
    moon = MoonMq(None, ANYWHERE, MoonMqOptions(), hosts=("Broker.example",))
    with gateway_of(shared_node.endpoint, moon):
        port, path = moon.http_at.port, f"/msg?queue={queue}"
        assert http(port, "POST", f"{path}&pub_type=direct", b"one", f"broker.example:{port}") == (200, b"1")
        for host in (f"evil.example:{port}", "evil.example", ""):
            status, said = http(port, "GET", path, host=host)
            assert (status, b"--allow-host" in said) == (421, True)
        assert http(port, "GET", path, host=f"127.0.0.1:{port}") == (200, b"one")
