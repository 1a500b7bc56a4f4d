"""Measures groups of order "fair": what they cost, and how long a quiet flow waits while another one floods.

python perf/fair.py --pairs 3        processor time of a record in a fair group beside one by arrival, in
                                     batches, for three ways in which flows are mixed
python perf/fair.py --index          cost of choosing a record with 10 and with 100,000 flows, and memory
python perf/fair.py --quiet          wait of a quiet flow behind a flood of 100 to 10,000 records; draws
                                     docs/pictures/fair.svg
"""

import argparse
import random
import statistics
import time
import tracemalloc
from pathlib import Path

from chart import lines
from stage import cpu_s, node

from gossipq.core.delivery.flows import FlowIndex
from gossipq.values import GroupConfig
from gossipq_client import Client, connect

RECORDS, FLOWS, BATCH, SIZE = 50_000, 100, 500, 100
BACKLOG, CHOSEN = 1_000_000, 20_000
FLOODS, WORK_S, CREDIT = (100, 1_000, 10_000), 0.002, 5
CHART = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "fair.svg"
ORDERS = ("arrival", "fair")
#: flows alternate in each batch; each batch is of one flow; the flow of each record is random
SHAPES = ("alternating", "own", "random")


def named(shape: str, batch: int, draw: random.Random) -> list[str]:
    """Return the flows of the records of a batch."""
    if shape == "own":
        return [f"flow {batch % FLOWS}"] * BATCH
    return [f"flow {at % FLOWS if shape == 'alternating' else draw.randrange(FLOWS)}" for at in range(BATCH)]


def cost(mq: Client, pid: int, topic: str, order: str, shape: str) -> tuple[float, float]:
    """Return the processor time of a record in microseconds, of the node and of a consumer that reads it, and
    the records a second. One consumer gets a backlog in batches.
    """
    draw = random.Random(1)
    mq.create_topic(topic, partitions=1)
    for batch in range(RECORDS // BATCH):
        mq.post_many(topic, [bytes(SIZE)] * BATCH, flows=named(shape, batch, draw), partition=0)
    mq.flush(None)
    began_s, left = time.perf_counter(), RECORDS
    used_s = cpu_s(pid) + time.process_time()
    while left:
        found = mq.fetch(topic, group="g", n=BATCH, wait=30.0, order=order)
        assert sum(len(msg.value) for msg in found) == SIZE * len(found), "each value is read"
        mq.ack_soon(found)
        left -= len(found)
    mq.flush(None)
    took_s, used_s = time.perf_counter() - began_s, cpu_s(pid) + time.process_time() - used_s
    return used_s / RECORDS * 1e6, RECORDS / took_s


def pairs(count: int) -> None:
    with node() as at, connect(at.server) as mq:
        for shape in SHAPES:
            ratios = []
            for number in range(count):
                found = {
                    order: cost(mq, at.pid, f"{order}-{shape}-{number}", order, shape) for order in ORDERS
                }
                ratios.append(found["arrival"][0] / found["fair"][0])
                print(", ".join(f"{order} {us:.2f} us, {rate:,.0f}/s" for order, (us, rate) in found.items()))
            text = f"ratio of records in a processor second {statistics.median(ratios):.2f}"
            print(f"{shape}: {text} of {[round(each, 2) for each in sorted(ratios)]}")


def index() -> None:
    least = 0
    for flows in (10, 100_000):
        tracemalloc.start()
        made = FlowIndex(0, GroupConfig(order="fair"))
        for offset in range(BACKLOG):
            made.append(5, 1 + offset % flows, offset, offset + 1)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        began_s = time.perf_counter()
        for _ in range(CHOSEN):
            run = made.head()
            assert run is not None, "the backlog is longer"
            made.drop(run, run.end, run.end - run.first)
        chosen_us = (time.perf_counter() - began_s) / CHOSEN * 1e6
        more = f", {(size - least) / flows:,.0f} bytes a flow" if least else ""
        least = least or size
        print(f"{flows:,} flows: {chosen_us:.2f} us a choice{more}")


def wait_s(mq: Client, topic: str, order: str, flood: int) -> float:
    """How long the first record of a quiet flow waits behind a flood, with one consumer that works on each
    record for WORK_S. The backlog is not consumed to its end.
    """
    mq.create_topic(topic, partitions=1)
    for first in range(0, flood, BATCH):
        mq.post_many(topic, [b"noisy"] * min(BATCH, flood - first), flow="noisy", partition=0)
    mq.flush(None)
    mq.publish(topic, b"quiet", flow="quiet", partition=0)
    for count, msg in enumerate(mq.consume(topic, group="g", order=order, credit=CREDIT), 1):
        with msg:
            if msg.value == b"quiet":
                return count * WORK_S
    raise AssertionError("the consumer ended")


def quiet() -> None:
    curves: dict[str, list[float]] = {order: [] for order in ORDERS}
    with node() as at, connect(at.server) as mq:
        for flood in FLOODS:
            for order in ORDERS:
                curves[order].append(wait_s(mq, f"{order}-{flood}", order, flood))
                print(f"{order}: {curves[order][-1]:,.3f} s behind {flood:,}")
    lines(CHART, "wait of a quiet flow behind a flood", list(map(float, FLOODS)), curves)


def main() -> None:
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--index", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args()
    if given.index:
        index()
    if given.quiet:
        quiet()
    if given.pairs:
        pairs(given.pairs)


if __name__ == "__main__":
    main()
