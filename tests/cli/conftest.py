"""Runs `gossipq` lines in this process: exit code, stdout, stderr."""

import io
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from gossipq_cli.main import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def gossipq(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """gossipq("topic", "ls", stdin=b"..."); nothing is a terminal."""

    def run(*argv: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main(argv)
        return Ran(code, *capsys.readouterr())

    return run
