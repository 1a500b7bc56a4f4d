"""A consumer dies: its successor gets its records as soon as the closed connection is noticed, long
before its session would have been silent for too long.
"""

from collections.abc import Callable

import pytest

from e2e.harness import Node, Raw
from gossipq import limits
from gossipq.messages import Confirm, Deliver, Publish, Resolve, Started, Subscribe, Topics
from gossipq.types import META_SHARD, PartitionKey, partition_key
from gossipq.values import GroupOptions, Start
from gossipq.wire import batch as batches

SOON_S = 0.8 * limits.SESSION_SILENCE_MS / 1_000
Connect = Callable[[str], Raw]


def orders(node: Node, client: Raw, name: str) -> tuple[PartitionKey, int]:
    answer = client.hello().ask(Resolve([name], create=True), META_SHARD)
    assert isinstance(answer, Topics)
    (topic,) = answer.topics
    return partition_key(topic.id, 0), topic.shards[0]


def delivered(client: Raw) -> tuple[int, int]:
    """Offset and attempt of the first record that comes."""
    while (answer := client.receive(SOON_S)) is not None:
        if isinstance(answer.message, Deliver):
            part = answer.message.slices[0]
            return part.offset, part.attempt
    raise AssertionError("nothing came")


@pytest.mark.parametrize("mode", ["exclusive", "shared", "key_ordered"])
@pytest.mark.parametrize("way", ["worker", "frontdoor"])
@pytest.mark.parametrize("begun", [True, False])
def test_the_successor_has_it_soon(served: Node, raw: Connect, mode: str, way: str, begun: bool) -> None:
    partition, shard = orders(served, raw(served.worker(0)), f"{mode}-{way}-{begun}")
    place = served.worker(shard % 2) if way == "worker" else served.endpoint
    ada = raw(place).hello(shard, b"ada-" + way.encode().ljust(12, b"."))
    bob = raw(served.worker(shard % 2)).hello(shard, b"bob-" + way.encode().ljust(12, b"."))
    batch = bytes(batches.seal([b"one"]))
    ada.say(Publish(partition), shard, batch=batch)
    answer = ada.receive()
    assert answer is not None
    assert isinstance(answer.message, Confirm)
    for number, client in enumerate((ada, bob)):
        message = Subscribe(1, "g", [Start(partition)], 10, limits.MIB, GroupOptions(mode=mode))
        client.say(message, shard)
        if not number:
            assert delivered(ada) == (0, 1)
    if begun:
        ada.say(Started(1, [(partition, 0, 1)]), shard)
    ada.close()
    assert delivered(bob) == (0, 2 if begun else 1)
