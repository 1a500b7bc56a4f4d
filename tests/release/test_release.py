"""`make release`: what it refuses, what it leaves, and what it leaves when a step fails."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import HOME

URLS = '\n[project.urls]\nSource = "https://example.org/gossipq"\n'
DEPLOY = "nodes/gossipq_node/deploy"
FILES = (
    "CHANGELOG.md",
    "pyproject.toml",
    "gossipq/__init__.py",
    ".ci/release",
    f"{DEPLOY}/chart/Chart.yaml",
    f"{DEPLOY}/kubernetes.yaml",
)
#: a program of the environment of .venv, in the Makefile and in the scripts of .ci
PROGRAM = re.compile(r"(?:\$\(BIN\)|\$bin|\$\{BIN:-\.venv/bin\})/([\w-]+)")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that can be released; its tests and builds are stand-ins that note that they ran."""
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "ada")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "ada@example.org")
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((HOME / name).read_text())
    (tmp_path / "pyproject.toml").write_text((HOME / "pyproject.toml").read_text() + URLS)
    for step in ("run", "dist", "sbom"):
        (tmp_path / ".ci" / step).write_text(
            f"#!/bin/sh\necho {step} >>../steps\ntest ! -e ../fails-{step}\n"
        )
    for path in (tmp_path / ".ci").iterdir():
        path.chmod(0o755)
    root = tmp_path / "repository"
    root.mkdir()
    for path in [each for each in tmp_path.iterdir() if each != root]:
        path.rename(root / path.name)
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "all")
    return root


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout


def release(root: Path, version: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([".ci/release", version], cwd=root, capture_output=True, text=True)


def test_a_release_is_dated_built_tagged_and_not_published(checkout: Path) -> None:
    done = release(checkout, "0.2.0")
    assert done.returncode == 0, done.stderr
    assert (checkout.parent / "steps").read_text().split() == ["run", "dist", "sbom"]
    assert git(checkout, "tag") == "v0.2.0\n"
    assert git(checkout, "log", "-1", "--format=%s", "v0.2.0") == "release: 0.2.0\n"
    assert re.search(
        r"^## \[Unreleased\]\n\n## \[0\.2\.0\] - \d{4}-\d\d-\d\d$",
        (checkout / "CHANGELOG.md").read_text(),
        re.MULTILINE,
    )
    assert done.stdout.splitlines()[-2:] == [
        "  git push origin main v0.2.0",
        "  twine upload dist/gossipq-0.2.0.tar.gz dist/gossipq-0.2.0-*.whl",
    ]
    assert release(checkout, "0.3.0").returncode == 0
    chart = (checkout / DEPLOY / "chart" / "Chart.yaml").read_text()
    assert 'version: 0.3.0\nappVersion: "0.3.0"\n' in chart
    assert 'image: "gossipq:0.3.0"' in (checkout / DEPLOY / "kubernetes.yaml").read_text()
    assert "is tagged already" in release(checkout, "0.2.0").stderr
    assert "v0.3.0 is newer than 0.1.0" in release(checkout, "0.1.0").stderr


@pytest.mark.parametrize("step", ["run", "dist", "sbom"])
def test_a_step_that_fails_leaves_no_commit_and_no_tag(checkout: Path, step: str) -> None:
    before = git(checkout, "rev-parse", "HEAD")
    (checkout.parent / f"fails-{step}").touch()
    assert release(checkout, "0.2.0").returncode != 0
    assert git(checkout, "rev-parse", "HEAD") == before
    assert git(checkout, "tag") == git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("touch extra", "the working tree differs"),
        ("git switch --quiet --create other", "the branch is not main"),
        ("sed -i /Unreleased/d CHANGELOG.md; git commit -qam x", "no section [Unreleased]"),
        ("sed -i /project.urls/d pyproject.toml; git commit -qam x", "where the project lives"),
    ],
)
def test_what_cannot_be_released_is_refused_with_the_next_step(checkout: Path, spoil: str, said: str) -> None:
    subprocess.run(spoil, shell=True, cwd=checkout, check=True)
    done = release(checkout, "0.2.0")
    assert done.returncode == 1
    assert re.fullmatch(r"error: .*\n hint: .*\n", done.stderr)
    assert said in done.stderr
    assert not (checkout.parent / "steps").exists()


@pytest.mark.parametrize("version", ["", "v0.2.0", "0.2", "0.2.0; true"])
def test_a_version_that_is_none_is_refused(checkout: Path, version: str) -> None:
    assert "is not a version" in release(checkout, version).stderr


def test_make_dev_installs_each_program_that_make_and_its_scripts_run() -> None:
    files = [HOME / "Makefile", *(path for path in (HOME / ".ci").iterdir() if path.suffix == "")]
    named = {name for path in files for name in PROGRAM.findall(path.read_text())}
    assert {"python", "ruff", "shiv"} <= named
    named.discard("pip")  # which venv brings, and uv does not
    assert {name for name in named if not (Path(sys.executable).parent / name).exists()} == set()
