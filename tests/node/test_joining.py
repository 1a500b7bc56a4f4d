"""Real nodes that find, found and join: by a list and by Serf, with all that may stand in the way."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gossipq_cli.main import main
from gossipq_client import connect
from hosts import PATIENCE_S, Host
from ports import needs_ipv6
from waiting import until

pytestmark = pytest.mark.e2e
needs_serf = pytest.mark.skipif(
    shutil.which("serf") is None, reason="the serf program is not installed: apt-get install serf"
)


def cluster_toml(path: Path, hosts: list[Host], **more: object) -> str:
    """One file for all hosts."""
    lines = ["[cluster]", *(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in more.items())]
    lines += ["[node]", f"peer = {msgspec.json.encode([each.endpoint for each in hosts]).decode()}"]
    (path / "cluster.toml").write_text("\n".join(lines) + "\n")
    return str(path / "cluster.toml")


# --- by a list ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_three_found_a_cluster_together_whoever_is_late(host: Callable[[str], Host], tmp_path: Path) -> None:
    hosts = [host(name) for name in ("cat", "ada", "bob")]
    config = cluster_toml(tmp_path, hosts, expect=3, name="shop", shards=4)
    for each in hosts[:2]:
        each.start("--config", config)
    for each in hosts[:2]:
        each.says("waiting for 3 nodes to found the cluster, 2 of them are here: ada, cat")
        assert not each.manifest().cluster_uuid
    with pytest.raises(Exception, match="belongs to no cluster yet"):
        hosts[0].status()
    hosts[2].start("--config", config)
    for each in hosts:
        each.ready()
    until(lambda: all(each.names() == ["ada", "bob", "cat"] for each in hosts))
    manifests = [each.manifest() for each in hosts]
    assert len({manifest.cluster_uuid for manifest in manifests}) == 1
    assert sorted(manifest.joined for manifest in manifests) == [False, True, True]
    assert {manifest.cluster_name for manifest in manifests} == {"shop"}

    until(
        lambda: (
            sum(row.role in ("leader", "follower") for each in hosts for row in each.status().copies) == 3 * 4
        )
    )
    founder = next(each for each in hosts if not each.manifest().joined)
    founder.kill()
    founder.wipe()
    founder.start("--config", config).ready()
    others = [each for each in hosts if each is not founder]
    assert founder.manifest().cluster_uuid == others[0].manifest().cluster_uuid, "no second cluster"
    assert founder.manifest().joined
    until(lambda: all(each.names() == ["ada", "bob", "cat"] for each in hosts))


def test_who_cannot_join_is_told_why(host: Callable[[str], Host], tmp_path: Path) -> None:
    ada = host("ada").start("--mode", "static").ready()
    uuid = ada.manifest().cluster_uuid

    twin = host("twin").start("--peer", ada.endpoint, "--name", "ada")
    (tmp_path / "secret").write_text("something that nobody guesses")
    stranger = host("eve").start("--peer", ada.endpoint, "--secret-file", str(tmp_path / "secret"))
    (tmp_path / "other.toml").write_text("[cluster]\ncopies = 5\n")
    other = host("bob").start("--peer", ada.endpoint, "--config", str(tmp_path / "other.toml"))
    (tmp_path / "more.toml").write_text("[cluster]\nshards = 64\n")
    more = host("dan").start("--peer", ada.endpoint, "--config", str(tmp_path / "more.toml"))
    tenant = host("tom").start(
        "--peer", ada.endpoint, "--bind", f"tcp://127.0.0.2:{ada.port}", "--advertise", "127.0.0.1"
    )
    for refused, text in (
        (tenant, f"{ada.endpoint} is the address of ada"),
        (twin, "a node named ada is there"),
        (stranger, "do not have the same secret"),
        (other, "cluster.copies = 5 on bob, and 3 in this cluster"),
        (more, "cluster.shards = 64, and the cluster has 32"),
    ):
        assert refused.ended() == 78, refused.said
        assert text in refused.said.splitlines()[-2]
        assert "hint:" in refused.said.splitlines()[-1]
        assert not refused.manifest().cluster_uuid
    assert (ada.names(), ada.manifest().cluster_uuid) == (["ada"], uuid)


@pytest.mark.slow
def test_a_join_that_is_cut_short_goes_on(host: Callable[[str], Host]) -> None:
    ada, bob = host("ada").start("--mode", "static").ready(), host("bob")
    bob.start("--peer", ada.endpoint).says("waiting for")
    until(lambda: bob.manifest().pledge or bob.manifest().cluster_uuid)
    bob.kill()
    voter = bob.manifest().voter
    bob.start("--peer", ada.endpoint).ready()
    assert bob.manifest().voter == voter
    until(lambda: ada.names() == ["ada", "bob"])
    bob.kill()
    bob.log.unlink()
    bob.start().ready()
    until(lambda: bob.names() == ["ada", "bob"])
    assert bob.manifest().cluster_uuid == ada.manifest().cluster_uuid, "its directory says where it belongs"


def test_waiting_ends_with_a_signal(host: Callable[[str], Host]) -> None:
    bob = host("bob").start("--peer", "tcp://127.0.0.1:1")
    bob.says("waiting for a node of the cluster; none answers at tcp://127.0.0.1:1")
    assert bob.process is not None
    bob.process.send_signal(signal.SIGTERM)
    assert bob.ended() == 0


@pytest.mark.slow
def test_a_secret_that_all_know_lets_them_in(host: Callable[[str], Host], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("something that nobody guesses")
    ada = host("ada").start("--mode", "static", "--secret-file", str(tmp_path / "secret")).ready()
    bob = host("bob").start("--peer", ada.endpoint, "--secret-file", str(tmp_path / "secret")).ready()
    until(lambda: ada.names() == bob.names() == ["ada", "bob"])
    plain = host("eve").start("--peer", ada.endpoint)
    assert plain.ended() == 78
    assert "do not have the same secret" in plain.said


@pytest.mark.slow
def test_a_witness_joins_and_makes_a_pair_take_over(host: Callable[[str], Host]) -> None:
    ada = host("ada").start("--mode", "static").ready()
    bob = host("bob").start("--peer", ada.endpoint).ready()
    assert (
        "a pair without a witness will not take over by itself: gossipq node --witness --join HOST"
        in bob.said
    )
    until(lambda: any("a pair without a witness" in warning for warning in ada.status().warnings))
    will = host("will").start("--peer", ada.endpoint, "--witness").ready()
    assert will.manifest().witness
    assert will.manifest().workers == 1
    until(lambda: not any("a pair without" in warning for warning in ada.status().warnings))
    until(lambda: {row.role for row in ada.status().copies} >= {"leader", "follower", "witness"})


# --- by Serf ------------------------------------------------------------------------------------------------


@needs_ipv6
def test_a_node_listens_at_an_address_of_ipv6(host: Callable[..., Host]) -> None:
    ada = host("ada", "[::1]").start("--mode", "standalone").ready()
    with connect(ada.endpoint) as mq:
        mq.publish("first", b"one", timeout=PATIENCE_S)
        assert [msg.value for msg in mq.fetch("first", "group", wait=PATIENCE_S)] == [b"one"]
        assert [member.endpoint for member in mq.admin.status().members] == [ada.endpoint]


@pytest.mark.slow
@needs_serf
@needs_ipv6
def test_nodes_meet_at_addresses_of_ipv6(host: Callable[..., Host]) -> None:
    ada = host("ada", "[::1]").start().ready()
    ada.says(f"--join {ada.gossip}")
    bob = host("bob", "[::1]").start("--join", ada.gossip).ready()
    until(lambda: all(each.names() == ["ada", "bob"] for each in (ada, bob)))
    until(lambda: [each.status().gossip for each in (ada, bob)] == [""] * 2)
    with connect(bob.endpoint) as mq:
        mq.publish("both", b"one", timeout=PATIENCE_S)


@pytest.mark.slow
@needs_serf
def test_a_plain_node_can_be_joined_where_serf_is(host: Callable[[str], Host]) -> None:
    ada = host("ada").start().ready()
    assert ada.status().mode == "serf"
    bob = host("bob").start("--join", ada.gossip).ready()
    cat = host("cat").start("--join", bob.gossip, "--join", ada.gossip).ready()
    hosts = [ada, bob, cat]
    until(lambda: all(each.names() == ["ada", "bob", "cat"] for each in hosts))
    until(lambda: [each.status().gossip for each in hosts] == [""] * 3)
    until(lambda: {event.node for event in ada.status().events} >= {"bob", "cat"})

    agents = [each.agent() for each in hosts]
    assert all(agents)
    bob.kill()
    until(lambda: not Path(f"/proc/{agents[1]}").exists())
    until(
        lambda: any(event.what in ("fail", "leave") and event.node == "bob" for event in ada.status().events)
    )


@needs_serf
@pytest.mark.slow
def test_without_agents_everything_goes_on_but_discovery(host: Callable[[str], Host], tmp_path: Path) -> None:
    hosts = [host(name) for name in ("ada", "bob", "cat")]
    config = tmp_path / "cluster.toml"
    config.write_text(
        "[cluster]\nexpect = 3\nshards = 4\njoin = "
        f"{msgspec.json.encode([h.gossip for h in hosts]).decode()}\n"
    )
    for each in hosts:
        each.start("--config", str(config))
    for each in hosts:
        each.ready()
    until(lambda: all(each.names() == ["ada", "bob", "cat"] for each in hosts))
    until(lambda: sum(row.role == "leader" for each in hosts for row in each.status().copies) == 4)
    with connect([each.endpoint for each in hosts], timeout=20) as mq:
        mq.publish("orders", b"0", timeout=20)
        end, number = time.monotonic() + 4.0, 1
        while time.monotonic() < end:
            for each in hosts:
                if agent := each.agent():
                    os.kill(agent, signal.SIGKILL)
            mq.publish("orders", b"%d" % number, timeout=20)
            number += 1
            time.sleep(0.05)
        assert all(each.status().gossip for each in hosts)
        assert any("gossip is degraded" in warning for warning in hosts[0].status().warnings)
        assert sum(part.next for part in mq.admin.stats(["orders"]).partitions) == number
    until(lambda: [each.status().gossip for each in hosts] == [""] * 3)


@needs_serf
@pytest.mark.slow
def test_a_wrong_secret_is_not_even_heard(host: Callable[[str], Host], tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"a secret of many words, number {name}")
    ada = host("ada").start("--secret-file", str(tmp_path / "one")).ready()
    eve = host("eve").start("--secret-file", str(tmp_path / "two"), "--join", ada.gossip)
    eve.says(
        "the Serf agents of the others have another secret, or none: give all nodes the same --secret-file"
    )
    bob = host("bob").start("--secret-file", str(tmp_path / "one"), "--join", ada.gossip).ready()
    until(lambda: ada.names() == bob.names() == ["ada", "bob"])
    assert not eve.manifest().cluster_uuid


@pytest.mark.slow
def test_the_operator_drains_and_removes_a_node_and_it_stays_out(
    host: Callable[[str], Host], capsys: pytest.CaptureFixture[str]
) -> None:
    ada = host("ada").start("--mode", "static").ready()
    bob = host("bob").start("--peer", ada.endpoint).ready()
    cat = host("cat").start("--peer", ada.endpoint).ready()

    def gossipq(*line: str) -> str:
        assert main(("-s", ada.endpoint, *line)) == 0, capsys.readouterr()
        return capsys.readouterr().out

    gossipq("status", "--wait-healthy", "60")
    names = [row["name"] for row in json.loads(gossipq("cluster", "ls", "-o", "json"))]
    assert names == ["ada", "bob", "cat"]
    drained = gossipq("cluster", "drain", "cat", "--wait", "60")
    assert drained == "cat has no copies left; undo: gossipq cluster drain cat --undo\n"
    assert json.loads(gossipq("cluster", "show", "cat", "-o", "json"))["state"] == "leaving"
    assert gossipq("cluster", "rm", "cat", "--yes") == "cat is removed\n"
    for _ in "it runs", "it is started again":
        assert cat.ended() == 78, cat.said
        assert (
            "error: cat was taken off this cluster\n hint: start it with an empty data directory" in cat.said
        )
        cat.log.unlink()
        cat.start("--peer", ada.endpoint)
    assert cat.ended() == 78, cat.said
    assert ada.names() == bob.names() == ["ada", "bob"]
    cat.wipe()
    cat.start("--peer", ada.endpoint).ready()
    until(lambda: ada.names() == cat.names() == ["ada", "bob", "cat"])


@needs_serf
@pytest.mark.slow
def test_a_join_at_a_port_that_is_not_that_of_gossip_is_named(host: Callable[[str], Host]) -> None:
    ada = host("ada").start().ready()
    bob = host("bob").start("--join", ada.endpoint.removeprefix("tcp://"))
    bob.says("or --join names another port than that of their gossip")
