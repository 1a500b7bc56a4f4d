"""The trials, level by level. A trial raises AssertionError with the fault."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import count, product
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from gossipq.errors import LeaseLost
from gossipq.limits import MIB
from gossipq.messages import Deliver, DeliverPlain, Publish, PublishPlain
from gossipq_cli.conformance.between import (
    HIGH_OFFSET,
    HIGH_TOPIC,
    NOWHERE,
    CutOff,
    OtherVersion,
    Sham,
    Spoiler,
    Tap,
    standing,
    without_routes,
)
from gossipq_cli.conformance.driver import Driver, Taken, publication
from gossipq_cli.demo.nodes import DemoNode, Nodes

if TYPE_CHECKING:
    from gossipq_client import Client, Record

COME_S = 30.0  #: for a record that exists
LONG_S = 60.0  #: for a record after a fault
KEYS = [b"", b"ada", "été".encode(), bytes(range(256)), b"k" * 4_096]
VALUES = [b"", b"x", bytes(range(256)), "naïve \U0001f600".encode(), b"m" * MIB]
PARTITIONS = 4
TAKEOVERS = 5
RECORDS = 120  #: published around each fault, in steps
STEP = 10
MANY = 5_000  #: records of one call
CALLS = 96  #: calls at the same time
SOON_MS = 3_000  #: for a call that cannot succeed
#: median time from an ack to the node's count; a client may join acks of some milliseconds
ACK_MS = 50.0
WAITING = 60  #: records that a client may prefetch before a handler starts
SHARED_S = 5.0  #: a leader asks for them after 1 s
SHARED, WORK_S = 120, 0.02  #: records that two consumers share, and the work on each
NOTHING_MS = 500  #: a consumer without a record looks at the other
CREDIT_MAX, CREDIT_S = 1_000, 1.0  #: records that a consumer may hold by default, and how long it is watched
ACK_ROUNDS = 9  #: measurements
ACKS = 3  #: in a row, for each measurement
RECORD_VERBS = (Publish.verb, PublishPlain.verb, Deliver.verb, DeliverPlain.verb)
_numbers = count(1)


class Counts(NamedTuple):
    """Events of a trial, for the report."""

    records: int = 0
    takeovers: int = 0
    again: int = 0  #: records with an attempt above 1, which are allowed until their ack is stored
    ack_ms: float = 0.0  #: median time from an ack to the node's count


class Stage(NamedTuple):
    """The nodes, a reference client, and a connected driver for one trial."""

    servers: list[str]
    mq: "Client"
    driver: Driver
    nodes: Nodes | None = None  #: nodes that may be killed; None: they stay
    takeovers: int = TAKEOVERS

    def topic(self, attempts_max: int | None = None) -> str:
        """Return a new topic."""
        name = f"conformance-{next(_numbers)}"
        self.mq.create_topic(name, partitions=PARTITIONS, attempts_max=attempts_max)
        return name

    def consuming(self, topic: str) -> "Consuming":
        self.driver.ask("subscribe", topic=topic, group="g")
        return Consuming(self.driver)

    def killable(self) -> Nodes:
        assert self.nodes is not None, "a trial that kills nodes has some of its own"
        return self.nodes


class Consuming:
    """Receives records and acks each. A redelivery after a stored ack is a fault."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._acked: set[tuple[int, int]] = set()
        self.again = 0  #: of an attempt above 1

    def take(self, total: int, wait_s: float = LONG_S) -> list[Taken]:
        """Receive `total` different records."""
        found: list[Taken] = []
        while len(found) < total:
            record = self._driver.next(wait_s)
            assert record is not None, f"{len(found)} of {total} records came"
            if self._settled(record):
                found.append(record)
        return found

    def nothing_more(self, wait_s: float) -> None:
        record = self._driver.next(wait_s)
        if record is not None:
            self._settled(record)
            raise AssertionError(f"more came than there was: {record.partition}/{record.offset}")

    def _settled(self, record: Taken) -> bool:
        """Ack a record. False: the lease was lost, so the record will be redelivered."""
        place = record.partition, record.offset
        assert place not in self._acked, f"{place} came again after its ack was stored"
        self.again += record.attempt > 1
        try:
            self._driver.ack(record)
        except LeaseLost:
            return False
        self._acked.add(place)
        return True


def records_reach_another_language(stage: Stage) -> None:
    """Published by the other client, read by the Python client: same bytes,
    and one partition per key.
    """
    topic = stage.topic()
    sent = [
        {
            "value": value,
            "key": key,
            "headers": {"n": b"\x00\xff", "t": "ü".encode()},
            "id": b"\xff%d" % number,
        }
        for number, (key, value) in enumerate(product(KEYS, VALUES))
    ]
    places = [stage.driver.publish(topic, record)[0] for record in sent]
    came = stage.mq.fetch(topic, group="python", n=len(sent), wait=COME_S)
    found = {(msg.partition, msg.offset): msg for msg in came}
    while len(found) < len(sent):
        more = stage.mq.fetch(topic, group="python", n=len(sent), wait=COME_S)
        assert len(more), f"{len(found)} of {len(sent)} records came"
        found |= {(msg.partition, msg.offset): msg for msg in more}
    for record, place in zip(sent, places, strict=True):
        msg = found[place]
        assert (msg.value, msg.key or b"") == (record["value"], record["key"]), (
            f"{place} holds another record"
        )
        assert msg.headers == record["headers"]
        assert msg.id_bytes == record["id"]
    mine = {key: {place[0] for r, place in zip(sent, places, strict=True) if r["key"] == key} for key in KEYS}
    for key in KEYS[1:]:
        theirs = stage.mq.publish(topic, b"", key=key)
        assert mine[key] == {theirs.partition}, f"key {key[:10]!r} goes elsewhere than with the Python client"


def records_come_from_another_language(stage: Stage) -> None:
    """Published by the Python client, consumed by the other client."""
    topic = stage.topic()
    sent = [(key, value, b"\xfe", b"\xff%d" % at) for at, (key, value) in enumerate(product(KEYS, VALUES))]
    for key, value, header, name in sent:
        stage.mq.post(topic, value, key=key, headers={"h": header}, id=name)
    stage.mq.flush(None)
    consuming = stage.consuming(topic)
    came = [(taken.key, taken.value, taken.headers["h"], taken.id) for taken in consuming.take(len(sent))]
    assert Counter(came) == Counter(sent)
    consuming.nothing_more(0.5)


def an_id_is_stored_once(stage: Stage) -> None:
    topic = stage.topic()
    first = stage.driver.publish(topic, {"value": b"one", "id": b"order-17"})
    assert stage.driver.publish(topic, {"value": b"two", "id": b"order-17"}) == first
    (taken,) = stage.consuming(topic).take(1)
    assert (taken.value, taken.id) == (b"one", b"order-17")


def what_failed_comes_again_and_ends_as_a_dead_letter(stage: Stage) -> None:
    topic = stage.topic(attempts_max=2)
    stage.driver.publish(topic, {"value": b"bad"})
    stage.driver.ask("subscribe", topic=topic, group="g")
    for attempt in (1, 2):
        taken = stage.driver.next(COME_S)
        assert taken is not None, f"attempt {attempt} did not come"
        assert (taken.value, taken.attempt) == (b"bad", attempt)
        stage.driver.nack(taken, f"reason {attempt}")
    (letter,) = stage.mq.dead(topic, "g").letters()
    assert letter.error == "reason 2"
    assert stage.driver.next(0.5) is None


def a_key_waits_for_its_record_that_failed(stage: Stage) -> None:
    """In a key-ordered group, records of another key are delivered meanwhile."""
    topic = stage.topic()
    stage.mq.fetch(topic, "g", n=1, wait=0.1, mode="key_ordered")  # makes the group
    for number in range(3):
        for key in (b"ada", b"bob"):
            stage.mq.post(topic, b"%d" % number, key=key)
    stage.mq.flush(None)
    stage.driver.ask("subscribe", topic=topic, group="g")
    done: dict[bytes, list[bytes]] = {b"ada": [], b"bob": []}
    failed = False
    while sum(map(len, done.values())) < 6:
        record = stage.driver.next(COME_S)
        assert record is not None, f"only {done} came"
        if (record.key, record.value, failed) == (b"ada", b"0", False):
            failed = True
            stage.driver.nack(record, "not yet")
        else:
            stage.driver.ack(record)
            done[record.key].append(record.value)
    assert all(values == [b"0", b"1", b"2"] for values in done.values()), f"out of order: {done}"


def acks_reach_the_node_within_milliseconds(stage: Stage) -> Counts:
    """Also while the client has more records and its user calls nothing.

    So a crash repeats no finished record.
    """
    topic = stage.topic()
    for number in range(2 * ACK_ROUNDS * ACKS):
        stage.mq.post(topic, b"%d" % number, key=b"k")
    stage.mq.flush(None)
    stage.driver.ask("subscribe", topic=topic, group="g")
    took_ms = []
    for done in range(ACKS, (ACK_ROUNDS + 1) * ACKS, ACKS):
        for _ in range(ACKS):
            record = stage.driver.next(COME_S)
            assert record is not None, f"no record came behind {done - ACKS} that were acked"
            stage.driver.ack(record, wait=False)
        acked_s = time.monotonic()
        while (acked := _acked(stage, topic)) < done:
            assert time.monotonic() < acked_s + SOON_MS / 1_000, f"the node counts {acked} of {done} acks"
        took_ms.append((time.monotonic() - acked_s) * 1_000)
    found_ms = round(median(took_ms), 1)
    assert found_ms <= ACK_MS, f"the node counts an ack {found_ms:g} ms after it"
    return Counts(ack_ms=found_ms)


def a_consumer_with_nothing_gets_records_that_wait(stage: Stage) -> None:
    """While the client's user is still busy with its first record."""
    topic = stage.topic()
    for number in range(WAITING):
        stage.mq.post(topic, b"%d" % number)
    stage.mq.flush(None)
    stage.driver.ask("subscribe", topic=topic, group="g")
    mine = stage.driver.next(COME_S)
    assert mine is not None, "no record came"
    theirs = stage.mq.fetch(topic, "g", n=1, wait=SHARED_S)
    assert len(theirs), f"a second consumer had no record within {SHARED_S:g} s"
    assert {record.attempt for record in theirs} == {1}, "a record that nobody had begun with counts as tried"
    stage.driver.ack(mine)


def work_is_shared_with_a_consumer_that_joins(stage: Stage) -> None:
    """A second consumer of the same client, while the first one works: each gets about half of the rest."""
    topic = stage.topic()
    stage.mq.publish_many(topic, [b"%d" % number for number in range(SHARED)])
    stage.driver.ask("subscribe", topic=topic, group="g")
    did = [_work(stage.driver, SHARED // 6), 0]
    with stage.driver.another() as second:
        second.ask("connect", servers=stage.servers)
        second.ask("subscribe", topic=topic, group="g")
        drivers, idle = (stage.driver, second), 0
        while sum(did) < SHARED:
            for at, driver in enumerate(drivers):
                did[at] += (done := _work(driver, 1))
                idle = 0 if done else idle + 1
            assert idle * NOTHING_MS < COME_S * 1_000, f"{did[0]} to {did[1]} of {SHARED}, and nothing comes"
    assert min(did) >= SHARED // 3, f"the first did {did[0]}, the second {did[1]} of {SHARED}"


def _work(driver: Driver, count: int) -> int:
    """Take at most `count` records, work on each, and ack it. Returns how many came."""
    for number in range(count):
        record = driver.next(NOTHING_MS / 1_000)
        if record is None:
            return number
        assert record.attempt == 1, "a record that nobody had begun with counts as tried"
        time.sleep(WORK_S)
        driver.ack(record, wait=False)
    return count


def a_consumer_makes_its_topic(stage: Stage) -> None:
    """As a publish does."""
    topic = f"conformance-made-{next(_numbers)}"
    stage.driver.ask("subscribe", topic=topic, group="g")
    assert stage.mq.topics(topic), "the topic does not exist"
    stage.mq.publish(topic, b"x")
    record = stage.driver.next(COME_S)
    assert record is not None, "no record came"
    stage.driver.ack(record)


def a_consumer_holds_a_limited_number_of_records(stage: Stage) -> None:
    """Its default credit: a crash of a consumer that works on its first record delays no more than these."""
    topic = stage.topic()
    stage.mq.publish_many(topic, [b"x"] * (CREDIT_MAX + MANY))
    stage.driver.ask("subscribe", topic=topic, group="g")
    record = stage.driver.next(COME_S)
    assert record is not None, "no record came"
    held, until_s = 0, time.monotonic() + CREDIT_S
    while time.monotonic() < until_s:
        held = max(held, sum(group.in_flight for group in stage.mq.topic(topic).groups()))
        time.sleep(CREDIT_S / 10)
    assert held <= CREDIT_MAX, f"it holds {held} records by default, and at most {CREDIT_MAX} are asked for"
    stage.driver.ack(record)


def an_ack_is_stored_when_it_says_so(stage: Stage) -> None:
    """The node counts it already."""
    topic = stage.topic()
    stage.mq.publish_many(topic, [b"x"] * ACK_ROUNDS, key=b"k")
    stage.driver.ask("subscribe", topic=topic, group="g")
    for done in range(1, ACK_ROUNDS + 1):
        record = stage.driver.next(COME_S)
        assert record is not None, f"no record came behind {done - 1} that were acked"
        stage.driver.ack(record)
        assert _acked(stage, topic) == done, "the client says that an ack is stored, and it is not"


def a_record_that_is_released_comes_again_and_has_not_failed(stage: Stage) -> None:
    topic = stage.topic(attempts_max=1)
    stage.driver.publish(topic, {"value": b"x"})
    stage.driver.ask("subscribe", topic=topic, group="g")
    for _ in range(2):
        taken = stage.driver.next(COME_S)
        assert taken is not None, "it did not come again"
        stage.driver.release(taken)
    taken = stage.driver.next(COME_S)
    assert taken is not None, "it did not come again"
    stage.driver.ack(taken)
    assert not list(stage.mq.dead(topic, "g").letters()), "it counts as failed"


def a_refusal_is_an_error_and_the_client_goes_on(stage: Stage) -> None:
    topic = stage.topic()
    publish = publication("not a name!", {"value": b"x"})
    assert stage.driver.refused(**publish) == "bad_name"
    huge = publication(topic, {"value": b"x", "key": b"k" * 5_000})
    assert stage.driver.refused(**huge) == "too_large"
    stage.driver.publish(topic, {"value": b"still there"})


def bad_frames_between_good_ones(stage: Stage) -> None:
    """Invalid frames, and answers to unknown requests, are ignored."""
    topic = stage.topic()
    with standing(Tap(stage.servers[0], Spoiler())) as tap:
        stage.driver.ask("connect", servers=[tap.endpoint])
        sent = [b"%d" % number for number in range(RECORDS)]
        for value in sent:
            stage.driver.publish(topic, {"value": value, "key": b"k"})
        came = stage.consuming(topic).take(len(sent))
    assert [record.value for record in came] == sent, "records are lost, doubled or out of order"
    assert Counter(_stored(stage, topic)) == Counter(sent), "records are stored twice"


def a_node_of_another_version_is_told_of(stage: Stage) -> None:
    with standing(OtherVersion()) as other:
        stage.driver.ask("connect", servers=[other.endpoint])
        said = stage.driver.refused(**publication("t", {"value": b"x"}), timeout_ms=SOON_MS)
    assert said == "wrong_version", f"the client says {said or 'nothing'}"


def a_node_that_is_not_there_is_told_of(stage: Stage) -> None:
    stage.driver.ask("connect", servers=[NOWHERE])
    said = stage.driver.refused(**publication("t", {"value": b"x"}), timeout_ms=SOON_MS)
    assert said, "publishing to nobody ends well"
    topic = stage.topic()
    with standing(Tap(stage.servers[0])) as tap:
        stage.driver.ask("connect", servers=[tap.endpoint])
        stage.driver.publish(topic, {"value": b"there"})
        assert stage.consuming(topic).take(1)
    assert stage.driver.next(SOON_MS / 1_000) is None, "a record comes from nobody"
    stage.driver.ask("connect", servers=stage.servers)
    stage.driver.publish(stage.topic(), {"value": b"still there"})


def numbers_of_more_than_32_bits(stage: Stage) -> None:
    """Partition keys exceed 2^32 from the 65,536th topic on; offsets can reach 2^53."""
    with standing(Sham()) as sham:
        stage.driver.ask("connect", servers=[sham.endpoint])
        assert stage.driver.publish("t", {"value": b"x"}) == [(0, HIGH_OFFSET)]
        assert set(sham.partitions) == {HIGH_TOPIC * 65_536}, f"PUBLISH says {sham.partitions}"
        (record,) = stage.consuming("t").take(1)
        assert (record.partition, record.offset) == (0, HIGH_OFFSET)
        assert sham.acked == [(HIGH_TOPIC * 65_536, HIGH_OFFSET, HIGH_OFFSET + 1)], f"ACK says {sham.acked}"


def a_node_that_is_killed_and_comes_back(stage: Stage) -> Counts:
    (node,) = stage.killable().members
    return _through_faults(stage, lambda topic: _kill_and_start(node), faults=3)


def a_node_that_is_cut_off_from_the_others(stage: Stage) -> None:
    """The node answers, and leads no shard meanwhile."""
    topic = stage.topic()
    with standing(CutOff(stage.servers[0])) as alone:
        stage.driver.ask("connect", servers=[alone.endpoint, stage.servers[0]])
        stage.driver.publish(topic, {"value": b"x"})
        (taken,) = stage.consuming(topic).take(1, COME_S)
    assert taken.value == b"x"


def a_leader_that_is_killed(stage: Stage) -> Counts:
    """Takeovers in a row; each node returns before the next one is killed."""
    return _through_faults(stage, lambda topic: _take_over(stage, topic), faults=stage.takeovers)


def a_leader_that_is_killed_while_nothing_comes(stage: Stage) -> Counts:
    """A consumer without records gets no error; it must notice the takeover by its pings."""
    topic, takeovers = stage.topic(), -(-stage.takeovers // 2)
    consuming = stage.consuming(topic)
    for fault in range(takeovers):
        _take_over(stage, topic)
        for i in range(RECORDS):
            stage.mq.post(topic, b"%d/%d" % (fault, i), key=b"k%d" % (i % 7))
        stage.mq.flush(None)
        consuming.take(RECORDS, COME_S)
    consuming.nothing_more(1.0)
    return Counts(takeovers * RECORDS, takeovers, consuming.again)


def records_go_straight_to_the_leaders(stage: Stage) -> None:
    """The frontdoor sends the routes, and does not see the records."""
    topic = stage.topic()
    with standing(Tap(stage.servers[0])) as tap:
        stage.driver.ask("connect", servers=[tap.endpoint])
        _some_go_through(stage, topic)
        seen = {verb: tap.verbs[verb] for verb in RECORD_VERBS if tap.verbs[verb]}
    assert not seen, f"verbs that a frontdoor saw, and how often: {seen}"


def leaders_that_cannot_be_reached(stage: Stage) -> None:
    """Records are then sent through the frontdoor, sealed."""
    topic = stage.topic()
    with standing(Tap(stage.servers[0], without_routes)) as tap:
        stage.driver.ask("connect", servers=[tap.endpoint])
        _some_go_through(stage, topic)
        assert min(tap.verbs[Publish.verb], tap.verbs[Deliver.verb]) > 0, f"verbs: {dict(tap.verbs)}"
        assert not tap.verbs[DeliverPlain.verb], "records come opened by the worker"
        assert not tap.verbs[PublishPlain.verb], "records go unsealed"


def calls_at_the_same_time_share_batches(stage: Stage) -> None:
    """Even with different keys, headers and ids; each call gets its own answer."""
    topic = stage.topic()
    records: list[dict[str, Any]] = [
        {"value": b"%d" % number, "key": b"k%d" % (number % 7), "headers": {"n": b"%d" % number}}
        for number in range(CALLS)
    ]
    for number in range(0, CALLS, 3):
        records[number]["id"] = b"id-%d" % number
    with standing(Tap(stage.servers[0], without_routes)) as tap:
        stage.driver.ask("connect", servers=[tap.endpoint])
        stage.driver.publish(topic, {"value": b"first"})
        before = tap.verbs[Publish.verb]
        places = stage.driver.ask(**publication(topic, *records), apart=True)["places"]
        sent = tap.verbs[Publish.verb] - before
    assert sent <= CALLS // 4, f"{CALLS} calls at the same time made {sent} batches"
    found = {(msg.partition, msg.offset): msg.value for msg in _read(stage, topic)}
    assert [found[place[0], place[1]] for place in places] == [record["value"] for record in records]


def _some_go_through(stage: Stage, topic: str) -> None:
    sent = [b"%d" % number for number in range(2 * RECORDS)]
    records = [{"value": value, "key": b"k%s" % value[-1:], "headers": {"n": value}} for value in sent]
    stage.driver.publish(topic, *records)
    came = stage.consuming(topic).take(len(sent))
    assert sorted(record.value for record in came) == sorted(sent)
    assert all(record.headers == {"n": record.value} for record in came)


def many_records_of_one_call(stage: Stage) -> Counts:
    """Thousands are in flight when a leader is killed: each is stored once, in order of its key."""
    topic = stage.topic()
    sent = [b"%d" % number for number in range(MANY)]
    stage.driver.say(**publication(topic, *({"value": value, "key": b"k%s" % value[-1:]} for value in sent)))
    _take_over(stage, topic)
    assert len(stage.driver.hear()["places"]) == MANY
    stored = _stored(stage, topic)
    _require_once(stored, sent)
    for last in range(10):
        mine = [int(value) for value in stored if value[-1:] == b"%d" % last]
        assert mine == sorted(mine), "records of a key are out of order"
    consuming = stage.consuming(topic)
    consuming.take(MANY)
    return Counts(MANY, 1, consuming.again)


def _kill_and_start(node: DemoNode) -> None:
    node.kill()
    node.start()


def _take_over(stage: Stage, topic: str) -> None:
    nodes = stage.killable()
    nodes.wait_healthy()
    shard = next(each for each in stage.mq.topics(topic) if each.name == topic).shards[0]
    leader, _ = nodes.leader(shard)
    assert leader is not None
    _kill_and_start(leader)


def _through_faults(stage: Stage, strike: Callable[[str], None], faults: int) -> Counts:
    """Confirmed records are kept, once: published during faults, then consumed during as many."""
    topic = stage.topic()
    sent: list[bytes] = []
    for fault in range(faults):
        for step in range(RECORDS // STEP):
            values = [b"%d/%d/%d" % (fault, step, i) for i in range(STEP)]
            records = [{"value": value, "key": b"k%d" % (i % 7)} for i, value in enumerate(values)]
            stage.driver.say(**publication(topic, *records))
            if step == RECORDS // STEP // 2:
                strike(topic)
            assert len(stage.driver.hear()["places"]) == STEP
            sent += values
    _require_once(_stored(stage, topic), sent)
    consuming = stage.consuming(topic)
    came: Counter[bytes] = Counter()
    for fault in range(faults):
        part = consuming.take((fault + 1) * len(sent) // faults - len(came))
        came.update(taken.value for taken in part)
        if fault < faults - 1:
            strike(topic)
    consuming.nothing_more(1.0)
    _require_once(list(came.elements()), sent)
    _require_acked(stage, topic, len(sent))
    return Counts(len(sent), 2 * faults - 1, consuming.again)


def _require_once(found: list[bytes], sent: list[bytes]) -> None:
    lost, doubled = len(set(sent) - set(found)), len(found) - len(set(found))
    assert Counter(found) == Counter(sent), f"{lost} confirmed records are lost, {doubled} are there twice"


def _require_acked(stage: Stage, topic: str, records: int) -> None:
    """A new leader may not have reported its counters yet."""
    acked, deadline = 0, time.monotonic() + COME_S
    while time.monotonic() < deadline:
        acked = _acked(stage, topic)
        if acked == records:
            return
        time.sleep(0.5)
    raise AssertionError(f"{acked} of {records} acks are stored")


def _acked(stage: Stage, topic: str) -> int:
    return sum(group.acked for group in stage.mq.topic(topic).groups())


def _stored(stage: Stage, topic: str) -> list[bytes]:
    """Return all values in the topic."""
    return [bytes(msg.value) for msg in _read(stage, topic)]


def _read(stage: Stage, topic: str) -> "Iterable[Record]":
    """Return all records in the topic, read without a group."""
    return stage.mq.read(topic)


class Trial(NamedTuple):
    level: str
    nodes: int
    run: Callable[[Stage], Counts | None]

    @property
    def title(self) -> str:
        return self.run.__name__.replace("_", " ")


LEVELS = ("mini", "reconnect", "cluster", "columns")
TRIALS: Sequence[Trial] = (
    Trial("mini", 1, records_reach_another_language),
    Trial("mini", 1, records_come_from_another_language),
    Trial("mini", 1, an_id_is_stored_once),
    Trial("mini", 1, what_failed_comes_again_and_ends_as_a_dead_letter),
    Trial("mini", 1, a_key_waits_for_its_record_that_failed),
    Trial("mini", 1, acks_reach_the_node_within_milliseconds),
    Trial("mini", 1, a_consumer_with_nothing_gets_records_that_wait),
    Trial("mini", 1, work_is_shared_with_a_consumer_that_joins),
    Trial("mini", 1, a_consumer_makes_its_topic),
    Trial("mini", 1, a_consumer_holds_a_limited_number_of_records),
    Trial("mini", 1, an_ack_is_stored_when_it_says_so),
    Trial("mini", 1, a_record_that_is_released_comes_again_and_has_not_failed),
    Trial("mini", 1, a_refusal_is_an_error_and_the_client_goes_on),
    Trial("mini", 1, bad_frames_between_good_ones),
    Trial("mini", 1, a_node_of_another_version_is_told_of),
    Trial("mini", 1, a_node_that_is_not_there_is_told_of),
    Trial("mini", 1, numbers_of_more_than_32_bits),
    Trial("reconnect", 1, a_node_that_is_killed_and_comes_back),
    Trial("reconnect", 1, a_node_that_is_cut_off_from_the_others),
    Trial("cluster", 3, a_leader_that_is_killed),
    Trial("cluster", 3, a_leader_that_is_killed_while_nothing_comes),
    Trial("columns", 1, records_go_straight_to_the_leaders),
    Trial("columns", 1, leaders_that_cannot_be_reached),
    Trial("columns", 1, calls_at_the_same_time_share_batches),
    Trial("columns", 3, many_records_of_one_call),
)
