"""The way of a newcomer, by the commands of README.md as they stand there: a clone, the first message, three
hosts, a takeover. What they print is compared with what README.md shows, and each step is timed; with
GOSSIPQ_NOTE=1 the times become a line of first_steps.jsonl.

The clone has a home of its own that is empty, so nothing is cached there, and a network of its own, so no
other node is near.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pytest

from chaos.places import Network
from chaos.runs import COMMIT
from conftest import HOME
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1_500)]
README = (HOME / "README.md").read_text("utf-8")
RECORD = Path(__file__).with_name("first_steps.jsonl")
FIRST_MESSAGE_S, TAKEOVER_S = 120, 300  #: what was promised
BUSY = 5  #: a machine that does other things is slower
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


Step = Callable[[str], None]


class Line(NamedTuple):
    host: str  #: "" for the only one
    command: str
    shown: list[str]  #: what it prints


def blocks(section: str) -> list[list[str]]:
    """The fenced blocks of one section, as lines."""
    text = README.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [found.splitlines() for found in re.findall(r"^```\n(.*?)^```$", text, re.M | re.S)]


def typed(block: list[str]) -> list[Line]:
    """`$ command` with the lines that follow it."""
    found = []
    for at, line in enumerate(block):
        if said := re.match(r"([a-z]*)\$ (.*)", line):
            shown = list(takewhile(lambda each: not re.match(r"[a-z]*\$ ", each), block[at + 1 :]))
            found.append(Line(said[1], said[2], shown))
    return found


def pattern(line: str) -> str:
    """A pattern for a printed line whose numbers, times and directory names may differ."""
    return re.sub(r"\d+", r"\\d+", re.sub(r"\s+", r"\\s+", re.escape(line).replace("\\ ", " ")))


def resembles(said: str, shown: list[str]) -> bool:
    return all(re.search(f"^{pattern(line)}$", said, re.M) for line in shown)


class Terminals:
    """Shells in one directory of one host."""

    def __init__(self, place: Path, name: str, directory: Path) -> None:
        self.prefix: list[str] = []  #: until it has a network of its own, it has that of the machine
        self.port, self.endpoint = 0, ""
        self.name, self.home, self.directory = name, place / f"home-{name}", directory
        self.home.mkdir()
        self.before = ""  #: what each shell begins with
        self.node: subprocess.Popen[bytes] | None = None

    def _line(self, command: str) -> list[str]:
        there = f"hostname {self.name}; {self.before}\n{command}"
        return [*self.prefix, "unshare", "--uts", "bash", "-c", there]

    @property
    def _environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "LANG", "LC_"))}
        return kept | {"HOME": str(self.home), "PATH": SYSTEM, "SHELL": "/bin/bash"}

    def types(self, command: str) -> str:
        """Runs a command and returns its output of both streams; it must succeed."""
        done = subprocess.run(
            self._line(command),
            cwd=self.directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{self.name}$ {command}\n{done.stdout}"
        return done.stdout

    def starts(self, command: str) -> str:
        """A node in a terminal of its own, until it is ready; what it says."""
        log = self.home / "log"
        with open(log, "ab") as said:
            self.node = subprocess.Popen(
                self._line(f"exec {command}"),
                cwd=self.directory,
                env=self._environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        until(lambda: "ready in" in log.read_text(), 60, f"{self.name}$ {command}")
        return log.read_text()

    def dies(self) -> None:
        assert self.node is not None
        os.killpg(self.node.pid, signal.SIGKILL)
        self.node.wait()

    def ends(self) -> None:
        if self.node is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.node.pid, signal.SIGKILL)
            self.node.wait()


@contextmanager
def network(*hosts: Terminals) -> Iterator[None]:
    """One for these alone; whatever they started is ended."""
    made = Network()
    try:
        for host in hosts:
            made.add(host)  # type: ignore[arg-type]  # it gives them a prefix
        yield
    finally:
        for host in hosts:
            host.ends()
        made.close()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("nsenter"), reason="only root may make networks")
def test_a_newcomer_comes_to_a_takeover(tmp_path: Path) -> None:
    clone, started_s = tmp_path / "gossipq", time.monotonic()
    here = Terminals(tmp_path, "here", clone)
    hosts = [Terminals(tmp_path, name, tmp_path / name) for name in ("ada", "bob", "cat")]
    for host in hosts:
        host.directory.mkdir()
        host.before = f". {clone}/.venv/bin/activate"
    steps: dict[str, float] = {}

    def step(name: str) -> None:
        steps[name] = round(time.monotonic() - started_s, 1)
        print(f"{steps[name]:6.1f} s  {name}", flush=True)

    _, _, (install, activate), server, client = blocks("Start in 60 seconds")
    subprocess.run(["git", "clone", "--quiet", HOME, clone], check=True)
    step("clone")
    here.types(install)
    here.before = activate
    step("install")
    with network(here, *hosts):
        use(here, typed(server)[0], typed(client), step)
        three_hosts(hosts, step)
    assert list(steps) == ["clone", "install", "first message", "read", "three nodes", "takeover"]
    assert steps["first message"] < BUSY * FIRST_MESSAGE_S
    assert steps["takeover"] < BUSY * TAKEOVER_S
    if os.environ.get("GOSSIPQ_NOTE") and not COMMIT.endswith("-dirty"):
        with RECORD.open("a") as file:
            file.write(json.dumps({"commit": COMMIT, "time": int(time.time()), "s": steps}) + "\n")


def use(here: Terminals, server: Line, lines: list[Line], step: Step) -> None:
    """One node, and README.md's commands for it in a second terminal."""
    said = here.starts(server.command)
    assert resembles(said, server.shown), said
    for number, line in enumerate(lines):
        said = here.types(line.command)
        if " why " in line.command:  # how it is said depends on the moment
            assert resembles(said, [line.shown[0], line.shown[-1]]), said
        else:
            assert [each.split("  ")[0] for each in said.splitlines()] == [
                each.split("  ")[0] for each in line.shown
            ], f"{line.command}\n{said}"
            assert resembles(said, line.shown), said  # behind two blanks: how long it took
        if number == 0:
            step("first message")
        elif " sub " in line.command and " -g " not in line.command:
            step("read")
    here.ends()


def three_hosts(hosts: list[Terminals], step: Step) -> None:
    """The block of README.md: `init` prints what the other hosts are to type, in the shape that is shown."""
    (block,) = blocks("Three nodes")
    lines, by_name = typed(block), {host.name: host for host in hosts}
    joins: list[str] = []
    for line in lines:
        host = by_name[line.host]
        if " init " in line.command:
            joins = re.findall(r"gossipq node --join \S+", host.types(line.command))
        elif " --join " in line.command:
            joined = joins.pop(0)
            shape = r"gossipq node --join [\w.]+:\d+/\w+/\w+"
            assert re.fullmatch(shape, joined), joined
            assert re.fullmatch(shape, line.command.replace("…", "")), line.command
            host.starts(joined)
        elif line.command.startswith("gossipq node"):
            host.starts(line.command)
        else:
            table = host.types(line.command).splitlines()
            assert table[0].split() == line.shown[0].split(), table
            assert [row.split()[:3] for row in table[1:]] == [row.split()[:3] for row in line.shown[1:]]
    ada, bob, _ = hosts
    ada.types("gossipq status --wait-healthy 2m")
    ada.types("gossipq pub orders '17 apples'")
    step("three nodes")
    until(lambda: leads(ada)["bob"], 90, "bob leads nothing, so its death would be no takeover")
    led = leads(ada)
    bob.dies()
    until(
        lambda: sum(leads(ada).values()) == sum(led.values()) and "bob" not in leads(ada), 60, "no takeover"
    )
    ada.types("gossipq pub orders '3 pears'")
    read = ada.types("gossipq sub orders --exit-at-end").splitlines()
    assert sorted(read) == ["17 apples", "3 pears"]
    step("takeover")


def leads(host: Terminals) -> dict[str, int]:
    """Node -> how many shards it leads, of those that answer."""
    rows = [row.split() for row in host.types("gossipq cluster ls").splitlines()[1:]]
    return {row[0]: int(row[3]) for row in rows if row[2] == "in"}
