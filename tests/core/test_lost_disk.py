"""A copy whose disk is older than what it said was on it: a machine that was put back to an earlier image, a
copy of a directory that nobody adopted, a disk that did not sync."""

import pytest

from core.fleet import Fleet

FOUND = 10  #: entries that the older disk has


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(1, "abc")


def put_back(fleet: Fleet, records: int) -> tuple[str, str]:
    """A follower ends, and starts with its disk as it was so many entries ago; it and the other one."""
    partition = fleet.topic()
    for _ in range(FOUND):
        fleet.publish(partition, b"x")
        fleet.run(50)
    old, other = (name for name in "abc" if name != fleet.led.name)
    image = fleet.tables[old].copy()
    for _ in range(records):
        fleet.publish(partition, b"x")
    fleet.run(1_000)
    assert fleet.leader.replica.progress[old].match == fleet.leader.last
    fleet.tables[old] = image
    fleet.open(old)
    return old, other


@pytest.mark.parametrize("records", [1, 20, 3_000], ids=["one", "some", "more than the log keeps"])
def test_it_gets_what_it_has_lost(fleet: Fleet, records: int) -> None:
    leader = fleet.leader
    old, _ = put_back(fleet, records)
    fleet.run(3_000)
    assert fleet.leader is leader, "nobody stood for that"
    assert fleet.shards[old].last == leader.last
    assert fleet.shards[old].applied == leader.applied
    assert leader.replica.progress[old].synced
    (warning,) = [text for effects in fleet.seen[fleet.led.name] for text in effects.warnings]
    assert warning.startswith(f"{old} has lost entries up to ")


def test_it_counts_as_a_copy_again(fleet: Fleet) -> None:
    """Until it was found out, its leader took it for whole, and with the other one away nothing was confirmed
    any more."""
    _, other = put_back(fleet, 20)
    fleet.run(3_000)
    fleet.away.add(other)
    confirmed = fleet.confirmed()
    (partition,) = fleet.leader.ledger.partitions
    fleet.publish(partition, b"more")
    fleet.run(2_000)
    assert fleet.confirmed() == confirmed + 1


def test_answers_that_come_late_or_twice_prove_nothing(fleet: Fleet) -> None:
    """What was asked before the copy had it may be rejected after it has said that it has."""
    partition = fleet.topic()
    leader, name = fleet.leader, next(name for name in "abc" if name != fleet.led.name)
    progress = leader.replica.progress[name]
    fleet.publish(partition, b"x")
    fleet.run(500)
    assert not progress.has_lost(progress.match, progress.matched_ms)
    assert not progress.has_lost(progress.match + 1, progress.matched_ms + 1)
    assert progress.has_lost(progress.match, progress.matched_ms + 1)
