"""Server-Sent Events: who comes back goes on exactly where it was, whatever the clocks say."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from conftest import RunningNode
from gossipq import limits
from gossipq.clock import SystemClock
from gossipq.types import Now
from gossipq_client import Client, connect

pytestmark = pytest.mark.e2e
PATIENCE_S = 30


class Ahead(SystemClock):
    """Of a host whose clock is an hour ahead."""

    def now(self) -> Now:
        now = super().now()
        return Now(now.boot_ms, now.wall_ms + limits.HOUR_MS)


class Stream:
    """A reader that knows what a browser does: comments are nothing, an id without data is no event."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines, self.id = lines, ""

    def block(self) -> dict[str, str]:
        """Its fields; those of a comment alone are none."""
        said = [line for line in iter(lambda: next(self._lines), "") if not line.startswith(":")]
        block = dict(line.split(": ", 1) for line in said)
        self.id = block.get("id", self.id)
        return block

    def event(self) -> dict[str, object]:
        """The next, however long there was silence before."""
        while True:
            block = self.block()
            assert "event" not in block, block
            if "data" in block:
                found: dict[str, object] = json.loads(block["data"])
                return found

    def events(self, count: int) -> list[tuple[object, object, object]]:
        told = (self.event() for _ in range(count))
        return [(event["topic"], event["partition"], event["offset"]) for event in told]


@contextmanager
def streaming(http: httpx.Client, topics: str, last: str = "", **query: str) -> Iterator[Stream]:
    """Begun: what is published now comes."""
    headers = {"last-event-id": last} if last else {}
    with http.stream("GET", f"/v1/topics/{topics}/stream", params=query, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        stream = Stream(answer.iter_lines())
        assert set(stream.block()) == {"id"}
        yield stream


def refused(http: httpx.Client, topics: str, last: str = "", **query: str) -> tuple[int, dict[str, str]]:
    headers = {"last-event-id": last} if last else {}
    answer = http.get(f"/v1/topics/{topics}/stream", params=query, headers=headers)
    return answer.status_code, answer.json()


@pytest.fixture
def mq(shared_node: RunningNode) -> Iterator[Client]:
    """Its clock is an hour ahead of the node's."""
    with connect(shared_node.endpoint) as client:
        client._driver.engine.clock = Ahead()
        yield client


def put(mq: Client, topic: str, partition: int = 0, count: int = 1) -> None:
    mq.publish_many(topic, [b"x"] * count, partition=partition, timeout=PATIENCE_S)


def test_events_are_told_as_they_come(http: httpx.Client) -> None:
    http.post("/v1/topics/news/records", json={"value": "one"})
    with streaming(http, "news", start="first") as stream:
        assert stream.event()["value"] == "one"
        http.post("/v1/topics/news/records", json={"value": "two"})
        assert stream.event()["value"] == "two"
    http.post("/v1/topics/news/records", json={"value": "three"})
    with streaming(http, "news", stream.id, start="first") as stream:
        assert stream.event()["value"] == "three"
    assert refused(http, "nonews")[0] == 404


def test_who_comes_back_misses_nothing_though_the_producers_clock_is_ahead(
    http: httpx.Client, mq: Client
) -> None:
    """The time of a record is its producer's: going on by it passed over an hour of records."""
    mq.create_topic("ahead", partitions=3)
    for number in range(3):
        put(mq, "ahead", number, 4)
    seen, last = list[tuple[object, object, object]](), ""
    for _ in range(4):
        with streaming(http, "ahead", last, start="first") as stream:
            seen += stream.events(3)
            last = stream.id
    assert sorted(seen) == [("ahead", number, at) for number in range(3) for at in range(4)]
    for number in range(3):
        put(mq, "ahead", number)
    with streaming(http, "ahead", last) as stream:
        assert sorted(stream.events(3)) == [("ahead", number, 4) for number in range(3)]


def test_who_got_no_event_yet_goes_on_where_it_began(http: httpx.Client, mq: Client) -> None:
    mq.create_topic("silent", partitions=2)
    put(mq, "silent", 0)
    with streaming(http, "silent") as stream:
        pass
    put(mq, "silent", 0)
    put(mq, "silent", 1)
    with streaming(http, "silent", stream.id) as stream:
        assert sorted(stream.events(2)) == [("silent", 0, 1), ("silent", 1, 0)]


def test_each_place_to_begin_at(http: httpx.Client, mq: Client) -> None:
    mq.create_topic("places", partitions=2)
    for number in range(2):
        put(mq, "places", number, 3)
    (info,) = mq.topics("places")
    for start, first in (("first", 0), ("-1m", 0), ("2", 2), ("new", 3)):
        with streaming(http, "places", start=start) as stream:
            assert stream.id == f"places@{info.id}/0:{first},1:{first}"
    with streaming(http, "places", order="time", start="2") as stream:
        assert sorted(stream.events(2)) == [("places", 0, 2), ("places", 1, 2)]
    assert refused(http, "places", start="7")[0] == 410
    assert refused(http, "places", start="soon")[0] == 400


def test_topics_of_a_pattern_that_come_later_are_told_from_their_first_record(
    http: httpx.Client, mq: Client
) -> None:
    with streaming(http, "wild.*") as stream:
        assert stream.id == "-"
    put(mq, "wild.a")
    with streaming(http, "wild.*", stream.id) as stream:
        assert stream.events(1) == [("wild.a", 0, 0)]
        put(mq, "wild.b", count=2)
        assert stream.events(2) == [("wild.b", 0, 0), ("wild.b", 0, 1)]
    put(mq, "wild.c")
    put(mq, "wild.a")
    mq.topic("wild.b").delete()
    with streaming(http, "wild.*", stream.id) as stream:
        assert sorted(stream.events(2)) == [("wild.a", 0, 1), ("wild.c", 0, 0)]
    put(mq, "plain.other", count=2)
    with streaming(http, "wild.a,plain.other", stream.id.split(";")[0]) as stream:
        assert stream.events(2) == [("plain.other", 0, 0), ("plain.other", 0, 1)], "it was not named"


def test_what_was_removed_is_gone_and_what_was_made_anew_begins_anew(http: httpx.Client, mq: Client) -> None:
    put(mq, "kept", count=5)
    with streaming(http, "kept", start="first") as stream:
        assert stream.events(1) == [("kept", 0, 0)]
    mq.topic("kept").purge()
    put(mq, "kept")
    with streaming(http, "kept", stream.id) as stream:
        assert stream.events(1) == [("kept", 0, 5)], "the first that is there"
    mq.topic("kept").delete()
    put(mq, "kept", count=9)
    with streaming(http, "kept", stream.id) as stream:
        assert stream.events(2) == [("kept", 0, 0), ("kept", 0, 1)]


def test_an_id_of_something_else_is_refused(http: httpx.Client, mq: Client) -> None:
    put(mq, "mine")
    put(mq, "yours")
    (mine,), (yours,) = mq.topics("mine"), mq.topics("yours")
    for last, why in (
        ("1753000000.123", "TOPIC@ID"),
        ("x" * 40_000, "40000 bytes"),
        (f"mine@{mine.id}/0:1;yours@{yours.id}/0:1", "not of yours"),
        (f"mine@{mine.id}/0:2", "ends at 1"),
        (f"mine@{mine.id}/1:0", "1 partitions"),
    ):
        status, problem = refused(http, "mine", last)
        assert (status, problem["code"]) == (400, "bad_request")
        assert why in problem["detail"]
        assert "start=" in problem["hint"]
    assert refused(http, "mine,nothing-here", f"mine@{mine.id}/0:1")[0] == 404
