"""A node's questions to its machine."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossipq import limits
from gossipq.errors import ConfigError
from gossipq_node import machine


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("", {}, 4),
        ("0::/", {"cpu.max": "max 100000"}, 4),
        ("0::/", {"cpu.max": "250000 100000"}, 2),
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "900000 100000"}, 4),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/not/seen/here", {"cpu.max": "200000 100000"}, 2),
        ("4:cpu,cpuacct:/\n1:memory:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ("4:cpu,cpuacct:/x", {"cpu/x/cpu.cfs_quota_us": "300000", "cpu/x/cpu.cfs_period_us": "100000"}, 3),
    ],
)
def test_workers_follow_affinity_and_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert machine.worker_count(tmp_path, tmp_path / "membership") == cores


def test_what_this_process_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine.measure()
    while machine.measure().cpu_ms < before.cpu_ms + 20:
        pass
    assert limits.MIB < machine.measure().rss_bytes < limits.GIB
    monkeypatch.setattr(machine, "MEMORY", tmp_path / "nothing")
    assert machine.measure().rss_bytes == 0


def test_a_node_is_told_how_many_files_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With less its frontdoor ended again and again."""
    for hard in (-1, machine.FILES_MIN):
        monkeypatch.setattr(machine.resource, "getrlimit", lambda what, hard=hard: (16, hard))
        machine.check_file_limit()
    monkeypatch.setattr(machine.resource, "getrlimit", lambda what: (16, 40))
    with pytest.raises(ConfigError, match=r"may open 40 files here.* needs 256 at least"):
        machine.check_file_limit()


def test_this_machine_has_at_least_one() -> None:
    assert 1 <= machine.worker_count() <= len(os.sched_getaffinity(0))


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield root
    root.handlers, root.level = handlers, level


def test_log_lines_are_json_for_machines(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.open_log("worker-0", True)
    log = logging.getLogger("gossipq_node.actors.worker")
    log.warning("shard %d stops", 3)
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("ends")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["level"], first["process"], first["event"]) == ("warning", "worker-0", "shard 3 stops")
    assert "ValueError: no" in second["trace"]


def test_log_lines_are_text_for_people(
    root_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.open_log("node", False).info("draining")
    assert capsys.readouterr().err.endswith("INFO    node: draining\n")


def test_a_log_for_people_has_nothing_that_a_terminal_obeys() -> None:
    """Anyone who reaches a port can choose names and texts."""
    line = machine.TextLines("worker 0")
    said = logging.LogRecord(
        "post", logging.WARNING, "", 0, "%s says", ("\x1b[2Jeve\nERROR forged\u202e",), None
    )
    text = line.format(said)
    assert text.endswith("WARNING worker 0: \\x1b[2Jeve\\nERROR forged\\u202e says")
    assert text.isprintable()
    try:
        raise ValueError("\x1b[31mred")
    except ValueError:
        failed = logging.LogRecord("post", logging.ERROR, "", 0, "met", (), sys.exc_info())
    assert "\\x1b[31mred" in line.format(failed)
    assert "\x1b" not in line.format(failed)
