"""Results of `gossipq client conformance -o jsonl` for each client, kept in
results.jsonl and shown in its README.

    gossipq client conformance --driver CMD --takeovers 20 -o jsonl | \\
        PYTHONPATH=tests python -m bindings.report c
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS, CLIENTS = HERE / "results.jsonl", HERE.parents[1] / "clients"
TABLE = re.compile(r"^    level +trial .*\n(?:    .+\n?)+", re.MULTILINE)
HEAD = ("level", "trial", "passed", "records", "takeovers")

Row = dict[str, Any]


def results() -> dict[str, list[Row]]:
    """Client -> its rows, in the order of the trials."""
    found: dict[str, list[Row]] = {}
    for line in RESULTS.read_text("utf-8").splitlines():
        row = json.loads(line)
        found.setdefault(row.pop("client"), []).append(row)
    return found


def table(rows: list[Row]) -> str:
    cells = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "".join(f"    {line}".rstrip() + "\n" for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    counts = (f"{row[name]:,}" if row[name] else "" for name in ("records", "takeovers"))
    return (row["level"], row["trial"], "yes" if row["passed"] else "NO", *counts)


def shown(client: str) -> str:
    """The table in the client's README; "" = none."""
    found = TABLE.search((CLIENTS / client / "README.md").read_text("utf-8"))
    return found.group() if found else ""


def keep(client: str, lines: list[str]) -> None:
    kept = results() | {client: [json.loads(line) for line in lines]}
    text = "".join(
        json.dumps({"client": name} | row) + "\n" for name, rows in sorted(kept.items()) for row in rows
    )
    RESULTS.write_text(text, "utf-8")
    readme = CLIENTS / client / "README.md"
    if readme.exists():
        before = readme.read_text("utf-8")
        readme.write_text(TABLE.sub(lambda _: table(kept[client]), before), "utf-8")


if __name__ == "__main__":
    keep(sys.argv[1], sys.stdin.read().splitlines())
