"""What a client has acked itself it does not show again: a leader that has taken over, or whose lease ran
out, gives a record out once more before it hears the ack, for which the client has no answer yet. A record
whose ack is not stored is shown."""

import os
import subprocess
import sys
import time
from typing import Any

import pytest
from msgspec import msgpack

from bindings.fake import (
    ACK,
    ACKED,
    DELIVER,
    DELIVER_PLAIN,
    PARTITION,
    REFUSED,
    SHARD,
    SUBSCRIBE,
    SUBSCRIBED,
    FakeNode,
    Said,
)
from bindings.languages import CLIENTS, JAVA, JAVA_DRIVER, JEROMQ, java_misses
from bindings.test_c import LEAKS
from bindings.test_faults import batch, needs_c, needs_go, run_c, run_go

RECORDS = 3
stored_or_lost = pytest.mark.parametrize("lost", [False, True], ids=["stored", "lost"])


class Forgetful:
    """The leader of three records. It refuses the first ack, since it leads no more, and gives all out again
    as the next one; then it takes the ack, or says that others have what `lost` names."""

    def __init__(self, lost: list[list[int]], plain: bool = False) -> None:
        self._lost, self._plain, self._acks = lost, plain, 0

    def __call__(self, node: FakeNode, said: Said) -> Any:
        verb, _, request, fields, _ = said
        if verb == SUBSCRIBE:
            node.say(SHARD, request, SUBSCRIBED, [fields[0], 30000, []])
            deliver(node, fields[0], RECORDS, self._plain)
            return None
        if verb == ACK:
            self._acks += 1
            return (REFUSED, ["no_session", "over"]) if self._acks == 1 else (ACKED, [self._lost])
        return NotImplemented


class Hasty:
    """The leader of one record, who gives it out again while its first ack is on the way to the disks;
    `late`: after that is answered."""

    def __init__(self, lost: list[list[int]], late: bool = False) -> None:
        self._lost, self._late, self._acks = lost, late, 0

    def __call__(self, node: FakeNode, said: Said) -> Any:
        verb, _, request, fields, _ = said
        if verb == SUBSCRIBE:
            node.say(SHARD, request, SUBSCRIBED, [fields[0], 30000, []])
            deliver(node, fields[0], 1)
            return None
        self._acks += verb == ACK
        if verb != ACK or self._acks > 1:
            return NotImplemented
        if not self._late:
            deliver(node, fields[0], 1, attempt=2)
            time.sleep(0.3)  # the client asks for its next record meanwhile
        node.say(SHARD, request, ACKED, [self._lost])
        if self._late:
            deliver(node, fields[0], 1, attempt=2)
        return None


def deliver(node: FakeNode, number: int, count: int, plain: bool = False, attempt: int = 1) -> None:
    if plain:
        rows = [[PARTITION, offset, attempt, b"v", b"", {}, b"", "", 0] for offset in range(count)]
        node.say(SHARD, 0, DELIVER_PLAIN, [number, 30000], msgpack.encode(rows))
        return
    body = batch(*[b""] * count)
    node.say(SHARD, 0, DELIVER, [number, [[PARTITION, 0, count, attempt, len(body), len(body)]], 30000], body)


@needs_c
@stored_or_lost
@pytest.mark.parametrize("way", ["flush", "next"])
def test_c_a_leader_that_took_over(way: str, lost: bool) -> None:
    with FakeNode(Forgetful([[PARTITION, 1, 2]] if lost else [])) as node:
        shown = run_c(node.endpoint, f"again-{way}").split()
    assert shown[:3] == ["0", "1", "2"]
    assert sorted(shown[3:]) == (["1", "2"] if lost else ["2"])


@needs_c
@stored_or_lost
@pytest.mark.parametrize("way", ["flush", "next"])
def test_c_a_record_that_comes_before_the_answer_to_its_ack(way: str, lost: bool) -> None:
    with FakeNode(Hasty([[PARTITION, 0, 1]] if lost else [])) as node:
        assert run_c(node.endpoint, f"again-{way}").split() == ["0"] * (1 + lost)


@needs_c
def test_c_a_record_that_comes_after_the_answer_to_its_ack() -> None:
    """Somebody has set the group back."""
    with FakeNode(Hasty([], late=True)) as node:
        assert run_c(node.endpoint, "again-next").split() == ["0", "0"]


@needs_c
@pytest.mark.slow
@pytest.mark.parametrize("way", ["flush", "next"])
def test_c_without_a_leak(way: str) -> None:
    with FakeNode(Forgetful([[PARTITION, 1, 2]])) as node:
        run_c(node.endpoint, "valgrind", "-q", *LEAKS, f"again-{way}")


@needs_go
@pytest.mark.slow
@stored_or_lost
def test_go_a_leader_that_took_over(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOWN_AGAIN", "1 2" if lost else "2")
    with FakeNode(Forgetful([[PARTITION, 1, 2]] if lost else [])) as node:
        run_go(node.endpoint, "TestAgain")


MINIMAL = """
import sys
sys.path.insert(0, sys.argv[1])
from minimal import Client
mq = Client(sys.argv[2], wait_s=10)
mq.subscribe("t", "g")
print(mq.next(10)[1], mq.ack())
while (record := mq.next(0.5)) is not None:
    print(record[1])
"""
CLASSES = f"{JAVA_DRIVER.parent}:{JAVA / 'build' / 'gossipq.jar'}:{JEROMQ}"
SMALL = [
    pytest.param([sys.executable, "-c", MINIMAL, str(CLIENTS)], id="minimal"),
    pytest.param(
        ["java", "-Xmx256m", "-cp", CLASSES, "Faults", "again"],
        id="java",
        marks=[pytest.mark.skipif(bool(java_misses()), reason=java_misses()), pytest.mark.slow],
    ),
]


@stored_or_lost
@pytest.mark.parametrize("line", SMALL)
def test_small_a_leader_that_took_over(line: list[str], lost: bool) -> None:
    with FakeNode(Forgetful([[PARTITION, 0, 1]] if lost else [], plain=True)) as node:
        done = subprocess.run(
            [*line, node.endpoint], env=os.environ.copy(), capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr[-4000:]
    again = ["0"] if lost else []
    assert done.stdout.lower().split() == ["0", str(not lost).lower(), *again, "1", "2"]
