"""Facts about the machine: usable cores, identity, file limits, and the format of log lines."""

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
#: open files that a process of a node needs: about fifty of its own, and those of other nodes
FILES_MIN = 256
RAISE_FILE_LIMIT = "ulimit -n 65536, or LimitNOFILE= of the service"


def measure() -> Use:
    """Return what this process has used; memory is 0 where the system does not report it."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    try:
        pages = int(MEMORY.read_text().split()[1])
    except OSError:
        pages = 0
    return Use(int((spent.ru_utime + spent.ru_stime) * 1_000), pages * resource.getpagesize())


def address_towards(host: str, port: int) -> str:
    """Return the local address for connections to a host. Raises OSError if it is unreachable."""
    family, kind, _, _, there = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(there)  # UDP: this sends nothing
        return str(probe.getsockname()[0])


def worker_count(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the cores that this process may use, at least 1.

    The affinity mask, bounded by the CPU quotas of its cgroups (v1 and v2).
    """
    cores = len(os.sched_getaffinity(0))
    return max(1, min([cores, *map(int, _quotas(cgroups, membership))]))


def _quotas(cgroups: Path, membership: Path) -> Iterator[float]:
    """Yield the CPU quota in cores of each cgroup that bounds this process,
    from its own to the root.
    """
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
    """0 = unbounded, or the cgroup is not visible, as in a container."""
    try:
        if (place / "cpu.max").exists():
            quota, period = (place / "cpu.max").read_text().split()
        else:
            quota, period = ((place / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
        return max(0.0, int(quota) / int(period))
    except (OSError, ValueError):  # no such file, or "max"
        return 0.0


def machine_id() -> str:
    """Return the system's id of this machine, or ""."""
    try:
        return MACHINE_ID.read_text().strip()
    except OSError:
        return ""


def boot_id() -> str:
    """Return the kernel's id of this boot, or "". Boot times with the same id are comparable."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def bound_memory(bytes_max: int) -> None:
    """Limit the private memory of this process; 0 = no limit. The map of
    the store does not count.
    """
    if bytes_max:
        resource.setrlimit(resource.RLIMIT_DATA, (bytes_max, bytes_max))


def check_file_limit() -> None:
    """Raise ConfigError if the processes of a node may not open enough files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < FILES_MIN:
        raise ConfigError(
            f"a process may open {hard} files here, and each of a node needs {FILES_MIN} at least, and one "
            "for each connection",
            RAISE_FILE_LIMIT,
        )


def raise_file_limit() -> None:
    """Raise the limit of open files as far as the system allows, because
    each connection needs one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class TextLines(logging.Formatter):
    """Log lines for people. Text from others cannot start a new line or control a terminal."""

    def __init__(self, process: str) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(process_name)s: %(message)s")
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        said = logging.makeLogRecord(record.__dict__)
        said.msg = printable(record.getMessage())
        said.args = ()
        said.process_name = self._process
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
    """Log to stderr, as text or as JSON lines. Returns the logger of the process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process) if as_json else TextLines(process))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    return logging.getLogger(process)
