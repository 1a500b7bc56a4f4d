"""A leader hands over only to a copy that can store, and a hand-over that fails stops
service only for a moment.
"""

import pytest

from core.fleet import STEP_MS, Fleet
from core.test_moving import PARTITION, grown
from gossipq import limits


def fallen() -> tuple[Fleet, str]:
    """A fleet in which the preferred leader was away and is back; another copy leads."""
    fleet = grown("a", "b", "c")
    first = fleet.leader.replica.me
    fleet.away = {first}
    fleet.run(4_000)
    fleet.away = set()
    fleet.run(2_000)
    assert fleet.leader.replica.me != first
    assert fleet.leader.replica.progress[first].synced
    return fleet, first


def pauses(fleet: Fleet, ms: int, publish: bool) -> int:
    """The longest time without a serving leader, in ms."""
    longest = pause = 0
    for number in range(ms // STEP_MS):
        if publish and fleet.serving:
            fleet.publish(PARTITION, b"%d" % number)
        fleet.run(STEP_MS)
        pause = 0 if fleet.serving else pause + STEP_MS
        longest = max(longest, pause)
    return longest


def test_a_copy_that_answers_and_does_not_store_is_not_synced() -> None:
    fleet, first = fallen()
    fleet.seats[first].fill()
    for number in range(80):
        fleet.publish(PARTITION, b"%d" % number)
        fleet.run(STEP_MS)
    progress = fleet.leader.replica.progress[first]
    assert fleet.now.boot_ms - progress.heard_ms < limits.ELECTION_MS, "it answers"
    assert not progress.synced
    fleet.seats[first].free()
    fleet.run(3_000)
    assert fleet.leader.replica.progress[first].synced


@pytest.mark.parametrize("publish", [True, False], ids=["busy", "idle"])
def test_who_cannot_store_gets_no_leadership_and_costs_nobody_a_moment(publish: bool) -> None:
    fleet, first = fallen()
    fleet.seats[first].fill()
    term, last = fleet.leader.term, fleet.leader.last
    assert pauses(fleet, 60_000, publish) == 0
    assert fleet.leader.term == term
    if not publish:
        noops = fleet.leader.last - last
        assert 1 <= noops <= 8, "it is tried out, and then again after pauses that double"
    fleet.seats[first].free()
    assert pauses(fleet, 120_000, publish) <= 300
    assert fleet.leader.replica.me == first


def test_a_leader_goes_on_at_once_when_the_next_one_does_not_stand() -> None:
    """The next leader stores the trial entry, but its disk is full
    before it can store a new term.
    """
    fleet, first = fallen()
    leader = fleet.leader
    for _ in range(20_000 // STEP_MS):
        fleet.run(STEP_MS)
        if leader.reconfiguration._trial is not None:
            break
    assert leader.reconfiguration._trial is not None
    fleet.turn(first)
    fleet.turn(leader.replica.me)
    fleet.seats[first].fill()
    assert 0 < pauses(fleet, 60_000, publish=False) <= limits.TRANSFER_MS + 300
    assert fleet.leader is leader
    fleet.seats[first].free()
    fleet.run(60_000)
    assert fleet.leader.replica.me == first


def test_who_has_no_space_gets_no_leadership() -> None:
    fleet, first = fallen()
    fleet.shards[first].desk.full = "the disk has 5 bytes free"
    term = fleet.leader.term
    fleet.run(30_000)
    assert fleet.leader.term == term
    fleet.shards[first].desk.full = ""
    fleet.run(limits.HAND_BACK_MS + 3_000)
    assert fleet.leader.replica.me == first


def test_a_leader_that_ends_passes_by_who_has_no_space() -> None:
    fleet = grown("a", "b", "c")
    leader = fleet.leader
    others = [name for name in leader.replica.config.voters if name != leader.replica.me]
    fleet.shards[others[0]].desk.full = "the disk has 5 bytes free"
    fleet.run(1_000)
    leader.leave()
    fleet.run(1_000)
    assert fleet.leader.replica.me == others[1]
