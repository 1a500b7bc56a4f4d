"""Names of single records."""

from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossipq.errors import BadRequest, TooLarge
from gossipq.types import partition_key
from gossipq.values import Ref
from gossipq.wire.batch import id_hash
from gossipq_client.values import refs
from gossipq_client.values.refs import Address, address, parse

TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=20)
NUMBERS = st.integers(0, 0xFFFF)
COUNTS = st.integers(0, 2**53)


@given(TOPICS, NUMBERS, COUNTS)
def test_the_text_of_an_offset_is_read_back(topic: str, number: int, offset: int) -> None:
    assert parse(refs.text(topic, number, offset)) == Address(topic, number, offset)


@given(TOPICS, NUMBERS, COUNTS.map(lambda entry: entry + 1), COUNTS)
def test_the_text_of_a_scheduled_record_is_read_back(
    topic: str, number: int, entry: int, record: int
) -> None:
    asked = parse(refs.text(topic, number, -1, entry, record))
    assert asked == Address(topic, number, -1, entry, record)
    assert asked.ref(9, number) == Ref(partition_key(9, number), -1, entry, record)


def test_texts() -> None:
    assert refs.text("orders", 0, 17) == "orders/0/17"
    assert refs.text("orders", 0, -1, 210, 3) == "orders/0/@210.3"
    assert refs.text("orders", 0, -1) == ""
    assert refs.text_of("t", Ref(partition_key(7, 2), 4, 9, 1)) == "t/2/4"


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            "",
            "orders",
            "orders/0",
            "orders/0/",
            "/0/1",
            "orders/x/1",
            "orders/0/-1",
            "orders/0/1/2",
            "orders/0/@1",
        ),
        *(
            "orders/0/@1.",
            "orders/0/1.2",
            "orders/0/@.2",
            "orders/0/@1.2.3",
            "orders/0/1_0",
            "orders/0/²",
            "orders/-0/1",
        ),
        "orders/0/" + "9" * 30,
    ],
)
def test_what_is_no_ref(wrong: str) -> None:
    with pytest.raises(BadRequest, match="is no ref") as refused:
        parse(wrong)
    assert "orders/0/17" in refused.value.hint


def ask(name: str = "", partition: Any = None, offset: Any = None, id: Any = None) -> Address:
    return address(name, partition, offset, id)


def test_a_record_is_named_in_one_way() -> None:
    assert ask("orders", 1, 17) == Address("orders", 1, 17)
    assert ask("orders/1/17") == Address("orders", 1, 17)
    assert ask("orders", id="order-17") == Address("orders", None, id=b"order-17")
    assert ask("orders", 1, id=b"x") == Address("orders", 1, id=b"x")


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"name": "orders"},
        {"name": "orders", "offset": 1},
        {"name": "orders", "partition": 1},
        {"name": "orders/0/17", "offset": 1, "partition": 0},
        {"name": "orders", "partition": 0, "offset": -1},
        {"name": "orders", "partition": -1, "offset": 1},
        {"name": "orders", "partition": 0, "offset": "1"},
        {"name": "orders", "partition": 0, "offset": 1, "id": "x"},
        {"name": "orders/0/1", "partition": 0},
        {"name": "orders/0/1", "id": "x"},
        {"id": "x"},
        {"name": "orders", "id": ""},
    ],
)
def test_anything_else_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refused:
        ask(**asked)
    assert refused.value.hint


def test_long_ids() -> None:
    with pytest.raises(TooLarge):
        ask("orders", id="x" * 1_025)


def test_an_id_is_asked_for_where_it_has_chosen_to_be_then_elsewhere() -> None:
    asked = Address("orders", None, id=b"order-17")
    first, *others = asked.numbers(4)
    assert first == crc32(b"order-17") % 4
    assert sorted([first, *others]) == [0, 1, 2, 3]
    assert asked.ref(9, 2) == Ref(partition_key(9, 2), id_hash=id_hash(b"order-17"))
    assert Address("orders", 3, id=b"x").numbers(4) == [3]
    with pytest.raises(BadRequest, match="partitions 0 to 3, not 4"):
        Address("orders", 4, 1).numbers(4)


@pytest.mark.parametrize("wrong", [5, b"orders/0/17"])
def test_what_is_no_text_is_refused(wrong: Any) -> None:
    with pytest.raises(BadRequest, match="record must be str, not "):
        refs.address(wrong, None, None, None)
