"""The files of a backup.

    points/0000000007.json               one run: lists everything that a restore needs
    state/CLUSTER/SS-INDEX-SHA.gqb       state of shard SS after entry INDEX, and its batches' indexes
    batches/CLUSTER/SS-FIRST-END-SHA.gqb batches of a shard by log index, FIRST <= index < END

A file is valid if a point names it. Points are written last and never changed. A file consists
of pieces as the leaders sent them: a letter (S state, K kept, B batches), u32 bytes, and a
msgpack array; little endian. Batches never change, so each run fetches only new ones, and a
point names all that it needs.
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
    """Batches with first <= log index < end."""

    first: Index
    end: Index
    file: StoredFile


class ShardPoint(msgspec.Struct, frozen=True):
    """A shard as it was after entry `index`."""

    shard: int
    index: Index
    term: int
    chain: str  #: in hex
    time_ms: int  #: leader time, unix
    state: StoredFile
    batches: list[BatchFile]  #: rising, with holes where no batch is kept
    end: Index  #: batches below this index were fetched

    @property
    def files(self) -> Iterator[StoredFile]:
        yield self.state
        yield from (each.file for each in self.batches)


class Point(msgspec.Struct, frozen=True):
    version: int
    format: int  #: format of the store with these rows
    gossipq: str  #: version that wrote it
    cluster: str  #: uuid in hex
    cluster_name: str
    sequence: int
    begun_ms: int  #: unix, by the clock of the machine that made it
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
    """Return (shard, first, end) of a file of batches."""
    found = _BATCHES.search(name)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def piece(kind: bytes, rows: bytes) -> bytes:
    return _HEAD.pack(kind, len(rows)) + rows


def pieces(stream: BinaryIO, name: str) -> Iterator[tuple[bytes, list[Any]]]:
    """Yield (kind, rows) of each piece. Raises StoreError."""
    while head := stream.read(_HEAD.size):
        try:
            kind, size = _HEAD.unpack(head)
            yield kind, _DECODERS[kind](stream.read(size))
        except Exception as error:
            raise StoreError(f"{name} is damaged: {error}", "restore an older point: --as-of") from None
