"""`gossipq group rate`: what each consumer gets, acks and fails."""

import json
import threading

import pytest

from conftest import RunningNode
from gossipq.values import ClientRow, Consuming
from gossipq_cli.commands.group import consumers, rates
from gossipq_client import connect


def client(name: str, *subscriptions: Consuming, worker: int = 0) -> ClientRow:
    return ClientRow(name.encode(), name, "1", "n", worker, 1, 0, 0, 0, 0, 0, list(subscriptions))


def consuming(topic: str, group: str, delivered: int, acked: int, failed: int) -> Consuming:
    return Consuming(topic, group, 1, 0, 0, delivered - acked - failed, 0, acked, delivered, failed)


def test_counters_of_all_workers_become_rates() -> None:
    before = consumers([client("ada", consuming("orders", "g", 10, 8, 1))], "orders", None)
    now = [
        client("ada", consuming("orders", "g", 30, 20, 5)),
        client("ada", consuming("orders, other", "g", 4, 4, 0), worker=1),
        client("bob", consuming("orders", "g", 1, 0, 0)),
        client("cat", consuming("orders", "", 9, 0, 0), consuming("other", "g", 9, 0, 0)),
    ]
    after = consumers(now, "orders", "g")
    (row,) = rates(before, after, 2.0)
    assert (row["client"], row["delivered"], row["acked"], row["failed"]) == ("ada", 12.0, 8.0, 2.0)
    assert consumers(now, "orders", "h") == {}
    (row,) = rates(after, before, 2.0)
    assert row["acked"] == 0, "a new leader counts anew"


@pytest.mark.e2e
def test_of_a_consumer_that_acks_and_fails(shared_node: RunningNode, gossipq) -> None:
    over = threading.Event()

    def consume() -> None:
        with connect(shared_node.endpoint, name="ada") as mq:
            while not over.is_set():
                mq.post_many("rated", [b"x"] * 10)
                for number, message in enumerate(mq.fetch("rated", "g", n=10, wait=0.5)):
                    message.reject("no") if number % 5 == 4 else message.ack_soon()

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        for _ in range(20):
            ran = gossipq(
                "-s", shared_node.endpoint, "-o", "json", "group", "rate", "rated", "--over", "500ms"
            )
            rows = json.loads(ran.out) if ran.code == 0 and ran.out else []
            if rows and rows[0]["failed"]:
                break
        (row,) = rows
        assert row["client"].startswith("ada")
        assert row["delivered"] > row["failed"] > 0
        assert row["acked"] > 0
    finally:
        over.set()
        thread.join()
    ran = gossipq("-s", shared_node.endpoint, "group", "rate", "rated", "--over", "10ms")
    assert ran == (0, "", "no consumer of rated was there both times\n")
    assert gossipq("-s", shared_node.endpoint, "group", "rate", "rated", "-g", "none").code == 4
    assert gossipq("-s", shared_node.endpoint, "group", "rate", "rated", "--over", "0s").code == 2
