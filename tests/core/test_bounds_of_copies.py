"""A copy checks the bounds of another copy's message before it keeps anything of it."""

import pytest
from msgspec.structs import replace

from core.fleet import Fleet
from gossipq import limits
from gossipq.core.ledger import records
from gossipq.errors import CorruptLog
from gossipq.peer_messages import Append, Snapshot, VoteRequest
from gossipq.values import Message

FAR = limits.TERM_LEAP_MAX + 1_000


def trio() -> tuple[Fleet, str]:
    """Returns three copies with committed records, and the name of a follower."""
    fleet = Fleet(1, voters="abc")
    fleet.run(2_000)
    return fleet, next(name for name, shard in fleet.shards.items() if not shard.leading)


def snapshot(leader: str, index: int, term: int, voters: str) -> Snapshot:
    return Snapshot(leader, index, term, bytes(8), 1, list(voters), [], [], 0, "state")


def say(fleet: Fleet, name: str, term: int, message: Message) -> None:
    """Sends a message to a copy and runs the turn that reads it."""
    fleet.seats[name].step((), 0, None, message, term, [], b"\x90")
    fleet.turn(name)


@pytest.mark.parametrize(
    "message",
    [
        VoteRequest("x", FAR, 1, 1, transfer=True),
        VoteRequest("x", limits.NUMBER_MAX, 2**40, 2**40, transfer=True),
        VoteRequest("x", FAR, 2**40, 2**40, pre=True, transfer=True),
        Append("x", 0, 0, 0, []),
        snapshot("x", 10_000, 2, "x"),
    ],
)
def test_a_term_that_no_election_can_have_reached_is_not_taken_over(message: Message) -> None:
    fleet, name = trio()
    before = fleet.shards[name].replica.hard
    say(fleet, name, FAR, message)
    assert fleet.shards[name].replica.hard == before
    say(fleet, name, FAR, message)
    # the copy warns at most once a minute
    (warning,) = [text for effects in fleet.seen[name] for text in effects.warnings]
    assert "too far" in warning


def test_a_copy_without_a_term_takes_that_of_its_cluster() -> None:
    fleet = Fleet(1, voters="abc")
    fresh = fleet.open("d")
    assert fresh.term == 0
    say(fleet, "d", FAR, VoteRequest("a", FAR, 1, 1, transfer=True))
    assert fresh.term == FAR


def test_a_term_has_one_leader() -> None:
    fleet, name = trio()
    shard, leader, term = fleet.shards[name], fleet.leader.replica.me, fleet.leader.term
    say(fleet, name, term, Append("x", 0, 0, 0, []))
    say(fleet, name, term, snapshot("x", 10_000, term, "x"))
    assert shard.replica.leader == leader
    assert not shard.replica.hollow


@pytest.mark.parametrize(
    ("part", "term"),
    [
        # the sender is a witness and keeps no state
        (replace(snapshot("x", 10_000, 1, "abcx"), witnesses=["x"]), 5),
        (snapshot("x", 10_000, 6, "x"), 5),  # the term lies in the future
        (snapshot("x", 10_000, 0, "x"), 5),
    ],
)
def test_a_snapshot_that_no_leader_can_have_made_changes_nothing(part: Snapshot, term: int) -> None:
    fleet, name = trio()
    applied = fleet.shards[name].ledger.applied
    say(fleet, name, term, part)
    assert not fleet.shards[name].replica.hollow
    assert fleet.tables[name].state.get(records.INSTALLING) is None
    assert fleet.shards[name].ledger.applied == applied


def test_a_copy_stops_at_a_snapshot_that_contradicts_what_is_committed() -> None:
    fleet, name = trio()
    replica = fleet.shards[name].replica
    assert replica.commit > 0
    with pytest.raises(CorruptLog, match="contradicts entry"):
        say(fleet, name, replica.hard.term + 1, snapshot("x", replica.commit, 1, "x"))
    assert fleet.tables[name].state.get(records.INSTALLING) is None
