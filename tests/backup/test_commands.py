"""`gossipq backup` and `gossipq store restore` as an operator runs them: of several nodes, with users, into
an object store."""

import json
import logging
import os
import signal
import threading
import time
import uuid

import pytest

from backup.life import picture
from conftest import RunningNode
from e2e.cluster import Cluster
from gossipq.values import AccessChange, Role, Rule, User
from gossipq_cli.main import main
from gossipq_client import connect

STANDS_STILL_S = 8.0
pytestmark = pytest.mark.e2e


@pytest.fixture
def ran(capsys):
    """ran("backup", ...) in this process: exit code, stdout, stderr."""

    def run(*words):
        capsys.readouterr()
        return (main([*map(str, words)]), *capsys.readouterr())

    return run


def test_from_a_running_node_to_another_one(make_node, ran, tmp_path):
    node, place, data = make_node().start(), tmp_path / "backup", tmp_path / "restored"
    with connect(node.endpoint) as mq:
        mq.create_topic("orders", partitions=4)
        mq.publish_many("orders", [b"x" * 1_000] * 500, timeout=30)
        mq.create_topic("notes")
        mq.publish("notes", b"n", timeout=10)
        mq.create_topic("bills")
        secret = (node.data / "secret").read_bytes().strip()
        role, user = Role("clerk", [Rule("orders", ["read"])]), User("ada", ["clerk"])
        mq.admin.raw.set_access(AccessChange(roles=[role], users=[user]), secret)
        before = picture(mq)
    code, out, errors = ran("-s", node.endpoint, "backup", "--out", place)
    assert (code, errors) == (0, "")
    assert out.startswith("point 1: ")
    code, out, _ = ran("-s", node.endpoint, "-o", "json", "backup", "--out", place, "--keep", "7d")
    assert (code, json.loads(out)["point"]) == (0, 2)
    assert json.loads(out)["bytes_new"] < 400_000, "of each shard that went on the newest batch is compared"
    code, out, _ = ran("-o", "json", "store", "restore", place, "--list")
    assert [row["point"] for row in json.loads(out)] == [1, 2]
    code, out, _ = ran("store", "restore", place, "--data", data)
    assert code == 0
    assert f"gossipq node --data {data} starts there" in out
    code, out, _ = ran("store", "restore", place, "--data", tmp_path / "some", "-t", "*o*")
    assert "has 2 topics of point 2" in out
    code, _, errors = ran("store", "restore", tmp_path, "--list")
    assert (code, f"{tmp_path} has no point" in errors) == (0, True)
    again = RunningNode(data, "--workers", "2").start()
    try:
        with connect(again.endpoint) as mq:
            assert picture(mq) == before
            assert [user.name for user in mq.admin.access().users] == ["ada"]
    finally:
        again.stop()
    for words, said in (
        (("store", "restore", place, "--data", data), "is not empty"),
        (("store", "restore", tmp_path / "none", "--list"), "is no folder"),
        (("store", "restore", place, "--data", tmp_path / "x", "-t", "orderz"), "no topic orderz"),
        (
            ("store", "restore", place, "--data", tmp_path / "x", "--as-of", "2020-01-01T00:00Z"),
            "does not go back",
        ),
        (("store", "restore", place), "--data"),
        (("-s", "tcp://127.0.0.1:9", "--timeout", "1s", "backup", "--out", place), "127.0.0.1:9"),
        (("-s", node.endpoint, "backup", "--out", node.data / "manifest.json"), "cannot be used"),
        (("-s", node.endpoint, "backup", "--out", "ftp://x"), "nothing is known of ftp://"),
    ):
        code, _, errors = ran(*words)
        assert code != 0
        assert said in errors, errors
    node.kill()
    code, out, errors = ran("-o", "json", "backup", "--out", place, "--data", node.data)
    assert (code, json.loads(out)["point"]) == (0, 3), errors
    assert json.loads(out)["bytes_new"] < 400_000, "batches that the running node sent are not read again"
    code, _, errors = ran("store", "restore", place, "--data", tmp_path / "stopped")
    assert code == 0, errors
    code, _, errors = ran("backup", "--out", tmp_path / "again", "--data", tmp_path / "stopped")
    assert code == 0, errors
    of_stopped = RunningNode(tmp_path / "stopped").start()
    try:
        with connect(of_stopped.endpoint) as mq:
            assert picture(mq) == before
    finally:
        of_stopped.stop()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_nodes_of_which_one_dies_while_it_is_made(ran, tmp_path):
    """Every record that was confirmed before the backup began is there; later ones may be."""
    nodes, place = Cluster(tmp_path), tmp_path / "backup"
    try:
        nodes.start()
        a, b, _ = nodes.members
        with connect(a.endpoint, b.endpoint) as mq:
            mq.create_topic("orders", partitions=12)
            for number in range(40):
                mq.post_many("orders", [b"%d:" % (number * 50 + at) * 200 for at in range(50)])
            mq.flush(60)
            batch = mq.fetch("orders", "billing", n=100, wait=10.0)
            mq.ack_soon(batch)
            mq.flush(60)
        late = threading.Timer(1.5, nodes.members[2].kill)
        late.start()
        code, _, errors = ran("-s", a.endpoint, "backup", "--out", place, "--rate", "500kB")
        late.join()
        assert code == 0, errors
    finally:
        nodes.kill()
    assert ran("store", "restore", place, "--data", tmp_path / "restored")[0] == 0
    with RunningNode(tmp_path / "restored", "--workers", "2") as again, connect(again.endpoint) as mq:
        values = [value for stretch in mq.read("orders").batches() for value in stretch.values()]
        assert sorted(values) == sorted(b"%d:" % at * 200 for at in range(2_000))
        assert sum(row.acked for row in mq.topic("orders").groups()) == len(batch) > 0


@pytest.mark.slow
def test_a_disk_that_stands_still_for_seconds_does_not_end_it(make_node, ran, tmp_path):
    """As its workers do that wait for it: they are stopped for longer than a request usually may take."""
    node = make_node().start()
    with connect(node.endpoint) as mq:
        mq.create_topic("orders", partitions=8)
        for _ in range(20):
            mq.post_many("orders", [os.urandom(1_000)] * 100)
        mq.flush(30)
        pids = [worker.pid for worker in mq.admin.status().workers]
    stop = threading.Timer(1.5, lambda: [os.kill(pid, signal.SIGSTOP) for pid in pids])
    go_on = threading.Timer(1.5 + STANDS_STILL_S, lambda: [os.kill(pid, signal.SIGCONT) for pid in pids])
    began_s = time.monotonic()
    stop.start(), go_on.start()
    try:
        code, _, errors = ran("-s", node.endpoint, "backup", "--out", tmp_path / "backup", "--rate", "500kB")
    finally:
        stop.join(), go_on.join()
    assert code == 0, errors
    assert time.monotonic() - began_s > STANDS_STILL_S, "it was over before they were stopped"


@pytest.fixture
def bucket(monkeypatch):
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'gossipq[lake]'")
    pytest.importorskip("moto", reason="moto is not installed")
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    told = {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "REGION": "us-east-1", "ENDPOINT_URL": url}
    for name, value in (told | {"DEFAULT_REGION": "us-east-1"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    name = f"b-{uuid.uuid4().hex[:12]}"
    boto3.client("s3", endpoint_url=url).create_bucket(Bucket=name)
    yield f"s3://{name}/backup"
    server.stop()


def test_an_object_store(shared_node, bucket, ran, tmp_path):
    with connect(shared_node.endpoint) as mq:
        name = f"t-{uuid.uuid4().hex[:8]}"
        mq.publish_many(name, [b"x" * 1_000] * 100, timeout=10)
        for _ in range(2):
            mq.publish(name, b"more", timeout=10)
            assert ran("-s", shared_node.endpoint, "backup", "--out", bucket, "--keep", "0s")[0] == 0
    code, out, _ = ran("-o", "json", "store", "restore", bucket, "--list")
    assert (code, len(json.loads(out))) == (0, 1)
    assert ran("store", "restore", bucket, "--data", tmp_path / "restored", "-t", name)[0] == 0
    with RunningNode(tmp_path / "restored", "--workers", "2") as again, connect(again.endpoint) as mq:
        assert sum(len(stretch) for stretch in mq.read(name).batches()) == 102
