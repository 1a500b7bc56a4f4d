"""A power cut of all three nodes of a cluster at once: each keeps on its disk what a cut may leave there, and
the cluster that starts on that has everything that was confirmed.

The nodes note their writes and syncs in one journal, so a moment of it is one moment of all three. On each
set of images whole nodes are started: GOSSIPQ_THREES=40 tries more of them, GOSSIPQ_SEED repeats choices.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from random import Random, SystemRandom
from typing import NamedTuple

import pytest

from e2e.cluster import Cluster
from gossipq.errors import GossipqError
from power import load
from power.images import Disk, restore
from power.journal import Entry, Journal, Kind, build, compiler

THREES = int(os.environ.get("GOSSIPQ_THREES", "4"))
SEED = int(os.environ.get("GOSSIPQ_SEED", "0")) or SystemRandom().randrange(1, 10**6)
SHARDS, BATCHES, SYNC_US = 4, 60, 1_000
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(240 + 60 * THREES),
    pytest.mark.skipif(compiler() is None, reason="the shim that notes writes needs a C compiler"),
]


class Life(NamedTuple):
    """The writes of three nodes, from the first start on."""

    nodes: Cluster
    entries: list[Entry]
    root: int  #: the number of the directory that theirs lie in

    def disk(self, lie: Kind | None = None) -> Disk:
        disk = Disk(str(self.nodes.place), self.root, lie)
        for member in self.nodes.members:  # made before they started
            disk.take(Entry(Kind.MKDIR, member.data.stat().st_ino, path=str(member.data)))
        return disk


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    place = tmp_path_factory.mktemp("three")
    shim, root = build(tmp_path_factory.mktemp("shim")), place / "nodes"
    root.mkdir()
    with closing(Journal(place / "journal")) as journal:
        nodes = Cluster(root)
        for member in nodes.members:
            member.data.mkdir()
            member.environment = journal.environment(shim, root, SYNC_US)
            member.environment["GOSSIPQ_CLUSTER__SHARDS"] = str(SHARDS)
            member.log_path = place / f"{member.name}.log"
        try:
            nodes.start().wait_healthy(balanced=True)
            load.run(nodes.servers[0], journal.mark, BATCHES)
            nodes.stop()
            for member in nodes.members:
                member.environment.clear()
            yield Life(nodes, journal.read(), root.stat().st_ino)
        finally:
            nodes.kill()


def confirmed(life: Life, cut: int, number: int, lie: Kind | None = None) -> tuple[int, int]:
    """Cuts the power there, and starts the cluster again: how many records were confirmed, and how many are
    there. AssertionError or GossipqError: fewer, or others."""
    disk, known, random = life.disk(lie), load.Known(), Random(f"{SEED} {number}")
    for entry in life.entries[:cut]:
        disk.take(entry)
        if entry.kind == Kind.MARK:
            load.learn(known, entry.data)
    images = disk.cut_each(random)
    for member in life.nodes.members:
        restore(member.data, images[member.name], random)
    life.nodes.start_at_once()
    life.nodes.wait_healthy()
    found = load.read(life.nodes.servers[0])
    promised = {part: known.get((load.CONFIRMED, load.KEPT, part), 0) for part in found}
    assert all(found[part] >= promised[part] for part in found), (found, promised)
    life.nodes.wait_healthy(still=True)
    life.nodes.stop()
    for member in life.nodes.members:
        load.account(member.data, known)
    return sum(promised.values()), sum(found.values())


def cuts(life: Life, count: int) -> list[int]:
    """Moments after the first record was confirmed."""
    first = next(at for at, entry in enumerate(life.entries) if entry.kind == Kind.MARK)
    random = Random(f"{SEED} cuts")
    return [random.randint(first + 1, len(life.entries)) for _ in range(count)]


def test_what_is_confirmed_survives_a_power_cut_of_all_nodes(life: Life) -> None:
    promised = there = 0
    for number, cut in enumerate(cuts(life, THREES)):
        print(f"seed {SEED}, set {number} of {THREES}, cut at {cut} of {len(life.entries)}", flush=True)
        one, two = confirmed(life, cut, number)
        promised, there = promised + one, there + two
    print(f"{THREES} sets of images, seed {SEED}: {promised:,} confirms looked for, {there:,} records found")
    assert promised


def test_disks_that_lie_at_all_nodes_are_seen(life: Life) -> None:
    """Without this, the test above could be one that cannot fail."""
    for number, cut in enumerate(cuts(life, THREES)):
        try:
            confirmed(life, cut, number, Kind.WROTE)
        except (AssertionError, GossipqError) as error:
            print(f"seen: {str(error)[:300]}")
            for member in life.nodes.members:
                if member.process is not None and member.process.poll() is not None:
                    member.stop()  # it has refused to start
            life.nodes.kill()
            return
    raise AssertionError("nothing was lost by disks that forget what they said is on them")
