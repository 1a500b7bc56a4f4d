"""A run of tests ends, whatever one of them does."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conftest import HOME, limit_of

RUN = "import conftest, pytest; conftest.HANG_SECONDS = 1; pytest.main({args!r}, plugins=[conftest])"
STAYS = """
import threading, time

def stays():
    time.sleep(600)

def test_it():
    threading.Thread(target=stays).start()
"""
SWALLOWS = """
import time

def test_it():
    for _ in range(600):
        try:
            time.sleep(1)
        except BaseException:
            pass
"""


@pytest.mark.parametrize(("text", "limit"), [(STAYS, 60), (SWALLOWS, 1)], ids=["thread", "test"])
def test_a_process_that_hangs_ends_and_says_where(text: str, limit: int, tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(text, "utf-8")
    args = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--timeout", str(limit), str(file)]
    paths = os.pathsep.join(map(str, (HOME / "tests", HOME)))
    line = [sys.executable, "-c", RUN.format(args=args)]
    done = subprocess.run(
        line, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "in stays" in done.stderr or "in test_it" in done.stderr


@pytest.mark.parametrize(
    ("marked", "asked", "environment", "limit"),
    [
        (7, 1_800.0, "3", 7),
        (None, 1_800.0, "3", 1_800),
        (None, 0.0, "3", 0),
        (None, None, "3", 3),
        (None, None, None, 120),
    ],
)
def test_who_asks_for_more_time_gets_it(
    marked: int | None,
    asked: float | None,
    environment: str | None,
    limit: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTEST_TIMEOUT", raising=False)
    if environment is not None:
        monkeypatch.setenv("PYTEST_TIMEOUT", environment)
    marker = None if marked is None else SimpleNamespace(args=(marked,))
    config = SimpleNamespace(getoption=lambda name: asked, getini=lambda name: "120")
    item = SimpleNamespace(get_closest_marker=lambda name: marker, config=config)
    assert limit_of(cast(Any, item)) == limit
