"""Metrics and health: what each page says, read by a real parser; and that nothing that comes in over HTTP
does harm."""

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import RunningNode
from gossipq.core.requests.alarms import HANGS_MS, alarm
from gossipq.errors import ConfigError
from gossipq.limits import TIMING_BOUNDS_US
from gossipq.messages import StatsReply, StatusReply
from gossipq.types import Now, partition_key
from gossipq.values import CopyStats, GroupStats, Lead, Member, PartitionStats, Timing, WorkerStats
from gossipq_client import connect
from gossipq_node.actors.board import Board, Facts
from gossipq_node.actors.timings import Timings
from gossipq_node.adapters.metrics import exposition
from gossipq_node.admin import PAGES, REQUESTS_MAX, Admin, Answer, Callers, Pages
from ports import settled_port
from waiting import until

Families = dict[str, dict[tuple[tuple[str, str], ...], float]]


def worker(number: int, state: str = "ready", **more: object) -> WorkerStats:
    row = WorkerStats(
        number,
        100 + number,
        f"tcp://127.0.0.1:{number}",
        state,
        0,
        2,
        3,
        40,
        30,
        20,
        1,
        0,
        900,
        80,
        950,
        4096,
    )
    return WorkerStats(**{name: getattr(row, name) for name in row.__struct_fields__} | more)  # type: ignore[arg-type]


def status(*workers: WorkerStats, led: int = 4) -> StatusReply:
    leads = [Lead(shard, 1, "a1") for shard in range(led)]
    members = [Member("a1", "ada", "tcp://127.0.0.1:7700", 2)]
    here = ("ada", "shop", bytes(16), "0.1.0", "standalone", 5_000, 4, led, list(workers), [])
    return StatusReply(*here, copy="a1", members=members, leads=leads)


class Moving:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.boot_ms = 1_000_000

    def now(self) -> Now:
        return Now(self.boot_ms, 0)

    def ticks_us(self) -> int:
        return 0


class House:
    """Pages over a board that the test writes; no process listens at its endpoint."""

    def __init__(self) -> None:
        self.clock = Moving()
        self.board = Board(self.clock.boot_ms)
        self.pages = Pages(self.board, "ipc:///nowhere/node.sock", self.clock)

    def shows(
        self,
        *workers: WorkerStats,
        led: int = 4,
        heard_ms: dict[int, int] | None = None,
        copies: Sequence[CopyStats] = (),
    ) -> None:
        now_ms = self.clock.boot_ms
        heard = {each.worker: now_ms for each in workers} | (heard_ms or {})
        said = msgspec.structs.replace(status(*workers, led=led), copies=list(copies))
        self.board.written(Facts(said, {}, [], heard, now_ms), now_ms)

    def get(self, path: str) -> tuple[int, dict[str, object]]:
        code, _, body = self.pages.answer(path)
        return int(code), json.loads(body)


@pytest.fixture
def house() -> House:
    return House()


def parsed(text: bytes) -> Families:
    """Samples by name and labels, as the project's own parser of the format reads them."""
    found: Families = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def shown(families: Families, name: str, /, **labels: str) -> float:
    return families[name][tuple(sorted(labels.items()))]


# --- health


def test_a_node_that_starts_is_live_and_not_ready(house: House) -> None:
    assert house.get("/livez") == (200, {"live": True, "state": "healthy", "reasons": []})
    assert house.get("/readyz") == (
        503,
        {"ready": False, "state": "starting", "reasons": ["the node is starting"]},
    )
    assert house.get("/statusz")[0] == 503


def test_a_node_whose_workers_serve_is_ready(house: House) -> None:
    house.shows(worker(0), worker(1))
    assert house.get("/livez")[0] == house.get("/readyz")[0] == 200


@pytest.mark.parametrize(
    ("workers", "led", "state", "reason"),
    [
        ((worker(0, "starting"), worker(1)), 4, "starting", "worker-0 of ada is starting"),
        ((worker(0, "recovering"), worker(1)), 4, "starting", "worker-0 of ada opens its store again"),
        ((worker(0), worker(1, "down")), 4, "starting", "worker-1 of ada is not running"),
        (
            (worker(0, "full", detail="9 bytes free"),),
            4,
            "full",
            "worker-0 of ada refuses publishes: 9 bytes free",
        ),
        ((worker(0), worker(1)), 3, "no quorum", "1 of 4 shards has no leader (being elected)"),
        (
            (worker(0, leaderless=[0, 2], away=["b2"]),),
            4,
            "no quorum",
            "2 of 4 shards have no leader (1 of 1 node is away: b2)",
        ),
        (
            (worker(0, silent_ms=4_000),),
            4,
            "paused",
            "worker-0 of ada (pid 100) has not responded for 4 s",
        ),
    ],
)
def test_why_a_node_is_not_ready(
    house: House, workers: tuple[WorkerStats, ...], led: int, state: str, reason: str
) -> None:
    house.shows(*workers, led=led)
    assert house.get("/readyz") == (503, {"ready": False, "state": state, "reasons": [reason]})


def test_a_node_whose_followers_are_away_is_ready_and_degraded(house: House) -> None:
    copies = [
        CopyStats(0, 1, "a1", "leader", 5, 0, 0, True),
        CopyStats(0, 1, "b2", "follower", 3, 2, 9_000, False),
    ]
    house.shows(worker(0), copies=copies)
    assert house.get("/readyz") == (200, {"ready": True, "state": "degraded", "reasons": []})


def test_a_worker_that_hangs_is_seen(house: House) -> None:
    house.shows(worker(0), worker(1), heard_ms={1: house.clock.boot_ms - HANGS_MS - 1_000})
    reason = "worker-1 (pid 101) has not responded for 6 s"
    for page, name in (("/livez", "live"), ("/readyz", "ready")):
        assert house.get(page) == (503, {name: False, "state": "paused", "reasons": [reason]})


def test_a_frontdoor_that_hangs_is_seen(house: House) -> None:
    house.shows(worker(0))
    house.clock.boot_ms += HANGS_MS + 2_000
    assert house.get("/livez")[1]["reasons"] == ["the frontdoor has not turned for 7 s"]


def test_statusz_has_names(house: House) -> None:
    house.shows(worker(0))
    code, said = house.get("/statusz?pretty=1")
    assert code == 200
    assert said["cluster"] == "00" * 16
    assert said["workers"][0]["commit_us"] == 950  # type: ignore[index]
    assert said["alarms"] == []


# --- metrics


def test_metrics_are_read_by_a_real_parser() -> None:
    counts = [0] * (len(TIMING_BOUNDS_US) + 1)
    counts[2], counts[-1] = 3, 1
    key = partition_key(7, 1)
    stats = StatsReply(
        [PartitionStats(key, "orders", 6, 0, 20, 510, 530, 20, 55_000, 17, 3)],
        [
            GroupStats(
                key,
                "orders",
                'a "b"\n\\c',
                17,
                380,
                90,
                20,
                0,
                3,
                2,
                7,
                8,
                2,
                1,
                2,
                5,
                3,
                False,
                900,
                4_500,
                0,
                10,
            )
        ],
    )
    raised = [alarm("lag", "ada", "orders/billing", "far behind")]
    families = parsed(
        exposition(status(worker(0)), {0: [Timing("publish", counts, 7_000_000)]}, raised, stats, 3, 2)
    )
    assert shown(families, "gossipq_rebalances_total") == 3
    assert shown(families, "gossipq_gossip_event_queue") == 2
    group = {"topic": "orders", "group": 'a "b"\n\\c', "partition": "1"}
    assert shown(families, "gossipq_messages_published_total", topic="orders", partition="1") == 530
    assert shown(families, "gossipq_topic_messages", topic="orders", partition="1") == 490
    assert shown(families, "gossipq_messages_delivered_total", **group) == 900
    assert shown(families, "gossipq_messages_redelivered_total", **group) == 2
    assert shown(families, "gossipq_group_lag_messages", **group) == 380 + 90 + 7 + 8
    assert shown(families, "gossipq_group_oldest_unacked_seconds", **group) == 4.5
    assert shown(families, "gossipq_group_unaccounted_messages", **group) == 0
    assert shown(families, "gossipq_partitions_led", worker="0") == 1
    assert shown(families, "gossipq_store_bytes", worker="0") == 4096
    assert shown(families, "gossipq_actor_restarts_total", role="worker-0") == 0
    assert shown(families, "gossipq_cluster_members", status="in") == 1
    assert shown(families, "gossipq_alarm", name="lag", severity="warning", subject="orders/billing") == 1
    assert shown(families, "gossipq_publish_duration_seconds_bucket", worker="0", le="0.0001") == 0
    assert shown(families, "gossipq_publish_duration_seconds_bucket", worker="0", le="0.0005") == 3
    assert shown(families, "gossipq_publish_duration_seconds_bucket", worker="0", le="5.0") == 3
    assert shown(families, "gossipq_publish_duration_seconds_bucket", worker="0", le="+Inf") == 4
    assert shown(families, "gossipq_publish_duration_seconds_sum", worker="0") == 7
    assert [
        value for labels, value in families["gossipq_build_info"].items() if ("version", "0.1.0") in labels
    ] == [1]


def test_without_the_workers_the_node_still_tells_of_itself(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossipq_node.admin.ASK_S", 0.1)
    house.shows(worker(0))
    code, kind, text = house.pages.answer("/metrics")
    assert (int(code), kind.split(";")[0]) == (200, "text/plain")
    families = parsed(text)
    assert shown(families, "gossipq_scrape_complete") == 0
    assert "gossipq_messages_published_total" not in families
    house.pages.close()


def test_timings_count_batches_when_they_are_confirmed() -> None:
    timings = Timings()
    timings.read(3, 10, 2, 1_000)
    timings.read(3, 11, 1, 2_000)
    timings.confirmed(3, 10, 1_400)
    publish = timings.rows()[0]
    assert (sum(publish.counts), publish.counts[2], publish.sum_us) == (2, 2, 800), (
        "two batches took 400 us each"
    )
    timings.confirmed(3, 11, 2_010)
    assert sum(timings.rows()[0].counts) == 3
    timings.read(3, 12, 1, 3_000)
    timings.forget()
    timings.confirmed(3, 12, 4_000)
    assert sum(timings.rows()[0].counts) == 3, "what a failed commit took along is not counted"


# --- over the wire


@contextmanager
def serving(house: House) -> Iterator[int]:
    admin = Admin("127.0.0.1:0", house.pages)
    try:
        yield admin.port
    finally:
        admin.close()


def http_get(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n\n\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /livez HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nxx",
        b"GET /%00%ff/../../etc/passwd HTTP/1.0\r\n\r\n",
        b"DELETE / HTTP/1.1\r\n\r\n",
    ],
)
def test_garbage_ends_with_its_own_connection(house: House, raw: bytes) -> None:
    house.shows(worker(0))
    with serving(house) as port:
        with socket.create_connection(("127.0.0.1", port), 10) as bad:
            bad.sendall(raw)
            bad.shutdown(socket.SHUT_WR)
            while bad.recv(4_096):
                pass
        assert http_get(port, "/livez")[0] == 200


def test_a_page_that_fails_is_an_answer_of_its_own(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house.pages, "answer", lambda path: 1 / 0)
    with serving(house) as port:
        assert http_get(port, "/livez") == (500, b"see the log of the node\n")


def test_who_asks_slowly_takes_no_place_from_others_for_ever(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossipq_node.admin._Handler.timeout", 0.3)
    house.shows(worker(0))
    with serving(house) as port:
        slow = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(REQUESTS_MAX + 4)]
        try:
            for each in slow:
                while each.recv(100):  # every one of them is hung up on, the late ones at once
                    pass
            assert http_get(port, "/livez")[0] == 200
        finally:
            for each in slow:
                each.close()


@pytest.mark.parametrize("byte", [b"G", b""])
def test_who_asks_byte_by_byte_takes_no_place_from_others(
    house: House, monkeypatch: pytest.MonkeyPatch, byte: bytes
) -> None:
    monkeypatch.setattr("gossipq_node.admin.CONNECTION_S", 0.5)
    house.shows(worker(0))
    with serving(house) as port:
        slow = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(REQUESTS_MAX)]
        try:
            for _ in range(8):
                for each in slow:
                    with suppress(OSError):  # it was hung up on
                        each.sendall(byte)
                time.sleep(0.2)
            assert http_get(port, "/livez")[0] == 200
        finally:
            for each in slow:
                each.close()


def test_a_probe_is_answered_while_many_ask_slowly(house: House) -> None:
    """An orchestrator would kill the node otherwise."""
    house.shows(worker(0))
    with serving(house) as port, ExitStack() as stack:
        for _ in range(3):
            for _ in range(REQUESTS_MAX):
                slow = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
                slow.sendall(b"GET /livez HTTP/1.1\r\n")
            assert http_get(port, "/livez")[0] == 200


def test_the_last_place_is_for_the_probe(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.shows(worker(0))
    come, scraped, answer = threading.Semaphore(0), threading.Event(), house.pages.answer

    def slowly(path: str) -> Answer:
        if path == "/metrics":
            come.release()
            assert scraped.wait(20)
            return HTTPStatus.OK, "text/plain", b""
        return answer(path)

    monkeypatch.setattr(house.pages, "answer", slowly)
    found: list[int] = []
    with serving(house) as port:
        asking = [
            threading.Thread(target=lambda: found.append(http_get(port, "/metrics")[0]))
            for _ in range(REQUESTS_MAX - 1)
        ]
        for each in asking:
            each.start()
            assert come.acquire(timeout=20)
        assert http_get(port, "/statusz")[0] == 503
        assert http_get(port, "/livez")[0] == 200
        scraped.set()
        for each in asking:
            each.join()
    assert found == [200] * len(asking)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("", 200),
        ("localhost:7780", 200),
        ("127.0.0.1:7780", 200),
        ("[::1]:7780", 200),
        ("10.0.0.1", 200),
        ("Ada.example:7780", 200),
        ("evil.example", 421),
        ("evil.example:7780", 421),
        ("127.0.0.1.evil.example", 421),
    ],
)
def test_only_known_names_are_answered(house: House, host: str, status: int) -> None:
    house.shows(worker(0))
    callers = Callers(frozenset({"ada.example"}))
    assert (callers.refusal("/statusz", host, "") or (200,))[0] == status


def test_who_asks_shows_the_token(house: House) -> None:
    house.shows(worker(0))
    admin = Admin("127.0.0.1:0", house.pages, Callers(token=b"a token of many bytes"))
    try:
        shown = {
            "": (401, 200),
            "Bearer another": (401, 200),
            "a token of many bytes": (401, 200),
            "Bearer a token of many bytes": (200, 200),
        }
        for value, expected in shown.items():
            found = []
            for path in ("/statusz", "/livez"):
                connection = http.client.HTTPConnection("127.0.0.1", admin.port, timeout=20)
                connection.request("GET", path, headers={"Authorization": value} if value else {})
                found.append(connection.getresponse().status)
                connection.close()
            assert tuple(found) == expected
    finally:
        admin.close()


def test_a_thread_that_cannot_start_takes_no_place(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.shows(worker(0))
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if "process_request" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with serving(house) as port:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", refuse)
            for _ in range(REQUESTS_MAX + 1):
                with pytest.raises(OSError):
                    http_get(port, "/livez")
        assert http_get(port, "/livez")[0] == 200


def test_head_unknown_pages_and_other_methods(house: House) -> None:
    house.shows(worker(0))
    with serving(house) as port:
        assert http_get(port, "/livez", "HEAD") == (200, b"")
        assert http_get(port, "/") == (404, f"there are {' '.join(PAGES)}\n".encode())
        assert http_get(port, "/livez", "PUT")[0] == 501


def test_a_place_that_is_taken_is_named(house: House) -> None:
    with serving(house) as port, pytest.raises(ConfigError) as refused:
        Admin(f"127.0.0.1:{port}", house.pages)
    assert str(port) in refused.value.message
    assert "--admin" in refused.value.hint


# --- a real node


@pytest.mark.e2e
@pytest.mark.slow
def test_a_node_is_scraped_and_a_worker_that_hangs_shows(make_node: Callable[..., RunningNode]) -> None:
    port = settled_port()
    node = make_node("--admin", f"127.0.0.1:{port}").start()
    with connect(node.endpoint) as mq:
        mq.publish_many("orders", [b"x"] * 100, timeout=10)
        batch = mq.fetch("orders", group="billing", n=40, wait=10)
        mq.ack_soon(batch)
        mq.flush(None)
        until(lambda: http_get(port, "/readyz")[0] == 200)

        def seen() -> bool:
            families = parsed(http_get(port, "/metrics")[1])
            group = {"topic": "orders", "group": "billing", "partition": "0"}
            publishes = families["gossipq_publish_duration_seconds_count"]
            return (
                shown(families, "gossipq_scrape_complete") == 1
                and shown(families, "gossipq_messages_published_total", topic="orders", partition="0") == 100
                and shown(families, "gossipq_messages_acked_total", **group) == len(batch)
                and shown(families, "gossipq_group_unaccounted_messages", **group) == 0
                and sum(publishes.values()) >= 1
                and sum(families["gossipq_delivery_duration_seconds_count"].values()) >= 1
            )

        until(seen)
        pid = mq.admin.status().workers[0].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: http_get(port, "/livez")[0] == 503)
        assert f"worker-0 (pid {pid})" in http_get(port, "/livez")[1].decode()
        raised = (("name", "worker_hangs"), ("severity", "critical"), ("subject", "worker-0"))
        until(lambda: raised in parsed(http_get(port, "/metrics")[1]).get("gossipq_alarm", {}))
        assert shown(parsed(http_get(port, "/metrics")[1]), "gossipq_scrape_complete") == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: http_get(port, "/livez")[0] == 200)


@pytest.mark.e2e
def test_a_place_somebody_asked_for_must_be_free_and_the_usual_one_need_not(
    make_node: Callable[..., RunningNode],
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        with pytest.raises(AssertionError, match="exit code"):
            make_node("--admin", f"127.0.0.1:{taken}").start()
    node = make_node("--admin", "auto")
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", node.port + 80))
        holder.listen()
        node.start()
        with connect(node.endpoint) as mq:
            assert mq.admin.status().led == 32
