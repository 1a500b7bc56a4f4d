"""kill -9 of workers and of whole nodes at random moments under load: what was confirmed is there once, what was acked stays
acked. GOSSIPQ_KILLS=500 makes a long run of it, GOSSIPQ_SEED repeats the choices of one."""

import os
import random
import signal
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from e2e.harness import Node, until
from gossipq.core.intervals import Intervals
from gossipq.messages import Acked, Deliver
from gossipq.types import partition_of
from gossipq_client import Client, connect
from gossipq_client.receipts import PendingReceipts

KILLS = int(os.environ.get("GOSSIPQ_KILLS", "50"))
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(60 + 3 * KILLS)]
SEED = int(os.environ.get("GOSSIPQ_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
IN_THE_GAP_MIN = KILLS // 5  #: with fewer kills between append and confirm the run proves nothing
TOPIC, GROUP, PARTITIONS = "kills", "group", 4
PUBLISHERS, CONSUMERS = 2, 2
UNCONFIRMED_MAX = 60  #: batches of one publisher
PATIENCE_S = 30


class Sent(NamedTuple):
    """One batch of one producer: records `first` .. `first + count - 1` of its own numbering in that partition."""

    producer: str
    partition: int
    first: int
    count: int
    pending: PendingReceipts


def value_of(producer: str, partition: int, number: int) -> bytes:
    """Every record is known by its bytes."""
    return b"%s %d %d " % (producer.encode(), partition, number) + b"x" * (number * 7919 % 500)


class History:
    """What was promised, by the client's word, and what was seen. All threads write here."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.offsets: dict[tuple[str, int, int], int] = {}  # confirmed: (producer, partition, number) -> offset
        self.duplicates: set[tuple[str, int, int]] = set()  # first numbers of batches stored before their confirm came
        self.attempted: dict[tuple[str, int], int] = defaultdict(int)  # (producer, partition) -> numbers given out
        self.under_way: dict[tuple[str, int, int], Sent] = {}
        self.confirmed_batches = [0] * PARTITIONS
        self.abandoned = 0  # batches whose client went away before their confirm
        self.acked: dict[int, list[tuple[int, Intervals]]] = defaultdict(list)  # partition -> (term, ranges) of confirmed acks
        self.acked_total = [Intervals() for _ in range(PARTITIONS)]
        self.delivered = [Intervals() for _ in range(PARTITIONS)]
        self.values: dict[tuple[int, int], int] = {}  # (partition, offset) -> hash of the value that a consumer was given
        self.deliveries = 0
        self.violations: list[str] = []

    def confirm(self, sent: Sent) -> None:
        receipt = sent.pending.result(0)
        with self.lock:
            for number in range(sent.count):
                self.offsets[sent.producer, sent.partition, sent.first + number] = receipt.offset + number
            key = (sent.producer, sent.partition, sent.first)
            if receipt.duplicate:
                self.duplicates.add(key)
            del self.under_way[key]
            self.confirmed_batches[sent.partition] += 1

    def ack(self, partition: int, term: int, first: int, end: int) -> None:
        with self.lock:
            terms = self.acked[partition]
            if not terms or terms[-1][0] != term:
                terms.append((term, Intervals()))
            terms[-1][1].add(first, end)
            self.acked_total[partition].add(first, end)

    def deliver(self, partition: int, term: int, first: int, end: int) -> None:
        """A delivery of a leader that knew an ack, directly or from its log, must not contain what was acked."""
        with self.lock:
            self.deliveries += end - first
            self.delivered[partition].add(first, end)
            for acked_term, ranges in self.acked[partition]:
                if acked_term <= term and sum(high - low for low, high in ranges.missing(first, end)) != end - first:
                    text = f"partition {partition}: {first}..{end} given out in term {term}, but acked in term {acked_term}"
                    self.violations.append(text)


class Watch:
    """Notes what a client is given and which of its acks are confirmed, each with the term of the message that said so."""

    def __init__(self, client: Client, history: History) -> None:
        session = client.engine.session
        self._history, self._term = history, 0
        self._handle, self._acked = session._handle, session.consuming._acked
        session._handle = self._on_message  # type: ignore[method-assign]
        session.consuming._acked = self._on_acked  # type: ignore[method-assign]
        self._session = session

    def _on_message(self, endpoint: str, header: Any, body: Any, message: list[bytes]) -> None:
        self._term = header.term
        if isinstance(body, Deliver) and header.term >= self._session.links.term(header.shard):
            for piece in body.slices:
                self._history.deliver(partition_of(piece.partition), header.term, piece.offset, piece.offset + piece.count)
        self._handle(endpoint, header, body, message)

    def _on_acked(self, call: Any) -> None:
        self._acked(call)
        if isinstance(call.reply, Acked):
            for key, first, end in call.message.ranges:
                lost = Intervals([(low, high) for other, low, high in call.reply.lost if other == key])
                for low, high in lost.missing(first, end):
                    self._history.ack(partition_of(key), self._term, low, high)


class Worker(threading.Thread):
    """A client of its own in a thread of its own, until told to stop. Whatever it raises fails the test."""

    def __init__(self, endpoint: str, history: History, number: int) -> None:
        super().__init__(name=f"{type(self).__name__}-{number}")
        self.endpoint, self.history, self.number = endpoint, history, number
        self.random = random.Random(f"{SEED} {self.name}")
        self.stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            life = 0
            while not self.stopping.is_set():
                self.live(life)
                life += 1
        except BaseException as error:
            self.error = error

    def live(self, life: int) -> None:
        raise NotImplementedError


class Publisher(Worker):
    """Batches of many sizes into all partitions; some of its lives end without waiting for what is under way."""

    def live(self, life: int) -> None:
        producer = f"p{self.number}.{life}"
        under_way: list[deque[Sent]] = [deque() for _ in range(PARTITIONS)]
        mq = connect(self.endpoint, timeout=PATIENCE_S)
        end = time.monotonic() + self.random.uniform(3, 12)
        try:
            while not self.stopping.is_set() and time.monotonic() < end:
                self._publish(mq, producer, under_way)
                self._collect(under_way)
                if sum(map(len, under_way)) >= UNCONFIRMED_MAX:
                    max(under_way, key=len)[0].pending.result(PATIENCE_S)
                time.sleep(self.random.random() * 0.002)
            if self.stopping.is_set() or self.random.random() < 0.5:
                mq.flush(PATIENCE_S)
                self._collect(under_way)
        finally:
            mq.close(flush=False)
        with self.history.lock:
            for sent in (sent for row in under_way for sent in row):
                self.history.under_way.pop((sent.producer, sent.partition, sent.first))
                self.history.abandoned += 1

    def _publish(self, mq: Client, producer: str, under_way: list[deque[Sent]]) -> None:
        partition, count = self.random.randrange(PARTITIONS), self.random.choice((1, 1, 2, 10, 50))
        with self.history.lock:
            first = self.history.attempted[producer, partition]
            self.history.attempted[producer, partition] += count
        values = [value_of(producer, partition, number) for number in range(first, first + count)]
        pending = mq.publish_many(TOPIC, values, partition=partition)
        sent = Sent(producer, partition, first, count, pending)
        with self.history.lock:
            self.history.under_way[producer, partition, first] = sent
        under_way[partition].append(sent)

    def _collect(self, under_way: list[deque[Sent]]) -> None:
        for row in under_way:
            while row and row[0].pending.done():
                self.history.confirm(row.popleft())


class Consumer(Worker):
    """Fetches, acks most of it, gives some back, holds some until it leaves; now and then it leaves."""

    def live(self, life: int) -> None:
        mq = connect(self.endpoint, timeout=PATIENCE_S)
        Watch(mq, self.history)
        end = time.monotonic() + self.random.uniform(2, 8)
        try:
            while not self.stopping.is_set() and time.monotonic() < end:
                take(mq, self.history, self.random.choice((1, 20, 400)), self.random.random())
        finally:
            mq.close(flush=self.stopping.is_set())


def take(mq: Client, history: History, count: int, mood: float = 0.0) -> int:
    """One fetch: below 0.8 all is acked, below 0.95 every second record, else nothing."""
    batch = mq.fetch(TOPIC, GROUP, n=count, wait=0.1)
    for msg in batch:
        history.values[msg.partition, msg.offset] = hash(msg.value)
    if mood < 0.8:
        mq.ack(batch)
    elif mood < 0.95:
        for at, msg in enumerate(batch):
            if at % 2:
                msg.ack()
            else:
                msg.nack(delay=0)
    return len(batch)


class Killing:
    """Kills, waits until every partition confirms again (mostly), and counts what each kill caught."""

    def __init__(self, node: Node, history: History, check: Callable[[], None]) -> None:
        self.node, self.history, self.check = node, history, check
        self.random = random.Random(f"{SEED} kills")
        self.caught: list[list[Sent]] = []
        self.workers = self.nodes = 0

    def run(self) -> None:
        for number in range(KILLS):
            self.check()
            time.sleep(self.random.random() * 0.15)
            if number % 2:
                self._kill_node()
            else:
                self._kill_worker()
            if self.random.random() < 0.75 or number == KILLS - 1:
                self._recover()

    def _kill_worker(self) -> None:
        self.workers += 1
        children = self.node.pids()[2:]
        with connect(self.node.endpoint, timeout=PATIENCE_S) as mq:
            pids = [worker.pid for worker in mq.status().workers if worker.pid in children]
        if pids:
            self._note()
            os.kill(self.random.choice(pids), signal.SIGKILL)

    def _kill_node(self) -> None:
        self.nodes += 1
        self._note()
        self.node.kill()
        time.sleep(self.random.random() * 0.1)
        self.node.start()

    def _note(self) -> None:
        with self.history.lock:
            self.caught.append(list(self.history.under_way.values()))

    def _recover(self) -> None:
        before = list(self.history.confirmed_batches)

        def going() -> bool:
            self.check()
            return all(now > then for now, then in zip(self.history.confirmed_batches, before, strict=True))

        until(going, PATIENCE_S, "publishing did not go on")

    def report(self) -> int:
        """Prints what the kills caught; returns how many fell between an append and its confirm, for sure."""
        duplicates, under_way = self.history.duplicates, sum(map(bool, self.caught))
        keys = [{(sent.producer, sent.partition, sent.first) for sent in batches} for batches in self.caught]
        gap = sum(bool(caught & duplicates) for caught in keys)
        stored = len(set().union(*keys) & duplicates)
        print(
            f"{self.workers} workers and {self.nodes} nodes killed, seed {SEED}: {under_way} kills met batches under way; "
            f"{gap} fell between append and confirm: {stored} batches were on disk though no confirm had come, of "
            f"{sum(map(len, keys))} under way; {len(self.history.offsets):,} records confirmed, "
            f"{self.history.abandoned} batches abandoned, {self.history.deliveries:,} records handed out, "
            f"{sum(ranges.total() for ranges in self.history.acked_total):,} acked"
        )
        return gap


def test_what_is_confirmed_survives_kills(make: Callable[..., Node]) -> None:
    print(f"seed {SEED}")
    node, history = make().start(), History()
    with connect(node.endpoint) as mq:
        mq.create_topic(TOPIC, partitions=PARTITIONS)
        mq.fetch(TOPIC, GROUP, n=1, wait=0)
    publishers: list[Worker] = [Publisher(node.endpoint, history, number) for number in range(PUBLISHERS)]
    consumers: list[Worker] = [Consumer(node.endpoint, history, number) for number in range(CONSUMERS)]

    def check() -> None:
        for worker in publishers + consumers:
            if worker.error is not None:
                raise worker.error
        assert not history.violations, history.violations[:5]

    killing = Killing(node, history, check)
    for worker in publishers + consumers:
        worker.start()
    try:
        killing.run()
    finally:
        for workers in (publishers, consumers):
            for worker in workers:
                worker.stopping.set()
            for worker in workers:
                worker.join(2 * PATIENCE_S)
    gap = killing.report()
    check()
    assert not history.under_way
    drain(node, history)
    check()
    check_log(node, history)
    assert "Traceback" not in node.log()
    assert gap >= IN_THE_GAP_MIN, f"only {gap} of {KILLS} kills fell between append and confirm"


def drain(node: Node, history: History) -> None:
    """A fresh consumer gets all that is left, and then nothing is."""
    with connect(node.endpoint) as mq:
        Watch(mq, history)

        def empty() -> bool:
            while take(mq, history, 1_000):
                pass
            mq.flush(PATIENCE_S)
            return all(row.ready == row.in_flight == 0 for row in mq.groups(TOPIC))

        until(empty, PATIENCE_S, "something is never handed out")
        for row in mq.groups(TOPIC):
            partition = partition_of(row.partition)
            assert not history.acked_total[partition] or history.acked_total[partition].ends[-1] <= row.cursor
            assert list(history.delivered[partition]) == [(0, row.cursor)]


def check_log(node: Node, history: History) -> None:
    """Reads everything back: once each, at its confirmed offset, with its bytes, in order."""
    found: dict[tuple[str, int, int], int] = {}
    last: dict[tuple[str, int], int] = {}
    following = [0] * PARTITIONS
    with connect(node.endpoint) as mq:
        for msg in mq.consume(TOPIC, start="first", stop_at_end=True):
            producer, partition, number = (text.decode() for text in msg.value.split(b" ")[:3])
            key = producer, int(partition), int(number)
            assert msg.value == value_of(*key)
            assert msg.partition == key[1]
            assert msg.offset == following[msg.partition], "offsets have no gap"
            following[msg.partition] += 1
            assert key not in found, f"{key} is stored twice"
            found[key] = msg.offset
            assert number_after(last, key), f"{key} comes after a later one of its producer"
            assert history.values[msg.partition, msg.offset] == hash(msg.value), "a consumer was given other bytes"
    for key, offset in history.offsets.items():
        assert found.get(key) == offset, f"{key} was confirmed at {offset} and is at {found.get(key)}"
    for producer, partition, number in found:
        assert number < history.attempted[producer, partition], "nobody published this"


def number_after(last: dict[tuple[str, int], int], key: tuple[str, int, int]) -> bool:
    producer, partition, number = key
    before, last[producer, partition] = last.get((producer, partition), -1), number
    return number > before
