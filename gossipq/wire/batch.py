"""The sealed batch: Arrow-shaped columns behind a fixed header. PROTOCOL.md section "Batch".

    offset  bytes  field (little endian)
    0       4      magic "GQB" and the format version, 1
    4       4      CRC-32 (zlib) of everything from byte 8 to the end
    8       4      size of the whole batch in bytes
    12      4      count of records
    16      16     producer
    32      8      sequence, from 1; 0 = not deduplicated, as without a producer
    40      8      publish time, unix milliseconds
    48      4      columns, a bit set
    52      2      bytes of the route
    54      2      reserved, 0
    56      ..     route, the columns in bit order, the values; each part zero-padded to 8 bytes

A fixed-width column is an array of `count` numbers. A variable column is count + 1 int32 offsets,
then its data. The first offset can be above 0, so that cutting a batch changes no number. The
values are a variable column, which is always present and last. A node reads only the header;
clients and exports open the columns.

The batch is the unit of the wire, the log, the disk and delivery. Python work for each record is
the limit of a broker in Python, so a node does none.

`verify` checks a whole batch (CRC, layout, offsets, bounds) before it is stored. So a refusal comes
before the confirm, and every reader can open and cut a stored batch.

Times, policies, keys and ids of records have columns of their own. A batch without such a column
costs one branch. The delay of a record counts from the moment in which the client sealed its batch,
and `age_ms` says how long ago that was. So no clock of a client is compared with one of a node, and
a batch that is sent again is not late.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from io import BytesIO
from itertools import accumulate, pairwise
from operator import sub
from struct import Struct, pack, pack_into, unpack_from
from typing import NamedTuple

from gossipq import limits
from gossipq.errors import BadBatch, TooLarge
from gossipq.types import ATTEMPTS as ATTEMPTS
from gossipq.types import BACKOFF as BACKOFF
from gossipq.types import DELAY as DELAY
from gossipq.types import FLOW_HASH as FLOW_HASH
from gossipq.types import FLOWS as FLOWS
from gossipq.types import HEADERS as HEADERS
from gossipq.types import ID_HASH as ID_HASH
from gossipq.types import IDS as IDS
from gossipq.types import KEY_HASH as KEY_HASH
from gossipq.types import KEYS as KEYS
from gossipq.types import LEASE as LEASE
from gossipq.types import PRIORITY as PRIORITY
from gossipq.types import REPLACE as REPLACE
from gossipq.types import TTL as TTL
from gossipq.types import UNIQUE_HASH as UNIQUE_HASH
from gossipq.types import UNIQUES as UNIQUES
from gossipq.types import UNTIL as UNTIL
from gossipq.types import BatchInfo
from gossipq.wire.checksum import crc32

MAGIC = b"GQB\x01"
HEADER = Struct("<4sIII16sQqIHH")
NO_PRODUCER = bytes(16)

FIXED = {
    KEY_HASH: ("I", 4),  #: CRC-32 of the key, 0 without one
    DELAY: ("q", 8),  #: milliseconds from sealing until due; sorted within a batch
    TTL: ("q", 8),  #: milliseconds from due until the record expires, 0 = as the topic says
    LEASE: ("I", 4),  #: milliseconds, 0 = not set; likewise ATTEMPTS and BACKOFF
    ATTEMPTS: ("I", 4),  #: failures before it is a dead letter
    ID_HASH: ("Q", 8),  #: BLAKE2b-64 of the id, little endian; 0 without an id
    BACKOFF: ("I", 4),  #: milliseconds after each failure
    FLOW_HASH: ("Q", 8),  #: BLAKE2b-64 of the flow, as of an id; 0 without one
    PRIORITY: ("B", 1),  #: 0 to 9; without the column each record has 5
    UNIQUE_HASH: ("Q", 8),  #: BLAKE2b-64 of the unique name, as of an id; 0 without one
    UNTIL: ("q", 8),  #: milliseconds for which the name is held, 0 = until the record is done
    REPLACE: ("I", 4),  #: 1 = replace the record that holds the name, 0 = keep that one
}
VARIABLE, VALUES = (KEYS, HEADERS, IDS, FLOWS, UNIQUES), (0,)
HASHED = (
    (KEYS, KEY_HASH, "keys"),
    (IDS, ID_HASH, "ids"),
    (FLOWS, FLOW_HASH, "flows"),
    (UNIQUES, UNIQUE_HASH, "unique names"),
)
VARIABLE_AND_VALUES = VARIABLE + VALUES
KNOWN = sum(FIXED) + sum(VARIABLE)

_INT32, _CRC = Struct("<i").unpack_from, Struct("<4xI").unpack_from
_BOUNDS = {
    KEYS: ("key", limits.KEY_BYTES_MAX),
    HEADERS: ("headers", limits.HEADERS_BYTES_MAX),
    IDS: ("id", limits.ID_BYTES_MAX),
    FLOWS: ("flow", limits.FLOW_BYTES_MAX),
    UNIQUES: ("unique name", limits.ID_BYTES_MAX),
    0: ("value", limits.VALUE_BYTES_MAX),
}
_ID_HASH = blake2b(digest_size=8)  #: an empty hash; `copy` is faster than a new one
_NO_ID = bytes(_ID_HASH.digest_size)
NEIGHBOURS = 8  #: `_all_short` checks the total length of this many neighbours first
_PAD = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")


def _padded(size: int) -> int:
    return size + 7 & ~7


def id_hash(raw: bytes) -> int:
    """Return BLAKE2b-64 of an id, little endian; 0 without an id."""
    return id_column([raw])[0]


def id_column(ids: Sequence[bytes]) -> "array[int]":
    """Return `id_hash` of each id."""
    hashes, begun = list[bytes](), _ID_HASH.copy  # copying takes half the time of making a new hash
    for raw in ids:
        hashed = begun()
        hashed.update(raw)
        hashes.append(hashed.digest() if raw else _NO_ID)
    column = array("Q")
    column.frombytes(b"".join(hashes))
    return column


def seal(
    values: Sequence[bytes],
    *,
    producer: bytes = NO_PRODUCER,
    sequence: int = 0,
    publish_ms: int = 0,
    route: bytes = b"",
    keys: Sequence[bytes] | None = None,
    headers: Sequence[bytes] | None = None,
    ids: Sequence[bytes] | None = None,
    flows: Sequence[bytes] | None = None,
    uniques: Sequence[bytes] | None = None,
    fixed: dict[int, "array[int]"] | None = None,
) -> bytearray:
    """Return a batch of `values`. `headers` are msgpack maps, b"" = none; `fixed` are columns by
    bit.
    """
    columns, parts = 0, [route]
    for bit in sorted(fixed or ()):
        columns |= bit
        parts.append(fixed[bit].tobytes())  # type: ignore[index]
    texts = (KEYS, keys), (HEADERS, headers), (IDS, ids), (FLOWS, flows), (UNIQUES, uniques), (0, values)
    for bit, items in texts:
        if items is not None:
            columns |= bit
            # `pack` takes two thirds of the time that `array` needs for an iterator
            parts.append(pack(f"<{len(items) + 1}i", *accumulate(map(len, items), initial=0)))
            parts.append(b"".join(items))
    padded: list[bytes] = [b""]
    for part in parts:
        padded.append(part)
        padded.append(_PAD[len(part) & 7])
    size = HEADER.size + sum(map(len, padded))
    padded[0] = HEADER.pack(
        MAGIC, 0, size, len(values), producer, sequence, publish_ms, columns, len(route), 0
    )
    batch = bytearray().join(padded)
    pack_into("<I", batch, 4, crc32(memoryview(batch)[8:]))
    return batch


def restamp(batch: bytearray, producer: bytes, sequence: int) -> None:
    """Set producer and sequence of a batch, in place. For a batch that the broker refused."""
    pack_into("<16sQ", batch, 16, producer, sequence)
    pack_into("<I", batch, 4, crc32(memoryview(batch)[8:]))


def check(batch: bytes | memoryview) -> BatchInfo:
    """Check CRC, size and bounds of a batch, and return its header. Raises BadBatch.

    The work does not depend on the number of records.
    """
    if len(batch) < HEADER.size:
        raise BadBatch(f"batch of {len(batch)} bytes; at least {HEADER.size} are needed")
    magic, crc, size, count, producer, sequence, publish_ms, columns, route_size, _ = HEADER.unpack_from(
        batch
    )
    if magic != MAGIC:
        raise BadBatch("batch does not start with GQB and version 1")
    if size != len(batch):
        raise BadBatch(f"batch says {size} bytes and has {len(batch)}")
    if not 0 < count <= limits.BATCH_RECORDS_HARD_MAX:
        raise BadBatch(f"batch of {count} records; 1 to {limits.BATCH_RECORDS_HARD_MAX} are allowed")
    if route_size > limits.ROUTE_BYTES_MAX:
        raise BadBatch(f"route of {route_size} bytes; at most {limits.ROUTE_BYTES_MAX}")
    if crc32(memoryview(batch)[8:]) != crc:
        raise BadBatch("batch CRC does not match its bytes")
    sequence = sequence if producer != NO_PRODUCER else 0
    route = bytes(batch[HEADER.size : HEADER.size + route_size]) if route_size else b""
    return BatchInfo(count, size, crc, producer, sequence, publish_ms, columns, route)


def _route(batch: bytes | memoryview, size: int) -> bytes:
    return bytes(batch[HEADER.size : HEADER.size + size]) if size else b""


def peek(batch: bytes | memoryview) -> BatchInfo:
    """Return the header of a batch that was checked before."""
    _, crc, size, count, producer, sequence, publish_ms, columns, route_size, _ = HEADER.unpack_from(batch)
    sequence = sequence if producer != NO_PRODUCER else 0
    return BatchInfo(count, size, crc, producer, sequence, publish_ms, columns, _route(batch, route_size))


def crc_of(batch: bytes | memoryview) -> int:
    """Return the CRC in the header of a batch that was checked before."""
    crc: int = _CRC(batch)[0]
    return crc


class Variable(NamedTuple):
    """A variable column in place.

    Record i is data[offsets[i] - offsets[0] : offsets[i + 1] - offsets[0]].
    """

    offsets: list[int]
    data: memoryview

    def items(self) -> list[bytes]:
        read = BytesIO(self.data).read  # quicker than slices, by a third
        return list(map(read, map(sub, self.offsets[1:], self.offsets)))


class Batch:
    """A checked batch whose columns are opened on demand."""

    __slots__ = ("_at", "_raw", "info", "route")

    def __init__(self, raw: bytes | memoryview, info: BatchInfo | None = None) -> None:
        """`info` is the result of `check` for these bytes; without it they are checked here.

        Raises BadBatch.
        """
        self._raw = memoryview(raw)
        self.info = info or check(raw)
        if self.info.columns & ~KNOWN:
            raise BadBatch(f"batch has columns this side does not know: {self.info.columns & ~KNOWN:#x}")
        self.route = self.info.route
        self._at = self._layout(HEADER.size + _padded(len(self.route)))

    def _layout(self, at: int) -> dict[int, tuple[int, int]]:
        """Return (start, bytes) of each fixed column and (start of offsets, start of data) of each
        variable.

        Key 0 is the column of values.
        """
        raw, count, columns, found = self._raw, self.info.count, self.info.columns, {}
        if columns:  # most batches are plain: they have values only
            for bit, (_, width) in FIXED.items():
                if columns & bit:
                    found[bit] = at, count * width
                    at += _padded(count * width)
        for bit in VARIABLE_AND_VALUES if columns else VALUES:
            if bit == 0 or columns & bit:
                data = at + _padded(4 * count + 4)
                if data > len(raw):
                    raise BadBatch("batch ends inside its columns")
                found[bit] = at, data
                (first,), (last,) = _INT32(raw, at), _INT32(raw, at + 4 * count)
                if not 0 <= first <= last:
                    raise BadBatch("batch column offsets do not rise")
                at = data + _padded(last - first)
        if at != len(raw):
            raise BadBatch(f"batch columns end at byte {at} of {len(raw)}")
        return found

    def __len__(self) -> int:
        return self.info.count

    def fixed(self, bit: int) -> "array[int] | None":
        """Return a fixed-width column as an array, or None if the batch lacks it."""
        if bit not in self._at:
            return None
        at, size = self._at[bit]
        column: array[int] = array(FIXED[bit][0])
        column.frombytes(self._raw[at : at + size])
        return column

    def variable(self, bit: int) -> Variable | None:
        """Return KEYS, HEADERS, IDS, FLOWS, UNIQUES, or the values (0); None if the batch lacks the
        column.

        Raises BadBatch if its offsets do not rise.
        """
        if bit not in self._at:
            return None
        at, data = self._at[bit]
        offsets: list[int] = self._raw[at : at + 4 * self.info.count + 4].cast("i").tolist()
        if offsets != sorted(offsets):  # sorting is linear if they are in order
            raise BadBatch("batch column offsets do not rise")
        return Variable(offsets, self._raw[data : data + offsets[-1] - offsets[0]])

    def parts(self, bit: int) -> tuple[memoryview, memoryview] | None:
        """Return the offsets (int32) and the data of a variable column, unchecked.

        For Arrow, which takes both without a copy.
        """
        if bit not in self._at:
            return None
        at, data = self._at[bit]
        (first,), (last,) = _INT32(self._raw, at), _INT32(self._raw, at + 4 * self.info.count)
        return self._raw[at : at + 4 * self.info.count + 4], self._raw[data : data + last - first]

    def values(self) -> list[bytes]:
        column = self.variable(0)
        assert column is not None
        return column.items()

    def column(self, bit: int) -> list[bytes] | None:
        """Return KEYS, HEADERS, IDS, FLOWS or UNIQUES as a list, or None."""
        column = self.variable(bit)
        return None if column is None else column.items()

    def named(self, record_id: bytes, headers: bytes | None = None) -> bytearray:
        """Return a batch of its one record with another id, and without a producer. `headers` replace its
        own.
        """
        assert self.info.count == 1, "one record has one id"
        fixed = {bit: self.fixed(bit) for bit in FIXED if bit in self._at}
        fixed[ID_HASH] = id_column([record_id])
        return seal(
            self.values(),
            route=self.route,
            keys=self.column(KEYS),
            headers=self.column(HEADERS) if headers is None else [headers],
            ids=[record_id],
            flows=self.column(FLOWS),
            uniques=self.column(UNIQUES),
            fixed={bit: column for bit, column in fixed.items() if column is not None},
        )

    def cut(self, first: int, count: int) -> bytearray:
        """Return records first .. first + count - 1 as a batch of their own, with a new CRC.

        No number of a column changes. Raises BadBatch if the offsets at the two cuts are out of
        order; the offsets between them are checked when the column is opened.
        """
        assert 0 <= first < first + count <= self.info.count, "a cut lies in its batch"
        parts: list[bytes | memoryview] = [b"", self.route, _PAD[len(self.route) & 7]]
        for bit, (at, end) in self._at.items():
            if bit in FIXED:
                width = FIXED[bit][1]
                part = self._raw[at + first * width : at + (first + count) * width]
                parts += (part, _PAD[len(part) & 7])
            else:
                base, low, high, last = (
                    _INT32(self._raw, at + 4 * i)[0] for i in (0, first, first + count, self.info.count)
                )
                if not base <= low <= high <= last:
                    raise BadBatch("batch column offsets do not rise")
                offsets = self._raw[at + 4 * first : at + 4 * (first + count) + 4]
                data = self._raw[end + low - base : end + high - base]
                parts += (offsets, _PAD[len(offsets) & 7], data, _PAD[len(data) & 7])
        return self._sealed(parts, count)

    def pick(self, ranges: Sequence[tuple[int, int]]) -> bytearray:
        """Like `cut`, for several ranges [first, end) of records in rising order. Raises
        BadBatch.
        """
        assert 0 <= ranges[0][0] < ranges[-1][1] <= self.info.count, "what is picked lies in its batch"
        raw = self._raw
        parts: list[bytes | memoryview] = [b"", self.route, _PAD[len(self.route) & 7]]
        for bit, (at, end) in self._at.items():
            if bit in FIXED:
                width = FIXED[bit][1]
                picked = [raw[at + first * width : at + stop * width] for first, stop in ranges]
                data = b"".join(picked)
            else:
                numbers = unpack_from(f"<{self.info.count + 1}i", raw, at)
                lengths = [b - a for first, stop in ranges for a, b in pairwise(numbers[first : stop + 1])]
                start, last = end - numbers[0], end + numbers[-1] - numbers[0]
                places = [(start + numbers[first], start + numbers[stop]) for first, stop in ranges]
                if min(lengths) < 0 or places[0][0] < end or places[-1][1] > last:
                    raise BadBatch("batch column offsets do not rise")
                offsets = pack(f"<{len(lengths) + 1}i", *accumulate(lengths, initial=0))
                parts += (offsets, _PAD[len(offsets) & 7])
                data = b"".join([raw[low:high] for low, high in places])
            parts += (data, _PAD[len(data) & 7])
        return self._sealed(parts, sum([stop - first for first, stop in ranges]))

    def _sealed(self, parts: list[bytes | memoryview], count: int) -> bytearray:
        """Join `parts` behind a new header."""
        info, size = self.info, HEADER.size + sum(map(len, parts))
        parts[0] = HEADER.pack(
            MAGIC,
            0,
            size,
            count,
            info.producer,
            info.sequence,
            info.publish_ms,
            info.columns,
            len(self.route),
            0,
        )
        batch = bytearray().join(parts)
        pack_into("<I", batch, 4, crc32(memoryview(batch)[8:]))
        return batch


def verify(batch: bytes | memoryview) -> BatchInfo:
    """Check a batch completely before a node stores it, and return its header.

    Besides `check` this covers everything that opening and cutting rely on, because the sender may
    be a stranger. Offsets are compared at C speed. Raises BadBatch, and TooLarge for a record above
    the limits.
    """
    info = check(batch)
    if info.columns:
        _verify_columns(Batch(batch, info))
        return info
    # the common batch: values alone, laid out as `Batch._layout` says
    at = HEADER.size + (len(info.route) + 7 & ~7)
    data = at + (4 * info.count + 11 & ~7)
    if data > len(batch):
        raise BadBatch("batch ends inside its columns")
    offsets: list[int] = memoryview(batch)[at : at + 4 * info.count + 4].cast("i").tolist()
    size = offsets[-1] - offsets[0]
    if offsets[0] < 0 or offsets != sorted(offsets):  # linear when they are in order
        raise BadBatch("batch column offsets do not rise")
    if data + (size + 7 & ~7) != len(batch):
        raise BadBatch(f"batch columns end at byte {data + (size + 7 & ~7)} of {len(batch)}")
    if size > limits.VALUE_BYTES_MAX:
        _verify_sizes(offsets, *_BOUNDS[0])
    return info


def _verify_columns(opened: Batch) -> None:
    """Check the columns of a batch that has more than values. Raises BadBatch, TooLarge."""
    columns = opened.info.columns
    for named, hashes, what in HASHED:
        # a node reads only the hashes, so it would treat the records as having no keys or ids
        if columns & named and not columns & hashes:
            raise BadBatch(f"batch has {what} without the column of their hashes")
    if columns & (DELAY | TTL | UNTIL):
        _verify_times(opened)
    priorities = opened.fixed(PRIORITY) if columns & PRIORITY else None
    if priorities is not None and max(priorities) > limits.PRIORITY_MAX:
        raise BadBatch(f"priority of {max(priorities)}; 0 to {limits.PRIORITY_MAX} are allowed")
    for bit in VARIABLE_AND_VALUES:
        column = opened.variable(bit)
        what, bytes_max = _BOUNDS[bit]
        if column is not None and len(column.data) > bytes_max:
            _verify_sizes(column.offsets, what, bytes_max)


def _verify_sizes(offsets: list[int], what: str, bytes_max: int) -> None:
    """Raises TooLarge if an item of a variable column is larger than `bytes_max`."""
    if _all_short(offsets, bytes_max):
        return
    largest = max(map(sub, offsets[1:], offsets))
    if largest > bytes_max:
        raise TooLarge(f"{what} of {largest} bytes; at most {bytes_max} are allowed")


def _all_short(offsets: list[int], bytes_max: int) -> bool:
    """True if groups of NEIGHBOURS offsets are together within `bytes_max`.

    This is a tenth of the work of checking each one. It holds for most ids and keys. If False, each
    one must be checked. Offsets must rise.
    """
    some = offsets[::NEIGHBOURS]
    some.append(offsets[-1])
    longest: int = max(map(sub, some[1:], some))
    return longest <= bytes_max


def _verify_times(opened: Batch) -> None:
    """Check that delays rise and that times can be added without overflow. Raises BadBatch.

    Rising delays make the due records of a batch one run from its front.
    """
    for bit, what in ((DELAY, "delay"), (TTL, "time to live"), (UNTIL, "time of a unique name")):
        column = opened.fixed(bit)
        if column is None:
            continue
        least, most = min(column), max(column)
        if least < 0 or most > limits.DELAY_MS_MAX:
            raise BadBatch(
                f"{what} of {least if least < 0 else most} ms; 0 to {limits.DELAY_MS_MAX} are allowed"
            )
        # sorting is linear if they are in order
        if bit == DELAY and (given := column.tolist()) != sorted(given):
            raise BadBatch("batch delays fall; its records must be sorted by their due time")


def split(joined: bytes | memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """Split one frame into the batches in it. Raises BadBatch if the sizes do not add up."""
    if sum(sizes) != len(joined) or min(sizes, default=0) < 0:
        raise BadBatch(f"frame of {len(joined)} bytes for batches of {sum(sizes)}")
    view, ends = memoryview(joined), [0, *accumulate(sizes)]
    return [view[a:b] for a, b in pairwise(ends)]
