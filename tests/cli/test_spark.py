"""`gossipq spark` where something is missing; tests/spark has its jobs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("sys.modules['pyspark'] = None", "error: pyspark is not installed\n hint: `pip install"),
        (
            "os.environ.update(PATH='', JAVA_HOME='')",
            "error: Spark needs Java 17 or later, and there is none\n hint: `apt-get",
        ),
    ],
)
def test_without_java_or_pyspark(tmp_path: Path, code: str, says: str) -> None:
    if "Java" in says:
        pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'gossipq[spark]'")
    program = (
        f"import os, sys; {code}; from gossipq_cli.main import main; sys.exit(main(['spark', 'growth', "
        "'export']))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr.startswith(says)
