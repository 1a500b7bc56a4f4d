"""Real nodes on restored, copied and left behind directories: none of them speaks to a cluster that it does
not belong to."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from gossipq_client import connect
from gossipq_node import store_tool
from gossipq_node.adapters.lmdb_store import LOCK_FILE
from gossipq_node.backup.backup import Backup, Pace
from gossipq_node.backup.folder import folder_at
from gossipq_node.backup.restore import Restore
from gossipq_node.backup.stopped import stopped_node
from gossipq_node.directory import DirectoryManifest
from hosts import Host
from waiting import until

pytestmark = pytest.mark.e2e


@pytest.fixture
def pair(host: Callable[[str], Host]) -> tuple[Host, Host]:
    """A cluster of two with ten records, each on both disks."""
    ada = host("ada").start("--mode", "static").ready()
    bob = host("bob").start("--peer", ada.endpoint).ready()
    until(lambda: in_step(ada, bob))
    publish(ada, "orders", 10)
    return ada, bob


def in_step(*hosts: Host) -> bool:
    """Tell whether both disks have everything."""
    return sum(row.role == "learner" and row.synced for host in hosts for row in host.status().copies) == 32


def publish(at: Host, topic: str, count: int) -> None:
    with connect(at.endpoint, timeout=20) as mq:
        for number in range(count):
            mq.publish(topic, b"%d" % number, timeout=20)


def topics(at: Host) -> dict[str, int]:
    """Records of each topic."""
    with connect(at.endpoint, timeout=20) as mq:
        return {row.topic: row.next for row in mq.admin.stats().partitions if not row.topic.startswith("_")}


def copied_back(of: Host) -> None:
    """Replace the directory of a stopped node by a copy that takes its place."""
    copy = of.data.with_name(f"{of.data.name}.copy")
    shutil.copytree(of.data, copy)
    of.wipe()
    copy.rename(of.data)
    store_tool.adopt(of.data)


def test_a_restored_backup_is_a_cluster_of_its_own(
    host: Callable[[str], Host], pair: tuple[Host, Host], tmp_path: Path
) -> None:
    ada, bob = pair
    bob.kill()
    with stopped_node(bob.data) as node, folder_at(str(tmp_path / "backup"), writes=True) as folder:
        assert Backup(node, folder, Pace(0), lambda done: None).run().point.sequence == 1
        assert node.standby, "the nodes of a pair stand by for each other"
    bob.log.unlink()
    bob.start().ready()
    publish(ada, "later", 1)
    rest = host("rest")
    with folder_at(str(tmp_path / "backup"), writes=False) as folder:
        Restore(folder, rest.data, 1).run()
    assert rest.manifest().cluster_uuid != bob.manifest().cluster_uuid
    rest.start("--mode", "standalone").ready()
    assert topics(rest) == {"orders": 10}, "what came after the backup is not there"
    publish(rest, "orders", 5)
    publish(rest, "own", 1)
    assert topics(rest) == {"orders": 15, "own": 1}
    assert topics(ada) == {"orders": 10, "later": 1}
    until(lambda: (rest.names(), ada.names()) == (["rest"], ["ada", "bob"]))


@pytest.mark.slow
def test_an_adopted_backup_takes_the_place_of_a_disk_that_is_gone(pair: tuple[Host, Host]) -> None:
    ada, bob = pair
    bob.kill()
    old = bob.manifest()
    copied_back(bob)
    new = bob.manifest()
    assert (new.cluster_uuid, new.node_id, new.predecessors) == (old.cluster_uuid, old.node_id, [old.voter])
    bob.start().ready()
    until(lambda: any(member.copy == new.voter for member in ada.status().members))


def test_an_adopted_copy_of_a_standalone_node_stands_alone(host: Callable[[str], Host]) -> None:
    """The copy that it replaces is still listed when it starts."""
    ada = host("ada").start("--mode", "standalone").ready()
    publish(ada, "orders", 3)
    until(lambda: ada.names() == ["ada"])
    assert ada.process is not None
    ada.process.terminate()
    assert ada.ended() == 0, ada.said
    copied_back(ada)
    ada.start("--mode", "standalone").ready()
    until(lambda: topics(ada) == {"orders": 3})


@pytest.mark.slow
def test_a_standalone_node_does_not_start_among_others(pair: tuple[Host, Host]) -> None:
    _, bob = pair
    bob.kill()
    for wiped in (False, True):
        if wiped:
            (bob.data / "roster.json").unlink()
        bob.log.unlink()
        bob.start("--mode", "standalone")
        assert bob.ended() == 78, bob.said
        assert (
            "belongs to cluster gossipq together with ada, and --mode standalone speaks to nobody" in bob.said
        )
        assert "gossipq cluster recover --data" in bob.said


@pytest.mark.slow
def test_nobody_joins_a_standalone_node(host: Callable[[str], Host]) -> None:
    ada = host("ada").start("--mode", "standalone").ready()
    bob = host("bob").start("--peer", ada.endpoint)
    assert bob.ended() == 78, bob.said
    assert "this node is standalone: no other node can join it" in bob.said
    ada.kill()
    ada.log.unlink()
    ada.start("--mode", "standalone").ready()


APART = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount"]
#: starts a program on a machine without an id
NAMELESS = [*APART, "sh", "-c", 'mount --bind /dev/null /etc/machine-id && exec "$@"', "sh"]


def may_be_nameless() -> bool:
    try:
        return subprocess.run([*NAMELESS, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


def written_by(host: Host, machine: str) -> DirectoryManifest:
    """The directory was last used on that machine. Returns the manifest from before."""
    before, lock = host.manifest(), host.data / LOCK_FILE
    after = structs.replace(before, machine=machine, inode=lock.stat().st_ino)
    (host.data / "manifest.json").write_bytes(msgspec.json.encode(after))
    return before


@pytest.mark.slow
def test_a_volume_that_is_attached_to_another_machine_starts(pair: tuple[Host, Host]) -> None:
    ada, bob = pair
    bob.kill()
    before = written_by(bob, "another machine")
    bob.log.unlink()
    bob.start().ready()
    after = bob.manifest()
    assert after.node_id == before.node_id
    assert after.dir_uuid != before.dir_uuid, "the old copy may have promised more than the volume has"
    assert "came from another machine or disk" in bob.said
    until(lambda: ada.names() == ["ada", "bob"])
    until(lambda: [row.copy for row in ada.status().members if row.name == "bob"] == [after.voter])
    until(lambda: topics(bob) == {"orders": 10})
    bob.kill()
    bob.log.unlink()
    bob.start().ready()
    assert "came from another machine" not in bob.said
    assert bob.manifest() == after


@pytest.mark.slow
def test_a_copy_of_a_volume_does_not_start_beside_its_original(
    host: Callable[[str], Host], pair: tuple[Host, Host]
) -> None:
    ada, bob = pair
    bob.kill()
    twin = host("twin")
    shutil.copytree(bob.data, twin.data)
    before = twin.manifest()
    bob.log.unlink()
    bob.start().ready()
    until(lambda: in_step(ada, bob))
    twin.start("--name", "bob")
    assert twin.ended() == 78, twin.said
    assert f"a node named bob is there, at {bob.endpoint}" in twin.said
    assert "ready in" not in twin.said
    assert twin.manifest() == before
    assert ada.names() == ["ada", "bob"]


@pytest.mark.slow
@pytest.mark.skipif(not may_be_nameless(), reason="no mounts of its own for a process here")
def test_a_cloned_disk_is_not_ready_beside_its_original(
    host: Callable[[str], Host], pair: tuple[Host, Host]
) -> None:
    """The machine has no id, and the inode is the same, so the clone looks like its original."""
    ada, bob = pair
    bob.kill()
    bob.prefix = NAMELESS
    written_by(bob, "")
    twin = host("twin")
    twin.prefix = NAMELESS
    shutil.copytree(bob.data, twin.data)
    written_by(twin, "")
    bob.log.unlink()
    bob.start().ready()
    until(lambda: in_step(ada, bob))
    twin.start("--name", "bob")
    assert twin.ended() == 78, twin.said
    assert f"node bob is already running at {bob.endpoint}, not {twin.endpoint}" in twin.said
    assert "ready in" not in twin.said
    until(lambda: in_step(ada, bob))
