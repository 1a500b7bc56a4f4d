"""What a node asks of its machine: cores it may use, its identity, file limits, where log lines go."""

import json
import logging
import os
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from gossipq.errors import ConfigError
from gossipq.texts import printable
from gossipq_node.ports import Use

MACHINE_ID = Path("/etc/machine-id")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
MEMORY = Path("/proc/self/statm")
FILES_MIN = 256  #: that a process of a node may have open: some fifty of its own, and those of other nodes
RAISE_FILE_LIMIT = "ulimit -n 65536, or LimitNOFILE= of the service"


def measure() -> Use:
    """What this process has used; of memory nothing where the system does not tell."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    try:
        pages = int(MEMORY.read_text().split()[1])
    except OSError:
        pages = 0
    return Use(int((spent.ru_utime + spent.ru_stime) * 1_000), pages * resource.getpagesize())


def address_towards(host: str, port: int) -> str:
    """The address of this machine from which it speaks to that host. Raises OSError: it is not reached."""
    family, kind, _, _, there = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(there)  # nothing is sent
        return str(probe.getsockname()[0])


def worker_count(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Cores this process may use: the affinity mask, bounded by the CPU quotas of its cgroups (v1 and v2), at
    least 1."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min([cores, *map(int, _quotas(cgroups, membership))]))


def _quotas(cgroups: Path, membership: Path) -> Iterator[float]:
    """Cores' worth of CPU time of each cgroup that bounds this process, from its own up to the root."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            base = cgroups / "cpu" if controllers else cgroups
            own = PurePosixPath(path.lstrip("/"))
            for place in (own, *own.parents):
                if quota := _quota(base / place):
                    yield quota


def _quota(place: Path) -> float:
    """0 = unbounded, or no such cgroup, as in a container that sees its own as the root."""
    try:
        if (place / "cpu.max").exists():
            quota, period = (place / "cpu.max").read_text().split()
        else:
            quota, period = ((place / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
        return max(0.0, int(quota) / int(period))
    except (OSError, ValueError):  # none of the files, or "max"
        return 0.0


def machine_id() -> str:
    """The system's own name for this machine, "" where it has none."""
    try:
        return MACHINE_ID.read_text().strip()
    except OSError:
        return ""


def boot_id() -> str:
    """The kernel's name for this run of the machine, "" where it has none. Boot times of one run can be
    compared."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def bound_memory(bytes_max: int) -> None:
    """The kernel refuses this process more private memory than that; 0 = no bound. The map of the store does
    not count."""
    if bytes_max:
        resource.setrlimit(resource.RLIMIT_DATA, (bytes_max, bytes_max))


def check_file_limit() -> None:
    """Raises ConfigError where the processes of a node could not open what they need."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < FILES_MIN:
        raise ConfigError(
            f"a process may open {hard} files here, and each of a node needs {FILES_MIN} at least, and one "
            "for each connection",
            RAISE_FILE_LIMIT,
        )


def raise_file_limit() -> None:
    """As many open files as the system allows: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class TextLines(logging.Formatter):
    """Lines for people. What others sent begins no line of its own, and no terminal obeys it."""

    def __init__(self, process: str) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(process_name)s: %(message)s")
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        said = logging.makeLogRecord(record.__dict__)
        said.msg, said.args, said.process_name = printable(record.getMessage()), (), self._process
        return printable(super().format(said), "\n\t")


class JsonLines(logging.Formatter):
    """One JSON object a line, for machines."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "process": self._process,
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def open_log(process: str, as_json: bool) -> logging.Logger:
    """Sends what this process logs to stderr: text for people, or JSON lines. Returns the logger of the
    process itself."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process) if as_json else TextLines(process))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    return logging.getLogger(process)
