"""Measures encryption and permissions. Batches of 500 x 100 B, batches of 10, and one publish in flight are
sent over CURVE and unencrypted. Raw ZeroMQ's ratio is measured in the same run. Then a closed node is
compared with an open one. All runs use one node, in many short turns; a first turn warms up.

    python perf/doors.py [--pairs 25] [--scale 1] [--store /dev/shm] [--only permissions]

Ratios are of records per second of processor time, of clients and nodes together. They hardly change when
other programs run. Rates by the clock are given beside them. The store is in memory by default, because a
disk whose speed varies would hide a difference of a few percent.
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
from functools import partial
from pathlib import Path

import zmq
from costs import Measured, Ratios, Watch, in_turns, parts, ratios
from report import Row, write
from stage import HERE, Node, node

from gossipq_client import Client, connect

BATCH, FEW, SIZE, PATIENCE_S = 500, 10, 100, 30.0
SETTLED_S = 1.0  # every process of the node goes by it then
MESSAGE = BATCH * SIZE
KINDS = ("batches", f"batches of {FEW}", "one in flight")
MUCH = {"batches": 200, f"batches of {FEW}": 1_500, "one in flight": 400}  #: in one turn
RAW_MESSAGES = 2_000  #: in one turn, each way
ASKED_OF_RAW, ASKED_OF_OPEN = "0.8", "0.97"


def raw_socket(context: "zmq.Context", kind: int, keys: tuple[bytes, bytes], serves: bool, curve: bool):  # type: ignore[no-untyped-def, type-arg]
    socket = context.socket(kind)
    socket.linger = 0
    if curve and serves:
        socket.curve_server, socket.curve_secretkey = True, keys[1]
    elif curve:
        socket.curve_serverkey = keys[0]
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    return socket


def raw(curve: bool, count: int, both_ways: bool) -> Measured:
    """Messages between two threads over TCP: one way, or one in flight."""
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
            body, watch = bytes(MESSAGE), Watch()
            for _ in range(count):
                dealer.send(body)
                if both_ways:
                    dealer.recv()
            if not both_ways:
                dealer.recv()
            spent = watch.spent()
        thread.join()
    context.term()
    there.term()
    return spent.of_each(count)


def published(mq: Client, at: Node, topic: str, batches: int, of: int) -> Measured:
    """Publish and fetch records in this program, in batches of this size."""
    values = [bytes(SIZE)] * of
    watch = Watch(at.pid)
    for _ in range(batches):
        mq.post_many(topic, values)
    mq.flush(None)
    left = batches * of
    while left:
        got = mq.fetch(topic, group="g", n=1_000, wait=5.0)
        mq.ack_soon(got)
        left -= len(got)
    mq.flush(None)
    return watch.spent().of_each(batches * of)


def in_flight(mq: Client, at: Node, rounds: int) -> Measured:
    """One publish in flight."""
    watch = Watch(at.pid)
    for _ in range(rounds):
        mq.publish("one", bytes(SIZE), timeout=PATIENCE_S)
    return watch.spent().of_each(rounds)


def turn(at: Node, credentials: "Path | bytes", scale: float) -> tuple[Measured, ...]:
    """One after the other, in topics that are there: all KINDS."""
    much = {kind: int(count * scale) for kind, count in MUCH.items()}
    with connect(at.server, credentials=credentials, timeout=PATIENCE_S) as mq:
        for topic in ("many", "few", "one"):
            mq.create_topic(topic, partitions=4, retention=0, if_not_exists=True)
            mq.publish(topic, b"first", timeout=PATIENCE_S)
            mq.ack_soon(mq.fetch(topic, group="g", n=1_000, wait=5.0))
        mq.flush(None)
        return (
            published(mq, at, "many", much[KINDS[0]], BATCH),
            published(mq, at, "few", much[KINDS[1]], FEW),
            in_flight(mq, at, much[KINDS[2]]),
        )


def compared(name: str, found: list[list[Measured]], asked: str, of: Ratios | None = None) -> Row:
    """One way to do it against the other. `of`: raw ZeroMQ's ratio, of which the share is told."""
    cores = [[each.per_core_s for each in side] for side in found]
    by_core, by_clock = ratios(cores), ratios([[each.per_s for each in side] for side in found])
    mine, its = (f"{statistics.median(side):,.0f}/s per core" for side in cores)
    said = f"{len(found[0])} pairs, {by_core}; by the clock {by_clock}; {parts(found)}"
    if of:
        said = f"share of raw's ratio, {of.median:.2f}; " + said
    ratio = f"{by_core.median / (of.median if of else 1):.2f}"
    print(f"{name}: {ratio} (asked: {asked or 'nothing'}); {said}", flush=True)
    return Row(name, mine, its, ratio, asked, said)


def turns(
    what: str, pairs: int, *sides: Callable[[], tuple[Measured, ...]]
) -> Iterator[list[list[Measured]]]:
    """Return the results of both sides, for each value that they measure in a turn."""

    def told(number: int, _: object) -> None:
        print(f"{what}: {number} of {pairs}", file=sys.stderr)

    one, other = in_turns(sides, pairs, told)
    for mine, its in zip(zip(*one, strict=True), zip(*other, strict=True), strict=True):
        yield [list(mine), list(its)]


def gossipq(*line: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-m", "gossipq_cli", *line], env=environment, check=True, stdout=2)


@contextmanager
def encrypting() -> Iterator[tuple[Node, Path, Path]]:
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
            yield at, door, secret


def encryption(at: Node, door: Path, pairs: int, scale: float) -> list[Row]:
    count = int(RAW_MESSAGES * scale)

    def raw_turn(curve: bool) -> tuple[Measured, ...]:
        return raw(curve, count, False), raw(curve, count, True)

    bare = turns("raw", pairs, partial(raw_turn, True), partial(raw_turn, False))
    (one_way, trip), rows = list(bare), []
    for name, found in (("one way", one_way), ("round trip", trip)):
        rows.append(compared(f"raw CURVE of NULL, {name}, 50 kB", found, ""))
    ours = turns("encryption", pairs, partial(turn, at, door, scale), partial(turn, at, b"", scale))
    for kind, found in zip(KINDS, ours, strict=True):
        beside = trip if kind == KINDS[-1] else one_way
        of = ratios([[each.per_core_s for each in side] for side in beside])
        rows.append(compared(f"CURVE of NULL, {kind}", found, ASKED_OF_RAW, of))
    return rows


def permissions(at: Node, secret: Path, pairs: int, scale: float) -> list[Row]:
    """In the clear, by a user with a token, who shows it whether the node asks for it or not."""
    token, by = secret.with_name("admin"), ("--secret-file", str(secret))
    gossipq("-s", at.server, "cluster", "close", "--save", str(token), *by)
    token.write_text(token.read_text().splitlines()[0] + "\n")  # the token alone: nothing is encrypted

    def turned(how: str) -> tuple[Measured, ...]:
        gossipq("-s", at.server, "--credentials", str(token), "cluster", how, *by)
        time.sleep(SETTLED_S)
        return turn(at, token, scale)

    found = turns("permissions", pairs, partial(turned, "close"), partial(turned, "open"))
    return [
        compared(f"permission checks, {kind}", sides, ASKED_OF_OPEN)
        for kind, sides in zip(KINDS, found, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--scale", type=float, default=1.0, help="of what is published in one turn")
    parser.add_argument("--store", default="/dev/shm", help='directory for the node\'s; "": that of TMPDIR')
    parser.add_argument("--only", choices=["encryption", "permissions"])
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    given = parser.parse_args()
    if given.store:
        tempfile.tempdir = given.store
    rows = []
    with encrypting() as (at, door, secret):
        if given.only != "permissions":
            rows += encryption(at, door, given.pairs, given.scale)
        if given.only != "encryption":
            rows += permissions(at, secret, given.pairs, given.scale)
    write(given.out, rows, given.pairs)


if __name__ == "__main__":
    main()
