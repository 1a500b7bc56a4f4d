"""Measures three nodes on this machine: confirms by two of three disks, idle nodes, and a fourth that joins.

All copies share the cores and the disk of one machine. So these figures show the cost of the protocol, not
the speed of three hosts.
"""

import os
import re
import signal
import statistics
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from report import Row
from stage import GOSSIPQ, READY_S, Node, answer, cpu_s, directory, free_port, memory_mb, tree

from gossipq import limits
from gossipq_client import GossipqError, connect

NODES, SETTLE_S, IDLE_S = 3, 15.0, 20.0
PINGS_PER_S = 1  #: ZeroMQ's own: a ping on one end of a connection, a pong on the other
JOIN_GB, JOIN_S, LOAD_TOPICS, LOAD_BATCH = 1.0, 90.0, 16, 50
SHARDS = (32, 64, 128)  #: for which the cost of idle nodes is measured
HANDOVER_ROUNDS, HANDOVER_TOPICS, WATCH_S, PUBLISH_EVERY_S = 12, 12, 3.0, 0.01


class Cluster:
    """Nodes that come one after another; the first founds, the others know it."""

    def __init__(self, home: Path, workers: int) -> None:
        self._home, self._workers = home, workers
        self._processes: list[subprocess.Popen[str]] = []
        self.servers: list[str] = []

    @property
    def nodes(self) -> list[Node]:
        named = enumerate(zip(self._processes, self.servers, strict=True))
        return [
            Node(process.pid, server, self._home / f"n{number}", 0.0) for number, (process, server) in named
        ]

    def add(self) -> None:
        self.servers.append(f"tcp://127.0.0.1:{free_port(self._workers)}")
        self._processes.append(self._start(len(self._processes)))

    def _start(self, number: int) -> subprocess.Popen[str]:
        name, server = f"n{number}", self.servers[number]
        line = [*GOSSIPQ, "node", "--name", name, "--data", str(self._home / name), "--bind", server]
        line += ["--workers", str(self._workers), "--mode", "static"]
        line += ["--peer", self.servers[0]] if number else []
        process = subprocess.Popen(
            line, cwd=self._home, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        if not process.stdout.readline().startswith("ready"):
            raise SystemExit(f"{name} did not start")
        return process

    def restart(self, number: int) -> None:
        """SIGTERM, and the same node again."""
        self._processes[number].terminate()
        self._processes[number].wait()
        self._processes[number] = self._start(number)

    def kill(self, number: int) -> None:
        """SIGKILL to all of it at once: workers that lose their supervisor only hand over."""
        for pid in list(tree(self._processes[number].pid)):
            os.kill(pid, signal.SIGKILL)
        self._processes[number].wait()

    def wait_healthy(self) -> None:
        healthy = [*GOSSIPQ, "-s", ",".join(self.servers), "-q", "status", "--wait-healthy", str(2 * READY_S)]
        subprocess.run(healthy, check=True, stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()


@contextmanager
def cluster(workers: int = 1, shards: int = limits.SHARDS, nodes: int = NODES) -> Iterator[Cluster]:
    """Start three nodes, or `nodes`, and wait until every shard has its copies and its preferred leader."""
    with directory() as home:
        (home / "cluster.toml").write_text(f"[cluster]\nshards = {shards}\n")
        found = Cluster(home, workers)
        try:
            for _ in range(nodes):
                found.add()
            found.wait_healthy()
            time.sleep(SETTLE_S)  # preferred leaders take over when all copies have kept up for a while
            yield found
        finally:
            found.stop()


def _sent(nodes: list[Node]) -> tuple[int, int]:
    """(TCP segments with data that the nodes have sent to each other, ends of their connections)."""
    owner = {pid: node.server for node in nodes for pid in tree(node.pid)}
    told = subprocess.run(
        ["ss", "-tinpH", "state", "established"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    ends = {}
    for row, details in zip(told.splitlines()[::2], told.splitlines()[1::2], strict=True):
        pid = re.search(r"pid=(\d+)", row)
        if pid and int(pid[1]) in owner:
            here, there = row.split()[2:4]
            sent = re.search(r"data_segs_out:(\d+)", details)
            ends[here, there] = owner[int(pid[1])], int(sent[1]) if sent else 0
    between = [
        sent for (here, there), (node, sent) in ends.items() if ends.get((there, here), (node,))[0] != node
    ]
    return sum(between), len(between)


def measure_idle() -> list[Row]:
    return [row for shards in SHARDS for row in idle_of(shards)]


def idle_of(shards: int) -> list[Row]:
    """Measure three idle nodes with this number of shards."""
    with cluster(workers=2, shards=shards) as found:
        before, (sent, ends), start = (
            [cpu_s(node.pid) for node in found.nodes],
            _sent(found.nodes),
            time.monotonic(),
        )
        time.sleep(IDLE_S)
        seconds = time.monotonic() - start
        segments = (_sent(found.nodes)[0] - sent) / seconds
        shares = [
            (cpu_s(node.pid) - spent) / seconds for node, spent in zip(found.nodes, before, strict=True)
        ]
        memory = max(memory_mb(node.pid) for node in found.nodes)
    what = f"three idle nodes with 2 workers and {shards} shards"
    return [
        Row("idle memory", f"{memory:.0f} MB", "", "", "", f"PSS, the largest of {what}"),
        Row("idle cpu", f"{max(shares):.1%}", "", "", "< 3 %", f"of a core, the busiest of {what}"),
        Row(
            "idle messages",
            f"{segments - ends * PINGS_PER_S:.0f}/s",
            f"{segments:.0f}/s",
            "",
            "< 50/s",
            f"between {what}, all together; and TCP segments with ZeroMQ's own pings on {ends // 2} "
            "connections",
        ),
    ]


class Load:
    """Batches to many topics, one after another, for as long as it is wanted: when each was confirmed, and
    every error."""

    def __init__(self, servers: list[str]) -> None:
        self.confirmed: list[float] = []
        self.errors: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(servers,))
        self._thread.start()

    def _run(self, servers: list[str]) -> None:
        with connect(servers) as mq:
            number = 0
            while not self._over.is_set():
                try:
                    mq.publish_many(f"load{number % LOAD_TOPICS}", [bytes(100)] * LOAD_BATCH, timeout=30)
                except GossipqError as error:
                    self.errors.append(str(error))
                self.confirmed.append(time.monotonic())
                number += 1

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def leads_of(server: str) -> dict[str, set[int]]:
    """Shards led, by node."""
    found: dict[str, set[int]] = defaultdict(set)
    try:
        status = answer([*GOSSIPQ, "-s", server, "status", "-o", "json"])
    except subprocess.CalledProcessError:  # it says so when a shard moves
        return found
    names = {member["copy"]: member["name"] for member in status["members"]}
    for lead in status["leads"]:
        found[names.get(lead["copy"], "")].add(lead["shard"])
    return found


def measure_join(gigabytes: float = JOIN_GB) -> list[Row]:
    """A fourth node joins three that have data, under load."""
    with cluster() as found:
        servers = list(found.servers)
        with connect(servers) as mq:
            rest = int(gigabytes * 1e9)
            while rest > 0:
                receipts = [mq.post_many(f"data{n}", [bytes(1_000)] * 1_000) for n in range(16)]
                for receipt in receipts:
                    receipt.result(timeout=60)
                rest -= 16_000_000
        load = Load(servers)
        time.sleep(5)
        start = time.monotonic()
        found.add()
        share, led_s = 32 // (NODES + 1) - 1, float("nan")
        while time.monotonic() < start + JOIN_S:
            time.sleep(1)
            if led_s != led_s and len(leads_of(servers[0])[f"n{NODES}"]) >= share:
                led_s = time.monotonic() - start
        load.stop()
    gap_s = max(after - before for before, after in pairwise(load.confirmed))
    data = f"{gigabytes:g} GB in three nodes, {LOAD_TOPICS} topics published to in turns"
    return [
        Row(
            "join share",
            f"{led_s:.0f} s",
            "",
            "",
            "60 s",
            f"until the fourth node leads {share} shards; {data}",
        ),
        Row("join gap", f"{gap_s:.2f} s", "", "", "< 1 s", "longest time without a confirm meanwhile"),
        Row("join errors", f"{len(load.errors)}", "", "", "0", f"of {len(load.confirmed):,} publishes"),
    ]


def _steady(servers: list[str], topic: str, confirmed: list[float], over: threading.Event) -> None:
    """One publish after the other."""
    with connect(servers) as mq:
        while not over.wait(PUBLISH_EVERY_S):
            mq.publish(topic, b"steady", timeout=30)
            confirmed.append(time.monotonic())


def _gap_s(confirmed: list[float], begin: float) -> float:
    seen = [moment for moment in confirmed if moment > begin - WATCH_S]
    return max(after - before for before, after in pairwise(seen) if after > begin)


def measure_handover() -> list[Row]:
    """SIGTERM to one node after the other: how long the topics that it led could not be published to."""
    topics = [f"steady{number}" for number in range(HANDOVER_TOPICS)]
    confirmed: list[list[float]] = [[] for _ in topics]
    over, gaps = threading.Event(), []
    with cluster() as found, connect(found.servers) as mq:
        for topic in topics:
            mq.create_topic(topic)
        shards = [mq.topics(topic)[0].shards[0] for topic in topics]
        jobs = zip(topics, confirmed, strict=True)
        threads = [
            threading.Thread(target=_steady, args=(found.servers, topic, times, over))
            for topic, times in jobs
        ]
        for thread in threads:
            thread.start()
        for turn in range(HANDOVER_ROUNDS):
            time.sleep(SETTLE_S)
            number = turn % NODES
            led = leads_of(found.servers[number - 1])[f"n{number}"]
            begin = time.monotonic()
            found.restart(number)
            time.sleep(max(0.0, begin + WATCH_S - time.monotonic()))
            gaps += [
                _gap_s(times, begin) for shard, times in zip(shards, confirmed, strict=True) if shard in led
            ]
            found.wait_healthy()
        over.set()
        for thread in threads:
            thread.join()
    p50, p99 = statistics.median(gaps), statistics.quantiles(gaps, n=100)[98]
    what = f"{HANDOVER_ROUNDS} times SIGTERM to a node, {len(gaps)} topics that it led"
    return [
        Row(
            "handover gap",
            f"{p50:.2f} / {p99:.2f} s",
            "",
            "",
            "p99 < 0.3 s",
            f"longest time without a confirm, p50 / p99: {what}",
        )
    ]


MEASURES = {"idle": measure_idle, "join": measure_join, "handover": measure_handover}
FIGURES = tuple(MEASURES)


def measure(name: str) -> list[Row]:
    return MEASURES[name]()
