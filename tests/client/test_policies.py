"""Policies of topics and groups as users write them."""

from datetime import timedelta
from typing import Any

import pytest

from gossipq import limits
from gossipq.errors import BadRequest
from gossipq.values import GroupOptions, Rate, TopicOptions
from gossipq_client.session.consume_options import joining
from gossipq_client.values.policies import backoff_ms, group_options, rate_of, topic_options


def test_what_is_left_away_is_not_said() -> None:
    assert topic_options() == TopicOptions()
    assert group_options() == GroupOptions()


def test_everything_of_a_topic() -> None:
    options = topic_options(
        4,
        retention="7d",
        retain="forever",
        bytes_max=5,
        overflow="drop_oldest",
        level="none",
        beside="other",
        ttl="1h",
        expire="drop",
        dedup="10m",
        dedup_count=99,
        trace="all",
        lease=30,
        attempts_max=3,
        backoff=["1s", timedelta(seconds=5)],
    )
    assert options == TopicOptions(
        4,
        604_800_000,
        "forever",
        5,
        "drop_oldest",
        "none",
        "other",
        3_600_000,
        "drop",
        600_000,
        99,
        "all",
        30_000,
        3,
        [1_000, 5_000],
    )


def test_everything_of_a_group() -> None:
    options = group_options(
        mode="key_ordered", lease="1m", in_flight_max=9, attempts_max=1, backoff=2, parked_max=7, paused=True
    )
    assert options == GroupOptions("key_ordered", 60_000, 9, 1, [2_000], 7, True)
    assert group_options(order="fair", weights={"ada": 3}) == GroupOptions(order="fair", weights={"ada": 3})


@pytest.mark.parametrize(
    "weights", [{"ada": 0}, {"ada": 1.5}, {"ada": limits.FLOW_WEIGHT_MAX + 1}, {b"a": 1}]
)
def test_bad_weights(weights: Any) -> None:
    with pytest.raises(BadRequest):
        group_options(weights=weights)


def test_limits_of_a_group() -> None:
    options = group_options(concurrency=10, flow_concurrency=0, rate="100/s burst 200", flow_rate="600/1m")
    assert options == GroupOptions(
        concurrency=10, flow_concurrency=0, rate=Rate(100, 1_000, 200), flow_rate=Rate(600, 60_000)
    )
    assert group_options(rate="none") == GroupOptions(rate=Rate())
    assert group_options(flow_backlog=9, age_after="1m") == GroupOptions(flow_backlog=9, age_after_ms=60_000)


@pytest.mark.parametrize(
    "rate", ["", "10", "10/", "0/s", "-1/s", "x/s", "10/s burst", "10/soon", 10, b"10/s"]
)
def test_bad_rates(rate: Any) -> None:
    with pytest.raises(BadRequest):
        group_options(rate=rate)


def test_an_unknown_order() -> None:
    with pytest.raises(BadRequest, match="random"):
        group_options(order="random")  # type: ignore[arg-type]


@pytest.mark.parametrize("backoff", ["1s", 1, 1.0, timedelta(seconds=1), ["1s"], ("1s",), iter([1])])
def test_one_pause_may_stand_alone(backoff: Any) -> None:
    assert backoff_ms(backoff) == [1_000]


@pytest.mark.parametrize(
    "backoff", [[], ["1s"] * (limits.BACKOFF_STEPS_MAX + 1), None, ["x"], [-1], [float("nan")], "soon", b"1s"]
)
def test_bad_pauses(backoff: Any) -> None:
    with pytest.raises(BadRequest) as refused:
        backoff_ms(backoff)
    assert refused.value.hint


@pytest.mark.parametrize(
    "policy",
    [
        {"ttl": -1},
        {"retention": "soon"},
        {"dedup": float("nan")},
        {"dedup_count": -1},
        {"lease": 0},
        {"lease": "13h"},
        {"attempts_max": 0},
        {"backoff": []},
    ],
)
def test_bad_policies_of_topics(policy: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(policy))) as refused:
        topic_options(**policy)
    assert refused.value.hint


@pytest.mark.parametrize(
    "policy",
    [
        {"mode": "fifo"},
        {"lease": 0},
        {"in_flight_max": 0},
        {"attempts_max": 0},
        {"parked_max": 0},
        {"backoff": "x"},
    ],
)
def test_bad_policies_of_groups(policy: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(policy))) as refused:
        group_options(**policy)
    assert refused.value.hint


def test_a_consumer_names_the_order_and_the_limits_of_its_group() -> None:
    asked = joining("mails", "sender", order="fair", weights={"ada": 3}, flow_rate="10/s")
    assert (asked.options.order, asked.late_after_ms) == ("fair", None)
    assert asked.options.weights == {"ada": 3}
    assert asked.options.flow_rate == rate_of("10/s", "flow_rate")


def test_an_order_of_groups_needs_a_group() -> None:
    with pytest.raises(BadRequest, match="order= without a group"):
        joining("mails", None, order="priority")
