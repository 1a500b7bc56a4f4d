"""How a shard gets from its present copies to its target: every step is legal, and none
makes the shard less safe.
"""

from hypothesis import given
from hypothesis import strategies as st

from gossipq.core.copies.placement import Target, plan
from gossipq.core.copies.transitions import KnownCopies, next_change, way_out
from gossipq.core.raft import voters
from gossipq.core.storage.payloads import CopySet
from gossipq.peer_messages import ChangeVoters, Transfer
from gossipq.values import Member

A, B, C, D, W = "a", "b", "c", "d", "w"


class Life:
    """The copies of a shard as their leader sees them. Living copies catch up between two steps."""

    def __init__(self, config: CopySet, alive: set[str], leader: str = "") -> None:
        self.config, self.alive, self.leader = config, alive, leader or config.voters[0]
        self.synced = {*config.voters, *config.learners} & alive
        self.steps: list[ChangeVoters | Transfer] = []

    def known(self, kept_up: bool = True) -> KnownCopies:
        here = {*self.config.voters, *self.config.learners}
        return KnownCopies(self.leader, here & self.alive, here & self.synced, kept_up=kept_up)

    def step(self, target: Target, kept_up: bool = True) -> bool:
        step = next_change(self.config, target, self.known(kept_up))
        if step is None:
            late = ({*self.config.voters, *self.config.learners} & self.alive) - self.synced
            self.synced |= late
            return bool(late)
        self.take(step)
        return True

    def take(self, step: ChangeVoters | Transfer) -> None:
        self.steps.append(step)
        if isinstance(step, Transfer):
            assert step.to in self.config.voters
            assert step.to not in self.config.witnesses
            assert step.to in self.synced
            self.leader = step.to
            return
        new = CopySet(step.voters, step.witnesses, step.learners)
        voters.check_change(self.config, new)
        assert self.leader in new.voters
        assert len(self.alive.intersection(new.voters)) >= voters.quorum_size(new.voters), "a quorum answers"
        come = set(new.voters) - set(self.config.voters)
        assert come <= self.synced, "who votes is synced"
        if self.alive >= set(self.config.voters):
            assert len(self.alive.intersection(new.voters)) * 2 > len(new.voters)
        self.config = new
        self.synced &= {*new.voters, *new.learners}

    def go(self, target: Target, steps: int = 200) -> None:
        for _ in range(steps):
            if not self.step(target):
                return
        raise AssertionError(f"no end: {self.steps[-6:]}")


def test_one_grows_to_three() -> None:
    life = Life(CopySet([A]), {A, B, C})
    life.go(Target([B, A, C], [], []))
    assert life.config == CopySet([B, A, C])
    assert life.leader == B
    sizes = [len(step.voters) for step in life.steps if isinstance(step, ChangeVoters)]
    assert sizes == [1, 1, 2, 3], "two voters only when the third can follow at once"


def test_nobody_votes_while_the_other_newcomer_is_away() -> None:
    life = Life(CopySet([A]), {A, B})
    life.go(Target([A, B, C], [], []))
    assert life.config == CopySet([A], [], [B, C]), "two voters would be worse than one"


def test_a_copy_is_added_before_another_one_is_taken() -> None:
    life = Life(CopySet([A, B, C]), {A, B, C, D})
    life.go(Target([A, B, D], [], []))
    assert life.config == CopySet([A, B, D])
    assert min(len(step.voters) for step in life.steps if isinstance(step, ChangeVoters)) == 3


def test_a_leader_that_should_go_hands_over_first() -> None:
    life = Life(CopySet([C, A, B]), {A, B, C, D})
    life.go(Target([D, A, B], [], []))
    assert life.config == CopySet([D, A, B])
    assert life.leader == D
    assert [step.to for step in life.steps if isinstance(step, Transfer)] == [D], "it moves once"


def test_a_dead_copy_is_replaced() -> None:
    life = Life(CopySet([A, B, C]), {A, B, D})
    life.go(Target([A, D, B], [], []))
    assert life.config == CopySet([A, D, B])


def test_a_living_copy_stays_while_its_replacement_is_away() -> None:
    life = Life(CopySet([A, B, C]), {A, B, C})
    life.go(Target([A, B, D], [], []))
    assert life.config == CopySet([A, B, C], [], [D])
    life.alive = {A, B, C, D}
    life.go(Target([A, B, D], [], []))
    assert life.config == CopySet([A, B, D])


def test_a_dead_voter_is_not_taken_out_when_the_rest_cannot_decide() -> None:
    assert next_change(CopySet([A, B, C]), Target([A], [], []), KnownCopies(A, {A}, {A})) is None


def test_a_pair_hands_the_only_vote_over() -> None:
    life = Life(CopySet([A], [], [B]), {A, B})
    life.go(Target([B], [], [A]))
    assert life.config == CopySet([B], [], [A])
    assert life.steps == [ChangeVoters([B, A], [], []), Transfer(B), ChangeVoters([B], [], [A])]


def test_a_witness_makes_three_of_two_and_retires_before_a_third() -> None:
    life = Life(CopySet([A], [], [B]), {A, B, C, W})
    life.go(Target([A, B, W], [W], []))
    assert life.config == CopySet([A, B, W], [W], [])
    life.go(Target([A, B, C], [], []))
    assert life.config == CopySet([A, B, C])
    life = Life(CopySet([A, B, C]), {A, B, C, W})
    life.go(Target([A, B, C], [W], [W]))
    assert life.config == CopySet([A, B, C], [W], [W]), "of the meta shard it is a learner"


def test_three_shrink_to_a_pair() -> None:
    life = Life(CopySet([C, A, B]), {A, B, C})
    life.go(Target([A], [], [B]))
    assert life.config == CopySet([A], [], [B])
    assert life.leader == A


def test_who_is_not_wanted_at_all_votes_no_more_before_who_stays_as_standby() -> None:
    everybody = {A, B, C}
    step = next_change(CopySet([A, B, C]), Target([A], [], [B]), KnownCopies(A, everybody, everybody))
    assert step == ChangeVoters([A, B], [], [C]), (
        "c may end any moment, and a set of a and c would wait for it"
    )


def test_a_standby_goes_only_when_another_one_has_everything() -> None:
    life = Life(CopySet([A], [], [B]), {A, B})
    life.go(Target([A], [], [C]))
    assert life.config == CopySet([A], [], [B, C])
    life.alive = {A, B, C}
    life.go(Target([A], [], [C]))
    assert life.config == CopySet([A], [], [C])


def test_who_is_first_in_line_stands_first_and_leads_when_settled() -> None:
    life = Life(CopySet([A, B, C]), {A, B, C})
    target = Target([B, C, A], [], [])
    assert next_change(life.config, target, life.known(kept_up=False)) == ChangeVoters([B, C, A], [], [])
    life.go(target)
    assert (life.leader, life.config.voters) == (B, [B, C, A])


def test_nothing_begins_while_there_is_no_room() -> None:
    assert next_change(CopySet([A]), Target([A, B, C], [], []), KnownCopies(A, {A}, {A}, free=False)) is None
    witness = next_change(
        CopySet([A], [], [B]), Target([A, B, W], [W], []), KnownCopies(A, {A, B}, {A, B}, free=False)
    )
    assert witness == ChangeVoters([A], [W], [B, W]), "it costs nothing"


def test_the_way_out() -> None:
    assert way_out(CopySet([A, B, C]), KnownCopies(A, {A, B, C}, {A, C})) == Transfer(C)
    assert way_out(CopySet([A, B, W], [W]), KnownCopies(A, {A, W}, {A, W})) is None
    pair = CopySet([A], [], [B])
    assert way_out(pair, KnownCopies(A, {A, B}, {A, B})) == ChangeVoters([A, B], [], [])
    assert way_out(CopySet([A, B]), KnownCopies(A, {A, B}, {A, B})) == Transfer(B)
    assert way_out(pair, KnownCopies(A, {A}, {A})) is None


rosters = st.lists(st.sets(st.sampled_from("abcdefg"), min_size=1, max_size=6), min_size=1, max_size=4)


@given(
    rosters, st.sets(st.sampled_from("vw"), max_size=2), st.sampled_from([3, 5]), st.integers(0, 3), st.data()
)
def test_every_roster_is_reached_from_every_other(
    rosters: list[set[str]], witnesses: set[str], copies: int, shard: int, data: st.DataObject
) -> None:
    """Members come and go, and some are dead. As soon as all of a target live, the shard
    reaches it by legal steps alone.
    """
    first = min(rosters[0])
    life = Life(CopySet([first]), {first})
    for roster in rosters:
        members = [Member(name, name, f"tcp://{name}:1", 1, name in "vw") for name in (*roster, *witnesses)]
        target = plan(members, 4, copies)[shard]
        everybody = {*target.voters, *target.learners}
        here = {*life.config.voters, *life.config.learners}
        dead = data.draw(st.sets(st.sampled_from(sorted(everybody | here))))
        dead -= {life.leader}
        life.alive = (everybody | here) - dead
        if len(life.alive.intersection(life.config.voters)) >= voters.quorum_size(life.config.voters):
            life.synced &= life.alive
            life.go(target)
        life.alive = everybody | here
        life.synced |= life.alive & here
        life.go(target)
        assert life.leader == target.voters[0]
        assert life.config.voters == target.voters
        assert set(life.config.learners) == set(target.learners)
        assert set(life.config.witnesses) == set(target.witnesses)


def test_who_falls_silent_on_the_way_is_a_learner_again() -> None:
    pair, target = CopySet([A, B]), Target([A, B, C], [], [])
    assert next_change(pair, target, KnownCopies(A, {A}, {A})) == ChangeVoters([A], [], [B]), (
        "alone it can go on"
    )
    four = CopySet([A, B, C, D])
    assert next_change(four, Target([A, B, D], [], []), KnownCopies(A, {A, B, C}, {A, B, C})) == ChangeVoters(
        [A, B, C], [], [D]
    )
    assert next_change(four, Target([A, B, D], [], []), KnownCopies(A, {A}, {A})) is None, (
        "nobody else is there to decide"
    )
    assert next_change(four, Target([A, B, C], [], []), KnownCopies(A, {A, B}, {A, B})) == ChangeVoters(
        [A, B, C], [], []
    )


def test_who_is_silent_gets_no_vote_while_it_still_counts_as_synced() -> None:
    """The copy has stopped answering, but the leader still counts it as synced."""
    config, target = CopySet([A, B, C], [], [D, "e"]), Target([A, B, C, D, "e"], [], [])
    known = KnownCopies(A, {A, B, C}, {A, B, C, D, "e"})
    assert next_change(config, target, known) is None
    assert next_change(config, target, known._replace(answering={A, B, C, D})) is None, "four, and no fifth"
    both = next_change(config, target, known._replace(answering={A, B, C, D, "e"}))
    assert isinstance(both, ChangeVoters)
    assert both.voters == [A, B, C, D]
