"""A program that gevent has patched: greenlets publish, handle and consume with one client."""

import os
import subprocess
import sys

import pytest

from conftest import HOME, ROOTS, RunningNode

PATIENCE_S = 300
PROGRAM = """
from gevent import monkey

monkey.patch_all()

import sys

import gevent

import gossipq

topic, handled = sys.argv[2], set()
mq = gossipq.connect(sys.argv[1], timeout=60)


@mq.consumer(topic, group="handlers", workers=4)
def handle(value: bytes) -> None:
    gevent.sleep(0.01)  # others go on meanwhile
    handled.add(value)
    if len(handled) == 40:
        mq.stop()


def publish(number: int) -> None:
    for each in range(10):
        mq.publish(topic, f"{number}-{each}")


def consume() -> set[bytes]:
    seen = set()
    for msg in mq.consume(topic, group="loop"):
        with msg:
            seen.add(msg.value)
        if len(seen) == 40:
            return seen


running, consuming = gevent.spawn(mq.run, signals=False), gevent.spawn(consume)
gevent.joinall([gevent.spawn(publish, number) for number in range(4)], raise_error=True)
seen, reason = consuming.get(), running.get()
mq.close()
print(reason, len(handled), handled == seen)
"""


@pytest.mark.e2e
def test_greenlets_publish_handle_and_consume_with_one_client(shared_node: RunningNode, topic: str) -> None:
    pytest.importorskip("gevent")
    roots = os.pathsep.join(str(HOME / root) for root in ROOTS)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, shared_node.endpoint, topic],
        env={**os.environ, "PYTHONPATH": roots},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ran.returncode, ran.stdout.split()) == (0, ["stopped", "40", "True"]), ran.stderr[-4000:]
