"""Each checker accepts a right history and finds the one fault that was put into it by hand."""

from pathlib import Path
from typing import Any

import pytest

from history import edn
from history.holders import lease_failures
from history.ids import id_failures
from history.judge import CHECKERS, Checker, counts, failures, write_edn
from history.logs import lost_failures, offset_failures, poll_failures, send_failures
from history.queues import account, acked_failures, queue_failures
from history.record import Operation, Recorder, load, pairs
from history.registers import register_failures
from history.timers import timer_failures

Row = tuple[int, str, str, Any]  #: process, type, function, value
MS = 1_000_000


def made(*rows: Row, **said: Any) -> list[Operation]:
    """Operations 10 ms apart; the client is named after the process."""
    return [
        Operation(at, 10 * MS * at, process, type, f, value, client=f"c{process}", **said)  # type: ignore[arg-type]
        for at, (process, type, f, value) in enumerate(rows)
    ]


def sent(process: int, offset: int, name: str) -> list[Row]:
    return [
        (process, "invoke", "send", [["send", 0, name]]),
        (process, "ok", "send", [["send", 0, [offset, name]]]),
    ]


def polled(process: int, *row: list[Any]) -> list[Row]:
    return [(process, "invoke", "poll", [["poll"]]), (process, "ok", "poll", [["poll", {0: [*row]}]])]


def fetched(process: int, *rows: list[Any]) -> list[Row]:
    return [(process, "invoke", "fetch", None), (process, "ok", "fetch", [*rows])]


def done(process: int, f: str, asked: Any, told: Any) -> list[Row]:
    return [(process, "invoke", f, asked), (process, "ok", f, told)]


A, B = sent(1, 0, "a"), sent(1, 1, "b")
REFUSED: list[Row] = [(2, "invoke", "send", [["send", 0, "x"]]), (2, "fail", "send", None)]
UNKNOWN: list[Row] = [(2, "invoke", "send", [["send", 0, "x"]]), (2, "info", "send", None)]
BOTH = fetched(3, [0, 0, "a", 1], [0, 1, "b", 1])
READ = polled(4, [0, "a"], [1, "b"])
SETTLED = done(3, "settle", [[0, 0]], None)
ACKED = done(5, "acked", [[0, 0, 1, 1]], [[0, 0, 1, 1]])
SCHEDULED = done(1, "schedule", ["a", 15], ["a", 15])


def published(process: int, offset: int) -> list[Row]:
    return done(process, "publish", ["n", "id"], ["n", "id", offset])


def arrived(*names: str) -> list[Row]:
    return done(2, "arrive", None, list(names))


def wrote(process: int, number: int) -> list[Row]:
    return done(process, "write", number, number)


def read(process: int, number: int) -> list[Row]:
    return done(process, "read", None, number)


FALSIFIED: list[tuple[str, Checker, list[Row], list[Row]]] = [
    ("lost", queue_failures, [*A, *B, *BOTH], [*A, *B, *fetched(3, [0, 1, "b", 1])]),
    (
        "unexpected",
        queue_failures,
        [*A, *fetched(3, [0, 0, "a", 1])],
        [*A, *B[:1], *B[1:], *BOTH, *fetched(3, [0, 2, "z", 1])],
    ),
    (
        "revived",
        queue_failures,
        [*A, *UNKNOWN, *fetched(3, [0, 0, "a", 1], [0, 1, "x", 1])],
        [*A, *REFUSED, *fetched(3, [0, 0, "a", 1], [0, 1, "x", 1])],
    ),
    (
        "acked",
        acked_failures,
        [*BOTH, *SETTLED, *ACKED, *fetched(6, [0, 1, "b", 1])],
        [*BOTH, *SETTLED, *ACKED, *fetched(6, [0, 0, "a", 1])],
    ),
    ("inconsistent offset", offset_failures, [*A, *B, *READ], [*A, *B, *polled(4, [0, "a"], [1, "z"])]),
    ("duplicate", offset_failures, [*A, *B, *READ], [*A, *B, *polled(4, [0, "a"], [1, "b"], [2, "a"])]),
    ("lost write", lost_failures, [*A, *B, *READ], [*A, *B, *polled(4, [1, "b"])]),
    (
        "aborted read",
        lost_failures,
        [*A, *UNKNOWN, *polled(4, [0, "a"], [1, "x"])],
        [*A, *REFUSED, *polled(4, [0, "a"], [1, "x"])],
    ),
    ("nonmonotonic poll", poll_failures, [*READ, *polled(4, [2, "c"])], [*READ, *polled(4, [1, "b"])]),
    ("skipped", poll_failures, [*READ, *polled(4, [2, "c"])], [*READ, *polled(4, [3, "d"])]),
    ("nonmonotonic send", send_failures, [*A, *B], [*sent(1, 1, "a"), *sent(1, 0, "b")]),
    (
        "dedup: id id was confirmed at 3 and at 4",
        id_failures,
        [*published(1, 3), *published(2, 3)],
        [*published(1, 3), *published(2, 4)],
    ),
    (
        "is stored 2 times",
        id_failures,
        [*published(1, 3), *done(1, "stored-ids", None, ["id"])],
        [*published(1, 3), *done(1, "stored-ids", None, ["id", "id"])],
    ),
    (
        "lease",
        lease_failures,
        [*BOTH, *SETTLED, *fetched(6, [0, 0, "a", 1])],
        [*BOTH, *fetched(6, [0, 0, "a", 1])],
    ),
    (
        "lease",
        lease_failures,
        [*BOTH, *done(3, "close", None, None), *fetched(6, [0, 1, "b", 1])],
        [*BOTH, *fetched(6, [0, 1, "b", 1])],
    ),
    (
        "early",
        timer_failures,
        [*SCHEDULED, *arrived(), *arrived("a")],
        [*done(1, "schedule", ["a", 90], ["a", 90]), *arrived("a")],
    ),
    ("never arrived", timer_failures, [*SCHEDULED, *arrived("a")], [*SCHEDULED, *arrived()]),
    ("register", register_failures, [*wrote(1, 7), *read(2, 7)], [*wrote(1, 7), *read(2, 0)]),
]


@pytest.mark.parametrize(("text", "checker", "right", "wrong"), FALSIFIED, ids=[row[0] for row in FALSIFIED])
def test_a_checker_finds_the_history_that_was_falsified(
    text: str, checker: Checker, right: list[Row], wrong: list[Row]
) -> None:
    assert list(checker(made(*right, topic="t"))) == []
    found = list(checker(made(*wrong, topic="t")))
    assert len(found) == 1
    assert text in found[0]


def test_every_checker_has_a_falsified_history() -> None:
    assert {checker for _, checker, _, _ in FALSIFIED} == set(CHECKERS)


def test_the_account_of_the_queue_is_that_of_jepsen() -> None:
    found = account(made(*A, *B, *UNKNOWN, *fetched(3, [0, 0, "a", 1], [0, 2, "x", 1], [0, 0, "a", 1])))
    assert found._asdict() == {
        "attempted": 3,
        "confirmed": 2,
        "dequeued": 2,
        "lost": [(0, "b")],
        "unexpected": [],
        "duplicated": [(0, "a")],
        "recovered": [(0, "x")],
        "revived": [],
    }


def test_a_lease_may_pass_to_another_consumer_after_its_time_or_in_another_term() -> None:
    for time_ms, term in ((1_010, 1), (30, 2)):
        again = Operation(9, time_ms * MS, 6, "ok", "fetch", [[0, 0, "a", term]], client="c6")
        assert list(lease_failures([*made(*BOTH), again])) == []


def test_a_delivery_of_a_leader_that_was_deposed_may_follow_an_ack() -> None:
    later = done(5, "acked", [[0, 0, 1, 2]], [[0, 0, 1, 2]])
    assert list(acked_failures(made(*BOTH, *later, *fetched(6, [0, 0, "a", 1])))) == []


@pytest.mark.parametrize(
    ("rows", "linear"),
    [
        ([], True),
        (read(1, 0), True),
        # concurrent: both orders are possible
        (
            [
                (1, "invoke", "write", 1),
                (2, "invoke", "read", None),
                (2, "ok", "read", 0),
                (1, "ok", "write", 1),
            ],
            True,
        ),
        (
            [
                (1, "invoke", "write", 1),
                (2, "invoke", "read", None),
                (2, "ok", "read", 1),
                (1, "ok", "write", 1),
            ],
            True,
        ),
        # once a read saw the new number, a later one may not see the old one
        ([(1, "invoke", "write", 1), *read(2, 1), *read(2, 0), (1, "ok", "write", 1)], False),
        # a write whose result is unknown may take effect late, or never, but once
        ([(1, "invoke", "write", 1), (1, "info", "write", 1), *read(2, 0), *read(2, 1), *read(2, 1)], True),
        ([(1, "invoke", "write", 1), (1, "info", "write", 1), *wrote(2, 2), *read(2, 2)], True),
        ([(1, "invoke", "write", 1), *read(2, 1), *wrote(2, 2), *read(2, 1), (1, "ok", "write", 1)], False),
        # a write that failed has no effect
        ([(1, "invoke", "write", 1), (1, "fail", "write", 1), *read(2, 1)], False),
        # three clients
        (
            [
                *wrote(1, 1),
                (1, "invoke", "write", 2),
                (3, "invoke", "write", 3),
                *read(2, 3),
                *read(2, 2),
                (3, "ok", "write", 3),
                (1, "ok", "write", 2),
            ],
            True,
        ),
        (
            [
                *wrote(1, 1),
                (1, "invoke", "write", 2),
                (3, "invoke", "write", 3),
                *read(2, 3),
                *read(2, 2),
                *read(2, 3),
                (3, "ok", "write", 3),
                (1, "ok", "write", 2),
            ],
            False,
        ),
    ],
)
def test_a_register_is_linearizable_or_not(rows: list[Row], linear: bool) -> None:
    assert (not list(register_failures(made(*rows, topic="t")))) == linear


def test_a_register_names_the_operation_from_which_it_fails() -> None:
    history = made(*wrote(1, 1), *read(2, 1), *read(2, 0), *wrote(1, 5), topic="t")
    assert list(register_failures(history)) == [
        "register: t is not linearizable from read 0 by process 2 (4..5) on"
    ]


def test_a_long_register_is_checked_in_a_moment() -> None:
    rows = [row for number in range(1, 1_000) for row in (*wrote(1, number), *read(2, number))]
    assert list(register_failures(made((9, "invoke", "write", -1), *rows, topic="t"))) == []


def test_a_history_with_two_operations_of_a_process_at_a_time_is_refused() -> None:
    with pytest.raises(ValueError, match="is not free"):
        pairs(made(A[0], B[0]))
    with pytest.raises(ValueError, match="is not free"):
        pairs(made(*UNKNOWN, (2, "invoke", "send", [["send", 0, "y"]])))
    with pytest.raises(ValueError, match="completes nothing"):
        pairs(made(A[1]))


def test_a_recorded_history_is_read_again_and_written_as_edn(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Recorder(path) as recorder:
        first = recorder.invoke("send", [["send", 2, "p/2/0"]], client="p")
        second = recorder.invoke("send", [["send", 2, "p/2/1"]], client="p")
        first.ok([["send", 2, [0, "p/2/0"]]])
        second.info("no answer")
        recorder.fault("kill", begins=True, value="n1")
        with pytest.raises(ZeroDivisionError), recorder.call("poll", [["poll"]], client="r"):
            raise ZeroDivisionError
        with recorder.call("fetch", client="c") as call:
            call.ok([[2, 0, "p/2/0", 1]])
        recorder.invoke("poll", [["poll"]], client="r").ok([["poll", {2: [[0, "p/2/0"]]}]])
        recorder.invoke("write", 7, topic="t").ok(7)
    history = load(path)
    assert failures(history) == []
    assert counts(history)["recovered"] == 0
    assert [operation.process for operation in history] == [0, 1, 0, 1, "nemesis", *[0, 0], *[2] * 6]
    written = {file.name: file.read_text().splitlines() for file in write_edn(history, path)}
    assert sorted(written) == ["run.edn", "run.log.edn", "run.queue.edn", "run.t.register.edn"]
    assert written["run.edn"][4].partition(":process")[2] == (
        ' :nemesis, :type :info, :f :kill, :value [:start "n1"]}'
    )
    assert ':f :send, :value [[:send 2 [0 "p/2/0"]]], :client "p"' in written["run.log.edn"][2]
    assert ':value [[:poll {2 [[0 "p/2/0"]]}]], :client "r"' in written["run.log.edn"][-1]
    assert [line.partition(":type")[2] for line in written["run.queue.edn"]] == [
        ' :invoke, :f :enqueue, :value "2/p/2/0"}',
        ' :invoke, :f :enqueue, :value "2/p/2/1"}',
        ' :ok, :f :enqueue, :value "2/p/2/0"}',
        ' :info, :f :enqueue, :value "2/p/2/1"}',
        " :invoke, :f :dequeue, :value nil}",
        ' :ok, :f :dequeue, :value "2/p/2/0"}',
    ]
    assert len(written["run.t.register.edn"]) == 2


def test_texts_are_escaped_in_edn() -> None:
    assert edn.text(['a"b\\', None, True, {"k": [1.5]}]) == '["a\\"b\\\\" nil true {"k" [1.5]}]'
