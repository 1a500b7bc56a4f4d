"""Records pass through and leave behind nothing: the file and the memory of a node stay as they are while
retention works. The long version, with ten million records, belongs to `make perf`."""

import time
from collections.abc import Callable

import pytest

from e2e.harness import Node
from gossipq import limits
from gossipq_client import Client, connect
from waiting import until

pytestmark = pytest.mark.e2e
ROUNDS, ROUND_RECORDS, PARTITIONS = 50, 6_000, 2
VALUE_BYTES = (
    400  #: so that the newest batches, which a worker keeps in memory, fill their share in the first third
)
PAUSE_S = 0.11  #: after a round: retention looks once a second, and is to have looked often
KEPT_RECORDS_MAX = 8 * ROUND_RECORDS  #: a busy machine is waited for when more than a second's wait to leave
PATIENCE_S = 30
#: what leaves is swept once a second, so the mark that a file reached varies; kept rows would triple it
FILE_GROWTH_MAX = 1.6
MEMORY_GROWTH_BYTES_MAX = 12 * limits.MIB


def pass_through(mq: Client, topic: str, count: int) -> None:
    """Publishes `count` records and consumes them to the last."""
    value, half = b"x" * VALUE_BYTES, count // PARTITIONS
    waiting = [mq.post_many(topic, [value] * half, partition=partition) for partition in range(PARTITIONS)]
    for pending in waiting:
        pending.result(PATIENCE_S)
    got = 0
    while got < half * PARTITIONS:
        batch = mq.fetch(topic, "g", n=5_000, wait=PATIENCE_S)
        assert len(batch)
        got += len(batch)
        mq.ack_soon(batch)
    mq.flush(PATIENCE_S)


def removed(mq: Client) -> int:
    return sum(row.removed for row in mq.admin.stats(["t"]).partitions)


def file_bytes(node: Node) -> int:
    return sum(node.store_file(worker).stat().st_blocks * 512 for worker in range(2))


def test_files_and_memory_stay_flat(make: Callable[..., Node]) -> None:
    node = make().start()
    files, memory = [], []
    with connect(node.endpoint) as mq:
        mq.create_topic("t", partitions=PARTITIONS, retention=0)
        for done in range(1, ROUNDS + 1):
            pass_through(mq, "t", ROUND_RECORDS)
            time.sleep(PAUSE_S)
            few = done * ROUND_RECORDS - KEPT_RECORDS_MAX
            until(lambda few=few: removed(mq) >= few, what="acked records stay")
            files.append(file_bytes(node))
            memory.append(node.memory_bytes())
        total = ROUNDS * ROUND_RECORDS
        until(
            lambda: sum(row.removed for row in mq.admin.stats(["t"]).partitions) == total,
            what="acked records stay",
        )
        assert all(row.first == row.next for row in mq.admin.stats(["t"]).partitions)
        acked = {row.partition: row.acked for row in mq.topic("t").groups()}
        assert acked == dict.fromkeys(range(PARTITIONS), total // PARTITIONS)
    third = ROUNDS // 3 - 1
    print(
        f"{total:,} records: files {files[third] >> 10} KiB after a third, {files[-1] >> 10} KiB in the end; "
        f"memory {memory[third] >> 20} and {memory[-1] >> 20} MiB"
    )
    assert files[-1] <= FILE_GROWTH_MAX * files[third]
    assert memory[-1] <= memory[third] + MEMORY_GROWTH_BYTES_MAX
