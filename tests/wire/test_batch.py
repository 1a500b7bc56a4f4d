"""The sealed batch: seal, check, open, cut. Every flipped bit is noticed, and every
false number ends in BadBatch.
"""

import random
from array import array
from struct import pack_into
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipq import limits
from gossipq.errors import BadBatch, TooLarge
from gossipq.wire import batch as wire
from gossipq.wire.batch import (
    DELAY,
    FIXED,
    FLOW_HASH,
    FLOWS,
    HEADER,
    HEADERS,
    ID_HASH,
    IDS,
    KEY_HASH,
    KEYS,
    PRIORITY,
    TTL,
    UNIQUE_HASH,
    UNIQUES,
    UNTIL,
    Batch,
    check,
    peek,
    restamp,
    seal,
    split,
    verify,
)
from gossipq.wire.opener import Opener

RANGE = {
    "I": (0, 2**32 - 1),
    "q": (0, limits.DELAY_MS_MAX),
    "Q": (0, 2**64 - 1),
    "B": (0, limits.PRIORITY_MAX),
}
RECORD = st.one_of(st.just(b""), st.binary(max_size=24))


class Sample(NamedTuple):
    """Arguments of `seal`, and the batch it makes of them."""

    values: list[bytes]
    options: dict[str, Any]
    raw: bytes


def numbers(bit: int, count: int) -> st.SearchStrategy["array[int]"]:
    """Draws values that a fixed column may hold."""
    code, _ = FIXED[bit]
    drawn = st.lists(st.integers(*RANGE[code]), min_size=count, max_size=count)
    return (drawn.map(sorted) if bit == DELAY else drawn).map(lambda items: array(code, items))


@st.composite
def samples(draw: st.DrawFn, count_max: int = 12) -> Sample:
    count = draw(st.integers(1, count_max))
    lists = st.lists(RECORD, min_size=count, max_size=count)
    values = draw(lists)
    options: dict[str, Any] = {
        "producer": draw(st.binary(min_size=16, max_size=16).filter(any)),
        "sequence": draw(st.integers(0, 2**64 - 1)),
        "publish_ms": draw(st.integers(-(2**63), 2**63 - 1)),
        "route": draw(st.binary(max_size=20)),
        "keys": draw(st.none() | lists),
        "headers": draw(st.none() | lists),
        "ids": draw(st.none() | lists),
        "flows": draw(st.none() | lists),
        "uniques": draw(st.none() | lists),
        "fixed": {bit: draw(numbers(bit, count)) for bit in draw(st.sets(st.sampled_from(sorted(FIXED))))},
    }
    for name, bit in (
        ("keys", KEY_HASH),
        ("ids", ID_HASH),
        ("flows", FLOW_HASH),
        ("uniques", UNIQUE_HASH),
    ):
        if options[name] is not None and bit not in options["fixed"]:
            options["fixed"][bit] = draw(numbers(bit, count))
    return Sample(values, options, bytes(seal(values, **options)))


def plain(values: list[bytes], **options: Any) -> bytes:
    return bytes(seal(values, **options))


def resealed(raw: bytes | bytearray) -> bytes:
    """The same bytes with a CRC that fits, as a broken or hostile producer could send."""
    copy = bytearray(raw)
    pack_into("<I", copy, 4, crc32(memoryview(copy)[8:]))
    return bytes(copy)


def changed(raw: bytes, at: int, layout: str, value: int) -> bytes:
    copy = bytearray(raw)
    pack_into("<" + layout, copy, at, value)
    return resealed(copy)


def open_all(raw: bytes) -> Batch:
    """Opens every column, as a consumer that uses all of them does."""
    batch = Batch(raw)
    for named in (0, KEYS, HEADERS, IDS, FLOWS, UNIQUES):
        batch.column(named)
    for bit in FIXED:
        batch.fixed(bit)
    return batch


def same(batch: Batch, sample: Sample, first: int = 0, count: int | None = None) -> None:
    """Asserts that `batch` holds records first .. first + count - 1 of the sample."""
    end = len(sample.values) if count is None else first + count
    options = sample.options
    assert len(batch) == batch.info.count == end - first
    assert (batch.info.producer, batch.info.sequence, batch.info.publish_ms) == (
        options["producer"],
        options["sequence"],
        options["publish_ms"],
    )
    assert batch.route == options["route"]
    assert batch.values() == sample.values[first:end]
    for bit, name in ((KEYS, "keys"), (HEADERS, "headers"), (IDS, "ids"), (FLOWS, "flows")):
        assert batch.column(bit) == (None if options[name] is None else options[name][first:end])
    for bit in FIXED:
        column = options["fixed"].get(bit)
        assert batch.fixed(bit) == (None if column is None else column[first:end])


# --- what is sealed comes back ------------------------------------------------------------------------------


@settings(max_examples=60)
@given(samples())
def test_sealed_batch_opens_to_what_went_in(sample: Sample) -> None:
    info = check(sample.raw)
    assert info == verify(sample.raw) == peek(sample.raw)
    assert (info.count, info.size) == (len(sample.values), len(sample.raw))
    assert info.size % 8 == 0
    same(Batch(sample.raw), sample)
    same(Batch(memoryview(sample.raw), info), sample)


@settings(max_examples=60)
@given(samples(), st.data())
def test_cut_and_cut_of_cut(sample: Sample, data: st.DataObject) -> None:
    batch, first, count = Batch(sample.raw), 0, len(sample.values)
    for _ in range(3):
        skip = data.draw(st.integers(0, count - 1))
        first, count = first + skip, data.draw(st.integers(1, count - skip))
        batch = Batch(bytes(batch.cut(skip, count)))
        same(batch, sample, first, count)
        assert len(batch._raw) % 8 == 0


@given(samples(), st.data())
def test_what_is_picked_is_as_cut_record_by_record(sample: Sample, data: st.DataObject) -> None:
    batch, count = Batch(sample.raw), len(sample.values)
    some = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    picked = Batch(bytes(batch.pick([(at, at + 1) for at in some])))
    cuts = [Batch(bytes(batch.cut(at, 1))) for at in some]
    assert picked.values() == [value for each in cuts for value in each.values()]
    assert picked.route == batch.route
    for bit in wire.VARIABLE:
        column = batch.column(bit)
        assert picked.column(bit) == (column and [column[at] for at in some])
    for bit in wire.FIXED:
        fixed = batch.fixed(bit)
        assert list(picked.fixed(bit) or ()) == [fixed[at] for at in some] if fixed else True
    assert bytes(batch.pick([(0, count)])) == sample.raw


@given(samples())
def test_cut_of_all_is_the_batch_itself(sample: Sample) -> None:
    assert bytes(Batch(sample.raw).cut(0, len(sample.values))) == sample.raw


def test_cut_keeps_the_numbers_of_a_column() -> None:
    half = Batch(bytes(Batch(plain([b"aa", b"bbb", b"", b"c"])).cut(1, 2)))
    column = half.variable(0)
    assert column is not None
    assert list(column.offsets) == [2, 5, 5]
    assert bytes(column.data) == b"bbb"


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 0), (0, 4), (3, 1), (2, 2), (1, -1)])
def test_cut_outside_the_batch_is_a_callers_error(first: int, count: int) -> None:
    with pytest.raises(AssertionError):
        Batch(plain([b"a", b"b", b"c"])).cut(first, count)


@pytest.mark.parametrize("count", [1, 2, limits.BATCH_RECORDS_MAX, limits.BATCH_RECORDS_HARD_MAX])
def test_counts_at_the_bounds(count: int) -> None:
    values = [b"%d" % number for number in range(count)]
    batch = Batch(plain(values, keys=values))
    assert batch.values() == batch.column(KEYS) == values
    assert Batch(bytes(batch.cut(count - 1, 1))).values() == values[-1:]


def test_one_record_too_many_or_none() -> None:
    with pytest.raises(BadBatch, match="65537 records"):
        check(plain([b""] * (limits.BATCH_RECORDS_HARD_MAX + 1)))
    with pytest.raises(BadBatch, match="0 records"):
        check(plain([]))


@pytest.mark.parametrize("count", [1, 3, 8])
def test_records_of_no_bytes(count: int) -> None:
    batch = open_all(plain([b""] * count, keys=[b""] * count, headers=[b""] * count, ids=[b""] * count))
    assert batch.values() == batch.column(KEYS) == batch.column(HEADERS) == batch.column(IDS) == [b""] * count


def test_record_of_the_largest_size_fits_the_frame() -> None:
    raw = plain(
        [bytes(limits.VALUE_BYTES_MAX)],
        keys=[bytes(limits.KEY_BYTES_MAX)],
        headers=[bytes(limits.HEADERS_BYTES_MAX)],
        ids=[bytes(limits.ID_BYTES_MAX)],
        flows=[bytes(limits.FLOW_BYTES_MAX)],
        route=bytes(limits.ROUTE_BYTES_MAX),
        fixed={bit: array(code, [0]) for bit, (code, _) in FIXED.items()},
    )
    assert len(raw) <= limits.BATCH_BYTES_HARD_MAX
    assert len(open_all(raw).values()[0]) == limits.VALUE_BYTES_MAX


@given(samples(), st.binary(min_size=16, max_size=16), st.integers(0, 2**64 - 1))
def test_restamp_changes_producer_and_sequence_only(sample: Sample, producer: bytes, sequence: int) -> None:
    batch = bytearray(sample.raw)
    restamp(batch, producer, sequence)
    assert batch == seal(sample.values, **sample.options | {"producer": producer, "sequence": sequence})


@given(st.lists(samples(count_max=3), max_size=5))
def test_split_takes_joined_batches_apart(parts: list[Sample]) -> None:
    joined, sizes = b"".join(part.raw for part in parts), [len(part.raw) for part in parts]
    pieces = split(joined, sizes)
    assert [bytes(piece) for piece in pieces] == [part.raw for part in parts]
    for piece, part in zip(pieces, parts, strict=True):
        same(Batch(piece), part)


@pytest.mark.parametrize("sizes", [[], [7], [9], [8, 1], [10, -2], [-8, 16], [2**63, 8 - 2**63]])
def test_split_refuses_sizes_that_do_not_add_up(sizes: list[int]) -> None:
    with pytest.raises(BadBatch):
        split(b"8 bytes.", sizes)


# --- what is damaged is refused -----------------------------------------------------------------------------


def test_every_single_flipped_bit_is_seen() -> None:
    raw = plain(
        [b"a", b"", b"ccc"],
        keys=[b"k", b"", b"kk"],
        route=b"eu",
        sequence=1,
        fixed={DELAY: array("q", [1, 2, 3])},
    )
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadBatch):
            check(bytes(damaged))


@settings(max_examples=40)
@given(samples(), st.data())
def test_any_flipped_bit_is_seen(sample: Sample, data: st.DataObject) -> None:
    damaged = bytearray(sample.raw)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BadBatch):
        check(damaged)


@settings(max_examples=25)
@given(samples(), st.binary(min_size=1, max_size=16))
def test_cut_off_or_grown_batches_are_refused(sample: Sample, more: bytes) -> None:
    with pytest.raises(BadBatch):
        check(sample.raw + more)
    for size in range(len(sample.raw)):
        with pytest.raises(BadBatch):
            check(sample.raw[:size])


@settings(max_examples=80)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(BadBatch):
        Batch(raw)


# --- lies under a CRC that fits -----------------------------------------------------------------------------

SMALL = plain([b"one", b"two", b"three"])  # offsets at 56: 0 3 6 11, data at 72


@pytest.mark.parametrize("version", [0, 2, 255])
def test_other_format_version(version: int) -> None:
    with pytest.raises(BadBatch, match="version 1"):
        check(changed(SMALL, 3, "B", version))


@pytest.mark.parametrize("size", [0, 55, len(SMALL) - 8, len(SMALL) + 8, 2**32 - 1])
def test_lie_about_the_size(size: int) -> None:
    with pytest.raises(BadBatch, match=f"says {size} bytes"):
        check(changed(SMALL, 8, "I", size))


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 6, 7, 100, 65_536, 65_537, 2**31, 2**32 - 1])
def test_lie_about_the_count(count: int) -> None:
    with pytest.raises(BadBatch):
        open_all(changed(SMALL, 12, "I", count))


@pytest.mark.parametrize("bit", [1 << 12, 1 << 15, 1 << 21, 1 << 31])
def test_column_of_a_later_version_is_named(bit: int) -> None:
    assert check(changed(SMALL, 48, "I", bit)).columns == bit
    with pytest.raises(BadBatch, match=f"{bit:#x}"):
        Batch(changed(SMALL, 48, "I", bit | KEYS))


@pytest.mark.parametrize("columns", [*FIXED, KEYS, HEADERS, IDS, FLOWS, UNIQUES, KEYS | HEADERS, wire.KNOWN])
def test_columns_that_are_not_there(columns: int) -> None:
    with pytest.raises(BadBatch):
        open_all(changed(SMALL, 48, "I", columns))


@pytest.mark.parametrize("size", [8, 9, 40, 56, 255])
def test_route_that_is_not_there(size: int) -> None:
    with pytest.raises(BadBatch):
        open_all(changed(SMALL, 52, "H", size))


def test_route_has_a_bound() -> None:
    assert Batch(plain([b""], route=b"r" * limits.ROUTE_BYTES_MAX)).route == b"r" * limits.ROUTE_BYTES_MAX
    with pytest.raises(BadBatch, match="route of 256 bytes"):
        check(plain([b""], route=b"r" * (limits.ROUTE_BYTES_MAX + 1)))
    with pytest.raises(BadBatch, match="route of 65535 bytes"):
        check(changed(SMALL, 52, "H", 65_535))


@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param((0, 6, 3, 11), id="fall inside"),
        pytest.param((0, 3, 12, 11), id="leave the data inside"),
        pytest.param((0, 3, 2**31 - 1, 11), id="leave the data by far"),
        pytest.param((0, -1, 6, 11), id="negative inside"),
        pytest.param((0, -(2**31), 6, 11), id="lowest number inside"),
        pytest.param((-1, 3, 6, 10), id="negative first"),
        pytest.param((-11, -6, -3, 0), id="all negative, rising"),
        pytest.param((11, 6, 3, 0), id="all falling"),
        pytest.param((0, 3, 6, 2**31 - 1), id="last is huge"),
        pytest.param((0, 3, 6, 19), id="last is one word too far"),
        pytest.param((0, 3, 6, 0), id="last is first"),
        pytest.param((0, 3, 6, -5), id="last is negative"),
        pytest.param((5, 3, 6, 16), id="falls after a first that is not 0"),
        pytest.param((2**31 - 12, 0, 1, 2**31 - 1), id="falls after a huge first"),
    ],
)
@pytest.mark.parametrize("bit", [0, KEYS, HEADERS, IDS, FLOWS])
def test_offsets_that_do_not_rise(offsets: tuple[int, ...], bit: int) -> None:
    words = [b"one", b"two", b"three"]
    names = {KEYS: "keys", HEADERS: "headers", IDS: "ids", FLOWS: "flows"}
    raw = bytearray(plain(words, **({names[bit]: words} if bit else {})))
    pack_into("<4i", raw, HEADER.size, *offsets)
    with pytest.raises(BadBatch):
        open_all(resealed(raw))
    with pytest.raises(BadBatch):
        verify(resealed(raw))


def test_first_offset_may_be_anything_that_leaves_room() -> None:
    raw = bytearray(SMALL)
    first = 2**31 - 12
    pack_into("<4i", raw, HEADER.size, first, first + 3, first + 6, first + 11)
    batch = Batch(resealed(raw))
    assert batch.values() == [b"one", b"two", b"three"]
    assert Batch(bytes(batch.cut(1, 2))).values() == [b"two", b"three"]


def test_cut_at_offsets_that_are_not_in_order() -> None:
    raw = bytearray(SMALL)
    for wrong in (-1, 12, 2**31 - 1):
        pack_into("<i", raw, HEADER.size + 4, wrong)
        with pytest.raises(BadBatch):
            Batch(resealed(raw)).cut(1, 1)
        with pytest.raises(BadBatch):
            Batch(resealed(raw)).cut(0, 1)


def assert_verified_unless_numbers_lie(batch: Batch, raw: bytes) -> None:
    """A batch that opens passes `verify`, unless its delays fall, or its
    times or priorities exceed their bounds.
    """
    delays, lives, ends = (list(batch.fixed(bit) or ()) for bit in (DELAY, TTL, UNTIL))
    priorities = batch.fixed(PRIORITY) or [0]
    times_fit = all(0 <= each <= limits.DELAY_MS_MAX for each in delays + lives + ends)
    if delays == sorted(delays) and times_fit and max(priorities) <= limits.PRIORITY_MAX:
        assert verify(raw) == batch.info
    else:
        with pytest.raises(BadBatch):
            verify(raw)


@settings(max_examples=150)
@given(samples(count_max=5), st.data())
def test_no_lie_gets_further_than_bad_batch(sample: Sample, data: st.DataObject) -> None:
    """Random numbers at random words, sealed again: each batch opens with `count` records in each
    column, or raises BadBatch.
    """
    raw = bytearray(sample.raw)
    for _ in range(data.draw(st.integers(1, 3))):
        at = 4 * data.draw(st.integers(2, len(raw) // 4 - 1))
        number = data.draw(st.integers(-3, 40) | st.integers(-(2**31), 2**31 - 1))
        pack_into("<i", raw, at, number)
    lie = resealed(raw)
    try:
        batch = open_all(lie)
    except BadBatch:
        batch = None
        with pytest.raises(BadBatch):
            verify(lie)
    if batch is not None:
        assert_verified_unless_numbers_lie(batch, lie)
        assert len(batch.values()) == batch.info.count
        for bit in (KEYS, HEADERS, IDS, FLOWS, UNIQUES):
            assert len(batch.column(bit) or batch.values()) == batch.info.count
        for bit in FIXED:
            assert len(batch.fixed(bit) or batch) == batch.info.count
    try:
        unopened = Batch(lie)
        first = data.draw(st.integers(0, len(unopened) - 1))
        part = open_all(bytes(unopened.cut(first, data.draw(st.integers(1, len(unopened) - first)))))
    except BadBatch:
        assert batch is None, "what opens can be cut"
    else:
        if batch is not None:
            assert part.values() == batch.values()[first : first + len(part)]


@pytest.mark.parametrize("delays", [[0, 0, 0], [0, 1, 1], [5, 5, 5], [0, 0, limits.DELAY_MS_MAX]])
def test_delays_that_never_fall(delays: list[int]) -> None:
    batch = Batch(plain([b"a", b"b", b"c"], fixed={DELAY: array("q", delays)}))
    assert verify(bytes(batch.cut(1, 2))).count == 2


@pytest.mark.parametrize("delays", [[1, 0, 2], [0, 2, 1], [2, 1, 0], [limits.DELAY_MS_MAX, 0, 0]])
def test_delays_that_fall(delays: list[int]) -> None:
    raw = plain([b"a", b"b", b"c"], fixed={DELAY: array("q", delays)})
    assert check(raw).count == 3
    with pytest.raises(BadBatch, match="sorted by their due time"):
        verify(raw)


@pytest.mark.parametrize(("bit", "says"), [(DELAY, "delay of"), (TTL, "time to live of")])
@pytest.mark.parametrize("wrong", [-1, -(2**63), limits.DELAY_MS_MAX + 1, 2**63 - 1])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_times_out_of_their_bounds(bit: int, says: str, wrong: int, at: int) -> None:
    times = [7, 7, 7]
    times[at] = wrong
    with pytest.raises(BadBatch, match=f"{says} {wrong} ms"):
        verify(plain([b"a", b"b", b"c"], fixed={bit: array("q", times)}))


def test_lives_may_fall() -> None:
    assert verify(plain([b"a", b"b"], fixed={TTL: array("q", [limits.DELAY_MS_MAX, 0])})).count == 2


def test_id_has_a_bound() -> None:
    hashes = {ID_HASH: array("Q", [7])}
    assert verify(plain([b""], ids=[bytes(limits.ID_BYTES_MAX)], fixed=hashes)).count == 1
    with pytest.raises(TooLarge, match=f"id of {limits.ID_BYTES_MAX + 1} bytes"):
        verify(plain([b""], ids=[bytes(limits.ID_BYTES_MAX + 1)], fixed=hashes))


@pytest.mark.parametrize("among", [1, 8, 9, 40])
def test_each_id_has_a_bound(among: int) -> None:
    """The bound holds at every position, however short the other ids are."""
    hashes = {ID_HASH: array("Q", range(1, among + 1))}
    for at in range(among):
        for size in (limits.ID_BYTES_MAX, limits.ID_BYTES_MAX + 1):
            ids = [b"x"] * among
            ids[at] = bytes(size)
            batch = plain([b""] * among, ids=ids, fixed=hashes)
            if size == limits.ID_BYTES_MAX:
                assert verify(batch).count == among
                continue
            with pytest.raises(TooLarge, match=f"id of {size} bytes"):
                verify(batch)


@pytest.mark.parametrize("what", ["keys", "ids"])
def test_names_come_with_their_hashes(what: str) -> None:
    with pytest.raises(BadBatch, match=f"{what} without"):
        verify(plain([b"a"], **{what: [b"k"]}))


def test_a_batch_of_no_producer_has_no_sequence() -> None:
    raw = plain([b"a"], sequence=7)
    assert (check(raw).sequence, peek(raw).sequence, verify(raw).sequence) == (0, 0, 0)


def test_one_byte_changed_anywhere() -> None:
    """After a new CRC the batch opens or raises BadBatch."""
    draw, refused, rounds = random.Random(7), 0, 5_000
    sample = plain(
        [b"a", b"", b"ccc"], keys=[b"k", b"", b"kk"], route=b"eu", fixed={wire.LEASE: array("I", [1, 2, 3])}
    )
    for _ in range(rounds):
        raw = bytearray(sample)
        raw[draw.randrange(8, len(raw))] = draw.randrange(256)
        try:
            open_all(resealed(raw))
        except BadBatch:
            refused += 1
    assert 0 < refused < rounds


def test_a_record_with_another_id_keeps_its_other_columns() -> None:
    columns = {KEY_HASH: array("I", [crc32(b"ada")]), TTL: array("q", [500])}
    headers = [msgspec.msgpack.encode({"trace": "1"})]
    sealed = seal([b"v"], route=b"eu", keys=[b"ada"], headers=headers, fixed=columns)
    raw = bytes(Batch(bytes(sealed)).named(b"tick"))
    named = Batch(raw)
    assert (named.values(), named.column(KEYS), named.column(IDS)) == ([b"v"], [b"ada"], [b"tick"])
    assert (named.fixed(KEY_HASH), named.fixed(TTL)) == (columns[KEY_HASH], columns[TTL])
    joined = Batch(Opener().joined(bytes(sealed), b"join", "parts", "[]"))
    assert (joined.column(IDS), joined.fixed(KEY_HASH)) == ([b"join"], columns[KEY_HASH])
    assert msgspec.msgpack.decode((joined.column(HEADERS) or [b""])[0]) == {"trace": "1", "parts": "[]"}
    assert Batch(Opener().joined(raw, b"join", "parts", "[]")).column(IDS) == [b"tick"]
