"""Clients in other languages: how the driver of each is started, and what is missing here to start it."""

import sys
from pathlib import Path
from shlex import quote
from typing import NamedTuple

CLIENTS = Path(__file__).resolve().parents[2] / "clients"


class Language(NamedTuple):
    name: str
    level: str  #: how far its client goes, see gossipq_cli.conformance
    command: str  #: starts its driver
    missing: str = ""  #: what has to be there, and how to get it


def languages() -> list[Language]:
    return [
        Language("minimal", "cluster", f"{quote(sys.executable)} {quote(str(CLIENTS / 'minimal_driver.py'))}")
    ]
