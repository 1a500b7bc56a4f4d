"""The child's side of the pipe to its parent, and how a child ends."""

import logging
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from gossipq.errors import StoreError
from gossipq_node import processes
from gossipq_node.processes import FAILED, READY, STOP, Parent, child
from gossipq_node.settings import WorkerState


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Connection, Connection]]:
    monkeypatch.setattr(processes.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(processes.machine, "open_log", lambda name, as_json: logging.getLogger(name))
    ours, theirs = Pipe()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_ready_is_said_once_and_when_it_is_true(pipe: tuple[Connection, Connection]) -> None:
    ours, theirs = pipe
    answers = iter([False, True])
    parent = Parent(theirs, lambda: next(answers), lambda states: None)
    assert parent.running()
    assert not ours.poll(0)
    assert parent.running()
    assert parent.running()
    assert ours.recv() == (READY,)
    assert not ours.poll(0)


def test_states_are_told_and_stop_ends_it(pipe: tuple[Connection, Connection]) -> None:
    ours, theirs = pipe
    told: list[object] = []
    parent = Parent(theirs, lambda: False, told.append)
    states = [WorkerState(0, 10, True, 0), WorkerState(1, 0, False, 3, "exit code 9")]
    ours.send(states)
    assert parent.running()
    assert told == [states]
    ours.send(STOP)
    assert not parent.running()


def test_the_end_of_the_parent_ends_it(pipe: tuple[Connection, Connection]) -> None:
    ours, theirs = pipe
    parent = Parent(theirs, lambda: False, lambda states: None)
    ours.close()
    assert not parent.running()
    assert not Parent(theirs, lambda: True, lambda states: None).running()


def fail() -> None:
    raise StoreError("no", "do that", detail=3)


def crash() -> None:
    raise ZeroDivisionError("what nobody foresaw")


@pytest.mark.parametrize(("serve", "told"), [(fail, [(FAILED, "store", "no", "do that")]), (crash, [])])
def test_what_an_operator_can_cure_is_told_and_the_rest_is_logged(
    pipe: tuple[Connection, Connection],
    caplog: pytest.LogCaptureFixture,
    serve: Callable[[], None],
    told: list[object],
) -> None:
    ours, theirs = pipe
    with pytest.raises(SystemExit) as end:
        child("worker-0", True, theirs, serve)
    assert end.value.code == 1
    assert [ours.recv() for _ in told] == told
    assert not ours.poll(0)
    assert ("what nobody foresaw" in caplog.text) is (not told)


def test_a_child_whose_parent_is_gone_still_ends(pipe: tuple[Connection, Connection]) -> None:
    ours, theirs = pipe
    ours.close()
    with pytest.raises(SystemExit):
        child("worker-0", True, theirs, fail)
