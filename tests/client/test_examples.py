"""The example programs run as they are, and the README shows them as they are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import HOME, ROOTS, RunningNode
from gossipq_client import connect

EXAMPLES = sorted((HOME / "clients" / "python" / "examples").glob("*.py"))
PATIENCE_S = 30


@pytest.fixture(scope="module")
def orders(shared_node: RunningNode) -> RunningNode:
    """A node with what publish.py leaves behind."""
    with connect(shared_node.endpoint) as mq:
        mq.publish_many("orders", [b"17 apples", b"3 pears", b"9 plums", b"1 quince"]).result(PATIENCE_S)
    return shared_node


@pytest.mark.e2e
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, orders: RunningNode, tmp_path: Path) -> None:
    paths = os.pathsep.join(str(HOME / root) for root in ROOTS)
    ran = subprocess.run(
        [sys.executable, str(example)],
        env={**os.environ, "PYTHONPATH": paths, "GOSSIPQ_SERVER": orders.endpoint},
        cwd=tmp_path,
        capture_output=True,
        timeout=PATIENCE_S,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout


def test_the_readme_shows_examples_that_are_run() -> None:
    shown = re.findall(r"^```python\n(.*?)^```$", (HOME / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    known = {example.read_text("utf-8"): example.name for example in EXAMPLES}
    assert [block for block in shown if block not in known] == []
    assert {known[block] for block in shown} >= {"publish.py", "consume.py", "fetch.py", "no_server.py"}
