"""A gateway as a process of its own, beside a node."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import httpx
import pytest

from conftest import HOME, ROOTS, RunningNode

STOP_SECONDS = 20


class RunningGateway:
    """`gossipq gateway` on a free port."""

    def __init__(self, endpoint: str, *flags: str, home: Path) -> None:
        self._line = [sys.executable, "-m", "gossipq_cli", "-s", endpoint, "gateway", "--http", "127.0.0.1:0"]
        self._line += flags
        self._home = home
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> Self:
        """Returns when it serves."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("GOSSIPQ")}
        paths = os.pathsep.join(str(HOME / root) for root in ROOTS)
        with open(self._home / "gateway.log", "ab") as log:
            self.process = subprocess.Popen(
                self._line,
                env={**plain, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready"):
            self.__exit__()
            raise AssertionError(self.said)
        self.url = line.split()[-1]
        return self

    @property
    def said(self) -> str:
        """Its log."""
        return (self._home / "gateway.log").read_text()

    def __enter__(self) -> Self:
        return self if self.process is not None else self.start()

    def __exit__(self, *error: object) -> None:
        if self.process is not None:
            self.stop(signal.SIGKILL)

    def stop(self, how: int = signal.SIGTERM) -> int:
        process, self.process = self.process, None
        assert process is not None
        process.send_signal(how)
        try:
            return process.wait(STOP_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture(scope="module")
def gateway(shared_node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """One for all tests of a module, which use topics of their own."""
    with RunningGateway(shared_node.endpoint, home=tmp_path_factory.mktemp("gateway")) as running:
        yield running
        if running.process is not None:
            assert running.stop() == 0
    assert "Traceback" not in running.said


@pytest.fixture
def http(gateway: RunningGateway) -> Iterator[httpx.Client]:
    """A client of it."""
    with httpx.Client(base_url=gateway.url, timeout=20) as client:
        yield client
