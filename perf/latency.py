"""Measures the latency of confirm and delivery at a fixed rate: `gossipq bench load` beside an echo with a
journal. It runs at shares of the peak, for three sizes, and while a node is killed or joins.

Percentiles count from the time at which a record was due, so that a pause counts for every record that should
have been sent during it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import cluster
from report import Row
from stage import GOSSIPQ, HERE, answer, node

from gossipq_client import connect

SHARES = (0.1, 0.5, 0.8)  #: of the peak
SIZES = (100, 1_024, 16_384)
BATCH = 500
PEAK_BYTES = 50_000_000  #: of records, for the peak of a size
LOAD_S, FAULT_S, FAULT_AFTER_S = 10, 20, 5
FAULT_PER_S = 1_000  #: records, one in a call, while a node is killed or joins


def _peak(servers: str, size: int) -> float:
    """Records a second, end to end."""
    records = max(10 * BATCH, min(1_000_000, PEAK_BYTES // size))
    line = ["e2e", "--batch", str(BATCH), "--size", str(size), "--records", str(records)]
    return float(answer([*GOSSIPQ, "-s", servers, "bench", *line, "-o", "json"])["end_to_end_per_s"])


def _load(servers: str, *more: Any) -> list[str]:
    return [*GOSSIPQ, "-s", servers, "bench", "load", *map(str, more), "-o", "json"]


def _row(name: str, found: dict[str, Any], raw: dict[str, Any] | None, asked: str, said: str) -> Row:
    """p99 until the confirm beside that of the echo; all percentiles stand behind."""
    kinds = (
        f"until {kind} p50 {found[f'{kind}_p50_ms']:.2f}, p90 {found[f'{kind}_p90_ms']:.2f}, "
        f"p99 {found[f'{kind}_p99_ms']:.2f}, p99.9 {found[f'{kind}_p999_ms']:.2f} ms"
        for kind in ("confirm", "delivery")
    )
    rates = f"{found['published_per_s']:,}/s, {found['published_bytes_per_s'] / 1e6:.1f} MB/s {said}"
    p99_ms = found["confirm_p99_ms"]
    return Row(
        f"latency {name}",
        f"{p99_ms:.2f} ms",
        f"{raw['load_p99_ms']:.2f} ms" if raw else "",
        f"{p99_ms / raw['load_p99_ms']:.1f}" if raw else "",
        asked,
        f"p99 until the confirm at {rates}: " + "; ".join(kinds),
    )


def _at_shares(servers: str, copies: int, peaks: dict[int, float]) -> list[Row]:
    """`peaks`: records a second by the size of a record, of other nodes: what such a run leaves behind is
    written and swept for a while."""
    rows = []
    for size, peak in peaks.items():
        for share in SHARES if size == SIZES[0] else (0.5,):
            rate = peak * share
            same = ["--batch", str(BATCH), "--size", str(size)]
            echo = ["--copies", str(copies), "--journal-load", str(rate)]
            raw = answer([sys.executable, str(HERE / "limit.py"), *same, *echo])
            found = answer(_load(servers, "--rate", rate, "--for", LOAD_S, *same))
            name = f"{share:.0%} of the peak, {size} B, {copies} {'copy' if copies == 1 else 'copies'}"
            asked = f"< {8 if copies == 1 else 20}" if share == 0.5 else ""
            rows.append(_row(name, found, raw, asked, f"in batches of {BATCH}"))
    return rows


def measure_one() -> list[Row]:
    with node() as at:
        peaks = {size: _peak(at.server, size) for size in SIZES}
    with node() as at:
        return _at_shares(at.server, 1, peaks)


def measure_copies() -> list[Row]:
    with cluster.cluster() as found:
        peaks = {size: _peak(",".join(found.servers), size) for size in SIZES[:1]}
    with cluster.cluster() as found:
        return _at_shares(",".join(found.servers), 3, peaks)


def measure_takeover() -> list[Row]:
    """The leader of the topic is killed."""
    with cluster.cluster() as found, connect(found.servers) as mq:
        leads = cluster.leads_of(found.servers[0])
        shard = mq.create_topic("steady").shards[0]
        number = next(n for n in range(len(found.servers)) if shard in leads[f"n{n}"])
        return [_under_fault("while the leader is killed", found, lambda: found.kill(number))]


def measure_join() -> list[Row]:
    """A fourth node joins, and gets its share of the shards."""
    with cluster.cluster() as found, connect(found.servers) as mq:
        mq.create_topic("steady")
        return [_under_fault("while a node joins", found, found.add)]


def _under_fault(name: str, found: cluster.Cluster, fault: Callable[[], None]) -> Row:
    line = _load(",".join(found.servers), "--topic", "steady", "--rate", FAULT_PER_S, "--for", FAULT_S)
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(FAULT_AFTER_S)
        fault()
        told = process.communicate()[0]
    return _row(f"{name}, three copies", json.loads(told.strip().splitlines()[-1]), None, "", "one in a call")


MEASURES = {
    "latency": measure_one,
    "latency-copies": measure_copies,
    "latency-takeover": measure_takeover,
    "latency-join": measure_join,
}
FIGURES = tuple(MEASURES)


def measure(name: str) -> list[Row]:
    return MEASURES[name]()
