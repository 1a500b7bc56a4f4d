"""why, trace, msg: what they ask the client, what they say, and what they refuse before they ask anything."""

import io
import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest import mock

import click
import pytest

from gossipq import errors
from gossipq.messages import Explained, StatsReply
from gossipq.texts import moment
from gossipq.times import time_of
from gossipq.types import partition_key
from gossipq.values import Ref, Standing, TopicConfig, TopicInfo, TraceEvent
from gossipq_cli import ask
from gossipq_cli.options import Choices
from gossipq_client.answers import GroupStand

TIME_MS = 1_767_323_045_678
TIME = "2026-01-02 03:04:05.678Z"


def record(**more: Any) -> SimpleNamespace:
    fields = {
        "topic": "orders",
        "partition": 0,
        "offset": 17,
        "ref": "orders/0/17",
        "value": b"17 apples",
        "key": b"ada",
    }
    fields |= {
        "headers_shown": {"source": "shop"},
        "route": "eu.fr",
        "id": "order-17",
        "id_bytes": b"order-17",
        "own_options": {},
    }
    return SimpleNamespace(**fields | {"publish_time": time_of(TIME_MS)} | more)


def receipt(**more: Any) -> SimpleNamespace:
    fields = {
        "topic": "orders",
        "partition": 0,
        "offset": 18,
        "ref": "orders/0/18",
        "copies": 1,
        "duplicate": False,
    }
    return SimpleNamespace(**fields | more)


# --- why


STANDINGS = [
    Standing(
        "billing", "in_flight", "ada-1 has it", "gossipq group show orders -g billing", "ada-1", TIME_MS, 2, 1
    ),
    Standing("audit", "acked", "", "", "bob", TIME_MS),
]


def test_why_tells_one_paragraph_a_group(client, gossipq) -> None:
    client.answers["record.why"] = Explained(
        Ref(partition_key(9, 0), 17), STANDINGS, ["lease 30s, as the cluster says"]
    )
    ran = gossipq("why", "orders/0/17")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "orders/0/17\n"
        "\n"
        f"billing: in flight until {TIME}, 2 attempts, 1 failure\n"
        "  because ada-1 has it\n"
        "  next: gossipq group show orders -g billing\n"
        "\n"
        f"audit: acked at {TIME}\n"
        "\n"
        "lease 30s, as the cluster says\n"
    )
    assert client.called("record.why") == [((), {"name": "orders/0/17", "group": ""})]


def test_why_in_other_forms(client, gossipq) -> None:
    client.answers["record.why"] = Explained(Ref(partition_key(9, 2), -1, 210, 3), STANDINGS[:1])
    row = json.loads(gossipq("why", "orders", "--id", "order-17", "-g", "billing", "-o", "json").out)
    assert row["ref"] == "orders/2/@210.3"
    assert row["standings"][0]["state"] == "in_flight"
    assert row["lines"] == []
    assert client.called("record.why") == [((), {"name": "orders", "id": "order-17", "group": "billing"})]
    assert gossipq("why", "orders", "--id", "order-17", "-o", "names").out == "orders/2/@210.3\n"


def test_why_escapes_what_a_record_brings(client, gossipq) -> None:
    told = Standing("b\x1b[2J", "dead", "it said \x1b]0;x\x07 and\nmore", "", "\u202egnp")
    client.answers["record.why"] = Explained(Ref(partition_key(9, 0), 17), [told])
    out = gossipq("why", "orders/0/17").out
    assert "b\\x1b[2J: dead\n" in out
    assert "because it said \\x1b]0;x\\x07 and\\nmore" in out
    assert json.loads(gossipq("why", "orders/0/17", "-o", "json").out)["standings"][0]["group"] == "b\x1b[2J"


def test_why_of_a_group_tells_alike_partitions_together(client, gossipq) -> None:
    paused = ("paused", "the group is paused", "gossipq group resume orders billing")
    rows = [GroupStand(number, *paused, time_of(TIME_MS)) for number in (0, 1, 3)]
    rows.insert(2, GroupStand(2, "idle", "everything is done", "", None))
    client.answers["group.why"] = rows
    client.answers |= {"stats": StatsReply([], []), "clients": []}
    ran = gossipq("why", "orders", "--group", "billing", "--over", "1ms")
    assert ran.out == (
        "billing on orders\n"
        "  0/s in, 0/s done; nothing waits\n"
        "\n"
        f"partitions 0-1, 3: paused, last ack at {TIME}\n"
        "  because the group is paused\n"
        "  next: gossipq group resume orders billing\n"
        "\n"
        "partition 2: idle\n"
        "  because everything is done\n"
    )
    assert client.calls[0] == ("group.why", ("orders", "billing"), {})
    row = json.loads(gossipq("why", "orders", "-g", "billing", "-o", "json", "--over", "1ms").out)
    assert row["outlook"]["lag"] == 0
    assert [part["partition"] for part in row["partitions"]] == [0, 1, 2, 3]
    assert row["partitions"][0] == dict(
        zip(("partition", "state", "because", "next", "since_ms"), (0, *paused, TIME_MS), strict=True)
    )
    assert gossipq("why", "orders", "-g", "billing", "-o", "names").out == "paused\npaused\nidle\npaused\n"


def test_why_of_a_group_that_is_not_there(client, gossipq) -> None:
    client.answers |= {"group.why": [], "stats": StatsReply([], [])}
    ran = gossipq("why", "orders", "-g", "nobody")
    assert ran == (4, "", "error: no group nobody on orders\n hint: `gossipq group ls orders`\n")
    topics = [TopicInfo(9, "orders", 1, TopicConfig(), [1])]
    client.answers |= {"group.why": errors.UnknownTopic("no topic ordes"), "topics": topics}
    ran = gossipq("why", "ordes", "-g", "billing")
    assert (ran.code, ran.err.partition("\n")[0]) == (4, "error: no topic ordes; did you mean `orders`?")


@pytest.mark.parametrize(
    "verb",
    [("why",), ("why", "--steps"), ("msg", "show"), ("msg", "cancel", "--yes"), ("msg", "rm", "--yes")],
)
def test_what_names_no_record(client, gossipq, verb: tuple[str, ...]) -> None:
    ran = gossipq(*verb, "orders")
    assert (ran.code, ran.out, client.calls) == (2, "", [])
    assert ran.err.startswith(
        "error: 'orders' names no record; write TOPIC/PARTITION/OFFSET, or TOPIC --id ID"
        + ("; of a group: TOPIC --group GROUP" if verb == ("why",) else "")
        + "\n hint: `gossipq "
    )


def test_an_id_belongs_to_a_topic(client, gossipq) -> None:
    ran = gossipq("why", "orders/0/17", "--id", "order-17")
    assert (ran.code, client.calls) == (2, [])
    assert ran.err.startswith("error: with --id, 'orders/0/17' must be the name of a topic\n")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            errors.UnknownRecord("no record orders/0/99"),
            4,
            "no record orders/0/99\n hint: a ref is TOPIC/PARTITION/OFFSET",
        ),
        (errors.UnknownTopic("no topic orders"), 4, "no topic orders\n hint: `gossipq topic ls`"),
        (
            errors.BadRequest("'orders/x/y' is no ref", "a ref is ..."),
            2,
            "'orders/x/y' is no ref\n hint: a ref is ...",
        ),
    ],
)
def test_why_of_nothing(client, gossipq, error: Exception, code: int, text: str) -> None:
    client.answers["record.why"] = client.answers["record.trace"] = client.answers["record.show"] = error
    for verb in (("why",), ("why", "--steps"), ("msg", "show")):
        ran = gossipq(*verb, "orders/0/99")
        assert (ran.code, ran.out) == (code, "")
        assert ran.err.startswith(f"error: {text}")


# --- trace


def test_trace(client, gossipq) -> None:
    client.answers["record.trace"] = [
        TraceEvent(TIME_MS, "published"),
        TraceEvent(TIME_MS + 5, "failed", "billing", "ada-1", "no\tbody", 1),
    ]
    client.answers["topics"] = []
    ran = gossipq("why", "--steps", "orders/0/17", "-g", "billing")
    head, first, second = ran.out.splitlines()
    assert head.split() == ["time", "what", "group", "consumer", "attempt", "reason"]
    assert first.split() == [*TIME.split(), "published", "-", "-", "-", "-"]
    assert second.split() == [*moment(TIME_MS + 5).split(), "failed", "billing", "ada-1", "1", "no\\tbody"]
    assert client.calls == [
        ("record.trace", (), {"name": "orders/0/17", "group": "billing"}),
        ("topics", ("orders",), {}),
    ]
    rows = json.loads(gossipq("why", "--steps", "orders/0/17", "-o", "json").out)
    assert rows[1] == {
        "time_ms": TIME_MS + 5,
        "what": "failed",
        "group": "billing",
        "consumer": "ada-1",
        "reason": "no\tbody",
        "attempt": 1,
    }


def test_a_trace_of_nothing_says_why(client, gossipq) -> None:
    client.answers |= {"record.trace": [], "topics": []}
    ran = gossipq("why", "--steps", "orders/0/17")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "no steps are kept of it; its topic's `trace` says which are\n"


def test_a_trace_says_when_its_topic_keeps_no_steps(client, gossipq) -> None:
    client.answers["record.trace"] = [
        TraceEvent(TIME_MS, "published"),
        TraceEvent(TIME_MS + 5, "acked", "billing", "ada-1"),
    ]
    client.answers["topics"] = [TopicInfo(9, "orders", 1, TopicConfig(trace="off"), [1])]
    ran = gossipq("why", "--steps", "orders/0/17")
    assert len(ran.out.splitlines()) == 3
    assert ran.err == "its topic keeps no steps (trace = off): what it went through before is not known\n"


# --- msg show and find


def test_msg_show(client, gossipq) -> None:
    client.answers["record.show"] = record(value=b"17 apples\nand \x1b[31mred\xff", id="order-17")
    assert gossipq("msg", "show", "orders/0/17").out == (
        "ref            orders/0/17\n"
        f"published      {TIME}\n"
        "key            ada\n"
        "header source  shop\n"
        "route          eu.fr\n"
        "id             order-17\n"
        "size           23 B\n"
        "\n"
        "17 apples\nand \\x1b[31mred\\xff\n"
    )
    row = json.loads(gossipq("msg", "show", "orders", "--id", "order-17", "-o", "json").out)
    assert (row["ref"], row["key"], row["route"], row["id"]) == ("orders/0/17", "ada", "eu.fr", "order-17")
    assert row["value_base64"] == "MTcgYXBwbGVzCmFuZCAbWzMxbXJlZP8="
    assert client.calls[-1] == ("record.show", (), {"name": "orders", "id": "order-17"})
    assert gossipq("msg", "show", "orders/0/17", "-o", "names").out == "orders/0/17\n"


def test_msg_show_raw(client, gossipq, monkeypatch: pytest.MonkeyPatch) -> None:
    client.answers["record.show"] = record(value=b"\x00\xff")
    wire = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(wire))
    from gossipq_cli.main import main

    assert main(["msg", "show", "orders/0/17", "--raw"]) == 0
    sys.stdout.flush()
    assert wire.getvalue() == b"\x00\xff"


def test_msg_find(client, gossipq) -> None:
    client.answers["read.where"] = lambda *args, **options: iter(
        [record(), record(offset=18, key=None, value=b"x" * 100)]
    )
    ran = gossipq(
        "msg",
        "find",
        "orders",
        "--contains",
        "apples",
        "-k",
        "ada",
        "--header",
        "source:shop",
        "--from",
        "5",
    )
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"orders/0/17  {TIME}  ada  17 apples\norders/0/18  {TIME}  -  {'x' * 60}...\n"
    ((args, options),) = client.called("read.where")
    progress = options.pop("progress")
    progress(500, 1_000)
    assert args == ("orders",)
    assert options == {
        "limit": 100,
        "key": "ada",
        "contains": "apples",
        "headers": {"source": "shop"},
        "start": 5,
        "end": None,
    }


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("names", "orders/0/17\norders/0/18\n"),
        ("jsonl", '{"ref":"orders/0/17",'),
        ("json", '[{"ref":"orders/0/17",'),
    ],
)
def test_msg_find_in_other_forms(client, gossipq, form: str, text: str) -> None:
    client.answers["read.where"] = lambda *args, **options: iter([record(), record(offset=18)])
    assert gossipq("msg", "find", "orders", "-o", form).out.startswith(text)


def test_msg_find_streams(client, gossipq, capsys: pytest.CaptureFixture[str]) -> None:
    """A found record is written before the search continues."""
    written = []

    def find(*args: Any, **options: Any) -> Iterator[SimpleNamespace]:
        for offset in range(2):
            yield record(offset=offset)
            written.append(capsys.readouterr().out)

    client.answers["read.where"] = find
    gossipq("msg", "find", "orders", "-o", "names")
    assert written == ["orders/0/0\n", "orders/0/1\n"]


def test_msg_find_limits_and_times(client, gossipq) -> None:
    client.answers["read.where"] = lambda *args, **options: iter([record()] * (options["limit"] or 3))
    ran = gossipq("msg", "find", "orders", "-n", "2", "--from", "2026-01-02T03:00Z", "--until", "-1s")
    assert (len(ran.out.splitlines()), ran.err) == (2, "only the first 2 records; -n 0 shows all\n")
    options = client.called("read.where")[0][1]
    assert options["start"] == datetime(2026, 1, 2, 3, tzinfo=UTC)
    assert 0 < (datetime.now(UTC) - options["end"]).total_seconds() - 1 < 60
    ran = gossipq("msg", "find", "orders", "-n", "0")
    assert (len(ran.out.splitlines()), ran.err) == (3, "")
    assert client.called("read.where")[1][1]["limit"] is None


def test_msg_find_of_nothing_is_a_no(client, gossipq) -> None:
    client.answers["read.where"] = lambda *args, **options: iter(())
    assert gossipq("msg", "find", "orders") == (1, "", "")
    assert gossipq("msg", "find", "orders", "-o", "json").out == "[]\n"


def test_msg_find_has_a_bar_on_a_terminal(client, gossipq, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*args: Any, progress: Any, **options: Any) -> Iterator[SimpleNamespace]:
        progress(250, 1_000)
        yield record()
        progress(1_000, 1_000)

    client.answers["read.where"] = find
    monkeypatch.setattr("gossipq_cli.progress.is_terminal", lambda stream: True)
    monkeypatch.setattr("gossipq_cli.progress.EVERY_S", 0)
    ran = gossipq("msg", "find", "orders", "-o", "names")
    quarter, whole = "######..................", "#" * 24
    clear = "\r\x1b[K"
    rated = re.sub(r", [\d,]+/s", "", ran.err)
    assert rated == (
        f"{clear}[{quarter}]  25%  250 of 1,000 records{clear}{clear}[{whole}] 100%  1,000 of 1,000 "
        f"records{clear}"
    )
    assert rated != ran.err, "and how fast it goes"
    assert gossipq("msg", "find", "orders", "-q").err == ""


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("--from", "soon"), "Invalid value for '--from': 'soon' is no time; write 2026-11-21T09:00Z"),
        (("--until", "-10parsecs"), "Invalid value for '--until': '10parsecs' is not a duration"),
        (("--header", "plain"), "Invalid value for -H: 'plain'; write NAME:VALUE"),
        (("-n", "-1"), "Invalid value for '-n' / '--number': -1 is not in the range x>=0"),
    ],
)
def test_msg_find_wrong_lines(client, gossipq, line: tuple[str, ...], says: str) -> None:
    ran = gossipq("msg", "find", "orders", *line)
    assert (ran.code, ran.out, client.calls) == (2, "", [])
    assert ran.err.startswith(f"error: {says}")


# --- msg cancel, rm, reschedule, requeue, edit


def test_msg_cancel(client, gossipq) -> None:
    client.answers["record.cancel"] = "orders/0/@210.3"
    ran = gossipq("msg", "cancel", "orders/0/@210.3", "--reason", "paid", "--yes")
    assert ran == (0, "cancelled orders/0/@210.3\n", "")
    assert client.calls == [("record.cancel", (), {"name": "orders/0/@210.3", "reason": "paid"})]
    ran = gossipq("msg", "cancel", "orders", "--id", "r-1", "--yes", "-o", "json")
    assert json.loads(ran.out) == {"ref": "orders/0/@210.3"}
    assert client.calls[-1] == ("record.cancel", (), {"name": "orders", "id": "r-1", "reason": ""})


def test_msg_cancel_of_a_record_that_is_done(client, gossipq) -> None:
    client.answers["record.cancel"] = errors.WrongState("orders/0/17 is acked by billing")
    ran = gossipq("msg", "cancel", "orders/0/17", "--yes")
    assert (ran.code, ran.out) == (5, "")
    assert (
        ran.err == "error: orders/0/17 is acked by billing\n hint: `gossipq why REF` says where it stands\n"
    )


def test_ctrl_c_at_a_question_leaves_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", mock.Mock(isatty=lambda: True))
    monkeypatch.setattr(
        "click.termui.visible_prompt_func", mock.Mock(side_effect=[KeyboardInterrupt, "n", "y"])
    )
    with pytest.raises(click.Abort):
        ask.sure(Choices(), "removing it", "remove it?")
    assert capsys.readouterr().err.endswith("\n")
    with pytest.raises(click.Abort):
        ask.sure(Choices(), "removing it", "remove it?")
    assert not capsys.readouterr().err.endswith("\n"), "who types n ends the line"
    ask.sure(Choices(), "removing it", "remove it?")


@pytest.mark.parametrize(
    ("line", "doing"),
    [
        (("cancel", "orders/0/17"), "cancelling orders/0/17"),
        (("cancel", "orders", "--id", "x"), "cancelling id x of orders"),
        (("rm", "orders/0/17"), "removing orders/0/17"),
        (("rm", "orders/0/17", "orders/0/18"), "removing 2 records"),
    ],
)
def test_what_destroys_needs_a_yes(client, gossipq, line: tuple[str, ...], doing: str) -> None:
    ran = gossipq("msg", *line)
    assert (ran.code, ran.out, client.calls) == (2, "", [])
    assert ran.err.startswith(f"error: {doing} needs --yes when nobody can be asked\n hint: ")


def on_terminal(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Somebody sits there and types."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)


@pytest.mark.parametrize(("typed", "code", "cancelled"), [("y\n", 0, 1), ("n\n", 130, 0), ("", 130, 0)])
def test_a_terminal_is_asked(
    client,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: str,
    code: int,
    cancelled: int,
) -> None:
    from gossipq_cli.main import main

    client.answers["record.cancel"] = "orders/0/17"
    on_terminal(monkeypatch, typed)
    assert main(["msg", "rm", "orders/0/17"]) == code
    assert len(client.called("record.cancel")) == cancelled
    out, err = capsys.readouterr()
    assert err.startswith("remove orders/0/17 for every group? [y/N]: ")
    assert out == "removed orders/0/17\n" * cancelled


def test_msg_rm_partly(client, gossipq) -> None:
    def cancel(name: str, reason: str) -> str:
        if name == "orders/0/18":
            raise errors.WrongState("orders/0/18 is acked by all groups", "nothing to do")
        return name

    client.answers["record.cancel"] = cancel
    ran = gossipq("msg", "rm", "orders/0/17", "orders/0/18", "--yes")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == (
        "orders/0/18: orders/0/18 is acked by all groups\n"
        "error: 1 of 2 removed: orders/0/18 is acked by all groups\n"
        " hint: nothing to do\n"
    )
    assert client.called("record.cancel")[0] == ((), {"name": "orders/0/17", "reason": "removed"})
    assert gossipq("msg", "rm", "orders/0/18", "--yes").code == 5
    assert gossipq("msg", "rm", "orders/0/17", "orders/0/19", "--yes").out == "removed 2 records\n"


def test_msg_reschedule(client, gossipq) -> None:
    client.answers["record.reschedule"] = "orders/0/@210.3"
    assert (
        gossipq("msg", "reschedule", "orders/0/@210.3", "--delay", "5m").out
        == "orders/0/@210.3 is due in 300 s\n"
    )
    assert client.calls == [("record.reschedule", (), {"name": "orders/0/@210.3", "delay": 300.0})]
    ran = gossipq("msg", "reschedule", "orders", "--id", "r-1", "--at", "2026-11-22T08:00Z")
    assert ran.code == 0
    options = client.calls[-1][2]
    assert options == {"name": "orders", "id": "r-1", "at": datetime(2026, 11, 22, 8, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ((), "give --delay or --at"),
        (("--delay", "1", "--at", "2026-11-22"), "give --delay or --at"),
        (("--delay", "-5"), "Invalid value for '--delay': -5.0 is negative"),
        (("--delay", "nan"), "Invalid value for '--delay': nan is not a duration"),
        (("--delay", "inf"), "Invalid value for '--delay': inf is too long"),
        (("--at", "tomorrow"), "Invalid value for '--at': 'tomorrow' is no time; write 2026-11-21T09:00Z"),
    ],
)
def test_msg_reschedule_wrong_lines(client, gossipq, line: tuple[str, ...], says: str) -> None:
    ran = gossipq("msg", "reschedule", "orders/0/@210.3", *line)
    assert (ran.code, ran.out, client.calls) == (2, "", [])
    assert ran.err.startswith(f"error: {says}")


def test_msg_requeue(client, gossipq) -> None:
    client.answers["record.requeue"] = "orders/0/17"
    assert (
        gossipq("msg", "requeue", "orders/0/17", "-g", "billing").out == "orders/0/17 is ready for billing\n"
    )
    assert client.calls == [("record.requeue", (), {"name": "orders/0/17", "group": "billing"})]
    ran = gossipq("msg", "requeue", "orders/0/17")
    assert (ran.code, ran.err.splitlines()[0]) == (2, "error: Missing option '-g' / '--group'")


def test_msg_edit(client, gossipq) -> None:
    client.answers["record.edit"] = receipt()
    ran = gossipq("msg", "edit", "orders/0/17", "18 apples")
    assert ran == (0, "orders/0/17 is void, orders/0/18 replaces it\n", "")
    assert client.calls == [("record.edit", (), {"name": "orders/0/17", "value": b"18 apples"})]
    ran = gossipq("msg", "edit", "orders", "--id", "order-17", "-", "-H", "a:b", "-o", "json", stdin=b"\xff")
    assert json.loads(ran.out) == {"ref": "orders/0/18", "partition": 0, "offset": 18}
    assert client.calls[-1] == (
        "record.edit",
        (),
        {"name": "orders", "id": "order-17", "value": b"\xff", "headers": {"a": "b"}},
    )
    assert gossipq("msg", "edit", "orders/0/17", "-H", "a:b").code == 0
    assert client.calls[-1] == ("record.edit", (), {"name": "orders/0/17", "headers": {"a": "b"}})
    ran = gossipq("msg", "edit", "orders/0/17")
    assert (ran.code, ran.err.splitlines()[0]) == (
        2,
        "error: nothing to change: give a BODY, - for stdin, or -H",
    )
