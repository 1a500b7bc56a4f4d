"""docs/operate/autoscaling.md: what KEDA asks exists, and counts what a consumer could take."""

import re

import httpx
import yaml

from conftest import HOME
from gossipq.values import GroupStats
from gossipq_client import connect
from gossipq_gateway.v1 import operators
from gossipq_ops.sums import group_sums

PAGE = (HOME / "docs" / "operate" / "autoscaling.md").read_text("utf-8")


def trigger(kind: str) -> dict[str, str]:
    """Return the metadata of a trigger of the page."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    triggers = [each for block in blocks for each in yaml.safe_load(block)["spec"]["triggers"]]
    (found,) = (each["metadata"] for each in triggers if each["type"] == kind)
    return found


def test_the_query_of_prometheus_uses_metrics_that_exist() -> None:
    known = set(re.findall(r"`(gossipq_\w+)`", (HOME / "docs/reference/metrics.md").read_text("utf-8")))
    asked = set(re.findall(r"gossipq_\w+", trigger("prometheus")["query"]))
    parts = ("ready", "behind_limit", "behind_rate", "in_flight")
    assert asked == {f"gossipq_group_{part}_messages" for part in parts}
    assert asked <= known


def test_the_gateway_says_how_much_work_a_group_has(gateway, shared_node) -> None:
    found = trigger("metrics-api")
    match = re.fullmatch(r'groups\.#\(group=="(\w+)"\)\.(\w+)', found["valueLocation"])
    assert match is not None
    with connect(shared_node.endpoint) as mq:
        mq.create_topic("scaled", if_not_exists=True)
        mq.group("scaled", match[1]).ack_below({0: 0})
        mq.publish_many("scaled", [b"x"] * 3)
        mq.publish("scaled", b"x", delay="1h")
        (taken,) = mq.fetch("scaled", group=match[1], n=1)
        url = gateway.url + found["url"].partition(":7781")[2].replace("orders", "scaled")
        groups = httpx.get(url).raise_for_status().json()["groups"]
        assert {each["group"]: each[match[2]] for each in groups} == {match[1]: 3}
        taken.ack()


def test_records_behind_a_limit_or_a_rate_are_no_work() -> None:
    part = GroupStats(
        1 << 16, "orders", "billing", 0, 9, 2, 0, 0, 1, 0, behind_limit=3, behind_rate=4
    )  # 9 ready, 2 in flight
    assert operators._group(group_sums([part])["orders", "billing"]).work == 4
