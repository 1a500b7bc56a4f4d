"""A slow consumer of a real node, and one that is killed beside it: what the first one holds stays its
own."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from threading import Event, Thread

import pytest

from conftest import HOME, ROOTS, RunningNode
from gossipq_client import Subscription, connect

pytestmark = pytest.mark.e2e
MINUTES = float(os.environ.get("GOSSIPQ_SLOW_MINUTES") or "0.33")  #: `make slow-consumer` takes ten
RECORD_S, LEASE_S = 0.05, 2
RECORDS, PATIENCE_S = round(MINUTES * 60 / RECORD_S), 120.0 + 180.0 * MINUTES
KILLED_AFTER = 60  #: records of the first one
NEIGHBOUR = """
import sys, time
from gossipq_client import connect
with connect(sys.argv[1]) as mq:
    for msg in mq.consume("slow", group="g", lease=2):
        print(msg.offset, flush=True)
        time.sleep(0.05)
        msg.ack()
"""


def neighbour(endpoint: str) -> "subprocess.Popen[str]":
    paths = os.pathsep.join(str(HOME / root) for root in ROOTS)
    return subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR, endpoint],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )


@pytest.mark.slow
@pytest.mark.timeout(120 + 240 * MINUTES)
def test_a_slow_consumer_keeps_what_it_holds_when_another_one_is_killed(node: RunningNode) -> None:
    """It extends its leases many times, and does not hoard other records."""
    seen: Counter[int] = Counter()
    with connect(node.endpoint) as mq:
        mq.create_topic("slow")
        mq.publish_many("slow", [b"x"] * RECORDS)
    with neighbour(node.endpoint) as other, connect(node.endpoint) as mq:
        assert other.stdout is not None
        theirs = [int(other.stdout.readline())]
        held, end = [], time.monotonic() + PATIENCE_S
        for msg in mq.consume("slow", group="g", lease=LEASE_S, stop_at_end=True):
            seen[msg.offset] += 1
            time.sleep(RECORD_S)
            msg.ack_soon()
            if len(seen) == KILLED_AFTER:
                other.send_signal(signal.SIGKILL)
                theirs += [int(line) for line in other.stdout.read().split()]
                other.wait()
            if len(seen) % 20 == 0:
                held.append(sum(row.in_flight for row in mq.topic("slow").groups()))
            assert time.monotonic() < end
        (group,) = [row for row in mq.topic("slow").groups() if row.group == "g"]
    again = sum(seen.values()) - len(seen)
    print(
        f"{len(seen):,} records of {RECORD_S * 1_000:g} ms each, {LEASE_S} s of lease, one killed after "
        f"{KILLED_AFTER}: {again} came again to who held them, {group.redelivered} of the dead one went on; "
        f"at most {max(held[6:])} held"
    )
    assert set(seen) | set(theirs) == set(range(RECORDS))
    assert set(seen.values()) == {1}, "nothing came twice to who held it"
    assert max(held[6:]) <= 80, f"about a second of work: {held}"
    assert group.redelivered <= 80, "only what the dead one held"


def test_what_a_busy_consumer_has_not_begun_goes_to_one_that_has_nothing_to_do(node: RunningNode) -> None:
    """Both are real; the first would be busy with what it was handed for many seconds."""
    done: dict[str, list[int]] = {"first": [], "second": []}
    begun, over = Event(), Event()
    with connect(node.endpoint) as mq:
        mq.create_topic("uneven")
        mq.publish_many("uneven", [b"x"] * 24)

    subscriptions: list[Subscription] = []

    def work(name: str) -> None:
        with connect(node.endpoint) as mq, mq.subscribe("uneven", group="g") as subscription:
            subscriptions.append(subscription)
            for msg in subscription:
                done[name].append(msg.offset)
                begun.set()
                over.wait(0.25)
                msg.ack_soon()
                if len(done["first"]) + len(done["second"]) >= 24:
                    over.set()

    threads = [Thread(target=work, args=[name], daemon=True) for name in done]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    assert over.wait(30)
    for subscription in subscriptions:
        subscription.stop()
    for thread in threads:
        thread.join(30)
    assert len(done["second"]) >= 4, "the first one had them all"
    assert sorted(done["first"] + done["second"]) == list(range(24)), "each was worked on once"
