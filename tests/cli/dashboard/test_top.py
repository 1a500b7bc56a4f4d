"""`gossipq top` as a command: without a terminal, from a recording, and what it says when something is
wrong."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gossipq.errors import Unreachable
from gossipq.messages import StatusReply
from gossipq_cli import ask
from gossipq_cli.commands import top
from gossipq_cli.dashboard.recordings import Recording
from gossipq_cli.dashboard.state import VIEWS
from gossipq_cli.dashboard.views.topics import by_name
from gossipq_cli.options import Choices
from gossipq_ops.figures import GRAPHS


def test_what_the_command_knows_without_importing_the_dashboard_is_so() -> None:
    assert (top.VIEWS, top.GRAPHS) == (VIEWS, GRAPHS)


def test_other_nodes_are_reached_while_the_one_that_was_named_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By what it told last of them, as which of them encrypts."""
    status = StatusReply("ada", "shop", b"", "1", "serf", 1, 1, 1, [], [], members=[])
    answers = iter([status, Unreachable("away")])

    def asked(choices: Choices) -> StatusReply:
        if isinstance(said := next(answers), Unreachable):
            raise said
        return said

    monkeypatch.setattr(ask, "status", asked)
    monkeypatch.setattr(ask, "connect", lambda choices: choices.servers)
    connect = top._connector(Choices(servers=["tcp://ada:7700"]))
    assert [connect("tcp://bob:7700"), connect("tcp://bob:7700")] == [["tcp://bob:7700"]] * 2


@pytest.fixture
def file(recording) -> str:
    return str(recording.FILE)


@pytest.mark.parametrize("view", VIEWS)
def test_a_pipe_gets_plain_text(gossipq, file: str, view: str) -> None:
    ran = gossipq("top", "--replay", file, "--view", view)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(" gossipq  shop ✖ 2/3 nodes")
    assert "\x1b" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 120


def test_size_and_what_is_opened(gossipq, file: str) -> None:
    ran = gossipq("top", "topics", "--open", "orders", "--replay", file, "--size", "80x24")
    assert "node-c +960 ✖" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    ran = gossipq("top", "groups", "--open", "orders", "--open", "billing", "--replay", file)
    assert "billing on orders" in ran.out


@pytest.mark.parametrize("line", [("-o", "json"), ("--once", "-o", "json")])
def test_json_has_every_field(gossipq, file: str, line: tuple[str, ...]) -> None:
    ran = gossipq("top", "--replay", file, *line)
    found = json.loads(ran.out)
    assert found["nodes"][2]["state"] == "failed"
    assert found["groups"][0]["retrying"] == 0, "also what has its default"
    assert found["shards"][0]["copies"][0] == {
        "node": "node-a",
        "role": "leader",
        "lag": 0,
        "reachable": True,
    }


def test_a_picture(gossipq, file: str, tmp_path: Path) -> None:
    target = tmp_path / "top.svg"
    ran = gossipq("top", "--replay", file, "--svg", str(target), "--size", "120x40")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert target.read_text("utf-8").startswith("<svg")


def test_a_picture_is_whole_or_not_there(
    gossipq, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    target = tmp_path / "top.svg"
    target.write_text("the one before")
    monkeypatch.setattr(os, "fsync", full)
    ran = gossipq("top", "--replay", file, "--svg", str(target))
    assert (ran.code, ran.err.splitlines()[0]) == (1, f"error: {target}: No space left on device")
    assert [(path, path.read_text()) for path in tmp_path.glob("top*")] == [(target, "the one before")]


def test_ascii_only(gossipq, file: str) -> None:
    ran = gossipq("top", "growth", "--graph", "ascii", "--replay", file)
    assert not re.search("[▁▂▃▄▅▆▇█]", ran.out)


@pytest.mark.parametrize(
    ("line", "code", "says", "hint"),
    [
        (
            ("top", "nods"),
            2,
            "no view 'nods'; did you mean `nodes`?",
            "`gossipq top --help` shows what it takes",
        ),
        (("top", "xyzzy"), 2, "no view 'xyzzy'; there are overview, nodes", ""),
        (("top", "nodes", "--view", "topics"), 2, "name one view", ""),
        (
            ("top", "--size", "20x5"),
            2,
            "Invalid value for '--size': '20x5'; write COLUMNSxLINES, from 60x20",
            "",
        ),
        (("top", "--size", "wide"), 2, "Invalid value for '--size': 'wide'", ""),
        (("top", "--interval", "10ms"), 2, "Invalid value for '--interval': 0.01 s; from 0.5 s to 10 s", ""),
        (("top", "groups", "--open", "a"), 2, "Invalid value for '--open': twice for a group", ""),
        (("top", "growth", "--open", "a"), 2, "Invalid value for '--open': nothing opens in growth", ""),
        (("top", "--replay", "missing.jsonl"), 2, "Invalid value for '--replay'", ""),
    ],
)
def test_wrong_lines(gossipq, line: tuple[str, ...], code: int, says: str, hint: str) -> None:
    ran = gossipq(*line)
    assert (ran.code, ran.out) == (code, "")
    error, told = ran.err.splitlines()
    assert error.startswith(f"error: {says}")
    assert told.startswith(f" hint: {hint}")


def test_a_file_that_is_no_recording(gossipq, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("hello\n")
    ran = gossipq("top", "--replay", str(file))
    assert ran.code == 2
    assert ran.err.splitlines() == [
        f"error: {file}: line 1 is no snapshot: JSON is malformed: invalid character (byte 0)",
        " hint: `gossipq top --record FILE` makes one",
    ]


def test_no_node(gossipq) -> None:
    ran = gossipq("-s", "tcp://127.0.0.1:1", "--timeout", "200ms", "top", "--once")
    assert (ran.code, ran.out) == (69, "")
    assert (
        ran.err.splitlines()[0] == "error: no node answers at tcp://127.0.0.1:1: nothing listens on that port"
    )


# --- against a node


def test_a_node(ask, topic: str) -> None:
    ask("topic", "create", topic, "-p", "2")
    ask("pub", topic, "--count", "7", "m {n}")
    ask("sub", topic, "-g", "billing", "-n", "3")
    found = json.loads(ask("top", "-o", "json").out)
    parts = [part for part in found["partitions"] if part["topic"] == topic]
    assert sum(part["published"] for part in parts) == 7
    (group,) = {part["group"] for part in found["groups"] if part["topic"] == topic}
    assert group == "billing"
    assert sum(part["acked"] for part in found["groups"] if part["topic"] == topic) == 3
    node = found["nodes"][0]
    assert (node["state"], node["leading"], found["shards_led"]) == ("ready", 32, 32)
    assert {shard["leader"] for shard in found["shards"]} == {node["name"]}
    pids = {worker["pid"] for worker in found["workers"]}
    assert {shard["pid"] for shard in found["shards"]} == pids
    assert len(pids) == 2


def test_messages_of_a_node(ask, topic: str) -> None:
    ask("pub", topic, "-k", "ada", "17 \x1b[31mapples")
    ask("pub", topic, "3 pears")
    ask("sub", topic, "-g", "billing", "-n", "1")
    ran = ask("top", "messages", "--topic", topic, "--interval", "500ms")
    assert re.search(r"0 +0 +[\d:.]+ +ada +14B +17 \\x1b\[31mapples", ran.out), ran.out
    opened = ask("top", "messages", "--open", f"{topic}/0/0", "--interval", "500ms").out
    assert "billing: acked" in opened
    assert "+0 ms published" in opened
    group = ask("top", "groups", "--open", topic, "--open", "billing", "--interval", "500ms").out
    assert "partition 0: no consumer" in group


def test_what_a_node_refuses_is_an_error_of_the_command(ask, topic: str) -> None:
    ask("pub", topic, "one")
    ran = ask("top", "messages", "--open", f"{topic}/0/99", "--interval", "500ms")
    assert (ran.code, ran.out) == (1, "")
    assert "offset 99 has no record yet" in ran.err
    ran = ask("top", "messages", "--topic", "nothing-of-that-name", "--interval", "500ms")
    assert (ran.code, ran.err.splitlines()[0]) == (1, "error: no topic nothing-of-that-name")


def test_a_recording_needs_no_terminal(shared_node, tmp_path: Path) -> None:
    """It goes on until it is told to end; what changes slowly is in it once."""
    file = tmp_path / "night.jsonl"
    line = [sys.executable, "-m", "gossipq_cli", "-s", shared_node.endpoint]
    process = subprocess.Popen(
        [*line, "top", "--record", str(file), "--interval", "0.5"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        end = time.monotonic() + 60
        while not file.exists() or len(file.read_bytes().splitlines()) < 4:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    lines = file.read_bytes().splitlines()
    assert {found.state for found in Recording(file.read_bytes())} <= {"healthy", ""}
    assert len(lines[3]) < len(lines[0]) / 2, "only what changed"


def test_what_nodes_write_comes_last() -> None:
    names = ["orders", "_alarms", "mails", "_audit"]
    assert sorted(names, key=by_name) == ["mails", "orders", "_alarms", "_audit"]
