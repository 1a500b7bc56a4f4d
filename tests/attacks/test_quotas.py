"""No client can use up a cluster: requests beyond a quota are refused with its name and value, and
the existing clients are served.
"""

from collections.abc import Callable

import pytest

from attacks.test_publishing import topic_of
from e2e.harness import Node, Raw
from gossipq.config import Config, fitting
from gossipq.limits import GIB, MIB
from gossipq.messages import (
    CreateTopic,
    DropTopic,
    Hello,
    RefusedMessage,
    Resolve,
    Subscribe,
    Subscribed,
    Topics,
    Welcome,
)
from gossipq.types import META_SHARD, partition_key
from gossipq.values import Message, Quota, Start, TopicOptions
from gossipq_client import connect
from waiting import until

pytestmark = pytest.mark.e2e
Connect = Callable[..., Raw]
TIGHT = {"topics": 6, "partitions": 20, "groups": 3, "sessions": 8, "subscriptions": 4}
OF_ADDRESS = {"topics": 4, "groups": 2, "subscriptions": 4, "sessions": 9, "requests_per_s": 200}


def bounded(node: Node, quotas: dict[str, int]) -> Node:
    """Starts it with these quotas."""
    node.environment |= {
        f"GOSSIPQ_CLUSTER__QUOTA__{name.upper()}": str(most) for name, most in quotas.items()
    }
    return node.start()


@pytest.fixture
def tight(make: Callable[..., Node]) -> Node:
    return bounded(make(), TIGHT)


def refused(answer: Message, name: str, most: int | None = None) -> None:
    assert isinstance(answer, RefusedMessage), answer
    assert f"cluster.quota.{name}" in answer.message
    assert str(TIGHT[name] if most is None else most) in answer.message
    assert "cluster.toml" in answer.hint


def test_topics_and_partitions(tight: Node, raw: Connect) -> None:
    asker = raw(tight.worker(0)).hello(META_SHARD)
    refused(asker.ask(CreateTopic("wide", TopicOptions(partitions=1_000)), META_SHARD), "partitions")
    topic_of(tight, raw, "one", 15)
    refused(asker.ask(CreateTopic("two", TopicOptions(partitions=10)), META_SHARD), "partitions")
    names = [f"t{number}" for number in range(20)]
    refused(asker.ask(Resolve(names, create=True), META_SHARD), "topics")
    for name in names:  # a flood, one after the other, of which none has an answer yet
        asker.say(Resolve([name], create=True), META_SHARD, 100)
    answers = [answer.message for _ in names if (answer := asker.receive())]
    for answer in answers:
        if not isinstance(answer, Topics):
            refused(answer, "topics")
    with connect(tight.endpoint) as mq:
        mq.publish("one", b"x", timeout=10)
        assert len(mq.topics()) <= TIGHT["topics"]


def test_groups_and_subscriptions(tight: Node, raw: Connect) -> None:
    info = topic_of(tight, raw, "grouped")
    shard, key = info.shards[0], partition_key(info.id, 0)
    client = raw(tight.worker(shard % 2)).hello(shard)
    found = [client.ask(Subscribe(1, f"g{at}", [Start(key)], 1, 1_000), shard) for at in range(5)]
    assert isinstance(found[0], Subscribed)
    refused(found[-1], "groups")
    assert isinstance(client.ask(Subscribe(1, "g0", [Start(key)], 1, 1_000), shard), Subscribed), (
        "it is there"
    )
    found = [client.ask(Subscribe(at, "", [Start(key)], 1, 1_000), shard) for at in range(1, 7)]
    refused(found[-1], "subscriptions")
    assert sum(isinstance(each, Subscribed) for each in found) == TIGHT["subscriptions"]
    assert isinstance(client.ask(Subscribe(2, "", [Start(key)], 1, 1_000), shard), Subscribed), "in its place"


def test_sessions(tight: Node, raw: Connect) -> None:
    with connect(tight.endpoint) as mq:
        mq.publish("served", b"x", timeout=10)
        crowd = raw(tight.worker(0))
        hellos = [Hello(bytes((1, *bytes(14), at)), "crowd", "1") for at in range(20)]
        answers = [crowd.ask(hello, META_SHARD) for hello in hellos]
        assert isinstance(answers[0], Welcome)
        refused(answers[-1], "sessions")
        assert getattr(answers[-1], "retry_after_ms", 0) > 0
        mq.publish("served", b"y", timeout=10)


@pytest.fixture
def slow(make: Callable[..., Node]) -> Node:
    """A node of which one address may ask little."""
    return bounded(make(), {f"address_{name}": most for name, most in OF_ADDRESS.items()})


def of_address(answer: Message, name: str) -> None:
    refused(answer, f"address_{name}", OF_ADDRESS[name])


def test_an_address_owns_so_much(slow: Node, raw: Connect) -> None:
    info = topic_of(slow, raw, "first")
    asker = raw(slow.worker(0)).hello(META_SHARD)
    many = [f"t{at}" for at in range(OF_ADDRESS["topics"])]
    of_address(asker.ask(Resolve(many, create=True), META_SHARD), "topics")
    assert isinstance(asker.ask(Resolve(many[1:], create=True), META_SHARD), Topics)
    of_address(asker.ask(CreateTopic("another"), META_SHARD), "topics")
    assert isinstance(asker.ask(DropTopic(many[1]), META_SHARD), Topics)
    assert isinstance(asker.ask(CreateTopic("another"), META_SHARD), Topics), "a deleted topic is given back"
    of_address(asker.ask(CreateTopic(many[1]), META_SHARD), "topics")
    shard, key = info.shards[0], partition_key(info.id, 0)
    client = raw(slow.worker(shard % 2)).hello(shard)
    found = [client.ask(Subscribe(at, f"g{at}", [Start(key)], 1, 1_000), shard) for at in range(3)]
    assert isinstance(found[-2], Subscribed)
    of_address(found[-1], "groups")
    other = raw(slow.worker(shard % 2)).hello(shard, bytes((1, *bytes(14), 99)))
    found = [other.ask(Subscribe(at, "", [Start(key)], 1, 1_000), shard) for at in range(3)]
    of_address(found[-1], "subscriptions")
    crowd = raw(slow.worker(shard % 2))
    hellos = [Hello(bytes((1, *bytes(14), at)), "crowd", "1") for at in range(OF_ADDRESS["sessions"])]
    of_address([crowd.ask(hello, shard) for hello in hellos][-1], "sessions")


@pytest.mark.parametrize("step", [0, 1])
def test_an_address_asks_so_much_a_second(slow: Node, raw: Connect, step: int) -> None:
    """A client that settles records and sends signs of life is heard meanwhile."""
    flood = raw(f"tcp://127.0.0.1:{slow.port + step}").hello(META_SHARD)
    asked = 2 * OF_ADDRESS["requests_per_s"]
    for _ in range(asked):
        flood.say(Resolve(["*"]), META_SHARD, 77)
    answers = [answer.message for _ in range(asked) if (answer := flood.receive())]
    refusals = [answer for answer in answers if isinstance(answer, RefusedMessage)]
    assert 0 < len(refusals) < asked == len(answers)
    for refusal in refusals:
        of_address(refusal, "requests_per_s")
        assert (refusal.code, refusal.retry_after_ms > 0) == ("busy", True)
    flood.alive(META_SHARD)
    with connect(slow.endpoint) as mq:
        mq.publish("served", b"x", timeout=30)
        if step:  # a worker tells how many
            until(lambda: sum(worker.over_quota for worker in mq.admin.status().workers) >= len(refusals))


def test_a_store_beyond_its_quota_serves(make: Callable[..., Node], raw: Connect) -> None:
    node = make().start()
    topic_of(node, raw, "before", 30)
    node.stop()
    node.environment["GOSSIPQ_CLUSTER__QUOTA__PARTITIONS"] = "20"
    node.start()
    with connect(node.endpoint) as mq:
        mq.publish("before", b"x", timeout=10)
    refused(raw(node.worker(0)).hello(META_SHARD).ask(CreateTopic("after"), META_SHARD), "partitions")


def test_partitions_have_to_fit_the_memory_of_a_worker() -> None:
    assert fitting(Quota(), GIB).partitions == Config().cluster.quota.partitions
    assert fitting(Quota(), 0).partitions == Config().cluster.quota.partitions
    assert fitting(Quota(), 64 * MIB).partitions == 16_384
