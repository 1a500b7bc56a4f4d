"""Measures exports: records of 100 bytes from a running node into Parquet and LMDB files, and into a pyarrow
table.

    python perf/export.py                        1 M records, each figure 3 times
    python perf/export.py --records 10000000 --runs 1 --only parquet

Rates are per core: records per second of CPU time of the exporting process, all its threads together. Each
run is a process of its own, over the same records. They are half random bytes and half text, so that zstd has
work. The node's CPU time is given beside it.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import Row, write
from stage import HERE, Node, node

FIGURES = ("parquet", "lmdb", "table", "compact", "typed")
RECORDS, BATCH, SIZE = 1_000_000, 500, 100
ASKED = {"parquet": "1,000,000/s", "lmdb": "", "table": "", "compact": "", "typed": "300,000/s"}


def publish(server: str, records: int) -> None:
    from gossipq_client import connect

    dice = random.Random(1)
    text = (b"the quick brown fox jumps over the lazy dog " * 2)[: SIZE // 2]
    with connect(server) as mq:
        for _ in range(records // BATCH):
            noise = dice.randbytes(BATCH * (SIZE - len(text)))
            step = SIZE - len(text)
            mq.post_many("orders", [noise[at * step : (at + 1) * step] + text for at in range(BATCH)])
        mq.flush(600)


def publish_typed(server: str, records: int) -> None:
    """JSON objects of four fields and some 100 bytes, and their schema."""
    from gossipq_client import connect

    kinds = {"user": "string", "n": "integer", "amount": "number", "note": "string"}
    with connect(server) as mq:
        topic = topic_of("typed")
        mq.create_topic(topic)
        mq.schema(
            topic, {"type": "object", "properties": {name: {"type": kind} for name, kind in kinds.items()}}
        )
    note = "the quick brown fox jumps over the lazy dog"
    line = b'{"user":"u%05d","n":%d,"amount":%d.25,"note":"' + note.encode() + b'"}'
    with connect(server) as mq:
        for first in range(0, records, BATCH):
            mq.post_many(topic, [line % (at % 10_000, at, at % 997) for at in range(first, first + BATCH)])
        mq.flush(600)


def topic_of(figure: str) -> str:
    return "typed" if figure == "typed" else "orders"


def cpu_s(pid: int) -> float:
    """Of a process and all below it, while they live."""
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    ticks = sum(
        sum(map(int, Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:13]))
        for each in pids
    )
    return ticks / os.sysconf("SC_CLK_TCK")


def once(figure: str, server: str, folder: str) -> None:
    """Inside the process of one run: prints what it took."""
    from gossipq_client import columns, connect
    from gossipq_node.export.compaction import compact
    from gossipq_node.export.exporter import Exporter
    from gossipq_node.export.folder import Folder

    columns.schema("messages")
    topic = topic_of(figure)
    import pyarrow.parquet  # noqa: F401

    with connect(server, timeout=60) as mq:
        start_s, used_s = time.perf_counter(), time.process_time()
        if figure == "table":
            records = mq.read(topic).to_arrow().num_rows
        elif figure == "compact":
            records = _steps(mq, Folder(folder), Exporter)
            start_s, used_s = time.perf_counter(), time.process_time()
            compact(Folder(folder))
        else:
            form = "parquet" if figure == "typed" else figure
            records = Exporter(mq, Folder(folder), [topic], form).run().records
        wall_s, used_s = time.perf_counter() - start_s, time.process_time() - used_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size_mb = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 1e6
    print(
        json.dumps(
            {"records": records, "wall_s": wall_s, "cpu_s": used_s, "peak_mb": peak_mb, "size_mb": size_mb}
        )
    )


def _steps(mq: Any, folder: Any, exporter: Any) -> int:
    """As `--follow` leaves them: files of 20,000 records each."""
    from gossipq_node.export import segments

    segments.FILE_ROWS = 20_000
    records: int = exporter(mq, folder, ["orders"]).run().records
    segments.FILE_ROWS = 1 << 20
    folder.close()
    return records


def measure(figure: str, at: Node, records: int, runs: int) -> Row:
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="gossipq-perf-") as folder:
            before_s = cpu_s(at.pid)
            line = [sys.executable, __file__, "--inside", figure, "--server", at.server, "--folder", folder]
            done = json.loads(subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True).stdout)
            if done["records"] != records:
                raise SystemExit(f"{done['records']:,} of {records:,} records")
            found.append({**done, "node_s": cpu_s(at.pid) - before_s})
    middle = {name: statistics.median(each[name] for each in found) for name in found[0]}
    beside = f"{records / middle['wall_s']:,.0f}/s by the clock; node {middle['node_s']:.2f} s of CPU"
    what = (
        f"{records:,} records of {SIZE} B; peak {middle['peak_mb']:.0f} MB, files {middle['size_mb']:.0f} MB"
    )
    return Row(
        f"export {figure}", f"{records / middle['cpu_s']:,.0f}/s per core", beside, "", ASKED[figure], what
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What an export costs.")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], choices=FIGURES)
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    parser.add_argument("--inside", choices=FIGURES, help=argparse.SUPPRESS)
    parser.add_argument("--server", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        once(given.inside, given.server, given.folder)
        return
    with node() as at:
        chosen = given.only or FIGURES
        if set(chosen) != {"typed"}:
            publish(at.server, given.records)
        if "typed" in chosen:
            publish_typed(at.server, given.records)
        rows = [measure(figure, at, given.records, given.runs) for figure in chosen]
    write(given.out, rows, given.runs)
    print(json.dumps([row._asdict() for row in rows], indent=1))


if __name__ == "__main__":
    main()
