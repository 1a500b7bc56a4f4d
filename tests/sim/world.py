"""A cluster of one shard, from one seed: the real core under a network, disks and clocks that fail. Same seed, same run.

A run has three parts. *Safety*: every fault at any time. *Liveness*: a core that could decide is healed, the others stay frozen
in their faults; a new publish must be confirmed. *Rest*: all is healed, the clients end, the copies must come to agree.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

import msgspec

from gossipq.core import payloads, records
from gossipq.core.log import Entry
from gossipq.core.shard import Shard
from gossipq.messages import Publish
from gossipq.types import Origin
from gossipq.values import Message
from gossipq.wire import batch as batches
from sim.clients import SHRINK_MS, Admin, Consumer, Operator, Party, Publisher, Reader
from sim.history import History
from sim.node import Node
from sim.small import small

FOUND_MS = 6_000  #: without faults at first, so that there is something to lose
FAULT_MS = 10_000
ADVERSARY_MS = 14_000
LIVENESS_MS = 12_000  #: for a new confirm once the core is healed; twice what the timers need
REST_MS = 25_000
EVENTS_MAX = 60_000
STORMY = ("trio", "trio", "trio", "five", "grow", "pair", "standby")


class Storm(Exception):
    """Messages that make more messages, without end."""


class Event:
    __slots__ = ("args", "call")

    def __init__(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.call, self.args = call, args


def garbled(entries: list[Entry]) -> list[Entry]:
    """As a peer of another mind would send them."""
    return [msgspec.structs.replace(entry, payload=entry.payload + b"!") for entry in entries]


class Probe(Party):
    """One more publish, after the faults: is it confirmed?"""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "probe")
        self.value = b"probe-%d" % world.now
        self.batch = bytes(batches.seal([self.value], producer=b"probe".ljust(16, b"."), sequence=1))
        world.history.attempted.add(self.value)
        self.confirmed = False
        self.look()

    def look(self) -> None:
        if not self.confirmed:
            names = self.world.addresses()  # one after the other: it must not be bad luck
            self.node = names[self.requests % len(names)]
            self.ask(Publish(self.world.admin.partition), self.batch)
            self.world.at(200, self.look)

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        self.confirmed |= isinstance(answer, tuple)


class World:
    def __init__(self, seed: int, fault_ms: int = FAULT_MS) -> None:
        self.seed, self.fault_ms = seed, fault_ms
        self.dice = Random(f"world/{seed}")
        self.now = 0
        self.events: list[tuple[int, int, Event]] = []
        self.count = 0
        self.history = History()
        self.nodes: dict[str, Node] = {}
        self.parties: dict[str, Party] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.leaders: dict[int, str] = {}  #: term -> who
        self.newest_term = 0
        self.chains: dict[int, bytes] = {}  #: of committed entries
        self.reached: dict[int, int] = {}  #: term -> highest index known to be committed in it
        self.calm = False
        self.frozen: set[str] = set()
        self.loss = self.dice.choice((0, 0.01, 0.05, 0.15))
        self.double = self.dice.choice((0, 0.02, 0.1))
        self.slow = self.dice.choice((0, 0.02, 0.1))
        self.fail_commits = self.dice.choice((0, 0, 0.002, 0.01))
        self.crash_inside = self.dice.choice((0, 0.0005, 0.002))
        self.kind = self.dice.choice(STORMY)
        self.copies = 5 if self.kind == "five" else 3
        self.garble = self.dice.choice((0, 0, 0.01))
        self.wipes = self.dice.random() < 0.5
        self.hard_luck = self.dice.choice((0, 0, 0.3, 0.7, 1.0))  #: a leader is struck right after its election
        self.adversary = self.dice.random() < 0.1
        self.lease_ms = self.dice.choice((400, 2_000, 30_000))
        self._found()
        self.admin = Admin(self, self.dice.choice((0, 1_500, 600_000)))
        self.operator = Operator(self, self.dice.random() < 0.6 and self.kind not in ("pair", "standby"))
        pause_ms = self.dice.choice((50, 150, 400))
        parties: list[Party] = [self.admin, self.operator, Publisher(self, "p1", pause_ms), Publisher(self, "p2", pause_ms)]
        parties += [Consumer(self, "c1"), Consumer(self, "c2"), Reader(self)]
        self.parties = {party.name: party for party in parties}

    def _found(self) -> None:
        """The first copies. Several at once agree on their names before they store anything."""
        names = {"five": "abcde", "grow": "a", "pair": "abw", "standby": "ab"}.get(self.kind, "abc")
        members = [f"{host}.1" for host in names]
        config = payloads.Config(members)
        if self.kind == "pair":
            config = payloads.Config(members, ["w.1"])
        elif self.kind == "standby":
            config, self.copies = payloads.Config(["a.1"], [], ["b.1"]), 1
        for name in members:
            node = self.nodes[name] = Node(self, name, joins=name != "a.1", witness=name in config.witnesses)
            if len(members) > 1:
                meta = records.Meta(voters=config.voters, witnesses=config.witnesses, learners=config.learners)
                node.disk.state.put(records.META, records.encode(meta))
                node.disk.commit()
            self.at(self.dice.randrange(100), node.start)

    # --- time ------------------------------------------------------------------------------------------------------

    def at(self, delay_ms: int, call: Callable[..., None], *args: Any) -> None:
        self.count += 1
        heappush(self.events, (self.now + delay_ms, self.count, Event(call, args)))

    def wake(self, node: Node, delay_ms: int) -> None:
        """A turn of this copy, then or sooner."""
        at = max(self.now + delay_ms, node.busy_until)
        if node.wake_at is None or at < node.wake_at:
            node.wake_at = at
            self.at(at - self.now, self._turn, node, at)

    def _turn(self, node: Node, at: int) -> None:
        if node.wake_at != at or not node.up:
            return
        node.wake_at = None
        if self.now < max(node.paused_until, node.busy_until):
            self.wake(node, max(node.paused_until, node.busy_until) - self.now)
            return
        self.history.count("turn")
        node.turn()

    def run_until(self, end_ms: int, done: Callable[[], bool] | None = None) -> bool:
        events = self.events
        while events and events[0][0] <= end_ms:
            self.now, _, event = heappop(events)
            event.call(*event.args)
            if done is not None and done():
                return True
            if self.count > EVENTS_MAX:
                raise Storm(f"more than {EVENTS_MAX} events")
        self.now = max(self.now, end_ms)
        return done is None

    # --- the network -----------------------------------------------------------------------------------------------

    def _deliver(self, source: str, target: str, call: Callable[..., None], *args: Any) -> None:
        """Lost, doubled, late or in time."""
        if (source, target) in self.cuts or (not self.calm and self.dice.random() < self.loss):
            return
        for _ in range(1 if self.calm or self.dice.random() >= self.double else 2):
            delay_ms = self.dice.randrange(1, 6)
            if not self.calm and self.dice.random() < self.slow:
                delay_ms = self.dice.choice((50, 300, 1_500, 4_000))
            self.at(delay_ms, call, *args)

    def post_copy(self, source: Node, target: str, term: int, message: Message, entries: list[Entry], rows: bytes) -> None:
        if target == source.name:
            self.at(0, self._arrive, target, ("copy", term, message, entries, rows))
        else:
            if (entries or rows) and not self.calm and self.dice.random() < self.garble:
                entries, rows = garbled(entries), rows[:-1]
            self._deliver(source.name[0], target[0], self._arrive, target, ("copy", term, message, entries, rows))

    def post_request(self, sender: str, target: str, request_id: int, message: Message, batch: bytes) -> None:
        self._deliver("x", target[0], self._arrive, target, ("client", sender, request_id, message, batch))

    def post_client(self, source: Node, origin: Origin, request_id: int, term: int, answer: Any) -> None:
        name = origin[0].decode()
        self._deliver(source.name[0], "x", self._answer, name, source.name, request_id, term, answer, self.now)

    def _arrive(self, target: str, item: tuple[object, ...]) -> None:
        node = self.nodes.get(target)
        if node is not None and node.up:
            node.inbox.append(item)
            self.wake(node, self.dice.randrange(2))

    def _answer(self, name: str, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if name in self.parties:
            self.parties[name].receive(node, request_id, term, answer, sent_ms)

    def addresses(self) -> list[str]:
        return [node.name for node in self.nodes.values() if not node.dead]

    # --- faults ----------------------------------------------------------------------------------------------------

    def commit_fails(self) -> bool:
        return not self.calm and self.dice.random() < self.fail_commits

    def crashes_here(self) -> bool:
        return not self.calm and self.crash_inside > 0 and self.dice.random() < self.crash_inside

    def incarnation(self, node: Node) -> int:
        return node.boot_at

    def restart_later(self, node: Node) -> None:
        if node.name not in self.frozen:
            self.at(self.dice.choice((20, 100, 500, 2_500)), node.start)

    def strike(self) -> None:
        """One fault, and the next one later."""
        if self.calm or (self.adversary and self.dice.random() < 0.9):
            return
        self.at(self.dice.randrange(200, 2_400), self.strike)
        living = [node for node in self.nodes.values() if node.up]
        leader = self.leader()
        if not living:
            return
        node = leader if leader is not None and self.dice.random() < 0.6 else self.dice.choice(living)
        fault = self.dice.random()
        if fault < 0.3:
            lost = self.wipes and self.may_lose(node) and self.dice.random() < 0.7
            node.crash()
            if lost:
                self.ruin(node)
            self.restart_later(node)
        elif fault < 0.4:
            for each in living:  # all at once, as by a power cut
                each.crash()
                self.restart_later(each)
        elif fault < 0.55:
            node.paused_until = self.now + self.dice.choice((200, 1_300, 2_000, 3_500))
            self.history.count("pause")
        elif fault < 0.6:
            node.wall_off += self.dice.choice((-3_600_000, -5_000, 5_000, 3_600_000))
        else:
            self.cut(node)

    def greet_leader(self, node: Node, shard: Shard) -> None:
        """Bad luck right after an election. The *adversary* knows Raft's figure 8: who leads with only new entries is cut
        off before it says a word; who has an old tail may just hand that on."""
        if self.adversary:
            replica = shard.replica
            old = (replica.log.term_at(replica.commit + 1) or shard.term) < shard.term
            for_ms = self.dice.randrange(1_500, 4_000)
            if old:
                self.at(self.dice.randrange(6, 40), self.isolate, node.name[0], for_ms)
            else:
                self.isolate(node.name[0], for_ms)
        elif self.dice.random() < self.hard_luck:
            if self.dice.random() < 0.4:
                self.cut(node)
            else:
                self.at(self.dice.randrange(1, 30), self.strike_leader, node)

    def isolate(self, host: str, for_ms: int) -> None:
        if not self.calm:
            hosts = {name[0] for name in self.nodes}
            pairs = [(host, other) for other in hosts] + [(other, host) for other in hosts]
            self.cuts.update(pairs)
            self.at(for_ms, self.heal, pairs)

    def strike_leader(self, node: Node) -> None:
        if not self.calm and node.up:
            if self.dice.random() < 0.5:
                node.crash()
                self.restart_later(node)
            else:
                self.cut(node)

    def ruin(self, node: Node) -> None:
        """Its disk is lost, or torn: the copy is gone for good, and its host comes back as a new one."""
        if self.dice.random() < 0.5:
            node.dead = "wiped"
            self.history.count("wipe")
        else:
            node.torn = node.disk.tear(self.dice)
            self.history.count("tear")

    def may_lose(self, node: Node) -> bool:
        """Whether a minority is lost with it, in every set of voters that any copy goes by."""
        if node.witness or self.kind in ("pair", "standby", "grow") or self.now < self.operator.shrunk_ms + SHRINK_MS:
            return False
        for each in self.nodes.values():
            if each.shard is None:
                if not each.dead:
                    return False  # nobody knows what it goes by
                continue
            config = each.shard.replica.config
            gone = {other.name for other in self.nodes.values() if other.dead or other.torn or other is node}
            lost = gone.intersection(config.voters)
            if 2 * len(lost) >= len(config.voters):
                return False
        return True

    def cut(self, node: Node) -> None:
        """One of the shapes, for a while."""
        hosts = sorted({name[0] for name in self.nodes})
        host, shape = node.name[0], self.dice.randrange(6)
        if shape == 0:  # alone, with or without its clients
            pairs = [(host, other) for other in [*hosts, *(["x"] if self.dice.random() < 0.5 else [])]]
            pairs += [(b, a) for a, b in pairs]
        elif shape == 1:  # hears nobody
            pairs = [(other, host) for other in hosts]
        elif shape == 2:  # is heard by nobody
            pairs = [(host, other) for other in hosts]
        elif shape == 3:  # halves
            half = set(self.dice.sample(hosts, len(hosts) // 2))
            pairs = [(a, b) for a in hosts for b in hosts if (a in half) != (b in half)]
        elif shape == 4:  # two that do not see each other, and all see the others
            other = self.dice.choice(hosts)
            pairs = [(host, other), (other, host)]
        else:  # one direction of one wire
            pairs = [(host, self.dice.choice(hosts))]
        self.history.count("cut")
        self.cuts.update(pairs)
        self.at(self.dice.choice((100, 800, 1_700, 2_500, 4_000)), self.heal, pairs)

    def heal(self, pairs: list[tuple[str, str]]) -> None:
        if not self.frozen:
            self.cuts.difference_update(pairs)

    def newcomer(self) -> str:
        """A host with an empty disk."""
        name = f"{self.dice.choice('abcde')}.{len(self.nodes) + 1}"
        node = self.nodes[name] = Node(self, name, joins=True)
        node.start()
        return name

    # --- what is seen from above -----------------------------------------------------------------------------------

    def broken(self, text: str) -> None:
        self.history.broken.append(f"{text} (at {self.now})")

    def leader(self) -> Node | None:
        """The one with the newest term."""
        leaders = [node for node in self.nodes.values() if node.up and node.shard is not None and node.shard.leading]
        return max(leaders, key=lambda node: node.shard.term if node.shard else 0, default=None)

    def elected(self, node: Node, shard: Shard) -> None:
        """I1: one leader in a term. I4: what was committed before is in its log."""
        self.history.count("takeover")
        other = self.leaders.setdefault(shard.term, node.name)
        if other != node.name:
            self.broken(f"I1 {other} and {node.name} both lead term {shard.term}")
        if node.witness:
            self.broken(f"I1 {node.name} is a witness and leads")
        self.newest_term = max(self.newest_term, shard.term)
        if not self.calm:
            self.greet_leader(node, shard)
        replica = shard.replica
        index = max((index for term, index in self.reached.items() if term < shard.term), default=0)
        if replica.log.last < index:
            self.broken(f"I4 {node.name} leads term {shard.term} with {replica.log.last} entries of {index} committed before")
        elif index >= max(1, replica.log.first - 1) and replica.place(index).chain != self.chains[index]:
            self.broken(f"I4 {node.name} leads term {shard.term} with another entry {index}, which was committed before")

    def committed(self, node: Node, index: int, chain: bytes) -> None:
        assert node.shard is not None
        self.reached[node.shard.term] = max(index, self.reached.get(node.shard.term, 0))
        if self.chains.setdefault(index, chain) != chain:
            self.broken(f"I3 {node.name} has committed another entry {index}")

    # --- the run ---------------------------------------------------------------------------------------------------

    def members(self) -> list[Node]:
        """The full copies of the newest committed set."""
        leader = self.leader()
        if leader is None or leader.shard is None:
            return []
        config = leader.shard.replica.config
        names = [name for name in (*config.voters, *config.learners) if name not in config.witnesses]
        return [self.nodes[name] for name in names if not self.nodes[name].dead]

    def core(self) -> list[Node]:
        """As few copies as could decide, whoever of them knows the newest voters."""
        intact = [node for node in self.nodes.values() if not node.dead]
        for node in intact:
            node.start()
            if node.shard is None and not node.dead:  # its commit failed just now
                node.open()
        if self.kind in ("pair", "standby", "grow"):
            return [node for node in intact if not node.dead]
        configs = [node.shard.replica.config for node in intact if node.shard is not None]
        core = [node for node in intact if not node.dead]  # some of them could not be read
        self.dice.shuffle(core)
        for node in list(core):
            rest = {other.name for other in core if other is not node}
            if all(2 * len(rest.intersection(config.voters)) > len(config.voters) for config in configs):
                core.remove(node)
        return core

    def run(self) -> History:
        try:
            self._run()
        except Storm as error:
            self.broken(f"L3 {error}")
        return self.history

    def _run(self) -> None:
        self.run_until(FOUND_MS, lambda: bool(self.admin.partition))
        self.at(self.dice.randrange(100, 2_500), self.strike)
        self.run_until(self.now + self.fault_ms)
        self.calm = True
        core = self.core()
        self.frozen = {node.name for node in self.nodes.values() if node not in core}
        names = {node.name[0] for node in core} | {"x"}
        self.cuts = {pair for pair in self.cuts if not names.issuperset(pair)}
        for node in core:
            node.paused_until = min(node.paused_until, self.now)
            node.wake_at = None
            node.start()
            self.wake(node, 0)
        for node in self.nodes.values():
            if node not in core:
                if self.dice.random() < 0.5 and node.up:
                    node.crash()
                else:
                    node.paused_until = self.now + LIVENESS_MS
        self.operator.stopped = True
        if self.admin.partition or self.run_until(self.now + LIVENESS_MS, lambda: bool(self.admin.partition)):
            self._prove_alive()
        else:
            self.broken("L2 no topic could be made after the faults ended")
        self._rest()

    def _prove_alive(self) -> None:
        probe = self.parties["probe"] = Probe(self)
        if not self.run_until(self.now + LIVENESS_MS, lambda: probe.confirmed):
            self.broken(f"L2 nothing is confirmed {LIVENESS_MS} ms after a majority was healed")

    def _rest(self) -> None:
        """All heal, the clients end, the copies come to agree."""
        for party in self.parties.values():
            party.stopped = True
        self.cuts, self.frozen = set(), set()
        for node in self.nodes.values():
            node.paused_until = min(node.paused_until, self.now)
            node.wake_at = None
            node.start()
            self.wake(node, 0)

        def level() -> bool:
            members = self.members()
            tips = {node.shard.ledger.applied if node.shard is not None else -1 for node in members}
            leader = self.leader()
            last = leader.shard.replica.log.last if leader is not None and leader.shard is not None else -2
            return tips == {last}

        end_ms = self.now + 2 * REST_MS
        while not self.run_until(self.now + REST_MS, level) and self.now < end_ms:
            pass
        for node in self.members():
            if node.shard is None or node.shard.replica.hollow:
                self.broken(f"P17 {node.name} has no state when all is quiet")
            else:
                self.history.copies.append(node.dump())


def run(seed: int, adversary: bool = False) -> History:
    """`adversary`: there is one, whatever the seed says."""
    with small():
        world = World(seed, ADVERSARY_MS if adversary else FAULT_MS)
        world.adversary |= adversary
        return world.run()
