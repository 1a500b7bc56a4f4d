"""Requests that would cost a worker seconds, or its memory, are refused with the bound that they meet."""

from array import array
from collections.abc import Callable

import pytest

from attacks.test_publishing import offset, publish, topic_of
from e2e.harness import Node, Raw
from gossipq import limits
from gossipq.messages import (
    Ack,
    Confirm,
    Extend,
    Nack,
    Publish,
    RefusedMessage,
    Resolve,
    Show,
    Shown,
    Started,
    Subscribe,
    Subscribed,
)
from gossipq.types import META_SHARD, partition_key
from gossipq.values import Message, Ref, Start
from gossipq.wire import batch as batches
from gossipq.wire.batch import id_hash
from waiting import until

pytestmark = pytest.mark.e2e
Connect = Callable[..., Raw]


def bounded(answer: Message, most: int) -> None:
    assert isinstance(answer, RefusedMessage), answer
    assert (answer.code, str(most) in answer.message, answer.hint != "") == ("bad_request", True, True)


def test_a_question_has_few_patterns(served: Node, raw: Connect) -> None:
    asker = raw(served.worker(0)).hello(META_SHARD)
    many = [f"*{number}*" for number in range(limits.RESOLVE_PATTERNS_MAX + 1)]
    bounded(asker.ask(Resolve(many), META_SHARD), limits.RESOLVE_PATTERNS_MAX)
    bounded(asker.ask(Resolve(["*a" * limits.NAME_BYTES_MAX]), META_SHARD), limits.NAME_BYTES_MAX)
    topic_of(served, raw, "a.fitting.name")
    found = asker.ask(Resolve([*many[:-2], "*fit*"]), META_SHARD)
    assert "a.fitting.name" in [info.name for info in getattr(found, "topics", [])]


def test_who_takes_no_answers_gets_no_more_of_them(served: Node, raw: Connect) -> None:
    """Each question has 60 bytes, and its answer 4 MiB."""
    info = topic_of(served, raw, "large")
    shard, key, asked = info.shards[0], partition_key(info.id, 0), 60
    record = bytes(batches.seal([bytes(4 << 20)]))
    offset(publish(raw(served.worker(shard % 2)).hello(shard), shard, key, record))
    asker, show = raw(served.worker(shard % 2), 1).hello(shard), Show(Ref(key, 0))
    for number in range(asked):
        asker.say(show, shard, 1_000 + number)
    other = raw(served.worker(shard % 2)).hello(shard)
    assert isinstance(other.ask(show, shard), Shown), "who takes its answers gets them"
    answers = [answer.message for _ in range(asked) if (answer := asker.receive())]
    refused = [answer for answer in answers if isinstance(answer, RefusedMessage)]
    assert {(answer.code, answer.retry_after_ms > 0) for answer in refused} == {("busy", True)}
    assert 0 < len(answers) - len(refused) < asked
    until(lambda: isinstance(asker.ask(show, shard), Shown), what="its answers are taken")


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
    bounded(client.ask(Subscribe(1, "g", [Start(key)], 1, 1_000, holding=acked), shard), limits.RANGES_MAX)
    step = Publish(key, subscription=1, acks=moved)
    bounded(client.ask(step, shard, bytes(batches.seal([b"x"]))), limits.MOVED_RANGES_MAX)


def test_a_confirm_that_names_each_record_fits_a_frame(served: Node, raw: Connect) -> None:
    """Of a batch in which every other id was known."""
    info, count = topic_of(served, raw, "ids"), limits.ID_RECORDS_MAX
    shard, key = info.shards[0], partition_key(info.id, 0)
    client = raw(served.worker(shard % 2)).hello(shard)
    ids = [b"%d" % at for at in range(count + 1)]

    def sent(some: list[bytes]) -> Message:
        fixed = {batches.ID_HASH: array("Q", map(id_hash, some))}
        return publish(client, shard, key, bytes(batches.seal([b""] * len(some), ids=some, fixed=fixed)))

    offset(sent(ids[:count:2]))
    confirm = sent(ids[:count])
    assert isinstance(confirm, Confirm)
    ((_, runs),) = confirm.runs
    assert len(runs) == count
    bounded(sent(ids), count)
