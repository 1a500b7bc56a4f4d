"""Delays, ids, routes, retries, dead letters, virtual topics, why and msg: each command against a real
node."""

import json
import time
from collections.abc import Callable, Iterator

import pytest
from click.shell_completion import BashComplete

import gossipq_client
from gossipq_cli import names
from gossipq_cli.main import root
from gossipq_client import Client
from waiting import until

pytestmark = pytest.mark.e2e


@pytest.fixture
def mq(shared_node) -> Iterator[Client]:
    with gossipq_client.connect(shared_node.endpoint, name="ada") as mq:
        yield mq


@pytest.fixture
def ref_of(ask):
    """The ref of the record that a `gossipq pub` line publishes."""

    def publish(topic: str, *line: str) -> str:
        row = json.loads(ask("pub", topic, *line, "-q", "-o", "json").out)
        return str(row["ref"])

    return publish


def all_of(ask, topic: str) -> list[str]:
    """All values that a reader gets."""
    return ask("sub", topic, "--from", "first", "--exit-at-end").out.splitlines()


def states(ask, *line: str) -> list[str]:
    return [standing["state"] for standing in json.loads(ask("why", *line, "-o", "json").out)["standings"]]


# --- due times and ids


def test_a_scheduled_record_is_explained_moved_and_comes(ask, topic: str, ref_of) -> None:
    ran = ask("pub", topic, "--delay", "1h", "later", "-q")
    assert ran.out.startswith(f"scheduled {topic}/0/@")
    ref = ran.out.split()[1]
    assert all_of(ask, topic) == []
    told = ask("why", ref)
    assert told.code == 0
    head, because, following = told.out.splitlines()[2:5]
    assert head.startswith("every group: scheduled until ")
    assert because.startswith("  because it is due in ")
    assert following.startswith(f"  next: gossipq msg reschedule {ref}")
    assert ask("msg", "show", ref).out.endswith("\n\nlater\n")
    assert json.loads(ask("topic", "ls", topic, "-o", "json").out)[0]["scheduled"] == 1
    assert ask("msg", "reschedule", ref, "--delay", "10ms").code == 0
    until(lambda: all_of(ask, topic) == ["later"])
    assert json.loads(ask("why", ref, "-o", "json").out)["ref"] == f"{topic}/0/0"


def test_a_scheduled_record_is_cancelled(ask, topic: str, ref_of) -> None:
    ref = ref_of(topic, "--delay", "300d", "--id", "r-1", "never")
    refused = ask("msg", "cancel", ref)
    assert (refused.code, states(ask, ref)) == (2, ["scheduled"])
    assert ask("msg", "cancel", topic, "--id", "r-1", "--reason", "paid", "--yes").out == f"cancelled {ref}\n"
    assert states(ask, ref) == ["voided"]
    assert "paid" in ask("why", ref).out
    assert "paid" in ask("why", "--steps", ref).out
    again = ask("msg", "cancel", ref, "--yes")
    assert again.code in (4, 5)
    assert again.err.startswith("error: ")


def test_a_second_record_of_an_id_is_a_duplicate(ask, topic: str) -> None:
    assert ask("pub", topic, "--id", "order-17", "first").out.startswith(f"stored {topic}/0/0  ")
    assert ask("pub", topic, "--id", "order-17", "second").out.startswith(f"duplicate of {topic}/0/0  ")
    ran = ask("pub", topic, "--lines", "--id", "line-{n}", stdin=b"a\nb\n")
    assert ran.out.startswith(f"stored 2 of 2 in {topic}  ")
    assert "(2 known already)" in ask("pub", topic, "--lines", "--id", "line-{n}", stdin=b"a\nb\n").out
    assert all_of(ask, topic) == ["first", "a", "b"]
    assert ask("why", topic, "--id", "order-17").out.startswith(f"{topic}/0/0\n")
    lines = ask("sub", topic, "--from", "first", "--exit-at-end", "-o", "jsonl").out
    assert json.loads(lines.splitlines()[0])["id"] == "order-17"
    ran = ask("why", topic, "--id", "nobody")
    assert (ran.code, ran.out) == (4, "")


def test_what_expires_untried_is_a_dead_letter(ask, topic: str, mq: Client) -> None:
    ask("pub", topic, "--ttl", "50ms", "stale", "-q")
    time.sleep(0.2)
    assert ask("sub", topic, "-g", "team", "--exit-at-end").out == ""
    until(lambda: ask("dlq", "ls", topic, "-o", "json").out != "[]\n")
    (row,) = json.loads(ask("dlq", "ls", topic, "-o", "json").out)
    assert (row["group"], row["reason"], row["attempts"]) == ("team", "expired", 0)


# --- routes, modes, at most once


def test_routes(ask, topic: str) -> None:
    for route in ("eu.fr", "us", "eu.de"):
        ask("pub", topic, "--route", route, route, "-q")
    assert ask("sub", topic, "-g", "europe", "--route", "eu.*", "-n", "2").out == "eu.fr\neu.de\n"
    row = json.loads(ask("group", "show", topic, "europe", "-o", "json").out)
    assert (row["acked"], row["lag"]) == (2, 1)
    assert ask("sub", topic, "--from", "first", "--exit-at-end", "-f", "%r").out == "eu.fr\nus\neu.de\n"
    ran = ask("sub", topic, "-g", "europe", "--route", "#")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")


def test_exclusive_over_several_shards_is_refused(ask, topic: str) -> None:
    ask("topic", "create", topic, "-p", "8")
    ran = ask("sub", topic, "-g", "alone", "--mode", "exclusive")
    assert (ran.code, ran.out) == (2, "")
    assert "--beside" in ran.err


def test_at_most_once(ask, topic: str) -> None:
    ask("pub", topic, "--count", "3", "{n}", "-q")
    assert ask("sub", topic, "-g", "team", "--no-ack", "-n", "3").out == "0\n1\n2\n"
    assert json.loads(ask("group", "lag", topic, "-o", "json").out)[0]["lag"] == 0


# --- failing


def failed(mq: Client, topic: str, group: str = "team", **options: object) -> None:
    """Everything there is fails once and for all."""
    for message in mq.consume(topic, group, stop_at_end=True, **options):  # type: ignore[arg-type]
        message.reject("no such customer")
    mq.flush(None)


def test_dead_letters_are_listed_shown_and_replayed(ask, topic: str, mq: Client) -> None:
    ask("pub", topic, "--count", "3", "-k", "ada", "{n}", "-q")
    failed(mq, topic)
    until(lambda: json.loads(ask("group", "lag", topic, "-o", "json").out)[0]["dead"] == 3)
    assert [topic, "team", "3"] in [line.split() for line in ask("dlq", "ls").out.splitlines()]
    rows = json.loads(ask("dlq", "ls", topic, "-g", "team", "-o", "json").out)
    assert sum(row["count"] for row in rows) == 3
    assert {row["reason"] for row in rows} == {"rejected"}
    shown = ask("dlq", "show", f"{topic}/0/1").out
    assert "no such customer" in shown
    assert "key        ada" in shown
    assert shown.endswith("\n\n1\n")
    assert (
        ask("dlq", "replay", topic, "-g", "team", "0/1", "--dry-run").out
        == "1 dead letter would be ready for team again\n"
    )
    assert states(ask, f"{topic}/0/1") == ["dead"]
    assert ask("dlq", "replay", topic, "-g", "team", "0/1").out == "1 dead letter ready for team again\n"
    assert ask("sub", topic, "-g", "team", "--exit-at-end").out == "1\n"
    assert states(ask, f"{topic}/0/1") == ["acked"]
    assert ask("dlq", "show", f"{topic}/0/1").code == 4
    until(
        lambda: sum(worker["dead"] for worker in json.loads(ask("status", "-o", "json").out)["workers"]) >= 3
    )
    assert "dead letters since the workers started: " in ask("status").out


def test_dead_letters_are_purged(ask, topic: str, mq: Client) -> None:
    ask("pub", topic, "--count", "3", "{n}", "-q")
    failed(mq, topic)
    until(lambda: json.loads(ask("group", "lag", topic, "-o", "json").out)[0]["dead"] == 3)
    assert (
        ask("dlq", "purge", topic, "-g", "team", "--dry-run").out
        == "3 dead letters of team would be removed for good\n"
    )
    assert ask("dlq", "purge", topic, "-g", "team", "0/0-1").code == 2
    assert (
        ask("dlq", "purge", topic, "-g", "team", "0/0-1", "--yes").out
        == "2 dead letters of team removed for good\n"
    )
    assert ask("dlq", "ls", topic, "-o", "names").out == f"{topic}/0/2\n"
    row = json.loads(ask("group", "show", topic, "team", "-o", "json").out)
    assert (row["dead"], row["voided"], row["lag"]) == (1, 2, 0)


def test_dead_letters_move_to_another_topic(ask, topic: str, mq: Client) -> None:
    ask("pub", topic, "--count", "2", "{n}", "-q")
    failed(mq, topic)
    until(lambda: json.loads(ask("group", "lag", topic, "-o", "json").out)[0]["dead"] == 2)
    gone = ask("dlq", "replay", topic, "-g", "team", "--to", f"{topic}.repaired")
    assert (gone.code, gone.out) == (4, "")
    assert json.loads(ask("group", "lag", topic, "-o", "json").out)[0]["dead"] == 2
    ask("topic", "create", f"{topic}.repaired")
    ran = ask("dlq", "replay", topic, "-g", "team", "--to", f"{topic}.repaired")
    assert ran.out == f"2 dead letters published to {topic}.repaired\n"
    assert all_of(ask, f"{topic}.repaired") == ["0", "1"]
    assert json.loads(ask("group", "lag", topic, "-o", "json").out)[0]["dead"] == 0


def test_a_failure_is_traced(ask, topic: str, mq: Client) -> None:
    ask("pub", topic, "one", "-q")
    for message in mq.consume(topic, "team", backoff=["1h"]):
        message.nack(reason="the disk is full")
        break
    mq.flush(None)
    ref = f"{topic}/0/0"
    until(lambda: states(ask, ref) == ["retrying"])
    steps = json.loads(ask("why", "--steps", ref, "-g", "team", "-o", "json").out)
    assert ("failed", "the disk is full") in [(step["what"], step["reason"]) for step in steps]
    told = ask("why", ref).out
    assert "team: retrying until " in told
    assert f"next: gossipq msg requeue {ref}" in told
    assert ask("msg", "requeue", ref, "-g", "team").out == f"{ref} is ready for team\n"
    assert ask("sub", topic, "-g", "team", "-n", "1").out == "one\n"
    assert ask("why", "--steps", ref).out.count("acked") == 1


# --- mending


def test_an_acked_record_is_handed_out_once_more(ask, topic: str) -> None:
    ask("pub", topic, "one", "-q")
    ask("sub", topic, "-g", "team", "-n", "1")
    assert states(ask, f"{topic}/0/0") == ["acked"]
    assert ask("msg", "requeue", f"{topic}/0/0", "-g", "team").code == 0
    assert ask("sub", topic, "-g", "team", "--exit-at-end").out == "one\n"


def test_a_record_is_edited(ask, topic: str) -> None:
    ask("pub", topic, "-k", "ada", "-H", "source:shop", "17 apples", "-q")
    ran = ask("msg", "edit", f"{topic}/0/0", "18 apples")
    assert ran.out == f"{topic}/0/0 is void, {topic}/0/1 replaces it\n"
    assert (
        ask("sub", topic, "--from", "first", "--exit-at-end", "-f", "%o %k %v %h").out
        == "1 ada 18 apples source:shop\n"
    )
    assert states(ask, f"{topic}/0/0") == ["voided"]
    assert f"replaces {topic}/0/0" in ask("why", f"{topic}/0/1").out
    assert ask("msg", "edit", f"{topic}/0/0", "19 apples").code in (4, 5)


def test_records_are_removed(ask, topic: str) -> None:
    ask("pub", topic, "--count", "4", "{n}", "-q")
    ran = ask("msg", "rm", f"{topic}/0/1", f"{topic}/0/2", "--yes")
    assert ran == (0, "removed 2 records\n", "")
    assert all_of(ask, topic) == ["0", "3"]
    assert ask("sub", topic, "-g", "team", "--exit-at-end").out == "0\n3\n"
    ran = ask("msg", "rm", f"{topic}/0/0", f"{topic}/0/99", "--yes")
    assert ran.code in (3, 4, 5)


def test_records_are_found(ask, topic: str) -> None:
    lines = b'{"value":"17 apples","key":"ada","headers":{"source":"shop"}}\n'
    lines += b'{"value":"3 pears","key":"bob"}\n{"value":"9 apples"}\n'
    ask("pub", topic, "--jsonl", "-q", stdin=lines)
    ran = ask("msg", "find", topic, "--contains", "apples")
    assert (ran.code, ran.err) == (0, "")
    assert [line.split()[0] for line in ran.out.splitlines()] == [f"{topic}/0/0", f"{topic}/0/2"]
    for line, offsets in (
        (("--key", "bob"), [1]),
        (("--header", "source:shop"), [0]),
        (("--from", "1"), [1, 2]),
        (("--from", "1", "--until", "2"), [1]),
        (("--from", "-1h", "-n", "1"), [0]),
        ((), [0, 1, 2]),
    ):
        assert ask("msg", "find", topic, *line, "-o", "names").out.split() == [
            f"{topic}/0/{offset}" for offset in offsets
        ]
    assert ask("msg", "find", topic, "--contains", "plums").code == 1
    assert ask("msg", "find", topic, "--until", "-1h").code == 1
    ran = ask("msg", "find", "nowhere")
    assert (ran.code, ran.out) == (4, "")


# --- groups and topics


def test_a_group_is_paused_and_goes_on(ask, topic: str, shared_node) -> None:
    ask("pub", topic, "--count", "2", "{n}", "-q")
    ask("sub", topic, "-g", "team", "-n", "1")
    assert ask("group", "pause", topic, "team").code == 0
    told = ask("why", topic, "--group", "team").out
    assert "paused" in told
    assert f"next: gossipq group resume {topic} team" in told
    assert "paused" in ask("group", "ls", topic).out
    with gossipq_client.connect(shared_node.endpoint) as mq:
        assert not mq.fetch(topic, "team", wait=0.3)
    assert ask("group", "resume", topic, "team").out == (
        f"team on {topic} is resumed: 1 record ready; undo: gossipq group pause {topic} team\n"
    )
    assert ask("sub", topic, "-g", "team", "-n", "1").out == "1\n"
    assert ask("why", topic, "--group", "nobody").code == 4


@pytest.mark.parametrize(
    "line",
    [
        ["why", "{}/0/0", "-g", "nobody"],
        ["msg", "requeue", "{}/0/0", "-g", "nobody"],
        ["topic", "schema", "show", "{}"],
        ["topic", "schema", "check", "{}"],
        ["topic", "schema", "rm", "{}", "--yes"],
    ],
)
def test_what_is_not_there_has_one_exit_code(ask, topic: str, line: list[str]) -> None:
    ask("pub", topic, "1", "-q")
    ran = ask(*(word.format(topic) for word in line))
    what = "no group nobody on {}" if "nobody" in line else "topic {} has no schema"
    assert (ran.code, ran.err.partition("\n")[0]) == (4, f"error: {what.format(topic)}")
    if line[1] == "schema":
        ran = ask(*(word.format("*") for word in line))
        assert (ran.code, ran.err.partition("\n")[0]) == (4, "error: no topic *"), "a pattern is none"


def test_a_virtual_topic(ask, topic: str) -> None:
    audit, first, second = f"{topic}.all", f"{topic}.a", f"{topic}.b"
    assert (
        ask("topic", "virtual", audit, first, second).out == f"topic {audit} is copied to {first}, {second}\n"
    )
    assert ask("pub", audit, "one", "-q").out.startswith(f"stored {first}/0/0, {second}/0/0  ")
    assert all_of(ask, first) == all_of(ask, second) == ["one"]
    assert ask("topic", "show", audit).out.splitlines()[-1] == f"virtual  {first}, {second}"
    ran = ask("sub", audit, "-g", "team")
    assert (ran.code, ran.out) == (2, "")
    assert first in ran.err.splitlines()[-1]
    for targets in ((audit,), (first, audit)):
        ran = ask("topic", "virtual", audit, *targets)
        assert (ran.code, ran.out) == (2, "")
    assert ask("topic", "virtual", f"{topic}.more", audit).code == 2
    assert ask("topic", "virtual", first, second).code in (2, 5)


def test_policies_of_a_topic_are_kept(ask, topic: str) -> None:
    line = (
        "--ttl",
        "1h",
        "--expire",
        "drop",
        "--dedup",
        "5m",
        "--trace",
        "all",
        "--lease",
        "1m",
        "--attempts-max",
        "5",
    )
    assert ask("topic", "create", topic, *line, "--backoff", "1s,1m").code == 0
    config = json.loads(ask("topic", "show", topic, "-o", "json").out)["config"]
    expected = {
        "ttl_ms": 3_600_000,
        "expire": "drop",
        "dedup_ms": 300_000,
        "trace": "all",
        "lease_ms": 60_000,
    }
    assert {name: config[name] for name in expected} == expected
    assert (config["attempts_max"], config["backoff_ms"]) == (5, [1_000, 60_000])


def test_the_policy_that_rules_is_named(ask, topic: str) -> None:
    """Record before group before topic before cluster."""
    ask("topic", "create", topic, "--attempts-max", "5", "--lease", "20s")
    ask("pub", topic, "--lease", "90s", "one", "-q")
    ask("pub", topic, "two", "-q")
    assert ask("sub", topic, "-g", "team", "-n", "1").code == 0
    lines = json.loads(ask("why", f"{topic}/0/0", "-o", "json").out)["lines"]
    pauses = "pauses 1 s, 5 s, 30 s, 2 min, 10 min (cluster)"
    assert lines == [f"team: lease 1.5 min (record), dead after 5 failures (topic), {pauses}"]
    assert ask("sub", topic, "-g", "team", "--attempts-max", "7", "-n", "1").code == 0
    lines = json.loads(ask("why", f"{topic}/0/1", "-o", "json").out)["lines"]
    assert lines == [f"team: lease 20 s (topic), dead after 7 failures (group), {pauses}"]


def test_virtual_topics_of_the_configuration(make_node: Callable, gossipq, tmp_path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('[cluster.virtual]\naudit = ["orders", "bills"]\n')
    node = make_node("--config", str(file)).start()
    assert gossipq("-s", node.endpoint, "pub", "audit", "one", "-q").out.startswith(
        "stored orders/0/0, bills/0/0  "
    )
    assert gossipq("-s", node.endpoint, "sub", "bills", "--from", "first", "--exit-at-end").out == "one\n"


def test_peek_takes_nothing_and_why_tells_numbers(ask, topic: str) -> None:
    for value in ("a", "b", "c"):
        ask("pub", topic, value)
    ask("sub", topic, "-g", "billing", "-n", "1")
    rows = [json.loads(line) for line in ask("peek", topic, "-g", "billing", "-o", "jsonl").out.splitlines()]
    assert [(row["ref"], row["state"], row["value"]) for row in rows] == [
        (f"{topic}/0/1", "ready", "b"),
        (f"{topic}/0/2", "ready", "c"),
    ]
    newest = ask("peek", topic, "-n", "2", "-o", "names").out.split()
    assert sorted(newest) == [f"{topic}/0/1", f"{topic}/0/2"]
    for start in ("1", "-10m"):
        shown = ask("peek", topic, "--from", start, "-o", "names").out.split()
        assert shown == [f"{topic}/0/{offset}" for offset in range(int(start == "1"), 3)]
    assert ask("peek", topic, "--from", "1", "-n", "1", "-o", "names").out == f"{topic}/0/1\n"
    assert ask("peek", topic, "--from", "soon").code == 2
    assert ask("peek", topic, "--from", "1", "-g", "billing").code == 2
    told = json.loads(ask("why", topic, "-g", "billing", "--over", "100ms", "-o", "json").out)["outlook"]
    assert (told["lag"], told["done_rate"], told["caught_up_s"], told["holders"]) == (2, 0, None, [])
    (row,) = json.loads(ask("group", "lag", topic, "-g", "billing", "-o", "json").out)
    assert (row["lag"], row["in_flight"], row["acked"]) == (2, 0, 1), "nothing was taken"
    ask("msg", "requeue", f"{topic}/0/0", "-g", "billing")
    waits = f"1 record more waits to be delivered: gossipq group lag {topic}"
    assert waits in ask("peek", topic, "-g", "billing").err
    ask("sub", topic, "-g", "billing", "-n", "3")
    assert "billing is done with everything" in ask("peek", topic, "-g", "billing").err


def test_a_shell_completes_names(shared_node, ask, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "ASK_S", 30.0)

    def completed(*line: str, word: str = "") -> list[str]:
        shell = BashComplete(root, {}, "gossipq", "_GOSSIPQ_COMPLETE")
        found = shell.get_completions(["-s", shared_node.endpoint, *line], word)
        return [item.value for item in found]

    ask("sub", topic, "-g", "billing", "--create", "--exit-at-end")
    assert topic in completed("sub", word=topic)
    assert completed("topic", "purge", word=topic)[:1] == [topic]
    assert completed("peek", topic, "--group") == ["billing"]
    assert completed("why", f"{topic}/0/1", "-g", word="bill") == ["billing"]
    (node,) = completed("cluster", "show")
    assert node
    assert completed("sub", "-s", "tcp://127.0.0.1:9") == [], "no node, no names, and no error"
