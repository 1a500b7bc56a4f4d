"""Names, envelopes and routing of the transport for Celery, without a node."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gossipq_celery import envelope
from gossipq_celery.names import topic_of
from gossipq_celery.routes import Binding, Exchange, Table, fits


@pytest.mark.parametrize(
    ("host", "queue", "topic"),
    [
        ("/", "celery", "celery"),
        ("", "celery", "celery"),
        ("shop", "celery", "shop.celery"),
        ("/", "celery@ada.celery.pidbox", "celery_40_ada.celery.pidbox"),
        ("/", "über", "_c3__bc_ber"),
    ],
)
def test_a_queue_has_a_topic(host: str, queue: str, topic: str) -> None:
    assert topic_of(host, queue) == topic


@pytest.mark.parametrize(
    ("kind", "pattern", "key", "fit"),
    [
        ("direct", "a.b", "a.b", True),
        ("direct", "a.*", "a.b", False),
        ("fanout", "x", "anything", True),
        ("topic", "a.*", "a.b", True),
        ("topic", "a.*", "a", False),
        ("topic", "a.*", "a.b.c", False),
        ("topic", "a.#", "a", True),
        ("topic", "a.#", "a.b.c", True),
        ("topic", "#.c", "a.b.c", True),
        ("topic", "#", "", True),
        ("topic", "*.b.#", "a.b", True),
        ("topic", "t", "t.1", False),
    ],
)
def test_bindings_fit_as_in_amqp(kind: str, pattern: str, key: str, fit: bool) -> None:
    assert fits(kind, pattern, key) is fit


def bind(queue: str, exchange: str, key: str = "", at_ms: int = 0, expires_ms: int = 0) -> dict[str, Any]:
    binding = Binding(queue, exchange, key)._asdict()
    return {"do": "bind", **binding, "at_ms": at_ms, "expires_ms": expires_ms}


def table(*changes: dict[str, Any]) -> Table:
    made = Table()
    for each in changes:
        made.apply(each)
    return made


NEWS = {"do": "declare", "exchange": "news", "as": Exchange("fanout")._asdict()}


def test_a_queue_that_fits_twice_gets_one_copy() -> None:
    assert table(NEWS, bind("a", "news", "1"), bind("a", "news", "2")).queues("news", "x") == ["a"]


def test_a_deleted_queue_or_exchange_gets_nothing() -> None:
    bound = [NEWS, bind("a", "news"), bind("b", "news")]
    assert table(*bound, {"do": "delete_queue", "queue": "a"}).queues("news", "") == ["b"]
    assert table(*bound, {"do": "delete_exchange", "exchange": "news"}).queues("news", "") == []
    assert table(*bound, {"do": "unbind", **Binding("a", "news", "")._asdict()}).queues("news", "") == ["b"]
    assert table(*bound, {"do": "of a later version"}).queues("news", "") == ["a", "b"]


def test_a_binding_is_stale_when_its_owner_is_silent() -> None:
    made = table(NEWS, bind("a", "news", at_ms=1_000, expires_ms=500), bind("b", "news", at_ms=1_000))
    assert made.stale("news", 1_500) == set()
    assert made.stale("news", 1_501) == {"a"}


def test_a_snapshot_is_the_whole_table() -> None:
    made, copy = table(NEWS, bind("a", "news", at_ms=1, expires_ms=2)), Table()
    copy.restore(made.snapshot())
    assert (copy.exchanges, copy.bindings) == (made.exchanges, made.bindings)


def message(**headers: Any) -> dict[str, Any]:
    return {
        "body": "[[2, 3], {}, {}]",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": {"delivery_info": {"exchange": "", "routing_key": "celery"}, "expiration": "1500"},
    }


def test_a_message_comes_back_as_it_was() -> None:
    sent = message(task="shop.pack", id="17")
    headers = envelope.headers_of(sent)
    assert (headers["task"], headers["task_id"]) == ("shop.pack", "17")
    got = envelope.payload_of(envelope.value_of(sent), headers, 4, True)
    assert got["body"] == b"[[2, 3], {}, {}]"
    assert got["headers"] == sent["headers"]
    assert got["properties"]["delivery_tag"] == 4
    assert got["properties"]["delivery_info"] == {
        "exchange": "",
        "routing_key": "celery",
        "redelivered": True,
    }
    assert envelope.ttl_of(sent) == 1.5


def test_a_property_without_json_is_dropped() -> None:
    sent = message(eta=None)
    sent["properties"]["signal"] = object()
    got = envelope.payload_of(b"", envelope.headers_of(sent), 1, False)
    assert "signal" not in got["properties"]
    assert got["properties"]["expiration"] == "1500"
    with pytest.raises(TypeError):
        envelope.headers_of({**sent, "headers": {"id": object()}})


def test_an_eta_is_a_delay() -> None:
    now = datetime(2026, 1, 30, 12, 0, tzinfo=UTC)

    def due(eta: Any) -> float | None:
        return envelope.due_of(message(eta=eta), now)

    assert due((now + timedelta(seconds=90)).isoformat()) == 90
    assert due("2026-01-30T13:01:30+01:00") == 90
    assert due((now - timedelta(seconds=1)).isoformat()) is None
    assert due(None) is None
    assert due("2026-01-30T13:00:00") is None  # in which zone? the worker decides
    assert due("soon") is None
