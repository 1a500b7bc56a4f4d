"""Requests that would cost a worker seconds, or its memory, are refused with the bound that they meet."""

from collections.abc import Callable

import pytest

from attacks.test_publishing import topic_of
from e2e.harness import Node, Raw
from gossipq import limits
from gossipq.messages import Ack, Extend, Nack, Publish, Refused, Resolve, Started, Subscribe, Subscribed
from gossipq.types import META_SHARD, partition_key
from gossipq.values import Message, Start
from gossipq.wire import batch as batches

pytestmark = pytest.mark.e2e
Connect = Callable[..., Raw]


def bounded(answer: Message, most: int) -> None:
    assert isinstance(answer, Refused), answer
    assert (answer.code, str(most) in answer.message, answer.hint != "") == ("bad_request", True, True)


def test_a_question_has_few_patterns(served: Node, raw: Connect) -> None:
    asker = raw(served.worker(0)).hello(META_SHARD)
    many = [f"*{number}*" for number in range(limits.RESOLVE_PATTERNS_MAX + 1)]
    bounded(asker.ask(Resolve(many), META_SHARD), limits.RESOLVE_PATTERNS_MAX)
    bounded(asker.ask(Resolve(["*a" * limits.NAME_BYTES_MAX]), META_SHARD), limits.NAME_BYTES_MAX)
    topic_of(served, raw, "a.fitting.name")
    found = asker.ask(Resolve([*many[:-2], "*fit*"]), META_SHARD)
    assert "a.fitting.name" in [info.name for info in getattr(found, "topics", [])]


def test_a_request_has_few_ranges(served: Node, raw: Connect) -> None:
    info = topic_of(served, raw, "ranges")
    shard, key = info.shards[0], partition_key(info.id, 0)
    client = raw(served.worker(shard % 2)).hello(shard)
    assert isinstance(client.ask(Subscribe(1, "g", [Start(key)], 1, 1_000), shard), Subscribed)
    acked = [(key, 2 * at, 2 * at + 1) for at in range(limits.RANGES_MAX + 1)]
    moved = acked[: limits.MOVED_RANGES_MAX + 1]
    bounded(client.ask(Ack(1, acked), shard), limits.RANGES_MAX)
    for request in (Nack(1, moved), Extend(1, moved, 1_000), Started(1, moved)):
        bounded(client.ask(request, shard), limits.MOVED_RANGES_MAX)
    step = Publish(key, subscription=1, acks=moved)
    bounded(client.ask(step, shard, bytes(batches.seal([b"x"]))), limits.MOVED_RANGES_MAX)
