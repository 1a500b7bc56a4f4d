"""The supervisor over real processes with nothing in them: start, restart, drain, second signal, failure to
start."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gossipq.errors import ConfigError, NotAdmitted, StoreError
from gossipq_node import supervisor as rooms
from gossipq_node.processes import STOP
from gossipq_node.settings import WorkerState
from gossipq_node.supervisor import Child, ProcessMain, Supervisor, restart_pause_ms
from node import fakes
from waiting import until

PATIENCE_S = 30


def test_the_pause_doubles_and_is_forgotten_after_a_minute() -> None:
    pauses = [0]
    for _ in range(9):
        pauses.append(restart_pause_ms(pauses[-1], 5_000))
    assert pauses[1:] == [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]
    assert restart_pause_ms(10_000, 60_000) == 100


class House:
    """A supervisor over fakes; `then` runs in a thread once all are ready."""

    def __init__(
        self, worker: ProcessMain, frontdoor: ProcessMain = fakes.steady, drain_ms: int = 10_000
    ) -> None:
        self.worker = Child("worker-0", worker, lambda restarts: restarts)
        self.frontdoor = Child("frontdoor", frontdoor, lambda restarts: restarts)
        self.announced = 0
        self._drain_ms = drain_ms

    def run(self, then: Callable[[], None]) -> int:
        thread = threading.Thread(target=then)

        def announce() -> None:
            self.announced += 1
            thread.start()

        try:
            return Supervisor(
                [self.worker], self.frontdoor, self._drain_ms, announce, logging.getLogger("node")
            ).run()
        finally:
            if self.announced:
                thread.join()
            assert not self.worker.running
            assert not self.frontdoor.running


def term() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_drains() -> None:
    house = House(fakes.steady)
    before = signal.getsignal(signal.SIGTERM)
    assert house.run(term) == 0
    assert house.announced == 1
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_drains_too() -> None:
    house = House(fakes.steady)
    assert house.run(lambda: os.kill(os.getpid(), signal.SIGINT)) == 0


def test_ctrl_c_in_the_terminal_leaves_children_that_begin_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    house, codes = House(fakes.steady), list[int]()
    bury = Child.bury

    def note(child: Child, now_ms: int) -> int:
        codes.append(bury(child, now_ms))
        return codes[-1]

    start = Child.start

    def interrupted(child: Child, now_ms: int) -> None:
        start(child, now_ms)
        os.kill(child.pid, signal.SIGINT)

    monkeypatch.setattr(Child, "bury", note)
    monkeypatch.setattr(Child, "start", interrupted)
    assert house.run(term) == 0
    assert codes == [0, 0]


def test_a_killed_worker_starts_again_and_the_frontdoor_hears_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LISTENING_TO", str(tmp_path / "told"))
    house = House(fakes.steady, fakes.listening)

    def then() -> None:
        os.kill(house.worker.pid, signal.SIGKILL)
        until(lambda: house.worker.restarts == 1 and house.worker.ready)
        term()

    with caplog.at_level(logging.INFO):
        assert house.run(then) == 0
    told = (tmp_path / "told").read_text().splitlines()
    assert "(True, 0)" in told
    assert told.index("(False, 0)") < told.index("(True, 1)")
    assert "ended: signal 9 (Killed); starts again in 100 ms" in caplog.text
    assert "is ready, restarts: 1" in caplog.text
    assert house.announced == 1


def test_a_node_that_its_cluster_has_no_more_says_of_none_of_its_processes_that_it_starts_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House(fakes.steady, fakes.dismissed)
    with caplog.at_level(logging.INFO), pytest.raises(NotAdmitted, match="taken off"):
        house.run(lambda: None)
    assert "draining: bob was taken off this cluster" in caplog.text
    assert "starts again" not in caplog.text


def test_a_worker_that_dies_at_its_start_gets_a_second_chance_however_long_that_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rooms, "START_PATIENCE_MS", 0)
    house = House(fakes.twice)
    assert house.run(term) == 0
    assert house.worker.restarts == 1


def test_a_process_that_does_not_drain_is_killed_at_the_deadline() -> None:
    assert House(fakes.deaf, drain_ms=50).run(term) == 1


def test_a_second_signal_ends_at_once() -> None:
    def then() -> None:
        term()
        time.sleep(0.05)  # two of the same signal at once are one
        os.kill(os.getpid(), signal.SIGINT)

    begin = time.monotonic()
    assert House(fakes.deaf, drain_ms=60_000).run(then) == 128 + signal.SIGINT
    assert time.monotonic() - begin < PATIENCE_S


@pytest.mark.parametrize(
    ("entry", "error"),
    [(fakes.broken, ConfigError), (fakes.crashing, StoreError), (fakes.killed, StoreError)],
)
def test_a_process_that_cannot_start_ends_the_node_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, entry: ProcessMain, error: type[Exception]
) -> None:
    monkeypatch.setattr(rooms, "START_PATIENCE_MS", 0)
    house = House(entry)
    with pytest.raises(error) as failed:
        house.run(term)
    assert house.announced == 0
    if error is ConfigError:
        assert (failed.value.message, failed.value.hint) == ("port 1 is taken", "take another")
    if entry is fakes.killed:
        assert failed.value.message == "worker-0 does not start: signal 7 (Bus error)"


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), ConfigError("a file of the node cannot be read")]
)
def test_a_process_that_cannot_be_started_again_is_tried_again_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    house = House(fakes.steady)
    refused: list[int] = []

    def settings(restarts: int) -> int:
        if restarts == 1 and len(refused) < 3:
            refused.append(restarts)
            raise error
        return restarts

    house.worker = Child("worker-0", fakes.steady, settings)

    def then() -> None:
        os.kill(house.worker.pid, signal.SIGKILL)
        until(lambda: house.worker.restarts == 1 and house.worker.ready)
        term()

    assert house.run(then) == 0
    assert refused == [1, 1, 1]
    assert f"worker-0 cannot be started: {error}; tried again in 200 ms" in caplog.text


def test_a_frontdoor_that_hangs_holds_up_nobody_and_hears_the_newest_later() -> None:
    child = Child("frontdoor", fakes.steady, lambda restarts: restarts)
    child.start(0)
    until(lambda: bool(child.listen()) or child.ready)
    try:
        os.kill(child.pid, signal.SIGSTOP)
        states = [WorkerState(number, 1_234_567, True, 3, "the disk refused a write") for number in range(4)]
        told = 0
        while child.tell(states):
            told += 1
            assert told < 100_000
        assert not child.tell(STOP)
        os.kill(child.pid, signal.SIGCONT)
        until(lambda: child.tell(STOP))
        assert child.process is not None
        child.process.join(PATIENCE_S)
        assert child.process.exitcode == 0
    finally:
        child.process.kill() if child.process else None
        child.bury(0)


def test_a_node_drains_while_its_frontdoor_hangs() -> None:
    house = House(fakes.steady, drain_ms=1_000)

    def then() -> None:
        os.kill(house.frontdoor.pid, signal.SIGSTOP)
        while house.frontdoor.tell("x" * 1_000):
            pass
        term()

    assert house.run(then) == 1, "who does not drain in time is killed"
