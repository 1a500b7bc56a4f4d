"""A real cluster under a real load, recorded: what the pictures of the documents are drawn from.

`make pictures` runs it: three nodes, a shop that publishes and consumes, some records that fail, and a node
that is killed.
"""

import gzip
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from gossipq.errors import GossipqError
from gossipq_cli.dashboard.recordings import Recording, written
from gossipq_cli.dashboard.sources import News, Watch
from gossipq_client import Client, connect
from gossipq_ops.process import own_name
from gossipq_ops.rows import Snapshot
from hosts import Host

FILE = Path(__file__).with_name("scene.jsonl.gz")
NAMES = ("ada", "bob", "cat")
LOAD_S, AWAY_S, KEPT = 200.0, 9.0, 120  #: seconds of load, of them without the last node; snapshots kept
BAD_SHARE = 0.0005
ERRORS = ("no such customer", "no such customer", "sum is negative")
PAUSE_S = 0.05
TOPICS = {"orders": (4, 900), "payments": (2, 300), "clicks": (4, 2_400), "mails": (1, 40)}
#: topic, group, consumers, how long each takes for a record
GROUPS = (
    ("orders", "billing", 2, 0.0),
    ("orders", "shipping", 2, 0.0),
    ("payments", "ledger", 1, 0.0),
    ("clicks", "fraud", 1, 0.0006),
    ("mails", "sender", 1, 0.001),
)


class Load:
    """Threads that publish and consume until they are told to end; who meets a takeover goes on."""

    def __init__(self, servers: list[str]) -> None:
        self._servers, self._over, self._threads = servers, threading.Event(), []
        for topic, (_, rate) in TOPICS.items():
            self._start(f"{topic}-api", lambda mq, topic=topic, rate=rate: self._publish(mq, topic, rate))
        for topic, group, count, record_s in GROUPS:
            for number in range(count):
                self._start(
                    f"{group}-{number + 1}",
                    lambda mq, at=(topic, group, record_s): self._consume(mq, *at),
                )

    def _start(self, name: str, act: Callable[[Client], None]) -> None:
        def run() -> None:
            with connect(*self._servers, name=name, timeout=30) as mq:
                while not self._over.is_set():
                    with suppress(GossipqError):
                        act(mq)

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def _publish(self, mq: Client, topic: str, rate: int) -> None:
        chance = random.Random(topic)
        while not self._over.wait(PAUSE_S):
            # what customers do: more at some times than at others
            busy = 0.6 + 0.4 * chance.random() + 0.5 * (int(time.time()) // 20 % 2)
            count = max(1, round(rate * PAUSE_S * busy))
            values = [b'{"id":%d,"sum":%d}' % (chance.randrange(10**6), number) for number in range(count)]
            mq.post_many(topic, values)

    def _consume(self, mq: Client, topic: str, group: str, record_s: float) -> None:
        chance = random.Random(group)
        while not self._over.is_set():
            batch = mq.fetch(topic, group, n=500, wait=0.5)
            for message in batch if group == "billing" else ():
                if chance.random() < BAD_SHARE:
                    message.reject(chance.choice(ERRORS))
                else:
                    message.ack_soon()
            time.sleep(record_s * len(batch))
            if group != "billing":
                mq.ack_soon(batch)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(40)


def played(load_s: float = LOAD_S) -> list[Snapshot]:
    """What a dashboard sees of it, one snapshot a second."""
    with tempfile.TemporaryDirectory() as place:
        hosts = [Host(Path(place), name) for name in NAMES]
        try:
            hosts[0].start("--mode", "static")
            for host in hosts[1:]:
                host.start("--peer", hosts[0].endpoint)
            for host in hosts:
                host.ready()
            return _watched(hosts, load_s)
        finally:
            for host in hosts:
                host.kill()


def _watched(hosts: list[Host], load_s: float) -> list[Snapshot]:
    servers = [host.endpoint for host in hosts]
    with connect(*servers, timeout=30) as mq:
        for topic, (partitions, _) in TOPICS.items():
            mq.create_topic(topic, partitions=partitions)
        for topic, group, _, _ in GROUPS:
            mq.fetch(topic, group, n=1, wait=0.1)
        mq.group("clicks", "fraud").configure(alarm_lag=5_000)
    news: SimpleQueue[News] = SimpleQueue()
    watch = Watch(
        lambda address: connect(*([address] if address else servers), name=own_name(), timeout=2, wait=2),
        lambda: servers[0],
        1.0,
        news.put,
    )
    watch.start()
    load = Load(servers[:2])
    try:
        time.sleep(load_s - AWAY_S)
        hosts[-1].kill()
        time.sleep(AWAY_S)
    finally:
        watch.stop()
        load.stop()
    found = []
    while not news.empty():
        told = news.get()
        if isinstance(told, Snapshot):
            found.append(told)
    return found


def kept() -> list[Snapshot]:
    """Of the last run that was recorded."""
    return list(Recording(gzip.decompress(FILE.read_bytes())))


if __name__ == "__main__":
    seen = played(float(sys.argv[1]) if len(sys.argv) > 1 else LOAD_S)
    FILE.write_bytes(gzip.compress(written(seen[-KEPT:]), mtime=0))
    print(f"{len(seen)} snapshots, {FILE.stat().st_size:,} bytes kept")
