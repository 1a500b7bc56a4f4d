"""`gossipq export --format prettyq`: files for prettyQ's reader."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from gossipq_cli.failures import Failure
from gossipq_dialects.prettyq import wire

if TYPE_CHECKING:
    from gossipq_client import Client


class Folder:
    """New files of one partition. One pair is open at a time."""

    def __init__(self, path: Path) -> None:
        self._path, self._stem = path, ""
        self._open: list[BinaryIO] = []
        path.mkdir(parents=True, exist_ok=True)

    def write(self, pieces: list[wire.Piece]) -> None:
        """Write the pieces. Raises Failure if a file exists."""
        for piece in pieces:
            if piece.stem != self._stem:
                self.close()
                self._stem = piece.stem
                self._open = [self._made(f"{piece.stem}.data"), self._made(f"{piece.stem}.idx")]
            self._open[0].write(piece.data)
            self._open[1].write(piece.line)

    def close(self) -> None:
        for file in self._open:
            file.close()
        self._open = []

    def _made(self, name: str) -> BinaryIO:
        try:
            return open(self._path / name, "xb")
        except FileExistsError:
            told = f"{self._path / name} is there already"
            raise Failure("usage", told, "prettyQ's files are written once: name another --out") from None


def export(mq: "Client", topics: list[str], out: Path, file_bytes: int = wire.FILE_BYTES) -> int:
    """Write OUT/PARTITION/TOPIC_START.data and .idx of each topic.
    Returns the number of records.
    """
    count = 0
    for topic in topics:
        for partition in mq.topic(topic).positions():
            layout = wire.Layout(topic, file_bytes)
            with closing(Folder(out / str(partition))) as folder:
                for stretch in mq.read(topic).batches(partition):
                    for number, data in enumerate(stretch.values(), stretch.first):
                        folder.write(layout.put(number, data))
                        count += 1
                folder.write(layout.end())
    return count
