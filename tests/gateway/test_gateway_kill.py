"""kill -9 of a gateway under load: confirmed records are there, and the
records it held come again.
"""

import signal
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from conftest import RunningNode
from gateway.conftest import RunningGateway
from gossipq_client import connect

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
KILLS, WRITERS, READERS = 4, 3, 2


class Load:
    """Programs that publish with ids, and others that fetch and ack, until they are told to stop.
    Failed requests are repeated.
    """

    def __init__(self) -> None:
        self.url = ""
        self.confirmed: list[str] = []
        self.seen: set[str] = set()
        self.over = threading.Event()

    def write(self, name: int) -> None:
        number = 0
        with httpx.Client(timeout=5) as http:
            while not self.over.is_set():
                made = f"{name}-{number}"
                try:
                    answer = http.post(
                        f"{self.url}/v1/topics/work/records",
                        json={"value": made},
                        headers={"idempotency-key": made},
                    )
                    answer.raise_for_status()
                except httpx.HTTPError:
                    time.sleep(0.05)
                    continue
                self.confirmed.append(made)
                number += 1

    def read(self) -> None:
        with httpx.Client(timeout=10) as http:
            while True:
                try:
                    path = f"{self.url}/v1/topics/work/groups/g/fetch"
                    found = http.post(path, json={"n": 20, "wait": "1s", "lease": "5s", "create": True})
                    found.raise_for_status()
                    records = found.json()["records"]
                    if not records and self.over.is_set():
                        return
                    for record in records:
                        self.seen.add(record["value"])
                        http.post(f"{self.url}/v1/ack", json={"leases": [record["lease"]]})
                except httpx.HTTPError:
                    time.sleep(0.05)


def test_nothing_confirmed_is_lost(shared_node: RunningNode, tmp_path: Path) -> None:
    load = Load()
    gateway = RunningGateway(shared_node.endpoint, home=tmp_path).start()
    load.url = gateway.url
    threads = [threading.Thread(target=load.write, args=(name,)) for name in range(WRITERS)]
    threads += [threading.Thread(target=load.read) for _ in range(READERS)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(KILLS):
            time.sleep(1.5)
            gateway.stop(signal.SIGKILL)
            load.url = gateway.start().url
        time.sleep(1.5)
    finally:
        load.over.set()
        for thread in threads:
            thread.join(120)
    assert gateway.stop() == 0
    assert len(load.confirmed) > 50, "there was no load"
    with connect(shared_node.endpoint) as mq:
        stored = [msg.value.decode() for msg in mq.read("work")]
        (group,) = mq.topic("work").groups()
    assert set(load.confirmed) <= set(stored)
    assert max(Counter(stored).values()) == 1, "an id is stored once"
    assert load.seen == set(stored), "each was handed out"
    assert (group.ready, group.in_flight, group.retrying, group.dead) == (0, 0, 0, 0)
