"""Steps from the present copies of a shard to the wanted ones: one legal change at a time.

A copy starts as a learner, becomes a voter when it is synced, and becomes a learner again before it
is removed. Configurations with an even number of voters last as short as possible: such a change
begins only if the next one can follow, and a voter that falls silent there becomes a learner.
"""

from collections.abc import Set
from typing import NamedTuple

from gossipq import limits
from gossipq.core.copies.placement import Target
from gossipq.core.raft import quorum_size
from gossipq.core.storage import CopySet
from gossipq.peer_messages import ChangeVoters, Transfer


class KnownCopies(NamedTuple):
    """A leader's view of the copies of its shard. The sets include the leader itself."""

    me: str
    answering: set[str]
    synced: set[str]
    free: bool = True  #: True if another copy may begin to catch up
    kept_up: bool = False  #: True if the preferred leader has kept up for long enough
    #: copies without disk space, or which failed to take leadership
    unfit: Set[str] = frozenset()


def next_change(config: CopySet, target: Target, known: KnownCopies) -> ChangeVoters | Transfer | None:
    """Return the next change, or None if nothing is to be done, or nothing can be done now."""
    return _NextChange(config, target, known).change()


def way_out(config: CopySet, known: KnownCopies) -> ChangeVoters | Transfer | None:
    """Return a change that makes another copy lead, for a leader about to stop. None if
    impossible.
    """
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
        self._config = config
        self._target = target
        self._known = known
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
        """During an even configuration a voter fell silent: go back to an odd one, which needs
        fewer.
        """
        config, target, known = self._config, self._target, self._known
        silent = [name for name in config.voters if name not in known.answering]
        for name in sorted(silent, key=target.voters.__contains__):
            rest = _others(config.voters, name)
            if len(known.answering.intersection(rest)) >= quorum_size(rest):
                keeps = name in target.voters or name in target.learners
                return self._change(rest, [*config.learners, name] if keeps else config.learners)
        return None

    def _begin(self) -> ChangeVoters | None:
        """Add a missing copy as learner."""
        voters, learners = self._config.voters, self._config.learners
        for name in (*self._target.voters, *self._target.learners):
            missing = name not in voters and name not in learners
            if missing and (self._known.free or name in self._target.witnesses):
                return self._change(voters, [*learners, name])
        return None

    def _promote(self, even: bool) -> ChangeVoters | None:
        """Make a synced, answering learner a voter.

        This makes the number even only if another learner can follow or a voter can be removed.
        """
        voters, learners = self._config.voters, self._config.learners
        fit = self._known.synced & self._known.answering  # a silent copy stays synced for some time
        ready = [name for name in self._target.voters if name in learners and name in fit]
        if not ready or len(voters) >= limits.COPIES_MAX or not (even or len(ready) > 1 or self._surplus):
            return None
        return self._change([*voters, ready[0]], _others(learners, ready[0]))

    def _remove(self) -> ChangeVoters | None:
        """Make an unwanted voter a learner; remove a silent one.

        Completely unwanted copies go first: their node may stop at any moment, and a configuration
        of two would wait for it.
        """
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
                continue  # the copy is worth more than a missing one
            keeps = name in known.answering or name in target.learners
            return self._change(rest, [*config.learners, name] if keeps else config.learners)
        return None

    def _hand_over(self) -> Transfer | None:
        """Hand leadership over to the preferred leader after it has kept up for long enough.

        A leader that should not vote here does not wait for that, but for copies that catch up.
        """
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
        """Remove an unwanted learner if it is silent, or when all other changes are done."""
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
        """Order the voters by preference, because the first one stands first for election."""
        config, target = self._config, self._target
        if config.voters != target.voters and set(config.voters) == set(target.voters):
            return self._change(config.voters, config.learners)
        return None
