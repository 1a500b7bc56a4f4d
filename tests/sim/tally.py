"""Adds up the runs in seeds.jsonl and the hunts in hunts.jsonl: `python tests/sim/tally.py` prints
the rows for docs/internals/testing.md.

Only runs on committed code count. A seed that failed once stays counted after the fix; for each
bug the newest hunt counts.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any

SEEDS, HUNTS = (Path(__file__).with_name(name) for name in ("seeds.jsonl", "hunts.jsonl"))
COUNTED = ("takeover", "crash", "power", "failed commit", "cut", "pause", "confirmed", "acked")
HEAD = (
    "| commits | seeds | failed | takeovers | crashes | of machines | failed commits | cuts | pauses | "
    "confirmed | acked |"
)


def runs(path: Path = SEEDS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def row(rows: list[dict[str, Any]]) -> str:
    """One row of a Markdown table, with the columns of HEAD."""
    clean = [run for run in rows if not run["commit"].endswith("-dirty")]
    counts = [
        len({run["commit"] for run in clean}),
        sum(run["seeds"] for run in clean),
        sum(len(run["failed"]) for run in clean),
        *(sum(run["counts"].get(what, 0) for run in clean) for what in COUNTED),
    ]
    return "| " + " | ".join(f"{count:,}" for count in counts) + " |"


HUNTS_HEAD = "| rule that is broken | seen by | caught | seeds it took, median | at most |"


def newest_hunts(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The newest hunt for each planted bug, by its name."""
    return {hunt["bug"]: hunt for hunt in rows if not hunt["commit"].endswith("-dirty")}


def hunt_rows(rows: list[dict[str, Any]]) -> list[str]:
    """Rows of a Markdown table, with the columns of HUNTS_HEAD."""
    told = []
    for name, hunt in sorted(newest_hunts(rows).items()):
        took = [count for count in hunt["seeds"] if count] or [0]
        caught = f"{len(took)} of {len(hunt['seeds'])}"
        told.append(f"| `{name}` | {hunt['check']} | {caught} | {median(took):.0f} | {max(took)} |")
    return told


def hunted(rows: list[dict[str, Any]]) -> str:
    """All hunts in one sentence."""
    tries = [count for hunt in newest_hunts(rows).values() for count in hunt["seeds"]]
    took = [count for count in tries if count]
    return (
        f"{len(newest_hunts(rows))} rules broken on purpose, {len(tries)} tries: {len(took)} seen by the "
        f"check that they name, after {median(took):.0f} seeds (median), {max(took)} at most"
    )


if __name__ == "__main__":
    print(HEAD, row(runs()), HUNTS_HEAD, *hunt_rows(runs(HUNTS)), hunted(runs(HUNTS)), sep="\n")
