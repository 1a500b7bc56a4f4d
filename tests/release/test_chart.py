"""The Helm chart in nodes/gossipq_node/deploy/chart is linted, rendered, and checked by schemas; so is the
dashboard."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from conftest import HOME
from gossipq import __version__

DEPLOY = HOME / "nodes" / "gossipq_node" / "deploy"
CHART = DEPLOY / "chart"
TOOLS = Path(os.environ.get("GOSSIPQ_CHART_TOOLS", ""))
HELM = TOOLS / "layer" / "helm" / "helm"
KUBERNETES = ("1.30", "1.33", "1.37")
FULL = {
    "replicas": 5,
    "image": {"repository": "registry.example/gossipq", "tag": "0.2.1"},
    "imagePullSecrets": [{"name": "registry"}],
    "settings": {"GOSSIPQ_CLUSTER__REPLACE_MS": "600000"},
    "secret": {"value": "0123456789abcdef0123456789abcdef"},
    "observer": {"existing": "watcher"},
    "admin": {"tokenSecret": "metrics"},
    "storage": {"size": "100Gi", "className": "fast"},
    "drain": {"waitHealthy": "60s", "graceSeconds": 100},
    "nodeSelector": {"disk": "local"},
    "tolerations": [{"key": "broker", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "podAnnotations": {"team": "shop"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "autoscaling": [
        {"deployment": "billing", "topic": "orders", "group": "billing", "recordsPerPod": 500, "maxPods": 20},
        {
            "deployment": "mail",
            "topic": "mails",
            "group": "m",
            "recordsPerPod": 9,
            "minPods": 1,
            "maxPods": 2,
        },
    ],
}
#: the classes that check KEDA's and the Prometheus operator's objects; they compare types and required keys
MODELS = """
import {readFileSync} from 'node:fs';
import {ScaledObject} from '@kubernetes-models/keda/keda.sh/v1alpha1';
import {ServiceMonitor} from '@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1';
const kinds = {ScaledObject, ServiceMonitor};
for (const each of JSON.parse(readFileSync(0))) new kinds[each.kind](each).validate();
"""

#: annotations of Prometheus have an expression and a title, which the general type of Grafana does not name
DASHBOARD = """
import type {AnnotationQuery, Dashboard, DataQuery} from '@grafana/schema';
type Annotation = AnnotationQuery<DataQuery & {expr: string}> & {titleFormat: string};
type Annotations = {list: Annotation[]};
export const dashboard: Omit<Dashboard, 'annotations'> & {annotations: Annotations} = """

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not TOOLS.name, reason="make chart-test runs it"),
]


def render(directory: Path, values: dict[str, Any], fails: str = "") -> list[dict[str, Any]]:
    """Return the objects that the chart makes of `values`."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    file = directory / "values.json"
    file.write_text(json.dumps(values))
    done = subprocess.run(
        [HELM, "template", "shop", CHART, "--values", file], capture_output=True, text=True, check=False
    )
    assert fails in done.stderr
    assert (done.returncode == 0) == (not fails), done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def one(objects: list[dict[str, Any]], kind: str) -> Any:
    (found,) = (each for each in objects if each["kind"] == kind)
    return found["spec"]


def check_models(objects: list[dict[str, Any]]) -> "subprocess.CompletedProcess[str]":
    file = TOOLS / "check.mjs"
    file.write_text(MODELS)
    return subprocess.run(
        ["node", file], input=json.dumps(objects), capture_output=True, text=True, check=False
    )


def test_helm_finds_nothing_to_blame(tmp_path: Path) -> None:
    (tmp_path / "full.json").write_text(json.dumps(FULL))
    for more in ([], ["--values", str(tmp_path / "full.json")]):
        done = subprocess.run([HELM, "lint", "--strict", CHART, *more], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_plain_file_is_what_the_chart_makes_of_its_defaults() -> None:
    made = subprocess.run([HELM, "template", "gossipq", CHART], capture_output=True, text=True, check=True)
    head, mark, plain = (DEPLOY / "kubernetes.yaml").read_text().partition("---\n")
    assert mark + plain == made.stdout, ".ci/chart-tools --write"
    assert all(line.startswith("#") for line in head.splitlines())


def test_chart_and_package_have_one_version() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", [{}, {"replicas": 1}, FULL], ids=["defaults", "one node", "everything"])
def test_every_object_is_one_that_kubernetes_knows(
    tmp_path: Path, values: dict[str, Any], version: str
) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    objects = render(tmp_path, values)
    own = [each for each in objects if each["kind"] not in ("ServiceMonitor", "ScaledObject")]
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(own))
    checker = [TOOLS / "venv" / "bin" / "kubernetes-validate", "--strict", "-k", version, "--quiet"]
    done = subprocess.run([*checker, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    own[-1]["spec"]["replica"] = 3
    file.write_text(yaml.safe_dump_all(own))
    assert subprocess.run([*checker, file], capture_output=True, check=False).returncode != 0


def test_monitors_and_scalers_are_ones_that_their_operators_know(tmp_path: Path) -> None:
    objects = render(tmp_path, FULL)
    others = [each for each in objects if each["kind"] in ("ServiceMonitor", "ScaledObject")]
    assert len(others) == 3
    done = check_models(others)
    assert done.returncode == 0, done.stderr
    others[0]["spec"]["maxReplicaCount"] = "many"
    assert check_models(others).returncode != 0


def test_values_reach_the_pods(tmp_path: Path) -> None:
    objects = render(tmp_path, FULL)
    nodes = one(objects, "StatefulSet")
    pod = nodes["template"]["spec"]
    (node,) = pod["containers"]
    assert (nodes["replicas"], node["image"]) == (5, "registry.example/gossipq:0.2.1")
    assert [each for each in node["args"] if "--peer" in each] == [
        f"--peer=tcp://shop-{at}.shop:7700" for at in range(5)
    ]
    environment = {each["name"]: each.get("value") for each in node["env"]}
    assert environment["GOSSIPQ_CLUSTER__EXPECT"] == "5"
    assert environment["GOSSIPQ_CLUSTER__REPLACE_MS"] == "600000"
    assert environment["GOSSIPQ_NODE__ADMIN_TOKEN_FILE"] == "/etc/gossipq-admin/token"
    secrets = {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
    assert secrets == {"secret": "shop", "observer": "watcher", "admin": "metrics"}
    assert "--wait-healthy 60s" in node["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert pod["terminationGracePeriodSeconds"] == 100
    (claim,) = nodes["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"


def test_prometheus_scrapes_each_pod_once_and_shows_the_token(tmp_path: Path) -> None:
    objects = render(tmp_path, FULL)
    monitor = one(objects, "ServiceMonitor")
    wanted = monitor["selector"]["matchLabels"].items()
    services = [each for each in objects if each["kind"] == "Service"]
    (scraped,) = (each for each in services if wanted <= each["metadata"]["labels"].items())
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {each["name"] for each in scraped["spec"]["ports"]}
    assert endpoint["authorization"]["credentials"] == {"name": "metrics", "key": "token"}


def test_a_scaler_asks_for_the_backlog_of_its_group(tmp_path: Path) -> None:
    scalers = [each["spec"] for each in render(tmp_path, FULL) if each["kind"] == "ScaledObject"]
    assert [each["minReplicaCount"] for each in scalers] == [0, 1]
    (trigger,) = scalers[0]["triggers"]
    labels = '{topic="orders",group="billing"}'
    assert trigger["metadata"]["query"] == (
        f"sum(gossipq_group_ready_messages{labels}) - sum(gossipq_group_behind_limit_messages{labels})"
        f" - sum(gossipq_group_behind_rate_messages{labels}) + sum(gossipq_group_in_flight_messages{labels})"
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicas": 2}, "replicas"),
        ({"secret": {"value": "short"}}, "secret"),
        ({"storge": {}}, "storge"),
        ({"drain": {"waitHealthy": "120s"}}, "at least 40 more than drain.waitHealthy"),
        ({"settings": {"REPLACE_MS": "1"}}, "REPLACE_MS"),
    ],
)
def test_wrong_values_are_refused_by_name(tmp_path: Path, values: dict[str, Any], said: str) -> None:
    render(tmp_path, values, fails=said)


def check_dashboard(text: str) -> str:
    """Return what the compiler of TypeScript says of a dashboard as a value of Grafana's own type."""
    file = TOOLS / "dashboard.ts"
    file.write_text(f"{DASHBOARD}{text};\n")
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022"]
    line = [TOOLS / "node_modules" / ".bin" / "tsc", *options, file]
    return subprocess.run(line, capture_output=True, text=True, check=False).stdout


def test_the_dashboard_is_one_that_grafana_knows() -> None:
    text = (DEPLOY / "grafana.json").read_text("utf-8")
    assert check_dashboard(text) == ""
    for right, wrong in (('"schemaVersion": 39', '"schemaVersion": "39"'), ('"refresh"', '"refreshes"')):
        assert "error TS" in check_dashboard(text.replace(right, wrong))
