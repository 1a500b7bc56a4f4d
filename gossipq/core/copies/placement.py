"""Where things lie: which shards hold a topic, decided once and recorded; and which nodes should keep and
lead which shard.

`plan` is a pure function of the roster, the same on every node: nobody hands it out. Each shard's leader
steers towards it.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

from gossipq.types import META_SHARD, ShardId
from gossipq.values import Member


def topic_shards(name: str, partitions: int, shards: int) -> list[int]:
    """Neighbouring shards, and so different workers, from a start that goes with the name. Shard 0 is left to
    the register."""
    if shards == 1:
        return [0] * partitions
    start = crc32(name.encode())
    return [1 + (start + i) % (shards - 1) for i in range(partitions)]


class Target(NamedTuple):
    """Who should keep copies of a shard, as Config says it. The voters are in the order in which they should
    lead."""

    voters: list[str]
    witnesses: list[str]  #: of the voters and learners: those that keep no records
    learners: list[str]

    def led_by(self, standby: str) -> "Target":
        """The same, but this learner has changed places with the only voter."""
        return Target(
            [standby], self.witnesses, [*self.voters, *(name for name in self.learners if name != standby)]
        )


def plan(members: Iterable[Member], shards: int, copies: int) -> dict[ShardId, Target]:
    """`copies` full voters each, or as many of an odd number as there are nodes; two nodes and a witness are
    three voters, two nodes alone a voter and a standby. Every node is at least a learner of the meta shard.
    Empty without a full node."""
    members = sorted(members, key=lambda member: member.copy)
    full = _present([member for member in members if not member.witness])
    if not full:
        return {}
    witnesses = [member.copy for member in members if member.witness and member.state == "in"]
    pair = len(full) == 2
    count = 2 if pair else min(copies, len(full) - 1 + len(full) % 2)
    targets = {}
    workers = max(member.workers for member in members if member.copy in full)
    for shard, (first, *others) in enumerate(_spread(full, shards, count, workers)):
        if not pair:
            target = Target([first, *others], [], [])
        elif witnesses:
            witness = max(witnesses, key=lambda name: _score(shard, name))
            target = Target([first, *others, witness], [witness], [])
        else:
            target = Target([first], [], others)
        targets[shard] = target
    meta = targets[META_SHARD]
    known = {*meta.voters, *meta.learners}
    others = [name for name in full + witnesses if name not in known]
    silent = [*meta.witnesses, *(name for name in witnesses if name not in known)]
    targets[META_SHARD] = Target(meta.voters, silent, meta.learners + others)
    return targets


def _present(members: list[Member]) -> list[str]:
    """Those that should have something: who leaves or is lost only when nobody else is there."""
    for state in ("in", "leaving", "lost"):
        if found := [member.copy for member in members if member.state == state]:
            return found
    return []


def _score(shard: ShardId, name: str) -> bytes:
    return blake2b(b"%d %s" % (shard, name.encode("utf-8", "replace")), digest_size=8).digest()


def _spread(names: list[str], shards: int, count: int, workers: int) -> list[list[str]]:
    """For each shard `count` of the names. Rendezvous hashing, place by place (who leads, who is next, and so
    on), under exact quotas: of the first k places together each name has the floor or the ceiling of its
    share (with a handful of shards and many names, one more at times; never of the first place). A shard
    lives in worker `shard % workers` of each node, so who leads has quotas for each worker: what a node leads
    is shared evenly by its workers."""
    chosen: list[list[str]] = [[] for _ in range(shards)]
    ranked = sorted(names, key=lambda name: _score(shards, name))
    scores = {(shard, name): _score(shard, name) for shard in range(shards) for name in names}
    pairs = sorted(scores, key=lambda pair: scores[pair], reverse=True)
    given = 0
    for place in range(count):
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
    """One name for each shard, each name as often as its quota says, none twice for a shard."""

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
        """Finds a name for a shard for which all that are left are taken: others make room (an augmenting
        path)."""
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
        """Beyond the quota: only with a handful of shards, and never for the first place."""
        self._give(shard, next(name for name in order if name not in self._chosen[shard]))
