"""Records of each language are consumed by each other language: the same
bytes, from the same place.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from zlib import crc32

import pytest

from bindings.languages import languages
from conftest import RunningNode
from gossipq.limits import MIB
from gossipq_cli.conformance.driver import Driver, Taken
from gossipq_client import Client

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
PARTITIONS, WAIT_S, DELAY_MS = 4, 30.0, 300
NUMBERS = b"".join(number.to_bytes(8, "big") for number in (0, 1 << 53, (1 << 63) - 1, (1 << 64) - 1))
RECORDS: list[dict[str, Any]] = [
    {"value": b"", "key": b"ada"},
    {"value": b"plain", "headers": {"n": b"\x00\xff", "größe": "naïve \U0001f600".encode(), "empty": b""}},
    {"value": "naïve \U0001f600".encode(), "key": "été".encode()},
    {"value": NUMBERS, "key": NUMBERS},
    {"value": bytes(range(256)), "key": bytes(range(256)), "headers": {"h": bytes(range(256))}},
    {"value": b"m" * MIB, "key": b"k" * 4_096},
    {"value": b"once", "id": b"order-17"},
    {"value": b"once with a key", "key": b"ada", "id": "№ 18".encode()},
]
ROUTED, DELAYED = {"value": b"routed", "key": b"r"}, {"value": b"delayed", "key": b"d"}

Seen = tuple[bytes, bytes, dict[str, bytes], bytes, str, int]


@pytest.fixture(scope="module")
def drivers() -> Iterator[dict[str, Driver]]:
    """Of the languages that are there."""
    with ExitStack() as stack:
        yield {
            each.name: stack.enter_context(Driver(each.command)) for each in languages() if not each.missing
        }


def publish(by: str, drivers: dict[str, Driver], mq: Client, topic: str) -> None:
    if by == "python":
        for record in [*RECORDS, RECORDS[-1]]:
            mq.post(topic, **record)
        mq.post(topic, **ROUTED, route="eu.fr")
        mq.post(topic, **DELAYED, delay=DELAY_MS / 1_000)
        mq.flush(None)
        return
    driver = drivers[by]
    for record in [*RECORDS, RECORDS[-1]]:
        driver.publish(topic, record)
    driver.publish(topic, ROUTED, route="eu.fr")
    assert driver.publish(topic, DELAYED, delay_ms=DELAY_MS)[0][1] == -1, "a scheduled record has an offset"


def _raw(name: str | bytes | None) -> bytes:
    return name.encode() if isinstance(name, str) else name or b""


def seen_by_python(mq: Client, topic: str, total: int) -> list[Seen]:
    found: dict[tuple[int, int], Seen] = {}
    while len(found) < total:
        batch = mq.fetch(topic, group="python", n=total, wait=WAIT_S)
        assert len(batch), f"{len(found)} of {total} came"
        for each in batch:
            seen = each.value, each.key or b"", dict(each.headers or {}), _raw(each.id), each.route or ""
            found[each.partition, each.offset] = (*seen, each.partition)
        mq.ack_soon(batch)
    return list(found.values())


def seen_by(driver: Driver, server: str, topic: str, group: str, total: int) -> list[Seen]:
    driver.ask("connect", servers=[server])
    driver.ask("subscribe", topic=topic, group=group)
    found: dict[tuple[int, int], Taken] = {}
    while len(found) < total:
        record = driver.next(WAIT_S)
        assert record is not None, f"{len(found)} of {total} came to {group}"
        found[record.partition, record.offset] = record
        driver.ack(record)
    return [
        (each.value, each.key, each.headers, each.id, each.route, each.partition) for each in found.values()
    ]


def comparable(found: list[Seen]) -> list[Any]:
    return sorted((value, key, sorted(headers.items()), *rest) for value, key, headers, *rest in found)


@pytest.mark.parametrize("by", ["python", *(language.name for language in languages())])
def test_published_by_one_consumed_by_each(
    by: str, node: RunningNode, mq: Client, drivers: dict[str, Driver]
) -> None:
    missing = next((each.missing for each in languages() if each.name == by), "")
    if missing:
        pytest.skip(missing)
    topic, total = f"pairs-{by}", len(RECORDS) + 2
    mq.create_topic(topic, partitions=PARTITIONS)
    if by != "python":
        drivers[by].ask("connect", servers=[node.endpoint])
    publish(by, drivers, mq, topic)
    here = seen_by_python(mq, topic, total)
    sent = [*RECORDS, ROUTED | {"route": "eu.fr"}, DELAYED]
    wanted = sorted(
        (r["value"], r.get("key", b""), sorted(r.get("headers", {}).items()), r.get("route", ""))
        for r in sent
    )
    assert [(row[0], row[1], row[2], row[4]) for row in comparable(here)] == wanted
    places = {row[1]: row[5] for row in here if row[1]}
    assert places == {key: crc32(key) % PARTITIONS for key in places}, "a key lies in another partition"
    for name, driver in drivers.items():
        there = seen_by(driver, node.endpoint, topic, name, total)
        assert comparable(there) == comparable(here), f"{name} sees other records than Python"
        assert {row[1]: row[5] for row in there if row[1]} == places


@pytest.mark.parametrize("by", ["javascript", "c", "go"])
def test_flow_and_priority_of_each_language(
    by: str, node: RunningNode, mq: Client, drivers: dict[str, Driver]
) -> None:
    missing = next((each.missing for each in languages() if each.name == by), "")
    if missing:
        pytest.skip(missing)
    topic = f"flows-{by}"
    mq.create_topic(topic, partitions=PARTITIONS)
    drivers[by].ask("connect", servers=[node.endpoint])
    (partition, offset), *_ = drivers[by].publish(topic, {"value": b"x"}, flow="ada", priority=7)
    assert partition == crc32(b"ada") % PARTITIONS
    assert mq.record(f"{topic}/{partition}/{offset}").why().lines[:2] == ("flow ada", "priority 7")
    with pytest.raises(Exception, match="priority"):
        drivers[by].publish(topic, {"value": b"x"}, priority=10)
