"""A load whose client marks in the journal what it was promised, and the account of a data directory against
those marks.

Each partition has one publisher, so what must be there is simple: its records from the first on, in order,
each once, at least to the last one that was confirmed. Topic KEPT keeps everything; what is acked in GONE is
deleted, so that pages are used again.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from gossipq import limits
from gossipq.core.copies.snapshot import open_ledger
from gossipq.core.storage.tables import Tables
from gossipq.types import partition_of, topic_id_of
from gossipq.wire.batch import Batch
from gossipq.wire.opener import Opener
from gossipq_client import connect
from gossipq_node import store_tool
from gossipq_node.adapters.lmdb_store import LmdbStore
from gossipq_node.directory import DataDirectory

KEPT, GONE, GROUP = "kept", "gone", "group"
PARTITIONS = {KEPT: 2, GONE: 1}
UNDER_WAY_MAX = 2  #: batches of one publisher
PATIENCE_S = 30
CONFIRMED, ACKED = "confirmed", "acked"
Known = dict[tuple[str, str, int], int]  #: (CONFIRMED or ACKED, topic, partition) -> all below this offset


def value_of(topic: str, partition: int, number: int) -> bytes:
    """Now and then one that needs several pages, or that is too large for the journal of the store."""
    size = number * 7919 % 300
    if number % 97 == 7:
        size = 6_000
    elif number % 101 == 50:
        size = limits.JOURNAL_TURN_BYTES
    return b"%s %d %d " % (topic.encode(), partition, number) + b"x" * size


def learn(known: Known, mark: bytes) -> None:
    what, topic, partition, end = mark.decode().split()
    known[what, topic, int(partition)] = int(end)


def run(endpoint: str, mark: Callable[[bytes], None], batches: int) -> None:
    """Publishes `batches` batches to each partition, consumes all
    records, and marks each confirm.
    """

    def note(what: str, topic: str, partition: int, end: int) -> None:
        mark(f"{what} {topic} {partition} {end}".encode())

    def publish(topic: str, partition: int) -> None:
        under_way, end = deque(), 0
        with connect(endpoint, timeout=PATIENCE_S) as mq:
            for number in range(batches + UNDER_WAY_MAX):
                if number < batches:
                    values = [
                        value_of(topic, partition, end + each) for each in range((1, 1, 3, 20)[number % 4])
                    ]
                    end += len(values)
                    under_way.append((end, mq.post_many(topic, values, partition=partition)))
                if under_way and (number >= batches or len(under_way) >= UNDER_WAY_MAX):
                    confirmed, pending = under_way.popleft()
                    receipt = pending.result(PATIENCE_S)
                    assert receipt.offset < confirmed
                    note(CONFIRMED, topic, partition, confirmed)

    def consume(topic: str) -> None:
        ends = dict.fromkeys(range(PARTITIONS[topic]), 0)
        last = time.monotonic()
        with connect(endpoint, timeout=PATIENCE_S) as mq:
            while not all(future.done() for future in publishing) or time.monotonic() < last + 0.5:
                batch = mq.fetch(topic, GROUP, n=100, wait=0.1)
                for message in batch:
                    assert message.offset == ends[message.partition]
                    ends[message.partition] += 1
                    last = time.monotonic()
                mq.ack_soon(batch)
                mq.flush(PATIENCE_S)
                for partition, end in ends.items():
                    note(ACKED, topic, partition, end)

    with connect(endpoint, timeout=PATIENCE_S) as mq:
        mq.create_topic(KEPT, partitions=PARTITIONS[KEPT])
        mq.create_topic(GONE, partitions=PARTITIONS[GONE], retention=0)
    with ThreadPoolExecutor(2 * len(PARTITIONS) + 1) as pool:
        publishing = [
            pool.submit(publish, topic, each) for topic, count in PARTITIONS.items() for each in range(count)
        ]
        consuming = [pool.submit(consume, topic) for topic in PARTITIONS]
        for future in [*publishing, *consuming]:
            future.result()


def read(endpoint: str) -> dict[int, int]:
    """The records of KEPT that a reader gets: partition -> count. A wrong record is an assertion
    error. Then publishes one more.
    """
    found = dict.fromkeys(range(PARTITIONS[KEPT]), 0)
    with connect(endpoint, timeout=PATIENCE_S) as mq:
        mq.create_topic(KEPT, partitions=PARTITIONS[KEPT], if_not_exists=True)
        for message in mq.read(KEPT):
            assert message.offset == found[message.partition]
            assert message.value == value_of(KEPT, message.partition, message.offset)
            found[message.partition] += 1
        for partition, count in found.items():
            receipt = mq.publish(
                KEPT, value_of(KEPT, partition, count), partition=partition, timeout=PATIENCE_S
            )
            assert receipt.offset == count
    return found


def account(data: Path, known: Known) -> int:
    """The records of a stopped node's directory, which may be new. An assertion error says what is not as it
    was promised."""
    damaged = store_tool.verify(data).damaged
    assert not damaged, damaged
    found: Known = {}
    records = 0
    with closing(DataDirectory(data)) as directory:
        manifest = directory.read()
        assert manifest is not None
        for worker in range(manifest.workers):
            with closing(LmdbStore(directory.store(manifest, worker), shards=manifest.shards)) as store:
                for shard in store.shards():
                    records += _account(shard, store.tables(shard), found)
    for (what, topic, partition), end in known.items():
        there = found.get((what, topic, partition), 0)
        assert there >= end, f"{topic} {partition}: {what} below {end}, and there is nothing above {there}"
    return records


def _account(shard: int, tables: Tables, found: Known) -> int:
    ledger, records = open_ledger(shard, tables, Opener()), 0
    for key, state in ledger.partitions.items():
        topic, partition = ledger.topics[topic_id_of(key)].name, partition_of(key)
        cursors = list(ledger.cursors.get(key, {}).values())
        assert all(cursor.unaccounted() == 0 for cursor in cursors)
        at = ledger.done_below(key) if topic == GONE else 0
        for first, end, part in ledger.slices.between(key, at, state.next):
            assert first == at, f"{topic} {partition}: nothing from {at} to {first}"
            body = tables.body.get(part.index.to_bytes(8, "big"))
            assert body is not None, f"{topic} {partition}: no batch {part.index}"
            values = Batch(body).values()[part.first : part.first + end - first]
            assert values == [value_of(topic, partition, each) for each in range(first, end)], (
                f"{topic} {partition}: {first}"
            )
            records, at = records + len(values), end
        assert at == state.next, f"{topic} {partition}: nothing from {at} to {state.next}"
        found[CONFIRMED, topic, partition] = state.next
        found[ACKED, topic, partition] = min((cursor.state.cursor for cursor in cursors), default=0)
    return records
