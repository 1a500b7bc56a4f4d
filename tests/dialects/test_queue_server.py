"""queue_server: what it sends and compares, by bytes; then against a real node, over plain sockets."""

import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conftest import RunningNode
from dialects.harness import ANYWHERE, Gateway, gateway_of, vectors
from gossipq_client import connect
from gossipq_dialects.options import QueueServerOptions
from gossipq_dialects.queue_server import QueueServer, wire
from waiting import until

VECTORS = vectors("queue_server")
NOW_S = 1_000


@pytest.mark.parametrize("vector", VECTORS["split"])
def test_a_stream_is_cut_into_objects(vector: dict[str, Any]) -> None:
    splitter, whole = wire.Splitter(), "".join(vector["segments"]).encode()
    by_byte, found = wire.Splitter(), []
    if vector["objects"] is None:
        with pytest.raises(wire.Malformed):
            splitter.feed(whole)
        return
    for segment in vector["segments"]:
        found += splitter.feed(segment.encode())
    wanted = [each.encode() for each in vector["objects"]]
    assert found == wanted
    assert [each for at in range(len(whole)) for each in by_byte.feed(whole[at : at + 1])] == wanted


def test_what_is_too_long_ends_the_connection() -> None:
    fits = b'{"a":"' + b"x" * (wire.REQUEST_BYTES_MAX - 8) + b'"}'
    assert wire.Splitter().feed(fits) == [fits]
    for more in (fits[:-2] + b'x"}', b'{"a":"' + b"x" * 50_000, b"{" * 50_000):
        with pytest.raises(wire.Malformed):
            wire.Splitter().feed(more)


def test_a_string_that_drips_costs_no_more_than_its_bytes() -> None:
    splitter, begun = wire.Splitter(), time.process_time()
    splitter.feed(b'{"a":"')
    for _ in range(30_000):
        splitter.feed(b"x")
    assert splitter.feed(b'"}') == [b'{"a":"' + b"x" * 30_000 + b'"}']
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("vector", VECTORS["answers"])
def test_what_needs_no_broker_is_answered(vector: dict[str, Any]) -> None:
    found = wire.parse(json.dumps(vector["request"]).encode(), NOW_S)
    assert isinstance(found, wire.Answered)
    assert found.is_error
    assert (json.loads(found.answer) if found.answer else None) == vector["answer"]


@pytest.mark.parametrize("raw", VECTORS["closing"])
def test_what_is_no_request_ends_the_connection(raw: str) -> None:
    with pytest.raises(wire.Malformed):
        wire.parse(raw.encode(), NOW_S)


@pytest.mark.parametrize("vector", VECTORS["produced"])
def test_a_produce_is_answered_byte_for_byte(vector: dict[str, Any]) -> None:
    found = wire.parse(json.dumps(vector["request"]).encode(), NOW_S)
    assert isinstance(found, wire.Produce)
    assert wire.produced(found.members, vector["numbers"]).decode() == vector["answer"]


@pytest.mark.parametrize("vector", VECTORS["times"])
def test_only_whole_numbers_are_numbers(vector: dict[str, Any]) -> None:
    found = wire.parse(json.dumps(vector["request"]).encode(), NOW_S)
    assert isinstance(found, wire.Produce)
    assert (found.due_s, found.ttl_s, found.retry_s) == (vector["due"], vector["ttl"], vector["retry"])


def test_numbers_of_messages_fit_json_and_do_not_meet() -> None:
    numbers = {
        wire.number_of(partition, offset) for partition in (0, 1, 1_023) for offset in (0, 1, 2**42 - 2)
    }
    assert len(numbers) == 9
    assert max(numbers) < wire.SCHEDULED <= wire.scheduled_number(b"\0" * 7)
    assert wire.scheduled_number(b"\xff" * 7) < 2**53


# --- against a node


class Caller:
    """A client as the original's own are: JSON over a socket, an answer for each request."""

    def __init__(self, port: int) -> None:
        self.line = socket.create_connection(("127.0.0.1", port), 20)
        self._rest = b""

    def ask(self, **members: Any) -> dict[str, Any]:
        self.line.sendall(json.dumps(members).encode())
        found: dict[str, Any] = json.loads(self.read())
        return found

    def read(self) -> str:
        """One answer."""
        while True:
            text = self._rest.decode()
            if text:
                try:
                    end = json.JSONDecoder().raw_decode(text)[1]
                except ValueError:
                    pass
                else:
                    self._rest = text[end:].encode()
                    return text[:end]
            data = self.line.recv(65_536)
            assert data, "the connection ended"
            self._rest += data

    def is_closed(self) -> bool:
        try:
            return self.line.recv(1) == b""
        except ConnectionError:
            return True


@pytest.fixture(scope="module")
def served(shared_node: RunningNode) -> Iterator[tuple[Gateway, QueueServer]]:
    dialect = QueueServer(ANYWHERE, QueueServerOptions())
    with gateway_of(shared_node.endpoint, dialect) as running:
        yield running, dialect


@pytest.fixture
def call(served: tuple[Gateway, QueueServer]) -> Iterator[Callable[[], Caller]]:
    made: list[Caller] = []

    def make() -> Caller:
        made.append(Caller(served[1].at.port))
        return made[-1]

    yield make
    for each in made:
        each.line.close()


@pytest.fixture
def queue() -> str:
    return f"queue:{uuid.uuid4().hex[:8]}"


Call = Callable[[], Caller]


@pytest.mark.e2e
def test_produce_consume_confirm(call: Call, queue: str) -> None:
    caller = call()
    assert caller.ask(action=2, queue=queue, seq=1) == {"action": 2, "queue": queue, "seq": 1, "code": 0}
    made = caller.ask(action=1, queue=queue, data="één", seq=2, mine={"a": [1]})
    assert made == {"action": 1, "queue": queue, "seq": 2, "mine": {"a": [1]}, "code": 0, "msg_id": 1}
    # a busy machine may take longer than an empty answer waits: who polls asks again
    found = until(lambda: (got := caller.ask(action=2, queue=queue)).get("data") and got)
    assert found == {"action": 2, "queue": queue, "code": 0, "msg_id": 1, "data": "één"}
    assert "data" not in caller.ask(action=2, queue=queue)  # at most once
    assert caller.ask(action=3, queue=queue, msg_id=77)["code"] == 0


@pytest.mark.e2e
def test_what_is_not_confirmed_comes_again_until_its_ttl(call: Call, queue: str) -> None:
    caller, now_s = call(), int(time.time())
    caller.ask(action=1, queue=queue, data="often", retry=1, ttl=now_s + 100)
    first = caller.ask(action=2, queue=queue)
    assert "data" not in call().ask(action=2, queue=queue)  # hidden from everybody
    again = until(lambda: (found := call().ask(action=2, queue=queue)).get("data") and found)
    assert again["msg_id"] == first["msg_id"]
    assert call().ask(action=3, queue=queue, msg_id=again["msg_id"])["code"] == 0  # by another connection
    time.sleep(1.5)
    assert "data" not in caller.ask(action=2, queue=queue)
    # behind its ttl the next delivery is its last
    caller.ask(action=1, queue=queue, data="last", retry=50, ttl=now_s + 60, delay=now_s)
    until(lambda: caller.ask(action=4, queue=queue)["size"] == 1)


@pytest.mark.e2e
def test_a_delayed_message_keeps_its_number(call: Call, queue: str) -> None:
    caller = call()
    made = caller.ask(action=1, queue=queue, data="later", delay=int(time.time()) + 2)
    assert made["msg_id"] >= 2**52
    assert "data" not in caller.ask(action=2, queue=queue)
    assert caller.ask(action=4, queue=queue)["size"] == 1
    found = until(lambda: (found := caller.ask(action=2, queue=queue)).get("data") and found)
    assert (found["data"], found["msg_id"]) == ("later", made["msg_id"])


@pytest.mark.e2e
def test_requests_one_behind_the_other_are_answered_in_order(call: Call, queue: str) -> None:
    caller = call()
    count = 500
    requests = [{"action": 1, "queue": queue, "data": str(at), "seq": at} for at in range(count)]
    caller.line.sendall(b"".join(json.dumps(each).encode() for each in requests))
    answers = [json.loads(caller.read()) for _ in range(count)]
    assert [each["seq"] for each in answers] == list(range(count))
    assert [each["msg_id"] for each in answers] == list(range(1, count + 1))
    asked = json.dumps({"action": 2, "queue": queue}).encode()

    def first() -> dict[str, Any]:
        """A busy machine may take a queue for empty before its first records are there."""
        caller.line.sendall(asked)
        answer = json.loads(caller.read())
        return answer if "data" in answer else {}

    found = [until(first)]
    caller.line.sendall(asked * (count - 1))
    found += [json.loads(caller.read()) for _ in range(count - 1)]
    assert [each["data"] for each in found] == [str(at) for at in range(count)]


@pytest.mark.e2e
def test_virtual_queues_have_a_copy_each(call: Call, queue: str, shared_node: RunningNode) -> None:
    name = f"v-{uuid.uuid4().hex[:8]}"
    with connect(shared_node.endpoint) as mq:
        mq.topic(name).bind([f"{name}-a", f"{name}-b"])
    caller = call()
    caller.line.sendall(json.dumps({"action": 1, "queue": name, "data": "x"}).encode())
    assert caller.read() == f'{{"action":1,"queue":"{name}","code":0,"msg_id":1,"code":0,"msg_id":1}}'
    assert caller.ask(action=2, queue=f"{name}-a")["data"] == "x"
    assert caller.ask(action=2, queue=f"{name}-b")["data"] == "x"


@pytest.mark.e2e
def test_monitor_list_and_leader(call: Call, queue: str, served: tuple[Gateway, QueueServer]) -> None:
    caller, port = call(), served[1].at.port
    for at in range(3):
        caller.ask(action=1, queue=queue, data=str(at))
    leader = {"leader_node_id": 1, "leader_host": "127.0.0.1", "leader_port": port}
    found = caller.ask(action=4, queue=queue)
    assert found == {
        "action": 4,
        "queue": queue,
        "code": 0,
        "size": 3,
        "max_id": 3,
        "trans_id": 3,
        "wait_status": found["wait_status"],
        "node_id": 1,
        **leader,
    }
    assert caller.ask(action=104, queue=queue)["size"] == 3
    listed = caller.ask(action=7, pattern=queue[2:])
    assert listed["queue_count"] == 1
    assert {"size": 3, "name": queue}.items() <= listed["queue_list"][0].items()
    assert caller.ask(action=8, seq=4) == {"action": 8, "seq": 4, "code": 0, **leader}
    assert caller.ask(action=4, queue=f"{queue}-never")["size"] == 0


@pytest.mark.e2e
def test_udp_has_the_same(served: tuple[Gateway, QueueServer], queue: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.settimeout(20)
        line.connect(("127.0.0.1", served[1].at.port))
        for junk in (b"", b"{", b"\xff" * 1_000, b"{}", b'{"action":1}'):
            line.send(junk)
        line.send(json.dumps({"action": 1, "queue": queue, "data": "u" * 10_000}).encode())
        assert json.loads(line.recv(65_536))["msg_id"] == 1
        line.send(json.dumps({"action": 2, "queue": queue}).encode())
        assert json.loads(line.recv(65_536))["data"] == "u" * 10_000


@pytest.mark.e2e
def test_malformed_input_ends_its_connection_and_no_other(
    call: Call, queue: str, served: tuple[Gateway, QueueServer]
) -> None:
    neighbour, before = call(), served[0].count("errors", "queue_server")
    bad = [raw.encode() for raw in VECTORS["closing"]] + [
        b'{"a":"' + b"x" * 50_000,
        b"\x16\x03\x01",
        b"\0" * 9,
    ]
    for raw in bad:
        caller = call()
        caller.line.sendall(raw)
        assert caller.is_closed()
    assert neighbour.ask(action=1, queue=queue, data="well")["code"] == 0
    assert served[0].count("errors", "queue_server") >= before + len(bad)
    silent = call()
    silent.line.sendall(json.dumps({"action": 2}).encode())
    assert silent.ask(action=8)["code"] == 0  # a request without a queue gets no answer


@pytest.mark.e2e
def test_a_follower_forwards_or_names_the_leader(
    served: tuple[Gateway, QueueServer], shared_node: RunningNode, queue: str
) -> None:
    leader = str(served[1].at)
    forwards = QueueServer(ANYWHERE, QueueServerOptions(node_id=2, leader=leader, leader_node_id=1))
    names = QueueServer(
        ANYWHERE, QueueServerOptions(node_id=3, leader=leader, leader_node_id=1, forward_request=0)
    )
    told = {"leader_node_id": 1, "leader_host": "127.0.0.1", "leader_port": served[1].at.port}
    with gateway_of(shared_node.endpoint, forwards), gateway_of(shared_node.endpoint, names):
        follower, namer = Caller(forwards.at.port), Caller(names.at.port)
        assert follower.ask(action=1, queue=queue, data="x", retry=50, seq=5)["msg_id"] == 1
        found = follower.ask(action=2, queue=queue, seq=6)
        assert (found["data"], found["seq"]) == ("x", 6)
        serving = Caller(served[1].at.port)
        assert serving.ask(action=3, queue=queue, msg_id=found["msg_id"])["code"] == 0
        serving.line.close()
        assert follower.ask(action=8, seq=7) == {"action": 8, "seq": 7, "code": 0, **told}
        assert namer.ask(action=2, queue=queue, seq=8) == {"code": 0, **told}  # without seq
        assert namer.ask(action=104, queue=queue)["node_id"] == 3
        follower.line.close()
        namer.line.close()


@pytest.mark.e2e
def test_what_was_handed_out_comes_back_when_the_gateway_ends(shared_node: RunningNode, queue: str) -> None:
    dialect = QueueServer(ANYWHERE, QueueServerOptions())
    with gateway_of(shared_node.endpoint, dialect):
        caller = Caller(dialect.at.port)
        for at in range(3):
            caller.ask(action=1, queue=queue, data=str(at), retry=500)
        assert caller.ask(action=2, queue=queue)["data"] == "0"
        caller.line.close()
    with gateway_of(shared_node.endpoint, dialect):
        caller = Caller(dialect.at.port)
        found = [caller.ask(action=2, queue=queue).get("data") for _ in range(4)]
        assert sorted(each for each in found if each) == ["0", "1", "2"]
        caller.line.close()
