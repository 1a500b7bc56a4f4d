"""Forms of an answer."""

import json

import pytest

from gossipq.texts import brief, many, moment, printable, readable, size, typed
from gossipq_cli.options import Choices
from gossipq_cli.output import Column, Output, counter

ROWS = [{"topic": "orders", "records": 1234567}, {"topic": "b", "records": 0}]
COLUMNS = [Column("topic"), counter("records")]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("table", "topic     records\norders  1,234,567\nb               0\n"),
        ("json", '[{"topic":"orders","records":1234567},{"topic":"b","records":0}]\n'),
        ("jsonl", '{"topic":"orders","records":1234567}\n{"topic":"b","records":0}\n'),
        ("names", "orders\nb\n"),
    ],
)
def test_rows(form: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Output(Choices(output=form)).rows(COLUMNS, ROWS)
    assert capsys.readouterr() == (text, "")


@pytest.mark.parametrize(("form", "text"), [("table", ""), ("json", "[]\n"), ("jsonl", ""), ("names", "")])
def test_no_rows(form: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Output(Choices(output=form)).rows(COLUMNS, [])
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("table", "a  1\nbb 2\n".replace("a  1", "a   1").replace("bb 2", "bb  2")),
        ("json", '{"a":1,"bb":2}\n'),
        ("names", "me\n"),
    ],
)
def test_one(form: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Output(Choices(output=form)).one({"a": 1, "bb": 2}, name="me")
    assert capsys.readouterr().out == text


def test_a_terminal_gets_borders(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossipq_cli.output.is_terminal", lambda stream: True)
    Output(Choices()).rows(COLUMNS, [{"topic": "[red]x", "records": 1}])
    out = capsys.readouterr().out
    assert out.startswith("╭")
    assert "[red]x" in out


def test_names_in_wide_letters_keep_the_columns_straight(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Choices()).rows(COLUMNS, [{"topic": "注文", "records": 1}, {"topic": "éa", "records": 20}])
    assert capsys.readouterr().out == "topic  records\n注文         1\néa          20\n"


EVIL = "a\x1b[2J\u202eb\n\x9b\U000e0041é注"


@pytest.mark.parametrize("form", ["table", "names", "json", "jsonl"])
def test_nothing_that_a_terminal_obeys_is_shown(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(Choices(output=form))
    out.rows([Column("topic")], [{"topic": EVIL}])
    out.one({"topic": EVIL}, name=EVIL)
    out.say(EVIL)
    shown, said = capsys.readouterr()
    assert all(line.isprintable() for line in (shown + said).split("\n"))
    assert "é注" in shown
    if form == "json":
        assert json.loads(shown.splitlines()[0]) == [{"topic": EVIL}]


def test_a_terminal_is_shown_escapes_in_borders(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossipq_cli.output.is_terminal", lambda stream: True)
    Output(Choices(color=False)).rows([Column("topic")], [{"topic": EVIL}])
    assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))


def test_printable() -> None:
    assert printable("plain é 注文") == "plain é 注文"
    assert printable("a\tb\nc\r") == "a\\tb\\nc\\r"
    assert printable("a\tb\nc\r", keep="\n\t") == "a\tb\nc\\r"
    assert readable(b"17 \xff\x00 \xc3\xa9") == "17 \\xff\\x00 é"
    assert brief(b"x" * 60) == "x" * 60
    assert brief(b"x" * 61) == "x" * 60 + "..."
    assert brief(bytes(100_000)) == "\\x00" * 15 + "..."


def test_colours_only_on_a_terminal_that_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Output(Choices()).paint("dead", "red") == "dead"
    monkeypatch.setattr("gossipq_cli.output.is_terminal", lambda stream: True)
    assert Output(Choices()).paint("dead", "red") == "\x1b[31m\x1b[1mdead\x1b[0m"
    assert Output(Choices(color=False)).paint("dead", "red") == "dead"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Output(Choices()).paint("dead", "red") == "dead"


def test_moment_and_many() -> None:
    assert moment(1_767_323_045_678) == "2026-01-02 03:04:05.678Z"
    assert moment(0) == "1970-01-01 00:00:00.000Z"
    assert moment(2**62) == f"{2**62} ms"
    assert [many(count, "record") for count in (0, 1, 1_200)] == ["0 records", "1 record", "1,200 records"]


def test_remarks_go_to_stderr_and_quiet_keeps_them(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Choices()).say("hm")
    Output(Choices(quiet=True)).say("hm")
    Output(Choices()).detail("more")
    Output(Choices(verbose=True)).detail("more")
    assert capsys.readouterr() == ("", "hm\nmore\n")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (1 << 50, "1024.0 TiB")],
)
def test_size(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value_ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_500, "1.5s"),
        (60_000, "1m"),
        (5_400_000, "1h30m"),
        (604_800_000, "7d"),
        (90_061_000, "1d1h"),
    ],
)
def test_span(value_ms: int, text: str) -> None:
    assert typed(value_ms) == text


LAG = (
    "group",
    "topic",
    "lag",
    "ready",
    "in_flight",
    "retrying",
    "parked",
    "acked",
    "dead",
    "redelivered",
    "consumers",
)
LAGS = [
    dict.fromkeys(LAG[2:], 1_234_567 + number) | {"group": f"billing-{number}", "topic": "orders"}
    for number in range(3)
]


def lag_table(
    columns: int,
    rows: list[dict[str, object]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    monkeypatch.setattr("gossipq_cli.output.is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    Output(Choices(color=False)).rows([Column("group"), Column("topic"), *map(counter, LAG[2:])], rows)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    return out


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 140, 200])
def test_no_number_is_broken_in_a_narrow_terminal(columns: int, capsys, monkeypatch) -> None:
    out = lag_table(columns, LAGS, capsys, monkeypatch)
    for row in LAGS:
        assert out.count(f"{row['lag']:,}") == 9
    assert "…" not in out


def test_heads_are_folded_before_rows_are_turned(capsys, monkeypatch) -> None:
    small = [dict.fromkeys(LAG[2:], 7) | {"group": "billing", "topic": "orders"}]
    wide = lag_table(140, small, capsys, monkeypatch)
    assert "in_flight" in wide
    folded = lag_table(105, small, capsys, monkeypatch)
    assert folded.startswith("╭")
    assert "in_flight" not in folded
    turned = lag_table(80, small, capsys, monkeypatch)
    assert turned.splitlines()[:3] == ["group        billing", "topic         orders", "lag                7"]


@pytest.mark.parametrize("width", range(60, 130))
def test_a_table_has_its_right_border_in_any_terminal(width: int, capsys, monkeypatch) -> None:
    monkeypatch.setattr("gossipq_cli.output.is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", str(width))
    columns = [Column("session"), Column("client"), *map(counter, ("connections", "in_flight", "acked"))]
    row = {"session": "bae8baf1", "client": "gossipq-19148@vm", "connections": 3, "in_flight": 0, "acked": 0}
    Output(Choices(color=False)).rows([*columns, Column("consuming")], [row | {"consuming": "a topic"}])
    lines = capsys.readouterr().out.splitlines()
    if lines[0].startswith("╭"):
        assert {line[-1] for line in lines} == set("╮│┤╯")
        assert len(set(map(len, lines))) == 1
        assert len(lines[0]) <= width


def test_a_key_that_nearly_fits_is_not_folded_for_the_sake_of_a_long_text(capsys, monkeypatch) -> None:
    monkeypatch.setattr("gossipq_cli.output.is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "80")
    row = {"key": "cluster.quota.address_subscriptions", "changes": "never: it is settled " * 4}
    Output(Choices(color=False)).rows([Column("key"), Column("changes")], [row])
    assert "│ cluster.quota.address_subscriptions │" in capsys.readouterr().out


def test_turned_rows_stand_side_by_side_as_far_as_there_is_room(capsys, monkeypatch) -> None:
    out = lag_table(40, LAGS, capsys, monkeypatch).splitlines()
    assert out[0] == "group        billing-0  billing-1"
    assert out[len(LAG)] == ""
    assert out[len(LAG) + 1] == "group        billing-2"
