"""dlq and group: dead letters listed, shown, replayed, purged; groups counted, paused, resumed."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gossipq import errors
from gossipq.messages import StatsReply
from gossipq.operator_messages import GroupShown
from gossipq.times import time_of
from gossipq.types import partition_key
from gossipq.values import GroupConfig, GroupStats, TopicConfig, TopicInfo, TraceEvent

TIME_MS = 1_767_323_045_678
TIME = "2026-01-02 03:04:05.678Z"


def letter(offset: int = 17, **more: Any) -> SimpleNamespace:
    fields = {
        "topic": "orders",
        "partition": 0,
        "offset": offset,
        "ref": f"orders/0/{offset}",
        "group": "billing",
    }
    fields |= {"reason": "failures", "error": "ValueError: no such customer", "attempts": 11, "failures": 10}
    fields |= {
        "time": time_of(TIME_MS),
        "count": 1,
        "value": b"17 apples",
        "key": None,
        "headers_shown": {},
        "route": "",
        "id": None,
        "id_bytes": None,
        "own_options": {},
    }
    return SimpleNamespace(**fields | {"publish_time": time_of(TIME_MS - 60_000)} | more)


def stats(partition: int = 0, group: str = "billing", **more: Any) -> GroupStats:
    counters = {
        "cursor": 3,
        "ready": 2,
        "in_flight": 1,
        "acked": 10,
        "removed": 0,
        "consumers": 1,
        "redelivered": 4,
    } | more
    return GroupStats(partition_key(9, partition), "orders", group, **counters)


def test_dead_letters_are_counted_by_what_they_died_of(orders, gossipq):
    """The newest first, whatever their order in the topic."""
    rows = [letter(3, count=2), letter(17, error="no bank", time=time_of(TIME_MS - 5))]
    rows += [letter(18, time=time_of(TIME_MS + 5))]
    orders.answers["dead.letters"] = lambda *names, **how: iter(rows)
    ran = gossipq("dlq", "ls", "orders", "--by-error", "-o", "json")
    rows = json.loads(ran.out)
    assert [(row["letters"], row["error"], row["ref"]) for row in rows] == [
        (3, "ValueError: no such customer", "orders/0/18"),
        (1, "no bank", "orders/0/17"),
    ]
    assert gossipq("dlq", "ls", "--by-error").code == 2


@pytest.fixture
def orders(client):
    """One topic with one group on two partitions."""
    parts = [
        stats(0, dead=2, retrying=5, parked=7, unmatched=3, blocked_by_key=4, paused=True),
        stats(1, consumers=2),
    ]
    client.answers["topics"] = lambda name="*": (
        [TopicInfo(9, "orders", 1, TopicConfig(2), [1, 2])] if name == "orders" else []
    )
    client.answers["group.describe"] = GroupShown(GroupConfig(), [("mode", "shared", "group")], ["ada"])
    client.answers["stats"] = lambda names=(): StatsReply([], parts)
    return client


# --- dlq ls and show


def test_dlq_ls_counts(orders, gossipq) -> None:
    ran = gossipq("dlq", "ls")
    assert ran.err == ""
    assert [line.split() for line in ran.out.splitlines()] == [
        ["topic", "group", "dead"],
        ["orders", "billing", "2"],
    ]
    assert json.loads(gossipq("dlq", "ls", "-o", "json").out) == [
        {"topic": "orders", "group": "billing", "dead": 2}
    ]
    assert gossipq("dlq", "ls", "-g", "audit") == (0, "", "no dead letters of audit\n")


def test_dlq_ls_of_a_topic(orders, gossipq) -> None:
    orders.answers["dead.letters"] = lambda *args, **options: iter(
        [letter(), letter(20, count=3, reason="expired", error="")]
    )
    ran = gossipq("dlq", "ls", "orders", "-g", "billing")
    head, first, second = ran.out.splitlines()
    assert head.split() == ["range", "count", "group", "reason", "failures", "attempts", "time", "error"]
    error = ["ValueError:", "no", "such", "customer"]
    assert first.split() == ["orders/0/17", "1", "billing", "failures", "10", "11", *TIME.split(), *error]
    assert second.split()[:2] == ["orders/0/20-22", "3"]
    assert second.split()[-1] == "-"
    assert orders.called("dead.letters") == [(("orders", "billing"), {"values": False})]
    assert gossipq("dlq", "ls", "orders", "-o", "names").out == "orders/0/17\norders/0/20-22\n"
    assert json.loads(gossipq("dlq", "ls", "orders", "-o", "json").out)[1]["count"] == 3


def test_dlq_ls_stops(orders, gossipq) -> None:
    orders.answers["dead.letters"] = lambda *args, **options: iter([letter(offset) for offset in range(5)])
    ran = gossipq("dlq", "ls", "orders", "-n", "2")
    assert (len(ran.out.splitlines()), ran.err) == (3, "only the first 2 rows; -n 0 shows all\n")
    assert len(gossipq("dlq", "ls", "orders", "-n", "0").out.splitlines()) == 6


def test_dlq_ls_of_none(orders, gossipq) -> None:
    orders.answers["dead.letters"] = lambda *args, **options: iter(())
    assert gossipq("dlq", "ls", "orders") == (0, "", "no dead letters on orders\n")
    told = "no dead letters of billing on orders\n"
    assert gossipq("dlq", "ls", "orders", "-g", "billing") == (0, "", told)
    assert gossipq("dlq", "ls", "orders", "-g", "billing", "--by-error") == (0, "", told)
    assert gossipq("dlq", "ls", "orders", "-g", "nobody").err.startswith(
        "error: no group nobody on orders\n hint: "
    )
    for verb in (
        ("ls", "nowhere"),
        ("replay", "nowhere", "-g", "x"),
        ("purge", "nowhere", "-g", "x", "--yes"),
    ):
        ran = gossipq("dlq", *verb)
        assert (ran.code, ran.out) == (4, "")
        assert ran.err.startswith("error: no topic nowhere\n hint: `gossipq topic ls`")


def test_dlq_show(orders, gossipq) -> None:
    orders.answers["dead.letters"] = lambda *args, **options: iter(
        [letter(value=b"17 \x1b[1mapples", key=b"ada"), letter(18)]
    )
    orders.answers["record.trace"] = [
        TraceEvent(TIME_MS - 10, "failed", "billing", "ada-1", "no \x1b body", 10)
    ]
    ran = gossipq("dlq", "show", "orders/0/17")
    assert ran.out == (
        f"billing: dead since {TIME}: failures, 11 attempts, 10 failures\n"
        "  last error: ValueError: no such customer\n"
        "  2026-01-02 03:04:05.668Z  failed by ada-1, attempt 10: no \\x1b body\n"
        "  next: gossipq dlq replay orders -g billing 0/17\n"
        "\n"
        "ref        orders/0/17\n"
        "published  2026-01-02 03:03:05.678Z\n"
        "key        ada\n"
        "size       13 B\n"
        "\n"
        "17 \\x1b[1mapples\n"
    )
    assert orders.called("dead.letters") == [(("orders", ""), {"partition": 0, "start": 17})]
    assert orders.called("record.trace") == [(("orders/0/17",), {"group": "billing"})]
    row = json.loads(gossipq("dlq", "show", "orders/0/17", "-g", "billing", "-o", "json").out)
    (shown,) = row["letters"]
    assert (shown["reason"], shown["value"], shown["steps"][0]["what"]) == (
        "failures",
        "17 \x1b[1mapples",
        "failed",
    )


def test_dlq_show_of_none(orders, gossipq) -> None:
    orders.answers["dead.letters"] = lambda *args, **options: iter([letter(18)])
    ran = gossipq("dlq", "show", "orders/0/17", "-g", "billing")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err == "error: orders/0/17 is no dead letter of billing\n hint: `gossipq why orders/0/17`\n"
    ran = gossipq("dlq", "show", "orders/0/@210.3")
    assert (ran.code, ran.err.splitlines()[0]) == (
        2,
        "error: orders/0/@210.3 has no offset: it is not due yet",
    )
    ran = gossipq("dlq", "show", "orders/zero/17")
    assert (ran.code, ran.err.splitlines()[0]) == (2, "error: 'orders/zero/17' is no ref")


# --- dlq replay and purge


def test_dlq_replay(orders, gossipq) -> None:
    orders.answers["dead.replay"] = 12
    ran = gossipq("dlq", "replay", "orders", "-g", "billing")
    assert ran == (0, "12 dead letters ready for billing again\n", "")
    ran = gossipq(
        "dlq", "replay", "orders", "-g", "billing", "0/17", "orders/1/100-199", "1", "0/5-", "--dry-run"
    )
    assert ran.out == "12 dead letters would be ready for billing again\n"
    ran = gossipq("dlq", "replay", "orders", "-g", "billing", "--to", "orders.repaired", "-o", "json")
    row = {"topic": "orders", "group": "billing", "to": "orders.repaired", "count": 12, "dry_run": False}
    assert json.loads(ran.out) == row
    all_there_is = 2**62
    assert orders.called("dead.replay") == [
        (("orders", "billing", None), {"to": None, "dry_run": False}),
        (
            ("orders", "billing", [(0, 17, 18), (1, 100, 200), (1, 0, all_there_is), (0, 5, all_there_is)]),
            {"to": None, "dry_run": True},
        ),
        (("orders", "billing", None), {"to": "orders.repaired", "dry_run": False}),
    ]


def test_dlq_replay_into_a_topic_that_is_gone(orders, gossipq) -> None:
    orders.answers["dead.replay"] = errors.UnknownTopic("topic 'gone' does not exist", "gossipq topic ls")
    ran = gossipq("dlq", "replay", "orders", "-g", "billing", "--to", "gone")
    assert ran == (4, "", "error: topic 'gone' does not exist\n hint: gossipq topic ls\n")


@pytest.mark.parametrize("verb", ["replay", "purge"])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("x", "Invalid value for 'RANGE': 'x'; write PARTITION, PARTITION/OFFSET or PARTITION/FIRST-LAST"),
        ("bills/0/17", "Invalid value for 'RANGE': 'bills/0/17'; write PARTITION"),
        ("0/9-5", "Invalid value for 'RANGE': '0/9-5' ends before it begins"),
    ],
)
def test_dlq_wrong_ranges(orders, gossipq, verb: str, given: str, says: str) -> None:
    ran = gossipq("dlq", verb, "orders", "-g", "billing", given)
    assert (ran.code, ran.out, orders.calls) == (2, "", [])
    assert ran.err.startswith(f"error: {says}")


def test_dlq_purge(orders, gossipq) -> None:
    orders.answers["dead.purge"] = 12
    ran = gossipq("dlq", "purge", "orders", "-g", "billing", "--dry-run")
    assert ran == (0, "12 dead letters of billing would be removed for good\n", "")
    assert orders.called("dead.purge") == [(("orders", "billing", None), {"dry_run": True})]
    ran = gossipq("dlq", "purge", "orders", "-g", "billing")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(
        "error: purging 12 dead letters of billing on orders needs --yes when nobody can be asked\n"
    )
    assert len(orders.called("dead.purge")) == 2
    ran = gossipq("dlq", "purge", "orders", "-g", "billing", "0/17", "--yes")
    assert ran.out == "12 dead letters of billing removed for good\n"
    assert orders.called("dead.purge")[-1] == (("orders", "billing", [(0, 17, 18)]), {"dry_run": False})


def test_dlq_purge_of_none_asks_nobody(orders, gossipq) -> None:
    orders.answers["dead.purge"] = 0
    assert gossipq("dlq", "purge", "orders", "-g", "billing") == (
        0,
        "0 dead letters of billing removed for good\n",
        "",
    )


# --- group


def test_group_ls_shows_dead_letters_and_pauses(orders, gossipq) -> None:
    head, row = gossipq("group", "ls", "orders").out.splitlines()
    assert head.split() == ["group", "topic", "partitions", "consumers", "lag", "dead", "paused"]
    assert row.split() == ["billing", "orders", "2", "2", "18", "2", "paused"]


def test_group_ls_says_when_an_unused_group_goes(orders, gossipq) -> None:
    """Of its partitions the one that goes first: groups go shard by shard."""
    stood = [stats(0, goes_ms=7_200_000), stats(1, goes_ms=3_600_000), stats(1, group="used")]
    orders.answers["stats"] = StatsReply([], stood)
    head, *rows = gossipq("group", "ls", "orders").out.splitlines()
    assert head.split()[-2:] == ["goes", "in"]
    assert [row.split()[-1] for row in rows] == ["1h", "0"]


def test_group_lag_counts_what_is_not_done(orders, gossipq) -> None:
    (row,) = json.loads(gossipq("group", "lag", "orders", "-o", "json").out)
    assert (row["lag"], row["ready"], row["in_flight"], row["retrying"], row["parked"]) == (18, 4, 2, 5, 7)
    rows = json.loads(gossipq("group", "lag", "orders", "--partitions", "-o", "json").out)
    assert [(row["partition"], row["lag"], row["unmatched"], row["blocked_by_key"]) for row in rows] == [
        (0, 15, 3, 4),
        (1, 3, 0, 0),
    ]


def test_group_show(orders, gossipq) -> None:
    ran = gossipq("group", "show", "orders", "-g", "billing")
    fields, _, table = ran.out.partition("\n\n")
    shown = dict(line.rsplit(maxsplit=1) for line in fields.splitlines())
    assert {name.strip(): value for name, value in shown.items()} == {
        "group": "billing",
        "topic": "orders",
        "partitions": "2",
        "lag": "18",
        "ready": "4",
        "in flight": "2",
        "retrying": "5",
        "parked": "7",
        "mode": "shared",
        "oldest": "-",
        "consumed by": "ada",
        "acked": "20",
        "dead": "2",
        "voided": "0",
        "dropped": "0",
        "removed": "0",
        "redelivered": "8",
        "unmatched": "3",
        "blocked by key": "4",
        "behind limit": "0",
        "behind rate": "0",
        "consumers": "2",
        "paused": "yes",
    }
    assert [line.split()[0] for line in table.splitlines()] == ["partition", "0", "1"]
    row = json.loads(gossipq("group", "show", "orders", "-g", "billing", "-o", "json").out)
    assert [part["cursor"] for part in row["partitions"]] == [3, 3]
    assert gossipq("group", "show", "orders", "-g", "billing", "-o", "names").out == "billing\n"


def test_group_pause_and_resume(orders, gossipq) -> None:
    orders.answers |= {"group.pause": None, "group.resume": None}
    ran = gossipq("group", "pause", "orders", "-g", "billing")
    assert ran == (0, "billing on orders is paused; undo: gossipq group resume orders billing\n", "")
    ran = gossipq("group", "resume", "orders", "billing")
    said = "billing on orders is resumed: 4 records ready; undo: gossipq group pause orders billing\n"
    assert ran == (0, said, "")
    assert (orders.called("group.pause"), orders.called("group.resume")) == (
        [(("orders", "billing"), {})],
    ) * 2
    assert (
        json.loads(gossipq("group", "pause", "orders", "-g", "billing", "-o", "json").out)["paused"] is True
    )


@pytest.mark.parametrize("verb", ["show", "pause", "resume"])
def test_group_verbs_of_nobody(orders, gossipq, verb: str) -> None:
    ran = gossipq("group", verb, "orders", "-g", "nobody")
    assert ran == (4, "", "error: no group nobody on orders\n hint: `gossipq group ls orders`\n")
    assert gossipq("group", verb, "nowhere", "-g", "billing").code == 4
    for line, says in (
        ((), "name a topic and a group"),
        (("billing", "-g", "billing"), "name the group once"),
    ):
        ran = gossipq("group", verb, "orders", *line)
        assert (ran.code, ran.err.splitlines()[0]) == (2, f"error: {says}")
