"""xxl-mq's OpenAPI: what it answers, by bytes; then against a real node, over HTTP."""

import json
import socket
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import RunningNode
from dialects.harness import Gateway, gateway_of, vectors
from gossipq_client import connect
from gossipq_dialects.options import XxlMqOptions
from gossipq_dialects.xxl_mq import XxlMq, wire
from waiting import until

VECTORS = vectors("xxl_mq")
TOKEN = "t"


@pytest.mark.parametrize("vector", VECTORS["checks"])
def test_what_is_checked_first(vector: dict[str, Any]) -> None:
    with pytest.raises(wire.Refused) as refused:
        wire.check(vector["http"], vector["body"].encode(), vector["token"], TOKEN)
    assert wire.refused(refused.value).decode() == vector["answer"]
    wire.check("POST", b"{}", TOKEN, TOKEN)
    wire.check("POST", b"{}", "anything", "")


@pytest.mark.parametrize("vector", VECTORS["refused"])
def test_what_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(wire.Refused) as refused:
        wire.request(vector["method"], vector["body"].encode())
    assert refused.value.code == vector["code"]
    assert refused.value.text.startswith(vector["starts"])


@pytest.mark.parametrize("vector", VECTORS["done"])
def test_answers_byte_for_byte(vector: dict[str, Any]) -> None:
    data = None if vector["data"] is None else [wire.Shown(*row) for row in vector["data"]]
    assert wire.done(data).decode() == vector["answer"]


# --- against a node


class Caller:
    """A client of the OpenAPI, one instance of an application."""

    def __init__(self, port: int, app: str) -> None:
        self.port, self.app, self.instance = port, app, uuid.uuid4().hex

    def post(self, method: str, body: Any, token: str = TOKEN, verb: str = "POST", more: str = "") -> Any:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"{verb} /openapi/{method} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}"
        head += (
            f"XXL-MQ-ACCESS-TOKEN: {token}\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}"
        )
        with socket.create_connection(("127.0.0.1", self.port), 20) as line:
            line.sendall(head.encode() + b"\r\n\r\n" + raw)
            said = b"".join(iter(lambda: line.recv(65_536), b""))
        assert said.startswith(b"HTTP/1.1 200"), said
        return json.loads(said.partition(b"\r\n\r\n")[2])

    def produce(self, *messages: dict[str, Any]) -> None:
        assert self.post("produce", {"messageList": list(messages)})["code"] == 200

    def pull(self, *topics: str, count: int = 100) -> list[dict[str, Any]]:
        asked = {"appname": self.app, "instanceUuid": self.instance, "topicList": topics, "batchsize": count}
        said = self.post("pullAndLock", asked)
        assert said["code"] == 200
        found: list[dict[str, Any]] = said["data"] or []
        return found

    def consume(self, *results: tuple[int, int], log: str = "") -> None:
        rows = [{"id": id, "status": status, "consumeLog": log} for id, status in results]
        assert self.post("consume", {"messageList": rows})["code"] == 200


@pytest.fixture(scope="module")
def served(shared_node: RunningNode) -> Iterator[Gateway]:
    with gateway_of(shared_node.endpoint, XxlMq(XxlMqOptions(access_token=TOKEN, timeout=1))) as running:
        yield running


@pytest.fixture
def app(served: Gateway) -> Caller:
    return Caller(served.http.port, f"app-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


@pytest.mark.e2e
def test_produce_pull_consume(app: Caller, topic: str, shared_node: RunningNode) -> None:
    registered = {"appname": app.app, "instanceUuid": app.instance, "topicList": [topic]}
    assert app.post("registry", registered) == {"code": 200, "msg": "success", "data": None}
    assert app.post("pullPreCheck", registered)["code"] == 200
    assert app.pull(topic) == []
    app.produce({"topic": topic, "data": "one", "bizId": 7}, {"topic": topic, "data": "twö", "bizId": 7})
    found = app.pull(topic)
    assert [(row["topic"], row["data"]) for row in found] == [(topic, "one"), (topic, "twö")]
    assert abs(found[0]["effectTime"] / 1_000 - time.time()) < 60
    assert app.pull(topic) == []  # locked
    app.consume((found[0]["id"], wire.SUCCESS), (found[1]["id"], wire.SUCCESS), (99, wire.SUCCESS))
    with connect(shared_node.endpoint) as mq:
        assert [(row.group, row.acked) for row in mq.topic(topic).groups()] == [(app.app, 2)]
    other = Caller(app.port, f"{app.app}-other")  # another application gets all of it
    assert [row["data"] for row in other.pull(topic)] == ["one", "twö"]


@pytest.mark.e2e
def test_a_topic_that_was_removed_and_made_anew_is_pulled_again(
    app: Caller, topic: str, shared_node: RunningNode
) -> None:
    app.produce({"topic": topic, "data": "one"})
    assert [row["data"] for row in app.pull(topic)] == ["one"]
    with connect(shared_node.endpoint) as mq:
        mq.topic(topic).delete()
        asked = {"appname": app.app, "instanceUuid": app.instance, "topicList": [topic]}
        until(lambda: app.post("pullAndLock", asked)["code"] != 200)
        mq.create_topic(topic)
        mq.publish(topic, b"two")
    (again,) = until(lambda: app.post("pullAndLock", asked)["data"])
    assert again["data"] == "two"


@pytest.mark.e2e
def test_failures_and_timeouts_come_again_with_their_log(
    app: Caller, topic: str, shared_node: RunningNode
) -> None:
    app.produce({"topic": topic, "data": "x"})
    (first,) = app.pull(topic)
    app.consume((first["id"], wire.FAIL), log="the till is closed")
    with connect(shared_node.endpoint) as mq:
        trace = until(lambda: [event for event in mq.record(topic, 0, 0).trace() if "till" in str(event)])
        assert trace
    (again,) = until(lambda: app.pull(topic))
    assert again["id"] != first["id"]
    app.consume((again["id"], wire.SUCCESS))
    app.produce({"topic": topic, "data": "y"})
    app.pull(topic)  # and the outcome is never reported
    (late,) = until(lambda: app.pull(topic))
    assert late["data"] == "y"


@pytest.mark.e2e
def test_delay_and_what_an_instance_had_goes_back(app: Caller, topic: str) -> None:
    due_ms = int(time.time() * 1_000) + 1_500
    app.produce({"topic": topic, "data": "later", "effectTime": due_ms}, {"topic": topic, "data": "now"})
    assert [row["data"] for row in app.pull(topic)] == ["now"]
    (later,) = until(lambda: app.pull(topic))
    assert time.time() * 1_000 >= due_ms
    assert (later["data"], later["effectTime"]) == ("later", due_ms)
    other = Caller(app.port, app.app)
    app.post("registryRemove", {"appname": app.app, "instanceUuid": app.instance})
    assert {row["data"] for row in until(lambda: other.pull(topic))} <= {"now", "later"}


@pytest.mark.e2e
def test_what_is_refused_over_http(app: Caller, served: Gateway, topic: str) -> None:
    before = served.count("errors", "xxl_mq")
    assert app.post("produce", {}, token="no")["msg"] == "accessToken invalid"
    assert app.post("produce", {}, verb="GET")["msg"] == "invalid request, HttpMethod not support."
    assert app.post("produce", b"")["msg"] == "invalid request, requestBody empty."
    assert app.post("fly", {})["msg"] == "invalid request, uri-mapping invalid."
    with pytest.raises(AssertionError, match="403"):  # a page in somebody's browser
        app.post("produce", {}, more="origin: http://evil\r\n")
    said = app.post(
        "produce", {"messageList": [{"topic": topic, "data": "x"}, {"topic": "t" * 300, "data": "x"}]}
    )
    assert said["msg"].startswith("openapi invoke error")
    assert app.pull(topic) == []  # nothing of the list is stored
    assert served.count("errors", "xxl_mq") >= before + 5
