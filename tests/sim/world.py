"""A cluster of one shard or several, made from one seed: the real core on a network, disks and clocks that
fail. The same seed gives the same run.

A run has three parts:

- *Safety*: each kind of fault can occur at any time.
- *Liveness*: a majority is healed, and the other copies stay in their faults. A new publish must be
  confirmed.
- *Rest*: all copies are healed and the clients stop. The copies must agree in the end.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from random import Random
from typing import Any

from gossipq.core.copies.placement import Target
from gossipq.core.ledger import JoinName, records
from gossipq.core.raft.campaign import may_stand
from gossipq.core.shard import Shard
from gossipq.core.storage import payloads
from gossipq.core.storage.log import Entry
from gossipq.messages import Publish
from gossipq.types import Origin
from gossipq.values import Message
from gossipq.wire import batch as batches
from sim.accounts import accounts
from sim.clients import SHARDED, Admin, Consumer, Drainer, Mover, Operator, Party, Publisher, Reader
from sim.cluster import WITNESS, Chief, Clone, Doorman
from sim.divided import Divided, limited_parties
from sim.faults import Faults
from sim.history import History
from sim.in_turn import Paces
from sim.jobs import job_parties
from sim.joining import JOINS_SHARE, Joiner
from sim.names import NAMES_SHARE, name_parties
from sim.node import WALL_MS, Node
from sim.plans import PLANS_SHARE, Planner
from sim.progress import PROGRESS_SHARE
from sim.results import RESULTS_SHARE, Asker
from sim.rivals import Liar, Rival
from sim.small import small

FOUND_MS = 6_000  #: a run begins without faults, so that it has records to lose
FAULT_MS = 10_000
ADVERSARY_MS = 14_000
LIVENESS_MS = 12_000  #: for a new confirm once a majority is healed; the timers need half of it
STEADY_MS = 10_000  #: after that, while the disk of a minority is full
FULL_SHARE = 0.3  #: the share of the other nodes whose disk is full in this part
GAP_MS = 4_000  #: the longest time without a confirm in this part
REST_MS = 25_000
QUIET_MS = 5_000  #: until silent sessions have ended, and rows of removed topics are swept
DRAIN_MS = 40_000  #: the longest time in which no cursor of a group moves
DRAINS_MAX = 4
JOINED_MS = 30_000  #: until a leader has asked again for each part
LOOK_MS = 2_000  #: an expired record may wait for this time
DUE_MS = 3_000  #: a record that became due may wait this long for a consumer
EVENTS_MAX = 200_000  #: per shard; most runs need 20,000, one that drains 22 groups over five copies 110,000
FIXED = ("trio", "trio", "trio", "five", "grow", "pair", "standby")  #: an operator names the copies
#: the roster does: as for the meta shard, as for any other one, and as for both and more in one cluster
STEERED = ("roster", "roster", "drift", "moving", "moving")
STORMY = FIXED + STEERED + SHARDED
STEERED_MS = 20_000


class Storm(Exception):
    """Messages cause more messages without end."""


class Probe(Party):
    """A client that publishes once more after the faults, to see whether that is confirmed."""

    def __init__(self, world: "World", number: int) -> None:
        """`number`: the partition of the common topic."""
        super().__init__(world, f"probe-{number}")
        self.partition, self.shard = world.admin.home(number)
        self.value = b"probe-%d-%d" % (number, world.now)
        self.batch = bytes(
            batches.seal([self.value], producer=self.name.encode().ljust(16, b"."), sequence=1)
        )
        world.history.attempted.add(self.value)
        self.confirmed = self.steady = False
        self.sequence, self.heard_ms, self.gap_ms = 1, 0, 0
        self.before = 0  #: the last request of the batch before this one
        self.look()

    def goes_on(self) -> None:
        """Publish one after the other from now on, and measure the longest time without a confirm."""
        self.steady, self.heard_ms = True, self.world.now
        self.next()

    def next(self) -> None:
        self.sequence, self.confirmed, self.before = self.sequence + 1, False, self.requests
        value = b"%s-%d" % (self.value, self.sequence)
        self.world.history.attempted.add(value)
        producer = self.name.encode().ljust(16, b".")
        self.batch = bytes(batches.seal([value], producer=producer, sequence=self.sequence))
        self.look()

    def look(self) -> None:
        if not self.confirmed and not self.stopped:
            names = self.world.addresses()  # in turn, not by chance: the check must not fail by bad luck
            self.node = names[self.requests % len(names)]
            self.ask(Publish(self.partition), self.batch)
            self.world.at(200, self.look)

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if self.confirmed or request_id <= self.before or not isinstance(answer, tuple):
            return
        self.confirmed = True
        if self.steady:
            self.gap_ms, self.heard_ms = max(self.gap_ms, self.world.now - self.heard_ms), self.world.now
            self.world.at(100, self.next)


def electable(shards: Iterable[Shard]) -> bool:
    """Return whether one of these copies can be elected: a majority of its voters is here, with logs that are
    not newer than its own."""
    replicas = [shard.replica for shard in shards]
    places = {replica.me: (replica.log.term, replica.log.last) for replica in replicas}
    for replica in filter(may_stand, replicas):
        voters = replica.config.voters
        votes = sum(name in places and places[name] <= places[replica.me] for name in voters)
        if 2 * votes > len(voters):
            return True
    return False


class World:
    def __init__(self, seed: int, fault_ms: int = FAULT_MS) -> None:
        self.seed, self.fault_ms = seed, fault_ms
        self.dice = Random(f"world/{seed}")
        self.now = 0
        #: when, how many came before (so that nothing after it is compared), what
        self.events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.count = 0
        self.history = History()
        self.paces = Paces()
        self.divided = Divided()
        self.history.wall_ms = WALL_MS
        self.nodes: dict[str, Node] = {}
        self.parties: dict[str, Party] = {}
        self.leaders: dict[tuple[int, int], str] = {}  #: shard, term -> who
        #: shard -> term -> timer time minus true time, when its leader began to serve
        self.timers: dict[int, dict[int, int]] = {}
        self.newest_term: Counter[int] = Counter()  #: by shard
        self.chains: dict[tuple[int, int], bytes] = {}  #: of committed entries, by shard and index
        self.reached: dict[tuple[int, int], int] = {}  #: shard, term -> highest index committed in it
        self.founded = self.calm = False
        self.moved = True  #: the present event may have changed the condition of `run_until`
        self._standing: tuple[int, dict[int, Target]] = (0, {})
        self.frozen: set[str] = set()
        self.full = False  #: some of these have a full disk
        self.faults = Faults(self, self.dice)
        self.kind = self.dice.choice(STORMY)
        self.steered = self.kind in STEERED
        self.shards = 3 if self.kind in (*SHARDED, "moving") else 1
        self.partitions = max(1, self.shards - 1)  #: of the topic that all use: one in each data shard
        self.copies = 5 if self.kind == "five" or (self.steered and self.dice.random() < 0.2) else 3
        #: shards whose plans are followed by those that there are
        self.planned = {"drift": (3,), "moving": (0, 3, 5)}.get(self.kind, (0,))
        self.replace_ms = self.dice.choice((3_000, 6_000, 10**9)) if self.kind == "roster" else 10**9
        self.fault_ms = max(fault_ms, STEERED_MS) if self.steered else fault_ms
        self.hosts: dict[str, str] = {}  #: the node that runs on each
        self.lease_ms = self.dice.choice((400, 2_000, 30_000))
        self._found()
        self.history.retention_ms = self.dice.choice((0, 1_500, 600_000))
        self.admin = Admin(self, self.history.retention_ms)
        self.operator: Operator | Chief | Mover
        if self.steered:
            self.operator = Chief(self)
        elif self.shards > 1:
            self.operator = Mover(self)
        else:
            self.operator = Operator(self, self.dice.random() < 0.6 and self.kind not in ("pair", "standby"))
        self.history.keeps_results = Random(f"{seed}/results").random() < RESULTS_SHARE
        reports = Random(f"{seed}/progress").random() < PROGRESS_SHARE
        self.history.keeps_progress = reports and self.history.keeps_results
        pause_ms = self.dice.choice((50, 150, 400))
        parties: list[Party] = [
            self.admin,
            self.operator,
            Publisher(self, "p1", pause_ms),
            Publisher(self, "p2", pause_ms, self.partitions - 1),
        ]
        parties += [Consumer(self, "c1"), Consumer(self, "c2"), Reader(self)]
        if self.shards > 1:
            parties.append(Consumer(self, "c3", home=lambda: self.admin.home(1)))
        parties += limited_parties(self)
        if self.dice.random() < 0.5:
            parties += job_parties(self)
        if self.shards > 1 or self.dice.random() < 0.2:
            parties += [Rival(self, name) for name in ("rival-a", "rival-b")]
        if self.dice.random() < 0.3:
            parties.append(Liar(self))
        if Random(f"{seed}/names").random() < NAMES_SHARE:
            parties += name_parties(self)
        if Random(f"{seed}/plans").random() < PLANS_SHARE:
            parties.append(Planner(self))
        if self.history.keeps_results:
            parties.append(Asker(self))
        if Random(f"{seed}/joins").random() < JOINS_SHARE:
            parties.append(Joiner(self))
        self.parties = {party.name: party for party in parties}
        if self.steered:
            self.parties |= {"door-a": Doorman(self, "a"), "clone": Clone(self)}

    def _found(self) -> None:
        """Make the first copies. Several copies know each other's names from the beginning."""
        names = (
            "a"
            if self.steered
            else {"five": "abcde", "grow": "a", "pair": "abw", "standby": "ab"}.get(self.kind, "abc")
        )
        members = [f"{host}.1" for host in names]
        config = payloads.CopySet(members)
        if self.kind == "pair":
            config = payloads.CopySet(members, ["w.1"])
        elif self.kind == "standby":
            config, self.copies = payloads.CopySet(["a.1"], [], ["b.1"]), 1
        self.hosts = {name[0]: name for name in members}
        for name in members:
            node = self.nodes[name] = Node(self, name, joins=name != "a.1", witness=name in config.witnesses)
            if len(members) > 1:
                meta = records.Meta(
                    voters=config.voters, witnesses=config.witnesses, learners=config.learners
                )
                for disk in node.disks:
                    disk.state.put(records.META, records.encode(meta))
                    disk.commit()
            self.at(self.dice.randrange(100), node.start)

    # --- time -----------------------------------------------------------------------------------------------

    def at(self, delay_ms: int, call: Callable[..., None], *args: Any) -> None:
        self.count += 1
        heappush(self.events, (self.now + delay_ms, self.count, call, args))

    def wake(self, node: Node, delay_ms: int) -> None:
        """Run a turn of this node after `delay_ms` at the latest."""
        at = self.now + delay_ms
        if at < node.busy_until:
            at = node.busy_until
        if node.wake_at is None or at < node.wake_at:
            node.wake_at = at
            self.at(at - self.now, self._turn, node, at)

    def _turn(self, node: Node, at: int) -> None:
        if node.wake_at != at or not node.up:
            self.moved = False
            return
        node.wake_at = None
        if self.now < (until := max(node.paused_until, node.busy_until)):
            self.wake(node, until - self.now)
            self.moved = False
            return
        self.history.count("turn")
        node.turn()

    def run_until(self, end_ms: int, done: Callable[[], bool] | None = None) -> bool:
        events, count_max, is_first = self.events, self.shards * EVENTS_MAX, True
        while events and events[0][0] <= end_ms:
            self.now, _, call, args = heappop(events)
            self.moved = True
            call(*args)
            if done is not None and (self.moved or is_first):
                is_first = False
                if done():
                    return True
            if self.count > count_max:
                raise Storm(f"more than {count_max} events")
        self.now = max(self.now, end_ms)
        return done is None

    # --- the network ----------------------------------------------------------------------------------------

    def _deliver(
        self, source: str, target: str, node: Node | None, call: Callable[..., None], *args: Any
    ) -> None:
        """Deliver a message once, twice or not at all, each after a delay. `node` sends it at the end of its
        turn."""
        later_ms = node.took_ms if node is not None else 0
        for delay_ms in (0,) if source == target else self.faults.delays(source, target):
            if node is None:
                self.at(delay_ms, call, *args)
            else:
                self.at(later_ms + delay_ms, self._carried, node, self.now + later_ms, call, *args)

    @staticmethod
    def _carried(node: Node, sent_ms: int, call: Callable[..., None], *args: Any) -> None:
        """Deliver a message, unless the machine lost power while its kernel still had the message."""
        if not node.lost[0] <= sent_ms <= node.lost[1]:
            call(*args)

    def post_copy(
        self,
        source: Node,
        target: str,
        shard: int,
        term: int,
        message: Message,
        entries: list[Entry],
        rows: bytes,
    ) -> None:
        if target == source.name:
            self.at(0, self._arrive, target, (shard, "copy", term, message, entries, rows))
        else:
            for entry in entries:
                self.history.count(f"entry {entry.kind}")
            entries, rows = self.faults.garbled(entries, rows)
            item = shard, "copy", term, message, entries, rows
            self._deliver(source.name[0], target[0], source, self._arrive, target, item)

    def post_request(
        self, sender: str, target: str, shard: int, request_id: int, message: Message, batch: bytes
    ) -> None:
        place = self.parties[sender].place if sender in self.parties else "x"
        item = shard, "client", sender, request_id, message, batch, self.now
        self._deliver(place, target[0], None, self._arrive, target, item)

    def post_client(self, source: Node, origin: Origin, request_id: int, term: int, answer: Any) -> None:
        name = origin[0].decode()
        place = self.parties[name].place if name in self.parties else "x"
        what = name, source.name, request_id, term, answer, self.now + source.took_ms
        self._deliver(source.name[0], place, source, self._answer, *what)

    def _arrive(self, target: str, item: tuple[object, ...]) -> None:
        self.moved = False
        node = self.nodes.get(target)
        if node is not None and node.up:
            node.inbox.append(item)
            self.wake(node, self.dice.randrange(2))

    def _answer(self, name: str, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if name in self.parties:
            self.parties[name].receive(node, request_id, term, answer, sent_ms)

    def addresses(self) -> list[str]:
        """Return the nodes that are not dead; all nodes if all are dead, whose clients then get no answer."""
        return [node.name for node in self.nodes.values() if not node.dead] or list(self.nodes)

    # --- hosts ----------------------------------------------------------------------------------------------

    def restart_later(self, node: Node) -> None:
        if node.name not in self.frozen:
            self.at(self.dice.choice((20, 100, 500, 2_500)), node.start)

    def host(self, name: str) -> Node | None:
        """Return the node of a host, unless it is dead."""
        node = self.nodes.get(self.hosts.get(name, ""))
        return node if node is not None and not node.dead else None

    def start_host(self, host: str) -> None:
        """Start a node with an empty disk on a host that has no living node."""
        name = self.hosts[host] = f"{host}.{len(self.nodes) + 1}"
        node = self.nodes[name] = Node(self, name, joins=True, witness=host == WITNESS)
        node.start()
        if f"door-{host}" not in self.parties:
            self.parties[f"door-{host}"] = Doorman(self, host)

    def end_politely(self, host: str) -> None:
        """End a node as SIGTERM does: it hands its shards over, ends, and starts again later."""
        node = self.host(host)
        if node is not None and node.up and node.paused_until <= self.now:
            node.end_politely()
            self.at(self.dice.randrange(100, 1_500), self._ended, node)

    def _ended(self, node: Node) -> None:
        if node.up and not self.calm:
            node.crash()
            self.restart_later(node)
        for shard in node.shards():
            shard.leave(False)

    def newcomer(self) -> str:
        """Start a node with an empty disk on any host, and return its name."""
        name = f"{self.dice.choice('abcde')}.{len(self.nodes) + 1}"
        node = self.nodes[name] = Node(self, name, joins=True)
        node.start()
        return name

    # --- what is seen from above ----------------------------------------------------------------------------

    def broken(self, text: str) -> None:
        self.history.broken.append(f"{text} (at {self.now})")

    def leader(self, shard: int = 0) -> Node | None:
        """Return the leader of the newest term. A leader that was cut off may still lead an older one."""
        newest, leader = -1, None
        for node in self.nodes.values():
            found = node.shard_of(shard) if node.up else None
            if found is not None and found.leading and found.term > newest:
                newest, leader = found.term, node
        return leader

    def standing_target(self, shard: int) -> Target:
        """Return the target of a shard in a run whose copies stay: each shard prefers another leader."""
        if self._standing[0] != len(self.nodes):
            names = sorted(self.nodes)
            turned = {each: Target([*names[each:], *names[:each]], [], []) for each in range(self.shards)}
            self._standing = len(names), turned
        return self._standing[1][shard]

    def elected(self, node: Node, shard: Shard) -> None:
        """I1: a term has one leader. I4: its log has all entries that were committed before."""
        self.history.count("takeover")
        other = self.leaders.setdefault((shard.id, shard.term), node.name)
        if other != node.name:
            self.broken(f"I1 {other} and {node.name} both lead term {shard.term}")
        if node.witness:
            self.broken(f"I1 {node.name} is a witness and leads")
        self.newest_term[shard.id] = max(self.newest_term[shard.id], shard.term)
        if self.founded and not self.calm:
            self.faults.greet_leader(node, shard)
        replica = shard.replica
        index = max(
            (index for (id, term), index in self.reached.items() if id == shard.id and term < shard.term),
            default=0,
        )
        if replica.log.last < index:
            self.broken(
                f"I4 {node.name} leads term {shard.term} with {replica.log.last} entries of {index} "
                "committed before"
            )
        elif (
            index >= max(1, replica.log.first - 1)
            and replica.point(index).chain != self.chains[shard.id, index]
        ):
            self.broken(
                f"I4 {node.name} leads term {shard.term} with another entry {index}, which was committed "
                "before"
            )

    def committed(self, node: Node, shard: Shard, index: int, chain: bytes) -> None:
        name = shard.id, shard.term
        self.reached[name] = max(index, self.reached.get(name, 0))
        if self.chains.setdefault((shard.id, index), chain) != chain:
            self.broken(f"I3 {node.name} has committed another entry {index}")

    # --- the run --------------------------------------------------------------------------------------------

    def members(self, shard: int = 0) -> list[Node]:
        """Return the living nodes with full copies of the newest committed set."""
        leader = self.leader(shard)
        led = leader.shard_of(shard) if leader is not None else None
        if led is None:
            return []
        config = led.replica.config
        names = [name for name in (*config.voters, *config.learners) if name not in config.witnesses]
        return [self.nodes[name] for name in names if not self.nodes[name].dead]

    def core(self) -> list[Node]:
        """Return a smallest set of nodes that can elect a leader and commit, in each shard."""
        intact = [node for node in self.nodes.values() if not node.dead]
        for node in intact:
            node.start()
            if not node.shards():  # it was down, or its commit failed just now
                node.read()
        configs = [shard.replica.config for node in intact for shard in node.shards()]
        if self.kind in ("pair", "standby", "grow") or any(config.witnesses for config in configs):
            # a witness and a copy that is behind cannot elect a leader with all records
            return [node for node in intact if not node.dead]
        sets = [voters for node in intact for shard in node.shards() for voters in self.may_vote(shard)]
        core = [node for node in intact if not node.dead]  # reading may have found a damaged disk
        self.dice.shuffle(core)
        for node in list(core):
            rest = [other for other in core if other is not node]
            names = {other.name for other in rest}
            decides = all(2 * len(names & voters) > len(voters) for voters in sets)
            if decides and all(electable(self.copies_among(rest, id)) for id in range(self.shards)):
                core.remove(node)
        return core

    @staticmethod
    def copies_among(nodes: list[Node], shard: int) -> list[Shard]:
        return [found for node in nodes if (found := node.shard_of(shard)) is not None]

    def may_vote(self, shard: Shard) -> list[set[str]]:
        """Return the sets of voters that may decide: those that this copy knows, and those after the next
        step of the roster. A leader may take that step at once, even if a voter has just become
        unreachable."""
        config, target = shard.replica.config, shard.target
        voters = set(config.voters)
        joined = [voters | {name} for name in config.learners if voters and self.steered]
        left = [voters - {name} for name in config.voters if target is not None and name not in target.voters]
        return [some for some in (voters, *joined, *left) if some]

    def run(self) -> History:
        try:
            self._run()
        except Storm as error:
            self.broken(f"L3 {error}")
        return self.history

    def _run(self) -> None:
        self.run_until(FOUND_MS, lambda: bool(self.admin.places))
        self.founded = True
        self.at(self.dice.randrange(100, 2_500), self.faults.strike)
        self.run_until(self.now + self.fault_ms)
        self.calm = True
        core = self.core()
        # a hollow copy counts for a majority when it has its snapshot, which takes as long again
        hollow = any(shard.replica.hollow for node in core for shard in node.shards())
        patience_ms = (1 + hollow) * LIVENESS_MS
        self.frozen = {node.name for node in self.nodes.values() if node not in core}
        names = {node.name[0] for node in core} | {"x"}
        self.faults.cuts = {pair for pair in self.faults.cuts if not names.issuperset(pair)}
        for node in core:
            node.paused_until = min(node.paused_until, self.now)
            node.start()
            self.wake(node, 0)
        for node in self.nodes.values():
            if node not in core:
                choice = self.dice.random()
                if choice < FULL_SHARE:
                    self.faults.full[node.name] = self.now + patience_ms + LIVENESS_MS
                    self.full = True
                elif choice < (1 + FULL_SHARE) / 2 and node.up:
                    node.crash()
                else:
                    node.paused_until = self.now + patience_ms
        self.operator.stopped = True
        if self.admin.places or self.run_until(self.now + LIVENESS_MS, lambda: bool(self.admin.places)):
            self._prove_alive(patience_ms)
        else:
            self.broken("L2 no topic could be made after the faults ended")
        self._rest()

    def _prove_alive(self, patience_ms: int) -> None:
        """L2, L5: check that every shard with records confirms a new publish."""
        probes = [Probe(self, number) for number in range(len(self.admin.places))]
        self.parties |= {probe.name: probe for probe in probes}
        if not self.run_until(self.now + patience_ms, lambda: all(probe.confirmed for probe in probes)):
            silent = [probe.shard for probe in probes if not probe.confirmed]
            self.broken(f"L2 shards {silent} confirm nothing {patience_ms} ms after a majority was healed")
            return
        if not self.full:
            return
        for probe in probes:
            probe.goes_on()
        self.run_until(self.now + STEADY_MS)
        for probe in probes:
            if self.now - probe.heard_ms > GAP_MS or probe.gap_ms > GAP_MS:
                gap_ms = max(probe.gap_ms, self.now - probe.heard_ms)
                self.broken(
                    f"L5 shard {probe.shard} confirms nothing for {gap_ms} ms, and only one disk is full"
                )

    def arrived(self, shard_id: int) -> bool:
        """Return whether the copies of a shard are those of its target. True also if one of them is dead for
        good, because the shard cannot finish its move then."""
        leader = self.leader(shard_id)
        shard = leader.shard_of(shard_id) if leader is not None else None
        if shard is None or shard.target is None:
            return False
        target, config = shard.target, shard.replica.config
        if any(
            self.nodes[name].dead
            for name in (*target.voters, *target.learners, *config.voters, *config.learners)
        ):
            return True
        steering, now_ms = shard.reconfiguration, shard.replica.now_ms
        if len(target.voters) == 1 and steering.lost_leadership_often(target.voters[0], now_ms):
            return True  # leadership failed too often there, so the standby keeps it
        return (config.voters, set(config.learners)) == (target.voters, set(target.learners))

    def level(self, shard: int) -> bool:
        """Return whether all copies of a shard have applied the whole log and swept the rows of removed
        topics."""
        leader = self.leader(shard)
        led = leader.shard_of(shard) if leader is not None else None
        members = [node.shard_of(shard) for node in self.members(shard)]
        tips = {copy.ledger.applied if copy is not None else -1 for copy in members}
        swept = not any(copy is not None and copy._sweeper.behind for copy in members)
        return led is not None and swept and tips == {led.replica.log.last}

    def _rest(self) -> None:
        """Heal all, stop the clients, and check that the copies agree."""
        self.faults.full.clear()
        for party in self.parties.values():
            party.stopped = not isinstance(party, Doorman)  # a node reports its address as long as it runs
        self.faults.cuts, self.frozen = set(), set()
        for node in self.nodes.values():
            node.paused_until = min(node.paused_until, self.now)
            node.start()
            self.wake(node, 0)

        self._agree()
        for shard_id in range(self.shards) if self.steered else ():
            if not self.arrived(shard_id):
                leader = self.leader(shard_id)
                shard = leader.shard_of(shard_id) if leader is not None else None
                has, wanted = (shard.replica.config, shard.target) if shard is not None else (None, None)
                self.broken(f"L4 the copies of shard {shard_id} are not in their places: {has}, not {wanted}")
        self._drain()
        self.history.end_ms = self.now
        for node in self.nodes.values():
            self.history.lent |= Counter(node.loans.most)
        for shard_id in range(self.shards):
            for node in self.members(shard_id):
                copy = node.shard_of(shard_id)
                if copy is None or copy.replica.hollow:
                    self.broken(f"P17 {node.name} has no state of shard {shard_id} when all is quiet")
                else:
                    self.history.copies.append(node.dump(copy))
                    for text in accounts(copy, node.disks[shard_id]):
                        self.broken(f"P14 {node.name}, shard {shard_id}: {text}")

    def _agree(self) -> None:
        """Wait until all copies have the whole log and are in their places. The checks after it report those
        that are not."""

        def level() -> bool:
            if not all(map(self.level, range(self.shards))):
                return False
            return not self.steered or all(map(self.arrived, range(self.shards)))

        self.run_until(self.now + 2 * REST_MS, level)

    def _drain(self) -> None:
        """L6: a consumer that takes all records of a group gets every record that waits. P12: no expired
        record waits."""
        self.run_until(self.now + QUIET_MS)
        outlived = {*self._outlived()}
        self.run_until(self.now + LOOK_MS)
        for partition, group, offset in sorted(outlived.intersection(self._outlived())):
            self.broken(f"P12 {offset} of {partition} waits in {group}, and has expired")
        for shard_id in range(self.shards):
            leader = self.leader(shard_id)
            shard = leader.shard_of(shard_id) if leader is not None else None
            self._check_ticks(shard)
            if shard is None:
                self.broken(f"L6 nobody leads shard {shard_id} when all is quiet")
                return
            for group in list(shard.ledger.groups.values()):
                found = [at for at, cursors in shard.ledger.cursors.items() if group.id in cursors]
                if found:
                    drainer = Drainer(self, shard_id, group, found)
                    self.parties[drainer.name] = drainer
        end_ms, passed, moved_ms = self.now + DRAINS_MAX * DRAIN_MS, self._passed(), self.now
        while (left := [*self._undone()]) and self.now < min(end_ms, moved_ms + DRAIN_MS):
            self.run_until(self.now + 500)
            if self._passed() > passed:
                passed, moved_ms = self._passed(), self.now
        for text in left:
            self.broken(f"L6 {text}")
        if self.history.joins:
            self._close_joins()
        for party in self.parties.values():
            party.stopped |= isinstance(party, Drainer)
        self._agree()
        self.run_until(self.now + QUIET_MS)
        self._agree()  # a leader may have logged entries in the last moment

    def _close_joins(self) -> None:
        """P30: the record of a join is published when its jobs have ended."""
        self.run_until(self.now + JOINED_MS, lambda: not self._open_joins())
        for name in self._open_joins():
            self.broken(f"P30 {name} waits when all is quiet")

    def _open_joins(self) -> list[JoinName]:
        """Return the joins of the leaders."""
        led = [
            node.shard_of(shard) for shard in range(self.shards) if (node := self.leader(shard)) is not None
        ]
        return [name for shard in led if shard is not None for name in shard.ledger.joins.rows]

    def _check_ticks(self, shard: Shard | None) -> None:
        """P24: when all is quiet, no tick of a schedule is late."""
        for name, row in shard.ledger.timetable.rows.items() if shard is not None and shard.serving else ():
            late_ms = shard.desk.leader_ms - row.after_ms - row.schedule.every_ms - row.schedule.jitter_ms
            if late_ms > DUE_MS:
                self.broken(f"P24 the next tick of {name.name} is {late_ms} ms late when all is quiet")

    def _outlived(self) -> Iterator[tuple[int, str, int]]:
        """Jobs that wait in a group of a leader though their time to live is over: partition, group,
        offset."""
        for shard_id in range(self.shards):
            leader = self.leader(shard_id)
            shard = leader.shard_of(shard_id) if leader is not None else None
            if leader is None or shard is None or not shard.serving:
                continue
            for partition, groups in shard.ledger.cursors.items():
                over = leader.jobs_over(shard, partition, shard.desk.leader_ms)
                for group_id, cursor in groups.items() if over else ():
                    view = shard.dispatch.groups[group_id].views[partition]
                    held = {at for low, high, _ in view.window.overlap(0, 2**62) for at in range(low, high)}
                    rows = {at for each in cursor.exceptions.scan() for at in range(each.first, each.end)}
                    left = {at for at in over if cursor.fresh(at, at + 1)} | rows & over
                    name = shard.ledger.groups[group_id].name
                    yield from ((partition, name, at) for at in left - held)

    def _passed(self) -> int:
        """Return how many records the cursors of all leaders have passed."""
        leaders = {shard: self.leader(shard) for shard in range(self.shards)}
        return sum(
            cursor.state.cursor
            for shard, leader in leaders.items()
            if leader is not None and (led := leader.shard_of(shard)) is not None
            for cursors in led.ledger.cursors.values()
            for cursor in cursors.values()
        )

    def _undone(self) -> Iterator[str]:
        """Yield a text for each record that is not done in a group of a leader."""
        for shard_id in range(self.shards):
            leader = self.leader(shard_id)
            shard = leader.shard_of(shard_id) if leader is not None else None
            if shard is None:
                yield f"nobody leads shard {shard_id}"
                continue
            for partition, cursors in shard.ledger.cursors.items():
                state = shard.ledger.partitions[partition]
                if state.scheduled:
                    yield f"{state.scheduled} records of {partition} have no offset"
                for cursor in cursors.values():
                    waiting = cursor.exceptions.retrying() if cursor.exceptional else ()
                    later = sum(
                        each.total for each in waiting if each.row.due_ms > shard.desk.leader_ms - DUE_MS
                    )
                    if count := cursor.behind(state.next) - later:
                        name = shard.ledger.groups[cursor.state.group_id].name
                        yield f"{count} records of {partition} come to nobody in {name}: {cursor.state}"


def run(seed: int, adversary: bool = False) -> History:
    """Run a seed. `adversary`: leaders fall at the worst moment, even if the seed does not choose that."""
    collects = gc.isenabled()
    # a run leaves a few megabytes in cycles; each collection would look at all objects that live to free them
    gc.disable()
    try:
        with small():
            world = World(seed, ADVERSARY_MS if adversary else FAULT_MS)
            world.faults.adversary |= adversary
            return world.run()
    finally:
        if collects:
            gc.enable()
