"""The shape of everything that gossipq sends or stores, beside the version that names it.

formats.json is the record of it. `python tests/release/formats.py` compares, and writes it anew. It refuses a
change that an older version could not read, unless the version of the format was raised. `--renamed` accepts
fields of which the name alone changed.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from struct import Struct
from types import ModuleType
from typing import Any

import msgspec

FILE = Path(__file__).with_name("formats.json")
Shapes = dict[str, list[str]]


def shape_of(kind: type[msgspec.Struct]) -> list[str]:
    """Return the fields in their order: "name: type = default"."""
    from vectors.make import default_name, type_name

    rows = []
    for field in msgspec.structs.fields(kind):
        default = "" if field.required else f" = {default_name(field)}"
        rows.append(f"{field.encode_name}: {type_name(field.type)}{default}")
    return rows


def structs(*modules: ModuleType) -> Shapes:
    """Return the shapes of the array-like structs of `modules`: each of them is sent or stored."""
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": shape_of(kind)
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind.__module__ == module.__name__
        and kind.__struct_config__.array_like
    }


def documents(*kinds: type[msgspec.Struct]) -> Shapes:
    """Return the shapes of structs that are stored as JSON: their names count, their order does not."""
    return {f"{kind.__name__} {{}}": sorted(shape_of(kind)) for kind in kinds}


def packed(**parts: Struct) -> Shapes:
    return {name: [part.format] for name, part in parts.items()}


def constants(module: ModuleType, names: Iterable[str]) -> Shapes:
    """Return the values of `names`: numbers of kinds, prefixes of keys. Each is a shape of its own."""
    return {name: [repr(getattr(module, name))] for name in sorted(names)}


def current() -> dict[str, dict[str, Any]]:
    """Return the version and the shapes of each format, as the code has them."""
    from gossipq import export_messages, messages, operator_messages, peer_messages, values
    from gossipq.core.ledger import dedup, id_index, records
    from gossipq.core.raft import cluster_time
    from gossipq.core.storage import log, payloads
    from gossipq.wire import batch, export, frames
    from gossipq_node import directory, files
    from gossipq_node.adapters import journal
    from gossipq_node.backup import points

    verbs = {f"verb {number}": [kind.__name__] for number, kind in messages.MESSAGES.items()}
    others = {"VERSION", "CHAIN_BYTES", "ROW_HEAD_BYTES", "DELAY"}
    kinds = {name for name, value in vars(log).items() if name.isupper() and isinstance(value, int)} - others
    prefixes = [name for name, value in vars(records).items() if name.isupper() and isinstance(value, bytes)]
    found: dict[str, tuple[int | str, Shapes]] = {
        "protocol": (
            frames.VERSION,
            packed(HEADER=frames.HEADER)
            | verbs
            | structs(messages, peer_messages, operator_messages, export_messages, values),
        ),
        "batch": (batch.MAGIC.hex(), packed(HEADER=batch.HEADER)),
        "log": (
            log.VERSION,
            packed(HEAD=log.HEAD, KEY=log.INDEX_KEY, PUBLISH=log.PUBLISH_PAYLOAD, DUE=log.DUE_PAYLOAD)
            | constants(log, kinds)
            | structs(payloads),
        ),
        "store": (
            directory.FORMAT,
            packed(
                SLICE=records.SLICE,
                ID=records.ID,
                ID_ENTRY=records.ID_ENTRY,
                ID_BATCH=records.ID_BATCH,
                PLACE=records.PLACE,
                COUNT=records.COUNT,
                ID_NAME=id_index.NAME,
                ID_ROW=id_index.ROW,
                HASH=dedup.HASH,
            )
            | constants(records, prefixes)
            | structs(records, cluster_time)
            | documents(directory.DirectoryManifest, files.SavedRoster),
        ),
        "journal": (
            journal._FILE_MAGIC.decode(),
            packed(HEAD=journal._HEAD, FILE_HEAD=journal._FILE_HEAD),
        ),
        "backup": (
            points.VERSION,
            packed(PIECE=points._HEAD)
            | documents(points.Point, points.ShardPoint, points.BatchFile, points.StoredFile),
        ),
        "export": (
            export.VERSION,
            documents(export.Manifest, export.File, export.Newest, export.Position, export.Gap),
        ),
    }
    return {name: {"version": version, "shapes": shapes} for name, (version, shapes) in found.items()}


def recorded() -> dict[str, dict[str, Any]]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def breaks(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the changes for which the version of the format has to be raised, if it was not.

    An appended field with a default, and an added shape, need no new version.
    """
    if before["version"] != after["version"]:
        return []
    found = []
    for name, rows in before["shapes"].items():
        new = after["shapes"].get(name)
        if new is None:
            found.append(f"{name} is gone")
            continue
        kept = [row for row in new if row in rows] if name.endswith("{}") else new[: len(rows)]
        added = [row for row in new if row not in rows] if name.endswith("{}") else new[len(rows) :]
        if kept != rows:
            found.append(f"{name} was {rows} and is {new}")
        found += [f"{name} has a new field without a default: {row}" for row in added if " = " not in row]
    return found


def unnamed(formats: dict[str, Any]) -> dict[str, Any]:
    """Return `formats` without the names of fields of arrays: they are not sent."""
    shapes = {
        name: rows if name.endswith("{}") else [row.partition(": ")[2] or row for row in rows]
        for name, rows in formats["shapes"].items()
    }
    return {"version": formats["version"], "shapes": shapes}


def main(words: list[str]) -> int:
    before, after = recorded(), current()
    view = unnamed if "--renamed" in words else dict
    broken = {name: found for name in before if (found := breaks(view(before[name]), view(after[name])))}
    for name, found in broken.items():
        print(
            f"error: the format {name} changed, and its version did not", *found, sep="\n  ", file=sys.stderr
        )
    if broken:
        print(" hint: docs/reference/compatibility.md says which version to raise", file=sys.stderr)
        return 1
    FILE.write_text(json.dumps(after, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.path[:0] = [str(FILE.parents[2] / root) for root in ("", "nodes", "clients/python", "tests")]
    sys.exit(main(sys.argv[1:]))
