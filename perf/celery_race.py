#!/usr/bin/env python3
"""The throughput of `celery worker` (two processes, late acks) on gossipq, Redis and RabbitMQ, in turns.

    python perf/celery_race.py [--rounds 3] [--tasks 3000] [--out RESULTS.md]

A round sends all tasks by `delay()` from one process, one after the other, and then starts a worker. It
measures the rate of sending, and that of the worker from the first task that runs to the last. Tasks only
count themselves. gossipq confirms a task when it is on disk, and RabbitMQ confirms it as well
(`confirm_publish`). Redis writes its log once a second.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from race import free_port, rabbitmq_node, server
from report import Row, write
from stage import HERE, cpu_s, directory, node

ROOT = str(HERE.parent / "clients/integrations")
MODULE = """
import os

from celery import Celery

import gossipq_celery

app = Celery("counted", broker=os.environ["BROKER"])
app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=4)
app.conf.broker_transport_options = {"confirm_publish": True} if "amqp" in os.environ["BROKER"] else {}
file = os.open(os.environ["COUNTED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task(name="count")  # the module is __main__ for the sender
def count(number):
    os.write(file, b".")


if __name__ == "__main__":
    import time

    tasks, start = int(os.environ["TASKS"]), time.perf_counter()
    for number in range(tasks):
        count.delay(number)
    print(tasks / (time.perf_counter() - start))
"""
PATIENCE_S = 120.0
POLL_S = 0.005
SHOWN = 1_000  #: characters of the log of a worker that failed
BROKERS = ("gossipq", "redis", "rabbitmq")


class Rates(NamedTuple):
    """Of one round."""

    sent_per_s: float
    run_per_s: float
    worker_us: float  #: processor time of the worker's processes for a task


@contextmanager
def gossipq() -> Iterator[str]:
    with node() as at:
        yield at.server.replace("tcp://", "gossipq://")


@contextmanager
def redis() -> Iterator[str]:
    port = free_port()
    with directory() as home:
        words = ["--bind", "127.0.0.1", "--dir", str(home), "--save", "", "--appendonly", "yes"]
        with server(["redis-server", "--port", str(port), *words], port):
            yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def rabbitmq() -> Iterator[str]:
    with directory() as home, rabbitmq_node(home) as port:
        yield f"pyamqp://guest:guest@127.0.0.1:{port}//"


STARTS: dict[str, Callable[[], Any]] = {"gossipq": gossipq, "redis": redis, "rabbitmq": rabbitmq}


def measure(home: Path, broker: str, tasks: int) -> Rates:
    """Send tasks, and run them by a worker that is started then."""
    counted = home / "counted"
    counted.write_bytes(b"")
    (home / "counted_tasks.py").write_text(MODULE)
    paths = os.pathsep.join([str(home), ROOT, os.environ["PYTHONPATH"]])
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "BROKER": broker,
        "COUNTED": str(counted),
        "TASKS": str(tasks),
    }
    how: Any = {"env": environment, "cwd": home}
    sent = subprocess.run(
        [sys.executable, "counted_tasks.py"], stdout=subprocess.PIPE, text=True, check=True, **how
    )
    line = [sys.executable, "-m", "celery", "-A", "counted_tasks", "worker", "-c", "2", "-l", "warning"]
    with (home / "worker.log").open("ab") as log:
        worker = subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, **how)
    try:
        first_s, first, before_s = reached(counted, 1, worker)
        last_s, last, after_s = reached(counted, tasks, worker)
    finally:
        worker.terminate()
        worker.wait(60)
    ran = last - first
    return Rates(float(sent.stdout), ran / (last_s - first_s), 1e6 * (after_s - before_s) / ran)


def reached(counted: Path, wanted: int, worker: "subprocess.Popen[bytes]") -> tuple[float, int, float]:
    """Wait until so many tasks have run. Return when that was, how many had, and the worker's time until
    then."""
    end_s = time.monotonic() + PATIENCE_S
    while (size := counted.stat().st_size) < wanted:
        if time.monotonic() > end_s or worker.poll() is not None:
            said = counted.with_name("worker.log").read_text()
            raise SystemExit(f"{size} of {wanted} tasks ran: {said[-SHOWN:]}")
        time.sleep(POLL_S)
    return time.perf_counter(), size, cpu_s(worker.pid)


def rows_of(found: dict[str, list[Rates]], tasks: int) -> Iterator[Row]:
    """Return one row for each figure and peer; a ratio is the median of those of the rounds."""
    mine = found["gossipq"]
    what = {"sent_per_s": "tasks sent", "run_per_s": "tasks run", "worker_us": "processor time of the worker"}
    for peer in (name for name in found if name != "gossipq"):
        for field, name in what.items():
            ours, theirs = ([getattr(each, field) for each in rounds] for rounds in (mine, found[peer]))
            ratio = statistics.median(our / their for our, their in zip(ours, theirs, strict=True))
            unit = " us" if field == "worker_us" else "/s"
            yield Row(
                figure=f"celery, {name}, beside {peer}",
                gossipq=f"{statistics.median(ours):,.0f}{unit}",
                raw=f"{statistics.median(theirs):,.0f}{unit}",
                ratio=f"{ratio:.2f}",
                asked="1.00" if field == "run_per_s" and peer == "redis" else "",
                command=f"{tasks:,} tasks, `celery worker -c 2`, late acks; {len(mine)} rounds in turns",
            )


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--tasks", type=int, default=3_000)
    words.add_argument("--only", nargs="*", default=BROKERS, choices=BROKERS)
    words.add_argument("--out", type=Path)
    asked = words.parse_args()
    found: dict[str, list[Rates]] = {name: [] for name in asked.only}
    with ExitStack() as stack, directory() as home:
        brokers = {name: stack.enter_context(STARTS[name]()) for name in asked.only}
        for number in range(asked.rounds):
            order = asked.only if number % 2 == 0 else asked.only[::-1]
            for name in order:
                place = home / f"{name}-{number}"
                place.mkdir()
                found[name].append(measure(place, brokers[name], asked.tasks))
                print(name, *(f"{value:,.0f}" for value in found[name][-1]), flush=True)
                shutil.rmtree(place)
    rows = list(rows_of(found, asked.tasks))
    for row in rows:
        print(*row, sep=" | ")
    if asked.out:
        write(asked.out, rows, asked.rounds)


if __name__ == "__main__":
    main()
