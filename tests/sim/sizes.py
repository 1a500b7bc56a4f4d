"""Count the messages, turns and bytes of clusters of many nodes: real workers over a simulated network, with
a clock that the script moves. It does not measure time.

    PYTHONPATH=.:nodes:clients/python:tests python -m sim.sizes [--nodes 3 10 ...] [--shards 32 64 ...]

Each node has one worker. Nodes join one after the other, and shards find their copies and leaders.
The script counts messages and bytes between hosts, and turns that had something to do. It does so
for an idle cluster, and under 100 batches a second to 16 topics (50 records of 100 bytes each).
Rows go to sizes.json, and from there into perf/GROWTH.md (`perf/growth.py --write`).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gossipq.messages import Publish
from gossipq.wire import batch as batches
from node import test_cluster as town

ROWS = Path(__file__).with_name("sizes.json")
IDLE_MS, LOAD_MS, EVERY_MS, SETTLE_MS, HEALTHY_MS = 5_000, 5_000, 20, 3_000, 600_000
TOPICS, PER_STEP, BATCH = 16, 2, batches.seal([bytes(100)] * 50)


class Tally:
    """Counts what the nodes of a house send to each other and do, since `clear`."""

    def __init__(self, house: town.House) -> None:
        #: True while frontdoors talk to their own workers; the house does that
        #: more often than a node
        self._sharing = False
        share = house.share

        def shares() -> None:
            self._sharing = True
            share()
            self._sharing = False

        house.share = shares  # type: ignore[method-assign]
        self.clear()
        for node in house.nodes.values():
            self._watch(node)

    def clear(self) -> None:
        self.messages = self.bytes = self.turns = 0

    def _watch(self, node: town.Node) -> None:
        send, turn, home = node.mailbox.send, node.worker.turn, node.member.endpoint.removesuffix(":7700")

        def sends(endpoint: str, control: bytes, batch: bytes = b"") -> bool:
            if not endpoint.startswith(f"{home}:"):
                self.messages += 1
                self.bytes += len(control) + len(batch)
            return bool(send(endpoint, control, batch))

        def turns(arrived: list[Any], now: Any) -> None:
            due_ms = node.worker.next_deadline_ms()
            if not self._sharing:
                self.turns += bool(arrived) or (due_ms is not None and due_ms <= now.boot_ms)
            turn(arrived, now)

        node.mailbox.send = sends  # type: ignore[method-assign]
        node.worker.turn = turns  # type: ignore[method-assign]

    def per_s(self, ms: int) -> dict[str, int]:
        counts = {"messages": self.messages, "bytes": self.bytes, "turns": self.turns}
        return {name: round(1_000 * count / ms) for name, count in counts.items()}


def measured(nodes: int, shards: int) -> dict[str, Any]:
    house = town.House(*(f"n{number:02}" for number in range(nodes)), shards=shards)
    house.until(house.healthy, HEALTHY_MS)
    house.run(SETTLE_MS)
    tally = Tally(house)
    house.run(IDLE_MS)
    idle = tally.per_s(IDLE_MS)
    homes = [town.topic(house, f"t{number}") for number in range(TOPICS)]
    ways = [(house.client(house.leader(shard)), partition, shard) for partition, shard in homes]
    tally.clear()
    for step in range(LOAD_MS // EVERY_MS):
        for at in range(PER_STEP):
            client, partition, shard = ways[(PER_STEP * step + at) % TOPICS]
            client.send(Publish(partition), shard, bytes(BATCH))
        house.run(EVERY_MS)
    load = tally.per_s(LOAD_MS)
    confirmed = sum(len(client.inbox()) for client, _, _ in ways)
    if confirmed < PER_STEP * LOAD_MS // EVERY_MS - 2 * TOPICS:
        raise SystemExit(f"only {confirmed} batches were confirmed")
    leads = [len(node.leads()) for node in house.nodes.values()]
    return {
        "nodes": nodes,
        "shards": shards,
        "leads": [min(leads), max(leads)],
        "idle": idle,
        "load": load,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What clusters of many nodes would say, by simulation.")
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 5, 10, 20, 50])
    parser.add_argument("--shards", type=int, nargs="+", default=[32, 64, 128, 256])
    given = parser.parse_args()
    rows = json.loads(ROWS.read_text()) if ROWS.exists() else []
    for nodes in given.nodes:
        for shards in given.shards:
            found = measured(nodes, shards)
            print(found, file=sys.stderr, flush=True)
            rows = [row for row in rows if (row["nodes"], row["shards"]) != (nodes, shards)] + [found]
            rows.sort(key=lambda row: (row["nodes"], row["shards"]))
            ROWS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
