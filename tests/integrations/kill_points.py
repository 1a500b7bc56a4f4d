"""Kills a writer and relay of an outbox before each statement: `kill_points.py ENDPOINT URL TOPIC STEP`.

Process number N writes a transaction, and relays what is there until it reaches the Nth statement of
`gossipq_outbox` that it has not executed before; then it kills itself. Prints how many were killed. N grows
by STEP.
"""

import os
import signal
import sys
from types import FrameType
from typing import Any

import gossipq
import gossipq.outbox
import gossipq_outbox
from gossipq_outbox.databases import opened

FOLDER = os.path.dirname(gossipq_outbox.__file__)
ROWS = 3  #: records of one transaction


def kill_before(statement: int) -> None:
    """From now on this thread counts statements."""
    seen: set[tuple[str, int]] = set()

    def look(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line":
            seen.add((frame.f_code.co_filename, frame.f_lineno))
            if len(seen) > statement:
                os.kill(os.getpid(), signal.SIGKILL)
        return look

    sys.settrace(look)


def work(endpoint: str, url: str, topic: str, number: int | None) -> None:
    """Write transaction `number`, unless it is None, and relay until nothing is left."""
    outbox = gossipq.outbox.Outbox()
    if number is not None:
        connection = opened(url)
        connection.execute(f"insert into sales values ({number})")
        for at in range(ROWS):
            outbox.publish(connection, topic, f"{number}/{at}")
        connection.commit()
        connection.close()
    with gossipq.connect(endpoint) as mq:
        gossipq.outbox.Relay(mq, url, batch=2).run(until_empty=True)


def main(endpoint: str, url: str, topic: str, step: int) -> int:
    """Return the number of processes that were killed."""
    connection = opened(url)
    gossipq.outbox.Outbox().create(connection)
    connection.execute("create table sales (number integer)")
    connection.commit()
    connection.close()
    for number in range(0, 10_000, step):
        child = os.fork()
        if child == 0:
            kill_before(number)
            work(endpoint, url, topic, number)
            sys.settrace(None)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, status
            break
        assert os.WTERMSIG(status) == signal.SIGKILL, status
    work(endpoint, url, topic, None)
    return number // step


if __name__ == "__main__":
    print(main(*sys.argv[1:4], int(sys.argv[4])))
