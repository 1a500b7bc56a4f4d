"""Documents, sample configuration and make targets say what is so."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from gossipq import __version__
from gossipq.config import load

HOME = Path(__file__).resolve().parent.parent
DOCUMENTS = [
    *sorted(HOME.glob("*.md")),
    *sorted((HOME / "nodes").rglob("*.md")),
    *sorted((HOME / "perf").glob("*.md")),
    *sorted((HOME / "spark").glob("*.md")),
    *sorted((HOME / "clients" / "integrations").rglob("*.md")),
    *sorted((HOME / "docs").rglob("*.md")),
    HOME / "Makefile",
    HOME / "cluster.toml",
    HOME / "pyproject.toml",
]
PAGES = [path for path in DOCUMENTS if path.suffix == ".md"]
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|work|Users|mnt|tmp/\w)[/\w.-]*|\.pyenv")
SHELL = re.compile(r"^(?:\s*\$ )?(make|gossipq)((?: [^#\n]*)?)", re.MULTILINE)


def shell_lines(text: str) -> list[tuple[str, list[str]]]:
    """(program, words) of make and gossipq lines in the code blocks of a document."""
    blocks = re.findall(r"```(?:\w*)\n(.*?)```|((?:^    .*\n)+)", text, re.DOTALL | re.MULTILINE)
    lines = (line.strip().split(" #")[0] for block in blocks for line in "".join(block).splitlines())
    return [(found[1], found[2].split()) for line in lines if (found := SHELL.match(line))]


def test_no_machine_paths() -> None:
    assert len(PAGES) > 40
    texts = {path: path.read_text("utf-8") for path in DOCUMENTS if path.exists()}
    assert [(path.name, found) for path in texts for found in MACHINE_PATH.findall(texts[path])] == []


LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchor(heading: str) -> str:
    """The anchor of a link to this heading, after `#`."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken_links(path: Path, text: str) -> list[str]:
    """Links to files that are not there, and to headings that their file does not have."""
    found = []
    for file, heading in LINK.findall(text):
        target = path.parent / file if file else path
        if not target.exists():
            found.append(file)
        elif heading and heading not in map(
            anchor, HEADING.findall(target.read_text("utf-8") if file else text)
        ):
            found.append(f"{file}#{heading}")
    return found


def test_links_lead_somewhere() -> None:
    assert [(path.name, link) for path in PAGES for link in broken_links(path, path.read_text("utf-8"))] == []


def test_a_broken_link_is_caught() -> None:
    text = (
        "## What is here\n[a](README.md) [b](#what-is-here) [c](https://x.y/z) [d](gone.md) [e](#gone) "
        "[f](README.md#gone)"
    )
    assert broken_links(HOME / "CHANGELOG.md", text) == ["gone.md", "#gone", "README.md#gone"]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (HOME / "Makefile").read_text("utf-8"), re.MULTILINE))


def test_make_targets_are_there() -> None:
    assert {"demo", "test", "accept", "install", "check", "sim", "perf", "e2e", "help"} <= targets()


def test_make_targets_in_documents_exist() -> None:
    named = {
        (path.name, word)
        for path in PAGES
        for program, words in shell_lines(path.read_text("utf-8"))
        for word in words
        if program == "make" and "=" not in word
    }
    known = targets()
    assert {each for each in named if each[1] not in known} == set()
    assert len(named) > 20


RED = "== 1 failed, 3 passed in 1.0s =="
GREEN = "== 40 passed, 2 skipped, 1 warning in 61.5s (0:01:01) =="


@pytest.mark.parametrize(
    ("lines", "fails", "code", "last"),
    [
        ([GREEN, GREEN], False, 0, "80 passed, 4 skipped"),
        ([RED, GREEN], True, 1, "1 failed, 43 passed, 2 skipped"),
        ([GREEN, RED, "error: something after it"], True, 1, "1 failed, 43 passed, 2 skipped"),
        (["ruff: a line is too long"], True, 1, "1 error"),
        ([], False, 0, "no tests ran"),
    ],
)
def test_ci_ends_with_a_line_that_sums_up(
    tmp_path: Path, lines: list[str], fails: bool, code: int, last: str
) -> None:
    """`make` is a stand-in: it says these lines for make test, and nothing for other goals."""
    (tmp_path / "said").write_text("".join(f"{line}\n" for line in lines))
    stand_in = tmp_path / "make"
    stand_in.write_text(f'#!/bin/sh\n[ "$2" = test ] || exit 0\ncat {tmp_path}/said\nexit {int(fails)}\n')
    stand_in.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", HOME / ".ci" / "run"], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert ran.returncode == code
    assert re.fullmatch(rf"=+ {last} in \d+s =+", ran.stdout.splitlines()[-1])


def test_a_document_that_lies_is_caught() -> None:
    assert shell_lines("```\n$ make nonsense\ngossipq fly me\n```\n") == [
        ("make", ["nonsense"]),
        ("gossipq", ["fly", "me"]),
    ]
    assert MACHINE_PATH.findall("see /home/ada/x and /root") == ["/home/ada/x", "/root"]


def test_the_sample_configuration_is_loaded_as_it_is() -> None:
    assert load(str(HOME / "cluster.toml"), {}, {}).path.endswith("cluster.toml")


def test_changelog_knows_this_version() -> None:
    assert f"[{__version__}]" in (HOME / "CHANGELOG.md").read_text("utf-8") or "Unreleased" in (
        HOME / "CHANGELOG.md"
    ).read_text("utf-8")
