"""Clients of the simulated shards: they publish, consume, create topics and change voters.

A client sends a request again if it gets no answer, as a real client does."""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from gossipq import limits
from gossipq.core.ledger import GroupState
from gossipq.messages import (
    Ack,
    Acked,
    AckResults,
    Cancelled,
    CreateTopic,
    Credit,
    DropTopic,
    Nack,
    Publish,
    Recall,
    Recalled,
    RefusedMessage,
    Resolve,
    Share,
    Started,
    Subscribe,
    Subscribed,
    Topics,
)
from gossipq.peer_messages import ChangeVoters, Transfer
from gossipq.types import partition_key
from gossipq.values import GroupOptions, JobResult, Message, Range, ResultRun, Start, TopicOptions
from gossipq.wire import batch as batches
from sim.history import LOOSE, AckConfirmed, Confirmed, Pushed, Seen, TopicSaid
from sim.progress import Reports

if TYPE_CHECKING:
    from sim.world import World

SHARDED = ("shards",)  #: kinds of clusters: three shards, with three copies each
PATIENCE_MS = 400
CREDIT = 12
RUN = 3  #: the most records of a key that a consumer with runs of keys may hold
SOON_MS = 100  #: a consumer reports the beginning of longer work
# a message can be on its way for this time; a disk that is lost meanwhile could be one copy too many
SHRINK_MS = 6_000  #: after a request for fewer copies, no disk is lost for this time
PAUSE_MS = 500  #: of a flow
RESULT_KEPT_MS = 3_600_000  #: longer than a run
BATCHES_MAX = 50  #: of each publisher
LOOSE_SHARE = 0.2  #: share of batches behind which the publisher sends one without a confirm
GAP_SHARE = 0.1  #: share of batches behind which it sends one that a leader must refuse


class Party:
    """A client with an address, which asks one copy after the other until the leader answers."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.place = "x"  #: where it is, for the network: a host, or outside
        self.dice = Random(f"{world.seed}/{name}")
        self.node = ""
        self.shard = 0  #: the shard whose copies it asks
        self.requests = 0
        self.stopped = False

    def ask(self, message: Message, batch: bytes = b"") -> int:
        self.requests += 1
        if not self.node:
            self.turn_away()
        self.world.post_request(self.name, self.node, self.shard, self.requests, message, batch)
        return self.requests

    def turn_away(self) -> None:
        # after the faults the choice is not random: the checks of the end must not fail by bad luck
        names = self.world.addresses()
        self.node = names[self.requests % len(names)] if self.world.calm else self.dice.choice(names)

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        raise NotImplementedError


class Admin(Party):
    """Creates the common topic, then creates and removes others."""

    def __init__(self, world: "World", retention_ms: int) -> None:
        super().__init__(world, "admin")
        self.config = TopicOptions(partitions=world.partitions, retention_ms=retention_ms)
        self.places: list[tuple[int, int]] = []  #: partition and shard, of the topic that all use
        self.job: tuple[int, Message, str] | None = None
        self.asked_ms = 0
        self.made = 0
        self.known: dict[str, int] = {}
        self.next()

    def home(self, number: int) -> tuple[int, int]:
        """Return partition and shard of the common topic; (0, 0) until it is created."""
        return self.places[number] if self.places else (0, 0)

    def next(self) -> None:
        if self.stopped:
            self.job = None
            return
        self.asked_ms = self.world.now
        if not self.places:
            self.begin("orders", CreateTopic("orders", self.config, if_not_exists=True))
        elif self.known and self.dice.random() < 0.5:
            name = self.dice.choice(sorted(self.known))
            drop = DropTopic(name, idempotency_key=b"drop " + name.encode())
            self.begin(name, drop if self.dice.random() < 0.6 else Resolve([name]))
        else:
            self.made += 1
            name = f"topic-{self.made}"
            self.begin(name, CreateTopic(name, idempotency_key=b"create " + name.encode()))

    def begin(self, name: str, message: Message) -> None:
        self.job = self.ask(message), message, name
        if isinstance(message, DropTopic):
            self.world.history.topics.append(TopicSaid(self.asked_ms, self.world.now, name, 0))
        self.world.at(PATIENCE_MS, self.again, self.job[0])

    def again(self, request_id: int) -> None:
        if self.job is not None and self.job[0] == request_id:
            self.turn_away()
            self.begin(self.job[2], self.job[1])

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if self.job is None or self.job[0] != request_id:
            return
        _, message, name = self.job
        if isinstance(answer, RefusedMessage) and answer.code not in ("unknown_topic", "topic_exists"):
            if answer.code == "not_leader":
                self.turn_away()
            self.world.at(50, self.again, request_id)
            return
        said = self.world.history.topics
        if isinstance(answer, RefusedMessage) and isinstance(message, CreateTopic | DropTopic):
            self.world.broken(f"P18 {message}, which was asked until it was answered, was {answer}")
        if isinstance(message, DropTopic):
            said.append(TopicSaid(self.asked_ms, sent_ms, name, -self.known.pop(name)))
        elif isinstance(answer, Topics) and answer.topics:
            found = answer.topics[0]
            said.append(TopicSaid(self.asked_ms, sent_ms, name, found.id))
            self.known[name] = found.id
            if name == "orders":
                self.places = [(partition_key(found.id, i), shard) for i, shard in enumerate(found.shards)]
                self.world.history.shard_of |= dict(self.places)
                del self.known[name]
        elif name in self.known:
            self.world.broken(f"P18 topic {name}, which was made, is unknown at {node}")
            del self.known[name]
        self.job = None
        self.world.at(self.dice.randrange(500, 3_000), self.next)


class Publisher(Party):
    """Publishes one batch after the other, and sends each until it is confirmed."""

    def __init__(self, world: "World", name: str, pause_ms: int, number: int = 0) -> None:
        """`number`: the partition of the common topic."""
        super().__init__(world, name)
        self.number, self.partition = number, 0
        self.producer = name.encode().ljust(16, b".")
        self.pause_ms = pause_ms
        self.sequence = 0
        self.values: tuple[bytes, ...] = ()
        self.batch = b""
        self.waiting = 0
        self.gaps: set[int] = set()  #: requests that must be refused
        self.next()

    def next(self) -> None:
        self.partition, self.shard = self.world.admin.home(self.number)
        if self.stopped or not self.partition or self.sequence >= BATCHES_MAX:
            if not self.partition and not self.stopped:
                self.world.at(20, self.next)
            return
        self.sequence += 1
        self.values = tuple(
            b"%s-%d.%d" % (self.name.encode(), self.sequence, i)
            for i in range(self.dice.choice((1, 1, 2, 5)))
        )
        self.batch = bytes(batches.seal(self.values, producer=self.producer, sequence=self.sequence))
        history = self.world.history
        history.attempted.update(self.values)
        history.attempts[self.producer, self.sequence] = self.values
        self.send()
        if self.dice.random() < LOOSE_SHARE:
            self.send_loosely()
        if self.dice.random() < GAP_SHARE:
            self.send_with_a_gap()

    def send_loosely(self) -> None:
        """Publish a batch without a confirm and without a producer: it is never sent again."""
        values = tuple(b"%s-%s%d.%d" % (self.name.encode(), LOOSE, self.sequence, i) for i in range(3))
        self.world.history.attempted.update(values)
        self.ask(Publish(self.partition, "none"), bytes(batches.seal(values)))

    def send_with_a_gap(self) -> None:
        """Send the second batch of a producer first: a leader must refuse it. It shares a turn with the batch
        before it."""
        producer, values = (self.name.encode() + b"/gap").ljust(16, b"."), [b"%s-gap" % self.name.encode()]
        batch = batches.seal(values, producer=producer, sequence=2)
        self.gaps.add(self.ask(Publish(self.partition), bytes(batch)))

    def send(self) -> None:
        self.waiting = self.ask(Publish(self.partition), self.batch)
        self.world.at(PATIENCE_MS, self.again, self.waiting)

    def again(self, request_id: int) -> None:
        if self.waiting == request_id:
            self.turn_away()
            self.send()

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if isinstance(answer, RefusedMessage):
            if request_id != self.waiting:
                return
            if answer.code in ("out_of_sequence", "unknown_topic"):
                self.world.broken(
                    f"P6 {node} refuses batch {self.sequence} of {self.name}: {answer.code} {answer.detail}"
                )
                self.stopped, self.waiting = True, 0
                return
            if answer.code == "not_leader":
                self.turn_away()
            self.world.at(30, self.again, request_id)
            return
        offset, copies, _, fresh_term = answer
        if request_id in self.gaps:
            self.world.broken(f"P6 {node} confirmed a batch of {self.name} that its sequence forbids")
        if request_id == self.waiting:
            batch = self.producer, self.sequence, self.values
            row = Confirmed(sent_ms, *batch, self.partition, offset, copies, fresh_term)
            self.world.history.confirmed.append(row)
            self.waiting = 0
            self.world.at(self.dice.randrange(self.pause_ms), self.next)


class Consumer(Party):
    """A member of a group: gets records, works for some time, then acks them or gives them back. It
    subscribes anew when it hears nothing."""

    def __init__(
        self,
        world: "World",
        name: str,
        home: Callable[[], tuple[int, int]] | None = None,
        group: str = "g",
        mode: str = "shared",
        routes: Sequence[str] = (),
        ack: bool = True,
        fails: float = 0.0,
        window: int | None = None,
        key_runs: bool = False,
        **policy: Any,
    ) -> None:
        """`home` says which partition it consumes: the common topic by default. `fails`: the share of
        attempts that fail. `window`: in_flight_max of the group. `key_runs`: it may hold several records of a
        key."""
        super().__init__(world, name)
        self.home_of = home or (lambda: world.admin.home(0))
        self.partition = 0
        self.group, self.routes, self.ack, self.fails = group, list(routes), ack, fails
        options = {"lease_ms": world.lease_ms, "in_flight_max": window, **policy}
        self.options = GroupOptions(mode=mode, **options)
        self.key_runs = key_runs
        self.keys: dict[tuple[int, int, int], set[int]] = {}  # the keys of each delivery
        self.term = 0
        self.subscribed = False
        self.asked = 0
        self.heard_ms = 0
        self.held: dict[tuple[int, int, int], int] = {}  # range -> when it arrived
        self.well: set[tuple[int, int, int]] = set()  # done, and not to be reported as failed
        self.began: set[tuple[int, int, int]] = set()
        self.acking: dict[int, tuple[list[tuple[int, int, int]], bool]] = {}
        self.recalling = 0  #: the request that asks for its credit back
        self.reports = Reports(self)
        self.look()

    def look(self) -> None:
        """Subscribe again after silence; else show that it is alive."""
        world = self.world
        if self.stopped:
            return
        self.partition, self.shard = self.home_of()
        if self.partition:
            if not self.subscribed or world.now > self.heard_ms + 1_500:
                self.turn_away()
                self.subscribe()
            elif self.dice.random() < 0.1 and not self.key_runs:
                self.recalling = self.ask(Recall(1))
                world.at(PATIENCE_MS, self.recall_again, self.recalling)
            else:
                self.ask(Credit(1, 0, 0))
        world.at(self.dice.randrange(300, 600), self.look)

    def recall_again(self, request_id: int) -> None:
        """Subscribe anew if RECALL got no answer: only a new subscription says how much credit is left."""
        if self.recalling == request_id:
            self.recalling = 0
            self.subscribed = False

    def lend_again(self, asked: int, answer: Recalled) -> None:
        if self.subscribed and self.asked == asked:
            self.ask(Credit(1, answer.records, answer.bytes))

    def subscribe(self) -> None:
        self.subscribed = False
        holding = sorted(self.held)
        message = Subscribe(
            1,
            self.group,
            [Start(self.partition)],
            max(1, CREDIT - sum(b - a for _, a, b in holding)),
            limits.MIB,
            self.options,
            holding=holding,
            routes=self.routes,
            ack=self.ack,
            shards=[self.shard],
            shares=True,
            gaps=self.fails > 0,
            key_runs=self.key_runs,
            fetches=self.fails > 0 and self.options.order == "fair",
            cancels=True,
        )
        self.asked = self.ask(message)

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if term < self.term:
            return  # R12: an answer of an older term says nothing about the present leader
        if isinstance(answer, RefusedMessage):
            if request_id == self.asked or node == self.node:
                self.subscribed = False
            return
        self.term = term
        if node == self.node:
            self.heard_ms = self.world.now
        if isinstance(answer, Subscribed):
            self.subscribed |= request_id == self.asked
        elif isinstance(answer, Pushed):
            held = answer.partition, answer.offset, answer.offset + len(answer.values)
            if not self.ack:
                self.world.at(1, self.ask, Credit(1, len(answer.values), 1_000))
                return
            for old in [old for old in self.held if old[1] < held[2] and held[1] < old[2]]:
                del self.held[old]  # a redelivery ends the lease of the delivery before
                self.began.discard(old)
            self.held[held] = self.world.now
            if self.key_runs:
                jobs = [self.world.history.jobs.get(value) for value in answer.values]
                self.keys[held] = {job.key for job in jobs if job is not None and job.key}
            takes_ms = self.dice.randrange(2, 300)
            if answer.attempt > 1 or takes_ms > SOON_MS:  # shorter work ends before the report would arrive
                self.world.at(takes_ms // 3, self.begin, held)
            self.world.at(takes_ms, self.worked, held)
            self.reports.begin(answer.partition, answer.offset, takes_ms)
        elif isinstance(answer, Recalled) and request_id == self.recalling:
            self.recalling = 0
            self.world.history.count("recalled")
            self.world.at(self.dice.randrange(1, 300), self.lend_again, self.asked, answer)
        elif isinstance(answer, Share):
            self.share(answer.keep)
        elif isinstance(answer, Cancelled):
            # it keeps working, so that the leader must refuse its ack
            self.world.history.count("told of a cancel")
        elif request_id in self.reports.waiting:
            self.reports.answered(request_id, term, answer, sent_ms)
        elif isinstance(answer, Acked) and request_id in self.acking:
            ranges, well = self.acking.pop(request_id)
            for done in ranges:
                self.acked(done, well, answer, sent_ms, term)

    def begin(self, held: tuple[int, int, int]) -> None:
        if held in self.held:
            self.began.add(held)
            self.ask(Started(1, [held]))

    def share(self, keep: int) -> None:
        """Give back records that it has not begun with, the last ones first, because another member is idle.
        It keeps `keep` records."""
        spare = sum(end - at for _, at, end in self.held) - keep
        for held in sorted(self.held.keys() - self.well - self.began, reverse=True):
            if held[2] - held[1] <= spare:
                spare -= held[2] - held[1]
                del self.held[held]
                self.world.history.count("given to the idle")
                self.ask(Nack(1, [held], failed=False))

    def acked(self, done: tuple[int, int, int], well: bool, answer: Acked, sent_ms: int, term: int) -> None:
        partition, at, end = done
        self.held.pop(done, None)
        history = self.world.history
        rows, results = history.acks if well else history.failed, well and history.keeps_results
        for _, first, last in sorted(each for each in answer.lost if each[1] < end and at < each[2]):
            if at < first:
                rows.append(AckConfirmed(sent_ms, self.group, partition, at, min(first, end), term, results))
            at = max(at, last)
        if at < end:
            rows.append(AckConfirmed(sent_ms, self.group, partition, at, end, term, results))

    def worked(self, held: tuple[int, int, int]) -> None:
        """End the work on a range: ack it, fail it, or give it back. A range that was acked once is only
        acked again."""
        if held not in self.held:
            return
        count = held[2] - held[1]
        if held in self.well:
            self.say_done(held)
        elif count > 2 and not self.key_runs and self.dice.random() < 2 * self.fails:
            self.part(held)
        elif self.dice.random() < self.fails:
            del self.held[held]
            self.give_back_later(held)
            request_id = self.ask(Nack(1, [held], reason="no luck"))
            self.acking[request_id] = [held], False
        elif self.dice.random() < 0.1:
            del self.held[held]
            self.give_back_later(held)
            delay_ms = self.dice.choice((0, 100))
            pauses = delay_ms > 0 and bool(self.options.flow_concurrency or self.options.flow_rate)
            if pauses:
                delay_ms = PAUSE_MS
            self.ask(Nack(1, [held], delay_ms, failed=False, pause_flow=pauses))
        else:
            self.well.add(held)
            self.say_done(held)
        self.ask(Credit(1, count, 1_000 * count))

    def give_back_later(self, held: tuple[int, int, int]) -> None:
        """Give back later records of the same keys, because a record before them failed or went back, and
        their order must hold. Only for consumers with runs of keys."""
        if not self.key_runs:
            return
        shut = self.keys[held]
        later = [each for each in sorted(self.held) if each > held and self.keys[each] & shut]
        for each in later:
            shut = shut | self.keys[each]
        for each in later:
            del self.held[each]
            self.well.discard(each)
            self.world.history.count("given back behind its key")
            self.ask(Nack(1, [each], failed=False))

    def part(self, held: tuple[int, int, int]) -> None:
        """Ack some records of a slice and fail the others between them, with one message for each kind."""
        del self.held[held]
        partition, low, high = held
        bad = {at for at in range(low, high) if self.dice.random() < 0.5}
        acked, failed = (
            [(partition, at, at + 1) for at in range(low, high) if (at in bad) == failing]
            for failing in (False, True)
        )
        self.world.history.count("done in part")
        for message, ranges in ((self.done(acked), acked), (Nack(1, failed, reason="no luck"), failed)):
            if ranges:
                self.acking[self.ask(message)] = ranges, ranges is acked

    def done(self, ranges: list[Range]) -> Message:
        """Return the ack of these ranges, with results in runs that keep results."""
        if not self.world.history.keeps_results:
            return Ack(1, ranges)
        # a repeated ack has another result, so that a check can tell which one was stored
        name, number = self.name.encode(), self.requests
        if number % 2:  # one value for neighbours, as clients send them
            values = [
                [b"%s-%d-%d" % (name, number, at) for at in range(first, end)] for _, first, end in ranges
            ]
            terms = RESULT_KEPT_MS, "text"
            runs = [ResultRun(*each[:2], *terms, own) for each, own in zip(ranges, values, strict=True)]
            return AckResults(1, ranges, [], runs)
        results = [
            JobResult(partition, offset, RESULT_KEPT_MS, "text", b"%s-%d-%d" % (name, number, offset))
            for partition, first, end in ranges
            for offset in range(first, end)
        ]
        return AckResults(1, ranges, results)

    def say_done(self, held: tuple[int, int, int]) -> None:
        request_id = self.ask(self.done([held]))
        self.acking[request_id] = [held], True
        self.world.at(PATIENCE_MS, self.ack_again, request_id, held)

    def ack_again(self, request_id: int, held: tuple[int, int, int]) -> None:
        """Repeat an ack that got no answer, perhaps because the leader changed. After 4 * PATIENCE_MS it
        gives up: the lease has ended, and another consumer may have the record."""
        if self.acking.pop(request_id, None) is None or self.stopped:
            return
        if self.world.now > self.held.get(held, 0) + 4 * PATIENCE_MS:
            self.held.pop(held, None)
        elif held in self.held:
            self.world.at(1, self.worked, held)


class Reader(Party):
    """A reader without a group. It sees every record from the first one on, in order."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "r1")
        self.position = -1
        self.term = 0
        self.heard_ms = 0
        self.look()

    def look(self) -> None:
        if self.stopped:
            return
        if self.world.admin.places and self.world.now > self.heard_ms + 1_000:
            self.subscribe()
        elif self.node:
            self.ask(Credit(1, 10, 10_000))
        self.world.at(500, self.look)

    def subscribe(self) -> None:
        self.turn_away()
        partition, self.shard = self.world.admin.home(0)
        start = Start(partition) if self.position < 0 else Start(partition, "offset", self.position)
        self.ask(Subscribe(1, "", [start], 30, limits.MIB))

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if term < self.term or isinstance(answer, RefusedMessage) or node != self.node:
            return
        self.term, self.heard_ms = term, self.world.now
        if isinstance(answer, Pushed):
            end = answer.offset + len(answer.values)
            if self.position in (-1, answer.offset):
                self.position = end
                self.world.history.seen.append(
                    Seen(self.name, answer.term, answer.partition, answer.offset, answer.values)
                )
            elif answer.offset > self.position:
                self.heard_ms = 0  # a message was lost: subscribe again from the last position


class Drainer(Party):
    """Takes and acks all records that a group still has in a shard, at the end of a run."""

    def __init__(self, world: "World", shard: int, group: GroupState, partitions: list[int]) -> None:
        super().__init__(world, f"drainer-{shard}-{group.id}")
        self.shard, self.group, self.partitions = shard, group.name, partitions
        self.options = GroupOptions(mode=group.config.mode, paused=False)
        self.ack = group.name != "jobs" or world.history.mode != "at most once"
        self.subscribed, self.heard_ms = False, world.now
        self.look()

    def look(self) -> None:
        if self.stopped:
            return
        if self.subscribed and self.world.now < self.heard_ms + 1_500:
            self.ask(Credit(1, 0, 0))
        else:
            leader = self.world.leader(self.shard)
            self.node = leader.name if leader is not None else ""
            starts, shards = [Start(each) for each in self.partitions], [self.shard]
            self.ask(
                Subscribe(1, self.group, starts, 50, limits.MIB, self.options, ack=self.ack, shards=shards)
            )
        self.world.at(300, self.look)

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        self.subscribed = not isinstance(answer, RefusedMessage)
        self.heard_ms = self.world.now
        if isinstance(answer, Pushed):
            count = len(answer.values)
            if self.ack:
                self.ask(Ack(1, [(answer.partition, answer.offset, answer.offset + count)]))
            self.ask(Credit(1, count, 1_000 * count))


class Mover(Party):
    """Moves the leadership of one shard after the other."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "operator")
        self.shrunk_ms = -SHRINK_MS  #: it never asks for fewer copies
        world.at(1_000, self.look)

    def look(self) -> None:
        if self.stopped:
            return
        self.shard = self.dice.randrange(self.world.shards)
        leader = self.world.leader(self.shard)
        if leader is not None:
            self.node = leader.name
            self.ask(Transfer(self.dice.choice(sorted(self.world.nodes))))
        self.world.at(self.dice.randrange(400, 3_000), self.look)

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        self.world.history.count("move refused" if isinstance(answer, RefusedMessage) else "leader moved")


class Operator(Party):
    """Adds, promotes, removes and replaces copies, moves leadership, and asks for changes that must be
    refused."""

    def __init__(self, world: "World", busy: bool) -> None:
        super().__init__(world, "operator")
        self.busy = busy
        self.shrunk_ms = -SHRINK_MS  #: when it last asked for fewer copies
        world.at(1_000, self.look)

    def look(self) -> None:
        if self.stopped:
            return
        self.act()
        self.world.at(self.dice.randrange(150, 500) if self.busy else 1_500, self.look)

    def act(self) -> None:
        leader = self.world.leader()
        if leader is None or leader.shard is None:
            return
        self.node = leader.name
        config = leader.shard.replica.config
        voters, learners, witnesses = list(config.voters), list(config.learners), list(config.witnesses)
        dead = [name for name in [*voters, *learners] if self.world.nodes[name].dead]
        choice = self.dice.random()
        if self.busy and choice < 0.12:
            others = [name for name in voters if name != leader.name and name not in witnesses]
            if others:
                self.ask(Transfer(self.dice.choice(others)))
        elif self.busy and choice < 0.2:
            strangers = [self.world.newcomer() for _ in range(2)] if len(self.world.nodes) < 8 else voters[:1]
            keep = voters[: max(1, len(voters) - 2)]
            self.ask(ChangeVoters([*keep, *strangers], [w for w in witnesses if w in keep], []))
        elif learners and any(not self.world.nodes[name].dead for name in learners) and len(voters) < 5:
            name = next(name for name in learners if not self.world.nodes[name].dead)
            self.ask(ChangeVoters([*voters, name], witnesses, [other for other in learners if other != name]))
        elif dead and (len(voters) > self.world.copies or dead[0] in learners):
            rest = [name for name in voters if name != dead[0]]
            kept = [name for name in witnesses if name != dead[0]]
            self.ask(ChangeVoters(rest, kept, [name for name in learners if name != dead[0]]))
        elif dead or len(voters) < self.world.copies:
            spare = [
                n
                for n in self.world.nodes.values()
                if n.settings.joins and not n.dead and n.name not in voters
            ]
            name = spare[0].name if spare and not learners else "" if learners else self.world.newcomer()
            if name:
                self.ask(ChangeVoters(voters, witnesses, [*learners, name]))
        elif self.busy and choice < 0.4 and len(voters) > 1:
            gone = self.dice.choice([name for name in voters if name != leader.name])
            lost = any(self.world.nodes[name].dead or self.world.nodes[name].torn for name in voters)
            if gone not in witnesses and len(voters) > 2 and not lost:
                self.shrunk_ms = self.world.now
                rest = [name for name in voters if name != gone]
                self.ask(ChangeVoters(rest, witnesses, [*learners]))

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        self.world.history.count("change refused" if isinstance(answer, RefusedMessage) else "change made")
