"""The tests of dramatiq itself for results, barriers and rate limiters, from its source distribution."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import HOME, ROOTS, RunningNode
from integrations.suites import source_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
FILES = ("results", "barrier", "bucket_rate_limiter", "concurrent_rate_limiter", "window_rate_limiter")
CONFTEST = """
import itertools

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from gossipq_client import connect
from gossipq_dramatiq import GossipqRateLimiterBackend, GossipqResultBackend

topics = (f"dramatiq-{{number}}" for number in itertools.count())

@pytest.fixture(scope="session")
def client():
    with connect("{endpoint}") as made:
        yield made

@pytest.fixture
def stub_broker():
    broker = StubBroker(fail_fast_default=False)
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()

@pytest.fixture
def stub_worker(stub_broker):
    worker = dramatiq.Worker(stub_broker, worker_timeout=100, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()

@pytest.fixture
def result_backend(client):
    return GossipqResultBackend(client, topic=next(topics))

@pytest.fixture
def rate_limiter_backend(client):
    return GossipqRateLimiterBackend(client, topic=next(topics))
"""
COMMON = """
import pytest

skip_in_ci = pytest.mark.skipif(False, reason="")
"""
LEFT_OUT = (
    "test_messages_without_actor_not_crashing_lookup_options",  # of Redis
    "test_barriers_can_block",  # within 10 ms
    "test_window_rate_limiter_limits_per_window",  # counts what 8 threads do in 10 s
)
#: Times that a loaded machine keeps: all threads try while the first hold, all tries fall into one bucket.
LONGER = (
    ("time.sleep(0.3)", "time.sleep(5)"),
    ('"sequential-test", limit=2)', '"sequential-test", limit=2, bucket=5_000)'),
    ("time.sleep(1 - (now - int(now)))", "time.sleep(5 - now % 5)"),
)


def test_dramatiq_finds_what_it_expects_of_backends(shared_node: RunningNode, tmp_path: Path) -> None:
    source = source_of("dramatiq", tmp_path)
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "conftest.py").write_text(CONFTEST.format(endpoint=shared_node.endpoint))
    (suite / "__init__.py").touch()
    (suite / "common.py").write_text(COMMON)
    for name in FILES:
        text = (source / "tests" / f"test_{name}.py").read_text()
        for short, longer in LONGER:
            text = text.replace(short, longer)
        (suite / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--timeout", "60"]
    ran = subprocess.run(
        [*command, "-k", " and ".join(f"not {name}" for name in LEFT_OUT), str(suite)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(HOME / root) for root in ROOTS)},
        cwd=suite,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ran.stdout.splitlines()
    assert [line for line in lines if line.startswith(("FAILED test_", "ERROR test_"))] == [], ran.stdout[
        -5_000:
    ]
    assert sum(line.startswith("PASSED") for line in lines) >= 24
