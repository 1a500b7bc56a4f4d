"""Options of a record or a list, errors before a message is sent, and the columns of the batch."""

from datetime import UTC, datetime, timedelta, timezone
from hashlib import blake2b
from typing import Any
from zlib import crc32

import pytest

from gossipq import limits
from gossipq.errors import BadRequest, TooLarge
from gossipq.types import (
    ATTEMPTS,
    BACKOFF,
    DELAY,
    FLOW_HASH,
    ID_HASH,
    LEASE,
    PRIORITY,
    REPLACE,
    TTL,
    UNIQUE_HASH,
    UNTIL,
    Now,
)
from gossipq.wire import batch
from gossipq_client.values import terms
from gossipq_client.values.terms import (
    NOTHING,
    PLAIN,
    WHILE_CONFIRMED,
    Terms,
    Unique,
    list_options,
    publish_options,
)

NAN, INF = float("nan"), float("inf")
WALL_MS = 1_800_000_000_000


def now() -> Now:
    return Now(5_000, WALL_MS)


def of_one(**options: Any) -> Terms | None:
    return publish_options(now, **options).terms


def of_list(count: int, **options: Any) -> Terms | list[Terms] | None:
    return list_options(count, now, **options).terms


def test_a_plain_record_has_no_terms() -> None:
    assert publish_options(now) == PLAIN == (None, b"", b"", "", None, None, WHILE_CONFIRMED)
    assert of_one(key="k", headers={"a": "b"}, route="r", level="none", delay=0) is None
    assert of_one(at=WALL_MS / 1000 - 60) is None
    assert of_list(3, keys=[None, "a", "b"], delay=0) is None


def test_a_due_time_is_never_early() -> None:
    assert of_one(delay="5s") == Terms(due_ms=10_001)
    for at in (WALL_MS / 1000 + 5, datetime.fromtimestamp(WALL_MS / 1000 + 5, UTC)):
        assert of_one(at=at) == Terms(due_ms=10_001)
    paris = timezone(timedelta(hours=2))
    assert of_one(at=datetime.fromtimestamp(WALL_MS / 1000 + 1.0001, paris)) == Terms(due_ms=6_002)


@pytest.mark.parametrize(
    "given", [{"delay": "3650d"}, {"delay": 3650 * 86_400}, {"at": WALL_MS / 1000 + 3650 * 86_400}]
)
def test_the_longest_delay_is_one_that_nodes_take(given: dict[str, Any]) -> None:
    """It was rounded up to a millisecond beyond what they take."""
    assert of_one(**given) == Terms(due_ms=5_000 + limits.DELAY_MS_MAX)
    assert terms.delay_of(now, given.get("delay"), given.get("at")) == limits.DELAY_MS_MAX
    if "delay" in given:
        assert of_list(1, delays=[given["delay"]]) == [Terms(due_ms=5_000 + limits.DELAY_MS_MAX)]


def test_everything_at_once() -> None:
    asked = of_one(
        delay=1, ttl="1m", id="order-17", lease=timedelta(minutes=2), attempts_max=3, backoff="250ms"
    )
    assert asked == Terms(6_001, 60_000, 120_000, 3, 250, b"order-17")


BAD = [
    ({"delay": -1}, "delay=-1 is negative"),
    ({"delay": NAN}, "delay=nan is not a duration"),
    ({"delay": INF}, "delay=inf is too long"),
    ({"delay": -INF}, "negative"),
    ({"delay": 10**400}, "too long"),
    ({"delay": "9" * 400 + "d"}, "too long"),
    ({"delay": "4000d"}, "too long"),
    ({"delay": "soon"}, "not a duration"),
    ({"delay": b"5s"}, "not a duration"),
    ({"delay": True}, "not a duration"),
    ({"delay": timedelta(seconds=-1)}, "negative"),
    ({"delay": 1, "at": WALL_MS / 1000}, "two due times"),
    ({"at": datetime(2030, 1, 1)}, "time zone"),
    ({"at": NAN}, "not a time"),
    ({"at": INF}, "not a time"),
    ({"at": -1}, "not a time"),
    ({"at": float(WALL_MS)}, "not a time"),
    ({"at": "2030-01-01"}, "not a time"),
    ({"at": WALL_MS / 1000 + 11 * 365 * 86_400}, "too far ahead"),
    ({"ttl": 0}, "ttl=0 is too short"),
    ({"ttl": -5}, "negative"),
    ({"ttl": "4000d"}, "too long"),
    ({"lease": 0}, "too short"),
    ({"lease": "13h"}, "too long"),
    ({"attempts_max": 0}, "attempts_max=0"),
    ({"attempts_max": -1}, "attempts_max=-1"),
    ({"attempts_max": 2.5}, "attempts_max=2.5"),
    ({"attempts_max": True}, "attempts_max=True"),
    ({"attempts_max": limits.ATTEMPTS_HARD_MAX + 1}, "attempts_max="),
    ({"backoff": 0}, "backoff=0 is too short"),
    ({"backoff": "50d"}, "too long"),
    ({"backoff": ["1s", "5s"]}, "backoff="),
    ({"level": "maybe"}, "level="),
]


@pytest.mark.parametrize(("options", "says"), BAD)
def test_bad_options_name_the_cause_and_say_what_is_allowed(options: dict[str, Any], says: str) -> None:
    for ask in (of_one, lambda **given: of_list(2, **given)):
        with pytest.raises(BadRequest, match=says) as refused:
            ask(**options)
        assert refused.value.hint


def test_bad_ids() -> None:
    with pytest.raises(BadRequest, match="id= is empty"):
        of_one(id="")
    with pytest.raises(TooLarge, match="id of 1025 bytes"):
        of_one(id="x" * 1_025)
    with pytest.raises(BadRequest, match="id must be bytes"):
        of_one(id=17)
    assert of_one(id="x" * 1_024) == Terms(id=b"x" * 1_024)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="dealy"):
        of_one(dealy=5)
    with pytest.raises(TypeError, match="'id'"):
        of_list(2, id="one for all")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"delays": [1]}, "delays= needs one"),
        ({"delays": [1, -1]}, "delay=-1 is negative"),
        ({"delays": [1, NAN]}, "not a duration"),
        ({"delays": [1, 2], "delay": 3}, "delays= needs one"),
        ({"delays": [1, 2], "at": WALL_MS / 1000 + 9}, "delays= needs one"),
        ({"ids": ["a"]}, "ids= needs one"),
        ({"ids": "ab"}, "ids= needs one"),
        ({"ids": ["a", ""]}, "id= is empty"),
        ({"keys": ["a"]}, "keys= needs one"),
    ],
)
def test_bad_lists(options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        of_list(2, **options)


def test_lists() -> None:
    assert of_list(2, delay=1, ttl=2) == Terms(6_001, 2_000)
    assert of_list(2, delays=[None, "1s"], ttl=2) == [Terms(0, 2_000), Terms(6_001, 2_000)]
    assert of_list(3, ids=["a", None, b"b"], delay=1) == Terms(6_001)
    assert list_options(3, now, ids=["a", None, b"b"], delay=1).ids == [b"a", b"", b"b"]
    many = list_options(3, now, ids=["a", None, "c"], keys=[None, None, "k"])
    assert many.choosers == [b"a", None, b"k"]
    assert list_options(2, now, keys=["k", None], delay=1).choosers == [b"k", None]
    assert list_options(2, now, ttl=1).choosers is None


def test_the_key_chooses_before_the_id() -> None:
    assert publish_options(now, id="i", key="k").chooser == b"k"
    assert publish_options(now, id="i", key="").chooser == b""
    assert publish_options(now, id="i").chooser == b"i"
    assert publish_options(now, ttl=1).chooser is None


def test_copies_have_an_id() -> None:
    assert publish_options(now).with_id(b"made").terms == Terms(id=b"made")
    assert publish_options(now, id="mine", ttl=1).with_id(b"made").terms == Terms(ttl_ms=1_000, id=b"mine")
    assert list_options(2, now, ttl=1).with_ids([b"1", b"2"]).ids == [b"1", b"2"]
    named = list_options(2, now, ids=["a", None], ttl=1).with_ids([b"1", b"2"])
    assert (named.terms, named.made_ids) == (Terms(ttl_ms=1_000), [b"a", b"2"])
    assert [record.terms for record in named.each(2)] == [
        Terms(ttl_ms=1_000, id=b"a"),
        Terms(ttl_ms=1_000, id=b"2"),
    ]


def test_only_what_is_asked_for_has_a_column() -> None:
    assert terms.columns([NOTHING, NOTHING], False, 0) == ({}, (None, None))
    fixed, ids = terms.columns([NOTHING, Terms(ttl_ms=7)], False, 0)
    assert ({bit: list(column) for bit, column in fixed.items()}, ids) == ({TTL: [0, 7]}, (None, None))
    fixed, ids = terms.columns([Terms(1_500, 0, 1, 2, 3, b"a"), Terms(900)], True, 1_000)
    assert {bit: list(column) for bit, column in fixed.items()} == {
        DELAY: [500, 0],
        LEASE: [1, 0],
        ATTEMPTS: [2, 0],
        BACKOFF: [3, 0],
        ID_HASH: [int.from_bytes(blake2b(b"a", digest_size=8).digest(), "little"), 0],
    }
    assert ids == ([b"a", b""], None)


def test_flows_and_priorities() -> None:
    asked = publish_options(now, flow="ada", priority=9)
    assert asked.terms == Terms(flow=b"ada", priority=9)
    assert publish_options(now, priority=limits.PRIORITY).terms is None
    each = list_options(3, now, flows=["ada", None, "bob"], priority=7, ttl=1).each(3)
    assert [record.terms for record in each] == [
        Terms(ttl_ms=1_000, flow=flow, priority=7) for flow in (b"ada", b"", b"bob")
    ]
    fixed, _ = terms.columns([Terms(flow=b"ada"), Terms(priority=0)], False, 0)
    columns = {bit: list(column) for bit, column in fixed.items()}
    assert columns == {FLOW_HASH: [batch.id_hash(b"ada"), 0], PRIORITY: [5, 0]}
    assert terms.flow_column([Terms(flow=b"ada"), NOTHING]) == [b"ada", b""]
    assert terms.flow_column([Terms(priority=1)]) is None


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"flow": b"ada"}, BadRequest),
        ({"flow": "x" * (limits.FLOW_BYTES_MAX + 1)}, TooLarge),
        ({"priority": -1}, BadRequest),
        ({"priority": limits.PRIORITY_MAX + 1}, BadRequest),
        ({"priority": 1.0}, BadRequest),
    ],
)
def test_flows_and_priorities_that_cannot_be(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        publish_options(now, **wrong)
    with pytest.raises(error):
        list_options(1, now, **wrong)


def test_a_flow_chooses_the_partition_of_a_record_without_a_key() -> None:
    assert publish_options(now, flow="ada", id="i").chooser == b"ada"
    assert publish_options(now, flow="ada", key="k").chooser == b"k"
    mixed = list_options(3, now, keys=["k", None, None], ids=["1", "2", "3"], flows=["a", "b", None])
    assert mixed.choosers == [b"k", b"b", b"3"]
    assert list_options(2, now, flow="ada").choosers == [b"ada", b"ada"]
    assert list_options(2, now, priority=1).choosers is None


@pytest.mark.parametrize("wrong", [{"flows": ["a"]}, {"flows": "ab"}, {"flows": ["a", "b"], "flow": "a"}])
def test_flows_of_a_list_are_as_many_as_its_records(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="flows="):
        list_options(2, now, **wrong)


def test_own_options_ask_for_the_same_again() -> None:
    asked = Terms(ttl_ms=500, flow="ü".encode(), priority=0, id=b"i")
    fixed, ids = terms.columns([NOTHING, asked], False, 0)
    raw = batch.seal([b"", b""], ids=ids.ids, flows=terms.flow_column([NOTHING, asked]), fixed=fixed)
    own = terms.own_options(batch.Batch(raw), 1)
    assert own == {"ttl": 0.5, "flow": "ü", "priority": 0}
    assert terms.terms_of(own, b"i") == asked
    assert terms.own_options(batch.Batch(raw), 0) == {}


def test_ids_of_a_list_need_no_terms() -> None:
    hashes = [batch.id_hash(b"a"), 0]
    fixed, ids = terms.columns([], False, 0, [b"a", b""])
    assert ({bit: list(column) for bit, column in fixed.items()}, ids) == (
        {ID_HASH: hashes},
        ([b"a", b""], None),
    )
    fixed, ids = terms.columns([NOTHING, Terms(ttl_ms=7)], False, 0, [b"a", b""])
    assert {bit: list(column) for bit, column in fixed.items()} == {TTL: [0, 7], ID_HASH: hashes}
    assert ids == ([b"a", b""], None)
    assert terms.columns([], False, 0, [b"", b""]) == ({}, (None, None))


def test_the_empty_key_is_a_key() -> None:
    (column,) = terms.key_column([b"ada", b"", b"bob"]).values()
    assert list(column) == [crc32(b"ada"), 1, crc32(b"bob")]


def test_delays_of_requests() -> None:
    assert terms.delay_of(now, "1m", None) == 60_001
    assert terms.delay_of(now, 0, None) == 0
    assert terms.delay_of(now, None, WALL_MS / 1000 - 5) == 0
    for wrong in ({"delay": None, "at": None}, {"delay": 1, "at": 2.0}, {"delay": NAN, "at": None}):
        with pytest.raises(BadRequest):
            terms.delay_of(now, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ids",
    [["a", "ü"], [b"a", b"b"], ["a", b"b"], [bytearray(b"a"), memoryview(b"b")], [None, "b"], [None, None]],
)
def test_the_ids_of_a_list_are_those_of_its_records(ids: list[Any]) -> None:
    named = [b"" if each is None else terms.inputs.id_bytes(each) for each in ids]
    found = [(record.terms or NOTHING).id for record in list_options(2, now, ids=ids).each(2)]
    assert found == named
    assert list(batch.id_column(named)) == [batch.id_hash(each) for each in named]


@pytest.mark.parametrize(
    ("bad", "error"),
    [("", BadRequest), (b"", BadRequest), ("x" * (limits.ID_BYTES_MAX + 1), TooLarge), (7, BadRequest)],
)
@pytest.mark.parametrize("good", ["a", b"a"])
def test_one_id_that_cannot_be_refuses_the_list(bad: Any, error: type[Exception], good: Any) -> None:
    with pytest.raises(error):
        list_options(2, now, ids=[good, bad])


def test_unique_names_have_columns_of_their_own() -> None:
    names, hashes = [b"a", b""], [batch.id_hash(b"a"), 0]
    one = Terms(name=b"a", unique=Unique(600_000, "replace"))
    fixed, texts = terms.columns([one, NOTHING], False, 0)
    asked = {UNIQUE_HASH: hashes, UNTIL: [600_000, 0], REPLACE: [1, 0]}
    assert ({bit: list(column) for bit, column in fixed.items()}, texts) == (asked, (None, names))
    fixed, texts = terms.columns([], False, 0, None, names, Unique())
    assert ({bit: list(column) for bit, column in fixed.items()}, texts) == (
        {UNIQUE_HASH: hashes},
        (None, names),
    )
    assert terms.columns([], False, 0, None, [b"", b""], Unique(5)) == ({}, (None, None))


def test_the_name_chooses_the_partition_before_the_id() -> None:
    asked = publish_options(now, unique="a", id="i")
    assert asked.chooser == b"a"
    assert publish_options(now, unique="a", key="k").chooser == b"k"
    many = list_options(3, now, uniques=["a", None, None], ids=["i", "j", None])
    assert many.choosers == [b"a", b"j", None]
    assert [each.chooser for each in many.each(3)] == [b"a", b"j", None]
