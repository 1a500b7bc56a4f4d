"""Ids of a stream's events, without a node."""

import pytest

from gossipq.errors import BadRequest
from gossipq_gateway.v1 import positions
from gossipq_gateway.v1.positions import Place, Positions, parse


def test_an_id_says_where_each_partition_goes_on() -> None:
    made = Positions({"orders": Place(12, {0: 5, 1: 7}), "news": Place(14, {0: 2})})
    assert made.text == "orders@12/0:5,1:7;news@14/0:2"
    made.told("orders", 12, 1, 9)
    assert made.text == "orders@12/0:5,1:10;news@14/0:2"
    assert made.offsets == {"orders": {0: 5, 1: 10}, "news": {0: 2}}
    assert parse(made.text) == {"orders": Place(12, {0: 5, 1: 10}), "news": Place(14, {0: 2})}


def test_a_topic_that_came_later_is_named_as_far_as_it_was_told() -> None:
    made = Positions({})
    assert (made.text, parse(made.text)) == ("-", {})
    made.told("late", 3, 1, 0)
    assert made.text == "late@3/1:1"


def test_a_topic_made_anew_keeps_nothing_of_the_one_before() -> None:
    made = Positions({"orders": Place(12, {0: 500, 1: 700})})
    made.told("orders", 15, 0, 3)
    assert made.text == "orders@15/0:4"


@pytest.mark.parametrize(
    "text",
    [
        "1753000000.123",
        "orders",
        "orders/0:5",
        "orders@12",
        "orders@12/",
        "orders@12/0",
        "orders@12/0:",
        "orders@12/0:-1",
        "orders@12/0:5,",
        "orders@12/0:5;",
        ";",
        "orders@12/0:5,0:6",
        "orders@12/0:5;orders@12/1:5",
        "orders@12/0:5 ",
        "orders@12/0:\u0665",
        "orders@12/0:5\n",
        "or ders@12/0:5",
        "orders@12/0:" + "9" * 19,
        "orders@" + "9" * 19 + "/0:5",
        "x" * 256 + "@12/0:5",
        "x" * 100_000,
        "orders@12/" + ",".join(f"{at}:1" for at in range(10_000)),
    ],
)
def test_what_no_stream_has_said_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="Last-Event-ID") as refused:
        parse(text)
    assert "start=" in refused.value.hint
    assert len(refused.value.message) < 400


def test_an_id_holds_any_one_topic_and_has_an_end() -> None:
    most = dict.fromkeys(range(1_024), 10**12)
    assert len(Positions({"t" * 200: Place(10**9, most)}).text) < positions.TEXT_BYTES_MAX
    made = Positions({f"topic-{at}": Place(at, {0: 1}) for at in range(1_700)})
    with pytest.raises(BadRequest, match="the id of an event has 32000") as refused:
        [made.told(f"topic-{at}", at, 0, 0) for at in range(1_700, 3_000)]
    assert "group" in refused.value.hint
