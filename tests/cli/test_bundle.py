"""`gossipq doctor --bundle`: what it contains, and what it must not contain."""

import json
import tarfile
from pathlib import Path

import pytest

from conftest import RunningNode
from gossipq_cli import bundle
from gossipq_client import connect

TOKEN = "gq_" + "5f" * 32


def content(path: Path) -> dict[str, str]:
    with tarfile.open(path) as packed:
        return {
            member.name.removeprefix("gossipq-bundle/"): packed.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in packed.getmembers()
        }


@pytest.mark.e2e
def test_all_that_helps_and_no_record_and_no_secret(
    shared_node: RunningNode, gossipq, tmp_path: Path
) -> None:
    with connect(shared_node.endpoint) as mq:
        mq.publish(
            "bundled", b"the body of a record", key="a key of one", headers={"h": "of one"}, timeout=10
        )
    (tmp_path / "node.log").write_text(f"started\nshown {TOKEN}\n")
    out = tmp_path / "fault.tar.gz"
    log, gone = str(tmp_path / "node.log"), str(tmp_path / "gone.log")
    ran = gossipq("-s", shared_node.endpoint, "doctor", "--bundle", str(out), "--log", log, "--log", gone)
    assert ran.code == 0
    assert "no record, no secret" in ran.out
    assert out.stat().st_mode & 0o077 == 0
    found = content(out)
    assert {"versions.json", "findings.json", "config.json", "status.json", "counters.json"} < set(found)
    assert "bundled" in found["counters.json"]
    assert "shards" in found["status.json"]
    assert json.loads(found["versions.json"])["libraries"]["msgspec"]
    assert found["logs/0-node.log"] == f"started\nshown {bundle.HIDDEN}\n"
    assert "gone.log" in found["missing.txt"]
    whole = "".join(found.values())
    secret = (shared_node.data / "secret").read_text().strip()
    for hidden in ("the body of a record", "a key of one", "of one", secret, TOKEN):
        assert hidden not in whole


def test_without_a_node_it_says_what_it_lacks(gossipq, tmp_path: Path) -> None:
    out = tmp_path / "fault.tar.gz"
    ran = gossipq("-s", "tcp://127.0.0.1:9", "--timeout", "1s", "doctor", "--bundle", str(out))
    assert ran.code == 0
    assert "status.json: " in content(out)["missing.txt"]
    assert "findings.json" in content(out)
    ran = gossipq("-s", "tcp://127.0.0.1:9", "--timeout", "1s", "doctor", "--bundle", "/dev/null/x")
    assert (ran.code, "cannot be written" in ran.err) == (1, True)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"secret_file": "/etc/x", "port": 7}, {"secret_file": bundle.HIDDEN, "port": 7}),
        ([{"key": "node.secret_file", "value": "t"}], [{"key": "node.secret_file", "value": bundle.HIDDEN}]),
        ({"a": {"password": ""}, "b": [1, "x"]}, {"a": {"password": ""}, "b": [1, "x"]}),
    ],
)
def test_what_stands_under_a_secret_name_is_hidden(told: object, shown: object) -> None:
    assert bundle.hidden(told) == shown
