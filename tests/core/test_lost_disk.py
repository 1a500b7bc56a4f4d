"""A copy whose disk is older than the copy reported. Causes: a machine restored from an earlier
image, a directory copied without adopting it, a disk that did not sync.
"""

import pytest

from core.fleet import Fleet

FOUND = 10  #: entries that the older disk has


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(1, "abc")


def put_back(fleet: Fleet, records: int) -> tuple[str, str]:
    """Ends a follower and starts it with its disk as it was `records` entries ago. Returns its name
    and the other follower's.
    """
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
    """Before the loss was noticed, the leader counted the copy as complete; with the other follower
    away, no publish was confirmed any more.
    """
    _, other = put_back(fleet, 20)
    fleet.run(3_000)
    fleet.away.add(other)
    confirmed = fleet.confirmed()
    (partition,) = fleet.leader.ledger.partitions
    fleet.publish(partition, b"more")
    fleet.run(2_000)
    assert fleet.confirmed() == confirmed + 1


def test_answers_that_come_late_or_twice_prove_nothing(fleet: Fleet) -> None:
    """A request sent before the copy had an entry may be rejected after the copy
    said that it has the entry.
    """
    partition = fleet.topic()
    leader, name = fleet.leader, next(name for name in "abc" if name != fleet.led.name)
    progress = leader.replica.progress[name]
    fleet.publish(partition, b"x")
    fleet.run(500)
    assert not progress.has_lost(progress.match, progress.matched_ms)
    assert not progress.has_lost(progress.match + 1, progress.matched_ms + 1)
    assert progress.has_lost(progress.match, progress.matched_ms + 1)
