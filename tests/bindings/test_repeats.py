"""A client hides records that it has acked. A leader that took over, or whose lease
ended, delivers a record once more if it has not seen the ack yet. If the ack is not
stored, the client shows the record.
"""

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from bindings.fake import (
    ACK,
    ACKED,
    NACK,
    PARTITION,
    REFUSED,
    SHARD,
    STARTED,
    SUBSCRIBE,
    FakeNode,
    Said,
)
from bindings.languages import CLIENTS, JAVA, JAVA_DRIVER, JEROMQ, java_misses
from bindings.test_c import LEAKS
from bindings.test_faults import needs_c, needs_go, run_c, run_go

RECORDS = [b""] * 3
stored_or_lost = pytest.mark.parametrize("lost", [False, True], ids=["stored", "lost"])


class Forgetful:
    """The leader of three records. It refuses the first ack, since it leads no more, and
    delivers all records again as the next leader. Then it accepts the ack, or reports that
    others have the records in `lost`. `verb` is the message that it refuses. `until_begun`: it
    leads until the client has begun the record of that offset, so that no record that waits in
    the client is lost with the session.
    """

    def __init__(
        self, lost: list[list[int]], plain: bool = False, verb: int = ACK, until_begun: int | None = None
    ) -> None:
        self._lost, self._plain, self._verb, self._until_begun = lost, plain, verb, until_begun
        self._leads, self._has_begun = True, until_begun is None
        self._unanswered = list[int]()

    def __call__(self, node: FakeNode, said: Said) -> Any:
        verb, _, request, fields, _ = said
        if verb == SUBSCRIBE:
            return node.subscribed(said, *RECORDS, plain=self._plain)
        if verb == self._verb and not self._leads:
            return ACKED, [self._lost]
        if verb == self._verb:
            self._unanswered.append(request)
        elif verb == STARTED and self._until_begun is not None:
            self._has_begun |= any(first <= self._until_begun < end for _, first, end in fields[1])
        else:
            return NotImplemented
        if self._has_begun and self._unanswered:
            self._leads = False
            for each in self._unanswered:
                node.say(SHARD, each, REFUSED, ["no_session", "over"])
        return None


class Hasty:
    """The leader of one record, who gives it out again while its first ack is on the way to the disks;
    `late`: after that is answered. `verb`: or its first failure."""

    def __init__(self, lost: list[list[int]], late: bool = False, verb: int = ACK) -> None:
        self._lost, self._late, self._verb, self._asked = lost, late, verb, 0

    def __call__(self, node: FakeNode, said: Said) -> Any:
        verb, _, request, fields, _ = said
        if verb == SUBSCRIBE:
            return node.subscribed(said, b"")
        self._asked += verb == self._verb
        if verb != self._verb or self._asked > 1:
            return NotImplemented
        if not self._late:
            node.deliver(fields[0], b"", attempt=2)
            time.sleep(0.3)  # the client asks for its next record meanwhile
        node.say(SHARD, request, ACKED, [self._lost])
        if self._late:
            node.deliver(fields[0], b"", attempt=2)
        return None


@needs_c
@stored_or_lost
@pytest.mark.parametrize("way", ["flush", "next"])
def test_c_a_leader_that_took_over(way: str, lost: bool) -> None:
    again = ["1", "2"] if lost else ["2"]
    with FakeNode(Forgetful([[PARTITION, 1, 2]] if lost else [], until_begun=2)) as node:
        shown = run_c(node.endpoint, f"again-{way}", SHOWN_AGAIN=" ".join(again)).split()
    assert shown[:3] == ["0", "1", "2"]
    assert sorted(shown[3:]) == again


@needs_c
@stored_or_lost
@pytest.mark.parametrize("way", ["flush", "next"])
def test_c_a_record_that_comes_before_the_answer_to_its_ack(way: str, lost: bool) -> None:
    with FakeNode(Hasty([[PARTITION, 0, 1]] if lost else [])) as node:
        shown = run_c(node.endpoint, f"again-{way}", SHOWN_AGAIN="0" * lost)
    assert shown.split() == ["0"] * (1 + lost)


@needs_c
def test_c_a_record_that_comes_after_the_answer_to_its_ack() -> None:
    """Somebody has set the group back."""
    with FakeNode(Hasty([], late=True)) as node:
        assert run_c(node.endpoint, "again-next", SHOWN_AGAIN="0").split() == ["0", "0"]


@needs_c
@stored_or_lost
def test_c_what_failed_is_not_shown_before_its_pause(lost: bool) -> None:
    with FakeNode(Forgetful([[PARTITION, 0, 1]] if lost else [], verb=NACK)) as node:
        shown = run_c(node.endpoint, "failed", SHOWN_AGAIN="0 1 2" if lost else "1 2").split()
    assert shown == ["0", *["0"] * lost, "1", "2"]


@needs_c
@pytest.mark.parametrize("late", [False, True])
def test_c_what_failed_and_comes_again_behind_the_answer_is_shown(late: bool) -> None:
    """Without a pause it may be in the same read."""
    with FakeNode(Hasty([], late, verb=NACK)) as node:
        assert run_c(node.endpoint, "failed", SHOWN_AGAIN="0" * late).split() == ["0"] * (1 + late)


@needs_c
@pytest.mark.slow
@pytest.mark.parametrize("way", ["flush", "next"])
def test_c_without_a_leak(way: str) -> None:
    with FakeNode(Forgetful([[PARTITION, 1, 2]], until_begun=2)) as node:
        run_c(node.endpoint, "valgrind", "-q", *LEAKS, f"again-{way}", SHOWN_AGAIN="1 2")


@needs_go
@pytest.mark.slow
@stored_or_lost
def test_go_a_leader_that_took_over(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOWN_AGAIN", "1 2" if lost else "2")
    with FakeNode(Forgetful([[PARTITION, 1, 2]] if lost else [], until_begun=2)) as node:
        run_go(node.endpoint, "TestAgain")


@needs_go
@pytest.mark.slow
@stored_or_lost
def test_go_what_failed_is_not_shown_before_its_pause(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOWN_AGAIN", "0 1 2" if lost else "1 2")
    with FakeNode(Forgetful([[PARTITION, 0, 1]] if lost else [], verb=NACK)) as node:
        run_go(node.endpoint, "TestFailed")


MINIMAL = """
import sys
sys.path.insert(0, sys.argv[1])
from minimal import Client
mq = Client(sys.argv[3], wait_s=10)
mq.subscribe("t", "g")
print(mq.next(10)[1], mq.ack() if sys.argv[2] == "again" else mq.nack("x"))
while (record := mq.next(0.5)) is not None:
    print(record[1])
"""
CLASSES = f"{JAVA_DRIVER.parent}:{JAVA / 'build' / 'gossipq.jar'}:{JEROMQ}"
SMALL = [
    pytest.param([sys.executable, "-c", MINIMAL, str(CLIENTS)], id="minimal"),
    pytest.param(
        ["java", "-Xmx256m", "-cp", CLASSES, "Faults"],
        id="java",
        marks=[pytest.mark.skipif(bool(java_misses()), reason=java_misses()), pytest.mark.slow],
    ),
]


@stored_or_lost
@pytest.mark.parametrize(("way", "verb"), [("again", ACK), ("failed", NACK)])
@pytest.mark.parametrize("line", SMALL)
def test_small_a_leader_that_took_over(line: list[str], way: str, verb: int, lost: bool) -> None:
    """Failed records are not shown again before their pause, either."""
    with FakeNode(Forgetful([[PARTITION, 0, 1]] if lost else [], plain=True, verb=verb)) as node:
        done = subprocess.run(
            [*line, way, node.endpoint], env=os.environ.copy(), capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr[-4000:]
    again = ["0"] if lost else []
    assert done.stdout.lower().split() == ["0", str(not lost).lower(), *again, "1", "2"]
