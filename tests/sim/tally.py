"""What the runs in seeds.jsonl add up to: `python tests/sim/tally.py` prints the row that docs/GUARANTEES.md
has of it.

Runs on committed code count, and no others. A seed that failed once is counted for good, whatever mended it.
"""

import json
from pathlib import Path
from typing import Any

SEEDS = Path(__file__).with_name("seeds.jsonl")
COUNTED = ("takeover", "crash", "power", "failed commit", "cut", "pause", "confirmed", "acked")
HEAD = (
    "| commits | seeds | failed | takeovers | crashes | of machines | failed commits | cuts | pauses | "
    "confirmed | acked |"
)


def runs(path: Path = SEEDS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def row(rows: list[dict[str, Any]]) -> str:
    """One row of a table in Markdown, columns as in HEAD."""
    clean = [run for run in rows if not run["commit"].endswith("-dirty")]
    counts = [
        len({run["commit"] for run in clean}),
        sum(run["seeds"] for run in clean),
        sum(len(run["failed"]) for run in clean),
        *(sum(run["counts"].get(what, 0) for run in clean) for what in COUNTED),
    ]
    return "| " + " | ".join(f"{count:,}" for count in counts) + " |"


if __name__ == "__main__":
    print(HEAD, row(runs()), sep="\n")
