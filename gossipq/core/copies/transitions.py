"""How the leader of a shard gets from the copies that it has to those that it should have: one legal change
at a time.

A copy comes as a learner, votes when it is synced, and goes as a learner again before it is taken out. Sets
of an even size are passed through at once: nobody begins what the next change cannot go on with, and who
falls silent there is a learner.
"""

from collections.abc import Set
from typing import NamedTuple

from gossipq import limits
from gossipq.core.copies.placement import Target
from gossipq.core.raft import quorum_size
from gossipq.core.storage import CopySet
from gossipq.peer_messages import ChangeVoters, Transfer


class KnownCopies(NamedTuple):
    """What a leader knows of the copies of its shard; the sets have its own name too."""

    me: str
    answering: set[str]
    synced: set[str]
    free: bool = True  #: another copy may begin to catch up
    kept_up: bool = False  #: who should lead has kept up for long enough
    #: they have no space, or did not take leadership when it was handed to them
    unfit: Set[str] = frozenset()


def next_change(config: CopySet, target: Target, known: KnownCopies) -> ChangeVoters | Transfer | None:
    """None: there is nothing to do, or nothing that can be done now."""
    return _NextChange(config, target, known).change()


def way_out(config: CopySet, known: KnownCopies) -> ChangeVoters | Transfer | None:
    """For a leader that is about to end: somebody else leads. None: nobody can."""
    fit = known.synced - known.unfit
    full = [name for name in _others(config.voters, known.me) if name not in config.witnesses and name in fit]
    if full:
        return Transfer(full[0])
    standby = [name for name in config.learners if name not in config.witnesses and name in fit]
    if standby and config.voters == [known.me]:
        return ChangeVoters([known.me, standby[0]], config.witnesses, _others(config.learners, standby[0]))
    return None


def _others(names: list[str], name: str) -> list[str]:
    return [other for other in names if other != name]


class _NextChange:
    def __init__(self, config: CopySet, target: Target, known: KnownCopies) -> None:
        self._config, self._target, self._known = config, target, known
        self._surplus = [name for name in config.voters if name not in target.voters]

    def change(self) -> ChangeVoters | Transfer | None:
        even = len(self._config.voters) % 2 == 0
        return (
            (self._retreat() if even else None)
            or self._begin()
            or (self._remove() if even else None)
            or self._promote(even)
            or self._remove()
            or self._hand_over()
            or self._forget()
            or self._order()
        )

    def _change(self, voters: list[str], learners: list[str]) -> ChangeVoters:
        place = {name: number for number, name in enumerate(self._target.voters)}
        witnesses = {*self._config.witnesses, *self._target.witnesses}
        return ChangeVoters(
            sorted(voters, key=lambda name: place.get(name, len(place))),
            [name for name in (*voters, *learners) if name in witnesses],
            learners,
        )

    def _retreat(self) -> ChangeVoters | None:
        """On the way through an even size a voter has fallen silent: an odd size needs fewer that answer."""
        config, target, known = self._config, self._target, self._known
        silent = [name for name in config.voters if name not in known.answering]
        for name in sorted(silent, key=target.voters.__contains__):
            rest = _others(config.voters, name)
            if len(known.answering.intersection(rest)) >= quorum_size(rest):
                keeps = name in target.voters or name in target.learners
                return self._change(rest, [*config.learners, name] if keeps else config.learners)
        return None

    def _begin(self) -> ChangeVoters | None:
        """Who is missing comes as a learner."""
        voters, learners = self._config.voters, self._config.learners
        for name in (*self._target.voters, *self._target.learners):
            missing = name not in voters and name not in learners
            if missing and (self._known.free or name in self._target.witnesses):
                return self._change(voters, [*learners, name])
        return None

    def _promote(self, even: bool) -> ChangeVoters | None:
        """A synced learner that answers votes. Towards an even size only when another one can follow, or a
        voter can go."""
        voters, learners = self._config.voters, self._config.learners
        fit = self._known.synced & self._known.answering  # who falls silent is synced for some time yet
        ready = [name for name in self._target.voters if name in learners and name in fit]
        if not ready or len(voters) >= limits.COPIES_MAX or not (even or len(ready) > 1 or self._surplus):
            return None
        return self._change([*voters, ready[0]], _others(learners, ready[0]))

    def _remove(self) -> ChangeVoters | None:
        """A voter that should not be one is a learner again; one that is silent goes. Who is not wanted at
        all goes first: its node may end any moment, and a set of two would wait for it."""
        config, target, known = self._config, self._target, self._known
        order = [
            (name in known.answering, name in target.learners, name)
            for name in _others(self._surplus, known.me)
        ]
        for _, _, name in sorted(order, key=lambda row: row[:2]):
            rest = _others(config.voters, name)
            if len(rest) < len(target.voters) and not set(target.voters) <= set(rest):
                continue  # others come first
            if len(known.answering.intersection(rest)) < quorum_size(rest):
                continue
            if name in known.answering and not known.synced.issuperset(rest):
                continue  # it is worth more than one that is not there
            keeps = name in known.answering or name in target.learners
            return self._change(rest, [*config.learners, name] if keeps else config.learners)
        return None

    def _hand_over(self) -> Transfer | None:
        """Who should lead gets it back when it has kept up for long enough; who should not vote here does not
        wait for that, but for those that are still catching up."""
        config, target, known = self._config, self._target, self._known
        fit = known.synced - known.unfit
        able = [
            name
            for name in target.voters
            if name in config.voters and name in fit and name not in config.witnesses
        ]
        if known.me in target.voters:
            able = able[:1] if target.voters[:1] == able[:1] and known.kept_up else []
        elif any(
            name in config.learners and name in known.answering - known.synced for name in target.voters
        ):
            able = []
        return Transfer(able[0]) if able and able[0] != known.me else None

    def _forget(self) -> ChangeVoters | None:
        """A learner that should be none goes: when it is silent, or when all the others are in their
        places."""
        config, target, known = self._config, self._target, self._known
        done = set(target.voters) == set(config.voters)
        if len(target.voters) == 1:  # a standby is worth as much as a voter
            done &= known.synced.issuperset(name for name in target.learners if name not in target.witnesses)
        for name in config.learners:
            wanted = name in target.voters or name in target.learners
            if not wanted and (done or name not in known.answering):
                return self._change(config.voters, _others(config.learners, name))
        return None

    def _order(self) -> ChangeVoters | None:
        """Who is next in line stands first for election."""
        config, target = self._config, self._target
        if config.voters != target.voters and set(config.voters) == set(target.voters):
            return self._change(config.voters, config.learners)
        return None
