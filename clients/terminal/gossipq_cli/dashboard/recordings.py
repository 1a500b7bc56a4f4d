"""Recordings: snapshots as lines of JSON, mostly as differences to the line before. Pure.

The first snapshot is complete, and so is every WHOLE_EVERY-th, so that replay can start in the
middle. The lines between have `patch`: a merge patch (RFC 7386) over the snapshot, in which lists
of rows are objects with the names of their rows as keys.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from gossipq_ops.rows import Snapshot

WHOLE_EVERY = 120  #: lines: a seek reads at most this many
#: lists of rows -> the fields that name a row
NAMED: Mapping[str, Sequence[str]] = {
    "nodes": ("name",),
    "workers": ("node", "worker"),
    "shards": ("shard",),
    "topics": ("name",),
    "partitions": ("topic", "partition"),
    "groups": ("topic", "group", "partition"),
    "clients": ("session", "node", "worker"),
    "alarms": ("name", "node", "subject"),
    "events": ("time_ms", "kind", "who"),
    "growth_hours": ("time_ms",),
    "growth_minutes": ("time_ms",),
}

Tree = dict[str, Any]


class Line(msgspec.Struct):
    """The fields of a line that are needed to find it."""

    time_ms: int
    patch: msgspec.Raw = msgspec.Raw()  #: empty in a whole snapshot


def tree_of(snapshot: Snapshot) -> Tree:
    """Convert lists of rows to objects. A list in which two rows have one name stays a list."""
    tree: Tree = msgspec.to_builtins(snapshot)
    for field, names in NAMED.items():
        rows = getattr(snapshot, field)
        keys = ["\t".join(str(getattr(row, name)) for name in names) for row in rows]
        if len(set(keys)) == len(keys) and field in tree:
            tree[field] = dict(zip(keys, tree[field], strict=True))
    return tree


def snapshot_of(tree: Tree) -> Snapshot:
    """Convert back; rows are ordered by name. Raises ValueError."""
    plain = tree | {field: list(tree[field].values()) for field in NAMED if isinstance(tree.get(field), dict)}
    return ordered(msgspec.convert(plain, Snapshot))


def ordered(snapshot: Snapshot) -> Snapshot:
    """Order the rows by name."""
    lists = {
        field: sorted(getattr(snapshot, field), key=attrgetter(*names)) for field, names in NAMED.items()
    }
    return msgspec.structs.replace(snapshot, **lists)


def patch_of(before: Tree, now: Tree) -> Tree:
    """Return the patch between two trees. Values are never null."""
    patch: Tree = dict.fromkeys(before.keys() - now.keys())
    for name, value in now.items():
        was = before.get(name)
        if isinstance(value, dict) and isinstance(was, dict):
            inner = patch_of(was, value)
            if inner:
                patch[name] = inner
        elif name not in before or was != value:
            patch[name] = value
    return patch


def patched(tree: Tree, patch: Tree) -> Tree:
    """Return a patched copy, which shares unchanged parts with the tree."""
    found = dict(tree)
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, dict):
            was = found.get(name)
            found[name] = patched(was if isinstance(was, dict) else {}, value)
        else:
            found[name] = value
    return found


class Writer:
    """Writes snapshots as lines."""

    def __init__(self) -> None:
        self._before: Tree = {}
        self._count = 0

    def line(self, snapshot: Snapshot) -> bytes:
        """Return the next line with its newline."""
        now = tree_of(snapshot)
        if self._count % WHOLE_EVERY == 0:
            text = msgspec.json.encode(snapshot)
        else:
            patch = patch_of(self._before, now)
            text = msgspec.json.encode({"time_ms": snapshot.time_ms, "patch": patch})
        self._before, self._count = now, self._count + 1
        return text + b"\n"


class Recording(Sequence[Snapshot]):
    """The snapshots of a recording, decoded on demand: a day of them does not fit into memory."""

    def __init__(self, data: bytes) -> None:
        """Raises ValueError naming the line. A truncated last line is ignored."""
        self._lines: list[bytes] = []
        self._whole: list[int] = []  #: numbers of complete snapshots
        self.times_ms: list[int] = []
        texts = data.splitlines(keepends=True)
        for number, text in enumerate(texts, 1):
            if not text.strip():
                continue
            try:
                line = msgspec.json.decode(text, type=Line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if self._lines and number == len(texts) and text[:1] == b"{" and text[-1:] != b"\n":
                    break
                raise ValueError(f"line {number} is no snapshot: {error}") from None
            if not bytes(line.patch):
                self._whole.append(len(self._lines))
            elif not self._whole:
                raise ValueError(f"line {number} says what changed, and there is nothing before it")
            self._lines.append(text)
            self.times_ms.append(line.time_ms)
        if not self._lines:
            raise ValueError("it has no snapshots")
        self._at, self._tree = -1, Tree()
        self[0]
        self[-1]

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, at: Any) -> Any:
        """Raises ValueError for an invalid line."""
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        whole = self._whole[bisect_right(self._whole, at) - 1]
        if not whole <= self._at <= at:
            self._at, self._tree = whole - 1, {}
        while self._at < at:
            self._step()
        return snapshot_of(self._tree)

    def _step(self) -> None:
        number = self._at + 1
        try:
            found = msgspec.json.decode(self._lines[number])
            if "patch" in found:
                self._tree = patched(self._tree, found["patch"] | {"time_ms": found["time_ms"]})
            else:
                self._tree = tree_of(msgspec.convert(found, Snapshot))
        except (msgspec.DecodeError, TypeError) as error:
            raise ValueError(f"snapshot {number + 1} cannot be read: {error}") from None
        self._at = number

    def at_ms(self, time_ms: int) -> int:
        """Return the number of the last snapshot up to a time, or the first if all are later."""
        return max(0, bisect_right(self.times_ms, time_ms) - 1)


def written(snapshots: Iterable[Snapshot]) -> bytes:
    """Return all snapshots as one recording."""
    writer = Writer()
    return b"".join(map(writer.line, snapshots))
