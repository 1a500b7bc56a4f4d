"""Lies about batches: a client cannot make another client's record vanish, and
cannot cause endless retries.
"""

from array import array
from collections.abc import Callable

import pytest

from e2e.harness import Node, Raw
from gossipq.messages import Confirm, CreateTopic, Publish, RefusedMessage, Subscribe, Topics
from gossipq.types import META_SHARD, partition_key
from gossipq.values import Message, Start, TopicInfo, TopicOptions
from gossipq.wire import batch as batches
from waiting import until

pytestmark = pytest.mark.e2e
Connect = Callable[..., Raw]


def topic_of(served: Node, raw: Connect, name: str, partitions: int = 1) -> TopicInfo:
    """A topic that is made and known in all its shards; one that serves late is asked for again."""
    asker, made = (
        raw(served.endpoint).hello(META_SHARD),
        CreateTopic(name, TopicOptions(partitions=partitions), if_not_exists=True),
    )
    found = asker.ask(made, META_SHARD)
    for _ in range(10):
        if not isinstance(found, RefusedMessage) or "is not ready" not in found.message:
            break
        found = asker.ask(made, META_SHARD)
    assert isinstance(found, Topics), found
    return found.topics[0]


def speaker(served: Node, raw: Connect, info: TopicInfo, session: bytes, partition: int = 0) -> Raw:
    """Somebody who has greeted the worker of that partition's shard."""
    shard = info.shards[partition]
    return raw(served.worker(shard % 2)).hello(shard, session)


def publish(client: Raw, shard: int, partition: int, batch: bytes) -> Message:
    """The outcome of a batch: its CONFIRM, or the refusal."""
    client.say(Publish(partition), shard, 77, batch)
    answer = client.receive()
    assert answer is not None
    return answer.message


def offset(answer: Message) -> tuple[int, bool]:
    assert isinstance(answer, Confirm), answer
    ((_, at, _, duplicate),) = answer.rows
    return at, duplicate


def test_batches_of_no_producer_are_never_repeats_of_each_other(served: Node, raw: Connect) -> None:
    info = topic_of(served, raw, "nobody")
    shard, partition = info.shards[0], partition_key(info.id, 0)
    ada, bob = (speaker(served, raw, info, name * 8) for name in (b"ad", b"bo"))
    assert offset(publish(ada, shard, partition, bytes(batches.seal([b"of ada"], sequence=1)))) == (0, False)
    assert offset(publish(bob, shard, partition, bytes(batches.seal([b"of bob"], sequence=1)))) == (1, False)


def test_keys_without_their_hashes_are_refused(served: Node, raw: Connect) -> None:
    info = topic_of(served, raw, "keys")
    shard, partition = info.shards[0], partition_key(info.id, 0)
    client = speaker(served, raw, info, b"keys" * 4)
    answer = publish(client, shard, partition, bytes(batches.seal([b"x"], keys=[b"k"])))
    assert isinstance(answer, RefusedMessage)
    assert (answer.code, "hashes" in answer.message) == ("bad_batch", True)
    hashed = bytes(batches.seal([b"x"], keys=[b"k"], fixed={batches.KEY_HASH: array("I", [7])}))
    assert offset(publish(client, shard, partition, hashed)) == (0, False)


@pytest.mark.parametrize("known", [False, True])
def test_a_wrong_shard_is_a_mistake_and_no_reason_to_try_again(
    served: Node, raw: Connect, known: bool
) -> None:
    """`known`: the shard has another partition of the topic."""
    info = topic_of(served, raw, f"wrong-{known}", partitions=2)
    wrong = info.shards[1] if known else next(shard for shard in range(2, 32, 2) if shard not in info.shards)
    partition = partition_key(info.id, 0)
    client = raw(served.worker(wrong % 2)).hello(wrong, b"lost" * 4)

    def code(message: Message) -> str:
        batch = bytes(batches.seal([b"x"])) if isinstance(message, Publish) else b""
        client.say(message, wrong, 5, batch)
        answer = client.receive()
        assert answer is not None
        assert isinstance(answer.message, RefusedMessage)
        return answer.message.code

    until(lambda: code(Publish(partition)) == "wrong_shard", what=f"publish: {code(Publish(partition))}")
    assert code(Subscribe(1, "g", [Start(partition)], 1, 1_000)) == "wrong_shard"
    assert code(Publish(partition_key(info.id, 9))) == ("unknown_topic" if known else "wrong_shard")
