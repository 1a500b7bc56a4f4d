"""Runs many consumers in one process, each a client with connections of its own.

    python perf/crowd.py SERVER TOPIC GROUP CONSUMERS RECORDS

Each of them fetches RECORDS and holds them, or waits for records when RECORDS is 0. Prints the number of held
records when all consumers are connected, and runs until it is killed.
"""

import asyncio
import sys

import stage  # noqa: F401  puts the client on the path

from gossipq_client.aio import Client, connect

AT_ONCE, PATIENCE_S = 50, 120.0


async def held(mq: Client, topic: str, group: str, records: int) -> int:
    if records:
        return len(await mq.fetch(topic, group, n=records, wait=PATIENCE_S))
    mq.subscribe(topic, group)
    await mq.topics()
    return 0


async def main(server: str, topic: str, group: str, consumers: int, records: int) -> None:
    clients, count = list[Client](), 0
    for first in range(0, consumers, AT_ONCE):
        some = [connect(server, timeout=PATIENCE_S) for _ in range(min(AT_ONCE, consumers - first))]
        count += sum(await asyncio.gather(*(held(mq, topic, group, records) for mq in some)))
        clients += some
    print(count, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], *map(int, sys.argv[4:])))
