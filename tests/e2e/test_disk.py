"""The disk as an enemy: taken, of another make, read-only, full, and lying. A clear word, nothing confirmed
lost, and service again without a restart where that is possible."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.harness import Node
from gossipq import limits
from gossipq.errors import GossipqError, Refused, StoreFull
from gossipq.values import WorkerStats
from gossipq_client import Client, connect
from gossipq_node import store_tool
from gossipq_node.directory import FORMAT
from waiting import until

pytestmark = pytest.mark.e2e
PATIENCE_S = 30
DISK_BYTES = 24 * limits.MIB + 2 * limits.JOURNAL_BYTES
RESERVE, PERCENT = "GOSSIPQ_NODE__DISK_RESERVE_BYTES", "GOSSIPQ_NODE__DISK_RESERVE_PERCENT"
NO_RESERVE = {RESERVE: "0", PERCENT: "0"}
Make = Callable[..., Node]


class SmallDisk:
    """A tmpfs of DISK_BYTES, so small that a test can fill it."""

    def __init__(self, path: Path) -> None:
        self.path, self._filler = path, path / "filler"
        path.mkdir()
        self._mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "gossipq-test")

    def _mount(self, *options: str) -> None:
        done = subprocess.run(["mount", *options, str(self.path)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no file system of its own can be mounted here: {done.stderr.strip()}")

    def read_only(self, on: bool) -> None:
        self._mount("-o", f"remount,{'ro' if on else 'rw'}")

    def fill(self, size: int) -> None:
        with open(self._filler, "wb") as file:
            file.write(bytes(size))

    def free(self) -> None:
        self._filler.unlink()

    def unmount(self) -> None:
        until(
            lambda: subprocess.run(["umount", str(self.path)], capture_output=True).returncode == 0,
            what="still in use",
        )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Ask for it before `make`: its nodes end before it is unmounted."""
    if os.geteuid():
        pytest.skip("only root may mount a small file system")
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.unmount()


class TestDirectory:
    def test_in_use_by_another_node(self, make: Make) -> None:
        first = make().start()
        code, log = make(data=first.data).fail_to_start()
        assert code == 1
        assert f"in use by process {first.pids()[0]}" in log
        with connect(first.endpoint) as mq:
            mq.publish("t", b"x", timeout=PATIENCE_S)

    def test_the_store_of_a_worker_in_use(self, make: Make) -> None:
        """Two nodes that were tricked into different directories with the same stores inside."""
        first = make().start()
        second = make()
        second.start()
        second.stop()
        taken, own = first.store_file(0).parent, second.store_file(0).parent
        for file in own.iterdir():
            file.unlink()
        own.rmdir()
        own.symlink_to(taken)
        code, log = second.fail_to_start()
        assert code == 1
        assert "in use by process" in log

    def test_of_another_worker_count(self, make: Make) -> None:
        node = make(workers=3).start()
        with connect(node.endpoint) as mq:
            mq.publish("t", b"kept", timeout=PATIENCE_S)
        node.stop()
        code, log = make(data=node.data, workers=2).fail_to_start()
        assert code == 78
        assert "node.workers = 2" in log
        assert "gossipq store reshard" in log
        store_tool.reshard(node.data, 2)
        with connect(make(data=node.data, workers=2).start().endpoint) as mq:
            assert mq.fetch("t", "g").values() == [b"kept"]

    def test_of_another_make(self, make: Make) -> None:
        node = make().start()
        node.stop()
        manifest = node.data / "manifest.json"
        before = manifest.read_bytes()
        changes: tuple[tuple[dict[str, object], str], ...] = (
            (
                {"format": FORMAT + 1},
                f"has format {FORMAT + 1}; this version of gossipq reads up to {FORMAT}",
            ),
            ({"format": FORMAT + 2, "engine": 7, "workers": "new"}, f"has format {FORMAT + 2}"),
            ({"engine": "lmdb-1.0"}, "was made with lmdb-1.0"),
            ({"workers": None}, "is damaged"),
        )
        for change, says in changes:
            manifest.write_text(json.dumps(json.loads(before) | change))
            code, log = node.fail_to_start()
            assert code == 1
            assert says in log
            assert " hint: " in log
        manifest.write_bytes(before)
        node.start()

    def test_read_only(self, small_disk: SmallDisk, make: Make) -> None:
        node = make(data=small_disk.path / "node")
        node.environment = NO_RESERVE
        node.log_path = small_disk.path.parent / "node.log"
        node.start()
        with connect(node.endpoint) as mq:
            mq.publish("t", b"kept", timeout=PATIENCE_S)
        node.stop()
        small_disk.read_only(True)
        for data in (node.data, small_disk.path / "new"):
            other = make(data=data)
            other.log_path = small_disk.path.parent / "read-only.log"
            code, log = other.fail_to_start()
            assert code == 1
            assert "Read-only file system" in log
            assert "Traceback" not in log
        small_disk.read_only(False)
        node.start()
        with connect(node.endpoint) as mq:
            assert mq.fetch("t", "g").values() == [b"kept"]


def workers(mq: Client) -> list[WorkerStats]:
    return mq.admin.status().workers


def publish_until_full(
    mq: Client, topic: str, size: int, pause_s: float = 0.0
) -> tuple[list[bytes], GossipqError]:
    """Values that were confirmed, in order, and the refusal in the end."""
    confirmed: list[bytes] = []
    while len(confirmed) * size < 2 * DISK_BYTES:
        value = b"%d " % len(confirmed) + os.urandom(size)
        try:
            assert mq.publish(topic, value, timeout=PATIENCE_S).offset == len(confirmed)
        except Refused as error:
            return confirmed, error
        confirmed.append(value)
        time.sleep(pause_s)
    raise AssertionError("more was confirmed than the disk can hold")


def publishes_again(node: Node, topic: str) -> None:
    def stored() -> bool:
        with connect(node.endpoint) as mq:
            try:
                mq.publish(topic, b"again", timeout=PATIENCE_S)
            except StoreFull:
                return False
            return True

    until(stored, PATIENCE_S, "publishing did not go on after space was freed")


def values(mq: Client, topic: str) -> list[bytes]:
    return [msg.value for msg in mq.read(topic)]


class TestFullDisk:
    @pytest.fixture
    def node(self, small_disk: SmallDisk, make: Make) -> Node:
        node = make(data=small_disk.path / "node")
        node.log_path = small_disk.path.parent / "node.log"
        node.environment = {PERCENT: "0", RESERVE: str(8 * limits.MIB)}
        return node

    def test_the_reserve_is_kept_and_acks_go_on(self, node: Node, small_disk: SmallDisk) -> None:
        small_disk.fill(6 * limits.MIB)
        pids = node.start().pids()
        with connect(node.endpoint) as mq:
            confirmed, error = publish_until_full(mq, "t", 64 * limits.KIB, 0.01)
            assert isinstance(error, StoreFull), error
            assert "kept in reserve" in error.message
            assert error.hint
            until(lambda: any(worker.state == "full" and worker.detail for worker in workers(mq)))
            got = mq.fetch("t", "g", n=len(confirmed), wait=PATIENCE_S)
            mq.ack_soon(got)
            mq.flush(PATIENCE_S)
            assert sum(row.acked for row in mq.topic("t").groups()) == len(got) > 0
            with pytest.raises(StoreFull):
                mq.publish("t", b"still full", timeout=PATIENCE_S)
            small_disk.free()
            publishes_again(node, "t")
            assert values(mq, "t") == [*confirmed, b"again"]
        assert node.pids() == pids
        assert "kept in reserve" in node.log()
        assert "there is space again" in node.log()

    def test_removing_a_topic_makes_room(self, node: Node) -> None:
        pids = node.start().pids()
        with connect(node.endpoint) as mq:
            mq.create_topic("kept")
            mq.create_topic("waste", beside="kept")
            mq.publish("kept", b"kept", timeout=PATIENCE_S)
            assert isinstance(publish_until_full(mq, "waste", 64 * limits.KIB, 0.01)[1], StoreFull)
            mq.topic("waste").delete()
            publishes_again(node, "kept")
            assert values(mq, "kept") == [b"kept", b"again"]
        assert node.pids() == pids

    def test_what_is_purged_is_free_for_every_worker(self, node: Node) -> None:
        """The space was in the store of one worker; the other one had none."""
        pids = node.start().pids()
        with connect(node.endpoint) as mq:
            names = [f"t{number}" for number in range(40)]
            by_worker = {mq.create_topic(name).shards[0] % 2: name for name in names}
            waste, other = by_worker[0], by_worker[1]
            assert isinstance(publish_until_full(mq, waste, 64 * limits.KIB, 0.01)[1], StoreFull)
            # what is left may be enough for it: it counts the pages that its own file has to spare
            assert isinstance(publish_until_full(mq, other, limits.KIB, 0.01)[1], StoreFull)
            until(lambda: [worker.state for worker in workers(mq)] == ["full", "full"])
            with pytest.raises(StoreFull):
                mq.publish(other, b"no", timeout=PATIENCE_S)
            mq.topic(waste).purge()
            until(lambda: [worker.state for worker in workers(mq)] == ["ready", "ready"], PATIENCE_S)
            publishes_again(node, other)
            until(
                lambda: not [each for each in mq.admin.alarms() if each.name in ("store_full", "disk_low")],
                PATIENCE_S,
            )
        assert node.pids() == pids
        node.stop()
        assert store_tool.verify(node.data).damaged == []

    def test_a_commit_that_fails(self, node: Node, small_disk: SmallDisk) -> None:
        node.environment = NO_RESERVE
        small_disk.fill(6 * limits.MIB)
        pids = node.start().pids()
        states = set()
        with connect(node.endpoint) as mq:
            confirmed, error = publish_until_full(mq, "t", 64 * limits.KIB)
            assert isinstance(error, StoreFull), error
            end, refused = time.monotonic() + 2, 0  # the disk stays full: nothing gets worse by trying
            while time.monotonic() < end:
                states |= {worker.state for worker in workers(mq)}
                try:  # what the journal gives back when it begins anew may be room for one more
                    mq.publish("t", bytes(64 * limits.KIB), timeout=PATIENCE_S)
                    confirmed.append(bytes(64 * limits.KIB))
                except StoreFull:
                    refused += 1
            assert refused
            small_disk.free()
            publishes_again(node, "t")
            found = values(mq, "t")
            assert found == [*confirmed, b"again"]
        assert states & {"recovering", "full"}
        assert node.pids() == pids
        assert "a write failed, starting over from disk" in node.log()
        assert "serves again" in node.log()
        node.kill()
        node.start()
        with connect(node.endpoint) as mq:
            assert values(mq, "t") == found

    def test_a_full_disk_while_many_are_under_way(self, node: Node, small_disk: SmallDisk) -> None:
        """Pipelined: confirmed records are there, in order; refused ones are not."""
        node.environment = NO_RESERVE
        small_disk.fill(6 * limits.MIB)
        node.start()
        with connect(node.endpoint) as mq:
            sent = []
            for number in range(6_000):
                value = b"%d " % number + bytes(4 * limits.KIB)
                sent.append((value, mq.post("t", value)))
            confirmed, refused = [], []
            for value, pending in sent:
                try:
                    pending.result(3 * PATIENCE_S)
                    confirmed.append(value)
                except StoreFull:
                    refused.append(value)
            assert confirmed
            assert refused
            small_disk.free()
            publishes_again(node, "t")
            assert values(mq, "t") == [*confirmed, b"again"]


class TestDamage:
    def test_a_flipped_bit_is_never_delivered(self, make: Make) -> None:
        node = make().start()
        with connect(node.endpoint) as mq:
            bad = mq.create_topic("bad").shards[0]
            names = (f"good-{number}" for number in range(100))
            good = next(name for name in names if mq.create_topic(name).shards[0] not in (bad, 0))
            marker = os.urandom(64)
            for value in (b"before", marker, b"after"):
                mq.publish("bad", value, timeout=PATIENCE_S)
            mq.publish(good, b"well", timeout=PATIENCE_S)
        node.stop()
        flip(node.store_file(bad % 2), marker)
        damaged = store_tool.verify(node.data).damaged
        assert [damage.shard for damage in damaged] == [bad]
        assert "CRC" in damaged[0].reason
        node.start()
        with connect(node.endpoint) as mq:
            got: list[bytes] = []
            with pytest.raises(Refused, match=f"shard {bad} stopped"):
                got.extend(msg.value for msg in mq.consume("bad", "g", stop_at_end=True))
            assert set(got) <= {b"before"}
            status = until(lambda: (found := mq.admin.status()).led == limits.SHARDS - 1 and found)
            assert "is damaged" in status.workers[bad % 2].detail
            with pytest.raises(Refused, match=f"shard {bad} stopped"):
                mq.publish("bad", b"no", timeout=PATIENCE_S)
            mq.publish(good, b"on", timeout=PATIENCE_S)
            assert values(mq, good) == [b"well", b"on"]
        line = next(line for line in node.log().splitlines() if "stops" in line)
        assert f"shard {bad}" in line
        assert "CRITICAL" in line.upper()
        assert "Traceback" not in node.log()


def flip(path: Path, marker: bytes) -> None:
    """One bit in each place where the marker lies (a page that was written anew leaves an old copy)."""
    raw = path.read_bytes()
    at = raw.find(marker)
    assert at >= 0, "the record lies in the file as it was sent"
    with open(path, "r+b") as file:
        while at >= 0:
            file.seek(at + 10)
            file.write(bytes((raw[at + 10] ^ 1,)))
            at = raw.find(marker, at + 1)
