"""Faults of a run: the network, disks, processes and clocks. Each seed draws
once how many of them happen.
"""

from random import Random
from typing import TYPE_CHECKING

import msgspec

from gossipq.core.shard import Shard
from gossipq.core.storage.log import Entry
from sim.clients import SHARDED, SHRINK_MS
from sim.node import Node

if TYPE_CHECKING:
    from sim.world import World

HOUR_MS = 3_600_000


class Clocks:
    """Wrong wall clocks. At most one living node has one, so that a majority is right. It is wrong
    by hours to days and jumps before, during and after leaderships. Some machines boot, and then
    their boot clocks restart.
    """

    def __init__(self, world: "World", jumps: bool) -> None:
        self.world, self.dice = world, Random(f"clocks/{world.seed}")
        self.jumps = jumps
        self.boots = self.dice.random() < 0.5
        self.wrong: Node | None = None

    def may_be_wrong(self, node: Node) -> None:
        """Maybe gives a new node a wrong clock: any later node, or one of several that
        found a cluster together.
        """
        alone = self.world.kind in ("grow", "standby") or self.world.steered
        living = self.wrong is not None and not self.wrong.dead
        if self.jumps and not living and not (alone and node.name == "a.1") and self.dice.random() < 0.6:
            self.wrong = node
            if self.dice.random() < 0.7:
                self.jump()

    def jump(self) -> None:
        """Sets a new error. In runs with boots the clock is never behind: after one voter is gone
        for good, the others could not tell which clock is right.
        """
        if self.wrong is None:
            return
        way = 1 if self.boots else self.dice.choice((-1, 1))
        self.wrong.wall_off = way * self.dice.choice((0, HOUR_MS, HOUR_MS, 24 * HOUR_MS, 8 * 24 * HOUR_MS))
        self.world.history.count("clock jumped")

    def boot(self, node: Node) -> None:
        """Restarts the node's machine. Not if a copy might be left alone with a wrong clock, or if
        no node is up to tell how many voters there are.
        """
        shards = [shard for other in self.world.nodes.values() for shard in other.shards()]
        if self.boots and shards and all(len(shard.replica.config.voters) > 2 for shard in shards):
            node.boot_anew(self.dice.randrange(1, 60_000))
            self.world.history.count("boot")


class Faults:
    def __init__(self, world: "World", dice: Random) -> None:
        self.world, self.dice = world, dice
        #: one-way cuts between hosts; "x" is the place of the clients
        self.cuts: set[tuple[str, str]] = set()
        self.loss = dice.choice((0, 0.01, 0.05, 0.15))
        self.double = dice.choice((0, 0.02, 0.1))
        self.slow = dice.choice((0, 0.02, 0.1))
        self.fail_commits = dice.choice((0, 0, 0.002, 0.01))
        self.crash_inside = dice.choice((0, 0.0005, 0.002))
        self.garble = dice.choice((0, 0, 0.01))
        self.wipes = dice.random() < 0.5
        #: probability that a leader is struck right after its election
        self.hard_luck = dice.choice((0, 0, 0.3, 0.7, 1.0))
        self.adversary = dice.random() < 0.1
        self.full: dict[str, int] = {}  #: node -> until when its disk refuses commits
        self.slowed: dict[str, int] = {}  #: node -> until when its disk is slow
        self.clocks = Clocks(world, dice.random() < 0.7)

    # --- the network ----------------------------------------------------------------------------------------

    def delays(self, source: str, target: str) -> list[int]:
        """Delays after which a message arrives: none if it is lost, two if it is doubled."""
        dice, calm = self.dice, self.world.calm
        if (source, target) in self.cuts or (not calm and dice.random() < self.loss):
            return []
        delays = []
        for _ in range(1 if calm or dice.random() >= self.double else 2):
            late = not calm and dice.random() < self.slow
            delays.append(dice.choice((50, 300, 1_500, 4_000)) if late else dice.randrange(1, 6))
        return delays

    def garbled(self, entries: list[Entry], rows: bytes) -> tuple[list[Entry], bytes]:
        """Sometimes damages entries and rows, as a peer of another version might send them."""
        if not (entries or rows) or self.world.calm or self.dice.random() >= self.garble:
            return entries, rows
        return [msgspec.structs.replace(entry, payload=entry.payload + b"!") for entry in entries], rows[:-1]

    # --- strikes --------------------------------------------------------------------------------------------

    def commit_fails(self, node: Node) -> bool:
        """True if this commit fails, by chance or because the disk is full."""
        if self.world.now < self.full.get(node.name, 0):
            return True
        return not self.world.calm and self.dice.random() < self.fail_commits

    def commit_ms(self, node: Node) -> int:
        """How long a commit takes."""
        if not self.world.calm and self.world.now < self.slowed.get(node.name, 0):
            return self.dice.choice((20, 100, 400, 1_500))
        return self.dice.randrange(1, 4)

    def crashes_here(self) -> bool:
        return not self.world.calm and self.crash_inside > 0 and self.dice.random() < self.crash_inside

    def strike(self) -> None:
        """Causes one fault and schedules the next one."""
        if self.world.calm or (self.adversary and self.dice.random() < 0.9):
            return
        self.world.at(self.dice.randrange(200, 2_400), self.strike)
        living = [node for node in self.world.nodes.values() if node.up]
        leader = self.world.leader(self.dice.randrange(self.world.shards))
        if not living:
            return
        node = leader if leader is not None and self.dice.random() < 0.6 else self.dice.choice(living)
        fault = self.dice.random()
        if fault < 0.3:
            lost = self.wipes and self.may_lose(node) and self.dice.random() < 0.7
            if self.clocks.dice.random() < 0.3:
                self.clocks.boot(node)
            node.crash(power=self.dice.random() < 0.3)
            if lost:
                self.ruin(node)
            self.world.restart_later(node)
        elif fault < 0.4:
            boots = self.dice.random() < 0.5
            for each in living:  # all at once, like a power cut
                if boots:
                    self.clocks.boot(each)
                each.crash(power=boots)
                self.world.restart_later(each)
        elif fault < 0.5:
            trouble = self.dice.choice((self.full, self.slowed, self.slowed))
            trouble[node.name] = self.world.now + self.dice.choice((500, 2_000, 4_000))
            self.world.history.count("disk full" if trouble is self.full else "disk slow")
        elif fault < 0.6:
            node.paused_until = self.world.now + self.dice.choice((200, 1_300, 2_000, 3_500))
            self.world.history.count("pause")
        elif fault < 0.65 and self.clocks.jumps:
            self.clocks.jump()
        else:
            self.cut(node)

    def greet_leader(self, node: Node, shard: Shard) -> None:
        """Bad luck right after an election. The *adversary* knows Raft's figure 8. It cuts off a
        leader with only new entries before that leader sends anything; a leader with an old tail
        may send just that tail first.
        """
        if self.clocks.dice.random() < 0.2:
            self.clocks.jump()
        if self.adversary:
            replica = shard.replica
            old = (replica.log.term_at(replica.commit + 1) or shard.term) < shard.term
            for_ms = self.dice.randrange(1_500, 4_000)
            if old:
                self.world.at(self.dice.randrange(6, 40), self.isolate, node.name[0], for_ms)
            else:
                self.isolate(node.name[0], for_ms)
        elif self.dice.random() < self.hard_luck:
            if self.dice.random() < 0.4:
                self.cut(node)
            else:
                self.world.at(self.dice.randrange(1, 30), self.strike_leader, node)

    def isolate(self, host: str, for_ms: int) -> None:
        if not self.world.calm:
            hosts = {name[0] for name in self.world.nodes}
            pairs = [(host, other) for other in hosts] + [(other, host) for other in hosts]
            self.cuts.update(pairs)
            self.world.at(for_ms, self.heal, pairs)

    def strike_leader(self, node: Node) -> None:
        if not self.world.calm and node.up:
            if self.dice.random() < 0.5:
                node.crash()
                self.world.restart_later(node)
            else:
                self.cut(node)

    def ruin(self, node: Node) -> None:
        """Loses or tears the node's disk. The copy is gone for good, and its
        host returns as a new copy.
        """
        if self.dice.random() < 0.5:
            node.dead = "wiped"
            self.world.history.count("wipe")
        else:
            node.torn = node.disk.tear(self.dice)
            self.world.history.count("tear")

    def may_lose(self, node: Node) -> bool:
        """True if losing the node loses only a minority in the set of voters that each copy uses,
        even if the node becomes a voter there.
        """
        world = self.world
        if (
            node.witness
            or world.kind in ("pair", "standby", "grow", *SHARDED)
            or world.now < world.operator.shrunk_ms + SHRINK_MS
        ):
            return False
        if world.steered and not self.settled():
            return False
        for each in self.world.nodes.values():
            if each.shard is None:
                if not each.dead:
                    return False  # its set of voters is unknown
                continue
            gone = {
                other.name for other in self.world.nodes.values() if other.dead or other.torn or other is node
            }
            for shard in each.shards():
                voters = {*shard.replica.config.voters, node.name}
                if 2 * len(gone & voters) >= len(voters):
                    return False
        return True

    def cut(self, node: Node) -> None:
        """Cuts some connections for a while, in one of several shapes."""
        hosts = sorted({name[0] for name in self.world.nodes})
        host, shape = node.name[0], self.dice.randrange(6)
        if shape == 0:  # alone, with or without its clients
            pairs = [(host, other) for other in [*hosts, *(["x"] if self.dice.random() < 0.5 else [])]]
            pairs += [(b, a) for a, b in pairs]
        elif shape == 1:  # receives from no other host
            pairs = [(other, host) for other in hosts]
        elif shape == 2:  # reaches no other host
            pairs = [(host, other) for other in hosts]
        elif shape == 3:  # halves
            half = set(self.dice.sample(hosts, len(hosts) // 2))
            pairs = [(a, b) for a in hosts for b in hosts if (a in half) != (b in half)]
        elif shape == 4:  # two hosts that do not reach each other; the others reach both
            other = self.dice.choice(hosts)
            pairs = [(host, other), (other, host)]
        else:  # one direction of one connection
            pairs = [(host, self.dice.choice(hosts))]
        self.world.history.count("cut")
        self.cuts.update(pairs)
        self.world.at(self.dice.choice((100, 800, 1_700, 2_500, 4_000)), self.heal, pairs)

    def heal(self, pairs: list[tuple[str, str]]) -> None:
        if not self.world.frozen:
            self.cuts.difference_update(pairs)

    def settled(self) -> bool:
        """True if each leader has its target of at least three copies,
        so that a copy may be lost.
        """
        for shard_id in range(self.world.shards):
            leader = self.world.leader(shard_id)
            shard = leader.shard_of(shard_id) if leader is not None else None
            if shard is None or shard.target is None:
                return False
            config, target = shard.replica.config, shard.target
            if len(config.voters) < 3 or target.witnesses or set(config.voters) != set(target.voters):
                return False
        return True
