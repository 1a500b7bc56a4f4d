"""Unique names against a real node, by both clients."""

import asyncio

import pytest

from conftest import RunningNode
from gossipq.errors import NotUnique
from gossipq_client import BadRequest, Client, connect
from gossipq_client.aio import connect as aio_connect

pytestmark = pytest.mark.e2e
PATIENCE_S = 30


def test_a_second_record_is_kept_out_until_the_first_is_acked(mq: Client) -> None:
    mq.create_topic("jobs", partitions=4)
    first = mq.publish("jobs", b"one", unique="report:7")
    again = mq.publish("jobs", b"two", unique="report:7")
    assert (first.kept, first.duplicate) == (False, False)
    assert (again.kept, again.duplicate, again.ref) == (True, True, first.ref)
    (msg,) = mq.fetch("jobs", "workers", n=2, wait=PATIENCE_S)
    assert msg.unique == "report:7"
    msg.ack()
    mq.flush(None)
    assert not mq.publish("jobs", b"three", unique="report:7").kept


def test_replace_debounces(mq: Client) -> None:
    refs = [
        mq.publish("pages", b"%d" % number, unique="page", delay="1s", conflict="replace").ref
        for number in range(3)
    ]
    (msg,) = mq.fetch("pages", "workers", n=3, wait=PATIENCE_S)
    assert msg.value == b"2"
    msg.ack()
    (standing,) = mq.record(refs[0]).why().standings
    assert "a publish of the same unique name" in standing.because


def test_an_error_names_the_record_that_has_the_name(mq: Client) -> None:
    first = mq.publish("errors", b"x", unique="a")
    with pytest.raises(NotUnique, match=f"unique='a' is the name of the record {first.ref}") as raised:
        mq.publish("errors", b"y", unique="a", conflict="error")
    assert raised.value.ref == first.ref
    pending = mq.post("errors", b"z", unique="a", conflict="error")
    beside = mq.post("errors", b"z", unique="b", conflict="error")
    with pytest.raises(NotUnique):
        pending.result()
    assert not beside.result().kept
    with pytest.raises(NotUnique, match="unique='b'"):
        mq.publish_many("errors", [b"1", b"2", b"3"], uniques=["c", "b", None], conflict="error")
    assert mq.publish("errors", b"x", unique="c").kept, "the others of the list were stored"


def test_lists_have_a_name_for_each_record(mq: Client) -> None:
    mq.create_topic("lists", partitions=3)
    receipt = mq.publish_many("lists", [b"1", b"2", b"3", b"4"], uniques=["a", "b", "a", None], until="1h")
    assert [each.kept for each in receipt.receipts] == [False, False, True, False]
    assert receipt.receipts[2].ref == receipt.receipts[0].ref
    assert not receipt.kept
    receipt = mq.publish_many("lists", [b"1", b"2"], uniques=["b", "a"], delays=["1h", None])
    assert receipt.kept
    named = mq.publish_many("lists", [b"1"] * 2, uniques=["c", "d"], keys=["k", "k"], ids=["i", "j"])
    assert len({each.partition for each in named.receipts}) == 1


def test_an_edit_keeps_the_name(mq: Client) -> None:
    first = mq.publish("edits", b"x", unique="a", delay="1h")
    edited = mq.record(first.ref).edit(b"y")
    again = mq.publish("edits", b"z", unique="a")
    assert (again.kept, again.ref) == (True, edited.ref)
    assert "has the unique name a until it is done" in mq.record(edited.ref).why().lines


def test_a_spool_keeps_the_name(shared_node: RunningNode, tmp_path) -> None:
    with connect(shared_node.endpoint, spool=tmp_path / "spool") as mq:
        assert not mq.publish("spooled", b"x", unique="a").kept
        assert mq.publish("spooled", b"y", unique="a").kept


@pytest.mark.parametrize(
    "options",
    [
        {"until": "10m"},
        {"conflict": "keep"},
        {"unique": ""},
        {"unique": "x" * 1_025},
        {"unique": "a", "conflict": "ignore"},
        {"unique": "a", "until": "never"},
        {"unique": "a", "until": 0},
        {"unique": "a", "conflict": "error", "level": "none"},
    ],
)
def test_options_that_make_no_sense_are_refused(mq: Client, options: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        mq.publish("wrong", b"x", **options)


def test_names_of_a_list_that_do_not_fit_are_refused(mq: Client) -> None:
    with pytest.raises(BadRequest, match="one name for each value"):
        mq.publish_many("wrong", [b"x", b"y"], uniques=["a"])


def test_with_asyncio(shared_node: RunningNode) -> None:
    async def main() -> None:
        async with aio_connect(shared_node.endpoint) as mq:
            first = await mq.publish("anew", b"x", unique="a", until="1h")
            assert (await mq.publish("anew", b"x", unique="a")).ref == first.ref
            with pytest.raises(NotUnique):
                await mq.publish("anew", b"x", unique="a", conflict="error")

    asyncio.run(main())
