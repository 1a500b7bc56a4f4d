"""A copy that is none any more lets go of its rows: when a leader says so, in pieces, and with what it owes
as a voter kept."""

import pytest

from core.fleet import Fleet
from core.test_moving import PARTITION, grown, roster
from gossipq import limits
from gossipq.core.ledger import records
from gossipq.core.raft.replica import HardState
from gossipq.core.storage.tables import MemoryTables
from gossipq.peer_messages import Append, Dismiss, Stray, Vote, VoteRequest
from gossipq.types import Now

LONG_MS = limits.STRAY_MS + 5_000


def rows(tables: MemoryTables) -> tuple[int, int]:
    """State rows that are not the copy's own, and batches."""
    return sum(key not in records.OWN_ROWS for key in tables.state.rows), len(tables.body.rows)


def moved(count: int = 20) -> Fleet:
    """`c` had a copy with records, and `d` has it now."""
    fleet = grown("a", "b", "c", spare="d")
    for number in range(count):
        fleet.publish(PARTITION, b"%d" % number)
        fleet.run(50)
    fleet.aim(*roster("a", "b", "d"))
    fleet.run(15_000)
    assert "c" not in (*fleet.config[0], *fleet.config[2])
    return fleet


def test_a_copy_that_was_taken_out_lets_go_of_its_rows_and_keeps_its_word() -> None:
    fleet = moved()
    tables, replica = fleet.tables["c"], fleet.shards["c"].replica
    assert min(rows(tables)) > 0, "not at once"
    hard, last, log_rows = replica.hard, replica.log.last, len(tables.log.rows)
    fleet.run(LONG_MS)
    assert rows(tables) == (0, 0)
    assert (replica.log.last, len(tables.log.rows)) == (last, log_rows)
    assert replica.hard.term >= hard.term
    assert replica.hollow
    assert not fleet.shards["c"].pending
    assert fleet.shards["c"].peers.stray(fleet.now.boot_ms + 10 * LONG_MS) is None, (
        "there is nothing more to ask for"
    )


def test_it_still_votes_by_its_log() -> None:
    fleet = moved()
    fleet.run(LONG_MS)
    copy = fleet.open("c")
    last, term = copy.replica.log.last, copy.replica.log.term
    fleet.run(limits.ELECTION_MS + 100)
    fleet.away = set("abcd")
    for candidate, index in (("b", last - 1), ("d", last)):
        fleet.seats["c"].step(
            (), 0, None, VoteRequest(candidate, copy.term + 1, term, index, pre=True), copy.term
        )
    fleet.turn("c")
    votes = [mail.message for mail in fleet.seen["c"][-1].answers if isinstance(mail.message, Vote)]
    assert [vote.granted for vote in votes] == [False, True]


def test_a_copy_that_comes_back_is_whole_by_a_snapshot() -> None:
    fleet = moved()
    fleet.run(LONG_MS)
    fleet.aim(*roster("a", "b", "c"))
    fleet.run(2_000)
    fleet.publish(PARTITION, b"new")
    fleet.run(15_000)
    assert "c" in fleet.config[0]
    assert fleet.shards["c"].ledger.partitions[PARTITION].next == 21
    whole = {key: row for key, row in fleet.tables["a"].state.rows.items() if key not in records.OWN_ROWS}
    assert {
        key: row for key, row in fleet.tables["c"].state.rows.items() if key not in records.OWN_ROWS
    } == whole
    assert fleet.tables["c"].body.rows == fleet.tables["a"].body.rows


@pytest.mark.parametrize("again", [True, False])
def test_half_emptied_and_killed_it_is_not_taken_for_whole(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STRAY_ROWS", 3)
    fleet = moved()
    fleet.run(limits.STRAY_MS - 16_000)
    before = rows(fleet.tables["c"])
    while not fleet.shards["c"].replica.hollow or rows(fleet.tables["c"]) == before:
        fleet.run(50)
    assert 0 < sum(rows(fleet.tables["c"])) < sum(before)
    fleet.tables["c"] = fleet.tables["c"].copy()
    copy = fleet.open("c")
    assert copy.replica.hollow
    assert not copy.ledger.partitions
    if again:
        fleet.aim(*roster("a", "b", "c"))
        fleet.run(15_000)
        assert fleet.shards["c"].ledger.partitions[PARTITION].next == 20
    else:
        copy.target = fleet.leader.target
        fleet.run(LONG_MS)
        assert rows(fleet.tables["c"]) == (0, 0)


def answered(fleet: Fleet, copy: str) -> bool:
    led = fleet.led
    led.tell(Stray(copy, fleet.now.boot_ms))
    fleet.turn(led.name)
    return any(isinstance(mail.message, Dismiss) for mail in led.seen[-1].answers)


def test_only_a_leader_that_knows_lets_a_copy_go() -> None:
    fleet = moved()
    assert answered(fleet, "c")
    assert not answered(fleet, "d")
    assert not answered(fleet, fleet.leader.replica.me)
    config = fleet.leader.replica.config
    fleet.leader.replica.configure(fleet.leader.last + 1, config)
    assert not answered(fleet, "c"), "a change is under way"
    fleet = moved()
    fleet.away = {name for name in "abd" if name != fleet.leader.replica.me}
    led = fleet.led
    led.inbox.clear()
    fleet.now = Now(fleet.now.boot_ms + limits.LEADER_LEASE_MS, fleet.now.wall_ms)
    assert not answered(fleet, "c"), "somebody else may have been elected"
    fleet = moved()
    leader = fleet.leader
    leader.replica.hard = HardState(leader.term + 1, leader.replica.me)
    assert not answered(fleet, "c"), "what is committed it knows when its own entry is"


def test_a_leader_of_one_answers_too() -> None:
    fleet = grown("a", "b")
    fleet.aim(*roster("a"))
    fleet.run(30_000)
    assert fleet.config == (["a"], [], [])
    fleet.run(LONG_MS)
    assert rows(fleet.tables["b"]) == (0, 0)


def test_who_has_heard_a_leader_since_it_asked_stays() -> None:
    fleet = moved()
    fleet.away = set("c")
    fleet.run(LONG_MS)
    copy, leader, seat = fleet.shards["c"], fleet.leader, fleet.seats["c"]
    question = copy.peers.stray(fleet.now.boot_ms)
    assert question is not None
    dismiss = Dismiss(leader.replica.me, question.sent_ms)
    seat.step((), 0, None, Dismiss(leader.replica.me, question.sent_ms - 1), leader.term)
    seat.step((), 0, None, dismiss, copy.term - 1)
    fleet.turn("c")
    assert not copy.replica.hollow, "an answer to another question, or of a leader that was"
    seat.step((), 0, None, Append(leader.replica.me, 10**6, leader.term, 0, [], 0), leader.term)
    seat.step((), 0, None, dismiss, leader.term)
    fleet.turn("c")
    assert not copy.replica.hollow
