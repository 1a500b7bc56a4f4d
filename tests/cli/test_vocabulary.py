"""The command line in the words that its users bring along."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gossipq import __version__
from gossipq_cli.records import SCREEN_BYTES, SCREEN_LINES, cut


def test_the_version_is_an_option_too(gossipq: Any) -> None:
    assert gossipq("--version").out == f"gossipq {__version__}\n"


def test_help_knows_commands(gossipq: Any) -> None:
    assert gossipq("help", "pub").out.startswith("Usage: gossipq pub [OPTIONS] TOPIC [BODY]")
    assert gossipq("help", "topic", "create").out.startswith("Usage: gossipq topic create")
    ran = gossipq("help", "topic", "creat")
    assert (ran.code, "did you mean `create`?" in ran.err) == (2, True)
    ran = gossipq("help", "pubb")
    assert (ran.code, "did you mean `pub`?" in ran.err) == (4, True)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("consume orders", "that is `sub` here"),
        ("produce orders x", "that is `pub` here"),
        ("topic delete orders", "that is `rm` here"),
        ("delete orders", "that is `topic rm` or `group rm` or `msg rm` here"),
        ("topic info orders", "that is `show` here"),
        ("topic lss", "did you mean `ls`?"),
    ],
)
def test_verbs_of_other_tools_are_pointed_to_ours(gossipq: Any, line: str, says: str) -> None:
    ran = gossipq(*line.split())
    assert (ran.code, says in ran.err) == (2, True), ran.err


def test_a_value_is_cut_at_a_screen() -> None:
    assert cut(b"17 apples\n") == "17 apples\n"
    for value in (b"x" * (SCREEN_BYTES + 1), b"\n".join([b"line"] * (SCREEN_LINES + 1))):
        shown = cut(value)
        assert len(shown.splitlines()) <= SCREEN_LINES + 1
        assert "... cut:" in shown.splitlines()[-1]
        assert "--raw has every byte" in shown


@pytest.mark.slow
def test_type_checkers_find_what_make_install_installs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import gossipq_client\n\nmq = gossipq_client.connect()\nreveal_type(mq)\nmq.publish(17, b'')\n"
    )
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--python-executable",
            sys.executable,
            "--cache-dir",
            str(tmp_path / "cache"),
            str(program),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'Revealed type is "gossipq_client.api.sync.client.Client"' in ran.stdout, ran.stdout
    assert 'Argument 1 to "publish"' in ran.stdout
