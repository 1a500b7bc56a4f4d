"""What a power cut may leave of what was written: pure, from a journal and a source of chance.

A file keeps what was written before its last sync, and what went through an O_DSYNC write that returned. The
rest may be there or not, sector by sector of 512 bytes; the file may have grown without its new bytes. A
sector is never half new: disks write whole ones, and LMDB relies on that for its meta page, which chooses
between the old state and the new one. A directory keeps the names of its last sync, and of the later changes
any first part: file systems order those, but a sync of a file promises nothing of its name.
"""

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

from power.journal import Entry, Kind

SECTOR = 512
LOCK, LMDB_LOCK = "lock", "lock.mdb"
Image = dict[str, bytes | None]  #: path below the root -> what is in the file; None: a directory


class Write(NamedTuple):
    offset: int
    data: bytearray


class File:
    def __init__(self) -> None:
        self.kept = bytearray()
        self.open: list[Write | int] = []  #: since the last sync: writes, and sizes it was cut to

    def sync(self) -> None:
        for change in self.open:
            self._apply(self.kept, change)
        self.open.clear()

    def wrote(self, offset: int, size: int) -> None:
        """That write lasts. Older ones to the same place are never seen again."""
        last = self._last(offset, size)
        self.open.remove(last)
        for other in self.open:
            if isinstance(other, Write):
                first, end = max(offset, other.offset), min(offset + size, other.offset + len(other.data))
                if first < end:
                    other.data[first - other.offset : end - other.offset] = last.data[
                        first - offset : end - offset
                    ]
        self._apply(self.kept, last)

    def lost(self, offset: int, size: int, chance: "Chance") -> None:
        """A sync failed, or one write (`size` is not 0): what it should bring is there or not from now on."""
        mine = [w for w in self.open if not size or w == self._last(offset, size)]
        for change in mine:
            self._leave(self.kept, change, chance)
            self.open.remove(change)

    def _last(self, offset: int, size: int) -> Write:
        return next(
            w
            for w in reversed(self.open)
            if isinstance(w, Write) and (w.offset, len(w.data)) == (offset, size)
        )

    def left(self, chance: "Chance") -> bytes:
        data = bytearray(self.kept)
        for change in self.open:
            self._leave(data, change, chance)
        return bytes(data)

    def _leave(self, data: bytearray, change: Write | int, chance: "Chance") -> None:
        if isinstance(change, int):
            if chance.keeps():
                self._apply(data, change)
            return
        for first, end in chance.pieces(change.offset, change.offset + len(change.data)):
            self._apply(data, Write(first, change.data[first - change.offset : end - change.offset]))

    def _apply(self, data: bytearray, change: Write | int) -> None:
        size = change if isinstance(change, int) else change.offset + len(change.data)
        if len(data) < size:
            data += bytes(size - len(data))
        if isinstance(change, int):
            del data[size:]
        else:
            data[change.offset : size] = change.data


class Directory:
    def __init__(self) -> None:
        self.kept: dict[str, Node] = {}
        self.now: dict[str, Node] = {}
        #: since the last sync: what became of names, each in one step
        self.open: list[dict[str, Node | None]] = []

    def change(self, names: "dict[str, Node | None]") -> None:
        self.open.append(names)
        self._apply(self.now, names)

    def sync(self) -> None:
        self.kept, self.open = dict(self.now), []

    def left(self, chance: "Chance", path: str = "") -> Image:
        names = dict(self.kept)
        for change in self.open[: chance.first_part(len(self.open))]:
            self._apply(names, change)
        image: Image = {}
        for name, node in names.items():
            if isinstance(node, Directory):
                image |= {path + name: None, **node.left(chance, f"{path}{name}/")}
            else:
                image[path + name] = node.left(chance)
        return image

    def _apply(self, names: "dict[str, Node]", change: "dict[str, Node | None]") -> None:
        for name, node in change.items():
            names.pop(name, None)
            if node is not None:
                names[name] = node


Node = File | Directory


class Chance:
    """How much unsynced data survives: in some images almost none, in some almost all."""

    def __init__(self, random: Random) -> None:
        self._random, self._kept = random, random.choice((0.0, 0.1, 0.5, 0.9, 1.0))

    def keeps(self) -> bool:
        return self._random.random() < self._kept

    def first_part(self, count: int) -> int:
        return count if self.keeps() else self._random.randint(0, count)

    def pieces(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges of [first, end) that are there; an empty one at the end is a file that only grew."""
        if self.keeps():
            yield first, end
            return
        cuts = [first, *range(first - first % SECTOR + SECTOR, end, SECTOR), end]
        sectors = list(pairwise(cuts))
        fate, at = self._random.randrange(5), self._random.randint(0, len(sectors))
        if fate == 1:
            yield end, end
        elif fate == 2:
            yield from sectors[:at]
        elif fate == 3:
            yield from sectors[at:]
        elif fate == 4:
            yield from (sector for sector in sectors if self._random.random() < 0.5)


class Disk:
    """Takes the journal of everything below `root`, entry by entry; between two of them the power may go."""

    def __init__(self, root: str, number: int, lie: Kind | None = None, random: Random | None = None) -> None:
        """`number` is the file number of the root, an empty directory. A lying disk does nothing at
        a SYNC of a file, or at a WROTE. `random` decides how much of LOST data is there.
        """
        self._root, self._lie, self._top = root, lie, Directory()
        self._random = random or Random(0)
        self._nodes: dict[int, Node] = {number: self._top}

    def take(self, entry: Entry) -> None:
        kind = entry.kind
        if kind in (Kind.CREATE, Kind.MKDIR):
            node = self._nodes[entry.file] = File() if kind == Kind.CREATE else Directory()
            directory, name = self._place(entry.path)
            directory.change({name: node})
        elif kind == Kind.RENAME:
            directory, name = self._place(entry.path)
            other, new = self._place(entry.data.decode())
            assert directory is other, "two directories never change in one step"
            directory.change({name: None, new: directory.now[name]})
        elif kind == Kind.REMOVE:
            directory, name = self._place(entry.path)
            directory.change({name: None})
        elif kind == Kind.SYNC:
            node = self._nodes[entry.file]
            if isinstance(node, Directory) or kind != self._lie:
                node.sync()
        elif kind != Kind.MARK and not isinstance(self._nodes[entry.file], Directory):
            self._take_data(entry)

    def _take_data(self, entry: Entry) -> None:
        file = self._nodes[entry.file]
        assert isinstance(file, File)
        if entry.kind == Kind.WRITE:
            file.open.append(Write(entry.offset, bytearray(entry.data)))
        elif entry.kind == Kind.TRUNCATE:
            file.open.append(entry.number)
        elif entry.kind == Kind.LOST:
            file.lost(entry.offset, entry.number, Chance(self._random))
        elif entry.kind != self._lie:
            file.wrote(entry.offset, entry.number)

    def _place(self, path: str) -> tuple[Directory, str]:
        *parents, name = path.removeprefix(self._root).strip("/").split("/")
        directory = self._top
        for parent in parents:
            below = directory.now[parent]
            assert isinstance(below, Directory)
            directory = below
        return directory, name

    def cut(self, random: Random) -> Image:
        """One of the images that a power cut may leave here."""
        return self._top.left(Chance(random))

    def cut_each(self, random: Random) -> dict[str, Image]:
        """The same of each directory below the root, as if it lay on a disk of its own."""
        return {
            name: node.left(Chance(random))
            for name, node in self._top.now.items()
            if isinstance(node, Directory)
        }

    def now(self) -> Image:
        """The image that a process sees while the power is on: all written data."""
        everything = Random()
        everything.random = lambda: -1.0  # type: ignore[method-assign]
        return self._top.left(Chance(everything))


def restore(data: Path, image: Image, random: Random) -> None:
    """The machine is on again. LMDB's lock file is a memory map: anything may be in it."""
    for old in data.iterdir():
        # the manifest knows this file: on another one it would be the copy of a directory
        if old.name != LOCK:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    for name, content in image.items():
        path = data / name
        if content is None:
            path.mkdir()
        elif path.name == LMDB_LOCK:
            path.write_bytes(random.randbytes(random.choice((0, 100, len(content), 8_192))))
        elif name != LOCK:
            path.write_bytes(content)
