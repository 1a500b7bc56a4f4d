"""Records that a worker seals and opens for clients that cannot."""

from typing import Any

import msgspec
import pytest

from gossipq import limits
from gossipq.errors import BadBatch, BadRequest, GossipqError, TooLarge
from gossipq.messages import PublishPlain
from gossipq.types import DELAY, HEADERS, ID_HASH, IDS, KEY_HASH, KEYS, TTL
from gossipq.values import Delivered, PlainDelivered
from gossipq.wire import batch as batches
from gossipq.wire import plain
from vectors import make as vectors

PARTITION = 7 << 16
ROWS = msgspec.msgpack.Decoder(list[PlainDelivered])


def sealed(records: object, **fields: Any) -> bytes:
    message = PublishPlain(PARTITION, **fields)
    return plain.seal(message, msgspec.msgpack.encode(records), bytes(16), 1_000)


def opened_rows(slices: list[Delivered], bodies: list[bytes]) -> list[PlainDelivered]:
    (frame,) = plain.unseal(slices, bodies)
    return ROWS.decode(frame)


def test_what_is_sealed_opens_to_the_same() -> None:
    headers = {"k": b"\xff", "t": "text"}
    body = sealed([["été".encode(), b"ada", headers, b"o-1"], [b"hi"], [b"", b"bob"]], route="eu.fr")
    info = batches.verify(body)
    assert (info.count, info.publish_ms, info.route) == (3, 1_000, b"eu.fr")
    assert info.columns == KEY_HASH | KEYS | HEADERS | ID_HASH | IDS
    rows = opened_rows([Delivered(PARTITION, 17, 3, 2, len(body), 0)], [body])
    assert rows == [
        PlainDelivered(PARTITION, 17, 2, "été".encode(), b"ada", headers, b"o-1", "eu.fr", 1_000),
        PlainDelivered(PARTITION, 18, 2, b"hi", b"", {}, b"", "eu.fr", 1_000),
        PlainDelivered(PARTITION, 19, 2, b"", b"bob", {}, b"", "eu.fr", 1_000),
    ]


def test_a_cut_opens_too() -> None:
    body = batches.Batch(sealed([[b"%d" % i, b"k%d" % i] for i in range(5)])).cut(2, 2)
    rows = opened_rows([Delivered(PARTITION, 2, 2, 1, len(body), 0)], [bytes(body)])
    assert [(row.offset, row.value, row.key) for row in rows] == [(2, b"2", b"k2"), (3, b"3", b"k3")]


def test_times_hold_for_all_records() -> None:
    opened = batches.Batch(sealed([[b"a"], [b"b"]], delay_ms=5, ttl_ms=6))
    delays, ttls = opened.fixed(DELAY), opened.fixed(TTL)
    assert delays is not None
    assert ttls is not None
    assert (delays.tolist(), ttls.tolist()) == ([5, 5], [6, 6])


def test_hashes_are_those_of_a_client_that_seals() -> None:
    assert (plain.key_hash(b""), plain.key_hash(b"123456789")) == (0, 0xCBF43926)
    ids = batches.Batch(sealed([[b"a"], [b"b", b"", {}, b"order-17"]])).fixed(ID_HASH)
    assert ids is not None
    assert ids.tolist() == [0, vectors.id_hash(b"order-17")]


@pytest.mark.parametrize(
    ("records", "fields", "error"),
    [
        ([], {}, BadBatch),
        ([[b"x"]] * (limits.BATCH_RECORDS_MAX + 1), {}, BadBatch),
        (["x"], {}, BadBatch),
        ([[1]], {}, BadBatch),
        ([[]], {}, BadBatch),
        ({"a": 1}, {}, BadBatch),
        (None, {}, BadBatch),
        ([["x"]], {}, BadBatch),
        ([[b"x", b"", {"k": 1}]], {}, BadBatch),
        ([[b"x"]], {"delay_ms": -1}, BadRequest),
        ([[b"x"]], {"ttl_ms": limits.DELAY_MS_MAX + 1}, BadRequest),
        ([[b"x"]], {"route": "r" * 256}, TooLarge),
    ],
)
def test_what_cannot_be_is_refused(
    records: object, fields: dict[str, Any], error: type[GossipqError]
) -> None:
    with pytest.raises(error):
        sealed(records, **fields)


def test_bytes_that_are_no_msgpack_are_refused() -> None:
    for frame in (b"", b"\xc1", b"\x91", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000):
        with pytest.raises(BadBatch):
            plain.seal(PublishPlain(PARTITION), frame, bytes(16), 0)


def test_headers_that_are_none_are_shown_as_they_are() -> None:
    body = bytes(batches.seal([b"v", b"w"], headers=[b"\xc1", b""]))
    rows = opened_rows([Delivered(PARTITION, 0, 2, 1, len(body), 0)], [body])
    assert [row.headers for row in rows] == [{plain.UNREADABLE: b"\xc1"}, {}]


def test_a_frame_has_no_more_than_a_frontdoor_takes() -> None:
    """Many empty values under a long route make a small batch; opened, they
    are eighty times as large.
    """
    count = limits.BATCH_RECORDS_MAX
    bodies = [sealed([[b""]] * count, route="r" * limits.ROUTE_BYTES_MAX)] * 20
    slices = [Delivered(PARTITION, at * count, count, 1, len(bodies[0]), 0) for at in range(20)]
    frames = list(plain.unseal(slices, bodies))
    assert max(map(len, frames)) <= limits.DELIVER_BYTES_MAX
    offsets = [row.offset for frame in frames for row in ROWS.decode(frame)]
    assert offsets == list(range(20 * count))
    large = sealed([[b"v" * limits.VALUE_BYTES_MAX], [b"w"]])
    sizes = [len(frame) for frame in plain.unseal([Delivered(PARTITION, 0, 2, 1, len(large), 0)], [large])]
    assert len(sizes) == 2
    assert max(sizes) < limits.FRAME_BYTES_MAX
