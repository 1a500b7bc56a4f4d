"""What the runs in results.jsonl add up to: `python tests/chaos/results.py` prints the row that
docs/internals/testing.md has of it, and its rows for each kind of fault.

Runs on committed code count, and no others: whoever wants to see one again can check out what ran. Of a run
that ended early nothing but that is counted, since it has no account.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.jsonl")
HEAD = (
    "| runs | minutes | faults | takeovers | confirmed | lost | duplicated | reordered "
    "| s without a confirm: p50, max | ended early |"
)
KINDS_HEAD = "| kind of fault | faults | s without a confirm: p50 | max |"


def runs(path: Path = RESULTS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def committed(run: dict[str, Any]) -> bool:
    """True if the run tested committed code."""
    return not run["commit"].endswith("-dirty")


def row(rows: list[dict[str, Any]]) -> str:
    """One row of a table in Markdown, columns as in HEAD; of runs with faults of all kinds."""
    clean = [run for run in rows if committed(run) and "kind" not in run]
    ended = [run for run in clean if "failed" not in run]
    accounts = [run["account"] for run in ended]
    gaps_ms = sorted(gap for run in ended for gap in run["gap_ms"]["of"])
    counts = [
        len(ended),
        int(sum(run["minutes"] for run in ended)),
        sum(sum(run["faults"].values()) for run in ended),
        sum(run["takeovers"] for run in ended),
        *(
            sum(account[what] for account in accounts)
            for what in ("confirmed", "lost", "duplicated", "reordered")
        ),
    ]
    gap = f"{gaps_ms[len(gaps_ms) // 2] / 1000:.1f}, {gaps_ms[-1] / 1000:.1f}" if gaps_ms else "-"
    return "| " + " | ".join([*(f"{count:,}" for count in counts), gap, f"{len(clean) - len(ended)}"]) + " |"


def kinds(rows: list[dict[str, Any]]) -> list[str]:
    """Rows of a table in Markdown, columns as in KINDS_HEAD: one for each kind of fault, over all runs of it
    alone."""
    gaps_ms: dict[str, list[int]] = {}
    for run in rows:
        if committed(run) and "kind" in run and "failed" not in run:
            gaps_ms.setdefault(run["kind"], []).extend(run["gap_ms"]["of"])
    return [
        f"| {kind.replace('_', ' ')} | {len(gaps)} | {sorted(gaps)[len(gaps) // 2] / 1000:.1f} | "
        f"{max(gaps) / 1000:.1f} |"
        for kind, gaps in sorted(gaps_ms.items())
    ]


if __name__ == "__main__":
    print(HEAD, row(runs()), KINDS_HEAD, *kinds(runs()), sep="\n")
