"""Measures how many groups slow down publishing: CPU time of the node per published batch. A topic with a
thousand groups, of which ten have consumers, is compared with a topic of only these ten, in turns.

    python perf/groups.py [--groups 1000] [--batches 200] [--pairs 3]
"""

import argparse
import asyncio
import statistics
import time

from stage import cpu_s, node

from gossipq_client import Client, aio, connect

CONSUMED, BATCH, SIZE, SETTLE_S, PATIENCE_S = 10, 500, 100, 3.0, 120.0
MADE_AT_ONCE = 250


async def make_groups(server: str, groups: list[tuple[str, str]], at_once: int) -> None:
    """Create groups without consumers, one for each (topic, group). Several are created at a time, as by
    programs that start together."""
    async with aio.connect(server, timeout=PATIENCE_S) as mq:

        async def make(topic: str, group: str) -> None:
            await mq.create_topic(topic, if_not_exists=True)
            await mq.fetch(topic, group, n=1, wait=0.0)

        for first in range(0, len(groups), at_once):
            await asyncio.gather(*(make(*each) for each in groups[first : first + at_once]))


def spent_s(mq: Client, pid: int, topic: str, batches: int) -> float:
    """CPU of the node per batch, until every group that is consumed has all of it."""
    values = [bytes(SIZE)] * BATCH
    before = cpu_s(pid)
    left = dict.fromkeys(range(CONSUMED), batches * BATCH)
    for _ in range(batches):
        mq.post_many(topic, values)
    mq.flush(None)
    while any(left.values()):
        for number in [each for each, count in left.items() if count]:
            batch = mq.fetch(topic, group=f"g{number}", n=BATCH, wait=1.0)
            mq.ack_soon(batch)
            left[number] -= len(batch)
    mq.flush(None)
    return (cpu_s(pid) - before) / batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=3)
    given = parser.parse_args()
    with node() as at:
        numbers = [("many", given.groups), ("few", CONSUMED)]
        groups = [(topic, f"g{number}") for topic, count in numbers for number in range(count)]
        asyncio.run(make_groups(at.server, groups, MADE_AT_ONCE))
        time.sleep(SETTLE_S)
        ratios = []
        with connect(at.server) as mq:
            for _ in range(given.pairs):
                few = spent_s(mq, at.pid, "few", given.batches)
                many = spent_s(mq, at.pid, "many", given.batches)
                ratios.append(many / few)
                print(f"CPU a batch: {many * 1e3:.2f} ms, {few * 1e3:.2f} ms with {CONSUMED} groups")
        each = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
        print(f"ratio {statistics.median(ratios):.2f} of {each}")


if __name__ == "__main__":
    main()
