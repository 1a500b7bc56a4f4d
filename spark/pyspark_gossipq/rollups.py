"""Small results that are kept for dashboards, which need no JVM to show them.

    DIR/growth.json  status.json  latency.json  dead.json
    {"version": 1, "kind": "growth", "made_at": "2026-11-21T09:00:00+00:00", "source": "export",
     "columns": ["topic", "day", "records", ...], "rows": [["orders", "2026-11-20", 17, ...], ...]}
    DIR/latency.parquet/     the sketches behind latency.json, which can be merged with others

Days and times are ISO texts, counts whole numbers. A file is replaced atomically.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

import msgspec

from gossipq.errors import ExportError
from gossipq.wire.export import Gap
from pyspark_gossipq.folders import Folder

VERSION = 1


class RollUp(msgspec.Struct, frozen=True):
    kind: str
    made_at: str
    source: str
    columns: list[str]
    rows: list[list[Any]]
    version: int = VERSION
    #: records that are not counted, because retention removed them before they were exported
    gaps: list[Gap] = []

    def dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def save(
    folder: str,
    kind: str,
    source: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    gaps: Sequence[Gap] = (),
) -> str:
    """Write a roll-up. Returns the path of the file."""
    target = Folder(folder)
    plain_rows = [[plain(row[name]) for name in columns] for row in rows]
    made = RollUp(
        kind,
        datetime.now(UTC).isoformat(timespec="seconds"),
        source,
        list(columns),
        plain_rows,
        gaps=list(gaps),
    )
    target.system.create_dir(target.root, recursive=True)
    path = target.locate(f"{kind}.json")
    with target.system.open_output_stream(f"{path}.new") as stream:
        stream.write(msgspec.json.encode(made))
    target.system.move(f"{path}.new", path)
    return f"{target.path}/{kind}.json"


def load(folder: str, kind: str) -> RollUp:
    """Read a roll-up. Raises ExportError for a later version,
    FileNotFoundError if it is missing.
    """
    source = Folder(folder)
    with source.system.open_input_stream(source.locate(f"{kind}.json")) as stream:
        made = msgspec.json.decode(stream.read(), type=RollUp)
    if made.version > VERSION:
        raise ExportError(f"{folder}/{kind}.json has version {made.version}", hint="pip install -U gossipq")
    return made


def plain(value: Any) -> Any:
    """Convert a value to JSON."""
    if isinstance(value, datetime):  # Spark returns local time
        return value.astimezone(UTC).isoformat()
    return value.isoformat() if isinstance(value, date) else value
