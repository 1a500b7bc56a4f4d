"""The vectors are what the code makes, and hold for a reader that knows only PROTOCOL.md."""

import json
from array import array
from hashlib import blake2b
from typing import Any
from zlib import crc32

import msgspec
import pytest

from gossipq import errors, limits
from gossipq.errors import BadBatch, ProtocolError
from gossipq.messages import MESSAGES
from gossipq.types import partition_key, partition_of, topic_id_of
from gossipq.wire import frames
from gossipq.wire.batch import FIXED, HEADERS, Batch, seal, verify
from vectors import make


def load(name: str) -> dict[str, Any]:
    return json.loads((make.FOLDER / name).read_text(encoding="ascii"))


def rows(name: str, part: str) -> list[Any]:
    return [pytest.param(row, id=row["name"]) for row in load(name)[part]]


def number(value: int | str) -> int:
    return int(value)


def value_of(field: Any) -> Any:
    """A field of frames.json as the wire has it."""
    if isinstance(field, list):
        return [value_of(item) for item in field]
    if isinstance(field, dict) and "map" in field:
        return field["map"]
    if isinstance(field, dict):
        return bytes.fromhex(field["hex"])
    if isinstance(field, str) and field.isdigit() and int(field) > make.JSON_INTEGER_MAX:
        return int(field)
    return field


@pytest.mark.parametrize("name", make.FILES)
def test_files_are_what_the_code_makes(name: str) -> None:
    assert (make.FOLDER / name).read_text(encoding="ascii") == make.text_of(name), (
        "run: python tests/vectors/make.py"
    )


@pytest.mark.parametrize("name", make.FILES)
def test_the_generator_is_deterministic(name: str) -> None:
    assert make.text_of(name) == make.text_of(name)


# --- batches ------------------------------------------------------------------------------------------------


def padded(size: int) -> int:
    return (size + 7) // 8 * 8


def parse(raw: bytes) -> dict[str, Any]:
    """A batch by the words of PROTOCOL.md section "Batch", sharing no code with gossipq.wire."""

    def u(at: int, width: int, signed: bool = False) -> int:
        return int.from_bytes(raw[at : at + width], "little", signed=signed)

    assert raw[:4] == b"GQB\x01"
    assert (u(4, 4), u(8, 4)) == (crc32(raw[8:]), len(raw))
    count, columns, route = u(12, 4), u(48, 4), u(52, 2)
    found: dict[str, Any] = {
        "producer": raw[16:32].hex(),
        "sequence": u(32, 8),
        "publish_ms": u(40, 8, signed=True),
        "route": raw[56 : 56 + route].hex(),
    }
    at = 56 + padded(route)
    layout = (
        ("key_hash", 4, False),
        ("delay", 8, True),
        ("ttl", 8, True),
        ("lease", 4, False),
        ("attempts", 4, False),
    )
    for bit, (name, width, signed) in enumerate(
        (
            *layout,
            ("id_hash", 8, False),
            ("backoff", 4, False),
            ("flow_hash", 8, False),
            ("priority", 1, False),
            ("unique_hash", 8, False),
            ("until", 8, True),
            ("replace", 4, False),
        )
    ):
        found[name] = [u(at + width * i, width, signed) for i in range(count)] if columns >> bit & 1 else None
        at += padded(width * count) if columns >> bit & 1 else 0
    variable = ("keys", "headers", "ids", "flows", "uniques")
    for present, name in (
        *((columns >> 16 + at & 1, name) for at, name in enumerate(variable)),
        (1, "values"),
    ):
        if not present:
            found[name] = None
            continue
        offsets = [u(at + 4 * i, 4, signed=True) for i in range(count + 1)]
        data = at + padded(4 * count + 4)
        ends = [data + offset - offsets[0] for offset in offsets]
        found[name] = [raw[ends[i] : ends[i + 1]].hex() for i in range(count)]
        at = data + padded(offsets[-1] - offsets[0])
    assert at == len(raw)
    return found


@pytest.mark.parametrize("row", rows("batches.json", "batches"))
def test_batch_by_the_words_of_the_document(row: dict[str, Any]) -> None:
    for name, value in parse(bytes.fromhex(row["batch"])).items():
        expected = row[name]
        if name in ("sequence", "publish_ms"):
            expected = number(expected)
        elif name in make.COLUMN_NAMES.values() and expected is not None:
            expected = list(map(number, expected))
        assert value == expected, name


@pytest.mark.parametrize("row", rows("batches.json", "batches"))
def test_batch_opens(row: dict[str, Any]) -> None:
    batch = Batch(bytes.fromhex(row["batch"]))
    assert [value.hex() for value in batch.values()] == row["values"]
    assert len(batch) == row["count"]
    for bit, name in make.VARIABLE_NAMES.items():
        assert (batch.column(bit) is None) == (row[name] is None)
    for item in batch.column(HEADERS) or ():
        assert item == b"" or isinstance(msgspec.msgpack.decode(item), dict)


@pytest.mark.parametrize("row", [p for p in rows("batches.json", "batches") if "cut_of" in p.values[0]])
def test_cut_holds_the_records_of_its_source(row: dict[str, Any]) -> None:
    source = next(other for other in load("batches.json")["batches"] if other["name"] == row["cut_of"])
    first, end = row["cut_first"], row["cut_first"] + row["cut_count"]
    for name in (*make.COLUMN_NAMES.values(), *make.VARIABLE_NAMES.values(), "values"):
        assert row[name] == (None if source[name] is None else source[name][first:end])
    assert bytes(Batch(bytes.fromhex(source["batch"])).cut(first, end - first)).hex() == row["batch"]


def test_one_cut_starts_at_another_offset_than_0() -> None:
    assert any(row["first_value_offset"] > 0 for row in load("batches.json")["batches"])


@pytest.mark.parametrize("row", rows("batches.json", "refused"))
def test_refused_batch(row: dict[str, Any]) -> None:
    with pytest.raises(BadBatch):
        verify(bytes.fromhex(row["batch"]))


# --- frames -------------------------------------------------------------------------------------------------


def test_frames_read_back() -> None:
    for row in load("frames.json")["frames"]:
        name, raw = row["name"], bytes.fromhex(row["frame"])
        header, message = frames.decode(raw)
        assert (header.verb, header.shard) == (row["verb"], row["shard"]), name
        assert (header.request_id, header.term) == (number(row["request_id"]), number(row["term"])), name
        assert type(message) is MESSAGES[row["verb"]], name
        assert type(message).__name__.removesuffix("Message") == name
        assert msgspec.msgpack.decode(raw[frames.HEADER.size :]) == [
            value_of(field) for field in row["fields"].values()
        ], name
        assert list(row["fields"]) == [field.name for field in msgspec.structs.fields(message)], name
        assert frames.encode(message, header.shard, header.request_id, header.term) == raw, name


def test_every_verb_has_a_frame() -> None:
    assert {row["verb"] for row in load("frames.json")["frames"]} == set(MESSAGES)


@pytest.mark.parametrize("row", rows("frames.json", "accepted"))
def test_accepted_frame(row: dict[str, Any]) -> None:
    _, message = frames.decode(bytes.fromhex(row["frame"]))
    assert type(message).__name__.removesuffix("Message") == row["message"]
    assert make.plain(make.wire_array(message)) == row["fields"]


@pytest.mark.parametrize("row", rows("frames.json", "refused"))
def test_refused_frame(row: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        frames.decode(bytes.fromhex(row["frame"]))
    assert caught.value.code == row["code"]
    assert isinstance(errors.from_code(row["code"], ""), ProtocolError)


# --- hashes -------------------------------------------------------------------------------------------------


def crc_by_hand(raw: bytes) -> int:
    """CRC-32 bit by bit, as the document defines it."""
    crc = 0xFFFFFFFF
    for byte in raw:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_crc32() -> None:
    found = {row["bytes"]: row["crc32"] for row in load("hashes.json")["crc32"]}
    assert found[b"123456789".hex()] == 0xCBF43926
    assert all(crc_by_hand(bytes.fromhex(raw)) == crc for raw, crc in found.items())


def test_partition_of_key() -> None:
    for row in load("hashes.json")["partition_of_key"]:
        assert row["partition"] == crc_by_hand(bytes.fromhex(row["key"])) % row["partitions"]


def test_partition_key() -> None:
    for row in load("hashes.json")["partition_key"]:
        key = row["partition_key"]
        assert (
            key
            == partition_key(row["topic_id"], row["partition"])
            == row["topic_id"] * 65_536 + row["partition"]
        )
        assert (topic_id_of(key), partition_of(key)) == (row["topic_id"], row["partition"])
        assert row["partition"] < limits.PARTITIONS_MAX


def test_sealing_the_fields_gives_the_bytes() -> None:
    fixed = {name: bit for bit, name in make.COLUMN_NAMES.items()}
    for row in load("batches.json")["batches"]:
        if "cut_of" in row:
            continue
        variable = (*make.VARIABLE_NAMES.values(), "values")
        lists = {name: row[name] and [*map(bytes.fromhex, row[name])] for name in variable}
        columns = {
            bit: array(FIXED[bit][0], map(number, row[name]))
            for name, bit in fixed.items()
            if row[name] is not None
        }
        raw = seal(
            lists["values"],
            producer=bytes.fromhex(row["producer"]),
            sequence=number(row["sequence"]),
            publish_ms=number(row["publish_ms"]),
            route=bytes.fromhex(row["route"]),
            keys=lists["keys"],
            headers=lists["headers"],
            ids=lists["ids"],
            flows=lists["flows"],
            uniques=lists["uniques"],
            fixed=columns,
        )
        assert raw.hex() == row["batch"], row["name"]


def test_hash_of_an_id() -> None:
    for row in load("hashes.json")["id_hash"]:
        raw = bytes.fromhex(row["id"])
        expected = int.from_bytes(blake2b(raw, digest_size=8).digest(), "little") if raw else 0
        assert number(row["id_hash"]) == expected
