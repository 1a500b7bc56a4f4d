"""The integration tests of kombu itself, from its source distribution, against a node."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import HOME, ROOTS, RunningNode
from integrations.suites import source_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
CLASSES = ("BasicFunctionality", "BaseExchangeTypes", "BaseTimeToLive", "BasePriority")
CLASSES += ("BaseMessage", "BaseFailover", "BaseEventLoop")
MODULE = """
import kombu
import pytest
from t.integration import common

import gossipq_celery

@pytest.fixture
def connection(): return kombu.Connection("gossipq://localhost:{port}")

@pytest.fixture
def invalid_connection(): return kombu.Connection("gossipq://localhost:{nobody}")

@pytest.fixture
def failover_connection():
    return kombu.Connection("gossipq://localhost:{nobody};gossipq://localhost:{port}")

"""


def test_kombu_finds_what_it_expects_of_a_broker(shared_node: RunningNode, tmp_path: Path) -> None:
    source = source_of("kombu", tmp_path)
    text = MODULE.format(port=shared_node.port, nobody=shared_node.port + 99)
    file = tmp_path / "test_suite.py"
    file.write_text(text + "".join(f"class Test{name}(common.{name}): pass\n" for name in CLASSES))
    paths = [str(source), *(str(HOME / root) for root in ROOTS)]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--timeout", "60", str(file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ran.stdout.splitlines()
    passed = [line for line in lines if line.startswith("PASSED")]
    failed = [line for line in lines if line.startswith(("FAILED test_", "ERROR test_"))]
    assert failed == [], ran.stdout[-5_000:]
    assert len(passed) >= 46
