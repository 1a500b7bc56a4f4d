"""Messages to systemd: ready, signs of life as long as every loop turns, and the end.
And the files in deploy/.
"""

import importlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import HOME, RunningNode
from gossipq import limits
from gossipq.core.requests.alarms import alarm
from gossipq.messages import StatsReply, StatusReply
from gossipq.values import GroupStats, Member, PartitionStats, WorkerStats
from gossipq_client import connect
from gossipq_node.actors.timings import Timings
from gossipq_node.adapters.metrics import exposition
from gossipq_node.main import EXIT_CONFIG
from gossipq_node.service import Service

DEPLOY = HOME / "nodes" / "gossipq_node" / "deploy"
PATIENCE_S = 30.0
PERIOD_S = 4


class Systemd:
    """The other end of a notify socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))

    def hears(self, patience_s: float = PATIENCE_S) -> str:
        """The next message; "" if none comes in time."""
        self.socket.settimeout(patience_s)
        try:
            return self.socket.recv(4_096).decode()
        except TimeoutError:
            return ""

    def hears_at_last(self, wanted: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while wanted not in self.hears(max(0.01, end - time.monotonic())).splitlines():
            assert time.monotonic() < end, wanted


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    other = Systemd(tmp_path / "notify")
    yield other
    other.socket.close()


def test_without_systemd_nothing_is_said() -> None:
    service = Service({})
    service.ready("x")
    service.beat(5, well=True)
    assert (service.period_ms, service.until_beat_ms(0)) == (0, None)


def test_signs_of_life_are_said_in_time_and_only_when_true(systemd: Systemd) -> None:
    service = Service(
        {"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, pid=7
    )
    service.ready("2 workers serve")
    assert systemd.hears() == "READY=1\nSTATUS=2 workers serve"
    service.beat(1_000, well=True)
    service.beat(1_500, well=True)
    assert service.until_beat_ms(1_500) == 500
    service.beat(2_000, well=False)
    service.beat(3_000, well=True)
    service.stopping()
    assert [systemd.hears() for _ in range(3)] == ["WATCHDOG=1", "WATCHDOG=1", "STOPPING=1\nSTATUS=draining"]


@pytest.mark.parametrize("wrong", [{"WATCHDOG_PID": "8"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": ""}])
def test_a_watchdog_that_is_not_ours_is_not_fed(systemd: Systemd, wrong: dict[str, str]) -> None:
    asked = {"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}
    assert Service(asked | wrong, pid=7).period_ms == 0


def test_a_socket_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    Service({"NOTIFY_SOCKET": str(tmp_path / "nothing")}).ready("x")


@pytest.mark.e2e
def test_a_node_is_ready_lives_hangs_and_stops(
    make_node: Callable[..., RunningNode], systemd: Systemd
) -> None:
    node = make_node()
    node.environment |= {"NOTIFY_SOCKET": str(systemd.path), "WATCHDOG_USEC": str(PERIOD_S * 1_000_000)}
    node.start()
    systemd.hears_at_last("READY=1")
    systemd.hears_at_last("WATCHDOG=1")
    systemd.hears_at_last("WATCHDOG=1")
    with connect(node.endpoint) as mq:
        pid = mq.admin.status().workers[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        end = time.monotonic() + PATIENCE_S
        while systemd.hears(PERIOD_S):  # silence for as long as systemd waits: it would act now
            assert time.monotonic() < end
    finally:
        os.kill(pid, signal.SIGCONT)
    systemd.hears_at_last("WATCHDOG=1")
    assert node.stop() == 0
    systemd.hears_at_last("STOPPING=1")


# --- the files in deploy/


def metrics_shown() -> set[str]:
    """Names of all samples that a node can show."""
    stats = StatsReply(
        [PartitionStats(1, "t", 0, 0, 0, 1, 1, 0, 1)], [GroupStats(1, "t", "g", 0, 0, 0, 0, 0, 0, 0)]
    )
    worker = WorkerStats(0, 1, "", "ready", 0, 1, *[0] * 10)
    status = StatusReply(
        "n",
        "c",
        bytes(16),
        "0",
        "standalone",
        0,
        1,
        1,
        [worker],
        [],
        members=[Member("a", "n", "tcp://n:7700", 1)],
    )
    timings = Timings()
    text = exposition(status, {0: timings.rows()}, [alarm("lag", "n", "t/g", "x")], stats).decode()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def test_only_counters_are_asked_how_much_they_rose() -> None:
    """To `increase` and `rate` a gauge that fell began anew: a purge of some dead letters was an alarm."""
    for name in ("alerts.yml", "grafana.json"):
        asked = re.findall(r"(?:increase|rate)\((\w+)\[", (DEPLOY / name).read_text("utf-8"))
        assert asked
        assert [each for each in asked if not each.endswith(("_total", "_bucket"))] == []


@pytest.mark.parametrize("name", ["alerts.yml", "grafana.json"])
def test_every_metric_that_is_asked_for_exists(name: str) -> None:
    text = (DEPLOY / name).read_text("utf-8")
    exprs = re.findall(r"gossipq_[a-z_]+", text)
    assert len(set(exprs)) > 8
    assert set(exprs) <= metrics_shown()


def test_a_metric_that_does_not_exist_would_be_seen() -> None:
    assert "gossipq_messages_published" not in metrics_shown()
    assert {"gossipq_messages_published_total", "gossipq_commit_duration_seconds_bucket"} <= metrics_shown()


def test_the_dashboard_is_json_whose_panels_do_not_overlap() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text("utf-8"))
    seen: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & seen, panel["title"]
        assert all(x < 24 for x, _ in cells)
        assert panel["targets"]
        seen |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_one_that_systemd_takes() -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(DEPLOY / "gossipq.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_says_what_the_node_does() -> None:
    unit = (DEPLOY / "gossipq.service").read_text("utf-8")
    for line in (
        "Type=notify",
        "KillMode=mixed",
        f"RestartPreventExitStatus={EXIT_CONFIG}",
        "WatchdogSec=30s",
        "StartLimitIntervalSec=0",
    ):
        assert f"\n{line}\n" in unit


def test_the_image_and_the_three_nodes_name_what_is_there() -> None:
    compose, image = (DEPLOY / "compose.yaml").read_text("utf-8"), (DEPLOY / "Dockerfile").read_text("utf-8")
    for path in re.findall(r"dockerfile: (\S+)", compose):
        assert (HOME / path).is_file()
    assert {(DEPLOY / path).resolve() for path in re.findall(r"context: (\S+)", compose)} == {HOME}
    volumes = set(re.findall(r"\[([\w-]+):/", compose))
    assert volumes == set(re.findall(r"^  ([\w-]+):$", compose.partition("\nvolumes:\n")[2], re.MULTILINE))
    hosts = re.findall(r"hostname: (\S+)", compose)
    assert set(hosts) == set(re.findall(r"--join (\S+):7790", compose)), "none founds a cluster alone"
    assert f'GOSSIPQ_CLUSTER__EXPECT: "{len(hosts)}"' in compose
    assert f"{limits.PORT + limits.ADMIN_PORT_STEP}/livez" in image
    assert image.rstrip().endswith('CMD ["node", "--data", "/var/lib/gossipq/data"]')


def test_the_pods_say_what_the_node_does() -> None:
    """The schemas were checked by kubernetes-validate, by hand."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    things = {
        (each["kind"], each["metadata"]["name"]): each
        for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))
    }
    headless, clients = things["Service", "gossipq"]["spec"], things["Service", "gossipq-client"]["spec"]
    budget, pods = things["PodDisruptionBudget", "gossipq"]["spec"], things["StatefulSet", "gossipq"]["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    labels = pods["template"]["metadata"]["labels"]
    assert pods["selector"]["matchLabels"] == budget["selector"]["matchLabels"] == labels
    assert headless["selector"] == clients["selector"] == labels
    assert (pods["replicas"], budget["maxUnavailable"], pods["serviceName"]) == (3, 1, "gossipq")
    spec = pods["template"]["spec"]
    (node,) = spec["containers"]
    ports = {each["name"]: each["containerPort"] for each in node["ports"]}
    doors = limits.PORT + limits.DOOR_PORT_STEP  # who listens to a network with a secret encrypts
    assert ports == {"clients": doors, "admin": limits.PORT + limits.ADMIN_PORT_STEP}
    assert {each["port"] for each in clients["ports"]} == {doors}
    assert {(probe, node[probe]["httpGet"]["path"]) for probe in node if probe.endswith("Probe")} == {
        ("startupProbe", "/livez"),
        ("livenessProbe", "/livez"),
        ("readinessProbe", "/readyz"),
    }
    verb, *flags = node["args"]
    command = importlib.import_module(f"gossipq_cli.commands.{verb}").command
    known = {name for option in command.params for name in option.opts}
    assert {flag.partition("=")[0] for flag in flags} <= known
    peers = [flag.partition("=")[2] for flag in flags if flag.startswith("--peer=")]
    assert peers == [f"tcp://gossipq-{at}.gossipq:{limits.PORT}" for at in range(pods["replicas"])]
    *shell, script = node["lifecycle"]["preStop"]["exec"]["command"]
    assert shell == ["sh", "-c"]
    (patience,) = re.findall(r"^gossipq status .*--wait-healthy (\d+)s$", script, re.MULTILINE)
    assert int(patience) + 30 < spec["terminationGracePeriodSeconds"]
    mounted, volumes = {each["name"] for each in node["volumeMounts"]}, spec["volumes"]
    claims = [each["metadata"]["name"] for each in pods["volumeClaimTemplates"]]
    assert mounted == {each["name"] for each in volumes} | set(claims)
