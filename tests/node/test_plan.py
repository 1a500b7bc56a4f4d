"""The output of `gossipq cluster rebalance --plan`."""

from gossipq.core.copies.placement import plan
from gossipq.values import CopyStats, Lead, Member
from gossipq_node.plan import shard_plans

MEMBERS = [Member(f"{name}.copy", name, f"tcp://{name}:7700", 2) for name in ("ada", "bob", "cat")]


def test_shards_that_are_where_they_should_be_stay() -> None:
    targets = plan(MEMBERS, 4, 3)
    leads = {shard: Lead(shard, 1, target.voters[0]) for shard, target in targets.items()}
    stats = [
        CopyStats(shard, 1, copy, "leader" if copy == target.voters[0] else "follower", 1, 0, 0, True)
        for shard, target in targets.items()
        for copy in target.voters
    ]
    plans = shard_plans(MEMBERS, 4, 3, leads, stats)
    assert [row.shard for row in plans] == [0, 1, 2, 3]
    assert not any(row.moves for row in plans)
    assert all(row.voters == ["ada", "bob", "cat"] == sorted(row.voters_then) for row in plans)


def test_a_newcomer_gets_shards_and_strangers_are_shown_by_their_copy() -> None:
    leads = {shard: Lead(shard, 1, "ada.copy") for shard in range(4)}
    stats = [
        CopyStats(shard, 1, copy, role, 1, 0, 0, True)
        for shard in range(3)
        for copy, role in (("ada.copy", "leader"), ("gone.copy", "follower"), ("cat.copy", "learner"))
    ]
    plans = shard_plans(MEMBERS, 4, 3, leads, stats)
    assert all(row.moves for row in plans[:3])
    assert plans[0].voters == ["ada", "gone.copy"]
    assert (plans[3].leader, plans[3].voters) == ("ada", [])
    assert {row.leads_then for row in plans} == {"ada", "bob", "cat"}


def test_without_full_nodes_there_is_no_plan() -> None:
    (row,) = shard_plans([], 1, 3, {}, [])
    assert (row.leader, row.leads_then, row.voters_then, row.moves) == ("", "", [], False)
