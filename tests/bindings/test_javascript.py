"""The JavaScript client by its own tests, against a real node; its types by the compiler, its examples by
running them."""

import os
import subprocess

import pytest

from bindings.languages import JAVASCRIPT, javascript_misses
from conftest import RunningNode

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(javascript_misses()), reason=javascript_misses())]
COMPILER = JAVASCRIPT / "node_modules" / "typescript" / "bin" / "tsc"


def run(node: RunningNode, *line: str) -> str:
    done = subprocess.run(
        ["node", *line],
        cwd=JAVASCRIPT,
        env=os.environ | {"GOSSIPQ_SERVER": node.endpoint},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_its_own_tests(node: RunningNode) -> None:
    run(node, "--test", "test/")


@pytest.mark.slow
@pytest.mark.skipif(not COMPILER.exists(), reason="TypeScript is not installed: make bindings")
def test_types(node: RunningNode) -> None:
    run(node, str(COMPILER), "-p", ".")


def test_examples(node: RunningNode) -> None:
    assert "stored at offset 0" in run(node, "examples/publish.mjs")
    line = ["node", "examples/consume.mjs"]
    environment = os.environ | {"GOSSIPQ_SERVER": node.endpoint}
    with subprocess.Popen(
        line, cwd=JAVASCRIPT, env=environment, stdout=subprocess.PIPE, text=True
    ) as consumer:
        assert consumer.stdout is not None
        assert [consumer.stdout.readline() for _ in range(4)] == [
            f"ada: {what}\n" for what in ("one coffee", "tea", "milk", "cake")
        ]
        consumer.terminate()
