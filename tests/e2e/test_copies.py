"""A copy of a record is the same record, byte for byte: each command and interface that writes records, and
the one that reads what it has written."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import RunningNode
from gateway.conftest import RunningGateway
from gossipq_cli import records
from gossipq_client import Client, Message, connect

pytestmark = pytest.mark.e2e
PATIENCE_S = 30
PLACES = ("topic", "partition", "offset", "ref", "attempt", "publish_time")

texts = st.text(max_size=8)
raws = st.one_of(st.binary(max_size=8), texts.map(str.encode), st.just(b"\xff\x00"), st.just(b""))
durations = st.integers(1, 10**7).map(lambda ms: ms / 1_000)


class Published(NamedTuple):
    """A record as its producer says it."""

    value: bytes
    key: bytes | None
    headers: dict[str, str | bytes] | bytes  #: bytes: of another client, and no map
    id: bytes | None
    route: str
    options: dict[str, float | int]


published = st.builds(
    Published,
    value=raws,
    key=st.none() | raws,
    headers=st.dictionaries(texts, texts | raws, max_size=3) | st.just(b"\xc1no map"),
    id=st.none() | raws.filter(len),
    route=st.sampled_from(["", "eu.fr"]),
    options=st.fixed_dictionaries(
        {},
        optional={
            "ttl": st.integers(3_600_000, 10**8).map(lambda ms: ms / 1_000),
            "lease": st.integers(60_000, 10**6).map(lambda ms: ms / 1_000),
            "attempts_max": st.integers(1, 1_000),
            "backoff": durations,
        },
    ),
)
lists = st.lists(published, min_size=1, max_size=12, unique_by=lambda record: record.id or object())


@pytest.fixture(scope="module")
def gateway(shared_node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with RunningGateway(shared_node.endpoint, home=tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="module")
def mq(shared_node: RunningNode) -> Iterator[Client]:
    with connect(shared_node.endpoint) as client:
        yield client


numbers = count()


def _fresh(mq: Client) -> str:
    name = f"t{next(numbers)}"
    mq.create_topic(name, partitions=1)
    return name


def _original(mq: Client, sent: Sequence[Published]) -> str:
    topic = _fresh(mq)
    for each in sent:
        mq.post(
            topic,
            each.value,
            key=each.key,
            headers=each.headers,
            id=each.id,
            route=each.route,
            **each.options,  # type: ignore[arg-type]
        )
    mq.flush(None)
    return topic


def _said(message: Message) -> Published:
    headers = dict(sorted(message.headers_shown.items()))
    own = message.own_options
    return Published(message.value, message.key, headers, message.id_bytes, message.route, own)


def _all(mq: Client, topic: str) -> list[Published]:
    return [_said(message) for message in mq.read(topic)]


def by_client(mq: Client, gateway: RunningGateway, topic: str, copy: str) -> None:
    for message in mq.read(topic):
        own: dict[str, Any] = message.own_options
        key, headers, name = message.key, message.header_bytes, message.id_bytes
        mq.post(copy, message.value, key=key, headers=headers, id=name, route=message.route, **own)


def by_json_lines(mq: Client, gateway: RunningGateway, topic: str, copy: str) -> None:
    """As `gossipq sub TOPIC --from first --exit-at-end -o jsonl | gossipq pub COPY --jsonl`."""
    for number, message in enumerate(mq.read(topic)):
        record = records.from_json(records.to_json(message), number)
        mq.post(copy, record.value, key=record.key, headers=record.headers, **record.options)


def by_looking(mq: Client, gateway: RunningGateway, topic: str, copy: str) -> None:
    """As `gossipq msg show -o json`, each record."""
    for message in mq.read(topic):
        row = {"ref": message.ref} | records.as_row(mq.record(message.ref).show())
        record = records.from_json(json.dumps(row).encode(), 1)
        mq.post(copy, record.value, key=record.key, headers=record.headers, **record.options)


def by_dead_letters(mq: Client, gateway: RunningGateway, topic: str, copy: str) -> None:
    for message in mq.consume(topic, "g", start="first", stop_at_end=True, wait=None):
        message.reject("copy it")
    mq.flush(None)
    mq.dead(topic, "g").replay(to=copy)


def by_http_lines(mq: Client, gateway: RunningGateway, topic: str, copy: str) -> None:
    with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S) as http:
        found = http.get(f"/v1/topics/{topic}/records", params={"start": "first", "n": 100}).json()["records"]
        lines = [{name: row[name] for name in row if name not in PLACES} for row in found]
        answer = http.post(
            f"/v1/topics/{copy}/records",
            content="\n".join(map(json.dumps, lines)),
            headers={"content-type": "application/x-ndjson"},
        )
        assert answer.status_code == 201, answer.text


def by_http_fetch(mq: Client, gateway: RunningGateway, topic: str, copy: str) -> None:
    """One by one, as a consumer of a group gets them."""
    with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S) as http:
        asked, left = {"n": 100, "wait": 5, "start": "first"}, len(_all(mq, topic))
        while left > 0:
            found = http.post(f"/v1/topics/{topic}/groups/http/fetch", json=asked).json()["records"]
            left -= len(found)
            for row in found:
                one = {name: row[name] for name in row if name not in (*PLACES, "lease")}
                answer = http.post(f"/v1/topics/{copy}/records", json=one)
                assert answer.status_code == 201, answer.text
            http.post("/v1/ack", json={"leases": [row["lease"] for row in found]})


Way = Callable[[Client, RunningGateway, str, str], None]


def _whole(record: Published) -> Published:
    return record


def _without_options(record: Published) -> Published:
    """A record over HTTP does not tell the options that its producer gave it."""
    return record._replace(options={})


def _moved(record: Published) -> Published:
    """The id of a dead letter that was moved says where it was, and it does not expire again."""
    own = {name: value for name, value in record.options.items() if name != "ttl"}
    return record._replace(id=None, options=own)


@pytest.mark.parametrize(
    ("way", "kept"),
    [
        (by_client, _whole),
        (by_json_lines, _whole),
        (by_looking, _whole),
        (by_dead_letters, _moved),
        (by_http_lines, _without_options),
        (by_http_fetch, _without_options),
    ],
)
def test_a_copy_is_the_same_record(
    mq: Client, gateway: RunningGateway, way: Way, kept: Callable[[Published], Published]
) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(lists)
    def copied(sent: list[Published]) -> None:
        topic, copy = _original(mq, sent), _fresh(mq)
        original = _all(mq, topic)
        assert len(original) == len(sent)
        for stored, said in zip(original, sent, strict=True):
            assert (stored.value, stored.key, stored.id) == (said.value, said.key, said.id)
            assert stored.options == said.options
        way(mq, gateway, topic, copy)
        mq.flush(None)
        assert sorted(map(kept, _all(mq, copy)), key=repr) == sorted(map(kept, original), key=repr)

    copied()
