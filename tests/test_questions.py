"""Sections have the words that users of other brokers type, so that the search of the site finds them."""

import re

import pytest

from conftest import HOME

#: what is typed into the search -> the section that answers it
ANSWERS = {
    "exactly once": "docs/concepts/delivery.md#at-least-once",
    "visibility timeout": "docs/concepts/delivery.md#lease-and-ack",
    "idempotent": "docs/how-to/once.md#one-effect-for-each-record",
    "prefetch": "docs/how-to/consume.md#fetch",
    "commit offset": "docs/concepts/delivery.md#lease-and-ack",
    "rebalance": "docs/how-to/consume.md",
    "dead letter queue": "docs/how-to/retry.md#dead-letters",
    "poison message": "docs/how-to/retry.md#dead-letters",
    "delayed message": "docs/how-to/schedule.md#delay-and-time-to-live",
    "cron": "docs/how-to/schedule.md#schedules",
    "rate limit": "docs/how-to/order.md#fair-shares-and-limits",
    "priority queue": "docs/how-to/order.md#fair-shares-and-limits",
    "multi-tenant": "docs/how-to/order.md#fair-shares-and-limits",
    "result backend": "docs/how-to/jobs.md#results",
    "deduplication": "docs/how-to/once.md#ids",
    "FIFO": "docs/how-to/order.md#key-order",
    "number of partitions": "docs/how-to/order.md#how-many-partitions",
    "fan-out": "docs/how-to/publish.md#virtual-topics",
    "filter": "docs/how-to/consume.md#routes",
    "RPC": "docs/how-to/handlers.md#requests",
    "transactional outbox": "docs/how-to/once.md#a-record-with-a-transaction",
    "graceful shutdown": "docs/how-to/programs.md#the-end",
    "reset offset": "docs/operate/routine.md#read-again-skip-empty",
    "maximum message size": "docs/concepts/guarantees.md#limits",
    "retention": "docs/concepts/overview.md",
    "consumer lag": "docs/operate/troubleshooting.md#the-lag-grows",
    "slow": "docs/operate/troubleshooting.md#publishing-is-slow",
    "split brain": "docs/concepts/cluster.md#takeover",
    "rolling upgrade": "docs/operate/runbooks.md#restart-or-upgrade-without-a-pause",
    "disk full": "docs/operate/runbooks.md#the-disk-is-full",
    "Prometheus": "docs/operate/monitoring.md#pages-of-a-node",
    "Kubernetes": "nodes/gossipq_node/deploy/README.md",
    "TLS": "docs/operate/security.md#encryption",
    "ACL": "docs/operate/security.md#users-and-permissions",
    "backup": "docs/operate/backup.md",
    "clock NTP": "docs/concepts/time.md",
    "firewall": "docs/operate/security.md#encryption",
    "unit test": "docs/how-to/test.md#tests-without-a-server",
}
LINK = re.compile(r"\]\(([^()\s]+)\)")


def section(place: str) -> str:
    """A heading and the text below it, up to the next one of its level; the whole page without an anchor."""
    path, _, anchor = place.partition("#")
    text = (HOME / path).read_text("utf-8")
    if not anchor:
        return text
    for found in re.finditer(r"^(#+) (.*)$", text, re.MULTILINE):
        if re.sub(r"[^\w\- ]", "", found[2].lower()).replace(" ", "-") == anchor:
            return (
                found[2]
                + re.split(rf"^#{{1,{len(found[1])}}} ", text[found.end() :], maxsplit=1, flags=re.MULTILINE)[
                    0
                ]
            )
    raise AssertionError(f"no section {anchor} in {path}")


@pytest.mark.parametrize("typed", ANSWERS)
def test_what_is_typed_is_in_the_section_that_answers_it(typed: str) -> None:
    words = set(re.findall(r"[\w-]+", section(ANSWERS[typed]).lower()))
    assert set(typed.lower().split()) <= words | {word.rstrip("s") for word in words}


def test_each_question_has_one_answer_with_a_link() -> None:
    text = (HOME / "docs" / "questions.md").read_text("utf-8")
    answers = re.findall(r"^\*\*([^*]+\?)\*\*(.*?)(?=^\*\*|^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(answers) >= 30
    assert [question for question, answer in answers if not LINK.search(answer)] == []
    assert len({question for question, _ in answers}) == len(answers)
