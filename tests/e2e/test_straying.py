"""A drained node removes data that other nodes keep now. Its rows leave the disk, and their pages
are used again. When the node is taken back, it works.
"""

import time
from pathlib import Path

import pytest

from e2e.cluster import Member, cluster
from e2e.replicas import records
from gossipq_client import connect
from gossipq_node import store_tool, trust
from gossipq_node.directory import DataDirectory
from gossipq_node.store_tool import open_store
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
TOPIC, PARTITIONS, COUNT = "orders", 8, 400
PATIENCE_S = 90.0
STRAY_MS = "2000"  #: the least; the default is half a minute


def bodies(member: Member) -> dict[int, int]:
    """Shard -> batches on the disk of a node that does not run."""
    found = {}
    directory = DataDirectory(member.data)
    try:
        manifest = directory.read()
        assert manifest is not None
        for worker in range(manifest.workers):
            with open_store(directory.store(manifest, worker), manifest.shards) as store:
                found |= {shard: store.tables(shard).body.rows() for shard in store.shards()}
    finally:
        directory.close()
    return found


def publish(servers: list[str], number: int) -> None:
    with connect(*servers) as mq:
        for i in range(COUNT):
            mq.post(TOPIC, b"%d/%d." % (number, i) + b"x" * 8_000, key=b"%d" % (i % 64))
        mq.flush(None)


def test_a_drained_node_lets_go_of_its_rows_and_comes_back(tmp_path: Path) -> None:
    with cluster(tmp_path, count=4) as nodes:
        nodes.wait_healthy(balanced=True)
        with connect(*nodes.servers) as mq:
            mq.create_topic(TOPIC, partitions=PARTITIONS)
        publish(nodes.servers, 1)
        nodes.wait_healthy(still=True)
        (*others, leaver) = nodes.members
        servers = [member.endpoint for member in others]
        copy = leaver.status().copy
        with connect(*servers) as mq:
            mq.admin.set_member(leaver.name, "leaving", trust.known(""))

        def kept() -> int:
            return sum(row.copy == copy for member in others for row in member.status().copies)

        until(lambda: not kept(), PATIENCE_S, "the node is not empty")
        nodes.wait_healthy(still=True)
        leaver.stop()
        assert sum(bodies(leaver).values()) > 0, "not at once"
        leaver.environment["GOSSIPQ_NODE__STRAY_MS"] = STRAY_MS

        def let_go() -> bool:
            leaver.start()
            time.sleep(5.0)
            leaver.stop()
            return not any(rows for shard, rows in bodies(leaver).items() if shard)

        until(let_go, PATIENCE_S, "it keeps rows that are not its own")
        (emptied,) = store_tool.info(leaver.data).workers
        assert emptied.used_bytes < emptied.file_bytes / 4, emptied

        leaver.start()
        with connect(*servers) as mq:
            mq.admin.set_member(leaver.name, "in", trust.known(""))
        nodes.wait_healthy(balanced=True)
        publish(servers, 2)
        nodes.wait_healthy(still=True)
        time.sleep(2.0)
        nodes.stop()
        has = {partition: values for partition, values in records(leaver.data, TOPIC).items() if values}
        # also copies that were taken out, a moment ago
        others_have = [records(member.data, TOPIC) for member in others]
        assert has
        for partition, values in has.items():
            assert values == max((found.get(partition, []) for found in others_have), key=len)
        (again,) = store_tool.info(leaver.data).workers
        assert again.rows["body"] > 0
        grown = again.used_bytes - emptied.used_bytes
        assert again.file_bytes < emptied.file_bytes + grown, "its free pages are used again"
