#!/usr/bin/env python3
"""Runs the same jobs on gossipq and on other brokers, in turns on this machine. The jobs are one publish in
flight, publishing as fast as confirms allow, and the same with a consumer that acks each record.

    make race
    python perf/race.py [--rounds 5] [--only redis-always ...] [--scale 0.1] [--out RESULTS.md]

Each broker runs as its own documents recommend for the durability that is noted beside its figure, with the
client that is noted there. A record that gossipq confirms is on disk, which not all others promise. Its
clients are in Python. All servers listen on loopback and end with the run.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import chart
from report import Row, write
from stage import GOSSIPQ, HERE, answer, node

SIZE = 100
BATCH = 500
READY_S = 60.0
RECORD = b"x" * SIZE
WORKLOADS = {
    "one": "one publish in flight",
    "publish": "publishing, all confirmed",
    "both": "publishing and consuming, all acked",
}


class Counts(NamedTuple):
    """Records of each workload."""

    one: int = 5_000
    publish: int = 500_000
    both: int = 300_000


Run = Callable[[int], float]  #: number of records -> records per second


class Peer(NamedTuple):
    name: str
    durability: str  #: of what it confirms
    client: str
    needs: tuple[str, ...]  #: programs and modules
    start: Callable[[Path], Any]  #: in a directory: a context of its workloads
    counts: Counts = Counts()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def server(line: list[str], port: int, **how: Any) -> Iterator[None]:
    """A program that listens on the port, until the end."""
    process = subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, **how
    )
    try:
        end = time.monotonic() + READY_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{line[0]} did not start: exit code {process.poll()}")
            time.sleep(0.05)
        yield
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def timed(count: int, work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def beside(consumer: Callable[..., None], *given: Any) -> Any:
    """A consumer in a process of its own; join it."""
    process = multiprocessing.get_context("spawn").Process(target=consumer, args=given, daemon=True)
    process.start()
    return process


# --- gossipq ------------------------------------------------------------------------------------------------


@contextmanager
def gossipq(directory: Path) -> Iterator[dict[str, Run]]:
    with node() as at:

        def bench(field: str, *line: str) -> Run:
            asked = [*GOSSIPQ, "-s", at.server, "bench", *line, "-o", "json", "--records"]
            return lambda count: float(answer([*asked, str(count)])[field])

        yield {
            "one": bench("confirmed_one_at_a_time_per_s", "rtt"),
            "publish": bench("published_per_s", "pub", "--batch", str(BATCH)),
            "both": bench("end_to_end_per_s", "e2e", "--batch", str(BATCH)),
        }


# --- Redis Streams ------------------------------------------------------------------------------------------

STREAM, GROUP = "race", "race"


def _redis_consume(port: int, count: int) -> None:
    import redis

    client, seen = redis.Redis(port=port), 0
    while seen < count:
        for _, entries in client.xreadgroup(GROUP, "c", {STREAM: ">"}, count=BATCH, block=1_000):
            client.xack(STREAM, GROUP, *(entry for entry, _ in entries))
            seen += len(entries)


def redis(policy: str) -> Callable[[Path], Any]:
    @contextmanager
    def start(directory: Path) -> Iterator[dict[str, Run]]:
        import redis as library

        port = free_port()
        line = [
            "redis-server",
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(directory),
            "--save",
            "",
        ]
        line += ["--appendonly", "yes", "--appendfsync", policy]
        with server(line, port):
            client = library.Redis(port=port)

            def bench(*options: str) -> Run:
                """By redis-benchmark, a program in C."""

                def run(count: int) -> float:
                    asked = ["redis-benchmark", "-p", str(port), "-n", str(count), "--csv", *options]
                    told = subprocess.run(
                        [*asked, "XADD", STREAM, "*", "v", RECORD.decode()],
                        capture_output=True,
                        text=True,
                        check=True,
                    )
                    client.delete(STREAM)
                    return float(told.stdout.strip().splitlines()[-1].split('","')[1])

                return run

            def both(count: int) -> float:
                client.delete(STREAM)
                client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
                consumer = beside(_redis_consume, port, count)
                while not client.info("clients")["blocked_clients"]:
                    time.sleep(0.01)

                def work() -> None:
                    for _ in range(count // BATCH):
                        pipeline = client.pipeline(transaction=False)
                        for _ in range(BATCH):
                            pipeline.xadd(STREAM, {"v": RECORD})
                        pipeline.execute()
                    consumer.join()

                return timed(count, work)

            yield {"one": bench("-c", "1"), "publish": bench("-c", "50", "-P", "64"), "both": both}

    return start


# --- NATS JetStream -----------------------------------------------------------------------------------------


@contextmanager
def jetstream(directory: Path) -> Iterator[dict[str, Run]]:
    program, port = directory / "client", free_port()  # the server makes a folder "jetstream"
    source = HERE / "peers" / "jetstream.c"
    subprocess.run(["cc", "-O2", str(source), "-o", str(program), "-lnats", "-lpthread"], check=True)
    with server(["nats-server", "-js", "-sd", str(directory), "-a", "127.0.0.1", "-p", str(port)], port):

        def run(mode: str) -> Run:
            line = [str(program), f"nats://127.0.0.1:{port}", mode]
            return lambda count: float(
                subprocess.run([*line, str(count), str(SIZE)], capture_output=True, check=True).stdout
            )

        yield {name: run(name) for name in WORKLOADS}


# --- RabbitMQ quorum queues ---------------------------------------------------------------------------------


def rabbit_channel(port: int) -> Any:
    import pika

    channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()
    channel.queue_declare("race", durable=True, arguments={"x-queue-type": "quorum"})
    return channel


def _rabbit_consume(port: int, count: int) -> None:
    channel = rabbit_channel(port)
    channel.basic_qos(prefetch_count=2 * BATCH)
    for seen, (method, _, _) in enumerate(channel.consume("race"), 1):
        if seen % 100 == 0 or seen == count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if seen == count:
            break
    channel.connection.close()


def _rabbit_publish(port: int, count: int) -> None:
    """Publishes with many confirms outstanding, as only an asynchronous connection does, until the last."""
    import pika

    persistent, confirmed = pika.BasicProperties(delivery_mode=2), 0
    sent = 0

    def more(channel: Any) -> None:
        nonlocal sent
        for _ in range(min(2 * BATCH - (sent - confirmed), count - sent)):
            channel.basic_publish("", "race", RECORD, persistent)
            sent += 1

    def answered(channel: Any, frame: Any) -> None:
        nonlocal confirmed
        confirmed = frame.method.delivery_tag if frame.method.multiple else confirmed + 1
        if confirmed >= count:
            channel.connection.close()
        elif sent - confirmed <= BATCH:
            more(channel)

    def opened(channel: Any) -> None:
        channel.confirm_delivery(lambda frame: answered(channel, frame), callback=lambda _: more(channel))

    connection = pika.SelectConnection(
        pika.ConnectionParameters("127.0.0.1", port),
        on_open_callback=lambda connection: connection.channel(on_open_callback=opened),
        on_close_callback=lambda connection, _: connection.ioloop.stop(),
    )
    connection.ioloop.start()


@contextmanager
def mapped(environment: dict[str, str]) -> Iterator[None]:
    """Erlang's port mapper, which a node would leave behind."""
    mapper = subprocess.Popen(["epmd"], env=environment)
    try:
        yield
    finally:
        mapper.terminate()
        mapper.wait()


@contextmanager
def rabbitmq_node(directory: Path) -> Iterator[int]:
    """A node of RabbitMQ: its port."""
    port, distribution, mapper = free_port(), free_port(), free_port()
    settings = {
        "HOME": str(directory),
        "RABBITMQ_NODENAME": f"race{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_MNESIA_BASE": str(directory),
        "RABBITMQ_LOG_BASE": str(directory),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_CONFIG_FILE": str(directory / "none"),
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
    environment = os.environ | settings
    with (
        mapped(environment),
        server(["/usr/lib/rabbitmq/bin/rabbitmq-server"], port, env=environment),
    ):
        yield port


@contextmanager
def rabbitmq(directory: Path) -> Iterator[dict[str, Run]]:
    with rabbitmq_node(directory) as port:
        import pika

        channel = rabbit_channel(port)
        channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=2)

        def one(count: int) -> float:
            def work() -> None:
                for _ in range(count):
                    channel.basic_publish("", "race", RECORD, persistent)

            found = timed(count, work)
            channel.queue_purge("race")
            return found

        def publish(count: int) -> float:
            found = timed(count, lambda: _rabbit_publish(port, count))
            channel.queue_purge("race")
            return found

        def both(count: int) -> float:
            consumer = beside(_rabbit_consume, port, count)

            def work() -> None:
                _rabbit_publish(port, count)
                consumer.join()

            return timed(count, work)

        yield {"one": one, "publish": publish, "both": both}
        channel.connection.close()


# --- beanstalkd ---------------------------------------------------------------------------------------------


def _beanstalk_consume(port: int, count: int) -> None:
    import greenstalk

    with greenstalk.Client(("127.0.0.1", port), encoding=None) as client:
        for _ in range(count):
            client.delete(client.reserve())


@contextmanager
def beanstalkd(directory: Path) -> Iterator[dict[str, Run]]:
    port = free_port()
    with server(["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(directory), "-f0"], port):
        import greenstalk

        client = greenstalk.Client(("127.0.0.1", port), encoding=None)

        def puts(count: int) -> None:
            for _ in range(count):
                client.put(RECORD)

        def publish(count: int) -> float:
            found = timed(count, lambda: puts(count))
            for _ in range(count):  # not measured
                client.delete(client.reserve())
            return found

        def both(count: int) -> float:
            consumer = beside(_beanstalk_consume, port, count)

            def work() -> None:
                puts(count)
                consumer.join()

            return timed(count, work)

        try:
            yield {"one": publish, "publish": publish, "both": both}
        finally:
            client.close()


REDIS_CLIENT = "C, redis-benchmark (50 connections, P=64); with a consumer Python, redis"
PEERS = (
    Peer("gossipq", "fsync before each confirm", "Python", (), gossipq, Counts(5_000, 2_000_000, 1_000_000)),
    Peer(
        "redis-always", "fsync before each answer", REDIS_CLIENT, ("redis-server", "redis"), redis("always")
    ),
    Peer("redis-everysec", "fsync each second", REDIS_CLIENT, ("redis-server", "redis"), redis("everysec")),
    Peer("jetstream", "in the page cache; fsync every 2 min", "C", ("nats-server", "cc"), jetstream),
    Peer(
        "rabbitmq",
        "quorum queue: fsync before each confirm",
        "Python, pika",
        ("rabbitmq-server", "pika"),
        rabbitmq,
        Counts(2_000, 50_000, 50_000),
    ),
    Peer(
        "beanstalkd",
        "fsync of each job",
        "Python, greenstalk: one at a time",
        ("beanstalkd", "greenstalk"),
        beanstalkd,
        Counts(5_000, 5_000, 5_000),
    ),
)


class Installed(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> tuple[str, ...]: ...


Named = TypeVar("Named", bound=Installed)


def installed(peers: list[Named]) -> list[Named]:
    """Return the brokers whose programs and modules are installed here. Prints which ones are left out."""
    found = []
    for peer in peers:
        if lacking := [name for name in peer.needs if not (shutil.which(name) or find_spec(name))]:
            text = f"{peer.name} is left out: {', '.join(lacking)} not installed (make race-peers)"
            print(text, file=sys.stderr)
        else:
            found.append(peer)
    return found


def race(peers: list[Peer], rounds: int, scale: float) -> dict[str, dict[str, list[float]]]:
    """By workload and peer: records a second of each round, the peers in turns."""
    found: dict[str, dict[str, list[float]]] = {name: {peer.name: [] for peer in peers} for name in WORKLOADS}
    for number in range(rounds):
        for peer in peers if number % 2 else reversed(peers):
            with (
                tempfile.TemporaryDirectory(prefix="race-") as directory,
                peer.start(Path(directory)) as runs,
            ):
                for name in WORKLOADS:
                    count = max(BATCH, round(getattr(peer.counts, name) * scale) // BATCH * BATCH)
                    found[name][peer.name].append(runs[name](count))
            told = ", ".join(f"{name} {found[name][peer.name][-1]:,.0f}/s" for name in WORKLOADS)
            print(f"{peer.name} {number + 1}/{rounds}: {told}", file=sys.stderr)
    return found


def rows(peers: list[Peer], found: dict[str, dict[str, list[float]]]) -> list[Row]:
    made = []
    for name, text in WORKLOADS.items():
        ours = found[name]["gossipq"]
        for peer in peers[1:]:
            its = found[name][peer.name]
            ratio = statistics.median(mine / other for mine, other in zip(ours, its, strict=True))
            made.append(
                Row(
                    f"{text}: {peer.name}",
                    f"{statistics.median(ours):,.0f}/s",
                    f"{statistics.median(its):,.0f}/s",
                    f"{ratio:.2f}",
                    "",
                    f"{peers[0].durability}. The other, {peer.durability}; {peer.client}",
                )
            )
    return made


def main() -> None:
    names = [peer.name for peer in PEERS[1:]]
    parser = argparse.ArgumentParser(description="gossipq and what people use today.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", action="append", default=[], metavar="PEER", choices=names, help=", ".join(names)
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the records")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    given = parser.parse_args()
    peers = installed([peer for peer in PEERS if peer.name in ("gossipq", *(given.only or names))])
    found = race(peers, given.rounds, given.scale)
    made = rows(peers, found)
    write(given.out, made, given.rounds)
    medians = {
        WORKLOADS[name]: {peer: statistics.median(figures) for peer, figures in by_peer.items()}
        for name, by_peer in found.items()
    }
    chart.bars(given.out.with_name("race.svg"), medians, "gossipq")
    print(json.dumps([row._asdict() for row in made]))


if __name__ == "__main__":
    main()
