"""Test suites of others, from the source distributions on the package index; no part of this project."""

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest


def source_of(package: str, folder: Path) -> Path:
    """Fetch the source of the installed version of a package, and return where it was unpacked in `folder`.
    Skips the test where the index cannot be reached."""
    name = f"{package}-{version(package)}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    where = ["--dest", str(folder), f"{package}=={version(package)}"]
    ran = subprocess.run([*command, *where], capture_output=True, text=True, check=False)
    found = list(folder.glob(f"{name}*.tar.gz"))
    if not found:
        pytest.skip(f"the source of {name} cannot be fetched: {ran.stderr[-300:]}")
    with tarfile.open(found[0]) as packed:
        packed.extractall(folder, filter="data")
    return folder / name
