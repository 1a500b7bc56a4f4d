"""Nodes under test that are started, killed and started again: each is a process of its own with its
directory and log."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from gossipq.messages import StatusReply
from gossipq_client import connect
from gossipq_node.directory import DirectoryManifest
from ports import settled_port
from processes import lives
from waiting import until

HOME = Path(__file__).parents[1]
PATHS = [HOME, HOME / "nodes"]
PATIENCE_S = 60.0


class Host:
    """A node that may be started and killed over and over."""

    def __init__(self, directory: Path, name: str, address: str = "127.0.0.1") -> None:
        self.name, self.directory = name, directory
        self.port = settled_port(doors=True)  # one that others reach opens them by itself
        self.endpoint, self.gossip = f"tcp://{address}:{self.port}", f"{address}:{self.port + 90}"
        self.data = directory / name
        self.log = directory / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.prefix: list[str] = []  #: of the command that starts it

    def start(self, *flags: str) -> "Host":
        given = ["--data", self.data, "--bind", self.endpoint, "--name", self.name, *flags]
        given += [] if "--witness" in flags else ["--workers", "1"]
        env = {name: text for name, text in os.environ.items() if not name.startswith("GOSSIPQ")}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "gossipq_node", *map(str, given)],
                env=env | {"PYTHONPATH": os.pathsep.join(map(str, PATHS))},
                cwd=self.directory,
                stdout=log,
                stderr=log,
            )
        return self

    @property
    def said(self) -> str:
        return self.log.read_text()

    def ready(self) -> "Host":
        def done() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.said
            return "ready in" in self.said

        until(done, what=lambda: self.said)
        return self

    def says(self, text: str) -> None:
        until(lambda: text in self.said, what=lambda: self.said)

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def manifest(self) -> DirectoryManifest:
        return msgspec.json.decode((self.data / "manifest.json").read_bytes(), type=DirectoryManifest)

    def status(self) -> StatusReply:
        with connect(self.endpoint, timeout=5) as mq:
            return mq.admin.raw.status()

    def names(self) -> list[str]:
        return sorted(member.name for member in self.status().members)

    def children(self) -> list[int]:
        assert self.process is not None
        pid = self.process.pid
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    def agent(self) -> int:
        """Pid of its Serf agent; 0 without one."""
        for child in self.children():
            for pid in Path(f"/proc/{child}/task/{child}/children").read_text().split():
                if Path(f"/proc/{pid}/comm").read_text().strip() == "serf":
                    return int(pid)
            for task in Path(f"/proc/{child}/task").iterdir():
                for pid in (task / "children").read_text().split():
                    if Path(f"/proc/{pid}/comm").read_text().strip() == "serf":
                        return int(pid)
        return 0

    def kill(self) -> None:
        """As a crash does; its processes follow within a moment."""
        if self.process is not None:
            children = self.children() if self.process.poll() is None else []
            self.process.kill()
            self.process.wait()
            self.process = None
            until(lambda: not any(map(lives, children)))

    def wipe(self) -> None:
        shutil.rmtree(self.data)
        self.log.unlink()
