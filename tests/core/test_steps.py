"""The table of a record's life: each step once, by a real entry, and
nothing else changes a state.
"""

import ast
from pathlib import Path

import pytest

from core.harness import FakeWorker, client, single
from gossipq.core.ledger import life
from gossipq.core.ledger.life import (
    ACKED,
    BURY,
    CHANGES,
    DEAD,
    DROP,
    DROPPED,
    HAND_OUT,
    OPEN,
    PARKED,
    PURGE,
    REMOVED,
    REPLAY,
    REQUEUE,
    RETRYING,
    TRIM,
    UNMATCHED,
    VOID,
    VOIDED,
)
from gossipq.core.ledger.records import ExceptionRow
from gossipq.core.storage import log, payloads
from gossipq.values import TopicOptions
from gossipq.wire import batch as batches

HOME = Path(__file__).parents[2]
ADA = client("ada")
BODY = bytes(batches.seal([b"one"]))
WAITING = (RETRYING, PARKED, UNMATCHED)
UNPARK = life.PARK + " unmatched"

#: the expected steps, written a second time, so that a deleted or changed row of the
#: table fails here by name
EXPECTED = {
    **{(state, life.ACK): ACKED for state in (OPEN, *WAITING)},
    **{(state, life.FAIL): RETRYING for state in (OPEN, *WAITING)},
    **{(state, BURY): DEAD for state in (OPEN, *WAITING)},
    **{(state, DROP): DROPPED for state in (OPEN, *WAITING)},
    **{(state, VOID): VOIDED for state in (OPEN, *WAITING, DEAD)},
    **{(state, TRIM): REMOVED for state in (OPEN, *WAITING)},
    **{(state, HAND_OUT): RETRYING for state in WAITING},
    **{(state, REQUEUE): RETRYING for state in (*WAITING, DEAD, ACKED)},
    (OPEN, HAND_OUT): OPEN,
    (OPEN, life.PARK): PARKED,
    (OPEN, UNPARK): UNMATCHED,
    (DEAD, REPLAY): RETRYING,
    (DEAD, PURGE): VOIDED,
}


class Group:
    """A group with one record that entries bring from state to state."""

    def __init__(self) -> None:
        self.worker = FakeWorker()
        self.partition = single(self.worker.topic("orders", TopicOptions()))
        self.worker.publish(self.partition, [b"one"])
        self.worker.subscribe(ADA, self.partition, records=0)
        (self.id,) = self.worker.shards[1].ledger.groups

    @property
    def cursor(self):
        return self.worker.shards[1].ledger.cursors[self.partition][self.id]

    def state(self) -> str:
        """The state according to the group's counters, which must name exactly one."""
        state = self.cursor.state
        assert self.cursor.unaccounted() == 0
        counted = {name: getattr(state, name) for name in (*life.COUNTERS, "unmatched")}
        found = [
            name
            for name, each in life.STATES.items()
            if counted == dict.fromkeys(counted, 0) | dict.fromkeys(each.counters, 1)
        ]
        assert len(found) == 1, counted
        return found[0]

    def meet(self, event: str) -> None:
        at, end = self.partition, 1
        letters = payloads.Letters(self.id, at, [(0, end)])
        due_ms = self.worker.shards[1].desk.leader_ms + 60_000
        dead = payloads.Dead(self.id, at, 0, end, "failures", "", "ada", 1, True)
        park = lambda lane: payloads.Park(self.id, [payloads.ParkRow(at, 0, end, 0, lane)])  # noqa: E731
        made = {
            HAND_OUT: (
                log.LEASE,
                payloads.LeaseRows(self.id, [payloads.LeaseRow(at, 0, end, b"s", due_ms, 1)]),
            ),
            life.ACK: (log.ACK, payloads.AckRanges(self.id, "ada", [(at, 0, end)])),
            life.FAIL: (
                log.FAIL,
                payloads.Fail(self.id, [payloads.FailRow(at, 0, end, 1, True, due_ms, "", "")]),
            ),
            life.PARK: (log.PARK, park(b"k" + bytes(3) + b"7")),
            UNPARK: (log.PARK, park(b"reu")),
            BURY: (log.DEAD, dead),
            DROP: (log.DEAD, dead),
            REPLAY: (log.REPLAY, letters),
            PURGE: (log.PURGE, letters),
            REQUEUE: (log.REQUEUE, payloads.Letters(self.id, at, [(0, end)], [(0, end)])),
            VOID: (log.VOID, payloads.Void(at, 0, 0, 0, "", "ops")),
            TRIM: (log.TRIM, payloads.Trim(at, end)),
        }
        kind, payload = made[event]
        body = BODY if event == BURY else b""
        self.worker.turn(
            lambda: self.worker.shards[1].desk.propose(kind, payloads.encode(payload), body=body)
        )


WAY = {
    OPEN: [],
    RETRYING: [life.FAIL],
    PARKED: [life.PARK],
    UNMATCHED: [UNPARK],
    DEAD: [BURY],
    ACKED: [life.ACK],
}


@pytest.mark.parametrize(("state", "event"), EXPECTED, ids=lambda each: each.replace(" ", "-"))
def test_the_step(state: str, event: str) -> None:
    group = Group()
    for each in WAY[state]:
        group.meet(each)
    assert group.state() == state
    group.meet(event)
    assert group.state() == EXPECTED[state, event] == CHANGES[state, event].to


def test_no_step_is_unknown_here() -> None:
    assert EXPECTED.keys() == CHANGES.keys()


@pytest.mark.parametrize(("state", "event"), CHANGES, ids=lambda each: each.replace(" ", "-"))
def test_without_its_row_a_step_is_an_error_that_stops_the_shard(
    monkeypatch: pytest.MonkeyPatch, state: str, event: str
) -> None:
    group = Group()
    for each in WAY[state]:
        group.meet(each)
    left = {name: step for name, step in CHANGES.items() if name != (state, event)}
    monkeypatch.setattr(life, "CHANGES", left)
    with pytest.raises(life.NoSuchChange, match=f"a record that is {state} meets the event {event}"):
        group.meet(event)


def test_the_table_stands_in_the_documents() -> None:
    text = (HOME / "ARCHITECTURE.md").read_text("utf-8")
    assert "\n".join(life.table()) in text


def test_the_protocol_tells_the_same_steps() -> None:
    """Clients do not have the table. PROTOCOL.md tells them its steps, and steps that
    only a group's leader knows.
    """
    text = (HOME / "PROTOCOL.md").read_text("utf-8")
    head = "    from                       to          by\n"
    rows = text[text.index(head) + len(head) :].split("\n\n", 1)[0].splitlines()
    told = {
        (state.strip(), row[31:43].strip())
        for row in rows
        if row[4:5].strip()
        for state in row[4:31].split(",")
    }
    shown = {OPEN: ("ready", "in flight"), RETRYING: ("retrying", "ready", "in flight"), UNMATCHED: (PARKED,)}
    listed = {
        (before, after)
        for (state, _), step in CHANGES.items()
        for before in (*shown.get(state, (state,)), *(["any"] if step.to == REMOVED else []))
        for after in shown.get(step.to, (step.to,))
    }
    by_time = {("parked", "ready")}  #: the record's lane is free; this needs no entry
    assert told - listed - by_time == set()
    ends = {(before, after) for before, after in listed if after in (ACKED, DEAD, DROPPED, VOIDED)}
    missing = {pair for pair in ends - told if (pair[0], pair[1]) not in {("in flight", "voided")}}
    assert {after for _, after in missing} <= {ACKED, DROPPED, DEAD, VOIDED}


def test_nothing_else_writes_the_counters_of_a_group() -> None:
    names = {*life.COUNTERS, "unmatched"}
    for path in sorted((HOME / "gossipq/core").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Attribute) and target.attr in names:
                    assert not ast.unparse(target.value).endswith(("cursor.state", "self.state")), (
                        f"{path.name}:{target.lineno} writes {ast.unparse(target)}"
                    )


def test_a_row_says_its_state() -> None:
    row = ExceptionRow(1, 0, 0, 0, 0, 0)
    assert life.waiting(row) == RETRYING
    assert life.waiting(ExceptionRow(1, 0, 0, 0, 0, 0, lane=b"reu")) == UNMATCHED
    assert life.waiting(ExceptionRow(1, 0, 0, 0, 0, 0, lane=b"k\0\0\0\7")) == PARKED
