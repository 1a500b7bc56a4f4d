"""Several nodes' copies of one shard: real turns, messages that arrive at once, and a
clock that the test moves.
"""

from collections.abc import Callable

from core.seat import Seat
from gossipq.core.copies import Mail
from gossipq.core.copies.placement import plan
from gossipq.core.desk import Client
from gossipq.core.effects import Effects
from gossipq.core.ledger import records
from gossipq.core.raft import Replication
from gossipq.core.shard import Shard
from gossipq.core.storage.settings import ShardSettings
from gossipq.core.storage.tables import MemoryTables
from gossipq.errors import StoreError
from gossipq.messages import Join, Members, Publish
from gossipq.peer_messages import InstallTopic
from gossipq.types import Now, PartitionKey, partition_key
from gossipq.values import Member, Message, TopicConfig, TopicInfo
from gossipq.wire import batch as batches

ORIGIN = (b"c", b"op")
CLIENT = Client(b"op".ljust(16, b"."), "op")
STEP_MS = 50


def member(copy: str, **more: object) -> Member:
    return Member(copy, f"node-{copy}", f"tcp://{copy}:7700", 2, **more)  # type: ignore[arg-type]


class Fleet:
    """Copy `a` founds the cluster and the others join. Each copy takes its target from its
    own roster, as a node does.
    """

    def __init__(self, shard: int = 0, voters: str = "a", **settings: object) -> None:
        """With several `voters`, these are the copies from the beginning, and one of them leads."""
        self.shard, self._settings = shard, settings
        self.now = Now(1_000_000, 1_700_000_000_000)
        self.tables: dict[str, MemoryTables] = {}
        self.seats: dict[str, Seat] = {}
        self.away: set[str] = set()  #: names of copies that neither send nor receive
        self.wall_off: dict[str, int] = {}  #: copy -> error of its wall clock, in ms
        self.follow = shard == 0  #: take targets from the roster
        self.seen: dict[str, list[Effects]] = {}
        for name in voters:
            if len(voters) > 1:
                self.tables[name] = MemoryTables()
                self.tables[name].state.put(records.META, records.encode(records.Meta(voters=list(voters))))
            self.open(name)
        while not self.serving:
            self.run(STEP_MS)

    def open(self, name: str, witness: bool = False) -> Shard:
        """Starts a node on the disk of that name."""
        tables = self.tables.setdefault(name, MemoryTables())
        settings = ShardSettings(name, shards=4, joins=name != "a", witness=witness, **self._settings)  # type: ignore[arg-type]
        seat = self.seats[name] = Seat(name, self.shard, settings, tables, self.clock(name), self._post)
        self.seen.setdefault(name, []).extend(seat.seen)
        seat.seen = self.seen[name]
        seat.before = self._aim_by_roster
        return seat.shard

    @property
    def shards(self) -> dict[str, Shard]:
        return {name: seat.shard for name, seat in self.seats.items()}

    def clock(self, name: str) -> Now:
        return Now(self.now.boot_ms, self.now.wall_ms + self.wall_off.get(name, 0))

    @property
    def leader(self) -> Shard:
        leaders = [shard for name, shard in self.shards.items() if shard.leading and name not in self.away]
        assert leaders, "nobody leads"
        return max(leaders, key=lambda shard: shard.term)

    @property
    def led(self) -> Seat:
        """The seat of the leader."""
        return self.seats[self.leader.replica.me]

    @property
    def serving(self) -> bool:
        """Whether a leader that is not away takes publishes. During a hand-over none does."""
        return any(shard.serving for name, shard in self.shards.items() if name not in self.away)

    @property
    def config(self) -> tuple[list[str], list[str], list[str]]:
        config = self.leader.replica.config
        return config.voters, config.witnesses, config.learners

    def aim(self, *roster: Member) -> None:
        """Sets the target of every copy by hand."""
        targets = plan(roster, 4, 3)
        for shard in self.shards.values():
            shard.target = targets[self.shard]

    def _aim_by_roster(self, shard: Shard) -> None:
        if self.follow and shard.ledger.cluster.members:
            shard.target = plan(shard.ledger.cluster.members.values(), 4, 3)[self.shard]

    def turn(self, name: str) -> None:
        """Runs one turn of one copy. A copy outside its target that hears
        no leader asks the leader.
        """
        self.seats[name].run(self.clock(name))
        shard = self.shards[name]
        if shard.target is not None and name not in (*shard.target.voters, *shard.target.learners):
            question = shard.peers.stray(self.now.boot_ms)
            for leader in [other for other, asked in self.shards.items() if question and asked.leading]:
                self._post(name, leader, shard.term, Mail(leader, question))

    def _post(self, source: str, target: str, term: int, sent: Replication | Mail) -> None:
        if target in self.seats and not self.away & {source, target}:
            self.seats[target].hear(term, sent)

    def run(self, ms: int) -> None:
        for _ in range(ms // STEP_MS):
            self.now = Now(self.now.boot_ms + STEP_MS, self.now.wall_ms + STEP_MS)
            for name in list(self.seats):
                if name not in self.away:
                    self.turn(name)

    def ask(self, message: Message) -> Message:
        """Sends a request to the leader and returns the answer."""
        leader = self.leader
        seen = len(self.seen.get(leader.replica.me, []))
        self.tell(message)
        for _ in range(20):
            self.run(STEP_MS)
            for effects in self.seen[leader.replica.me][seen:]:
                for origin, _, answer in effects.replies:
                    if origin == ORIGIN:
                        return answer
        raise AssertionError(f"{message} was not answered")

    def join(self, name: str, **more: object) -> Message:
        """Starts a node and adds it to the roster."""
        if name not in self.seats:
            self.open(name, bool(more.get("witness")))
        return self.ask(Join(member(name, **more)))  # type: ignore[arg-type]

    def roster(self) -> dict[str, str]:
        return {copy: row.state for copy, row in self.leader.ledger.cluster.members.items()}

    def topic(self, **config: object) -> PartitionKey:
        """Creates the topic's only partition in this shard, as the register does."""
        info = TopicInfo(5, "orders", 1, TopicConfig(**config), [self.shard])  # type: ignore[arg-type]
        self.led.tell(InstallTopic(info))
        self.run(4 * STEP_MS)
        return partition_key(info.id, 0)

    def publish(self, partition: int, *values: bytes, level: str = "", **more: object) -> None:
        batch = bytes(batches.seal(list(values), **more))  # type: ignore[arg-type]
        self.led.publish(ORIGIN, 9, CLIENT, Publish(partition, level), batches.check(batch), batch)

    def tell(self, message: Message) -> None:
        """Queues a request for the leader's next turn; the answer is ignored."""
        self.led.step(ORIGIN, 7, CLIENT, message)

    def confirmed(self) -> int:
        return sum(
            len(rows) for seen in self.seen.values() for effects in seen for rows in effects.confirms.values()
        )


class FallibleFleet(Fleet):
    """Copies that fall. After a fall, a copy's disk holds only what its last commit wrote. `hear`
    gets the effects of each turn of a copy.
    """

    def __init__(self, shard: int, voters: str, hear: Callable[[str, list[Effects]], None]) -> None:
        self.disks: dict[str, MemoryTables] = {}
        self.hear = hear
        super().__init__(shard, voters)
        for seen in self.seen.values():
            seen.clear()

    def open(self, name: str, witness: bool = False) -> Shard:
        shard = super().open(name, witness)
        seat, tables, commit = self.seats[name], self.tables[name], self.seats[name].commit

        def committed() -> None:
            commit()
            self.disks[name] = tables.copy()

        seat.commit = committed  # type: ignore[method-assign]
        self.disks[name] = tables.copy()
        return shard

    def pass_time(self, ms: int) -> None:
        self.now = Now(self.now.boot_ms + ms, self.now.wall_ms + ms)

    def turns(self, *names: str) -> None:
        """Runs one turn of each copy that is not away."""
        for name in names:
            if name not in self.away:
                self.turn(name)
                heard, self.seats[name].seen[:] = list(self.seats[name].seen), []
                self.hear(name, heard)

    def take_turns(self, ms: int, slow: bool = False) -> None:
        """Runs a turn of the leader, then of all copies unless the others are `slow`,
        then of the leader again.
        """
        self.pass_time(ms)
        leading = self.led.name
        self.turns(leading)
        if not slow:
            self.turns(*self.seats)
            self.turns(leading)

    def lead(self) -> None:
        """Runs turns until a leader takes publishes."""
        for _ in range(400):
            self.pass_time(50)
            self.turns(*self.seats)
            if self.serving and self.led.shard.serving:
                return
        raise AssertionError("nobody leads")

    def settle(self) -> None:
        """Runs turns until a leader has applied all entries. A long backlog may
        need one entry for each step.
        """
        for _ in range(400):
            self.lead()
            self.take_turns(50)
            if self.serving and not list(self.leader.desk.unapplied):
                return
        raise AssertionError("entries are not applied")

    def refuse(self) -> None:
        """The disk refuses the commit of the leader's next turn, and the leader starts over."""
        seat = self.led

        def refused() -> None:
            raise StoreError("no space")

        seat.commit = refused  # type: ignore[method-assign]
        seat.abort = lambda: None  # type: ignore[method-assign]
        seat.refused = lambda error: None  # type: ignore[method-assign]
        self.turns(seat.name)
        self.start_over(seat.name)

    def start_over(self, name: str) -> None:
        self.tables[name] = self.disks[name].copy()
        self.open(name)

    def fall(self, elsewhere: bool) -> None:
        """The leader starts over from its disk, or another copy leads."""
        name = self.led.name
        if elsewhere:
            self.away = {name}
        else:
            self.start_over(name)
        self.lead()
        self.away = set()


def entered(answer: Message) -> Members:
    assert isinstance(answer, Members), answer
    return answer
