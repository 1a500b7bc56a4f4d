"""pub, sub, topic, status: what their options become, and what they say of the answer."""

import io
import json
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from gossipq import errors
from gossipq.errors import NotConfirmed
from gossipq.messages import StatsReply, StatusReply
from gossipq.times import time_of
from gossipq.types import partition_key
from gossipq.values import Lead, Member, PartitionStats, Route, TopicConfig, TopicInfo, WorkerStats
from gossipq_cli.choices import TIMEOUT_S
from gossipq_cli.commands import pub
from gossipq_cli.main import main


class Pending:
    """A receipt that is ready."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def result(self, timeout: float | None = None) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def receipt(offset: int = 3, **more: Any) -> SimpleNamespace:
    fields = {
        "topic": "orders",
        "partition": 0,
        "offset": offset,
        "ref": f"orders/0/{offset}",
        "copies": 1,
        "duplicate": False,
        "kept": False,
    }
    return SimpleNamespace(**fields | {"receipts": ()} | more)


@pytest.fixture
def orders(client):
    client.answers["topics"] = lambda name: [TopicInfo(9, name, 1, TopicConfig(), [1])]
    client.answers["post"] = lambda *args, **options: Pending(receipt())
    client.answers["topic.schema"] = None
    client.answers["stats"] = lambda topics: StatsReply([], [])
    return client


# --- pub


def published(client) -> list[tuple[bytes, dict[str, Any]]]:
    """Published values with their options, except the time to wait for room in the window."""
    calls = [(args[1], dict(options)) for args, options in client.called("post")]
    assert [options.pop("wait") for _, options in calls] == [TIMEOUT_S] * len(calls)
    return calls


def test_pub_passes_every_option(orders, gossipq) -> None:
    line = (
        "--delay",
        "10m",
        "--ttl",
        "1h",
        "--id",
        "r-{n}",
        "--route",
        "eu.fr",
        "--lease",
        "90",
        "--attempts-max",
        "3",
        "--unique",
        "order-{n}",
        "--until",
        "acked",
        "--conflict",
        "replace",
        "--flow",
        "ada",
        "--priority",
        "9",
        "--keep-result",
        "1d",
    )
    assert gossipq("pub", "orders", "body", *line, "--backoff", "500ms", "--level", "stored").code == 0
    ((value, options),) = published(orders)
    assert value == b"body"
    assert options == {
        "key": None,
        "headers": None,
        "delay": 600.0,
        "ttl": 3600.0,
        "id": "r-0",
        "route": "eu.fr",
        "lease": 90.0,
        "attempts_max": 3,
        "backoff": 0.5,
        "level": "stored",
        "unique": "order-0",
        "until": "acked",
        "conflict": "replace",
        "flow": "ada",
        "priority": 9,
        "keep_result": 86_400.0,
    }


def test_pub_asks_for_nothing_that_was_not_said(orders, gossipq) -> None:
    gossipq("pub", "orders", "body", "--count", "2")
    assert published(orders) == [(b"body", {"key": None, "headers": None})] * 2


def test_pub_at(orders, gossipq) -> None:
    gossipq("pub", "orders", "body", "--at", "2026-11-21T09:00+01:00")
    assert published(orders)[0][1]["at"] == datetime(2026, 11, 21, 8, tzinfo=UTC)
    gossipq("pub", "orders", "body", "--at", "2026-11-21 09:00")
    assert published(orders)[1][1]["at"] == datetime(2026, 11, 21, 9).astimezone()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("--delay", "1", "--at", "2026-11-21"), "--delay and --at exclude each other"),
        (("--delay", "-1"), "Invalid value for '--delay': -1.0 is negative"),
        (("--delay", "nan"), "Invalid value for '--delay': nan is not a duration"),
        (("--delay", "1e400"), "Invalid value for '--delay': inf is too long"),
        (("--ttl", "forever"), "Invalid value for '--ttl': 'forever' is not a duration"),
        (("--at", "noon"), "Invalid value for '--at': 'noon' is no time"),
        (("--attempts-max", "0"), "Invalid value for '--attempts-max': 0 is not in the range 1<=x<=1000000"),
        (("--backoff", "1s,5s"), "Invalid value for '--backoff': '1s,5s' is not a duration"),
    ],
)
def test_pub_wrong_options(orders, gossipq, line: tuple[str, ...], says: str) -> None:
    ran = gossipq("pub", "orders", "body", *line)
    assert (ran.code, ran.out, orders.calls) == (2, "", [])
    assert ran.err.startswith(f"error: {says}")


def test_pub_jsonl_lines_say_for_themselves(orders, gossipq) -> None:
    lines = [
        b'{"value":"a","delay":"5s","id":"own","route":"eu.de","ttl":60,"lease":"1m","attempts_max":2,"backoff":"10s"}',
        b'{"value":"b","at":"2026-11-21T09:00Z"}',
        b'{"value":"c"}',
    ]
    ran = gossipq(
        "pub",
        "orders",
        "--jsonl",
        "--delay",
        "1",
        "--id",
        "line-{n}",
        "--route",
        "eu.fr",
        stdin=b"\n".join(lines),
    )
    assert ran.code == 0
    first, second, third = (options for _, options in published(orders))
    given = {"key": None, "headers": None}
    own = {
        "delay": 5.0,
        "id": "own",
        "route": "eu.de",
        "ttl": 60.0,
        "lease": 60.0,
        "attempts_max": 2,
        "backoff": 10.0,
    }
    assert first == given | own
    assert second == given | {"at": datetime(2026, 11, 21, 9, tzinfo=UTC), "id": "line-1", "route": "eu.fr"}
    assert third == given | {"delay": 1.0, "id": "line-2", "route": "eu.fr"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"value":"a","dealy":5}', 'no field "dealy"; did you mean `delay`?'),
        (b'{"value":"a","colour":5}', 'no field "colour"; there are value, value_base64, key,'),
        (b'{"value":"a","delay":"soon"}', "\"delay\": 'soon' is not a duration"),
        (b'{"value":"a","delay":-1}', '"delay": -1 is negative'),
        (b'{"value":"a","delay":true}', '"delay": True is not a duration'),
        (b'{"value":"a","at":5}', '"at": a string is needed'),
        (b'{"value":"a","id":5}', '"id": a string is needed'),
        (b'{"value":"a","attempts_max":0}', '"attempts_max": a number from 1 to 1000000 is needed'),
        (b'{"value":"a","headers":{"a":1}}', '"headers" is an object of strings'),
    ],
)
def test_pub_jsonl_wrong_lines(orders, gossipq, line: bytes, says: str) -> None:
    ran = gossipq("pub", "orders", "--jsonl", stdin=line)
    assert (ran.code, ran.out, published(orders)) == (2, "", [])
    assert ran.err.startswith(f"error: line 1 of the JSON lines: {says}")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (receipt(), "stored orders/0/3  "),
        (receipt(-1, ref="orders/0/@210.3"), "scheduled orders/0/@210.3  "),
        (receipt(duplicate=True), "duplicate of orders/0/3  "),
        (receipt(-1, ref="", duplicate=True), "duplicate of a record of orders that is gone  "),
        (receipt(-1, ref="", copies=0), "sent orders\n"),
        (receipt(kept=True), "nothing stored: the unique name is that of orders/0/3  "),
        (receipt(receipts=(receipt(), receipt(5, ref="bills/0/5"))), "stored orders/0/3, bills/0/5  "),
    ],
)
def test_pub_says_what_became_of_it(orders, gossipq, answer: Any, text: str) -> None:
    orders.answers["post"] = lambda *args, **options: Pending(answer)
    ran = gossipq("pub", "orders", "body")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(text)
    row = json.loads(gossipq("pub", "orders", "body", "-o", "json").out)
    assert row["ref"] == answer.ref
    assert row["duplicate"] is answer.duplicate


def test_pub_of_what_promises_nothing_says_sent(orders, gossipq) -> None:
    orders.answers["post"] = lambda *args, **options: Pending(receipt(-1, ref="", copies=0))
    assert gossipq("pub", "orders", "body", "--count", "5").out.startswith("sent 5 of 5 in orders  ")


def test_pub_waits_no_longer_than_it_was_told_and_says_what_it_knows(orders, gossipq) -> None:
    answers = iter([receipt(), NotConfirmed("no confirm within 2 s")])
    orders.answers["post"] = lambda *args, **options: Pending(next(answers))
    ran = gossipq("--timeout", "2s", "pub", "orders", "body", "--count", "2")
    assert ran.out.startswith("stored 1 of 2 in orders  ")
    assert "1 of 2 records may be stored or not: no confirm within 2 s" in ran.err
    assert orders.called("close") == [((), {"flush": False})]


def test_pub_counts_duplicates(orders, gossipq) -> None:
    orders.answers["post"] = lambda *args, **options: Pending(receipt(duplicate=options["id"] == "x-1"))
    ran = gossipq("pub", "orders", "--lines", "--id", "x-{n}", stdin=b"a\nb\nc\n")
    assert ran.out.startswith("stored 3 of 3 in orders (1 known already)  ")
    row = json.loads(gossipq("pub", "orders", "--lines", "--id", "x-{n}", "-o", "json", stdin=b"a\nb\n").out)
    assert (row["published"], row["confirmed"], row["duplicates"]) == (2, 2, 1)


def test_pub_of_what_the_client_refuses(orders, gossipq) -> None:
    orders.answers["post"] = errors.BadRequest("delay=1e12 is too long", "0ms to 3650d are allowed")
    ran = gossipq("pub", "orders", "body", "--delay", "1e9")
    assert ran == (2, "", "error: delay=1e12 is too long\n hint: 0ms to 3650d are allowed\n")


# --- sub


def subscription(*messages: Any) -> mock.MagicMock:
    found = mock.MagicMock(trouble="")
    found.__enter__.return_value = found
    found.__iter__.side_effect = lambda: iter(messages)
    return found


def consumed(client, gossipq, *line: str) -> dict[str, Any]:
    verb = "subscribe" if "-g" in line else "read"
    client.answers[verb] = lambda *args, **options: subscription()
    assert gossipq("sub", "orders", *line).code == 0
    return client.called(verb)[-1][1]


def test_sub_passes_every_option(orders, gossipq) -> None:
    plain = {"start": None, "create": True}
    reads, joins = plain | {"follow": True}, plain | {"stop_at_end": False}
    assert consumed(orders, gossipq) == reads
    assert consumed(orders, gossipq, "--route", "eu.*", "--route", "us.#") == reads | {
        "route": ["eu.*", "us.#"]
    }
    line = ("-g", "billing", "--mode", "key_ordered", "--no-ack", "--attempts-max", "3", "--backoff", "1s,1m")
    assert consumed(orders, gossipq, *line) == joins | {
        "mode": "key_ordered",
        "ack": False,
        "attempts_max": 3,
        "backoff": [1.0, 60.0],
    }


def test_sub_escapes_on_a_terminal(orders, gossipq, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = io.BytesIO()

    class Screen(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    def shown(*line: str) -> bytes:
        message = mock.MagicMock(
            value=b"\x1b[2J\ta\nb\xff\xc3\xa9",
            key=None,
            publish_time=time_of(1_000),
            headers_shown={},
            route="",
            id=None,
        )
        orders.answers["read"] = lambda *args, **options: subscription(message)
        sink.seek(0)
        sink.truncate()
        monkeypatch.setattr(sys, "stdout", Screen(sink))
        monkeypatch.setenv("TERM", "xterm")
        assert main(["sub", "orders", *line]) == 0
        return sink.getvalue()

    assert shown() == b"\\x1b[2J\ta\nb\\xff\xc3\xa9\n"
    assert shown("-f", "%v|") == b"\\x1b[2J\ta\nb\\xff\xc3\xa9|\n"
    assert shown("--raw") == b"\x1b[2J\ta\nb\xff\xc3\xa9\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("--mode", "exclusive"), "--mode is for groups: add -g NAME"),
        (("--no-ack",), "--no-ack is for groups: add -g NAME"),
        (("--attempts-max", "3"), "--attempts-max is for groups: add -g NAME"),
        (("--mode", "alone", "-g", "x"), "Invalid value for '--mode': 'alone' is not one of"),
        (("--backoff", "1s,soon", "-g", "x"), "Invalid value for '--backoff': 'soon' is not a duration"),
        (("--backoff", "", "-g", "x"), "Invalid value for '--backoff': '' is not a duration"),
        (("-n", "x"), "Invalid value for '-n' / '--number': 'x' is not a whole number\n"),
        (("--group",), "Option '--group' requires an argument\n"),
    ],
)
def test_sub_wrong_options(orders, gossipq, line: tuple[str, ...], says: str) -> None:
    ran = gossipq("sub", "orders", *line)
    assert (ran.code, ran.out, orders.calls) == (2, "", [])
    assert ran.err.startswith(f"error: {says}")
    assert ran.err.splitlines()[1] == " hint: `gossipq sub --help` shows what it takes"


@pytest.mark.parametrize(
    "error",
    [
        errors.BadRequest("route pattern '#'", "leave routes away to take every record"),
        errors.BadRequest("mode exclusive over 2 shards", "gossipq topic create NAME --beside orders"),
    ],
)
def test_sub_of_what_is_refused(orders, gossipq, error: errors.BadRequest) -> None:
    orders.answers["subscribe"] = error
    ran = gossipq("sub", "orders", "-g", "billing")
    assert ran == (2, "", f"error: {error.message}\n hint: {error.hint}\n")


# --- topic


def test_topic_create_passes_every_option(client, gossipq) -> None:
    client.answers["create_topic"] = lambda name, **options: TopicInfo(9, name, 1, TopicConfig(), [1])
    line = (
        "--ttl",
        "1d",
        "--expire",
        "try_once",
        "--dedup",
        "1h",
        "--trace",
        "all",
        "--lease",
        "1m",
        "--attempts-max",
        "5",
    )
    assert gossipq("topic", "create", "orders", *line, "--backoff", "1s,10s,5m").code == 0
    assert client.calls[0][2] == {
        "partitions": None,
        "if_not_exists": False,
        "ttl": 86_400.0,
        "expire": "try_once",
        "dedup": 3600.0,
        "trace": "all",
        "lease": 60.0,
        "attempts_max": 5,
        "backoff": [1.0, 10.0, 300.0],
    }


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            ("--expire", "later"),
            "Invalid value for '--expire': 'later' is not one of 'dead', 'drop', 'try_once'",
        ),
        (("--trace", "some"), "Invalid value for '--trace': 'some' is not one of 'failures', 'all', 'off'"),
        (("--attempts-max", "0"), "Invalid value for '--attempts-max': 0 is not in the range x>=1"),
        (("--ttl", "-1s"), "Invalid value for '--ttl': '-1s' is not a duration"),
        (("--backoff", "1,-2"), "Invalid value for '--backoff': -2.0 is negative"),
    ],
)
def test_topic_create_wrong_options(client, gossipq, line: tuple[str, ...], says: str) -> None:
    ran = gossipq("topic", "create", "orders", *line)
    assert (ran.code, ran.out, client.calls) == (2, "", [])
    assert ran.err.startswith(f"error: {says}")


def test_topic_virtual(client, gossipq) -> None:
    client.answers["topic.bind"] = lambda name, targets: TopicInfo(
        9, name, 1, TopicConfig(0, virtual=targets), []
    )
    ran = gossipq("topic", "virtual", "audit", "orders", "bills")
    assert ran == (0, "topic audit is copied to orders, bills\n", "")
    assert client.calls == [("topic.bind", ("audit", ["orders", "bills"]), {})]
    row = json.loads(gossipq("topic", "virtual", "audit", "orders", "-o", "json").out)
    assert row == {"topic": "audit", "id": 9, "virtual": ["orders"]}
    ran = gossipq("topic", "virtual", "audit")
    assert (ran.code, ran.err.splitlines()[0]) == (2, "error: Missing argument 'TOPIC...'")
    client.answers["topic.bind"] = errors.BadRequest("audit contains itself", "name other topics")
    assert gossipq("topic", "virtual", "audit", "audit") == (
        2,
        "",
        "error: audit contains itself\n hint: name other topics\n",
    )


def test_topics_with_policies(client, gossipq) -> None:
    config = TopicConfig(1, ttl_ms=60_000, lease_ms=5_000, backoff_ms=[1_000, 300_000])
    infos = [
        TopicInfo(9, "orders", 1, config, [1]),
        TopicInfo(10, "audit", 1, TopicConfig(0, virtual=["orders", "bills"]), []),
    ]
    part = PartitionStats(partition_key(9, 0), "orders", 1, 0, 0, 5, 7, 0, 1_000, scheduled=2)
    client.answers["topics"] = lambda name="*": [info for info in infos if name in ("*", info.name)]
    client.answers["stats"] = lambda names=(): StatsReply([part], [])
    client.answers["status"] = errors.Forbidden("may not observe")
    head, audit, orders = gossipq("topic", "ls").out.splitlines()
    assert head.split() == [
        "topic",
        "partitions",
        "records",
        "bytes",
        "published",
        "retention",
        "scheduled",
        "copied",
        "to",
    ]
    assert audit.split() == ["audit", "0", "0", "0", "B", "0", "7d", "0", "orders,", "bills"]
    assert orders.split() == ["orders", "1", "5", "1000", "B", "7", "7d", "2"]
    fields = dict(
        line.split(maxsplit=1)
        for line in gossipq("topic", "show", "orders").out.partition("\n\n")[0].splitlines()
    )
    assert (fields["ttl"], fields["lease"], fields["backoff"]) == ("1m", "5s", "1s, 5m")
    assert fields["group_idle"] == "never"
    assert (fields["attempts_max"], fields["trace"], fields["expire"]) == (
        "as the cluster says",
        "failures",
        "dead",
    )
    assert gossipq("topic", "show", "audit").out == "topic    audit\nid       10\nvirtual  orders, bills\n"
    assert json.loads(gossipq("topic", "show", "audit", "-o", "json").out)["config"]["virtual"] == [
        "orders",
        "bills",
    ]


def test_a_topic_shows_the_node_that_leads_each_partition(client, gossipq) -> None:
    parts = [
        PartitionStats(partition_key(9, at), "orders", shard, 0, 0, 5, 5, 0, 10)
        for at, shard in ((0, 1), (1, 2))
    ]
    client.answers["topics"] = [TopicInfo(9, "orders", 1, TopicConfig(2), [1, 2])]
    client.answers["stats"] = StatsReply(parts, [])
    routes = [Route(shard, 1, "tcp://127.0.0.1:7702") for shard in (1, 2)]
    alone = StatusReply("ada", "gossipq", bytes(16), "0", "standalone", 1_000, 2, 2, [], routes)
    members = [Member(f"{name}.1", name, "tcp://127.0.0.1:7701", 1) for name in ("ada", "bob")]
    leads = [Lead(1, 3, "bob.1"), Lead(2, 3, "ada.1")]
    three = StatusReply(
        "ada", "gossipq", bytes(16), "0", "cluster", 1_000, 2, 2, [], [], members=members, leads=leads
    )
    for status, leaders in (
        (alone, ["ada", "ada"]),
        (three, ["bob", "ada"]),
        (errors.Forbidden("may not observe"), ["", ""]),
    ):
        client.answers["status"] = status
        shown = json.loads(gossipq("topic", "show", "orders", "-o", "json").out)
        assert [part["leader"] for part in shown["partitions"]] == leaders
    client.answers["status"] = three
    head, first, _ = gossipq("topic", "show", "orders").out.splitlines()[-3:]
    assert first.split()[head.split().index("leader")] == "bob"


# --- status


def worker(number: int, **more: int) -> WorkerStats:
    return WorkerStats(
        number, 1, "tcp://127.0.0.1:7701", "ready", 0, 16, 1, 5, 5, 5, 0, 0, 1, 1, 100, 1_000, **more
    )


def test_status_tells_of_dead_letters(client, gossipq) -> None:
    def answer(*workers: WorkerStats) -> StatusReply:
        return StatusReply("ada", "gossipq", bytes(16), "0", "standalone", 1_000, 32, 32, list(workers), [])

    client.answers["status"] = answer(worker(0, dead=7, dead_per_minute=2), worker(1, dead=1))
    ran = gossipq("status")
    assert (
        "dead letters since the workers started: 8, 2 of them in the last minute: gossipq dlq ls\n" in ran.out
    )
    head, first, _ = ran.out.splitlines()[-3:]
    assert first.split()[head.split().index("dead/min")] == "2"
    assert json.loads(gossipq("status", "-o", "json").out)["workers"][0]["dead"] == 7
    client.answers["status"] = answer(worker(0))
    assert "dead letters" not in gossipq("status").out


def test_a_slow_line_takes_its_time_for_one_batch_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """All were given one time limit together, though one after the other was confirmed."""
    now_s = 0.0

    class Slow:
        def __init__(self, takes_s: float) -> None:
            self.takes_s = takes_s

        def result(self, timeout: float) -> Any:
            nonlocal now_s
            now_s += min(timeout, self.takes_s)
            if timeout < self.takes_s:
                raise NotConfirmed("not yet")
            return SimpleNamespace(duplicate=False)

    monkeypatch.setattr(pub, "time", SimpleNamespace(monotonic=lambda: now_s))
    tally = pub.Tally(5)
    tally.pending.extend(map(Slow, [2.0, 2.0, 2.0, 2.0]))
    tally.settle_all()
    assert (tally.confirmed, tally.error, now_s) == (4, None, 8)
    tally.pending.extend(map(Slow, [2.0, 60.0, 60.0, 60.0]))
    tally.settle_all()
    assert (tally.confirmed, now_s) == (5, 15), "nobody waits for each of those that a dead node leaves"
