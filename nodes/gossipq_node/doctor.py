"""Checks of a machine that runs a node or should run one: findings with their remedies."""

import errno
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from gossipq import limits
from gossipq.config import SECRET_FILE, Config, admin_place
from gossipq.endpoints import endpoint
from gossipq.errors import ConfigError, StoreError
from gossipq.texts import many, size
from gossipq_node import machine, trust
from gossipq_node.adapters.lmdb_store import ENGINE_NAME
from gossipq_node.composition import LOOPBACK, place_of
from gossipq_node.directory import check_workers, examined, workers_of_new

GOOD, WARNING, BAD = "good", "warning", "bad"
SYNCS = 20  #: writes of one page with fsync
PAGE = 4_096
SLOW_SYNC_MS, BAD_SYNC_MS = 20.0, 200.0
FILES_MIN = 4_096
PYTHON_MIN = (3, 11)
LIBRARIES = ("pyzmq", "lmdb", "msgspec", "zlib-ng", "click", "rich", "prometheus-client", "serfclient")
CLOCK_S = 3.0


class Check(NamedTuple):
    """The result of one check."""

    name: str
    verdict: str  #: good, warning or bad
    text: str
    remedy: str = ""  #: what to do if the verdict is not good


def examine(config: Config) -> Iterator[Check]:
    """Yield all checks, the most important first."""
    # a machine without the libraries fails in all that follows, so these come first
    yield from _versions()
    yield _serf()
    yield from _ports(config)
    yield from _doors(config)
    yield _data(config)
    yield _disk_speed(Path(config.node.data))
    yield _disk_space(Path(config.node.data), config)
    yield _file_limit()
    yield _address_space(config)
    yield _cores(config)
    yield _clock()


def _versions() -> Iterator[Check]:
    python = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= PYTHON_MIN:
        yield Check("python", GOOD, python)
    else:
        yield Check(
            "python", BAD, f"{python} is too old", f"use Python {'.'.join(map(str, PYTHON_MIN))} or later"
        )
    found, missing = [], []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Check(
            "libraries", BAD, f"{', '.join(missing)} not installed", f"pip install {' '.join(missing)}"
        )
    else:
        yield Check("libraries", GOOD, f"{', '.join(found)}; stores of {ENGINE_NAME}")


def _serf() -> Check:
    path = shutil.which("serf")
    if path is None:
        remedy = "apt-get install serf, if nodes are to find each other by gossip; a single node needs none"
        return Check("serf", WARNING, "the serf program is not installed", remedy)
    return Check("serf", GOOD, path)


def _ports(config: Config) -> Iterator[Check]:
    place = endpoint(config.node.bind)
    if place.transport == "ipc":
        yield Check("ports", GOOD, "the node listens on a socket file, and needs none")
        return
    places = list(map(endpoint, _listens(config)))
    taken: dict[str, list[str]] = {}
    for each in sorted(places, key=lambda each: each.port):
        host = "" if each.is_wildcard else each.host.strip("[]")
        if not _free(host, each.port):
            taken.setdefault(host or "all addresses", []).append(str(each.port))
    if taken:
        told = "; ".join(f"{', '.join(ports)} of {host}" for host, ports in taken.items())
        text = f"{told} cannot be used: a node, or another program, has them"
        yield Check(
            "ports",
            WARNING,
            text,
            "fine if that is this node; else stop the other program, or choose another --bind",
        )
    else:
        yield Check("ports", GOOD, f"{many(len(places), 'port')} from {place.port} on are free")
    admin = admin_place(config)
    admin_host, _, port = admin.rpartition(":")
    if admin and not _free(admin_host.strip("[]"), int(port)):
        yield Check(
            "admin port",
            WARNING,
            f"{admin} cannot be used",
            "fine if that is this node; else choose another --admin",
        )


def _listens(config: Config) -> Iterator[str]:
    """Yield the addresses at which a node would listen, except for metrics and health."""
    site, encrypts = place_of(config), _encrypts(config)
    clear = LOOPBACK if site.local(encrypts, config.node.insecure) else ""
    clients, nodes = doors_of(_workers(config))
    for step in clients:
        yield site.listen.step(step, clear)
        yield from site.doors(step) if encrypts else ()
    for step in nodes:
        yield site.listen.step(step)


def doors_of(workers: int) -> tuple[list[int], list[int]]:
    """Return the ports of a node, counted from its first: for clients, for nodes."""
    clients = [0, *(limits.CLIENT_PORT_STEP + worker for worker in range(workers))]
    nodes = [limits.PEER_PORT_STEP + worker for worker in range(workers)]
    return clients, [limits.FRONTDOOR_PEER_PORT_STEP, *nodes]


def _encrypts(config: Config) -> bool:
    secret = config.node.secret_file or (Path(config.node.data) / SECRET_FILE).exists()
    return trust.encrypts(config.node, b"some" if secret else b"")


def _doors(config: Config) -> Iterator[Check]:
    """Check which ports are open, and for which hosts."""
    place, above = endpoint(config.node.bind), limits.DOOR_PORT_STEP
    if place.transport == "ipc":
        return
    clients, nodes = doors_of(_workers(config))
    ports = f"clients {place.port} to {place.port + max(clients)}"
    others = f"nodes {place.port + min(nodes)} to {place.port + max(nodes)}"
    if _encrypts(config):
        doors = f"clients {place.port + above} to {place.port + above + max(clients)}"
        text = f"encrypted at {place.host}: {doors}, {others}; in the clear {{}}: {ports}"
        if config.node.insecure and not place.is_loopback:
            remedy = "leave out --insecure, once no client of another host needs that"
            yield Check("doors", WARNING, text.format("there, too"), remedy)
        else:
            yield Check("doors", GOOD, text.format("on loopback"))
    elif place.is_loopback:
        yield Check("doors", GOOD, f"in the clear, on this machine alone: {ports}, {others}")
    else:
        text = f"in the clear at {place.host}, for everybody who reaches that network: {ports}, {others}"
        yield Check("doors", WARNING, text, "gossipq init, or --secret-file FILE, the same on all nodes")


def _free(host: str, port: int) -> bool:
    """Try to bind a port. The option lets it succeed while closed connections of a node that ended linger."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _home(data: Path) -> Path:
    """Return the data directory, or the existing directory in which it would be created."""
    return next((path for path in (data, *data.absolute().parents) if path.is_dir()), Path("/"))


def _data(config: Config) -> Check:
    """Check the data directory as a start would."""
    data = Path(config.node.data)
    try:
        manifest = examined(data)
        if manifest is None or not manifest.cluster_uuid:
            return Check("data", GOOD, f"no node has run at {data} yet")
        check_workers(manifest, config.node, "node.workers")
    except (StoreError, ConfigError) as error:
        return Check("data", BAD, error.message, error.hint)
    what = "a witness" if manifest.witness else f"a node of {many(manifest.workers, 'worker')}"
    return Check("data", GOOD, f"{data} is that of {what} in cluster {manifest.cluster_name}")


def _workers(config: Config) -> int:
    """Return the number of workers after a start: that of the directory, if it exists."""
    with suppress(StoreError):  # `_data` reports it
        manifest = examined(Path(config.node.data))
        if manifest is not None:
            return manifest.workers
    return workers_of_new(config)


def _disk_speed(data: Path) -> Check:
    home = _home(data)
    probe = home / f".gossipq-doctor-{os.getpid()}"
    took_ms = []
    try:
        file = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for number in range(SYNCS):
                os.pwrite(file, bytes([number]) * PAGE, number * PAGE)
                begin = time.perf_counter()
                os.fsync(file)
                took_ms.append((time.perf_counter() - begin) * 1_000)
        finally:
            os.close(file)
            os.unlink(probe)
    except OSError as error:
        return Check(
            "disk speed",
            BAD,
            f"{home} cannot be written: {error.strerror}",
            "free some space" if error.errno == errno.ENOSPC else "give another directory with --data",
        )
    # the median: one slow write, such as the first one of a sleeping disk, says little
    middle = sorted(took_ms)[SYNCS // 2]
    text = f"a write that is synced takes {middle:.2f} ms at {home}, {max(took_ms):.2f} ms at most"
    if middle >= BAD_SYNC_MS:
        return Check("disk speed", BAD, text, "use another disk: every confirm waits for this one")
    if middle >= SLOW_SYNC_MS:
        return Check(
            "disk speed",
            WARNING,
            text,
            "publish in batches, or use a faster disk: every confirm waits for it",
        )
    return Check("disk speed", GOOD, text)


def _disk_space(data: Path, config: Config) -> Check:
    home = _home(data)
    disk = os.statvfs(home)
    free, whole = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    # as the worker computes it; f_bavail leaves out the blocks that only root may use
    reserve = max(config.node.disk_reserve_bytes, whole * config.node.disk_reserve_percent // 100)
    text = f"{size(free)} of {size(whole)} are free at {home}; publishes stop at {size(reserve)}"
    if free < reserve:
        return Check(
            "disk space",
            BAD,
            text,
            "free some, or lower node.disk_reserve_bytes and node.disk_reserve_percent",
        )
    if free < 2 * reserve:
        return Check(
            "disk space",
            WARNING,
            text,
            "free some, or shorten retention: gossipq topic set NAME --retention 1d",
        )
    return Check("disk space", GOOD, text)


def _file_limit() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # only the hard limit matters, because a node raises the soft one; -1 means no limit
    if 0 <= hard < FILES_MIN:
        text = f"a process may open {hard:,} files, and each connection is one"
        return Check(
            "file limit", BAD if hard < machine.FILES_MIN else WARNING, text, machine.RAISE_FILE_LIMIT
        )
    return Check(
        "file limit",
        GOOD,
        f"{'no bound' if hard < 0 else many(hard, 'file')} (a node raises it from {soft:,} at its start)",
    )


def _address_space(config: Config) -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= hard < config.node.map_bytes + limits.GIB:
        text = f"a process may have {size(hard)} of addresses, and a store maps {size(config.node.map_bytes)}"
        return Check("address space", BAD, text, "ulimit -v unlimited, or a smaller node.map_bytes")
    return Check("address space", GOOD, f"room for a map of {size(config.node.map_bytes)}")


def _cores(config: Config) -> Check:
    cores, workers = machine.worker_count(), _workers(config)
    if workers > cores:
        text = f"{many(workers, 'worker')} share {many(cores, 'core')}"
        fewer = f"gossipq store reshard --data {config.node.data} --workers {cores}"
        remedy = f"give the node more cores; or leave --workers out, and where it has data: {fewer}"
        return Check("cores", WARNING, text, remedy)
    return Check("cores", GOOD, f"{many(cores, 'core')} for {many(workers, 'worker')}")


def _clock() -> Check:
    """Check whether the wall clock is synchronised.

    A node uses the boot clock; only times that people read come from the wall clock.
    """
    try:
        said = subprocess.run(
            ["timedatectl", "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=CLOCK_S,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        said = ""
    now = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
    if said == "yes":
        return Check("clock", GOOD, f"{now}, synchronized")
    if said == "no":
        return Check("clock", WARNING, f"{now}, not synchronized", "timedatectl set-ntp true, or run chrony")
    return Check("clock", GOOD, f"{now}; this machine does not tell whether anybody sets it")


def checked(config: Config) -> list[Check]:
    """Return all results. A check that fails itself counts as bad."""
    found: list[Check] = []
    try:
        found.extend(examine(config))
    except (OSError, ConfigError) as error:
        found.append(Check("examination", BAD, str(error), "see the line above"))
    return found
