"""Copies move while records arrive: because of targets, drains, a leader that ends,
or one that must not lead.
"""

import pytest

from core.fleet import Fleet, member
from gossipq import limits
from gossipq.core.copies.reconfiguration import FALLS_MS
from gossipq.core.shard import KEEP_NONE
from gossipq.core.storage import log, payloads
from gossipq.messages import RefusedMessage
from gossipq.peer_messages import ChangeVoters
from gossipq.types import partition_key
from gossipq.values import Member, TopicConfig, TopicInfo

PARTITION = partition_key(9, 0)
TOPIC = TopicInfo(9, "orders", 1, TopicConfig(), [1])


def grown(*names: str, witness: str = "", spare: str = "") -> Fleet:
    """A shard with these copies in their final places."""
    fleet = Fleet(shard=1)
    fleet.run(100)
    fleet.leader.desk.propose(log.TOPIC, payloads.encode(payloads.TopicChange(TOPIC)))
    for name in (*names[1:], *spare):
        fleet.open(name)
    if witness:
        fleet.open(witness, witness=True)
    fleet.aim(*roster(*names, witness=witness))
    fleet.run(14_000)
    return fleet


def roster(*names: str, witness: str = "") -> list[Member]:
    rows = [member(name) for name in names]
    return [*rows, member(witness, witness=True)] if witness else rows


def in_place(fleet: Fleet) -> bool:
    target = fleet.leader.target
    assert target is not None
    config = fleet.leader.replica.config
    same = (config.voters, set(config.learners)) == (target.voters, set(target.learners))
    return same and fleet.leader.replica.me == target.voters[0] and fleet.leader.next_deadline() is not None


@pytest.mark.parametrize("names", ["a", "ab", "abc", "abcd"])
def test_a_shard_grows_while_records_come(names: str) -> None:
    fleet = Fleet(shard=1)
    fleet.run(100)
    fleet.leader.desk.propose(log.TOPIC, payloads.encode(payloads.TopicChange(TOPIC)))
    fleet.run(200)
    number = 0
    for count in range(1, len(names) + 1):
        if count > 1:
            fleet.open(names[count - 1])
        fleet.aim(*roster(*names[:count]))
        for _ in range(60):
            if fleet.serving:
                number += 1
                fleet.publish(PARTITION, b"%d" % number)
            fleet.run(250)
        assert in_place(fleet), fleet.config
    fleet.run(1_000)
    assert fleet.confirmed() == number, "nobody who publishes notices"
    kept = [name for name in names if name in (*fleet.config[0], *fleet.config[2])]
    assert {fleet.shards[name].ledger.partitions[PARTITION].next for name in kept} == {number}


def test_nothing_wakes_a_shard_whose_copies_are_in_their_places() -> None:
    fleet = grown("a", "b", "c")
    assert in_place(fleet)
    assert fleet.leader.reconfiguration.next_deadline() is None
    fleet.leader.target = fleet.leader.target
    assert fleet.leader.reconfiguration.next_deadline() is None, "the same target again"
    fleet.away = {name for name in "abc" if name != fleet.leader.replica.me}
    alone = Fleet(shard=1)
    alone.aim(member("a"))
    alone.run(1_000)
    assert alone.leader.reconfiguration.next_deadline() is None


def test_while_a_copy_is_away_the_leader_looks_once_a_second() -> None:
    fleet = grown("a", "b", "c", spare="d")
    fleet.away = {"d"}
    for shard in fleet.shards.values():
        shard.target = fleet.leader.target._replace(
            voters=[fleet.leader.replica.me, *fleet.config[0][1:2], "d"]
        )  # type: ignore[union-attr]
    fleet.run(4_000)
    looks = []
    for _ in range(40):
        fleet.run(50)
        looks.append(fleet.leader.reconfiguration.next_deadline())
    assert len(set(looks)) <= 4
    assert fleet.leader.reconfiguration.adding == 0, "who does not answer takes nobody's place"


def test_a_copy_waits_for_its_turn() -> None:
    fleet = Fleet(shard=1)
    fleet.open("b")
    fleet.leader.reconfiguration.free = False
    fleet.aim(*roster("a", "b"))
    fleet.run(2_000)
    assert fleet.config == (["a"], [], [])
    fleet.leader.reconfiguration.free = True
    fleet.run(3_000)
    assert fleet.config[0] + fleet.config[2] in (["a", "b"], ["b", "a"])


def test_a_pair_moves_its_only_vote_and_back() -> None:
    fleet = grown("a", "b")
    first = fleet.leader.target.voters[0]  # type: ignore[union-attr]
    other = "b" if first == "a" else "a"
    assert fleet.config == ([first], [], [other])
    fleet.leader.leave()
    fleet.run(1_000)
    assert fleet.config == ([other], [], [first]), "alone, before the first one is gone"
    assert fleet.leader.replica.me == other
    fleet.away = {first}
    fleet.publish(PARTITION, b"x")
    fleet.run(2_000)
    assert fleet.confirmed() == 1
    fleet.open(first)
    fleet.away = set()
    for shard in fleet.shards.values():
        shard.target = fleet.shards[other].target
    fleet.run(limits.HAND_BACK_MS // 2)
    assert fleet.leader.replica.me == other, "not before it has kept up for a while"
    fleet.run(limits.HAND_BACK_MS)
    assert fleet.config == ([first], [], [other])


def test_a_leader_that_ends_hands_over_to_who_is_next() -> None:
    fleet = grown("a", "b", "c")
    leader, (_, second, _) = fleet.leader, fleet.config[0]
    leader.leave()
    fleet.run(300)
    assert not leader.leading
    assert fleet.leader.replica.me == second


def test_two_that_end_at_once_do_not_throw_it_to_and_fro() -> None:
    fleet = grown("a", "b", "c")
    for shard in fleet.shards.values():
        shard.leave()
    before = fleet.leader.term
    fleet.run(limits.HAND_BACK_MS - 1_000)
    assert fleet.leader.term <= before + 3
    assert fleet.leader.serving


def test_with_nobody_to_hand_over_to_the_leader_goes_on() -> None:
    fleet = grown("a", "b", "c")
    leader = fleet.leader
    fleet.away = {name for name in "abc" if name != leader.replica.me}
    fleet.run(1_800)
    leader.leave()
    fleet.run(500)
    alone = Fleet(shard=1)
    alone.leader.leave()
    alone.run(1_000)
    assert alone.leader.serving


def test_leadership_goes_back_when_the_first_has_kept_up_but_not_to_who_fell_three_times() -> None:
    fleet = grown("a", "b", "c")
    first = fleet.leader.replica.me
    for fall in range(4):
        fleet.away = {first}
        fleet.run(4_000)
        assert fleet.leader.replica.me != first
        fleet.away = set()
        fleet.run(limits.HAND_BACK_MS - 2_000)
        assert fleet.leader.replica.me != first
        fleet.run(6_000)
        if fall < 2:
            assert fleet.leader.replica.me == first, fall
        else:
            assert fleet.leader.replica.me != first, "it waits"
            break
    fleet.run(FALLS_MS)
    assert fleet.leader.replica.me == first


def test_the_copies_as_their_leader_sees_them() -> None:
    fleet = grown("a", "b", witness="w")
    rows = fleet.leader.copies()
    assert [row.role for row in rows] == ["leader", "follower", "witness"]
    assert rows[0].copy == fleet.leader.replica.me
    assert all(row.synced and row.behind == 0 and row.match == fleet.leader.last for row in rows)
    follower = rows[1].copy
    assert fleet.shards[follower].copies() == []
    fleet.away = {follower}
    fleet.run(2_000)
    silent = next(row for row in fleet.leader.copies() if row.copy == follower)
    assert not silent.synced
    assert silent.silent_ms >= 1_500
    pair = grown("a", "b")
    assert [row.role for row in pair.leader.copies()] == ["leader", "learner"]


def test_an_operator_and_the_target_do_not_get_into_each_others_way() -> None:
    fleet = grown("a", "b", "c")
    voters = fleet.config[0]
    answer = fleet.ask(ChangeVoters([voters[1]], [], []))
    assert isinstance(answer, RefusedMessage)
    assert fleet.config[0] == voters


def test_a_leader_that_fell_keeps_no_log_rows_for_others() -> None:
    """Only a leader knows how far other copies are. A follower that kept rows for them would keep
    its log for ever.
    """
    fleet = Fleet(1, "abc")
    partition = fleet.topic()
    old = fleet.leader
    fleet.publish(partition, b"x")
    assert old._sweeper.keep_from < KEEP_NONE
    fleet.away = {old.replica.me}
    fleet.run(2 * limits.ELECTION_MS)
    fleet.away = set()
    fleet.run(2 * limits.ELECTION_MS)
    fleet.publish(partition, b"y")
    fleet.run(limits.LEASE_LOG_MS)
    assert not old.leading
    assert old._sweeper.keep_from == KEEP_NONE
