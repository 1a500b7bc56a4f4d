"""The commands, killed again and again while a node is under load. The next run continues their
work, and a restore has everything that was there. More kills: GOSSIPQ_KILLS=50;
GOSSIPQ_RESULTS=tests/backup/kills.jsonl notes them.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from backup.life import Life, picture
from conftest import HOME, ROOTS, RunningNode
from gossipq_client import connect
from gossipq_node.backup.restore import BUILDING, PROGRESS

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("GOSSIPQ_KILLS", "6"))
SEED = int(os.environ.get("GOSSIPQ_SEED", "1"))


def gossipq(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "gossipq_cli", *map(str, words), "-o", "json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(HOME / root) for root in ROOTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process, seconds=120):
    out, errors = process.communicate(timeout=seconds)
    assert process.returncode == 0, errors
    return json.loads(out)


def killed(process, after_s):
    """Kills the process after that time; returns True if it was still running."""
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


class Load(threading.Thread):
    """A life that continues until it is stopped."""

    def __init__(self, endpoint, seed):
        super().__init__()
        self._endpoint, self._seed, self._over = endpoint, seed, threading.Event()
        self.records = 0

    def run(self):
        with connect(self._endpoint, timeout=30) as mq:
            mq.broker = self  # what `Life` connects by
            life = Life(mq, self._seed)
            while not self._over.is_set():
                life.go_on(10)
            self.records = life.number

    def connect(self):
        return connect(self._endpoint, timeout=30)

    def stop(self):
        self._over.set()
        self.join(60)


@pytest.mark.parametrize("seed", [SEED])
def test_killed_at_any_point_they_go_on(make_node, tmp_path, seed):
    node, dice, kills = make_node().start(), random.Random(seed), {"backup": 0, "restore": 0}
    place, data = tmp_path / "backup", tmp_path / "restored"
    with connect(node.endpoint) as mq:  # more than a moment's work
        mq.create_topic("ballast", partitions=16)
        for _ in range(60):
            mq.post_many("ballast", [os.urandom(50_000)] * 10)
        mq.flush(60)
    load = Load(node.endpoint, seed)
    load.start()
    try:
        points = 0
        while kills["backup"] < KILLS // 2:
            run = gossipq("backup", "-s", node.endpoint, "--out", place, "--rate", "20MB", "--keep", "1h")
            kills["backup"] += killed(run, dice.uniform(0.3, 3.0))
            points = len(list(place.glob("points/*.json")))
            if dice.random() < 0.2:
                finished(gossipq("backup", "-s", node.endpoint, "--out", place))
    finally:
        load.stop()
    with connect(node.endpoint) as mq:
        before = picture(mq)
    done = finished(gossipq("backup", "-s", node.endpoint, "--out", place, "--rate", "0"))
    assert done["point"] > points
    while kills["restore"] < KILLS - KILLS // 2:
        run = gossipq("store", "restore", place, "--data", data)
        if not killed(run, dice.uniform(0.2, 2.0)):
            run = gossipq(
                "store", "restore", place, "--data", data := tmp_path / f"restored-{kills['restore']}"
            )
            kills["restore"] += killed(run, 0.6)
        else:
            kills["restore"] += 1
        assert not data.exists() or (data / "manifest.json").exists(), "it appears whole or not at all"
        if data.exists():
            data = tmp_path / f"restored-{kills['restore']}"
    finished(gossipq("store", "restore", place, "--data", data))
    assert not data.with_name(data.name + BUILDING).exists()
    assert not data.with_name(data.name + PROGRESS).exists()
    again = RunningNode(data, "--workers", "2").start()
    try:
        with connect(again.endpoint) as mq:
            assert picture(mq) == before
            assert not any(row.unaccounted for row in mq.admin.stats().groups)
    finally:
        again.stop()
    if path := os.environ.get("GOSSIPQ_RESULTS"):
        commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], cwd=HOME, text=True)
        row = {"commit": commit.strip(), "seed": seed, "kills": kills, "records": load.records}
        with open(path, "a", encoding="utf-8") as results:
            results.write(json.dumps(row) + "\n")
