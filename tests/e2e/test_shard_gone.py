"""A client whose shard is gone hears why within its timeout: nothing waits for ever without a word."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from conftest import HOME, ROOTS
from e2e.harness import Node, stopped
from gossipq.errors import Backpressure, GossipqError, NotConfirmed, Unreachable
from gossipq_client import Client, Subscription, aio, connect

Look = TypeVar("Look")
pytestmark = pytest.mark.e2e
PATIENCE_S = 45.0  #: far more than the two seconds that each command is given
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(str(HOME / root) for root in ROOTS)}


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[tuple[Node, str]]:
    """A node of which one worker does not turn any more, and a topic that it leads."""
    with Node(tmp_path / "node", "--workers", "2") as node:
        with connect(node.endpoint) as mq:
            names = (f"t{number}" for number in range(100))
            name = next(each for each in names if mq.create_topic(each).shards[0] % 2)
            mq.publish(name, b"before", timeout=PATIENCE_S)
            (pid,) = {worker.pid for worker in mq.admin.status().workers if worker.worker == 1}
        with stopped(pid):
            yield node, name
        os.kill(pid, signal.SIGCONT)
        node.stop()


def run(node: Node, *line: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gossipq_cli", "-s", node.endpoint, "--timeout", "2s", *line]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, env=ENVIRONMENT
    )


def test_a_fetch_is_told_who_does_not_answer(hung: tuple[Node, str]) -> None:
    """Not a moment before its timeout, and each one from then on."""
    node, name = hung
    with connect(node.endpoint, timeout=2) as mq:
        assert not mq.fetch(name, "g", wait=0.1)
        with pytest.raises(Unreachable, match="the leader of the shard does not") as caught:
            mq.fetch(name, "g", wait=PATIENCE_S)
        assert caught.value.hint
        with pytest.raises(Unreachable):
            mq.fetch(name, "g", wait=0.1)
        mq.close(flush=False)


def test_a_fetch_in_hand_is_told_when_its_leader_stops(tmp_path: Path) -> None:
    """The subscription was answered before; when the leader is back, the same fetch continues."""
    with (
        Node(tmp_path / "node", "--workers", "1") as node,
        connect(node.endpoint, timeout=2) as mq,
    ):
        mq.create_topic("t")
        assert not mq.fetch("t", "g", wait=0.1)
        (worker,) = mq.admin.status().workers
        with stopped(worker.pid), pytest.raises(Unreachable):
            mq.fetch("t", "g", wait=PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        mq.publish("t", b"x", timeout=PATIENCE_S)
        found: list[bytes] = []
        while not found and time.monotonic() < deadline:
            with contextlib.suppress(Unreachable):
                found = list(mq.fetch("t", "g", wait=1.0).values())
        assert found == [b"x"]


def test_a_loop_waits_and_goes_on(hung: tuple[Node, str]) -> None:
    node, name = hung
    with connect(node.endpoint, timeout=2) as mq, mq.subscribe(name, "g") as subscription:
        came: list[bytes] = []
        loop = threading.Thread(target=lambda: came.extend(one(subscription)), daemon=True)
        loop.start()
        assert "does not" in awaited(lambda: subscription.trouble)
        assert loop.is_alive(), "nothing was raised in it"
        os.kill(worker_of(node), signal.SIGCONT)
        loop.join(PATIENCE_S)
        assert came == [b"before"]
        assert awaited(lambda: not subscription.trouble)


def awaited(look: Callable[[], Look]) -> Look:
    """The first true result of `look`, or its last one when time is over."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def one(subscription: Subscription) -> Iterator[bytes]:
    for message in subscription:
        with message:
            yield message.value
            return


def test_a_publish_beyond_the_window_is_told_who_does_not_answer(hung: tuple[Node, str]) -> None:
    """The call has no time limit; the healthy shards of the same client continue."""
    node, name = hung
    with connect(node.endpoint, timeout=2) as mq:
        with pytest.raises(Backpressure, match="the leader of the shard does not") as caught:
            publish_all(mq, name)
        assert "wait=None" in caught.value.hint
        mq.close(flush=False)


def publish_all(mq: Client, name: str) -> None:
    """More than a window takes."""
    for _ in range(1_000):
        mq.post(name, b"y" * 100_000)


def test_an_asyncio_publish_beyond_the_window_is_told_who_does_not_answer(hung: tuple[Node, str]) -> None:
    """Each of those that wait in line, within the same time. Those on their way may be stored."""
    node, name = hung

    async def main() -> None:
        async with aio.connect(node.endpoint, timeout=2) as mq:
            ended = await asyncio.gather(
                *(mq.publish(name, b"y" * 100_000) for _ in range(1_000)), return_exceptions=True
            )
            assert {type(error) for error in ended} == {Backpressure, NotConfirmed}
            full = [error for error in ended if isinstance(error, Backpressure)]
            assert all("the leader of the shard does not" in str(error) for error in full)
            await mq.close(flush=False)

    asyncio.run(main())


def test_pub_of_more_than_a_window_ends(hung: tuple[Node, str]) -> None:
    node, name = hung
    ran = run(node, "pub", name, "--lines", stdin=("y" * 100_000 + "\n") * 1_000)
    assert ran.returncode != 0
    assert "Traceback" not in ran.stderr
    assert "error" in ran.stderr


@pytest.mark.slow
def test_sub_says_what_it_waits_for(hung: tuple[Node, str]) -> None:
    node, name = hung
    command = [sys.executable, "-m", "gossipq_cli", "-s", node.endpoint, "--timeout", "2s", "sub", name]
    command += ["--from", "first", "-n", "1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as program:
        assert program.stderr is not None
        said = program.stderr.readline()
        os.kill(worker_of(node), signal.SIGCONT)
        out, _ = program.communicate(timeout=PATIENCE_S)
    assert b"no records arrive" in said, said
    assert (program.returncode, out) == (0, b"before\n")


def worker_of(node: Node) -> int:
    """The process of worker 1, that the frontdoor names also while it hangs."""
    with connect(node.endpoint) as mq:
        (pid,) = {worker.pid for worker in mq.admin.status().workers if worker.worker == 1}
    return int(pid)


@pytest.mark.slow
def test_commands_end_and_say_why(hung: tuple[Node, str]) -> None:
    node, name = hung
    for line in (
        ("pub", name, "x"),
        ("bench", "rtt", "--topic", name, "--records", "10"),
        ("bench", "pub", "--topic", name, "--records", "1000"),
        ("topic", "show", name),
        ("group", "ls", name),
    ):
        ran = run(node, *line)
        assert ran.returncode != 0, line
        assert ran.stderr.strip(), line
        assert "Traceback" not in ran.stderr, line
    status = run(node, "status")
    assert (status.returncode, "Traceback" in status.stderr) == (1, False)
    assert "worker" in status.stdout


def test_a_client_is_told_within_its_timeout(hung: tuple[Node, str]) -> None:
    node, name = hung
    with connect(node.endpoint, timeout=2) as mq:
        with pytest.raises(GossipqError):
            mq.publish(name, b"x", timeout=2)
        with pytest.raises(GossipqError):
            mq.admin.stats([name])
        mq.close(flush=False)
