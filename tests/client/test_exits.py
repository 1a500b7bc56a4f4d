"""Ways out of a process that skip atexit: children of multiprocessing, SIGTERM, os._exit."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conftest import HOME
from gossipq_client import testing

pytestmark = pytest.mark.e2e

PROGRAM = """
import asyncio, multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor

import gossipq_client
from gossipq_client import aio

endpoint, method, topic = sys.argv[1:4]


def publish(count):
    mq = gossipq_client.connect(endpoint)
    for number in range(count):
        mq.post(topic, b"%d" % number)


async def publish_async(count):
    mq = aio.connect(endpoint)
    await mq.publish(topic, b"0")  # now it knows the topic, and a post waits for nothing
    for number in range(1, count):
        mq.post(topic, b"%d" % number)


def run_async(count):
    asyncio.run(publish_async(count))


def leave(count):
    publish(count)
    os._exit(7)


def publish_on(counter):
    mq = gossipq_client.connect(endpoint)
    while True:
        mq.post(topic, b"x")
        counter.value += 1


def handle(started):
    mq = gossipq_client.connect(endpoint)
    mq.publish(topic, b"x")

    @mq.consumer(topic, group="g")
    def finish(value):
        started.set()
        time.sleep(0.5)
        print("finished", flush=True)

    mq.run()


def work(number):
    global mq
    if "mq" not in globals():
        mq = gossipq_client.connect(endpoint)
    mq.post(topic, b"%d" % number)


def run_child(context, target, argument):
    child = context.Process(target=target, args=(argument,))
    child.start()
    return child


def main():
    context = multiprocessing.get_context(method)
"""
TEXTS = {
    "processes": """
    for child in [run_child(context, target, count) for target in (publish, run_async) for count in (1, 99)]:
        child.join()
    print(200)
""",
    "executor": """
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        list(executor.map(work, range(50)))
    print(50)
""",
    "pool": """
    with context.Pool(2) as pool:  # ends its children by SIGTERM
        pool.map(work, range(50), chunksize=1)
    print(50)
""",
}


def run(tmp_path: Path, body: str, *arguments: str) -> tuple[str, str]:
    """The output of a program on standard output and on stderr."""
    program = tmp_path / "program.py"
    program.write_text(f'{PROGRAM}{body}\nif __name__ == "__main__":\n    main()\n')
    paths = os.pathsep.join(str(HOME / root) for root in ("", "nodes", "clients/python"))
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def stored(broker: testing.Broker, topic: str) -> int:
    with broker.connect() as mq:
        return sum(row.next - row.first for row in mq.admin.stats([topic]).partitions)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("kind", TEXTS)
def test_what_children_of_multiprocessing_publish_is_stored(
    broker: testing.Broker, tmp_path: Path, method: str, kind: str
) -> None:
    """Forked children lost all that they had published, and said nothing."""
    topic = f"{kind}-{method}"
    published, said = run(tmp_path, TEXTS[kind], broker.endpoint, method, topic)
    assert (stored(broker, topic), said) == (int(published), "")


def test_a_child_that_is_terminated_while_it_publishes_sends_what_it_has(
    broker: testing.Broker, tmp_path: Path
) -> None:
    """The signal comes within a step of the client in most runs."""
    text = """
    counter = context.Value("q", 0, lock=False)  # the child would die with the lock
    child = run_child(context, publish_on, counter)
    while counter.value < 1_000:
        child.join(0.01)
    child.terminate()
    child.join()
    print(counter.value, child.exitcode)
"""
    said, complaint = run(tmp_path, text, broker.endpoint, "fork", "terminated")
    published, exit_code = map(int, said.split())
    assert exit_code == -15
    assert complaint == ""
    # the signal may come between the publish and the count
    assert stored(broker, "terminated") - published in (0, 1)


def test_handlers_in_a_child_finish_when_it_is_terminated(broker: testing.Broker, tmp_path: Path) -> None:
    text = """
    started = context.Event()
    child = run_child(context, handle, started)
    started.wait()
    child.terminate()
    child.join()
    print(child.exitcode)
"""
    assert run(tmp_path, text, broker.endpoint, "fork", "handled") == ("finished\n0\n", "")


def test_an_exit_that_sends_nothing_reports_what_is_lost(broker: testing.Broker, tmp_path: Path) -> None:
    text = """
    child = run_child(context, leave, 20)
    child.join()
    print(child.exitcode)
"""
    said, complaint = run(tmp_path, text, broker.endpoint, "fork", "left")
    assert said == "7\n"
    assert "had no confirm when os._exit was called: they may be lost; call close()" in complaint


def end(program: str, endpoint: str) -> tuple[str, str]:
    """The output of a program that has a client `mq` when it ends."""
    paths = os.pathsep.join(str(HOME / root) for root in ("", "nodes", "clients/python"))
    text = f"import atexit, sys\n{program}"
    done = subprocess.run(
        [sys.executable, "-c", text, endpoint],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout, done.stderr


CONNECT = "import gossipq_client\nmq = gossipq_client.connect(sys.argv[1])\n"
LATE = """
def publish():
    try:
        print(mq.publish("late", b"x", timeout=30).partition)
    except gossipq_client.ClientClosed as closed:
        print(closed)


class Last:
    def __del__(self):
        publish()

"""


def test_the_first_publish_may_come_in_an_atexit_function(broker: testing.Broker) -> None:
    assert end(f"{CONNECT}{LATE}atexit.register(publish)", broker.endpoint) == ("0\n", "")


def test_the_first_publish_behind_the_end_of_all_clients_is_warned_of(broker: testing.Broker) -> None:
    said, complaint = end(f"atexit.register(lambda: publish())\n{CONNECT}{LATE}", broker.endpoint)
    assert said == "0\n"
    assert "without waiting for the confirm may be lost" in complaint


def test_a_publish_of_an_interpreter_that_ends_is_refused(broker: testing.Broker) -> None:
    """It waited for ever for a thread that was not run any more."""
    said, _ = end(f"{CONNECT}{LATE}last = Last()", broker.endpoint)
    assert said == "the interpreter is about to end, and nothing can be sent any more\n"


def test_a_client_does_without_a_thread_where_none_can_start(
    broker: testing.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in atexit functions of Python 3.12."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    mq = broker.connect()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        mq.post("threadless", b"x")
    with mq:
        assert mq.publish("threadless", b"x", timeout=30).offset == 1
        assert len(mq.fetch("threadless", "g", n=3, min=2, wait=30)) == 2
