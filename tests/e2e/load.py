"""Load on nodes under faults: publishers and consumers in threads, a history of all promises
and observations, and their account at the end. An error that a client raises fails the test,
because users should not notice faults of nodes. A full disk is the exception: then refused
records must never be seen.
"""

import asyncio
import os
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import minimal
import zmq

from gossipq.core.storage.intervals import Intervals
from gossipq.endpoints import door_of
from gossipq.errors import LeaseLost, Refused, StoreFull, UnknownTopic
from gossipq.messages import Acked, Deliver
from gossipq.types import partition_of
from gossipq_client import Client, connect
from gossipq_client.aio import connect as aio_connect
from gossipq_client.io.contexts import read_credentials
from gossipq_client.session.deliveries import runs_of
from gossipq_client.session.receipts import PendingReceipt
from history.record import Call, Recorder
from waiting import until

TOPIC, GROUP, PARTITIONS = "load", "group", 4
UNCONFIRMED_MAX = 60  #: batches of one publisher
PATIENCE_S = 30
PAUSE_S = 0.02  #: of a pulse
PROBE_S = 0.5  #: what was just confirmed is there sooner
Name = tuple[str, int, int]  #: of a record: (producer, partition, number)


class Sent(NamedTuple):
    """One batch of one producer: records `first` .. `first + count - 1` of its own numbering in that
    partition."""

    producer: str
    partition: int
    first: int
    count: int
    pending: PendingReceipt
    call: Call

    @property
    def names(self) -> list[str]:
        return [
            text_of(self.producer, self.partition, number)
            for number in range(self.first, self.first + self.count)
        ]


def text_of(producer: str, partition: int, number: int) -> str:
    """The name of a record in a history."""
    return f"{producer}/{partition}/{number}"


def value_of(producer: str, partition: int, number: int) -> bytes:
    """Every record is known by its bytes."""
    return b"%s %d %d " % (producer.encode(), partition, number) + b"x" * (number * 7919 % 500)


class History:
    """Promises to clients, and what clients have seen. All threads write here."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.lock = threading.Lock()
        self.recorder = recorder or Recorder()
        self.offsets: dict[Name, int] = {}  # of confirmed records
        self.refused: set[Name] = set()  # for want of space: certainly not stored
        # first numbers of batches stored before their confirm came
        self.duplicates: set[tuple[str, int, int]] = set()
        # (producer, partition) -> numbers given out
        self.attempted: dict[tuple[str, int], int] = defaultdict(int)
        self.under_way: dict[tuple[str, int, int], Sent] = {}
        self.confirmed_batches = [0] * PARTITIONS
        self.abandoned = 0  # batches whose client went away before their confirm
        # partition -> (term, ranges) of confirmed acks
        self.acked: dict[int, list[tuple[int, Intervals]]] = defaultdict(list)
        self.acked_total = [Intervals() for _ in range(PARTITIONS)]
        self.delivered = [Intervals() for _ in range(PARTITIONS)]
        # (partition, offset) -> hash of the value that a consumer was given
        self.values: dict[tuple[int, int], int] = {}
        self.deliveries = 0
        self.violations: list[str] = []

    def confirm(self, sent: Sent) -> None:
        """Of a batch that is done, well or not."""
        try:
            receipt = sent.pending.result(0)
        except StoreFull as error:
            sent.call.fail(repr(error))
            with self.lock:
                self.refused |= {
                    (sent.producer, sent.partition, sent.first + number) for number in range(sent.count)
                }
                del self.under_way[sent.producer, sent.partition, sent.first]
            return
        sent.call.ok(
            [["send", sent.partition, [receipt.offset + at, name]] for at, name in enumerate(sent.names)]
        )
        with self.lock:
            for number in range(sent.count):
                self.offsets[sent.producer, sent.partition, sent.first + number] = receipt.offset + number
            key = (sent.producer, sent.partition, sent.first)
            if receipt.duplicate:
                self.duplicates.add(key)
            del self.under_way[key]
            self.confirmed_batches[sent.partition] += 1

    def ack(self, partition: int, term: int, first: int, end: int) -> None:
        said = [[partition, first, end, term]]
        self.recorder.invoke("acked", said).ok(said)
        with self.lock:
            terms = self.acked[partition]
            if not terms or terms[-1][0] != term:
                terms.append((term, Intervals()))
            terms[-1][1].add(first, end)
            self.acked_total[partition].add(first, end)

    def deliver(self, partition: int, term: int, first: int, end: int) -> None:
        """A delivery of a leader that knew an ack, directly or from its log, must not contain what was
        acked."""
        with self.lock:
            self.deliveries += end - first
            self.delivered[partition].add(first, end)
            for acked_term, ranges in self.acked[partition]:
                if (
                    acked_term <= term
                    and sum(high - low for low, high in ranges.missing(first, end)) != end - first
                ):
                    text = (
                        f"partition {partition}: {first}..{end} given out in term {term}, but acked in "
                        f"term {acked_term}"
                    )
                    self.violations.append(text)


class Watch:
    """Notes what a client is given and which of its acks are confirmed, each with the term of the message
    that said so."""

    def __init__(self, client: Client, history: History, name: str) -> None:
        """`name`: of the client in the recorded history."""
        session = client._driver.engine.session
        self.name = name
        self.terms: dict[tuple[int, int], int] = {}  #: (partition, offset) -> term of its last delivery
        self.history, self._term = history, 0
        self._handle, self._acked = session._handle, session.consuming._acked
        session._handle = self._on_message  # type: ignore[method-assign]
        session.consuming._acked = self._on_acked  # type: ignore[method-assign]
        self._session = session

    def _on_message(self, endpoint: str, header: Any, body: Any, message: list[bytes]) -> None:
        self._term = header.term
        if isinstance(body, Deliver) and header.term >= self._session.links.term(header.shard):
            for piece in body.slices:
                partition = partition_of(piece.partition)
                for first, end in runs_of(piece):
                    self.history.deliver(partition, header.term, first, end)
                    self.terms.update(
                        dict.fromkeys(((partition, at) for at in range(first, end)), header.term)
                    )
        self._handle(endpoint, header, body, message)

    def _on_acked(self, part: Any, ranges: Any, call: Any) -> None:
        self._acked(part, ranges, call)
        if isinstance(call.reply, Acked):
            for key, first, end in call.message.ranges:
                lost = Intervals([(low, high) for other, low, high in call.reply.lost if other == key])
                for low, high in lost.missing(first, end):
                    self.history.ack(partition_of(key), self._term, low, high)


class Actor(threading.Thread):
    """A client in a thread of its own, until it is told to stop. Any error of it fails the test."""

    def __init__(self, servers: Sequence[str], history: History, number: int, seed: int) -> None:
        super().__init__(name=f"{type(self).__name__}-{number}", daemon=True)
        self.servers, self.history, self.number = servers, history, number
        self.random = random.Random(f"{seed} {self.name}")
        self.stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            life = 0
            while not self.stopping.is_set():
                with suppress(LeaseLost):  # acks that came too late: the records are redelivered
                    self.live(life)
                life += 1
        except BaseException as error:
            self.error = error

    def live(self, life: int) -> None:
        raise NotImplementedError


class Publisher(Actor):
    """Publishes batches of many sizes to all partitions. Some of its clients end without
    waiting for their confirms.
    """

    def __init__(
        self, servers: Sequence[str], history: History, number: int, seed: int, pause_s: float
    ) -> None:
        super().__init__(servers, history, number, seed)
        self.pause_s = pause_s

    def live(self, life: int) -> None:
        producer = f"p{self.number}.{life}"
        under_way: list[deque[Sent]] = [deque() for _ in range(PARTITIONS)]
        mq = connect(*self.servers, timeout=PATIENCE_S)
        end = time.monotonic() + self.random.uniform(3, 12)
        try:
            while not self.stopping.is_set() and time.monotonic() < end:
                self._publish(mq, producer, under_way)
                self._collect(under_way)
                if sum(map(len, under_way)) >= UNCONFIRMED_MAX:
                    with suppress(StoreFull):
                        max(under_way, key=len)[0].pending.result(PATIENCE_S)
                time.sleep(self.random.random() * 2 * self.pause_s)
            if self.stopping.is_set() or self.random.random() < 0.5:
                with suppress(StoreFull):
                    mq.flush(PATIENCE_S)
                self._collect(under_way)
        finally:
            mq.close(flush=False)
        for sent in (sent for row in under_way for sent in row):
            sent.call.info("its client ended without waiting")
        with self.history.lock:
            for sent in (sent for row in under_way for sent in row):
                self.history.under_way.pop((sent.producer, sent.partition, sent.first))
                self.history.abandoned += 1

    def _publish(self, mq: Client, producer: str, under_way: list[deque[Sent]]) -> None:
        partition, count = self.random.randrange(PARTITIONS), self.random.choice((1, 1, 2, 10, 50))
        with self.history.lock:
            first = self.history.attempted[producer, partition]
            self.history.attempted[producer, partition] += count
        numbers = range(first, first + count)
        values = [value_of(producer, partition, number) for number in numbers]
        asked = [["send", partition, text_of(producer, partition, number)] for number in numbers]
        call = self.history.recorder.invoke("send", asked, client=producer)
        pending = mq.post_many(TOPIC, values, partition=partition)
        sent = Sent(producer, partition, first, count, pending, call)
        with self.history.lock:
            self.history.under_way[producer, partition, first] = sent
        under_way[partition].append(sent)

    def _collect(self, under_way: list[deque[Sent]]) -> None:
        for row in under_way:
            while row and row[0].pending.done():
                self.history.confirm(row.popleft())


class Consumer(Actor):
    """Fetches, acks most of it, gives some back, holds some until it leaves; now and then it leaves."""

    def live(self, life: int) -> None:
        mq = connect(*self.servers, timeout=PATIENCE_S)
        watch = Watch(mq, self.history, f"{self.name}.{life}")
        end = time.monotonic() + self.random.uniform(2, 8)
        try:
            while not self.stopping.is_set() and time.monotonic() < end:
                take(mq, watch, self.random.choice((1, 20, 400)), self.random.random())
        finally:
            with self.history.recorder.call("close", client=watch.name) as call:
                mq.close(flush=self.stopping.is_set())
                call.ok()


def take(mq: Client, watch: Watch, count: int, mood: float = 0.0) -> int:
    """One fetch: below 0.8 all is acked, below 0.95 every second record, else nothing."""
    history = watch.history
    with history.recorder.call("fetch", client=watch.name) as call:
        batch = mq.fetch(TOPIC, GROUP, n=count, wait=0.1)
        places = [(msg.partition, msg.offset) for msg in batch]
        history.values |= {place: hash(msg.value) for place, msg in zip(places, batch, strict=True)}
        call.ok(
            [
                [*place, name_text(msg.value), watch.terms[place]]
                for place, msg in zip(places, batch, strict=True)
            ]
        )
    if mood >= 0.95:
        return len(batch)
    with history.recorder.call("settle", places, client=watch.name) as call:
        if mood < 0.8:
            mq.ack_soon(batch)
        else:
            for at, msg in enumerate(batch):
                if at % 2:
                    msg.ack_soon()
                else:
                    msg.nack(delay=0)
        call.ok()
    return len(batch)


class Probe(Actor):
    """Publishes one record at a time to one partition and consumes it, to measure pauses without
    confirms and without deliveries.
    """

    def __init__(self, servers: Sequence[str], history: History, number: int, seed: int) -> None:
        super().__init__(servers, history, number, seed)
        self.confirmed_s: list[float] = []
        self.pushed_s: list[float] = []

    def live(self, life: int) -> None:
        with connect(*self.servers, timeout=PATIENCE_S) as mq:
            mq.create_topic(self.topic, if_not_exists=True)
            while not self.stopping.is_set():
                with suppress(StoreFull):
                    mq.publish(self.topic, b"%d" % len(self.confirmed_s), timeout=PATIENCE_S)
                    self.confirmed_s.append(time.monotonic())
                batch = mq.fetch(self.topic, "probe", n=100, wait=PROBE_S)
                if batch:
                    self.pushed_s.append(time.monotonic())
                mq.ack_soon(batch)

    @property
    def topic(self) -> str:
        return f"probe-{self.number}"

    def gap_ms(self, since_s: float) -> int:
        """The longest time without a confirm that ended after `since_s`."""
        return _gap_ms(self.confirmed_s, since_s)

    def push_gap_ms(self, since_s: float) -> int:
        return _gap_ms(self.pushed_s, since_s)


class AioProbe(Probe):
    """The same with the asyncio client."""

    def live(self, life: int) -> None:
        asyncio.run(self._live())

    async def _live(self) -> None:
        async with aio_connect(*self.servers, timeout=PATIENCE_S) as mq:
            await mq.create_topic(self.topic, if_not_exists=True)
            while not self.stopping.is_set():
                with suppress(StoreFull):
                    await mq.publish(self.topic, b"%d" % len(self.confirmed_s), timeout=PATIENCE_S)
                    self.confirmed_s.append(time.monotonic())
                batch = await mq.fetch(self.topic, "probe", n=100, wait=PROBE_S)
                if batch:
                    self.pushed_s.append(time.monotonic())
                mq.ack_soon(batch)


class Watched(minimal.Client):
    """The client in one file; it keeps the last steps of its recovery, for `Plain.explain`."""

    def __init__(self, *addresses: str, wait_s: float) -> None:
        self.steps = deque[tuple[float, str]](maxlen=24)
        super().__init__(*addresses, wait_s=wait_s)

    def _once(self, verb: int, shard: int, fields: list[Any], body: bytes | None) -> tuple[int, list[Any]]:
        asked = f"{verb} of shard {shard}"
        try:
            said, answer = super()._once(verb, shard, fields, body)
        except Exception as error:
            self.step(f"{asked}: {error!r}")
            raise
        if said == minimal.REFUSED:
            self.step(f"{asked}: {answer}")
        return said, answer

    def _dial(self) -> None:
        super()._dial()
        self.step(f"dials {self._addresses[-1]}")

    def step(self, text: str) -> None:
        self.steps.append((round(time.time(), 3), text))


class Plain(Actor):
    """The client in one file, behind frontdoors that forward: publishes one record at a time to
    some partition and consumes it. An acked record must not come again.
    """

    TOPIC, PARTITIONS = "plain", 4

    def __init__(self, servers: Sequence[str], history: History, number: int, seed: int) -> None:
        super().__init__(servers, history, number, seed)
        self.rounds = 0
        self.client: Watched | None = None
        self.doing = ""

    def live(self, life: int) -> None:
        with connect(*self.servers, timeout=PATIENCE_S) as mq:
            mq.create_topic(self.TOPIC, partitions=self.PARTITIONS, if_not_exists=True)
        client = self.client = Watched(*self._ways(), wait_s=2 * PATIENCE_S)
        try:
            self._take_turns(client)
        finally:
            client._socket.close(0)
            minimal.CONTEXT.destroy(linger=0)  # the next run may be in another network
            minimal.CONTEXT = zmq.Context(minimal.IO_THREADS)

    def _take_turns(self, client: Watched) -> None:
        acked = set[tuple[int, int]]()
        client.subscribe(self.TOPIC, GROUP)
        while not self.stopping.is_set():
            self.doing = "publishes"
            place = client.publish(self.TOPIC, b"plain", key=self.random.randbytes(2))
            self.doing = f"waits for the record at {place}"
            while place not in acked and not self.stopping.is_set():
                record = client.next(PROBE_S)
                if record is not None:
                    came = partition_of(record[0]), record[1]
                    assert came not in acked, f"{came} came again after its ack was stored"
                    if client.ack():
                        acked.add(came)
            self.rounds += 1
            time.sleep(PAUSE_S)

    def explain(self) -> str:
        """What it waits for, and what it and the leaders know of its subscription."""
        known = vars(self.client) if self.client is not None else {}
        shown = "_addresses", "_joined", "_groups", "_held", "_waiting", "_unanswered", "_terms", "_ended"
        with connect(*self.servers, timeout=PATIENCE_S) as mq:
            rows = mq.admin.stats([self.TOPIC]).groups
        steps = list(self.client.steps) if self.client is not None else []
        return f"{self.doing}; {[(name, known.get(name)) for name in shown]}; {steps}; {rows}"

    def _ways(self) -> list[str]:
        """To the nodes: by their doors, where they encrypt."""
        credentials = os.environ.get("GOSSIPQ_CREDENTIALS")
        if credentials is None:
            return list(self.servers)
        context, (public, secret) = minimal.CONTEXT, zmq.curve_keypair()  # all its sockets have these
        context.setsockopt(zmq.CURVE_SERVERKEY, read_credentials(Path(credentials)).door)
        context.setsockopt(zmq.CURVE_PUBLICKEY, public)
        context.setsockopt(zmq.CURVE_SECRETKEY, secret)
        return [door_of(server) for server in self.servers]


class Pulse(Actor):
    """One record at a time into each partition of a topic of its own, and when each was confirmed."""

    TOPIC, PARTITIONS = "pulse", 8

    def __init__(self, servers: Sequence[str], history: History, number: int, seed: int) -> None:
        super().__init__(servers, history, number, seed)
        self.confirmed_s: list[list[float]] = [[] for _ in range(self.PARTITIONS)]

    def live(self, life: int) -> None:
        waiting: list[PendingReceipt | None] = [None] * self.PARTITIONS
        with connect(*self.servers, timeout=PATIENCE_S) as mq:
            mq.create_topic(self.TOPIC, partitions=self.PARTITIONS, if_not_exists=True)
            while not self.stopping.is_set():
                for partition, pending in enumerate(waiting):
                    if pending is not None and not pending.done():
                        continue
                    with suppress(StoreFull):
                        if pending is not None:
                            pending.result(0)
                            self.confirmed_s[partition].append(time.monotonic())
                        waiting[partition] = mq.post_many(self.TOPIC, [b"pulse"], partition=partition)
                time.sleep(PAUSE_S)

    def gap_ms(self, since_s: float) -> int:
        """The longest time without a confirm of any partition that ended after `since_s`."""
        return max(_gap_ms(times_s, since_s) for times_s in self.confirmed_s)


class Churn(Actor):
    """Topics that come and go: each has exactly what was confirmed, and nothing of the one of its name
    before."""

    def __init__(self, servers: Sequence[str], history: History, number: int, seed: int) -> None:
        super().__init__(servers, history, number, seed)
        self.topics = 0

    def live(self, life: int) -> None:
        name = f"churn-{self.number}.{life % 3}"
        with connect(*self.servers, timeout=PATIENCE_S) as mq:
            partitions = self.random.choice((1, 3))
            self._insist(lambda: mq.create_topic(name, partitions=partitions, if_not_exists=True))
            with suppress(StoreFull):
                self._use(mq, name, [b"%d %d" % (life, at) for at in range(self.random.choice((0, 1, 40)))])
            with suppress(UnknownTopic):  # the answer to the first request was lost
                self._insist(lambda: mq.topic(name).delete())
        self.topics += 1
        self.stopping.wait(PROBE_S)

    @staticmethod
    def _insist(ask: Callable[[], object]) -> None:
        """Repeats a request until it succeeds: a shard may have no leader or a full disk for
        longer than a request waits.
        """
        end_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                ask()
            except Refused as error:
                if isinstance(error, UnknownTopic) or time.monotonic() > end_s:
                    raise
                time.sleep(PROBE_S)
            else:
                return

    def _use(self, mq: Client, name: str, values: list[bytes]) -> None:
        for value in values:
            mq.post(name, value, key=value)
        mq.flush(PATIENCE_S)
        found = [msg.value for msg in mq.read(name)]
        assert sorted(found) == sorted(values), f"topic {name}: {len(values)} stored, {len(found)} found"
        mq.ack_soon(mq.fetch(name, GROUP, n=len(values) or 1, wait=0))


def _gap_ms(times_s: list[float], since_s: float) -> int:
    times_s = list(times_s)
    pairs = zip(times_s, [*times_s[1:], time.monotonic()], strict=True)
    return max((round(1000 * (end - first)) for first, end in pairs if end >= since_s), default=0)


class Load:
    """All actors together."""

    def __init__(
        self,
        servers: Sequence[str],
        seed: int,
        publishers: int = 2,
        consumers: int = 2,
        probes: int = 2,
        pause_s: float = 0.001,
        pulses: int = 0,
        churns: int = 0,
        plains: int = 0,
        recorder: Recorder | None = None,
    ) -> None:
        """`pause_s`: between two batches of a publisher, on average. `recorder`: writes the history."""
        self.servers, self.history = list(servers), History(recorder)
        settings = self.servers, self.history
        self.publishers: list[Actor] = [
            Publisher(*settings, number, seed, pause_s) for number in range(publishers)
        ]
        self.consumers: list[Actor] = [Consumer(*settings, number, seed) for number in range(consumers)]
        self.probes = [(Probe, AioProbe)[number % 2](*settings, number, seed) for number in range(probes)]
        self.pulses = [Pulse(*settings, number, seed) for number in range(pulses)]
        self.churns = [Churn(*settings, number, seed) for number in range(churns)]
        self.plains = [Plain(*settings, number, seed) for number in range(plains)]
        self.others: list[Actor] = []  #: whoever a test adds before it runs

    def prepare(self) -> None:
        """The topic and its group, from the first record on."""
        with connect(*self.servers, timeout=PATIENCE_S) as mq:
            mq.create_topic(TOPIC, partitions=PARTITIONS)
            mq.fetch(TOPIC, GROUP, n=1, wait=0)

    @contextmanager
    def running(self) -> Iterator["Load"]:
        """Publishers end first, so that consumers may see what they sent last."""
        groups: tuple[Iterable[Actor], ...] = (
            self.publishers,
            [*self.probes, *self.pulses, *self.churns, *self.plains, *self.others],
            self.consumers,
        )
        for group in groups:
            for actor in group:
                actor.start()
        try:
            yield self
        finally:
            for group in groups:
                for actor in group:
                    actor.stopping.set()
                for actor in group:
                    actor.join(2 * PATIENCE_S)
        self.check()
        assert not any(actor.is_alive() for group in groups for actor in group)
        assert not self.history.under_way

    def check(self) -> None:
        beside = *self.probes, *self.pulses, *self.churns, *self.plains, *self.others
        for actor in [*self.publishers, *self.consumers, *beside]:
            if actor.error is not None:
                raise actor.error
        assert not self.history.violations, self.history.violations[:5]

    def wait_going(self) -> None:
        """Waits until each partition has confirmed another record, each probe has published and
        received one, and each plain client has acked one of its own.
        """

        def counts() -> list[int]:
            probed = [
                count for probe in self.probes for count in (len(probe.confirmed_s), len(probe.pushed_s))
            ]
            pulses = [len(times_s) for pulse in self.pulses for times_s in pulse.confirmed_s]
            plains = [plain.rounds for plain in self.plains]
            return [*self.history.confirmed_batches, *probed, *pulses, *plains]

        def going() -> bool:
            self.check()
            return all(now > then for now, then in zip(counts(), before, strict=True))

        before = counts()
        try:
            until(going, PATIENCE_S)
        except AssertionError:
            self.check()  # what went wrong is the reason, if anything did
            stuck = f"something does not go on: {before} -> {counts()}"
            raise AssertionError("; ".join([stuck, *(plain.explain() for plain in self.plains)])) from None

    def gaps_ms(self, since_s: float) -> list[int]:
        return [probe.gap_ms(since_s) for probe in self.probes]

    def push_gaps_ms(self, since_s: float) -> list[int]:
        return [probe.push_gap_ms(since_s) for probe in self.probes]


# --- the account


def drain(servers: Sequence[str], history: History) -> None:
    """A fresh consumer gets all that is left, and then nothing is."""
    with connect(*servers, timeout=PATIENCE_S) as mq:
        watch = Watch(mq, history, "drain")

        def empty() -> bool:
            while take(mq, watch, 1_000):
                pass
            mq.flush(PATIENCE_S)
            return all(row.ready == row.in_flight == 0 for row in mq.topic(TOPIC).groups())

        try:
            until(empty, 2 * PATIENCE_S)
        except AssertionError:
            raise AssertionError(
                f"something is never handed out: {_loans(mq)}, {mq.topic(TOPIC).groups()}"
            ) from None
        for row in mq.topic(TOPIC).groups():
            partition = partition_of(row.partition)
            assert not history.acked_total[partition] or history.acked_total[partition].ends[-1] <= row.cursor
            assert list(history.delivered[partition]) == [(0, row.cursor)]


def _loans(mq: Client) -> list[str]:
    """A client's view of its credit at each shard."""
    consuming = mq._driver.engine.session.consuming
    return [
        f"shard {part.shard}: share {part.share_records}, lent {part.lent_records} of {part.lent_bytes} "
        "bytes, untaken "
        f"{part.untaken_records}, subscribed {part.subscribed}, hungry {part in consuming.hungry}, fed "
        f"{part.fed}"
        for part in consuming.parts.values()
    ]


def read(servers: Sequence[str], history: History | None = None) -> dict[int, list[bytes]]:
    """The records that a reader gets: partition -> values from offset 0 on. `history` notes them."""
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    with connect(*servers, timeout=PATIENCE_S) as mq:
        for msg in mq.read(TOPIC):
            assert msg.offset == len(found[msg.partition]), "offsets have no gap"
            found[msg.partition].append(msg.value)
    if history is not None:
        rows = {
            partition: [[offset, name_text(value)] for offset, value in enumerate(values)]
            for partition, values in found.items()
        }
        history.recorder.invoke("poll", [["poll"]], client="read").ok([["poll", rows]])
    return found


class Account(NamedTuple):
    """Of one log against the history; all but the first five must be 0."""

    attempted: int
    confirmed: int
    stored: int
    recovered: int  #: stored although they were never confirmed
    refused: int
    lost: int  #: confirmed, and not at their offset
    unexpected: int  #: never published, or with other bytes
    phantom: int  #: refused, and stored all the same
    duplicated: int
    reordered: int  #: after a later one of the same producer
    changed: int  #: not what a consumer was given there

    @property
    def clean(self) -> bool:
        return not any(self[5:])


def account(history: History, log: dict[int, list[bytes]]) -> Account:
    """`log`: partition -> values from offset 0 on, as a reader or one replica has them."""
    places: dict[Name, int] = {}
    last: dict[tuple[str, int], int] = {}
    unexpected = duplicated = reordered = changed = 0
    for partition, values in log.items():
        for offset, value in enumerate(values):
            name = _name_of(value)
            if name is None or name[1] != partition or name[2] >= history.attempted.get(name[:2], 0):
                unexpected += 1
                continue
            duplicated += name in places
            places.setdefault(name, offset)
            reordered += name[2] < last.get(name[:2], -1)
            last[name[:2]] = name[2]
            changed += history.values.get((partition, offset), hash(value)) != hash(value)
    lost = sum(places.get(name) != offset for name, offset in history.offsets.items())
    stored = sum(map(len, log.values()))
    recovered = len(places.keys() - history.offsets.keys())
    attempted = sum(history.attempted.values())
    confirmed = len(history.offsets)
    refused, phantom = len(history.refused), len(history.refused & places.keys())
    return Account(
        attempted,
        confirmed,
        stored,
        recovered,
        refused,
        lost,
        unexpected,
        phantom,
        duplicated,
        reordered,
        changed,
    )


def name_text(value: bytes) -> str:
    """The name of a record in a history. Bytes that differ from those published get a name of their own."""
    name = _name_of(value)
    return f"unknown {value[:40]!r}" if name is None else text_of(*name)


def _name_of(value: bytes) -> Name | None:
    """The name of a record, if its bytes are those that were published under it."""
    try:
        producer, partition, number = value.split(b" ", 3)[:3]
        name = producer.decode(), int(partition), int(number)
    except ValueError:
        return None
    return name if value == value_of(*name) else None
