"""Workers of Celery on the transport: delays, retries, remote control, warm shutdown, and nodes that die."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import RunningNode
from gossipq_client import connect
from integrations.celery_worker import Worker

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_worker_runs_waits_retries_and_answers(shared_node: RunningNode, tmp_path: Path) -> None:
    with Worker(tmp_path, f"gossipq://127.0.0.1:{shared_node.port}/first").start() as worker:
        sent = time.time()
        worker.send("say", "tomorrow", countdown=86_400)
        worker.send("stumble", "thrice")
        worker.send("tell_time", countdown=1)
        worker.until(lambda: len(worker.lines) == 2)
        told, thrice = sorted(worker.lines)
        assert thrice == "thrice 2"
        assert float(told) >= sent + 1
        inspect = worker.app.control.inspect(timeout=10, limit=1)
        (name,) = inspect.ping()
        assert inspect.scheduled() == {name: []}  # it holds no task that is not due
        assert [each["name"] for each in inspect.active_queues()[name]] == ["celery"]
        assert worker.app.control.cancel_consumer("celery", reply=True, timeout=10, limit=1)
        worker.send("say", "unheard")
        assert worker.app.control.add_consumer("celery", reply=True, timeout=10, limit=1)
        worker.until(lambda: "unheard" in worker.lines)
        worker.stop()
        assert "Traceback" not in worker.log
    with connect(shared_node.endpoint) as mq:  # queues for remote control end with their process
        assert {each.name for each in mq.topics("first.*")} == {"first.celery", "first.kombu-exchanges"}


def test_workers_know_each_other(shared_node: RunningNode, tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("ada", "bob")]
    for home in homes:
        home.mkdir()
    broker = f"gossipq://127.0.0.1:{shared_node.port}/pair"
    ada, bob = (Worker(home, broker, "-n", home.name) for home in homes)
    with ada.start(), bob:
        ada.until(lambda: "ready." in ada.log)
        bob.start()
        bob.until(lambda: "mingle: sync with 1 nodes" in bob.log)
        ada.until(lambda: "sync with celery@bob" in ada.log)
        for worker in (ada, bob):
            worker.stop()


def test_a_warm_shutdown_releases_what_has_not_begun(shared_node: RunningNode, tmp_path: Path) -> None:
    broker = f"gossipq://127.0.0.1:{shared_node.port}/warm"
    with Worker(tmp_path, broker, "--prefetch-multiplier", "1").start() as worker:
        for number in range(6):
            worker.send("wait", number, 1.0)
        worker.until(lambda: len(worker.lines) >= 2)
        worker.stop()
        begun = [line for line in worker.lines if line.startswith("begins")]
        assert len(begun) < 6
        assert sorted(line.split()[1] for line in worker.lines if line.startswith("ends")) == sorted(
            line.split()[1] for line in begun
        )
        worker.start()
        worker.until(lambda: sum(line.startswith("ends") for line in worker.lines) == 6)
        assert Counter(worker.lines) == Counter(
            f"{what} {n}" for what in ("begins", "ends") for n in range(6)
        )
        worker.stop()


def test_no_task_is_lost_when_node_and_worker_are_killed(
    make_node: Callable[..., RunningNode], tmp_path: Path
) -> None:
    node = make_node().start()
    with Worker(tmp_path, f"gossipq://127.0.0.1:{node.port}").start() as worker:
        for number in range(200):
            worker.send("wait", number, 0.02)
        worker.until(lambda: len(worker.lines) > 40)
        node.kill()
        node.start()
        worker.until(lambda: sum(line.startswith("ends") for line in worker.lines) > 100)
        assert worker.process is not None
        worker.process.kill()
        worker.process.wait()
        worker.start()
        worker.until(lambda: len({line for line in worker.lines if line.startswith("ends")}) == 200)
        worker.stop()
        repeated = Counter(worker.lines).total() - len(set(worker.lines))
        assert repeated <= 2 * 2 * 16  # tasks in the hands of a worker that died, and of a node that did
