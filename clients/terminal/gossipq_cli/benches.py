"""The measurements of `gossipq bench`. Times are those of the monotonic
clock, common to processes.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import quantiles
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from gossipq import limits
from gossipq_cli import ask, failures
from gossipq_cli.options import Choices

if TYPE_CHECKING:
    from gossipq_client import Client, PendingReceipt

POOL_BATCHES = 8  #: different batches, sent in turn
GROUP = "bench"
FETCH_WAIT_S = 1.0
READY_S = 30.0


class Load(NamedTuple):
    """The load of one run. With batch 1 each record is one call, and the
    client makes the batches.
    """

    topic: str
    records: int
    batch: int
    size: int
    marks: int = 0  #: note the time every this many records
    fetch: int = limits.CREDIT_RECORDS  #: maximum of records in one fetch
    ahead: int = 0  #: records that the producer may be ahead of the consumer; 0 = no limit

    def pool(self) -> list[list[bytes]]:
        return [[os.urandom(self.size) for _ in range(self.batch)] for _ in range(POOL_BATCHES)]


class Consumed(NamedTuple):
    """Records that a consumer received, in order, so that one running CRC covers every byte."""

    records: int
    checksum: int
    marks_s: list[float]
    end_s: float


def checksum(pool: list[list[bytes]], batches: int) -> int:
    """Return the CRC-32 over everything that `publish` sends, in order."""
    joined, found = list(map(b"".join, pool)), 0
    for number in range(batches):
        found = crc32(joined[number % len(joined)], found)
    return found


def publish(mq: "Client", load: Load, pool: list[list[bytes]], progress: Connection | None = None) -> float:
    """Publish, and wait for the last confirm. Returns the seconds. Raises errors of receipts.

    With `ahead` it reads the consumer's progress from `progress`, and waits if the
    consumer is too far behind.
    """
    batches, topic = load.records // load.batch, load.topic
    receipts: list[PendingReceipt] = []
    start = time.perf_counter()
    if load.batch == 1:
        single, values = mq.post, [batch[0] for batch in pool]
        for number in range(batches):
            single(topic, values[number % POOL_BATCHES])
        mq.flush(None)
    else:
        many = mq.post_many
        seen, ahead = 0, load.ahead
        for number in range(batches):
            receipts.append(many(topic, pool[number % POOL_BATCHES]))
            while ahead and progress is not None and number * load.batch - seen > ahead:
                seen = progress.recv()
        mq.flush(None)
    seconds = time.perf_counter() - start
    for receipt in receipts:
        receipt.result(None)
    return seconds


def consume(mq: "Client", load: Load, progress: Connection | None = None) -> Consumed:
    """Receive every record, add it to the checksum, and ack it.

    It uses `fetch`, or with batch 1 `with message:`.
    """
    seen, found = 0, 0
    marks: list[float] = []
    if load.batch == 1:
        for message in mq.consume(load.topic, GROUP):
            with message:
                found = crc32(message.value, found)
            seen += 1
            if load.marks and seen % load.marks == 0:
                marks.append(time.perf_counter())
            if seen == load.records:
                break
    else:
        while seen < load.records:
            batch = mq.fetch(load.topic, GROUP, n=load.fetch, wait=FETCH_WAIT_S)
            values = batch.values()
            found = crc32(b"".join(values), found)
            mq.ack_soon(batch)
            before, seen = seen, seen + len(values)
            if load.marks and before // load.marks != seen // load.marks:
                marks.append(time.perf_counter())
            if load.ahead and progress is not None:
                progress.send(seen)
    mq.flush(None)
    return Consumed(seen, found, marks, time.perf_counter())


def consumer(choices: Choices, load: Load, pipe: Connection) -> None:
    """The consumer process of `e2e`."""
    with ask.connect(choices) as mq:
        mq.topics(load.topic)
        pipe.send("ready")
        pipe.send(consume(mq, load, pipe))


def _checked(seen: Consumed, load: Load, pool: list[list[bytes]]) -> None:
    if (seen.records, seen.checksum) != (load.records, checksum(pool, load.records // load.batch)):
        raise failures.Failure(
            "failed", f"{seen.records:,} of {load.records:,} records consumed, or their checksum is wrong"
        )


@contextmanager
def answering(choices: Choices, load: Load) -> Iterator["Client"]:
    """Return a client after every worker has answered. Raises Unreachable within the timeout.

    Publishing itself would wait without limit for a shard without a leader.
    """
    with ask.connect(choices) as mq:
        mq.admin.raw.stats([load.topic])
        yield mq


def run_pub(choices: Choices, load: Load) -> dict[str, Any]:
    with answering(choices, load) as mq:
        seconds = publish(mq, load, load.pool())
        stored = sum(part.next for part in mq.admin.raw.stats([load.topic]).partitions)
    if stored < load.records:
        raise failures.Failure("failed", f"{stored:,} of {load.records:,} records stored")
    return {"published_per_s": round(load.records / seconds)}


def run_sub(choices: Choices, load: Load) -> dict[str, Any]:
    """Fill the topic first, then measure the consumer alone."""
    with answering(choices, load) as mq:
        filled = (
            load._replace(batch=500, records=load.records - load.records % 500) if load.batch == 1 else load
        )
        pool = filled.pool()
        publish(mq, filled, pool)
        start = time.perf_counter()
        seen = consume(mq, load._replace(records=filled.records))
    _checked(seen, filled, pool)
    return {"consumed_per_s": round(seen.records / (seen.end_s - start))}


def run_e2e(choices: Choices, load: Load) -> dict[str, Any]:
    """Run the producer here and the consumer in a process of its own.

    The time runs from the first publish to the last ack.
    """
    pool, spawn = load.pool(), get_context("spawn")
    mine, its = spawn.Pipe()
    child = spawn.Process(target=consumer, args=(choices, load, its), daemon=True)
    child.start()
    its.close()
    try:
        with answering(choices, load) as mq:
            if not mine.poll(READY_S):
                raise failures.Failure("failed", "the consumer did not start")
            mine.recv()
            start = time.perf_counter()
            published_s = publish(mq, load, pool, mine)
            while not isinstance(seen := mine.recv(), Consumed):
                pass  # a late message about progress
    except EOFError:
        raise failures.Failure("failed", "the consumer ended early") from None
    finally:
        child.kill()
        child.join()
    _checked(seen, load, pool)
    answer: dict[str, Any] = {
        "published_per_s": round(load.records / published_s),
        "end_to_end_per_s": round(load.records / (seen.end_s - start)),
    }
    if load.marks:
        answer["marks_s"] = [round(at - start, 3) for at in seen.marks_s]
    return answer


def run_rtt(choices: Choices, load: Load) -> dict[str, Any]:
    """Measure one publish in flight: the next is sent after the confirm of the last."""
    value, laps = os.urandom(load.size), []
    with ask.connect(choices) as mq:
        mq.publish(load.topic, value, timeout=choices.timeout_s)
        before = start = time.perf_counter()
        for _ in range(load.records):
            mq.publish(load.topic, value, timeout=choices.timeout_s)
            now = time.perf_counter()
            laps.append(now - before)
            before = now
    cuts = quantiles(laps, n=100)
    return {
        "confirmed_one_at_a_time_per_s": round(load.records / (before - start)),
        "p50_ms": round(cuts[49] * 1_000, 3),
        "p99_ms": round(cuts[98] * 1_000, 3),
    }


@contextmanager
def topic(choices: Choices, name: str | None, retention_s: float | None) -> Iterator[str]:
    """Yield the given topic, or a new one that is removed afterwards."""
    with ask.connect(choices) as mq:
        made = mq.create_topic(
            name or f"bench-{os.urandom(4).hex()}", retention=retention_s, if_not_exists=name is not None
        )
    try:
        yield made.name
    finally:
        if name is None:
            with ask.connect(choices) as mq:
                mq.topic(made.name).delete()
