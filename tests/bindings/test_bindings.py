"""Clients in other languages against real nodes, by what `gossipq conformance` tries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from bindings.languages import Language, languages
from conftest import HOME, ROOTS, RunningNode
from gossipq_cli.conformance.driver import Driver
from gossipq_cli.conformance.trials import TRIALS, Stage, Trial
from gossipq_cli.failures import Failure
from gossipq_client import Client

pytestmark = pytest.mark.e2e
ALONE = [trial for trial in TRIALS if trial.level == "mini"]
SMOKE = 2  #: trials of each language in a short run


def cases() -> list[ParameterSet]:
    """Each language, and each trial that one node is enough for; only the first ones in a short run."""
    return [
        pytest.param(
            language,
            trial,
            id=f"{language.name}-{trial.run.__name__}",
            marks=[pytest.mark.slow] * (number >= SMOKE),
        )
        for language in languages()
        for number, trial in enumerate(ALONE)
    ]


def skip_if_missing(language: Language) -> None:
    if language.missing:
        pytest.skip(language.missing)


@pytest.mark.parametrize(("language", "trial"), cases())
def test_one_node(language: Language, trial: Trial, node: RunningNode, mq: Client) -> None:
    skip_if_missing(language)
    with Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        trial.run(Stage([node.endpoint], mq, driver))
        driver.ask("close")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("language", languages(), ids=lambda language: language.name)
def test_nodes_that_are_killed(language: Language, tmp_path: Path) -> None:
    """The whole kit, as users run it."""
    skip_if_missing(language)
    line = [sys.executable, "-m", "gossipq_cli", "conformance", "-o", "jsonl"]
    ran = subprocess.run(
        [*line, "--level", language.level, "--driver", language.command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(str(HOME / root) for root in ROOTS)},
        capture_output=True,
        text=True,
    )
    rows = [json.loads(row) for row in ran.stdout.splitlines()]
    assert [row["trial"] for row in rows if not row["passed"]] == [], ran.stdout + ran.stderr[-2000:]
    assert (ran.returncode, len(rows) > len(ALONE)) == (0, True)


def test_a_driver_that_says_nothing_is_told_of() -> None:
    for command, said in (("/nowhere/driver", "cannot start"), ("true", "ended"), ("echo hm", "said hm")):
        with pytest.raises(Failure, match=said), Driver(command) as driver:
            driver.hear()
