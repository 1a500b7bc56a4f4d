"""Measures how a backup of a running node slows down publishers.

    python perf/backup.py                5 GB of records of 64 KiB, backed up at 32 MiB a second

A process of its own publishes 1 KB, one record in flight, at most a hundred a second. It does so for a while
before the first backup, and until that one ends. Then a second backup copies the new records, and the copy is
restored.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from report import Row, write
from stage import GOSSIPQ, HERE, Node, answer, disk_mb, node

RECORD, BATCH = 64 << 10, 16
BEFORE_S = 20.0
PERIOD_S = 0.01


def fill(server: str, size: int) -> int:
    from gossipq_client import connect

    noise = os.urandom(RECORD * 2)
    records = size // RECORD
    with connect(server, timeout=120) as mq:
        mq.create_topic("ballast", partitions=32)
        for first in range(0, records, BATCH):
            starts = [(first + at) * 7_919 % RECORD for at in range(BATCH)]
            mq.post_many("ballast", [noise[at : at + RECORD] for at in starts])
        mq.flush(600)
    return records


class Pulse(threading.Thread):
    """Publishes, one at a time; seconds from the call to the confirm."""

    def __init__(self, server: str) -> None:
        super().__init__()
        self._server, self._over = server, threading.Event()
        self.waits: list[float] = []

    def run(self) -> None:
        from gossipq_client import connect

        with connect(self._server, timeout=60) as mq:
            mq.create_topic("pulse", partitions=4, if_not_exists=True)
            while not self._over.is_set():
                start_s = time.perf_counter()
                mq.publish("pulse", b"x" * 1_000, timeout=60)
                self.waits.append(time.perf_counter() - start_s)
                time.sleep(max(0.0, PERIOD_S - self.waits[-1]))

    def stop(self) -> None:
        self._over.set()
        self.join()


def ranked_ms(waits: list[float], rank: float) -> float:
    return sorted(waits)[int(len(waits) * rank)] * 1e3


def back_up(at: Node, place: Path, rate: str) -> tuple[dict[str, object], float]:
    start_s = time.perf_counter()
    done = answer([*GOSSIPQ, "-s", at.server, "-o", "json", "backup", "--out", str(place), "--rate", rate])
    return done, time.perf_counter() - start_s


def measure(at: Node, folder: Path, size: int, rate: str) -> list[Row]:
    records, place = fill(at.server, size), folder / "backup"
    pulse = Pulse(at.server)
    pulse.start()
    time.sleep(3)
    pulse.waits.clear()
    time.sleep(BEFORE_S)
    before, pulse.waits = pulse.waits, []
    done, took_s = back_up(at, place, rate)
    during = list(pulse.waits)
    again, again_s = back_up(at, place, rate)
    pulse.stop()
    start_s = time.perf_counter()
    subprocess.run(
        [*GOSSIPQ, "-q", "store", "restore", str(place), "--data", str(folder / "restored")],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    restored_s = time.perf_counter() - start_s
    p50s, p99s = ([ranked_ms(waits, rank) for waits in (before, during)] for rank in (0.5, 0.99))
    what = f"{records:,} records of 64 KiB, {disk_mb(at.directory):,.0f} MB on disk, --rate {rate}"
    told = f"{what}; p50 {p50s[0]:.1f} and {p50s[1]:.1f} ms, beside before; {len(during):,} publishes"
    new = int(str(done["bytes_new"])), int(str(again["bytes_new"]))
    return [
        Row(
            "backup, publish p99",
            f"{p99s[1]:.1f} ms",
            f"{p99s[0]:.1f} ms",
            f"{p99s[1] / p99s[0]:.2f}",
            "2",
            told,
        ),
        Row(
            "backup",
            f"{new[0] / took_s / 1e6:,.0f} MB/s",
            f"{took_s:.1f} s",
            "",
            "",
            f"{what}, beside in all",
        ),
        Row(
            "backup, again",
            f"{again_s:.1f} s",
            "",
            "",
            "",
            f"{new[1] / 1e6:,.1f} MB new, after {took_s:.0f} s",
        ),
        Row("restore", f"{new[0] / restored_s / 1e6:,.0f} MB/s", f"{restored_s:.1f} s", "", "", what),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="A backup of a running node.")
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--rate", default="32MiB")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gossipq-perf-") as name, node() as at:
        rows = measure(at, Path(name), int(given.gigabytes * 1e9), given.rate)
    write(given.out, rows, 1)
    for row in rows:
        print(row, file=sys.stderr)


if __name__ == "__main__":
    main()
