"""Measures how cost grows: one thing in many sizes, and the cost of a node at each size.

    python perf/growth.py [--only topics ...] [--scale 1.0] [--write]

Each size has a fresh store. It measures memory of the node, processor time of the idle node, and processor
time for each batch of 500 records that is published, fetched and acked. It also measures the start after kill
-9, and with several nodes the pause in confirms after the leader of a topic was killed. Rows go to
growth.json, where a newer run of a size replaces the older one. Tables and charts are made from that file:
GROWTH.md and growth-*.svg. `--scale 0.01` leaves out larger sizes and stores fewer records. `--write` only
makes the tables and charts again.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from multiprocessing import get_context
from typing import Any

import chart
import members
from cluster import cluster, leads_of
from groups import MADE_AT_ONCE, make_groups
from grown import FIGURES, WHAT, page
from report import machine
from stage import HERE, Node, cpu_s, directory, disk_mb, memory_mb, node_in, tree

from gossipq_client import Client, GossipqError, connect

ROWS, PAGE = HERE / "growth.json", HERE / "GROWTH.md"
SIMULATED = HERE.parent / "tests" / "sim" / "sizes.json"
SIZES = {
    "topics": (1, 10, 100, 1_000, 10_000),
    "groups": (1, 10, 100, 1_000),
    "connections": (1, 10, 100, 1_000, 10_000),
    "partitions": (1, 2, 4, 8, 16, 32),
    "batches": (1_000, 10_000, 100_000, 1_000_000),
    "records": (1_000_000, 2_000_000, 5_000_000, 10_000_000, 50_000_000),
    "nodes": (1, 2, 3, 5),
}
BATCH, VALUE, BATCHES = 500, bytes(100), 1_000
SETTLE_S, IDLE_S, PATIENCE_S, TAKEOVER_S = 5.0, 15.0, 120.0, 8.0
USED, GROUP = "used", "g"
CALLERS, LONE = (
    8,
    2_000,
)  #: processes that fill a store with batches of one record; publishes that are measured
Found = dict[str, float]


def idle_of(pid: int) -> float:
    time.sleep(SETTLE_S)
    before, start = cpu_s(pid), time.perf_counter()
    time.sleep(IDLE_S)
    return 100 * (cpu_s(pid) - before) / (time.perf_counter() - start)


def batch_ms(pids: list[int], mq: Client, idle: float, group: str = GROUP) -> float:
    """Processor time of nodes for each batch, above what they spend idle."""
    before, start = sum(map(cpu_s, pids)), time.perf_counter()
    for _ in range(BATCHES):
        mq.post_many(USED, [VALUE] * BATCH)
    mq.flush(None)
    left = BATCHES * BATCH
    while left > 0:
        batch = mq.fetch(USED, group=group, n=1_000, wait=PATIENCE_S)
        if not batch:
            raise SystemExit(f"{left} records did not come")
        mq.ack_soon(batch)
        left -= len(batch)
    mq.flush(None)
    took_s = time.perf_counter() - start
    return 1_000 * (sum(map(cpu_s, pids)) - before - idle / 100 * took_s) / BATCHES


def look(at: Node, mq: Client, group: str = GROUP) -> Found:
    idle = idle_of(at.pid)
    memory = memory_mb(at.pid)
    return {"memory": memory, "idle": idle, "batch": batch_ms([at.pid], mq, idle, group)}


def one_node(fill: Callable[[Node, Client], None], partitions: int = 1) -> Found:
    """A node that holds what `fill` puts there; then killed, and started again."""
    with directory() as home:
        with node_in(home) as at, connect(at.server, timeout=PATIENCE_S) as mq:
            mq.create_topic(USED, partitions)
            mq.fetch(USED, GROUP, n=1, wait=0.0)
            fill(at, mq)
            seen = look(at, mq)
            mq.close()
            for pid in list(tree(at.pid)):
                os.kill(pid, signal.SIGKILL)
        with node_in(home) as again:
            return seen | {"start": again.ready_s, "disk": disk_mb(home)}


def with_groups_of(groups: list[tuple[str, str]]) -> Found:
    return one_node(lambda at, mq: asyncio.run(make_groups(at.server, groups, MADE_AT_ONCE)))


def with_topics(size: int) -> Found:
    return with_groups_of([(f"t{number:05}", GROUP) for number in range(size - 1)])


def with_groups(size: int) -> Found:
    return with_groups_of([(USED, f"g{number}") for number in range(size - 1)])


def with_partitions(size: int) -> Found:
    return one_node(lambda at, mq: None, size)


def with_records(size: int) -> Found:
    def fill(at: Node, mq: Client) -> None:
        mq.create_topic("stored", 4)
        for _ in range(0, size, BATCH):
            mq.post_many("stored", [VALUE] * BATCH)
        mq.flush(None)

    return one_node(fill)


def publish_each(server: str, count: int) -> None:
    """Store `count` batches of one record: each publish waits for its confirm."""
    with connect(server, timeout=PATIENCE_S) as mq:
        for _ in range(count):
            mq.publish(USED, VALUE)


def with_batches(size: int) -> Found:
    seen: Found = {}

    def fill(at: Node, mq: Client) -> None:
        with ProcessPoolExecutor(CALLERS, get_context("spawn")) as callers:
            list(callers.map(publish_each, [at.server] * CALLERS, [size // CALLERS] * CALLERS))
        idle = idle_of(at.pid)
        before, start = cpu_s(at.pid), time.perf_counter()
        publish_each(at.server, LONE)
        took_s = time.perf_counter() - start
        seen["lone"] = 1_000 * (cpu_s(at.pid) - before - idle / 100 * took_s) / LONE

    return one_node(fill) | seen


def with_connections(size: int) -> Found:
    with directory() as home:
        (home / "cluster.toml").write_text(members.QUOTA)
        with node_in(home) as at, connect(at.server, timeout=PATIENCE_S) as mq:
            mq.create_topic(USED, 1)
            mq.fetch(USED, GROUP, n=1, wait=0.0)
            places = [members.place(mq, f"idle{number}") for number in range(members.TOPICS)]
            with members.throng(places, size):
                return look(at, mq)


@contextmanager
def publishing(servers: list[str]) -> Iterator[list[float]]:
    """Records one by one, from a thread; when each was confirmed."""
    confirmed, over = list[float](), threading.Event()

    def run() -> None:
        with connect(servers) as mq:
            while not over.wait(0.01):
                try:
                    mq.publish(USED, b"steady", timeout=PATIENCE_S)
                    confirmed.append(time.monotonic())
                except GossipqError as error:
                    print(error, file=sys.stderr)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield confirmed
    finally:
        over.set()
        thread.join()


def with_nodes(size: int) -> Found:
    with cluster(nodes=size) as held:
        pids = [node.pid for node in held.nodes]
        with connect(held.servers, timeout=PATIENCE_S) as mq:
            mq.create_topic(USED, 1)
            mq.fetch(USED, GROUP, n=1, wait=0.0)
            idles = [idle_of(pid) for pid in pids]
            found = {
                "memory": max(map(memory_mb, pids)),
                "idle": max(idles),
                "batch": batch_ms(pids, mq, sum(idles)),
            }
            shard = mq.topics(USED)[0].shards[0]
        if size >= 3:
            leads = leads_of(held.servers[0])
            number = next(number for number in range(size) if shard in leads[f"n{number}"])
            with publishing(held.servers) as confirmed:
                time.sleep(SETTLE_S)
                held.kill(number)
                time.sleep(TAKEOVER_S)
            found["takeover"] = max(late - early for early, late in pairwise(confirmed))
    return found


MEASURES: dict[str, Callable[[int], Found]] = {
    "topics": with_topics,
    "groups": with_groups,
    "connections": with_connections,
    "partitions": with_partitions,
    "batches": with_batches,
    "records": with_records,
    "nodes": with_nodes,
}


def sizes(name: str, scale: float) -> list[int]:
    """Return the sizes of a run. Numbers of records are scaled; of other things the largest sizes are left
    out, but at least two remain."""
    every = SIZES[name]
    if name == "records":
        return [max(BATCH, round(size * scale)) for size in every]
    return [size for at, size in enumerate(every) if at < 2 or size <= every[-1] * scale]


def note(name: str, size: int, found: Found) -> None:
    """One more row of growth.json, in place of the one of the same size."""
    rows = json.loads(ROWS.read_text()) if ROWS.exists() else []
    rows = [row for row in rows if (row["what"], row["size"]) != (name, size)]
    made = {figure: float(f"{value:.3g}") for figure, value in found.items()}
    rows.append(
        {"what": name, "size": size, "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "on": machine()} | made
    )
    rows.sort(key=lambda row: (list(SIZES).index(row["what"]), row["size"]))
    ROWS.write_text(json.dumps(rows, indent=1) + "\n")


def draw(rows: list[dict[str, Any]]) -> None:
    for name in dict.fromkeys(row["what"] for row in rows):
        mine = [row for row in rows if row["what"] == name]
        whole = [figure for figure in FIGURES if all(row.get(figure) for row in mine)]
        curves = {
            f"{FIGURES[each][1]}: {mine[0][each]:g} {FIGURES[each][0]} at first": each for each in whole
        }
        if len(mine) > 1:
            at = [row["size"] for row in mine]
            named = {text: [row[each] for row in mine] for text, each in curves.items()}
            chart.lines(HERE / f"growth-{name}.svg", f"{name}: {WHAT[name]}", at, named)


def main() -> None:
    parser = argparse.ArgumentParser(description="What grows with what.")
    parser.add_argument("--only", action="append", default=[], choices=list(SIZES), metavar="NAME")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the largest size")
    parser.add_argument("--write", action="store_true", help="only make tables and charts again")
    given = parser.parse_args()
    for name in [] if given.write else given.only or SIZES:
        for size in sizes(name, given.scale):
            found = MEASURES[name](size)
            note(name, size, found)
            print(name, f"{size:,}", {each: round(value, 3) for each, value in found.items()}, flush=True)
    rows = json.loads(ROWS.read_text())
    PAGE.write_text(page(rows, json.loads(SIMULATED.read_text())))
    draw(rows)


if __name__ == "__main__":
    main()
