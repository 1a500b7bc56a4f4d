"""The command itself: under load, killed again and again, and every confirmed record is in the export
once."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("pyarrow", reason="exports need pyarrow")

from conftest import HOME, ROOTS
from export.reading import read, states, values
from gossipq_client import connect

KILLS = int(os.environ.get("KILLS", "10"))
pytestmark = pytest.mark.e2e


def export(node, out, *flags):
    paths = os.pathsep.join(str(HOME / root) for root in ROOTS)
    words = [
        sys.executable,
        "-m",
        "gossipq_cli",
        "export",
        "--out",
        str(out),
        "-s",
        node.endpoint,
        "-o",
        "json",
        *flags,
    ]
    return subprocess.Popen(
        words,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process, code=0):
    out, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    return out, errors


class Load(threading.Thread):
    """Publishes to three topics until it is stopped; knows what was confirmed."""

    def __init__(self, endpoint):
        super().__init__()
        self._endpoint, self._over, self.confirmed = endpoint, threading.Event(), {}

    def run(self):
        dice, number = random.Random(7), 0
        with connect(self._endpoint) as mq:
            while not self._over.is_set():
                topic, partition = dice.choice(["007", "orders", "big"]), dice.randrange(2)
                value = b"%d:" % number * (100_000 if topic == "big" else dice.randrange(1, 50))
                extra = {"key": b"k", "headers": {"n": str(number)}} if dice.random() < 0.1 else {}
                receipt = mq.publish(topic, value, partition=partition, **extra, timeout=30)
                self.confirmed[topic, receipt.partition, receipt.offset] = value
                number += 1
                if dice.random() < 0.2:
                    mq.ack_soon(mq.fetch("007", "g", n=dice.randrange(1, 5), wait=0.05))
                time.sleep(0.002)
            while batch := mq.fetch("007", "g", n=1_000, wait=0.2):
                mq.ack_soon(batch)
            mq.flush(None)

    def stop(self):
        self._over.set()
        self.join(30)


@pytest.mark.slow
def test_killed_at_random_points_every_confirmed_record_is_exported_once(make_node, tmp_path):
    from gossipq_node.export.folder import Folder

    node, dice, out = make_node(), random.Random(1), tmp_path / "out"
    node.start()
    with connect(node.endpoint) as mq:
        for topic in ("007", "orders", "big"):
            mq.create_topic(topic, partitions=2)
        mq.create_topic("empty")
    load = Load(node.endpoint)
    load.start()
    killed = 0
    try:
        for number in range(KILLS):
            flags = ["--follow", "--every", "0.01s", "--roll", "0s"] if number % 2 else []
            process = export(node, out, *flags)
            time.sleep(dice.uniform(0.2, 0.9))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed += 1
            process.communicate()
            if number % 5 == 4:
                folder = Folder(out)
                found = values(folder)
                assert {
                    place: found[place] for place in found if place in load.confirmed
                }.items() <= load.confirmed.items()
                folder.close()
    finally:
        load.stop()
    finish(export(node, out))
    finish(export(node, out, "--compact"))
    folder = Folder(out)
    assert values(folder) == load.confirmed
    assert killed > KILLS // 2
    assert set(states(folder, "007").values()) == {"done"}
    acked = [
        (row["partition"], offset)
        for row in read(folder, "acks")
        for offset in range(row["start_offset"], row["end_offset"])
    ]
    assert sorted(acked) == sorted(place[1:] for place in load.confirmed if place[0] == "007")
    folder.close()


def test_a_follower_lives_through_the_death_of_the_node(make_node, tmp_path):
    from gossipq_node.export.folder import Folder

    node, out = make_node(), tmp_path / "out"
    node.start()
    with connect(node.endpoint) as mq:
        mq.publish_many("orders", [b"x"] * 10, timeout=10)
    follower = export(node, out, "--follow", "--every", "0.1s", "--roll", "0s", "--timeout", "1s")
    try:
        assert json.loads(follower.stdout.readline())["records"] == 10
        node.kill()
        time.sleep(2.0)
        node.start()
        with connect(node.endpoint) as mq:
            mq.publish_many("orders", [b"y"] * 10, timeout=10)
        assert json.loads(follower.stdout.readline())["records"] == 10
    finally:
        follower.send_signal(signal.SIGINT)
        _, errors = follower.communicate(timeout=20)
    assert "trying again" in errors
    folder = Folder(out)
    assert sorted(values(folder).values()) == [b"x"] * 10 + [b"y"] * 10
    folder.close()


def test_what_the_command_says(make_node, tmp_path):
    node, out = make_node(), tmp_path / "out"
    node.start()
    with connect(node.endpoint) as mq:
        mq.publish_many("orders", [b"x"] * 100, timeout=10)
    told, _ = finish(export(node, out))
    assert json.loads(told)["records"] == 100
    told, _ = finish(export(node, out))
    assert (json.loads(told)["records"], json.loads(told)["manifests"]) == (0, 0)
    _, errors = finish(export(node, out, "orderz"), code=4)
    assert "orderz" in errors
    follower = export(node, out, "--follow", "--every", "0.05s", "--roll", "0s")
    try:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["records"] == 0
        with connect(node.endpoint) as mq:
            mq.publish("orders", b"y", timeout=10)
        assert json.loads(follower.stdout.readline())["records"] == 1
        _, errors = finish(export(node, out), code=1)
        assert "is being exported to already" in errors
    finally:
        follower.send_signal(signal.SIGINT)
        follower.communicate(timeout=20)
