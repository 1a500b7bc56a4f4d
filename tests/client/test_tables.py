"""Ranges of topics as batches and as pyarrow tables."""

import asyncio
import sys
from array import array

import pytest

from gossipq.errors import BadBatch, BadRequest, GossipqError, OffsetOutOfRange, UnknownTopic
from gossipq.types import DELAY, HEADERS, IDS, KEYS
from gossipq.wire import batch as batches
from gossipq.wire.batch import Batch
from gossipq_client import columns
from gossipq_client.aio import connect as aio_connect
from gossipq_client.session.stretch import Stretch


@pytest.fixture
def mq(broker):
    with broker.connect() as mq:
        yield mq
        for info in mq.topics():
            mq.topic(info.name).delete()


def published(mq, count=100, **options):
    for first in range(0, count, 10):
        mq.publish_many("t", [b"%d" % number for number in range(first, first + 10)], **options, timeout=30)


def offsets(stretches):
    return [
        (stretch.partition, offset) for stretch in stretches for offset in range(stretch.first, stretch.end)
    ]


# --- batches: without pyarrow -------------------------------------------------------------------------------


def test_a_range_is_read_batch_by_batch(mq):
    mq.create_topic("t", partitions=2)
    published(mq, partition=0)
    published(mq, 30, partition=1)
    assert sorted(offsets(mq.read("t").batches())) == [(0, at) for at in range(100)] + [
        (1, at) for at in range(30)
    ]
    assert offsets(mq.read("t").batches(0)) == [(0, at) for at in range(100)]
    stretches = list(mq.read("t", start=17, end=42).batches(0))
    assert offsets(stretches) == [(0, at) for at in range(17, 42)]
    for stretch in stretches:
        values = stretch.batch.values()[stretch.first - stretch.base : stretch.end - stretch.base]
        assert values == [b"%d" % at for at in range(stretch.first, stretch.end)]


def test_nothing_to_read_is_no_batch(mq):
    mq.create_topic("t")
    assert list(mq.read("t").batches()) == []
    published(mq, 10)
    assert list(mq.read("t", start=5, end=5).batches()) == []
    assert list(mq.read("t", start="-1s", end=1_000).batches()) != []


def test_records_that_were_taken_away_are_passed_over(mq):
    published(mq, 10)
    mq.record("t", 0, 4).cancel()
    mq.record("t", 0, 9).cancel()
    assert offsets(mq.read("t").batches()) == [(0, at) for at in (0, 1, 2, 3, 5, 6, 7, 8)]


def test_what_cannot_be_read(mq):
    with pytest.raises(UnknownTopic):
        list(mq.read("nothing").batches())
    assert mq.topics("nothing") == [], "reading makes no topic"
    mq.create_topic("t", bytes_max=1_000, overflow="drop_oldest")
    published(mq, 500)
    (row,) = mq.admin.stats(["t"]).partitions
    assert row.first > 0
    with pytest.raises(OffsetOutOfRange) as caught:
        list(mq.read("t", start=0).batches())
    assert caught.value.detail == row.first
    for bad in ({"start": "new"}, {"end": "first"}, {"start": -1}, {"route": "eu"}, {"start": {"t": {0: 1}}}):
        with pytest.raises(BadRequest):
            list(mq.read("t", **bad).batches())
    with pytest.raises(BadRequest):
        list(mq.read("t").batches(1))
    with pytest.raises(BadRequest, match="never ends"):
        mq.read("t", end=5, follow=True)


def test_a_read_is_a_loop_too(mq):
    published(mq, 10)
    records = mq.read("t", end=5)
    assert [record.offset for record in records] == [0, 1, 2, 3, 4]
    assert not hasattr(next(iter(records)), "ack"), "a record cannot be acked"
    with mq.read("t", start=10, follow=True) as following:
        published(mq, 1)
        assert next(following).offset == 10
        following.stop()
        assert list(following) == []
        with pytest.raises(BadRequest, match="never ends"):
            list(following.batches())
    with pytest.raises(BadRequest, match="no group"):
        mq.consume("t", group="")


def test_a_loop_that_is_left_leaves_nothing_behind(mq):
    published(mq)
    for _ in mq.read("t").batches():
        break
    published(mq, 10)
    assert len(mq.fetch("t", "g", n=500)) > 0


def test_without_pyarrow_a_table_says_what_to_install(mq, monkeypatch):
    published(mq, 10)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(GossipqError, match="needs pyarrow") as caught:
        mq.read("t").to_arrow()
    assert "pip install" in caught.value.hint
    assert len(offsets(mq.read("t").batches())) == 10, "batches do without"


# --- tables -------------------------------------------------------------------------------------------------


def test_a_table_has_the_records_as_columns(mq):
    pytest.importorskip("pyarrow")
    mq.create_topic("t", partitions=2)
    published(mq, partition=0)
    mq.publish("t", b"full", key="ada", headers={"k": b"v"}, route="eu", id="i", partition=1, timeout=30)
    table = mq.read("t").to_arrow()
    table.validate(full=True)
    assert table.schema.equals(columns.schema("messages"))
    assert table.num_rows == 101
    assert mq.read("t", start=20, end=23).to_arrow(0)["value"].to_pylist() == [b"20", b"21", b"22"]
    (row,) = mq.read("t").to_arrow(1).to_pylist()
    assert (row["key"], row["headers"], row["route"], row["id"]) == (
        b"ada",
        [{"key": "k", "value": b"v"}],
        "eu",
        b"i",
    )


def test_an_empty_table_has_its_columns(mq):
    pytest.importorskip("pyarrow")
    mq.create_topic("t")
    table = mq.read("t").to_arrow()
    assert (table.num_rows, table.schema.names[:4]) == (0, ["topic", "topic_id", "partition", "offset"])


def test_the_asyncio_twin(mq, broker):
    pytest.importorskip("pyarrow")
    published(mq)

    async def both():
        async with aio_connect(broker.endpoint) as twin:
            found = [stretch async for stretch in twin.read("t", start=10, end=30).batches()]
            return offsets(found), (await twin.read("t", end=5).to_arrow())["value"].to_pylist()

    assert asyncio.run(both()) == ([(0, at) for at in range(10, 30)], [b"%d" % at for at in range(5)])


# --- columns of batches that were sealed by hand ------------------------------------------------------------

VALUES = [b"", b"one", b"\x00\xff", b"four" * 1_000]


def stretch(batch, first=0, count=None, base=100):
    opened = Batch(batch)
    return Stretch(
        "007",
        40,
        3,
        base + first,
        base + first + (len(opened) - first if count is None else count),
        base,
        opened,
    )


def rows(*stretches):
    """The same, whether columns are taken as they lie there or record by record."""
    pytest.importorskip("pyarrow")
    made = columns.record_batch(stretches)
    made.validate(full=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "SHORT_BATCH", 0)
        assert columns.record_batch(stretches).equals(made)
    return made.to_pylist()


def test_a_cut_batch_keeps_the_numbers_of_its_source():
    whole = batches.seal(VALUES, keys=[b"a", b"", b"b", b"c"])
    cut = Batch(whole).cut(1, 3)
    assert [(row["value"], row["key"]) for row in rows(stretch(cut))] == [
        (VALUES[1], None),
        (VALUES[2], b"b"),
        (VALUES[3], b"c"),
    ]
    assert [row["value"] for row in rows(stretch(cut, 1, 1))] == [VALUES[2]]
    assert [row["offset"] for row in rows(stretch(whole, 1, 2), stretch(cut, 2, base=7))] == [101, 102, 9]


def test_batches_with_and_without_columns_share_a_table():
    headers = [b"", b"\x81\xa1k\xc4\x01\xff", b"\x81\xa1k\xa1v"]
    full = batches.seal(
        VALUES[:3],
        keys=[b"a", b"b", b""],
        headers=headers,
        ids=[b"", b"i", b"j"],
        route=b"eu.fr",
        publish_ms=1_000,
    )
    delayed = batches.seal(VALUES[:2], publish_ms=2_000, fixed={DELAY: array("q", [0, 500])})
    found = rows(stretch(batches.seal([b"x"], publish_ms=3_000)), stretch(full), stretch(delayed))
    assert [row["key"] for row in found] == [None, b"a", b"b", None, None, None]
    assert [row["id"] for row in found] == [None, None, b"i", b"j", None, None]
    assert [row["route"] for row in found] == [None, *["eu.fr"] * 3, None, None]
    assert [row["headers"] and row["headers"][0]["value"] for row in found] == [
        None,
        None,
        b"\xff",
        b"v",
        None,
        None,
    ]
    assert [row["publish_time"].timestamp() for row in found] == [3, 1, 1, 1, 2, 2]
    assert [row["deliver_at"] and row["deliver_at"].timestamp() for row in found] == [None] * 4 + [2, 2.5]
    assert {KEYS, HEADERS, IDS} <= {bit for bit in (KEYS, HEADERS, IDS) if Batch(full).parts(bit)}


@pytest.mark.parametrize("publish_ms", [-(2**63), 2**63 - 1])
def test_a_producer_with_an_impossible_clock_breaks_nothing(publish_ms):
    (row,) = rows(stretch(batches.seal([b"x"], publish_ms=publish_ms)))
    assert row["publish_time"].year in (1, 9999)


def test_headers_that_only_their_writer_understands_are_kept_as_bytes():
    """One such record was the end of every export and table of its topic."""
    raw = b"\x81\xa1a\x01"
    found = rows(stretch(batches.seal(VALUES[:2], headers=[raw, b"\x81\xa1k\xa1v"])))
    assert [row["headers"] for row in found] == [
        [{"key": "", "value": raw}],
        [{"key": "k", "value": b"v"}],
    ]


def test_what_is_due_after_the_last_year_is_due_at_its_end():
    late = {DELAY: array("q", [86_400_000])}
    (row,) = rows(stretch(batches.seal([b"x"], publish_ms=2**63 - 1, fixed=late)))
    assert row["deliver_at"].year == 9999


def test_a_route_that_is_no_text_is_shown_as_far_as_it_is():
    assert rows(stretch(batches.seal([b"x"], route=b"eu.\xff")))[0]["route"] == "eu.\ufffd"


def test_batches_of_one_record_do_not_wait_for_ever_for_each_other(monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(columns, "GROUP_BATCHES", 3)
    gathering, one = columns.Gathering(), batches.seal([b"x"])
    made = [gathering.add(stretch(one, base=at)) for at in range(7)]
    assert [sum(rows.num_rows for rows in each) for each in made] == [0, 0, 3, 0, 0, 3, 0]
    assert [rows.num_rows for rows in gathering.rest()] == [1]


@pytest.mark.parametrize("short", [0, columns.SHORT_BATCH])
def test_offsets_that_fall_are_an_error_and_no_nonsense(monkeypatch, short):
    monkeypatch.setattr(columns, "SHORT_BATCH", short)
    pyarrow = pytest.importorskip("pyarrow")
    raw = bytearray(batches.seal([b"aa", b"bb", b"cc"]))
    at = raw.index(array("i", [0, 2, 4, 6]).tobytes())
    raw[at : at + 16] = array("i", [0, 5, 4, 6]).tobytes()
    batches.restamp(raw, b"p" * 16, 1)
    with pytest.raises((pyarrow.ArrowInvalid, BadBatch)):
        columns.record_batch([stretch(bytes(raw))])
