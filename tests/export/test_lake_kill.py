"""All that writes a lake, killed in turn: exports, followers that merge and commit to Iceberg, merging, and
Spark's import. Afterwards every confirmed record is in each of them once.

    LAKE_KILLS=100 GOSSIPQ_RESULTS=tests/export/kills.jsonl python -m pytest tests/export/test_lake_kill.py
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="exports need pyarrow")
pytest.importorskip("pyiceberg", reason="tables need pyiceberg")

from conftest import HOME, ROOTS
from export.reading import values
from export.test_export_kill import Load, export, finish
from gossipq_client import connect
from gossipq_node.export import iceberg
from gossipq_node.export.folder import Folder

KILLS = int(os.environ.get("LAKE_KILLS", "0"))
SPARK_EVERY = 10  #: one kill of ten hits an import
FOLLOW = ("--follow", "--every", "0.01s", "--roll", "0s", "--base", "0.2s", "--keep", "0s")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(3_600),
    pytest.mark.skipif(not KILLS, reason="LAKE_KILLS=20 runs it; two runs failed at their end"),
]


def spark_import(out: Path, table: Path) -> "subprocess.Popen[str]":
    paths = os.pathsep.join(str(HOME / root) for root in (*ROOTS, "spark"))
    words = [sys.executable, "-m", "gossipq_cli", "-q", "spark", "import", str(out), str(table)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": paths}, text=True, start_new_session=True, **pipes
    )


def await_all(process: "subprocess.Popen[str]") -> None:
    """Its Java process outlives it for a moment, and writes: two imports at once fail, and lose nothing."""
    deadline_s = time.monotonic() + 300
    while True:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < deadline_s, "a process of an import that was killed does not end"
        time.sleep(0.05)


def turns(node: Any, out: Path, tables: Path, table: Path) -> Iterator[tuple[str, Any, float]]:
    """The processes to start, and the longest life of each."""
    ways = [
        ("export", lambda: export(node, out), 0.9),
        ("follow", lambda: export(node, out, *FOLLOW, "--iceberg", str(tables)), 4.0),
        ("compact", lambda: export(node, out, "--compact"), 0.7),
    ]
    for number in range(KILLS):
        if number % SPARK_EVERY == SPARK_EVERY - 1 and shutil.which("java"):
            yield "spark import", lambda: spark_import(out, table), 30.0
        else:
            yield ways[number % len(ways)]


def rows_of(table: Any) -> dict[tuple[str, int, int], bytes]:
    """Place -> value; no record twice."""
    columns = [table.column(name).to_pylist() for name in ("topic", "partition", "offset", "value")]
    found = {(topic, part, offset): value for topic, part, offset, value in zip(*columns, strict=True)}
    assert len(found) == table.num_rows, "a record is there twice"
    return found


def test_every_confirmed_record_is_in_every_table_once(make_node: Any, tmp_path: Path) -> None:
    import pyarrow.dataset

    node, dice = make_node().start(), random.Random(os.environ.get("GOSSIPQ_SEED", "9"))
    out, tables, table = tmp_path / "out", tmp_path / "tables", tmp_path / "table"
    with connect(node.endpoint) as mq:
        for topic in ("007", "orders", "big"):
            mq.create_topic(topic, partitions=2)
    load = Load(node.endpoint)
    load.start()
    killed: Counter[str] = Counter()
    try:
        finish(export(node, out))
        for name, start, longest_s in turns(node, out, tables, table):
            process = start()
            time.sleep(dice.uniform(0.2, longest_s))
            if process.poll() is None:
                process.kill()
                killed[name] += 1
            process.communicate()
            if name == "spark import":
                await_all(process)
    finally:
        load.stop()
    finish(export(node, out, "--iceberg", str(tables)))
    finish(export(node, out, "--compact"))
    folder = Folder(out)
    assert values(folder) == load.confirmed
    folder.close()
    committed = iceberg.catalog(str(tables)).load_table("gossipq.messages").scan().to_arrow()
    assert rows_of(committed) == load.confirmed
    if shutil.which("java"):
        last = spark_import(out, table)
        _, errors = last.communicate(timeout=600)
        assert last.returncode == 0, errors
        imported = pyarrow.dataset.dataset(str(table / "messages"), format="parquet").to_table()
        assert rows_of(imported) == load.confirmed
    assert sum(killed.values()) > KILLS // 2
    if path := os.environ.get("GOSSIPQ_RESULTS"):
        commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], cwd=HOME, text=True)
        line = {"commit": commit.strip(), "kills": dict(killed), "records": len(load.confirmed)}
        with open(path, "a", encoding="utf-8") as results:
            results.write(json.dumps(line) + "\n")
