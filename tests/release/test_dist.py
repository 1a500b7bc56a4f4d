"""The files that `make dist` builds: equal for one commit, complete, and enough for an empty environment."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import HOME

PACKAGES = (
    "gossipq",
    "gossipq_celery",
    "gossipq_cli",
    "gossipq_client",
    "gossipq_dialects",
    "gossipq_django",
    "gossipq_dramatiq",
    "gossipq_gateway",
    "gossipq_keyed",
    "gossipq_node",
    "gossipq_ops",
    "gossipq_outbox",
    "gossipq_starlette",
    "gossipq_taskiq",
    "pyspark_gossipq",
)
CLIENT_LIBRARIES = {"gossipq", "msgspec", "pyzmq"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not (HOME / ".git").exists(), reason="git says what belongs to the sources"),
]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run `command`, and return what it printed. A command that fails shows all of its output."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of the last commit."""
    path = tmp_path_factory.mktemp("dist") / "gossipq"
    done = subprocess.run(["git", "clone", "--quiet", HOME, path], capture_output=True, text=True)
    if done.returncode:  # as for another user's checkout
        pytest.skip(f"git does not clone this checkout: {done.stderr.strip()}")
    return path


@pytest.fixture(scope="module")
def wheel(clone: Path) -> Path:
    run(".ci/dist", cwd=clone)
    (built,) = (clone / "dist").glob("*.whl")
    return built


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Path]:
    """The folder of programs of an empty virtual environment."""
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    yield tmp_path / "venv" / "bin"
    shutil.rmtree(tmp_path / "venv")


def test_two_builds_of_one_commit_are_equal(clone: Path, wheel: Path) -> None:
    sums = (clone / "dist" / "SHA256SUMS").read_text()
    for file in clone.rglob("*.py"):
        file.touch()
    run(".ci/dist", cwd=clone)
    assert (clone / "dist" / "SHA256SUMS").read_text() == sums
    run("sha256sum", "--check", "SHA256SUMS", cwd=clone / "dist")


def test_a_tree_with_changes_is_refused(clone: Path) -> None:
    extra = clone / "gossipq" / "not_committed.py"
    extra.touch()
    done = subprocess.run([".ci/dist"], cwd=clone, capture_output=True, text=True)
    extra.unlink()
    assert done.returncode == 1
    assert done.stderr.startswith("error: the working tree differs from the last commit\n hint: ")


def test_the_wheel_holds_the_packages_with_their_types_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    (metadata,) = (top for top in tops if top.endswith(".dist-info"))
    assert tops - {metadata} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert f"{metadata}/licenses/LICENSE" in names


def test_the_metadata_are_accepted_by_an_index(wheel: Path) -> None:
    pytest.importorskip("twine", reason="twine is not installed: pip install twine")
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(wheel.parent.glob("gossipq-*")))


def test_the_metadata_lack_only_what_the_owner_has_to_say(clone: Path) -> None:
    """[project.urls] and an address: `make release` refuses until the first is given."""
    pytest.importorskip("pyroma", reason="pyroma is not installed: pip install pyroma")
    done = subprocess.run(
        [sys.executable, "-m", "pyroma", "--min", "10", clone], capture_output=True, text=True, check=False
    )
    blamed = re.findall(r"does not have (\S+) data|should have a '(\w+)' field", done.stdout)
    assert "Final rating:" in done.stdout, done.stderr
    assert {data or field for data, field in blamed} <= {"author-email", "url"}


def test_the_client_alone_needs_two_libraries(environment: Path, wheel: Path, tmp_path: Path) -> None:
    run(environment / "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    listed = run(environment / "pip", "list", "--disable-pip-version-check", "--format=freeze")
    installed = {line.split("==")[0] for line in listed.split()}
    assert installed - {"pip", "setuptools"} == CLIENT_LIBRARIES
    program = "import gossipq_client, gossipq_client.aio; gossipq_client.connect('127.0.0.1:1').close()"
    run(environment / "python", "-c", program, cwd=tmp_path)
    for asked, said in (
        (("-c", "from gossipq_client import embedded; embedded.open('data')"), "lmdb is not installed"),
        (("-c", "from gossipq_client import testing; testing.Broker()"), "cronsim is not installed"),
        (("-m", "gossipq_cli"), "error: click is not installed"),
    ):
        done = subprocess.run([environment / "python", *asked], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1
        assert said in done.stderr
        assert 'hint: pip install "gossipq[server]"' in done.stderr


def test_the_extra_server_runs_the_demo(environment: Path, wheel: Path, tmp_path: Path) -> None:
    run(environment / "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[server]")
    said = json.loads(run(environment / "gossipq", "demo", "--nodes", "3", "-o", "json", cwd=tmp_path))
    assert said["published"] == said["acked"]
    assert said["lost"] == 0
