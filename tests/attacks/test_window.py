"""A client that publishes without end and never reads an answer is held back; others go on."""

from collections.abc import Callable

import pytest

from attacks.test_publishing import offset, publish, speaker, topic_of
from e2e.harness import Node, Raw, anonymous_bytes
from gossipq import limits
from gossipq.messages import Confirm, Publish, RefusedMessage
from gossipq.types import partition_key
from gossipq.wire import batch as batches
from gossipq_node.adapters.zmq_mailbox import RECEIVE_QUEUE

pytestmark = pytest.mark.e2e
Connect = Callable[..., Raw]
SIZE = 8 * limits.MIB
COUNT = 200


@pytest.mark.slow
def test_a_flood_beyond_the_window_is_refused_and_memory_stays(served: Node, raw: Connect) -> None:
    info = topic_of(served, raw, "flood")
    shard, partition = info.shards[0], partition_key(info.id, 0)
    flood, other = (speaker(served, raw, info, name * 8) for name in (b"fl", b"ot"))
    (pid,) = {worker.pid for worker in raw(served.endpoint).status().workers if worker.worker == shard % 2}
    before = most = anonymous_bytes(pid)
    batch = bytes(batches.seal([bytes(SIZE)]))
    for number in range(COUNT):
        if number % 25 == 0:
            assert offset(publish(other, shard, partition, bytes(batches.seal([b"small"]))))[0] >= 0
        flood.say(Publish(partition), shard, number, batch)
        most = max(most, anonymous_bytes(pid))
    confirmed = refused = 0
    while confirmed + refused < COUNT:
        most = max(most, anonymous_bytes(pid))
        answer = flood.receive()
        assert answer is not None
        if isinstance(answer.message, Confirm):
            confirmed += len(answer.message.rows)
        else:
            assert isinstance(answer.message, RefusedMessage)
            assert answer.message.code == "busy"
            assert answer.message.retry_after_ms > 0
            refused += 1
    assert confirmed >= limits.PUBLISH_WINDOW_BYTES // SIZE
    assert most - before < RECEIVE_QUEUE * SIZE + limits.INTAKE_BYTES_MAX < COUNT * SIZE
    assert pid in served.pids()
