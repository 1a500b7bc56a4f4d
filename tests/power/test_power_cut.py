"""A power cut, at any moment of a real node's life: what was confirmed is there, and the store opens and is
whole.

There is no disk to cut here: a node runs with a shim that notes each of its writes and syncs, and its client
marks there what was confirmed. From that journal come the images that a cut may leave (images.py); on each
the start-up code of a node runs. GOSSIPQ_IMAGES=5000 makes more of them, GOSSIPQ_SEED repeats the choices of
one run over what a new node wrote. What a sync is worth on a given disk is not seen.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from random import Random, SystemRandom
from typing import NamedTuple

import lmdb
import lmdb.verify
import pytest

from contracts.memory import MemoryMailbox, MemoryNetwork
from e2e.harness import Node
from gossipq import limits
from gossipq.clock import SystemClock
from gossipq.errors import GossipqError
from gossipq.values import GroupConfig, Member, TopicConfig
from gossipq_node import store_tool
from gossipq_node.actors.worker import Worker
from gossipq_node.adapters.journal import JOURNAL_FILE
from gossipq_node.adapters.lmdb_store import DATA_FILE, LmdbStore
from gossipq_node.directory import DataDirectory, DirectoryManifest
from gossipq_node.settings import WorkerSettings
from power import load
from power.images import LMDB_LOCK, SECTOR, Disk, Image, restore
from power.journal import Entry, Journal, Kind, build, compiler

IMAGES = int(os.environ.get("GOSSIPQ_IMAGES", "30"))
SEED = int(os.environ.get("GOSSIPQ_SEED", "0")) or SystemRandom().randrange(1, 10**6)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120 + IMAGES)]
SHARDS, BATCHES, SYNC_US = 4, 200, 1_000
LYING_IMAGES_MAX = 200  #: one in five is bad
NEW_IMAGES = min(5, 1 + IMAGES // 30)  #: for each cut
STARTED_IMAGES = min(4, 1 + IMAGES // 100)  #: on which a whole node is started
STORE = f"stores/0/worker-0/{DATA_FILE}"
ENDPOINT = "tcp://127.0.0.1:7701"


class Life(NamedTuple):
    """All writes of a node between its first start and its end."""

    node: Node
    entries: list[Entry]

    @property
    def data(self) -> Path:
        return self.node.data

    def disk(self, lie: Kind | None = None) -> Disk:
        return Disk(str(self.data), self.data.stat().st_ino, lie)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if compiler() is None:
        pytest.skip("there is no C compiler here, and the shim that notes writes needs one")
    return build(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def life(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    place = tmp_path_factory.mktemp("power")
    with closing(Journal(place / "journal")) as journal:
        node = Node(place / "node", "--workers", "1", "--mode", "static")
        node.data.mkdir()
        node.environment = journal.environment(shim, node.data, SYNC_US)
        node.environment["GOSSIPQ_CLUSTER__SHARDS"] = str(SHARDS)
        try:
            load.run(node.start().endpoint, journal.mark, BATCHES)
            assert node.stop() == 0
            node.environment.clear()
            yield Life(node, journal.read())
        finally:
            if node.process is not None:
                node.kill()


def cuts(entries: list[Entry], count: int, random: Random) -> list[int]:
    """Moments of the journal, in order: anywhere, some of them while the node is new."""
    early = next(at for at, entry in enumerate(entries) if entry.kind == Kind.MARK)
    return sorted(random.randint(0, early if number % 5 == 0 else len(entries)) for number in range(count))


def images(life: Life, count: int, lie: Kind | None = None) -> Iterator[tuple[str, Image, load.Known]]:
    """Each image with its name and the clients' knowledge at that moment."""
    disk, known, taken = life.disk(lie), load.Known(), 0
    for number, cut in enumerate(cuts(life.entries, count, Random(f"{SEED} cuts"))):
        for entry in life.entries[taken:cut]:
            disk.take(entry)
            if entry.kind == Kind.MARK:
                load.learn(known, entry.data)
        taken = cut
        yield (
            f"seed {SEED}, image {number} of {count}, cut at {cut}",
            disk.cut(Random(f"{SEED} {number}")),
            dict(known),
        )


def settings(directory: DataDirectory, manifest: DirectoryManifest) -> WorkerSettings:
    return WorkerSettings(
        worker=0,
        node="ada",
        predecessors=(),
        cluster=bytes.fromhex(manifest.cluster_uuid),
        shards=manifest.shards,
        owned=tuple(range(manifest.shards)),
        siblings=(ENDPOINT,),
        member=Member(manifest.voter, "ada", ENDPOINT, 1),
        clients_bind=ENDPOINT,
        peers_bind=ENDPOINT,
        frontdoor=ENDPOINT,
        directory=str(directory.store(manifest, 0)),
        map_bytes=limits.MAP_BYTES,
        disk_reserve_bytes=0,
        disk_reserve_percent=0,
        window_bytes=limits.PUBLISH_WINDOW_BYTES,
        auto_create=True,
        topic=TopicConfig(),
        group=GroupConfig(),
    )


def start_worker(data: Path) -> None:
    """The start-up of a node and its worker, without their processes: the directory, the store, each shard,
    the next term."""
    with closing(DataDirectory(data)) as directory:
        manifest = directory.found("gossipq", 1, SHARDS)
        settled = settings(directory, manifest)
        with closing(LmdbStore(settled.directory, settled.map_bytes, settled.shards)) as store:
            worker = Worker(settled, MemoryMailbox(MemoryNetwork(), ENDPOINT, ENDPOINT), store, SystemClock())
            worker.turn([], SystemClock().now())
            assert worker.ready, "the worker cannot store"
            assert not worker._turn.stopped, worker._turn.stopped


def check(data: Path, known: load.Known) -> int:
    """Opens, finds and counts everything. Raises AssertionError or GossipqError."""
    structure(data)
    start_worker(data)
    records = load.account(data, known)
    structure(data)
    return records


def structure(data: Path) -> None:
    """Each page of the store is used once or free, by LMDB's own check of the file."""
    store = data / STORE
    if store.exists():
        try:
            errors = lmdb.verify.verify(str(store), subdir=False)
        except lmdb.verify.VerifyError as error:
            errors = [str(error)]
        assert not errors, errors[:3]


def test_all_writes_of_the_store_are_in_the_journal(life: Life) -> None:
    disk = life.disk()
    for entry in life.entries:
        disk.take(entry)
    for name, content in disk.now().items():
        if content is not None and not name.endswith(LMDB_LOCK):
            assert (life.data / name).read_bytes() == content, name
    written = [(entry.file, entry.offset) for entry in life.entries if entry.kind == Kind.WRITE]
    assert len(set(written)) < len(written) / 2, (
        "pages are used again: with new ones only, the run proves little"
    )


def test_the_page_that_chooses_the_state_is_written_within_one_sector(life: Life) -> None:
    files = {entry.file: entry.path for entry in life.entries if entry.kind == Kind.CREATE}
    written = [entry for entry in life.entries if entry.kind == Kind.WROTE]
    chosen = [entry for entry in written if Path(files.get(entry.file, "")).stem != JOURNAL_FILE]
    assert len(chosen) > 25, "too few commits of LMDB for a run that proves something"
    assert len(written) - len(chosen) > 100, "too few turns of its journal"
    assert all(entry.offset // SECTOR == (entry.offset + entry.number - 1) // SECTOR for entry in chosen)


def failures(life: Life, count: int, lie: Kind | None = None) -> Iterator[str]:
    """The faults of each image that lacks promised records."""
    records = promised = failed = 0
    for name, image, known in images(life, count, lie):
        restore(life.data, image, Random(f"{name} restored"))
        try:
            records += check(life.data, known)
        except (AssertionError, GossipqError, lmdb.Error) as error:
            failed += 1
            yield f"{name}: {type(error).__name__}: {str(error)[:300]}"
        promised += sum(known.values())
    print(
        f"{count} images, seed {SEED}: {promised:,} confirms and acks looked for, {records:,} records found, "
        f"{failed} bad"
    )


def test_what_is_confirmed_survives_a_power_cut(life: Life) -> None:
    print(f"seed {SEED}")
    failed = list(failures(life, IMAGES))
    assert not failed, "\n".join([f"{len(failed)} of {IMAGES} images:", *failed[:20]])


@pytest.mark.parametrize("lie", [Kind.SYNC, Kind.WROTE], ids=["of-a-sync", "of-a-synchronous-write"])
def test_a_disk_that_lies_is_seen(life: Life, lie: Kind) -> None:
    """Without this, the test above could be one that cannot fail."""
    failed = list(islice(failures(life, LYING_IMAGES_MAX, lie), 3))
    assert failed
    if lie == Kind.WROTE:  # each file is whole, and one state too old
        seen = ("there is nothing above", f"/{JOURNAL_FILE}")
        assert all(any(words in each for words in seen) for each in failed), failed


def test_a_node_starts_on_what_is_left_and_goes_on(life: Life) -> None:
    for _, image, known in list(images(life, 2 * STARTED_IMAGES))[1::2]:
        restore(life.data, image, Random(0))
        life.node.start()
        found = load.read(life.node.endpoint)
        assert all(
            found[partition] >= known.get((load.CONFIRMED, load.KEPT, partition), 0) for partition in found
        ), found
        assert life.node.stop() == 0
        load.account(life.data, known)


def test_a_changed_byte_in_a_stored_batch_is_found(life: Life) -> None:
    disk = life.disk()
    for entry in life.entries:
        disk.take(entry)
    image, value = disk.now(), load.value_of(load.KEPT, 0, 0)
    store = image[STORE]
    assert store is not None
    image[STORE] = store.replace(value, value[:-1] + b"y")
    restore(life.data, image, Random(0))
    structure(life.data)
    [damage] = store_tool.verify(life.data).damaged
    assert "CRC" in damage.reason


def test_a_new_store_opens_after_a_cut_at_any_moment(shim: Path, tmp_path: Path) -> None:
    program = """
import sys
from gossipq_node.adapters.lmdb_store import LmdbStore
from gossipq_node.directory import DataDirectory
directory = DataDirectory(sys.argv[1])
store = LmdbStore(directory.store(directory.found("c", 1, 1), 0))
store.tables(0).state.put(b"k", b"v")
store.commit()
"""
    data = tmp_path / "data"
    data.mkdir()
    with closing(Journal(tmp_path / "journal")) as journal:
        environment = (
            os.environ | journal.environment(shim, data, 0) | {"PYTHONPATH": os.pathsep.join(sys.path)}
        )
        subprocess.run([sys.executable, "-c", program, str(data)], env=environment, check=True)
        entries = journal.read()
    committed = max(at for at, entry in enumerate(entries) if entry.kind == Kind.WROTE)
    disk, random = Disk(str(data), data.stat().st_ino), Random(SEED)
    for at, entry in enumerate(entries):
        disk.take(entry)
        for _ in range(NEW_IMAGES):
            restore(data, disk.cut(random), random)
            with closing(DataDirectory(data)) as directory:
                stored = directory.store(directory.found("c", 1, 1), 0)
            with closing(LmdbStore(stored)) as store:
                assert store.tables(0).state.get(b"k") in ((b"v",) if at >= committed else (b"v", None)), (
                    f"cut at {at + 1}"
                )
