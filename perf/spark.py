"""Measures Spark on exports and on a live cluster. Needs Java and pyspark. It is not a test.

    python perf/spark.py          the first chart, 2 M records read in four ways, a live stream, 10 M imported
    python perf/spark.py --records 500000 --import-records 1000000 --rounds 3

Reading means a hash over every column of every row. The same rows are also read into Spark's `noop` sink,
where only the transfer counts. The ways take turns, and the median of the rounds counts; the first round
warms up and does not. CPU and memory are those of the JVM and all Python processes of the session. On a busy
machine CPU time says more than the clock.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from report import Row, write
from stage import HERE, Node, node

from export import publish

FIGURES = ("chart", "read", "live", "lag", "import")
RECORDS, IMPORT_RECORDS = 2_000_000, 10_000_000
LAG_RATE, LAG_SECONDS = 5_000, 20
CHART_RECORDS, CHART_STEPS = 1_000, 12
BATCHES = "a Python source of equal batches"  #: the bound that PySpark sets for a source that reads nothing
MASTER, DRIVER_MEMORY = "local[2]", "1g"


def session() -> Any:
    from pyspark_gossipq import session

    return session("perf", MASTER, **{"spark.driver.memory": DRIVER_MEMORY})


def export_to(server: str, folder: str, form: str) -> None:
    from gossipq_client import connect
    from gossipq_node.export.exporter import Exporter
    from gossipq_node.export.folder import Folder

    with connect(server, timeout=60) as mq:
        Exporter(mq, Folder(folder), ["orders"], form).run()


def hashed(frame: Any) -> None:
    """Looks at every value."""
    from pyspark.sql import functions as F

    frame.agg(F.bit_xor(F.xxhash64(*frame.columns))).collect()


def drain(frame: Any) -> None:
    """Has every row handed over."""
    frame.write.format("noop").mode("overwrite").save()


class Cost(NamedTuple):
    wall_s: float
    cpu_s: float


def cost(work: Callable[[], Any], node_pid: int) -> Cost:
    start_s, used_s = time.perf_counter(), _cpu_s(node_pid)
    work()
    return Cost(time.perf_counter() - start_s, _cpu_s(node_pid) - used_s)


def _cpu_s(node_pid: int) -> float:
    """Of all processes of the session, also of those that ended."""
    ticks = 0
    for each in _tree(os.getpid(), node_pid):
        try:
            ticks += sum(map(int, Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def handed_over(spark: Any) -> None:
    """Register a Python data source, "batches". It reads one record batch of an export and yields it until
    there are `records` rows. So it measures only Spark's own path from a Python process to its rows."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from pyspark_gossipq import schemas
    from pyspark_gossipq.asked import parse
    from pyspark_gossipq.batch import ExportReader

    class Reader(DataSourceReader):
        def __init__(self, schema: Any, options: dict[str, str]) -> None:
            self.schema, self.options = schema, options

        def partitions(self) -> list[InputPartition]:
            records, tasks = int(self.options["records"]), int(self.options["tasks"])
            ends = [records * at // tasks for at in range(tasks + 1)]
            return [InputPartition(end - start) for start, end in itertools.pairwise(ends)]

        def read(self, partition: InputPartition) -> Any:
            export = ExportReader(self.schema, parse({"path": self.options["path"], "verify": "false"}))
            batch, left = next(export.read(export.partitions()[0])), partition.value
            while left > 0:
                yield batch.slice(0, left)
                left -= batch.num_rows

    class Batches(DataSource):
        @classmethod
        def name(cls) -> str:
            return "batches"

        def schema(self) -> Any:
            return schemas.of("messages")

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(schema, dict(self.options))

    spark.dataSource.register(Batches)


def read(spark: Any, at: Node, records: int, rounds: int, folder: Path) -> list[Row]:
    """The same rows by Spark alone, by read_export, and through the data source."""
    from pyspark_gossipq import read_export, schemas

    exports = {form: str(folder / form) for form in ("parquet", "lmdb")}
    for form, path in exports.items():
        export_to(at.server, path, form)
    handed_over(spark)
    schema, files = (
        schemas.of("messages"),
        [str(path) for path in Path(exports["parquet"], "messages").rglob("*.parquet")],
    )
    ways: dict[str, Callable[[], Any]] = {
        "spark.read.parquet": lambda: spark.read.schema(schema).parquet(*files),
        "read_export": lambda: read_export(spark, exports["parquet"], verify=False),
        "format(gossipq), LMDB": lambda: (
            spark.read.format("gossipq").option("verify", "false").load(exports["lmdb"])
        ),
        "format(gossipq), Parquet": lambda: (
            spark.read.format("gossipq").option("verify", "false").load(exports["parquet"])
        ),
        BATCHES: lambda: (
            spark.read.format("batches")
            .options(path=exports["parquet"], records=str(records), tasks="4")
            .load()
        ),
        "read_export, SHA-256 checked": lambda: read_export(spark, exports["parquet"], verify=True),
    }
    for name, way in ways.items():
        if way().count() != records:
            raise SystemExit(f"{name} does not read {records:,} rows")
    asked = {"read_export": "1.0", "format(gossipq), LMDB": "0.7", "format(gossipq), Parquet": "0.7"}
    handed = compared(ways, drain, at, records, rounds, "all columns handed over", {})
    rows = compared(ways, hashed, at, records, rounds, "a hash of all columns", asked)
    return rows + [row._replace(figure=f"{row.figure}, handed over") for row in handed]


def compared(
    ways: dict[str, Callable[[], Any]],
    work: Callable[[Any], None],
    at: Node,
    records: int,
    rounds: int,
    doing: str,
    asked: dict[str, str],
) -> list[Row]:
    """Rows that compare each way with the first one."""
    found: dict[str, list[Cost]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            took = cost(lambda way=way: work(way()), at.pid)  # type: ignore[misc]
            if number:
                found[name].append(took)
            print(
                f"{doing}, {name}: {records / took.wall_s:,.0f}/s, {took.cpu_s:.1f} s of CPU", file=sys.stderr
            )
    base = found.pop(next(iter(ways)))
    what, parquet_s = (
        f"{records:,} records of 100 B, {doing}, {MASTER}",
        statistics.median(each.wall_s for each in base),
    )
    rows = []
    for name, costs in found.items():
        pairs = list(zip(base, costs, strict=True))
        by_clock, by_cpu = (statistics.median(b[at] / t[at] for b, t in pairs) for at in (0, 1))
        rate = records / statistics.median(each.wall_s for each in costs)
        told = f"{what}, beside spark.read.parquet, CPU ratio {by_cpu:.2f}"
        rows.append(
            Row(
                name,
                f"{rate:,.0f}/s",
                f"{records / parquet_s:,.0f}/s",
                f"{by_clock:.2f}",
                asked.get(name, ""),
                told,
            )
        )
    return rows


def live(spark: Any, at: Node, records: int, rounds: int) -> list[Row]:
    """A batch straight from the leaders."""
    found = []
    for number in range(rounds + 1):
        frame = spark.read.format("gossipq").options(servers=at.server, topics="orders").load()
        took = cost(lambda frame=frame: drain(frame), at.pid)  # type: ignore[misc]
        if number:
            found.append(took)
        print(f"live: {records / took.wall_s:,.0f}/s, {took.cpu_s:.1f} s of CPU", file=sys.stderr)
    wall_s, cpu_s = (statistics.median(column) for column in zip(*found, strict=True))
    what = f"{records:,} records from a running node, all columns, {MASTER}; {cpu_s:.1f} s of CPU in Spark"
    return [Row("live batch", f"{records / wall_s:,.0f}/s", "", "", "", what)]


def lag(spark: Any, server: str, folder: Path) -> list[Row]:
    """From publishing to when Spark has handed the record to the function of its batch, for every record."""
    from pyspark.sql import functions as F

    from gossipq_client import connect

    waits: list[float] = []
    batches = 0

    def took(frame: Any, number: int) -> None:
        nonlocal batches
        found = frame.select(F.unix_micros("publish_time").alias("at")).toArrow().column("at").to_pylist()
        now_us = time.time() * 1e6
        waits.extend((now_us - at) / 1e6 for at in found)
        batches += 1

    with connect(server) as mq:
        mq.create_topic("ticks", if_not_exists=True)
        stream = (
            spark.readStream.format("gossipq").options(servers=server, topics="ticks", group="spark").load()
        )
        query = (
            stream.writeStream.option("checkpointLocation", str(folder / "lag")).foreachBatch(took).start()
        )

        def load(seconds: float) -> None:
            end_s = time.perf_counter() + seconds
            while time.perf_counter() < end_s:
                mq.publish_many("ticks", [b"x" * 100] * (LAG_RATE // 20), timeout=10)
                time.sleep(1 / 20)

        try:
            load(LAG_SECONDS)  # its first batches start workers, and Java compiles what it does often
            waits.clear()
            batches = 0
            load(LAG_SECONDS)
            seen, made = len(waits), batches
            time.sleep(5)
        finally:
            query.stop()
        behind = sum(row.ready for row in mq.topic("ticks").groups() if row.group == "spark")
        for progress in query.recentProgress[-3:]:
            print(f"lag: {progress['durationMs']}", file=sys.stderr)
    ranked = sorted(waits[:seen])
    told = f"about {LAG_RATE:,} records/s for {LAG_SECONDS} s in {made} batches, each record of them; "
    told += f"beside: p99; the group lags {behind} records in the end"
    p50_s, p99_s = (ranked[int(len(ranked) * rank)] for rank in (0.5, 0.99))
    return [Row("live stream lag", f"{p50_s:.2f} s", f"{p99_s:.2f} s", "", "0.30 s", told)]


def live_a_little(server: str) -> None:
    """Three topics over some seconds, as of somebody who has just begun."""
    from gossipq_client import connect

    with connect(server) as mq:
        for step in range(CHART_STEPS):
            for number, topic in enumerate(("orders", "payments", "clicks"), 1):
                mq.publish_many(topic, [b"x" * 100] * (CHART_RECORDS * number * (1 + step % 3)), timeout=10)
            time.sleep(1)


def chart(at: Node, folder: Path) -> list[Row]:
    """As somebody does it who has a node and no session of Spark yet: two commands, and a picture."""
    from xml.etree import ElementTree

    lake, picture = str(folder / "chart"), folder / "growth.svg"
    commands = (
        ["-s", at.server, "-q", "export", "--out", lake],
        ["-q", "spark", "growth", lake, "--picture", str(picture)],
    )
    taken: list[float] = []
    for argv in commands:
        start_s = time.perf_counter()
        subprocess.run([sys.executable, "-m", "gossipq_cli", *argv], check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start_s)
    drawn = ElementTree.parse(picture).getroot()
    points = len([each for each in drawn.iter() if each.tag.endswith("circle")])
    told = (
        f"gossipq export, gossipq spark growth --picture: {taken[0]:.1f} + {taken[1]:.1f} s, {points} points"
    )
    return [Row("first chart", f"{sum(taken):.1f} s", "", "", "15 s", told)]


class Memory:
    """Samples the resident memory of this process and all below it, but for a node's."""

    def __init__(self, node_pid: int) -> None:
        self.peak_mb, self._node_pid = 0.0, node_pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.5):
            self.peak_mb = max(self.peak_mb, sum(map(_rss_mb, _tree(os.getpid(), self._node_pid))))


def _tree(pid: int, but: int) -> list[int]:
    found = [pid]
    for each in found:
        try:
            for task in Path(f"/proc/{each}/task").iterdir():
                found += (
                    child for child in map(int, (task / "children").read_text().split()) if child != but
                )
        except OSError:
            continue
    return found


def _rss_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        return 0.0


def import_(spark: Any, at: Node, records: int, folder: Path) -> list[Row]:
    from pyspark_gossipq import read_table
    from pyspark_gossipq.pipelines.imports import import_export

    source, table = str(folder / "export"), str(folder / "table")
    export_to(at.server, source, "parquet")
    with Memory(at.pid) as memory:
        first = cost(lambda: import_export(spark, source, table), at.pid)
        again = cost(lambda: import_export(spark, source, table), at.pid)
    if (there := read_table(spark, table).count()) != records:
        raise SystemExit(f"{there:,} of {records:,} records in the table")
    what = (
        f"{records:,} records of 100 B from an export into a table, {MASTER}, driver memory {DRIVER_MEMORY}"
    )
    what += f"; {records / first.cpu_s:,.0f}/s per core, beside once more, nothing new"
    return [
        Row("table import", f"{records / first.wall_s:,.0f}/s", f"{again.wall_s:.1f} s", "", "", what),
        Row(
            "table import memory",
            f"{memory.peak_mb:,.0f} MB",
            "",
            "",
            "bounded",
            "peak of the JVM and all Python processes",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Exports and live clusters in Spark.")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--import-records", type=int, default=IMPORT_RECORDS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], choices=FIGURES)
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    given = parser.parse_args()
    wanted, rows = given.only or list(FIGURES), []
    with tempfile.TemporaryDirectory(prefix="gossipq-perf-") as name:
        folder = Path(name)
        os.chdir(folder)
        if "chart" in wanted:
            with node() as at:
                live_a_little(at.server)
                rows += chart(at, folder)
        spark = session()
        with node() as at:
            if {"read", "live", "lag"} & set(wanted):
                publish(at.server, given.records)
            if "read" in wanted:
                rows += read(spark, at, given.records, given.rounds, folder)
            if "live" in wanted:
                rows += live(spark, at, given.records, given.rounds)
            if "lag" in wanted:
                rows += lag(spark, at.server, folder)
        if "import" in wanted:
            with node() as at:
                publish(at.server, given.import_records)
                rows += import_(spark, at, given.import_records, folder)
        spark.stop()
    write(given.out, rows, given.rounds)
    print(json.dumps([row._asdict() for row in rows], indent=1))


if __name__ == "__main__":
    main()
