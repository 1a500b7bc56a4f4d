"""Plain records, for clients that cannot seal and open batches.

The second frame is a msgpack array; see PROTOCOL.md, section "Plain records". The worker seals the
records of PUBLISH_PLAIN and opens those of DELIVER_PLAIN. This is work for each record, done only
for clients that ask for it.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from gossipq import limits
from gossipq.errors import BadBatch, BadRequest, TooLarge
from gossipq.messages import PublishPlain
from gossipq.values import Delivered, PlainDelivered, PlainRecord
from gossipq.wire import batch as batches
from gossipq.wire.checksum import crc32

RECORDS = msgspec.msgpack.Decoder(list[PlainRecord])
HEADERS = msgspec.msgpack.Decoder(dict[str, Any])
#: header with the raw bytes of headers that could not be decoded
UNREADABLE = "gossipq-unreadable-headers"
ROW_BYTES = 64  #: size of a delivered record without its texts
_encode = msgspec.msgpack.Encoder().encode


def seal(message: PublishPlain, frame: bytes, producer: bytes, publish_ms: int) -> bytes:
    """Return the batch of the records in `frame`. Raises BadBatch, BadRequest, TooLarge."""
    try:
        records = RECORDS.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBatch(
            f"the second frame is no array of records: {error}",
            hint="each record is an array: [value, key, headers, id, unique]",
        ) from None
    if not 0 < len(records) <= limits.BATCH_RECORDS_MAX:
        raise BadBatch(f"{len(records)} records; 1 to {limits.BATCH_RECORDS_MAX} are allowed in one message")
    for what, given in (
        ("delay_ms", message.delay_ms),
        ("ttl_ms", message.ttl_ms),
        ("until_ms", message.until_ms),
    ):
        if not 0 <= given <= limits.DELAY_MS_MAX:
            raise BadRequest(f"{what} = {given}", hint=f"0 to {limits.DELAY_MS_MAX} are allowed")
    route = message.route.encode()
    if len(route) > limits.ROUTE_BYTES_MAX:
        raise TooLarge(f"route of {len(route)} bytes; at most {limits.ROUTE_BYTES_MAX} are allowed")
    keys, ids = [each.key for each in records], [each.id for each in records]
    names = [each.unique for each in records]
    if not all(_sound(each.headers) for each in records if each.headers):
        raise BadBatch("the values of headers are bytes or texts")
    headers = [_encode(each.headers) if each.headers else b"" for each in records]
    fixed: dict[int, array[int]] = {}
    if any(keys):
        fixed[batches.KEY_HASH] = array("I", map(key_hash, keys))
    if any(ids):
        fixed[batches.ID_HASH] = batches.id_column(ids)
    if any(names):
        fixed[batches.UNIQUE_HASH] = batches.id_column(names)
        if message.until_ms:
            fixed[batches.UNTIL] = array("q", [message.until_ms] * len(records))
        if message.replace:
            fixed[batches.REPLACE] = array("I", [1] * len(records))
    if message.delay_ms:
        fixed[batches.DELAY] = array("q", [message.delay_ms] * len(records))
    if message.ttl_ms:
        fixed[batches.TTL] = array("q", [message.ttl_ms] * len(records))
    sealed = batches.seal(
        [each.value for each in records],
        producer=producer,
        sequence=message.sequence,
        publish_ms=publish_ms,
        route=route,
        keys=keys if any(keys) else None,
        headers=headers if any(headers) else None,
        ids=ids if any(ids) else None,
        uniques=names if any(names) else None,
        fixed=fixed,
    )
    return bytes(sealed)


def key_hash(key: bytes) -> int:
    """Return the value of the column KEY_HASH for a key: 0 without a key."""
    return (crc32(key) or 1) if key else 0


def _sound(headers: dict[str, Any]) -> bool:
    return all(isinstance(value, bytes | str) for value in headers.values())


def unseal(slices: Sequence[Delivered], bodies: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the second frames of DELIVER_PLAIN for these batches. Raises BadBatch.

    A frame has at most DELIVER_BYTES_MAX bytes, or one record, because a frontdoor refuses larger
    frames and disconnects the sender. Opened records can be much larger than their batch: each
    repeats the route.
    """
    rows, size = list[PlainDelivered](), 0
    for each, body in zip(slices, bodies, strict=True):
        for row, row_bytes in _rows(each, body):
            if rows and size + row_bytes > limits.DELIVER_BYTES_MAX:
                yield _encode(rows)
                rows, size = [], 0
            rows.append(row)
            size += row_bytes
    if rows:
        yield _encode(rows)


def _rows(part: Delivered, body: bytes) -> Iterator[tuple[PlainDelivered, int]]:
    """Yield each record with its approximate size as msgpack."""
    opened = batches.Batch(body, batches.peek(body))
    none = [b""] * part.count
    keys, ids = opened.column(batches.KEYS) or none, opened.column(batches.IDS) or none
    headers = opened.column(batches.HEADERS) or none
    route = opened.route.decode(errors="replace")
    row_bytes = ROW_BYTES + len(route.encode())
    made: Callable[..., PlainDelivered] = PlainDelivered
    for i, value in enumerate(opened.values()):
        said = headers_of(headers[i])
        yield (
            made(
                part.partition,
                part.offset + i,
                part.attempt,
                value,
                keys[i],
                said,
                ids[i],
                route,
                opened.info.publish_ms,
                part.failures,
            ),
            row_bytes + len(value) + len(keys[i]) + len(headers[i]) + len(ids[i]),
        )


_NO_HEADERS: dict[str, Any] = {}


def headers_of(raw: bytes) -> dict[str, Any]:
    """Return the headers of a record. Nodes store them unchecked, so they can be malformed."""
    if not raw:
        return _NO_HEADERS
    try:
        headers = HEADERS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {UNREADABLE: raw}
    return headers if _sound(headers) else {UNREADABLE: raw}
