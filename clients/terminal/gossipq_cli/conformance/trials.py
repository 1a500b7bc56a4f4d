"""What is tried, level by level. A trial raises AssertionError with what was wrong."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from gossipq.limits import MIB
from gossipq_cli.conformance.driver import Driver, Taken, publication
from gossipq_cli.demo.nodes import DemoNode, Nodes

if TYPE_CHECKING:
    from gossipq_client import Client

COME_S = 30.0  #: for a record that is there
LONG_S = 60.0  #: for one after a fault
KEYS = [b"", b"ada", "été".encode(), bytes(range(256)), b"k" * 4_096]
VALUES = [b"", b"x", bytes(range(256)), "naïve \U0001f600".encode(), b"m" * MIB]
PARTITIONS = 4
TAKEOVERS = 5
RECORDS = 120  #: published around each fault, in steps
STEP = 10
_numbers = count(1)


class Stage(NamedTuple):
    """What a trial works with: the nodes, an honest client, and a driver that is connected."""

    nodes: Nodes
    mq: "Client"
    driver: Driver
    takeovers: int = TAKEOVERS

    def topic(self, attempts_max: int | None = None) -> str:
        """A fresh one."""
        name = f"conformance-{next(_numbers)}"
        self.mq.create_topic(name, partitions=PARTITIONS, attempts_max=attempts_max)
        return name

    def take(self, total: int, wait_s: float = LONG_S) -> list[Taken]:
        """So many different records, each acked."""
        taken: dict[tuple[int, int], Taken] = {}
        while len(taken) < total:
            record = self.driver.next(wait_s)
            assert record is not None, f"{len(taken)} of {total} records came"
            taken[record.partition, record.offset] = record
            self.driver.ack(record)
        return list(taken.values())


def records_reach_another_language(stage: Stage) -> None:
    """Published by it, read by the Python client: same bytes, and each key in its partition."""
    topic = stage.topic()
    sent = [
        {"value": value, "key": key, "headers": {"n": b"\x00\xff", "t": "ü".encode()}}
        for key in KEYS
        for value in VALUES
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
    mine = {key: {place[0] for r, place in zip(sent, places, strict=True) if r["key"] == key} for key in KEYS}
    for key in KEYS[1:]:
        theirs = stage.mq.publish_and_wait(topic, b"", key=key)
        assert mine[key] == {theirs.partition}, f"key {key[:10]!r} goes elsewhere than with the Python client"


def records_come_from_another_language(stage: Stage) -> None:
    """Published by the Python client, consumed by it."""
    topic = stage.topic()
    for key in KEYS:
        for value in VALUES:
            stage.mq.publish(topic, value, key=key, headers={"h": b"\xfe"})
    stage.mq.flush()
    stage.driver.ask("subscribe", topic=topic, group="g")
    came = Counter(
        (taken.key, taken.value, taken.headers["h"]) for taken in stage.take(len(KEYS) * len(VALUES))
    )
    assert came == Counter((key, value, b"\xfe") for key in KEYS for value in VALUES)
    assert stage.driver.next(0.5) is None, "more came than there was"


def an_id_is_stored_once(stage: Stage) -> None:
    topic = stage.topic()
    first = stage.driver.publish(topic, {"value": b"one", "id": b"order-17"})
    assert stage.driver.publish(topic, {"value": b"two", "id": b"order-17"}) == first
    stage.driver.ask("subscribe", topic=topic, group="g")
    (taken,) = stage.take(1)
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
    (letter,) = stage.mq.admin.dead_letters(topic, "g")
    assert letter.error == "reason 2"
    assert stage.driver.next(0.5) is None


def a_refusal_is_an_error_and_the_client_goes_on(stage: Stage) -> None:
    topic = stage.topic()
    publish = publication("not a name!", {"value": b"x"})
    assert stage.driver.refused(**publish) == "bad_name"
    huge = publication(topic, {"value": b"x", "key": b"k" * 5_000})
    assert stage.driver.refused(**huge) == "too_large"
    stage.driver.publish(topic, {"value": b"still there"})


def a_node_that_is_killed_and_comes_back(stage: Stage) -> None:
    (node,) = stage.nodes.members
    _through_faults(stage, lambda topic: _kill_and_start(node), faults=3)


def a_leader_that_is_killed(stage: Stage) -> None:
    """Takeovers, one after the other; each node comes back before the next one falls."""
    _through_faults(stage, lambda topic: _take_over(stage, topic), faults=stage.takeovers)


def _kill_and_start(node: DemoNode) -> None:
    node.kill()
    node.start()


def _take_over(stage: Stage, topic: str) -> None:
    stage.nodes.wait_healthy()
    shard = next(each for each in stage.mq.topics(topic) if each.name == topic).shards[0]
    leader, _ = stage.nodes.leader(shard)
    assert leader is not None
    _kill_and_start(leader)


def _through_faults(stage: Stage, strike: Callable[[str], None], faults: int) -> None:
    """Confirmed means kept, and kept once: published around faults, then consumed around as many."""
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
    stored = _stored(stage, topic)
    assert Counter(stored) == Counter(sent), (
        f"{len(set(sent) - set(stored))} confirmed records are lost, {len(stored) - len(set(stored))} are "
        "stored twice"
    )
    stage.driver.ask("subscribe", topic=topic, group="g")
    came: Counter[bytes] = Counter()
    for fault in range(faults):
        part = stage.take((fault + 1) * len(sent) // faults - len(came))
        came.update(taken.value for taken in part)
        if fault < faults - 1:
            strike(topic)
    for _ in range(len(sent)):  # until nothing comes any more
        left = stage.driver.next(1.0)
        if left is None:
            break
        stage.driver.ack(left)
    assert set(came) == set(sent), f"{len(set(sent) - set(came))} records were not delivered"
    assert sum(group.acked for group in stage.mq.admin.groups(topic)) == len(sent), "not all is acked"


def _stored(stage: Stage, topic: str) -> list[bytes]:
    """All values there are, read without a group."""
    return [bytes(msg.value) for msg in stage.mq.consume(topic, start="first", stop_at_end=True)]


class Trial(NamedTuple):
    level: str
    nodes: int
    run: Callable[[Stage], None]

    @property
    def title(self) -> str:
        return self.run.__name__.replace("_", " ")


LEVELS = ("mini", "reconnect", "cluster")
TRIALS: Sequence[Trial] = (
    Trial("mini", 1, records_reach_another_language),
    Trial("mini", 1, records_come_from_another_language),
    Trial("mini", 1, an_id_is_stored_once),
    Trial("mini", 1, what_failed_comes_again_and_ends_as_a_dead_letter),
    Trial("mini", 1, a_refusal_is_an_error_and_the_client_goes_on),
    Trial("reconnect", 1, a_node_that_is_killed_and_comes_back),
    Trial("cluster", 3, a_leader_that_is_killed),
)
