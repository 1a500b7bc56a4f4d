"""Every command that asks a node, against a real one."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest

from cli.conftest import Ran
from conftest import RunningNode
from gossipq.wire.ownership import key_of_node
from gossipq_client import Client, connect
from gossipq_client.io import Connecting
from waiting import until

pytestmark = pytest.mark.e2e


def background(endpoint: str, *argv: str, stdout: int | TextIO = subprocess.PIPE) -> subprocess.Popen[str]:
    """A `gossipq` process of its own, for signals and pipes."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, "-m", "gossipq_cli", "-s", endpoint, *argv]
    return subprocess.Popen(line, env=environment, stdout=stdout, stderr=subprocess.PIPE, text=True)


def background_on_terminal(endpoint: str, *argv: str) -> tuple[subprocess.Popen[str], TextIO]:
    """The same with a terminal as stderr, and that terminal for reading."""
    ours, its = os.openpty()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"}
    line = [sys.executable, "-m", "gossipq_cli", "-s", endpoint, *argv]
    process = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=its, text=True)
    os.close(its)
    return process, open(ours)


# --- pub


def test_pub_says_where(ask, topic: str) -> None:
    first, second = ask("pub", topic, "one"), ask("pub", topic, "two")
    assert (first.code, first.err) == (0, f"created topic {topic}\n")
    assert first.out.startswith(f"stored {topic}/0/0  ")
    assert (second.code, second.err) == (0, "")


def test_pub_json(ask, topic: str) -> None:
    row = json.loads(ask("pub", topic, "one", "-o", "json").out)
    assert row == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "ref": f"{topic}/0/0",
        "copies": 1,
        "duplicate": False,
    }


def test_an_empty_stdin_publishes_nothing_unless_asked_to(ask, topic: str) -> None:
    ran = ask("pub", topic)
    assert (ran.code, ran.out) == (1, "")
    assert "nothing was published: stdin was empty" in ran.err
    assert "--empty publishes an empty record" in ran.err
    assert ask("sub", topic, "--create", "--from", "first", "--exit-at-end").out == ""
    assert ask("pub", topic, "--empty").code == ask("pub", topic, "").code == 0
    assert ask("topic", "ls", "-o", "json").code == 0


def test_pub_stdin_is_one_record_as_it_is(ask, topic: str) -> None:
    assert ask("pub", topic, stdin=b"{n}\nb\xff\n").code == 0
    assert ask("sub", topic, "--from", "first", "--exit-at-end", "-f", "%S").out == "7\n"


def test_pub_count_fills_templates(ask, topic: str) -> None:
    ran = ask("pub", topic, "--count", "3", "-k", "key {n}", "m {n}")
    assert ran.out.startswith(f"stored 3 of 3 in {topic}  ")
    assert (
        ask("sub", topic, "--from", "first", "--exit-at-end", "-f", r"%o %k %v\n").out
        == "0 key 0 m 0\n1 key 1 m 1\n2 key 2 m 2\n"
    )


def test_pub_lines(ask, topic: str) -> None:
    row = json.loads(ask("pub", topic, "--lines", "-o", "json", stdin=b"a\r\n\nc").out)
    assert (row["published"], row["confirmed"]) == (3, 3)
    assert ask("sub", topic, "--from", "first", "--exit-at-end").out == "a\n\nc\n"


def test_pub_rate(ask, topic: str) -> None:
    row = json.loads(ask("pub", topic, "--count", "5", "--rate", "100", "m", "-o", "json").out)
    assert row["seconds"] >= 4 / 100


def test_pub_that_is_interrupted_says_how_much_is_stored(shared_node, ask, topic: str) -> None:
    ask("topic", "create", topic)

    def stored() -> int:
        with connect(shared_node.endpoint) as mq:
            return sum(part.next for part in mq.admin.stats([topic]).partitions)

    process = background(shared_node.endpoint, "pub", topic, "{n}", "--count", "100000", "--rate", "50")
    try:
        until(lambda: stored() > 3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    said = re.fullmatch(r"interrupted after (\d+) records: (\d+) stored(?:, (\d+) may be)?\n", err)
    assert process.returncode == 130
    assert said is not None, err
    attempted, certain, open_ones = (int(number or 0) for number in said.groups())
    assert attempted == certain + open_ones
    assert certain <= stored() <= attempted


def test_pub_level_none_promises_nothing(ask, topic: str) -> None:
    assert ask("pub", topic, "one", "--level", "none", "-q").out == f"sent {topic}\n"


def test_pub_too_large_is_refused(ask, topic: str) -> None:
    ran = ask("pub", topic, "-q", stdin=bytes(17 << 20))
    assert (ran.code, ran.out) == (6, "")
    assert ran.err.startswith("error: value of 17825792 bytes; at most 16777216 are allowed\n hint: ")


def test_pub_partly(ask, topic: str) -> None:
    """Records before a bad one are stored; the answer tells their number."""
    ran = ask(
        "pub",
        topic,
        "-k",
        "{n}",
        "--jsonl",
        "-q",
        stdin=b'{"value":"a"}\n{"value":"b","key":"' + b"k" * 5000 + b'"}\n',
    )
    assert ran.code == 3
    assert "stored 1 of 1" in ran.out
    assert "key of 5000 bytes; at most 4096 are allowed" in ran.err


def test_pub_a_bad_line_in_the_middle_says_how_many_were_stored(ask, topic: str) -> None:
    ran = ask("pub", topic, "--jsonl", "-q", stdin=b'{"value":"a"}\n{"value":"b"}\nnonsense\n{"value":"c"}\n')
    assert ran.code == 3
    assert ran.out.startswith(f"stored 2 of 2 in {topic}")
    error, hint = ran.err.splitlines()
    assert error.startswith("error: stopped after 2 records: 2 stored: line 3 of the JSON lines: ")
    assert hint == ' hint: one object a line: {"value": "...", "key": "..."}'
    assert ask("sub", topic, "--from", "first", "--exit-at-end").out == "a\nb\n"


def test_pub_bad_json_line(ask, topic: str) -> None:
    ran = ask("pub", topic, "--jsonl", "-q", stdin=b"nonsense\n")
    assert ran.code == 2
    error, hint = ran.err.splitlines()
    assert error.startswith("error: line 1 of the JSON lines")
    assert hint == ' hint: one object a line: {"value": "...", "key": "..."}'


def test_pub_bad_name(ask) -> None:
    ran = ask("pub", "a/b", "x")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: topic name 'a/b'")


# --- sub


def test_what_sub_writes_pub_reads(ask, topic: str) -> None:
    ask("pub", topic, "-k", "ada", "-H", "from:shop", "17 apples")
    lines = ask("sub", topic, "--from", "first", "--exit-at-end", "-o", "jsonl").out
    row = json.loads(lines)
    assert {name: row[name] for name in ("topic", "partition", "offset", "key", "value", "headers")} == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "key": "ada",
        "value": "17 apples",
        "headers": {"from": "shop"},
    }
    copy = f"{topic}-copy"
    assert ask("pub", copy, "--jsonl", stdin=lines.encode()).code == 0
    assert ask("sub", copy, "--from", "0", "-n", "1", "-f", "%k|%v|%h").out == "ada|17 apples|from:shop\n"


def test_sub_from_offset_and_time(ask, topic: str) -> None:
    ask("pub", topic, "--count", "5", "{n}")
    assert ask("sub", topic, "--from", "3", "--exit-at-end").out == "3\n4\n"
    assert ask("sub", topic, "--from", "-10m", "-n", "1").out == "0\n"
    assert ask("sub", topic, "--from", "2026-01-01T00:00Z", "-n", "1").out == "0\n"
    assert ask("sub", topic, "--from", "2126-01-01 00:00", "--exit-at-end").out == ""
    assert ask("sub", topic, "--from", "new", "--exit-at-end").out == ""
    ran = ask("sub", topic, "--from", "first", "-n", "0", "--exit-at-end")
    assert (ran.code, ran.out) == (0, "0\n1\n2\n3\n4\n"), "0: no limit"


def test_sub_ends_early_is_a_no(ask, topic: str) -> None:
    ask("pub", topic, "one")
    ran = ask("sub", topic, "--from", "first", "-n", "2", "--exit-at-end")
    assert (ran.code, ran.out) == (1, "one\n")


def test_sub_wrong_start(ask, topic: str) -> None:
    for wrong in ("banana", "-10parsecs"):
        ran = ask("sub", topic, "--from", wrong)
        assert ran.code == 2
        error, hint = ran.err.splitlines()
        assert error == f"error: invalid --from '{wrong}'"
        assert (
            hint
            == " hint: pass first, new, an offset, a time like 2026-11-21T09:00Z, or a time back like -10m"
        )


def test_sub_to_the_end_of_an_unknown_topic(ask, topic: str) -> None:
    ask("pub", topic, "one")
    ran = ask("sub", topic, f"{topic}-typo", "--exit-at-end")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.startswith(f"error: no topic {topic}-typo; did you mean `{topic}`?\n hint: ")
    assert ask("topic", "ls", f"{topic}-*").out == ""
    assert ask("sub", f"{topic}-*", "--exit-at-end").code == 0


def test_sub_makes_no_topic_by_itself(ask, shared_node, topic: str) -> None:
    ask("pub", topic, "one")
    ran = ask("sub", f"{topic}x", "-n", "1")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err == (
        f"error: no topic {topic}x; did you mean `{topic}`?\n"
        f" hint: `gossipq -s {shared_node.endpoint} topic ls` lists topics; with `--create` it is made, and "
        "waited for\n"
    )
    assert ask("topic", "ls", f"{topic}x").out == ""


def test_sub_waits_for_the_first_alarm(node, gossipq) -> None:
    ran = gossipq("-s", node.endpoint, "sub", "_alarms", "--from", "-1d", "--exit-at-end")
    assert (ran.code, ran.out, ran.err) == (0, "", "no alarm was raised yet\n")
    process = background(node.endpoint, "sub", "_alarms", "-n", "1", "--from", "first")
    try:
        assert process.stderr is not None
        assert (
            process.stderr.readline() == "no alarm was raised yet: waiting for the first one; Ctrl-C ends\n"
        )
        with Client(Connecting.to(node.endpoint, "a node", 5.0, key_of_node(node.token(), bytes(16)))) as mq:
            mq.create_topic("_alarms")
            mq.publish("_alarms", "low disk", timeout=30)
        out, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert out == "low disk\n"


def test_sub_of_an_unknown_topic_says_that_it_is_made(shared_node, ask, topic: str) -> None:
    process = background(shared_node.endpoint, "sub", topic, "--create", "-n", "1")
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == f"created topic {topic}\n"
        assert ask("pub", topic, "one").err == ""
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (0, "one\n", "")


def test_sub_of_a_bad_name_says_only_that(ask) -> None:
    assert ask("sub", "a/b").code == 4
    ran = ask("sub", "a/b", "--create")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: topic name 'a/b'")


def test_sub_of_a_paused_group_says_why_nothing_comes(shared_node, ask, topic: str) -> None:
    ask("pub", topic, "--count", "2", "{n}")
    assert ask("sub", topic, "-g", "team", "-n", "1").code == 0
    ask("group", "pause", topic, "team")
    process = background(shared_node.endpoint, "sub", topic, "-g", "team", "--exit-at-end")
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said.startswith(f"group team is paused on {topic}: nothing comes before `")
        assert ask(*said.split("`")[1].split()[1:]).code == 0
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (0, "1\n", "")


def test_sub_says_on_a_terminal_that_it_waits(shared_node, ask, topic: str) -> None:
    ask("pub", topic, "old")
    process, screen = background_on_terminal(shared_node.endpoint, "sub", topic)
    try:
        assert screen.readline() == f"waiting for records of {topic}; Ctrl-C ends\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    finally:
        process.kill()
        process.wait()
        screen.close()


def test_sub_with_a_group_acks_what_it_printed(ask, topic: str) -> None:
    ask("pub", topic, "--count", "10", "{n}")
    assert ask("sub", topic, "-g", "team", "-n", "4").out == "0\n1\n2\n3\n"
    row = json.loads(ask("group", "lag", topic, "-o", "json").out)[0]
    assert (row["group"], row["lag"], row["acked"]) == ("team", 6, 4)
    assert ask("sub", topic, "-g", "team", "--exit-at-end").out == "4\n5\n6\n7\n8\n9\n"
    assert json.loads(ask("group", "lag", topic, "-o", "json").out)[0]["lag"] == 0


def test_sub_follows_and_ctrl_c_is_130(shared_node, ask, topic: str) -> None:
    ask("pub", topic, "old")
    process = background(shared_node.endpoint, "sub", topic, "--from", "first")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "old\n"
        ask("pub", topic, "fresh")
        assert process.stdout.readline() == "fresh\n"
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, rest, err.strip()) == (130, "", "")


def test_sub_into_a_closed_pipe_is_silent(shared_node, ask, topic: str) -> None:
    ask("pub", topic, "--count", "20000", "{n}")
    process = background(shared_node.endpoint, "sub", topic, "-g", "team", "--exit-at-end")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    assert process.wait(timeout=20) == 1
    assert process.stderr.read() == ""
    process.stderr.close()


def test_sub_to_a_full_disk_says_so_and_the_record_has_not_failed(shared_node, ask, topic: str) -> None:
    ask("pub", topic, "one")
    line = ("-g", "team", "--attempts-max", "1", "--exit-at-end")
    with open("/dev/full", "w") as full:
        process = background(shared_node.endpoint, "sub", topic, *line, stdout=full)
    with process:
        assert process.wait(timeout=20) == 1
        assert process.stderr is not None
        assert process.stderr.readline() == "error: No space left on device\n"
    assert ask("sub", topic, *line).out == "one\n"


# --- topic and group


def test_topic_create_ls_show_rm(ask, topic: str) -> None:
    assert (
        ask("topic", "create", topic, "-p", "3", "--retention", "2h", "--bytes-max", "1MiB").out
        == f"topic {topic} has 3 partitions\n"
    )
    shown = json.loads(ask("topic", "show", topic, "-o", "json").out)
    assert shown["config"]["retention_ms"] == 7_200_000
    assert shown["config"]["bytes_max"] == 1 << 20
    assert [part["partition"] for part in shown["partitions"]] == [0, 1, 2]
    assert ask("topic", "ls", topic, "-o", "names").out == f"{topic}\n"
    head, row = ask("topic", "ls", topic).out.splitlines()
    assert head.split() == ["topic", "partitions", "records", "bytes", "published", "retention"]
    assert row.split() == [topic, "3", "0", "0", "B", "0", "2h"]
    gone = ask("topic", "rm", topic, "--yes")
    assert (gone.code, gone.out, gone.err) == (0, "", f"topic {topic} removed\n")
    assert ask("topic", "ls", topic).out == ""


def test_topic_conflict_and_not_found(ask, topic: str) -> None:
    ask("topic", "create", topic)
    again = ask("topic", "create", topic)
    assert again.code == 5
    assert again.err.startswith(f"error: topic {topic} exists\n hint: ")
    assert ask("topic", "create", topic, "--if-not-exists").code == 0
    for line in (("show", "nowhere"), ("rm", "nowhere", "--yes")):
        ran = ask("topic", *line)
        assert ran.code == 4
        assert "nowhere" in ran.err.splitlines()[0]


def test_topic_show_for_people(ask, topic: str) -> None:
    ask("topic", "create", topic, "--retention", "7d")
    shown = ask("topic", "show", topic).out.partition("\n\n")[0]
    fields = dict(line.partition(" ")[::2] for line in shown.splitlines())
    assert (fields["retention"].strip(), fields["bytes_max"].strip()) == ("7d", "none")
    assert "retention_ms" not in fields


def test_topic_rm_looks_before_it_asks(ask, topic: str) -> None:
    ask("topic", "create", topic)
    ran = ask("topic", "rm", topic)
    assert ran.code == 2
    assert ran.err.startswith(f"error: removing topic {topic} needs --yes when nobody can be asked\n hint: ")
    assert ask("topic", "rm", "nowhere").err.startswith("error: no topic nowhere\n")
    assert ask("topic", "ls", topic, "-o", "names").out == f"{topic}\n"


def test_topic_rm_partly(ask, topic: str) -> None:
    ask("topic", "create", topic)
    ran = ask("topic", "rm", topic, "nowhere", "--yes")
    assert ran.code == 3
    assert "1 of 2 removed" in ran.err


def test_group_ls_and_lag(ask, topic: str) -> None:
    ask("pub", topic, "--count", "5", "m")
    ask("sub", topic, "-g", "team", "-n", "2")
    head, row = ask("group", "ls", topic).out.splitlines()
    assert head.split() == ["group", "topic", "partitions", "consumers", "lag", "dead"]
    assert row.split() == ["team", topic, "1", "0", "3", "0"]
    assert len(ask("group", "lag", topic, "--partitions").out.splitlines()) == 2
    assert ask("group", "lag", topic, "-g", "nobody").code == 4
    assert ask("group", "lag", "nowhere").code == 4


def test_no_groups(ask, topic: str) -> None:
    ask("topic", "create", topic)
    for line in (("ls", topic), ("lag", topic), ("lag", topic, "--partitions")):
        ran = ask("group", *line)
        assert (ran.code, ran.out) == (0, "")
        assert ran.err == f"no groups on {topic}; one is made by gossipq sub {topic} -g NAME\n"
    assert ask("group", "ls", "nowhere").code == 4


# --- status


def test_status(ask) -> None:
    ran = ask("status")
    assert ran.code == 0
    assert "healthy: 32 shards, each with a leader and all its copies" in ran.out
    status = json.loads(ask("status", "-o", "json").out)
    assert status["healthy"] is True
    assert [worker["state"] for worker in status["workers"]] == ["ready", "ready"]
    assert len(status["routes"]) == 32


def test_nobody_there(gossipq) -> None:
    ran = gossipq("-s", "tcp://127.0.0.1:1", "--timeout", "300ms", "status")
    assert (ran.code, ran.out) == (69, "")
    assert ran.err.startswith(
        "error: no node answers at tcp://127.0.0.1:1: nothing listens on that port\n hint: "
    )
    assert "gossipq node" in ran.err


def test_wait_healthy_times_out(gossipq) -> None:
    ran = gossipq("-s", "tcp://127.0.0.1:1", "status", "--wait-healthy", "300ms", "-o", "json")
    assert ran.code == 75
    assert json.loads(ran.err)["error"]["code"] == "timed_out"


def test_wait_healthy_waits_for_a_node_that_is_not_up_yet(make_node: Callable, gossipq) -> None:
    node = make_node()
    process = background(node.endpoint, "status", "--wait-healthy", "30", "-o", "json")
    node.start()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["healthy"] is True


# --- bench


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (("pub", "--records", "3000"), ("published_per_s",)),
        (("pub", "--records", "3000", "--batch", "1"), ("published_per_s",)),
        (("sub", "--records", "3000"), ("consumed_per_s",)),
        (("sub", "--records", "3000", "--batch", "1"), ("consumed_per_s",)),
        (
            ("e2e", "--records", "3000", "--marks", "1000", "--retention", "0", "--ahead", "1000"),
            ("published_per_s", "end_to_end_per_s", "marks_s"),
        ),
        (("rtt", "--records", "20"), ("confirmed_one_at_a_time_per_s", "p50_ms", "p99_ms")),
    ],
    ids=" ".join,
)
def test_bench(ask, line: tuple[str, ...], fields: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    ran = ask("bench", *line, "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    row = json.loads(ran.out.splitlines()[-1])
    assert set(row) == {"records", "batch", "size", *fields}
    assert all(row[name] > 0 for name in fields if name != "marks_s")
    assert not [name for name in ask("topic", "ls", "-o", "names").out.split() if name.startswith("bench-")]


def test_bench_load(ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hdrh", reason="hdrhistogram is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    line = ("bench", "load", "--rate", "2k", "--batch", "20", "--for", "0.3s", "--size", "8")
    ran = ask(*line, "--histogram", str(tmp_path / "seen"), "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    row = json.loads(ran.out.splitlines()[-1])
    assert (row["records"], row["batch"], row["offered_per_s"]) == (600, 20, 2_000)
    assert 0 < row["published_per_s"] <= 2_000, "nothing is sent before it is due"
    for kind in ("confirm", "delivery"):
        told = [row[f"{kind}_{name}_ms"] for name in ("p50", "p90", "p99", "p999", "max")]
        assert told == sorted(told)
        assert told[0] > 0
        assert "TotalCount     =      600.000" in (tmp_path / f"seen.{kind}.hgrm").read_text()


def test_bench_load_needs_room_for_a_time(ask) -> None:
    ran = ask("bench", "load", "--rate", "10", "--size", "7")
    assert (ran.code, ran.out) == (2, "")
    assert "--size of at least 8" in ran.err


def test_bench_says_on_a_terminal_what_it_does(shared_node) -> None:
    process, screen = background_on_terminal(shared_node.endpoint, "bench", "pub", "--records", "1000")
    try:
        assert screen.readline() == "measuring with 1,000 records of 100 B\n"
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
        screen.close()


def test_bench_keeps_a_topic_that_was_named(ask, topic: str) -> None:
    assert "published" in ask("bench", "pub", "--records", "1000", "--topic", topic).out
    assert ask("topic", "ls", topic, "-o", "names").out == f"{topic}\n"


# --- node, store


def test_node_and_store(make_node: Callable, gossipq) -> None:
    node = make_node().start()
    gossipq("-s", node.endpoint, "pub", "orders", "--count", "100", "m")
    data = ("--data", str(node.data))
    busy = gossipq("store", "info", *data)
    assert busy.code == 1
    assert busy.err.startswith("error: ")
    node.stop()
    info = json.loads(gossipq("store", "info", *data, "-o", "json").out)
    assert info["manifest"]["workers"] == 2
    told = gossipq("store", "info", *data).out
    assert told.splitlines()[-1].split()[0] == "1"
    assert "{'" not in told, "what has parts has a line for each, or none"
    verified = gossipq("store", "verify", *data)
    assert verified.code == 0
    assert verified.out.endswith("100 records, " + verified.out.split("100 records, ")[1])
    assert "none damaged" in verified.out
    assert gossipq("store", "reshard", "--workers", "1", *data).code == 0
    assert json.loads(gossipq("store", "verify", *data, "-o", "json").out)["records"] == 100


def test_a_copied_directory_runs_when_adopted(make_node: Callable, gossipq) -> None:
    node, copy = make_node().start(), make_node()
    gossipq("-s", node.endpoint, "pub", "orders", "--count", "10", "{n}")
    node.stop()
    shutil.copytree(node.data, copy.data)
    refused = gossipq("node", "--data", str(copy.data), "--bind", copy.endpoint)
    assert refused.code == 1
    hint = refused.err.splitlines()[-1]
    assert hint.endswith(f"gossipq store adopt --data {copy.data}")
    ran = gossipq(*hint.rpartition("gossipq ")[2].split())
    assert (ran.code, ran.err) == (0, "")
    copy.start()
    assert gossipq("-s", copy.endpoint, "sub", "orders", "--from", "first", "--exit-at-end").out.split() == [
        *"0123456789"
    ]


def test_store_of_nothing(gossipq, tmp_path: Path) -> None:
    assert gossipq("store", "info", "--data", str(tmp_path / "none")).code == 1


def test_gossipq_node_runs_and_drains(tmp_path: Path, gossipq) -> None:
    from gossipq_cli.demo.stage import free_port

    endpoint = f"tcp://127.0.0.1:{free_port(1)}"
    process = background(
        endpoint, "node", "--data", str(tmp_path / "data"), "--bind", endpoint, "--workers", "1"
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready in ")
        assert gossipq("-s", endpoint, "status", "--wait-healthy", "10").code == 0
        process.terminate()
        process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0


@pytest.mark.parametrize(
    "flags", [("--bind", "tcp://0.0.0.0:7700"), ("--bind", "nonsense"), ("--config", "nowhere.toml")]
)
def test_gossipq_node_with_bad_options(gossipq, tmp_path: Path, flags: tuple[str, str]) -> None:
    ran = gossipq("node", "--data", str(tmp_path / "data"), *flags)
    assert ran.code == 78
    assert ran.err.startswith("error: ")
    assert " hint: " in ran.err


# --- demo


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Enough lines that the consumers are in the middle of them when one is killed."""
    directory = tmp_path / "sources"
    directory.mkdir()
    for number in range(60):
        (directory / f"module_{number}.py").write_text(
            "".join(f"line {line} of {number}\n" for line in range(500))
        )
    return directory


def leftovers(scratch: Path) -> list[str]:
    """Processes that speak of a demo's directory."""
    return [
        path.name
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and bytes(scratch) in cmdline(path)
    ]


def cmdline(path: Path) -> bytes:
    try:
        return (path / "cmdline").read_bytes()
    except OSError:
        return b""


def demo(tmp_path: Path, sources: Path, *argv: str) -> subprocess.Popen[str]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(scratch)}
    line = [sys.executable, "-m", "gossipq_cli", "demo", "--source", str(sources), *argv]
    return subprocess.Popen(
        line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )


def test_demo(tmp_path: Path, sources: Path) -> None:
    process = demo(tmp_path, sources, "-o", "json")
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    row = json.loads(out.splitlines()[-1])
    assert set(row) == {
        *(
            "published",
            "confirmed",
            "delivered",
            "acked",
            "lost",
            "duplicated",
            "takeovers",
            "takeover_ms_max",
            "pause_ms_max",
            "seconds",
        )
    }
    assert (
        row["published"] == row["confirmed"] == row["acked"] == row["delivered"] - row["duplicated"] == 30_000
    )
    assert row["lost"] == row["takeovers"] == 0
    assert "half way: kill -9 " in err
    assert list((tmp_path / "scratch").iterdir()) == []
    assert leftovers(tmp_path / "scratch") == []


@pytest.mark.slow
def test_demo_of_three_nodes(tmp_path: Path, sources: Path) -> None:
    """A leader is killed and comes back, a fourth node takes its share."""
    process = demo(tmp_path, sources, "--nodes", "3", "-o", "json")
    out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    row = json.loads(out.splitlines()[-1])
    assert (
        row["published"] == row["confirmed"] == row["acked"] == row["delivered"] - row["duplicated"] == 30_000
    )
    assert row["lost"] == 0
    assert row["takeovers"] > 0
    assert 0 < row["takeover_ms_max"] < 30_000
    assert sum(row["led"].values()) == 32
    assert row["led"]["node-4"] >= 7
    assert "starts again, as a follower" in err
    assert list((tmp_path / "scratch").iterdir()) == []
    assert leftovers(tmp_path / "scratch") == []


def test_demo_killed_leaves_no_process(tmp_path: Path, sources: Path) -> None:
    """kill -9 of the demo itself: node and consumers notice and end; only the directory stays."""
    process = demo(tmp_path, sources)
    assert process.stderr is not None
    while "half way" not in process.stderr.readline():
        assert process.poll() is None, "the demo ended before it could be killed"
    process.kill()
    process.communicate(timeout=60)  # its stderr ends when the last of its children has
    deadline = time.monotonic() + 30
    while leftovers(tmp_path / "scratch"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_interrupted_leaves_nothing(tmp_path: Path, sources: Path, number: signal.Signals) -> None:
    process = demo(tmp_path, sources)
    assert process.stderr is not None
    while "half way" not in (line := process.stderr.readline()):
        assert line, "the demo ended before anything could be interrupted"
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if number is signal.SIGINT else 128 + number)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert leftovers(tmp_path / "scratch") == []


def test_schemas(ask, topic: str, tmp_path) -> None:
    file = tmp_path / "order.json"
    file.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}')
    assert ask("topic", "schema", "set", topic, str(file)).code == 4, "no such topic"
    ask("pub", topic, "not so")
    assert (ask("topic", "schema", "show", topic).code, ask("topic", "schema", "check", topic).code) == (4, 4)
    checked = ask("topic", "schema", "check", topic, str(file))
    assert checked.code == 1
    assert f"{topic}/0/0: JSON is malformed" in checked.out
    assert "0 of 1 record fit" in checked.out
    assert ask("topic", "schema", "show", topic).code == 4, "nothing was declared"
    assert f"topic {topic} has schema version 1" in ask("topic", "schema", "set", topic, str(file)).out
    refused = ask("pub", topic, '{"n": "x"}')
    assert (refused.code, "Expected `int`, got `str` - at `$.n`" in refused.err) == (6, True)
    assert ask("pub", topic, '{"n": 1}').code == 0
    assert f"its value does not fit schema version 1 of {topic}" in ask("why", f"{topic}/0/0").out
    assert "schema" not in ask("why", f"{topic}/0/1").out
    assert "1 of 2 records fit" in ask("topic", "schema", "check", topic, "--last", "5").out
    assert json.loads(ask("topic", "schema", "show", topic).out) == json.loads(file.read_text())
    listed = json.loads(ask("-o", "json", "topic", "schema", "ls").out)
    assert {"topic": topic, "version": 1, "fields": ["n"]} in listed
    file.write_text('{"type": "object", "properties": {"m": {"type": "integer"}}}')
    assert "$.n: is gone" in ask("topic", "schema", "set", topic, str(file)).err
    file.write_text("{")
    assert "the schema is not JSON" in ask("topic", "schema", "set", topic, str(file)).err
    assert ask("--yes", "topic", "schema", "rm", topic).code == 0
    assert ask("pub", topic, "anything").code == 0


# --- what somebody at a terminal is asked


class Teletype:
    """A `gossipq` process with a terminal for all that it reads and writes."""

    def __init__(self, endpoint: str, *argv: str) -> None:
        self._ours, its = os.openpty()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"}
        line = [sys.executable, "-m", "gossipq_cli", "-s", endpoint, *argv]
        self.process = subprocess.Popen(line, env=environment, stdin=its, stdout=its, stderr=its)
        os.close(its)
        self.seen = ""

    def sees(self, text: str) -> None:
        end = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self._ours], [], [], 0.1)[0]:
                self.seen += os.read(self._ours, 65_536).decode(errors="replace").replace("\r\n", "\n")

    def types(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


def test_who_would_take_work_from_consumers_is_asked_first(shared_node, topic: str) -> None:
    """Somebody who only wants to look acks nothing of production by a mistake."""
    endpoint = shared_node.endpoint
    with connect(endpoint) as mq:
        mq.create_topic(topic, partitions=1)
        with mq.subscribe(topic, group="billing", credit=1):
            until(lambda: any(row.consumers for row in mq.topic(topic).groups()))
            mq.publish(topic, "17 apples", timeout=10)
            asked = Teletype(endpoint, "sub", topic, "-g", "billing")
            try:
                asked.sees(
                    "billing has consumers: what is printed here is acked, and they never get it. Continue?"
                )
                asked.sees(f"gossipq peek {topic} -g billing")
                asked.types("n\n")
                assert asked.process.wait(60) == 130
            finally:
                asked.close()
            assert "17 apples" not in asked.seen
        until(lambda: not any(row.consumers for row in mq.topic(topic).groups()))
        alone = Teletype(endpoint, "sub", topic, "-g", "billing", "-n", "1")
        try:
            alone.sees("17 apples")
            assert "Go on?" not in alone.seen, "nobody is there whom it could take it from"
        finally:
            alone.close()


def test_a_copy_does_not_take_the_place_of_a_node_that_runs(
    shared_node: RunningNode, gossipq: Callable[..., Ran], tmp_path: Path
) -> None:
    """Both would count as one node, and records that one of them confirms would be lost."""
    until(lambda: (shared_node.data / "roster.json").exists())
    copy = tmp_path / "copy"
    shutil.copytree(shared_node.data, copy, ignore=shutil.ignore_patterns("stores", "gossip"))
    refused = gossipq("store", "adopt", "--data", str(copy))
    assert refused.code == 5
    assert f"a node answers at {shared_node.endpoint}, where the original of {copy} ran" in refused.err
    assert "--force" in refused.err
    assert gossipq("store", "adopt", "--data", str(copy), "--force").code == 0
