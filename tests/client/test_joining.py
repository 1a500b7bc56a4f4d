"""Options of consumers, and those that are refused before a message is sent."""

from datetime import datetime
from typing import Any

import pytest

from gossipq import limits
from gossipq.errors import BadRequest, TooLarge
from gossipq.values import GroupOptions, Start, TopicConfig, TopicInfo
from gossipq_client.session.consume_options import Joining, credit_of, joining
from gossipq_client.session.pace import CREDIT_START


def of(**options: Any) -> Joining:
    return joining("t", options.pop("group", "g"), **options)


def test_nothing_said_is_nothing_sent() -> None:
    assert of() == (
        ["t"],
        "g",
        None,
        (CREDIT_START, limits.CREDIT_BYTES),
        GroupOptions(),
        [],
        True,
        True,
        True,
        0,
        None,
        True,
        False,
        False,
        None,
    )
    assert not of(group=None).creates, "who only reads makes nothing"
    assert not of(create=False).creates
    assert of(group=None).credit[0] == limits.CREDIT_RECORDS
    for group, stop_at_end, start in (
        ("g", False, "first"),
        ("g", True, "first"),
        (None, False, "new"),
        (None, True, "first"),
    ):
        assert of(group=group).subscription(0, stop_at_end).start == (start, 0)
    assert joining(["a", "b", "a"], "g").names == ["a", "b"]


def test_policies_travel_in_milliseconds() -> None:
    asked = of(mode="key_ordered", lease="1m", attempts_max=3, backoff=["1s", 0, 2.5])
    assert asked.options == GroupOptions("key_ordered", 60_000, None, 3, [1_000, 0, 2_500])
    assert of(backoff="5s").options.backoff_ms == [5_000]


def test_an_exclusive_consumer_gets_one_at_a_time_unless_it_asks_for_more() -> None:
    assert of(mode="exclusive").credit[0] == 1
    assert of(mode="exclusive", credit=5).credit[0] == 5
    assert [of(**said).follows for said in ({"mode": "exclusive"}, {"credit": 5}, {"group": None}, {})] == [
        False,
        False,
        False,
        True,
    ]
    assert (credit_of(None, None, "n"), credit_of(7, None, "n")) == (limits.CREDIT_RECORDS, 7)


def test_routes_are_one_or_several() -> None:
    assert of(route="eu.*").routes == ["eu.*"]
    assert of(route=["eu.#", "us"]).routes == ["eu.#", "us"]
    assert of(route="b.#.c").routes == ["b.#.c"]


def test_a_subscription_says_all_of_it() -> None:
    said = {
        "mode": "exclusive",
        "route": ["r"],
        "ack": False,
        "credit": 9,
        "ahead": False,
    }
    asked = joining(["a.*", "b"], "g", start="-1m", **said)
    subscription = asked.subscription(1_000_000, True)
    assert (subscription.names, subscription.routes, subscription.acks) == (["a.*", "b"], ["r"], False)
    assert (subscription.start, subscription.credit_records, subscription.notify_end) == (
        ("time", 940_000),
        9,
        True,
    )
    assert subscription.patterns
    assert not subscription.ahead
    assert not subscription.exclusive, "what is not acked cannot be counted as in hand"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "serial"}, "mode"),
        ({"mode": ""}, "mode"),
        ({"credit": 0}, "credit"),
        ({"credit": -1}, "credit"),
        ({"credit": limits.IN_FLIGHT_MAX + 1}, "credit"),
        ({"credit": 1.5}, "credit"),
        ({"credit": True}, "credit"),
        ({"lease": 0}, "lease"),
        ({"lease": "-1s"}, "lease"),
        ({"lease": float("nan")}, "lease"),
        ({"lease": "13h"}, "lease"),
        ({"attempts_max": 0}, "attempts_max"),
        ({"attempts_max": limits.ATTEMPTS_HARD_MAX + 1}, "attempts_max"),
        ({"backoff": []}, "backoff"),
        ({"backoff": [1] * (limits.BACKOFF_STEPS_MAX + 1)}, "backoff"),
        ({"backoff": [-1]}, "backoff"),
        ({"backoff": "soon"}, "backoff"),
        ({"route": "#"}, "route"),
        ({"route": ["a", "#.#"]}, "route"),
        ({"route": ""}, "route"),
        ({"route": "eu.f*"}, "whole words"),
        ({"route": [b"eu"]}, "route"),
        ({"start": -1}, "start"),
        ({"start": "later"}, "start"),
        ({"start": datetime(2026, 1, 1)}, "time zone"),
        ({"start": {"t": {0: 1}}}, "a group keeps its own positions"),
        ({"group": None, "start": {"u": {0: 1}}}, "topic 'u', which is not read"),
        ({"group": None, "start": {7: {0: 1}}}, "topic 7, which is not read"),
        ({"group": None, "start": {"t": 17}}, "an offset for each partition"),
        ({"group": None, "start": {"t": {-1: 0}}}, "partition of t in start=-1"),
        ({"group": None, "start": {"t": {limits.PARTITIONS_MAX: 0}}}, "partition of t"),
        ({"group": None, "start": {"t": {"0": 0}}}, "partition of t"),
        ({"group": None, "start": {"t": {0: -1}}}, "offset of t in start=-1"),
        ({"group": None, "start": {"t": {0: 2**63}}}, "offset of t"),
        ({"group": None, "start": {"t": {0: "first"}}}, "offset of t"),
        ({"group": None, "mode": "shared"}, "mode= without a group"),
        ({"group": "", "lease": "1s", "backoff": 1}, "lease=, backoff= without a group"),
    ],
)
def test_bad_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        of(**options)
    assert refused.value.hint
    assert says in f"{refused.value} {refused.value.hint}"


def test_a_reader_names_an_offset_for_each_partition() -> None:
    said = {"t.a": {0: 17, 3: 0}, "u": {1: 4}}
    asked = joining(["t.*", "u"], None, start=said)
    said["u"][1] = 5
    assert asked.start == {"t.a": {0: 17, 3: 0}, "u": {1: 4}}, "what was asked for stays"
    subscription = asked.subscription(1_000_000, False)
    assert subscription.start == ("first", 0), "what is not named"
    assert subscription.start_of(TopicInfo(9, "u", 1, TopicConfig(3), [1, 2, 1])) == [
        Start(9 << 16),
        Start(9 << 16 | 1, "offset", 4),
        Start(9 << 16 | 2),
    ]
    assert of(group=None, start={}).start == {}


def test_a_route_has_a_length() -> None:
    with pytest.raises(TooLarge, match="route"):
        of(route="a" * 300)


def test_topics_are_named() -> None:
    for names in ("", [], ["a", ""]):
        with pytest.raises(BadRequest, match="topic"):
            joining(names, "g")
