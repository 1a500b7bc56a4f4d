"""Mutated real conversations against all code that reads a stranger's messages.

    python -m attacks.fuzzing [--inputs 100000] [--first SEED]

A life feeds one target a number of inputs; its seed repeats it. An input that ends a target or
causes a fault is kept as a vector, and the tests feed it from then on. Counts of inputs are added
up in `fuzzed.json`, for each commit.
"""

import argparse
import hashlib
import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from attacks.decoders import resealed
from gossipq.errors import GossipqError
from gossipq.messages import MESSAGES, Bye
from gossipq.peer_messages import Bundle
from gossipq.types import DELAY, NODE_SHARD
from gossipq.verbs import OF_NODES
from gossipq.wire import batch as batches
from gossipq.wire.frames import encode
from gossipq_node.adapters import serf_membership
from gossipq_node.admin import Admin, Callers
from node.fuzz import Fuzz
from node.test_admin import House as Pages
from node.test_admin import worker as worker_row
from node.test_frontdoor import House
from node.test_fuzz import known, lively
from node.test_worker import OWNER, PEERS, PRODUCER, SETTINGS

HOME = Path(__file__).resolve().parent
COUNTS, VECTORS = HOME / "fuzzed.json", HOME / "vectors"
LIFE = 250  #: inputs of one life
Frames = list[bytes]


class Crash(AssertionError):
    """`frames` are what the target was fed since it began."""

    def __init__(self, surface: str, seed: int, frames: list[Frames], error: object) -> None:
        super().__init__(f"{surface}, seed {seed}: {error!r}")
        self.surface, self.seed, self.frames = surface, seed, frames


def mutated(random: Random, raw: bytes, other: bytes = b"") -> bytes:
    """A few bytes of it changed, lost, doubled, or taken from another one."""
    changed = bytearray(raw)
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        at = random.randrange(len(changed) + 1)
        end = min(len(changed), at + random.choice((1, 1, 2, 4, 8, 40)))
        kind = random.randrange(6)
        if kind <= 1 and at < len(changed):
            changed[at] = random.choice((0, 1, 0x7F, 0x80, 0xC1, 0xDD, 0xFF, random.randrange(256)))
        elif kind == 2:
            del changed[at:end]
        elif kind == 3:
            changed[at:at] = changed[at:end] * random.choice((1, 2, 50))
        elif kind == 4 and other:
            start = random.randrange(len(other))
            changed[at:end] = other[start : start + end - at]
        else:
            changed[at:end] = random.randbytes(end - at)
    return bytes(changed)


def _batch(random: Random) -> bytes:
    values = [random.randbytes(random.choice((0, 1, 100))) for _ in range(random.choice((1, 3, 50)))]
    extras: dict[str, Any] = {"headers": [b"\x80"] * len(values)} if random.random() < 0.3 else {}
    if random.random() < 0.3:
        from array import array

        extras["fixed"] = {DELAY: array("Q", [5] * len(values))}
    return bytes(batches.seal(values, producer=PRODUCER, sequence=random.choice((0, 1, 9, 10)), **extras))


def _conversation(random: Random, fuzz: Fuzz, shard: int, peers: bool) -> Iterator[Frames]:
    kinds = [
        kind for verb, kind in sorted(MESSAGES.items()) if (kind in OF_NODES) == peers and kind is not Bye
    ]
    before = b"\0"
    while True:
        try:
            control = encode(fuzz.message(random.choice(kinds)), shard, random.choice((0, 9, 2**64 - 1)))
        except (UnicodeEncodeError, OverflowError):
            continue  # no client can send that
        frames = [mutated(random, control, before)]
        before = control
        if random.random() < 0.3:
            batch = _batch(random)
            frames.append(resealed(mutated(random, batch, before)) if random.random() < 0.8 else batch)
        yield frames


def _bundled(random: Random, frames: Frames, sender: str, to: str) -> Frames:
    """As one process of a cluster says it to another, mostly."""
    if random.random() < 0.1:
        return frames
    control, *rest = frames
    body = rest[0] if rest else b""
    bundle = encode(Bundle(bytes(16), sender, to, [control], [len(body)] if body else []))
    return [mutated(random, bundle) if random.random() < 0.1 else bundle, *rest]


def worker(random: Random, fed: list[Frames]) -> Iterator[None]:
    """Messages of a client, and of a stranger at the port for peers, to a worker."""
    hands, client, partition, shard = lively()
    fuzz = Fuzz(random.randrange(2**32), known(partition, shard))
    talk, peer_talk = (_conversation(random, fuzz, shard, peers) for peers in (False, True))
    peer = hands.network.client(PEERS)
    while True:
        frames, of_peer = (next(peer_talk), True) if random.random() < 0.2 else (next(talk), False)
        fed.append(frames)
        if of_peer:
            sender = random.choice((SETTINGS.member.copy, "bob.1"))
            hands.trust(peer._name, sender)
            peer.send(*_bundled(random, frames, sender, SETTINGS.member.copy))
        else:
            client.dealer.send(*frames)
        hands.turn(random.choice((0, 0, 1, 60)))
        client.inbox()
        assert not hands.worker._faults.count, "a fault of its own"
        if random.random() < 0.02:
            client.ask(OWNER)
        yield


def frontdoor(random: Random, fed: list[Frames]) -> Iterator[None]:
    """Messages of a client, and of other processes of the cluster, to a frontdoor."""
    house = House()
    house.report(0, 10)
    fuzz = Fuzz(random.randrange(2**32), {})
    talk, peer_talk = (_conversation(random, fuzz, NODE_SHARD, peers) for peers in (False, True))
    while True:
        frames, of_peer = (next(peer_talk), True) if random.random() < 0.4 else (next(talk), False)
        fed.append(frames)
        if of_peer:
            sender = random.choice(("ada.1", "bob.1"))
            house.door._post.proven[b"p", house.worker._name] = sender
            house.worker.send(*_bundled(random, frames, sender, "ada.1"))
        else:
            house.client.send(*frames)
        house.turn(random.choice((0, 0, 100)))
        house.client.inbox.clear()
        assert not house.door._faults.count, "a fault of its own"
        yield


def batch(random: Random, fed: list[Frames]) -> Iterator[None]:
    """A batch that passes the checks can be opened and cut by all later readers."""
    before = b"\0"
    while True:
        whole = _batch(random)
        frames = [resealed(mutated(random, whole, before))]
        before = whole
        fed.append(frames)
        with suppress(GossipqError):
            info = batches.verify(frames[0])
            first = random.randrange(info.count)
            batches.verify(bytes(batches.Batch(frames[0], info).cut(first, info.count - first)))
        yield


def gossip(random: Random, fed: list[Frames]) -> Iterator[None]:
    """Tags of other agents about themselves."""
    names = ("endpoint", "name", "copy", "cluster", "kind", "load", "id", "role")
    texts = (b"tcp://10.0.0.1:7700", b"ada", b"ada.1", b"node", b"12", b"\xff", b"", b"\0", b"9" * 40, b"-1")
    while True:
        tags = {name: mutated(random, random.choice(texts)) for name in names if random.random() < 0.8}
        fed.append([*tags.values()])
        shown: dict[Any, Any] = {
            name if random.random() < 0.5 else name.encode(): value.decode("latin1")
            if random.random() < 0.5
            else value
            for name, value in tags.items()
        }
        serf_membership._found(shown, random.random() < 0.5)
        yield


def http(random: Random, fed: list[Frames]) -> Iterator[None]:
    """Over TCP, to a real server."""
    pages = Pages()
    pages.shows(worker_row(0))
    admin = Admin("127.0.0.1:0", pages.pages, Callers(token=b"t" * 16))
    lines = (b"/livez", b"/readyz", b"/statusz", b"/", b"/../x")
    heads = (b"Host: localhost", b"Host: evil.example", b"Authorization: Bearer " + b"t" * 16, b"X: y")
    try:
        while True:
            whole = b"GET " + random.choice(lines) + b" HTTP/1.1\r\n" + b"\r\n".join(random.sample(heads, 2))
            raw = mutated(random, whole + b"\r\n\r\n", heads[0])
            fed.append([raw])
            with suppress(OSError), socket.create_connection(("127.0.0.1", admin.port), 5) as caller:
                caller.sendall(raw)
                caller.shutdown(socket.SHUT_WR)
                while caller.recv(1 << 16):
                    pass
            with socket.create_connection(("127.0.0.1", admin.port), 5) as probe:
                probe.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
                assert probe.recv(1 << 16).startswith(b"HTTP/1.0 200"), "the probe is not answered"
            yield
    finally:
        admin.close()


SURFACES: dict[str, Callable[[Random, list[Frames]], Iterator[None]]] = {
    each.__name__: each for each in (worker, frontdoor, batch, gossip, http)
}


def life(surface: str, seed: int, inputs: int = LIFE) -> None:
    """Raises Crash."""
    fed: list[Frames] = []
    feeding = SURFACES[surface](Random(f"{surface} {seed}"), fed)
    try:
        for _ in range(inputs):
            next(feeding)
    except Exception as error:
        raise Crash(surface, seed, fed, error) from error
    finally:
        feeding.close()  # type: ignore[attr-defined]


def keep(crash: Crash) -> Path:
    """Keeps a vector: surface and seed repeat the life, the frames are for human readers."""
    said = {
        "surface": crash.surface,
        "seed": crash.seed,
        "inputs": len(crash.frames),
        "error": repr(crash.__cause__),
        "last": [frame.hex() for frame in crash.frames[-1]] if crash.frames else [],
    }
    VECTORS.mkdir(exist_ok=True)
    name = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]
    path = VECTORS / f"{crash.surface}-{name}.json"
    path.write_text(json.dumps(said, indent=1) + "\n")
    return path


def counts() -> dict[str, dict[str, int]]:
    """By commit, oldest first, and by surface."""
    found: dict[str, dict[str, int]] = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    return found


def commit_of_the_tree() -> str:
    asked = ["git", "-C", str(HOME), "log", "-1", "--format=%h", "--abbrev=7"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000, help="of all surfaces together")
    parser.add_argument("--first", type=int, default=time.time_ns(), help="seed of the first life")
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    by_commit, crashes, seed = counts(), 0, chosen.first
    fed = by_commit.setdefault(commit := commit_of_the_tree(), {})
    end = sum(fed.values()) + chosen.inputs
    shares = ("worker", "frontdoor", "worker", "frontdoor", "batch", "batch", "gossip")
    while sum(fed.values()) < end:
        surface = "http" if seed % 50 == 0 else shares[seed % len(shares)]
        try:
            life(surface, seed)
        except Crash as crash:
            crashes += 1
            print(f"{crash}: kept as {keep(crash)}", file=sys.stderr)
        fed[surface] = fed.get(surface, 0) + LIFE
        seed += 1
        # kept even if the run is ended early
        COUNTS.write_text(json.dumps(by_commit, indent=1) + "\n")
    print(f"{sum(fed.values()):,} inputs to {commit} so far: {fed}; {crashes} crashes now")
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())
