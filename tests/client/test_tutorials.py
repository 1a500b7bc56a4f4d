"""The tutorials "First queue" and "Fair shares and limits" do what they say."""

import io
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import RunningNode
from gossipq_cli.main import main

pytestmark = pytest.mark.e2e
TUTORIALS = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
STEPS = 2  #: programs of fair-shares.md that can be run as they are; the third one calls a service
BEHIND_IF = re.compile(r"^ +if .*", re.MULTILINE | re.DOTALL)  #: the lines that a reader removes from bill.py


def blocks(page: str, language: str) -> list[str]:
    text = (TUTORIALS / page).read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def told(console: str) -> Iterator[tuple[list[str], str]]:
    """Yield each command of a block, and its output."""
    for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        yield shlex.split(line), output


def shape(text: str) -> str:
    """Text without its numbers, times and the widths of its columns, which differ from run to run."""
    return re.sub(r"\d[\d.,:TZ-]*|\s+", lambda found: " " if found[0].isspace() else "0", text)


def test_first_queue(
    shared_node: RunningNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GOSSIPQ_SERVER", shared_node.endpoint)
    (bill,) = blocks("first-queue.md", "python")
    _starts_the_node, *consoles = blocks("first-queue.md", "console")
    steps = 0
    for words, output in (each for console in consoles for each in told(console)):
        if words[0] == "python":
            exec(bill, {})
            bill = BEHIND_IF.sub("", bill)
        else:
            if words[0] == "printf":  # its lines are piped to gossipq
                lines = words[1].replace("\\n", "\n").encode()
                monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
            assert main(words[words.index("gossipq") + 1 :]) == 0
        said = capsys.readouterr()
        assert shape(said.err + said.out) == shape(output), words
        steps += 1
    assert steps == 10


def test_fair_shares(
    shared_node: RunningNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GOSSIPQ_SERVER", shared_node.endpoint)
    programs = blocks("fair-shares.md", "python")
    exec("".join(programs[:STEPS]), {})
    assert capsys.readouterr().out == "ada after 2 records\n"
    for console in blocks("fair-shares.md", "console"):
        for words, output in told(console):
            assert main(words[1:]) == 0
            out = capsys.readouterr().out
            if output:
                assert out == output
            else:
                assert re.search(r"^big +0 +1,9\d\d ", out, re.MULTILINE), out
