#!/usr/bin/env python3
"""Single calls: many callers, each with one publish in flight, beside Redis, NATS and RabbitMQ in turns.

    make race
    python perf/callers.py [--rounds 3] [--seconds 2] [--only redis ...] [--out RESULTS.md]

Tasks share one asyncio client; processes have a client each. Every caller waits until its record is confirmed
before it publishes the next one. A note beside each figure says how the broker has stored a confirmed record.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import race
import stage
from report import Row, write

TASKS, PROCESSES = (1, 16, 64, 256, 1024), (1, 4, 16)
RECORD = b"x" * 100
NAME = "callers"
WARM_S = 60.0


class Told(NamedTuple):
    """Of one run."""

    per_s: float
    p99_ms: float


Publish = Callable[[], Awaitable[Any]]


class Peer(NamedTuple):
    name: str
    durability: str  #: of what it confirms
    needs: tuple[str, ...]  #: programs and modules
    start: Callable[[Path], AbstractContextManager[Any]]  #: in a directory: what its clients connect to
    tasks: Callable[[Any, int], Any] | None  #: (address, number of tasks) to a context with their publish
    alone: Callable[[Any], Callable[[], Any]]  #: at an address: the publish of a process


def told(taken: list[float], seconds: float) -> Told:
    return Told(len(taken) / seconds, sorted(taken)[int(len(taken) * 0.99)] * 1000)


# --- gossipq ------------------------------------------------------------------------------------------------


@contextmanager
def gossipq(directory: Path) -> Iterator[str]:
    with stage.node() as at:
        yield at.server


@asynccontextmanager
async def gossipq_tasks(server: str, tasks: int) -> Any:
    from gossipq_client.aio import connect

    async with connect(server) as mq:
        yield lambda: mq.publish(NAME, RECORD)


def gossipq_alone(server: str) -> Callable[[], Any]:
    from gossipq_client import connect

    mq = connect(server)
    return lambda: mq.publish(NAME, RECORD)


# --- Redis --------------------------------------------------------------------------------------------------


@contextmanager
def redis(directory: Path) -> Iterator[int]:
    port = race.free_port()
    line = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
    with race.server([*line, "--appendonly", "yes", "--appendfsync", "always"], port):
        yield port


@asynccontextmanager
async def redis_tasks(port: int, tasks: int) -> Any:
    from redis.asyncio import Redis

    async with Redis(port=port, max_connections=tasks) as client:
        yield lambda: client.xadd(NAME, {"v": RECORD})


def redis_alone(port: int) -> Callable[[], Any]:
    from redis import Redis

    client = Redis(port=port)
    return lambda: client.xadd(NAME, {"v": RECORD})


# --- NATS JetStream -----------------------------------------------------------------------------------------


@contextmanager
def jetstream(directory: Path) -> Iterator[str]:
    port = race.free_port()
    line = ["nats-server", "-js", "-sd", str(directory), "-a", "127.0.0.1", "-p", str(port)]
    with race.server(line, port):
        yield f"nats://127.0.0.1:{port}"


async def _connected(address: str) -> tuple[Any, Publish]:
    import nats

    connection = await nats.connect(address)
    stream = connection.jetstream()
    await stream.add_stream(name=NAME, subjects=[NAME])
    return connection, lambda: stream.publish(NAME, RECORD)


@asynccontextmanager
async def jetstream_tasks(address: str, tasks: int) -> Any:
    connection, publish = await _connected(address)
    yield publish
    await connection.close()


def jetstream_alone(address: str) -> Callable[[], Any]:
    """nats-py is for asyncio alone: the process has a loop that it runs for each call."""
    loop = asyncio.new_event_loop()
    _, publish = loop.run_until_complete(_connected(address))
    return lambda: loop.run_until_complete(publish())


# --- RabbitMQ -----------------------------------------------------------------------------------------------


@contextmanager
def rabbitmq(directory: Path) -> Iterator[int]:
    with race.rabbitmq_node(directory) as port:
        yield port


def rabbitmq_alone(port: int) -> Callable[[], Any]:
    import pika

    channel = race.rabbit_channel(port)
    channel.confirm_delivery()
    persistent = pika.BasicProperties(delivery_mode=2)
    return lambda: channel.basic_publish("", "race", RECORD, persistent)


PEERS = (
    Peer("gossipq", "fsync before each confirm", (), gossipq, gossipq_tasks, gossipq_alone),
    Peer(
        "redis-py",
        "appendfsync always: fsync before each answer",
        ("redis-server", "redis"),
        redis,
        redis_tasks,
        redis_alone,
    ),
    Peer(
        "nats-py",
        "in the page cache; fsync every 2 min",
        ("nats-server", "nats"),
        jetstream,
        jetstream_tasks,
        jetstream_alone,
    ),
    Peer(
        "pika",
        "quorum queue: fsync before each confirm",
        ("rabbitmq-server", "pika"),
        rabbitmq,
        None,  # a blocking connection
        rabbitmq_alone,
    ),
)


async def in_tasks(peer: Peer, address: Any, tasks: int, seconds: float) -> Told:
    assert peer.tasks is not None, "asked of peers that have an asyncio client"
    taken: list[float] = []
    async with peer.tasks(address, tasks) as publish:
        await publish()
        end = time.perf_counter() + seconds

        async def caller() -> None:
            while (begin := time.perf_counter()) < end:
                await publish()
                taken.append(time.perf_counter() - begin)

        await asyncio.gather(*(caller() for _ in range(tasks)))
    return told(taken, seconds)


def _process(name: str, address: Any, seconds: float, start: Any, results: Any) -> None:
    publish = next(peer for peer in PEERS if peer.name == name).alone(address)
    publish()
    start.wait(WARM_S)
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        publish()
        taken.append(time.perf_counter() - begin)
    results.put(taken)


def in_processes(peer: Peer, address: Any, count: int, seconds: float) -> Told:
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(count), context.Queue()
    given = (peer.name, address, seconds, start, results)
    processes = [context.Process(target=_process, args=given) for _ in range(count)]
    for process in processes:
        process.start()
    taken = [each for _ in processes for each in results.get(timeout=seconds + WARM_S)]
    for process in processes:
        process.join()
    return told(taken, seconds)


Found = dict[str, dict[str, list[Told]]]  #: by case and peer


def measure(peers: list[Peer], rounds: int, seconds: float) -> Found:
    """The peers in turns."""
    found: Found = {}
    for number in range(rounds):
        for peer in peers if number % 2 else reversed(peers):
            with (
                tempfile.TemporaryDirectory(prefix="callers-") as directory,
                peer.start(Path(directory)) as at,
            ):
                runs = {}
                if peer.tasks is not None:
                    runs = {f"{n} tasks": asyncio.run(in_tasks(peer, at, n, seconds)) for n in TASKS}
                runs |= {f"{n} processes": in_processes(peer, at, n, seconds) for n in PROCESSES}
            for case, run in runs.items():
                found.setdefault(case, {}).setdefault(peer.name, []).append(run)
            heard = ", ".join(f"{case} {run.per_s:,.0f}/s" for case, run in runs.items())
            print(f"{peer.name} {number + 1}/{rounds}: {heard}", file=sys.stderr)
    return found


def rows(peers: list[Peer], found: Found) -> list[Row]:
    made = []
    for case, by_peer in found.items():
        ours = by_peer["gossipq"]
        for peer in peers[1:]:
            if peer.name not in by_peer:
                continue
            theirs = by_peer[peer.name]
            ratio = statistics.median(mine.per_s / its.per_s for mine, its in zip(ours, theirs, strict=True))
            made.append(
                Row(
                    f"one publish in flight in each of {case}: {peer.name}",
                    f"{statistics.median(each.per_s for each in ours):,.0f}/s",
                    f"{statistics.median(each.per_s for each in theirs):,.0f}/s",
                    f"{ratio:.2f}",
                    "",
                    f"p99 {statistics.median(each.p99_ms for each in ours):.1f} ms beside "
                    f"{statistics.median(each.p99_ms for each in theirs):.1f} ms; {peers[0].durability}. "
                    f"The other, {peer.durability}",
                )
            )
    return made


def main() -> None:
    names = [peer.name for peer in PEERS[1:]]
    parser = argparse.ArgumentParser(description="Single calls of gossipq and of what people use today.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PEER", choices=names, help=", ".join(names)
    )
    parser.add_argument("--out", type=Path, default=stage.HERE / "RESULTS.md")
    given = parser.parse_args()
    peers = race.installed([peer for peer in PEERS if peer.name in ("gossipq", *(given.only or names))])
    made = rows(peers, measure(peers, given.rounds, given.seconds))
    write(given.out, made, given.rounds)
    print(json.dumps([row._asdict() for row in made]))


if __name__ == "__main__":
    main()
