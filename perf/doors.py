"""What encryption and permissions cost: batches of 500 x 100 B published and fetched, and one publish in
flight, by CURVE against in the clear, with raw ZeroMQ's ratio of the same run; then permission checks: the
same node closed against open. In one run, on one node, in turns: the node is closed and opened for each pair.

    python perf/doors.py [--batches 400] [--rounds 2000] [--pairs 5] [--only permissions]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq
from stage import node

from gossipq_client import connect

BATCH, SIZE, PATIENCE_S = 500, 100, 30.0
SETTLED_S = 1.0  # every process of the node goes by it then
MESSAGE = BATCH * SIZE


def raw_socket(context: "zmq.Context", kind: int, keys: tuple[bytes, bytes], serves: bool, curve: bool):  # type: ignore[no-untyped-def, type-arg]
    socket = context.socket(kind)
    socket.linger = 0
    if curve and serves:
        socket.curve_server, socket.curve_secretkey = True, keys[1]
    elif curve:
        socket.curve_serverkey = keys[0]
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    return socket


def raw(curve: bool, count: int, both_ways: bool) -> float:
    """Messages a second between two threads over TCP: one way, or one in flight."""
    keys, context, there = zmq.curve_keypair(), zmq.Context(), zmq.Context()
    with raw_socket(context, zmq.ROUTER, keys, True, curve) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")

        def serve() -> None:
            for number in range(count):
                frames = router.recv_multipart()
                if both_ways or number == count - 1:
                    router.send_multipart([frames[0], b"done"])

        thread = threading.Thread(target=serve)
        thread.start()
        with raw_socket(there, zmq.DEALER, keys, False, curve) as dealer:
            dealer.connect(f"tcp://127.0.0.1:{port}")
            body, begin = bytes(MESSAGE), time.perf_counter()
            for _ in range(count):
                dealer.send(body)
                if both_ways:
                    dealer.recv()
            if not both_ways:
                dealer.recv()
            took_s = time.perf_counter() - begin
        thread.join()
    context.term()
    there.term()
    return count / took_s


def published(server: str, credentials: "Path | bytes", batches: int, of: int = BATCH) -> float:
    """Records a second, published and fetched by this program, in batches of so many."""
    topic, values = f"t{time.time_ns()}", [bytes(SIZE)] * of
    with connect(server, credentials=credentials, timeout=PATIENCE_S) as mq:
        mq.create_topic(topic, partitions=4)
        mq.publish_many(topic, values).result(PATIENCE_S)
        begin = time.perf_counter()
        for _ in range(batches):
            mq.publish_many(topic, values)
        mq.flush()
        left = (batches + 1) * of
        while left:
            got = mq.fetch(topic, group="g", n=1_000, wait=5.0)
            mq.ack(got)
            left -= len(got)
        mq.flush()
        return batches * of / (time.perf_counter() - begin)


def in_flight(server: str, credentials: "Path | bytes", rounds: int) -> float:
    """Confirms a second, one publish in flight."""
    with connect(server, credentials=credentials, timeout=PATIENCE_S) as mq:
        mq.publish("one", b"x").result(PATIENCE_S)
        begin = time.perf_counter()
        for _ in range(rounds):
            mq.publish("one", bytes(SIZE)).result(PATIENCE_S)
        return rounds / (time.perf_counter() - begin)


def told(what: str, pairs: int, one: Callable[[], float], other: Callable[[], float]) -> float:
    """The median ratio of one to the other, in turns."""
    ratios = []
    for number in range(pairs):
        first, second = (one, other) if number % 2 else (other, one)
        a, b = first(), second()
        ratios.append(a / b if number % 2 else b / a)
    median = statistics.median(ratios)
    print(f"{what}: {median:.2f} of {', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))}", flush=True)
    return median


def gossipq(*line: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-m", "gossipq_cli", *line], env=environment, check=True, stdout=2)


@contextmanager
def encrypting() -> Iterator[tuple[str, Path, Path]]:
    """A node, the key of its doors, and its secret."""
    with tempfile.TemporaryDirectory() as place:
        secret, door = Path(place, "secret"), Path(place, "door")
        secret.write_text("only for this measurement")
        secret.chmod(0o600)
        os.environ |= {"GOSSIPQ_NODE__SECRET_FILE": str(secret), "GOSSIPQ_NODE__ENCRYPT": "always"}
        with node() as at:
            with connect(at.server) as mq:
                door.write_text(f"door_{mq.admin.status().door.hex()}\n")
            door.chmod(0o600)
            yield at.server, door, secret


def encryption(server: str, door: Path, batches: int, rounds: int, pairs: int) -> None:
    one_way = told("raw, CURVE of NULL, one way, 50 kB", pairs, lambda: raw(True, batches * 4, False),
                   lambda: raw(False, batches * 4, False))  # fmt: skip
    trip = told("raw, CURVE of NULL, round trip, 50 kB", pairs, lambda: raw(True, rounds, True),
                lambda: raw(False, rounds, True))  # fmt: skip
    batched = told("gossipq, CURVE of NULL, batches", pairs, lambda: published(server, door, batches),
                   lambda: published(server, b"", batches))  # fmt: skip
    single = told("gossipq, CURVE of NULL, one in flight", pairs, lambda: in_flight(server, door, rounds),
                  lambda: in_flight(server, b"", rounds))  # fmt: skip
    print(f"of raw's ratio: {batched / one_way:.2f} batches, {single / trip:.2f} one in flight (asked: 0.8)")


def permissions(server: str, secret: Path, batches: int, rounds: int, pairs: int) -> None:
    """In the clear, by a user with a token, who shows it whether the node asks for it or not."""
    token, by = secret.with_name("admin"), ("--secret-file", str(secret))
    gossipq("-s", server, "cluster", "close", "--save", str(token), *by)
    token.write_text(token.read_text().splitlines()[0] + "\n")  # the token alone: nothing is encrypted

    def turned(how: str, measure: Callable[[], float]) -> Callable[[], float]:
        def measured() -> float:
            gossipq("-s", server, "--credentials", str(token), "cluster", how, *by)
            time.sleep(SETTLED_S)
            return measure()

        return measured

    found = []
    for what, measure in (
        ("batches", lambda: published(server, token, batches)),
        ("batches of 10", lambda: published(server, token, 10 * batches, 10)),
        ("one in flight", lambda: in_flight(server, token, rounds)),
    ):
        closed, opened = turned("close", measure), turned("open", measure)
        found.append(told(f"permission checks, closed of open, {what}", pairs, closed, opened))
    print(f"permission checks: {min(found):.2f} at least (asked: 0.97)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", choices=["encryption", "permissions"])
    given = parser.parse_args()
    batches, rounds, pairs = given.batches, given.rounds, given.pairs
    with encrypting() as (server, door, secret):
        if given.only != "permissions":
            encryption(server, door, batches, rounds, pairs)
        if given.only != "encryption":
            permissions(server, secret, batches, rounds, pairs)


if __name__ == "__main__":
    main()
