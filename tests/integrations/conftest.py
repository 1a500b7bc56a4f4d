"""A PostgreSQL of the tests' own, from Debian's package, without a password on a socket in its directory."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ports import settled_port


class Server:
    """A running server."""

    def __init__(self, bin: Path, directory: Path, port: int, user: list[str]) -> None:
        self._bin, self._directory, self._port, self._user = bin, directory, port, user

    def run(self, program: str, *words: str) -> None:
        """Run one of the server's programs. Raises AssertionError with what it printed."""
        line = [*self._user, str(self._bin / program), *words]
        ran = subprocess.run(line, cwd="/", capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def start(self) -> None:
        """Create the data and start. fsync is off: what the server does after a power cut is not tested."""
        self.run("initdb", "-D", str(self._directory / "data"), "-U", "shop", "-A", "trust", "--no-sync")
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -k {self._directory} -F"
        log = str(self._directory / "log")
        self.run("pg_ctl", "-D", str(self._directory / "data"), "-w", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-D", str(self._directory / "data"), "-m", "immediate", "stop")

    def url(self, name: str) -> str:
        """Create a database and return its URL."""
        self.run("createdb", "-h", "127.0.0.1", "-p", str(self._port), "-U", "shop", name)
        return f"postgresql://shop@127.0.0.1:{self._port}/{name}"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """Skips if Debian's package is not installed. The server refuses root, and runs as its own user then."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    directory = Path(tempfile.mkdtemp(prefix="gossipq-pg-"))
    is_root = os.geteuid() == 0
    if is_root:
        shutil.chown(directory, "postgres")
    server = Server(
        found[-1].parent, directory, settled_port(), ["runuser", "-u", "postgres", "--"] * is_root
    )
    try:
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
