"""Placement: the shards of a topic, chosen once and recorded; and the nodes that should have a
shard.

`plan` is a pure function of the roster, so all nodes compute the same plan. Each shard's leader
moves its copies towards it.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

from gossipq.types import META_SHARD, ShardId
from gossipq.values import Member


def topic_shards(name: str, partitions: int, shards: int) -> list[int]:
    """Return neighbouring shards, so different workers, from a start that depends on the name.

    Shard 0 is left to the register.
    """
    if shards == 1:
        return [0] * partitions
    start = crc32(name.encode())
    return [1 + (start + i) % (shards - 1) for i in range(partitions)]


class Target(NamedTuple):
    """The copies that a shard should have. `voters` are ordered by preference as leader."""

    voters: list[str]
    witnesses: list[str]  #: voters and learners that store no records
    learners: list[str]

    def led_by(self, standby: str) -> "Target":
        """Return the same target with this learner and the only voter exchanged."""
        return Target(
            [standby], self.witnesses, [*self.voters, *(name for name in self.learners if name != standby)]
        )


def plan(members: Iterable[Member], shards: int, copies: int) -> dict[ShardId, Target]:
    """Return the target of each shard; empty without a full node.

    Each shard gets `copies` full voters, or fewer if there are fewer nodes, always an odd number.
    Two nodes and a witness make three voters; two nodes alone a voter and a standby. Every node is
    at least a learner of the meta shard.
    """
    members = sorted(members, key=lambda member: member.copy)
    full = _present([member for member in members if not member.witness])
    if not full:
        return {}
    witnesses = [member.copy for member in members if member.witness and member.state == "in"]
    # An even number of voters needs a larger majority and survives no more failures than one voter less. Of
    # two nodes the second one is a voter if a witness makes a third voter, and a standby otherwise.
    pair = len(full) == 2
    count = 2 if pair else min(copies, len(full) - 1 + len(full) % 2)
    targets = {}
    workers = max(member.workers for member in members if member.copy in full)
    for shard, (first, *others) in enumerate(_spread(full, shards, count, workers)):
        if not pair:
            target = Target([first, *others], [], [])
        elif witnesses:
            # by score and not in turn: a witness that joins or leaves moves only its own share of shards
            witness = max(witnesses, key=lambda name: _score(shard, name))
            target = Target([first, *others, witness], [witness], [])
        else:
            target = Target([first], [], others)
        targets[shard] = target
    # every node reads the roster, the topics and the users from its own copy of the meta shard
    meta = targets[META_SHARD]
    known = {*meta.voters, *meta.learners}
    others = [name for name in full + witnesses if name not in known]
    silent = [*meta.witnesses, *(name for name in witnesses if name not in known)]
    targets[META_SHARD] = Target(meta.voters, silent, meta.learners + others)
    return targets


def _present(members: list[Member]) -> list[str]:
    """Return the nodes that should have copies.

    Nodes that leave or are lost are used only if no others exist.
    """
    for state in ("in", "leaving", "lost"):
        if found := [member.copy for member in members if member.state == state]:
            return found
    return []


def _score(shard: ShardId, name: str) -> bytes:
    return blake2b(b"%d %s" % (shard, name.encode("utf-8", "replace")), digest_size=8).digest()


def _spread(names: list[str], shards: int, count: int, workers: int) -> list[list[str]]:
    """Choose `count` names for each shard, by rendezvous hashing under exact quotas.

    Places are assigned in order: leader, next in line, and so on. For the first k places together
    each name has the floor or the ceiling of its share (with few shards and many names one more is
    possible, but never for the first place). A shard belongs to worker `shard % workers` of its
    node, so the quotas of leaders are per worker: the leaders on a node are spread over its
    workers.
    """
    chosen: list[list[str]] = [[] for _ in range(shards)]
    # the first ones get a shard more if it does not divide; hashed, so that it is not always the first name
    ranked = sorted(names, key=lambda name: _score(shards, name))
    scores = {(shard, name): _score(shard, name) for shard in range(shards) for name in names}
    pairs = sorted(scores, key=lambda pair: scores[pair], reverse=True)
    given = 0
    for place in range(count):
        # only leaders are spread over workers, since a leader does most of the work
        step = 1 if place else min(workers, shards)
        for worker in range(step):
            mine = range(worker, shards, step)
            quotas = {
                name: (given + len(mine) + rank) // len(names) - (given + rank) // len(names)
                for rank, name in enumerate(ranked)
            }
            given += len(mine)
            matching = _Matching(chosen, quotas)
            for shard, name in pairs:
                if shard % step == worker:
                    matching.offer(shard, name)
            for shard in mine:
                if shard not in matching.given:
                    order = sorted(names, key=lambda name: scores[shard, name], reverse=True)
                    if not matching.push(shard, order, set()):
                        matching.force(shard, order)
            for shard, name in matching.given.items():
                chosen[shard].append(name)
    return chosen


class _Matching:
    """Gives each shard one name, and no name more shards than its quota."""

    def __init__(self, chosen: list[list[str]], quotas: dict[str, int]) -> None:
        self._chosen, self._quotas = chosen, quotas
        self.given: dict[ShardId, str] = {}
        self._has: dict[str, list[ShardId]] = {name: [] for name in quotas}

    def _free(self, name: str) -> bool:
        return len(self._has[name]) < self._quotas[name]

    def _give(self, shard: ShardId, name: str) -> None:
        self.given[shard] = name
        self._has[name].append(shard)

    def offer(self, shard: ShardId, name: str) -> None:
        if shard not in self.given and self._free(name) and name not in self._chosen[shard]:
            self._give(shard, name)

    def push(self, shard: ShardId, order: list[str], tried: set[str]) -> bool:
        """Find a name for a shard whose candidates are all taken, by moving others (augmenting
        path).
        """
        for name in order:
            if name in tried or name in self._chosen[shard]:
                continue
            tried.add(name)
            if self._free(name):
                self._give(shard, name)
                return True
            for other in list(self._has[name]):
                self._has[name].remove(other)
                if self.push(other, order, tried):
                    self._give(shard, name)
                    return True
                self._has[name].append(other)
        return False

    def force(self, shard: ShardId, order: list[str]) -> None:
        """Exceed a quota: only with few shards, and never for the first place."""
        self._give(shard, next(name for name in order if name not in self._chosen[shard]))
