"""Clients in other languages against real nodes, with the checks of `gossipq client conformance`."""

import json
import os
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from bindings.languages import Language, languages
from conftest import HOME, ROOTS, RunningNode
from gossipq.errors import LeaseLost
from gossipq_cli.conformance.between import NOWHERE
from gossipq_cli.conformance.driver import Driver, Taken
from gossipq_cli.conformance.trials import TRIALS, Consuming, Stage, Trial
from gossipq_cli.failures import Failure
from gossipq_client import Client, connect
from hosts import Host
from ports import needs_ipv6

pytestmark = pytest.mark.e2e
ALONE = [trial for trial in TRIALS if trial.level == "mini"]
SMOKE = ALONE[:2]  #: the trials of a short run; the kit has all of them
TAKEOVERS = 2  #: in a trial of the kit; `gossipq client conformance` itself kills more


def skip_if_missing(language: Language) -> None:
    if language.missing:
        pytest.skip(language.missing)


@pytest.mark.parametrize("trial", SMOKE, ids=lambda trial: trial.run.__name__)
@pytest.mark.parametrize("language", languages(), ids=lambda language: language.name)
def test_one_node(language: Language, trial: Trial, node: RunningNode, mq: Client) -> None:
    skip_if_missing(language)
    with Driver(language.command) as driver:
        driver.ask("connect", servers=[node.endpoint])
        trial.run(Stage([node.endpoint], mq, driver))
        driver.ask("close")


@pytest.mark.slow
@needs_ipv6
@pytest.mark.parametrize("language", languages(), ids=lambda language: language.name)
def test_a_node_at_an_address_of_ipv6(language: Language, tmp_path: Path) -> None:
    skip_if_missing(language)
    with ExitStack() as ends:
        node = Host(tmp_path, "ada", "[::1]")
        ends.callback(node.kill)
        node.start("--mode", "standalone").ready()
        mq, driver = ends.enter_context(connect(node.endpoint)), ends.enter_context(Driver(language.command))
        driver.ask("connect", servers=[node.endpoint])
        ALONE[0].run(Stage([node.endpoint], mq, driver))
        driver.ask("close")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("language", languages(), ids=lambda language: language.name)
def test_nodes_that_are_killed(language: Language, tmp_path: Path) -> None:
    """The whole kit, as users run it."""
    skip_if_missing(language)
    line = [
        sys.executable,
        "-m",
        "gossipq_cli",
        "client",
        "conformance",
        "-o",
        "jsonl",
        "--takeovers",
        str(TAKEOVERS),
    ]
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


@pytest.mark.parametrize("language", languages(), ids=lambda language: language.name)
def test_a_driver_ends_with_its_input(language: Language) -> None:
    skip_if_missing(language)
    line = json.dumps({"do": "connect", "servers": [NOWHERE]}) + "\n"
    ran = subprocess.run(
        shlex.split(language.command), input=line, capture_output=True, text=True, timeout=10
    )
    assert ran.stdout == "{}\n", ran.stderr[-2000:]


def test_a_record_whose_lease_was_lost_may_come_again() -> None:
    """Its ack is not stored, and the client says so; one whose ack was stored may not."""

    class Script(Driver):
        def __init__(self, *rows: tuple[int, bool]) -> None:
            self.rows = list(rows)

        def next(self, wait_s: float) -> Taken | None:
            offset, self.kept = self.rows.pop(0)
            return Taken(0, offset, 1, b"", b"", {}, b"")

        def ack(self, record: Taken) -> None:
            if not self.kept:
                raise LeaseLost("others have the record by now")

    came = Consuming(Script((0, True), (1, False), (1, True))).take(2)
    assert [record.offset for record in came] == [0, 1]
    with pytest.raises(AssertionError, match="came again"):
        Consuming(Script((0, True), (0, True))).take(2)
