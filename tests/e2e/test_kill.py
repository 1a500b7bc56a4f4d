"""kill -9 of workers and of whole nodes at random moments under load: what was confirmed is there once, what
was acked stays acked. GOSSIPQ_KILLS=500 makes a long run of it, GOSSIPQ_SEED repeats the choices of one."""

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from e2e.harness import Node
from e2e.load import PATIENCE_S, Load, Sent, account, drain, read
from gossipq_client import connect

KILLS = int(os.environ.get("GOSSIPQ_KILLS", "4"))
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120 + 30 * KILLS)]
SEED = int(os.environ.get("GOSSIPQ_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
IN_THE_GAP_MIN = KILLS // 5  #: with fewer kills between append and confirm the run proves nothing
KILLS_MAX = 3 * KILLS


class Killing:
    """Kills, waits until every partition confirms again (mostly), and counts what each kill caught. Kills on
    until enough of them fell between an append and its confirm."""

    def __init__(self, node: Node, load: Load) -> None:
        self.node, self.load, self.history = node, load, load.history
        self.random = random.Random(f"{SEED} kills")
        self.caught: list[list[Sent]] = []
        self.workers = self.nodes = 0

    def run(self) -> None:
        for number in range(KILLS_MAX):
            if number >= KILLS and self.gap() >= IN_THE_GAP_MIN:
                break
            self.load.check()
            time.sleep(self.random.random() * 0.15)
            if number % 2:
                self._kill_node()
            else:
                self._kill_worker()
            if self.random.random() < 0.75 or number >= KILLS - 1:
                self.load.wait_going()

    def _kill_worker(self) -> None:
        self.workers += 1
        children = self.node.pids()[2:]
        with connect(self.node.endpoint, timeout=PATIENCE_S) as mq:
            pids = [worker.pid for worker in mq.admin.status().workers if worker.pid in children]
        if pids:
            self._note()
            os.kill(self.random.choice(pids), signal.SIGKILL)

    def _kill_node(self) -> None:
        self.nodes += 1
        self._note()
        self.node.kill()
        time.sleep(self.random.random() * 0.1)
        self.node.start()

    def _note(self) -> None:
        with self.history.lock:
            self.caught.append(list(self.history.under_way.values()))

    def keys(self) -> list[set[tuple[str, int, int]]]:
        """The batches that each kill met under way."""
        return [{(sent.producer, sent.partition, sent.first) for sent in batches} for batches in self.caught]

    def gap(self) -> int:
        """How many kills fell between an append and its confirm, for sure."""
        with self.history.lock:
            return sum(not caught.isdisjoint(self.history.duplicates) for caught in self.keys())

    def report(self) -> int:
        """Prints what the kills caught; returns their `gap`."""
        keys, gap, under_way = self.keys(), self.gap(), sum(map(bool, self.caught))
        stored = len(set().union(*keys) & self.history.duplicates)
        print(
            f"{self.workers} workers and {self.nodes} nodes killed, seed {SEED}: {under_way} kills met "
            "batches under way; "
            f"{gap} fell between append and confirm: {stored} batches were on disk though no confirm had "
            "come, of "
            f"{sum(map(len, keys))} under way; {len(self.history.offsets):,} records confirmed, "
            f"{self.history.abandoned} batches abandoned, {self.history.deliveries:,} records handed out, "
            f"{sum(ranges.total() for ranges in self.history.acked_total):,} acked"
        )
        return gap


def test_what_is_confirmed_survives_kills(make: Callable[..., Node]) -> None:
    print(f"seed {SEED}")
    node = make().start()
    load = Load([node.endpoint], SEED, probes=0)
    load.prepare()
    killing = Killing(node, load)
    with load.running():
        killing.run()
    gap = killing.report()
    drain(load.servers, load.history)
    load.check()
    found = account(load.history, read(load.servers))
    assert found.clean, found
    assert "Traceback" not in node.log()
    assert gap >= IN_THE_GAP_MIN, f"only {gap} of {len(killing.caught)} kills fell between append and confirm"
