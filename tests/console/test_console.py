"""The console of a real gateway over a real node: reading, acting, and permissions."""

import html
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pytest

import gossipq_client
from conftest import RunningNode
from dialects.harness import Gateway, gateway_of
from gossipq_cli.main import main
from gossipq_cli.means import means
from gossipq_client import Client
from gossipq_gateway.console import Console
from gossipq_gateway.console.console import COOKIE, FORM_BYTES_MAX, HEADERS
from waiting import until

pytestmark = pytest.mark.e2e
PATIENCE_S = 30.0


class Page(NamedTuple):
    status: int
    text: str
    headers: dict[str, str]

    @property
    def seal(self) -> str:
        found = re.search(r'name="seal" value="([0-9a-f]+)"', self.text)
        assert found, self.text[:400]
        return found[1]


class Browser:
    """One without scripts."""

    def __init__(self, gateway: Gateway) -> None:
        self.place, self.cookie = gateway.http, ""

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> Page:
        line = HTTPConnection(*self.place, timeout=PATIENCE_S)
        given = {"Cookie": self.cookie} if self.cookie else {}
        if method == "POST":
            given["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            line.request(
                method, path, body, given | {name.replace("_", "-"): text for name, text in headers.items()}
            )
            answer: HTTPResponse = line.getresponse()
            told = {name.lower(): text for name, text in answer.getheaders()}
            if "set-cookie" in told:
                self.cookie = told["set-cookie"].partition(";")[0]
            return Page(answer.status, html.unescape(answer.read().decode()), told)
        finally:
            line.close()

    def get(self, path: str) -> Page:
        return self.ask("GET", f"/console/{path}")

    def post(self, path: str, fields: list[tuple[str, str]], **headers: str) -> Page:
        return self.ask("POST", f"/console/{path}", urlencode(fields), **headers)

    def act(self, verb: str, kind: str, *names: str, text: str = "", sure: bool = False) -> Page:
        fields = [("seal", self.get("nodes").seal), ("kind", kind), ("verb", verb), ("text", text)]
        fields += [("name", name) for name in names] + [("sure", "1")] * sure
        return self.post("act", fields)


def console_of(endpoint: str) -> Console:
    def connect(other: str, token: bytes | None) -> Client:
        return gossipq_client.connect(other or endpoint, timeout=10, wait=10, credentials=token or b"")

    return Console(connect, endpoint, means)


@pytest.fixture
def browser(node: RunningNode) -> Iterator[Browser]:
    with gateway_of(node.endpoint, console_of(node.endpoint)) as gateway:
        yield Browser(gateway)


def shop(endpoint: str) -> None:
    """Records of which one is done, one dead, one scheduled."""
    with gossipq_client.connect(endpoint) as mq:
        mq.create_topic("orders", partitions=1)
        for value in ("17 apples", "3 pears", "<b>5 plums</b>"):
            mq.publish("orders", value, key="ada", timeout=PATIENCE_S)
        mq.publish("orders", "later", delay="1h", timeout=PATIENCE_S)
        first, second = mq.fetch("orders", "billing", n=2, min=2, wait=30)
        first.ack_soon()
        second.reject("no such customer")
        mq.flush(None)


def test_reading_and_mending_without_a_script(node: RunningNode, browser: Browser) -> None:
    shop(node.endpoint)
    until(lambda: "1 dead letter" in browser.get("dead").text)
    for path, said in {
        "": "Busiest topics",
        "nodes": "Takeovers",
        "topics": "orders",
        "topic?name=orders": "as the cluster says",
        "groups?like=bill": "billing",
        "group?topic=orders&group=billing": "Dead letters by error",
        "clients": "Consumes",
        "messages?topic=orders": "<b>5 plums</b>",
        "messages?topic=orders&text=pears": "1 record found",
        "messages?topic=orders&key=ada": "3 records found",
        "messages?topic=orders&from=-10m&to=": "3 records found",
        "messages?topic=orders&from=nonsense": "nonsense",
        "messages?topic=nothing": "no topic nothing",
        "message?ref=orders/0/1": "no such customer",
        "message?ref=orders/0/99": "99",
        "dead?topic=orders&group=billing": "no such customer",
        "schedules": "1 record not due yet",
        "alarms": "Events",
        "config": "node",
    }.items():
        page = browser.get(path)
        assert page.status == 200, path
        assert said in page.text, path
    raw = browser.ask("GET", "/console/messages?topic=orders", Accept="text/html")
    assert HEADERS.items() <= {name: raw.headers.get(name.lower(), "") for name in HEADERS}.items()
    assert browser.get("topic?name=nothing").status == 404
    assert browser.ask("GET", "/").status == 307

    page = browser.act("edit", "record", "orders/0/2")
    assert "<b>5 plums</b></textarea>" in page.text
    for verb, subject, text, would, did in (
        (
            "edit",
            ("record", "orders/0/2"),
            "6 plums",
            "replace orders/0/2 by",
            "orders/0/3 replaces it",
        ),
        (
            "replay",
            ("group", "orders", "billing"),
            "",
            "would be ready for billing",
            "letter ready for billing again",
        ),
        (
            "pause",
            ("group", "orders", "billing"),
            "",
            "would get nothing more",
            "on orders is paused",
        ),
    ):
        assert would in browser.act(verb, *subject, text=text).text
        assert did in browser.act(verb, *subject, text=text, sure=True).text
    undo = browser.act("pause", "group", "orders", "billing", sure=True).text
    assert "undo: resume" not in undo, "it was paused already"
    assert "undo: pause" in browser.act("resume", "group", "orders", "billing", sure=True).text
    assert "undo: resume" in browser.act("pause", "group", "orders", "billing", sure=True).text
    assert "6 plums" in browser.get("message?ref=orders/0/3").text
    until(lambda: "paused" in browser.get("groups?like=billing").text)
    assert "4 records of orders would be removed for good" in browser.act("purge", "topic", "orders").text
    assert "session ffff is gone already" in browser.act("kick", "client", "ffff", text="30s").text
    assert browser.act("drop", "topic", "orders").status == 403
    assert browser.act("purge", "topic").status == 403
    with gossipq_client.connect(node.endpoint) as mq:
        assert mq.fetch("orders", "other", n=10, wait=1, start="first")[0].value == b"17 apples"


def test_nothing_is_done_by_who_was_not_on_a_page(node: RunningNode, browser: Browser) -> None:
    shop(node.endpoint)
    fields = [("kind", "topic"), ("name", "orders"), ("verb", "purge"), ("sure", "1"), ("seal", "0" * 64)]
    assert browser.post("act", fields).status == 403
    assert browser.post("act", fields[:-1]).status == 403
    assert browser.ask("GET", f"/console/act?{urlencode(fields)}").status in (404, 405)
    seal = browser.get("nodes").seal
    assert browser.ask("POST", "/console/act", "x" * (FORM_BYTES_MAX + 1)).status == 413
    assert (
        browser.ask(
            "POST", "/console/act", json.dumps({"seal": seal}), Content_Type="application/json"
        ).status
        == 413
    )
    away = [*fields[:-1], ("seal", seal), ("back", "https://evil.example/")]
    away[3] = ("sure", "")
    page = browser.post("act", away)
    assert page.status == 200
    assert "evil.example" not in page.text
    with gossipq_client.connect(node.endpoint) as mq:
        assert sum(part.next - part.first for part in mq.admin.stats(["orders"]).partitions) == 3


def live(browser: Browser, page: str) -> Iterator[dict[str, str]]:
    """The updates that the page gets by itself."""
    with socket.create_connection(browser.place, timeout=PATIENCE_S) as line:
        ask = f"GET /console/live?page={page} HTTP/1.1\r\nhost: localhost\r\ncookie: {browser.cookie}\r\n\r\n"
        line.sendall(ask.encode())
        text = b""
        while True:
            text += line.recv(65_536)
            *whole, text = text.split(b"\n\n")
            for each in whole:
                found = re.search(rb"data: (\{.*\})", each, re.DOTALL)
                if found:
                    yield json.loads(found[1])


def test_jobs_and_schedules_are_shown_and_mended(node: RunningNode, browser: Browser) -> None:
    with gossipq_client.connect(node.endpoint) as mq:
        mq.create_topic("resize", partitions=1, lease="10m")
        mq.publish("resize", "cat.png", timeout=PATIENCE_S)
        (message,) = mq.fetch("resize", "workers", n=1, min=1, wait=PATIENCE_S)
        message.progress(0.4, "page 4 of 10")
        mq.schedule("resize", "all of them", name="nightly", cron="0 7 29 2 *")
        jobs, schedule = "jobs?topic=resize&group=workers", "schedule?topic=resize&group=workers&name=nightly"
        until(lambda: "page 4 of 10" in browser.get(jobs).text)
        page = browser.get(jobs).text
        assert 'value="0.4"' in page
        assert "nightly" in page
        assert f"/console/{jobs}" in browser.get("jobs").text
        assert f"/console/{jobs}" in browser.get("group?topic=resize&group=workers").text
        assert "page 4 of 10" in next(live(browser, jobs.replace("?", "&")))["live"]
        assert "no tick in the last hour" in browser.get(schedule).text
        assert browser.act("run-now", "schedule", "resize", "nightly", sure=True).text.count(
            "stored as resize/0/1"
        )
        paused = browser.act("pause", "schedule", "resize", "nightly", sure=True).text
        assert "undo: resume" in paused
        assert "paused" in browser.get(schedule).text
        until(
            lambda: (
                "cancelled resize/0/0"
                in browser.act("cancel", "job", "resize/0/0", "workers", sure=True).text
            )
        )
        until(lambda: message.cancelled)
        assert "has no schedule none" in browser.get("schedule?topic=resize&group=workers&name=none").text


def test_the_flows_of_a_group_are_shown(node: RunningNode, browser: Browser) -> None:
    with gossipq_client.connect(node.endpoint) as mq:
        mq.create_topic("imports", partitions=1)
        assert not mq.fetch("imports", "loader", wait=0, order="fair")
        mq.group("imports", "loader").configure(flow_concurrency=1)
        mq.publish_many("imports", [b"row"] * 3, flow="big flow", timeout=PATIENCE_S)
        (held,) = mq.fetch("imports", "loader", n=1, wait=30, order="fair")
        until(lambda: "big flow" in browser.get("group?topic=imports&group=loader").text)
        page = browser.get("group?topic=imports&group=loader").text
        assert "with the most waiting records" in page
        assert "<td>limit</td>" in page
        held.ack()


def test_a_page_goes_on_by_itself(node: RunningNode, browser: Browser) -> None:
    parts = live(browser, "topics")
    first = next(parts)
    assert set(first) == {"top", "tabs", "live"}
    with gossipq_client.connect(node.endpoint) as mq:
        mq.create_topic("fresh-topic")
        assert any("fresh-topic" in part.get("live", "") for part in parts)
    assert browser.ask("GET", "/console/live?page=act").status == 404


@pytest.mark.slow
def test_in_a_closed_cluster_each_sees_and_does_what_it_may(
    node: RunningNode, browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop(node.endpoint)
    with gossipq_client.connect(node.endpoint) as mq:
        mq.publish("secrets", b"x", timeout=PATIENCE_S)

    def gossipq(*line: str) -> None:
        assert main(["-s", node.endpoint, *line]) == 0, capsys.readouterr().err

    admin, ada = str(tmp_path / "admin"), str(tmp_path / "ada")
    gossipq("cluster", "close", "--save", admin, "--secret-file", str(node.data / "secret"))
    by = ("--credentials", admin)
    gossipq(*by, "user", "role", "add", "clerk")
    gossipq(*by, "user", "role", "grant", "clerk", "orders", "read")
    gossipq(*by, "user", "role", "grant", "clerk", "*", "observe")
    gossipq(*by, "user", "add", "ada", "--role", "clerk", "--save", ada)

    began = time.monotonic()
    stranger = browser.get("topics")
    assert stranger.status == 401
    assert "Your token" in stranger.text
    assert time.monotonic() - began < PATIENCE_S / 2
    assert "orders" not in stranger.text

    def sign_in(token: str) -> Page:
        return browser.post("sign-in", [("token", token), ("seal", browser.get("").seal)])

    assert "this is not a token" in sign_in("nonsense").text
    assert sign_in("gq_" + "0" * 64).status == 401
    token = next(line for line in Path(ada).read_text().splitlines() if line.startswith("gq_"))
    page = sign_in(token)
    assert page.status == 303
    cookie = page.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert all(each in cookie for each in ("HttpOnly", "SameSite=strict", "Path=/console"))
    assert "· ada" in browser.get("").text
    until(lambda: "17 apples" in browser.get("messages?topic=orders").text)
    assert 'value="purge"' not in browser.get("topic?name=orders").text
    assert browser.act("purge", "topic", "orders", sure=True).status == 403
    assert browser.act("requeue", "record", "orders/0/0", text="billing", sure=True).status == 403
    assert browser.act("purge", "topic").status == 403
    assert "17 apples" not in browser.get("messages?topic=secrets").text
    seal, mine = browser.get("").seal, browser.cookie
    browser.cookie = ""
    fields = [("seal", seal), ("kind", "topic"), ("name", "orders"), ("verb", "purge")]
    assert browser.post("act", fields).status == 403
    browser.cookie = mine
    assert browser.get("topics").status == 200
    gossipq(*by, "user", "rm", "ada")
    until(lambda: browser.get("topics").status == 401)  # a page that is asked for is looked at
    assert browser.get("live?page=topics").status == 401


@pytest.mark.slow
def test_the_demo_opens_it_over_live_data_and_leaves_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    line = [sys.executable, "-m", "gossipq_cli", "demo", "--web", "-o", "json"]
    with subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        at = json.loads(process.stdout.readline())

        def page() -> str:
            with urllib.request.urlopen(at["url"], timeout=PATIENCE_S) as answer:
                return str(answer.read().decode())

        until(lambda: "payments" in page() and "ledger" in page())
        process.terminate()
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    with pytest.raises(OSError, match="refused"):
        page()
    assert list(tmp_path.iterdir()) == [], "its nodes were in there"


def test_a_number_of_thousands_of_digits_is_no_fault(browser: Browser) -> None:
    for name in ("back", "partition"):
        assert browser.get(f"messages?topic=orders&{name}={'9' * 5_000}").status == 200
