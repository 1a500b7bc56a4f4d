"""Counts and rates that documents tell are those of the files that they come from."""

import json
import re
import subprocess
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from chaos import results
from conftest import HOME
from sim import tally
from sim.planted import PLANTED

BENCHMARKS, PROOF = (HOME / name for name in ("perf/README.md", "docs/internals/testing.md"))
MEASURED = {
    *("e2e-500", "e2e-64", "publish-one", "consume-one", "rtt"),
    *("copies-500", "copies-64", "copies-rtt"),
}
ROW = re.compile(r"^\|(.*)\|$", re.MULTILINE)


def rows(text: str) -> list[list[str]]:
    """The cells of all rows of all tables of a document."""
    return [[cell.strip() for cell in found.split("|")] for found in ROW.findall(text)]


def newest(results_text: str) -> dict[str, tuple[str, str]]:
    """figure -> (rate, share of the raw loop), as the last row of perf/RESULTS.md with that figure has
    them."""
    return {cells[0]: (cells[1], cells[3]) for cells in rows(results_text) if len(cells) == 6}


def told(page: str) -> dict[str, tuple[str, str]]:
    """The same, as the table of perf/README.md has them."""
    table = page[page.index("| figure | what |") :]
    return {
        cells[0]: (cells[2], cells[3]) for cells in rows(table) if len(cells) == 4 and cells[0] in MEASURED
    }


def test_the_benchmarks_page_has_the_newest_figures() -> None:
    measured = newest((HOME / "perf" / "RESULTS.md").read_text("utf-8"))
    assert told(BENCHMARKS.read_text("utf-8")) == {figure: measured[figure] for figure in MEASURED}


def test_the_newest_run_of_each_figure_is_on_top() -> None:
    path = HOME / "perf" / "report.py"
    spec = spec_from_file_location("report", path)
    assert spec is not None
    assert spec.loader is not None
    report = module_from_spec(spec)
    spec.loader.exec_module(report)
    text = (HOME / "perf" / "RESULTS.md").read_text("utf-8")
    assert text == report.whole(text.partition(report.HISTORY)[2])


def test_the_page_on_growth_is_made_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(HOME / "perf"), *sys.path])
    path = HOME / "perf" / "grown.py"
    spec = spec_from_file_location("grown", path)
    assert spec is not None
    assert spec.loader is not None
    grown = module_from_spec(spec)
    spec.loader.exec_module(grown)
    rows = json.loads((HOME / "perf" / "growth.json").read_text("utf-8"))
    simulated = json.loads((HOME / "tests" / "sim" / "sizes.json").read_text("utf-8"))
    assert (HOME / "perf" / "GROWTH.md").read_text("utf-8") == grown.page(rows, simulated)
    for what in {row["what"] for row in rows}:
        assert (HOME / "perf" / f"growth-{what}.svg").exists()


def test_counts_of_fault_runs_are_those_of_the_file() -> None:
    table = [results.HEAD, "|" + "---|" * (results.HEAD.count("|") - 1), results.row(results.runs())]
    assert "\n".join(table) in PROOF.read_text("utf-8"), f"now: {table[-1]}"


def test_times_without_a_confirm_are_those_of_the_file() -> None:
    kinds = results.kinds(results.runs())
    table = [results.KINDS_HEAD, "|" + "---|" * (results.KINDS_HEAD.count("|") - 1), *kinds]
    assert not kinds or "\n".join(table) in PROOF.read_text("utf-8"), "now:\n" + "\n".join(table)


def test_counts_of_simulated_runs_are_those_of_the_file() -> None:
    head = tally.HEAD, "|" + "---|" * (tally.HEAD.count("|") - 1)
    table = [*head, tally.row(tally.runs())]
    assert "\n".join(table) in PROOF.read_text("utf-8"), f"now: {table[-1]}"


def test_hunts_for_planted_bugs_are_those_of_the_file() -> None:
    told = tally.hunted(tally.runs(tally.HUNTS))
    assert told in PROOF.read_text("utf-8").replace("\n", " "), f"now: {told}"


def test_each_planted_bug_was_hunted_and_seen_by_its_check_in_nine_of_ten_tries() -> None:
    hunts = tally.newest_hunts(tally.runs(tally.HUNTS))
    assert set(hunts) == set(PLANTED)
    for name, hunt in hunts.items():
        assert hunt["check"] == PLANTED[name].trips, name
        assert len(hunt["seeds"]) - hunt["seeds"].count(0) >= 9, name


def kills_told(lines: list[str]) -> str:
    """Sums of the runs in tests/export/kills.jsonl, as docs/how-to/export.md shows them."""
    clean = [run for run in map(json.loads, lines) if not run["commit"].endswith("-dirty")]
    runs = [run for run in clean if "failed" not in run]
    kills: Counter[str] = Counter()
    for run in runs:
        kills.update(run["kills"])
    each = ", ".join(f"{count} of `{name}`" for name, count in sorted(kills.items()))
    failed, records = len(clean) - len(runs), sum(run["records"] for run in runs)
    ended = f"in {len(runs)} of {len(clean)} runs; {failed} failed"
    return f"{kills.total()} kills ({each}), {records:,} records, {ended}"


def test_counts_of_killed_exports_are_those_of_the_file() -> None:
    told = kills_told((HOME / "tests" / "export" / "kills.jsonl").read_text("utf-8").splitlines())
    assert told in (HOME / "docs" / "how-to" / "export.md").read_text("utf-8"), f"now: {told}"


def cuts_told(lines: list[str]) -> str:
    """Sums of the runs in tests/power/cuts.jsonl, as docs/internals/testing.md shows them."""
    runs = [json.loads(line) for line in lines]
    cuts = [sum(run["cuts"] for run in runs if run["nodes"] == nodes) for nodes in (1, 3)]
    confirmed, lost = (sum(run["account"][what] for run in runs) for what in ("confirmed", "lost"))
    anomalies = sum(len(run["anomalies"]) for run in runs)
    return (
        f"{cuts[0]} cuts of one node, {cuts[1]} of three nodes at once; {confirmed:,} records confirmed, "
        f"{lost} lost, {anomalies} anomalies in the histories"
    )


def test_counts_of_power_cuts_are_those_of_the_file() -> None:
    told = cuts_told((HOME / "tests" / "power" / "cuts.jsonl").read_text("utf-8").splitlines())
    assert told in PROOF.read_text("utf-8").replace("\n", " "), f"now: {told}"


RUN = {
    "commit": "abc",
    "minutes": 1.7,
    "faults": {"kill": 2, "pause": 1},
    "takeovers": 2,
    "gap_ms": {"of": [900, 2_000, 1_100]},
    "account": {"confirmed": 1_500, "lost": 0, "duplicated": 0, "reordered": 0},
}


def test_simulated_runs_are_summed() -> None:
    run = {"commit": "abc", "seeds": 10, "failed": {}, "counts": {"crash": 1_000, "cut": 3}}
    failed = run | {"commit": "def", "failed": {"17": ["P1"]}}
    found = rows(tally.row([run, failed, run | {"commit": "abc-dirty"}]))
    assert found == [["2", "20", "1", "0", "2,000", "0", "0", "6", "0", "0", "0"]]


@pytest.mark.parametrize(
    ("runs", "cells"),
    [
        ([RUN], ["1", "1", "3", "2", "1,500", "0", "0", "0", "1.1, 2.0", "0"]),
        ([RUN, RUN], ["2", "3", "6", "4", "3,000", "0", "0", "0", "1.1, 2.0", "0"]),
        ([RUN, RUN | {"commit": "abc-dirty"}], ["1", "1", "3", "2", "1,500", "0", "0", "0", "1.1, 2.0", "0"]),
        (
            [RUN, {"commit": "abc", "faults": {"kill": 9}, "failed": "why"}],
            ["1", "1", "3", "2", "1,500", "0", "0", "0", "1.1, 2.0", "1"],
        ),
        ([], ["0", "0", "0", "0", "0", "0", "0", "0", "-", "0"]),
    ],
    ids=["one", "two", "dirty", "failed", "none"],
)
def test_runs_are_summed(runs: list[dict[str, object]], cells: list[str]) -> None:
    assert rows(results.row(runs)) == [cells]


def test_runs_of_one_kind_are_told_apart() -> None:
    kill = RUN | {"kind": "kill"}
    assert rows(results.row([RUN, kill])) == rows(results.row([RUN]))
    failed = {"commit": "abc", "kind": "kill", "failed": "why"}
    found = results.kinds([RUN, kill, kill | {"gap_ms": {"of": [3_000]}}, failed])
    assert found == ["| kill | 4 | 2.0 | 3.0 |"]


def test_the_last_row_of_a_figure_counts() -> None:
    text = "| figure | a | b | c | d | e |\n| rtt | 1/s |  | 0.1 |  | x |\n| rtt | 2/s |  | 0.2 |  | x |\n"
    assert newest(text)["rtt"] == ("2/s", "0.2")


def test_a_file_of_runs_is_read(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"commit": "a"}\n{"commit": "b"}\n')
    assert [run["commit"] for run in results.runs(tmp_path / "results.jsonl")] == ["a", "b"]


def test_what_was_found_names_commits_of_this_repository() -> None:
    table = PROOF.read_text("utf-8").split("## What it found")[1]
    commits = re.findall(r"\| ([0-9a-f]{7}) \|$", table, re.MULTILINE)
    assert len(commits) > 20
    known = subprocess.run(
        ["git", "-C", str(HOME), "rev-list", "HEAD"], capture_output=True, text=True, check=False
    )
    if known.returncode or len(known.stdout.split()) < 50:
        pytest.skip("this is no checkout with its history")
    short = {commit[:7] for commit in known.stdout.split()}
    assert [commit for commit in commits if commit not in short] == []


@pytest.mark.parametrize(("name", "words_max"), [("README.md", 900), ("CHANGELOG.md", 600)])
def test_budgets_of_words(name: str, words_max: int) -> None:
    """Words of prose, without code blocks and the targets of links."""
    text = (HOME / name).read_text("utf-8")
    prose = re.sub(r"```.*?```|\]\([^)]*\)|[|]", "", text, flags=re.DOTALL)
    assert sum(any(map(str.isalnum, word)) for word in prose.split()) <= words_max
