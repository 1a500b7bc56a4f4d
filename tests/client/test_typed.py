"""Programs as users write them have the types that checkers expect, without an ignore."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import HOME, ROOTS

PROGRAMS = sorted((HOME / "tests" / "typed").glob("*.py"))
PATIENCE_S = 300


def checked(tmp_path: Path, *command: str) -> str:
    """The output of a type checker that sees this tree's packages as if they were installed."""
    roots = os.pathsep.join(str(HOME / root) for root in ROOTS)
    environment = {**os.environ, "MYPYPATH": roots, "PYTHONPATH": roots}
    ran = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr


def test_there_are_ten_and_none_ignores_anything() -> None:
    assert len(PROGRAMS) == 10
    assert not [path.name for path in PROGRAMS if "ignore" in path.read_text() or "cast(" in path.read_text()]


@pytest.mark.slow
def test_mypy_has_nothing_to_say(tmp_path: Path) -> None:
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\nstrict = True\n[mypy-pyarrow.*,lmdb.*]\nignore_missing_imports = True\n")
    said = checked(tmp_path, "mypy", "--config-file", str(settings), *map(str, PROGRAMS))
    assert said == ""


@pytest.mark.slow
def test_mypy_finds_misspelt_words(tmp_path: Path) -> None:
    lines = (
        "from gossipq_client import connect",
        "mq = connect()",
        'mq.consume("orders", "billing", mode="key_orderd")',
        'mq.fetch("orders", group="billing", mode="exklusive")',
        'mq.consume("orders", order="key")',
        'mq.create_topic("orders", expire="never")',
        'next(iter(mq.consume("orders", int, group="billing"))).data.upper()',
        'mq.consume("orders", int)',
    )
    (tmp_path / "misspelt.py").write_text("\n".join(lines))
    said = checked(tmp_path, "mypy", "misspelt.py")
    assert [number for number in range(1, len(lines) + 1) if f"misspelt.py:{number}: error" in said] == [
        3,
        4,
        5,
        6,
        7,
        8,
    ]


@pytest.mark.slow
def test_pyright_has_nothing_to_say(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    for path in PROGRAMS:
        shutil.copy(path, tmp_path)
    settings = {
        "extraPaths": [str(HOME / root) for root in ROOTS],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    said = checked(tmp_path, "pyright", "--project", str(tmp_path), "--pythonpath", sys.executable)
    if said and " error" not in said:
        pytest.skip(f"pyright cannot run here: {said[:200]}")
    assert said == ""
