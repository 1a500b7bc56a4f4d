"""The truth on every surface: real nodes in each state, and the word that clients, commands and pages have
for it."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from chaos.places import Network, shared_secret
from e2e.cluster import Cluster, Member
from gossipq import limits
from gossipq.errors import GossipqError
from gossipq.health import State, of_error
from gossipq.wire import frames
from gossipq_cli.main import main
from gossipq_client import connect
from gossipq_node.adapters.lmdb_store import LmdbStore
from gossipq_node.directory import DataDirectory
from hosts import Host

pytestmark = pytest.mark.e2e
PATIENCE_S = 80.0  #: for a state to come about; machines under test are slow
FRESH_S = 3.0  #: nothing older is shown
CUT_S = FRESH_S + limits.SILENT_COPY_MS / 1_000  #: who asks finds a cut at once; nodes count silence first
SHARDS = 4
CODES = {"OK": 0, "WARNING": 1, "CRITICAL": 2}


class Yardstick:
    """How many times slower than alone a process runs at the moment: a child that works a little and rests a
    little, and what it waited for meanwhile."""

    LAP_S = 0.024
    SLACK = 4.0  #: a disk that stalls for seconds shows in no lap
    CODE = (
        "import sys, time\n"
        "while True:\n"
        "    began, spent = time.monotonic(), time.process_time()\n"
        "    while time.process_time() - spent < 0.004: pass\n"
        "    time.sleep(0.02)\n"
        "    print((time.monotonic() - began) / 0.024, flush=True)"
    )

    def __enter__(self) -> "Yardstick":
        self._laps: list[float] = []
        self._child = subprocess.Popen(
            [sys.executable, "-S", "-c", self.CODE], stdout=subprocess.PIPE, text=True
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._child.kill()
        self._reader.join()
        self._child.wait()

    def _read(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout:
            self._laps += map(float, self._child.stdout)

    def allows_s(self, seconds: float) -> float:
        """What would take so long on a quiet machine, with slack: as many times longer as a lap took on the
        average, and the longest lap on top, which may have met what is waited for. What was measured is
        printed beside it."""
        laps = self._laps or [1.0]
        calm_s = seconds * max(1.0, sum(laps) / len(laps)) + (max(laps) - 1) * self.LAP_S
        return self.SLACK * calm_s


class Town:
    """Three nodes, seen through the first one."""

    def __init__(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.place, self._capsys = place, capsys
        (place / "cluster.toml").write_text(f"[cluster]\nshards = {SHARDS}\n")
        self.hosts: list[Host] = []
        self.ada, self.bob, self.cat = (self.make(name) for name in ("ada", "bob", "cat"))
        self.looks_at(self.ada)

    def make(self, name: str) -> Host:
        self.hosts.append(Host(self.place, name))
        return self.hosts[-1]

    def start(self, host: Host, *flags: str) -> Host:
        found = ("--mode", "static") if host is self.ada else ("--peer", self.ada.endpoint)
        return host.start("--config", str(self.place / "cluster.toml"), *(flags or found))

    def looks_at(self, host: Host) -> None:
        """From now on the cluster is seen through this node."""
        self.seen = host

    # --- surfaces: each answers with a word

    def publish(self) -> str:
        return self._met(lambda mq: mq.publish("orders", b"x", timeout=10))

    def fetch(self) -> str:
        return self._met(lambda mq: mq.fetch("orders", group="billing", n=1, wait=0.1))

    def _met(self, act: Callable[[Any], object]) -> str:
        try:
            with connect(self.seen.endpoint, timeout=8) as mq:
                act(mq)
        except GossipqError as error:
            return of_error(error) or error.code
        return "served"

    def gossipq(self, *line: str) -> tuple[int, str]:
        self._capsys.readouterr()
        code = main(("-s", self.seen.endpoint, *line))
        return code, self._capsys.readouterr().out

    def status(self) -> str:
        _, out = self.gossipq("status", "-o", "json")
        return str(json.loads(out)["state"]) if out else "unreachable"

    def check(self, what: str) -> str:
        code, out = self.gossipq("check", what)
        verdict = out.split()[2]
        assert CODES[verdict] == code
        found = next((state for state in State if f"{state}: " in out), State.HEALTHY)
        return f"{verdict} {found}"

    def check_ready(self) -> str:
        return self.check("ready")

    def check_cluster(self) -> str:
        return self.check("cluster")

    def page(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.seen.port + 80}{path}", timeout=5) as answer:
                return f"200 {json.load(answer)['state']}"
        except urllib.error.HTTPError as error:
            return f"{error.code} {json.load(error)['state']}"
        except urllib.error.URLError:
            return "unreachable"

    def readyz(self) -> str:
        return self.page("/readyz")

    def livez(self) -> str:
        return self.page("/livez")

    def top(self) -> str:
        """Of a dashboard that starts now."""
        code, out = self.gossipq("top", "-o", "json")
        return json.loads(out)["state"] if code == 0 else "unreachable"

    def doctor(self) -> str:
        _, out = self.gossipq("doctor", "--data", str(self.seen.data), "-o", "json")
        (found,) = [each for each in json.loads(out)["findings"] if each["name"] == "cluster"]
        return str(found["text"].partition(":")[0])

    def metrics(self) -> str:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.seen.port + 80}/metrics", timeout=10
            ) as answer:
                lines = answer.read().decode().splitlines()
        except urllib.error.URLError:
            return "unreachable"
        return next(
            line.split('"')[1]
            for line in lines
            if line.startswith("gossipq_health{") and line.endswith(" 1.0")
        )

    def shows(self, known_s: float = PATIENCE_S, fresh_s: float = FRESH_S, **cells: str) -> None:
        """Each surface shows this word: the first one within `known_s`, the others at once if asked
        more than `fresh_s` after it. Both times scale with the speed of the machine. If the state
        itself went back meanwhile, for example while nodes catch up, all are asked again.
        """
        wrong, known, first = dict.fromkeys(cells, ""), 0.0, 0.0
        with Yardstick() as yardstick:
            began = time.monotonic()
            while wrong:
                for surface in list(wrong):
                    asked = time.monotonic()
                    wrong[surface] = getattr(self, surface)()
                    if _agrees(wrong[surface], cells[surface]):
                        del wrong[surface]
                        known = known or time.monotonic()
                        first = first or known
                        continue
                    assert asked - began < PATIENCE_S + yardstick.allows_s(known_s), wrong
                    if known and asked - known > yardstick.allows_s(fresh_s):
                        again = {right: getattr(self, right)() for right in cells if right not in wrong}
                        still = f"{surface} still says {wrong[surface]!r}, not {cells[surface]!r}"
                        assert not all(_agrees(said, cells[right]) for right, said in again.items()), still
                        wrong, known = dict.fromkeys(cells, ""), 0.0
                        break
                time.sleep(0.05)
        assert first - began <= yardstick.allows_s(known_s), f"known after {first - began:.1f} s"
        with self._capsys.disabled():
            told = f"known after {first - began:.1f} s, shown after {time.monotonic() - began:.1f} s"
            told += f", allowed {yardstick.allows_s(known_s):.1f} s"
            print(f"{', '.join(sorted(set(cells.values())))}: {told}")

    def says(self, verb: str, *texts: str) -> None:
        """The verb fails and prints these texts, in time: a new leader first takes who is away for slow."""
        end = time.monotonic() + PATIENCE_S
        while (answer := self.gossipq(verb))[0] != 1 or not all(text in answer[1] for text in texts):
            assert time.monotonic() < end, answer
            time.sleep(0.2)

    def pids(self, host: Host, worker: int = 0) -> int:
        return host.status().workers[worker].pid


def _agrees(said: str, cell: str) -> bool:
    """An alarm that says for minutes what was (a worker that was started again, a clock that jumped, a copy
    that lagged) makes a healthy cluster's check a warning."""
    return said == cell or (said, cell) == ("WARNING healthy", "OK healthy")


@pytest.fixture
def town(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Town]:
    town = Town(tmp_path, capsys)
    yield town
    for host in town.hosts:
        host.kill()


HEALTHY = {
    "status": "healthy",
    "check_cluster": "OK healthy",
    "check_ready": "OK healthy",
    "readyz": "200 healthy",
    "livez": "200 healthy",
    "metrics": "healthy",
    "top": "healthy",
    "doctor": "healthy",
    "publish": "served",
    "fetch": "served",
}
DEGRADED = {
    "status": "degraded",
    "check_ready": "OK degraded",
    "check_cluster": "WARNING degraded",
    "readyz": "200 degraded",
    "livez": "200 healthy",
    "metrics": "degraded",
    "top": "degraded",
    "doctor": "degraded",
    "publish": "served",
    "fetch": "served",
}
NO_QUORUM = {
    "status": "no quorum",
    "check_ready": "CRITICAL no quorum",
    "check_cluster": "CRITICAL no quorum",
    "readyz": "503 no quorum",
    "livez": "200 healthy",
    "metrics": "no quorum",
    "top": "no quorum",
    "doctor": "no quorum",
    "publish": "no quorum",
    "fetch": "no quorum",
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_and_two_of_three_away_and_back(town: Town) -> None:
    for host in town.hosts:
        town.start(host).ready()
    town.shows(**HEALTHY)
    town.cat.kill()
    town.shows(known_s=FRESH_S, **DEGRADED)
    town.says("status", "degraded: cat is away: its copies of ", "see: gossipq cluster ls")

    town.bob.kill()
    town.shows(known_s=FRESH_S, **NO_QUORUM)
    town.says(
        "status", f"no quorum: {SHARDS} of {SHARDS} shards have no leader (2 of 3 nodes are away: bob, cat)"
    )
    began = time.monotonic()
    with (
        pytest.raises(GossipqError, match="cannot have a leader: bob, cat are away") as met,
        connect(town.ada.endpoint, timeout=60) as mq,
    ):
        mq.topics()
    assert met.value.hint == "gossipq cluster ls"
    assert time.monotonic() - began < 30, "long before the time limit"

    for host in (town.bob, town.cat):
        town.start(host)
    town.shows(**HEALTHY)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_full_disk_and_a_paused_worker(town: Town) -> None:
    (town.place / "cluster.toml").write_text("[node]\nworkers = 1\n[cluster]\nshards = 4\n")
    town.start(town.ada).ready()
    town.shows(**HEALTHY)
    pid = town.pids(town.ada)
    os.kill(pid, signal.SIGSTOP)
    try:
        town.shows(
            known_s=FRESH_S,
            status="paused",
            check_ready="CRITICAL paused",
            readyz="503 paused",
            livez="503 paused",
        )
    finally:
        os.kill(pid, signal.SIGCONT)
    # an alarm may tell for minutes that its worker was started again, or that its disk is slow
    town.shows(**{cell: word for cell, word in HEALTHY.items() if cell != "check_cluster"})

    town.ada.kill()
    (town.place / "cluster.toml").write_text(
        f"[node]\ndisk_reserve_bytes = {1 << 60}\n[cluster]\nshards = 4\n"
    )
    town.start(town.ada).ready()
    full = {
        "status": "full",
        "check_ready": "CRITICAL full",
        "check_cluster": "CRITICAL full",
        "readyz": "503 full",
    }
    town.shows(
        **full,
        livez="200 healthy",
        metrics="full",
        top="full",
        doctor="full",
        publish="full",
        fetch="served",
    )


def test_a_stopped_shard(town: Town) -> None:
    town.start(town.ada).ready()
    town.shows(**HEALTHY)
    town.ada.kill()
    with closing(DataDirectory(town.ada.data)) as directory:
        manifest = directory.read()
        assert manifest is not None
        with closing(LmdbStore(directory.store(manifest, 0), shards=SHARDS)) as store:
            table = store.tables(3).log
            key, row = next(iter(table.scan(b"", b"\xff" * 9)))
            table.put(key, row[:-1] + bytes([row[-1] ^ 1]))
            store.commit()
    town.start(town.ada).ready()
    town.shows(
        status="stopped",
        check_ready="CRITICAL stopped",
        check_cluster="CRITICAL stopped",
        readyz="503 stopped",
        livez="200 healthy",
        metrics="stopped",
        top="stopped",
        doctor="stopped",
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_that_starts(town: Town) -> None:
    """Its worker was killed, and the next one is stopped before it has opened its store."""
    town.start(town.ada).ready()
    town.shows(**HEALTHY)
    before = set(town.ada.children())
    os.kill(town.pids(town.ada), signal.SIGKILL)
    while not (new := set(town.ada.children()) - before):
        pass
    (pid,) = new
    os.kill(pid, signal.SIGSTOP)
    try:
        starting = {"status": "starting", "top": "starting", "doctor": "starting", "metrics": "starting"}
        town.shows(**starting, check_ready="CRITICAL starting", readyz="503 starting")
    finally:
        os.kill(pid, signal.SIGCONT)
    town.shows(
        **(HEALTHY | {"check_cluster": "WARNING healthy"})
    )  # the alarm tells of the restart for a while


@pytest.mark.slow
def test_a_node_that_waits_and_one_that_is_gone(town: Town) -> None:
    town.start(town.ada, "--peer", "tcp://127.0.0.1:1").says("waiting for")
    joining = {
        "publish": "joining",
        "fetch": "joining",
        "check_ready": "CRITICAL joining",
        "doctor": "joining",
    }
    town.shows(**joining, readyz="unreachable")
    town.ada.kill()
    gone = {"publish": "unreachable", "check_ready": "CRITICAL unreachable", "doctor": "unreachable"}
    town.shows(**gone, readyz="unreachable", top="unreachable", status="unreachable")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_with_another_secret_ends_and_says_why(town: Town) -> None:
    """The cluster is as healthy as before; at the newcomer's address no node answers."""
    secrets = []
    for name in ("ours", "theirs"):
        path = town.place / name
        path.write_text(f"the secret that is {name}")
        path.chmod(0o600)
        secrets += [("--secret-file", str(path))]
    config = ("--config", str(town.place / "cluster.toml"))
    town.bob.start(*config, "--mode", "static", *secrets[0]).ready()
    town.ada.start(*config, "--peer", town.bob.endpoint, *secrets[1])
    town.ada.says("do not have the same secret")
    assert town.ada.ended() == 78
    town.shows(publish="unreachable", check_ready="CRITICAL unreachable", doctor="unreachable")
    town.looks_at(town.bob)
    town.shows(**{cell: word for cell, word in HEALTHY.items() if cell != "doctor"})
    assert town.bob.names() == ["bob"]
    town.looks_at(town.ada)
    town.ada.start(*config, "--peer", town.bob.endpoint, *secrets[0]).ready()
    town.shows(publish="served", fetch="served")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_client_of_another_version_is_refused_by_name(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.start(town.ada).ready()
    town.shows(**HEALTHY)
    with monkeypatch.context() as patch:
        patch.setattr(frames, "VERSION", frames.VERSION + 1)
        # what the node says of itself is as well as before; who speaks otherwise is told so at once
        town.shows(
            publish="refused",
            fetch="refused",
            check_ready="CRITICAL refused",
            doctor="refused",
            readyz="200 healthy",
            livez="200 healthy",
        )
        began = time.monotonic()
        town.publish()
        with Yardstick() as yardstick:
            took_s = time.monotonic() - began
            time.sleep(0.2)
            assert took_s < yardstick.allows_s(FRESH_S), "not after a time limit"
    town.shows(**HEALTHY)


class WiredTown(Town):
    """Its nodes have networks of their own, with wires that can be cut; pages are asked where the first one
    is."""

    def __init__(
        self, place: Path, capsys: pytest.CaptureFixture[str], network: Network, secret: Path
    ) -> None:
        self.place, self._capsys, self.network = place, capsys, network

        def dress(member: Member) -> None:
            network.add(member)
            member.flags = (
                *member.flags,
                "--secret-file",
                str(secret),
                "--admin",
                f"127.0.0.1:{member.port + 80}",
            )

        self.cluster = Cluster(place, 3, dress=dress)
        self.ada, self.bob, self.cat = self.hosts = self.cluster.members
        self.looks_at(self.ada)

    def page(self, path: str) -> str:
        code = (
            "import json, sys, urllib.error, urllib.request\n"
            "try: answer = urllib.request.urlopen(sys.argv[1], timeout=5)\n"
            "except urllib.error.HTTPError as error: answer = error\n"
            "print(answer.status, json.load(answer)['state'])"
        )
        url = f"http://127.0.0.1:{self.ada.port + 80}{path}"
        line = [*self.ada.prefix, sys.executable, "-c", code, url]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        return done.stdout.strip() or "unreachable"


@pytest.fixture
def wired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[WiredTown]:
    try:
        network = Network()
    except OSError as error:
        pytest.skip(f"only root may make networks: {error}")
    with shared_secret(tmp_path) as secret:
        town = WiredTown(tmp_path, capsys, network, secret)
        yield town
        for host in town.hosts:
            if host.process is not None:
                host.kill()
    network.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_network_that_is_cut_and_whole_again(wired: WiredTown) -> None:
    """Seen from the side of the first node, which still has its surfaces; none of
    the nodes counts as dead.
    """
    wired.cluster.start()
    here = {"livez", "metrics", "doctor"}  # they ask the first node itself, which is as well as before
    # a cluster that has just been started is not the subject
    wired.shows(fresh_s=PATIENCE_S, **{cell: word for cell, word in HEALTHY.items() if cell not in here})
    wired.network.plug(2, on=False)
    wired.shows(
        known_s=FRESH_S, fresh_s=CUT_S, **{cell: word for cell, word in DEGRADED.items() if cell not in here}
    )
    wired.says("status", "degraded: c is away: its copies of ")
    wired.network.plug(1, on=False)
    wired.shows(
        known_s=FRESH_S, fresh_s=CUT_S, **{cell: word for cell, word in NO_QUORUM.items() if cell not in here}
    )
    wired.says("status", "shards have no leader (2 of 3 nodes are away: b, c)")
    wired.network.plug(1, on=True)
    wired.network.plug(2, on=True)
    wired.shows(**{cell: word for cell, word in HEALTHY.items() if cell not in here})
    wired.network.deaf(2, 0, on=True)  # one way only: what it sends to the first one gets lost
    wired.network.deaf(2, 1, on=True)
    wired.shows(
        status="degraded", check_ready="OK degraded", readyz="200 degraded", top="degraded", fresh_s=CUT_S
    )
    wired.network.deaf(2, 0, on=False)
    wired.network.deaf(2, 1, on=False)
    wired.shows(**{cell: word for cell, word in HEALTHY.items() if cell not in here})
