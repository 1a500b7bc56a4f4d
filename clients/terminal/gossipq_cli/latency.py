"""What `gossipq bench load` measures: how long records take at a given rate.

The loop is open: each call is due at a moment that the rate sets, whatever became of the calls before it, and
its latency counts from that moment. So a node that pauses is charged with every record that should have gone
out meanwhile; a loop that waits for each answer leaves them out ("coordinated omission", Gil Tene, 2012).
Times are those of this machine's monotonic clock, which its processes share.
"""

import asyncio
import os
import selectors
import time
from collections.abc import Iterator
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gossipq_cli import ask, failures
from gossipq_cli.benches import FETCH_WAIT_S, GROUP, READY_S
from gossipq_cli.contexts import servers_of
from gossipq_cli.options import Choices

if TYPE_CHECKING:
    from gossipq_client.aio import Client, PendingReceipt

    Histogram = Any  #: hdrh.histogram.HdrHistogram, which has no types

DUE_BYTES = 8  #: at the front of each record: when it was due, in nanoseconds
LATEST_US, DIGITS = 3_600_000_000, 3  #: of a histogram: the longest latency, and significant digits
PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "p999": 99.9, "max": 100}
LEAD_NS = 20_000_000  #: from now to the first call
DRAIN_S = 30.0  #: how long the last records may take when all are sent


class Offer(NamedTuple):
    """What is offered to a topic: `rate` records a second, `batch` of them in a call, for `seconds`."""

    topic: str
    rate: float
    seconds: float
    batch: int
    size: int

    @property
    def calls(self) -> int:
        return max(1, round(self.rate * self.seconds / self.batch))

    @property
    def records(self) -> int:
        return self.calls * self.batch

    def due_ns(self, start_ns: int) -> Iterator[int]:
        """When each call is due."""
        apart_ns = self.batch * 1e9 / self.rate
        return (start_ns + round(number * apart_ns) for number in range(self.calls))


def histogram() -> "Histogram":
    """Of latencies in microseconds. Raises Failure when the library is not installed."""
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError:
        hint = '`pip install "gossipq[bench]"` brings hdrhistogram'
        raise failures.Failure("no_histogram", "hdrhistogram is not installed", hint) from None
    return HdrHistogram(1, LATEST_US, DIGITS)


def _count(seen: "Histogram", due_ns: int, records: int = 1) -> None:
    seen.record_value(min(LATEST_US, max(1, (time.monotonic_ns() - due_ns) // 1_000)), records)


async def _confirmed(
    receipts: "asyncio.Queue[tuple[int, PendingReceipt]]", offer: Offer, seen: "Histogram"
) -> None:
    """Notes when each call was confirmed, in the order of the calls: one partition confirms in order."""
    for _ in range(offer.calls):
        due_ns, receipt = await receipts.get()
        await receipt.result(DRAIN_S)
        _count(seen, due_ns, offer.batch)


async def _publish(mq: "Client", offer: Offer, seen: "Histogram") -> float:
    """Makes each call when it is due, or at once when that is over. Returns the seconds that it took, with
    the confirms."""
    receipts: asyncio.Queue[tuple[int, PendingReceipt]] = asyncio.Queue()
    rest = os.urandom(max(0, offer.size - DUE_BYTES))
    await mq.publish_and_wait(offer.topic, bytes(DUE_BYTES))  # its leader is greeted; nobody counts this one
    start_ns = time.monotonic_ns() + LEAD_NS
    confirmed = asyncio.ensure_future(_confirmed(receipts, offer, seen))
    try:
        for due_ns in offer.due_ns(start_ns):
            while (ahead_ns := due_ns - time.monotonic_ns()) > 0 and not confirmed.done():
                await asyncio.sleep(ahead_ns / 1e9)
            if confirmed.done():
                break  # it failed
            record = due_ns.to_bytes(DUE_BYTES) + rest
            if offer.batch == 1:
                receipts.put_nowait((due_ns, await mq.publish(offer.topic, record)))
            else:
                receipts.put_nowait((due_ns, await mq.publish_many(offer.topic, [record] * offer.batch)))
        await confirmed
    finally:
        confirmed.cancel()
    return max(offer.records / offer.rate, (time.monotonic_ns() - start_ns) / 1e9)


def publish(choices: Choices, offer: Offer) -> tuple[float, "Histogram"]:
    """How many seconds it took, and how long each record waited for its confirm."""
    from gossipq_client import aio

    async def run() -> tuple[float, "Histogram"]:
        seen = histogram()
        async with aio.connect(*servers_of(choices.servers), timeout=choices.timeout_s) as mq:
            await mq.topics(offer.topic)
            return await _publish(mq, offer, seen), seen

    # select() is told microseconds; epoll_wait() rounds up to a whole millisecond
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(run())


def consume(choices: Choices, offer: Offer, pipe: Connection) -> None:
    """The consumer process: takes and acks every record, and says how long each was on its way."""
    seen = histogram()
    with ask.connect(choices) as mq:
        mq.topics(offer.topic)
        mq.fetch(offer.topic, GROUP, n=1, wait=0, create=True)
        pipe.send("ready")
        while seen.get_total_count() < offer.records:
            batch = mq.fetch(offer.topic, GROUP, wait=FETCH_WAIT_S)
            for head, records in groupby(value[:DUE_BYTES] for value in batch.values()):
                if due_ns := int.from_bytes(head):
                    _count(seen, due_ns, sum(1 for _ in records))
            mq.ack(batch)
        mq.flush()
    pipe.send(seen.encode())


def run(choices: Choices, offer: Offer, to: Path | None) -> dict[str, Any]:
    """Figures of one run: rates a second, and latencies in ms. `to`: both distributions are written there, as
    HdrHistogram's own tools read them. Raises Failure."""
    delivered = histogram()
    spawn = get_context("spawn")
    mine, its = spawn.Pipe()
    child = spawn.Process(target=consume, args=(choices, offer, its), daemon=True)
    child.start()
    its.close()
    try:
        if not mine.poll(READY_S):
            raise failures.Failure("failed", "the consumer did not start")
        mine.recv()
        seconds, confirmed = publish(choices, offer)
        if not mine.poll(DRAIN_S):
            raise failures.Failure("failed", f"not all records were consumed within {DRAIN_S:.0f} s")
        delivered.decode_and_add(mine.recv())
    except EOFError:
        raise failures.Failure("failed", "the consumer ended early") from None
    finally:
        child.kill()
        child.join()
    kinds = {"confirm": confirmed, "delivery": delivered}
    if to is not None:
        for kind, seen in kinds.items():
            with to.with_name(f"{to.name}.{kind}.hgrm").open("wb") as file:
                seen.output_percentile_distribution(file, 1_000)
    answer: dict[str, Any] = {
        "offered_per_s": round(offer.rate),
        "published_per_s": round(offer.records / seconds),
        "published_bytes_per_s": round(offer.records * offer.size / seconds),
    }
    for kind, seen in kinds.items():
        for name, percentile in PERCENTILES.items():
            answer[f"{kind}_{name}_ms"] = round(seen.get_value_at_percentile(percentile) / 1_000, 3)
    return answer
