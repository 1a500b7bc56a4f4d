"""Client sessions joined to the real shards, without sockets and clocks: what is said takes its time, and
connections and processes end."""

import os
import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

import pytest

from client.hand import HOME, LEADER, Hand, Sent
from core.harness import FakeWorker
from gossipq.core.desk import Client, refusal
from gossipq.core.effects import Effects
from gossipq.core.shard import Shard
from gossipq.errors import Forbidden
from gossipq.messages import Hello, Ping, Publish, Subscribe, Subscribed, Welcome
from gossipq.types import NODE_SHARD, Now, Offset, Origin, PartitionKey, ShardId
from gossipq.values import Message, Route, TopicInfo
from gossipq.wire import batch as batches
from gossipq_client.session.renewal import rebuild
from gossipq_node.actors.sender import Sender
from gossipq_node.actors.timings import Timings

Done = TypeVar("Done")
Place = tuple[PartitionKey, Offset]
SHARDS = 4
#: what strikes in a finalizer is told on stderr and goes no further: Python's own rule
UNRAISABLE = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
TIMES = int(os.environ.get("GOSSIPQ_LIVES", "1"))  #: multiple of the random lives that `make test` runs
POINTS = 40  #: of a step at which an interrupt may come
WINDOW_BYTES = 1 << 20
NO_RIGHT = refusal(Forbidden("this user may not publish here"))


def lives(count: int) -> range:
    """Return the seeds of a kind of random life: `count` of them, or those after them for a multiple."""
    return range(count if TIMES > 1 else 0, count * TIMES)


class Lane:
    """Messages on their way in one direction, in order."""

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
    """The exception of a signal handler."""


class Interrupter:
    """Raises Interrupt at point number `at` of a session's work: at the beginning of a function, or
    the end of a call of C code.
    """

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
    """Sends its messages to the parties."""

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
        routes = self._cluster.routes()
        return Welcome("n", b"c" * 16, "0", WINDOW_BYTES, 5_000, 1_000, routes, len(routes))

    def pass_time(self, ms: int, alive: Iterable[str]) -> None:
        """`alive`: who shows a sign of life just before its end."""
        self.now_ms += ms
        self.session.advance(Now(self.now_ms, 1_000_000 + self.now_ms))
        for endpoint in (HOME, *alive):
            self.session.links.alive(endpoint, 0)
        self.session.tick()


class Party:
    """A session, and the messages between it and the shards."""

    def __init__(self, cluster: "Cluster", name: str) -> None:
        self.cluster, self.random, self.name = cluster, cluster.random, name
        self.hand = TrueHand(cluster, name)
        self.client = Client(self.hand.session.links.session, name)
        self.origins: dict[str, Origin] = {}  #: of its connections, by endpoint
        #: by endpoint and shard
        self.there: dict[tuple[str, ShardId], Lane] = defaultdict(Lane)
        self.back: dict[tuple[str, ShardId], Lane] = defaultdict(Lane)
        self.hand.pass_time(cluster.now_ms, cluster.alive())

    def origin(self, endpoint: str) -> Origin:
        number = b"%d" % self.cluster.now_ms
        return self.origins.setdefault(endpoint, (self.name.encode(), b"%b %b" % (endpoint.encode(), number)))

    def reconnect(self, endpoint: str) -> None:
        """Messages on the way over this connection are lost."""
        session = self.hand.session
        self._forget(endpoint)
        session.links.out[:] = [each for each in session.links.out if each[0] != endpoint]
        session.disconnected(endpoint)
        session.connected(endpoint)

    def _forget(self, endpoint: str) -> None:
        self.origins.pop(endpoint, None)
        for lanes in (self.there, self.back):
            for place in [place for place in lanes if place[0] == endpoint]:
                del lanes[place]

    def act(self) -> None:
        """The user's next action."""
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
            self._reconnect()
            return None

    def repeat(self, do: Callable[[], object]) -> None:
        """A step that is done again until nothing interrupts it."""
        while self.step(lambda: (do(),)) is None:
            pass

    def _reconnect(self) -> None:
        """As `Engine` does it after a torn step. Interrupts end that half way, too."""
        for endpoint in list(self.origins):
            self._forget(endpoint)
        now = Now(self.cluster.now_ms, 1_000_000 + self.cluster.now_ms)
        for last in (20, 100, 400):
            with suppress(Interrupt), Interrupter(self.random.randrange(last)):
                rebuild(self.hand.session, now)
        rebuild(self.hand.session, now)
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
            endpoint, shard = sent.endpoint, sent.header.shard
            if isinstance(sent.body, Hello):
                if endpoint == HOME or endpoint in self.cluster.alive():
                    self.hand.answer(sent, self.hand.greeting())
            elif isinstance(sent.body, Subscribe) and self.cluster.drops():
                continue
            elif shard != NODE_SHARD and not isinstance(sent.body, Ping):
                at_ms = self.cluster.now_ms + self.cluster.lag_ms(shard)
                self.there[endpoint, shard].put(at_ms, (self.origin(endpoint), sent))

    def hear(self) -> None:
        now_ms = self.cluster.now_ms
        messages = [(place[0], each) for place, lane in self.back.items() for each in lane.take(now_ms)]
        for endpoint, message in messages:
            if self.step(lambda of=endpoint, each=message: (self.hand.session.arrived(of, each),)) is None:
                return  # what is behind it came on a connection that is closed


class Doors:
    """What a sender needs of its worker: the mailbox, the settings, other nodes,
    and where to report faults.
    """

    window_bytes = WINDOW_BYTES

    def __init__(self, cluster: "Cluster", shard: ShardId, endpoint: str) -> None:
        self._cluster, self._shard, self.endpoint = cluster, shard, endpoint
        self.view = self

    def reply(self, origin: Origin, control: bytes, batch: bytes | Sequence[bytes] = b"") -> bool:
        parties = {party.origins.get(self.endpoint): party for party in self._cluster.parties}
        party = parties.get(origin)
        if party is not None and not (control[3] == Subscribed.verb and self._cluster.drops()):
            body = batch if isinstance(batch, bytes) else b"".join(batch)
            at_ms = self._cluster.now_ms + self._cluster.lag_ms(self._shard)
            party.back[self.endpoint, self._shard].put(at_ms, [control, body] if body else [control])
        return party is not None

    def crowded(self, origin: Origin) -> bool:
        return False

    def moving(self, origin: Origin) -> bool:
        return False

    def tell(self, shard: ShardId, message: Message, term: int) -> None: ...
    def answer(self, shard: Shard, answers: object) -> None: ...
    def route(self, shard: ShardId) -> Route:
        return Route(shard, 0, "")

    def met(self, what: str, shard: ShardId, error: Exception) -> None:
        raise error


class Cluster:
    """One worker that leads all shards, and its parties."""

    info: TopicInfo  #: the topic that is consumed
    mode = "shared"  #: of the group

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.names: tuple[str, ...] = ()  #: of the topics that are published to
        self.publishes = True
        self.forbids = False  #: to publish, for now
        self.fails = 0.0  #: how many records fail
        self.acked = set[Place]()
        self.interrupts = 0.0  #: how many steps of sessions meet one
        self.dropped = 0.0  #: how many of SUBSCRIBE and its answers a full frontdoor drops
        self.parties: list[Party] = []
        #: by shard: until when it stands still
        self.slow_ms = {shard: self.random.choice((0, 0, 0, 400, 1_500)) for shard in range(SHARDS)}
        self.start()

    def start(self) -> None:
        self.worker = Worker(self)

    @property
    def shards(self) -> Collection[Shard]:
        return self.worker.shards.values()

    def routes(self) -> list[Route]:
        """As a node tells them."""
        shards = self.worker.shards
        return [Route(shard, shards[shard].term, LEADER) for shard in range(SHARDS)]

    def drops(self) -> bool:
        """True if a full frontdoor drops this message."""
        return self.random.random() < self.dropped

    def alive(self) -> list[str]:
        """Endpoints of which somebody speaks."""
        return [LEADER]

    def lag_ms(self, shard: ShardId) -> int:
        """How long a message is under way."""
        return max(self.random.randrange(3), self.slow_ms[shard] - self.now_ms)

    def step(self) -> None:
        ms = self.random.choice((1, 1, 2, 5, 15))
        self.now_ms += ms
        for party in self.parties:
            party.hand.pass_time(ms, self.alive())
            party.act()
            party.say()
        self.work(ms)
        for party in self.parties:
            party.hear()

    def work(self, ms: int) -> None:
        """Time passes for the shards, which do what has come."""
        self.worker.advance(ms)
        steps: list[Callable[[], None]] = []
        for party in self.parties:
            for (_, shard), lane in party.there.items():
                steps += [self._asked(shard, party, *each) for each in lane.take(self.now_ms)]
        self.worker.turn(*steps)

    def crash(self) -> None:
        """The worker ends and starts over from its disk, with new connections."""
        self.worker.turn(commit=False)
        for party in self.parties:
            party.reconnect(LEADER)

    def _asked(self, shard: ShardId, party: Party, origin: Origin, sent: Sent) -> Callable[[], None]:
        body = sent.body
        if isinstance(body, Publish) and self.forbids:  # which a worker looks at before its shards
            return lambda: self._sender(shard, LEADER).refuse(origin, shard, sent.header.request_id, NO_RIGHT)
        if isinstance(body, Publish):
            info = batches.check(sent.raw)
            return lambda: self.worker.take(
                shard, origin, sent.header.request_id, party.client, body, info, sent.raw
            )
        return lambda: self.worker.step(shard, origin, sent.header.request_id, party.client, body)

    def send(self, shard: Shard, effects: Effects, endpoint: str = LEADER) -> None:
        """As a worker with that address does."""
        self._sender(shard.id, endpoint).send(shard, effects)

    def _sender(self, shard: ShardId, endpoint: str) -> Sender:
        doors = Doors(self, shard, endpoint)
        return Sender(doors, doors, doors, Timings(), doors)  # type: ignore[arg-type]

    def work_ms(self, count: int) -> int:
        """How long a user works on `count` records."""
        raise NotImplementedError

    def takes(self, mine: set[Place]) -> None:
        """A user has these now."""


def stored(shards: Iterable[Shard]) -> dict[Place, bytes]:
    found: dict[Place, bytes] = {}
    for shard in shards:
        for partition, state in shard.ledger.partitions.items():
            for first, end, part in shard.ledger.slices.between(partition, state.first, state.next):
                body, _ = shard.body(part.index)
                assert body is not None
                values, at = batches.Batch(body).values(), part.offset - part.first
                found |= {(partition, offset): values[offset - at] for offset in range(first, end)}
    return found
