"""Where copies should be: balance, stability, small clusters; properties
that hold for any roster.
"""

from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gossipq.core.copies.placement import Target, plan
from gossipq.core.raft import voters
from gossipq.core.storage.payloads import CopySet
from gossipq.values import Member


def member(copy: str, state: str = "in", witness: bool = False) -> Member:
    return Member(copy, f"node {copy}", f"tcp://{copy}:7700", 2, witness, state)


def full(count: int, tag: str = "") -> list[Member]:
    return [member(f"{tag}n{number}") for number in range(count)]


def leads(targets: dict[int, Target], names: list[str]) -> list[int]:
    counts = Counter(target.voters[0] for target in targets.values())
    return [counts[name] for name in names]


members = st.lists(
    st.builds(
        member,
        st.text("abcdefgh", min_size=1, max_size=6),
        st.sampled_from(["in", "in", "in", "leaving", "lost"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda each: each.copy,
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine may make this test slow
@given(members, st.integers(1, 48), st.sampled_from([3, 5, 7]), st.randoms())
def test_a_plan_is_balanced_legal_and_the_same_for_everybody(
    roster: list[Member], shards: int, copies: int, random: object
) -> None:
    targets = plan(roster, shards, copies)
    shuffled = list(roster)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plan(shuffled, shards, copies) == targets
    kept = [each for each in roster if not each.witness]
    if not kept:
        assert targets == {}
        return
    assert list(targets) == list(range(shards))
    states = {each.state for each in kept}
    best = next(state for state in ("in", "leaving", "lost") if state in states)
    able = [each.copy for each in kept if each.state == best]
    witnesses = {each.copy for each in roster if each.witness and each.state == "in"}
    counts = leads(targets, able)
    assert sum(counts) == shards, "nobody else leads"
    assert max(counts) - min(counts) <= 1
    assert min(counts) == shards // len(able)
    for shard, target in targets.items():
        config = CopySet(*target)
        voters.check(config)
        assert len(target.voters) % 2 == 1
        assert {*target.voters, *target.learners} <= {*able, *witnesses}
        assert set(target.witnesses) == witnesses.intersection(target.voters + target.learners)
        assert target.voters[0] not in witnesses
        if shard == 0:
            assert {*target.voters, *target.learners} == {*able, *witnesses}
        elif len(able) == 2:
            assert len(target.voters) == (3 if witnesses else 1)
            assert len(target.learners) == (0 if witnesses else 1)
        else:
            assert len(target.voters) == min(copies, len(able) - 1 + len(able) % 2)
            assert not target.learners
            assert not target.witnesses
    if len(able) != 2 and shards >= len(able):
        spread = Counter(name for target in targets.values() for name in target.voters)
        assert max(spread.values()) - min(spread.values()) <= 1


@pytest.mark.parametrize("tag", ["", "x", "eu-west-"])
def test_who_joins_takes_its_share_and_little_else_moves(tag: str) -> None:
    before = plan(full(3, tag), 32, 3)
    after = plan(full(4, tag), 32, 3)
    fourth = f"{tag}n3"
    assert leads(after, [fourth])[0] >= 32 // 4 - 1
    new = {
        (shard, name)
        for shard, target in after.items()
        for name in target.voters
        if name not in before[shard].voters
    }
    assert {name for _, name in new} == {fourth}, "no other copy is made anew"
    assert len(new) == 24
    moved = [shard for shard, target in after.items() if target.voters[0] != before[shard].voters[0]]
    assert len(moved) <= 12, "8 would be the least"


@pytest.mark.parametrize("count", range(4, 16))
def test_a_join_moves_a_bounded_part(count: int) -> None:
    before, after = plan(full(count), 32, 3), plan(full(count + 1), 32, 3)
    new = sum(name not in before[shard].voters for shard, target in after.items() for name in target.voters)
    assert new <= 33, "of 96 copies"
    assert sum(target.voters[0] != before[shard].voters[0] for shard, target in after.items()) <= 12


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("shards", [32, 64, 128])
def test_what_a_node_leads_is_shared_evenly_by_its_workers(nodes: int, workers: int, shards: int) -> None:
    roster = [msgspec.structs.replace(each, workers=workers) for each in full(nodes)]
    busy = Counter((target.voters[0], shard % workers) for shard, target in plan(roster, shards, 3).items())
    for name in (each.copy for each in roster):
        mine = [busy[name, worker] for worker in range(workers)]
        assert max(mine) - min(mine) <= 1, mine


def test_small_clusters() -> None:
    (one,), two = full(1), full(2)
    assert set(map(str, plan([one], 4, 3).values())) == {str(Target(["n0"], [], []))}
    pair = plan(two, 32, 3)
    assert leads(pair, ["n0", "n1"]) == [16, 16]
    assert all(sorted(target.voters + target.learners) == ["n0", "n1"] for target in pair.values())
    witness, second = member("w", witness=True), member("v", witness=True)
    three = plan([*two, witness], 32, 3)
    assert all(target.voters[2] == "w" and target.witnesses == ["w"] for target in three.values())
    both = plan([*two, witness, second], 32, 3)
    assert {target.voters[2] for target in both.values()} == {"v", "w"}
    assert plan([one, witness], 4, 3)[1] == Target(["n0"], [], []), (
        "a witness alone would only stand in the way"
    )
    retired = plan([*full(3), witness], 4, 3)
    assert retired[0].learners == ["w"], "the leader of the meta shard hears everybody"
    assert retired[1].witnesses == []
    assert len(plan(full(4), 4, 5)[1].voters) == 3
    assert plan([witness], 4, 3) == {}


def test_who_leaves_or_is_lost_keeps_nothing_unless_nobody_else_is_there() -> None:
    a, b, c = full(3)
    leaving, lost = member("n1", "leaving"), member("n2", "lost")
    assert plan([a, leaving, c], 8, 3) == plan([a, c], 8, 3)
    assert plan([a, b, lost], 8, 3) == plan([a, b], 8, 3)
    assert plan([leaving], 8, 3)[1].voters == ["n1"]
    assert plan([leaving, lost], 8, 3)[1].voters == ["n1"]
