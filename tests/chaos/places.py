"""Where the nodes of a chaos run live: a network of their own each, with wires that can be cut, slow or
lossy; disks that can be filled; syncs that can be made slow or to wait; a wall clock that can be made wrong.
What this machine does not allow is left out and named in `missing`."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from e2e.cluster import Member
from gossipq_client.values.credentials import file_text
from gossipq_node import trust
from gossipq_node.adapters.curve import public_of
from waiting import until

CLONE_NEWNET = 0x40000000
HERE = Path(__file__).parent
DISK_BYTES = 2 << 30
RESERVES = {"GOSSIPQ_NODE__DISK_RESERVE_BYTES": "0", "GOSSIPQ_NODE__DISK_RESERVE_PERCENT": "0"}
SUBNET, PORT = "10.77.0", 7700


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


class Network:
    """A bridge in a network namespace of this thread, and a namespace for each node behind a wire of its own.
    Nothing of it touches the networks of the machine."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self._libc = ctypes.CDLL(None, use_errno=True)
        if self._libc.unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "no network of its own")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "hub", "type", "bridge")
        run("ip", "address", "add", f"{SUBNET}.1/24", "dev", "hub")
        run("ip", "link", "set", "hub", "up")

    def add(self, member: Member) -> None:
        """Gives the node a network with an address, and lets it start there."""
        number = len(self._names)
        name = f"gossipq-{os.getpid()}-{number}"
        run("ip", "netns", "add", name)
        self._names.append(name)
        run("ip", "link", "add", self._wire(number), "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", self._wire(number), "master", "hub", "up")
        for command in (
            "link set lo up",
            f"address add {self._address(number)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {SUBNET}.1",
        ):
            run("ip", "-n", name, *command.split())
        member.prefix = ["nsenter", f"--net=/run/netns/{name}"]
        member.port, member.endpoint = PORT, f"tcp://{self._address(number)}:{PORT}"

    @staticmethod
    def _wire(number: int) -> str:
        return f"wire{number}"

    @staticmethod
    def _address(number: int) -> str:
        return f"{SUBNET}.{11 + number}"

    def plug(self, number: int, on: bool) -> None:
        """The wire of a node: cut off from everybody, clients too."""
        run("ip", "link", "set", self._wire(number), "up" if on else "down")

    def deaf(self, source: int, target: int, on: bool) -> None:
        """Drops messages from `source` to `target`; the other direction stays open."""
        run(
            "ip",
            "-n",
            self._names[source],
            "route",
            "add" if on else "del",
            "blackhole",
            f"{self._address(target)}/32",
        )

    @contextmanager
    def bad(self, number: int, delay_ms: float, loss: float, seed: int) -> Iterator[None]:
        """The wire of a node holds each frame up for that long, or, with that chance, loses it; each way."""
        wire, tap = self._wire(number), f"tap{number}"
        # while it is off the bridge, only the program may answer there
        run("ip", "link", "set", wire, "nomaster", "arp", "off")
        line = [sys.executable, str(HERE / "wire.py"), wire, tap, str(delay_ms), str(loss), str(seed)]
        with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            try:
                assert program.stdout.readline() == "ready\n"
                run("ip", "link", "set", tap, "master", "hub", "up")
                yield
            finally:
                program.kill()  # and with it its device
        run("ip", "link", "set", wire, "master", "hub", "arp", "on")

    def close(self) -> None:
        for name in self._names:
            run("ip", "netns", "delete", name)
        self._libc.setns(self._before, CLONE_NEWNET)
        os.close(self._before)


@contextmanager
def shared_secret(place: Path) -> Iterator[Path]:
    """A secret that the nodes share, so that what they say on a network is encrypted; the clients of this
    process have the public key of their doors meanwhile."""
    secret, credentials = place / "secret", place / "credentials"
    secret.write_text("a secret of these tests, long enough\n")
    credentials.write_text(file_text(b"", public_of(trust.door_secret(trust.read(str(secret))))))
    for file in (secret, credentials):
        file.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOSSIPQ_CREDENTIALS", str(credentials))
        yield secret


class Disk:
    """A small file system of one node."""

    def __init__(self, path: Path) -> None:
        self.path, self._filler = path, path / "filler"
        path.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "gossipq-test", str(path))

    def fill(self) -> None:
        """To the last byte."""
        with open(self._filler, "wb", buffering=0) as file:
            for size in (16 << 20, 1 << 12):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        until(
            lambda: subprocess.run(["umount", str(self.path)], capture_output=True).returncode == 0,
            what="still in use",
        )


class Clock:
    """The wall clock of one node, as the shim shows it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set(0)

    def set(self, off_s: int) -> None:
        with open(self.path, "r+b" if self.path.exists() else "wb") as file:  # the same file: it is mapped
            file.write(off_s.to_bytes(8, sys.byteorder, signed=True))


class Places:
    """Dresses nodes; what each of them stands on is found by its number."""

    def __init__(
        self, place: Path, network: Network | None, held: ExitStack, copies: int, small_disks: int
    ) -> None:
        self.network, self._copies, self._small_disks = network, str(copies), small_disks
        self.disks: dict[int, Disk] = {}
        #: while this file exists, syncs wait; with contents, they take one
        #: more millisecond per byte
        self.flags: dict[int, Path] = {}
        self.clocks: dict[int, Clock] = {}
        self.missing: list[str] = [] if network else ["cuts: only root may make networks"]
        self._place, self._held, self._count = place, held, 0
        self._shim = self._build()
        self._secret_file = str(held.enter_context(shared_secret(place)))

    @property
    def secret(self) -> bytes:
        """The secret of the nodes."""
        return trust.read(self._secret_file) if self.network else trust.known("")

    def _build(self) -> Path | None:
        """The shim that makes syncs wait and wall clocks wrong."""
        shim = self._place / "stall.so"
        if shutil.which("gcc") is None:
            self.missing.append("stuck syncs and wrong clocks: no gcc")
            return None
        run("gcc", "-shared", "-fPIC", "-O2", "-o", str(shim), str(HERE / "stall.c"), "-ldl")
        return shim

    def dress(self, member: Member) -> None:
        number, self._count = self._count, self._count + 1
        member.environment["GOSSIPQ_CLUSTER__COPIES"] = self._copies
        if self.network is not None:
            self.network.add(member)
            member.flags = (*member.flags, "--secret-file", self._secret_file)
        if number < self._small_disks:
            self._small_disk(number, member)
        if self._shim is not None:
            self.flags[number] = self._place / f"stall-{number}"
            self.clocks[number] = Clock(self._place / f"clock-{number}")
            member.environment |= {
                "LD_PRELOAD": str(self._shim),
                "GOSSIPQ_TEST_STALL": str(self.flags[number]),
                "GOSSIPQ_TEST_CLOCK": str(self.clocks[number].path),
            }

    def _small_disk(self, number: int, member: Member) -> None:
        try:
            disk = Disk(self._place / f"disk-{number}")
        except OSError as error:
            self.missing.append(f"full disks: {error}")
            return
        self._held.callback(disk.close)
        self.disks[number] = disk
        member.data = disk.path / member.name
        member.environment |= RESERVES


@contextmanager
def places(place: Path, copies: int, small_disks: int = 1) -> Iterator[Places]:
    """To be left when the nodes have ended. `small_disks`: how many nodes have one that can be filled."""
    with ExitStack() as held:
        network = None
        if os.geteuid() == 0 and shutil.which("ip") and shutil.which("nsenter"):
            network = Network()
            held.callback(network.close)
        yield Places(place, network, held, copies, small_disks)
