"""Client sessions joined to the real shards, without sockets and clocks: what is said takes its time, and
connections and processes end."""

import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

import pytest

from client.hand import LEADER, Hand, Sent
from core.harness import FakeWorker
from gossipq.core.delivery import Delivery
from gossipq.core.effects import Effects
from gossipq.core.requests.consume import Client
from gossipq.core.shard import Shard
from gossipq.messages import Confirm, Deliver, Hello, Ping, Publish, Welcome
from gossipq.types import NODE_SHARD, Now, Offset, Origin, PartitionKey, ShardId
from gossipq.values import Delivered, Message, Route
from gossipq.wire import batch as batches
from gossipq.wire import frames

Done = TypeVar("Done")
Place = tuple[PartitionKey, Offset]
SHARDS = 4
#: what strikes in a finalizer is told on stderr and goes no further: Python's own rule
UNRAISABLE = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
POINTS = 40  #: of a step at which an interrupt may come
WINDOW_BYTES = 1 << 20


class Lane:
    """What is on its way in one direction, in order."""

    def __init__(self) -> None:
        self._items: deque[tuple[int, Any]] = deque()

    def put(self, at_ms: int, item: Any) -> None:
        last = self._items[-1][0] if self._items else 0
        self._items.append((max(at_ms, last), item))

    def take(self, now_ms: int) -> list[Any]:
        found = []
        while self._items and self._items[0][0] <= now_ms:
            found.append(self._items.popleft()[1])
        return found


class Interrupt(BaseException):
    """What a signal handler raises."""


class Interrupter:
    """Raises Interrupt at the point number `at` of what a session does within it: where a function begins,
    or a call of C code ends."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __enter__(self) -> None:
        sys.setprofile(self._look)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_return") and "gossipq_client" in frame.f_code.co_filename:
            self._left -= 1
            if self._left == 0:
                raise Interrupt


class Worker(FakeWorker):
    """Whatever it sends goes to those who speak with it."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        super().__init__(SHARDS)

    def send(self, shard: Shard, effects: Effects) -> None:
        super().send(shard, effects)
        self._cluster.send(shard, effects)


class TrueHand(Hand):
    """Its greetings tell the terms that there are."""

    def __init__(self, cluster: "Cluster", name: str) -> None:
        self._cluster, self._name = cluster, name
        super().__init__(session=name.encode().ljust(16, b"."), shards=SHARDS, window_bytes=WINDOW_BYTES)

    def _producer(self) -> bytes:
        return self._name.encode().rjust(8) + super()._producer()[-8:]

    def greeting(self, term: int = 1) -> Welcome:
        shards = self._cluster.worker.shards
        routes = [Route(shard, shards[shard].term, LEADER) for shard in range(SHARDS)]
        return Welcome("n", b"c" * 16, "0", WINDOW_BYTES, 5_000, 1_000, routes, SHARDS)


class Party:
    """A session, and what is on its way between it and the shards."""

    def __init__(self, cluster: "Cluster", name: str) -> None:
        self.cluster, self.random = cluster, cluster.random
        self.hand = TrueHand(cluster, name)
        self.client = Client(self.hand.session.links.session, name)
        self.origin: Origin = (name.encode(), b"1")
        self.there = self.back = self._lanes()
        self._lost = False
        for shard in range(SHARDS):
            self.hand.session.links.lane(shard)
        self.hand.up(LEADER)
        self.hand.pass_ms(cluster.now_ms)
        self.reconnect()

    @staticmethod
    def _lanes() -> dict[ShardId, Lane]:
        return {shard: Lane() for shard in range(SHARDS)}

    def reconnect(self) -> None:
        """What was on its way to it is gone, and, if its other end is gone, what was on its way there."""
        self.there, self.back = self._lanes(), self._lanes()
        self.hand.session.disconnected(LEADER)
        self.origin = self.origin[0], b"%d" % self.cluster.now_ms
        self.hand.sent()
        self.hand.session.connected(LEADER)

    def act(self) -> None:
        """What its user does now."""
        raise NotImplementedError

    def step(self, do: Callable[[], Done]) -> Done | None:
        """A step of the session, as `Engine.step` does it: sometimes an interrupt ends it half way, and it is
        mended. None: so it was."""
        if self.random.random() >= self.cluster.interrupts:
            return do()
        try:
            with Interrupter(self.random.randrange(POINTS)):
                return do()
        except Interrupt:
            self._recover()
            return None

    def repeat(self, do: Callable[[], object]) -> None:
        """A step that is done again until nothing interrupts it."""
        while self.step(lambda: (do(),)) is None:
            pass

    def _recover(self) -> None:
        """As `Engine._recover`."""
        self.there, self.back = self._lanes(), self._lanes()
        self.origin = self.origin[0], b"%d" % self.cluster.now_ms
        session = self.hand.session
        session.recover(Now(self.cluster.now_ms, 1_000_000 + self.cluster.now_ms))
        self._connect()

    def _connect(self) -> None:
        """All that it wants to be open is."""
        links = self.hand.session.links
        opened = [endpoint for action, endpoint in links.actions if action != "close"]
        links.actions.clear()
        for endpoint in opened:
            links.connected(endpoint)

    def say(self) -> None:
        self._connect()
        self.step(self.hand.session.consuming.flush)
        for sent in self.hand.sent():
            if sent.header.shard == NODE_SHARD or isinstance(sent.body, Hello | Ping):
                if isinstance(sent.body, Hello):
                    self.hand.answer(sent, self.hand.greeting())
                continue
            shard = sent.header.shard
            self.there[shard].put(self.cluster.now_ms + self.cluster.lag_ms(shard), (self.origin, sent))

    def hear(self) -> None:
        messages = [each for lane in self.back.values() for each in lane.take(self.cluster.now_ms)]
        for message in messages:
            if self.step(lambda each=message: (self.hand.session.arrived(LEADER, each),)) is None:
                return  # what is behind it came on a connection that is closed


class Cluster:
    """One worker that leads all shards, and who speaks with it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.interrupts = 0.0  #: how many steps of sessions meet one
        self.parties: list[Party] = []
        #: by shard: until when it stands still
        self.slow_ms = {shard: self.random.choice((0, 0, 0, 400, 1_500)) for shard in range(SHARDS)}
        self.worker = Worker(self)

    def lag_ms(self, shard: ShardId) -> int:
        """How long a message is under way."""
        return max(self.random.randrange(3), self.slow_ms[shard] - self.now_ms)

    def step(self) -> None:
        ms = self.random.choice((1, 1, 2, 5, 15))
        self.now_ms += ms
        self.worker.advance(ms)
        steps: list[Callable[[], None]] = []
        for party in self.parties:
            party.hand.pass_ms(ms)
            party.act()
            party.say()
            for shard, lane in party.there.items():
                steps += [self._asked(shard, party, *each) for each in lane.take(self.now_ms)]
        self.worker.turn(*steps)
        for party in self.parties:
            party.hear()

    def crash(self) -> None:
        """The worker ends and starts over from its disk, with new connections."""
        self.worker.turn(commit=False)
        for party in self.parties:
            party.reconnect()

    def _asked(self, shard: ShardId, party: Party, origin: Origin, sent: Sent) -> Callable[[], None]:
        body = sent.body
        if isinstance(body, Publish):
            info = batches.check(sent.raw)
            return lambda: self.worker.take(
                shard, origin, sent.header.request_id, party.client, body, info, sent.raw
            )
        return lambda: self.worker.step(shard, origin, sent.header.request_id, party.client, body)

    def send(self, shard: Shard, effects: Effects) -> None:
        """What the sender of a worker does with the effects of a turn, in its order."""
        parties = {party.origin: party for party in self.parties}

        def tell(origin: Origin, message: Message, request_id: int = 0, body: Sequence[bytes] = ()) -> None:
            if (party := parties.get(origin)) is not None:
                control = frames.encode(message, shard.id, request_id, shard.term)
                party.back[shard.id].put(self.now_ms + self.lag_ms(shard.id), [control, *body])

        for origin, rows in effects.confirms.items():
            tell(origin, Confirm(rows, WINDOW_BYTES, "", effects.runs.get(origin, [])))
        for origin, request_id, message in effects.replies:
            tell(origin, message, request_id)
        for delivery in effects.deliveries:
            slices, bodies = _slices(shard, delivery)
            deliver = Deliver(delivery.subscription, slices, delivery.lease_ms)
            tell(delivery.origin, deliver, 0, [b"".join(bodies)])
        for origin, notice in effects.notices:
            tell(origin, notice)

    def stored(self) -> dict[Place, bytes]:
        """What the shards have."""
        found: dict[Place, bytes] = {}
        for shard in self.worker.shards.values():
            for partition, state in shard.ledger.partitions.items():
                for first, end, part in shard.ledger.slices.between(partition, state.first, state.next):
                    body, _ = shard.body(part.index)
                    assert body is not None
                    values, at = batches.Batch(body).values(), part.offset - part.first
                    found |= {(partition, offset): values[offset - at] for offset in range(first, end)}
        return found


def _slices(shard: Shard, delivery: Delivery) -> tuple[list[Delivered], list[bytes]]:
    slices, bodies = list[Delivered](), list[bytes]()
    for part in delivery.parts:
        body, _ = shard.body(part.index)
        assert body is not None
        batch, base = batches.Batch(body), part.offset - part.first
        runs = [(first - base, end - base) for first, end in part.ranges]
        bodies.append(bytes(batch.pick(runs) if runs else batch.cut(part.first, part.count)))
        name = part.partition, part.offset, part.count, part.attempt
        slices.append(Delivered(*name, len(bodies[-1]), part.charge, part.ranges))
    return slices, bodies
