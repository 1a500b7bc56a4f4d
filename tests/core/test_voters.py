"""Which set of voters may follow another one."""

import pytest

from gossipq.core.raft.voters import all_meet, check, check_change, quorum_size, quorums
from gossipq.core.storage.payloads import CopySet
from gossipq.errors import BadRequest

FIVE = ["a", "b", "c", "d", "e"]


def test_a_quorum_is_a_majority():
    assert [quorum_size(FIVE[:count]) for count in range(1, 6)] == [1, 2, 2, 3, 3]
    assert quorums(["a", "b", "c"]) == [frozenset("ab"), frozenset("ac"), frozenset("bc")]


@pytest.mark.parametrize("count", range(1, 5))
def test_one_more_or_one_less_always_meets(count):
    assert all_meet(FIVE[:count], FIVE[: count + 1])
    assert all_meet(FIVE[: count + 1], FIVE[:count])


@pytest.mark.parametrize(
    ("old", "new"),
    [(["a"], ["b"]), (["a", "b", "c"], ["a", "b", "d"]), (["a"], ["a", "b", "c"]), (["a", "b", "c"], ["a"])],
)
def test_two_at_once_may_decide_without_each_other(old, new):
    assert not all_meet(old, new)
    with pytest.raises(BadRequest):
        check_change(CopySet(old), CopySet(new))


@pytest.mark.parametrize(
    "config",
    [
        CopySet([]),
        CopySet(["a", "a"]),
        CopySet(["a"], [], ["a"]),
        CopySet(["a", ""]),
        CopySet(["a"], ["b"]),
        CopySet(["a"], ["a"]),
        CopySet(["a", "b", "c"], ["b", "c"]),
        CopySet([str(number) for number in range(8)]),
    ],
)
def test_what_can_never_be_the_copies_of_a_shard(config):
    with pytest.raises(BadRequest):
        check(config)


def test_a_witness_does_not_become_a_full_copy_in_place():
    with pytest.raises(BadRequest, match="no records"):
        check_change(CopySet(["a", "b", "w"], ["w"]), CopySet(["a", "b", "w"]))
    check_change(CopySet(["a", "b"]), CopySet(["a", "b", "w"], ["w"]))
