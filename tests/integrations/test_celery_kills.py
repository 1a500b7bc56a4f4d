"""A worker of Celery while nodes of three are killed, one at a time: `make celery-kills MINUTES=5`."""

import os
import random
import re
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from e2e.cluster import Cluster, cluster
from integrations.celery_worker import Worker
from waiting import until

MINUTES = int(os.environ.get("GOSSIPQ_MINUTES", "5"))
SEED = int(os.environ.get("GOSSIPQ_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
KILL_EVERY_S = 60.0
DOWN_S = 15.0
PAUSE_S, TASK_S = 0.1, 0.05  #: between two tasks, and of one task
PATIENCE_S = 120.0
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(60 * MINUTES + 900),
    pytest.mark.skipif("GOSSIPQ_MINUTES" not in os.environ, reason="make celery-kills runs it"),
]


class Sender:
    """A thread that sends numbered tasks until it is stopped."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._is_over = worker, threading.Event()
        self.sent: list[str] = []  #: tasks whose publish was confirmed
        self.unknown: list[str] = []  #: tasks whose publish raised an error
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(PAUSE_S):
            number += 1
            try:
                self._worker.send("wait", number, TASK_S)
            except Exception as error:
                self.unknown.append(f"{number} {error!r}")
            else:
                self.sent.append(str(number))


def kill_nodes(nodes: Cluster, kills: int) -> None:
    """Kill a node each minute and start it again."""
    dice = random.Random(SEED)
    for _ in range(kills):
        next_s = time.monotonic() + KILL_EVERY_S
        member = dice.choice(nodes.members)
        member.kill()
        time.sleep(DOWN_S)
        member.start()
        nodes.wait_healthy(patience_s=PATIENCE_S)
        time.sleep(max(0.0, next_s - time.monotonic()))


def test_no_task_is_lost_or_runs_twice_while_nodes_are_killed(tmp_path: Path) -> None:
    home = tmp_path / "worker"
    home.mkdir()
    with cluster(tmp_path) as nodes:
        nodes.wait_healthy()
        addresses = ";".join(address.replace("tcp://", "gossipq://") for address in nodes.servers)
        with Worker(home, addresses).start() as worker:
            sender = Sender(worker)
            sender.start()
            try:
                kill_nodes(nodes, MINUTES)
            finally:
                sender.stop()
            until(lambda: not lost(sender, worker), PATIENCE_S, lambda: f"{SEED} {lost(sender, worker)}")
            worker.stop()
        lost_leases = re.findall(r"ack(?:ed)? (?:came )?too late.*", worker.log)
        twice = {word: count for word, count in ended(worker).items() if count > 1}
        print(
            f"kills={MINUTES} sent={len(sender.sent)} unknown={len(sender.unknown)} twice={len(twice)}"
            f" lost_leases={len(lost_leases)} seed={SEED}"
        )
        assert sum(twice.values()) - len(twice) <= len(lost_leases), (twice, lost_leases, SEED)


def ended(worker: Worker) -> Counter[str]:
    """Return how often each task ended."""
    return Counter(line.split()[1] for line in worker.lines if line.startswith("ends "))


def lost(sender: Sender, worker: Worker) -> set[str]:
    """Return the tasks whose publish was confirmed and that have not ended."""
    return set(sender.sent) - ended(worker).keys()
