"""What lies in a backup.

    points/0000000007.json               what one run made: everything that restoring it needs
    state/CLUSTER/SS-INDEX-SHA.gqb       state of shard SS after entry INDEX, and which batches are there
    batches/CLUSTER/SS-FIRST-END-SHA.gqb batches of a shard by log index, FIRST <= index < END

A file counts when a point names it. Points are written last, and never changed. A file is pieces as the
leaders handed them out: a letter (S state, K kept, B batches), u32 bytes, and a msgpack array; little endian.
Batches never change, so each run brings those that came since the one before, and a point names all it needs.
"""

import re
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, BinaryIO

import msgspec

from gossipq.errors import StoreError
from gossipq.types import Index

VERSION = 1
POINTS, STATE, BATCHES = "points", "state", "batches"
STATE_PIECE, KEPT_PIECE, BATCH_PIECE = b"S", b"K", b"B"
_HEAD = Struct("<cI")
_POINT = re.compile(r"(\d{10})\.json\Z")
_BATCHES = re.compile(r"(\d+)-(\d+)-(\d+)-([0-9a-f]{16})\.gqb\Z")
_DECODERS: dict[bytes, Callable[[bytes], list[Any]]] = {
    STATE_PIECE: msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode,
    KEPT_PIECE: msgspec.msgpack.Decoder(list[int]).decode,
    BATCH_PIECE: msgspec.msgpack.Decoder(list[tuple[int, bytes]]).decode,
}


class StoredFile(msgspec.Struct, frozen=True):
    path: str
    bytes: int
    sha256: str


class BatchFile(msgspec.Struct, frozen=True):
    """first <= log index < end."""

    first: Index
    end: Index
    file: StoredFile


class ShardPoint(msgspec.Struct, frozen=True):
    """A shard as it was after entry `index`."""

    shard: int
    index: Index
    term: int
    chain: str  #: hex
    time_ms: int  #: leader time, unix
    state: StoredFile
    batches: list[BatchFile]  #: side by side or with holes in which nothing is kept, rising
    end: Index  #: batches below it were asked for

    @property
    def files(self) -> Iterator[StoredFile]:
        yield self.state
        yield from (each.file for each in self.batches)


class Point(msgspec.Struct, frozen=True):
    version: int
    format: int  #: of the store whose rows these are
    gossipq: str  #: version that made it
    cluster: str  #: uuid, hex
    cluster_name: str
    sequence: int
    begun_ms: int  #: unix, by the clock of who made it
    written_ms: int
    shards: list[ShardPoint]

    @property
    def files(self) -> Iterator[StoredFile]:
        for shard in self.shards:
            yield from shard.files


def encode(point: Point) -> bytes:
    return msgspec.json.format(msgspec.json.encode(point), indent=1)


def decode(raw: bytes, name: str) -> Point:
    """Raises StoreError."""
    try:
        point = msgspec.json.decode(raw, type=Point)
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"the point {name} cannot be read: {error}", "move it away: an older one may be whole"
        ) from None
    if point.version > VERSION:
        raise StoreError(
            f"the point {name} was made by gossipq {point.gossipq}", "use that version, or a later"
        )
    return point


def point_path(sequence: int) -> str:
    return f"{POINTS}/{sequence:010}.json"


def sequence_of(name: str) -> int | None:
    found = _POINT.search(name)
    return int(found[1]) if found else None


def state_path(cluster: str, shard: int, index: Index, sha256: str) -> str:
    return f"{STATE}/{cluster}/{shard}-{index}-{sha256[:16]}.gqb"


def batches_path(cluster: str, shard: int, first: Index, end: Index, sha256: str) -> str:
    return f"{BATCHES}/{cluster}/{shard}-{first}-{end}-{sha256[:16]}.gqb"


def batches_of(name: str) -> tuple[int, Index, Index] | None:
    """(shard, first, end) of a file of batches."""
    found = _BATCHES.search(name)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def piece(kind: bytes, rows: bytes) -> bytes:
    return _HEAD.pack(kind, len(rows)) + rows


def pieces(stream: BinaryIO, name: str) -> Iterator[tuple[bytes, list[Any]]]:
    """(kind, rows) one after the other. Raises StoreError."""
    while head := stream.read(_HEAD.size):
        try:
            kind, size = _HEAD.unpack(head)
            yield kind, _DECODERS[kind](stream.read(size))
        except Exception as error:
            raise StoreError(f"{name} is damaged: {error}", "restore an older point: --as-of") from None
