"""Clients that get in each other's way, and one that lies. Two or three of them at once create,
alter and remove the same topics, use topics that may be gone, and send all requests of operators.

Their requests need not succeed. But no copy may stop at any order of their entries in a log, all copies must
agree in the end, and removed topics must not leave rows.
"""

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gossipq import limits
from gossipq.export_messages import BackUp
from gossipq.messages import (
    Ack,
    Acked,
    BindTopic,
    Cancel,
    CreateTopic,
    Credit,
    DropTopic,
    Edit,
    Extend,
    ListDead,
    Nack,
    Publish,
    PurgeDead,
    RefusedMessage,
    ReplayDead,
    Requeue,
    Reschedule,
    Resolve,
    SetGroup,
    Subscribe,
    Subscribed,
    Topics,
    Unsubscribe,
    Why,
    WhyGroup,
)
from gossipq.operator_messages import DropGroup, PurgeTopic, SeekGroup, SetTopic, ShowGroup
from gossipq.types import DELAY, ID_HASH, KEY_HASH, META_SHARD, TTL, partition_key, topic_id_of
from gossipq.values import GroupConfig, GroupOptions, Message, Ref, Start, TopicInfo, TopicOptions
from gossipq.wire import batch as batches
from sim.clients import Party
from sim.history import LOOSE, RIVAL, AckConfirmed, Pushed, TopicSaid, TopicUsed

if TYPE_CHECKING:
    from sim.world import World

NAMES = tuple(f"{RIVAL}-{number}" for number in range(3))
VIRTUAL = f"{RIVAL}-virtual"
GROUPS = ("left", "right")
MODES = ("shared", "shared", "exclusive", "key_ordered")
KNOWN_MAX = 8  #: topics and records that a rival remembers


class Rival(Party):
    """Sends requests to the register and to shards without waiting, also about topics that it
    knew and that may be gone.
    """

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.group = GROUPS[0]
        self.topics: list[TopicInfo] = []
        self.refs: list[Ref] = []
        self.shards: dict[int, int] = {}  #: partition -> shard
        self.heard: dict[str, dict[int, int]] = {}  #: name -> id -> when it was heard of
        self.asked: dict[int, tuple[int, Message]] = {}
        self.made = 0
        world.at(self.dice.randrange(1_000), self.look)

    def look(self) -> None:
        if self.stopped:
            return
        for _ in range(self.dice.choice((1, 2, 2, 3))):
            self.register() if not self.topics or self.dice.random() < 0.2 else self.use()
        self.world.at(self.dice.randrange(50, 700), self.look)

    def say(self, shard: int, message: Message, batch: bytes = b"") -> None:
        leader = self.world.leader(shard)
        away = leader is None or self.dice.random() < 0.1
        self.node = self.dice.choice(self.world.addresses()) if away or leader is None else leader.name
        self.shard = shard
        self.asked[self.ask(message, batch)] = self.world.now, message

    # --- the register ---------------------------------------------------------------------------------------

    def register(self) -> None:
        dice, name = self.dice, self.dice.choice(NAMES)
        options = TopicOptions(
            partitions=dice.choice((1, 1, 2)),
            ttl_ms=dice.choice((0, 0, 400)),
            expire="dead",
            attempts_max=1,
            backoff_ms=[100],
            retention_ms=dice.choice((None, None, 0, 500)),
            bytes_max=dice.choice((None, None, 900)),
            overflow=dice.choice((None, "drop_oldest")),
            dedup_count=dice.choice((None, 4)),
            dedup_ms=dice.choice((None, 500)),
            group_idle_ms=dice.choice((None, None, 1_000)),
        )
        asks: tuple[Callable[[], Message], ...] = (
            lambda: CreateTopic(name, options, if_not_exists=dice.random() < 0.7),
            lambda: CreateTopic(name, options, if_not_exists=True),
            lambda: Resolve([name], create=dice.random() < 0.5),
            lambda: DropTopic(name),
            lambda: SetTopic(name, TopicOptions(ttl_ms=dice.choice((0, 200, 60_000)))),
            lambda: BindTopic(VIRTUAL, dice.sample(NAMES, 2)),
            lambda: DropTopic(VIRTUAL),
        )
        self.say(META_SHARD, dice.choice(asks)())

    def learned(self, info: TopicInfo, asked_ms: int, sent_ms: int) -> None:
        self.world.history.topics.append(TopicSaid(asked_ms, sent_ms, info.name, info.id))
        self.heard.setdefault(info.name, {}).setdefault(info.id, self.world.now)
        self.shards |= {partition_key(info.id, i): shard for i, shard in enumerate(info.shards)}
        if info.shards and all(known.id != info.id for known in self.topics):
            self.topics = [*self.topics, info][-KNOWN_MAX:]

    # --- what a shard does ----------------------------------------------------------------------------------

    def use(self) -> None:
        dice = self.dice
        info = dice.choice(self.topics)
        number = dice.randrange(len(info.shards))
        partition, group = partition_key(info.id, number), dice.choice(GROUPS)
        own = [ref for ref in self.refs if ref.partition == partition]
        ref = dice.choice(own) if own else Ref(partition, dice.randrange(4))
        waits = next((each for each in own if each.offset < 0), ref)  # a scheduled one
        first = max(0, ref.offset) + dice.randrange(3)
        rows = [(partition, first, first + dice.randrange(1, 4))]
        starts = [Start(partition, "offset", dice.randrange(6))]
        asks: tuple[Callable[[], tuple[Message, bytes]], ...] = (
            lambda: (Publish(partition), self.records()),
            lambda: (Publish(partition), self.records()),
            lambda: (Publish(partition), self.records()),
            lambda: (self.subscription(partition), b""),
            lambda: (self.subscription(partition), b""),
            lambda: (Unsubscribe(1), b""),
            lambda: (Ack(1, rows), b""),
            lambda: (Nack(1, rows, failed=dice.random() < 0.5), b""),
            lambda: (Extend(1, rows, 500), b""),
            lambda: (Publish(partition, subscription=1, acks=rows), self.records()),
            lambda: (SetGroup(info.id, group, GroupOptions(lease_ms=dice.choice((300, 3_000)))), b""),
            lambda: (SetGroup(info.id, group, GroupOptions(paused=dice.random() < 0.3)), b""),
            lambda: (SeekGroup(info.id, group, starts, config=dice.choice((None, GroupConfig()))), b""),
            lambda: (DropGroup(info.id, group, dead=dice.random() < 0.5), b""),
            lambda: (ShowGroup(info.id, group), b""),
            lambda: (Cancel(ref, "no more"), b""),
            lambda: (Edit(ref), self.records(1)),
            lambda: (Requeue(ref, group), b""),
            lambda: (Requeue(ref, group), b""),
            lambda: (Requeue(ref, group), b""),
            lambda: (Reschedule(waits, dice.choice((0, 700))), b""),
            lambda: (Reschedule(waits, dice.choice((0, 700))), b""),
            lambda: (Reschedule(waits, dice.choice((0, 700))), b""),
            lambda: (ReplayDead(partition, group), b""),
            lambda: (ReplayDead(partition, group), b""),
            lambda: (PurgeDead(partition, group), b""),
            lambda: (PurgeDead(partition, group), b""),
            lambda: (PurgeTopic(partition, dice.randrange(10)), b""),
            lambda: (ListDead(partition), b""),
            lambda: (Why(ref), b""),
            lambda: (WhyGroup(group, [partition]), b""),
            lambda: (BackUp(), b""),
        )
        if dice.random() < 0.1:
            # more records than one turn can handle when all of them fail or expire
            for _ in range(12):
                self.say(info.shards[number], Publish(partition), self.records(5))
        if dice.random() < 0.05:
            self.end(info, partition, info.shards[number])
        message, batch = dice.choice(asks)()
        self.say(info.shards[number], message, batch)

    def end(self, info: TopicInfo, partition: int, shard: int) -> None:
        """Removes the topic just as new groups subscribe."""
        self.say(META_SHARD, DropTopic(info.name))
        for number in range(8):
            start, group = [Start(partition)], f"late-{number}"
            message = Subscribe(1, group, start, 10, limits.MIB)
            self.world.at(self.dice.randrange(4, 40), self.say, shard, message)

    def records(self, count: int = 0) -> bytes:
        dice, count = self.dice, count or self.dice.choice((1, 1, 3))
        self.made += 1
        values = [b"%s-%s%d.%d" % (self.name.encode(), LOOSE, self.made, i) for i in range(count)]
        self.world.history.attempted.update(values)
        columns = {
            KEY_HASH: array("I", [dice.randrange(3)] * count),
            DELAY: array("q", [dice.choice((0, 500, 5_000))] * count),
            TTL: array("q", [dice.choice((0, 300))] * count),
            ID_HASH: array("Q", [dice.choice((0, dice.randrange(1, 12))) for _ in range(count)]),
        }
        fixed = {bit: column for bit, column in columns.items() if dice.random() < 0.3}
        return bytes(batches.seal(values, fixed=fixed))

    def subscription(self, partition: int) -> Subscribe:
        self.group = self.dice.choice(GROUPS)
        mode, lease_ms, window = map(self.dice.choice, (MODES, (300, 2_000), (None, 3)))
        options = GroupOptions(mode=mode, lease_ms=lease_ms, in_flight_max=window)
        return Subscribe(1, self.group, [Start(partition)], 10, limits.MIB, options)

    # --- what comes back ------------------------------------------------------------------------------------

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if isinstance(answer, Pushed):
            self.pushed(node, answer)
            return
        if request_id not in self.asked:
            return  # the answer to a request that arrived twice
        asked_ms, message = self.asked[request_id]
        history = self.world.history
        history.count(
            f"rival: {type(message).__name__} {'refused' if isinstance(answer, RefusedMessage) else 'done'}"
        )
        if isinstance(answer, Topics):
            for info in answer.topics:
                self.learned(info, asked_ms, sent_ms)
            # a name has one topic at a time, so the ones known before are gone
            if isinstance(message, DropTopic):
                for topic_id, heard_ms in self.heard.get(message.name, {}).items():
                    if heard_ms <= asked_ms:
                        history.topics.append(TopicSaid(asked_ms, sent_ms, message.name, -topic_id))
        elif isinstance(message, Publish) and isinstance(answer, tuple):
            self.published(message, answer, asked_ms, sent_ms)
        elif isinstance(message, Subscribe) and isinstance(answer, Subscribed):
            topic_id = topic_id_of(message.starts[0].partition)
            history.used.append(TopicUsed(asked_ms, sent_ms, topic_id, "a subscription"))

    def published(self, message: Publish, answer: Any, asked_ms: int, sent_ms: int) -> None:
        offset, _, runs, _ = answer
        topic_id = topic_id_of(message.partition)
        self.world.history.used.append(TopicUsed(asked_ms, sent_ms, topic_id, "a publish"))
        found = [Ref(message.partition, run.offset, run.index, run.record) for run in runs]
        self.remember(found or [Ref(message.partition, offset)])

    def pushed(self, node: str, pushed: Pushed) -> None:
        rows = [(pushed.partition, pushed.offset, pushed.offset + len(pushed.values))]
        self.remember([Ref(pushed.partition, pushed.offset)])
        choice, self.node, self.shard = self.dice.random(), node, self.shards.get(pushed.partition, 0)
        if choice < 0.4:
            self.ask(Ack(1, rows))
        elif choice < 0.7:
            self.ask(Nack(1, rows))
        elif choice < 0.8:
            self.ask(Publish(pushed.partition, subscription=1, acks=rows), self.records())
        self.ask(Credit(1, len(pushed.values), 1_000))

    def remember(self, refs: list[Ref]) -> None:
        self.refs = [*self.refs, *refs][-KNOWN_MAX:]


class Liar(Party):
    """A member of the group on the common topic that gets no records. It acks and claims the records of other
    members, which a leader must refuse."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "liar")
        self.group = "g"
        self.lies: dict[int, tuple[int, int, int]] = {}
        world.at(self.dice.randrange(2_000), self.look)

    def look(self) -> None:
        if self.stopped:
            return
        partition, self.shard = self.world.admin.home(0)
        leader = self.world.leader(self.shard)
        if partition and leader is not None:
            self.node = leader.name
            newest = max((row.offset for row in self.world.history.confirmed[-3:]), default=0)
            first = max(0, newest + self.dice.randrange(-3, 3))
            lie = partition, first, first + self.dice.randrange(1, 4)
            holding = [lie] if self.dice.random() < 0.3 else []
            options = GroupOptions(mode="shared", lease_ms=self.world.lease_ms)
            self.ask(Subscribe(1, self.group, [Start(partition)], 0, 0, options, holding=holding))
            self.lies[self.ask(Ack(1, [lie]))] = lie
        self.world.at(self.dice.randrange(200, 1_500), self.look)

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if request_id not in self.lies or not isinstance(answer, Acked):
            return
        partition, at, end = self.lies.pop(request_id)
        for _, first, last in [*sorted(answer.lost), (partition, end, end)]:
            if at < first:
                row = AckConfirmed(sent_ms, self.group, partition, at, min(first, end), term)
                self.world.history.acks.append(row)
            at = max(at, last)
