"""The whole of it in a real terminal against a real node: each key, each view, the death of the node."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gossipq_client import connect
from hosts import Host
from waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: apt-get install tmux"),
]
WAIT_S = 30.0


class Pane:
    """A terminal of 120 x 40 in a tmux server of its own."""

    def __init__(self, home: Path) -> None:
        self._tmux = ["tmux", "-f", "/dev/null", "-S", str(home / "tmux.sock")]
        others = ("TMUX", "NO_COLOR", "GOSSIPQ_SERVER", "COLUMNS", "LINES")
        plain = {name: value for name, value in os.environ.items() if name not in others}
        self._environment = plain | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "LC_ALL": "C.UTF-8",
        }
        self.run("new-session", "-d", "-x", "120", "-y", "40", "-c", str(home), "sh")
        self.run("set-option", "-g", "escape-time", "0")

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._tmux, *arguments], env=self._environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    def type(self, *keys: str) -> None:
        self.run("send-keys", *keys)

    def shows(self, colors: bool = False) -> str:
        return self.run("capture-pane", "-p", *(["-e"] if colors else []))

    def until(self, pattern: str, colors: bool = False) -> str:
        """The screen as soon as it has this."""
        end = time.monotonic() + WAIT_S
        while not re.search(pattern, text := self.shows(colors)):
            assert time.monotonic() < end, f"no {pattern!r} in\n{text}"
            time.sleep(0.05)
        return text


@pytest.fixture
def pane(tmp_path: Path) -> Iterator[Pane]:
    found = Pane(tmp_path)
    yield found
    found.run("kill-server")


@pytest.fixture
def watched(node, pane: Pane) -> Callable[[], None]:
    """A node with a topic of two records, one of them acked, one scheduled; the dashboard is on the
    terminal."""
    with connect(node.endpoint) as mq:
        mq.create_topic("orders", partitions=1)
        for value in ("17 apples", "3 pears"):
            mq.publish("orders", value, key="ada", timeout=30)
        mq.publish("orders", "later", delay="1h", timeout=30)
        batch = mq.fetch("orders", "billing", n=1, wait=2.0)
        mq.ack_soon(batch)
        mq.flush(None)
    pane.type(f"{sys.executable} -m gossipq_cli -s {node.endpoint} top", "Enter")
    pane.until(r"billing · orders +\d")
    return pane


def test_each_key_and_each_view(watched: Pane, node, tmp_path: Path) -> None:
    pane = watched
    views = {
        "2": r"shards|● \S+ +ready +32",
        "3": r"orders +1 +0 +2 ",
        "4": r"billing · orders +\d",
        "5": "client▴",
        "6": "messages: choose a topic",
        "7": r"last (hours|week)",
        "1": "published /s",
    }
    for key, pattern in views.items():
        pane.type(key)
        pane.until(pattern)
    pane.type("3", "Enter")
    pane.until(r"▸ 0 +\d+ +\S+ +[01] +\d+ .*ok")  # the partition with its leader, worker and pid
    pane.type("Enter")
    pane.until(r"▸ 0 +1 .* 3 pears")
    pane.type("Home", "Enter")
    pane.until(r"billing: acked")
    pane.type("x")
    pane.until(r"remove orders/0/0 for every group\? y/n")
    pane.type("n")
    pane.until("not done")
    pane.type("r", "Enter")
    pane.until(r"redeliver orders/0/0 to billing\? y/n")
    pane.type("y")
    pane.until(r"orders/0/0 is ready for billing")
    pane.until(r"billing: ready")
    pane.type("Escape")
    pane.until(r"orders/0  tail")
    pane.type("/", "pears", "Enter")
    pane.until(r"contains 'pears'")
    pane.type("Escape", "4", "/", "nobody", "Enter")
    pane.until("no group matches")
    pane.type("Escape", "s", "?")
    pane.until("Exact numbers")
    pane.type("x", "p")
    pane.until("paused")
    pane.type("p", "+")
    pane.until("rate 2s")
    pane.type("-", ":", "topics", "Enter")
    pane.until("topic▴")
    pane.type(":", f"svg {tmp_path}/top.svg", "Enter")
    pane.until("saved")
    pane.type("q")
    pane.until(r"\n[$#]\s*$")
    pane.type("stty -a; echo over", "Enter")
    sane = pane.until(r"\nover")
    assert " icanon" in sane
    assert " echo " in sane
    assert "-icanon" not in sane


def test_one_acts_from_the_menu(watched: Pane, node) -> None:
    """The dead letters of one error are handed out again; first it says what that would do."""
    with connect(node.endpoint) as mq:
        mq.fetch("orders", "billing", n=1, wait=10.0)[0].reject("no such \u00e4pple")
        mq.flush(None)
    pane = watched
    pane.type("4", "Enter")
    pane.until(r"dead letters by error")
    pane.until(r"1 +\S+ +rejected +no such \u00e4pple")
    pane.type("o", "a")
    pane.until(r"▸ r +replay +redeliver these")
    pane.type("r")
    pane.until(r"1 dead letter would be ready for billing again\. replay dead letters of billing on orders")
    pane.type("n")
    pane.until("not done")
    pane.type("a", "r")
    pane.until(r"would be ready for billing again")
    pane.type("y")
    pane.until(r"1 dead letter ready for billing again")
    pane.type("Escape", "a")
    pane.until(r"r +replay +redeliver its dead letters")
    node.kill()
    pane.type("p")
    pane.until("asking what it would do|no node answers")
    pane.until("no node answers")  # who dies while something is asked of it
    pane.type("Escape")  # it may still be asking, and then only this key counts
    pane.type("q")
    pane.until(r"\n[$#]\s*$")


def test_ctrl_z_and_back(watched: Pane) -> None:
    pane = watched
    pane.type("C-z")
    pane.until(r"\n[$#]\s*$")
    pane.type("fg", "Enter")
    pane.until("backlog by group")
    pane.type("C-c")
    pane.until(r"\n[$#]\s*$")


def test_a_node_that_dies_is_seen_red_and_seen_again(watched: Pane, node) -> None:
    pane = watched
    node.kill()
    pane.until(r"✖ no answer for")
    red = pane.until(r"\x1b\[[\d;]*31m[^\x1b]*✖ no answer", colors=True)
    assert "no node answers" in red or "no answer" in red
    node.start()
    pane.until(r"● \S+ .*shards 32/32")
    pane.type("q")
    pane.until(r"\n[$#]\s*$")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_of_three_that_is_killed_turns_red_and_comes_back(pane: Pane, tmp_path: Path) -> None:
    """How long it took is printed, never asserted: the machine may be busy."""
    clusters = pytest.importorskip("e2e.cluster", reason="these nodes keep no copies of each other")
    with clusters.cluster(tmp_path) as nodes:
        nodes.wait_healthy()
        first, victim = nodes.members[0], nodes.members[-1]
        with connect(first.endpoint) as mq:
            mq.create_topic("orders", partitions=6)
            mq.publish_many("orders", [b"17 apples"] * 60, timeout=10)
        pane.type(f"{sys.executable} -m gossipq_cli -s {first.endpoint} top nodes", "Enter")
        pane.until(r"● 3/3 nodes")
        pane.until(rf"● {victim.name} +\S+ +\d+% +[1-9]")  # it leads shards, which will move
        died = time.monotonic()
        victim.kill()
        pane.until(rf"✖ {victim.name} +failed")
        print(f"{victim.name} was red {time.monotonic() - died:.1f} s after its death")
        pane.until(rf"member-failed +{victim.name}")
        pane.until(r"leader-move")
        pane.until(r"✖ 2/3 nodes")
        pane.type("1")
        pane.until(rf"degraded: {victim.name} is away")
        pane.type("3", "Enter")
        pane.until(rf"degraded.*{victim.name} \+\d+\S* ✖")
        victim.start()
        pane.until(r"● 3/3 nodes")
        nodes.wait_healthy()
        pane.type("2")
        first.kill()
        pane.until(rf"✖ {first.name} +failed")  # the one that was asked: another one answers now
        pane.until(r"✖ 2/3 nodes +in")
        pane.type("q")
        pane.until(r"\n[$#]\s*$")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_is_drained_and_taken_back(pane: Pane, tmp_path: Path) -> None:
    """From the menu of its row, with what it would do first; two real nodes."""
    hosts = [Host(tmp_path, "ada"), Host(tmp_path, "bob")]
    ada, bob = hosts
    try:
        (tmp_path / "cluster.toml").write_text("[cluster]\nshards = 4\n")
        config = ("--config", str(tmp_path / "cluster.toml"))
        ada.start(*config, "--mode", "static").ready()
        bob.start(*config, "--peer", ada.endpoint).ready()

        def state(name: str) -> str:
            return next(member.state for member in ada.status().members if member.name == name)

        pane.type(f"{sys.executable} -m gossipq_cli -s {ada.endpoint} top nodes", "Enter")
        pane.until(r"● bob .* \d")
        pane.type("Down")
        pane.until(r"▸ \S+ bob")
        pane.type("a")
        pane.until("move everything away from it")
        pane.type("d")
        pane.until("would move to the 1 other node")
        pane.type("n")
        pane.until("not done")
        assert state("bob") == "in"
        pane.type("a", "d")
        pane.until("would move to the 1 other node")
        pane.type("y")
        pane.until("bob is being drained")
        until(lambda: state("bob") == "leaving" and not any(w.leading for w in bob.status().workers))
        pane.type("a", "u")
        pane.until("is 'leaving' in the roster, and would be 'in'")
        pane.type("y")
        pane.until("bob stays: its drain is cancelled")
        until(lambda: state("bob") == "in")
    finally:
        for host in hosts:
            host.kill()
