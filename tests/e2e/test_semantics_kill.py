"""Everything a record may ask for, under kill -9 of workers and of the whole node; in the end each record is
accounted for.

GOSSIPQ_KILLS=100 makes a long run of it, GOSSIPQ_SEED repeats the choices of one."""

import logging
import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, starmap
from typing import Any, NamedTuple

import pytest

from e2e.harness import Node
from gossipq.errors import GossipqError, LeaseLost, UnknownRecord, WrongState
from gossipq.messages import Acked, Deliver
from gossipq.types import partition_of
from gossipq.wire.batch import Batch, split
from gossipq_client import Client, Message, PendingReceipt, Receipt, Reject, Retry, connect
from gossipq_client.session.deliveries import runs_of
from gossipq_client.session.held import Held, subtract
from waiting import until

KILLS = int(os.environ.get("GOSSIPQ_KILLS", "6"))
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(300 + 30 * KILLS),
    pytest.mark.skipif("GOSSIPQ_KILLS" not in os.environ, reason="make chaos runs it"),
]
SEED = int(os.environ.get("GOSSIPQ_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
SOURCE, RESULTS, PARTITIONS = "work", "results", 4
KEYED, SHARED = GROUPS = "keyed", "shared"
KEYS, ROUTES, ATTEMPTS_MAX, DELAY_MS_MAX = 12, ("eu.fr", "eu.de", "us.ny"), 3, 3_000
MOODS = ("well",) * 14 + ("retry", "crash", "crash", "reject", "doomed")  #: what handlers do with a record
UNCONFIRMED_MAX = 30  #: publishes of one publisher
PATIENCE_S = 30

Place = tuple[str, int, int]  #: group, partition, offset


class Made(NamedTuple):
    """One record as it was asked for; its value is its number."""

    number: int
    mood: str
    options: dict[str, Any]


class Boom(Exception):
    """An unexpected exception of a handler."""


class History:
    """Promises to clients, and the observations of clients. All threads write here."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: dict[int, Made] = {}
        self.due_s: dict[int, float] = {}  # monotonic, the earliest that was asked for
        self.receipts: dict[int, list[Receipt]] = defaultdict(list)
        self.cancelled: dict[int, int] = {}  # number -> term of the answer
        self.cancel_tried: set[int] = set()
        self.acked: dict[Place, int] = {}  # confirmed -> term of the answer
        self.ack_tried: set[Place] = set()
        self.calls: Counter[Place] = Counter()
        # first deliveries by key, in the keyed group. A record that expired before its first
        # delivery and was replayed comes after those that followed it
        self.begun: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
        # dead letters that were replayed: their handlers succeed now
        self.mercy: set[Place] = set()
        self.failed: list[tuple[int, int, int]] = []  # (number, partition, offset) of records that did once
        # perhaps: the request was on its way when a process was killed
        self.requeued_twice: set[Place] = set()
        self.steps: list[tuple[Place, PendingReceipt]] = []
        self.violations: list[tuple[Place | None, str]] = []
        self.counts: Counter[str] = Counter()
        self.kills = 0

    def violation(self, text: str, place: Place | None = None) -> None:
        self.violations.append((place, text))

    def ask(self, made: Made) -> None:
        """Before each publish of it: the first may be the one that is stored, or a repeat."""
        due_s = time.monotonic() + made.options.get("delay", 0)
        with self.lock:
            self.made[made.number] = made
            self.due_s[made.number] = min(due_s, self.due_s.get(made.number, due_s))

    def handed(self, place: Place, number: int, term: int) -> None:
        """As the client gets it, before any user code."""
        early_s = self.due_s[number] - time.monotonic()
        with self.lock:
            self.counts["handed out"] += 1
            if early_s > 0:
                self.violation(f"record {number} came {early_s * 1000:.3f} ms before it was due: {place}")
            if term >= self.acked.get(place, term + 1):
                self.violation(
                    f"record {number} came in term {term}, but was acked in term {self.acked[place]}: "
                    f"{place}",
                    place,
                )
            if term >= self.cancelled.get(number, term + 1):
                self.violation(f"record {number} came though it was cancelled: {place}")

    def begin(self, place: Place, key: bytes | None) -> int:
        """A handler has it; returns how often that has been."""
        with self.lock:
            self.calls[place] += 1
            if self.calls[place] == 1 and key is not None and place[0] == KEYED and place not in self.mercy:
                self.begun[key].append(place[1:])
            return self.calls[place]


class Watch:
    """Notes what a client is given and which of its acks are confirmed, each with the term of the message
    that said so."""

    def __init__(self, client: Client, history: History) -> None:
        session = client._driver.engine.session
        self.term, self._history, self._session = 0, history, session
        self._groups: dict[int, str] = {}  # of subscriptions
        self._handle, self._acked, self._stepped = (
            session._handle,
            session.consuming._acked,
            session.consuming.stepped,
        )
        session._handle = self._on_message  # type: ignore[method-assign]
        session.consuming._acked = self._on_acked  # type: ignore[method-assign]
        session.consuming.stepped = self._on_stepped  # type: ignore[method-assign]

    def _on_message(self, endpoint: str, header: Any, body: Any, message: list[bytes]) -> None:
        self.term = header.term
        if isinstance(body, Deliver) and header.term >= self._session.links.term(header.shard):
            part = self._session.consuming.parts.get(body.subscription)
            # else it goes back unseen
            if part is not None and not (part.subscription.closing or part.subscription.paused):
                group = self._groups[body.subscription] = part.subscription.group
                for piece, raw in zip(
                    body.slices, split(message[1], [each.size for each in body.slices]), strict=True
                ):
                    offsets = chain.from_iterable(starmap(range, runs_of(piece)))
                    for offset, value in zip(offsets, Batch(raw).values(), strict=True):
                        place = group, partition_of(piece.partition), offset
                        self._history.handed(place, int(value), header.term)
        self._handle(endpoint, header, body, message)

    def _on_acked(self, part: Any, ranges: Any, call: Any) -> None:
        self._acked(part, ranges, call)
        if isinstance(call.reply, Acked):
            group = self._groups[call.message.subscription]
            for key, first, end in call.message.ranges:
                for low, high in subtract(
                    [(first, end)], [(low, high) for other, low, high in call.reply.lost if other == key]
                ):
                    for offset in range(low, high):
                        self._done((group, partition_of(key), offset))

    def _on_stepped(self, held: Held, offset: int, error: GossipqError | None) -> None:
        if error is None:
            self._done((held.part.subscription.group, partition_of(held.partition), offset))
        self._stepped(held, offset, error)

    def _done(self, place: Place) -> None:
        with self._history.lock:
            self._history.acked[place] = self.term


def handle(history: History, group: str, msg: Message) -> None:
    """Handles a record by its mood; the second half of the numbers uses an atomic step."""
    place, number = (group, msg.partition, msg.offset), int(msg.value)
    nth, mood = history.begin(place, msg.key), history.made[number].mood
    if place not in history.mercy:
        if mood in ("reject", "doomed") or (mood in ("retry", "crash") and nth == 1):
            history.failed.append((number, *place[1:]))
        if mood == "reject":
            raise Reject("not this one")
        if mood == "retry" and nth == 1:
            raise Retry(delay="50ms")
        if mood == "doomed" or (mood == "crash" and nth == 1):
            raise Boom(mood)
    with history.lock:
        history.ack_tried.add(place)
    if is_step(number):
        pending = msg.post_with(RESULTS, "{} {} {}".format(*place), partition=msg.partition)
        history.steps.append((place, pending))


def is_step(number: int) -> bool:
    return number % 4 >= 2


def may_be_cancelled(number: int) -> bool:
    """Cancelling a record frees its id, so a repeat of that publish would be stored. Therefore only
    these records are cancelled, and their publishes are not repeated once they are confirmed.
    """
    return number % 3 == 0


class Worker(threading.Thread):
    """A client in a thread of its own, until it is told to stop. Any error of it fails the test."""

    def __init__(self, endpoint: str, history: History, number: int) -> None:
        super().__init__(name=f"{type(self).__name__}-{number}")
        self.endpoint, self.history, self.number = endpoint, history, number
        self.random = random.Random(f"{SEED} {self.name}")
        self.stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                with self.client() as mq:
                    self.live(mq, time.monotonic() + self.random.uniform(2, 6))
        except BaseException as error:
            self.error = error

    @contextmanager
    def client(self) -> Iterator[Client]:
        mq = connect(self.endpoint, timeout=PATIENCE_S)
        self.watch = Watch(mq, self.history)
        try:
            yield mq
        finally:
            try:
                mq.close(flush=self.stopping.is_set())
            except LeaseLost:  # the error of a step whose receipt was not awaited
                self.history.counts["steps that came too late"] += 1

    def live(self, mq: Client, end_s: float) -> None:
        raise NotImplementedError

    def going(self, end_s: float) -> bool:
        return not self.stopping.is_set() and time.monotonic() < end_s


class Publisher(Worker):
    """Records of all kinds, single or in lists. A life ends without waiting; what had an id is published
    again by the next."""

    def __init__(self, endpoint: str, history: History, number: int) -> None:
        super().__init__(endpoint, history, number)
        self.under_way: deque[tuple[list[Made], PendingReceipt]] = deque()
        self.named: deque[Made] = deque(maxlen=100)
        self.count = 0

    def live(self, mq: Client, end_s: float) -> None:
        lost, self.under_way = self.under_way, deque()
        for made in (made for row, _ in lost for made in row):
            self.history.counts["abandoned"] += 1
            if "id" in made.options:
                self._send(mq, made)
        while self.going(end_s):
            if self.random.random() < 0.1 and self.named:
                self.history.counts["repeated ids"] += 1
                self._send(mq, self.random.choice(self.named))
            elif self.random.random() < 0.1:
                self._send_list(mq)
            else:
                self._send(mq, self._make())
            self._collect()
            if len(self.under_way) >= UNCONFIRMED_MAX:
                self.under_way[0][1].result(PATIENCE_S)
            time.sleep(self.random.random() * 0.03)
        if self.stopping.is_set():
            mq.flush(PATIENCE_S)
            self._collect()

    def _make(self) -> Made:
        number, pick = 2 * self.count + self.number, self.random
        self.count += 1
        options = {
            "key": pick.choice((None, b"k%d" % pick.randrange(KEYS))),
            "id": b"id-%d" % number if pick.random() < 0.4 else None,
            "delay": pick.randrange(DELAY_MS_MAX) / 1000 if pick.random() < 0.4 else None,
            "route": pick.choice((*ROUTES, None, None, None)),
            "ttl": pick.choice(("40ms", 60) + (None,) * 8),
            "attempts_max": pick.choice((1,) + (None,) * 9),
        }
        said = {name: value for name, value in options.items() if value is not None}
        return Made(number, pick.choice(MOODS), said)

    def _send(self, mq: Client, made: Made) -> None:
        self.history.ask(made)
        self.under_way.append(([made], mq.post(SOURCE, b"%d" % made.number, **made.options)))
        if "id" in made.options and not may_be_cancelled(made.number):
            self.named.append(made)

    def _send_list(self, mq: Client) -> None:
        row = [self._make() for _ in range(self.random.randrange(2, 20))]
        for at, made in enumerate(row):
            each = {name: made.options[name] for name in ("key", "id", "delay") if name in made.options}
            if at == 0:
                each["id"] = b"id-%d" % made.number  # with ids in it, the list has a receipt for each record
            row[at] = made._replace(options=each)
            self.history.ask(row[at])
        columns = {f"{name}s": [made.options.get(name) for made in row] for name in ("key", "id", "delay")}
        pending = mq.post_many(SOURCE, [b"%d" % made.number for made in row], **columns)
        self.under_way.append((row, pending))

    def _collect(self) -> None:
        while self.under_way and self.under_way[0][1].done():
            row, pending = self.under_way.popleft()
            receipt = pending.result(0)
            for made, each in zip(row, receipt.receipts or [receipt], strict=True):
                self.history.receipts[made.number].append(each)


class Fetcher(Worker):
    """One consumer that fetches; some of its lives leave with steps under way."""

    def __init__(self, endpoint: str, history: History, number: int, group: str, **options: Any) -> None:
        super().__init__(endpoint, history, number)
        self.group, self.options = group, options

    def live(self, mq: Client, end_s: float) -> None:
        while self.going(end_s):
            for msg in mq.fetch(
                SOURCE, self.group, n=self.random.choice((1, 5, 50)), wait=0.1, **self.options
            ):
                try:
                    with msg:
                        handle(self.history, self.group, msg)
                except LeaseLost:
                    self.history.counts["leases lost"] += 1
                except Boom:
                    pass


class Handlers(Worker):
    """One consumer with three workers."""

    def __init__(self, endpoint: str, history: History, number: int, group: str, **options: Any) -> None:
        super().__init__(endpoint, history, number)
        self.group, self.options = group, options

    def live(self, mq: Client, end_s: float) -> None:
        @mq.consumer(SOURCE, self.group, workers=3, **self.options)
        def work(msg: Message) -> None:
            handle(self.history, self.group, msg)

        over = threading.Event()

        def stop() -> None:
            while not over.wait(0.1):
                if not self.going(end_s):
                    mq.stop()

        stopper = threading.Thread(target=stop)
        stopper.start()
        try:
            mq.run()
        finally:
            over.set()
            stopper.join()


class Mender(Worker):
    """Cancels and reschedules what is scheduled, brings dead letters back."""

    def live(self, mq: Client, end_s: float) -> None:
        while self.going(end_s):
            verb = self.random.choice((self._cancel, self._cancel_failed, self._reschedule, self._bring_back))
            try:
                verb(mq)
            except WrongState:
                self.history.counts["mending too late"] += 1
            except UnknownRecord as error:
                self.history.violation(f"{verb.__name__}: {error}")
            time.sleep(self.random.random() * 0.1)

    def _scheduled(self) -> tuple[int, str] | None:
        """One that is, or was a moment ago."""
        now_s, history = time.monotonic(), self.history
        with history.lock:
            found = [
                number
                for number, due_s in history.due_s.items()
                if due_s > now_s + 0.02 and number in history.receipts
            ]
        numbers = [number for number in found if history.receipts[number]]
        if not numbers:
            return None
        number = self.random.choice(numbers)
        return number, history.receipts[number][0].ref

    def _cancel(self, mq: Client) -> None:
        found = self._scheduled()
        if found is not None and may_be_cancelled(found[0]):
            self._cancel_one(mq, *found)

    def _cancel_failed(self, mq: Client) -> None:
        """One that waits for its next attempt, is a dead letter, or is done by now."""
        with self.history.lock:
            failed = [each for each in self.history.failed[-60:] if may_be_cancelled(each[0])]
        if failed:
            number, partition, offset = self.random.choice(failed)
            self._cancel_one(mq, number, f"{SOURCE}/{partition}/{offset}")

    def _cancel_one(self, mq: Client, number: int, ref: str) -> None:
        self.history.cancel_tried.add(number)
        mq.record(ref).cancel(reason="no longer wanted")
        with self.history.lock:
            self.history.cancelled[number] = self.watch.term
        self.history.counts["cancelled"] += 1

    def _reschedule(self, mq: Client) -> None:
        if (found := self._scheduled()) is not None:
            number, ref = found
            delay_s, due_s = self.random.random() * 2, self.history.due_s
            asked_s = time.monotonic() + delay_s
            with self.history.lock:
                due_s[number] = min(asked_s, due_s[number])
            mq.record(ref).reschedule(delay=delay_s)
            with self.history.lock:
                due_s[number] = asked_s - 0.001  # the delay was rounded to a millisecond
            self.history.counts["rescheduled"] += 1

    def _bring_back(self, mq: Client) -> None:
        group, history = self.random.choice(GROUPS), self.history
        letters = list(mq.dead(SOURCE, group).letters())
        if not letters:
            return
        letter = self.random.choice(letters)
        place, kills = (group, letter.partition, letter.offset), history.kills
        history.mercy.add(place)
        if self.random.random() < 0.5:
            mq.dead(SOURCE, group).replay([(letter.partition, letter.offset, letter.offset + 1)])
        else:
            try:
                mq.record(SOURCE, letter.partition, letter.offset).requeue(group=group)
            finally:
                if kills != history.kills:
                    history.requeued_twice.add(place)
        history.counts["brought back"] += 1


class Killing:
    """Kills, and between the kills looks at the counters."""

    def __init__(self, node: Node, history: History, check: Callable[[], None]) -> None:
        self.node, self.history, self.check = node, history, check
        self.random = random.Random(f"{SEED} kills")

    def run(self) -> None:
        for number in range(KILLS):
            time.sleep(self.random.uniform(0.3, 1.5))
            self.check()
            self.history.kills += 1
            if number % 2:
                self.node.kill()
                time.sleep(self.random.random() * 0.2)
                self.node.start()
            else:
                self._kill_worker()
            self.history.kills += 1
            with connect(self.node.endpoint, timeout=PATIENCE_S) as mq:
                check_counters(mq)
        time.sleep(0.5)

    def _kill_worker(self) -> None:
        children = self.node.pids()[2:]
        with connect(self.node.endpoint, timeout=PATIENCE_S) as mq:
            pids = [worker.pid for worker in mq.admin.status().workers if worker.pid in children]
        if pids:
            os.kill(self.random.choice(pids), signal.SIGKILL)


def check_counters(mq: Client) -> bool:
    """They add up at any moment. True when nothing moves any more."""
    stats = mq.admin.stats([SOURCE])
    rows = {row.partition: row for row in stats.partitions}
    assert len(rows) == PARTITIONS
    assert len(stats.groups) == PARTITIONS * len(GROUPS)
    for part in stats.partitions:
        assert 0 <= part.published - part.next - part.scheduled <= part.voided, part
    for row in stats.groups:
        left = row.ready + row.in_flight + row.retrying + row.parked
        gone = row.acked + row.dead + row.voided + row.dropped + row.removed
        assert rows[row.partition].next == left + gone, (row, rows[row.partition])
        assert (
            min(row.ready, row.in_flight, row.retrying, row.parked, row.unmatched, row.blocked_by_key) >= 0
        ), row
    moving = [row.ready + row.in_flight + row.retrying + row.parked for row in stats.groups]
    return not any(moving) and not any(part.scheduled for part in stats.partitions)


def test_each_record_is_accounted_for(make: Callable[..., Node], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "gossipq_client")  # handlers fail by the hundred
    print(f"seed {SEED}")
    node, history = make().start(), History()
    with connect(node.endpoint) as mq:
        mq.create_topic(SOURCE, partitions=PARTITIONS, attempts_max=ATTEMPTS_MAX, backoff=["100ms"])
        mq.create_topic(RESULTS, partitions=PARTITIONS, beside=SOURCE)
        mq.fetch(SOURCE, KEYED, n=1, wait=0.2, mode="key_ordered")
        mq.fetch(SOURCE, SHARED, n=1, wait=0.2)
        until(lambda: len(mq.topic(SOURCE).groups()) == PARTITIONS * len(GROUPS))
    sources: list[Worker] = [Publisher(node.endpoint, history, 0), Publisher(node.endpoint, history, 1)]
    menders: list[Worker] = [Mender(node.endpoint, history, 0)]
    consumers: list[Worker] = [
        Fetcher(node.endpoint, history, 0, KEYED, mode="key_ordered"),
        Handlers(node.endpoint, history, 0, KEYED, mode="key_ordered"),
        Fetcher(node.endpoint, history, 1, SHARED),
        Fetcher(node.endpoint, history, 2, SHARED, route="eu.#"),
    ]

    def check() -> None:
        for worker in sources + menders + consumers:
            if worker.error is not None:
                raise worker.error

    for worker in sources + menders + consumers:
        worker.start()
    try:
        Killing(node, history, check).run()
        end(sources)
        end(menders)
        settle(node, check)
    finally:
        end(sources + menders + consumers)
    check()
    Accounting(node, history).run()
    assert "Traceback" not in node.log()


def end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.stopping.set()
    for worker in workers:
        worker.join(2 * PATIENCE_S)


def settle(node: Node, check: Callable[[], None]) -> None:
    with connect(node.endpoint, timeout=PATIENCE_S) as mq:

        def still() -> bool:
            check()
            time.sleep(0.1)
            return check_counters(mq)

        try:
            until(still, PATIENCE_S)
        except AssertionError:
            raise AssertionError(f"something never ends: {stuck(mq)}") from None


def stuck(mq: Client) -> list[object]:
    """Counters of groups that something keeps, and where those records stand."""
    stats = mq.admin.stats([SOURCE])
    ends, found = {row.partition: row.next for row in stats.partitions}, list[object]()
    for row in stats.groups:
        if row.ready + row.in_flight + row.retrying + row.parked:
            found.append(row)
            for offset in range(row.cursor, ends[row.partition]):
                standings = (
                    mq.record(SOURCE, partition_of(row.partition), offset).why(group=row.group).standings
                )
                found += [
                    (offset, each) for each in standings if each.state not in ("acked", "dead", "voided")
                ][:5]
    return found


class Accounting:
    """Compares the node's counters, when all is quiet, with the history."""

    def __init__(self, node: Node, history: History) -> None:
        self.history = history
        with connect(node.endpoint, timeout=PATIENCE_S) as mq:
            self.log = {(msg.partition, msg.offset): int(msg.value) for msg in read(mq, SOURCE)}
            self.results = Counter(msg.value.decode() for msg in read(mq, RESULTS))
            self.letters = {
                (each.group, each.partition, each.offset): each for each in mq.dead(SOURCE).letters()
            }
            self.stats = mq.admin.stats([SOURCE])
            self.states: dict[Place, str] = {}
            for row in self.stats.partitions:
                for offset in range(row.next):
                    self._ask(mq, partition_of(row.partition), offset)
            self.named = {number: mq.record(rows[0].ref).why() for number, rows in history.receipts.items()}
        self._settle_voided()

    def _ask(self, mq: Client, partition: int, offset: int) -> None:
        for standing in mq.record(SOURCE, partition, offset).why().standings:
            for group in [standing.group] if standing.group else GROUPS:
                assert (group, partition, offset) not in self.states, "a record stands in two places"
                self.states[group, partition, offset] = standing.state

    def _settle_voided(self) -> None:
        """`why` tells of a void record that it is void, also where it was acked before."""
        self.numbers = {(found.partition, found.offset): number for number, found in self.named.items()}
        self.numbers |= {
            (partition, offset): number for number, partition, offset in self.history.failed
        } | self.log
        self.unsure: Counter[tuple[str, int]] = Counter()
        for place, state in self.states.items():
            if state == "voided":
                if place in self.history.acked or "{} {} {}".format(*place) in self.results:
                    self.states[place] = "acked"
                elif place in self.history.ack_tried:
                    self.unsure[place[:2]] += 1

    def run(self) -> None:
        self.report()
        mercy, twice = self.history.mercy, self.history.requeued_twice
        real = [
            text + " (was dead)" * (place in mercy)
            for place, text in self.history.violations
            if place not in twice
        ]
        assert not real, "\n".join(real[:5])
        self.check_records()
        self.check_ends()
        self.check_dead()
        self.check_steps()
        self.check_key_order()
        self.check_rows()

    def report(self) -> None:
        counts = self.history.counts
        counts.update(self.states.values())
        again = sum(count - 1 for count in self.history.calls.values())
        for place, count in self.history.calls.items():
            if place not in self.history.mercy and self.history.made[self.numbers[place[1:]]].mood == "well":
                counts["redelivered without a failure"] += count - 1
        for _, pending in self.history.steps:
            try:
                if pending.done():
                    counts["steps confirmed by a repeat"] += pending.result(0).duplicate
            except GossipqError as error:
                counts[f"steps: {error.code}"] += 1
        reasons = Counter(letter.reason for letter in self.letters.values())
        print(
            f"{self.history.kills // 2} kills, seed {SEED}: {len(self.history.receipts):,} records "
            "confirmed, "
            f"{len(self.log):,} in the log, {again:,} handled again, {sum(self.results.values()):,} steps, "
            f"dead {dict(reasons)}, {dict(counts)}"
        )

    def check_records(self) -> None:
        """Each confirmed record is stored once, at the place in its receipts, or was cancelled."""
        stored = Counter(self.log.values())
        assert not [number for number, count in stored.items() if count > 1], "stored twice"
        where, wrong = {number: place for place, number in self.log.items()}, []
        for number, receipts in self.history.receipts.items():
            assert sum(not receipt.duplicate for receipt in receipts) <= 1, (number, receipts)
            found = self.named[number]
            if any(standing.state == "voided" for standing in found.standings):
                assert number in self.history.cancel_tried, f"nobody cancelled record {number}"
                assert number not in where
                self.history.counts["found voided"] += 1
                continue
            assert number not in self.history.cancelled, f"record {number} was cancelled"
            place = where.get(number)
            named = {(receipt.partition, receipt.offset) for receipt in receipts if receipt.offset >= 0}
            named.add((found.partition, found.offset))
            if named != {place}:
                others = {each: self.log.get(each) for each in named}
                wrong.append(f"{self.history.made[number]} is at {place}, not {others}: {receipts}")
        assert not wrong, "\n".join(wrong)
        assert set(self.log.values()) <= set(self.history.made), "nobody published this"

    def check_ends(self) -> None:
        """In each group each record has one end, and it is the one that consumers were told of."""
        ends = {(group, *place): number for place, number in self.log.items() for group in GROUPS}
        assert set(ends) <= set(self.states)
        for place, state in self.states.items():
            allowed = ("acked", "dead") if place in ends else ("acked", "voided")
            assert state in allowed, (place, state)
            assert state != "voided" or self.numbers[place[1:]] in self.history.cancel_tried, place
        acked = {place for place, state in self.states.items() if state == "acked"}
        assert set(self.history.acked) <= acked, "what was confirmed as acked is not"
        assert acked <= self.history.ack_tried, "acked, and by nobody"
        dead = {place for place, state in self.states.items() if state == "dead"}
        assert dead == set(self.letters)

    def check_dead(self) -> None:
        """Dead letters are only records that failed too often, were rejected, or expired."""
        for place, letter in self.letters.items():
            made = self.history.made[self.numbers[place[1:]]]
            attempts_max, why = made.options.get("attempts_max", ATTEMPTS_MAX), (place, made, letter)
            if letter.reason == "expired":
                assert "ttl" in made.options, why
            elif letter.reason == "rejected":
                assert made.mood == "reject", why
            else:
                assert letter.reason == "failures", why
                assert letter.failures == attempts_max, why
                assert made.mood == "doomed" or (made.mood in ("retry", "crash") and attempts_max == 1), why
        for place, state in self.states.items():
            if state == "acked" and place not in self.history.mercy:
                assert self.history.made[self.numbers[place[1:]]].mood in ("well", "retry", "crash"), place

    def check_steps(self) -> None:
        """The ack and the result of a step are there together, or not at all."""
        acked = [
            place
            for place, state in self.states.items()
            if state == "acked" and is_step(self.numbers[place[1:]])
        ]
        wanted = {"{} {} {}".format(*place): place in self.history.requeued_twice for place in acked}
        assert set(self.results) == set(wanted), (
            set(self.results) - set(wanted),
            set(wanted) - set(self.results),
        )
        twice = [text for text, count in self.results.items() if count > 1 and not wanted[text]]
        assert not twice, f"two results of one record: {twice[:5]}"
        for place, pending in self.history.steps:
            try:
                if pending.done() and pending.result(0):
                    assert self.states[place] == "acked"
            except GossipqError:  # it tells nothing
                pass

    def check_key_order(self) -> None:
        for key, places in self.history.begun.items():
            for partition in range(PARTITIONS):
                offsets = [offset for found, offset in places if found == partition]
                assert offsets == sorted(offsets), (key, partition, offsets)

    def check_rows(self) -> None:
        """The counters say the same as the records."""
        for row in self.stats.groups:
            partition = partition_of(row.partition)
            found = Counter(
                state for place, state in self.states.items() if place[:2] == (row.group, partition)
            )
            assert (row.acked + row.voided, row.dead) == (found["acked"] + found["voided"], found["dead"]), (
                row,
                found,
            )
            assert 0 <= row.acked - found["acked"] <= self.unsure[row.group, partition], (row, found)
            assert row.dropped == row.removed == 0
        for part in self.stats.partitions:
            gaps = part.next - sum(place[0] == partition_of(part.partition) for place in self.log)
            assert part.published == part.next + part.scheduled + part.voided - gaps, (part, gaps)


def read(mq: Client, topic: str) -> Iterator[Message]:
    return mq.read(topic)
