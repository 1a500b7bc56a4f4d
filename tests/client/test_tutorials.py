"""The tutorial "Fair shares and limits" does what it says."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import RunningNode
from gossipq_cli.main import main

pytestmark = pytest.mark.e2e
PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "fair-shares.md"
STEPS = 2  #: programs that can be run as they are; the third one calls a service


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def told(console: str) -> Iterator[tuple[list[str], str]]:
    """Yield each command of a block, and its output."""
    for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        yield shlex.split(line)[1:], output


def test_fair_shares(
    shared_node: RunningNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GOSSIPQ_SERVER", shared_node.endpoint)
    programs = blocks("python")
    exec("".join(programs[:STEPS]), {})
    assert capsys.readouterr().out == "ada after 2 records\n"
    for console in blocks("console"):
        for words, output in told(console):
            assert main(words) == 0
            out = capsys.readouterr().out
            if output:
                assert out == output
            else:
                assert re.search(r"^big +0 +1,9\d\d ", out, re.MULTILINE), out
