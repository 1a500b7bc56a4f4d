"""Measures idle members: consumers that are connected, and a group with many members. Few of them run beside
many, to show whether cost depends on activity or on numbers.

    python perf/members.py [--idle 10000] [--members 1000] [--batches 200] [--out perf/RESULTS.md]

10,000 members are sockets of their own in a few processes (throng.py), not Python clients: those have 17 open
files and two threads each.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from report import Row, write
from stage import HERE, Node, cpu_s, directory, memory_mb, node_in

from gossipq_client import Client, connect

TOPICS, FEW = 100, 10  #: topics that idle consumers share; how many members stand beside the many
OF_PROCESS, CREDIT, PING_S = 2_500, 500, 2.0
BATCH, VALUE = 500, bytes(100)
PAUSE_S, RATE_PER_S = 0.02, 2_000  #: between two batches; rate of records that are delivered one by one
SETTLE_S, IDLE_S, PATIENCE_S = 3.0, 10.0, 60.0
QUOTA = "[cluster.quota]\nsessions = 20_000\nconnections = 20_000\naddress_sessions = 20_000\n"
Place = tuple[str, int, int, str]


class Spent(NamedTuple):
    idle: float  #: share of a core
    batch_ms: float  #: of a core, above what is spent idle
    memory_mb: float


def place(mq: Client, topic: str, group: str = "g") -> Place:
    """Return the endpoint of the leader of the topic's only partition."""
    mq.create_topic(topic, 1, if_not_exists=True)
    mq.publish(topic, b"")
    session = mq._driver.engine.session
    (writer,) = session.publishing.topics[topic].writers
    return session.links.leaders.routes[writer.shard].endpoint, writer.shard, writer.partition, group


@contextmanager
def throng(places: list[Place], members: int) -> Iterator[list[int]]:
    """Start this number of members. When they have left, the list holds the number of their acks."""
    acked = list[int]()
    parts = [min(OF_PROCESS, members - first) for first in range(0, members, OF_PROCESS)]
    lines = [[json.dumps(places), str(part), str(CREDIT), str(PING_S)] for part in parts]
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "throng.py"), *line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in lines
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "there":
                raise SystemExit("not all members are there")
        yield acked
        for process in processes:
            acked.append(int(process.communicate()[0]))
    finally:
        for process in processes:
            process.kill()
            process.wait()


def idle_share(at: Node) -> float:
    time.sleep(SETTLE_S)
    before, start = cpu_s(at.pid), time.perf_counter()
    time.sleep(IDLE_S)
    return (cpu_s(at.pid) - before) / (time.perf_counter() - start)


def spent(at: Node, mq: Client, topic: str, batches: int, size: int = BATCH, pause_s: float = 0.0) -> Spent:
    """Measure the node's processor time while nothing happens, and per published batch until the group has
    acked all records."""
    idle, memory = idle_share(at), memory_mb(at.pid)
    before, start = cpu_s(at.pid), time.perf_counter()
    for _ in range(batches):
        sent = mq.post_many(topic, [VALUE] * size)
        if pause_s:
            sent.result(None)
            time.sleep(pause_s)
    mq.flush(None)
    end = time.perf_counter() + PATIENCE_S
    while sum(row.ready + row.in_flight + row.retrying for row in mq.topic(topic).groups()):
        if time.perf_counter() > end:
            raise SystemExit(f"{topic}: not all is acked")
        time.sleep(0.1)
    took_s = time.perf_counter() - start
    return Spent(idle, 1_000 * (cpu_s(at.pid) - before - idle * took_s) / batches, memory)


def measure_idle(many: int, batches: int) -> list[Row]:
    """Consumers of topics where nothing comes; what is published meanwhile goes to a group of its own."""
    found = dict[int, Spent]()
    for members in (min(FEW, many), many):
        with directory() as home:
            (home / "cluster.toml").write_text(QUOTA)
            with node_in(home) as at, connect(at.server, timeout=PATIENCE_S) as mq:
                places = [place(mq, f"idle{number}") for number in range(TOPICS)]
                busy = place(mq, "busy")
                with throng([busy], 1), throng(places, members):
                    found[members] = spent(at, mq, "busy", batches)
    (few, least), (count, most) = found.items()
    what, each = f"{count:,} connected consumers of {TOPICS} idle topics", 1e6 / count
    beside = f"{few} of them"
    return [
        Row(
            "members idle",
            f"{most.idle:.1%}",
            f"{least.idle:.1%}",
            f"{(most.idle - least.idle) * each:.1f} us",
            "",
            f"of a core, {what}, each pings once in {PING_S:g} s; beside {beside}; ratio: a second of each",
        ),
        Row(
            "members idle, batch",
            f"{most.batch_ms:.2f} ms",
            f"{least.batch_ms:.2f} ms",
            f"{most.batch_ms / least.batch_ms:.2f}",
            "flat",
            f"CPU of the node for a batch of {BATCH} published and consumed elsewhere, {what}",
        ),
        Row(
            "members idle, memory",
            f"{most.memory_mb:.0f} MB",
            f"{least.memory_mb:.0f} MB",
            f"{(most.memory_mb - least.memory_mb) * 1024 / count:.0f} KiB",
            "",
            f"PSS of the node, {what}; ratio: for each",
        ),
    ]


def measure_group(many: int, batches: int) -> list[Row]:
    """Measure one group on one partition. Published records are divided among idle members, so that each gets
    one record. There are batches with a record for each of few members, and batches for half of the many."""
    found = dict[tuple[int, int], Spent]()
    few, half = min(FEW, many), max(1, many // 2)
    with directory() as home:
        (home / "cluster.toml").write_text(QUOTA)
        with node_in(home) as at, connect(at.server, timeout=PATIENCE_S) as mq:
            for members in (few, many):
                topic = f"shared{members}"
                with throng([place(mq, topic)], members):
                    found[members, few] = spent(at, mq, topic, batches, few, PAUSE_S)
                    if members == many:
                        found[many, half] = spent(at, mq, topic, batches // 4, half, half / RATE_PER_S)
    of_few, of_many = found[few, few].batch_ms, found[many, few].batch_ms
    each_us, few_us = 1_000 * found[many, half].batch_ms / half, 1_000 * of_few / few
    return [
        Row(
            "members of a group, batch",
            f"{of_many:.2f} ms",
            f"{of_few:.2f} ms",
            f"{of_many / of_few:.2f}",
            "flat",
            f"CPU of the node for a batch of {few}, a record for each of {few} members; a group with "
            f"{many:,} members beside one with {few}",
        ),
        Row(
            "members of a group, record",
            f"{each_us:.0f} us",
            f"{few_us:.0f} us",
            f"{each_us / few_us:.2f}",
            "flat",
            f"CPU of the node for each record of a batch of {half} that goes to {half} of {many:,} members; "
            f"beside each of a batch of {few}",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--only", choices=("idle", "group"))
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    given = parser.parse_args()
    rows = measure_group(given.members, given.batches) if given.only != "idle" else []
    rows += measure_idle(given.idle, given.batches) if given.only != "group" else []
    for row in rows:
        print(*row, sep="  ")
    write(given.out, rows, 1)


if __name__ == "__main__":
    main()
