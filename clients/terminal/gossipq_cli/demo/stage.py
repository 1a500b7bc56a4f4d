"""What the demo starts and must end: a node in a directory of its own, consumer processes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from gossipq.limits import CLIENT_PORT_STEP, FRONTDOOR_PEER_PORT_STEP, PEER_PORT_STEP, WORKERS_MAX
from gossipq_cli import ask
from gossipq_cli.demo import consumer
from gossipq_cli.failures import FAILED, Failure
from gossipq_cli.options import Choices

READY_S = 20.0
STOP_S = 10.0
PORT_TRIES = 100


class Node(NamedTuple):
    pid: int
    server: str
    directory: Path


class Member(NamedTuple):
    """A consumer process and our end of its pipe."""

    process: BaseProcess
    pipe: Connection


def free_port(workers: int, host: str = "127.0.0.1") -> int:
    """A port for a frontdoor, such that all the ports a node counts from it are free now."""
    steps = [0, FRONTDOOR_PEER_PORT_STEP]
    steps += [step + worker for worker in range(workers) for step in (CLIENT_PORT_STEP, PEER_PORT_STEP)]
    for _ in range(PORT_TRIES):
        with ExitStack() as held:
            first = held.enter_context(socket.socket())
            first.bind((host, 0))
            port: int = first.getsockname()[1]
            try:
                for step in steps[1:]:
                    held.enter_context(socket.socket()).bind((host, port + step))
            except (OSError, OverflowError):
                continue
            return port
    raise Failure("system", f"no {len(steps)} free ports found on {host}")


def core_count() -> int:
    return min(len(os.sched_getaffinity(0)), WORKERS_MAX)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo the way Ctrl-C does: through every `finally`."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def node() -> Iterator[Node]:
    """A node with default options in a temporary directory, healthy; stopped and removed on the way out, whatever happens."""
    directory = Path(tempfile.mkdtemp(prefix="gossipq-demo-"))
    process = None
    try:
        server = f"tcp://127.0.0.1:{free_port(core_count())}"
        # not from the user's cluster.toml or environment: the demo runs with the defaults
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GOSSIPQ_")}
        # under the client's guard, which ends the node when this process is gone, however it went
        guard = [sys.executable, "-m", "gossipq_client.embedded"]
        line = [
            *guard,
            sys.executable,
            "-m",
            "gossipq_node",
            "--name",
            "demo",
            "--data",
            str(directory / "data"),
            "--bind",
            server,
        ]
        line += ["--workers", str(core_count()), "--mode", "standalone"]
        with (directory / "node.log").open("wb") as log:
            process = subprocess.Popen(
                line, cwd=directory, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        try:
            ask.wait_healthy(Choices(servers=[server]), READY_S)
        except Failure as error:
            said = (directory / "node.log").read_text("utf-8", "replace").strip().splitlines()
            raise Failure(
                "failed", f"the demo's node did not start: {said[-1] if said else error.message}", exit_code=FAILED
            ) from None
        yield Node(process.pid, server, directory)
    finally:
        if process is not None:
            stop(process)
        shutil.rmtree(directory, ignore_errors=True)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Tells the guard, gives the node time to drain, then SIGKILL to its whole session: workers too."""
    assert process.stdin is not None, "started with a pipe"
    process.stdin.close()
    try:
        process.wait(STOP_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def consumers(count: int, server: str, topic: str, group: str) -> Iterator[list[Member]]:
    """Consumer processes that are connected; none is left on the way out."""
    spawn, members = get_context("spawn"), []
    # Ctrl-C reaches every process of the terminal; only the demo itself may act on it, and ends them in order
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for number in range(count):
            mine, its = spawn.Pipe()
            process = spawn.Process(
                target=consumer.main, args=(server, topic, group, its), name=f"consumer-{number}", daemon=True
            )
            process.start()
            its.close()
            members.append(Member(process, mine))
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        for member in members:
            if not member.pipe.poll(READY_S):
                raise Failure("failed", f"{member.process.name} did not start")
            member.pipe.recv_bytes()
        yield members
    finally:
        for member in members:
            member.process.kill()
            member.process.join()
            member.pipe.close()
