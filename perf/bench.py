#!/usr/bin/env python3
"""Measures gossipq against the raw loop of limit.py, in turns, and writes the rows of RESULTS.md.

    python perf/bench.py [--pairs 5] [--only NAME ...] [--scale 1.0] [--out perf/RESULTS.md]

Each figure is the median of its pairs. In a pair, product and raw loop run one after the other, so that both
meet the same machine. One node with two workers serves all pairs, on the same cores as its clients. The soak
and each figure of asking.py start a fresh node. Close other programs first.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import asking
import cluster
import latency
from report import Row, write
from stage import GOSSIPQ, HERE, Node, answer, disk_mb, memory_mb, node

SAMPLE_S = 1.0
SOAK_RECORDS, SOAK_MARK, SOAK_AHEAD = 10_000_000, 1_000_000, 200_000


class Pair(NamedTuple):
    """One figure: our command and what it is compared with."""

    name: str
    ours: list[str]
    field: str
    raw: list[str]
    raw_field: str
    floor: str  #: what is asked of it


PAIRS = [
    Pair(
        "e2e-500",
        ["e2e", "--batch", "500"],
        "end_to_end_per_s",
        ["--batch", "500"],
        "end_to_end_per_s",
        "0.5 of raw",
    ),
    Pair(
        "e2e-64",
        ["e2e", "--batch", "64"],
        "end_to_end_per_s",
        ["--batch", "64"],
        "end_to_end_per_s",
        "0.5 of raw",
    ),
    Pair(
        "e2e-64-64",
        ["e2e", "--batch", "64", "--fetch", "64"],
        "end_to_end_per_s",
        ["--batch", "64"],
        "end_to_end_per_s",
        "",
    ),
    Pair(
        "publish-one",
        ["pub", "--batch", "1"],
        "published_per_s",
        ["--batch", "500"],
        "published_per_s",
        "300,000/s",
    ),
    Pair(
        "consume-one",
        ["sub", "--batch", "1"],
        "consumed_per_s",
        ["--batch", "500"],
        "end_to_end_per_s",
        "200,000/s",
    ),
    Pair(
        "rtt",
        ["rtt"],
        "confirmed_one_at_a_time_per_s",
        ["--records", "50000", "--sync-rtt"],
        "confirmed_one_at_a_time_per_s",
        "0.6 of raw",
    ),
    Pair(
        "rtt-journal",
        ["rtt"],
        "confirmed_one_at_a_time_per_s",
        ["--records", "50000", "--journal-rtt"],
        "journal_one_at_a_time_per_s",
        "0.65 of raw",
    ),
]

COPIES = [  #: on three nodes of one worker each: two of three disks before a confirm
    Pair(
        "copies-500",
        ["e2e", "--batch", "500"],
        "end_to_end_per_s",
        ["--batch", "500", "--copies", "3"],
        "end_to_end_per_s",
        "0.35 of raw",
    ),
    Pair(
        "copies-64",
        ["e2e", "--batch", "64"],
        "end_to_end_per_s",
        ["--batch", "64", "--copies", "3"],
        "end_to_end_per_s",
        "",
    ),
    Pair(
        "copies-rtt",
        ["rtt"],
        "confirmed_one_at_a_time_per_s",
        ["--records", "50000", "--copies", "3", "--sync-rtt"],
        "confirmed_one_at_a_time_per_s",
        "0.5 of raw",
    ),
    Pair(
        "copies-rtt-journal",
        ["rtt"],
        "confirmed_one_at_a_time_per_s",
        ["--records", "50000", "--copies", "3", "--journal-rtt"],
        "journal_one_at_a_time_per_s",
        "0.65 of raw",
    ),
]


def measure_pair(pair: Pair, at: Node, times: int) -> Row:
    ours, raw = [], []
    for number in range(times):
        raw.append(answer([sys.executable, str(HERE / "limit.py"), *pair.raw])[pair.raw_field])
        ours.append(answer([*GOSSIPQ, "-s", at.server, "bench", *pair.ours, "-o", "json"])[pair.field])
        print(f"{pair.name} {number + 1}/{times}: {ours[-1]:,} of {raw[-1]:,}", file=sys.stderr)
    product, limit = statistics.median(ours), statistics.median(raw)
    ratio = statistics.median(mine / its for mine, its in zip(ours, raw, strict=True))
    return Row(
        pair.name,
        f"{product:,.0f}/s",
        f"{limit:,.0f}/s",
        f"{ratio:.2f}",
        pair.floor,
        "gossipq bench " + " ".join(pair.ours),
    )


def measure_start(times: int) -> list[Row]:
    ready, idle = [], []
    for _ in range(times):
        with node() as fresh:
            ready.append(fresh.ready_s)
            idle.append(memory_mb(fresh.pid))
    spans = []
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run([*GOSSIPQ, "--version"], check=True, stdout=subprocess.DEVNULL)
        spans.append(time.perf_counter() - start)
    return [
        Row("start", f"{statistics.median(ready):.2f} s", "", "", "< 1 s", "gossipq node, to its ready line"),
        Row(
            "memory",
            f"{statistics.median(idle):.0f} MB",
            "",
            "",
            "< 150 MB",
            "PSS of an idle node, 2 workers, all processes",
        ),
        Row("version", f"{statistics.median(spans):.2f} s", "", "", "< 0.2 s", "gossipq --version"),
    ]


IMPORT = "import time; at = time.perf_counter(); import gossipq_client; print(time.perf_counter() - at)"
IDLE_S = 20.0
SPENT = f"""
def spent():
    time.sleep(4)  # ways that were just used are pinged more often
    before = time.process_time()
    time.sleep({IDLE_S})
    print((time.process_time() - before) / {IDLE_S})
"""
CONSUMING = f"""
import sys, threading, time
from gossipq_client import connect
{SPENT}
with connect(sys.argv[1]) as mq:
    mq.publish("idle", b"x")
    with mq.subscribe("idle", "g", start="new") as subscription:
        threading.Thread(target=lambda: [None for _ in subscription]).start()
        spent()
        subscription.stop()
"""
CONNECTED = f"""
import sys, time
from gossipq_client import connect
{SPENT}
with connect(sys.argv[1]) as mq:
    mq.publish("idle", b"x")
    spent()
"""
ASYNCIO = f"""
import asyncio, sys, time
from gossipq_client.aio import connect
{SPENT}
async def main():
    async with connect(sys.argv[1]) as mq:
        await mq.publish("idle", b"x")
        subscription = mq.subscribe("idle", "g", start="new")
        async def consume():
            async for _ in subscription:
                pass
        consumer = asyncio.create_task(consume())
        await asyncio.to_thread(spent)
        subscription.stop()
        await consumer
asyncio.run(main())
"""
IDLE = {
    "idle client": (CONSUMING, "a client with a publisher and a consumer of an idle topic"),
    "idle client, connected": (CONNECTED, "a client that has published, and waits for nothing"),
    "idle client, asyncio": (ASYNCIO, "an asyncio client with a publisher and a consumer of an idle topic"),
}


def measure_client(times: int) -> list[Row]:
    """Importing the client, in a process with its bytecode; a client that consumes where nothing comes."""

    def said(*line: str) -> float:
        out = subprocess.run([sys.executable, "-c", *line], check=True, capture_output=True, text=True).stdout
        return float(out)

    said(IMPORT)
    spans_ms = [said(IMPORT) * 1_000 for _ in range(max(times, 5))]
    with node() as at:
        shares = {name: said(program, at.server) for name, (program, _) in IDLE.items()}
    return [
        Row("import", f"{statistics.median(spans_ms):.0f} ms", "", "", "< 120 ms", "import gossipq_client"),
        *(
            Row(name, f"{share:.2%}", "", "", "< 0.2 %", f"of a core for {IDLE_S:g} s: {IDLE[name][1]}")
            for name, share in shares.items()
        ),
    ]


def measure_soak(at: Node) -> list[Row]:
    """10 M records with retention right behind them: speed, memory and files from end to end."""
    samples: list[tuple[float, float]] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            samples.append((memory_mb(at.pid), disk_mb(at.directory)))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        line = ["e2e", "--records", str(SOAK_RECORDS), "--retention", "0"]
        line += ["--marks", str(SOAK_MARK), "--ahead", str(SOAK_AHEAD)]
        marks = answer([*GOSSIPQ, "-s", at.server, "bench", *line, "-o", "json"])["marks_s"]
    finally:
        over.set()
        sampler.join()
    second, last = marks[1] - marks[0], marks[-1] - marks[-2]
    tenth = max(1, len(samples) // 5)
    early, late = samples[tenth : 2 * tenth] or samples[:1], samples[-tenth:]
    command = "gossipq bench " + " ".join(line)
    rows = [
        Row(
            "soak speed",
            f"{SOAK_MARK / last:,.0f}/s",
            f"{SOAK_MARK / second:,.0f}/s",
            f"{second / last:.2f}",
            "0.9",
            command,
        )
    ]
    for name, column in (("soak memory", 0), ("soak files", 1)):
        low, high = (statistics.median(sample[column] for sample in part) for part in (early, late))
        rows.append(
            Row(
                name,
                f"{high:.0f} MB",
                f"{low:.0f} MB",
                f"{high / max(low, 1):.2f}",
                "flat",
                "last fifth against second fifth",
            )
        )
    return rows


def main() -> None:
    names = [
        *(pair.name for pair in PAIRS + COPIES),
        "start",
        "client",
        "soak",
        *cluster.FIGURES,
        *latency.FIGURES,
        *asking.FIGURES,
    ]
    parser = argparse.ArgumentParser(description="gossipq against the raw loop.")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", choices=names, help=", ".join(names)
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="share of the records of " + ", ".join(asking.FIGURES)
    )
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    given = parser.parse_args()
    wanted = set(given.only or names)
    rows = measure_start(given.pairs) if "start" in wanted else []
    if "client" in wanted:
        rows += measure_client(given.pairs)
    if pairs := [pair for pair in PAIRS if pair.name in wanted]:
        with node() as at:
            rows += [measure_pair(pair, at, given.pairs) for pair in pairs]
    if pairs := [pair for pair in COPIES if pair.name in wanted]:
        with cluster.cluster() as found:
            rows += [measure_pair(pair, found.nodes[0], given.pairs) for pair in pairs]
    for name in cluster.FIGURES:
        if name in wanted:
            rows += cluster.measure(name)
    if "soak" in wanted:
        with node() as fresh:  # a store file never shrinks: what ran before would hide growth
            rows += measure_soak(fresh)
    for name in latency.FIGURES:
        if name in wanted:
            rows += latency.measure(name)
    for name in asking.FIGURES:
        if name in wanted:
            rows += asking.measure(name, given.pairs, given.scale)
    write(given.out, rows, given.pairs)
    print(json.dumps([row._asdict() for row in rows]))


if __name__ == "__main__":
    main()
