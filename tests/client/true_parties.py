"""Users of sessions: consumers and producers."""

from collections import deque
from functools import partial

from client.true_shards import Cluster, Party, Place
from gossipq import limits
from gossipq.messages import Resolve, Topics
from gossipq.types import META_SHARD
from gossipq.values import GroupOptions
from gossipq_client.session.calls import Call
from gossipq_client.session.credit import Subscription
from gossipq_client.session.held import Piece
from gossipq_client.session.pace import CREDIT_START
from gossipq_client.session.packer import Flight, Topic
from gossipq_client.values import failed
from gossipq_client.values.terms import Terms


def places(piece: Piece) -> list[Place]:
    return [(piece.held.partition, offset) for offset in range(piece.first, piece.end)]


class User(Party):
    """Consumes a group: takes what it can in its time, acks or fails what it took before."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        options, records = GroupOptions(cluster.mode, lease_ms=5_000), CREDIT_START
        if cluster.mode == "exclusive":
            records = cluster.random.choice((1, 1, 10))
        credit = records, limits.CREDIT_BYTES
        self.subscription = Subscription(
            "g", ("first", 0), credit, options, True, ["t"], follows=cluster.random.random() < 0.8
        )
        self.consuming = self.hand.session.consuming
        self.in_hand: deque[Piece] = deque()
        self.free_ms = 0  #: when the user is through with what it does
        self.join()

    def join(self) -> None:
        self.consuming.cover(self.subscription, [self.cluster.info])

    def act(self) -> None:
        if self.cluster.now_ms >= self.free_ms:
            while self.in_hand:
                self.settle(self.in_hand[0])
                self.in_hand.popleft()
            self.take(self.random.choice((1, 1, 1, 5, 40)))

    def settle(self, piece: Piece) -> None:
        if self.random.random() < self.cluster.fails:
            outcome = failed(self.random.choice((0, 0.05)), "no luck")
            self.repeat(lambda: self.consuming.nack(piece.held, piece.first, piece.end, outcome))
        else:
            self.repeat(lambda: self.consuming.ack(piece.held, piece.first, piece.end))
            self.cluster.acked.update(places(piece))

    def take(self, count: int) -> None:
        """As a loop over messages does."""
        self.consuming.resume(self.subscription)
        self.has(self.consuming.take(self.subscription, count))

    def has(self, pieces: list[Piece]) -> None:
        self.in_hand += pieces
        self.cluster.takes({place for piece in self.in_hand for place in places(piece)})
        if pieces:
            self.free_ms = self.cluster.now_ms + self.cluster.work_ms(sum(map(len, pieces)))


class Fetcher(User):
    """Takes records as `fetch` does, and what it was interrupted in goes back."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.fetch: object = None  #: the one under way
        self.until_ms = 0

    def take(self, count: int) -> None:
        if self.fetch is None:
            self.fetch, self.until_ms = object(), self.cluster.now_ms + self.random.choice((0, 100, 2_000))
            pieces = self.step(lambda: self.consuming.fetch(self.subscription, count, self.fetch))
        else:
            pieces = self.step(lambda: self.consuming.take(self.subscription, count, self.fetch))
        if pieces is None:
            self.break_off()
        elif pieces or self.cluster.now_ms >= self.until_ms or self.subscription.finished:
            fetched = partial(self.consuming.fetched, self.subscription, bool(pieces), self.fetch)
            if self.step(lambda: fetched() or True):
                del self.subscription.fetches[self.fetch]
                self.fetch = None
                self.has(pieces)
            else:
                self.break_off()

    def break_off(self) -> None:
        fetch, self.fetch = self.fetch, None
        self.repeat(lambda: self.consuming.break_off(self.subscription, fetch))


class Producer(Party):
    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster, name)
        self.publishing = self.hand.session.publishing
        self.looked_up: dict[str, Call] = {}
        self.made = 0
        self.published: list[tuple[bytes, Flight, int]] = []

    def act(self) -> None:
        if self.cluster.publishes and self.random.random() < 0.3:
            topic = self.topic(self.random.choice(self.cluster.names))
            if topic is not None:
                self.step(partial(self.publish, topic))
        if self.published and self.random.random() < 0.1:
            flight = self.random.choice(self.published)[1]
            self.step(partial(self.publishing.seal, flight.writer))
        if not self.cluster.publishes:
            self.publishing.seal_all()

    def topic(self, name: str) -> Topic | None:
        """If it is known by now."""
        known = self.publishing.topics.get(name)
        if known is not None:
            return known
        call = self.looked_up.pop(name, None)
        if call is None or call.error is not None:
            call = self.hand.session.calls.ask(Resolve([name], create=True), META_SHARD)
        elif isinstance(call.reply, Topics) and call.reply.topics:
            return self.publishing.learn(call.reply.topics[0])
        self.looked_up[name] = call
        return None

    def values(self, count: int) -> list[bytes]:
        self.made += count
        return [b"%d-%s" % (at, self.name.encode()) for at in range(self.made - count, self.made)]

    def publish(self, topic: Topic) -> None:
        writer = topic.writer(None, self.random.randrange(len(topic.writers)))
        if self.publishing.full(writer):
            return
        level = self.random.choice(("", "", "", "none"))
        match self.random.randrange(4):
            case 0:
                (value,) = self.values(1)
                self._note([value], *self.publishing.append(writer, value, None, b"", b"", level))
            case 1:
                (value,) = self.values(1)
                flight, index = self.publishing.append(writer, value, b"k", b"", b"", level, Terms(id=value))
                self._note([value], flight, index)
            case 2:
                values = self.values(self.random.choice((1, 3, 50)))
                size = sum(map(len, values))
                self._note(values, *self.publishing.merge(writer, values, size, b"", level))
            case _:
                values = self.values(self.random.choice((1, 3, 50)))
                ids = values if self.random.random() < 0.5 else None
                for flight in self.publishing.batches(writer, values, None, b"", b"", level, None, ids):
                    self.publishing.take(flight)
                    self._note(values, flight, 0)

    def _note(self, values: list[bytes], flight: Flight, first: int) -> None:
        self.published += [(value, flight, first + at) for at, value in enumerate(values)]

    @property
    def waits(self) -> bool:
        return not self.publishing.idle or not all(flight.done for _, flight, _ in self.published)
