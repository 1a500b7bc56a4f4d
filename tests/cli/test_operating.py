"""The operator's verbs: what they ask of the client, what they print, and how each error ends."""

import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossipq import alarms, errors
from gossipq.messages import StatsReply, StatusReply
from gossipq.operator_messages import GroupShown
from gossipq.permissions import digest
from gossipq.types import partition_key
from gossipq.values import (
    AccessChange,
    AccessTable,
    Alarm,
    ClientRow,
    ConfigRow,
    Consuming,
    CopyStats,
    Credential,
    FlowRow,
    GroupConfig,
    GroupStats,
    Lead,
    Member,
    SoughtRow,
    TopicConfig,
    TopicInfo,
    User,
    WorkerStats,
)
from gossipq_cli.failures import Failure
from gossipq_client.io.contexts import read_credentials
from ports import settled_port

KEY = partition_key(7, 0)
DISK_FIGURES = "store_bytes=4096B;; commit_us=700us;100000;"
ORDERS = TopicInfo(7, "orders", 2, TopicConfig(), [1])
ALARM = Alarm(
    "lag", "warning", "ada", "orders/billing", "group billing on orders is 9 records behind", "gossipq why", 5
)
SESSION = bytes(range(0xA0, 0xB0))


def group(**more: int) -> GroupStats:
    row = {
        "cursor": 3,
        "ready": 4,
        "in_flight": 1,
        "acked": 3,
        "removed": 0,
        "consumers": 1,
        "redelivered": 0,
    } | more
    return GroupStats(KEY, "orders", "billing", **row)


def worker(state: str = "ready", detail: str = "") -> WorkerStats:
    return WorkerStats(0, 99, "tcp://x", state, 0, 32, 1, 10, 9, 8, 0, 0, 100, 50, 700, 4096, detail)


def status(*workers: WorkerStats, led: int = 32) -> StatusReply:
    copies = [CopyStats(shard, 1, "c1", "leader", 1, 0, 0, True) for shard in range(led)]
    return StatusReply(
        *("ada", "shop", bytes(16), "0.1.0", "standalone", 1_000, 32, led, list(workers or [worker()]), []),
        copy="c1",
        members=[Member("c1", "ada", "tcp://x", 1)],
        leads=[Lead(shard, 1, "c1") for shard in range(led)],
        copies=copies,
    )


@pytest.fixture
def asked(client: Any) -> Any:
    """A client that knows orders and its group billing."""
    client.answers |= {
        "topics": [ORDERS],
        "stats": StatsReply([], [group()]),
        "status": status(),
        "alarms": [],
        "topic.configure": ORDERS,
        "group.configure": None,
        "topic.purge": 12,
        "group.delete": 1,
        "group.seek": [SoughtRow(KEY, 3, 0, 3, 0)],
        "group.describe": GroupShown(
            GroupConfig(),
            [
                ("mode", "shared", "group"),
                ("lease_ms", "30000", "cluster"),
                ("alarm_lag", "0", "none"),
                ("group_idle_ms", "0", "none"),
            ],
            ["ada/a0"],
        ),
        "clients": [
            ClientRow(
                SESSION,
                "ada",
                "0.1.0",
                "n1",
                0,
                1,
                60_000,
                20,
                7,
                700,
                7_000,
                [Consuming("orders", "billing", 1, 9, 9, 4)],
            ),
            ClientRow(SESSION, "ada", "0.1.0", "n1", 1, 1, 50_000, 10, 0, 0, 0, []),
        ],
        "kick": 2,
        "running_config": [ConfigRow("node.bind", '"tcp://x"', "flag --bind")],
    }
    return client


# --- topic


def test_topic_set_takes_what_create_takes(gossipq: Callable[..., Any], asked: Any) -> None:
    ran = gossipq("topic", "set", "orders", "--retention", "1d", "--alarm-lag", "100")
    assert (ran.code, ran.out) == (0, "topic orders is changed: alarm-lag, retention\n")
    assert asked.called("topic.configure") == [(("orders",), {"retention": 86_400.0, "alarm_lag": 100})]


def test_topic_purge(gossipq: Callable[..., Any], asked: Any) -> None:
    assert (
        gossipq("topic", "purge", "orders", "--dry-run").out
        == "12 records of orders would be removed for good\n"
    )
    ran = gossipq("topic", "purge", "orders", "-p", "0", "--yes")
    assert (ran.code, ran.out) == (0, "12 records of orders/0 removed for good\n")
    assert asked.called("topic.purge")[-1] == (("orders", 0), {"dry_run": False})


# --- group


def test_group_show_has_mode_policy_and_consumers(gossipq: Callable[..., Any], asked: Any) -> None:
    out = gossipq("group", "show", "orders", "billing").out
    lines = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in out.splitlines()}
    assert lines["mode"] == "shared"
    assert lines["lease"] == "30s  (as the cluster says)"
    assert (lines["alarm lag"], lines["group idle"]) == ("never", "never"), "as `topic show` says it"
    assert lines["consumed by"] == "ada/a0"
    row = json.loads(gossipq("group", "show", "orders", "billing", "-o", "json").out)
    assert row["policy"]["lease_ms"] == {"value": "30000", "origin": "cluster"}
    assert row["consumer_names"] == ["ada/a0"]


def test_group_show_lists_flows(gossipq: Callable[..., Any], asked: Any) -> None:
    flows = [FlowRow(0, "big", 5_000, 61_000, 2, "limit"), FlowRow(0, "", 3, 1_000)]
    asked.answers["group.describe"] = GroupShown(GroupConfig(order="fair"), [], [], flows)
    out = gossipq("group", "show", "orders", "billing").out
    table = [line.split() for line in out.split("\n\n")[-1].splitlines()]
    assert table[1][:3] == ["big", "0", "5,000"]
    assert table[1][-1] == "limit"
    assert table[2][0] == "(none)"
    row = json.loads(gossipq("group", "show", "orders", "billing", "-o", "json").out)
    assert [(each["flow"], each["waits_for"]) for each in row["flows"]] == [("big", "limit"), ("", "")]


def test_group_set(gossipq: Callable[..., Any], asked: Any) -> None:
    assert (
        gossipq("group", "set", "orders", "billing", "--alarm-lag", "7").out
        == "billing on orders is changed: alarm-lag\n"
    )
    assert asked.called("group.configure") == [(("orders", "billing"), {"alarm_lag": 7})]


BACK = "; undo: gossipq group seek orders billing --to 3"  #: the only partition was there


@pytest.mark.parametrize(("to", "place"), [("first", "first"), ("new", "new"), ("17", 17)])
def test_group_seek(gossipq: Callable[..., Any], asked: Any, to: str, place: object) -> None:
    ran = gossipq("group", "seek", "orders", "billing", "--to", to, "--yes")
    assert ran.code == 0
    assert ran.err == f"billing on orders moved to {to}: 3 records again, 0 records skipped{BACK}\n"
    assert asked.called("group.seek") == [
        (("orders", "billing", place), {"dry_run": True}),
        (("orders", "billing", place), {"dry_run": False}),
    ]


def test_group_seek_dry_run_changes_nothing(gossipq: Callable[..., Any], asked: Any) -> None:
    ran = gossipq("group", "seek", "orders", "billing", "--to", "-1h", "--dry-run", "-o", "json")
    assert json.loads(ran.out) == [{"partition": 0, "before": 3, "after": 0, "again": 3, "skipped": 0}]
    ((_, options),) = asked.called("group.seek")
    assert options == {"dry_run": True}


def test_group_rm(gossipq: Callable[..., Any], asked: Any) -> None:
    assert (
        gossipq("group", "rm", "orders", "-g", "billing", "--yes").out == "group billing on orders removed\n"
    )
    asked.answers["stats"] = StatsReply([], [group(dead=2)])
    out = gossipq("group", "rm", "orders", "billing", "--dead-letters", "--yes").out
    assert out == "group billing on orders removed and 2 dead letters\n"
    assert asked.called("group.delete")[-1] == (("orders", "billing"), {"dead": True})


# --- client


def test_client_ls_is_one_row_a_session(gossipq: Callable[..., Any], asked: Any) -> None:
    (row,) = json.loads(gossipq("client", "ls", "-o", "json").out)
    assert (row["session"], row["connections"], row["published"], row["in_flight"]) == (
        SESSION.hex(),
        2,
        700,
        4,
    )
    assert (row["age_ms"], row["silent_ms"], row["workers"]) == (60_000, 10, ["n1/0", "n1/1"])
    line = gossipq("client", "ls").out.splitlines()[1]
    assert line.startswith("a0a1a2a3  ada")
    assert line.endswith("orders as billing")


def test_client_kick(gossipq: Callable[..., Any], asked: Any) -> None:
    ran = gossipq("client", "kick", "A0A1", "--for", "1m", "--yes")
    assert (ran.code, ran.out) == (0, "ada (a0a1a2a3) may not reconnect for 1m; 4 records redelivered\n")
    assert asked.called("kick") == [((SESSION, 60.0), {})]


def test_client_kick_names_one(gossipq: Callable[..., Any], asked: Any) -> None:
    ran = gossipq("client", "kick", "ff", "--yes")
    assert (ran.code, ran.err) == (4, "error: no session ff\n hint: `gossipq client ls`\n")
    other = ClientRow(b"\xa0" + bytes(15), "bob", "", "n1", 0, 1, 1, 1, 0, 0, 0, [])
    asked.answers["clients"] = [*asked.answers["clients"], other]
    ran = gossipq("client", "kick", "a0", "--yes")
    assert (ran.code, ran.err.splitlines()[0]) == (
        2,
        "error: a0 is the beginning of 2 sessions; write more of it",
    )


def test_client_kick_of_an_unset_variable_ends_nobody(gossipq: Callable[..., Any], asked: Any) -> None:
    ran = gossipq("client", "kick", "", "--yes")
    assert (ran.code, asked.called("kick")) == (2, [])
    assert ran.err.splitlines()[0] == "error: SESSION is empty; `gossipq client ls` shows who is there"


# --- errors of all of them


@pytest.mark.parametrize(
    ("line", "code", "says", "hint"),
    [
        (
            ("topic", "set", "orders"),
            2,
            "name what is to change, as in --retention 30d",
            "`gossipq topic set --help`",
        ),
        (
            ("group", "set", "orders", "g"),
            2,
            "name what is to change, as in --alarm-lag 10000",
            "`gossipq group set --help`",
        ),
        (("group", "seek", "orders", "billing"), 2, "Missing option '--to'", "`gossipq group seek --help`"),
        (
            ("group", "seek", "orders", "billing", "--to", "noon"),
            2,
            "Invalid value for --to: 'noon' is no time",
            "`gossipq group",
        ),
        (
            ("group", "seek", "orders", "nobody", "--to", "new"),
            4,
            "no group nobody on orders",
            "`gossipq group ls orders`",
        ),
        (("group", "rm", "orders", "nobody"), 4, "no group nobody on orders", "`gossipq group ls orders`"),
        (("group", "rm", "orders"), 2, "name a topic and a group", "`gossipq group rm --help`"),
        (
            ("group", "rm", "orders", "billing"),
            2,
            "removing group billing needs --yes",
            "`gossipq group rm --help`",
        ),
        (
            ("group", "seek", "orders", "billing", "--to", "new"),
            2,
            "moving group billing needs --yes",
            "`gossipq group seek",
        ),
        (("topic", "purge", "orders"), 2, "purging topic orders needs --yes", "`gossipq topic purge --help`"),
        (("client", "kick", "a0"), 2, "ending ada (a0a1a2a3) needs --yes", "`gossipq client kick --help`"),
        (
            ("check", "lag", "--warn", "9", "--crit", "3"),
            3,
            "--crit lies below --warn",
            "`gossipq check lag --help`",
        ),
        (
            ("config", "show", "--running", "--config", "x"),
            2,
            "--running and --config exclude each other",
            "`gossipq config",
        ),
        (
            ("help", "exit-code"),
            4,
            "no help on exit-code; did you mean `exit-codes`?",
            "`gossipq help` lists what there is",
        ),
        (("help", "alarm-nothing"), 4, "no help on alarm-nothing", "`gossipq help` lists what there is"),
        (
            ("--completion", "csh"),
            2,
            "Invalid value for '--completion': 'csh' is not one of",
            "`gossipq --help`",
        ),
        (
            ("context", "save", "shop"),
            2,
            "name its servers: -s tcp://HOST:7700",
            "`gossipq context save --help`",
        ),
        (
            ("context", "save", "tcp://x", "-s", "tcp://y"),
            2,
            "'tcp://x' is no name for a context",
            "`gossipq context save",
        ),
        (
            ("context", "use", "nowhere"),
            4,
            "no context nowhere",
            "`gossipq context save NAME -s URL` makes one",
        ),
        (
            ("context", "rm", "nowhere"),
            4,
            "no context nowhere",
            "`gossipq context save NAME -s URL` makes one",
        ),
        (
            ("backup", "--out", "x", "--data", "nowhere"),
            1,
            "nowhere is not a directory",
            "give the node's data directory",
        ),
        (
            ("store", "compact", "--data", "nowhere"),
            1,
            "nowhere is not a directory",
            "give the node's data directory",
        ),
        (
            ("doctor", "--bind", "nonsense"),
            78,
            "node.bind = 'nonsense' is not an address",
            "write tcp://HOST:PORT",
        ),
        (
            ("node", "--admin", "nonsense"),
            78,
            "node.admin = 'nonsense' is not HOST:PORT",
            "write 127.0.0.1:7780",
        ),
        (
            ("node", "--admin", "0.0.0.0:1"),
            78,
            "flag --admin: node.admin = '0.0.0.0:1' is open to other",
            "add --insecure",
        ),
    ],
)
def test_errors(
    gossipq: Callable[..., Any],
    asked: Any,
    home: Path,
    line: tuple[str, ...],
    code: int,
    says: str,
    hint: str,
) -> None:
    ran = gossipq(*line)
    error, told = ran.err.splitlines()
    assert ran.code == code
    assert error.startswith(f"error: {says}")
    assert told.startswith(f" hint: {hint}")


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (errors.WrongState("group billing has 1 consumer", "stop it before moving the group"), 5),
        (errors.OffsetOutOfRange("offset 99 of partition 0 cannot be read", "0 to 10 can"), 4),
        (errors.UnknownVerb("verb 87 is no request"), 1),
    ],
)
def test_what_a_node_refuses_is_told(
    gossipq: Callable[..., Any], asked: Any, raised: Exception, code: int
) -> None:
    asked.answers["group.seek"] = raised
    ran = gossipq("group", "seek", "orders", "billing", "--to", "new", "--yes")
    assert ran.code == code
    assert ran.err.startswith(f"error: {raised}\n")


# --- check


@pytest.mark.parametrize(
    ("line", "answers", "code", "out"),
    [
        ("ready", {}, 0, "GOSSIPQ READY OK - ada serves | led=32;; shards=32;;"),
        (
            "ready",
            {"status": status(worker("recovering"))},
            2,
            "GOSSIPQ READY CRITICAL - starting: worker-0 of ada opens its store again",
        ),
        (
            "ready",
            {"status": status(worker("full", "no space"))},
            2,
            "GOSSIPQ READY CRITICAL - full: worker-0 of ada refuses publishes: no space",
        ),
        (
            "ready",
            {"status": errors.Unreachable("no node answers")},
            2,
            "GOSSIPQ READY CRITICAL - unreachable: no node answers",
        ),
        ("cluster", {}, 0, "GOSSIPQ CLUSTER OK - all 32 shards have a leader"),
        (
            "cluster",
            {"status": status(led=30)},
            2,
            "GOSSIPQ CLUSTER CRITICAL - no quorum: 2 of 32 shards have no leader",
        ),
        ("cluster", {"alarms": [ALARM]}, 0, "GOSSIPQ CLUSTER OK"),
        (
            "cluster",
            {"alarms": [Alarm("insecure", "warning", "a", "", "open", "x")]},
            1,
            "GOSSIPQ CLUSTER WARNING - open",
        ),
        ("lag", {}, 0, "GOSSIPQ LAG OK - billing on orders is 5 records behind | lag=5;;"),
        (
            "lag",
            {"alarms": [ALARM]},
            1,
            "GOSSIPQ LAG WARNING - billing on orders is 5 records behind in all partitions; "
            f"{ALARM.text} | lag=5;;",
        ),
        (
            "lag orders --warn 4",
            {},
            1,
            "GOSSIPQ LAG WARNING - billing on orders is 5 records behind | lag=5;4;",
        ),
        (
            "lag --warn 1 --crit 4",
            {},
            2,
            "GOSSIPQ LAG CRITICAL - billing on orders is 5 records behind | lag=5;1;4",
        ),
        (
            "lag ord* --warn 4",
            {},
            1,
            "GOSSIPQ LAG WARNING - billing on orders is 5 records behind | lag=5;4;",
        ),
        ("lag --warn 5", {}, 0, "GOSSIPQ LAG OK - billing on orders is 5 records behind | lag=5;5;"),
        ("lag -g other", {}, 3, "GOSSIPQ LAG UNKNOWN - no group other"),
        ("lag", {"stats": StatsReply([], [])}, 0, "GOSSIPQ LAG OK - no groups"),
        (
            "lag nothing",
            {"stats": StatsReply([], []), "topics": []},
            3,
            "GOSSIPQ LAG UNKNOWN - no topic nothing",
        ),
        (
            "lag",
            {"stats": errors.Unreachable("no node answers")},
            3,
            "GOSSIPQ LAG UNKNOWN - unreachable: no node answers",
        ),
        (
            "disk",
            {},
            0,
            "GOSSIPQ DISK OK - a commit takes 0.7 ms, 4.0 KiB are stored | store_bytes=4096B;; "
            "commit_us=700us;100000;",
        ),
        (
            "disk",
            {"alarms": [Alarm("disk_low", "warning", "a", "worker-0", "low", "x")]},
            1,
            "GOSSIPQ DISK WARNING - low",
        ),
        (
            "disk",
            {
                "alarms": [
                    Alarm("slow_disk", "warning", "a", "", "slow", ""),
                    Alarm("store_full", "critical", "a", "", "full", ""),
                ]
            },
            2,
            "GOSSIPQ DISK CRITICAL - full, and 1 more",
        ),
    ],
)
def test_check(
    gossipq: Callable[..., Any], asked: Any, line: str, answers: dict[str, Any], code: int, out: str
) -> None:
    asked.answers |= answers
    ran = gossipq("check", *line.split())
    assert (ran.code, ran.err) == (code, "")
    assert ran.out.startswith(out)
    assert ran.out.count("\n") == 1


def test_lag_of_topics_that_fit_a_pattern(gossipq: Callable[..., Any], asked: Any) -> None:
    """No topic has the name `ord*`: the answer was no groups and no lag."""
    assert gossipq("group", "lag", "ord*", "-o", "names").out == "billing\n"
    assert gossipq("group", "ls", "ord*", "-o", "names").out == "billing\n"
    assert gossipq("group", "pause", "ord*", "billing").code == 4


def test_check_in_json(gossipq: Callable[..., Any], asked: Any) -> None:
    assert json.loads(gossipq("check", "lag", "-o", "json").out) == {
        "check": "lag",
        "state": "OK",
        "text": "billing on orders is 5 records behind",
        "figures": {"lag": 5},
    }


# --- help, completion, config


def test_help_lists_its_topics_and_explains_every_alarm(gossipq: Callable[..., Any]) -> None:
    out = gossipq("help").out
    assert "exit-codes" in out
    for name, kind in alarms.KINDS.items():
        assert name in out
        for asked_as in (f"alarm-{name}", f"alarm-{name.replace('_', '-')}"):
            told = gossipq("help", asked_as).out
            assert told.startswith(f"{name} ({kind.severity})")
            assert all(text in told for text in (kind.meaning, kind.check, kind.verb))


@pytest.mark.parametrize("topic", ["exit-codes", "alarms", "times", "refs", "output", "servers"])
def test_every_page_of_help(gossipq: Callable[..., Any], topic: str) -> None:
    ran = gossipq("help", topic)
    assert ran.code == 0
    assert len(ran.out.splitlines()) >= 5
    assert gossipq("help", *topic.split("-")).out == ran.out


@pytest.mark.parametrize(
    ("shell", "says"), [("bash", "complete -o nosort -F"), ("zsh", "#compdef gossipq"), ("fish", "complete ")]
)
def test_completion(gossipq: Callable[..., Any], shell: str, says: str) -> None:
    assert says in gossipq("--completion", shell).out


def test_completion_completes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from gossipq_cli.main import main

    for name, value in (
        ("_GOSSIPQ_COMPLETE", "bash_complete"),
        ("COMP_WORDS", "gossipq topic s"),
        ("COMP_CWORD", "2"),
    ):
        monkeypatch.setenv(name, value)
    main([])
    told = [line.partition(",")[2] for line in capsys.readouterr().out.splitlines()]
    assert told == ["set", "show", "schema"]


def test_config_show_says_where_a_value_comes_from_when_asked(
    gossipq: Callable[..., Any], asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSSIPQ_NODE__WORKERS", "3")
    assert "environment" not in gossipq("config", "show").out
    assert "environment GOSSIPQ_NODE__WORKERS" in gossipq("config", "show", "--origin").out
    rows = json.loads(gossipq("config", "show", "-o", "json").out)
    assert {"key": "node.workers", "value": 3, "origin": "environment GOSSIPQ_NODE__WORKERS"} in rows
    assert gossipq("config", "show", "--running", "--origin").out.splitlines()[1].split() == [
        "node.bind",
        '"tcp://x"',
        "flag",
        "--bind",
    ]


# --- contexts


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GOSSIPQ_SERVER", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_context_is_kept_used_and_forgotten(
    gossipq: Callable[..., Any], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gossipq_cli.contexts import servers_of

    assert servers_of([]) == []
    assert gossipq("context", "save", "shop", "-s", "tcp://a:1", "-s", "tcp://b:1").code == 0
    assert servers_of([]) == [], "kept is not used"
    assert servers_of(["shop"]) == ["tcp://a:1", "tcp://b:1"]
    assert servers_of(["tcp://c:1", "shop"]) == ["tcp://c:1", "tcp://a:1", "tcp://b:1"]
    assert gossipq("context", "use", "shop").out == "shop is in use\n"
    assert servers_of([]) == ["tcp://a:1", "tcp://b:1"]
    monkeypatch.setenv("GOSSIPQ_SERVER", "tcp://env:1")
    assert servers_of([]) == ["tcp://env:1"], "the environment comes first"
    rows = json.loads(gossipq("context", "ls", "-o", "json").out)
    assert rows == [{"context": "shop", "servers": ["tcp://a:1", "tcp://b:1"], "current": True}]
    monkeypatch.delenv("GOSSIPQ_SERVER")
    assert gossipq("context", "use", "-").out == "none is in use\n"
    assert servers_of([]) == []
    gossipq("context", "use", "shop")
    assert gossipq("context", "rm", "shop").code == 0
    assert servers_of([]) == []
    assert (
        gossipq("context", "ls").err
        == "none is kept; gossipq context save NAME -s tcp://HOST:7700 keeps one\n"
    )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"contexts": 3}', '{"current": "x"}'])
def test_a_file_that_cannot_be_read_is_named(gossipq: Callable[..., Any], home: Path, text: str) -> None:
    (home / "config" / "gossipq").mkdir(parents=True)
    (home / "config" / "gossipq" / "contexts.json").write_text(text)
    ran = gossipq("status")
    assert ran.code == 78
    assert "contexts.json cannot be read" in ran.err
    assert ran.err.splitlines()[1].startswith(" hint: rm ")


# --- offline


def test_doctor_finds_a_machine_that_will_do(gossipq: Callable[..., Any], home: Path) -> None:
    ran = gossipq("doctor", "--data", str(home / "data"), "--bind", "ipc:///tmp/x", "-o", "json")
    found = {row["name"]: row for row in json.loads(ran.out)["findings"]}
    assert set(found) >= {
        "python",
        "libraries",
        "serf",
        "ports",
        "disk speed",
        "disk space",
        "file limit",
        "clock",
        "cores",
    }
    assert found["python"]["verdict"] == "good"
    assert all(row["remedy"] for row in found.values() if row["verdict"] != "good")
    assert list(home.glob(".gossipq-doctor*")) == []
    lines = gossipq("doctor", "--data", str(home / "data")).out.splitlines()
    assert lines[0].startswith("ok    python")
    assert re.search(
        r"\d [KMGT]?i?B of [\d.]+ [KMGT]iB are free at .*; publishes stop at [\d.]+ [MGT]iB",
        found["disk space"]["text"],
    )


def test_doctor_says_of_a_directory_what_a_start_would(gossipq: Callable[..., Any], home: Path) -> None:
    from gossipq_node.directory import DataDirectory

    def data() -> tuple[str, str]:
        ran = gossipq("doctor", "--data", "data", "-o", "json")
        row = next(row for row in json.loads(ran.out)["findings"] if row["name"] == "data")
        return row["verdict"], row["text"]

    assert data() == ("good", "no node has run at data yet")
    (home / "data").mkdir()
    (home / "data" / "letters").touch()
    assert data() == ("bad", "data is not a gossipq directory: it has letters and no manifest.json")
    (home / "data" / "letters").unlink()
    directory = DataDirectory("data")
    directory.found("shop", 2, 2)
    assert data() == ("good", "data is that of a node of 2 workers in cluster shop"), "also while it runs"
    directory.close()
    shutil.copytree("data", "copy")
    shutil.rmtree("data")
    os.rename("copy", "data")
    assert data() == ("bad", "data is a copy of another node's directory, and two nodes must never be one")


def test_doctor_counts_the_workers_that_the_directory_has(gossipq: Callable[..., Any], home: Path) -> None:
    from gossipq_node.directory import DataDirectory

    def found(*flags: str) -> dict[str, dict[str, str]]:
        ran = gossipq("doctor", "--data", "data", "--bind", "tcp://127.0.0.1:17700", *flags, "-o", "json")
        return {row["name"]: row for row in json.loads(ran.out)["findings"]}

    directory = DataDirectory("data")
    directory.found("shop", 3, 32)
    directory.close()
    rows = found()
    assert "clients 17700 to 17703, nodes 17740 to 17743" in rows["doors"]["text"]
    assert "3 workers" in rows["cores"]["text"]
    rows = found("--workers", "5")
    assert "clients 17700 to 17703" in rows["doors"]["text"]
    assert (rows["data"]["verdict"], rows["data"]["text"]) == ("bad", "node.workers = 5, but data holds 3")
    assert "gossipq store reshard --data data --workers 5" in rows["data"]["remedy"]


def test_doctor_says_which_doors_are_open(gossipq: Callable[..., Any], home: Path) -> None:
    secret = home / "shared"
    secret.write_text("what the nodes of this test know")

    def doors(*flags: str) -> dict[str, str]:
        ran = gossipq("doctor", "--data", str(home / "data"), "--workers", "2", *flags, "-o", "json")
        return next(row for row in json.loads(ran.out)["findings"] if row["name"] == "doors")

    alone = doors("--bind", "tcp://127.0.0.1:17700")
    assert (alone["verdict"], alone["text"].startswith("in the clear, on this machine alone")) == (
        "good",
        True,
    )
    assert "clients 17700 to 17702, nodes 17740 to 17742" in alone["text"]
    config = home / "some.toml"
    config.write_text(f'[node]\nsecret_file = "{secret}"\nbind = "tcp://192.0.2.7:17700"\n')
    shared = doors("--config", str(config))
    assert shared["verdict"] == "good"
    assert "encrypted at 192.0.2.7: clients 17800 to 17802, nodes 17740 to 17742" in shared["text"]
    config.write_text('[node]\ninsecure = true\nbind = "tcp://192.0.2.7:17700"\n')
    open_ = doors("--config", str(config))
    assert (open_["verdict"], "in the clear at 192.0.2.7" in open_["text"]) == ("warning", True)


def test_doctor_looks_at_the_addresses_at_which_a_node_listens(
    gossipq: Callable[..., Any], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that encrypts answers unencrypted clients only on loopback."""
    from gossipq_node import doctor

    looked: set[tuple[str, int]] = set()
    monkeypatch.setattr(doctor, "_free", lambda host, port: looked.add((host, port)))
    secret = home / "shared"
    secret.write_text("what the nodes of this test know")
    monkeypatch.setenv("GOSSIPQ_NODE__SECRET_FILE", str(secret))
    line = ("doctor", "--data", "data", "--bind", "tcp://192.0.2.7:17700", "--workers", "1", "-o", "json")
    rows = {row["name"]: row for row in json.loads(gossipq(*line).out)["findings"]}
    here = {("127.0.0.1", 17700 + step) for step in (0, 1, 80, 100, 101)}  # 80: the pages
    there = {("192.0.2.7", 17700 + step) for step in (40, 41, 100, 101)}
    assert looked == here | there
    text = "17700, 17701, 17800, 17801 of 127.0.0.1; 17740, 17741, 17800, 17801 of 192.0.2.7 cannot be used"
    assert rows["ports"]["text"].startswith(text)


def test_doctor_names_doors_that_are_not_reached() -> None:
    from gossipq_cli.commands.doctor import of_doors

    port = settled_port(doors=True) + 100
    (found,) = of_doors([Member("ada.1", "ada", f"tcp://127.0.0.1:{port - 100}", 1, encrypts=True)])
    assert found.verdict == "warning"
    assert f"ada: {port - 60}, {port - 59}, {port}, {port + 1} are not reached from here" in found.text


def test_doctor_names_what_keeps_a_node_from_working(
    gossipq: Callable[..., Any], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gossipq_node import doctor

    monkeypatch.setattr(doctor, "PYTHON_MIN", (9, 0))
    monkeypatch.setattr(doctor, "_free", lambda host, port: False)
    monkeypatch.setattr(doctor, "FILES_MIN", 2**60)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    ran = gossipq("doctor", "-o", "json")
    found = {row["name"]: row for row in json.loads(ran.out)["findings"]}
    assert ran.code == 1
    assert {name for name, row in found.items() if row["verdict"] == "bad"} >= {"python", "disk speed"}
    assert found["disk speed"]["text"].endswith("cannot be written: Input/output error")
    assert (
        found["serf"]["verdict"] == found["ports"]["verdict"] == found["file limit"]["verdict"] == "warning"
    )
    assert "apt-get install serf" in found["serf"]["remedy"]


def test_a_pipe_is_written_to_and_stays(home: Path) -> None:
    """A file written to /dev/null by root replaced it, for all programs of the machine."""
    from gossipq_cli import access, bundle

    os.mkfifo("pipe")
    reading = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    access.save("pipe", b"t" * 32)
    assert os.read(reading, 1 << 16).startswith(b"gq_")
    bundle._pack(Path("pipe"), {"a": b"b"})
    assert os.read(reading, 2) == b"\x1f\x8b"
    os.close(reading)
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
    assert [path.name for path in home.glob("pipe*")] == ["pipe"]


def test_a_file_has_its_name_when_it_is_whole(gossipq: Callable[..., Any], home: Path) -> None:
    from gossipq_cli.files import written
    from gossipq_node.directory import DataDirectory

    directory = DataDirectory("data")
    directory.found("shop", 1, 2)
    directory.close()
    with written("token", "token") as stream:
        assert [path.name for path in home.glob("token*")] == ["token.part"]
        stream.write(b"gq_")
    assert (home / "token").read_bytes() == b"gq_"
    assert (home / "token").stat().st_mode & 0o077 == 0, "only its owner reads it"
    (home / "other.part").write_text("")
    with (
        pytest.raises(Failure, match=r"other.part is there: another token is under way"),
        written("other", "token"),
    ):
        pytest.fail("it was opened")
    for wrong in ("none/x", "token/x"):
        with pytest.raises(OSError) as failed, written(wrong, "token"):
            pytest.fail("it was opened")
        assert failed.value.filename == wrong, "as it was typed"
    assert json.loads(gossipq("store", "compact", "--data", "data", "-o", "json").out)["data"] == "data"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("check lag --bogus", "No such option"),
        ("check nothing", "no such command: nothing"),
        ("check", "name what to check: ready, cluster, lag or disk"),
        ("check lag --warn many", "many"),
        ("check ready -s no-such-context", "no-such-context"),
        ("--bogus check ready", "No such option"),
        ("-o yaml check ready", "yaml"),
        ("--timeout soon check ready", "soon"),
        ("-s no-such-context check ready", "no-such-context"),
    ],
)
def test_what_a_check_cannot_know_is_unknown(gossipq, line: str, says: str) -> None:
    ran = gossipq(*line.split())
    assert ran.code == 3, ran
    assert ran.out.splitlines()[0].partition(" - ")[0].endswith("UNKNOWN")
    assert says in ran.out
    assert ran.out.count("\n") == 1


def test_a_word_of_another_command_makes_no_check(gossipq: Callable[..., Any]) -> None:
    assert gossipq("--bogus", "pub", "check", "ready").code == 2


def test_times_are_shown_to_people_as_everywhere_and_the_audit_in_their_order(client, gossipq) -> None:
    later = {"time_ms": 1_700_000_001_000, "node": "vm", "user": "ada", "address": "this host"}
    later |= {"verb": "STATUS", "target": "", "outcome": "forbidden"}
    rows = [later, later | {"time_ms": 1_700_000_000_000, "target": "orders"}]
    client.answers["topics"] = [TopicInfo(1, "_audit", 1, TopicConfig(), [0])]
    client.answers["read"] = [SimpleNamespace(value=json.dumps(row).encode()) for row in rows]
    head, first, second = gossipq("user", "audit").out.splitlines()
    assert first.startswith("2023-11-14 22:13:20.000Z")
    assert second.startswith("2023-11-14 22:13:21.000Z")
    assert second[head.index("target") :].split() == ["-", "forbidden"]
    assert (
        json.loads(gossipq("user", "audit", "-o", "json").out)[0]["time"] == "2023-11-14T22:13:20.000+00:00"
    )
    user = User("ada", [], [Credential(b"", 1_700_000_000_000), Credential(b"", 0)])
    client.answers["access"] = AccessTable(users=[user], closed=True)
    assert gossipq("user", "ls").out.endswith("2023-11-14 22:13:20.000Z, never\n")
    assert gossipq("user", "role", "ls") == (
        0,
        "",
        "there is no role; gossipq user role add NAME makes one\n",
    )


@pytest.mark.parametrize(
    ("error", "code", "kept"),
    [
        (KeyboardInterrupt(), 130, True),
        (errors.Unreachable("no answer"), 69, True),
        (errors.WrongState("nobody could change users any more"), 5, False),
    ],
)
def test_a_token_that_the_cluster_may_have_taken_is_kept(
    gossipq: Callable[..., Any], home: Path, client: Any, error: BaseException, code: int, kept: bool
) -> None:
    """A token that the cluster has certainly not accepted replaces no other token."""

    def fails(change: AccessChange, secret: bytes = b"") -> AccessTable:
        raise error

    client.answers |= {"set_access": fails, "status": SimpleNamespace(door=b"")}
    client.answers["access"] = AccessTable(users=[User("ada", [], [Credential(b"d" * 32)])])
    Path("ada.token").write_text("the one before")
    ran = gossipq("user", "rotate", "ada", "--now", "--save", "ada.token")
    ((change, _), _) = client.called("set_access")[0]
    said = "the cluster may have taken the new token, or not: it is in ada.token.unconfirmed"
    assert (ran.code, said in ran.err) == (code, kept)
    assert Path("ada.token").read_text() == "the one before"
    assert [path.name for path in home.glob("ada.token.*")] == ["ada.token.unconfirmed"] * kept
    if kept:
        (made,) = change.users
        token = read_credentials(Path("ada.token.unconfirmed")).token
        assert [each.digest for each in made.tokens] == [digest(token)]
