"""The integration tests of Celery itself, from its source distribution: `make celery-suite`.

They run twice, with results in Redis and with results in gossipq. Redis is also the place where the tests
keep their own notes. Each test that does not pass must have its reason in the README of the integration.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conftest import HOME, ROOTS, RunningNode
from integrations.suites import source_of
from ports import settled_port

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(5_400),
    pytest.mark.skipif("GOSSIPQ_SUITES" not in os.environ, reason="make celery-suite runs it"),
]
README = HOME / "clients/integrations/gossipq_celery/README.md"
SECTION = "## Test suites of Celery and kombu"
#: Some tests have less time in all than they sleep, with any broker.
AZURE = "t/integration/test_backend.py"  #: cannot be imported without its library
PLUGIN = """
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.timeout(300), append=False)
"""
#: Each Python of the suite knows gossipq://, also a `celery worker` that a test starts.
AT_START = "import gossipq_celery\n"


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("Redis is not installed: apt-get install redis-server")
    port = settled_port()
    words = ["--port", str(port), "--save", "", "--appendonly", "no"]
    with subprocess.Popen([program, *words], cwd=tmp_path_factory.mktemp("redis")) as server:
        yield port
        server.terminate()


@pytest.mark.parametrize("results", ["redis", "gossipq"])
def test_celery_finds_what_it_expects_of_a_broker(
    results: str, redis_port: int, shared_node: RunningNode, tmp_path: Path
) -> None:
    broker = f"gossipq://127.0.0.1:{shared_node.port}/{results}"
    backend = f"redis://127.0.0.1:{redis_port}/0" if results == "redis" else broker
    outcomes = run_suite(suite_in(tmp_path), broker, backend, redis_port)
    assert "" in outcomes.values(), "no test passed"
    named = named_in_readme()
    assert {name: reason for name, reason in outcomes.items() if reason and name not in named} == {}


def suite_in(folder: Path) -> Path:
    """Return a folder with the suite, without Celery: the installed one is tested."""
    source = source_of("celery", folder)
    suite = folder / "suite"
    shutil.copytree(source / "t", suite / "t", ignore=shutil.ignore_patterns("unit", "smoke"))
    shutil.copy(source / "pyproject.toml", suite)
    (suite / "patient.py").write_text(PLUGIN)
    (suite / "sitecustomize.py").write_text(AT_START)
    return suite


def run_suite(suite: Path, broker: str, backend: str, redis_port: int) -> dict[str, str]:
    """Run the suite, and return for each test why it did not pass; "" if it did."""
    paths = [str(suite), *(str(HOME / root) for root in ROOTS)]
    plugins = [
        "-p",
        "celery.contrib.pytest",
        "-p",
        "patient",
        "-p",
        "no:cacheprovider",
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *plugins,
        "--timeout",
        "300",
        "--junit-xml",
        "outcome.xml",
    ]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # for `celery`
        "PYTHONPATH": os.pathsep.join(paths),
        "TEST_BROKER": broker,
        "TEST_BACKEND": backend,
        "REDIS_PORT": str(redis_port),
    }
    chosen = [*shlex.split(os.environ["GOSSIPQ_SUITES"]), "--ignore", AZURE]
    subprocess.run([*command, *chosen], env=environment, cwd=suite, check=False)
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(suite / "outcome.xml").iter("testcase"):
        name, reason = outcome_of(case)
        outcomes[name] = outcomes.get(name) or reason  # of a test with parameters, the first reason
    return outcomes


def outcome_of(case: ElementTree.Element) -> tuple[str, str]:
    """Return the name of a test without its parameters, and why it did not pass; "" if it did."""
    name = re.sub(r"\[.*", "", case.get("name", ""))
    for kind in ("failure", "error", "skipped"):
        if (found := case.find(kind)) is not None:
            return name or case.get("classname", ""), f"{kind}: {found.get('message')}"
    return name, ""


def named_in_readme() -> set[str]:
    _, _, section = README.read_text().partition(SECTION)
    return set(re.findall(r"`((?:test_|t\.)[\w.]+)`", section))
