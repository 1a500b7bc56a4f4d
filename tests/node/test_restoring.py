"""Real nodes on restored, copied and left behind directories: none of them speaks to a cluster that it does
not belong to."""

import io
from collections.abc import Callable

import pytest

from gossipq_client import connect
from gossipq_node import store_dump
from hosts import Host
from waiting import until

pytestmark = pytest.mark.e2e


@pytest.fixture
def pair(host: Callable[[str], Host]) -> tuple[Host, Host]:
    """A cluster of two with ten records, each on both disks."""
    ada = host("ada").start("--mode", "static").ready()
    bob = host("bob").start("--peer", ada.endpoint).ready()
    until(
        lambda: (
            sum(row.role == "learner" and row.synced for h in (ada, bob) for row in h.status().copies) == 32
        )
    )
    publish(ada, "orders", 10)
    return ada, bob


def publish(at: Host, topic: str, count: int) -> None:
    with connect(at.endpoint, timeout=20) as mq:
        for number in range(count):
            mq.publish(topic, b"%d" % number).result(timeout=20)


def topics(at: Host) -> dict[str, int]:
    """Records of each topic."""
    with connect(at.endpoint, timeout=20) as mq:
        return {row.topic: row.next for row in mq.admin.stats().partitions if not row.topic.startswith("_")}


def dumped(from_: Host) -> io.BytesIO:
    stream = io.BytesIO()
    store_dump.dump(from_.data, stream)
    stream.seek(0)
    return stream


def test_a_restored_backup_is_a_cluster_of_its_own(
    host: Callable[[str], Host], pair: tuple[Host, Host]
) -> None:
    ada, bob = pair
    bob.kill()
    backup = dumped(bob)
    bob.start().ready()
    publish(ada, "later", 1)
    rest = host("rest")
    store_dump.load(rest.data, backup)
    assert rest.manifest().cluster_uuid != bob.manifest().cluster_uuid
    rest.start("--mode", "standalone").ready()
    assert topics(rest) == {"orders": 10}, "what came after the dump is not there"
    publish(rest, "orders", 5)
    publish(rest, "own", 1)
    assert topics(rest) == {"orders": 15, "own": 1}
    assert topics(ada) == {"orders": 10, "later": 1}
    until(lambda: (rest.names(), ada.names()) == (["rest"], ["ada", "bob"]))


@pytest.mark.slow
def test_an_adopted_backup_takes_the_place_of_a_disk_that_is_gone(pair: tuple[Host, Host]) -> None:
    ada, bob = pair
    bob.kill()
    backup, old = dumped(bob), bob.manifest()
    bob.wipe()
    store_dump.load(bob.data, backup, adopt=True)
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
    backup = dumped(ada)
    ada.wipe()
    store_dump.load(ada.data, backup, adopt=True)
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
