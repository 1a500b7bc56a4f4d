"""kill -9 of a node while 256 asyncio tasks of one client wait for one publish each: every receipt
names the place of its record, and no record is stored twice."""

import asyncio
import os
import random
from collections.abc import Callable

import pytest

import gossipq_client.aio as gossipq
from e2e.harness import Node
from gossipq.errors import GossipqError
from gossipq_client import connect

TASKS = 256
KILLS = int(os.environ.get("GOSSIPQ_KILLS", "3"))
SEED = int(os.environ.get("GOSSIPQ_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
PATIENCE_S = 60.0
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120 + 30 * KILLS)]


class Run:
    """The tasks, and the places that their receipts named."""

    def __init__(self, node: Node) -> None:
        self.node, self.dice = node, random.Random(f"{SEED} tasks")
        self.places: dict[bytes, tuple[int, int]] = {}  #: value -> partition and offset
        self.unknown: set[bytes] = set()  #: values whose publish raised
        self.over = False

    async def task(self, mq: gossipq.Client, number: int) -> None:
        count = 0
        while not self.over:
            count += 1
            value = b"%d/%d" % (number, count)
            try:
                receipt = await mq.publish("jobs", value)
            except GossipqError:
                self.unknown.add(value)
            else:
                self.places[value] = receipt.partition, receipt.offset

    async def kill(self) -> None:
        """Kill and start the node, each time when some of the publishes were confirmed again."""
        for _ in range(KILLS):
            enough = len(self.places) + TASKS
            while len(self.places) < enough:
                await asyncio.sleep(0.01)
            await asyncio.sleep(self.dice.random() * 0.1)
            self.node.kill()
            await asyncio.to_thread(self.node.start)
        self.over = True

    async def main(self) -> None:
        async with (
            gossipq.connect(self.node.endpoint, timeout=PATIENCE_S) as mq,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(TASKS):
                tasks.create_task(self.task(mq, number))
            tasks.create_task(self.kill())


def test_each_receipt_is_in_the_log(make: Callable[..., Node]) -> None:
    print(f"seed {SEED}")
    run = Run(make().start())
    asyncio.run(run.main())
    log: dict[bytes, list[tuple[int, int]]] = {}
    with connect(run.node.endpoint, timeout=PATIENCE_S) as mq:
        for msg in mq.read("jobs"):
            log.setdefault(msg.value, []).append((msg.partition, msg.offset))
    assert len(run.places) >= KILLS * TASKS
    wrong = {value: place for value, place in run.places.items() if log.get(value) != [place]}
    assert not wrong, f"{len(wrong)} receipts name another place than the log"
    twice = [value for value, places in log.items() if len(places) > 1]
    assert not twice, f"{len(twice)} records are stored twice"
    strange = log.keys() - run.places.keys() - run.unknown
    assert not strange, f"{len(strange)} records of nobody"
