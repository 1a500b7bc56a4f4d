"""`gossipq cluster replace`: one command replaces a dead node, and all
confirmed records are there.
"""

from pathlib import Path

import pytest

from e2e.cluster import Cluster
from gossipq_cli.main import main
from gossipq_client import connect

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_dead_node_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = Cluster(tmp_path)

    def gossipq(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        secret = ("--secret-file", str(nodes.members[0].data / "secret"))
        code = main(["-s", nodes.members[0].endpoint, "cluster", "replace", *words, *secret])
        told = capsys.readouterr()
        return code, told.out + told.err

    try:
        nodes.start()
        nodes.wait_healthy(patience_s=120)
        with connect(*nodes.servers) as mq:
            mq.create_topic("orders", partitions=8)
            mq.publish_many("orders", [b"%d" % at for at in range(1_000)], timeout=60)
        code, said = gossipq("c", "--yes")
        assert (code, "c answers" in said) == (5, True), said
        assert "no node is named" in gossipq("x", "--yes")[1]
        nodes.members[2].kill()
        code, said = gossipq("c", "--by", "d", "--yes")
        assert (code, "no node is named d" in said) == (4, True), said
        fourth = nodes.make().start()
        code, said = gossipq("c", "--by", "d", "--yes", "--wait", "3m", "--timeout", "20s")
        assert (code, "c is replaced" in said) == (0, True), said
        assert {member.name for member in fourth.status().members} == {"a", "b", "d"}
        with connect(fourth.endpoint) as mq:
            values = [value for stretch in mq.read("orders").batches() for value in stretch.values()]
        assert sorted(values) == sorted(b"%d" % at for at in range(1_000))
    finally:
        nodes.kill()
