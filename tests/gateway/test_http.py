"""The native API, asked as any program would: a node, a gateway, plain HTTP."""

import base64
import contextlib
import json
import socket
import time
from statistics import median
from typing import Any
from urllib.parse import urlparse

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as open_socket

from conftest import RunningNode
from gateway.conftest import RunningGateway
from gossipq_cli.conformance.trials import ACK_MS
from gossipq_client import connect

pytestmark = pytest.mark.e2e
PATIENCE = 6  #: fetches of 5 s until records must have come


def fetch(http: httpx.Client, topic: str, group: str = "g", **options: object) -> list[dict[str, object]]:
    answer = http.post(f"/v1/topics/{topic}/groups/{group}/fetch", json={"n": 100, "wait": "5s", **options})
    assert answer.status_code == 200, answer.text
    return answer.json()["records"]


def publish(http: httpx.Client, topic: str, *values: object) -> None:
    body = {"records": [{"value": value} for value in values]}
    assert http.post(f"/v1/topics/{topic}/records", json=body).status_code == 201


def leases(records: list[dict[str, object]]) -> list[object]:
    return [record["lease"] for record in records]


def test_bodies_of_all_kinds(http: httpx.Client) -> None:
    path = "/v1/topics/kinds/records"
    one = http.post(path, json={"value": {"n": 1.50}, "key": "ada", "headers": {"a": "b"}, "route": "eu.fr"})
    assert one.status_code == 201
    assert one.json()["ref"] == "kinds/0/0"
    assert one.headers["location"] == "/v1/records/kinds/0/0"
    raw = http.post(
        path,
        content=b"\xff\x00",
        params={"key": "k", "header": ["x:1", "y:2"]},
        headers={"content-type": "x/y"},
    )
    assert raw.status_code == 201
    lines = http.post(
        path,
        content=b'{"value":"\\u00e9"}\n{"value":[1, 2],"ttl":"1h"}\n',
        headers={"content-type": "application/x-ndjson"},
    )
    assert (lines.status_code, lines.json()["count"]) == (201, 2)
    many = http.post(
        path, json={"records": [{"value": "a"}, {"value_base64": base64.b64encode(b"\xfe").decode()}]}
    )
    assert (many.status_code, many.json()["count"]) == (201, 2)
    found = fetch(http, "kinds")
    assert [record.get("value") for record in found] == ['{"n":1.5}', None, "é", "[1, 2]", "a", None]
    assert found[0]["headers"] == {"a": "b"}
    assert (found[0]["key"], found[0]["route"]) == ("ada", "eu.fr")
    assert (found[1]["value_base64"], found[1]["headers"]) == ("/wA=", {"x": "1", "y": "2"})


def test_a_repeated_publish_is_known(http: httpx.Client) -> None:
    path, again = "/v1/topics/again/records", {"idempotency-key": "order-17"}
    first = http.post(path, json={"value": "x"}, headers=again)
    second = http.post(path, json={"value": "x"}, headers=again)
    assert (first.status_code, second.status_code) == (201, 200)
    assert (first.json()["ref"], first.json()["duplicate"]) == (second.json()["ref"], False)
    assert second.json()["duplicate"]
    lines = {"content-type": "application/x-ndjson", "idempotency-key": "lines"}
    for duplicate in (False, True):
        answer = http.post(path, content=b'{"value":"a"}\n{"value":"b"}', headers=lines)
        assert (answer.json()["count"], answer.json()["duplicate"]) == (2, duplicate)
    assert len(fetch(http, "again")) == 3


def test_what_is_acked_is_done_and_the_rest_comes_again(http: httpx.Client) -> None:
    publish(http, "settle", "a", "b", "c", "d")
    found = fetch(http, "settle", lease="1s", backoff="1s")
    acked = http.post("/v1/ack", json={"leases": leases(found[:1])})
    assert (acked.status_code, acked.json()) == (200, {"settled": 1, "lost": []})
    assert http.post("/v1/ack", json={"leases": leases(found[:1])}).json()["settled"] == 1, "a repeat"
    nacked = http.post("/v1/nack", json={"leases": leases(found[1:2]), "delay": "0s", "reason": "no"})
    assert nacked.json()["settled"] == 1
    (again,) = fetch(http, "settle")
    assert (again["value"], again["attempt"]) == ("b", 2)
    assert http.post("/v1/reject", json={"leases": leases([again]), "reason": "never"}).json()["settled"] == 1
    assert http.post("/v1/extend", json={"leases": leases(found[3:]), "lease": "1m"}).json()["settled"] == 1
    (late,) = fetch(http, "settle")
    assert late["value"] == "c", "its lease of a second was over"
    lost = http.post("/v1/ack", json={"leases": leases(found[2:3])})
    assert (lost.status_code, lost.json()["code"]) == (409, "lease_lost")
    assert lost.json()["lost"] == leases(found[2:3])
    done = http.post("/v1/ack", json={"leases": leases([late, *found[3:]])})
    assert done.json()["settled"] == 2
    (group,) = http.get("/v1/topics/settle/groups").json()["groups"]
    assert (group["acked"], group["dead"], group["lag"]) == (3, 1, 0)
    (letter,) = http.get("/v1/topics/settle/groups/g/dead").json()["dead"]
    assert (letter["value"], letter["reason"], letter["error"]) == ("b", "rejected", "never")
    assert http.post("/v1/topics/settle/groups/g/dead/replay", json={}).json() == {"count": 1}
    assert [record["value"] for record in fetch(http, "settle")] == ["b"]


def test_an_ack_of_several_topics_stands_though_one_was_removed(http: httpx.Client) -> None:
    publish(http, "removed", "a", "b")
    publish(http, "stands", "c")
    (first, second), (other,) = fetch(http, "removed"), fetch(http, "stands")
    assert http.delete("/v1/topics/removed").status_code == 204
    answer = http.post("/v1/ack", json={"leases": leases([first, other])})
    assert (answer.status_code, answer.json()) == (200, {"settled": 1, "lost": leases([first])})
    answer = http.post("/v1/ack", json={"leases": leases([second])})
    assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost")
    (group,) = http.get("/v1/topics/stands/groups").json()["groups"]
    assert group["acked"] == 1


def test_with_key_order_one_record_of_a_key_is_out_at_a_time(http: httpx.Client) -> None:
    """The other caller may be another worker of the same user."""
    body = {"records": [{"value": n, "key": key} for n, key in enumerate(["ada", "ada", "bob"])]}
    assert http.post("/v1/topics/keys/records", json=body).status_code == 201
    found = fetch(http, "keys", mode="key_ordered")
    while len(found) < 2:
        found += fetch(http, "keys")
    assert sorted(record["value"] for record in found) == ["0", "2"]
    assert fetch(http, "keys", wait="300ms") == [], "1 waits for 0"
    ada = [record for record in found if record["value"] == "0"]
    assert http.post("/v1/nack", json={"leases": leases(ada), "delay": "100ms"}).is_success
    again = fetch(http, "keys")
    assert [record["value"] for record in again] == ["0"]
    assert http.post("/v1/ack", json={"leases": leases(again)}).is_success
    assert [record["value"] for record in fetch(http, "keys")] == ["1"]


def test_a_fetch_names_policies_of_its_group(http: httpx.Client, shared_node: RunningNode) -> None:
    publish(http, "fetched-policies", "x")
    policy = {"order": "fair", "weights": {"ada": 2}, "flow_concurrency": 3, "age_after": "1m"}
    assert [record["value"] for record in fetch(http, "fetched-policies", **policy)] == ["x"]
    with connect(shared_node.endpoint) as mq:
        rules = mq.group("fetched-policies", "g").describe().config
    assert (rules.order, rules.weights, rules.flow_concurrency) == ("fair", {"ada": 2}, 3)


def test_a_publish_of_bytes_has_all_options(http: httpx.Client) -> None:
    query = {"attempts_max": 1, "backoff": "1s", "lease": "1m", "partition": 0, "keep_result": "1h"}
    http.post("/v1/topics/raw-options/records", params=query, content=b"x").raise_for_status()
    found = fetch(http, "raw-options")
    assert http.post("/v1/nack", json={"leases": leases(found)}).is_success
    dead = http.get("/v1/topics/raw-options/groups/g/dead").json()["dead"]
    assert [letter["attempts"] for letter in dead] == [1]


def test_a_fetch_waits_for_what_comes(http: httpx.Client, shared_node: RunningNode) -> None:
    http.post("/v1/topics", json={"name": "poll"})
    began = time.monotonic()
    assert fetch(http, "poll", wait="300ms") == []
    assert time.monotonic() - began > 0.25
    with connect(shared_node.endpoint) as mq:
        mq.publish("poll", b"x")
    assert [record["value"] for record in fetch(http, "poll")] == ["x"]


def test_reading_holds_nothing(http: httpx.Client) -> None:
    http.post("/v1/topics", json={"name": "log", "partitions": 2})
    for number in range(10):
        http.post(f"/v1/topics/log/records?key={number}", content=b"%d" % number)
    first = http.get("/v1/topics/log/records", params={"n": 3}).json()
    seen = [record["value"] for record in first["records"]]
    for partition, start in first["next"].items():
        rest = http.get("/v1/topics/log/records", params={"partition": partition, "start": start}).json()
        seen += [record["value"] for record in rest["records"]]
    assert sorted(seen) == list("0123456789")
    assert (
        http.get("/v1/topics/log/records", params={"start": "-1h"}).json()["records"][0]["value"] == seen[0]
    )
    assert http.get("/v1/topics/log/records", params={"start": "new"}).json()["records"] == []
    assert http.get("/v1/topics/log/groups").json() == {"groups": []}
    assert [r["value"] for r in http.get("/v1/topics/log/find", params={"key": "7"}).json()["records"]] == [
        "7"
    ]


def test_a_page_of_large_records_has_an_end(http: httpx.Client) -> None:
    """A page has at most 8 MiB of values, plus the records that come with the last of them."""
    http.post("/v1/topics", json={"name": "large", "partitions": 2})
    options = {"content-type": "text/plain"}
    for number in range(24):
        path = f"/v1/topics/large/records?key={number % 8}"
        assert http.post(path, content=b"%02d" % number * (1 << 19), headers=options).status_code == 201
    found = list[str]()
    for partition in ("0", "1"):
        asked = {"n": 100, "partition": partition, "start": 0}
        while (page := http.get("/v1/topics/large/records", params=asked).json())["records"]:
            assert len(page["records"]) < 12
            found += [record["value"][:2] for record in page["records"]]
            asked["start"] = page["next"][partition]
    assert sorted(found) == [f"{number:02}" for number in range(24)]


def test_one_record_is_shown_explained_and_mended(http: httpx.Client) -> None:
    made = http.post("/v1/topics/mend/records", json={"value": "x", "id": "a", "delay": "1h"}).json()
    assert made["offset"] == -1
    path = f"/v1/records/{made['ref']}"
    assert http.get(path).json()["value"] == "x"
    assert http.get("/v1/records/mend/by-id/a").json()["ref"] == made["ref"]
    assert http.get(f"{path}/why").json()["standings"][0]["state"] == "scheduled"
    assert http.get(f"{path}/trace").status_code == 200
    edited = http.patch(path, json={"value": "y"}).json()
    path = f"/v1/records/{edited['ref']}"
    assert http.get(path).json()["value"] == "y"
    assert http.post(f"{path}/reschedule", json={"delay": 0}).status_code == 200
    (found,) = fetch(http, "mend")
    assert found["value"] == "y"
    gone = http.get("/v1/records/mend/0/99")
    assert (gone.status_code, gone.json()["code"]) == (404, "unknown_record")
    later = http.post("/v1/topics/mend/records", json={"value": "z", "delay": "1h"}).json()["ref"]
    assert http.post(f"/v1/records/{later}/cancel", json={"reason": "no"}).status_code == 200


def test_topics_and_groups(http: httpx.Client) -> None:
    made = http.post("/v1/topics", json={"name": "keep", "partitions": 3, "retention": "2d", "dedup": "1h"})
    assert (made.status_code, made.json()["partitions"]) == (201, 3)
    assert made.json()["config"]["retention_ms"] == 2 * 86_400_000
    twice = http.post("/v1/topics", json={"name": "keep", "partitions": 3})
    assert (twice.status_code, twice.json()["code"]) == (409, "topic_exists")
    assert http.patch("/v1/topics/keep", json={"ttl": "1h"}).json()["config"]["ttl_ms"] == 3_600_000
    assert http.get("/v1/topics/keep").json()["name"] == "keep"
    assert [topic["name"] for topic in http.get("/v1/topics?pattern=kee*").json()["topics"]] == ["keep"]
    publish(http, "keep", "a", "b")
    assert len(fetch(http, "keep", "one")) == 2
    assert http.patch("/v1/topics/keep/groups/one", json={"paused": True}).status_code == 204
    assert http.get("/v1/topics/keep/groups").json()["groups"][0]["paused"]
    assert http.get("/v1/topics/keep/groups/one/why").json()["standings"][0]["group"] == "one"
    busy = http.request("DELETE", "/v1/topics/keep/groups/one", json={})
    assert (busy.status_code, busy.json()["code"]) == (409, "wrong_state")
    assert http.post("/v1/topics/keep/purge", json={"dry_run": True}).json() == {"count": 2}
    assert http.delete("/v1/topics/keep").status_code == 204
    assert http.get("/v1/topics/keep").status_code == 404


def test_flows_of_a_group(http: httpx.Client) -> None:
    assert fetch(http, "flows", "one", wait="0s") == []
    policy = {"order": "fair", "flow_concurrency": 1}
    assert http.patch("/v1/topics/flows/groups/one", json=policy).status_code == 204
    for _ in range(2):
        sent = http.post("/v1/topics/flows/records", json={"value": "x", "flow": "big", "partition": 0})
        assert sent.status_code == 201
    assert len(fetch(http, "flows", "one", n=1, wait="15s")) == 1
    path = "/v1/topics/flows/groups/one/flows"
    (flow,) = http.get(path).json()["flows"]
    assert flow.pop("oldest_s") >= 0
    assert flow == {"flow": "big", "partition": 0, "waiting": 1, "in_flight": 1, "waits_for": "limit"}
    assert http.get(path, params={"n": 1_000}).status_code == 400
    assert http.get("/v1/topics/flows/groups/two/flows").status_code == 400


def test_a_fetch_creates_a_missing_topic(http: httpx.Client) -> None:
    assert http.get("/v1/topics/made-by-a-fetch").status_code == 404
    assert http.post("/v1/topics/made-by-a-fetch/groups/g/fetch", json={}).json() == {"records": []}
    assert http.get("/v1/topics/made-by-a-fetch").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/topics/bad/records", b"{", 400, "bad_request"),
        ("POST", "/v1/topics/bad/records", b'{"value":"x","tll":"1h"}', 400, "bad_request"),
        ("POST", "/v1/topics/bad/records", b'{"value":"x","value_base64":"eA=="}', 400, "bad_request"),
        ("POST", "/v1/topics/bad/records", b'{"value_base64":"!"}', 400, "bad_request"),
        ("POST", "/v1/topics/bad/records", '{"value_base64":"\u00dd"}'.encode(), 400, "bad_request"),
        ("POST", "/v1/topics/bad/records", b'{"key":"x"}', 400, "bad_request"),
        ("POST", "/v1/topics/bad/records", b'{"value":"x","delay":"soon"}', 400, "bad_request"),
        ("POST", "/v1/topics/bad/records", b'{"records":[]}', 400, "bad_request"),
        ("POST", "/v1/topics/ba d/records", b'{"value":"x"}', 400, "bad_name"),
        ("POST", "/v1/topics/_audit/records", b'{"value":"x"}', 400, "bad_request"),
        ("POST", "/v1/topics/bad/records?nonsense=1", b"", 201, ""),
        ("POST", "/v1/topics/bad/groups/g/fetch", b'{"n":0}', 400, "bad_request"),
        ("POST", "/v1/topics/none/groups/g/fetch", b'{"create":false}', 404, "unknown_topic"),
        ("POST", "/v1/ack", b'{"leases":["nonsense"]}', 400, "bad_request"),
        ("POST", "/v1/ack", b'{"leases":["g@bad/0/1~3.1.abc-1"]}', 409, "lease_lost"),
        ("POST", "/v1/ack", b"[" * 100_000, 400, "bad_request"),
        ("GET", "/v1/topics/none/records", b"", 404, "unknown_topic"),
        ("GET", "/v1/topics/bad/records?start=yesterday", b"", 400, "bad_request"),
        ("GET", "/v1/topics?x=1", b"", 400, "bad_request"),
        ("GET", "/v1/nothing", b"", 404, "not_found"),
        ("DELETE", "/v1/whoami", b"", 405, "wrong_method"),
    ],
)
def test_errors_are_problems(
    http: httpx.Client, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    if code == "":
        body, status, code = b'{"value":"x"}', 400, "bad_request"
    answer = http.request(method, path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.json()["status"], answer.json()["code"]) == (status, code)
    assert answer.json()["detail"]


def test_who_calls_it_by_another_name_is_turned_away(http: httpx.Client) -> None:
    answer = http.get("/v1/whoami", headers={"host": "evil.example"})
    assert (answer.status_code, answer.json()["code"]) == (421, "unknown_host")
    assert http.get("/v1/whoami", headers={"host": "localhost:1"}).status_code == 200


def test_a_page_of_another_origin_changes_nothing(http: httpx.Client, gateway: RunningGateway) -> None:
    foreign = {"origin": "https://evil.example", "content-type": "text/plain"}
    answer = http.post("/v1/topics/forged/records", content=b"x", headers=foreign)
    assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin")
    assert "access-control-allow-origin" not in http.get("/v1/whoami", headers=foreign).headers
    assert http.get("/v1/topics/forged").status_code == 404
    own = {"origin": gateway.url, "content-type": "text/plain"}
    assert http.post("/v1/topics/own/records", content=b"x", headers=own).status_code == 201
    with pytest.raises(Exception, match=r"403|1008|reject"):
        open_socket(_socket_url(gateway, "own", "group=g"), origin="https://evil.example")  # type: ignore[arg-type]


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("br, gzip", 415), ("identity", 201)])
def test_a_packed_body_is_refused(http: httpx.Client, encoding: str, status: int) -> None:
    """The gateway does not unpack bodies: it would store the packed bytes and lose the
    header that names the packing.
    """
    headers = {"content-encoding": encoding, "content-type": "text/plain"}
    answer = http.post("/v1/topics/packed/records", content=b"x", headers=headers)
    assert answer.status_code == status
    assert status == 201 or answer.json()["code"] == "encoded"


def test_a_body_has_its_bounds(http: httpx.Client, gateway: RunningGateway) -> None:
    answer = http.post("/v1/topics/large/records", content=b"x" * (16 << 20), headers={"content-type": "x/y"})
    assert answer.status_code == 201
    answer = http.post("/v1/topics/large/records", content=b"x" * ((16 << 20) + 1))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    place = urlparse(gateway.url)
    with socket.create_connection((place.hostname, place.port), timeout=20) as raw:
        raw.sendall(
            b"POST /v1/topics/large/records HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            b"content-length: 99999999999\r\n\r\n"
        )
        assert b" 413 " in raw.recv(4096)
        raw.settimeout(20)
    with socket.create_connection((place.hostname, place.port), timeout=20) as raw:
        raw.sendall(b"nonsense\r\n\r\n")
        assert b" 400 " in raw.recv(4096)
    with socket.create_connection((place.hostname, place.port), timeout=20) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ")
        with contextlib.suppress(OSError):
            raw.sendall(b"y" * 4_000_000)
        with contextlib.suppress(ConnectionResetError):
            assert b" 431 " in raw.recv(4096), "headers without end"
    assert http.get("/v1/whoami").status_code == 200


@pytest.mark.slow
def test_who_says_nothing_makes_room(gateway: RunningGateway) -> None:
    place = urlparse(gateway.url)
    for said in (b"", b"GET / HTTP/1.1\r\nhost: "):
        with socket.create_connection((place.hostname, place.port), timeout=30) as raw:
            raw.sendall(said)
            assert raw.recv(4096) == b""


def _socket_url(gateway: RunningGateway, topic: str, query: str) -> str:
    return f"{gateway.url.replace('http', 'ws')}/v1/topics/{topic}/consume?{query}"


def test_a_socket_is_a_consumer(http: httpx.Client, gateway: RunningGateway) -> None:
    publish(http, "socket", "a", "b", "c")
    with open_socket(_socket_url(gateway, "socket", "group=g&credit=2")) as ws:
        first, second = (json.loads(ws.recv(10)) for _ in range(2))
        with pytest.raises(TimeoutError):
            ws.recv(0.3)  # the credit is used up
        ws.send(json.dumps({"do": "ack", "leases": [first["lease"]]}))
        third = json.loads(ws.recv(10))
        ws.send(json.dumps({"do": "nack", "leases": [second["lease"]], "delay": "0s"}))
        again = json.loads(ws.recv(10))
        assert (again["value"], again["attempt"]) == ("b", 2)
        ws.send(json.dumps({"do": "ack", "leases": [first["lease"]]}).encode())  # in a binary frame
        assert json.loads(ws.recv(10)) == {"lost": [first["lease"]]}
    assert third["value"] == "c"
    back = fetch(http, "socket")
    assert sorted((record["value"], record["attempt"]) for record in back) == [("b", 3), ("c", 2)]
    with open_socket(_socket_url(gateway, "socket", "nothing=1")) as ws:
        assert "bad_request" in str(ws.recv(10))
        with pytest.raises(ConnectionClosed):
            ws.recv(10)


def test_an_ack_over_a_socket_reaches_the_node_within_milliseconds(
    http: httpx.Client, gateway: RunningGateway, shared_node: RunningNode
) -> None:
    """While its consumer works on the next record."""
    publish(http, "acked-soon", *range(8))
    took_ms = []
    with (
        connect(shared_node.endpoint) as mq,
        open_socket(_socket_url(gateway, "acked-soon", "group=g")) as ws,
    ):
        for done in range(1, 8):
            record = json.loads(ws.recv(10))
            ws.send(json.dumps({"do": "ack", "leases": [record["lease"]]}))
            acked_s = time.monotonic()
            while sum(group.acked for group in mq.topic("acked-soon").groups()) < done:
                assert time.monotonic() < acked_s + 30
            took_ms.append((time.monotonic() - acked_s) * 1_000)
    assert median(took_ms) <= ACK_MS


def test_metrics_count(http: httpx.Client) -> None:
    publish(http, "counted", "a", "b")
    page = http.get("/metrics").text
    assert 'gossipq_gateway_messages_published_total{dialect="http"}' in page
    assert 'gossipq_gateway_errors_total{dialect="http"}' in page


@pytest.mark.slow
def test_what_is_in_hand_goes_back_when_it_ends(
    shared_node: RunningNode, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("ends")
    gateway = RunningGateway(shared_node.endpoint, home=home).start()
    with httpx.Client(base_url=gateway.url, timeout=20) as http:
        publish(http, "ends", "a", "b")
        (first, second) = fetch(http, "ends", lease="1h")
        assert http.post("/v1/ack", json={"leases": leases([first])}).json()["settled"] == 1
    assert gateway.stop() == 0
    gateway.start()
    with httpx.Client(base_url=gateway.url, timeout=20) as http:
        answer = http.post("/v1/ack", json={"leases": leases([second])})
        assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost")
        (again,) = fetch(http, "ends")
        assert again["value"] == "b"
    assert gateway.stop() == 0
    assert "Traceback" not in gateway.said


def test_the_result_of_a_job(http: httpx.Client) -> None:
    path = "/v1/topics/jobs/records"
    ref = http.post(path, json={"value": "job", "keep_result": "1h"}).json()["ref"]
    waiting = http.get(f"/v1/records/{ref}/result", params={"wait": "50ms"}).json()
    assert (waiting["state"], waiting["ref"]) == ("waiting", ref)
    (record,) = fetch(http, "jobs")
    assert http.get(f"/v1/records/{ref}/job").json()["state"] == "running"
    with http.stream("GET", f"/v1/records/{ref}/follow") as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        assert json.loads(next(lines)[6:])["state"] == "running"
        done = http.post("/v1/ack", json={"leases": [record["lease"]], "result": {"width": 320}})
        assert [json.loads(line[6:])["state"] for line in lines] == ["succeeded"]
    assert done.json() == {"settled": 1, "lost": []}
    found = http.get(f"/v1/records/{ref}/result").json()
    assert (found["state"], found["result"], found["group"]) == ("succeeded", {"width": 320}, "g")
    assert 3_500 < found["kept"] <= 3_600
    assert http.get("/v1/records/jobs/0/99/job").status_code == 404


def test_a_running_job_is_cancelled(http: httpx.Client) -> None:
    ref = http.post("/v1/topics/films/records", json={"value": "x"}).json()["ref"]
    (record,) = fetch(http, "films")
    refused = http.post(f"/v1/records/{ref}/cancel", json={"reason": "no"})
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
    done = http.post(f"/v1/records/{ref}/cancel", json={"reason": "no", "running": True})
    assert done.json() == {"ref": ref}
    assert http.get(f"/v1/records/{ref}/job").json()["state"] == "cancelled"
    assert http.post("/v1/ack", json={"leases": [record["lease"]]}).json()["code"] == "lease_lost"


def by_path(undo: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a request that an answer names."""
    return {"method": undo["method"], "url": undo["path"], "json": undo.get("body")}


def test_a_seek_over_http_is_undone(shared_node: RunningNode, http: httpx.Client) -> None:
    with connect(shared_node.endpoint) as mq:
        mq.create_topic("moves", partitions=1)
        mq.publish_many("moves", [b"one", b"two"])
        for msg in mq.consume("moves", group="g", stop_at_end=True):
            msg.ack()
    path = "/v1/topics/moves/groups/g/seek"
    assert "undo" not in http.post(path, json={"to": "first", "dry_run": True}).json()
    sought = http.post(path, json={"to": "first"}).json()
    assert sought == {
        "partitions": [{"partition": 0, "before": 2, "after": 0, "again": 2, "skipped": 0}],
        "undo": {"method": "POST", "path": path, "body": {"to": "2"}},
    }
    (row,) = http.request(**by_path(sought["undo"])).json()["partitions"]
    assert (row["before"], row["after"]) == (0, 2)


def test_schedules_over_http(http: httpx.Client) -> None:
    http.post("/v1/topics", json={"name": "reports"})
    path = "/v1/topics/reports/schedules"
    body = {"value": {"kind": "daily"}, "cron": "0 7 * * mon-fri", "tz": "Europe/Berlin", "key": "ada"}
    assert http.put(f"{path}/nightly", json=body).json() == {"changed": True}
    assert http.put(f"{path}/nightly", json=body).json() == {"changed": False}
    shown = http.get(f"{path}/nightly").json()
    assert (shown["cron"], shown["tz"], shown["every"], len(shown["next"])) == (
        "0 7 * * mon-fri",
        "Europe/Berlin",
        0.0,
        5,
    )
    assert http.get(path).json() == {"schedules": [shown]}
    paused = http.post(f"{path}/nightly/pause").json()
    assert paused == {"changed": True, "undo": {"method": "POST", "path": f"{path}/nightly/resume"}}
    assert http.get(f"{path}/nightly").json()["next"] == []
    assert http.post(f"{path}/nightly/pause").json() == {"changed": False}, "so there is nothing to undo"
    resumed = http.request(**by_path(paused["undo"])).json()
    assert resumed == {"changed": True, "undo": {"method": "POST", "path": f"{path}/nightly/pause"}}
    ref = http.post(f"{path}/nightly/run").json()["ref"]
    stored = http.get(f"/v1/records/{ref}").json()
    assert (stored["value"], stored["key"]) == ('{"kind":"daily"}', "ada")
    assert http.delete(f"{path}/nightly").json() == {"changed": True}
    assert http.get(f"{path}/nightly").status_code == 404
    assert http.put(f"{path}/never", json={"value": "x", "cron": "0 0 30 2 *"}).status_code == 400


def test_jobs_are_joined_over_http(http: httpx.Client) -> None:
    http.post("/v1/topics", json={"name": "pages"})
    jobs = [http.post("/v1/topics/pages/records", json={"value": "x"}).json()["ref"] for _ in range(2)]
    body = {"jobs": jobs, "value": {"title": "Storm"}, "timeout": "1h", "headers": {"a": "b"}}
    http.post("/v1/topics", json={"name": "books"})
    joined = http.post("/v1/topics/books/join", json=body)
    assert joined.status_code == 201, joined.text
    ref = joined.json()["ref"]
    assert http.get(f"/v1/records/{ref}/job").json()["state"] == "scheduled"
    held: list[object] = []
    for _ in range(PATIENCE):
        held += leases(fetch(http, "pages")) if len(held) < len(jobs) else []
    assert http.post("/v1/ack", json={"leases": held}).status_code == 200
    found: list[dict[str, object]] = []
    for _ in range(PATIENCE):
        found += fetch(http, "books") if not found else []
    headers = found[0]["headers"]
    assert [part["state"] for part in json.loads(headers["gossipq-parts"])] == ["succeeded"] * 2
    assert (found[0]["value"], headers["a"]) == ('{"title":"Storm"}', "b")
    assert http.post("/v1/topics/books/join", json={"jobs": [], "value": "x"}).status_code == 400
