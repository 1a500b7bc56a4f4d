"""Consumer processes of the demo, and its use of the machine."""

import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from gossipq.limits import (
    CLIENT_PORT_STEP,
    FRONTDOOR_PEER_PORT_STEP,
    GOSSIP_PORT_STEP,
    PEER_PORT_STEP,
    WORKERS_MAX,
)
from gossipq_cli.demo import consumer
from gossipq_cli.failures import Failure

READY_S = 20.0
STOP_S = 10.0
PORT_TRIES = 100
LOWEST_PORT = 10_000
OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Member(NamedTuple):
    """A consumer process and our end of its pipe."""

    process: BaseProcess
    pipe: Connection


def free_port(workers: int, host: str = "127.0.0.1") -> int:
    """Return a port for a frontdoor whose other ports, counted from it, are free too.

    They are below the system's range for outgoing connections, one of which could otherwise take
    the port of a stopped node.
    """
    steps = [0, FRONTDOOR_PEER_PORT_STEP, GOSSIP_PORT_STEP]
    steps += [step + worker for worker in range(workers) for step in (CLIENT_PORT_STEP, PEER_PORT_STEP)]
    for _ in range(PORT_TRIES):
        with ExitStack() as held:
            port = random.randrange(LOWEST_PORT, max(LOWEST_PORT + 1, _first_outgoing() - max(steps)))
            try:
                for step in steps:
                    held.enter_context(socket.socket()).bind((host, port + step))
            except (OSError, OverflowError):
                continue
            return port
    raise Failure("system", f"no {len(steps)} free ports found on {host}")


def _first_outgoing() -> int:
    try:
        return int(OUTGOING.read_text().split()[0])
    except (OSError, ValueError):
        return 32_768


def core_count() -> int:
    return min(len(os.sched_getaffinity(0)), WORKERS_MAX)


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo like Ctrl-C, through every `finally`."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def consumers(count: int, servers: list[str], topic: str, group: str) -> Iterator[list[Member]]:
    """Run connected consumer processes. All are ended after the block."""
    spawn, members = get_context("spawn"), []
    # Ctrl-C reaches every process of the terminal, but only the demo may handle it and end them
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for number in range(count):
            mine, its = spawn.Pipe()
            process = spawn.Process(
                target=consumer.main,
                args=(servers, topic, group, its),
                name=f"consumer-{number}",
                daemon=True,
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
