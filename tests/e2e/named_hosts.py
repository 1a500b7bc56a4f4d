"""Run three nodes that know each other by name while the name server is silent; print JSON.

`unshare --mount --net` runs this script, so the host files and the network are its own. One node is killed
and its name removed from /etc/hosts; later the node starts again under its name at another address."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

from gossipq.errors import GossipqError
from gossipq_client import Client, connect

PORT, LOST, SILENT = 7700, "gq3", "127.0.0.53"
HOSTS = {"gq1": "127.0.0.2", "gq2": "127.0.0.3", LOST: "127.0.0.4"}
ELSEWHERE = "127.0.0.5"
START_S, PATIENCE_S, OUTAGE_S, PAUSE_S = 60.0, 60.0, 12.0, 0.002
#: one look-up of a name that is in no file takes 20 s
RESOLV = f"nameserver {SILENT}\noptions timeout:5 attempts:4\n"


class Town:
    def __init__(self, place: Path, secret: bool) -> None:
        self.place, self.processes = place, dict[str, subprocess.Popen[bytes]]()
        self.addresses = dict[str, str]()
        self.flags = ["--secret-file", str(place / "secret")] if secret else ["--insecure"]
        (place / "secret").write_text("s" * 40 + "\n")
        (place / "secret").chmod(0o600)
        self.hosts = place / "hosts"
        self.know(HOSTS)
        (place / "resolv.conf").write_text(RESOLV)
        for command in (
            f"mount --bind {self.hosts} /etc/hosts",
            f"mount --bind {place}/resolv.conf /etc/resolv.conf",
            "ip link set lo up",
        ):
            subprocess.run(command.split(), check=True)
        self._silent = socket.socket(type=socket.SOCK_DGRAM)
        self._silent.bind((SILENT, 53))

    def know(self, hosts: dict[str, str]) -> None:
        self.hosts.write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))

    def start(self, name: str, address: str) -> None:
        self.addresses[name] = address
        log = self.place / f"{name}.log"
        said = log.stat().st_size if log.exists() else 0
        line = ["--data", str(self.place / name), "--bind", f"tcp://{address}:{PORT}", "--admin", ""]
        line += ["--advertise", name, "--name", name, "--workers", "1", "--mode", "static", *self.flags]
        line += [] if name == "gq1" else ["--peer", f"tcp://gq1:{PORT}"]
        with open(log, "ab") as errors:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "gossipq_node", *line],
                cwd=self.place,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        end = time.monotonic() + START_S
        while "ready in" not in log.read_text()[said:]:
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes.pop(name).wait()

    def client(self) -> Client:
        return connect(*(f"tcp://{HOSTS[name]}:{PORT}" for name in ("gq1", "gq2")), insecure=True)

    def await_in_sync(self) -> None:
        """Wait until the leader of each shard says that all three copies are in sync.

        A node lists the copies of those shards only that it leads, so all three are asked."""
        end = time.monotonic() + PATIENCE_S
        while True:
            synced, shards = 0, set[int]()
            for address in self.addresses.values():
                with connect(f"tcp://{address}:{PORT}", insecure=True) as mq:
                    status = mq.admin.status()
                synced += sum(row.synced for row in status.copies)
                shards.add(status.shards)
            if [synced] == [len(HOSTS) * count for count in shards]:
                return
            assert time.monotonic() < end, (synced, shards)
            time.sleep(0.2)


class Pulse:
    """Publishes without a pause, and remembers when each record was confirmed."""

    def __init__(self, town: Town) -> None:
        self._town, self._over = town, threading.Event()
        self.confirmed, self.errors = [time.monotonic()], list[str]()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._town.client() as mq:
            while not self._over.is_set():
                try:
                    mq.publish("pulse", b"beat")
                    self.confirmed.append(time.monotonic())
                except GossipqError as error:
                    self.errors.append(str(error))
                time.sleep(PAUSE_S)

    def __enter__(self) -> "Pulse":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def gap_s(self, since_s: float) -> float:
        """The longest time without a confirm."""
        times = [since_s, *(at for at in self.confirmed if at > since_s), time.monotonic()]
        return round(max(after - before for before, after in pairwise(times)), 3)


def status_s() -> float:
    """How long `gossipq status` takes at a node that is well; it must answer."""
    began = time.monotonic()
    line = [sys.executable, "-m", "gossipq_cli", "status", "-o", "json", "--insecure"]
    done = subprocess.run([*line, "-s", f"tcp://{HOSTS['gq1']}:{PORT}"], capture_output=True, text=True)
    assert json.loads(done.stdout)["node"] == "gq1", done.stderr
    return round(time.monotonic() - began, 3)


def stranger_s() -> float:
    """The longest confirm of a client that is told of a dead name first."""
    with connect(f"tcp://{LOST}:{PORT}", f"tcp://{HOSTS['gq2']}:{PORT}", insecure=True) as mq:
        longest = 0.0
        for _ in range(100):
            began = time.monotonic()
            mq.publish("pulse", b"beat")
            longest = max(longest, time.monotonic() - began)
    return round(longest, 3)


def main(place: Path, secret: bool) -> dict[str, object]:
    town, found = Town(place, secret), dict[str, object]()
    try:
        for name, address in HOSTS.items():
            town.start(name, address)
        with town.client() as mq:
            mq.create_topic("pulse", partitions=6)
        town.await_in_sync()
        with Pulse(town) as pulse:
            since_s = time.monotonic()
            town.know({name: address for name, address in HOSTS.items() if name != LOST})
            town.kill(LOST)
            found["status_s"] = status_s()
            found["stranger_s"] = stranger_s()
            time.sleep(max(0.0, since_s + OUTAGE_S - time.monotonic()))
            found["gap_s"] = pulse.gap_s(since_s)
            since_s = time.monotonic()
            town.know(HOSTS | {LOST: ELSEWHERE})
            town.start(LOST, ELSEWHERE)
            town.await_in_sync()
            found["back_s"] = round(time.monotonic() - since_s, 3)
            found["back_gap_s"] = pulse.gap_s(since_s)
        return found | {"errors": pulse.errors, "confirmed": len(pulse.confirmed)}
    finally:
        for name in list(town.processes):
            town.kill(name)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2] == "secret")))
