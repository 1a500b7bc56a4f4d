"""Batches as pyarrow columns: the buffers of a batch are handed over as they are, without a look at single
records.

Only headers are opened one by one, in batches that have some.

pyarrow is imported when it is needed: everything else works without it.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import msgspec

from gossipq.errors import TornExport
from gossipq.types import DELAY, HEADERS, IDS, KEYS
from gossipq.wire import export
from gossipq.wire.schemas import Schema as Declared
from gossipq.wire.schemas import Shape
from gossipq_client.session import Stretch, no_pyarrow
from gossipq_client.values import Undecodable, payloads

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema
    from pyarrow import Table as Table

GROUP_ROWS, GROUP_BYTES = 65_536, 32 << 20  #: gathered into one record batch
GROUP_BATCHES = 8_192  #: of which each takes some kilobytes, be it of one record
#: records of a batch; from shorter ones they are taken singly, since an array
#: costs as much as 32 of them
SHORT_BATCH = 32
TIME_MS_MIN, TIME_MS_MAX = -62_135_596_800_000, 253_402_300_799_999  #: years 1 to 9999


def arrow(what: str = "a table") -> Any:
    """The pyarrow module. Raises GossipqError, which names what needs it, when it is not installed."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError:
        raise no_pyarrow(what) from None
    return pyarrow


def schema(data_set: str, shape: Shape | None = None) -> "Schema":
    """Of a data set of exports; `messages` is also that of tables. shape: of its column `data`."""
    pa = arrow()
    header = pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary(), False)])
    kinds = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "headers": pa.list_(pa.field("element", header, False)),
    }
    fields = [
        pa.field(column.name, kinds[column.type], column.nullable) for column in export.SCHEMAS[data_set]
    ]
    return pa.schema(fields if shape is None else [*fields, pa.field(export.DATA, _type(shape))])


def _type(shape: Shape) -> Any:
    """The Arrow type of a shape; everything in it may be null."""
    pa = arrow()
    if shape.name == "struct":
        return pa.struct([pa.field(field.name, _type(field.shape)) for field in shape.fields])
    if shape.item is not None:
        item = _type(shape.item)
        return pa.list_(item) if shape.name == "list" else pa.map_(pa.string(), item)
    kinds = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "date": pa.date32()}
    kinds |= {"string": pa.string(), "binary": pa.binary(), "timestamp": pa.timestamp("us", "UTC")}
    return kinds[shape.name]


def typed(rows: "RecordBatch", by: Declared) -> "tuple[RecordBatch, RecordBatch | None]":
    """Rows of `messages` with the column `data`, null where the value does not fit; and the rows of
    `misfits`, if there are any."""
    pa, values = arrow(), rows.column("value").to_pylist()
    decode = by.decode_row
    try:
        found = [decode(value) for value in values]
        column, wrong = _array(by.shape, found), dict[int, str]()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, pa.ArrowException):
        column, wrong = _typed_singly(values, by)
    made = pa.RecordBatch.from_arrays([*rows.columns, column], schema=schema(export.MESSAGES, by.shape))
    return made, _misfits(rows, wrong, by) if wrong else None


def _typed_singly(values: list[bytes], by: Declared) -> tuple[Any, dict[int, str]]:
    """The column, and by row what is wrong."""
    pa, found, wrong = arrow(), list[Any](), dict[int, str]()
    for at, value in enumerate(values):
        row = None
        try:
            row = by.decode_row(value)
            _array(by.shape, [row])  # what no column can hold, as a moment before the first year
        except (
            msgspec.MsgspecError,
            UnicodeDecodeError,
            RecursionError,
            OverflowError,
            pa.ArrowException,
        ) as error:
            row, wrong[at] = None, str(error) or type(error).__name__
        found.append(row)
    return _array(by.shape, found), wrong


def _misfits(rows: "RecordBatch", wrong: dict[int, str], by: Declared) -> "RecordBatch":
    pa, target = arrow(), schema(export.MISFITS)
    taken = rows.take(pa.array(list(wrong), pa.int64()))
    told = {
        "schema_version": pa.array([by.version] * len(wrong), pa.int32()),
        "error": pa.array(list(wrong.values()), pa.string()),
    }
    columns = [told[name] if name in told else taken.column(name) for name in target.names]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _array(shape: Shape, items: list[Any]) -> Any:
    """Decoded values as a column: rows with f0, f1 ..., lists, dicts, or scalars; each may be None."""
    pa, kind = arrow(), _type(shape)
    if shape.name == "struct":
        fields = [kind.field(at) for at in range(kind.num_fields)]
        whole = None not in items
        columns = [
            _array(
                field.shape,
                [getattr(item, name) for item in items]
                if whole
                else [None if item is None else getattr(item, name) for item in items],
            )
            for name, field in ((f"f{at}", field) for at, field in enumerate(shape.fields))
        ]
        mask = None if whole else pa.array([item is None for item in items], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)
    if shape.item is None:
        made = pa.array(items, kind)
        if shape.name == "timestamp":
            _require_years(made)
        return made
    ends = accumulate((len(item) if item is not None else 0 for item in items), initial=0)
    offsets, mask = pa.array(list(ends), pa.int32()), pa.array([item is None for item in items], pa.bool_())
    full = [item for item in items if item]
    if shape.name == "list":
        inner = _array(shape.item, [each for item in full for each in item])
        return pa.ListArray.from_arrays(offsets, inner, type=kind, mask=mask)
    keys = pa.array([key for item in full for key in item], pa.string())
    inner = _array(shape.item, [each for item in full for each in item.values()])
    return pa.MapArray.from_arrays(offsets, keys, inner, type=kind, mask=mask)


def _require_years(times: Any) -> None:
    """A time zone may carry a moment beyond what Python and Spark can say. Raises OverflowError."""
    pa = arrow()
    ends = pa.compute.min_max(times.cast(pa.int64())).as_py()
    if ends["min"] is not None and (
        ends["min"] < TIME_MS_MIN * 1000 or ends["max"] >= (TIME_MS_MAX + 1) * 1000
    ):
        raise OverflowError("a time before the year 1 or after 9999, in UTC")


def conform(rows: "RecordBatch", data_set: str, shape: Shape | None = None) -> "RecordBatch":
    """Rows as an older version wrote them, with the columns of this one: what they lack is null. Raises
    TornExport."""
    pa, target = arrow(), schema(data_set, shape)
    if rows.schema.equals(target):
        return rows
    lacking = [field.name for field in target if field.name not in rows.schema.names and not field.nullable]
    if lacking:
        raise TornExport(
            f"rows of {data_set} without {', '.join(lacking)}",
            hint="restore the file from a copy of the export",
        )
    made = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(made, schema=target)


def table(stretches: Iterable[Stretch], by: Declared | None = None) -> "Table":
    """All records of the stretches as one table. by: with the column `data`, null where the value does not
    fit."""
    pa, gathering = arrow(), Gathering()
    batches = [batch for stretch in stretches for batch in gathering.add(stretch)] + gathering.rest()
    if by is not None:
        batches = [typed(batch, by)[0] for batch in batches]
    return pa.Table.from_batches(batches, schema(export.MESSAGES, by.shape if by is not None else None))


class Gathering:
    """Stretches in, record batches of a good size out."""

    def __init__(self) -> None:
        self._waiting: list[Stretch] = []
        self._rows = self._bytes = 0

    def add(self, stretch: Stretch) -> "list[RecordBatch]":
        """Adds a stretch; returns the record batches that are complete."""
        self._waiting.append(stretch)
        self._rows += len(stretch)
        self._bytes += stretch.batch.info.size
        enough = self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES or len(self._waiting) >= GROUP_BATCHES
        return self.rest() if enough else []

    def rest(self) -> "list[RecordBatch]":
        waiting, self._waiting, self._rows, self._bytes = self._waiting, [], 0, 0
        return [record_batch(waiting)] if waiting else []


def record_batch(stretches: Sequence[Stretch]) -> "RecordBatch":
    """The columns of `messages`. Raises pyarrow.ArrowInvalid when a batch is not what its header says."""
    pa, target = arrow(), schema(export.MESSAGES)
    ends = pa.array(array("i", accumulate(map(len, stretches))))
    offsets = array("q")
    for stretch in stretches:
        offsets.extend(range(stretch.first, stretch.end))

    def spread(values: list[Any], kind: Any) -> Any:
        """One value for each stretch, repeated for its records."""
        return pa.compute.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.array(values, kind)))

    published_us = spread([time_us(stretch.batch.info.publish_ms) for stretch in stretches], pa.int64())
    columns = {
        "topic": spread([stretch.topic for stretch in stretches], pa.string()),
        "topic_id": spread([stretch.topic_id for stretch in stretches], pa.int64()),
        "partition": spread([stretch.partition for stretch in stretches], pa.int32()),
        "offset": pa.Array.from_buffers(pa.int64(), len(offsets), [None, pa.py_buffer(offsets)]),
        "publish_time": published_us.cast(target.field("publish_time").type),
        "key": _optional(stretches, KEYS),
        "headers": _optional(stretches, HEADERS),
        "value": _joined(stretches, 0),
        "route": spread(
            [stretch.batch.route.decode(errors="replace") or None for stretch in stretches], pa.string()
        ),
        "id": _optional(stretches, IDS),
        "deliver_at": _due(stretches, published_us),
    }
    empty = {
        name: pa.nulls(len(offsets), target.field(name).type)
        for name, column in columns.items()
        if column is None
    }
    return pa.RecordBatch.from_arrays([{**columns, **empty}[name] for name in target.names], schema=target)


def time_us(time_ms: int) -> int:
    """A producer may claim any time; what no calendar has is brought to its edge."""
    return min(max(time_ms, TIME_MS_MIN), TIME_MS_MAX) * 1000


def _binary(stretch: Stretch, bit: int) -> Any:
    """A variable column of a stretch; empty entries of an optional one are null."""
    pa, parts = arrow(), stretch.batch.parts(bit)
    if parts is None:
        return pa.nulls(len(stretch), pa.binary())
    raw, data = parts
    bounds = pa.Array.from_buffers(pa.int32(), len(stretch.batch) + 1, [None, pa.py_buffer(bytes(raw))])
    if bounds[0].as_py():  # a cut batch keeps the numbers of its source
        bounds = pa.compute.subtract(bounds, bounds[0])
    column = pa.Array.from_buffers(
        pa.binary(), len(stretch.batch), [None, bounds.buffers()[1], pa.py_buffer(data)]
    )
    column.validate(full=True)
    column = column.slice(stretch.first - stretch.base, len(stretch))
    if bit == 0:
        return column
    return pa.compute.if_else(
        pa.compute.equal(pa.compute.binary_length(column), 0), pa.scalar(None, pa.binary()), column
    )


def _singly(stretch: Stretch, bit: int) -> list[bytes]:
    """A variable column of a stretch, record by record."""
    items, low = stretch.batch.column(bit), stretch.first - stretch.base
    return [b""] * len(stretch) if items is None else items[low : low + len(stretch)]


def _cells(items: list[bytes], bit: int) -> Any:
    """Of a variable column, record by record; empty ones of an optional one are null."""
    pa = arrow()
    if bit == HEADERS:
        kind = schema(export.MESSAGES).field("headers").type
        return pa.array([_pairs(raw) if raw else None for raw in items], kind)
    return pa.array([raw or None for raw in items] if bit else items, pa.binary())


def _pairs(raw: bytes) -> list[dict[str, str | bytes]]:
    """Unreadable headers become one pair without a name, whose value has all bytes."""
    try:
        headers = payloads.headers_of(raw)
    except Undecodable:
        return [{"key": "", "value": raw}]
    return [
        {"key": key, "value": value.encode() if isinstance(value, str) else value}
        for key, value in headers.items()
    ]


def _optional(stretches: Sequence[Stretch], bit: int) -> Any:
    """A column that batches may lack; None when all do."""
    if not any(stretch.batch.info.columns & bit for stretch in stretches):
        return None
    return _joined(stretches, bit)


def _joined(stretches: Sequence[Stretch], bit: int) -> Any:
    """A variable column of all: short batches that follow each other are one array."""
    parts: list[Any] = []
    for short, some in groupby(stretches, lambda stretch: len(stretch.batch) < SHORT_BATCH):
        if short:
            parts.append(_cells([raw for stretch in some for raw in _singly(stretch, bit)], bit))
        else:
            parts += [
                _cells(_singly(stretch, bit), bit) if bit == HEADERS else _binary(stretch, bit)
                for stretch in some
            ]
    return arrow().concat_arrays(parts)


def _due(stretches: Sequence[Stretch], published_us: Any) -> Any:
    """When records that were published with a delay were due, by the clock of their producer."""
    pa, delays_ms, due = arrow(), array("q"), False
    for stretch in stretches:
        column, low = stretch.batch.fixed(DELAY), stretch.first - stretch.base
        due |= column is not None
        delays_ms.extend(
            array("q", [-1]) * len(stretch) if column is None else column[low : low + len(stretch)]
        )
    if not due:
        return None
    delays = pa.Array.from_buffers(pa.int64(), len(delays_ms), [None, pa.py_buffer(delays_ms)])
    at = pa.compute.add(published_us, pa.compute.multiply(delays, 1000))
    at = pa.compute.min_element_wise(at, pa.scalar(TIME_MS_MAX * 1000, pa.int64()))
    known = pa.compute.greater_equal(delays, 0)
    return pa.compute.if_else(known, at, pa.scalar(None, pa.int64())).cast(pa.timestamp("us", "UTC"))
