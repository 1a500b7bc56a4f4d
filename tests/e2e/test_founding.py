"""Nodes that know of each other, but of no existing cluster."""

from pathlib import Path

import pytest

from e2e.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.parametrize("names_itself", [False, True], ids=["the others", "all, as pods do"])
def test_three_that_all_name_each_other(tmp_path: Path, names_itself: bool) -> None:
    nodes = Cluster(tmp_path)
    for member in nodes.members:
        others = [each.endpoint for each in nodes.members if names_itself or each is not member]
        flags = [word for address in others for word in ("--peer", address)]
        member.flags = ("--workers", "1", "--name", member.name, "--mode", "static", *flags)
    try:
        for member in nodes.members:
            if names_itself:
                member.environment["GOSSIPQ_CLUSTER__EXPECT"] = "3"
            member.spawn()
        nodes.wait_healthy(patience_s=120)
        assert len({status.cluster for status in nodes.statuses()}) == 1
    finally:
        nodes.kill()
