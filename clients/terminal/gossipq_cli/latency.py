"""`gossipq bench load`: measures the latency of records at a given rate.

The loop is open: each call is due at a time set by the rate, independent of earlier calls, and its
latency counts from that time. So a pause of the node counts for every record that was due during
it. A loop that waits for each answer would leave these out ("coordinated omission", Gil Tene,
2012). Times are those of the monotonic clock, common to processes.
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

    Histogram = Any  #: hdrh.histogram.HdrHistogram, which lacks type hints

DUE_BYTES = 8  #: at the front of each record: its due time, in nanoseconds
LATEST_US, DIGITS = 3_600_000_000, 3  #: of a histogram: the longest latency, and significant digits
PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "p999": 99.9, "max": 100}
LEAD_NS = 20_000_000  #: from now to the first call
DRAIN_S = 30.0  #: time for the last records after all are sent


class Offer(NamedTuple):
    """The load for a topic: `rate` records a second, `batch` per call, for `seconds`."""

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
        """Yield the due time of each call."""
        apart_ns = self.batch * 1e9 / self.rate
        return (start_ns + round(number * apart_ns) for number in range(self.calls))


def histogram() -> "Histogram":
    """Return a histogram for microseconds. Raises Failure if the library is not installed."""
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
    """Record the time of each confirm. One partition confirms in the order of the calls."""
    for _ in range(offer.calls):
        due_ns, receipt = await receipts.get()
        await receipt.result(DRAIN_S)
        _count(seen, due_ns, offer.batch)


async def _publish(mq: "Client", offer: Offer, seen: "Histogram") -> float:
    """Make each call when it is due, or at once if it is late.

    Returns the seconds until the last confirm.
    """
    receipts: asyncio.Queue[tuple[int, PendingReceipt]] = asyncio.Queue()
    rest = os.urandom(max(0, offer.size - DUE_BYTES))
    await mq.publish(offer.topic, bytes(DUE_BYTES))  # connects to the leader, not counted
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
                receipts.put_nowait((due_ns, mq.post(offer.topic, record)))
            else:
                receipts.put_nowait((due_ns, mq.post_many(offer.topic, [record] * offer.batch)))
        await confirmed
    finally:
        confirmed.cancel()
    return max(offer.records / offer.rate, (time.monotonic_ns() - start_ns) / 1e9)


def publish(choices: Choices, offer: Offer) -> tuple[float, "Histogram"]:
    """Return the duration in seconds, and a histogram of times to confirm."""
    from gossipq_client import aio

    async def run() -> tuple[float, "Histogram"]:
        seen = histogram()
        async with aio.connect(*servers_of(choices.servers), timeout=choices.timeout_s) as mq:
            await mq.topics(offer.topic)
            return await _publish(mq, offer, seen), seen

    # select() takes microseconds; epoll_wait() rounds up to a whole millisecond
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(run())


def consume(choices: Choices, offer: Offer, pipe: Connection) -> None:
    """The consumer process: receives and acks every record, and reports the latencies."""
    seen = histogram()
    with ask.connect(choices) as mq:
        mq.topics(offer.topic)
        mq.fetch(offer.topic, GROUP, n=1, wait=0)
        pipe.send("ready")
        while seen.get_total_count() < offer.records:
            batch = mq.fetch(offer.topic, GROUP, wait=FETCH_WAIT_S)
            for head, records in groupby(value[:DUE_BYTES] for value in batch.values()):
                if due_ns := int.from_bytes(head):
                    _count(seen, due_ns, sum(1 for _ in records))
            mq.ack_soon(batch)
        mq.flush(None)
    pipe.send(seen.encode())


def run(choices: Choices, offer: Offer, to: Path | None) -> dict[str, Any]:
    """Return the figures of one run: rates a second, and latencies in ms. Raises Failure.

    `to`: file for both distributions, in the format of HdrHistogram's tools.
    """
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
