"""Voters of a shard, and the rule for changes: all quorums of the old and the new set must meet."""

from itertools import combinations

from gossipq import limits
from gossipq.core.storage import CopySet
from gossipq.errors import BadRequest


def quorum_size(voters: list[str]) -> int:
    """Return the size of a majority. For no voters it is unreachable."""
    return len(voters) // 2 + 1


def quorums(voters: list[str]) -> list[frozenset[str]]:
    """Return all minimal majorities."""
    return [frozenset(chosen) for chosen in combinations(sorted(voters), quorum_size(voters))]


def all_meet(old: list[str], new: list[str]) -> bool:
    """True if each quorum of one set shares a voter with each of the other (by enumeration)."""
    return all(mine & theirs for mine in quorums(old) for theirs in quorums(new))


def check(config: CopySet) -> None:
    """Raise BadRequest if this can never be the configuration of a shard."""
    everyone = [*config.voters, *config.learners]
    if not 1 <= len(config.voters) <= limits.COPIES_MAX:
        raise BadRequest(f"{len(config.voters)} voters", hint=f"1 to {limits.COPIES_MAX} are allowed")
    if len(set(everyone)) < len(everyone) or "" in everyone:
        raise BadRequest("a copy is named twice, or has no name")
    if not set(config.witnesses) <= set(everyone):
        raise BadRequest("a witness is neither voter nor learner")
    if len(set(config.witnesses) & set(config.voters)) >= quorum_size(config.voters):
        raise BadRequest(
            "witnesses alone would be a majority", hint="a quorum needs a copy that has the records"
        )


def check_change(old: CopySet, new: CopySet) -> None:
    """Raise BadRequest if `new` may not follow `old`."""
    check(new)
    changed = set(old.voters) ^ set(new.voters)
    if len(changed) > 1:
        raise BadRequest(f"{len(changed)} voters change at once", hint="one at a time")
    if not all_meet(old.voters, new.voters):
        raise BadRequest("the new voters could decide without the old ones", hint="one voter at a time")
    both = {*old.voters, *old.learners} & {*new.voters, *new.learners}
    if any((name in old.witnesses) != (name in new.witnesses) for name in both):
        raise BadRequest(
            "a witness has no records and a full copy has them", hint="remove it and add it under a new name"
        )
