"""`.ci/subjects` checks the subjects of new commits."""

import subprocess
from pathlib import Path

import pytest

from conftest import HOME

LONG = "core: " + "x" * 67


def git(place: Path, *words: str) -> None:
    author = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", *author, *words], cwd=place, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("subject", "wrong"),
    [
        ("core: expire records behind one that lives", ""),
        ("core, node: spare ten calls of a lone publish", ""),
        ("release: 0.2.0", ""),
        ("Merge branch 'x'", ""),
        ("A record expires", "area: imperative"),
        ("core: Expire records", "area: imperative"),
        (LONG, "73 columns"),
    ],
)
def test_a_subject_is_judged(subject: str, wrong: str, tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    for each in ("Old, and no longer judged", subject):
        git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", each)
    done = subprocess.run([HOME / ".ci" / "subjects"], cwd=tmp_path, capture_output=True, text=True)
    assert bool(done.returncode) == bool(wrong)
    assert wrong in done.stderr
