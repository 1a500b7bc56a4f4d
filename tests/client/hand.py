"""Drives a client session by hand: no sockets, no clock; the test plays the node."""

from collections.abc import Sequence

from gossipq.messages import Confirm, Deliver, Hello, Publish, RefusedMessage, Subscribe, Subscribed, Welcome
from gossipq.types import NODE_SHARD, Now
from gossipq.values import Delivered, GroupOptions, Message, Route, TopicConfig, TopicInfo
from gossipq.wire import batch as wire
from gossipq.wire import frames
from gossipq_client.session.credit import Part, Subscription
from gossipq_client.session.packer import Flight, Topic
from gossipq_client.session.session import Session
from gossipq_client.values.terms import key_column

HOME, LEADER, OTHER = "tcp://home:1", "tcp://leader:1", "tcp://other:1"
SHARD = 3
CREDIT = (100, 100_000)


class Sent:
    """One message that the session wants sent."""

    def __init__(self, endpoint: str, message: Sequence[bytes | bytearray]) -> None:
        self.endpoint = endpoint
        self.header, self.body = frames.decode(bytes(message[0]))
        self.raw = bytes(message[1]) if len(message) > 1 else b""
        self.batch = wire.check(self.raw) if self.raw else None

    @property
    def sequence(self) -> int:
        assert self.batch is not None
        return self.batch.sequence


class Hand:
    """A session with its home greeted and every shard led at LEADER."""

    def __init__(
        self,
        addresses: Sequence[str] = (HOME,),
        shards: int = 8,
        window_bytes: int = 1 << 20,
        nodes: Sequence[str] = (),
        session: bytes = b"s" * 16,
    ) -> None:
        self.producers = 0
        self.shards, self.window_bytes = shards, window_bytes
        self.session = Session(list(addresses), session, "test", "0", self._producer, Now(0, 1_000_000))
        self.now_ms = 0
        self.leader, self.nodes = LEADER, list(nodes)  #: as every WELCOME says
        self.up(addresses[0])

    def _producer(self) -> bytes:
        self.producers += 1
        return self.producers.to_bytes(16)

    # --- the world

    def pass_ms(self, count: int, silent: bool = False) -> None:
        """Time passes; unless `silent`, each connection showed a sign of life just before its end."""
        self.now_ms += count
        self.session.advance(Now(self.now_ms, 1_000_000 + self.now_ms))
        if not silent:
            for endpoint in (HOME, LEADER, OTHER):
                self.session.links.alive(endpoint, 0)
        self.session.tick()

    def up(self, endpoint: str, term: int = 1) -> None:
        """The connection stands and every HELLO on it is answered."""
        self.session.connected(endpoint)
        self.welcome(term)

    def welcome(self, term: int = 1) -> list[Sent]:
        """Answers every HELLO; returns what else was sent."""
        others: list[Sent] = []
        while sent := self.sent():
            for each in sent:
                if isinstance(each.body, Hello):
                    self.answer(each, self.greeting(term))
                else:
                    others.append(each)
        self.held_back = others
        return others

    def greeting(self, term: int = 1) -> Welcome:
        routes = [Route(shard, term, self.leader) for shard in range(self.shards)]
        window = self.window_bytes, 5_000, 1_000
        return Welcome("n", b"c" * 16, "0", *window, routes, self.shards, self.nodes)

    def sent(self, kind: type[Message] | None = None) -> list[Sent]:
        """Everything sent since the last call, or what of it is of a kind."""
        out = [Sent(endpoint, message) for endpoint, message in self.session.links.out]
        self.session.links.out.clear()
        return [each for each in out if kind is None or isinstance(each.body, kind)]

    def tell(
        self,
        body: Message,
        shard: int = SHARD,
        request_id: int = 0,
        term: int = 1,
        batch: bytes | None = None,
    ) -> None:
        message = [frames.encode(body, shard, request_id, term)]
        self.session.arrived(self.leader, message if batch is None else [*message, batch])

    def answer(self, sent: Sent, body: Message, term: int = 1) -> None:
        control = frames.encode(
            body, sent.header.shard, sent.header.request_id, term if sent.header.shard != NODE_SHARD else 0
        )
        self.session.arrived(sent.endpoint, [control])

    # --- publishing

    def topic(self, partitions: int = 1, name: str = "t", topic_id: int = 7, level: str = "stored") -> Topic:
        """A topic the session knows, with the way to its leader open."""
        config = TopicConfig(partitions, level=level)
        topic = self.session.publishing.learn(TopicInfo(topic_id, name, 1, config, [SHARD] * partitions))
        self.session.links.lane(SHARD)
        self.up(LEADER)
        return topic

    def publish(self, topic: Topic, value: bytes = b"v") -> Flight:
        flight, _ = self.session.publishing.append(topic.writer(None, None), value, None, b"", b"", "")
        return flight

    def batch(self, topic: Topic, *values: bytes) -> Flight:
        """One whole batch, sealed and sent if it can be."""
        publishing = self.session.publishing
        (flight,) = publishing.batches(topic.writer(None, None), list(values or (b"v",)), None, b"", b"", "")
        publishing.take(flight)
        return flight

    def confirm(self, *sent: Sent, offset: int = 0, duplicate: bool = False) -> None:
        self.tell(
            Confirm([(each.header.request_id, offset + at, 1, duplicate) for at, each in enumerate(sent)])
        )

    def refuse(self, sent: Sent, code: str, **fields: int | str) -> None:
        self.answer(sent, RefusedMessage(code, "no", **fields))  # type: ignore[arg-type]

    def published(self) -> list[Sent]:
        return self.sent(Publish)

    # --- consuming

    def subscribe(
        self,
        shards: Sequence[int] = (SHARD,),
        group: str = "g",
        credit: tuple[int, int] = CREDIT,
        mode: str | None = None,
        acks: bool = True,
        follows: bool = False,
    ) -> Subscription:
        """A subscription to a topic with one partition in each of the shards; its leaders have answered."""
        start, options = ("first", 0), GroupOptions(mode)
        subscription = Subscription(group, start, credit, options, True, ["t"], acks=acks, follows=follows)
        for shard in shards:
            self.session.links.lane(shard)
        self.up(LEADER)
        self.session.consuming.cover(
            subscription, [TopicInfo(9, "t", 1, TopicConfig(len(shards)), list(shards))]
        )
        self.accept(self.sent(Subscribe))
        return subscription

    def accept(self, asked: Sequence[Sent], term: int = 1) -> None:
        for each in asked:
            assert isinstance(each.body, Subscribe)
            self.answer(
                each, Subscribed(each.body.subscription, 0 if not each.body.group else 30_000, []), term
            )

    def deliver(
        self,
        part: Part,
        offset: int,
        count: int,
        attempt: int = 1,
        lease_ms: int = 30_000,
        keys: Sequence[bytes] = (),
        again: bool = False,
    ) -> None:
        """Records with their offset as value, each charged with 10 bytes of credit."""
        partition = next(iter(part.starts))
        columns = key_column(list(keys)) if keys else None
        raw = bytes(
            wire.seal([b"%d" % at for at in range(offset, offset + count)], keys=keys or None, fixed=columns)
        )
        piece = Delivered(partition, offset, count, attempt, len(raw), 10 * count, again=again)
        self.tell(Deliver(part.number, [piece], lease_ms), part.shard, batch=raw)

    def flush(self, kind: type[Message] | None = None) -> list[Sent]:
        """Flushes; returns all messages that are sent, or those of one kind."""
        self.session.consuming.flush()
        return self.sent(kind)
