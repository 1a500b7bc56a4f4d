"""Backup of a running cluster: asks each shard's leader for a point, and stores what is new.

The register of topics comes last. So a topic that was created during the backup is in the register;
a shard without it asks the register. A topic that was removed meanwhile is missing in the register,
and a restore removes it. Batches that a killed run has stored are found and not fetched again.
Files of a shard that were deleted from the folder are fetched again.

A node that went back to an older copy of its directory (`gossipq store adopt`, a snapshot of its
machine) still belongs to its cluster, but its log has other entries under the same indexes. So the
newest stored batch is compared with the leader's. If they differ, the shard is fetched again.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, BinaryIO, Protocol

import msgspec

from gossipq import __version__
from gossipq.errors import StoreError, WrongState
from gossipq.export_messages import BackedUp, BackUp
from gossipq.types import META_SHARD, Index
from gossipq_node.backup import points
from gossipq_node.backup.folder import BackupFolder, digest_of
from gossipq_node.backup.points import BatchFile, Point, ShardPoint, StoredFile
from gossipq_node.directory import FORMAT

FILE_BYTES = 64 << 20  #: batches in a file, or one piece more
GONE_MAX = 5  #: points of one shard that were dropped in a row

_decode_batches = msgspec.msgpack.Decoder(list[tuple[Index, bytes]]).decode


class BackupSource(Protocol):
    """The requests that a backup sends: `mq.admin.raw`."""

    def status(self) -> Any: ...
    def backup_part(self, shard: int, request: BackUp) -> tuple[BackedUp, bytes]: ...


class Pace:
    """Limits the rate to `rate_bytes_s` bytes a second; 0: no limit."""

    def __init__(
        self,
        rate_bytes_s: int,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate_bytes_s
        self._now_s = now_s
        self._sleep = sleep
        self._free_s = 0.0  # when the next bytes may be requested

    def took(self, size: int) -> None:
        if self._rate:
            now_s = self._now_s()
            self._free_s = max(self._free_s, now_s) + size / self._rate
            if self._free_s > now_s:
                self._sleep(self._free_s - now_s)


class Taken(msgspec.Struct):
    """The result of one run."""

    point: Point
    bytes_new: int = 0
    files_new: int = 0
    files_removed: int = 0


class Backup:
    def __init__(
        self, cluster: BackupSource, folder: BackupFolder, pace: Pace, progress: Callable[[int], None]
    ) -> None:
        """`progress` is called with the bytes done. Raises StoreError for
        another cluster's folder.
        """
        self._cluster = cluster
        self._folder = folder
        self._pace = pace
        self._progress = progress
        self._status = cluster.status()
        self._name = self._status.cluster.hex()
        self._bytes = self._files = 0
        self._points = list(read_points(folder))
        if self._points and self._points[-1].cluster != self._name:
            raise StoreError(
                f"{folder.name} is the backup of another cluster ({self._points[-1].cluster})",
                "give each cluster a folder of its own: --out",
            )

    def run(self, keep_s: float | None = None) -> Taken:
        """Make a point. Raises errors of the cluster and the folder; the next run continues.

        `keep_s`: points older than this are deleted, with files that only
        they need. The newest stays.
        """
        begun_ms = time.time_ns() // 1_000_000
        batches, states = (
            self._folder.names(f"{kind}/{self._name}") for kind in (points.BATCHES, points.STATE)
        )
        there, newest = {*batches, *states}, self._points[-1].shards if self._points else []
        before = {each.shard: each for each in newest if all(file.path in there for file in each.files)}
        left = self._left(batches)
        shards = [*range(META_SHARD + 1, self._status.shards), META_SHARD]
        found = [self._shard(shard, before.get(shard), left.get(shard, {})) for shard in shards]
        sequence = self._points[-1].sequence + 1 if self._points else 1
        name, written_ms = self._status.cluster_name, time.time_ns() // 1_000_000
        point = Point(
            version=points.VERSION,
            format=FORMAT,
            gossipq=__version__,
            cluster=self._name,
            cluster_name=name,
            sequence=sequence,
            begun_ms=begun_ms,
            written_ms=written_ms,
            shards=found,
        )
        self._folder.create(points.point_path(sequence), points.encode(point))
        self._points.append(point)
        removed = self._forget(written_ms - round(keep_s * 1_000)) if keep_s is not None else 0
        return Taken(point, self._bytes, self._files, removed)

    def _left(self, batches: list[str]) -> dict[int, dict[Index, list[tuple[Index, str]]]]:
        """Return the existing files of batches: shard -> first -> (end, name)."""
        found: dict[int, dict[Index, list[tuple[Index, str]]]] = {}
        for name in batches:
            if (told := points.batches_of(name)) is not None:
                shard, first, end = told
                found.setdefault(shard, {}).setdefault(first, []).append((end, name))
        return found

    # --- a shard

    def _shard(
        self, shard: int, before: ShardPoint | None, left: dict[Index, list[tuple[Index, str]]]
    ) -> ShardPoint:
        files = list(before.batches) if before is not None else []
        end = before.end if before is not None else 0
        while (again := self._adopted(left.get(end, []))) is not None:
            files.append(again)
            end = again.end
        for _ in range(GONE_MAX):
            told, _ = self._cluster.backup_part(shard, BackUp())
            if before is not None and (told.index, told.chain.hex()) == (before.index, before.chain):
                return before
            try:
                state, kept = self._state(shard, told)
                if not self._goes_on(shard, told, kept[: bisect_left(kept, end)], files):
                    files, end = [], 0
                if kept and kept[-1] >= end:
                    for file in self._batches(shard, told, end):
                        files.append(file)
                        end = file.end
                end = told.index + 1
            except WrongState:
                continue  # the leader changed; stored batches stay valid
            needed = [file for file in files if _holds(kept, file)]
            told_chain = told.chain.hex()
            return ShardPoint(
                shard=shard,
                index=told.index,
                term=told.term,
                chain=told_chain,
                time_ms=told.time_ms,
                state=state,
                batches=needed,
                end=end,
            )
        raise StoreError(f"shard {shard} changes its leader again and again", "gossipq cluster ls")

    def _goes_on(self, shard: int, told: BackedUp, brought: list[Index], files: list[BatchFile]) -> bool:
        """True if the newest fetched batch that still exists equals the
        leader's. Raises WrongState.
        """
        if not brought:
            return True
        index = brought[-1]
        for _, rows in self._parts(shard, told, "batches", index):
            found = _decode_batches(rows)[0]
            return any(found in self._rows(file) for file in files if file.first <= index < file.end)
        return False

    def _rows(self, file: BatchFile) -> Iterator[tuple[Index, bytes]]:
        """Yield the rows of a file up to the first damaged one."""
        with suppress(StoreError), self._folder.fetched(file.file.path).open("rb") as stream:
            for _, rows in points.pieces(stream, file.file.path):
                yield from rows

    def _adopted(self, there: list[tuple[Index, str]]) -> BatchFile | None:
        """Return the longest intact file from an index on, which a killed run stored."""
        for end, name in sorted(there, reverse=True):
            _, first, _ = points.batches_of(name) or (0, 0, 0)
            path = self._folder.fetched(name)
            sha256 = digest_of(path)
            if name.endswith(f"-{sha256[:16]}.gqb"):
                return BatchFile(first, end, StoredFile(name, path.stat().st_size, sha256))
        return None

    def _parts(self, shard: int, told: BackedUp, kind: str, at: int = 0) -> Iterator[tuple[BackedUp, bytes]]:
        """Yield the parts of a point. Raises WrongState if it was dropped."""
        while at >= 0:
            answer, rows = self._cluster.backup_part(shard, BackUp(told.index, kind, at))
            self._pace.took(len(rows))
            self._bytes += len(rows)
            self._progress(self._bytes)
            yield answer, rows
            at = answer.more

    def _state(self, shard: int, told: BackedUp) -> tuple[StoredFile, list[Index]]:
        written, kept = self._folder.new(), list[Index]()
        with written.open("wb") as stream:
            for _, rows in self._parts(shard, told, "state"):
                if rows:
                    stream.write(points.piece(points.STATE_PIECE, rows))
            for _, rows in self._parts(shard, told, "kept"):
                stream.write(points.piece(points.KEPT_PIECE, rows))
                kept += msgspec.msgpack.decode(rows, type=list[int])
        sha256, size = digest_of(written), written.stat().st_size
        name = points.state_path(self._name, shard, told.index, sha256)
        self._folder.keep(written, name)
        self._files += 1
        return StoredFile(name, size, sha256), kept

    def _batches(self, shard: int, told: BackedUp, first: Index) -> Iterator[BatchFile]:
        """Yield the batches from `first` on, in files of FILE_BYTES. Empty files are not made."""
        if first > told.index:
            return
        parts = self._parts(shard, told, "batches", first)
        while first <= told.index:
            written = self._folder.new()
            with written.open("wb") as stream:
                end = self._filled(stream, parts, told.index + 1)
            sha256, size = digest_of(written), written.stat().st_size
            name = points.batches_path(self._name, shard, first, end, sha256)
            self._folder.keep(written, name)
            self._files += 1
            yield BatchFile(first, end, StoredFile(name, size, sha256))
            first = end

    @staticmethod
    def _filled(stream: BinaryIO, parts: Iterator[tuple[BackedUp, bytes]], last: Index) -> Index:
        """Fill a file. Returns the first index of the next one."""
        for answer, rows in parts:
            stream.write(points.piece(points.BATCH_PIECE, rows))
            if answer.more < 0:
                return last
            if stream.tell() >= FILE_BYTES:
                return answer.more
        return last

    # --- deletion

    def _forget(self, before_ms: int) -> int:
        """Delete older points, then files that no point needs.

        After a crash in between, the next run deletes the files.
        """
        kept = [point for point in self._points[:-1] if point.written_ms >= before_ms] + self._points[-1:]
        for point in self._points:
            if point not in kept:
                self._folder.remove(points.point_path(point.sequence))
        self._points = kept
        named = {file.path for file in chain.from_iterable(point.files for point in kept)}
        gone = [
            name
            for folder in (points.STATE, points.BATCHES)
            for name in self._folder.forgotten(folder)
            if name not in named
        ]
        for name in gone:
            self._folder.remove(name)
        return len(gone)


def _holds(kept: list[Index], file: BatchFile) -> bool:
    """True if one of the rising indexes is in the file."""

    at = bisect_left(kept, file.first)
    return at < len(kept) and kept[at] < file.end


def read_points(folder: BackupFolder) -> Iterator[Point]:
    """Yield the points, oldest first. Raises StoreError."""
    for name in folder.names(points.POINTS):
        if points.sequence_of(name) is not None:
            yield points.decode(folder.fetched(name).read_bytes(), name)
